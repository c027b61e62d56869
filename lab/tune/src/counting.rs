//! Reads the hardware counters of candidates that a search accepts, for claims about them.

use std::sync::atomic::{AtomicBool, Ordering};

use flashcore_bench::Case;
use flashcore_bench::profile::{KernelProfile, LineProfile, NcuError, Profiler};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;

/// Most sampled lines that are kept with a trial.
const LINES: usize = 3;

/// Profiles kernels of one problem. After the first failure it does nothing: a machine without permission has none
/// later.
#[derive(Debug)]
pub struct Counting {
    profiler: Profiler,
    case: Case,
    /// `None`: a replay, where ncu is a program that prints recorded counters, of whatever kernel.
    chip: Option<Chip>,
    over: AtomicBool,
}

impl Counting {
    /// With a profiler, on a GPU of this kind.
    pub fn new(profiler: Profiler, case: Case, chip: Option<Chip>) -> Counting {
        Counting {
            profiler,
            case,
            chip,
            over: AtomicBool::new(false),
        }
    }

    /// The counters of the main launch of a kernel; `None` once this failed. The caller holds the device.
    pub(crate) fn read(&self, id: &str, device: &str) -> Option<Result<KernelProfile, NcuError>> {
        if self.over.load(Ordering::Relaxed) {
            return None;
        }
        let chip = self.chip.unwrap_or(Target::Sm90a.into());
        let plan = Plan::new(&self.case.problem, &id.parse().ok()?, chip).ok()?;
        let read = self.profiler.kernel(&self.case, &plan, device);
        let read = read.map(|record| record.launches.into_iter().next().map(kept).unwrap_or_default());
        self.over.store(read.is_err(), Ordering::Relaxed);
        Some(read)
    }
}

/// The same with the lines that claims name.
fn kept(mut counters: KernelProfile) -> KernelProfile {
    let conflicts = |line: &&LineProfile| line.wavefronts_excess > 0.0;
    let worst = counters.lines.iter().skip(LINES).filter(conflicts);
    let worst = worst
        .max_by(|a, b| a.wavefronts_excess.total_cmp(&b.wavefronts_excess))
        .cloned();
    counters.lines.truncate(LINES);
    counters.lines.extend(worst);
    counters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_sampled_lines_are_kept_and_the_one_with_conflicts() {
        let line = |at: u32, wavefronts_excess: f64| LineProfile {
            file: "a.rs".into(),
            line: at,
            source: String::new(),
            samples: 1.0,
            instructions: 1.0,
            wavefronts: 9.0,
            wavefronts_excess,
            waits_for: None,
        };
        let counters = KernelProfile {
            lines: vec![
                line(1, 0.0),
                line(2, 0.0),
                line(3, 0.0),
                line(4, 2.0),
                line(5, 7.0),
                line(6, 0.0),
            ],
            ..KernelProfile::default()
        };
        let lines: Vec<u32> = kept(counters).lines.iter().map(|line| line.line).collect();
        assert_eq!(lines, [1, 2, 3, 5]);
    }
}
