//! Why a text cannot be read.

use thiserror::Error;

/// Why a PTX text cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say what the fields are
pub enum PtxError {
    /// Something begins and does not end.
    #[error("line {line}: this {what} has no end")]
    Unfinished { what: &'static str, line: u32 },
    /// Another token than the one that is needed.
    #[error("line {line}: expected {expected}, found {found}")]
    Expected { expected: String, found: String, line: u32 },
    /// Valid PTX that this reader does not support.
    #[error("line {line}: {what} is not supported: {why}")]
    NotUnderstood { what: String, why: String, line: u32 },
    /// More of something, or a larger number, than is read.
    #[error("line {line}: {given} {what}; {allowed} is allowed")]
    Limit {
        what: &'static str,
        given: u64,
        allowed: String,
        line: u32,
    },
    /// A name that is declared a second time where it is already known.
    #[error("line {line}: {what} `{name}` is declared twice")]
    Twice {
        what: &'static str,
        name: String,
        line: u32,
    },
    /// A text without `.version` and `.target`.
    #[error("not PTX: it has no {0} directive")]
    NoPtx(&'static str),
}

impl PtxError {
    /// [`PtxError::Limit`] where more is given than is allowed.
    ///
    /// # Errors
    /// Then.
    pub fn at_most(what: &'static str, given: u64, most: u64, line: u32) -> Result<(), PtxError> {
        if given <= most {
            return Ok(());
        }
        let allowed = format!("at most {most}");
        Err(PtxError::Limit {
            what,
            given,
            allowed,
            line,
        })
    }

    /// [`PtxError::NotUnderstood`].
    pub fn not_understood(what: impl Into<String>, why: impl Into<String>, line: u32) -> PtxError {
        let (what, why) = (what.into(), why.into());
        PtxError::NotUnderstood { what, why, line }
    }
}
