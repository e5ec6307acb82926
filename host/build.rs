//! With the feature `embed-kernels`: compresses the compiled kernels and lists them for `include!`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "embed-kernels")]
    if let Err(error) = embed::run() {
        println!("cargo::error={error}");
    }
}

#[cfg(feature = "embed-kernels")]
mod embed {
    use std::fmt::Write as _;
    use std::io::Write as _;
    use std::path::{Path, PathBuf};
    use std::{env, fs, io};

    use flate2::Compression;
    use flate2::write::DeflateEncoder;

    /// The same names as in `src/artefacts.rs`.
    const FOLDER_VARIABLE: &str = "SPLITKV_KERNELS";
    const MANIFEST: &str = "manifest.json";

    /// Writes `embedded.rs`, an array of names and compressed contents, and the contents beside it.
    pub(crate) fn run() -> Result<(), String> {
        println!("cargo::rerun-if-env-changed={FOLDER_VARIABLE}");
        let folder = match env::var_os(FOLDER_VARIABLE) {
            Some(folder) => PathBuf::from(folder),
            None => Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("kernels"),
        };
        let manifest = folder.join(MANIFEST);
        println!("cargo::rerun-if-changed={}", manifest.display());
        if !manifest.is_file() {
            return Err(format!(
                "feature embed-kernels: no {MANIFEST} in {}; build the kernels with `cargo xtask build-kernels`, or \
                 name their folder in {FOLDER_VARIABLE}",
                folder.display()
            ));
        }
        let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
        pack(&folder, &out).map_err(|error| format!("feature embed-kernels: {}: {error}", folder.display()))
    }

    fn pack(folder: &Path, out: &Path) -> io::Result<()> {
        let mut names = vec![MANIFEST.to_owned()];
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                let target = entry.file_name();
                for file in fs::read_dir(entry.path())? {
                    names.push(format!("{}/{}", target.display(), file?.file_name().display()));
                }
            }
        }
        names.sort();
        let mut list = String::from("&[\n");
        for (index, name) in names.iter().enumerate() {
            let packed = out.join(format!("{index}.deflate"));
            let mut encoder = DeflateEncoder::new(fs::File::create(&packed)?, Compression::default());
            encoder.write_all(&fs::read(folder.join(name))?)?;
            encoder.finish()?;
            writeln!(list, "    ({name:?}, include_bytes!({:?})),", packed.display().to_string())
                .map_err(io::Error::other)?;
        }
        list.push(']');
        fs::write(out.join("embedded.rs"), list)
    }
}
