//! The result of `flashcore run`: the output of a kernel compared with float64, and its time.

use flashcore::plans::PlanSummary;
use flashcore::testing::InputKind;
use flashcore::{Attention, Device, KernelId, Problem};
use flashcore_bench::trial::{self, Tried};
use flashcore_bench::{Case, LaunchMode, Measured, Options, Summary, sequences};
use flashcore_check::Gate;
use flashcore_problem::{Lengths, Tolerance, random_lengths};
use serde::Serialize;
use serde_json::{Value, json};

use crate::{BAD, Failure, GOOD, Page, bench, machine, style, whole};

/// Time for all rounds, milliseconds; a single run may take longer.
const BUDGET_MS: f64 = 1_000.0;

pub(crate) struct Answer {
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
    let unsettled = match measured.settled {
        true => "",
        false => "; times had not settled after warming up",
    };
    format!("{samples} {clock}, by the protocol of `bench`{unsettled}")
}

impl Answer {
    pub(crate) fn add(&self, page: &mut Page, predicted: Option<&str>) {
        add_gate(page, &self.gate);
        if let Some(Judged { judged, timed }) = &self.lengths {
            page.field("lengths", format_args!("compared: {}, drawn by the seed", judged.words));
            page.field("", format_args!("timed: {}, as by `bench`", timed.words));
        }
        if let Some((summary, _)) = &self.time {
            let rate = style::flops(self.flops / summary.p50 * 1e6);
            let [median, low, high] = [summary.p50, summary.p10, summary.p90].map(style::micros);
            let text = format!("{median} median, 80 % of runs from {low} to {high}; {rate}");
            page.field("time", text);
        }
        page.fields("predicted", predicted);
        page.field("device", machine::line_of(&self.device));
        page.field("kernel", self.plan.kernel());
        page.fields("because", self.plan.row().map(|_| self.plan.why()));
        page.fields("measured", self.time.as_ref().map(|(_, method)| method));
        page.fields("note", &self.notes);
    }

    pub(crate) fn json(&self, problem: &Problem) -> Value {
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

pub(crate) fn add_gate(page: &mut Page, gate: &Gate) {
    // The gate has counted in what rounding inside the kernel adds, row by row.
    let Tolerance { atol, rtol } = gate.tolerance;
    let used = gate.out.of_allowed;
    let allowed = match atol == 0.0 {
        true => format!("the rounding of fp8, of which it uses at most {used:.2}"),
        false if gate.gradient.is_some() => format!("{rtol:.0e}·|x| and the rounding of P, dS and O"),
        false if gate.out.max_abs > 2.0 * atol => format!("{atol:.0e} + {rtol:.0e}·|x| and the rounding of scores"),
        false => format!("{atol:.0e} + {rtol:.0e}·|x|"),
    };
    let rows = match gate.rows < gate.all_rows {
        true => format!(", {} of {} rows compared", whole(gate.rows), whole(gate.all_rows)),
        false => String::new(),
    };
    let (mark, text) = match gate.passed() {
        true => (format!("{GOOD}yes{GOOD:#}"), String::new()),
        false => (format!("{BAD}NO{BAD:#}"), format!("; {gate}")),
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

/// Judges and times a problem on a device. Times are of standard normal inputs, whatever `inputs` is.
pub(crate) fn compute(
    device: Device,
    case: &Case,
    kernel: Option<KernelId>,
    inputs: InputKind,
    seed: u64,
) -> Result<Answer, Failure> {
    let attention = match kernel {
        Some(kernel) => Attention::with_kernel(device, kernel)?,
        None => Attention::new(device),
    };
    let options = Options {
        budget_ms: BUDGET_MS,
        ..bench::options(&attention.device())
    };
    let Tried { plan, gate, measured } = trial::run(&attention, case, (inputs, seed), &options)?;
    let problem = &case.problem;
    let lengths = problem.has_lengths().then(|| -> Result<Judged, Failure> {
        Ok(Judged {
            judged: SequencesOf::new(problem, &random_lengths(problem, seed))?,
            timed: SequencesOf::new(problem, &case.lengths()?)?,
        })
    });
    let timed = measured.and_then(|measured| Some((measured.summary?, measured)));
    Ok(Answer {
        device: attention.device().to_string(),
        notes: attention.plans()?.notes().iter().map(ToString::to_string).collect(),
        plan,
        gate,
        flops: case.work()?.flops,
        lengths: lengths.transpose()?,
        time: timed.map(|(summary, measured)| (summary, method(&measured, summary.count))),
    })
}
