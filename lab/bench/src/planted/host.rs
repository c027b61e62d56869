//! Planted candidates on the host.

use std::thread;
use std::time::Duration;

use flashcore_problem::rng::Rng;
use flashcore_problem::{POISON, Problem, Tensor};

use super::{Conduct, InFinals, LARGE, LARGE_OUTPUT, PATIENT_CALLS};
use crate::cpu::{CpuBed, CpuSubject};
use crate::host_clock::called;
use crate::identity::{LaunchMode, SubjectInfo};
use crate::subject::{Subject, Trouble};

/// A planted candidate on the host.
pub struct CpuPlanted<'a> {
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
    /// A candidate bound to a place of a bed, made from the kernel that the library would run.
    pub fn new(
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
            honest: CpuSubject::new(bed, config, if conduct == Conduct::PointerReplay { 0 } else { place }),
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

    fn out<T>(&self, act: impl FnOnce(&mut Tensor) -> T) -> T {
        self.bed.with_place(self.place, |_, out| act(out))
    }

    /// What is done in place of the honest kernel; `false` where the honest kernel is to run.
    fn instead(&mut self) -> Result<bool, Trouble> {
        match self.conduct {
            Conduct::Hangs => loop {
                thread::sleep(Duration::from_secs(3600));
            },
            Conduct::Crashes => std::process::abort(),
            // The host's bounds check ends the process, as a fault does on a GPU.
            Conduct::OutOfBounds => self.write_past_end(self.calls as usize),
            Conduct::Unwritten => {
                let before = self.out(|out| out.clone());
                self.honest.call()?;
                self.out(|out| {
                    let last = out.bytes().len() - out.layout().shape[3] * out.dtype().size_bytes();
                    out.bytes_mut()[last..].copy_from_slice(&before.bytes()[last..]);
                });
            }
            Conduct::UnwrittenLse => {
                let before = self.bed.with_lse(self.place, |lse| lse.last().copied());
                self.honest.call()?;
                self.bed.with_lse(self.place, |lse| {
                    if let (Some(last), Some(before)) = (lse.last_mut(), before) {
                        *last = before;
                    }
                });
            }
            Conduct::LeavesAnswersAlone => return Ok(self.out(|out| out.bytes()[0] != POISON)),
            Conduct::Zeros => self.out(|out| out.bytes_mut().fill(0)),
            Conduct::Cached => match &self.kept {
                Some(kept) => self.out(|out| out.bytes_mut().copy_from_slice(kept.bytes())),
                None => return Ok(false),
            },
            Conduct::LazyLater => return Ok(self.calls > PATIENT_CALLS),
            Conduct::LazyInFinals => return Ok(self.in_finals.get()),
            Conduct::CrashesInFinals if self.in_finals.get() => std::process::abort(),
            // The host has no streams.
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What is done after the honest kernel.
    fn afterwards(&mut self) {
        let wrong = |out: &mut Tensor| {
            let value = out.view().get(0, 0, 0, 0);
            out.view_mut().set(0, 0, 0, 0, value * 0.5 + 1.0);
        };
        match self.conduct {
            Conduct::OneOutside => self.write_past_end(0),
            Conduct::WrongLse => self.bed.with_lse(self.place, |lse| {
                if let Some(last) = lse.last_mut() {
                    *last += 0.5;
                }
            }),
            Conduct::WrongSometimes if self.is_odd() => self.out(wrong),
            Conduct::WrongOnLargeScores if self.has_large_inputs() => self.out(wrong),
            Conduct::Wrong => self.out(wrong),
            Conduct::Unstable => {
                let mut rng = Rng::new(u64::from(self.calls));
                self.out(|out| {
                    // The last bit of some elements.
                    let bytes = out.bytes_mut();
                    for _ in 0..8 {
                        let at = rng.below(bytes.len() / 4) * 4;
                        bytes[at] ^= 1;
                    }
                });
            }
            Conduct::Nan => self.out(|out| out.view_mut().set(0, 0, 0, 0, f32::NAN)),
            Conduct::Cached => self.kept = Some(self.out(|out| out.clone())),
            Conduct::WrongFarOut => self.out(|out| {
                let [batch, rows, heads, _] = out.layout().shape;
                if out.bytes().len() >= LARGE_OUTPUT {
                    out.view_mut().set(batch - 1, rows * 5 / 8, heads - 1, 0, 1.0);
                }
            }),
            _ => {}
        }
    }

    fn write_past_end(&self, far: usize) {
        self.out(|out| {
            let end = out.bytes().len();
            out.bytes_mut()[end + far] = 0;
        });
    }
}

impl Subject for CpuPlanted<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn call(&mut self) -> Result<(), Trouble> {
        self.calls += 1;
        called(&self.info.label)?;
        if self.instead()? {
            return Ok(());
        }
        self.honest.call()?;
        self.afterwards();
        Ok(())
    }
}
