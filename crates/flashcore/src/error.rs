//! Errors of the library.

use flashcore_kernels::{NoPlan, Refusal, UnknownConfig};
use flashcore_problem::{Name, Problem, ProblemError};
use thiserror::Error;

/// Why attention was not computed. Messages say what was given, what is allowed, and what to do.
#[derive(Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// The task or its values are invalid.
    #[error(transparent)]
    Problem(ProblemError),
    /// An operand that is missing, of no use, or not what a call needs.
    #[error("{name} {why}")]
    Operand {
        /// Which.
        name: Name,
        /// What is wrong, what is allowed, and what to do.
        why: String,
    },
    /// A schedule that does not go with a call.
    #[cfg(feature = "cuda")]
    #[error("the schedule {why}")]
    Schedule {
        /// What is wrong, and what to do.
        why: String,
    },
    /// A queue cannot do this, as it records, or as it does not.
    #[cfg(feature = "cuda")]
    #[error("this queue cannot {what}: {why}")]
    Recording {
        /// What was asked for.
        what: &'static str,
        /// Why it cannot, and what to do.
        why: &'static str,
    },
    /// A plan needs a workspace, and there is none.
    #[cfg(feature = "cuda")]
    #[error("this call needs {bytes} bytes of workspace, and `allocate` gave none")]
    NoWorkspace {
        /// Bytes needed.
        bytes: u64,
    },
    /// Values on the device contradict an earlier call that was captured into a CUDA graph, as the graph found when it
    /// ran ([`Options::checks`](crate::Options::checks)). It is told once; nothing of the call that tells
    /// it was computed, which may be made again.
    #[cfg(feature = "cuda")]
    #[error(
        "{0}; an earlier call, captured into a CUDA graph, found this when the graph ran; the call that tells it was not \
         computed"
    )]
    Captured(ProblemError),
    /// The CPU does not serve the problem.
    #[cfg(feature = "cpu")]
    #[error(transparent)]
    Cpu(crate::CpuError),
    /// The driver or the device failed, or there is none.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Cuda(#[from] flashcore_cuda::CudaError),
    /// No kernel serves the problem on this device.
    #[error(transparent)]
    NoPlan(#[from] NoPlan),
    /// The kernel asked for by name does not serve the problem on this device.
    #[error("{kernel} cannot serve this problem: {refusal}")]
    Refused {
        /// The kernel's id.
        kernel: String,
        /// Why.
        refusal: Box<Refusal>,
    },
    /// No kernel has this id.
    #[error(transparent)]
    UnknownKernel(#[from] UnknownConfig),
    /// The plan table that was asked for cannot be used.
    #[error(transparent)]
    Plans(#[from] crate::plans::PlanError),
    /// A kernel of the CPU was asked for on a GPU, or the other way round.
    #[error("{kernel} does not run on {device}; leave the kernel out, or choose {suggestion}")]
    KernelOfOtherDevice {
        /// The kernel's id.
        kernel: String,
        /// The device.
        device: String,
        /// Where it would run.
        suggestion: &'static str,
    },
    /// A queue or a tensor is of another context than the device, or of another stream than the queue.
    #[cfg(feature = "cuda")]
    #[error(
        "{tensor} is of another CUDA context or stream than {device}; use those of one device and queue throughout"
    )]
    OtherContext {
        /// The tensor, or `queue`.
        tensor: &'static str,
        /// The device.
        device: String,
    },
    /// [`Attention::tune`](crate::Attention::tune) was asked for what it cannot do.
    #[error("{what} cannot be tuned; {remedy}")]
    CannotTune {
        /// A problem, or the `Attention`.
        what: String,
        /// What to do.
        remedy: &'static str,
    },
    /// A kernel that is in use computed a wrong output here.
    #[error("{kernel} is wrong on this device: {reason}; name another kernel with Attention::with, and report it")]
    WrongOutput {
        /// The kernel's id.
        kernel: String,
        /// What is wrong.
        reason: String,
    },
    /// This build has no code for what was asked for.
    #[error("{what} needs the feature `{feature}` of the crate flashcore, which this build leaves out: enable it")]
    WithoutFeature {
        /// The device or kernel.
        what: String,
        /// The feature.
        feature: &'static str,
    },
    /// No device has this name.
    #[error("no device is named `{given}`; allowed: best, cpu, cuda, cuda:N")]
    UnknownDevice {
        /// The name given.
        given: String,
    },
    /// Kernels are not made for the GPU's architecture.
    #[error("{name} has compute capability {major}.{minor}; kernels are made for 8.0 and newer")]
    UnsupportedGpu {
        /// The GPU's name.
        name: String,
        /// Compute capability, major.
        major: u32,
        /// Compute capability, minor.
        minor: u32,
    },
    /// A queue, a schedule or operands in device memory were asked of a device that is no GPU.
    #[error("queues and operands in device memory need a GPU, and the device is the CPU: make it with Device::cuda(n)")]
    NotOnCuda,
    /// No multiprocessor is left to run on.
    #[error("sm_margin is {given}; {}", match sms { 0 => "the CPU has no multiprocessors: leave it out".to_string(), _ => format!("the device has {sms} multiprocessors, of which at least one must be left") })]
    SmMargin {
        /// The margin given.
        given: u32,
        /// Multiprocessors of the device; 0 of a CPU.
        sms: u32,
    },
    /// A device buffer is too small or missing.
    #[error("{tensor} needs {needed} bytes of device memory; {}", given.map_or("none was given".to_string(), |n| format!("{n} were given")))]
    DeviceBuffer {
        /// Which tensor.
        tensor: &'static str,
        /// Bytes needed.
        needed: u64,
        /// Bytes given, if it was given at all.
        given: Option<u64>,
    },
}

flashcore_problem::debug_as_message!(Error);

/// An operand is one, whoever checked it.
impl From<ProblemError> for Error {
    fn from(error: ProblemError) -> Error {
        match error {
            ProblemError::Operand { name, why } => Error::Operand { name, why },
            error => Error::Problem(error),
        }
    }
}

#[cfg(feature = "cpu")]
impl From<crate::CpuError> for Error {
    fn from(error: crate::CpuError) -> Error {
        match error {
            crate::CpuError::Problem(error) => error.into(),
            error => Error::Cpu(error),
        }
    }
}

impl Error {
    /// The error of a verb that gives these operands: of another one, it says which verb takes it.
    pub(crate) fn of_verb(self, problem: &Problem, given: &[Name], [verb, general]: [&str; 2]) -> Error {
        match self {
            Error::Operand { name, .. } if !given.contains(&name) => {
                let of = problem.direction();
                let why = format!(
                    "was not given, and `{verb}` does not take it: call `{general}` with \
                     `Operands::{of}(…).with(Name::{name:?}, …)`"
                );
                Error::Operand { name, why }
            }
            error => error,
        }
    }

    /// Whether the machine is at fault rather than the request: no driver, no such device, a driver
    /// too old.
    pub fn is_environment(&self) -> bool {
        match self {
            #[cfg(feature = "cuda")]
            Error::Cuda(error) => error.is_environment(),
            Error::UnsupportedGpu { .. } | Error::WithoutFeature { .. } => true,
            _ => false,
        }
    }

    /// Of a kernel that does not serve what it was asked for.
    #[cfg(feature = "cuda")]
    pub(crate) fn refused(kernel: impl std::fmt::Display, refusal: Refusal) -> Error {
        Error::Refused {
            kernel: kernel.to_string(),
            refusal: Box::new(refusal),
        }
    }

    /// Of a queue or a tensor that is not of the device of this number.
    #[cfg(feature = "cuda")]
    pub(crate) fn other_context(tensor: &'static str, ordinal: impl std::fmt::Display) -> Error {
        let device = format!("cuda:{ordinal}");
        Error::OtherContext { tensor, device }
    }

    /// Of a build that leaves a feature out.
    #[cfg(not(all(feature = "cpu", feature = "cuda")))]
    pub(crate) fn without_feature(what: impl Into<String>, feature: &'static str) -> Error {
        let what = what.into();
        Error::WithoutFeature { what, feature }
    }
}
