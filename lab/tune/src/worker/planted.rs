//! Candidates that are known to be bad, to show that the gates hold: they hang, fault, write where they must not, are
//! wrong sometimes, differ from run to run, or cheat. `flashcore tune --torture` searches among them.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use flashcore_bench::cpu::{CpuBed, CpuSubject};
use flashcore_bench::host_clock::called;
use flashcore_bench::{LaunchMode, Subject, SubjectInfo, Trouble};
use flashcore_kernels::space::{Lever, Space};
use flashcore_problem::rng::Rng;
use flashcore_problem::{Problem, Tensor};

use crate::space::Family;
use crate::trial::Verdict;

/// The family's name.
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
    /// Writes outside of its output.
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
}

impl Conduct {
    /// Every conduct.
    pub const ALL: [Conduct; 17] = [
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
    ];

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
        }
    }

    /// The verdict that its trial must have on a small problem with a log-sum-exp, where every element is compared; `None` for those that are
    /// timed: the honest one, and those that the finals must [strike](crate::board::Board::struck).
    /// On the host a write outside ends the process, so that it is no launch.
    pub const fn deserves(self, on_gpu: bool) -> Option<Verdict> {
        match self {
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
            | Conduct::WrongLse => Some(Verdict::Wrong),
        }
    }

    /// The conduct of an id such as `planted/hangs`.
    ///
    /// ```
    /// use flashcore_tune::worker::planted::Conduct;
    /// assert_eq!(Conduct::of_id("planted/hangs"), Some(Conduct::Hangs));
    /// assert_eq!(Conduct::Hangs.to_string(), "planted/hangs");
    /// assert_eq!(Conduct::of_id("cpu/m64n64"), None);
    /// ```
    pub fn of_id(id: &str) -> Option<Conduct> {
        let name = id.strip_prefix(NAME)?.strip_prefix('/')?;
        Conduct::ALL.into_iter().find(|conduct| conduct.name() == name)
    }

    pub(super) fn build(self) -> Result<(), &'static str> {
        match self {
            Conduct::DoesNotBuild => Err("planted: this one does not compile"),
            _ => Ok(()),
        }
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
        settings: |_| Conduct::ALL.to_vec(),
        value: |conduct| conduct.name().to_string(),
    }],
    allowed: |_| true,
    constraints: &[],
};

impl fmt::Display for Conduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{NAME}/{}", self.name()))
    }
}

/// Calls after which [`Conduct::LazyLater`] stops working: more than inspecting makes, fewer than timing.
pub(super) const PATIENT_CALLS: u32 = 12;
/// Bytes from which on an output is large for [`Conduct::WrongFarOut`]: more than those of the small shapes that every
/// candidate is judged on.
pub(super) const LARGE_OUTPUT: usize = 384 << 10;

/// Whether what is open was timed as finalists are, or is being: what candidates that behave until then go by.
pub(super) type InFinals = Rc<Cell<bool>>;

/// Magnitude that normal inputs do not reach ([`Rng::normal`]), and extreme ones do in the first row.
pub(super) const LARGE: f64 = 6.0;

/// A planted candidate on the host.
pub(super) struct CpuPlanted<'a> {
    info: SubjectInfo,
    honest: CpuSubject<'a>,
    bed: &'a CpuBed,
    conduct: Conduct,
    place: usize,
    in_finals: InFinals,
    calls: u32,
    kept: Option<Tensor>,
}

impl<'a> CpuPlanted<'a> {
    pub(super) fn new(
        bed: &'a CpuBed,
        conduct: Conduct,
        problem: &Problem,
        place: usize,
        in_finals: InFinals,
    ) -> CpuPlanted<'a> {
        let config = flashcore_cpu::default_config(problem, rayon::current_num_threads());
        CpuPlanted {
            info: SubjectInfo {
                kernel: Some(conduct.to_string()),
                ..SubjectInfo::new(conduct.to_string(), LaunchMode::Host)
            },
            honest: CpuSubject::new(bed, config, place),
            bed,
            conduct,
            place,
            in_finals,
            calls: 0,
            kept: None,
        }
    }

    /// Something that half of all inputs have.
    fn is_odd(&self) -> bool {
        self.bed.with_place(self.place, |q, _| {
            let sum = q.bytes().iter().take(64).fold(0u8, |sum, byte| sum.wrapping_add(*byte));
            sum.count_ones() % 2 == 1
        })
    }

    fn has_large_inputs(&self) -> bool {
        self.bed.with_place(self.place, |q, _| {
            (0..q.layout().shape[3]).any(|d| q.view().value(0, 0, 0, d).abs() > LARGE)
        })
    }

    fn spoil(&self, act: impl FnOnce(&mut Tensor)) {
        self.bed.with_place(self.place, |_, out| act(out));
    }
}

impl Subject for CpuPlanted<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn call(&mut self) -> Result<(), Trouble> {
        self.calls += 1;
        called(&self.info.label)?;
        let wrong = |out: &mut Tensor| {
            let value = out.view().get(0, 0, 0, 0);
            out.view_mut().set(0, 0, 0, 0, value * 0.5 + 1.0);
        };
        match self.conduct {
            Conduct::Honest | Conduct::DoesNotBuild => self.honest.call()?,
            Conduct::Hangs => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            Conduct::Crashes => std::process::abort(),
            Conduct::OutOfBounds => self.spoil(|out| {
                // The host's bounds check ends the process, as a fault does on a GPU.
                let end = out.bytes().len();
                out.bytes_mut()[end + self.calls as usize] = 0;
            }),
            Conduct::OneOutside => {
                self.honest.call()?;
                self.spoil(|out| {
                    let end = out.bytes().len();
                    out.bytes_mut()[end] = 0;
                });
            }
            Conduct::WrongLse => {
                self.honest.call()?;
                self.bed.with_lse(self.place, |lse| {
                    if let Some(last) = lse.last_mut() {
                        *last += 0.5;
                    }
                });
            }
            Conduct::WrongSometimes => {
                self.honest.call()?;
                if self.is_odd() {
                    self.spoil(wrong);
                }
            }
            Conduct::WrongOnLargeScores => {
                self.honest.call()?;
                if self.has_large_inputs() {
                    self.spoil(wrong);
                }
            }
            Conduct::Unstable => {
                self.honest.call()?;
                let mut rng = Rng::new(u64::from(self.calls));
                self.spoil(|out| {
                    // The last bit of some elements.
                    let bytes = out.bytes_mut();
                    for _ in 0..8 {
                        let at = rng.below(bytes.len() / 4) * 4;
                        bytes[at] ^= 1;
                    }
                });
            }
            Conduct::Unwritten => {
                let before = self.bed.with_place(self.place, |_, out| out.clone());
                self.honest.call()?;
                self.spoil(|out| {
                    let last = out.bytes().len() - out.layout().shape[3] * out.dtype().size_bytes();
                    out.bytes_mut()[last..].copy_from_slice(&before.bytes()[last..]);
                });
            }
            Conduct::Zeros => self.spoil(|out| out.bytes_mut().fill(0)),
            Conduct::Cached => {
                if self.kept.is_none() {
                    self.honest.call()?;
                    self.kept = Some(self.bed.with_place(self.place, |_, out| out.clone()));
                }
                if let Some(kept) = &self.kept {
                    self.spoil(|out| out.bytes_mut().copy_from_slice(kept.bytes()));
                }
            }
            Conduct::LazyLater => {
                if self.calls <= PATIENT_CALLS {
                    self.honest.call()?;
                }
            }
            Conduct::LazyInFinals => {
                if !self.in_finals.get() {
                    self.honest.call()?;
                }
            }
            Conduct::CrashesInFinals => {
                if self.in_finals.get() {
                    std::process::abort();
                }
                self.honest.call()?;
            }
            Conduct::WrongFarOut => {
                self.honest.call()?;
                self.spoil(|out| {
                    let [batch, rows, heads, _] = out.layout().shape;
                    if out.bytes().len() >= LARGE_OUTPUT {
                        out.view_mut().set(batch - 1, rows * 5 / 8, heads - 1, 0, 1.0);
                    }
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_of_one_conduct() {
        for conduct in Conduct::ALL {
            assert_eq!(Conduct::of_id(&conduct.to_string()), Some(conduct));
        }
        assert_eq!(Conduct::of_id("planted/"), None);
    }
}
