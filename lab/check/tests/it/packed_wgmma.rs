//! Packed query heads in family `wgmma`: tiles of a few queries of all heads that share K and V.

use std::sync::Arc;

use flashcore_check::mutate::Operator;
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Arg, Chip, Table, Target};
use flashcore_kernels::{Config, KernelCache, Plan, Refusal, Tap, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, InputKind, KvLengths, Mask, Problem, ProblemBuilder, QLengths};

use crate::common::{assert_clean, number};
use crate::lengths::is_found_in_step;
use crate::splits::{assert_plan_clean, check};

/// Query heads per K/V head: those that fill 64 rows with a warp's boxes, with parts of a query in each, and those that
/// leave rows over.
const GROUPS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 32, 33, 48, 64];

/// On few SMs, so that a block has several tiles.
fn plan(problem: &Problem, kernel: &str) -> Plan {
    let chip = Chip {
        target: Target::Sm90a,
        sms: 2,
    };
    Plan::new(problem, &kernel.parse().unwrap(), chip).unwrap()
}

/// As many queries as a few tiles have, and not a multiple of them.
fn chunk(group: usize) -> ProblemBuilder {
    Problem::builder()
        .heads(2 * group, 2)
        .seq_len_q(3 * 128usize.div_ceil(group) / 2 + 1)
        .seq_len_kv(210)
        .head_dim(64)
        .mask(Mask::CAUSAL)
        .return_lse(true)
}

#[test]
fn every_number_of_heads_is_right() {
    for (i, group) in GROUPS.into_iter().enumerate() {
        let kernel = ["wgmma/m128n64-s2-pingpong-spec-gqa", "wgmma/m192n64-s2-free-cond-gqa"][i % 2];
        assert_plan_clean(&plan(&chunk(group).build().unwrap(), kernel));
    }
}

/// A problem and a config that serves it, drawn over groups, lengths, masks, head sizes and levers.
fn draw(rng: &mut Rng) -> Plan {
    let group = *rng.pick(&GROUPS).unwrap();
    let kv_heads = 1 + rng.below(2);
    let mask = match rng.below(4) {
        0 => Mask::FULL,
        1 => Mask::CAUSAL,
        2 => Mask::CAUSAL.top_left(),
        _ => Mask::window(Some(rng.below(90) as u32), Some(rng.below(20) as u32)),
    };
    let builder = Problem::builder()
        .heads(group * kv_heads, kv_heads)
        .seq_len_q(1 + rng.below((400 / group).clamp(9, 150)))
        .seq_len_kv(1 + rng.below(300))
        .head_dim(*rng.pick(&[40, 64, 80, 128, 256]).unwrap())
        .dtype(*rng.pick(&[DType::F16, DType::BF16]).unwrap())
        .mask(mask)
        .return_lse(rng.chance(0.5));
    let builder = if rng.chance(0.3) {
        builder.softcap(20.0)
    } else {
        builder
    };
    let problem = builder.build().unwrap();
    let sms = 1 + rng.below(3) as u32;
    let chip = Chip {
        target: Target::Sm90a,
        sms,
    };
    let mut drawn = (0..2000).map(|_| {
        let config = wgmma::Config {
            pack_heads: true,
            ..wgmma::FAMILY.sample(rng).into()
        };
        Plan::new(&problem, &Config::Wgmma(config), chip)
    });
    let fits = |plan: &Result<Plan, Refusal>| match plan {
        Ok(_) => true,
        Err(
            Refusal::Registers { .. }
            | Refusal::SharedMemory { .. }
            | Refusal::Lever {
                lever: "min_blocks", ..
            },
        ) => false,
        Err(other) => panic!("{problem}: {other}"),
    };
    drawn.find(fits).unwrap().unwrap()
}

#[test]
fn random_problems_equal_float64() {
    let first = number("FLASHCORE_SEED", 100);
    for seed in first..first + number("FLASHCORE_PROBLEMS", 24) {
        let mut rng = Rng::new(seed);
        let plan = draw(&mut rng);
        let inputs = match seed % 4 {
            0 => *rng.pick(&InputKind::ALL[1..]).unwrap(),
            _ => InputKind::Normal,
        };
        assert_clean(&plan, seed, inputs);
    }
}

#[test]
fn splits_taps_and_e4m3_are_right() {
    for (group, kernel) in [
        (4, "wgmma/m128n64-s2-pingpong-spec-gqa-k3"),
        (5, "wgmma/m64n64-s2-free-cond-qreg-gqa-k2"),
        (7, "wgmma/m128n48-s3-c2-pingpong-cond-gqa-k5"),
    ] {
        assert_plan_clean(&plan(&chunk(group).build().unwrap(), kernel));
    }
    for group in [5, 8] {
        let e4m3 = chunk(group).dtype(DType::E4M3).build().unwrap();
        assert_plan_clean(&plan(&e4m3, "wgmma/m128n64-s2-pingpong-spec-gqa"));
        let problem = chunk(group).return_lse(false).build().unwrap();
        let config = "wgmma/m128n64-s2-pingpong-spec-gqa".parse().unwrap();
        for tap in Tap::ALL {
            let plan = Plan::with_tap(&problem, &config, Target::Sm90a, tap).unwrap();
            assert_plan_clean(&plan);
        }
    }
}

/// Where that saves a round of tiles, whole queries share a tile, and a query's heads may be in two warpgroups.
#[test]
fn heads_of_a_query_in_two_warpgroups_are_right() {
    for (group, queries, mask, sms, kernel) in [
        (5, 50, Mask::FULL, 2, "wgmma/m128n64-s2-pingpong-spec-gqa"),
        (5, 76, Mask::FULL, 2, "wgmma/m192n64-s2-pingpong-spec-qreg-gqa"),
        (5, 50, Mask::FULL, 4, "wgmma/m128n64-s2-free-cond-gqa-k2"),
        (6, 32, Mask::CAUSAL, 2, "wgmma/m192n64-s3-pingpong-cond-gqa"),
        (3, 64, Mask::CAUSAL, 2, "wgmma/m192n48-s2-pingpong-spec-qreg-gqa"),
        (10, 38, Mask::CAUSAL, 4, "wgmma/m192n64-s2-pingpong-spec-gqa"),
        (33, 5, Mask::FULL, 2, "wgmma/m192n64-s2-free-spec-gqa"),
        // Queries past the last, and warpgroups without rows.
        (48, 10, Mask::FULL, 2, "wgmma/m192n64-s2-pingpong-spec-gqa"),
        (33, 7, Mask::FULL, 2, "wgmma/m128n64-s2-pingpong-spec-gqa"),
        (5, 253, Mask::FULL, 7, "wgmma/m192n64-s2-pingpong-spec-qreg-gqa"),
    ] {
        let chip = Chip {
            target: Target::Sm90a,
            sms,
        };
        for head_dim in [64, 80, 128] {
            let problem = chunk(group).seq_len_q(queries).head_dim(head_dim).mask(mask);
            let plan = Plan::new(&problem.build().unwrap(), &kernel.parse().unwrap(), chip).unwrap();
            assert!(plan.main.kernel.name().contains(&format!("_g{group}t")), "{kernel}");
            assert_plan_clean(&plan);
        }
    }
}

/// The head of a work item is the first of those that it is for; the next one is a neighbour's in all rows but the
/// last.
#[test]
fn the_head_of_a_neighbour_is_found() {
    for (group, kernel) in [
        (4, "wgmma/m128n64-s2-pingpong-spec-gqa"),
        (5, "wgmma/m128n64-s2-pingpong-spec-gqa-k2"),
    ] {
        let whole = plan(&chunk(group).build().unwrap(), kernel);
        assert_eq!(check(&whole, 1).verdict, Verdict::Clean);
        let mut wrong = whole.clone();
        for arg in &mut wrong.main.launch.args {
            if let Arg::Table(table) = arg {
                let mut words = table.to_vec();
                // Of the second word of an item, the low half is the head.
                let items = words
                    .chunks_mut(8)
                    .filter(|item| item[0] != u32::MAX && item[1] & 0xffff == 0);
                items.for_each(|item| item[1] += 1);
                *table = Table::new(words);
            }
        }
        assert_ne!(check(&wrong, 1).verdict, Verdict::Clean, "{kernel}");
    }
}

#[test]
fn more_heads_than_rows_are_refused_and_kernels_go_by_their_number() {
    let kernels = KernelCache::default();
    let of = |group: usize, kernel: &str| {
        let problem = Problem::builder()
            .heads(group, 1)
            .seq_len_q(9)
            .seq_len_kv(100)
            .head_dim(64);
        Plan::with_cache(
            &problem.build().unwrap(),
            &kernel.parse().unwrap(),
            Target::Sm90a,
            &kernels,
        )
    };
    let packed = "wgmma/m64n64-s2-free-spec-gqa";
    let refused = of(65, packed).unwrap_err().to_string();
    let expected = "wgmma does not serve 65 packed heads: a warpgroup has 64 rows; leave out -gqa";
    assert_eq!(refused, expected);
    let kernel = |group, kernel| of(group, kernel).unwrap().main.kernel;
    assert!(Arc::ptr_eq(&kernel(4, packed), &kernel(4, packed)));
    assert!(!Arc::ptr_eq(&kernel(4, packed), &kernel(5, packed)));
    assert!(kernel(5, packed).name().ends_with("_g5"));
    let whole = "wgmma/m64n64-s2-free-spec";
    assert!(Arc::ptr_eq(&kernel(4, whole), &kernel(5, whole)));
}

const PACKED: KvLengths = KvLengths::Packed { total: 400, used: true };
const PAGED: KvLengths = KvLengths::Paged {
    page_size: 16,
    pages: 60,
    max_pages: 14,
};

/// Sequences of up to as many queries as a tile and a part of one have, on so few SMs that tiles are cut.
fn ragged(group: usize, packed_q: bool, kv_lengths: KvLengths, kernel: &str) -> Plan {
    let rows = 128 / group + 128usize.div_ceil(2 * group);
    let problem = chunk(group).batch(3).head_dim(32).seq_len_q(rows);
    let problem = if packed_q {
        problem.q_lengths(QLengths::Packed {
            total: 2 * rows + 1,
            used: true,
        })
    } else {
        problem
    };
    let chip = Chip {
        target: Target::Sm90a,
        sms: 5,
    };
    let problem = problem.kv_lengths(kv_lengths).build().unwrap();
    Plan::new(&problem, &kernel.parse().unwrap(), chip).unwrap()
}

#[test]
fn lengths_on_the_device_are_right() {
    let kernels = [
        "wgmma/m128n64-s2-pingpong-spec-gqa",
        "wgmma/m64n32-s2-free-cond-qreg-gqa",
    ];
    for (i, group) in GROUPS.into_iter().enumerate() {
        let kv_lengths = [PACKED, PAGED, KvLengths::Cache][i % 3];
        let plan = ragged(group, i % 4 != 3, kv_lengths, kernels[i % 2]);
        for seed in 0..2 {
            let options = CheckOptions {
                seed: seed + 2 * i as u64,
                ..CheckOptions::default()
            };
            let report = check_plan(&plan, &options).unwrap();
            assert_eq!(report.verdict, Verdict::Clean, "{group} heads\n{report}");
        }
    }
}

/// Mistakes with lengths on the device: heads that are packed, the step, what breaks, and where.
#[rustfmt::skip]
const PLANTED: [(&str, usize, usize, Operator, &str); 8] = [
    ("the first row of the next sequence", 5, 1, Operator::NextAccess, "cu_seqlens_q"),
    ("a box of Q from the next row on", 5, 1, Operator::RowOff, "self.q.tile.load_tma"),
    ("a box of Q of the next head", 4, 1, Operator::HeadOff, "self.q.tile.load_tma"),
    ("rows stored as those of the next head", 8, 1, Operator::HeadOff, "out_tile.store_tma_part"),
    ("dead rows that are not zero", 5, 1, Operator::DropStore, "q_tile"),
    ("tiles of the rows that fill no warpgroup left out", 5, 0, Operator::DropAddend, "self.rows_of(&params"),
    ("dead rows merged", 5, 2, Operator::DropRemainder, "rows.is_query(row)"),
    ("rows of the first warpgroup merged alone", 3, 2, Operator::DropAddend, "merged.store(rows.of(&out, row)"),
];

#[test]
fn mistakes_with_lengths_are_found() {
    for (name, group, step, operator, place) in PLANTED {
        let plan = ragged(group, true, PAGED, "wgmma/m128n64-s2-free-cond-gqa");
        is_found_in_step(name, &plan, step, operator, place);
    }
}
