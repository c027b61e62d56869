//! Planted candidates: known to be bad (and one that is honest), to show that the checks work. They hang, fault, write
//! out of bounds, are wrong sometimes, differ from run to run, or cheat. The list serves the host and GPUs: a bench's
//! inspection must reject those with a [reason](Conduct::reason), and `flashcore tune --torture` searches among [some
//! of them](Conduct::SEARCHED).

mod gpu;
mod subject;

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

pub use subject::{Planted, Spoil, Spoiler};

use crate::defences::Reason;

/// What ids of planted candidates begin with.
pub const NAME: &str = "planted";

/// Every conduct: what it does, its name, and the reason for which an [inspection](crate::defences::inspect) on normal
/// inputs must reject it, on a problem with a log-sum-exp.
macro_rules! conducts {
    ($($(#[$does:meta])* $conduct:ident $name:literal $reason:expr,)*) => {
        /// What a planted candidate does. All but the first are bad.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Conduct {
            $($(#[$does])* $conduct,)*
        }

        const LIST: [(Conduct, &str, Option<Reason>); 24] = [$((Conduct::$conduct, $name, $reason)),*];
    };
}

// No reason: those that pass an inspection, that never return an output, or whose output is wrong for some inputs only.
// Those of [`Conduct::SEARCHED`] come first and run on any device; the others need another stream, or do what one of
// these does and are told apart by an inspection.
conducts! {
    /// Computes attention.
    Honest "honest" None,
    /// Does not compile.
    DoesNotBuild "does-not-build" None,
    /// Never ends.
    Hangs "hangs" None,
    /// Takes its process or its device along.
    Crashes "crashes" None,
    /// Writes far outside of its output.
    OutOfBounds "out-of-bounds" None,
    /// Is wrong for about half of all inputs.
    WrongSometimes "wrong-sometimes" None,
    /// Is wrong for large scores only.
    WrongOnLargeScores "wrong-on-large-scores" None,
    /// Is different from run to run, by less than is allowed.
    Unstable "unstable" None,
    /// Leaves the last row as it was.
    Unwritten "unwritten" Some(Reason::Unwritten),
    /// Writes zeros.
    Zeros "zeros" Some(Reason::Zeros),
    /// Computes once, and copies the output from then on.
    Cached "cached" Some(Reason::Cached),
    /// Is honest until it has been called as often as timing does.
    LazyLater "lazy-later" None,
    /// Is honest until it was timed in the finals, and does nothing from then on.
    ChangesInFinals "changes-in-finals" None,
    /// Is honest until it is timed in the finals, and crashes there.
    CrashesInFinals "crashes-in-finals" None,
    /// Is wrong in one row, and on large problems only, where not every row is compared with float64.
    WrongFarOut "wrong-far-out" None,
    /// Writes a word past the end of its output, where on a GPU nothing faults.
    OneOutside "one-outside" Some(Reason::OutOfBounds),
    /// Has the log-sum-exp of a row wrong, where the problem asks for it.
    WrongLse "wrong-lse" Some(Reason::Wrong),
    /// Is wrong in one element.
    Wrong "wrong" Some(Reason::Wrong),
    /// Writes a NaN that is not the poison.
    Nan "nan" Some(Reason::NotANumber),
    /// Does nothing where an output seems to be there already.
    LeavesOutputsAlone "leaves-outputs-alone" Some(Reason::Cached),
    /// Whatever buffers it is given, it works on the first ones.
    PointerReplay "pointer-replay" Some(Reason::PointerReplay),
    /// Leaves the log-sum-exp of the last row as it was.
    UnwrittenLse "unwritten-lse" Some(Reason::Unwritten),
    /// Works on another stream, which the given one does not wait for: a rig makes it so, by binding the honest kernel
    /// to that stream.
    NotJoined "not-joined" Some(Reason::OtherStream),
    /// Works on another stream, which does not wait for the given one; likewise.
    NotWaiting "not-waiting" Some(Reason::OtherStream),
}

const fn first<const COUNT: usize>() -> [Conduct; COUNT] {
    let mut first = [Conduct::Honest; COUNT];
    let mut at = 0;
    while at < COUNT {
        first[at] = LIST[at].0;
        at += 1;
    }
    first
}

impl Conduct {
    /// Every conduct.
    pub const ALL: [Conduct; 24] = first();

    /// Those that a search tries.
    pub const SEARCHED: [Conduct; 17] = first();

    /// Its name, such as `hangs`.
    pub const fn name(self) -> &'static str {
        LIST[self as usize].1
    }

    /// Why an inspection must reject it, if it must.
    pub const fn reason(self) -> Option<Reason> {
        LIST[self as usize].2
    }

    /// The conduct of an id such as `planted/hangs`.
    pub fn of_id(id: &str) -> Option<Conduct> {
        let name = id.strip_prefix(NAME)?.strip_prefix('/')?;
        Conduct::ALL.into_iter().find(|conduct| conduct.name() == name)
    }

    /// Compiles it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_of_one_conduct() {
        for (at, conduct) in Conduct::ALL.into_iter().enumerate() {
            assert_eq!(conduct as usize, at);
            assert_eq!(Conduct::of_id(&conduct.to_string()), Some(conduct));
        }
        assert_eq!(Conduct::Hangs.to_string(), "planted/hangs");
        assert_eq!(Conduct::of_id("planted/"), None);
        assert_eq!(Conduct::of_id("cpu/m64n64"), None);
        assert!(Conduct::SEARCHED.contains(&Conduct::WrongLse) && !Conduct::SEARCHED.contains(&Conduct::NotJoined));
    }
}
