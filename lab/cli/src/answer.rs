//! The trial of one kernel, as `flashcore run` shows it.

use flashcore::{Attention, Device, InputKind, KernelId, PlanSummary, Problem};
use flashcore_bench::trial::{Outcome, Trial, Tried};
use flashcore_bench::{LaunchMode, Measured, Mode, Options, Summary};
use flashcore_check::Gate;
use flashcore_problem::Tolerance;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::style;

/// Time for all rounds, milliseconds; a single run may take longer.
const BUDGET_MS: f64 = 1_000.0;

/// A problem computed on a device.
pub(crate) struct Answer {
    /// `cpu` or `cuda:0`.
    pub(crate) device: String,
    /// How it was computed.
    pub(crate) plan: PlanSummary,
    /// Whether it is right.
    pub(crate) gate: Gate,
    /// How long it takes; not measured where it is wrong.
    pub(crate) timing: Option<Timing>,
    /// What is wrong with plan tables that were passed over.
    pub(crate) notes: Vec<String>,
}

/// How long a computation takes.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    /// Microseconds a run.
    summary: Summary,
    /// How they were taken, for people.
    pub(crate) method: String,
}

impl Timing {
    fn of(measured: &Measured) -> Option<Timing> {
        let summary = measured.summary?;
        let samples = style::count(summary.count as u64, "sample");
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
        Some(Timing {
            summary,
            method: format!("{samples} {clock}, by the protocol of `bench`{unsettled}"),
        })
    }

    /// Microseconds.
    pub(crate) fn median(&self) -> f64 {
        self.summary.p50
    }

    /// `4.80 µs median, 80 % of runs from 4.76 µs to 4.95 µs`
    pub(crate) fn line(&self) -> String {
        format!(
            "{} median, 80 % of runs from {} to {}",
            style::micros(self.summary.p50),
            style::micros(self.summary.p10),
            style::micros(self.summary.p90),
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "median_us": self.summary.p50,
            "p10_us": self.summary.p10,
            "p90_us": self.summary.p90,
            "samples": self.summary.count,
            "method": self.method,
        })
    }
}

impl Answer {
    /// Whether the output is right, its time, the time predicted on a GPU if there is none, the device, then the kernel and
    /// how it was timed.
    pub(crate) fn text(&self, problem: &Problem, device: &str, predicted: Option<&str>) -> String {
        let mut text = gate_fields(&self.gate);
        if let Some(timing) = &self.timing {
            let rate = style::flops(problem.flops() / timing.median() * 1e6);
            text.push_str(&style::field("time", &format!("{}; {rate}", timing.line())));
        }
        if let Some(predicted) = predicted {
            text.push_str(&style::field("predicted", predicted));
        }
        text.push_str(&style::field("device", device));
        text.push_str(&style::field("kernel", &self.plan.kernel().to_string()));
        if self.plan.row().is_some() {
            text.push_str(&style::field("because", self.plan.why()));
        }
        if let Some(timing) = &self.timing {
            text.push_str(&style::field("measured", &timing.method));
        }
        for note in &self.notes {
            text.push_str(&style::field("note", note));
        }
        text
    }

    pub(crate) fn json(&self, problem: &Problem) -> Value {
        json!({
            "problem": problem.to_string(),
            "device": self.device,
            "kernel": self.plan.kernel().to_string(),
            "why": self.plan.why(),
            "notes": self.notes,
            "verdict": if self.gate.passed() { "clean" } else { "wrong" },
            "gate": self.gate,
            "time": self.timing.as_ref().map(Timing::json),
            "flops": problem.flops(),
        })
    }
}

/// Whether the output is right, and its error against float64.
pub(crate) fn gate_fields(gate: &Gate) -> String {
    use style::{BAD, GOOD};
    // What a row's own rounding may add differs from row to row: the gate has counted it in.
    let Tolerance { atol, rtol } = gate.tolerance;
    let allowed = if atol == 0.0 {
        format!("by what fp8 rounds, {:.2} of it at most", gate.out.of_allowed)
    } else {
        format!("{atol:.0e} + {rtol:.0e}·|x|")
    };
    let rows = if gate.rows < gate.all_rows {
        format!(
            ", {} of {} rows compared",
            style::whole(gate.rows as u64),
            style::whole(gate.all_rows as u64)
        )
    } else {
        String::new()
    };
    let (mark, text) = if gate.passed() {
        (format!("{GOOD}yes{GOOD:#}"), String::new())
    } else {
        (format!("{BAD}NO{BAD:#}"), format!("; {gate}"))
    };
    style::field(
        "correct",
        &format!(
            "{mark}: at most {:.1e} from float64, allowed {allowed}{rows}{text}",
            gate.out.max_abs
        ),
    )
}

/// Judges and times a problem on a device. Times are of standard normal inputs, whatever `inputs` is.
pub(crate) fn compute(
    device: Device,
    problem: &Problem,
    kernel: Option<KernelId>,
    inputs: InputKind,
    seed: u64,
) -> Result<Answer, Failure> {
    let attention = match kernel {
        Some(kernel) => Attention::with_kernel(device, kernel)?,
        None => Attention::new(device),
    };
    let options = match attention.device() {
        Device::Cpu => Options::for_cpu(),
        Device::Cuda(_) => Options::default(),
    };
    let options = Options {
        budget_ms: BUDGET_MS,
        ..options
    };
    let trial = Trial {
        inputs,
        seed,
        check: None,
        time: Some((Mode::Hot, options)),
    };
    let Tried { plan, gate, outcome } = trial.run(&attention, problem)?;
    let (gate, timing) = match (gate, outcome) {
        (Some(gate), Outcome::Timed(measured)) => (gate, Timing::of(&measured)),
        (Some(gate), _) if !gate.passed() => (gate, None),
        (_, Outcome::Failed(_, error)) => return Err(error.into()),
        (_, Outcome::Right | Outcome::Timed(_)) => return Err(Failure::failed("the output was not judged")),
    };
    Ok(Answer {
        device: attention.device().to_string(),
        notes: attention.plans()?.notes().iter().map(ToString::to_string).collect(),
        plan,
        gate,
        timing,
    })
}
