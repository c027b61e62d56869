//! Splits of a given number of keys: the bits of an output do not depend on the other sequences of a batch.

use flashcore_check::mutate::Operator;
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{BufferSpec, Chip, Target};
use flashcore_kernels::Plan;
use flashcore_problem::tensor::write_element;
use flashcore_problem::{DType, KvLengths, Mask, Problem, QLengths};

use crate::lengths::{is_found_in_step, run_steps};

const SPLIT_KEYS: usize = 96;

/// Rows and keys of each sequence. The first one has one tile, whose keys are worth several blocks.
const ALONE: &[[i32; 2]] = &[[2, 700]];
const WITH_LONG: &[[i32; 2]] = &[[2, 700], [9, 640], [1, 700]];
const WITH_SHORT: &[[i32; 2]] = &[[2, 700], [0, 0], [1, 3]];

const KERNELS: [(&str, Target); 2] = [
    ("mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa", Target::Sm80),
    ("wgmma/m64n32-s2-free-spec-gqa", Target::Sm90a),
];

/// A plan for as many sequences, of up to `rows` rows together.
fn plan((kernel, target): (&str, Target), batch: usize, rows: usize, split_keys: Option<usize>) -> Plan {
    let builder = Problem::builder()
        .batch(batch)
        .heads(8, 2)
        .head_dim(64)
        .seq_len_q(9)
        .seq_len_kv(720)
        .mask(Mask::CAUSAL)
        .dtype(DType::BF16)
        .return_lse(true)
        .q_lengths(QLengths::Packed {
            total: rows,
            used: false,
        })
        .kv_lengths(KvLengths::Cache);
    let builder = match split_keys {
        Some(keys) => builder.batch_invariant(keys),
        None => builder,
    };
    let chip = Chip { target, sms: 7 };
    Plan::new(&builder.build().unwrap(), &kernel.parse().unwrap(), chip).unwrap()
}

/// O and the log-sum-exp of the rows of the first sequence, as bits.
fn first_answer(kernel: (&str, Target), split_keys: Option<usize>, lens: &[[i32; 2]]) -> (Vec<u8>, Vec<u8>) {
    let rows = lens.iter().map(|[rows, _]| *rows as usize).sum::<usize>().max(2);
    let plan = plan(kernel, lens.len(), rows, split_keys);
    // The first sequence has the first elements of each tensor.
    let content = |spec: &BufferSpec| -> Vec<u8> {
        let words = |words: Vec<i32>| words.into_iter().flat_map(i32::to_le_bytes).collect();
        match spec.name {
            "cu_seqlens_q" => {
                let ends = lens.iter().scan(0, |end, [rows, _]| {
                    *end += rows;
                    Some(*end)
                });
                words(std::iter::once(0).chain(ends).collect())
            }
            "seqused_k" => words(lens.iter().map(|[_, keys]| *keys).collect()),
            _ => {
                let mut bytes = vec![0; spec.bytes as usize];
                for index in 0..bytes.len() / 2 {
                    let random = (index as u32 + 17).wrapping_mul(2_654_435_761) >> 20;
                    write_element(DType::BF16, &mut bytes, index, random as f32 / 2048.0 - 1.0);
                }
                bytes
            }
        }
    };
    let (buffers, findings) = run_steps(&plan, content);
    assert!(findings.is_empty(), "{findings:?}");
    let [out_row, first_rows] = [8 * 64 * 2, lens[0][0] as usize];
    let lse = (0..8).flat_map(|head| {
        let first = 4 * head * rows;
        buffers["lse"][first..first + 4 * first_rows].to_vec()
    });
    (buffers["out"][..first_rows * out_row].to_vec(), lse.collect())
}

#[test]
fn neighbours_change_no_bits() {
    for kernel in KERNELS {
        let answers = |split_keys| [ALONE, WITH_LONG, WITH_SHORT].map(|lens| first_answer(kernel, split_keys, lens));
        let [alone, with_long, with_short] = answers(Some(SPLIT_KEYS));
        assert!(alone == with_long && alone == with_short, "{}", kernel.0);
        // Splits that follow the batch: what the test is there to find.
        let [alone, with_long, with_short] = answers(None);
        assert!(alone != with_long || alone != with_short, "{}", kernel.0);
    }
}

#[test]
fn splits_are_right() {
    for kernel in KERNELS {
        for (seed, keys) in [(0, 1), (1, 96), (2, 10_000)] {
            let options = CheckOptions {
                seed,
                ..CheckOptions::default()
            };
            let report = check_plan(&plan(kernel, 3, 12, Some(keys)), &options).unwrap();
            assert_eq!(report.verdict, Verdict::Clean, "{}, {keys} keys\n{report}", kernel.0);
        }
    }
}

/// With as many splits, several blocks write their items.
#[test]
fn several_blocks_schedule_splits() {
    let plan = plan(KERNELS[0], 24, 48, Some(SPLIT_KEYS));
    let blocks = plan.steps().next().map_or(0, |step| step.launch.grid[0]);
    assert!(blocks > 2, "{blocks} blocks");
    let report = check_plan(&plan, &CheckOptions::default()).unwrap();
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
}

/// Mistakes in the schedule of splits: what breaks, and where.
const PLANTED: [(&str, Operator, &str); 4] = [
    (
        "a split begins a K block late",
        Operator::OffsetOne,
        "let first = (split * blocks)",
    ),
    ("a split has another slot", Operator::OffsetOne, "first + split + 1"),
    (
        "the number of splits rounded down",
        Operator::DropAddend,
        "(n_blocks + (blocks - 1))",
    ),
    (
        "the list of splits is not reset",
        Operator::DropStore,
        "store_words(&nothing",
    ),
];

#[test]
fn mistakes_in_splits_are_found() {
    for (name, operator, place) in PLANTED {
        let plan = plan(KERNELS[0], 3, 12, Some(SPLIT_KEYS));
        is_found_in_step(name, &plan, 0, operator, place);
    }
}

#[test]
fn more_splits_than_there_are_slots_are_refused() {
    let problem = Problem::builder()
        .batch(64)
        .heads(8, 8)
        .head_dim(16)
        .seq_len_q(1)
        .seq_len_kv(100_000)
        .kv_lengths(KvLengths::Cache)
        .batch_invariant(64);
    let config = "mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa".parse().unwrap();
    let refusal = Plan::new(&problem.build().unwrap(), &config, Target::Sm90a).unwrap_err();
    let text = refusal.to_string();
    assert!(
        text.contains("800256 splits of 64 keys") && text.contains("raise the keys of a split (batch_invariant)"),
        "{text}"
    );
}

/// Windows past the last key leave the other sequences their row tiles and slots.
#[test]
fn rows_that_see_nothing_take_no_splits() {
    for (kernel, target) in [
        ("mma/m128n64-w4x1-s2-b1-qsh-xor-cond-gqa", Target::Sm80),
        ("wgmma/m128n64-s2-free-spec", Target::Sm90a),
    ] {
        let problem = Problem::builder()
            .batch(2)
            .heads(2, 2)
            .head_dim(64)
            .seq_len_q(128)
            .seq_len_kv(64)
            .mask(Mask::window(Some(8), Some(0)).top_left())
            .kv_lengths(KvLengths::Cache)
            .batch_invariant(64);
        let plan = Plan::new(&problem.build().unwrap(), &kernel.parse().unwrap(), target).unwrap();
        assert_eq!(plan.schedule_steps(), 1, "{kernel}");
        let report = check_plan(&plan, &CheckOptions::default()).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{kernel}\n{report}");
    }
}
