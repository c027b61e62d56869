//! Problems that test little: an output of zeros would pass.

use flashcore_problem::{DType, InputKind, Inputs, Problem, Tensor, Tolerance, compare, reference};

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
