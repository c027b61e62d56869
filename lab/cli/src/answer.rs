//! Computes a problem on a device, holds the answer against float64, and only then times it.

use std::time::Instant;

use flashcore::{
    Attention, Device, DeviceBuffer, DeviceTensors, Error, Event, Graph, InputKind, Inputs, KernelId, PlanSummary,
    Problem, ScaleBuffers, Stream, Tensor,
};
use flashcore_check::{Gate, gate};
use flashcore_problem::{POISON, Tolerance};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::style;

/// Longest that a measurement may take, seconds; a single run may take longer.
const BUDGET_S: f64 = 1.0;
/// Most samples taken.
const MAX_SAMPLES: usize = 200;
/// Fewest samples taken, however long each takes.
const MIN_SAMPLES: usize = 5;
/// What a GPU sample should take, microseconds, so that the clock's grain (0.5 µs) is lost in it.
const SAMPLE_US: f64 = 500.0;
/// Most launches in one GPU sample.
const MAX_LAUNCHES: usize = 100;

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

/// Repeated measurements of one computation.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    /// Microseconds, ascending.
    samples: Vec<f64>,
    /// How they were taken, for people.
    pub(crate) method: String,
}

impl Timing {
    fn new(mut samples: Vec<f64>, method: String) -> Timing {
        samples.sort_by(f64::total_cmp);
        Timing { samples, method }
    }

    /// The sample that a share of them does not exceed, microseconds.
    fn quantile(&self, share: f64) -> f64 {
        let last = self.samples.len().saturating_sub(1);
        self.samples
            .get((share * last as f64).round() as usize)
            .copied()
            .unwrap_or(f64::NAN)
    }

    /// Microseconds.
    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// `4.80 µs median, 80 % of runs from 4.76 µs to 4.95 µs`
    pub(crate) fn line(&self) -> String {
        format!(
            "{} median, 80 % of runs from {} to {}",
            style::micros(self.median()),
            style::micros(self.quantile(0.1)),
            style::micros(self.quantile(0.9)),
        )
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "median_us": self.median(),
            "p10_us": self.quantile(0.1),
            "p90_us": self.quantile(0.9),
            "samples": self.samples.len(),
            "method": self.method,
        })
    }
}

impl Answer {
    /// The device's share of the output: kernel, error, time, rate.
    pub(crate) fn text(&self, problem: &Problem) -> String {
        let mut text = style::field("kernel", &self.plan.kernel().to_string());
        if self.plan.row().is_some() {
            text.push_str(&style::field("because", self.plan.why()));
        }
        for note in &self.notes {
            text.push_str(&style::field("note", note));
        }
        text.push_str(&gate_fields(&self.gate));
        if let Some(timing) = &self.timing {
            text.push_str(&style::field("time", &timing.line()));
            text.push_str(&style::field("measured", &timing.method));
            let rate = style::flops(problem.flops() / timing.median() * 1e6);
            text.push_str(&style::field("rate", &format!("{rate}, counting visible keys only")));
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

/// The error against float64, as fields.
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
        (format!("{GOOD}right{GOOD:#}"), String::new())
    } else {
        (format!("{BAD}WRONG{BAD:#}"), format!("; {gate}"))
    };
    style::field(
        "error",
        &format!(
            "{mark}: at most {:.1e} from float64, allowed {allowed}{rows}{text}",
            gate.out.max_abs
        ),
    )
}

/// Computes, checks and times a problem.
pub(crate) fn compute(
    device: Device,
    problem: &Problem,
    kernel: Option<KernelId>,
    kind: InputKind,
    seed: u64,
) -> Result<Answer, Failure> {
    let attention = match kernel {
        Some(kernel) => Attention::with_kernel(device, kernel)?,
        None => Attention::new(device),
    };
    let plan = attention.plan(problem)?;
    let inputs = Inputs::generate(problem, kind, seed);
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let mut lse = problem
        .return_lse()
        .then(|| vec![f32::from_ne_bytes([POISON; 4]); problem.lse_len()]);
    let (gate, timing) = match attention.device() {
        Device::Cpu => on_cpu(&attention, problem, &inputs, &mut out, &mut lse, seed)?,
        Device::Cuda(_) => on_cuda(&attention, &plan, problem, &inputs, &mut out, &mut lse, seed)?,
    };
    Ok(Answer {
        device: attention.device().to_string(),
        notes: attention.plans()?.notes().iter().map(ToString::to_string).collect(),
        plan,
        gate,
        timing,
    })
}

fn on_cpu(
    attention: &Attention,
    problem: &Problem,
    inputs: &Inputs,
    out: &mut Tensor,
    lse: &mut Option<Vec<f32>>,
    seed: u64,
) -> Result<(Gate, Option<Timing>), Failure> {
    // The run that is judged also warms up threads and caches.
    run_on_cpu(attention, problem, inputs, out, lse)?;
    let gate = gate(problem, inputs, out, lse.as_deref(), seed)?;
    if !gate.passed() {
        return Ok((gate, None));
    }
    let (mut samples, mut spent) = (Vec::new(), 0.0);
    while !enough(&samples, spent) {
        let sample = run_on_cpu(attention, problem, inputs, out, lse)?;
        spent += sample;
        samples.push(sample);
    }
    let method = format!("{} runs, by the wall clock", samples.len());
    Ok((gate, Some(Timing::new(samples, method))))
}

/// One run, in microseconds.
fn run_on_cpu(
    attention: &Attention,
    problem: &Problem,
    inputs: &Inputs,
    out: &mut Tensor,
    lse: &mut Option<Vec<f32>>,
) -> Result<f64, Failure> {
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let started = Instant::now();
    attention.forward(problem, q, k, v, &mut out.view_mut(), lse.as_deref_mut())?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

fn enough(samples: &[f64], spent_us: f64) -> bool {
    samples.len() >= MAX_SAMPLES || (samples.len() >= MIN_SAMPLES && spent_us >= BUDGET_S * 1e6)
}

fn on_cuda(
    attention: &Attention,
    plan: &PlanSummary,
    problem: &Problem,
    inputs: &Inputs,
    out: &mut Tensor,
    lse: &mut Option<Vec<f32>>,
    seed: u64,
) -> Result<(Gate, Option<Timing>), Failure> {
    let Device::Cuda(context) = attention.device() else {
        return Err(Failure::failed("a CUDA plan without a CUDA device"));
    };
    let stream = Stream::new(&context)?;
    let upload = |bytes: &[u8]| DeviceBuffer::from_host(&stream, bytes);
    let scales = ScaleBuffers::upload(&stream, [&inputs.q.view(), &inputs.k.view(), &inputs.v.view()])?;
    let (q, k, v) = (
        upload(inputs.q.bytes())?,
        upload(inputs.k.bytes())?,
        upload(inputs.v.bytes())?,
    );
    let device_out = upload(out.bytes())?;
    let device_lse = match lse {
        Some(lse) => Some(DeviceBuffer::from_host(&stream, lse)?),
        None => None,
    };
    let workspace_bytes = match plan {
        PlanSummary::Gpu(choice) => choice.plan.workspace_bytes(),
        PlanSummary::Cpu(_) => 0,
    };
    let workspace = DeviceBuffer::new(&context, workspace_bytes as usize)?;
    let tensors = DeviceTensors {
        q: q.as_slice(),
        k: k.as_slice(),
        v: v.as_slice(),
        out: device_out.as_slice(),
        lse: device_lse.as_ref().map(DeviceBuffer::as_slice),
        scales: scales.as_ref().map(ScaleBuffers::as_slices),
        workspace: Some(workspace.as_slice()),
    };
    attention.forward_on(&stream, problem, &tensors)?;
    device_out.as_slice().copy_to_host(&stream, out.bytes_mut())?;
    if let (Some(lse), Some(device)) = (lse.as_mut(), &device_lse) {
        *lse = device.to_vec::<f32>(&stream)?;
    }
    stream.synchronize()?;
    let gate = gate(problem, inputs, out, lse.as_deref(), seed)?;
    if !gate.passed() {
        return Ok((gate, None));
    }
    let timing = time_on_cuda(attention, problem, &tensors, &stream)?;
    Ok((gate, Some(timing)))
}

/// Times launches by events around a graph of several, which leaves the host's work out.
fn time_on_cuda(
    attention: &Attention,
    problem: &Problem,
    tensors: &DeviceTensors<'_>,
    stream: &Stream,
) -> Result<Timing, Failure> {
    let capture = |launches: usize| {
        let mut failed = None;
        let graph = Graph::capture(stream, |stream| {
            for _ in 0..launches {
                match attention.forward_on(stream, problem, tensors) {
                    Ok(()) => {}
                    Err(Error::Cuda(error)) => return Err(error),
                    Err(other) => failed = Some(other),
                }
            }
            Ok(())
        })?;
        match failed {
            Some(error) => Err(Failure::from(error)),
            None => Ok(graph),
        }
    };
    let (start, end) = (Event::new(stream.context())?, Event::new(stream.context())?);
    let replay = |graph: &Graph| {
        start.record(stream)?;
        graph.launch(stream)?;
        end.record(stream)?;
        end.synchronize()?;
        Ok::<f64, Failure>(f64::from(start.elapsed_ms(&end)?) * 1e3)
    };
    let single = capture(1)?;
    replay(&single)?;
    let once = replay(&single)?.min(replay(&single)?);
    let launches = ((SAMPLE_US / once.max(0.1)) as usize).clamp(1, MAX_LAUNCHES);
    let graph = capture(launches)?;
    replay(&graph)?;
    let (mut samples, mut spent) = (Vec::new(), 0.0);
    while !enough(&samples, spent) {
        let sample = replay(&graph)?;
        spent += sample;
        samples.push(sample / launches as f64);
    }
    let method = format!(
        "{} runs of {} in a graph, by CUDA events, caches hot",
        samples.len(),
        if launches == 1 {
            "1 launch".to_string()
        } else {
            format!("{launches} launches")
        }
    );
    Ok(Timing::new(samples, method))
}
