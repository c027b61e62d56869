//! Backward passes of given kernels on a GPU: against float64, and their times, step by step.
//!
//! ```sh
//! cargo run --release -p flashcore-tools --example backward -- check               # the default kernels
//! cargo run --release -p flashcore-tools --example backward -- check wgmma/m64n64-s2-free
//! cargo run --release -p flashcore-tools --example backward -- time                # those of docs/backward.md
//! cargo run --release -p flashcore-tools --example backward -- time default wgmma/m64n128-s2-pingpong 1,32/8,8192,8192,128,causal
//! cargo run --release -p flashcore-tools --example backward -- once 2,16/16,8192,8192,128,full    # for a profiler
//! ```
//!
//! A problem is `BATCH,HEADS/KV_HEADS,ROWS,KEYS,HEAD_DIM,MASK`, where the mask is `full`, `causal` or `LEFT:RIGHT`, and
//! `,deterministic` may follow. It is of bf16 where it is timed.

use std::error::Error;
use std::process::ExitCode;
use std::str::FromStr;

use flashcore::unstable::cuda::{Context, DeviceBuffer, DeviceSlice, Event, Graph, Stream};
use flashcore::{DType, Device, Mask, Problem};
use flashcore_bench::gpu::launch;
use flashcore_check::gate::gate_gradients;
use flashcore_cuda::{Function, ModuleOptions, PreparedLaunch};
use flashcore_ir::Target;
use flashcore_kernels::{Config, KernelCache, Plan, select};
use flashcore_problem::rng::Rng;
use flashcore_problem::{Gradients, InputKind, Inputs, ProblemBuilder, Tensor};
use half::bf16;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A kernel by its id, or the default of a problem.
#[derive(Clone, Copy)]
struct Kernel(Option<Config>);

impl Kernel {
    fn plan(self, problem: &Problem) -> Result<Plan> {
        Ok(match self.0 {
            Some(config) => Plan::new(problem, &config, Target::Sm90a)?,
            None => select(problem, Target::Sm90a, 16, &KernelCache::default())?.plan,
        })
    }
}

impl FromStr for Kernel {
    type Err = Box<dyn Error>;

    fn from_str(id: &str) -> Result<Kernel> {
        match id {
            "default" => Ok(Kernel(None)),
            id => Ok(Kernel(Some(id.parse()?))),
        }
    }
}

fn mask(text: &str) -> Result<Mask> {
    Ok(match (text, text.split_once(':')) {
        ("full", _) => Mask::FULL,
        ("causal", _) => Mask::CAUSAL,
        (_, Some((left, right))) => Mask::window(Some(left.parse()?), Some(right.parse()?)),
        _ => return Err(format!("`{text}` is no mask; write full, causal or LEFT:RIGHT").into()),
    })
}

fn builder(text: &str) -> Result<ProblemBuilder> {
    let fields: Vec<&str> = text.split(',').collect();
    let (fields, deterministic) = match fields[..] {
        [ref first @ .., "deterministic"] => (first, true),
        ref all => (all, false),
    };
    let [batch, heads, rows, keys, head_dim, last] = *fields else {
        return Err(format!(
            "`{text}` is no problem; write BATCH,HEADS/KV_HEADS,ROWS,KEYS,HEAD_DIM,MASK, and `,deterministic` if it is"
        )
        .into());
    };
    let (heads, kv_heads) = heads.split_once('/').unwrap_or((heads, heads));
    Ok(Problem::builder()
        .batch(batch.parse()?)
        .heads(heads.parse()?, kv_heads.parse()?)
        .seq_len_q(rows.parse()?)
        .seq_len_kv(keys.parse()?)
        .head_dim(head_dim.parse()?)
        .mask(mask(last)?)
        .deterministic(deterministic))
}

/// The problems that are checked, but for their head_dim.
const CHECKED: [&str; 8] = [
    "2,2/1,130,200,D,causal",
    "1,4/2,1000,777,D,causal",
    "2,3/3,515,1030,D,70:9",
    "1,2/2,1024,1024,D,full",
    "1,6/2,300,1,D,full",
    "1,1/1,1,300,D,causal",
    "3,4/4,257,129,D,causal",
    "1,2/2,2000,2000,D,300:0",
];

/// The problems that are timed: 16,384 tokens with 2,048 columns, and Llama's.
fn timed() -> Vec<String> {
    let mut problems = Vec::new();
    for head_dim in [64, 128] {
        for mask in ["full", "causal"] {
            for seq in [512, 2048, 8192, 16_384] {
                let (batch, heads) = (16_384 / seq, 2048 / head_dim);
                problems.push(format!("{batch},{heads}/{heads},{seq},{seq},{head_dim},{mask}"));
            }
        }
    }
    problems.push("1,32/8,8192,8192,128,causal".to_string());
    problems
}

/// Buffers by their names in launches.
type Memory = Vec<(&'static str, DeviceBuffer)>;

fn held<'m>(memory: &'m Memory, name: &str) -> Result<DeviceSlice<'m>> {
    let found = memory.iter().find(|(held, _)| *held == name);
    found
        .map(|(_, buffer)| buffer.as_slice())
        .ok_or_else(|| format!("no buffer is named {name}").into())
}

/// Adds a workspace for any of these plans.
fn add_workspace(stream: &Stream, plans: &[Plan], memory: &mut Memory) -> Result<()> {
    let bytes = plans.iter().map(Plan::workspace_bytes).max().unwrap_or(0);
    let workspace = DeviceBuffer::new(stream.context(), bytes as usize)?;
    workspace.as_slice().fill(stream, 0xff)?;
    memory.push(("workspace", workspace));
    Ok(())
}

/// The steps of a plan on these buffers.
fn prepare<'m>(context: &Context, plan: &Plan, memory: &'m Memory) -> Result<Vec<PreparedLaunch<'m>>> {
    let mut prepared = Vec::new();
    for step in plan.steps() {
        let buffers: Result<Vec<_>> = step.launch.buffers.iter().map(|spec| held(memory, spec.name)).collect();
        let function = Function::load(context, &step.kernel, &ModuleOptions::default())?;
        prepared.push(launch::prepare(&function, &step.launch, &buffers?)?);
    }
    Ok(prepared)
}

/// Whether a kernel's gradients are those of float64.
fn check(stream: &Stream, kernel: Kernel, problem: &Problem, seed: u64) -> Result<bool> {
    let plan = match kernel.plan(problem) {
        Ok(plan) => plan,
        Err(refusal) => {
            println!("  {problem}: refused: {refusal}");
            return Ok(true);
        }
    };
    let inputs = Inputs::generate(problem, InputKind::ALL[seed as usize % InputKind::ALL.len()], seed);
    let (Some(saved), Some(layouts)) = (&inputs.saved, problem.gradient_layouts()) else {
        return Err("inputs of a backward problem have what the forward pass saved".into());
    };
    let mut memory: Memory = Vec::new();
    for (name, tensor) in [
        ("q", &inputs.q),
        ("k", &inputs.k),
        ("v", &inputs.v),
        ("out", &saved.out),
        ("dout", &saved.dout),
    ] {
        memory.push((name, DeviceBuffer::from_host(stream, tensor.bytes())?));
    }
    memory.push(("lse", DeviceBuffer::from_host(stream, &saved.lse)?));
    let mut got = [layouts.dq, layouts.dk, layouts.dv].map(|layout| Tensor::poisoned(problem.dtype(), layout));
    for (name, tensor) in Gradients::<()>::NAMES.into_iter().zip(&got) {
        memory.push((name, DeviceBuffer::from_host(stream, tensor.bytes())?));
    }
    add_workspace(stream, std::slice::from_ref(&plan), &mut memory)?;
    let steps = prepare(stream.context(), &plan, &memory)?;
    // Twice: the second run must not depend on what the first one left.
    for step in steps.iter().chain(&steps) {
        launch::enqueue(step, stream)?;
    }
    stream.synchronize()?;
    for (name, tensor) in Gradients::<()>::NAMES.into_iter().zip(&mut got) {
        let (_, buffer) = memory.iter().find(|(held, _)| *held == name).ok_or("no gradient")?;
        tensor.bytes_mut().copy_from_slice(&buffer.to_vec::<u8>(stream)?);
    }
    let gate = gate_gradients(problem, &inputs, &got, seed)?;
    println!("  {problem} by {}: {gate}", plan.config);
    Ok(gate.passed())
}

/// Buffers of random numbers for a problem.
fn random_memory(stream: &Stream, problem: &Problem) -> Result<Memory> {
    let mut rng = Rng::new(7);
    let pattern: Vec<bf16> = (0..1 << 20).map(|_| bf16::from_f32(rng.normal())).collect();
    let Some(gradients) = problem.gradient_layouts() else {
        return Err("a backward problem has layouts of gradients".into());
    };
    let mut memory: Memory = Vec::new();
    for (salt, (name, layout)) in [
        ("q", problem.q_layout()),
        ("k", problem.k_layout()),
        ("v", problem.v_layout()),
        ("out", problem.o_layout()),
        ("dout", &gradients.dout),
        ("dq", &gradients.dq),
        ("dk", &gradients.dk),
        ("dv", &gradients.dv),
    ]
    .into_iter()
    .enumerate()
    {
        let element = |i: usize| pattern[(i * (2 * salt + 1) + 77 * salt) % (pattern.len() - 3)];
        let values: Vec<bf16> = (0..layout.span()).map(element).collect();
        memory.push((name, DeviceBuffer::from_host(stream, &values)?));
    }
    // As large as those of such rows, so that probabilities add up to about 1.
    let lse = (problem.seq_len_kv() as f32).ln() + 0.5;
    memory.push(("lse", DeviceBuffer::from_host(stream, &vec![lse; problem.lse_len()])?));
    Ok(memory)
}

/// Some steps, and the microseconds that they took.
struct Timed {
    graph: Graph,
    times: Vec<f64>,
}

const CALLS: usize = 10;
const ROUNDS: usize = 7;

/// A graph of several calls of some steps.
fn timed_steps(stream: &Stream, steps: &[PreparedLaunch]) -> Result<Timed> {
    let calls = |stream: &Stream| {
        (0..CALLS)
            .flat_map(|_| steps)
            .try_for_each(|step| launch::enqueue(step, stream))
    };
    Ok(Timed {
        graph: Graph::capture(stream, calls)?,
        times: Vec::new(),
    })
}

/// Microseconds of a call.
fn time(stream: &Stream, graph: &Graph) -> Result<f64> {
    let (start, end) = (Event::new(stream.context())?, Event::new(stream.context())?);
    start.record(stream)?;
    graph.launch(stream)?;
    end.record(stream)?;
    end.synchronize()?;
    Ok(f64::from(start.elapsed_ms(&end)?) * 1e3 / CALLS as f64)
}

/// Times of the whole and of each step, the kernels in turns, medians.
fn times(stream: &Stream, kernels: &[Kernel], problem: &Problem) -> Result<()> {
    println!("{problem}");
    let mut memory = random_memory(stream, problem)?;
    let mut plans = Vec::new();
    for kernel in kernels {
        match kernel.plan(problem) {
            Ok(plan) => plans.push(plan),
            Err(refusal) => println!("  refused: {refusal}"),
        }
    }
    add_workspace(stream, &plans, &mut memory)?;
    // Of each plan the whole, and then its steps.
    let mut lines: Vec<(&Plan, Vec<Timed>)> = Vec::new();
    for plan in &plans {
        let steps = prepare(stream.context(), plan, &memory)?;
        let mut graphs = vec![timed_steps(stream, &steps)?];
        // Sums in order need the steps before the main one: they reset whose turn it is.
        let alone = steps.chunks(1).filter(|_| !problem.deterministic());
        for step in alone {
            graphs.push(timed_steps(stream, step)?);
        }
        lines.push((plan, graphs));
    }
    for round in 0..=ROUNDS {
        for (_, graphs) in &mut lines {
            for Timed { graph, times } in graphs {
                let time = time(stream, graph)?;
                if round > 0 {
                    times.push(time);
                }
            }
        }
    }
    for (plan, graphs) in lines {
        let mut medians = graphs.into_iter().map(|Timed { mut times, .. }| {
            times.sort_by(f64::total_cmp);
            times[times.len() / 2]
        });
        let all = medians.next().ok_or("no times")?;
        let steps: Vec<String> = medians.map(|median| format!("{median:.1}")).collect();
        let (id, speed) = (plan.config.to_string(), problem.flops() / all / 1e6);
        println!("  {id:28}{all:9.1} us {speed:4.0} TFLOP/s, steps {}", steps.join(" + "));
    }
    Ok(())
}

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (mode, rest) = args
        .split_first()
        .ok_or("write check, time or once, kernels and problems")?;
    let (problems, ids): (Vec<String>, Vec<String>) = rest.iter().cloned().partition(|arg| arg.contains(','));
    let mut kernels = ids.iter().map(|id| id.parse()).collect::<Result<Vec<Kernel>>>()?;
    if kernels.is_empty() {
        kernels.push(Kernel(None));
    }
    let Device::Cuda(context) = Device::cuda(0)? else {
        return Err("a CUDA device is needed".into());
    };
    let stream = Stream::new(&context)?;
    let backward = |text: &str, dtype| Ok::<_, Box<dyn Error>>(builder(text)?.dtype(dtype).build()?.backward()?);
    let mut passed = true;
    match mode.as_str() {
        "check" => {
            let mut seed = 0;
            let checked = CHECKED
                .iter()
                .flat_map(|text| ["64", "128"].map(|head_dim| text.replace('D', head_dim)));
            let problems = if problems.is_empty() {
                checked.collect()
            } else {
                problems
            };
            for text in &problems {
                for dtype in [DType::F16, DType::BF16] {
                    for kernel in &kernels {
                        seed += 1;
                        passed &= check(&stream, *kernel, &backward(text, dtype)?, seed)?;
                    }
                }
            }
            println!("{}", if passed { "all passed" } else { "FAILED" });
        }
        "time" => {
            let problems = if problems.is_empty() { timed() } else { problems };
            for text in &problems {
                times(&stream, &kernels, &backward(text, DType::BF16)?)?;
            }
        }
        "once" => {
            for text in &problems {
                let problem = backward(text, DType::BF16)?;
                let mut memory = random_memory(&stream, &problem)?;
                let plan = kernels[0].plan(&problem)?;
                add_workspace(&stream, std::slice::from_ref(&plan), &mut memory)?;
                for step in prepare(&context, &plan, &memory)? {
                    launch::enqueue(&step, &stream)?;
                }
                stream.synchronize()?;
            }
        }
        other => return Err(format!("`{other}` is no mode; write check, time or once").into()),
    }
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
