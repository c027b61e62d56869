//! Attention on the host against the float64 reference.

use flashcore_cpu::{CpuConfig, Options, SimdLevel};
use flashcore_problem::{
    DType, InputKind, Inputs, KvLengths, MAX_SOFTMAX_SCALE, Mask, POISON, Problem, SOFTCAPS, Tensor, Tolerance,
    compare, compare_lse, others_untouched, reference, reference_rows,
};
use flashcore_testkit::{RandomLimits, random_problem};

use crate::attention;

fn compute(options: &Options<'_>, problem: &Problem, inputs: &Inputs) -> (Tensor, Vec<f32>) {
    attention(options, problem, inputs).unwrap()
}

/// Computes a problem and compares all outputs with the reference.
fn assert_right(options: &Options<'_>, problem: &Problem, kind: InputKind, seed: u64) {
    let inputs = Inputs::generate(problem, kind, seed);
    let (out, lse) = compute(options, problem, &inputs);
    let lengths = inputs.lengths.as_slices();
    let rows = problem.query_rows(&lengths).unwrap();
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let mut want = reference_rows(problem, &q, &k, &v, &lengths, &rows).unwrap();
    // The limit of GPUs is none on the host: a row is right if its largest score is finite in f32.
    for row in &mut want {
        if row.largest_score.abs() * std::f64::consts::LN_2 < f64::from(f32::MAX) {
            row.largest_score = 0.0;
        }
    }
    others_untouched(&out.view(), rows.iter().copied())
        .unwrap_or_else(|written| panic!("seed {seed}, {problem}: {written}"));
    if rows.is_empty() {
        return;
    }
    let tolerance = Tolerance::of(problem.dtype());
    let found = compare(problem, &out.view(), &want, tolerance).unwrap();
    assert!(found.passed, "seed {seed}, {kind}, {problem}: {found}");
    if problem.return_lse() {
        let found = compare_lse(problem, &lse, &want, Tolerance::of(DType::F32)).unwrap();
        assert!(found.passed, "seed {seed}, {kind}, lse of {problem}: {found}");
    }
}

fn limits() -> RandomLimits {
    RandomLimits {
        max_work: 30_000_000,
        head_dim_v: true,
        ..RandomLimits::default()
    }
}

/// Scores up to the end of f32 are right, in tiles, in decoding and in split ranges of keys. Past it rows are NaN.
#[test]
fn scores_up_to_the_end_of_f32() {
    for seed in 0..60 {
        let dtype = DType::ALL[seed as usize % 4];
        let problem = Problem::builder().dtype(dtype).head_dim(64).return_lse(true);
        let problem = match seed % 3 {
            0 => problem.heads(2, 2).seq_len(70).mask(Mask::CAUSAL),
            1 => problem.heads(4, 1).seq_len_q(1).seq_len_kv(300),
            _ => problem.heads(4, 1).seq_len_q(1).seq_len_kv(4096),
        };
        assert_right(&Options::default(), &problem.build().unwrap(), InputKind::OneHot, seed);
    }
}

#[test]
fn random_problems() {
    for seed in 0..210 {
        let problem = random_problem(seed, &limits()).unwrap();
        assert_right(&Options::default(), &problem, InputKind::Normal, seed);
    }
}

/// Up to the limits that a problem may state.
#[test]
fn extreme_scales_and_soft_caps() {
    let scales = [1e-45, 1e-6, 1e3, MAX_SOFTMAX_SCALE].map(|scale| (scale, None));
    let caps = [*SOFTCAPS.start(), 1e-3, 30.0, *SOFTCAPS.end()];
    let caps = caps.map(|cap| [(0.125, Some(cap)), (MAX_SOFTMAX_SCALE, Some(cap))]);
    for (scale, cap) in scales.into_iter().chain(caps.into_iter().flatten()) {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            for head_dim in [16, 256] {
                let mut builder = Problem::builder()
                    .heads(2, 1)
                    .seq_len(96)
                    .head_dim(head_dim)
                    .dtype(dtype);
                if let Some(cap) = cap {
                    builder = builder.softcap(cap);
                }
                let problem = builder.softmax_scale(scale).return_lse(true).build().unwrap();
                // Inputs made for a score grow as the scale shrinks, beyond what the dtypes hold.
                let is_made_for_scores = |kind| {
                    matches!(
                        kind,
                        InputKind::HugeLogit | InputKind::RisingScores | InputKind::NegativeScores
                    )
                };
                let kinds = InputKind::ALL.into_iter();
                for kind in kinds.filter(|&kind| scale > 1e-3 || !is_made_for_scores(kind)) {
                    assert_right(&Options::default(), &problem, kind, 7);
                }
            }
        }
    }
}

/// Scores in the thousands: what rounding them to f32 adds is allowed, a lost value is not.
#[test]
fn large_scales_over_long_rows() {
    let build = |dtype, scale| {
        Problem::builder()
            .head_dim(64)
            .heads(4, 4)
            .seq_len(512)
            .dtype(dtype)
            .softmax_scale(scale)
            .build()
    };
    let (single, half) = (DType::F32, DType::F16);
    let problems = [
        (single, 1e3),
        (single, 1e4),
        (half, 3e3),
        (half, 1e4),
        (DType::BF16, 1e4),
        (DType::E4M3, 1e5),
    ];
    for (dtype, scale) in problems {
        for seed in 0..6 {
            assert_right(
                &Options::default(),
                &build(dtype, scale).unwrap(),
                InputKind::Normal,
                seed,
            );
        }
    }

    let problem = build(single, 1e3).unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let (out, _) = compute(&Options::default(), &problem, &inputs);
    let lost = Tensor::from_fn(
        single,
        *v.layout(),
        |b, s, h, d| if s == 511 { 0.0 } else { v.get(b, s, h, d) },
    );
    let want = reference(&problem, &q, &k, &lost.view()).unwrap();
    let found = compare(&problem, &out.view(), &want, Tolerance::of(single)).unwrap();
    assert!(!found.passed && found.of_allowed > 2.0, "{found}");
}

#[test]
fn fp8_with_scales() {
    for seed in 0..42 {
        let limits = RandomLimits {
            dtypes: &[DType::E4M3],
            max_work: 8_000_000,
            ..limits()
        };
        let problem = random_problem(seed, &limits).unwrap();
        assert_right(&Options::default(), &problem, InputKind::ALL[seed as usize / 6], seed);
    }
}

#[test]
fn adversarial_inputs() {
    for seed in 1000..1028 {
        let problem = random_problem(seed, &limits()).unwrap();
        let kind = InputKind::ALL[seed as usize % InputKind::ALL.len()];
        assert_right(&Options::default(), &problem, kind, seed);
    }
}

#[test]
fn every_simd_level_and_odd_tiles() {
    let limits = RandomLimits {
        max_work: 5_000_000,
        ..limits()
    };
    for level in SimdLevel::available() {
        for seed in 2000..2028 {
            let problem = random_problem(seed, &limits).unwrap();
            let options = Options {
                config: Some(CpuConfig {
                    tile_q: 16 * (1 + seed as usize % 9),
                    tile_kv: 4 * (1 + seed as usize % 37),
                }),
                simd: Some(level),
                pool: None,
            };
            assert_right(&options, &problem, InputKind::Normal, seed);
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_or_query_tiles() {
    let pools = [1, 2, 5].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap());
    for seed in 3000..3014 {
        let problem = random_problem(seed, &limits()).unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, seed);
        let mut answers = Vec::new();
        for (pool, tile_q) in pools.iter().zip([16, 64, 208]) {
            let options = Options {
                config: Some(CpuConfig { tile_q, tile_kv: 64 }),
                pool: Some(pool),
                simd: None,
            };
            let (out, lse) = compute(&options, &problem, &inputs);
            let bits: Vec<u32> = lse.iter().map(|x| x.to_bits()).collect();
            answers.push((out.bytes().to_vec(), bits));
        }
        assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{problem}");
    }
}

/// Decode, whose keys are split: over grouped heads, in every dtype and over pages, with masks that
/// end inside a range of keys.
#[test]
fn split_keys_are_right_and_do_not_depend_on_threads() {
    let pools = [1, 2, 3, 16].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap());
    let build = |seed: usize| {
        let (group, rows, head_dim) = ([1, 4, 3, 8][seed % 4], 1 + seed % 3, [128, 72, 64][seed % 3]);
        let builder = Problem::builder().batch(2).heads(2 * group, 2).head_dim(head_dim);
        let builder = builder.seq_len_q(rows).seq_len_kv(1100 + 37 * seed).mask(Mask::CAUSAL);
        let dtypes = [DType::F32, DType::F16, DType::BF16];
        let builder = builder.dtype(dtypes[seed % 3]).return_lse(true);
        match seed % 2 {
            0 => builder.build(),
            _ => builder
                .kv_lengths(KvLengths::Paged {
                    page_size: 16,
                    pages: 400,
                    max_pages: 120,
                })
                .build(),
        }
    };
    for seed in 0..8 {
        let problem = build(seed).unwrap();
        let options = Options::default();
        assert_right(&options, &problem, InputKind::Normal, seed as u64);
        let inputs = Inputs::generate(&problem, InputKind::Normal, seed as u64);
        let (out, lse) = compute(&options, &problem, &inputs);
        for pool in &pools {
            let options = Options {
                pool: Some(pool),
                ..Options::default()
            };
            let (again, of_rows) = compute(&options, &problem, &inputs);
            assert_eq!(out.bytes(), again.bytes(), "{problem}");
            assert!(
                lse.iter().zip(&of_rows).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{problem}"
            );
        }
    }
}

/// Every combination of packed, cached and paged lengths, with NaN past every end.
#[test]
fn random_lengths() {
    let limits = RandomLimits {
        lengths: true,
        max_work: 10_000_000,
        ..limits()
    };
    for seed in 0..105 {
        let problem = random_problem(seed, &limits).unwrap();
        assert_right(&Options::default(), &problem, InputKind::Normal, seed);
    }
}

#[test]
fn one_row_against_many_keys() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let problem = Problem::builder()
            .head_dim(64)
            .batch(2)
            .heads(8, 2)
            .seq_len_q(1)
            .seq_len_kv(1500)
            .dtype(dtype)
            .mask(Mask::CAUSAL)
            .return_lse(true)
            .build()
            .unwrap();
        assert_right(&Options::default(), &problem, InputKind::Normal, 5);
    }
}

#[test]
fn fully_masked_rows() {
    let problem = Problem::builder()
        .heads(1, 1)
        .head_dim(64)
        .seq_len_q(100)
        .seq_len_kv(30)
        .mask(Mask::CAUSAL)
        .return_lse(true)
        .build()
        .unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let (out, lse) = compute(&Options::default(), &problem, &inputs);
    for (row, &lse) in lse[..70].iter().enumerate() {
        assert_eq!(lse, f32::NEG_INFINITY);
        assert!((0..64).all(|d| out.view().get(0, row, 0, d) == 0.0));
    }
    assert!(lse[70].is_finite());
    assert_right(&Options::default(), &problem, InputKind::Normal, 1);
    // Every row is fully masked.
    let nothing = Problem::builder()
        .heads(1, 1)
        .head_dim(64)
        .seq_len(50)
        .mask(Mask::CAUSAL)
        .offsets(-60, 0)
        .return_lse(true)
        .build()
        .unwrap();
    assert_right(&Options::default(), &nothing, InputKind::Normal, 1);
}

#[test]
fn nan_inputs_give_nan_outputs() {
    let problem = Problem::builder()
        .heads(1, 1)
        .head_dim(64)
        .seq_len(40)
        .dtype(DType::F32)
        .build()
        .unwrap();
    for poison in [f32::NAN, f32::from_ne_bytes([POISON; 4])] {
        for level in SimdLevel::available() {
            let mut inputs = Inputs::generate(&problem, InputKind::Normal, 1);
            inputs.k.set(0, 17, 0, 3, poison);
            let options = Options {
                simd: Some(level),
                ..Options::default()
            };
            let (out, _) = compute(&options, &problem, &inputs);
            assert!((0..40).all(|row| out.view().get(0, row, 0, 0).is_nan()), "{level}");
        }
    }
}

/// Panels, decode rows and split keys, with and without lengths.
#[test]
fn sinks_and_alibi() {
    for seed in 0..135 {
        let limits = RandomLimits {
            head_values: true,
            lengths: seed % 2 == 1,
            max_work: 10_000_000,
            ..limits()
        };
        let problem = random_problem(seed, &limits).unwrap();
        if problem.sinks().is_some() || problem.alibi().is_some() {
            assert_right(&Options::default(), &problem, InputKind::Normal, seed);
        }
    }
    let decode = Problem::builder()
        .heads(8, 2)
        .seq_len_q(1)
        .seq_len_kv(3000)
        .head_dim(64)
        .mask(Mask::CAUSAL);
    let decode = decode
        .sinks(DType::BF16)
        .alibi(flashcore_problem::Alibi::Heads)
        .return_lse(true)
        .build()
        .unwrap();
    assert_right(&Options::default(), &decode, InputKind::Normal, 1);
}
