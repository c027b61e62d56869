//! Tools for those who work on FlashCore: random programs for the simulator and a GPU, measurements
//! that leave evidence. One program with subcommands, so that there is one link.

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;

mod cost_error;
mod differential;
mod dump_ptx;
pub mod files;
pub mod shipped;

/// How a tool ends: `FAILURE` where it ran and found something wrong.
type Ran = Result<ExitCode, Box<dyn Error>>;

/// The end of a tool that ran.
fn verdict(passed: bool) -> Ran {
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Tools for those who work on FlashCore.
#[derive(Debug, Parser)]
#[command(name = "flashcore-tools")]
enum Tool {
    CostError(cost_error::Options),
    Differential(differential::Options),
    DumpPtx(dump_ptx::Options),
    FuzzFiles(files::Options),
}

/// Runs the tool that the arguments of this process name.
pub fn run() -> ExitCode {
    let ran = match Tool::parse() {
        Tool::CostError(options) => cost_error::main(&options),
        Tool::Differential(options) => differential::main(&options),
        Tool::DumpPtx(options) => dump_ptx::main(&options),
        Tool::FuzzFiles(options) => files::main(&options),
    };
    ran.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::from(2)
    })
}

/// The Rust of the repository's README is compiled with the documentation tests: here, as no published crate has that
/// file.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
