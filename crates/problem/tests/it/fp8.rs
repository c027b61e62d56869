//! e4m3 problems: scales, inputs, and the error bound. A correct fp8 kernel meets the bound; faulty
//! ones exceed it.

use flashcore_problem::{
    Comparison, DType, InputKind, Inputs, Layout, Mask, Problem, ProblemBuilder, ProblemError, Tensor, TensorView,
    Tolerance, absmax_scales, compare, compare_lse, quantise, reference,
};
use flashcore_testkit::{RandomLimits, random_problem};

fn problem(with: impl Fn(ProblemBuilder) -> ProblemBuilder) -> Problem {
    with(
        Problem::builder()
            .heads(1, 1)
            .seq_len(128)
            .head_dim(64)
            .dtype(DType::E4M3)
            .return_lse(true),
    )
    .build()
    .unwrap()
}

/// One fault of a kernel.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// K uses the scale of the next head (of the next batch for the last head).
    ScaleOfNextHead,
    /// V is not scaled.
    NoScaleOfV,
    /// P is rounded to one significant bit.
    CoarseP,
    /// The last key of each row is skipped.
    LastKeyLost,
    /// The output is 0.
    Zeros,
}

/// Factor on P before rounding.
const RAISE: f32 = 8.0;

/// A model of an fp8 kernel: tiles of 64 keys, scores truncated to 14 bits, P multiplied by 2^3 and
/// rounded to e4m3, sums of P·V truncated to 14 bits every 32 keys.
fn fp8_kernel(p: &Problem, inputs: &Inputs, fault: Fault) -> (Tensor, Vec<f32>) {
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let round_p = |x: f32| match fault {
        Fault::CoarseP => f32::from_bits((x.to_bits() + 0x40_0000) & 0xff80_0000),
        _ => round_to_e4m3(x),
    };
    let mut out = Tensor::poisoned(p.out_dtype(), *p.o_layout());
    let mut lse = vec![f32::NEG_INFINITY; p.lse_len()];
    for b in 0..p.batch() {
        for h in 0..p.num_heads() {
            let head = b * p.num_kv_heads() + h / p.group_size();
            let scale = |t: &TensorView<'_>, at: usize| t.scales().unwrap()[at % p.num_scales()];
            let k_head = head + usize::from(fault == Fault::ScaleOfNextHead);
            let score_scale = p.softmax_scale() * scale(&q, head) * scale(&k, k_head);
            let v_scale = if fault == Fault::NoScaleOfV {
                1.0
            } else {
                scale(&v, head)
            };
            for row in 0..p.seq_len_q() {
                let mut keys: Vec<usize> = p.visible_keys(row).collect();
                if fault == Fault::LastKeyLost {
                    keys.pop();
                }
                let (mut max, mut sum, mut acc) = (f32::NEG_INFINITY, 0f32, vec![0f32; p.head_dim_v()]);
                for tile in keys.chunks(64) {
                    let scores: Vec<f32> = tile
                        .iter()
                        .map(|&key| {
                            let dot = (0..p.head_dim())
                                .map(|d| raw(&q, b, row, h, d) * raw(&k, b, key, h / p.group_size(), d));
                            let score = cut(dot.sum()) * score_scale;
                            p.softcap().map_or(score, |cap| cap * (score / cap).tanh())
                        })
                        .collect();
                    let before = max;
                    max = scores.iter().copied().fold(max, f32::max);
                    let rescale = (before - max).exp();
                    sum *= rescale;
                    acc.iter_mut().for_each(|a| *a *= rescale);
                    for (keys, scores) in tile.chunks(32).zip(scores.chunks(32)) {
                        let weights: Vec<f32> = scores.iter().map(|s| (s - max).exp()).collect();
                        sum += weights.iter().sum::<f32>();
                        for (d, a) in acc.iter_mut().enumerate() {
                            let products = keys
                                .iter()
                                .zip(&weights)
                                .map(|(&key, weight)| round_p(weight * RAISE) * raw(&v, b, key, h / p.group_size(), d));
                            *a = cut(*a + products.sum::<f32>());
                        }
                    }
                }
                for (d, a) in acc.iter().enumerate() {
                    let value = if keys.is_empty() || fault == Fault::Zeros {
                        0.0
                    } else {
                        a / sum * v_scale / RAISE
                    };
                    out.set(b, row, h, d, value);
                }
                lse[(b * p.num_heads() + h) * p.seq_len_q() + row] = max + sum.ln();
            }
        }
    }
    (out, lse)
}

fn raw(t: &TensorView<'_>, b: usize, s: usize, h: usize, d: usize) -> f32 {
    flashcore_problem::tensor::read_element(t.dtype(), t.bytes(), t.layout().offset(b, s, h, d))
}

fn round_to_e4m3(x: f32) -> f32 {
    let mut byte = [0];
    flashcore_problem::tensor::write_element(DType::E4M3, &mut byte, 0, x);
    flashcore_problem::tensor::read_element(DType::E4M3, &byte, 0)
}

/// Truncates to 14 significant bits.
fn cut(x: f32) -> f32 {
    f32::from_bits(x.to_bits() & !0x3ff)
}

fn compared(p: &Problem, kind: InputKind, seed: u64, fault: Fault) -> (Comparison, Comparison) {
    let inputs = Inputs::generate(p, kind, seed);
    let want = reference(p, &inputs.q.view(), &inputs.k.view(), &inputs.v.view()).unwrap();
    let (out, lse) = fp8_kernel(p, &inputs, fault);
    let tolerance = Tolerance::of(p.dtype());
    (
        compare(p, &out.view(), &want, tolerance).unwrap(),
        compare_lse(p, &lse, &want, Tolerance::of(DType::F32)).unwrap(),
    )
}

#[test]
fn a_correct_kernel_is_within_the_bound() {
    let limits = RandomLimits {
        max_work: 1_500_000,
        dtypes: &[DType::E4M3],
        head_dim_v: true,
        ..RandomLimits::default()
    };
    let mut most = 0f64;
    for seed in 0..35 {
        let p = random_problem(seed, &limits).unwrap();
        let kind = InputKind::ALL[(seed / 5) as usize % InputKind::ALL.len()];
        let (out, lse) = compared(&p, kind, seed, Fault::None);
        assert!(out.passed, "seed {seed}, {kind}, {p}: {out}");
        most = most.max(out.of_allowed);
        assert!(lse.passed, "seed {seed}, {kind}, {p}: lse {lse}");
    }
    for kind in InputKind::ALL {
        let p = problem(|b| b.seq_len_q(2).seq_len_kv(2048).head_dim(128));
        let (out, lse) = compared(&p, kind, 1, Fault::None);
        assert!(out.passed && lse.passed, "{kind}: {out}; {lse}");
        assert!(out.of_allowed < 0.5, "{kind}: {}", out.of_allowed);
    }
    // The bound must not be much larger than real errors.
    assert!(most > 0.4, "{most}");
}

#[test]
fn faulty_kernels_exceed_the_bound() {
    let few = problem(|b| b.batch(2).heads(4, 2).seq_len_q(3).seq_len_kv(200).mask(Mask::CAUSAL));
    let many = problem(|b| b.batch(2).heads(4, 2).seq_len_q(3).seq_len_kv(4096).head_dim(128));
    for (name, fault, problems) in [
        ("scale of the next head", Fault::ScaleOfNextHead, &[&few, &many][..]),
        ("no scale of V", Fault::NoScaleOfV, &[&few, &many]),
        ("coarse P", Fault::CoarseP, &[&few, &many]),
        ("a key lost", Fault::LastKeyLost, &[&few]),
        ("zeros", Fault::Zeros, &[&few, &many]),
    ] {
        for p in problems {
            let (out, _) = compared(p, InputKind::Normal, 3, fault);
            assert!(!out.passed, "{name}, {p}: {out}");
        }
    }
    // With small integers only P and the sums round, so a wrong scale is visible.
    let (out, _) = compared(&few, InputKind::SmallIntegers, 3, Fault::ScaleOfNextHead);
    assert!(!out.passed, "{out}");
}

#[test]
fn e4m3_outputs_are_bf16() {
    for dtype in DType::ALL {
        let p = Problem::builder()
            .heads(1, 1)
            .seq_len(128)
            .head_dim(64)
            .dtype(dtype)
            .build()
            .unwrap();
        let expected = if dtype == DType::E4M3 { DType::BF16 } else { dtype };
        assert_eq!(
            (p.out_dtype(), p.num_scales()),
            (expected, usize::from(dtype == DType::E4M3))
        );
        let wrong = Tensor::poisoned(DType::E4M3, *p.o_layout());
        assert!(p.check_output(&wrong.view()).is_err());
        assert!(
            p.check_output(&Tensor::poisoned(expected, *p.o_layout()).view())
                .is_ok()
        );
    }
}

#[test]
fn scales_differ_between_heads_batches_and_tensors() {
    let p = problem(|b| b.batch(3).heads(8, 4).seq_len(40));
    for kind in InputKind::ALL {
        let inputs = Inputs::generate(&p, kind, 7);
        let of = |t: &Tensor| t.scales().unwrap().to_vec();
        let (q, k, v) = (of(&inputs.q), of(&inputs.k), of(&inputs.v));
        assert_eq!((q.len(), k.len(), v.len()), (12, 12, 12));
        for scales in [&q, &k, &v] {
            assert!(scales.windows(2).all(|w| w[0] != w[1]), "{kind} {scales:?}");
            assert!((0..4).all(|h| scales[h] != scales[h + 4]), "{kind} {scales:?}");
        }
        assert!((0..12).all(|i| q[i] != k[i] && k[i] != v[i] && q[i] != v[i]), "{kind}");
    }
}

#[test]
fn quantised_inputs_are_within_a_sixteenth_of_f32() {
    for kind in [InputKind::Normal, InputKind::SmallIntegers, InputKind::Extremes] {
        let of = |dtype| {
            let p = Problem::builder()
                .head_dim(64)
                .batch(2)
                .heads(4, 2)
                .seq_len(50)
                .dtype(dtype)
                .build()
                .unwrap();
            Inputs::generate(&p, kind, 5)
        };
        let (wide, fp8) = (of(DType::F32), of(DType::E4M3));
        for (name, wide, fp8) in [("q", &wide.q, &fp8.q), ("k", &wide.k, &fp8.k), ("v", &wide.v, &fp8.v)] {
            if kind == InputKind::Extremes && name != "v" {
                continue; // Q and K use smaller factors in e4m3
            }
            let smallest = fp8.scales().unwrap().iter().copied().fold(0.0, f32::max) / 512.0;
            for (b, s, h, d) in [(0, 0, 0, 0), (1, 49, 3, 63), (1, 7, 0, 31), (0, 22, 1, 2)] {
                let h = h % wide.layout().shape[2];
                let (x, y) = (wide.view().get(b, s, h, d), fp8.view().get(b, s, h, d));
                let allowed = if kind == InputKind::SmallIntegers {
                    0.0
                } else {
                    x.abs() / 16.0 + smallest
                };
                assert!((x - y).abs() <= allowed, "{kind} {name}: {x} became {y}");
            }
        }
    }
}

#[test]
fn a_broadcast_batch_has_one_scale() {
    let shape = [3, 20, 2, 64];
    let (dense, broadcast) = (
        Layout::bshd(shape),
        Layout {
            shape,
            strides: [0, 128, 64, 1],
        },
    );
    let p = problem(|b| {
        b.batch(3)
            .heads(2, 2)
            .seq_len(20)
            .layouts(dense, broadcast, dense, dense)
    });
    let inputs = Inputs::generate(&p, InputKind::Normal, 1);
    assert!(inputs.k.scales().unwrap().windows(2).all(|w| w[0] == w[1]));
    assert_eq!(inputs.k.view().value(0, 3, 1, 5), inputs.k.view().value(2, 3, 1, 5));
}

#[test]
fn invalid_scales() {
    let p = problem(|b| b.batch(2).heads(6, 3).seq_len(4));
    let inputs = Inputs::generate(&p, InputKind::Normal, 1);
    let bare = Tensor::poisoned(DType::E4M3, *p.q_layout());
    let (k, v) = (inputs.k.view(), inputs.v.view());
    assert_eq!(
        p.check_inputs(&bare.view(), &k, &v).unwrap_err().to_string(),
        "q has 0 scales; its 2 batches and 3 K/V heads need 6 of them, f32 [batch, kv_heads] (`with_scales`, of packed tensors \
         and pages `with_scales_of`)"
    );
    // One scale per head of Q fits the tensor but not the problem.
    let many = bare.view().with_scales("q", &[1.0; 12]).unwrap();
    let refused = |result: Result<(), ProblemError>| result.unwrap_err().to_string();
    assert!(refused(p.check_inputs(&many, &k, &v)).starts_with("q has 12 scales; its 2 batches"));
    for count in [5, 8, 0] {
        let scales = vec![1.0; count];
        let message = refused(bare.view().with_scales("q", &scales).map(drop));
        assert!(message.starts_with(&format!("q has {count} scales; ")), "{message}");
    }
    assert_eq!(
        bare.view().with_scales("q", &[1.0, 0.0]).unwrap_err().to_string(),
        "scale 1 of q is 0; scales are finite and above 0 (1 for a head that is all zeros)"
    );
    let half = Tensor::poisoned(DType::F16, *p.q_layout());
    assert_eq!(
        half.with_scales("q", vec![1.0; 6]).unwrap_err().to_string(),
        "q holds fp16; this problem's dtype is e4m3"
    );
}

#[test]
fn zero_heads_have_scale_1_and_nan_stays_nan() {
    let layout = Layout::bshd([1, 2, 2, 8]);
    let values = Tensor::from_fn(DType::F32, layout, |_, s, h, d| match (h, s, d) {
        (0, ..) => 0.0,
        (_, 1, 3) => f32::NAN,
        (_, s, d) => (s + d) as f32,
    });
    let scales = absmax_scales(&values.view(), 2);
    assert_eq!(scales, [1.0, 8.0 / 448.0]);
    let fp8 = quantise("k", &values.view(), scales).unwrap();
    assert!(fp8.view().get(0, 1, 1, 3).is_nan());
    assert!((fp8.view().get(0, 1, 1, 7) - 8.0).abs() < 1e-6);
}

/// Packed and paged tensors have scales of sequences: a value is its element times the scale of the sequence that reads
/// it, and every sequence has another one.
#[test]
fn scales_are_those_of_sequences() {
    use flashcore_problem::{KvLengths, QLengths, random_lengths, reference_rows};
    let pages = KvLengths::Paged {
        page_size: 4,
        pages: 9,
        max_pages: 3,
    };
    for kv_lengths in [KvLengths::Packed { total: 30, used: false }, KvLengths::Cache, pages] {
        let problem = Problem::builder().batch(3).heads(4, 2).seq_len_q(9).seq_len_kv(12);
        let problem = problem.head_dim(16).dtype(DType::E4M3).kv_lengths(kv_lengths);
        let problem = problem
            .q_lengths(QLengths::Packed { total: 20, used: true })
            .build()
            .unwrap();
        let lengths = random_lengths(&problem, 4);
        let rows = problem.query_rows(&lengths.as_slices()).unwrap();
        for kind in [InputKind::Normal, InputKind::SmallIntegers] {
            let inputs = Inputs::with_lengths(&problem, lengths.clone(), kind, 4).unwrap();
            let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
            problem.check_inputs(&q, &k, &v).unwrap();
            let scales = v.scales().unwrap();
            assert_eq!(scales.len(), 6);
            assert!(
                (0..2).all(|h| scales[h] != scales[2 + h] && scales[2 + h] != scales[4 + h]),
                "{scales:?}"
            );
            let want = reference_rows(&problem, &q, &k, &v, &lengths.as_slices(), &rows).unwrap();
            // Outputs are linear in the scale of V, and those of a sequence depend on its own alone.
            let mut twice = scales.to_vec();
            twice[2..4].iter_mut().for_each(|scale| *scale *= 2.0);
            let bare = TensorView::new("v", DType::E4M3, *v.layout(), v.bytes()).unwrap();
            let doubled = bare.with_scales_of("v", 3, &twice).unwrap();
            let got = reference_rows(&problem, &q, &k, &doubled, &lengths.as_slices(), &rows).unwrap();
            let sequences = problem.sequences(&lengths.as_slices()).unwrap();
            for (want, got) in want.iter().zip(&got) {
                let [b, _, s] = want.index;
                let factor = if sequences[1].row_at([b, s]).is_some() {
                    2.0
                } else {
                    1.0
                };
                assert!(
                    want.out.iter().zip(&got.out).all(|(w, g)| w * factor == *g),
                    "{:?}",
                    want.index
                );
            }
        }
    }
}

/// As many scales as are needed, but of other sequences.
#[test]
fn scales_of_another_batch_are_refused() {
    use flashcore_problem::QLengths;
    let problem = Problem::builder().batch(3).heads(6, 2).seq_len(8).head_dim(16);
    let problem = problem
        .dtype(DType::E4M3)
        .q_lengths(QLengths::Packed { total: 20, used: false });
    let problem = problem.build().unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let (k, v) = (inputs.k.view(), inputs.v.view());
    let bare = TensorView::new("q", DType::E4M3, *problem.q_layout(), inputs.q.bytes()).unwrap();
    let of_batch = bare.with_scales("q", &[1.0; 6]).unwrap();
    assert_eq!(
        problem.check_inputs(&of_batch, &k, &v).unwrap_err().to_string(),
        "the scales of q are of 1 sequences, and the problem has 3 (`with_scales_of`)"
    );
    let of_sequences = bare.with_scales_of("q", 3, &[1.0; 6]).unwrap();
    assert!(problem.check_inputs(&of_sequences, &k, &v).is_ok());
}
