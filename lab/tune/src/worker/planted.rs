//! Planted candidates ([`flashcore_bench::planted`]) as a search sees them: a family of one lever, and the verdict that
//! each deserves.

pub use flashcore_bench::planted::{Conduct, NAME};
use flashcore_kernels::space::{Lever, Space};

use crate::space::Family;
use crate::trial::Verdict;

/// The verdict that a planted candidate's trial must have on a small problem with a log-sum-exp, where every element is
/// compared; `None` for those that are timed: the honest one, and those that the finals must
/// [strike](crate::board::Board::struck). On the host a write outside ends the process, so that it is no launch.
pub const fn deserved(conduct: Conduct, on_gpu: bool) -> Option<Verdict> {
    match conduct {
        Conduct::OneOutside if on_gpu => Some(Verdict::Wrong),
        Conduct::Honest | Conduct::LazyInFinals | Conduct::CrashesInFinals | Conduct::WrongFarOut => None,
        Conduct::DoesNotBuild => Some(Verdict::BuildFailed),
        Conduct::Hangs => Some(Verdict::Hung),
        Conduct::Crashes | Conduct::OutOfBounds | Conduct::OneOutside => Some(Verdict::LaunchFailed),
        Conduct::Unstable => Some(Verdict::Unstable),
        Conduct::WrongSometimes
        | Conduct::WrongOnLargeScores
        | Conduct::Unwritten
        | Conduct::Zeros
        | Conduct::Cached
        | Conduct::LazyLater
        | Conduct::WrongLse
        | Conduct::Wrong
        | Conduct::Nan
        | Conduct::LeavesAnswersAlone
        | Conduct::PointerReplay
        | Conduct::UnwrittenLse
        | Conduct::NotJoined
        | Conduct::NotWaiting => Some(Verdict::Wrong),
    }
}

/// The planted candidates as a family of one lever.
pub fn family() -> Family {
    Family::planted(&SPACE)
}

static SPACE: Space<Conduct> = Space {
    first: Conduct::Honest,
    levers: &[Lever {
        name: "conduct",
        meaning: "what it does wrong",
        settings: |_| Conduct::SEARCHED.to_vec(),
        value: |conduct| conduct.name().to_string(),
    }],
    allowed: |conduct| Conduct::SEARCHED.contains(conduct),
    constraints: &[],
};
