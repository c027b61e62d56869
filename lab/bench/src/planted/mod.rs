//! Candidates that are known to be bad, and one that is honest, to show that the gates hold: they hang, fault, write where
//! they must not, are wrong sometimes, differ from run to run, or cheat. One list, for the host and for GPUs: a bench's
//! inspection must reject those with a [reason](Conduct::reason), and `flashcore tune --torture` searches among those
//! that [can be searched](Conduct::SEARCHED).

mod gpu;
mod host;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

pub use gpu::{Elsewhere, GpuPlanted};
pub use host::CpuPlanted;

use crate::defences::Reason;

/// What ids of planted candidates begin with.
pub const NAME: &str = "planted";

/// What a planted candidate does. All but the first are bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Conduct {
    /// Computes attention.
    Honest,
    /// Does not compile.
    DoesNotBuild,
    /// Never ends.
    Hangs,
    /// Takes its process or its device along.
    Crashes,
    /// Writes far outside of its output.
    OutOfBounds,
    /// Is wrong for about half of all inputs.
    WrongSometimes,
    /// Is wrong for large scores only.
    WrongOnLargeScores,
    /// Is different from run to run, by less than is allowed.
    Unstable,
    /// Leaves the last row as it was.
    Unwritten,
    /// Writes zeros.
    Zeros,
    /// Computes once, and copies the answer from then on.
    Cached,
    /// Is honest until it has been called as often as timing does.
    LazyLater,
    /// Is honest until it was timed in the finals, and does nothing from then on.
    LazyInFinals,
    /// Is honest until it is timed in the finals, and crashes there.
    CrashesInFinals,
    /// Is wrong in one row, and on large problems only, where not every row is compared with float64.
    WrongFarOut,
    /// Writes a word past the end of its output, where on a GPU nothing faults.
    OneOutside,
    /// Has the log-sum-exp of a row wrong, where the problem asks for it.
    WrongLse,
    /// Is wrong in one element.
    Wrong,
    /// Writes a NaN that is not the poison.
    Nan,
    /// Does nothing where an answer seems to be there already.
    LeavesAnswersAlone,
    /// Whatever buffers it is given, it works on the first ones.
    PointerReplay,
    /// Leaves the log-sum-exp of the last row as it was.
    UnwrittenLse,
    /// Works on another stream, which the given one does not wait for.
    NotJoined,
    /// Works on another stream, which does not wait for the given one.
    NotWaiting,
}

impl Conduct {
    /// Every conduct.
    pub const ALL: [Conduct; 24] = [
        Conduct::Honest,
        Conduct::DoesNotBuild,
        Conduct::Hangs,
        Conduct::Crashes,
        Conduct::OutOfBounds,
        Conduct::WrongSometimes,
        Conduct::WrongOnLargeScores,
        Conduct::Unstable,
        Conduct::Unwritten,
        Conduct::Zeros,
        Conduct::Cached,
        Conduct::LazyLater,
        Conduct::LazyInFinals,
        Conduct::CrashesInFinals,
        Conduct::WrongFarOut,
        Conduct::OneOutside,
        Conduct::WrongLse,
        Conduct::Wrong,
        Conduct::Nan,
        Conduct::LeavesAnswersAlone,
        Conduct::PointerReplay,
        Conduct::UnwrittenLse,
        Conduct::NotJoined,
        Conduct::NotWaiting,
    ];

    /// Those that a search tries on any device. The others need a second stream, or are what one of these is, told
    /// apart by an inspection.
    pub const SEARCHED: [Conduct; 17] = {
        let mut searched = [Conduct::Honest; 17];
        let mut at = 0;
        while at < searched.len() {
            searched[at] = Conduct::ALL[at];
            at += 1;
        }
        searched
    };

    /// Its name, such as `hangs`.
    pub const fn name(self) -> &'static str {
        match self {
            Conduct::Honest => "honest",
            Conduct::DoesNotBuild => "does-not-build",
            Conduct::Hangs => "hangs",
            Conduct::Crashes => "crashes",
            Conduct::OutOfBounds => "out-of-bounds",
            Conduct::WrongSometimes => "wrong-sometimes",
            Conduct::WrongOnLargeScores => "wrong-on-large-scores",
            Conduct::Unstable => "unstable",
            Conduct::Unwritten => "unwritten",
            Conduct::Zeros => "zeros",
            Conduct::Cached => "cached",
            Conduct::LazyLater => "lazy-later",
            Conduct::LazyInFinals => "lazy-in-finals",
            Conduct::CrashesInFinals => "crashes-in-finals",
            Conduct::WrongFarOut => "wrong-far-out",
            Conduct::OneOutside => "one-outside",
            Conduct::WrongLse => "wrong-lse",
            Conduct::Wrong => "wrong",
            Conduct::Nan => "nan",
            Conduct::LeavesAnswersAlone => "leaves-answers-alone",
            Conduct::PointerReplay => "pointer-replay",
            Conduct::UnwrittenLse => "unwritten-lse",
            Conduct::NotJoined => "not-joined",
            Conduct::NotWaiting => "not-waiting",
        }
    }

    /// Why an [inspection](crate::defences::inspect) on normal inputs must reject it, on a problem with a log-sum-exp;
    /// `None` for those that pass it, for what has no answer to inspect, and for what inputs decide.
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Conduct::Unwritten | Conduct::UnwrittenLse => Some(Reason::Unwritten),
            Conduct::Zeros => Some(Reason::Zeros),
            Conduct::Nan => Some(Reason::NotANumber),
            Conduct::Cached | Conduct::LeavesAnswersAlone => Some(Reason::Cached),
            Conduct::PointerReplay => Some(Reason::PointerReplay),
            Conduct::NotJoined | Conduct::NotWaiting => Some(Reason::OtherStream),
            Conduct::Wrong | Conduct::WrongLse => Some(Reason::Wrong),
            Conduct::OneOutside => Some(Reason::OutOfBounds),
            Conduct::Honest
            | Conduct::DoesNotBuild
            | Conduct::Hangs
            | Conduct::Crashes
            | Conduct::OutOfBounds
            | Conduct::WrongSometimes
            | Conduct::WrongOnLargeScores
            | Conduct::Unstable
            | Conduct::LazyLater
            | Conduct::LazyInFinals
            | Conduct::CrashesInFinals
            | Conduct::WrongFarOut => None,
        }
    }

    /// The conduct of an id such as `planted/hangs`.
    ///
    /// ```
    /// use flashcore_bench::planted::Conduct;
    /// assert_eq!(Conduct::of_id("planted/hangs"), Some(Conduct::Hangs));
    /// assert_eq!(Conduct::Hangs.to_string(), "planted/hangs");
    /// assert_eq!(Conduct::of_id("cpu/m64n64"), None);
    /// ```
    pub fn of_id(id: &str) -> Option<Conduct> {
        let name = id.strip_prefix(NAME)?.strip_prefix('/')?;
        Conduct::ALL.into_iter().find(|conduct| conduct.name() == name)
    }

    /// Compiles it.
    ///
    /// # Errors
    /// For the one that does not compile.
    pub fn build(self) -> Result<(), &'static str> {
        match self {
            Conduct::DoesNotBuild => Err("planted: this one does not compile"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Conduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{NAME}/{}", self.name()))
    }
}

/// Whether the candidates that are open were timed as finalists are, or are being: what those that behave until then go
/// by.
pub type InFinals = Rc<Cell<bool>>;

/// Calls after which [`Conduct::LazyLater`] stops working: more than inspecting makes, fewer than timing.
const PATIENT_CALLS: u32 = 12;
/// Bytes from which on an output is large for [`Conduct::WrongFarOut`]: more than those of the small shapes that every
/// candidate is judged on.
const LARGE_OUTPUT: usize = 384 << 10;
/// Magnitude that normal inputs do not reach ([`flashcore_problem::rng::Rng::normal`]), and extreme ones do in the first
/// row.
const LARGE: f64 = 6.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_of_one_conduct() {
        for conduct in Conduct::ALL {
            assert_eq!(Conduct::of_id(&conduct.to_string()), Some(conduct));
        }
        assert_eq!(Conduct::of_id("planted/"), None);
        assert!(Conduct::SEARCHED.contains(&Conduct::WrongLse) && !Conduct::SEARCHED.contains(&Conduct::NotJoined));
    }
}
