//! [`Claim`]: one change of a lever that something speaks for or against, with what is expected of it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a claim rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimKind {
    /// Accesses to shared memory meet in banks.
    BankConflicts,
    /// Accesses to global memory touch more sectors than their bytes need.
    Uncoalesced,
    /// A change that would need more registers than there are: it would not build.
    Spills,
    /// Registers keep further blocks off an SM.
    Registers,
    /// Shared memory keeps further blocks off an SM.
    Room,
    /// The last wave of blocks leaves much of the card idle.
    Waves,
    /// Passes over shared memory bind.
    SharedMemory,
    /// Bytes from L2 bind.
    L2,
    /// Exponentials, arithmetic or issue slots bind.
    Arithmetic,
    /// Tensor cores bind: tiles that are computed in vain.
    TensorCores,
    /// Nothing binds but waiting for results.
    Latency,
    /// Starting kernels binds.
    Launch,
}

impl ClaimKind {
    /// Every kind.
    pub const ALL: [ClaimKind; 12] = [
        ClaimKind::BankConflicts,
        ClaimKind::Uncoalesced,
        ClaimKind::Spills,
        ClaimKind::Registers,
        ClaimKind::Room,
        ClaimKind::Waves,
        ClaimKind::SharedMemory,
        ClaimKind::L2,
        ClaimKind::Arithmetic,
        ClaimKind::TensorCores,
        ClaimKind::Latency,
        ClaimKind::Launch,
    ];

    /// As it stands in tables and files: `bank-conflicts`.
    pub const fn name(self) -> &'static str {
        match self {
            ClaimKind::BankConflicts => "bank-conflicts",
            ClaimKind::Uncoalesced => "uncoalesced",
            ClaimKind::Spills => "spills",
            ClaimKind::Registers => "registers",
            ClaimKind::Room => "room",
            ClaimKind::Waves => "waves",
            ClaimKind::SharedMemory => "shared-memory",
            ClaimKind::L2 => "l2",
            ClaimKind::Arithmetic => "arithmetic",
            ClaimKind::TensorCores => "tensor-cores",
            ClaimKind::Latency => "latency",
            ClaimKind::Launch => "launch",
        }
    }

    /// Whether this kind says that a change would not build; all others expect a time.
    pub const fn is_warning(self) -> bool {
        matches!(self, ClaimKind::Spills)
    }
}

impl fmt::Display for ClaimKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One change of a lever, and what is expected of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The config it is about.
    pub about: String,
    /// What it rests on.
    pub kind: ClaimKind,
    /// The same in words, with numbers.
    pub evidence: String,
    /// The kernel's line it is about, such as `crates/kernels/src/mma/warp.rs:212`, where it is about one.
    pub line: Option<String>,
    /// The lever.
    pub lever: String,
    /// Its value in the config.
    pub from: String,
    /// The value proposed, or warned of.
    pub to: String,
    /// The config with that value: the claim comes true or not when it is tried.
    pub proposes: String,
    /// Expected change of the time, per cent: -8 is 8 % faster. `None`: expected not to build.
    pub expected: Option<f64>,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.evidence)?;
        if let Some(line) = &self.line {
            write!(f, " at {line}")?;
        }
        write!(f, ": {} {} to {}, expect ", self.lever, self.from, self.to)?;
        match self.expected {
            Some(percent) => write!(f, "{percent:+.1} %"),
            None => write!(f, "that it does not build"),
        }
    }
}

/// What came of a claim when its change was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Score {
    /// At least half of what was expected; of a warning: it did not build.
    CameTrue,
    /// Less than that; of a warning: it built.
    DidNot,
    /// The other way, beyond what noise explains.
    SignWrong,
    /// It has no time: the change failed at a gate.
    Failed,
}

/// Part of the expected change that has to be measured.
const PART: f64 = 0.5;
/// Change that noise explains, per cent.
const NOISE: f64 = 1.0;

impl Score {
    /// Scores an expectation by the measured change, both in per cent; `None` is a candidate that has no time.
    ///
    /// ```
    /// use flashcore_tune::insight::Score;
    /// assert_eq!(Score::of(Some(-8.0), Some(-5.0)), Score::CameTrue);
    /// assert_eq!(Score::of(Some(-8.0), Some(-2.0)), Score::DidNot);
    /// assert_eq!(Score::of(Some(-8.0), Some(3.0)), Score::SignWrong);
    /// assert_eq!(Score::of(Some(-8.0), None), Score::Failed);
    /// assert_eq!((Score::of(None, None), Score::of(None, Some(2.0))), (Score::CameTrue, Score::DidNot));
    /// ```
    pub fn of(expected: Option<f64>, measured: Option<f64>) -> Score {
        match (expected, measured) {
            (None, None) => Score::CameTrue,
            (None, Some(_)) => Score::DidNot,
            (Some(_), None) => Score::Failed,
            (Some(expected), Some(measured)) if measured <= PART * expected => Score::CameTrue,
            (Some(_), Some(measured)) if measured > NOISE => Score::SignWrong,
            _ => Score::DidNot,
        }
    }
}
