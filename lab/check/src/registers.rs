//! Registers of a kernel without a GPU, from NVIDIA's offline assembler.
//!
//! `ptxas` must not be redistributed. It is searched at run time: `FLASHCORE_PTXAS`, then `PATH`.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flashcore_ir::ptx::log::JitLog;
use flashcore_ir::{Kernel, Target};
use serde::Serialize;
use tempfile::TempPath;
use thiserror::Error;

use crate::programs;

/// What an assembler has for one text.
const TO_ASSEMBLE: Duration = Duration::from_secs(600);

/// Registers of a kernel according to the assembler.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Registers {
    /// Registers per thread.
    pub per_thread: u32,
    /// Spilled bytes per thread.
    pub spilled_bytes: u32,
    /// The assembler, such as `ptxas 13.0 for sm_89`.
    pub compiler: String,
}

/// Why registers are unknown.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// No assembler was found.
    #[error(
        "not known here: they are the compiler's choice; set FLASHCORE_PTXAS to a ptxas (in the PyPI package \
         nvidia-cuda-nvcc), or run on the GPU"
    )]
    NoAssembler,
    /// The assembler refused the kernel.
    #[error("{0} refuses the kernel: {1}")]
    Refused(String, String),
    /// The assembler could not be run, or its output was not understood.
    #[error("{0} could not be used: {1}")]
    Broken(String, String),
}

/// How a PTX text is assembled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assembler {
    /// The ptxas of the compiler that wrote the text, for one that no variable names: it knows the version.
    pub path: Option<PathBuf>,
    /// Most registers of a thread.
    pub max_registers: Option<u32>,
}

/// Assembles a kernel for an architecture and returns its registers.
pub fn offline(kernel: &Kernel, target: Target) -> Result<Registers, Unknown> {
    assemble(&kernel.to_ptx(), kernel.name(), target, &Assembler::default()).map(|(registers, _)| registers)
}

fn named() -> Option<OsString> {
    std::env::var_os("FLASHCORE_PTXAS").filter(|path| !path.is_empty())
}

/// The assembler that a variable names, or of `PATH`, if it is there.
pub fn assembler() -> Option<PathBuf> {
    programs::find(&named().unwrap_or_else(|| "ptxas".into())).ok()
}

/// Assembles a PTX text and returns the registers of one of its kernels, and the bytes of static
/// shared memory that it declares.
pub fn assemble(ptx: &str, kernel: &str, target: Target, with: &Assembler) -> Result<(Registers, u32), Unknown> {
    let asked = named();
    let of_compiler = with.path.as_ref().map(|path| path.clone().into_os_string());
    let name = asked.clone().or(of_compiler).unwrap_or_else(|| "ptxas".into());
    let assembler = name.display().to_string();
    let broken = |message: String| Unknown::Broken(assembler.clone(), message);
    let path = programs::find(&name).map_err(|error| match error.kind() {
        ErrorKind::NotFound if asked.is_none() => Unknown::NoAssembler,
        _ => broken(error.to_string()),
    })?;
    let file = scratch_file(ptx).map_err(|error| broken(error.to_string()))?;
    let mut command = Command::new(&path);
    command
        .args(with.max_registers.map(|most| format!("--maxrregcount={most}")))
        .args(["-v", "-arch", target.name(), "-o"])
        .arg(if cfg!(windows) { "NUL" } else { "/dev/null" })
        .arg(&file);
    let ran = programs::run(&mut command, TO_ASSEMBLE).map_err(|error| broken(error.to_string()))?;
    let text = ran.stdout + &ran.stderr;
    if !ran.status.success() {
        let refusal = refusal(&text, &file.display().to_string());
        return Err(Unknown::Refused(assembler, refusal));
    }
    let log = JitLog::parse(&text).kernel(kernel).cloned().unwrap_or_default();
    let unnamed = || broken(format!("it names no registers of {kernel}"));
    let per_thread = log.registers.ok_or_else(unnamed)?;
    let spilled_bytes = log.spills.map_or(0, |(stores, _)| stores);
    let version = version(&path).map_or(String::new(), |version| format!(" {version}"));
    let compiler = format!("ptxas{version} for {target}");
    let registers = Registers {
        per_thread,
        spilled_bytes,
        compiler,
    };
    Ok((registers, log.static_shared_bytes.unwrap_or(0)))
}

/// The lines with errors, without the name of the scratch file.
fn refusal(text: &str, file: &str) -> String {
    let lines = text.lines().map(|line| line.replace(&format!("{file}, "), ""));
    const VAIN: [&str; 3] = [" info ", "aborted due to errors", "bytes stack frame"];
    let wrong = lines.filter(|line| !VAIN.iter().any(|vain| line.contains(vain)));
    let wrong = wrong.map(|line| line.trim_start_matches("ptxas ").trim().to_string());
    let wrong: Vec<String> = wrong.filter(|line| !line.is_empty()).collect();
    wrong.join("; ")
}

/// The release in the output of `ptxas --version`: `Cuda compilation tools, release 13.0,
/// V13.0.48`.
fn version(path: &Path) -> Option<String> {
    let ran = programs::run(Command::new(path).arg("--version"), programs::TO_ANSWER).ok()?;
    let release = ran.stdout.split("release ").nth(1)?;
    Some(release.split(',').next()?.trim().to_string())
}

/// A new file in the folder for temporary files, which is removed when it goes out of scope.
fn scratch_file(text: &str) -> std::io::Result<TempPath> {
    let mut file = tempfile::Builder::new()
        .prefix("flashcore-")
        .suffix(".ptx")
        .tempfile()?;
    file.write_all(text.as_bytes())?;
    Ok(file.into_temp_path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_without_our_file() {
        let text = "ptxas info    : 0 bytes gmem\nptxas /tmp/x.ptx, line 5; error   : Unknown symbol 'q'\n\
                    ptxas fatal   : Ptx assembly aborted due to errors\n";
        assert_eq!(refusal(text, "/tmp/x.ptx"), "line 5; error   : Unknown symbol 'q'");
    }
}
