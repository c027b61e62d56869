//! From measurements to plan tables: which winners become rows, and how rows are [stored](put).

mod file;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use file::{Place, can_put, drop_row, file_of, put, write};
use flashcore::KernelId;
use flashcore::unstable::plans::{PlanClass, PlanDevice, PlanRow, PlanSetting, PlanTarget, Plans};
use flashcore_bench::own::is_own;
use flashcore_bench::{CaseResult, DeviceIdentity, Mode, Ratio, Report, RunIdentity, date};
use flashcore_ir::Target;
use flashcore_problem::Problem;
use serde::Serialize;

use crate::board::Board;
use crate::default::DefaultKernel;
use crate::error::TuneError;
use crate::journal::Header;

/// Smallest gain of a row from a report, with an interval that excludes no gain.
pub const LEAST_GAIN: f64 = 0.01;

/// The result for a measured problem.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The problem.
    pub problem: Problem,
    /// The heuristics' choice, or the first candidate of a search.
    pub heuristics: String,
    /// The fastest measured with it, its gain, and the interval of the gain.
    pub best: Option<(String, f64, [f64; 2])>,
    /// The row, if there is one.
    pub row: Option<PlanRow>,
    /// Why there is a row or none.
    pub why: String,
}

/// A measurement's device as the device of a table.
pub fn device_of(identity: &DeviceIdentity) -> PlanDevice {
    let number = || identity.architecture.strip_prefix("sm_")?.parse::<u32>().ok();
    let target = number().and_then(|number| Target::for_capability(number / 10, number % 10));
    PlanDevice {
        name: identity.name.clone(),
        target: target.map_or(identity.architecture.clone(), |target| target.name().to_string()),
        units: identity.units,
    }
}

/// The heuristics' choice for a problem on a measurement's device, or why nothing serves it.
pub fn heuristics(problem: &Problem, device: &DeviceIdentity) -> Result<KernelId, String> {
    crate::default::heuristics(problem, &device_of(device))
}

/// A row for a problem, or why there is none: tables exclude the problem, or the id is invalid.
/// `ratio` is the kernel's time relative to that of `against`.
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
        problem: class.ok_or("tables are for dense tensors of one order, without offsets or packed sequences, only")?,
        kernel: kernel.parse().map_err(|error: flashcore::Error| error.to_string())?,
        against: against.to_string(),
        gain,
        interval,
        revision: revision.to_string(),
        driver: device.driver.clone(),
        date: date(started_at),
    })
}

/// The gain of a ratio of times and its interval, to four digits.
fn gain_of(ratio: &Ratio) -> (f64, [f64; 2]) {
    let gain = |ratio: f64| ((1.0 - ratio) * 1e4).round() / 1e4;
    (gain(ratio.value), [gain(ratio.interval.hi), gain(ratio.interval.lo)])
}

/// The results of a report's measurements in hot mode. A problem has a row if the fastest kernel is
/// at least [`LEAST_GAIN`] faster than the heuristics' choice in the same rounds, with an interval
/// that excludes no gain.
pub fn of_report(report: &Report) -> Vec<Judged> {
    let results = report.results.iter();
    let hot = results.filter(|result| result.measurement.mode == Mode::Hot);
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
            return Err("not measured against the heuristics' choice: make that the baseline".to_string());
        }
        let (kernel, ratio) = best.ok_or("only the heuristics' choice was measured")?;
        if 1.0 - ratio.value < LEAST_GAIN || ratio.interval.hi >= 1.0 {
            return Err("nothing was clearly faster than the heuristics' choice".to_string());
        }
        let when = (run.revision.as_str(), run.started_at);
        self::row(problem, kernel, &heuristics, &ratio, &run.device, when)
    };
    judged(problem, row(), &heuristics, best)
}

fn judged(problem: &Problem, row: Result<PlanRow, String>, against: &str, best: Option<(&str, Ratio)>) -> Judged {
    let best = best.map(|(kernel, ratio)| (kernel.to_string(), gain_of(&ratio)));
    Judged {
        problem: problem.clone(),
        heuristics: against.to_string(),
        best: best.map(|(kernel, (gain, interval))| (kernel, gain, interval)),
        why: row.as_ref().map_or_else(String::clone, |_| "faster".to_string()),
        row: row.ok(),
    }
}

/// The row of a search's winner, or why there is none.
pub fn of_board(header: &Header, board: &Board) -> Result<PlanRow, String> {
    if let Some(what) = header.untimed() {
        return Err(format!("it is a {what}, whose times are not from this machine"));
    }
    if header.torture {
        return Err("planted candidates were tried".to_string());
    }
    let device = header.devices.first().ok_or("the run names no device")?;
    let Some(default) = header.begins_at_default() else {
        let used = header.default.as_ref();
        let (start, used) = (&board.start, used.map_or("another kernel", |default| &default.kernel));
        return Err(format!(
            "times are relative to {start}, and {used} is the default; leave the id of --kernel out"
        ));
    };
    if board.is_start_bad() {
        let default = &default.kernel;
        return Err(format!(
            "{default}, which is the default, failed, so there is no gain over it"
        ));
    }
    let winner = board.winner.as_deref().ok_or("nothing won")?;
    if is_own(winner) {
        return Err(format!(
            "{winner} is a kernel of yours: plan tables have kernels of FlashCore alone"
        ));
    }
    if winner == board.start {
        return Err(match &default.row {
            None => format!("{} is used without a row, and nothing was faster", default.kernel),
            Some(row) => format!("{} is already used, and nothing was faster; {row}", default.kernel),
        });
    }
    if let Some(why) = &board.head_to_head.why {
        return Err(format!("it was not timed against the first candidate: {why}"));
    }
    let ratio = board.ratio_of(winner);
    let ratio = ratio.ok_or("the winner was not timed against the first candidate")?;
    // A row changes what the library runs, so its gain must not be one that noise can make.
    let (gain, [low, high]) = gain_of(&ratio);
    if low < board.gain {
        let [gain, low, high, least] = [gain, low, high, board.gain].map(|share| share * 100.0);
        return Err(format!(
            "the gain of {winner} is too uncertain to change the library's default: {gain:.1} % less time, with an \
             interval of [{low:.1}, {high:.1}] %, and all of it must be {least:.0} % or more; stop other programs and \
             tune again"
        ));
    }
    let when = (header.revision.as_str(), header.started_at);
    row(&header.problem, winner, &board.start, &ratio, device, when)
}

/// The result of a search for a table from runs, which has no rows of the heuristics' choice.
pub fn judge_board(header: &Header, board: &Board) -> Judged {
    let by_heuristics = |row: &PlanRow| {
        let default = header.default.as_ref();
        default.is_some_and(|default| default.heuristics == row.kernel.to_string())
    };
    let row = of_board(header, board).and_then(|row| {
        if by_heuristics(&row) {
            Err("faster than a row, but the heuristics' choice".to_string())
        } else {
            Ok(row)
        }
    });
    let winner = board.winner.as_deref().filter(|_| !board.is_start_bad());
    let best = winner.and_then(|winner| Some((winner, board.ratio_of(winner)?)));
    judged(&header.problem, row, &board.start, best)
}

/// A search's winner in the user's tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kept {
    /// The row's place.
    #[serde(flatten)]
    pub place: Place,
    /// The row.
    pub row: PlanRow,
    /// The kernel that the library chooses for the problem now if `FLASHCORE_PLANS` is not set. It
    /// is another one if an earlier table has a row for the problem.
    pub used: DefaultKernel,
}

/// Stores the row of a search's winner ([`of_board`]) in the user's table for the device, in a
/// folder of tables. It replaces a row for the same problems.
pub fn keep(folder: &Path, header: &Header, row: PlanRow) -> Result<Kept, TuneError> {
    let device = header.devices.first().map(device_of);
    let device = device.ok_or_else(|| TuneError::nothing("the run names no device"))?;
    let place = put(folder, &device, row.clone())?;
    let target = PlanTarget::Device(device.clone());
    let plans = Plans::find(&PlanSetting::Usual, Some(folder), &target).map_err(flashcore::Error::from)?;
    let used = DefaultKernel::of(&header.problem, &device, &plans)?;
    Ok(Kept { place, row, used })
}
