//! `flashcore worker`: runs the candidates of a search in its own process.

use std::time::Instant;

use clap::Args;
use flashcore_bench::process::Program;
use flashcore_tune::rates;

use crate::{Failure, Outcome, profile, style};

#[derive(Args)]
pub(crate) struct WorkerArgs {
    /// Run one bench with kernels of the user, for `flashcore bench`, which starts it
    #[arg(long)]
    bench: bool,
    /// Launch a kernel, given as JSON, for `flashcore profile`, which starts it under ncu
    #[arg(long, value_name = "JSON")]
    launch: Option<String>,
}

pub(crate) fn run(args: &WorkerArgs) -> Result<Outcome, Failure> {
    if args.bench {
        flashcore_bench::child::serve(std::io::stdin(), std::io::stdout()).map_err(Failure::failed)?;
        return Ok(Outcome::Clean);
    }
    if let Some(launch) = &args.launch {
        return profile::launch(launch);
    }
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

/// Measures and keeps the rates of a GPU, if none are kept that hold.
pub(crate) fn measure_once(device: &str, is_reported: bool) -> Result<(), Failure> {
    let Some(name) = rates::unmeasured(device) else {
        return Ok(());
    };
    let spinner = style::spinner(&format!("measuring {name}"));
    let started = Instant::now();
    let measured = rates::measure(&program()?, device);
    drop(spinner);
    let seconds = style::digits3(started.elapsed().as_secs_f64());
    match measured {
        Ok(()) if is_reported => style::note(format_args!(
            "measured the rates of {name} in {seconds} s; `flashcore device` shows them, later searches use them"
        )),
        Ok(()) => {}
        Err(why) => style::note(format_args!("the rates of {name} could not be measured: {why}")),
    }
    Ok(())
}
