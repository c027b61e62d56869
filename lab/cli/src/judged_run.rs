//! The result of `flashcore run`: the output of a kernel compared with float64, and its time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use flashcore::unstable::plans::PlanSummary;
use flashcore::unstable::testing::InputKind;
use flashcore::{Attention, Device, KernelId, Problem};
use flashcore_bench::trial::{self, Stage, Tried};
use flashcore_bench::{Case, LaunchMode, Measured, Options, Summary, sequences};
use flashcore_check::Gate;
use flashcore_problem::{Lengths, Tolerance, random_lengths};
use serde::Serialize;
use serde_json::{Value, json};

use crate::progress::{self, span};
use crate::{BAD, Failure, GOOD, Page, bench, machine, style, whole};

/// Samples of which the 10th and the 90th percentile are said: of fewer they are the smallest and the largest.
const FEWEST_FOR_RANGE: usize = 10;
/// Time for all rounds, milliseconds; a single run may take longer.
const BUDGET_MS: f64 = 1_000.0;

pub(crate) struct JudgedRun {
    pub(crate) device: String,
    plan: PlanSummary,
    pub(crate) gate: Gate,
    /// Microseconds of a run, and how they were measured; `None` if the output is wrong.
    time: Option<(Summary, String)>,
    /// Operations of the run that is timed.
    flops: f64,
    lengths: Option<Judged>,
    notes: Vec<String>,
}

/// Sequences of a problem with lengths: those whose output is judged, and those that are timed.
struct Judged {
    judged: SequencesOf,
    timed: SequencesOf,
}

#[derive(Serialize)]
struct SequencesOf {
    rows: Vec<usize>,
    keys: Vec<usize>,
    #[serde(skip)]
    words: String,
}

impl SequencesOf {
    fn new(problem: &Problem, lengths: &Lengths<Vec<i32>>) -> Result<SequencesOf, Failure> {
        let all = problem.sequences(&lengths.as_slices())?;
        Ok(SequencesOf {
            rows: all.iter().map(|one| one.len_q).collect(),
            keys: all.iter().map(|one| one.len_kv).collect(),
            words: sequences::in_words(&all),
        })
    }
}

fn method(measured: &Measured, samples: usize) -> String {
    let samples = style::count(samples, "sample");
    let clock = match measured.info.launch {
        LaunchMode::Host => "by the wall clock".to_string(),
        LaunchMode::Plain => "by CUDA events".to_string(),
        LaunchMode::Graph(1) => "by CUDA events around a graph of one launch, caches hot".to_string(),
        LaunchMode::Graph(runs) => format!("by CUDA events around a graph of {runs} launches, caches hot"),
    };
    let unsettled = if measured.settled {
        ""
    } else {
        "; times had not settled after warming up"
    };
    format!("{samples} {clock}, by the protocol of `bench`{unsettled}")
}

/// The median, and how far runs are from it where there are enough of them to say so.
fn spread(summary: &Summary) -> String {
    let [median, low, high] = [summary.p50, summary.p10, summary.p90].map(style::micros);
    if summary.count < FEWEST_FOR_RANGE {
        return format!("{median}, the median of {}", style::count(summary.count, "sample"));
    }
    format!("{median} median, 80 % of runs from {low} to {high}")
}

impl JudgedRun {
    pub(crate) fn add(&self, page: &mut Page) {
        add_gate(page, &self.gate, true);
        if let Some(Judged { judged, timed }) = &self.lengths {
            page.field("lengths", format_args!("compared: {}, drawn by the seed", judged.words));
            page.field("", format_args!("timed: {}, as by `bench`", timed.words));
        }
        if let Some((summary, _)) = &self.time {
            let rate = style::flops(self.flops / summary.p50 * 1e6);
            page.field("time", format_args!("{}; {rate}", spread(summary)));
        }
        page.field("device", machine::line_of(&self.device));
        page.field("kernel", self.plan.kernel());
        page.fields("because", self.plan.row().map(|_| self.plan.why()));
        page.fields("measured", self.time.as_ref().map(|(_, method)| method));
        page.fields("note", &self.notes);
    }

    /// `name` is the problem's, if it has one.
    pub(crate) fn json(&self, problem: &Problem, name: Option<&str>) -> Value {
        let time = self.time.as_ref().map(|(summary, method)| {
            json!({
                "median_us": summary.p50,
                "p10_us": summary.p10,
                "p90_us": summary.p90,
                "samples": summary.count,
                "method": method,
            })
        });
        json!({
            "name": name,
            "problem": problem.to_string(),
            "direction": problem.direction(),
            "device": self.device,
            "kernel": self.plan.kernel().to_string(),
            "why": self.plan.why(),
            "notes": self.notes,
            "verdict": if self.gate.passed() { "clean" } else { "wrong" },
            "gate": self.gate,
            "time": time,
            "lengths": self.lengths.as_ref().map(|of| json!({ "judged": of.judged, "timed": of.timed })),
            "flops": self.flops,
        })
    }
}

/// What an output, or a gradient, may differ by.
pub(crate) fn allowed(Tolerance { atol, rtol }: Tolerance, is_gradient: bool) -> String {
    if atol == 0.0 {
        "the rounding of fp8".to_string()
    } else if is_gradient {
        format!("{rtol:.0e}·|x| and the rounding of P, dS and O")
    } else {
        format!("{atol:.0e} + {rtol:.0e}·|x|")
    }
}

/// Whether an output is right. `details` of a wrong one are left out where a finding has them.
pub(crate) fn add_gate(page: &mut Page, gate: &Gate, details: bool) {
    // The gate has counted in what rounding inside the kernel adds, row by row.
    let (atol, used) = (gate.tolerance.atol, gate.out.of_allowed);
    let allowed = allowed(gate.tolerance, gate.gradient.is_some());
    let allowed = match gate.gradient {
        _ if atol == 0.0 => format!("{allowed}, of which it uses at most {used:.2}"),
        None if gate.out.max_abs > 2.0 * atol => format!("{allowed} and the rounding of scores"),
        _ => allowed,
    };
    let rows = if gate.rows < gate.all_rows {
        format!(", {} of {} rows compared", whole(gate.rows), whole(gate.all_rows))
    } else {
        String::new()
    };
    let mark = if gate.passed() {
        format!("{GOOD}yes{GOOD:#}")
    } else {
        format!("{BAD}NO{BAD:#}")
    };
    let text = if gate.passed() || !details {
        String::new()
    } else {
        format!("; {}", gate.to_string().replacen("FAIL: ", "", 1))
    };
    let error = gate.out.max_abs;
    let of = gate.gradient.map_or(String::new(), |gradient| {
        format!("dq, dk and dv; {gradient}, the furthest, ")
    });
    // An error that is not a number is no largest one.
    let nan = match gate.out.nan {
        0 => String::new(),
        nan => format!("{} NaN, all else ", whole(nan as u64)),
    };
    let text = format!("{mark}: {of}{nan}at most {error:.1e} from float64, allowed {allowed}{rows}{text}");
    page.field("correct", text);
    if gate.passed() && gate.rows > 0 && gate.out.zeros_pass {
        let why = "zeros would pass, too: no correct value is larger than the allowed error";
        page.field(
            "note",
            format_args!("{why}; another --seed draws other inputs, lengths and sinks"),
        );
    }
}

/// Runs of warming up and timing, at least: those of a kernel that takes longer than the time for all rounds.
const FEWEST_RUNS: u32 = 4;

/// What a trial does at the moment, since when, and how long its first run took.
struct Doing {
    stage: Option<Stage>,
    since: Instant,
    first_run: Duration,
}

impl Doing {
    fn begin(&mut self, stage: Stage) {
        if self.stage == Some(Stage::Running) {
            self.first_run = self.since.elapsed();
        }
        (self.stage, self.since) = (Some(stage), Instant::now());
    }

    fn line(&self, problem: &str) -> String {
        let so_far = span(self.since.elapsed().as_secs_f64());
        match self.stage {
            None => format!("{problem}: making inputs, {so_far} so far"),
            Some(Stage::Running) => format!("{problem}: the first run, {so_far} so far"),
            Some(Stage::Comparing) => format!("{problem}: comparing with float64, {so_far} so far"),
            Some(Stage::Timing) => {
                let all = span((self.first_run * FEWEST_RUNS).as_secs_f64().max(BUDGET_MS / 1e3));
                format!("{problem}: timing, {so_far} of about {all}")
            }
        }
    }
}

/// Judges and times a problem on a device, and shows the progress. Times are of standard normal inputs, whatever
/// `inputs` is.
pub(crate) fn compute(
    device: Device,
    case: &Case,
    kernel: Option<KernelId>,
    inputs: InputKind,
    seed: u64,
) -> Result<JudgedRun, Failure> {
    let attention = match kernel {
        Some(kernel) => Attention::with(device, kernel)?,
        None => Attention::new(device)?,
    };
    let options = Options {
        budget_ms: BUDGET_MS,
        ..bench::options(&attention.device())
    };
    let problem = &case.problem;
    let doing = Arc::new(Mutex::new(Doing {
        stage: None,
        since: Instant::now(),
        first_run: Duration::ZERO,
    }));
    let shown = {
        let (doing, problem) = (doing.clone(), problem.to_string());
        progress::watch("computing", move |_| {
            doing.lock().unwrap_or_else(PoisonError::into_inner).line(&problem)
        })
    };
    let begins = |stage| doing.lock().unwrap_or_else(PoisonError::into_inner).begin(stage);
    let tried = trial::run(&attention, case, (inputs, seed), &options, &begins);
    drop(shown);
    let Tried { plan, gate, measured } = tried?;
    let lengths = problem.has_lengths().then(|| -> Result<Judged, Failure> {
        Ok(Judged {
            judged: SequencesOf::new(problem, &random_lengths(problem, seed))?,
            timed: SequencesOf::new(problem, &case.lengths()?)?,
        })
    });
    let timed = measured.and_then(|measured| Some((measured.summary?, measured)));
    Ok(JudgedRun {
        device: attention.device().to_string(),
        notes: attention.plans().notes().iter().map(ToString::to_string).collect(),
        plan,
        gate,
        flops: case.work()?.flops,
        lengths: lengths.transpose()?,
        time: timed.map(|(summary, measured)| (summary, method(&measured, summary.count))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_needs_samples() {
        let of = |count: usize| {
            let samples: Vec<f64> = (0..count).map(|i| 57_000.0 + 100.0 * i as f64).collect();
            spread(&Summary::of(&samples, 0.99).unwrap())
        };
        assert_eq!(of(1), "57.0 ms, the median of 1 sample");
        assert_eq!(of(3), "57.1 ms, the median of 3 samples");
        assert_eq!(of(11), "57.5 ms median, 80 % of runs from 57.1 ms to 57.9 ms");
    }

    #[test]
    fn a_line_of_progress_says_how_long_timing_takes() {
        let mut doing = Doing {
            stage: None,
            since: Instant::now(),
            first_run: Duration::ZERO,
        };
        assert_eq!(doing.line("p"), "p: making inputs, 0 s so far");
        doing.begin(Stage::Running);
        assert_eq!(doing.line("p"), "p: the first run, 0 s so far");
        doing.begin(Stage::Comparing);
        doing.begin(Stage::Timing);
        assert_eq!(doing.line("p"), "p: timing, 0 s of about 1 s");
        doing.first_run = Duration::from_secs(12);
        assert_eq!(doing.line("p"), "p: timing, 0 s of about 48 s");
    }
}
