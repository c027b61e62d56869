//! A schedule that was made for other lengths of the same problem: results are wrong, and no address leaves its tensor.
//! So a schedule that a program keeps for too long (`scheduler_metadata` of the Python package) touches no foreign
//! memory, whatever the lengths are meanwhile.

use std::collections::BTreeMap;

use flashcore_ir::{Arg, Chip, Target};
use flashcore_kernels::{Plan, Step};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, KvLengths, Mask, POISON, Problem, QLengths};
use flashcore_sim::{Finding, FindingKind, SimOptions, Written, simulate};

use crate::common::number;
use crate::lengths::{PACKED, PAGED, PAGED_BOXES};

/// The buffers of a plan after some of its steps, by name.
type Buffers = BTreeMap<&'static str, Vec<u8>>;

fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Where the partials of a workspace end, which begin it, and the lists begin: with the third argument that is there.
fn end_of_partials(step: &Step) -> i64 {
    let slot = step.launch.buffers.iter().position(|spec| spec.name == "workspace");
    let of_workspace = |arg: &Arg| match arg {
        Arg::Buffer { slot: of, byte_offset } if Some(*of) == slot => Some(*byte_offset as i64),
        _ => None,
    };
    step.launch.args.iter().filter_map(of_workspace).nth(2).unwrap()
}

/// Whether a stale schedule may do so: sequences that overlap write the same rows and partials, and `combine` reads the
/// partials of a piece that was not computed. Lists are written by none of these steps, and read as they were written.
/// Of e4m3 the same sequences share tiles of transposed values, and the main kernel reads some that were not written,
/// as of gathered keys.
fn is_expected(finding: &Finding, step: &Step) -> bool {
    let object = finding.object.as_deref().unwrap_or_default();
    let end = finding.bytes.map_or(i64::MAX, |(_, end)| end);
    let in_partials = ["split_partials", "split_sums"].contains(&object) && end <= end_of_partials(step);
    match finding.kind {
        FindingKind::BlockRace if step.kernel.name().contains("transpose_v") => object == "workspace",
        FindingKind::BlockRace => in_partials || ["out", "lse"].contains(&object),
        FindingKind::NeverWritten if step.kernel.name().contains("e4m3") && ["k", "v"].contains(&object) => true,
        FindingKind::NeverWritten => in_partials && step.kernel.name().contains("combine"),
        _ => false,
    }
}

/// Runs the steps of a plan from `first` to `end` and panics if one touches what it must not.
fn run(plan: &Plan, [first, end]: [usize; 2], buffers: &mut Buffers, written: &mut Written, what: &str) {
    for step in plan.steps().take(end).skip(first) {
        let specs = &step.launch.buffers;
        for spec in specs {
            // Steps use different parts of the workspace.
            let bytes = if spec.name == "workspace" {
                plan.workspace_bytes()
            } else {
                spec.bytes
            };
            let poison = || vec![POISON; bytes as usize];
            buffers.entry(spec.name).or_insert_with(poison);
        }
        let mut options = SimOptions::default();
        let slot = specs.iter().position(|spec| spec.name == "workspace");
        options.written.extend(slot.map(|slot| (slot, written.clone())));
        let mut bytes: Vec<Vec<u8>> = specs.iter().map(|spec| buffers[spec.name].clone()).collect();
        let report = simulate(&step.kernel, &step.launch, &mut bytes, &options).unwrap();
        if let Some(more) = slot.and_then(|slot| report.written.get(&slot)) {
            written.add(more);
        }
        let worse = report.findings.iter().find(|finding| !is_expected(finding, step));
        assert!(worse.is_none(), "{what}, {}: {worse:?}", step.kernel.name());
        buffers.extend(specs.iter().map(|spec| spec.name).zip(bytes));
    }
}

/// What the problems of a case have in common.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Of a K/V head.
    heads: usize,
    head_dim: usize,
    /// At most so many queries and keys in each of 3 sequences.
    rows: usize,
    keys: usize,
    q: QLengths,
}

/// Several queries of each sequence, packed.
const PROMPTS: Shape = Shape {
    heads: 2,
    head_dim: 16,
    rows: 40,
    keys: 50,
    q: QLengths::Packed { total: 80, used: true },
};

const WIDE_PROMPTS: Shape = Shape {
    head_dim: 64,
    ..PROMPTS
};

/// As many queries of each sequence, over so many keys that tiles are computed in pieces.
const DECODING: Shape = Shape {
    heads: 4,
    head_dim: 64,
    rows: 1,
    keys: 400,
    q: QLengths::Equal,
};

const DECODING_PAGES: KvLengths = KvLengths::Paged {
    page_size: 8,
    pages: 160,
    max_pages: 50,
};

const MMA: [&str; 2] = [
    "mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa",
    "mma/m32n64-w2x1-s3-b2-qsh-xor-always-gqa",
];
const WGMMA: [&str; 3] = [
    "wgmma/m128n32-s2-free-cond",
    "wgmma/m64n32-s2-free-spec-gqa",
    "wgmma/m128n64-s2-pingpong-spec-gqa",
];

/// Of 3 sequences on so few multiprocessors that blocks have several tiles, and pieces of tiles.
fn plan(
    config: &str,
    shape: Shape,
    dtype: DType,
    kv_lengths: KvLengths,
    mask: Mask,
    batch_invariant: Option<usize>,
) -> Plan {
    let target = if config.starts_with("mma") {
        Target::Sm80
    } else {
        Target::Sm90a
    };
    let problem = Problem::builder()
        .batch(3)
        .heads(shape.heads, 1)
        .head_dim(shape.head_dim)
        .seq_len_q(shape.rows)
        .seq_len_kv(shape.keys);
    let problem = problem.dtype(dtype).return_lse(true).mask(mask).kv_lengths(kv_lengths);
    let problem = problem.q_lengths(shape.q);
    let problem = match batch_invariant {
        Some(keys) => problem.batch_invariant(keys),
        None => problem,
    };
    Plan::new(
        &problem.build().unwrap(),
        &config.parse().unwrap(),
        Chip { target, sms: 5 },
    )
    .unwrap()
}

/// What the arrays of lengths hold in one call: extremes, as lengths that grow from nothing or shrink to nothing, or
/// are no lengths, and any others.
fn draw(rng: &mut Rng, shape: Shape, kv_lengths: KvLengths) -> Buffers {
    let below = |rng: &mut Rng, n: usize| rng.below(n) as i32;
    let used = |rng: &mut Rng, most: usize| -> [i32; 3] {
        let hostile = [
            i32::MIN,
            -1,
            0,
            1,
            most as i32 - 1,
            most as i32 + 1,
            2 * most as i32,
            i32::MAX,
        ];
        let how = rng.below(5);
        [(); 3].map(|()| match how {
            0 => 0,
            1 => most as i32,
            2 => *rng.pick(&hostile).unwrap(),
            _ => below(rng, most + 1),
        })
    };
    let (used_q, used_k) = (used(rng, shape.rows), used(rng, shape.keys));
    let mut starts = |total: usize| {
        let mut starts = [(); 4].map(|()| below(rng, total + 1));
        starts.sort();
        i32s(&starts)
    };
    let mut arrays = Buffers::from([
        ("cu_seqlens_q", starts(80)),
        ("cu_seqlens_k", starts(110)),
        ("seqused_q", i32s(&used_q)),
        ("seqused_k", i32s(&used_k)),
    ]);
    if let KvLengths::Paged {
        page_size,
        pages,
        max_pages,
    } = kv_lengths
    {
        // A schedule that was made for longer sequences has keys on the pages behind the ends of these.
        let none = *rng.pick(&[-1, i32::MAX, i32::MIN, pages as i32]).unwrap();
        let page = |rng: &mut Rng, used: i32, n: usize| match (n * page_size) as i32 {
            first if first >= used => none,
            _ => below(rng, pages),
        };
        let table = used_k.map(|used| (0..max_pages).map(|n| page(rng, used, n)).collect::<Vec<_>>());
        arrays.insert("block_table", i32s(&table.concat()));
    }
    arrays
}

#[test]
fn they_touch_no_foreign_memory() {
    let mut rng = Rng::new(number("FLASHCORE_SEED", 11));
    let rounds = number("FLASHCORE_PROBLEMS", 4) as usize;
    let prompts = MMA
        .into_iter()
        .chain(WGMMA)
        .flat_map(|config| [PACKED, PAGED_BOXES, KvLengths::Cache].map(|kv| (config, PROMPTS, kv)));
    let wide = [MMA[0], WGMMA[1]].map(|config| (config, WIDE_PROMPTS, PAGED_BOXES));
    let decoding = [MMA[0], MMA[1], WGMMA[1]]
        .into_iter()
        .flat_map(|config| [DECODING_PAGES, KvLengths::Cache].map(|kv| (config, DECODING, kv)));
    let cases = prompts.chain(wide).chain(decoding).chain([(MMA[0], PROMPTS, PAGED)]);
    let narrow = [
        (WGMMA[0], PROMPTS, PACKED),
        (WGMMA[1], PROMPTS, PAGED),
        (WGMMA[1], DECODING, DECODING_PAGES),
        (WGMMA[2], WIDE_PROMPTS, KvLengths::Cache),
    ];
    let cases = cases.map(|case| (case, DType::F16));
    let mut in_pieces = 0;
    for ((config, shape, kv_lengths), dtype) in cases.chain(narrow.map(|case| (case, DType::E4M3))) {
        let masks = [
            (Mask::CAUSAL, None),
            (Mask::FULL, None),
            (Mask::window(Some(3), None), None),
            (Mask::CAUSAL, Some(32)),
        ];
        let plans = masks.map(|(mask, keys)| plan(config, shape, dtype, kv_lengths, mask, keys));
        let first = rng.below(plans.len()); // all of them in turn
        for round in 0..rounds {
            let plan = &plans[(first + round) % plans.len()];
            assert_eq!(plan.schedule_steps(), 1, "{config}");
            let (mut buffers, mut written) = (draw(&mut rng, shape, kv_lengths), Written::default());
            let what = format!("{config}, {shape:?}, {kv_lengths:?}, {dtype}, round {round}");
            run(plan, [0, 1], &mut buffers, &mut written, &what);
            for call in 1..3 {
                buffers.extend(draw(&mut rng, shape, kv_lengths));
                let steps = [1, plan.steps().count()];
                run(plan, steps, &mut buffers, &mut written, &format!("{what}, call {call}"));
            }
            let partials = 0..end_of_partials(&plan.main) as u64;
            in_pieces += usize::from(partials.step_by(4).any(|byte| written.contains(byte)));
        }
    }
    assert!(in_pieces > 10, "{in_pieces}");
}
