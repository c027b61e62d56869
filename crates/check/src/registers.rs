//! Registers of a kernel without a GPU, where NVIDIA's offline assembler is at hand.
//!
//! `ptxas` may not be redistributed; it is found at run time: `FLASHCORE_PTXAS`, else on `PATH`.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use flashcore_ir::{Kernel, Target};
use serde::Serialize;
use thiserror::Error;

/// What the assembler says about a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Registers {
    /// Registers a thread.
    pub per_thread: u32,
    /// Bytes a thread keeps in local memory for want of registers.
    pub spilled_bytes: u32,
    /// Who says so, such as `ptxas 13.0 for sm_89`.
    pub compiler: String,
}

/// Why registers are not known.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unknown {
    /// There is no assembler.
    #[error(
        "not known here: they are the compiler's choice; set FLASHCORE_PTXAS to a ptxas (in the PyPI package \
         nvidia-cuda-nvcc), or run on the GPU"
    )]
    NoAssembler,
    /// The assembler refused the kernel.
    #[error("{assembler} refuses the kernel: {message}")]
    Refused {
        /// Which one.
        assembler: String,
        /// Its words.
        message: String,
    },
    /// The assembler could not be run, or said nothing that is understood.
    #[error("{assembler} could not be used: {message}")]
    Broken {
        /// Which one.
        assembler: String,
        /// What happened.
        message: String,
    },
}

/// Assembles a kernel for an architecture and reads its registers off.
///
/// # Errors
/// Where there is no assembler, or it refuses.
pub fn offline(kernel: &Kernel, target: Target) -> Result<Registers, Unknown> {
    let asked = std::env::var_os("FLASHCORE_PTXAS").filter(|path| !path.is_empty());
    let path = asked.clone().map_or_else(|| PathBuf::from("ptxas"), PathBuf::from);
    let assembler = path.display().to_string();
    let broken = |message: String| Unknown::Broken {
        assembler: assembler.clone(),
        message,
    };
    let file = scratch_file(&kernel.to_ptx()).map_err(|error| broken(error.to_string()))?;
    let output = Command::new(&path)
        .args(["-v", "-arch", target.name(), "-o"])
        .arg(if cfg!(windows) { "NUL" } else { "/dev/null" })
        .arg(&file.0)
        .stdin(Stdio::null())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound && asked.is_none() => return Err(Unknown::NoAssembler),
        Err(error) => return Err(broken(error.to_string())),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(Unknown::Refused {
            assembler,
            message: text.trim().to_string(),
        });
    }
    let (per_thread, spilled_bytes) = parse(&text).ok_or_else(|| broken("it names no registers".to_string()))?;
    let version = version(&path).map_or(String::new(), |version| format!(" {version}"));
    Ok(Registers {
        per_thread,
        spilled_bytes,
        compiler: format!("ptxas{version} for {target}"),
    })
}

/// Registers and spilled bytes in what `ptxas -v` prints.
fn parse(text: &str) -> Option<(u32, u32)> {
    let before = |what: &str| {
        let words: Vec<&str> = text.get(..text.find(what)?)?.split_whitespace().collect();
        words.last()?.parse().ok()
    };
    Some((before(" registers")?, before(" bytes spill stores").unwrap_or(0)))
}

/// The release in what `ptxas --version` prints: `Cuda compilation tools, release 13.0, V13.0.48`.
fn version(path: &PathBuf) -> Option<String> {
    let output = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let release = text.split("release ").nth(1)?;
    Some(release.split(',').next()?.trim().to_string())
}

/// A file that is removed when it goes out of scope.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind in the folder for temporary files if it fails.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A new file of our own in the folder for temporary files: never one that is already there.
fn scratch_file(text: &str) -> std::io::Result<Scratch> {
    for attempt in 0.. {
        let name = format!("flashcore-{}-{attempt}.ptx", std::process::id());
        let path = std::env::temp_dir().join(name);
        match std::fs::OpenOptions::new().write(true).create_new(true).open(&path) {
            Ok(mut file) => {
                let scratch = Scratch(path);
                file.write_all(text.as_bytes())?;
                return Ok(scratch);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists && attempt < 1000 => {}
            Err(error) => return Err(error),
        }
    }
    Err(std::io::Error::from(ErrorKind::AlreadyExists))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_are_read_off() {
        let text = "ptxas info    : 0 bytes gmem\n\
                    ptxas info    : Compiling entry function 'tiled' for 'sm_89'\n\
                    ptxas info    : Function properties for tiled\n    \
                    0 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n\
                    ptxas info    : Used 96 registers, used 1 barriers, 476 bytes cmem[0]\n";
        assert_eq!(parse(text), Some((96, 12)));
        assert_eq!(parse("nothing"), None);
    }
}
