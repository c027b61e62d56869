//! What the comparison demands where scores are huge.

use flashcore_problem::{
    DType, InputKind, Inputs, Mask, Problem, ReferenceRow, Tensor, Tolerance, compare, compare_lse, reference,
    score_limit,
};

use crate::comparison::answer;

/// What huge scores cannot hide behind: no slack, rows on both sides of the limit, and rows whose scores overflow f32.
#[test]
fn one_hot_rows_leave_the_plain_tolerance() {
    for dtype in DType::ALL {
        let (mut rows, mut plain, mut past, mut right) = (0, 0, 0, 0);
        for seed in 0..40 {
            let p = Problem::builder()
                .head_dim(64)
                .heads(2, 1)
                .seq_len(50)
                .dtype(dtype)
                .mask(Mask::CAUSAL);
            let p = p.build().unwrap();
            let all = answer(&p, &Inputs::generate(&p, InputKind::OneHot, seed));
            let is_plain = |row: &&ReferenceRow| match dtype {
                DType::E4M3 => row.slack.lse < 1e-4, // P is rounded, whatever the scores are
                _ => row.slack.out.iter().all(|slack| *slack < 1e-9),
            };
            rows += all.len();
            plain += all.iter().filter(is_plain).count();
            past += all.iter().filter(|row| row.is_past_limit(dtype)).count();
            right += all
                .iter()
                .filter(|row| !row.is_past_limit(dtype) && row.lse > 1e4)
                .count();
        }
        assert!(2 * plain >= rows, "{dtype}: {plain} of {rows}");
        assert!(
            20 * past > rows && 20 * right > rows,
            "{dtype}: {past} and {right} of {rows}"
        );
    }
}

#[test]
fn rows_past_the_limit_are_right_or_nan_and_nothing_else() {
    let (most, dtype) = (score_limit(DType::BF16) * std::f32::consts::LN_2, DType::BF16);
    let p = Problem::builder()
        .head_dim(8)
        .heads(1, 1)
        .seq_len_q(1)
        .seq_len_kv(2)
        .dtype(dtype);
    let p = p.softmax_scale(1.0).build().unwrap();
    let verdict = |score: f32, got: [f32; 2], lse: f32| {
        let one_hot = |scale: f32| Tensor::from_fn(dtype, *p.q_layout(), |_, _, _, d| if d == 0 { scale } else { 0.0 });
        let k = Tensor::from_fn(dtype, *p.k_layout(), |_, s, _, d| f32::from(d == 0) * (1.0 - s as f32));
        let v = Tensor::from_fn(dtype, *p.v_layout(), |_, s, _, _| 3.0 + s as f32);
        let want = reference(&p, &one_hot(score).view(), &k.view(), &v.view()).unwrap();
        let out = Tensor::from_fn(dtype, *p.o_layout(), |_, _, _, d| got[usize::from(d == 5)]);
        let tolerance = Tolerance::of(dtype);
        let found = compare(&p, &out.view(), &want, tolerance).unwrap();
        let found_lse = compare_lse(&p, &[lse], &want, tolerance).unwrap();
        [found.passed, found_lse.passed]
    };
    let (nan, large, small) = (f32::NAN, 2.0 * most, most / 2.0);
    assert_eq!(verdict(large, [3.0; 2], large), [true; 2]);
    assert_eq!(verdict(large, [nan; 2], nan), [true; 2]);
    assert_eq!(verdict(-large, [4.0; 2], 0.0), [true; 2], "the largest score is 0");
    assert_eq!(verdict(-large, [nan; 2], nan), [false; 2]);
    assert_eq!(
        verdict(large, [3.0, nan], large),
        [false, true],
        "all of a row or nothing"
    );
    assert_eq!(verdict(large, [0.0; 2], f32::NEG_INFINITY), [false; 2]);
    assert_eq!(verdict(large, [4.0; 2], large / 2.0), [false; 2]);
    assert_eq!(verdict(small, [3.0; 2], small), [true; 2]);
    assert_eq!(verdict(small, [nan; 2], nan), [false; 2]);
}

/// The errors of scores allow any average of V, and nothing outside.
#[test]
fn outputs_lie_in_the_hull_of_v() {
    for dtype in DType::ALL {
        let p = Problem::builder().head_dim(64).heads(1, 1).seq_len(40).dtype(dtype);
        let p = p.softmax_scale(1e5).build().unwrap();
        let mut inputs = Inputs::generate(&p, InputKind::Normal, 5);
        if dtype != DType::E4M3 {
            // Scores of about 1e10, of products that are rounded.
            let normal = inputs.q.clone();
            let large = |b, s, h, d| 1e4 * normal.view().get(b, s, h, d);
            inputs.q = Tensor::from_fn(dtype, *p.q_layout(), large);
        }
        let all = answer(&p, &inputs);
        let v = inputs.v.view();
        let column = |d| (0..40).map(move |s| (s, d));
        let extreme = |d: usize, sign: f32| {
            let values = column(d).map(|(s, d)| sign * v.value(0, s, 0, d) as f32);
            sign * values.fold(f32::MIN, f32::max)
        };
        let verdict = |value: &dyn Fn(usize) -> f32| {
            let out = Tensor::from_fn(p.out_dtype(), *p.o_layout(), |_, _, _, d| value(d));
            compare(&p, &out.view(), &all, Tolerance::of(dtype)).unwrap()
        };
        // Other keys than the right ones may win, but one does.
        let other = verdict(&|d| extreme(d, 1.0));
        assert!(2 * other.failures < other.elements, "{dtype}: {other}");
        for sign in [1.0, -1.0] {
            let outside = verdict(&|d| extreme(d, sign) + 0.5 * sign * extreme(d, 1.0).abs().max(1.0));
            assert_eq!(outside.failures, outside.elements, "{dtype}: {outside}");
        }
    }
}
