//! Why a command failed, and its exit code.

use std::process::ExitCode;

use flashcore::{Error, ProblemError};
use flashcore_check::CheckError;
use flashcore_cpu::CpuError;
use flashcore_cuda::CudaError;

use crate::in_place::unknown_problem;
use crate::{BAD, GOOD, in_place, stdout, style};

/// Exit code of an interrupted search, for any signal: 128 + SIGINT, as in shells.
pub(crate) const INTERRUPTED: u8 = 130;

const USAGE: u8 = 2;
const ENVIRONMENT: u8 = 3;
const NOT_JUDGED: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Clean,
    /// The command found and reported something wrong.
    Findings,
    /// Forms of instructions are missing, so that the kernel was not simulated.
    NotJudged,
    /// A signal ended the command, which has printed what was kept.
    Interrupted,
}

impl Outcome {
    pub(crate) fn of(is_clean: bool) -> Outcome {
        if is_clean { Outcome::Clean } else { Outcome::Findings }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> ExitCode {
        match outcome {
            Outcome::Clean if stdout::is_unread() => ExitCode::from(stdout::UNREAD),
            Outcome::Clean => ExitCode::SUCCESS,
            Outcome::Findings => ExitCode::from(1),
            Outcome::NotJudged => ExitCode::from(NOT_JUDGED),
            Outcome::Interrupted => ExitCode::from(INTERRUPTED),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Failure {
    exit_code: u8,
    pub(crate) message: String,
    help: Option<String>,
    left: Option<String>,
}

impl Failure {
    /// The request is valid and cannot be done.
    pub(crate) fn failed(message: impl ToString) -> Failure {
        Failure::new(1, message)
    }

    /// The request is not valid.
    pub(crate) fn usage(message: impl ToString) -> Failure {
        Failure::new(USAGE, message)
    }

    /// The machine cannot do it.
    pub(crate) fn environment(message: impl ToString) -> Failure {
        Failure::new(ENVIRONMENT, message)
    }

    fn new(exit_code: u8, message: impl ToString) -> Failure {
        Failure {
            exit_code,
            message: message.to_string(),
            help: None,
            left: None,
        }
    }

    pub(crate) fn help(mut self, help: impl ToString) -> Failure {
        self.help = Some(help.to_string());
        self
    }

    /// With one more thing to do.
    pub(crate) fn also(mut self, help: &str) -> Failure {
        let before = self.help.map_or(String::new(), |before| before + "; ");
        self.help = Some(before + help);
        self
    }

    pub(crate) fn is_usage(&self) -> bool {
        self.exit_code == USAGE
    }

    pub(crate) fn is_environment(&self) -> bool {
        self.exit_code == ENVIRONMENT
    }

    pub(crate) fn left(mut self, left: String) -> Failure {
        self.left = Some(left);
        self
    }

    pub(crate) fn report(&self) -> ExitCode {
        let mut text = style::wrap(&format!("{BAD}error{BAD:#}: {}", cut(&self.message)), 2);
        if let Some(help) = &self.help {
            text.push_str(&style::wrap(&format!("  {GOOD}help{GOOD:#}: {help}"), 4));
        }
        text.push_str(self.left.as_deref().unwrap_or_default());
        style::eprint(&text);
        ExitCode::from(self.exit_code)
    }
}

/// Characters of a message that are printed: names in it may be of any length.
const LONGEST: usize = 4_000;

/// A message, or its beginning and its end, and how much is left out.
fn cut(message: &str) -> String {
    let count = message.chars().count();
    if count <= LONGEST {
        return message.to_string();
    }
    let part = |from: usize| message.chars().skip(from).take(LONGEST / 2).collect::<String>();
    let left_out = style::whole((count - LONGEST) as u64);
    format!(
        "{} … ({left_out} characters are left out) … {}",
        part(0),
        part(count - LONGEST / 2)
    )
}

impl From<ProblemError> for Failure {
    fn from(error: ProblemError) -> Failure {
        if let ProblemError::UnknownName { given, .. } = &error {
            if let Some(failure) = in_place::of_name(given) {
                return failure;
            }
            return unknown_problem(given, &error);
        }
        match error {
            ProblemError::HostMemory { .. } => Failure::failed(error),
            _ => Failure::usage(error),
        }
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
            Error::UnknownDevice { .. } => Failure::usage(error),
            Error::Cuda(CudaError::NoSuchDevice { .. }) => Failure::environment(error),
            // What needs no GPU depends on the command: `machine::device` says it.
            _ if error.is_environment() => Failure::environment(error),
            _ => Failure::failed(error),
        }
    }
}

impl From<CheckError> for Failure {
    fn from(error: CheckError) -> Failure {
        Failure::failed(error)
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
