//! A replay: times that were measured once, in place of a device. It is deterministic, so whole
//! runs can be compared.

use flashcore_bench::{
    BenchError, DeviceIdentity, Interval, LaunchMode, Measured, Measurement, Mode, Options, Ratio, Stop, SubjectInfo,
    Summary,
};
use flashcore_check::own::Declared;
use flashcore_problem::Problem;

use super::devices::{Device, Told};
use crate::own::Bad;
use crate::replay::Table;
use crate::trial::Verdict;

pub(super) struct Replay {
    pub(super) identity: DeviceIdentity,
    pub(super) tables: Vec<Table>,
}

impl Device for Replay {
    fn identity(&self) -> DeviceIdentity {
        self.identity.clone()
    }

    fn told(&self, problem: &Problem, id: &str, _own: (&[Declared], u64)) -> Result<Told, Bad> {
        let refused = |reason: &str| Err((Verdict::Refused, reason.to_string()));
        let Some(table) = self.tables.iter().find(|table| table.case.problem == *problem) else {
            return refused("this problem was not measured");
        };
        match table.by_id().remove(id) {
            None => refused("it was not measured"),
            Some(known) => known.map(|(us, interval)| (us, interval, None)),
        }
    }
}

/// A summary of which only the median and its interval are known.
pub(super) fn summary(us: f64, interval: Interval) -> Summary {
    Summary {
        count: 1,
        mad: (interval.hi - interval.lo) / 2.0,
        ..Summary::predicted(us, interval)
    }
}

pub(super) type Replayed = Vec<(String, Summary)>;

pub(super) fn time(
    rows: &[(String, Summary)],
    baseline: usize,
    mode: Mode,
    options: &Options,
) -> Result<Measurement, BenchError> {
    let none = || BenchError::Nothing(format!("kernel {baseline} is not open"));
    let (_, base) = rows.get(baseline).ok_or_else(none)?;
    let subject = |(index, (id, summary)): (usize, &(String, Summary))| {
        let value = summary.p50 / base.p50;
        let ratio = (index != baseline).then(|| Ratio {
            value,
            // The times are not from the same rounds, so both intervals count.
            interval: Interval {
                lo: summary.interval.lo / base.interval.hi,
                hi: summary.interval.hi / base.interval.lo,
            },
            of_medians: value,
            rounds: summary.count,
        });
        let info = SubjectInfo::ours(id.clone(), LaunchMode::Host);
        Measured {
            summary: Some(*summary),
            ratio,
            verdict: ratio.map(|ratio| flashcore_bench::Verdict::of(&ratio, options.threshold)),
            settled: true,
            ..Measured::untimed(info, None)
        }
    };
    let subjects = rows.iter().enumerate().map(subject).collect();
    Ok(Measurement {
        rounds: 1,
        ..Measurement::without_rounds(mode, baseline, subjects, Stop::Rounds)
    })
}
