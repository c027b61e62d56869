//! Why a command did not do what it was asked, and what it exits with.

use std::process::ExitCode;

use flashcore::{Error, ProblemError};
use flashcore_cpu::CpuError;
use flashcore_cuda::CudaError;

use crate::args::similar_problems;
use crate::in_place;
use crate::style::{self, BAD, GOOD};
use crate::tune::interrupt::INTERRUPTED;

/// How a command that ran ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything is right.
    Clean,
    /// It ran and found something wrong, and has said so.
    Findings,
    /// Somebody ended it, and it has said what was kept.
    Interrupted,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        match outcome {
            Outcome::Clean => ExitCode::SUCCESS,
            Outcome::Findings => ExitCode::from(1),
            Outcome::Interrupted => ExitCode::from(INTERRUPTED),
        }
    }
}

/// Whose fault it is that a command could not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Failed,
    Usage,
    Environment,
}

/// Why a command could not run.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: Kind,
    message: String,
    help: Option<String>,
    left: Option<String>,
}

impl Failure {
    /// What was asked cannot be done.
    pub(crate) fn failed(message: impl ToString) -> Failure {
        Failure::new(Kind::Failed, message)
    }

    /// What was asked makes no sense.
    pub(crate) fn usage(message: impl ToString) -> Failure {
        Failure::new(Kind::Usage, message)
    }

    /// The machine cannot do it.
    pub(crate) fn environment(message: impl ToString) -> Failure {
        Failure::new(Kind::Environment, message)
    }

    fn new(kind: Kind, message: impl ToString) -> Failure {
        Failure {
            kind,
            message: message.to_string(),
            help: None,
            left: None,
        }
    }

    /// What went wrong.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Adds what to do about it.
    pub(crate) fn help(mut self, help: impl ToString) -> Failure {
        self.help = Some(help.to_string());
        self
    }

    /// Adds lines on what is left of what was done, and how to go on with it: printed as they are.
    pub(crate) fn left(mut self, left: String) -> Failure {
        self.left = Some(left);
        self
    }

    /// The exit code, after printing what went wrong to standard error.
    pub(crate) fn report(&self) -> ExitCode {
        let mut text = style::wrap(&format!("{BAD}error{BAD:#}: {}", self.message), 2);
        if let Some(help) = &self.help {
            text.push_str(&style::wrap(&format!("  {GOOD}help{GOOD:#}: {help}"), 4));
        }
        text.push_str(self.left.as_deref().unwrap_or_default());
        style::eprint(&text);
        match self.kind {
            Kind::Failed => ExitCode::from(1),
            Kind::Usage => ExitCode::from(2),
            Kind::Environment => ExitCode::from(3),
        }
    }
}

impl From<ProblemError> for Failure {
    fn from(error: ProblemError) -> Failure {
        if let ProblemError::UnknownName { given, .. } = &error {
            if let Some(failure) = in_place::of_name(given) {
                return failure;
            }
            let help = match similar_problems(given).as_slice() {
                [] => "`flashcore list problems` shows them with their shapes".to_string(),
                names => format!("did you mean {}?", names.join(", ")),
            };
            return Failure::usage(error).help(help);
        }
        Failure::usage(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Problem(error) => error.into(),
            Error::UnknownKernel(_) | Error::Cpu(CpuError::ConfigId { .. }) => {
                Failure::usage(error).help("`flashcore list kernels` shows them all")
            }
            Error::KernelOfOtherDevice { .. } | Error::Cpu(CpuError::Config { .. }) | Error::Plans(_) => {
                Failure::usage(error)
            }
            Error::UnknownDevice { given } => Failure::usage(format!(
                "no device is named `{given}`; allowed: best, cpu, cuda, cuda:N, and sim (the simulator)"
            )),
            Error::Cuda(CudaError::NoSuchDevice { .. }) => Failure::new(Kind::Environment, error),
            _ if error.is_environment() => {
                Failure::new(Kind::Environment, error).help("`--device cpu` and `--device sim` need no GPU")
            }
            _ => Failure::failed(error),
        }
    }
}

impl From<CudaError> for Failure {
    fn from(error: CudaError) -> Failure {
        Error::from(error).into()
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Failure {
        Failure::failed(error)
    }
}
