//! Tests of the reference and of the comparison.

use flashcore_problem::{
    DType, InputKind, Inputs, Layout, Lengths, Mask, POISON, Problem, QLengths, ReferenceRow, Slack, Tensor, Tolerance,
    compare, compare_lse, gaps_untouched, random_lengths, reference, reference_probabilities, reference_rows,
    reference_scores,
};
use flashcore_testkit::{RandomLimits, random_problem};

pub(crate) fn answer(problem: &Problem, inputs: &Inputs) -> Vec<ReferenceRow> {
    reference(problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view()).unwrap()
}

/// The reference rounded to the output dtype.
fn written(problem: &Problem, want: &[ReferenceRow]) -> Tensor {
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    for row in want {
        let [b, h, s] = row.index;
        for (d, &x) in row.out.iter().enumerate() {
            out.set(b, s, h, d, x as f32);
        }
    }
    out
}

/// The log-sum-exp of every row, `[batch, num_heads, seq_len_q]`.
fn lse_of(want: &[ReferenceRow]) -> Vec<f32> {
    let mut rows: Vec<&ReferenceRow> = want.iter().collect();
    rows.sort_by_key(|row| row.index);
    rows.iter().map(|row| row.lse as f32).collect()
}

/// Attention by definition, sharing no code with the reference.
fn by_definition(p: &Problem, inputs: &Inputs, [b, h, row]: [usize; 3]) -> (Vec<f64>, f64) {
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let kv_head = h / (p.num_heads() / p.num_kv_heads());
    let mut numerator = vec![0.0; p.head_dim_v()];
    let mut denominator = 0.0;
    for key in p.key_range().keys(row) {
        let dot: f64 = (0..p.head_dim())
            .map(|d| f64::from(q.get(b, row, h, d)) * f64::from(k.get(b, key, kv_head, d)))
            .sum();
        let mut score = dot * f64::from(p.softmax_scale());
        if let Some(cap) = p.softcap() {
            score = f64::from(cap) * (score / f64::from(cap)).tanh();
        }
        denominator += score.exp();
        for (d, n) in numerator.iter_mut().enumerate() {
            *n += score.exp() * f64::from(v.get(b, key, kv_head, d));
        }
    }
    if denominator > 0.0 {
        numerator.iter_mut().for_each(|n| *n /= denominator);
    }
    (numerator, denominator.ln())
}

#[test]
fn reference_equals_the_definition() {
    let limits = RandomLimits {
        max_seq: 40,
        max_work: 400_000,
        head_dim_v: true,
        ..RandomLimits::default()
    };
    for seed in 0..60 {
        let p = random_problem(seed, &limits).unwrap();
        let inputs = Inputs::generate(&p, InputKind::Normal, seed);
        let all = answer(&p, &inputs);
        assert_eq!(all.len(), p.lse_len());
        for got in all {
            let (out, lse) = by_definition(&p, &inputs, got.index);
            assert_eq!(got.out.len(), out.len());
            for (got_element, want) in got.out.iter().zip(out) {
                assert!((got_element - want).abs() < 1e-12, "{p} at {:?}", got.index);
            }
            assert!(
                got.lse == lse || (got.lse - lse).abs() < 1e-12,
                "{p} at {:?}",
                got.index
            );
        }
    }
}

#[test]
fn reference_rows_equal_the_full_reference() {
    let p = random_problem(5, &RandomLimits::default()).unwrap();
    let inputs = Inputs::generate(&p, InputKind::Normal, 1);
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let all = answer(&p, &inputs);
    let last = [p.batch() - 1, p.num_heads() - 1, p.seq_len_q() - 1];
    let asked = [last, [0, 0, 0], last, [0, p.num_heads() - 1, p.seq_len_q() / 2]];
    let rows = reference_rows(&p, &q, &k, &v, &Lengths::default(), &asked).unwrap();
    for (row, asked) in rows.iter().zip(asked) {
        assert_eq!(row.index, asked);
        let [b, h, s] = asked;
        assert_eq!(*row, all[(b * p.seq_len_q() + s) * p.num_heads() + h]);
    }
    let out = written(&p, &all);
    assert!(
        compare(&p, &out.view(), &rows, Tolerance::of(p.dtype()))
            .unwrap()
            .passed
    );
    assert!(!compare(&p, &out.view(), &[], Tolerance::of(p.dtype())).unwrap().passed);
}

#[test]
fn scores_and_probabilities_match_the_reference() {
    let p = Problem::builder()
        .head_dim(64)
        .heads(4, 2)
        .seq_len_q(9)
        .seq_len_kv(12)
        .mask(Mask::window(Some(4), Some(0)))
        .softcap(20.0)
        .build()
        .unwrap();
    let inputs = Inputs::generate(&p, InputKind::Normal, 3);
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    let scores = reference_scores(&p, &q, &k, &v).unwrap();
    let probabilities = reference_probabilities(&p, &q, &k, &v).unwrap();
    let all = answer(&p, &inputs);
    for h in 0..4 {
        for row in 0..9 {
            let at = (h * 9 + row) * 12;
            let visible = p.visible_keys(row);
            let lse = scores[at..at + 12][visible.clone()]
                .iter()
                .map(|s| s.exp())
                .sum::<f64>()
                .ln();
            assert!((lse - all[row * 4 + h].lse).abs() < 1e-12);
            let row_of_p = &probabilities[at..at + 12];
            assert!((row_of_p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!((0..12).all(|key| visible.contains(&key) || row_of_p[key] == 0.0));
            let first: f64 = (0..12)
                .map(|key| row_of_p[key] * f64::from(v.get(0, key, h / 2, 0)))
                .sum();
            assert!((first - all[row * 4 + h].out[0]).abs() < 1e-12);
        }
    }
}

/// Each sequence, copied into separate tensors, is a problem of equal lengths with the same answer.
#[test]
fn sequences_equal_separate_problems() {
    let limits = RandomLimits {
        max_seq: 40,
        max_work: 1_000_000,
        lengths: true,
        ..RandomLimits::default()
    };
    let mut kinds = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let p = random_problem(seed, &limits).unwrap();
        kinds.insert(format!(
            "{:?}",
            (
                p.q_lengths() == QLengths::Equal,
                std::mem::discriminant(&p.kv_lengths())
            )
        ));
        let inputs = Inputs::generate(&p, InputKind::Normal, seed);
        let lengths = inputs.lengths.as_slices();
        let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
        let mut compared = 0;
        for sequence in p.sequences(&lengths).unwrap() {
            if sequence.len_q * sequence.len_kv == 0 {
                continue;
            }
            let builder = Problem::builder()
                .batch(1)
                .heads(p.num_heads(), p.num_kv_heads())
                .dtype(p.dtype());
            let builder = builder.head_dim(p.head_dim()).head_dim_v(p.head_dim_v()).mask(p.mask());
            let builder = builder
                .offsets(p.q_offset(), p.kv_offset())
                .softmax_scale(p.softmax_scale());
            let builder = builder.seq_len_q(sequence.len_q).seq_len_kv(sequence.len_kv);
            let alone = p
                .softcap()
                .into_iter()
                .fold(builder, |builder, cap| builder.softcap(cap))
                .build()
                .unwrap();
            let gather = |t: &Tensor, layout: &Layout, at: &dyn Fn(usize) -> Option<[usize; 2]>| {
                Tensor::from_fn(p.dtype(), *layout, |_, s, h, d| {
                    at(s).map_or(0.0, |[b, s]| t.view().get(b, s, h, d))
                })
            };
            let part = Inputs {
                q: gather(&inputs.q, alone.q_layout(), &|row| Some(sequence.q_row(row))),
                k: gather(&inputs.k, alone.k_layout(), &|key| sequence.kv_row(key)),
                v: gather(&inputs.v, alone.v_layout(), &|key| sequence.kv_row(key)),
                lengths: Lengths::default(),
                saved: None,
            };
            let rows: Vec<[usize; 3]> = answer(&alone, &part).iter().map(|row| row.index).collect();
            let moved = rows.iter().map(|&[_, h, s]| {
                let [b, s] = sequence.q_row(s);
                [b, h, s]
            });
            let moved: Vec<[usize; 3]> = moved.collect();
            let got = reference_rows(&p, &q, &k, &v, &lengths, &moved).unwrap();
            for (got, want) in got.iter().zip(answer(&alone, &part)) {
                assert_eq!((&got.out, got.lse), (&want.out, want.lse), "seed {seed}, {p}");
            }
            compared += got.len();
        }
        let with_keys = p
            .sequences(&lengths)
            .unwrap()
            .iter()
            .filter(|s| s.len_kv > 0)
            .map(|s| s.len_q)
            .sum::<usize>();
        assert_eq!(compared, with_keys * p.num_heads());
    }
    assert_eq!(kinds.len(), 2 * 4);
}

/// What the generator of lengths promises.
#[test]
fn random_lengths_have_every_edge() {
    let limits = RandomLimits {
        max_seq: 40,
        lengths: true,
        ..RandomLimits::default()
    };
    let (mut empty_q, mut empty_kv, mut one, mut full, mut shared, mut holes, mut rest) = (0, 0, 0, 0, 0, 0, 0);
    for seed in 0..300 {
        let p = random_problem(seed, &limits).unwrap();
        let lengths = random_lengths(&p, seed);
        let sequences = p.sequences(&lengths.as_slices()).unwrap();
        empty_q += usize::from(sequences.iter().any(|one| one.len_q == 0));
        empty_kv += usize::from(sequences.iter().any(|one| one.len_kv == 0));
        one += usize::from(sequences.iter().any(|one| one.len_kv == 1));
        full += usize::from(sequences.iter().any(|one| one.len_kv == p.seq_len_kv()));
        let places: Vec<_> = sequences
            .iter()
            .flat_map(|one| (0..one.len_kv).map(|key| one.kv_row(key)))
            .collect();
        let distinct: std::collections::BTreeSet<_> = places.iter().flatten().collect();
        shared += usize::from(distinct.len() < places.iter().flatten().count());
        holes += usize::from(places.contains(&None));
        let rows = p.query_rows(&lengths.as_slices()).unwrap().len();
        rest += usize::from(rows < p.lse_len());
    }
    for (what, count) in [
        ("no query rows", empty_q),
        ("no keys", empty_kv),
        ("one key", one),
        ("the bound", full),
        ("shared pages", shared),
        ("holes", holes),
        ("rows of no sequence", rest),
    ] {
        assert!(count >= 10, "{what}: {count} of 300");
    }
}

#[test]
fn fully_masked_rows_are_zero() {
    // Five query rows, two keys, bottom-right causal: the first three rows are fully masked.
    let p = Problem::builder()
        .heads(1, 1)
        .head_dim(64)
        .seq_len_q(5)
        .seq_len_kv(2)
        .mask(Mask::CAUSAL)
        .build()
        .unwrap();
    let inputs = Inputs::generate(&p, InputKind::Normal, 1);
    let all = answer(&p, &inputs);
    for row in &all[..3] {
        assert_eq!((&row.out, row.lse), (&vec![0.0; 64], f64::NEG_INFINITY));
    }
    let lse = lse_of(&all);
    assert!(compare_lse(&p, &lse, &all, Tolerance::of(DType::F32)).unwrap().passed);
    let zero = vec![0.0; 5];
    let found = compare_lse(&p, &zero, &all, Tolerance::of(DType::F32)).unwrap();
    assert!(!found.passed);
    assert_eq!((found.failures, found.worst.unwrap().want), (5, f64::NEG_INFINITY));
}

#[test]
fn outputs_of_every_input_kind_fit_in_the_output_dtype() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::E4M3] {
        for kind in InputKind::ALL {
            let p = Problem::builder()
                .head_dim(64)
                .heads(2, 1)
                .seq_len(150)
                .dtype(dtype)
                .build()
                .unwrap();
            let inputs = Inputs::generate(&p, kind, 4);
            let all = answer(&p, &inputs);
            let finite = |row: &ReferenceRow| row.lse.is_finite() && row.out.iter().all(|x| x.is_finite());
            assert!(all.iter().all(finite), "{dtype} {kind}");
            let found = compare(&p, &written(&p, &all).view(), &all, Tolerance::of(dtype)).unwrap();
            assert!(found.passed, "{dtype} {kind}: {found}");
        }
    }
}

#[test]
fn input_kinds_have_their_patterns() {
    let p = Problem::builder()
        .heads(1, 1)
        .head_dim(64)
        .seq_len(200)
        .dtype(DType::F16)
        .build()
        .unwrap();
    let of = |kind| {
        let inputs = Inputs::generate(&p, kind, 11);
        let scores = reference_scores(&p, &inputs.q.view(), &inputs.k.view(), &inputs.v.view()).unwrap();
        (inputs, scores)
    };
    let extent = |x: &[f64]| x.iter().fold((f64::MAX, f64::MIN), |(a, b), &s| (a.min(s), b.max(s)));
    let (equal, scores) = of(InputKind::EqualRows);
    assert_eq!(extent(&scores).0, extent(&scores).1);
    assert_ne!(equal.v.view().get(0, 0, 0, 0), equal.v.view().get(0, 1, 0, 0));
    let (_, scores) = of(InputKind::HugeLogit);
    assert!(scores[..200].iter().filter(|&&s| s > 100.0).count() >= 3);
    let (_, scores) = of(InputKind::RisingScores);
    assert!(scores[..200].windows(2).all(|w| w[0] <= w[1]) && extent(&scores).1 > 70.0);
    let (_, scores) = of(InputKind::NegativeScores);
    assert!(extent(&scores).1 < -104.0, "{:?}", extent(&scores)); // exp(-104) is 0 in f32
    let (extremes, scores) = of(InputKind::Extremes);
    assert!(extent(&scores).1 < 20.0);
    let largest = (0..200).map(|s| extremes.v.view().get(0, s, 0, 0)).fold(0.0, f32::max);
    assert!((5.5e4..=6e4).contains(&largest), "{largest}");
    let (integers, scores) = of(InputKind::SmallIntegers);
    assert!(scores.iter().all(|s| (s * 8.0).fract() == 0.0)); // the scale is 1/8
    assert!(integers.k.view().get(0, 3, 0, 5).fract() == 0.0);
}

#[test]
fn inputs_depend_on_the_seed_and_gaps_are_poison() {
    let shape = [2, 33, 3, 64];
    let padded = Layout {
        shape,
        strides: [33 * 3 * 80, 3 * 80, 80, 1],
    };
    let dense = Layout::bshd(shape);
    let build = || Problem::builder().head_dim(64).batch(2).heads(3, 3).seq_len(33);
    let p = build().layouts(padded, dense, dense, dense).build().unwrap();
    let first = Inputs::generate(&p, InputKind::Normal, 8);
    assert_eq!(first.q.bytes(), Inputs::generate(&p, InputKind::Normal, 8).q.bytes());
    assert_ne!(first.q.bytes(), Inputs::generate(&p, InputKind::Normal, 9).q.bytes());
    assert_ne!(first.q.view().get(0, 0, 0, 0), first.k.view().get(0, 0, 0, 0));
    gaps_untouched(&first.q.view()).unwrap();
    // The values do not depend on the layout.
    let same = Inputs::generate(&build().build().unwrap(), InputKind::Normal, 8);
    assert_eq!(same.q.view().get(1, 32, 2, 63), first.q.view().get(1, 32, 2, 63));
}

#[test]
fn gap_writes_are_found() {
    let layout = Layout {
        shape: [1, 4, 2, 8],
        strides: [80, 20, 10, 1],
    };
    let mut out = Tensor::poisoned(DType::BF16, layout);
    out.set(0, 3, 1, 7, 1.0);
    gaps_untouched(&out.view()).unwrap();
    out.bytes_mut()[2 * 9] = 0; // one past row 0, head 0
    out.bytes_mut()[2 * 29 + 1] = 7; // and of row 1
    let found = gaps_untouched(&out.view()).unwrap_err();
    assert_eq!((found.first, found.count), (9, 2));
    assert_eq!(
        found.to_string(),
        "2 gap elements of the output were written, the first at element offset 9"
    );
}

#[test]
fn comparison_counts_failures() {
    let p = Problem::builder().heads(2, 2).seq_len(16).head_dim(8).build().unwrap();
    let inputs = Inputs::generate(&p, InputKind::Normal, 2);
    let want = answer(&p, &inputs);
    let tolerance = Tolerance::of(DType::F16);
    let mut out = written(&p, &want);
    let right = compare(&p, &out.view(), &want, tolerance).unwrap();
    assert!(
        right.passed && right.frobenius < 1e-3 && right.max_abs < 1e-3,
        "{right}"
    );
    assert_eq!((right.elements, right.nan, right.unwritten), (16 * 2 * 8, 0, 0));

    let value = out.view().get(0, 7, 1, 3);
    out.set(0, 7, 1, 3, value + 0.5);
    let off = compare(&p, &out.view(), &want, tolerance).unwrap();
    assert!(!off.passed);
    assert_eq!((off.failures, off.worst.unwrap().index), (1, [0, 7, 1, 3]));
    assert!((off.max_abs - 0.5).abs() < 2e-3);
    assert!(right.of_allowed < 1.0 && off.of_allowed > 100.0, "{right} {off}");
    assert!(off.to_string().starts_with("FAIL: max abs "), "{off}");
    assert!(off.to_string().contains("worst at [0, 7, 1, 3]: got "), "{off}");

    out.set(0, 2, 0, 1, f32::NAN);
    out.bytes_mut()[..2].fill(POISON);
    let nan = compare(&p, &out.view(), &want, tolerance).unwrap();
    assert_eq!((nan.failures, nan.nan, nan.unwritten, nan.passed), (3, 2, 1, false));
    assert!(nan.worst.unwrap().got.is_nan());
    assert!((nan.max_abs - 0.5).abs() < 2e-3, "NaN must not hide the largest error");

    out.set(0, 2, 0, 1, f32::INFINITY);
    assert_eq!(
        compare(&p, &out.view(), &want, tolerance).unwrap().max_abs,
        f64::INFINITY
    );
    // A NaN reference value fails for every output, including NaN.
    let mut broken = want.clone();
    broken[0].out[5] = f64::NAN;
    assert!(
        !compare(&p, &written(&p, &broken).view(), &broken, tolerance)
            .unwrap()
            .passed
    );
}

#[test]
fn the_worst_element_has_the_largest_share_of_what_is_allowed() {
    let p = Problem::builder()
        .heads(1, 1)
        .head_dim(8)
        .seq_len(1)
        .dtype(DType::F32)
        .build()
        .unwrap();
    let mut out = vec![0.0; 8];
    out[3] = 100.0;
    let slack = Slack {
        out: vec![0.0; 8],
        hull: vec![[0.0, 100.0]; 8],
        lse: 0.0,
    };
    let want = [ReferenceRow {
        index: [0; 3],
        out,
        lse: 0.0,
        largest_score: 0.0,
        slack,
    }];
    // 0.9 of 1.01 is allowed, and 0.005 of 0.01.
    let got = |d| [0.0, 0.005, 0.0, 100.9][d % 4];
    let got = Tensor::from_fn(DType::F32, *p.o_layout(), |_, _, _, d| got(d) * f32::from(d < 4));
    let found = compare(&p, &got.view(), &want, Tolerance { atol: 1e-2, rtol: 1e-2 }).unwrap();
    assert!(found.passed && (found.of_allowed - 0.9 / 1.01).abs() < 1e-3, "{found}");
    assert_eq!(found.worst.unwrap().index, [0, 0, 0, 3]);
}
