//! Runs the built command, away from the machine's GPUs, settings and terminal.

pub(crate) mod json;

use std::process::{Command, Stdio};

/// What came of a command.
pub(crate) struct Ran {
    /// Exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

/// The command with these arguments, not yet run.
pub(crate) fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashcore"));
    command
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        // No GPU and no offline assembler, so that tests say the same everywhere.
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("PATH", "")
        .env("FLASHCORE_PLANS", "shipped")
        .env_remove("FLASHCORE_PTXAS")
        .env_remove("NO_COLOR")
        .env_remove("CARGO")
        .env_remove("COLUMNS");
    command
}

/// Runs the command with these arguments, separated by spaces.
pub(crate) fn flashcore(arguments: &str) -> Ran {
    run(&mut command(arguments))
}

/// Runs a command.
pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.output().expect("the command starts");
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("errors are UTF-8"),
    }
}
