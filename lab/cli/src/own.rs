//! Kernels of the user: declarations of PTX, and Python functions.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use flashcore::Problem;
use flashcore_bench::child::Child;
use flashcore_bench::own::Trust;
use flashcore_bench::{Own, Request};
use flashcore_check::own::{Declared, OwnError, check_declared};
use flashcore_check::{CheckOptions, CheckReport};

use crate::{Card, Failure, kernels, simulated, worker};

/// Kernels of the user among those of a command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Kernels of your own")]
pub(crate) struct OwnArgs {
    /// Let the files run that --kernel names, and remember their content: FILE.toml declares PTX,
    /// FILE.py:FUNCTION is a Python function (docs/own-kernel.md)
    #[arg(long)]
    trust: bool,
    /// Seconds after which a run of one counts as hung, in addition to what the problem's size needs; its
    /// first call may take 6 times as long, building it 30 times
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    deadline: u64,
}

impl OwnArgs {
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline)
    }

    /// Words of a command line as ids, and the kernels of the user among them, which may run.
    pub(crate) fn ids(&self, words: &[String]) -> Result<(Vec<String>, Vec<Own>), Failure> {
        let (mut ids, mut all) = (Vec::new(), Vec::<Own>::new());
        for word in words {
            if !Own::is_named(word) {
                ids.extend(kernels::ids(std::slice::from_ref(word))?);
                continue;
            }
            let own = Own::read(word)?;
            self.may_run(&own)?;
            if let Some(other) = all.iter().find(|other| other.label == own.label && **other != own) {
                let (one, other) = (own.file.display(), other.file.display());
                let why = format!("{one} and {other} have one name, {}", own.label);
                return Err(Failure::usage(why).help("rename a file, or give a declaration a `name`"));
            }
            ids.push(own.label.clone());
            if !all.contains(&own) {
                all.push(own);
            }
        }
        Ok((ids, all))
    }

    fn may_run(&self, own: &Own) -> Result<(), Failure> {
        let trust = Trust::of_user()?;
        if self.trust {
            return Ok(trust.add(&own.sha256, &own.file)?);
        }
        if trust.knows(&own.sha256)? {
            return Ok(());
        }
        let why = format!("{} is not trusted: this command {}", own.label, own.does());
        let (sum, list) = (&own.sha256[..12], trust.file().display());
        let help = format!(
            "read it, then add --trust, once for this content (SHA-256 {sum}…), which is remembered in {list}; `flashcore \
             check --kernel FILE.toml` simulates PTX without that"
        );
        Err(Failure::usage(why).help(help))
    }
}

/// This program as the process of a bench with kernels of the user.
pub(crate) fn child() -> Result<Child, Failure> {
    let program = worker::program()?;
    let args = program.args.into_iter().chain([OsString::from("--bench")]);
    Ok(Child {
        program: program.path.into_os_string(),
        args: args.collect(),
    })
}

/// Whether a request has functions in Python.
pub(crate) fn has_python(request: &Request) -> bool {
    request.own.iter().any(Own::is_python)
}

impl From<OwnError> for Failure {
    fn from(error: OwnError) -> Failure {
        match error {
            OwnError::Declaration(..) => Failure::usage(error).help("docs/own-kernel.md lists the keys"),
            _ => Failure::failed(error),
        }
    }
}

/// Simulates a declared kernel and judges its output.
pub(crate) fn check(file: &str, problem: &Problem, card: Card, options: &CheckOptions) -> Result<CheckReport, Failure> {
    let (declared, _) = Declared::read(Path::new(file))?;
    let step = declared.step(problem)?;
    let blocks = options.total_blocks([&step]);
    let target = card.chip.target;
    let check = |options: &CheckOptions| check_declared(&declared, problem, target, options);
    Ok(simulated::watched(
        declared.label.clone(),
        blocks,
        None,
        options,
        check,
    )?)
}
