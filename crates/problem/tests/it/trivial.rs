//! Problems that test little: no row sees two keys, or an output of zeros would pass.

use flashcore_problem::{DType, InputKind, Inputs, Problem, Tensor, Tolerance, compare, random_lengths, reference};
use flashcore_testkit::{RandomLimits, random_problem};

/// Outputs of problems without a row that sees two keys are zeros or rows of V, whatever a kernel computes.
#[test]
fn random_lengths_are_seldom_trivial() {
    let limits = RandomLimits {
        lengths: true,
        ..RandomLimits::default()
    };
    let (mut with_lengths, mut trivial, mut avoidable) = (0, 0, 0);
    for seed in 0..600 {
        let p = random_problem(seed, &limits).unwrap();
        let lengths = random_lengths(&p, seed);
        let sequences = p.sequences(&lengths.as_slices()).unwrap();
        let most = p.key_range_of(p.seq_len_q(), p.seq_len_kv());
        let may_mix = (0..p.seq_len_q()).any(|row| most.keys(row).len() > 1);
        let is_trivial = !sequences.iter().any(|one| one.mixes_keys());
        with_lengths += usize::from(p.has_lengths());
        trivial += usize::from(p.has_lengths() && is_trivial);
        avoidable += usize::from(p.has_lengths() && is_trivial && may_mix);
    }
    // The others are problems whose mask leaves no row two keys.
    let counts = format!("{trivial} of {with_lengths}, {avoidable} of them by their lengths");
    assert!(
        trivial * 5 <= with_lengths && avoidable * 16 <= with_lengths,
        "{counts}"
    );
    assert!(avoidable >= 10, "{counts}");
}

#[test]
fn an_output_that_zeros_would_pass_is_named() {
    let p = Problem::builder()
        .heads(1, 1)
        .seq_len(16)
        .head_dim(8)
        .sinks(DType::F32)
        .build()
        .unwrap();
    let inputs = Inputs::generate(&p, InputKind::Normal, 2);
    let of_sink = |sink: f32| {
        let (q, k, v) = (
            inputs.q.view().with_sinks(std::slice::from_ref(&sink)),
            inputs.k.view(),
            inputs.v.view(),
        );
        let want = reference(&p, &q, &k, &v).unwrap();
        let zeros = Tensor::filled(DType::F16, *p.o_layout(), 0);
        let found = compare(&p, &zeros.view(), &want, Tolerance::of(DType::F16)).unwrap();
        (found.passed, found.zeros_pass)
    };
    assert_eq!(of_sink(1.0), (false, false));
    assert_eq!(of_sink(100.0), (true, true));
}
