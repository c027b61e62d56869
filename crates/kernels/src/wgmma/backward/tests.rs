//! What the backward pass refuses, and the problems that it is the default of.

use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, Layout, Mask, ProblemBuilder, QLengths};

use super::scheduler::q_tiles;
use super::*;
use crate::attention::block_range::Band;
use crate::attention::gradients::tile_of;
use crate::{Plan, select};

fn builder() -> ProblemBuilder {
    Problem::builder().heads(4, 2).seq_len(300).head_dim(128)
}

fn refusal(builder: ProblemBuilder, id: &str, target: Target) -> String {
    let problem = builder.build().unwrap().backward().unwrap();
    match Plan::new(&problem, &id.parse().unwrap(), target) {
        Ok(_) => "served".to_string(),
        Err(refusal) => refusal.to_string(),
    }
}

/// Each refusal with a remedy: the texts, for review.
#[test]
fn refusals() {
    let usual = "wgmma/m64n128-s2-pingpong";
    let repeated = |shape: [usize; 4]| Layout {
        shape,
        strides: [0, 128, 300 * 128, 1],
    };
    let whole = Layout::bshd([2, 300, 4, 128]);
    let mut text = String::new();
    for (name, builder, id, target) in [
        ("not Hopper", builder(), usual, Target::Sm89),
        ("f32", builder().dtype(DType::F32), usual, Target::Sm90a),
        ("soft cap", builder().softcap(30.0), usual, Target::Sm90a),
        (
            "repeated rows",
            builder()
                .batch(2)
                .layouts(whole, repeated([2, 300, 2, 128]), repeated([2, 300, 2, 128]), whole),
            usual,
            Target::Sm90a,
        ),
        (
            "rescale",
            builder().head_dim(64),
            "wgmma/m128n128-s2-pingpong-spec",
            Target::Sm90a,
        ),
        ("pingpong", builder(), "wgmma/m64n128-s2-free", Target::Sm90a),
        (
            "pingpong of one warpgroup",
            builder().head_dim(64),
            "wgmma/m64n64-s2-pingpong",
            Target::Sm90a,
        ),
        ("rows", builder(), "wgmma/m192n128-s2-pingpong", Target::Sm90a),
        ("cols", builder(), "wgmma/m64n176-s2-pingpong", Target::Sm90a),
        ("rows for cols", builder(), "wgmma/m128n128-s2-pingpong", Target::Sm90a),
        ("rows for head_dim", builder().head_dim(64), usual, Target::Sm90a),
        ("cols for head_dim", builder(), "wgmma/m64n64-s2-free", Target::Sm90a),
        ("cluster", builder(), "wgmma/m64n128-s2-c2-pingpong", Target::Sm90a),
        (
            "cluster for head_dim",
            builder().head_dim(256),
            "wgmma/m64n64-s2-free",
            Target::Sm90a,
        ),
        (
            "shared products",
            builder().head_dim(256),
            "wgmma/m64n128-s2-c2-free",
            Target::Sm90a,
        ),
        (
            "rows of shared products",
            builder().head_dim(192),
            "wgmma/m128n64-s2-c2-free",
            Target::Sm90a,
        ),
        ("shared memory", builder(), "wgmma/m64n128-s4-pingpong", Target::Sm90a),
        (
            "splits in order",
            builder().deterministic(true),
            "wgmma/m64n128-s2-pingpong-k4",
            Target::Sm90a,
        ),
        ("splits", builder(), "wgmma/m64n128-s2-pingpong-k129", Target::Sm90a),
    ] {
        text += &format!("{name}: {}\n", refusal(builder, id, target));
    }
    let forward = Plan::new(&builder().build().unwrap(), &usual.parse().unwrap(), Target::Sm90a);
    text += &format!("forward: {}\n", forward.unwrap_err());
    insta::assert_snapshot!(text);
}

/// The default where it serves; elsewhere family `mma`, after a refusal that says why.
#[test]
fn selected_on_hopper() {
    let chosen = |builder: ProblemBuilder, target| {
        let problem = builder.build().unwrap().backward().unwrap();
        let choice = select(&problem, target, 16, &KernelCache::default()).unwrap();
        let refusals = choice.considered.iter().filter_map(|one| one.refusal.as_ref());
        (
            choice.plan.config.to_string(),
            refusals.map(Refusal::to_string).collect::<Vec<_>>(),
        )
    };
    for (head_dim, id) in [
        (64, "wgmma/m128n128-s2-pingpong"),
        (96, "wgmma/m64n128-s2-pingpong"),
        (128, "wgmma/m64n128-s2-pingpong"),
        (192, "wgmma/m64n64-s2-c2-free"),
        (256, "wgmma/m64n64-s2-c2-free"),
    ] {
        let builder = builder().head_dim(head_dim).mask(Mask::CAUSAL).batch(64);
        let packed = QLengths::Packed {
            total: 300 * 64,
            used: false,
        };
        for other in [builder.clone().deterministic(true), builder.clone().q_lengths(packed)] {
            assert_eq!(chosen(other, Target::Sm90a), (id.to_string(), Vec::new()));
        }
        assert_eq!(chosen(builder.clone(), Target::Sm90a), (id.to_string(), Vec::new()));
        assert!(chosen(builder, Target::Sm89).0.starts_with("mma/"));
    }
    let (id, refusals) = chosen(builder().softcap(30.0), Target::Sm90a);
    assert!(
        id.starts_with("mma/") && refusals[0].contains("soft cap"),
        "{id}: {refusals:?}"
    );
}

/// Blocks share tiles where these leave SMs idle: where there are few, or few in the last wave; more of them where
/// tiles differ in their work. Not where a tile has little work.
#[test]
fn few_tiles_are_shared() {
    let splits = |builder: ProblemBuilder| {
        let problem = builder.build().unwrap().backward().unwrap();
        let target = Target::Sm90a;
        let choice = select(&problem, target, 16, &KernelCache::default()).unwrap();
        match choice.plan.config {
            crate::Config::Wgmma(config) => config.splits,
            _ => 0,
        }
    };
    let of = |heads, kv_heads, seq, mask| builder().heads(heads, kv_heads).seq_len(seq).mask(mask);
    let causal = Mask::CAUSAL;
    for (builder, expected) in [
        (of(32, 1, 4096, Mask::FULL), 4),
        (of(32, 1, 4096, causal), 8),
        (of(32, 4, 2048, Mask::FULL), 2),
        (of(32, 4, 2048, causal), 4),
        (of(8, 1, 2048, causal).head_dim(256), 8),
        (of(32, 8, 1024, causal), 3),
        (of(8, 8, 1024, causal), 2),
        // More tiles than SMs, with few in the second wave; as many as SMs.
        (of(32, 4, 4608, Mask::FULL), 8),
        (of(33, 33, 512, causal), 1),
        (of(32, 8, 2048, Mask::FULL), 1),
        (of(32, 8, 8192, causal), 1),
        (of(4, 4, 300, causal), 1),
        (of(32, 1, 4096, causal).deterministic(true), 1),
    ] {
        let text = format!("{builder:?}");
        assert_eq!(splits(builder), expected, "{text}");
    }
}

/// Heads whose tiles run at the same time: only where tiles differ, and as many as the L2 cache holds.
#[test]
fn heads_run_together_where_tiles_differ() {
    let heads = |seq, mask| {
        let problem = builder().seq_len(seq).mask(mask).build().unwrap().backward().unwrap();
        heads_at_once(&problem, problem.head_dim() as u32)
    };
    assert_eq!(heads(1024, Mask::FULL), 1);
    assert_eq!([512, 4096, 16_384].map(|seq| heads(seq, Mask::CAUSAL)), [8, 4, 1]);
    assert_eq!(heads(1024, Mask::window(Some(100), None)), 8);
    assert_eq!(heads(1024, Mask::window(Some(5000), Some(5000))), 1);
    let packed = QLengths::Packed {
        total: 16_384,
        used: false,
    };
    let packed = builder().batch(9).seq_len(3446).mask(Mask::CAUSAL).q_lengths(packed);
    let of_packed = |builder: ProblemBuilder| heads_at_once(&builder.build().unwrap().backward().unwrap(), 128);
    assert_eq!([packed.clone(), packed.deterministic(true)].map(of_packed), [8, 4]);
    let problem = builder().seq_len(1024).deterministic(true).build().unwrap();
    assert_eq!(heads_at_once(&problem.backward().unwrap(), 128), 16);
}

/// The plan of a problem with so many heads, of head_dim 64.
fn plan_of_heads(heads: usize, seq_len: usize) -> Plan {
    let problem = Problem::builder().heads(heads, heads).seq_len(seq_len).head_dim(64);
    let problem = problem.build().unwrap().backward().unwrap();
    Plan::new(&problem, &"wgmma/m128n128-s2-pingpong".parse().unwrap(), Target::Sm90a).unwrap()
}

/// Blocks prepare statistics of later heads where there are any, and sequences are short.
#[test]
fn later_heads_are_prepared_ahead() {
    let is_ahead = |heads, seq_len| plan_of_heads(heads, seq_len).main.kernel.name().contains("ahead");
    // 132 SMs run the four tiles of 33 heads at a time.
    assert_eq!([34, 35].map(|heads| is_ahead(heads, 512)), [false, true]);
    assert_eq!([2048, 2049].map(|seq_len| is_ahead(64, seq_len)), [true, false]);
    // As the cost model asks, whose card has an SM for each block.
    assert_eq!(ahead::heads_ahead(1, 8, u32::MAX, 64), None);
}

/// Bulk copies of statistics, and sums of dQ, read and add to what threads of other blocks have stored: a thread that
/// has waited for them needs a fence between the proxies. The simulator does not tell proxies of global memory apart.
#[test]
fn what_waits_for_prepared_rows_fences_the_proxies() {
    let ptx = plan_of_heads(64, 512).main.kernel.to_ptx();
    let of_bulk = |line: &&str| line.contains("cp.async.bulk.shared") || line.contains("cp.reduce.async.bulk");
    let mut waits = 0;
    for after in ptx.split("ld.acquire").skip(1) {
        let first_bulk = after.lines().position(|line| of_bulk(&line)).unwrap_or(usize::MAX);
        let fence = after.lines().position(|line| line.contains("fence.proxy.async.global"));
        if let Some(fence) = fence {
            assert!(fence < first_bulk, "{after}");
            waits += 1;
        }
    }
    // The thread that copies, and those that send dQ.
    assert_eq!(waits, 2);
}

/// In order: the blocks that add to a tile of dQ form a chain, in which each one waits for the block of the next tile
/// of keys. That one has a smaller number, so it has started before: blocks cannot wait for each other for ever,
/// however many run at the same time.
#[test]
fn each_block_waits_only_for_one_that_has_started() {
    let mut rng = Rng::new(11);
    for _ in 0..2000 {
        let [rows, cols] = [[64, 64], [64, 128], [128, 128]][rng.below(3)];
        let (queries, longest, heads) = (
            rng.between(1, 900) as i64,
            rng.between(1, 900) as i64,
            rng.between(1, 5) as i64,
        );
        let tiles = (longest as u64).div_ceil(u64::from(cols)) as i64;
        let at_once = rng.between(1, 6) as i64;
        // Of a sequence that may be shorter than the longest one.
        let keys = longest - rng.below(longest as usize) as i64;
        let (lo, hi) = (rng.below(1200) as i64 - 1000, rng.below(1200) as i64 - 200);
        let (lo, hi) = (
            if rng.chance(0.4) { -10_000 } else { lo.min(hi) },
            if rng.chance(0.3) { 10_000 } else { hi },
        );
        let seen_by = Band { lo, hi, len: keys }.inverse(queries);
        let mut number_of = vec![vec![None; tiles as usize]; heads as usize];
        for number in 0..heads * tiles {
            let (head, index) = tile_of(number, [tiles, heads, at_once], true, [&i64::div_euclid; 2]);
            let place = &mut number_of[head as usize][index as usize];
            assert_eq!(place.replace(number), None, "each tile once");
        }
        let walk = |index: i64| {
            let first = index * i64::from(cols);
            let (range, next_first) = q_tiles(&seen_by, first, keys, [rows, cols]);
            let walk = range.first..range.end.max(range.first);
            if first < keys { (walk, next_first) } else { (0..0, 0) }
        };
        for number_of in number_of {
            for index in 0..tiles {
                let (tile, next_first) = walk(index);
                for m_block in tile {
                    let later = (index + 1..tiles).filter(|&later| walk(later).0.contains(&m_block));
                    let later: Vec<i64> = later.collect();
                    let waits = m_block >= next_first;
                    // It waits for the next one where any comes before it, and only there.
                    assert_eq!(later.first(), waits.then_some(&(index + 1)));
                    assert!(later.iter().all(|&l| number_of[l as usize] < number_of[index as usize]));
                }
            }
        }
    }
}
