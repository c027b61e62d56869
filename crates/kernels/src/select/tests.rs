//! Choices, and what is told of those that were passed over.

use super::*;
use flashcore_ir::Target;
use flashcore_problem::{DType, KvLengths, Mask, QLengths};

#[test]
fn a_reason_of_many_configs_is_said_once() {
    let problem = Problem::named("small").unwrap();
    let none = select(&problem, Target::Sm75, 16, &KernelCache::default()).unwrap_err();
    let said = none.to_string();
    assert_eq!(said.matches("sm_75 is not supported").count(), 1, "{said}");
    assert!(said.contains(" more: sm_75 is not supported"), "{said}");
    assert!(none.considered.len() > 3);
}

#[test]
fn what_the_compiler_refuses_is_passed_over_and_told() {
    let problem = Problem::named("small").unwrap();
    let kernels = KernelCache::default();
    let first = select(&problem, Target::Sm90a, 16, &kernels).unwrap();
    let refusal = Refusal::Compiler {
        message: "it spills".to_string(),
    };
    let judge = |plan: &Plan| {
        let refused = plan.config == first.plan.config;
        Ok::<_, Infallible>(if refused { Err(refusal.clone()) } else { Ok(()) })
    };
    let Ok(selected) = select_with(&problem, Target::Sm90a, 16, &[], &kernels, judge);
    let (choice, ()) = selected.unwrap();
    assert_ne!(choice.plan.config, first.plan.config);
    assert_eq!(choice.considered[0].refusal, Some(refusal));
}

#[test]
fn suggestions_that_are_refused_are_passed_over_and_told() {
    let problem = Problem::named("small").unwrap();
    let suggest = |id: &str| Suggestion {
        config: id.parse().unwrap(),
        why: format!("{id} was measured"),
    };
    let suggestions = [
        suggest("wgmma/m192n256-s4-pingpong-spec"),
        suggest("mma/m64n64-w4x1-s2-b1-qreg-xor-cond"),
    ];
    let kernels = KernelCache::default();
    let choice = select_among(&problem, Target::Sm90a, 16, &suggestions, &kernels).unwrap();
    assert_eq!(
        (choice.plan.config, choice.suggestion),
        (suggestions[1].config, Some(1))
    );
    assert_eq!(choice.why, suggestions[1].why);
    assert_eq!(choice.considered[0].suggestion, Some(0));
    assert!(choice.considered[0].refusal.is_some());
    // On another architecture the second one serves too, the first has no instructions there.
    let ada = select_among(&problem, Target::Sm89, 16, &suggestions, &kernels).unwrap();
    assert_eq!(ada.suggestion, Some(1));
    // For slices of somebody else's tensors neither was measured.
    let slices = select_among(&problem, Target::Sm90a, 4, &suggestions, &kernels).unwrap();
    assert_eq!(slices.suggestion, None);
    let refusals: Vec<_> = slices.considered[..2].iter().map(|c| c.refusal.clone()).collect();
    let address = Refusal::Address { needed: 16, given: 4 };
    assert_eq!(refusals, [Some(address.clone()), Some(address)]);
}

#[test]
fn tensors_that_start_anywhere_are_served_by_the_scalar_family() {
    let problem = Problem::named("small").unwrap();
    let choice = select(&problem, Target::Sm90a, 2, &KernelCache::default()).unwrap();
    assert_eq!(choice.plan.config.family(), "scalar");
}

/// Lengths on the device: the first family that serves them, and why others do not.
#[test]
fn packed_and_paged_problems_go_to_mma_or_scalar() {
    let builder = || {
        Problem::builder()
            .batch(4)
            .heads(8, 2)
            .head_dim(64)
            .seq_len_q(30)
            .seq_len_kv(900)
    };
    let pages = KvLengths::Paged {
        page_size: 16,
        pages: 99,
        max_pages: 57,
    };
    let packed = QLengths::Packed { total: 60, used: false };
    for (dtype, family) in [(DType::BF16, "mma"), (DType::F32, "scalar")] {
        let problem = builder()
            .dtype(dtype)
            .q_lengths(packed)
            .kv_lengths(pages)
            .build()
            .unwrap();
        let choice = select(&problem, Target::Sm90a, 16, &KernelCache::default()).unwrap();
        assert_eq!(choice.plan.config.family(), family);
    }
    // As many sequences as a grid has room for in its last dimension, and one more; then bounds beyond any grid.
    let many = |batch, rows| {
        let builder = builder().batch(batch).seq_len_q(rows).seq_len_kv(100_000);
        let (q, pages) = (
            QLengths::Packed { total: 60, used: false },
            KvLengths::Paged {
                page_size: 2000,
                pages: 9,
                max_pages: 50,
            },
        );
        builder.q_lengths(q).kv_lengths(pages).build().unwrap()
    };
    let grid = |problem: &Problem, id: &str| {
        Plan::new(problem, &id.parse().unwrap(), Target::Sm80).map(|plan| plan.main.launch.grid)
    };
    let (mma, scalar) = ("mma/m16n32-w1x2-s2-b1-qreg-xor-cond-gqa", "scalar/tiled-m32n32-w4-v16");
    assert_eq!(grid(&many(32_768, 1), mma).unwrap(), [108, 1, 1]);
    for (id, batch, rows, blocks) in [
        (&mma[..mma.len() - 4], 1, 1 << 20, "a grid of [4, 65536, 2] blocks"),
        (mma, 1, 1 << 20, "1 sequences of up to 262144 by 3125 tiles"),
        (scalar, 1 << 13, 1 << 21, "a grid of [4294967296, 1, 1] blocks"),
    ] {
        let refusal = grid(&many(batch, rows), id).unwrap_err().to_string();
        assert!(refusal.contains(blocks), "{refusal}");
    }
}

/// Cards with 99 KB of shared memory, too, have a kernel with tensor cores for gradients of packed sequences.
#[test]
fn gradients_of_packed_sequences_go_to_mma_on_small_cards() {
    let kernels = KernelCache::default();
    for (head_dim, head_dim_v) in [(128, 128), (192, 128), (192, 192), (200, 200), (256, 64), (256, 256)] {
        for (softcap, deterministic) in [(false, false), (true, false), (false, true), (true, true)] {
            let problem = Problem::builder().batch(4).heads(8, 2).seq_len(300).head_dim(head_dim);
            let problem = problem.head_dim_v(head_dim_v).dtype(DType::BF16).mask(Mask::CAUSAL);
            let problem = problem.direction(Direction::Backward).deterministic(deterministic);
            let (total, used) = (700, false);
            let problem = problem.q_lengths(QLengths::Packed { total, used });
            let problem = problem.kv_lengths(KvLengths::Packed { total, used });
            let problem = if softcap { problem.softcap(30.0) } else { problem };
            let problem = problem.build().unwrap();
            let choice = select(&problem, Target::Sm89, 16, &kernels).unwrap();
            assert_eq!(choice.plan.config.family(), "mma", "{problem}: {}", choice.plan.config);
        }
    }
}

/// The kernel of a batch-invariant problem is that of one sequence, however many there are; where it cannot serve
/// them all, none does.
#[test]
fn batches_do_not_choose_invariant_kernels() {
    let kernel = |batch: usize, rows: usize, has_lengths: bool, split_keys: Option<usize>| {
        let mut builder = Problem::builder()
            .batch(batch)
            .heads(32, 8)
            .head_dim(128)
            .seq_len_q(rows)
            .seq_len_kv(4096)
            .dtype(DType::BF16);
        if has_lengths {
            let total = batch.max(rows);
            builder = builder
                .q_lengths(QLengths::Packed { total, used: false })
                .kv_lengths(KvLengths::Paged {
                    page_size: 16,
                    pages: 256,
                    max_pages: 256,
                });
        }
        if let Some(keys) = split_keys {
            builder = builder.batch_invariant(keys);
        }
        let choice = select(&builder.build().unwrap(), Target::Sm90a, 16, &KernelCache::default());
        choice.map(|choice| choice.plan.config.to_string())
    };
    let invariant = [
        (1, false),
        (1, true),
        (5, true),
        (100, false),
        (100, true),
        (2048, true),
    ];
    for (rows, has_lengths) in invariant {
        let of = |batch, split_keys| kernel(batch, rows, has_lengths, split_keys).unwrap();
        let one = of(1, Some(1024));
        let others = [2, 16, 64].map(|batch| of(batch, Some(1024)));
        assert!(others.iter().all(|id| *id == one));
        assert!(rows > 1 || has_lengths || one.contains("-k4"), "{one}");
        // Where the batch may choose, it does, unless blocks have a schedule.
        let follows = rows <= 5 && has_lengths || of(1, None) != of(64, None);
        assert!(follows, "{rows} rows");
    }
    let refusal = kernel(300, 1, true, Some(64)).unwrap_err();
    assert!(refusal.to_string().contains("153600 splits of 64 keys"), "{refusal}");
    assert_eq!(refusal.considered.len(), 1);
}

#[test]
fn a_kernel_is_refused_once() {
    let problem = Problem::builder().heads(1 << 17, 1).seq_len(1).head_dim(8);
    let choice = select(&problem.build().unwrap(), Target::Sm90a, 16, &KernelCache::default()).unwrap();
    let mut refused: Vec<_> = choice
        .considered
        .iter()
        .map(|refused| refused.config.to_string())
        .collect();
    refused.sort_unstable();
    assert!(
        refused.len() > 1 && refused.windows(2).all(|pair| pair[0] != pair[1]),
        "{refused:?}"
    );
}

/// Rows enough to fill tiles of a head go to wgmma, and what it does not serve to mma.
#[test]
fn packed_rows_and_caches_go_to_wgmma() {
    let builder = |rows: usize| {
        Problem::builder()
            .batch(16)
            .heads(32, 8)
            .head_dim(128)
            .seq_len_q(rows)
            .seq_len_kv(4096)
            .mask(flashcore_problem::Mask::CAUSAL)
            .dtype(DType::BF16)
    };
    let packed = |total| QLengths::Packed { total, used: false };
    let pages = |page_size| KvLengths::Paged {
        page_size,
        pages: 16 * 4096_usize.div_ceil(page_size),
        max_pages: 4096usize.div_ceil(page_size),
    };
    for (q, kv, family) in [
        (
            packed(32_768),
            KvLengths::Packed {
                total: 40_000,
                used: false,
            },
            "wgmma",
        ),
        (QLengths::Equal, KvLengths::Cache, "wgmma"),
        (packed(32_768), pages(16), "wgmma"),
        (packed(32_768), pages(4), "mma"),
        // A chunk of rows in a batch of decoding sequences, whose heads share tiles; and a few rows for each.
        (packed(512), pages(16), "wgmma"),
        (packed(128), pages(16), "wgmma/m128n128-s2-pingpong-spec-qreg-gqa"),
    ] {
        let problem = builder(4096).q_lengths(q).kv_lengths(kv).build().unwrap();
        let choice = select(&problem, Target::Sm90a, 16, &KernelCache::default()).unwrap();
        let id = choice.plan.config.to_string();
        assert!(id.starts_with(family), "{problem}: {id}");
        let packed_heads = id.contains("-gqa");
        let is_prompt = matches!(kv, KvLengths::Packed { .. });
        let few = [packed(128), packed(512)].contains(&q);
        assert_eq!(packed_heads, few || is_prompt, "{problem}");
    }
    // Chunks of as many rows each fill tiles of 128 rows: of a group of heads, or of one.
    for (rows, tile) in [
        (64, "wgmma/m128n128-s2-pingpong-spec-qreg-gqa"),
        (128, "wgmma/m128n128-s2-pingpong-spec-qreg"),
    ] {
        let problem = builder(rows)
            .q_lengths(packed(16 * rows))
            .kv_lengths(pages(64))
            .build()
            .unwrap();
        let choice = select(&problem, Target::Sm90a, 16, &KernelCache::default()).unwrap();
        assert_eq!(choice.plan.config.to_string(), tile, "{rows} rows");
    }
    let problem = builder(300)
        .q_lengths(packed(2000))
        .kv_lengths(pages(4))
        .build()
        .unwrap();
    let refuse = |id: &str| {
        let plan = Plan::new(&problem, &id.parse().unwrap(), Target::Sm90a);
        plan.unwrap_err().to_string()
    };
    assert_eq!(
        refuse("wgmma/m128n64-s2-pingpong-spec"),
        "wgmma does not serve pages of 4 keys (it copies 8 at a time, or more); family mma does"
    );
    // No other family serves e4m3: its keys are gathered.
    for (page_size, gathers) in [(4, true), (16, false)] {
        let problem = builder(300)
            .kv_lengths(pages(page_size))
            .dtype(DType::E4M3)
            .build()
            .unwrap();
        let choice = select(&problem, Target::Sm90a, 16, &KernelCache::default()).unwrap();
        assert_eq!(
            choice.why.contains("each call gathers K first"),
            gathers,
            "{}",
            choice.why
        );
    }
    let problem = builder(300).kv_lengths(pages(48)).build().unwrap();
    let refuse = |id: &str| {
        let plan = Plan::new(&problem, &id.parse().unwrap(), Target::Sm90a);
        plan.unwrap_err().to_string()
    };
    for (id, what) in [
        (
            "wgmma/m128n64-s2-c2-pingpong-spec",
            "neighbours may have different keys",
        ),
        ("wgmma/m128n64-s2-pingpong-spec-k2", "the schedule splits keys"),
    ] {
        assert!(refuse(id).contains(what), "{}", refuse(id));
    }
}
