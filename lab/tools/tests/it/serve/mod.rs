//! A toy server whose steps are one captured graph of append, schedule, attention and combine.
//!
//! Sequences of a batch get a row, none, a few or a chunk in a step. One that is full ends, and another takes its place
//! and its pages. Lengths and block table are rewritten in place. Every output is compared with float64, rows of no
//! sequence keep their bytes, and last the caches are compared with the host's. `FLASHCORE_STEPS`, `FLASHCORE_SEED` and
//! `FLASHCORE_KERNELS` (ids with spaces between them, `default` among them) change what runs on a GPU. With
//! `FLASHCORE_GPU_ALONE=1` steps that change the card's free memory fail, which other programs there could do, too.

mod engine;
mod server;

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

/// A mistake in what a step is given.
#[derive(Clone, Copy, Debug)]
enum Plant {
    /// The lengths are those of the step before.
    StaleLengths,
    /// The block table is that of the step before.
    StaleTable,
    /// Each length is one too many.
    OffByOne,
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

/// Runs so many steps; a summary, or the first thing that is wrong.
fn run(attention: &Attention, steps: usize, seed: u64, plant: Option<Plant>) -> Result<String, String> {
    let said = |error: flashcore::Error| error.to_string();
    let problem = problem().map_err(said)?;
    let append = append(&problem);
    let tables = tables();
    let mut engine = Engine::new(attention, &problem, &append, &tables).map_err(said)?;
    // The same on the host, by the CPU: what the caches and the rotated Q must be.
    let host = Attention::new(Device::cpu()).map_err(|error| error.to_string())?;
    let mut mirror = Engine::new(&host, &problem, &append, &tables).map_err(said)?;
    let mut server = Server::new(seed);
    let (mut last, mut rows, mut longest): (Option<Step>, usize, i32) = (None, 0, 0);
    let before = engine.free_memory().map_err(said)?;
    for number in 0..steps {
        let step = server.step();
        rows += step.rows();
        longest = longest.max(step.after.iter().copied().max().unwrap_or(0));
        let wrong = |what: String| format!("step {number}: {what}");
        let given = match (plant, last.replace(step.clone())) {
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
    if let Some(taken @ 1..) = taken
        && std::env::var_os("FLASHCORE_GPU_ALONE").is_some()
    {
        return Err(format!(
            "{taken} bytes of device memory were allocated during the steps"
        ));
    }
    same_caches(engine.caches().map_err(said)?, mirror.caches().map_err(said)?)?;
    let launched = engine.launch_us().map_or(String::new(), |us| {
        format!(", one graph, {us:.1} us of the host a launch")
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
    if found.passed || want.is_empty() {
        Ok(())
    } else {
        Err(found.to_string())
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

#[test]
fn steps_are_right_and_mistakes_of_the_caller_are_found() {
    let on_the_cpu = |plant| run(&Attention::new(Device::cpu()).unwrap(), 24, 3, plant);
    let summary = on_the_cpu(None).unwrap();
    assert!(summary.starts_with("24 steps right"), "{summary}");
    for plant in [Plant::StaleLengths, Plant::StaleTable, Plant::OffByOne] {
        assert!(on_the_cpu(Some(plant)).is_err(), "{plant:?}");
    }
}

#[test]
fn steps_of_one_graph_on_a_gpu_are_right() {
    let device = match Device::cuda(0) {
        Ok(device) => device,
        Err(error) => {
            assert!(std::env::var_os("FLASHCORE_REQUIRE_GPU").is_none(), "{error}");
            return eprintln!("skipped: {error}");
        }
    };
    let [steps, seed] = [("FLASHCORE_STEPS", "500"), ("FLASHCORE_SEED", "1")]
        .map(|(variable, usual)| crate::words(variable, usual)[0].parse().unwrap());
    for id in crate::words("FLASHCORE_KERNELS", "default") {
        let attention = match id.as_str() {
            "default" => Attention::new(device.clone()).unwrap(),
            id => Attention::with(device.clone(), id.parse::<KernelId>().unwrap()).unwrap(),
        };
        let kernel = attention.plan(&problem().unwrap()).unwrap().kernel();
        let summary = run(&attention, steps as usize, seed, None).unwrap_or_else(|wrong| panic!("{kernel}: {wrong}"));
        println!("{kernel}: {summary}");
    }
}
