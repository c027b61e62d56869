//! Tools for those who work on FlashCore: random programs on the simulator and a GPU, measurements
//! that leave evidence. One program with subcommands, so that there is one link.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

mod cost_error;
mod differential;
mod dump_ptx;
pub mod files;
pub mod fuzz;
mod measured_space;
mod pipes;
pub mod shipped;
mod sim_speed;

/// How a tool ends: `FAILURE` where it ran and found something wrong.
type Ran = Result<ExitCode, Box<dyn Error>>;

/// The end of a tool that ran.
fn verdict(passed: bool) -> Ran {
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The program `flashcore`, for a tool that starts it: the one that was given, or the one in this program's folder.
fn flashcore(given: Option<&Path>) -> Result<PathBuf, Box<dyn Error>> {
    let path = match given {
        Some(path) => path.to_path_buf(),
        None => std::env::current_exe()?.with_file_name("flashcore"),
    };
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "there is no file {}: build it (cargo build --release -p flashcore-cli), or name one with --flashcore",
            path.display()
        )
        .into()),
    }
}

/// Tools for those who work on FlashCore.
#[derive(Debug, Parser)]
#[command(name = "flashcore-tools")]
enum Tool {
    CostError(cost_error::Options),
    Differential(differential::Options),
    DumpPtx(dump_ptx::Options),
    Fuzz(fuzz::command::Options),
    FuzzFiles(files::Options),
    MeasuredSpace(measured_space::Options),
    Pipes(pipes::Options),
    /// Times the simulator on kernels of the mission problem, with one host thread.
    SimSpeed,
}

/// Runs the tool that the arguments of this process name.
pub fn run() -> ExitCode {
    let ran = match Tool::parse() {
        Tool::CostError(options) => cost_error::main(&options),
        Tool::Differential(options) => differential::main(&options),
        Tool::DumpPtx(options) => dump_ptx::main(&options),
        Tool::FuzzFiles(options) => files::main(&options),
        Tool::Fuzz(options) => fuzz::command::main(&options),
        Tool::MeasuredSpace(options) => measured_space::main(&options),
        Tool::Pipes(options) => pipes::main(&options),
        Tool::SimSpeed => sim_speed::main(),
    };
    ran.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(2)
    })
}

/// Writes a report as indented JSON.
fn write_json(path: &std::path::Path, report: &impl serde::Serialize) -> Result<(), Box<dyn Error>> {
    Ok(std::fs::write(path, serde_json::to_string_pretty(report)? + "\n")?)
}

/// The Rust of the repository's README is compiled with the documentation tests: here, as no published crate has that
/// file.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = flashcore(Some(Path::new("nowhere/flashcore"))).unwrap_err().to_string();
        assert!(
            error.contains("nowhere/flashcore") && error.contains("--flashcore"),
            "{error}"
        );
    }
}
