//! Where things are, and how child processes are started.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// The workspace's root folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask/ lies in the workspace")
}

/// The folder for everything that is made here and can be made again.
pub(crate) fn target_dir() -> PathBuf {
    root().join("target")
}

/// `cargo`, in the workspace, with the toolchain that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root());
    command
}

/// Runs `command` and returns what it printed; an error holds its error output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("cannot run {}", name(command)))?;
    if !status.success() {
        bail!("{} failed ({status}): {}", name(command), String::from_utf8_lossy(&stderr).trim());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Runs `command` with its output on this program's; an error if it fails.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot run {}", name(command)))?;
    if !status.success() {
        bail!("{} failed ({status})", name(command));
    }
    Ok(())
}

/// The command's program and first arguments, for messages.
fn name(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args().take(3));
    format!("`{}`", words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
}

/// Writes a file whole or not at all.
pub(crate) fn write_whole(path: &Path, contents: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    fs::write(&part, contents)
        .and_then(|()| fs::rename(&part, path))
        .with_context(|| format!("writing {}", path.display()))
}
