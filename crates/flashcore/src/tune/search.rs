//! The search for a problem, on a device that is asked for times: a real one, or that of a test.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use flashcore_problem::Problem;

use super::{TuneProgress, TuneSearch};
use crate::{Error, KernelId};

/// Share of the time that is kept for the last comparison.
const FOR_THE_LAST: f64 = 0.2;
/// Rounds of a first comparison.
const ROUNDS: usize = 3;
/// A kernel replaces the fastest so far if it takes less than this share of its time.
const FASTER: f64 = 0.995;
/// Rounds of the last comparison, and the values at each end of them that its interval leaves out:
/// with 16 rounds the median lies between the third and the fourteenth at 99.6 %.
const LAST_ROUNDS: usize = 16;
const BEYOND: usize = 2;
/// Least gain for which the default is given up.
const LEAST_GAIN: f64 = 0.01;

/// Why a kernel is not timed.
pub(super) enum Unfit {
    /// It is refused, does not compile, or fails.
    Refused(Error),
    /// Its output is wrong.
    Wrong(String),
    /// Every kernel would fail.
    Failed(Error),
}

/// A device with the tensors of a problem.
pub(super) trait Bed {
    /// The kernels that differ a little from one, for this problem.
    fn near(&self, kernel: KernelId) -> Vec<KernelId>;
    /// Makes a kernel ready to be timed, and compares its output with float64.
    fn open(&mut self, kernel: KernelId) -> Result<(), Unfit>;
    /// Forgets a kernel that was opened.
    fn close(&mut self, kernel: KernelId);
    /// Time of a run of an opened kernel, µs, from a batch of some milliseconds.
    fn time(&mut self, kernel: KernelId) -> Result<f64, Error>;
    /// Time since the search began.
    fn now(&self) -> Duration;
}

/// Searches for at most `share`; `None` if that was too short to compare a single kernel with the default.
pub(super) fn search(
    bed: &mut dyn Bed,
    problem: &Problem,
    default: KernelId,
    share: Duration,
    watch: &mut dyn FnMut(TuneProgress<'_>),
) -> Result<Option<TuneSearch>, Error> {
    match bed.open(default) {
        Ok(()) => {}
        Err(Unfit::Failed(error) | Unfit::Refused(error)) => return Err(error),
        Err(Unfit::Wrong(reason)) => {
            return Err(Error::WrongOutput {
                kernel: default.to_string(),
                reason,
            });
        }
    }
    let mut found = TuneSearch {
        problem: problem.clone(),
        kernel: default,
        default,
        gain: 0.0,
        interval: [0.0; 2],
        timed: 1,
        left_out: Vec::new(),
    };
    let mut fastest = default;
    let mut seen = BTreeSet::from([default.to_string()]);
    let mut queue: VecDeque<KernelId> = bed.near(default).into();
    let until = share.mul_f64(1.0 - FOR_THE_LAST);
    while let Some(kernel) = queue.pop_front() {
        if !seen.insert(kernel.to_string()) {
            continue;
        }
        if bed.now() >= until {
            if found.timed == 1 && found.left_out.is_empty() {
                bed.close(default);
                return Ok(None);
            }
            break;
        }
        let unfit = match bed.open(kernel) {
            Ok(()) => None,
            Err(Unfit::Failed(error)) => return Err(error),
            Err(Unfit::Refused(error)) => Some(error.to_string()),
            Err(Unfit::Wrong(reason)) => Some(reason),
        };
        if let Some(reason) = unfit {
            watch(TuneProgress::LeftOut(&kernel, &reason));
            found.left_out.push((kernel, reason));
            continue;
        }
        found.timed += 1;
        let ratio = median(&ratios(bed, kernel, fastest, ROUNDS)?);
        watch(TuneProgress::Timed(&kernel, ratio));
        if ratio >= FASTER {
            bed.close(kernel);
            continue;
        }
        if fastest != default {
            bed.close(fastest);
        }
        fastest = kernel;
        // Its neighbours come first: it is where the search goes on.
        for near in bed.near(kernel).into_iter().rev() {
            queue.push_front(near);
        }
    }
    if fastest != default {
        let mut ratios = ratios(bed, fastest, default, LAST_ROUNDS)?;
        ratios.sort_by(f64::total_cmp);
        let gain = |ratio: f64| ((1.0 - ratio) * 1e4).round() / 1e4;
        let interval = [gain(ratios[LAST_ROUNDS - 1 - BEYOND]), gain(ratios[BEYOND])];
        if gain(median(&ratios)) >= LEAST_GAIN && interval[0] > 0.0 {
            (found.kernel, found.gain, found.interval) = (fastest, gain(median(&ratios)), interval);
        }
        bed.close(fastest);
    }
    bed.close(default);
    Ok(Some(found))
}

/// Times of a kernel over those of another, round by round, each first in every other round.
fn ratios(bed: &mut dyn Bed, kernel: KernelId, other: KernelId, rounds: usize) -> Result<Vec<f64>, Error> {
    let round = |round: usize| {
        let (of_kernel, of_other);
        if round.is_multiple_of(2) {
            (of_kernel, of_other) = (bed.time(kernel)?, bed.time(other)?);
        } else {
            let first = bed.time(other)?;
            (of_kernel, of_other) = (bed.time(kernel)?, first);
        }
        Ok(of_kernel / of_other)
    };
    (0..rounds).map(round).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}

#[cfg(feature = "cpu")]
#[cfg(test)]
mod tests {
    use flashcore_cpu::CpuConfig;

    use super::*;

    /// A device whose times are made up: those of `tile_kv` 16, 32, 64, 128, 256, 512, µs.
    struct Made {
        us: [f64; 6],
        /// These come out wrong.
        wrong: Vec<usize>,
        /// This one is refused.
        refused: Option<usize>,
        /// Every other batch takes so much longer.
        noise: f64,
        batches: usize,
        opened: Vec<KernelId>,
        now: Duration,
    }

    const TILES: [usize; 6] = [16, 32, 64, 128, 256, 512];
    const COMPILES: Duration = Duration::from_millis(100);

    fn kernel(tile_kv: usize) -> KernelId {
        KernelId::Cpu(CpuConfig { tile_q: 64, tile_kv })
    }

    fn place(of: KernelId) -> usize {
        TILES.iter().position(|tile| kernel(*tile) == of).unwrap()
    }

    fn refusal() -> Error {
        Error::Operand {
            name: flashcore_problem::Name::Sinks,
            why: "was not given".to_string(),
        }
    }

    impl Bed for Made {
        fn near(&self, of: KernelId) -> Vec<KernelId> {
            let at = place(of);
            let near = [at.checked_sub(1), Some(at + 1)].into_iter().flatten();
            near.filter_map(|at| TILES.get(at)).map(|tile| kernel(*tile)).collect()
        }

        fn open(&mut self, of: KernelId) -> Result<(), Unfit> {
            self.now += COMPILES;
            if self.wrong.contains(&TILES[place(of)]) {
                return Err(Unfit::Wrong("its output is wrong".to_string()));
            }
            if self.refused == Some(TILES[place(of)]) {
                return Err(Unfit::Refused(refusal()));
            }
            self.opened.push(of);
            Ok(())
        }

        fn close(&mut self, of: KernelId) {
            self.opened.retain(|opened| *opened != of);
        }

        fn time(&mut self, of: KernelId) -> Result<f64, Error> {
            assert!(
                self.opened.contains(&of),
                "{of} is timed before its output was compared"
            );
            self.batches += 1;
            self.now += Duration::from_millis(2);
            let noise = if self.batches.is_multiple_of(2) {
                self.noise
            } else {
                0.0
            };
            Ok(self.us[place(of)] + noise)
        }

        fn now(&self) -> Duration {
            self.now
        }
    }

    fn made(us: [f64; 6]) -> Made {
        Made {
            us,
            wrong: Vec::new(),
            refused: None,
            noise: 0.0,
            batches: 0,
            opened: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn searched(bed: &mut Made, seconds: f64) -> Result<TuneSearch, Error> {
        let problem = Problem::named("tiny").unwrap();
        let found = search(bed, &problem, kernel(64), Duration::from_secs_f64(seconds), &mut |_| ());
        if found.is_ok() {
            assert!(bed.opened.is_empty(), "{:?}", bed.opened);
        }
        found.map(|found| found.expect("time for a kernel"))
    }

    #[test]
    fn a_search_goes_on_from_what_is_faster() {
        let mut bed = made([40.0, 30.0, 20.0, 18.0, 15.0, 16.0]);
        let found = searched(&mut bed, 60.0).unwrap();
        assert_eq!((found.kernel, found.default), (kernel(256), kernel(64)));
        assert_eq!((found.gain, found.interval), (0.25, [0.25, 0.25]));
        assert_eq!(found.timed, 5, "16 is near nothing that was fast");
    }

    #[test]
    fn what_is_wrong_is_never_timed() {
        let mut bed = Made {
            wrong: vec![128],
            ..made([40.0, 30.0, 20.0, 1.0, 0.5, 16.0])
        };
        let found = searched(&mut bed, 60.0).unwrap();
        assert_eq!(found.kernel, kernel(64));
        assert_eq!(found.left_out, [(kernel(128), "its output is wrong".to_string())]);
        // Where the default itself is wrong, nothing may be used.
        bed.wrong = vec![64];
        let error = searched(&mut bed, 60.0).unwrap_err();
        assert!(matches!(error, Error::WrongOutput { .. }), "{error}");
    }

    #[test]
    fn a_refusal_is_no_wrong_output() {
        let mut bed = Made {
            refused: Some(128),
            ..made([40.0, 30.0, 20.0, 1.0, 0.5, 16.0])
        };
        let found = searched(&mut bed, 60.0).unwrap();
        assert_eq!(found.left_out, [(kernel(128), refusal().to_string())]);
        bed.refused = Some(64);
        let error = searched(&mut bed, 60.0).unwrap_err();
        assert!(matches!(error, Error::Operand { .. }), "{error}");
    }

    #[test]
    fn the_default_stays_where_nothing_is_clearly_faster() {
        for (us, noise) in [
            ([9.0, 9.0, 5.0, 5.1, 9.0, 9.0], 0.0),
            ([9.0, 9.0, 5.0, 4.97, 9.0, 9.0], 0.0), // by less than 1 %
            ([9.0, 9.0, 5.0, 4.9, 9.0, 9.0], 0.4),  // within the noise
        ] {
            let mut bed = Made { noise, ..made(us) };
            let found = searched(&mut bed, 60.0).unwrap();
            assert_eq!((found.kernel, found.gain), (kernel(64), 0.0), "{us:?}");
        }
    }

    #[test]
    fn the_budget_holds_but_for_one_compilation() {
        for (seconds, wanted) in [(0.3, 16), (10.0, 16)] {
            let mut bed = made([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
            let found = searched(&mut bed, seconds).unwrap();
            // The default is compiled in any case, and the last comparison takes 64 ms here.
            let most = Duration::from_secs_f64(seconds) + 2 * COMPILES;
            assert!(bed.now <= most, "{:?} of {seconds} s", bed.now);
            assert_eq!(found.kernel, kernel(wanted), "{seconds} s");
        }
    }

    #[test]
    fn without_time_for_a_kernel_nothing_is_said_of_the_default() {
        let mut bed = made([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let problem = Problem::named("tiny").unwrap();
        let found = search(&mut bed, &problem, kernel(64), Duration::ZERO, &mut |_| ());
        assert!(found.unwrap().is_none() && bed.opened.is_empty());
    }
}
