//! From measurements to plan tables: which winners become rows, and how rows get into [a file](put).

mod file;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use file::{Place, can_put, drop_row, file_of, put, write};
use flashcore::{KernelId, PlanClass, PlanDevice, PlanRow, PlanSetting, PlanTarget, Plans};
use flashcore_bench::{CaseResult, DeviceIdentity, Mode, Ratio, Report, RunIdentity, date};
use flashcore_ir::Target;
use flashcore_problem::Problem;
use serde::Serialize;

use crate::board::Board;
use crate::default::DefaultKernel;
use crate::error::TuneError;
use crate::journal::Header;

/// Least gain of a row that is made from a report: measured head to head, the interval clear of none.
pub const LEAST_GAIN: f64 = 0.01;

/// What came of a problem that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The problem.
    pub problem: Problem,
    /// What heuristics choose, or the first candidate of a search.
    pub heuristics: String,
    /// The fastest measured with it, how much faster it was, and the interval of that.
    pub best: Option<(String, f64, [f64; 2])>,
    /// The row that it makes, if it makes one.
    pub row: Option<PlanRow>,
    /// Why there is a row, or none.
    pub why: String,
}

/// The device of a table, as a measurement names it.
pub fn device_of(identity: &DeviceIdentity) -> PlanDevice {
    let number = || identity.architecture.strip_prefix("sm_")?.parse::<u32>().ok();
    let target = number().and_then(|number| Target::for_capability(number / 10, number % 10));
    PlanDevice {
        name: identity.name.clone(),
        target: target.map_or(identity.architecture.clone(), |target| target.name().to_string()),
        units: identity.units,
    }
}

/// What heuristics choose for a problem on a device, as a measurement names it.
///
/// # Errors
/// Why nothing serves it there.
pub fn heuristics(problem: &Problem, device: &DeviceIdentity) -> Result<KernelId, String> {
    crate::default::heuristics(problem, &device_of(device))
}

/// A row for a problem: `ratio` is the kernel's time relative to that of `against`.
///
/// # Errors
/// Why there is none: a problem that no table is for, or an id that is none.
pub fn row(
    problem: &Problem,
    kernel: &str,
    against: &str,
    ratio: &Ratio,
    device: &DeviceIdentity,
    (revision, started_at): (&str, u64),
) -> Result<PlanRow, String> {
    let class = PlanClass::of(problem);
    let (gain, interval) = gain_of(ratio);
    Ok(PlanRow {
        problem: class.ok_or("tables are for dense tensors without offsets or packed sequences only")?,
        kernel: kernel.parse().map_err(|error: flashcore::Error| error.to_string())?,
        against: against.to_string(),
        gain,
        interval,
        revision: revision.to_string(),
        driver: device.driver.clone(),
        date: date(started_at),
    })
}

/// The gain that a ratio of times is, and its interval, to four digits.
fn gain_of(ratio: &Ratio) -> (f64, [f64; 2]) {
    let gain = |ratio: f64| ((1.0 - ratio) * 1e4).round() / 1e4;
    (gain(ratio.value), [gain(ratio.interval.hi), gain(ratio.interval.lo)])
}

/// What the measurements of a report make of its problems: a row where the fastest kernel is at least [`LEAST_GAIN`]
/// faster than what heuristics choose, in the same rounds of the hot mode, and the interval is clear of none.
/// Screenings and other modes are passed over.
pub fn of_report(report: &Report) -> Vec<Judged> {
    let hot = report
        .results
        .iter()
        .filter(|result| result.measurement.mode == Mode::Hot);
    hot.map(|result| of_result(result, &report.run)).collect()
}

fn of_result(result: &CaseResult, run: &RunIdentity) -> Judged {
    let (problem, measurement) = (&result.case.problem, &result.measurement);
    let (heuristics, unserved) = match heuristics(problem, &run.device) {
        Ok(kernel) => (kernel.to_string(), None),
        Err(why) => (String::new(), Some(why)),
    };
    let base = measurement.subjects.get(measurement.baseline);
    let is_base = base.is_some_and(|base| base.info.label == heuristics && base.summary.is_some());
    let ratios = measurement.subjects.iter().filter(|subject| subject.info.is_ours());
    let ratios = ratios.filter_map(|subject| Some((subject.info.label.as_str(), subject.ratio?)));
    let best = ratios
        .min_by(|a, b| a.1.value.total_cmp(&b.1.value))
        .filter(|_| is_base);
    let row = || {
        if let Some(why) = unserved {
            return Err(why);
        }
        if !is_base {
            return Err("not measured against what heuristics choose: make that the baseline".to_string());
        }
        let (kernel, ratio) = best.ok_or("only what heuristics choose was measured")?;
        if 1.0 - ratio.value < LEAST_GAIN || ratio.interval.hi >= 1.0 {
            return Err("nothing was clearly faster than what heuristics choose".to_string());
        }
        let when = (run.revision.as_str(), run.started_at);
        self::row(problem, kernel, &heuristics, &ratio, &run.device, when)
    };
    judged(problem, row(), &heuristics, best)
}

fn judged(problem: &Problem, row: Result<PlanRow, String>, against: &str, best: Option<(&str, Ratio)>) -> Judged {
    let why = row.as_ref().map_or_else(String::clone, |_| "faster".to_string());
    Judged {
        problem: problem.clone(),
        heuristics: against.to_string(),
        best: best.map(|(kernel, ratio)| {
            let (gain, interval) = gain_of(&ratio);
            (kernel.to_string(), gain, interval)
        }),
        row: row.ok(),
        why,
    }
}

/// What a search's leaderboard makes of its problem: a row for a winner other than the default.
///
/// # Errors
/// Why there is none, in a clause.
pub fn of_board(header: &Header, board: &Board) -> Result<PlanRow, String> {
    if !header.computes {
        return Err("it is a replay: its times say nothing of this machine".to_string());
    }
    if header.torture {
        return Err("planted candidates were among those tried".to_string());
    }
    let device = header.devices.first().ok_or("the run names no device")?;
    let Some(default) = header.begins_at_default() else {
        let used = header.default.as_ref();
        return Err(format!(
            "times are relative to {}, and {} is the default; leave out --start",
            board.start,
            used.map_or("another kernel", |default| &default.kernel)
        ));
    };
    if board.is_start_bad() {
        return Err(format!(
            "{}, which is the default, failed: there is nothing to be faster than",
            default.kernel
        ));
    }
    let winner = board.winner.as_deref().ok_or("nothing won")?;
    if winner == board.start {
        return Err(match &default.row {
            None => format!("{} is used without one, and nothing was faster", default.kernel),
            Some(row) => format!("{} is used already, and nothing was faster; {row}", default.kernel),
        });
    }
    let met = &board.head_to_head;
    met.clone()
        .map_err(|why| format!("it was not timed against the first candidate: {why}"))?;
    let ratio = board.ratio_of(winner);
    let ratio = ratio.ok_or("the winner was not timed against the first candidate")?;
    let when = (header.revision.as_str(), header.started_at);
    row(&header.problem, winner, &board.start, &ratio, device, when)
}

/// The same as a judgement, as of a report: for a table that is made of runs, which need not say what heuristics say.
pub fn judge_board(header: &Header, board: &Board) -> Judged {
    let by_heuristics = |row: &PlanRow| {
        let default = header.default.as_ref();
        default.is_some_and(|default| default.heuristics == row.kernel.to_string())
    };
    let row = of_board(header, board).and_then(|row| match by_heuristics(&row) {
        true => Err("faster than a row, and what heuristics choose".to_string()),
        false => Ok(row),
    });
    let winner = board.winner.as_deref().filter(|_| !board.is_start_bad());
    let best = winner.and_then(|winner| Some((winner, board.ratio_of(winner)?)));
    judged(&header.problem, row, &board.start, best)
}

/// What became of a search's winner in the user's tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kept {
    /// Where the row is.
    #[serde(flatten)]
    pub place: Place,
    /// The row.
    pub row: PlanRow,
    /// What the library runs for the problem now, where `FLASHCORE_PLANS` is not set. It is another kernel where a
    /// table that is read earlier has a row for the problem.
    pub used: DefaultKernel,
}

/// Puts the row of a search's winner ([`of_board`]) into the user's table for the device, in a folder of tables. It
/// replaces a row for the same problems.
///
/// # Errors
/// As [`put`].
pub fn keep(folder: &Path, header: &Header, row: PlanRow) -> Result<Kept, TuneError> {
    let device = header.devices.first().map(device_of);
    let device = device.ok_or_else(|| TuneError::Nothing {
        what: "the run names no device".to_string(),
    })?;
    let place = put(folder, &device, row.clone())?;
    let target = PlanTarget::Device(device.clone());
    let plans = Plans::find(&PlanSetting::Usual, Some(folder), &target).map_err(flashcore::Error::from)?;
    let used = DefaultKernel::of(&header.problem, &device, &plans)?;
    Ok(Kept { place, row, used })
}
