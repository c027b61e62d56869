//! Planted candidates: an honest kernel, and what is done to its tensors from the host before or after it.

use std::ops::Range;

use flashcore_problem::rng::Rng;
use flashcore_problem::{POISON, Tensor};

use super::{Conduct, InFinals};
use crate::host_clock::called;
use crate::{Bed, LaunchMode, Subject, SubjectInfo, Trouble};

/// Calls after which [`Conduct::LazyLater`] stops working: more than inspecting makes, fewer than timing.
const PATIENT_CALLS: u32 = 12;
/// Bytes from which on an output is large for [`Conduct::WrongFarOut`]: more than those of the small shapes that every
/// candidate is judged on.
const LARGE_OUTPUT: usize = 384 << 10;
/// Magnitude that normal inputs do not reach ([`Rng::normal`]), and extreme ones do in the first row.
const LARGE: f64 = 6.0;
/// How far outside, in words: 16 GB past the output.
const FAR: u32 = u32::MAX - 63;

/// What is done to Q, the outputs and the log-sum-exp of a place.
pub type Spoiler<'a> = dyn FnMut(&Tensor, &mut [Tensor], &mut [f32]) + 'a;

/// A bed whose tensors a candidate can spoil.
pub trait Spoil: Bed {
    /// Waits for all work, calls `act` with Q, the outputs and the log-sum-exp (empty if candidates write
    /// none) of a place, and keeps what it wrote to the last two.
    fn spoil(&self, place: usize, act: &mut Spoiler<'_>) -> Result<(), Trouble>;

    /// Never ends.
    fn hang(&self) -> Result<(), Trouble>;

    /// Writes a word, so many words past the end of the first output of a place.
    fn write_outside(&self, place: usize, words: u32) -> Result<(), Trouble>;
}

/// A planted candidate. On a GPU it is launched plainly, one run per call.
pub struct Planted<'a> {
    info: SubjectInfo,
    conduct: Conduct,
    honest: Box<dyn Subject + 'a>,
    bed: &'a dyn Spoil,
    place: usize,
    in_finals: InFinals,
    calls: u32,
    /// Earlier outputs and their log-sum-exp.
    kept: Option<(Vec<Tensor>, Vec<f32>)>,
}

impl<'a> Planted<'a> {
    /// A candidate made from an honest kernel, both bound to a place of a bed.
    pub fn new(
        conduct: Conduct,
        honest: impl Subject + 'a,
        bed: &'a dyn Spoil,
        place: usize,
        in_finals: InFinals,
    ) -> Planted<'a> {
        let launch = match honest.info().launch {
            LaunchMode::Host => LaunchMode::Host,
            _ => LaunchMode::Plain,
        };
        Planted {
            info: SubjectInfo::ours(conduct.to_string(), launch),
            conduct,
            honest: Box::new(honest),
            bed,
            place,
            in_finals,
            calls: 0,
            kept: None,
        }
    }

    /// Acts on the first output.
    fn out<T>(&self, mut act: impl FnMut(&mut Tensor) -> T) -> Result<T, Trouble> {
        let mut result = None;
        self.bed
            .spoil(self.place, &mut |_, outs, _| result = Some(act(&mut outs[0])))?;
        result.ok_or_else(|| Trouble::new("the output was not shown"))
    }

    fn lse(&self, mut act: impl FnMut(&mut f32)) -> Result<(), Trouble> {
        self.bed.spoil(self.place, &mut |_, _, lse| {
            if let Some(last) = lse.last_mut() {
                act(last);
            }
        })
    }

    fn wrong_where(&self, shows: fn(&Tensor) -> bool) -> Result<(), Trouble> {
        self.bed.spoil(self.place, &mut |q, outs, _| {
            if shows(q) {
                let value = outs[0].view().get(0, 0, 0, 0);
                outs[0].set(0, 0, 0, 0, value * 0.5 + 1.0);
            }
        })
    }

    /// What is done in place of the honest kernel, or before it; `false` where the honest kernel is to run.
    fn instead(&mut self) -> Result<bool, Trouble> {
        match self.conduct {
            Conduct::Hangs => self.bed.hang()?,
            Conduct::Crashes => std::process::abort(),
            Conduct::OutOfBounds => self.bed.write_outside(self.place, FAR)?,
            Conduct::CrashesInFinals if self.in_finals.get() => self.bed.write_outside(self.place, FAR)?,
            Conduct::Unwritten => {
                let before = self.out(|out| out.bytes()[last_row(out)].to_vec())?;
                self.honest.call()?;
                self.out(|out| {
                    let last = last_row(out);
                    out.bytes_mut()[last].copy_from_slice(&before);
                })?;
            }
            Conduct::UnwrittenLse => {
                let mut before = 0.0;
                self.lse(|last| before = *last)?;
                self.honest.call()?;
                self.lse(|last| *last = before)?;
            }
            Conduct::LeavesOutputsAlone => return self.out(|out| out.bytes()[0] != POISON),
            Conduct::Zeros => self.bed.spoil(self.place, &mut |_, outs, _| {
                outs.iter_mut().for_each(|out| out.bytes_mut().fill(0));
            })?,
            Conduct::Cached => match &self.kept {
                Some((kept, kept_lse)) => self.bed.spoil(self.place, &mut |_, outs, lse| {
                    outs.iter_mut().zip(kept).for_each(|(out, kept)| out.copy_from(kept));
                    lse.copy_from_slice(kept_lse);
                })?,
                None => return Ok(false),
            },
            Conduct::LazyLater => return Ok(self.calls > PATIENT_CALLS),
            Conduct::ChangesInFinals => return Ok(self.in_finals.get()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn afterwards(&mut self) -> Result<(), Trouble> {
        match self.conduct {
            Conduct::OneOutside => self.bed.write_outside(self.place, 0),
            Conduct::WrongLse => self.lse(|last| *last += 0.5),
            Conduct::WrongSometimes => self.wrong_where(is_odd),
            Conduct::WrongOnLargeScores => self.wrong_where(has_large_inputs),
            Conduct::Wrong => self.wrong_where(|_| true),
            Conduct::Unstable => {
                let mut rng = Rng::new(u64::from(self.calls));
                self.out(|out| {
                    // The last bit of some elements.
                    let bytes = out.bytes_mut();
                    for _ in 0..8 {
                        let at = rng.below(bytes.len() / 4) * 4;
                        bytes[at] ^= 1;
                    }
                })
            }
            Conduct::Nan => self.out(|out| out.set(0, 0, 0, 0, f32::NAN)),
            Conduct::Cached => {
                let kept = &mut self.kept;
                let mut keep =
                    |_: &Tensor, outs: &mut [Tensor], lse: &mut [f32]| *kept = Some((outs.to_vec(), lse.to_vec()));
                self.bed.spoil(self.place, &mut keep)
            }
            Conduct::WrongFarOut => self.out(|out| {
                let [batch, rows, heads, _] = out.layout().shape;
                if out.bytes().len() >= LARGE_OUTPUT {
                    out.set(batch - 1, rows * 5 / 8, heads - 1, 0, 1.0);
                }
            }),
            // The honest kernel of `PointerReplay` is bound to the first buffers, that of `NotJoined` and `NotWaiting`
            // to another stream.
            _ => Ok(()),
        }
    }
}

fn last_row(out: &Tensor) -> Range<usize> {
    let end = out.bytes().len();
    end - out.layout().shape[3] * out.dtype().size_bytes()..end
}

/// Something that half of all inputs have.
fn is_odd(q: &Tensor) -> bool {
    let sum = q.bytes().iter().take(64).fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    sum.count_ones() % 2 == 1
}

fn has_large_inputs(q: &Tensor) -> bool {
    (0..q.layout().shape[3]).any(|d| q.view().value(0, 0, 0, d).abs() >= LARGE)
}

impl Subject for Planted<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn runs_per_call(&self) -> u32 {
        match self.conduct {
            Conduct::Honest => self.honest.runs_per_call(),
            _ => 1,
        }
    }

    fn call(&mut self) -> Result<(), Trouble> {
        self.calls += 1;
        called(&self.info.label)?;
        if self.instead()? {
            return Ok(());
        }
        self.honest.call()?;
        self.afterwards()
    }
}

#[cfg(test)]
mod tests {
    use flashcore_problem::{DType, InputKind, Inputs, Problem};

    use super::*;

    fn drawn(dtype: DType, kind: InputKind, seed: u64) -> Tensor {
        let builder = Problem::builder().heads(1, 1).seq_len(77).head_dim(64);
        Inputs::generate(&builder.dtype(dtype).build().unwrap(), kind, seed).q
    }

    /// One that never showed would make a gate look tight that nothing went through.
    #[test]
    fn large_inputs_show_and_normal_ones_do_not() {
        for dtype in DType::ALL {
            for seed in 0..20 {
                assert!(
                    has_large_inputs(&drawn(dtype, InputKind::Extremes, seed)),
                    "{dtype} {seed}"
                );
                assert!(
                    !has_large_inputs(&drawn(dtype, InputKind::Normal, seed)),
                    "{dtype} {seed}"
                );
            }
        }
    }

    #[test]
    fn about_half_of_all_inputs_are_odd() {
        for dtype in DType::ALL {
            let count = (0..20)
                .filter(|seed| is_odd(&drawn(dtype, InputKind::Normal, *seed)))
                .count();
            assert!((4..=16).contains(&count), "{dtype}: {count} of 20");
        }
    }

    #[test]
    fn the_last_row_is_one_of_the_output() {
        for dtype in DType::ALL {
            let mut out = drawn(dtype, InputKind::Normal, 1);
            out.bytes_mut().fill(POISON);
            let last = last_row(&out);
            out.bytes_mut()[last].fill(0);
            let row = |s| (0..64).map(|d| out.view().get(0, s, 0, d)).collect::<Vec<_>>();
            assert_eq!(row(76), vec![0.0; 64], "{dtype}");
            assert_ne!(row(75), vec![0.0; 64], "{dtype}");
        }
    }
}
