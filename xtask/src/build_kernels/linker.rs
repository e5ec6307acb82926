//! This program as rustc's linker for PTX.
//!
//! The PTX is rustc's assembly output; there is nothing to link. But cargo takes a build for unfinished,
//! and repeats it every time, unless the linker leaves the file that it was asked for.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::process::ExitCode;

/// The argument that asks this program to be a linker.
pub(crate) const FLAG: &str = "--splitkv-ptx-linker";

/// If rustc called this program as a linker: creates the output file.
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    if !arguments.iter().any(|argument| argument == FLAG) {
        return None;
    }
    let output = arguments.iter().skip_while(|argument| *argument != "-o").nth(1);
    match output.map(File::create) {
        Some(Ok(_)) => Some(ExitCode::SUCCESS),
        Some(Err(error)) => {
            eprintln!("cannot create the linker's output: {error}");
            Some(ExitCode::FAILURE)
        }
        None => {
            eprintln!("the linker was called without -o");
            Some(ExitCode::FAILURE)
        }
    }
}
