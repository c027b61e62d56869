//! `flashcore-tools serve`: a toy server whose steps are one captured graph, and random appends.

mod appends;
mod engine;
mod server;
mod times;

use std::process::ExitCode;

use flashcore::unstable::testing::{Tolerance, compare, reference_rows};
use flashcore::{
    Append, Attention, DType, Device, KernelId, KvLengths, Lengths, Mask, Problem, QLengths, Rotary, Tensor,
};
use flashcore_problem::others_untouched;

use engine::Engine;
use server::{Server, Step};

const BATCH: usize = 8;
const HEADS: usize = 8;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 128;
/// Columns of the rotary embedding.
const ROTARY: usize = 64;
/// Rows of the tensors of a step.
const ROWS: usize = 128;
/// Rows of a sequence in a step at most.
const LONGEST: usize = 64;
const PAGE_SIZE: usize = 16;
const MAX_PAGES: usize = 40;
/// Fewer than all sequences can need: pages that one gives back are soon those of another.
const PAGES: usize = BATCH * MAX_PAGES * 3 / 4;
/// What an element of the cache of K may be off: rotated in f32, in another order of operations, and rounded to bf16.
const OFF_BY: f32 = 1.0 / 128.0;

/// Replays one graph of append, schedule, attention and combine over many steps of a server, and judges each step.
///
/// Sequences of a batch get a row, none, a few or a chunk in a step. One that is full ends, and another takes its place
/// and its pages. Lengths and block table are rewritten in place. Every output is compared with float64, rows of no
/// sequence keep their bytes, and last the caches are compared with the host's. Exits with 1 where something is wrong,
/// also where the card's free memory changed, which other processes may have done.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Where: `cuda`, or `cpu`, which has no graph.
    #[arg(long, default_value = "cuda")]
    device: String,
    /// Steps.
    #[arg(long, default_value_t = 500)]
    steps: usize,
    /// Seed of what the steps are.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Kernels to run with, each by itself; without one, the default.
    #[arg(long, value_delimiter = ',')]
    kernel: Vec<String>,
    /// Instead of steps: so many random appends, compared with float64; a third has values that contradict them.
    #[arg(long, conflicts_with_all = ["kernel", "plant", "times"])]
    appends: Option<u64>,
    /// Instead of steps: times of append, attention and both in one graph.
    #[arg(long, conflicts_with_all = ["kernel", "plant"])]
    times: bool,
    /// A mistake of the caller, which the comparison must find.
    #[arg(long)]
    plant: Option<Plant>,
}

/// A mistake in what a step is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Plant {
    /// The lengths are those of the step before.
    StaleLengths,
    /// The block table is that of the step before.
    StaleTable,
    /// Each length is one too many.
    OffByOne,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let device: Device = options.device.parse()?;
    if let Some(count) = options.appends {
        return appends::main(&device, options.seed, count);
    }
    if options.times {
        return times::main(&device);
    }
    let mut all = true;
    let kernels = options.kernel.iter().map(Some);
    for kernel in if kernels.len() == 0 {
        vec![None]
    } else {
        kernels.collect()
    } {
        let attention = match kernel {
            Some(kernel) => Attention::with(device.clone(), kernel.parse::<KernelId>()?)?,
            None => Attention::new(device.clone())?,
        };
        let problem = problem()?;
        let id = attention.plan(&problem)?.kernel();
        match run(&attention, options) {
            Ok(summary) => println!("{id}: {summary}"),
            Err(wrong) => {
                all = false;
                println!("{id}: {wrong}");
            }
        }
    }
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Packed rows over a paged cache.
fn problem() -> Result<Problem, flashcore::Error> {
    let paged = KvLengths::Paged {
        page_size: PAGE_SIZE,
        pages: PAGES,
        max_pages: MAX_PAGES,
    };
    let packed = QLengths::Packed {
        total: ROWS,
        used: false,
    };
    let problem = Problem::builder()
        .batch(BATCH)
        .heads(HEADS, KV_HEADS)
        .head_dim(HEAD_DIM);
    let problem = problem.seq_len_q(LONGEST).seq_len_kv(PAGE_SIZE * MAX_PAGES);
    let problem = problem.dtype(DType::BF16).mask(Mask::CAUSAL);
    Ok(problem.q_lengths(packed).kv_lengths(paged).build()?)
}

/// The append of a step: as many new rows of K and V as rows of Q, which is rotated in place.
fn append(problem: &Problem) -> Append {
    let (new, cache) = ([1, ROWS, KV_HEADS, HEAD_DIM].into(), *problem.k_layout());
    let mut rotary = Rotary::new(*problem.q_layout(), PAGE_SIZE * MAX_PAGES, ROTARY);
    rotary.packed_q = true;
    let paged = Append::to_pages(problem.dtype(), [new, new], [cache, cache], MAX_PAGES);
    Append {
        batch: BATCH,
        packed: true,
        seqused_k: true,
        rotary: Some(rotary),
        place: flashcore::AppendPlace::Paged {
            tables: BATCH,
            max_pages: MAX_PAGES,
        },
        ..paged
    }
}

/// Runs all steps; a summary, or the first thing that is wrong.
fn run(attention: &Attention, options: &Options) -> Result<String, String> {
    let said = |error: flashcore::Error| error.to_string();
    let problem = problem().map_err(said)?;
    let append = append(&problem);
    let tables = tables();
    let mut engine = Engine::new(attention, &problem, &append, &tables).map_err(said)?;
    // The same on the host, by the CPU: what the caches and the rotated Q must be.
    let host = Attention::new(Device::cpu()).map_err(|error| error.to_string())?;
    let mut mirror = Engine::new(&host, &problem, &append, &tables).map_err(said)?;
    let mut server = Server::new(options.seed);
    let (mut last, mut rows, mut longest): (Option<Step>, usize, i32) = (None, 0, 0);
    let before = engine.free_memory().map_err(said)?;
    for number in 0..options.steps {
        let step = server.step();
        rows += step.rows();
        longest = longest.max(step.after.iter().copied().max().unwrap_or(0));
        let wrong = |what: String| format!("step {number}: {what}");
        let given = match (options.plant, last.replace(step.clone())) {
            (Some(plant), Some(last)) => planted(plant, &step, &last),
            _ => step.clone(),
        };
        let new = server.tensors(&step);
        let (out, after) = engine.step(&given, &new).map_err(|error| wrong(said(error)))?;
        mirror.append(&step, &new).map_err(|error| wrong(said(error)))?;
        if after != step.after {
            return Err(wrong(format!("seqused_k is {after:?}; it must be {:?}", step.after)));
        }
        judge(&problem, &step, &mirror, &out).map_err(wrong)?;
    }
    let taken = engine
        .free_memory()
        .map_err(said)?
        .zip(before)
        .map(|(now, then)| then.saturating_sub(now));
    if let Some(taken @ 1..) = taken {
        return Err(format!(
            "{taken} bytes of device memory were allocated during the steps"
        ));
    }
    same_caches(engine.caches().map_err(said)?, mirror.caches().map_err(said)?)?;
    let steps = options.steps;
    let launched = engine.launch_us().map_or(String::new(), |us| {
        format!(", one graph, no allocation, {us:.1} us of the host a launch")
    });
    Ok(format!(
        "{steps} steps right, {rows} rows, up to {longest} keys{launched}"
    ))
}

/// What a step is given, with a mistake.
fn planted(plant: Plant, step: &Step, last: &Step) -> Step {
    let mut given = step.clone();
    match plant {
        Plant::StaleLengths => given.before.clone_from(&last.before),
        Plant::StaleTable => given.table.clone_from(&last.table),
        Plant::OffByOne => given.before.iter_mut().for_each(|length| *length += 1),
    }
    given
}

/// Cosines and sines.
fn tables() -> [Tensor; 2] {
    let angle = |position: usize, pair: usize| position as f32 * 10_000f32.powf(-(pair as f32) / (ROTARY / 2) as f32);
    let shape = [1, PAGE_SIZE * MAX_PAGES, 1, ROTARY / 2];
    let table = |of: fn(f32) -> f32| Tensor::from_fn(DType::BF16, shape.into(), |_, p, _, i| of(angle(p, i)));
    [table(f32::cos), table(f32::sin)]
}

/// Compares all rows of a step with float64, and looks at the others.
fn judge(problem: &Problem, step: &Step, mirror: &Engine<'_>, out: &Tensor) -> Result<(), String> {
    let lengths = Lengths {
        cu_seqlens_q: Some(&step.starts[..]),
        seqused_k: Some(&step.after[..]),
        block_table: Some(&step.table[..]),
        ..Lengths::default()
    };
    let said = |error: flashcore::ProblemError| error.to_string();
    let rows = problem.query_rows(&lengths).map_err(said)?;
    let Engine::Host(host) = mirror else {
        return Err("the mirror is on the host".to_string());
    };
    let [k, v] = &host.caches;
    let want = reference_rows(problem, &host.q.view(), &k.view(), &v.view(), &lengths, &rows).map_err(said)?;
    others_untouched(&out.view(), rows).map_err(|gap| gap.to_string())?;
    let found = compare(problem, &out.view(), &want, Tolerance::of(problem.dtype())).map_err(said)?;
    match found.passed || want.is_empty() {
        true => Ok(()),
        false => Err(found.to_string()),
    }
}

/// Compares the caches: V bit by bit, K within its rounding.
fn same_caches([k, v]: [Tensor; 2], [want_k, want_v]: [Tensor; 2]) -> Result<(), String> {
    if v.bytes() != want_v.bytes() {
        return Err("the cache of V is not that of the host".to_string());
    }
    let values = |tensor: &Tensor| {
        let values = tensor.as_slice::<flashcore::bf16>().map(<[_]>::to_vec);
        values.map_err(|error| error.to_string())
    };
    for (at, (got, want)) in values(&k)?.into_iter().zip(values(&want_k)?).enumerate() {
        let (got, want) = (got.to_f32(), want.to_f32());
        let same = (got.is_nan() && want.is_nan()) || (got - want).abs() <= OFF_BY * want.abs() + 1e-3;
        if !same {
            return Err(format!("element {at} of the cache of K is {got}; it must be {want}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on_the_cpu(plant: Option<Plant>) -> Result<String, String> {
        let options = Options {
            device: "cpu".to_string(),
            steps: 24,
            seed: 3,
            kernel: Vec::new(),
            appends: None,
            times: false,
            plant,
        };
        run(&Attention::new(Device::cpu()).unwrap(), &options)
    }

    #[test]
    fn steps_are_right_and_mistakes_of_the_caller_are_found() {
        let summary = on_the_cpu(None).unwrap();
        assert!(summary.starts_with("24 steps right"), "{summary}");
        for plant in [Plant::StaleLengths, Plant::StaleTable, Plant::OffByOne] {
            assert!(on_the_cpu(Some(plant)).is_err(), "{plant:?}");
        }
    }

    #[test]
    fn appends_of_the_cpu_are_right() {
        assert_eq!(appends::main(&Device::Cpu, 1, 12).unwrap(), ExitCode::SUCCESS);
    }
}
