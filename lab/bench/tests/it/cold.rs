//! Whether a flush of L2 leaves a kernel cold. A kernel may ask L2 to keep its lines through anything; then it is
//! faster after a flush than on memory that was never in L2.

use flashcore_bench::stats::median;
use flashcore_bench::{Stopwatch, Subject, Trouble};

use super::simulate::{Noise, SimulatedGpu, SimulatedSubject};

/// Single runs that [`time_cold`] takes the median of.
const COLD_RUNS: usize = 25;
/// How much faster a flushed run may be than one on memory that was never cached, relative: the runs also differ in
/// pages and banks.
const MARGIN: f64 = 0.15;

/// Times single runs cold in two ways, µs: of `flushed` on its first set of inputs after a flush of L2, and of
/// `rotating` through all its sets, which together must be more memory than L2 holds, without a flush.
pub(super) fn time_cold(
    stopwatch: &mut dyn Stopwatch,
    flushed: &mut dyn Subject,
    rotating: &mut dyn Subject,
) -> Result<(f64, f64), Trouble> {
    let sets = rotating.input_sets().max(1);
    let mut once = |subject: &mut dyn Subject, set: Option<usize>| {
        stopwatch.hold()?;
        if set.is_none() {
            stopwatch.flush()?;
        }
        stopwatch.begin(0)?;
        subject.run_once(set.unwrap_or(0))?;
        stopwatch.end(0)?;
        stopwatch.elapsed_us(0)
    };
    // Two rounds of everything first: what persists is there by then.
    for set in 0..2 * sets {
        once(rotating, Some(set % sets))?;
    }
    let rotated = (0..COLD_RUNS.max(sets)).map(|run| once(rotating, Some(run % sets)));
    let rotated = rotated.collect::<Result<Vec<_>, _>>()?;
    // The first ones after a flush do not count.
    let after_flush = (0..3 + COLD_RUNS).map(|_| once(flushed, None));
    let after_flush = after_flush.collect::<Result<Vec<_>, _>>()?;
    Ok((median(&after_flush[3..]), median(&rotated)))
}

/// Whether it keeps lines in L2 that a flush does not reach, by the two times of [`time_cold`].
pub(super) fn persists(flushed_us: f64, rotating_us: f64) -> bool {
    flushed_us < rotating_us * (1.0 - MARGIN)
}

/// A kernel on a simulated device whose lines survive a flush, or do not.
struct Cold {
    inner: SimulatedSubject,
    sets: usize,
    persists: bool,
}

impl Subject for Cold {
    fn info(&self) -> &flashcore_bench::SubjectInfo {
        self.inner.info()
    }
    fn call(&mut self) -> Result<(), Trouble> {
        self.inner.call()
    }
    fn run_once(&mut self, set: usize) -> Result<(), Trouble> {
        // Memory that was never cached costs a second run's time; so does a flush, unless lines survive it.
        let cold = self.sets > 1 || !self.persists;
        self.inner.run_once(set)?;
        if cold { self.inner.run_once(set) } else { Ok(()) }
    }
    fn input_sets(&self) -> usize {
        self.sets
    }
}

#[test]
fn lines_that_survive_a_flush_show_in_the_times() {
    for kept in [false, true] {
        let gpu = SimulatedGpu::new(Noise::steady(), 5);
        let cold = |sets| Cold {
            inner: gpu.subject("a", 30.0, 0.5, 1),
            sets,
            persists: kept,
        };
        let (flushed, rotating) = time_cold(&mut gpu.stopwatch(), &mut cold(1), &mut cold(16)).unwrap();
        assert_eq!(persists(flushed, rotating), kept, "{flushed} {rotating}");
    }
}

#[test]
fn cold_times_that_no_memory_explains_are_noticed() {
    assert!(!persists(20.0, 21.0));
    assert!(!persists(25.0, 20.0));
    assert!(persists(10.0, 20.0));
}
