//! A schedule that was made for other lengths of the same problem: results are wrong, and no address leaves its tensor.
//! So a schedule that a program keeps for too long (`scheduler_metadata` of the Python package) touches no foreign
//! memory, whatever the lengths are meanwhile.

use std::collections::BTreeMap;

use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, KvLengths, Mask, Problem, QLengths};
use flashcore_sim::{FindingKind, SimOptions, Written, simulate};

use crate::common::number;
use crate::lengths::{PACKED, PAGED, PAGED_BOXES};

/// The buffers of a plan after some of its steps, by name.
type Buffers = BTreeMap<&'static str, Vec<u8>>;

fn i32s(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Runs the steps of a plan from `first` to `end` and panics if one touches what it must not.
fn run(plan: &Plan, [first, end]: [usize; 2], buffers: &mut Buffers, written: &mut Written, what: &str) {
    for step in plan.steps().take(end).skip(first) {
        let specs = &step.launch.buffers;
        for spec in specs {
            buffers.entry(spec.name).or_insert_with(|| vec![0; spec.bytes as usize]);
        }
        let mut options = SimOptions::default();
        let slot = specs.iter().position(|spec| spec.name == "workspace");
        options.written.extend(slot.map(|slot| (slot, written.clone())));
        let mut bytes: Vec<Vec<u8>> = specs.iter().map(|spec| buffers[spec.name].clone()).collect();
        let report = simulate(&step.kernel, &step.launch, &mut bytes, &options).unwrap();
        if let Some(more) = slot.and_then(|slot| report.written.get(&slot)) {
            written.add(more);
        }
        // Sequences that overlap write the same rows, and a piece that is not computed leaves no partial.
        let allowed = [FindingKind::BlockRace, FindingKind::NeverWritten];
        let worse = report.findings.iter().find(|finding| !allowed.contains(&finding.kind));
        assert!(worse.is_none(), "{what}, {}: {worse:?}", step.kernel.name());
        buffers.extend(specs.iter().map(|spec| spec.name).zip(bytes));
    }
}

const CONFIGS: [&str; 5] = [
    "mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa",
    "mma/m32n64-w2x1-s3-b2-qsh-xor-always-gqa",
    "wgmma/m128n32-s2-free-cond",
    "wgmma/m64n32-s2-free-spec-gqa",
    "wgmma/m128n64-s2-pingpong-spec-gqa",
];

/// Of 3 sequences on so few multiprocessors that blocks have several tiles, and pieces of tiles.
fn plan(config: &str, kv_lengths: KvLengths, mask: Mask, batch_invariant: Option<usize>) -> Plan {
    let target = if config.starts_with("mma") {
        Target::Sm80
    } else {
        Target::Sm90a
    };
    let problem = Problem::builder()
        .batch(3)
        .heads(2, 1)
        .head_dim(16)
        .seq_len_q(40)
        .seq_len_kv(50);
    let problem = problem
        .dtype(DType::F16)
        .return_lse(true)
        .mask(mask)
        .kv_lengths(kv_lengths);
    let problem = problem.q_lengths(QLengths::Packed { total: 80, used: true });
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

#[test]
fn they_touch_no_foreign_memory() {
    let mut rng = Rng::new(number("FLASHCORE_SEED", 11));
    let rounds = number("FLASHCORE_PROBLEMS", 6);
    let cases = CONFIGS
        .into_iter()
        .flat_map(|config| [PACKED, PAGED_BOXES, KvLengths::Cache].map(|kv| (config, kv)))
        .chain([(CONFIGS[0], PAGED)]);
    for (config, kv_lengths) in cases {
        let masks = [
            (Mask::CAUSAL, None),
            (Mask::FULL, None),
            (Mask::window(Some(3), None), None),
            (Mask::CAUSAL, Some(32)),
        ];
        let plans = masks.map(|(mask, keys)| plan(config, kv_lengths, mask, keys));
        for round in 0..rounds {
            let plan = &plans[round as usize % plans.len()];
            assert_eq!(plan.schedule_steps(), 1, "{config}");
            // Every few rounds the extremes: lengths that grow from nothing, shrink to nothing, or are no lengths.
            let hostile = [i32::MIN, -1, 0, 1, 49, 50, 51, 80, 110, i32::MAX];
            let mut draw = |call: u64| {
                let mut used = |most: usize| match (round + call) % 5 {
                    0 => 0,
                    1 => most as i32,
                    2 => *rng.pick(&hostile).unwrap(),
                    _ => rng.below(most + 1) as i32,
                };
                let [used_q, used_k] = [40, 50].map(|most| [used(most), used(most), used(most)]);
                let [starts_q, starts_k] = [80, 110].map(|total| {
                    let mut starts = [0; 4].map(|_: i32| rng.below(total + 1) as i32);
                    starts.sort();
                    starts
                });
                [
                    ("cu_seqlens_q", i32s(&starts_q)),
                    ("seqused_q", i32s(&used_q)),
                    ("cu_seqlens_k", i32s(&starts_k)),
                    ("seqused_k", i32s(&used_k)),
                ]
            };
            let (mut buffers, mut written) = (Buffers::new(), Written::default());
            let pages: Vec<i32> = (0..30).collect();
            buffers.insert("block_table", i32s(&pages));
            buffers.extend(draw(0));
            let what = format!("{config}, {kv_lengths:?}, round {round}");
            run(plan, [0, 1], &mut buffers, &mut written, &what);
            for call in 1..3 {
                buffers.extend(draw(call));
                run(
                    plan,
                    [1, plan.steps().count()],
                    &mut buffers,
                    &mut written,
                    &format!("{what}, call {call}"),
                );
            }
        }
    }
}
