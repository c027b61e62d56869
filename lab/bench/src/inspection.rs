//! Results of inspections, and the reasons to reject a candidate.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a candidate is not timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Elements of the output still hold the poison that was there before.
    Unwritten,
    /// The output is all zeros and should not be.
    Zeros,
    /// The output has NaNs that the subject wrote itself.
    NotANumber,
    /// The output is that of earlier inputs.
    Cached,
    /// It works only at addresses it has seen before.
    PointerReplay,
    /// It still runs when its stream has ended, or does not wait for the stream.
    OtherStream,
    /// It wrote outside the tensors that it was given.
    OutOfBounds,
    /// Any other wrong output.
    Wrong,
}

/// As in JSON: `other-stream`.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What an inspection found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inspection {
    /// Why it is rejected; `None` if it is not.
    pub rejected: Option<Reason>,
    /// One sentence: the error where it passed, what was seen where it did not.
    pub detail: String,
    /// Largest error against float64 over all that was compared.
    pub max_abs: f64,
    /// Largest over its outputs: the Frobenius norm of the error over that of the right output, in the rows compared.
    #[serde(default)]
    pub frobenius: f64,
    /// Rules that could not be applied to this subject, by name.
    pub skipped: Vec<String>,
}

impl Inspection {
    /// Whether it may be timed.
    pub fn passed(&self) -> bool {
        self.rejected.is_none()
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rejected {
            None => write!(f, "pass: {}", self.detail),
            Some(reason) => write!(f, "REJECTED ({reason}): {}", self.detail),
        }
    }
}
