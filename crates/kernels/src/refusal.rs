//! Why a config cannot serve a problem on a target.

use flashcore_ir::{BuildErrors, Target};
use serde::Serialize;
use thiserror::Error;

/// Why a config cannot serve a problem on a target: what was needed, what is allowed, what would help.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(tag = "refusal", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The family has no kernel for something the problem asks for.
    #[error("{family} does not serve {what}; {remedy}")]
    Unsupported {
        /// The family.
        family: &'static str,
        /// What it does not serve.
        what: String,
        /// What to do instead.
        remedy: &'static str,
    },
    /// No family makes kernels for the architecture.
    #[error("{target} is not supported: it has no cp.async and no bf16; kernels are made for sm_80 and newer")]
    Target {
        /// The architecture.
        target: Target,
    },
    /// A lever has a value that its family does not have.
    #[error("{lever} is {given}; allowed: {allowed}")]
    Lever {
        /// The lever.
        lever: &'static str,
        /// Its value, as the lever prints it.
        given: String,
        /// The values there are.
        allowed: String,
    },
    /// More shared memory than a block may have.
    #[error("{needed} B of dynamic shared memory; {target} allows {allowed} B; {remedy}")]
    SharedMemory {
        /// Bytes the kernel needs.
        needed: u32,
        /// The architecture.
        target: Target,
        /// Bytes a block may have.
        allowed: u32,
        /// Which lever saves how much.
        remedy: String,
    },
    /// Even the values that must live at once do not fit in a thread's registers.
    #[error("at least {needed} registers a thread ({what}); at most {allowed} can be had without spilling; {remedy}")]
    Registers {
        /// Lower bound on what is needed.
        needed: u32,
        /// What it is made of.
        what: String,
        /// Registers there are.
        allowed: u32,
        /// Which lever helps.
        remedy: &'static str,
    },
    /// Vector accesses that the strides do not allow.
    #[error(
        "accesses of {given} B need rows that start at multiples of {given} B; the strides of this problem allow {allowed} \
         B (try {suggestion})"
    )]
    Alignment {
        /// Bytes an access.
        given: u32,
        /// The widest access the strides allow, bytes.
        allowed: u32,
        /// Id of the config that fits.
        suggestion: String,
    },
    /// Tensors that start where a kernel's copies cannot.
    #[error(
        "it needs tensors that start at multiples of {needed} B; these start at multiples of {given} B: copy slices \
         into tensors of their own"
    )]
    Address {
        /// What addresses must be a multiple of, bytes.
        needed: u32,
        /// What they are known to be a multiple of, bytes.
        given: u32,
    },
    /// The device's compiler made something of it that is slow out of all proportion.
    #[error("{message}")]
    Compiler {
        /// What it made of it.
        message: String,
    },
    /// The kernel could not be written down: a mistake in the family, reported rather than launched.
    #[error("{0}")]
    Build(String),
}

/// Refuses what a family does not serve, `refuse!(when => family, remedy, "what {}", ...)`, or a value of a lever,
/// `refuse!(when => lever "name" = value, "allowed {}", ...)`.
macro_rules! refuse {
    ($when:expr => lever $lever:literal = $given:expr, $($allowed:tt)+) => {
        if $when {
            return Err(crate::Refusal::lever($lever, $given, format!($($allowed)+)));
        }
    };
    ($when:expr => $family:expr, $remedy:expr, $($what:tt)+) => {
        if $when {
            return Err(crate::Refusal::unsupported($family, format!($($what)+), $remedy));
        }
    };
}
pub(crate) use refuse;

impl Refusal {
    pub(crate) fn unsupported(family: &'static str, what: impl Into<String>, remedy: &'static str) -> Refusal {
        let what = what.into();
        Refusal::Unsupported { family, what, remedy }
    }

    pub(crate) fn lever(lever: &'static str, given: impl ToString, allowed: impl Into<String>) -> Refusal {
        let (given, allowed) = (given.to_string(), allowed.into());
        Refusal::Lever { lever, given, allowed }
    }

    pub(crate) fn check_registers(
        needed: u32,
        allowed: u32,
        remedy: &'static str,
        what: impl FnOnce() -> String,
    ) -> Result<(), Refusal> {
        if needed <= allowed {
            return Ok(());
        }
        let what = what();
        Err(Refusal::Registers {
            needed,
            what,
            allowed,
            remedy,
        })
    }

    /// [`Self::check_registers`] of what is made of these parts, and of `scratch` registers that a refusal does not
    /// name.
    pub(crate) fn check_register_parts(
        parts: &[(&str, u32)],
        scratch: u32,
        allowed: u32,
        remedy: &'static str,
    ) -> Result<(), Refusal> {
        let needed = scratch + parts.iter().map(|(_, registers)| registers).sum::<u32>();
        Refusal::check_registers(needed, allowed, remedy, || {
            let parts = parts.iter().map(|(what, registers)| format!("{what} {registers}"));
            parts.collect::<Vec<_>>().join(", ")
        })
    }

    /// Refuses more dynamic shared memory than a block of the target may have.
    pub(crate) fn check_shared_memory(
        needed: u32,
        target: Target,
        remedy: impl FnOnce() -> String,
    ) -> Result<(), Refusal> {
        let allowed = target.limits().shared_per_block;
        if needed <= allowed {
            Ok(())
        } else {
            Err(Refusal::SharedMemory {
                needed,
                target,
                allowed,
                remedy: remedy(),
            })
        }
    }
}

impl From<BuildErrors> for Refusal {
    fn from(errors: BuildErrors) -> Self {
        Refusal::Build(errors.to_string())
    }
}
