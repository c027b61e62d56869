//! Evidence ids: ten hexadecimal digits that name a number wherever it is shown.

use std::fmt;

use serde::Serialize;

use crate::own::sha256;

/// Digits of an id: with 10,000 numbers in one report, two share an id with a probability of 5 in 100,000.
const DIGITS: usize = 10;
/// Fewest digits of an id that [`EvidenceId::begins`] accepts.
pub const FEWEST_DIGITS: usize = 4;

/// The id of a number: the beginning of the SHA-256 of what the number is. The same number has the same id in every
/// report, on every machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct EvidenceId(String);

impl EvidenceId {
    /// The id of what these parts say: a kind, the key of a run, and what in it.
    ///
    /// ```
    /// use flashcore_bench::gather::EvidenceId;
    /// let id = EvidenceId::of(&["stored", "18a3", "0", "1"]);
    /// assert_eq!(id.to_string().len(), 10);
    /// assert_ne!(id, EvidenceId::of(&["stored", "18a3", "01"]));
    /// assert!(id.begins(&id.to_string()[..4]) && !id.begins("") && !id.begins("xyzw"));
    /// ```
    pub fn of(parts: &[&str]) -> EvidenceId {
        // Lengths keep `a`, `bc` and `ab`, `c` apart.
        let bytes = |part: &&str| [&(part.len() as u64).to_le_bytes(), part.as_bytes()].concat();
        let digits = sha256(parts.iter().map(bytes).collect::<Vec<_>>().concat());
        EvidenceId(digits[..DIGITS].to_string())
    }

    /// Whether it begins with this text, of [`FEWEST_DIGITS`] or more.
    pub fn begins(&self, text: &str) -> bool {
        text.len() >= FEWEST_DIGITS && self.0.starts_with(&text.to_ascii_lowercase())
    }
}

impl fmt::Display for EvidenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}
