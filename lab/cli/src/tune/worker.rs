//! `flashcore worker`: runs the candidates of a search in its own process.

use clap::Args;
use flashcore_tune::worker::Program;

use crate::failure::{Failure, Outcome};

/// Run candidates for `flashcore tune`, which starts it
///
/// Reads one JSON object per line from standard input (a device first) and writes one reply per line to
/// standard output, until the input ends. docs/tune.md has the protocol.
#[derive(Args)]
pub(crate) struct WorkerArgs {}

pub(crate) fn run(_args: &WorkerArgs) -> Result<Outcome, Failure> {
    // The search has ended: the candidate's result is not needed, and it may never end.
    let gone = || std::process::exit(0);
    flashcore_tune::worker::serve(std::io::stdin(), std::io::stdout(), gone).map_err(Failure::failed)?;
    Ok(Outcome::Clean)
}

pub(crate) fn program() -> Result<Program, Failure> {
    let failed = |error| Failure::environment(format!("the path of this program is not known: {error}"));
    Ok(Program {
        path: std::env::current_exe().map_err(failed)?,
        args: vec!["worker".into()],
        env: Vec::new(),
    })
}
