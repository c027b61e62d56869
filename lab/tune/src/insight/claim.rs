//! [`Claim`]: the expected effect of one change of a lever, and why.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason for a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClaimKind {
    /// Bank conflicts in shared memory.
    BankConflicts,
    /// Accesses to global memory use more sectors than necessary.
    Uncoalesced,
    /// The change needs more registers than there are, so it would not build. Others expect a time.
    Spills,
    /// Registers limit the blocks on an SM.
    Registers,
    /// Shared memory limits the blocks on an SM.
    Room,
    /// Much of the card is idle in the last wave of blocks.
    Waves,
    /// Passes over shared memory bind.
    SharedMemory,
    /// Bytes from L2 bind.
    L2,
    /// Exponentials, arithmetic or issue slots bind.
    Arithmetic,
    /// Tensor cores bind, with products that are masked.
    TensorCores,
    /// Latency binds.
    Latency,
    /// Launch overhead binds.
    Launch,
}

/// Its name in tables and files, such as `bank-conflicts`.
impl fmt::Display for ClaimKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What a claim is made from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Simulator, compiler and cost model.
    #[default]
    Model,
    /// Hardware counters that Nsight Compute read.
    Counters,
}

/// One change of a lever, and its expected effect.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    /// The config it is about.
    pub about: String,
    /// The reason.
    pub kind: ClaimKind,
    /// What it is made from; the model in files of before there were others.
    #[serde(default)]
    pub source: Source,
    /// The reason in words, with numbers.
    pub evidence: String,
    /// The line of the kernel, such as `crates/kernels/src/mma/warp.rs:212`, if there is one.
    pub line: Option<String>,
    /// The lever.
    pub lever: String,
    /// Its value in the config.
    pub from: String,
    /// The proposed value.
    pub to: String,
    /// The config with that value. Its trial scores the claim.
    pub proposes: String,
    /// Expected change of the time, per cent; -8 is 8 % faster. `None`: it would not build.
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

/// Result of a claim whose change was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Score {
    /// At least half of the expected gain; for a warning: it did not build.
    CameTrue,
    /// Less than that; for a warning: it built.
    DidNot,
    /// Slower, by more than the noise.
    SignWrong,
    /// The change failed at a gate and has no time.
    Failed,
}

/// Share of the expected change that must be measured.
const PART: f64 = 0.5;
/// Change within the noise, per cent.
const NOISE: f64 = 1.0;

impl Score {
    /// Scores an expectation by the measured change, per cent; `None` is a candidate without a time.
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

#[cfg(test)]
mod tests {
    use super::Score;

    #[test]
    fn half_of_the_expectation_comes_true() {
        assert_eq!(Score::of(Some(-8.0), Some(-5.0)), Score::CameTrue);
        assert_eq!(Score::of(Some(-8.0), Some(-2.0)), Score::DidNot);
        assert_eq!(Score::of(Some(-8.0), Some(3.0)), Score::SignWrong);
        assert_eq!(Score::of(Some(-8.0), None), Score::Failed);
        assert_eq!(
            (Score::of(None, None), Score::of(None, Some(2.0))),
            (Score::CameTrue, Score::DidNot)
        );
    }
}
