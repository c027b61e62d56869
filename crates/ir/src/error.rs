//! What can be wrong with a kernel as it is written.

use thiserror::Error;

use crate::site::SourceLine;

/// One mistake in a kernel, with the line that made it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{line}: {kind}")]
pub struct BuildError {
    /// What is wrong.
    pub kind: BuildErrorKind,
    /// Where.
    pub line: SourceLine,
}

/// The kinds of mistakes that are found while a kernel is being written.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum BuildErrorKind {
    /// An instruction that all lanes of a warp must execute together, where they may not.
    #[error(
        "{instruction} must be executed by all lanes of a warp together, but stands under a condition declared divergent \
         at {condition}; declare that condition uniform if it is, or move the instruction out"
    )]
    AlignedUnderDivergence { instruction: String, condition: SourceLine },
    /// A value used where it may not have been computed.
    #[error(
        "a value computed inside an `if` or a loop is used outside it, where it may never have been computed; carry it out \
         in a `Var`"
    )]
    OutOfScope,
    /// `break_if` inside an `if` or a deeper loop.
    #[error("`break_if` must stand directly in the body of its loop, not inside an `if` or another loop in it")]
    BreakNotInLoop,
    /// Numbers that do not exist or do not fit: of a buffer, a tile, lanes, registers.
    #[error("{0}")]
    Invalid(String),
}

/// Everything wrong with a kernel.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("kernel {kernel} cannot be built:{}", errors.iter().map(|error| format!("\n  {error}")).collect::<String>())]
pub struct BuildErrors {
    /// The kernel's name.
    pub kernel: String,
    /// At least one.
    pub errors: Vec<BuildError>,
}
