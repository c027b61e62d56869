//! `flashcore worker`: runs candidates for a search in another process.

use clap::Args;
use flashcore_tune::worker::Program;

use crate::failure::{Failure, Outcome};

/// Run candidates for `flashcore tune`, which starts it by itself
///
/// Takes a device and does what it is told, a JSON object a line on standard input, an answer a line
/// on standard output, until the input ends. docs/tune.md has the protocol.
#[derive(Args)]
pub(crate) struct WorkerArgs {}

pub(crate) fn run(_args: &WorkerArgs) -> Result<Outcome, Failure> {
    // Its parent is gone: whatever it computes, nobody wants it, and it may never end.
    let gone = || std::process::exit(0);
    flashcore_tune::worker::serve(std::io::stdin(), std::io::stdout(), gone).map_err(Failure::failed)?;
    Ok(Outcome::Clean)
}

/// This program as a worker.
pub(crate) fn program() -> Result<Program, Failure> {
    let path = std::env::current_exe().map_err(|error| Failure::environment(format!("this program: {error}")))?;
    Ok(Program {
        path,
        args: vec!["worker".into()],
        env: Vec::new(),
    })
}
