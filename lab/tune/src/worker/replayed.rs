//! A replay: times that were measured once, in place of a device. It is deterministic, so whole
//! runs can be compared.

use flashcore_bench::{
    BenchError, DeviceIdentity, Interval, LaunchMode, Measured, Measurement, Mode, Options, Ratio, Stop, SubjectInfo,
    Summary,
};
use flashcore_check::own::Declared;
use flashcore_problem::Problem;

use super::devices::{Device, Open};
use super::protocol::Failed;
use crate::replay::{Known, Table};
use crate::trial::Verdict;

pub(super) struct Replay {
    pub(super) identity: DeviceIdentity,
    pub(super) tables: Vec<Table>,
}

impl Device for Replay {
    fn identity(&self) -> DeviceIdentity {
        self.identity.clone()
    }

    fn computes(&self) -> bool {
        false
    }

    fn open(
        &self,
        problem: &Problem,
        kernels: &[String],
        _own: (&[Declared], u64),
        work: &mut dyn FnMut(Open<'_>),
    ) -> Result<(), Failed> {
        let refused = |id: Option<&str>, reason: &str| Failed::new(Verdict::Refused, id, reason);
        let table = self.tables.iter().find(|table| table.case.problem == *problem);
        let known = table
            .ok_or_else(|| refused(None, "this problem was not measured"))?
            .by_id();
        let row = |id: &String| match known.get(id) {
            None => Err(refused(Some(id), "it was not measured")),
            Some(Known::Failed(verdict, reason)) => Err(Failed::new(*verdict, Some(id), reason)),
            Some(Known::Timed(us, interval)) => Ok((id.clone(), summary(*us, *interval))),
        };
        let rows: Vec<_> = kernels.iter().map(row).collect::<Result<_, _>>()?;
        let errors = vec![None; rows.len()];
        work(Open::Replayed(rows, errors));
        Ok(())
    }
}

/// A summary of which only the median and its interval are known.
pub(super) fn summary(us: f64, Interval { lo, hi }: Interval) -> Summary {
    Summary {
        count: 1,
        min: lo,
        p10: lo,
        p50: us,
        p90: hi,
        max: hi,
        mad: (hi - lo) / 2.0,
        interval: Interval { lo, hi },
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
        Measured {
            info: SubjectInfo {
                kernel: Some(id.clone()),
                ..SubjectInfo::new(id.clone(), LaunchMode::Host)
            },
            summary: Some(*summary),
            ratio,
            verdict: ratio.map(|ratio| flashcore_bench::Verdict::of(&ratio, options.threshold)),
            settled: true,
            trouble: None,
        }
    };
    Ok(Measurement {
        mode,
        turns: None,
        baseline,
        subjects: rows.iter().enumerate().map(subject).collect(),
        stop: Stop::Rounds,
        rounds: 1,
        readings: Vec::new(),
    })
}
