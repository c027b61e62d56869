//! From measurements to plan tables: which winners become rows, how rows get into [a file](keep), and what a search makes
//! of [the user's tables](settle()).

mod file;
mod record;
mod settle;

pub use file::{can_keep, drop_row, file_of, keep, write};
use flashcore::{KernelId, PlanClass, PlanDevice, PlanRow};
use flashcore_bench::{CaseResult, DeviceIdentity, Mode, Ratio, Report, RunIdentity, date};
use flashcore_ir::Target;
use flashcore_problem::Problem;
pub use record::{Record, held_at};
use serde::Serialize;
pub use settle::{Place, Settled, settle};

use crate::board::Board;
use crate::journal::Header;

/// Least gain of a row that is made from a report: measured head to head, the interval clear of none.
pub const LEAST_GAIN: f64 = 0.01;

/// What came of a problem that was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The problem.
    pub problem: Problem,
    /// What heuristics choose.
    pub heuristics: String,
    /// The fastest measured beside it, how much faster it was, and the interval of that.
    pub best: Option<(String, f64, [f64; 2])>,
    /// The row that it makes, if it makes one.
    pub row: Option<PlanRow>,
    /// Why there is a row, or none.
    pub why: String,
}

/// The device of a table, as a measurement names it.
pub fn device_of(identity: &DeviceIdentity) -> PlanDevice {
    PlanDevice {
        name: identity.name.clone(),
        target: target_of(identity).map_or(identity.architecture.clone(), |target| target.name().to_string()),
        units: identity.units,
    }
}

/// The architecture of a GPU; `None` of a host.
fn target_of(identity: &DeviceIdentity) -> Option<Target> {
    let number: u32 = identity.architecture.strip_prefix("sm_")?.parse().ok()?;
    Target::for_capability(number / 10, number % 10)
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
    Ok(PlanRow {
        problem: class.ok_or("tables are for dense tensors without offsets or packed sequences only")?,
        kernel: kernel.parse().map_err(|error: flashcore::Error| error.to_string())?,
        against: against.to_string(),
        gain: rounded(1.0 - ratio.value),
        interval: [rounded(1.0 - ratio.interval.hi), rounded(1.0 - ratio.interval.lo)],
        revision: revision.to_string(),
        driver: device.driver.clone(),
        date: date(started_at),
    })
}

/// A share to what is known of it.
fn rounded(share: f64) -> f64 {
    (share * 1e4).round() / 1e4
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
    let problem = &result.case.problem;
    let mut judged = Judged {
        problem: problem.clone(),
        heuristics: String::new(),
        best: None,
        row: None,
        why: String::new(),
    };
    judged.heuristics = match heuristics(problem, &run.device) {
        Ok(kernel) => kernel.to_string(),
        Err(why) => {
            judged.why = why;
            return judged;
        }
    };
    let measurement = &result.measurement;
    let base = measurement.subjects.get(measurement.baseline);
    if base.is_none_or(|base| base.info.label != judged.heuristics || base.summary.is_none()) {
        judged.why = "not measured against what heuristics choose: make that the baseline".to_string();
        return judged;
    }
    let ratios = measurement.subjects.iter().filter(|subject| subject.info.is_ours());
    let ratios = ratios.filter_map(|subject| Some((subject.info.label.as_str(), subject.ratio?)));
    let best = ratios.min_by(|a, b| a.1.value.total_cmp(&b.1.value));
    let Some((kernel, ratio)) = best else {
        judged.why = "nothing was measured beside what heuristics choose".to_string();
        return judged;
    };
    let gain = 1.0 - ratio.value;
    let interval = [rounded(1.0 - ratio.interval.hi), rounded(1.0 - ratio.interval.lo)];
    judged.best = Some((kernel.to_string(), rounded(gain), interval));
    if gain < LEAST_GAIN || ratio.interval.hi >= 1.0 {
        judged.why = "what heuristics choose stands".to_string();
        return judged;
    }
    let when = (run.revision.as_str(), run.started_at);
    match row(problem, kernel, &judged.heuristics, &ratio, &run.device, when) {
        Ok(row) => {
            judged.row = Some(row);
            judged.why = "faster".to_string();
        }
        Err(why) => judged.why = why,
    }
    judged
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
        let used = header
            .default
            .as_ref()
            .map_or("something else", |default| &default.kernel);
        return Err(format!(
            "times are relative to {}, and {used} is the default; leave out --start",
            board.start
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
    board
        .head_to_head
        .clone()
        .map_err(|why| format!("it did not meet the first candidate: {why}"))?;
    let row_of_winner = board.rows.iter().find(|row| row.id == winner);
    let ratio = row_of_winner
        .and_then(|row| row.ratio)
        .ok_or("the winner was not timed against the first candidate")?;
    let when = (header.revision.as_str(), header.started_at);
    row(&header.problem, winner, &board.start, &ratio, device, when)
}

/// Whether heuristics choose a row's kernel where there are no tables.
fn in_heuristics(header: &Header, row: &PlanRow) -> bool {
    let default = header.default.as_ref();
    default.is_some_and(|default| default.heuristics == row.kernel.to_string())
}

/// The same beside what was measured, as of a report. A table is made of it, which need not say what heuristics say.
pub fn judge_board(header: &Header, board: &Board) -> Judged {
    let (row, why) = match of_board(header, board) {
        Ok(row) if in_heuristics(header, &row) => (None, "faster than a row, and what heuristics choose".to_string()),
        Ok(row) => (Some(row), "faster".to_string()),
        Err(why) => (None, why),
    };
    let best = board.gain_of_winner();
    Judged {
        problem: header.problem.clone(),
        heuristics: board.start.clone(),
        best: best.zip(board.winner.clone()).map(|((gain, interval), winner)| {
            let interval = [interval.lo, interval.hi].map(rounded);
            (winner, rounded(gain), interval)
        }),
        row,
        why,
    }
}

#[cfg(test)]
mod tests {
    use flashcore::{Attention, Device, PlanSetting, PlanTarget, Plans};
    use flashcore_bench::{
        Case, Interval, LaunchMode, Measured, Measurement, Options, Stop, SubjectInfo, Summary, Turns,
    };

    use super::*;
    use crate::board::BoardRow;
    use crate::default::DefaultKernel;
    use crate::trial::Verdict;

    pub(super) fn problem(length: usize) -> Problem {
        Problem::builder().heads(4, 4).seq_len(length).build().unwrap()
    }

    pub(super) fn host() -> DeviceIdentity {
        DeviceIdentity::cpu()
    }

    fn ratio(lo: f64, hi: f64) -> Ratio {
        Ratio {
            value: (lo + hi) / 2.0,
            interval: Interval { lo, hi },
            of_medians: 1.0,
            rounds: 12,
        }
    }

    pub(super) fn of(length: usize, kernel: &str) -> PlanRow {
        let when = ("1a2b3c4d5e6f", 1_795_219_200);
        row(
            &problem(length),
            kernel,
            "cpu/m16n128",
            &ratio(0.9, 0.94),
            &host(),
            when,
        )
        .unwrap()
    }

    /// A board on this host, as if `tune` had found `winner`.
    pub(super) fn found(start: &str, winner: &str) -> (Header, Board) {
        let header = Header {
            schema: crate::journal::SCHEMA,
            case: "four heads".to_string(),
            problem: problem(100),
            devices: vec![host()],
            revision: "1a2b3c4d5e6f".to_string(),
            executable: String::new(),
            space: String::new(),
            strategy: "elite".to_string(),
            seed: 1,
            computes: true,
            inputs: Some(7),
            torture: false,
            start: start.to_string(),
            default: Some(DefaultKernel::of(&problem(100), &device_of(&host()), &Plans::none()).unwrap()),
            rates: None,
            window: 1,
            started_at: 1_795_219_200,
        };
        let row = |id: &str, ratio| BoardRow {
            id: id.to_string(),
            us: 10.0,
            interval: Interval::UNKNOWN,
            ratio,
            first_ratio: None,
            verdict: Some(Verdict::Faster),
            simulated: None,
        };
        let board = Board {
            start: start.to_string(),
            start_failed: None,
            against: start.to_string(),
            rows: vec![row(winner, Some(ratio(0.9, 0.94))), row(start, None)],
            struck: Vec::new(),
            witness: None,
            head_to_head: Ok(()),
            simulates: false,
            winner: Some(winner.to_string()),
            gain: 0.03,
        };
        (header, board)
    }

    #[test]
    fn what_a_search_found_is_what_the_library_uses() {
        let folder = super::file::tests::folder("used");
        let start = heuristics(&problem(100), &host()).unwrap().to_string();
        let (header, board) = found(&start, "cpu/m48n36");
        let row = of_board(&header, &board).unwrap();
        assert_eq!(
            (row.gain, row.interval, row.date.as_str()),
            (0.08, [0.06, 0.1], "2026-11-21")
        );
        let device = device_of(&host());
        assert_eq!(device, PlanDevice::of(&Device::Cpu));
        keep(&folder, &device, row).unwrap();

        let here = PlanTarget::from(&Device::Cpu);
        let plans = Plans::find(&PlanSetting::Usual, Some(&folder), &here).unwrap();
        let kernel = |plans: Plans| {
            Attention::with_plans(Device::cpu(), plans)
                .plan(&problem(100))
                .unwrap()
                .kernel()
        };
        assert_eq!(kernel(plans).to_string(), "cpu/m48n36");
        let pinned = Plans::find(&PlanSetting::Shipped, Some(&folder), &here).unwrap();
        assert_eq!(kernel(pinned).to_string(), start);
        drop_row(&file_of(&folder, &device), 1, None).unwrap();
        let plans = Plans::find(&PlanSetting::Usual, Some(&folder), &here).unwrap();
        assert_eq!(kernel(plans).to_string(), start);
        assert!(drop_row(&file_of(&folder, &device), 1, None).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_was_not_measured_against_the_default_makes_no_row() {
        let start = heuristics(&problem(100), &host()).unwrap().to_string();
        let (header, board) = found("cpu/m256n256", "cpu/m48n36");
        assert!(of_board(&header, &board).unwrap_err().contains("leave out --start"));
        let (header, board) = found(&start, &start);
        assert!(of_board(&header, &board).unwrap_err().contains("nothing was faster"));
        // From a row the next one goes on, and says what it was measured against.
        let (mut header, board) = found("cpu/m48n48", "cpu/m48n36");
        let default = DefaultKernel {
            kernel: "cpu/m48n48".to_string(),
            row: Some("row 3 of a table".to_string()),
            heuristics: start.clone(),
        };
        header.default = Some(default);
        assert_eq!(of_board(&header, &board).unwrap().against, "cpu/m48n48");
        let stands = found("cpu/m48n48", "cpu/m48n48").1;
        assert!(of_board(&header, &stands).unwrap_err().contains("row 3 of a table"));
        let (header, mut board) = found(&start, "cpu/m48n36");
        board.head_to_head = Err("the worker died".to_string());
        assert!(of_board(&header, &board).unwrap_err().contains("the worker died"));
        let (header, mut board) = found(&start, "cpu/m48n36");
        board.start_failed = Some("WRONG".to_string());
        assert!(of_board(&header, &board).unwrap_err().contains("failed"));
        let (mut header, board) = found(&start, "cpu/m48n36");
        header.problem = Problem::builder()
            .heads(4, 4)
            .seq_len(100)
            .offsets(1, 0)
            .build()
            .unwrap();
        assert!(of_board(&header, &board).unwrap_err().contains("without offsets"));
    }

    #[test]
    fn what_was_made_up_makes_no_row() {
        let start = heuristics(&problem(100), &host()).unwrap().to_string();
        let (mut header, board) = found(&start, "cpu/m48n36");
        assert!(of_board(&header, &board).is_ok());
        header.computes = false;
        assert!(judge_board(&header, &board).why.contains("replay"));
        header.computes = true;
        header.torture = true;
        assert!(judge_board(&header, &board).why.contains("planted"));
    }

    /// A report on this host of kernels with ratios to the first of them.
    fn report(base: &str, others: &[(&str, Option<Ratio>)]) -> Report {
        let subject = |label: &str, ratio: Option<Ratio>| Measured {
            info: SubjectInfo {
                kernel: Some(label.to_string()),
                ..SubjectInfo::new(label, LaunchMode::Host)
            },
            summary: Summary::of(&[10.0; 12], 0.99),
            ratio,
            verdict: None,
            settled: true,
            trouble: None,
        };
        let mut subjects = vec![subject(base, None)];
        subjects.extend(others.iter().map(|(label, ratio)| subject(label, *ratio)));
        let inspections = vec![None; subjects.len()];
        let measurement = Measurement {
            mode: Mode::Hot,
            turns: Some(Turns::Short),
            baseline: 0,
            subjects,
            stop: Stop::Narrow,
            rounds: 12,
            readings: Vec::new(),
        };
        let case = Case {
            name: "four heads".to_string(),
            problem: problem(100),
        };
        let mut report = Report::new(RunIdentity::now(host()), Options::default(), None);
        report
            .results
            .push(CaseResult::new(case, measurement, inspections, Vec::new(), None));
        report
    }

    #[test]
    fn a_report_makes_rows_of_what_is_faster_beyond_doubt() {
        let base = heuristics(&problem(100), &host()).unwrap().to_string();
        let only = |base: &str, others: &[(&str, Option<Ratio>)]| of_report(&report(base, others)).remove(0);
        let (far, near, unsure) = (ratio(0.90, 0.92), ratio(0.992, 0.994), ratio(0.95, 1.01));
        let judged = only(&base, &[("cpu/m64n64", Some(near)), ("cpu/m48n36", Some(far))]);
        let row = judged.row.unwrap();
        assert_eq!(
            (row.kernel.to_string().as_str(), row.against.as_str()),
            ("cpu/m48n36", base.as_str())
        );
        assert_eq!((row.gain, row.interval), (0.09, [0.08, 0.1]));
        for (what, judged) in [
            ("under 1 %", only(&base, &[("cpu/m64n64", Some(near))])),
            ("not clear of none", only(&base, &[("cpu/m64n64", Some(unsure))])),
            (
                "not against what heuristics choose",
                only("cpu/m256n256", &[("cpu/m64n64", Some(far))]),
            ),
            ("alone", only(&base, &[])),
            ("rejected afterwards", only(&base, &[("cpu/m64n64", None)])),
        ] {
            assert!(judged.row.is_none() && !judged.why.is_empty(), "{what}");
        }
        // A screening is not a measurement to keep.
        let mut screened = report(&base, &[("cpu/m48n36", Some(far))]);
        screened.results[0].measurement.mode = Mode::Screen;
        assert!(of_report(&screened).is_empty());
    }
}
