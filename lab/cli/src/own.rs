//! Kernels of the user: declarations of PTX and CUDA C++, and Python functions.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use flashcore::{Device, Problem};
use flashcore_bench::own::{Trust, target_of};
use flashcore_bench::process::Program;
use flashcore_bench::{Case, Options, Own, Request};
use flashcore_check::own::{self, Declared, OwnError, Template, check_declared};
use flashcore_check::{CheckOptions, CheckReport};
use flashcore_ir::Target;
use flashcore_tune::OwnKernels;

use crate::quantity::deadline;
use crate::{Card, Failure, bench, kernels, simulated, style, worker};

/// Time for the rounds of a kernel that is only to be judged, milliseconds.
const JUDGING_MS: f64 = 50.0;

/// Kernels of the user among those of a command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Kernels of your own")]
pub(crate) struct OwnArgs {
    /// Let the files run that --kernel names, and remember their content
    ///
    /// FILE.toml declares PTX, FILE.py:FUNCTION is a Python function (docs/own-kernel.md).
    #[arg(long)]
    trust: bool,
    /// Time after which a run of one counts as hung
    ///
    /// In addition to what the problem's size needs; its first call may take 6 times as long, building it 30 times.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = deadline)]
    deadline: Duration,
}

/// What was found of a kernel of the user on a problem.
pub(crate) enum Judged {
    Right,
    /// It raised an error, which says that it does not serve the problem.
    NotServed(String),
    Wrong(String),
}

impl OwnArgs {
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Words of a command line as ids, and the kernels of the user among them, which may run.
    pub(crate) fn ids(&self, words: &[String], device: &Device) -> Result<(Vec<String>, Vec<Own>), Failure> {
        self.ids_for(words, None, target_of(device))
    }

    /// The same for a card that is not here, for which nothing runs.
    pub(crate) fn ids_for_card(&self, words: &[String], card: Card) -> Result<(Vec<String>, Vec<Own>), Failure> {
        self.ids_for(words, Some(card), card.chip.target)
    }

    fn ids_for(
        &self,
        words: &[String],
        card: Option<Card>,
        target: Target,
    ) -> Result<(Vec<String>, Vec<Own>), Failure> {
        let (mut ids, mut all) = (Vec::new(), Vec::<Own>::new());
        for word in words {
            if !Own::is_named(word) {
                ids.extend(kernels::ids(std::slice::from_ref(word), card)?);
                continue;
            }
            let own = Own::read(word, target)?;
            if card.is_none() {
                may_run(self.trust, (&own.label, &own.sha256), &own.file, &own.does())?;
            }
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

    /// Declared kernels of the user as candidates of `tune`. They may run, or `only_simulated` they need not.
    pub(crate) fn candidates(words: &[String], trust: bool, only_simulated: bool) -> Result<OwnKernels, Failure> {
        let mut templates = Vec::<Template>::new();
        for word in words {
            let (file, (template, bytes)) = match (own::named(word), own::function(word)) {
                (Some((file, "")), _) => (file, Template::read(Path::new(file))?),
                (_, Some((file, name))) if !name.is_empty() => (file, Template::of_function(Path::new(file), name)?),
                _ => {
                    let why = format!(
                        "--kernel {word}: allowed are FILE.toml, the declaration of a kernel of your own, and \
                         FILE.py:FUNCTION, a function of Triton that has one"
                    );
                    return Err(Failure::usage(why));
                }
            };
            let file = Path::new(file);
            if !only_simulated {
                let file = std::path::absolute(file).map_err(Failure::failed)?;
                let does = format!("compiles what {} names, and launches it on the GPU", file.display());
                may_run(trust, (&template.label, &own::sha256(bytes)), &file, &does)?;
            }
            if templates.iter().any(|other| other.label == template.label) {
                let why = format!("two kernels have one name, {}", template.label);
                return Err(Failure::usage(why).help("give a declaration a `name`"));
            }
            templates.push(template);
        }
        Ok(OwnKernels::new(templates)?)
    }

    /// Judges a kernel in another process, which it may hang or crash, on problems up to the one on which it does so.
    pub(crate) fn judged(&self, device: &Device, cases: &[Case], own: &Own) -> Result<Vec<Judged>, Failure> {
        let request = Request {
            cases: cases.to_vec(),
            kernels: vec![own.label.clone()],
            options: Options {
                budget_ms: JUDGING_MS,
                ..Options::default()
            },
            own: vec![own.clone()],
            ..Request::default()
        };
        let report = bench::measure(&Ok(None), device, &request, (&[], self.deadline()), None, &mut ())?;
        let mut all = Vec::new();
        for case in cases {
            let result = report.results.iter().find(|result| result.case == *case);
            let why = result.map_or_else(|| Some(style::list(&report.notes)), |result| result.why_not(&own.label));
            let timed = result.is_some_and(|result| result.absent.iter().all(|(label, _)| *label != own.label));
            match (why, report.failed.first()) {
                (None, _) => all.push(Judged::Right),
                (Some(_), Some((_, reason))) => {
                    all.push(Judged::Wrong(reason.clone()));
                    break;
                }
                (Some(why), None) if timed => all.push(Judged::Wrong(why)),
                (Some(why), None) => all.push(Judged::NotServed(why)),
            }
        }
        Ok(all)
    }
}

/// Whether a user's kernel, by its label and its SHA-256, may run: it is trusted, or is from now on. `does` says what
/// the command does with it.
pub(crate) fn may_run(is_trusted: bool, (label, sha256): (&str, &str), file: &Path, does: &str) -> Result<(), Failure> {
    let trust = Trust::of_user()?;
    if is_trusted {
        return Ok(trust.add(sha256, file)?);
    }
    if trust.knows(sha256)? {
        return Ok(());
    }
    let why = format!("{label} is not trusted: this command {does}");
    let (sum, list) = (&sha256[..12], trust.file().display());
    let mut help =
        format!("read it, then add --trust, once for this content (SHA-256 {sum}…), which is remembered in {list}");
    if file.extension().is_some_and(|extension| extension == "toml") {
        help += "; `flashcore check --kernel FILE.toml` simulates PTX without that";
    }
    Err(Failure::usage(why).help(help))
}

/// This program as the process of a bench with kernels of the user.
pub(crate) fn child() -> Result<Program, Failure> {
    let mut program = worker::program()?;
    program.args.push(OsString::from("--bench"));
    Ok(program)
}

/// Whether a request has functions in Python.
pub(crate) fn has_python(request: &Request) -> bool {
    request.own.iter().any(Own::is_python)
}

impl From<OwnError> for Failure {
    fn from(error: OwnError) -> Failure {
        match error {
            OwnError::Declaration(..) => Failure::usage(error).help("docs/own-kernel.md lists the keys"),
            OwnError::Values(_) => Failure::usage(error),
            _ => Failure::failed(error),
        }
    }
}

/// Simulates a declared kernel and judges its output.
pub(crate) fn check(file: &str, problem: &Problem, card: Card, options: &CheckOptions) -> Result<CheckReport, Failure> {
    let target = card.chip.target;
    let (declared, _) = Declared::read(file, target)?;
    let blocks = options.blocks_of([&declared.launch(problem)?]);
    let check = |options: &CheckOptions| check_declared(&declared, problem, target, options);
    Ok(simulated::watched(
        declared.label.clone(),
        blocks,
        None,
        options,
        check,
    )?)
}
