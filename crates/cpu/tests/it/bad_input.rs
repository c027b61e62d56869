//! Refused calls: the message, and that the output is unchanged.

use flashcore_cpu::{CpuConfig, CpuError, Options, SimdLevel, attention, attention_with};
use flashcore_problem::{
    DType, InputKind, Inputs, Layout, Lengths, Problem, ProblemError, Tensor, TensorView, gaps_untouched,
};

/// The error of a call with valid tensors and these options.
fn refusal(options: &Options<'_>, problem: &Problem) -> String {
    let Inputs { q, k, v, .. } = Inputs::generate(problem, InputKind::Normal, 1);
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let mut lse = vec![0.0; problem.lse_len()];
    let error = attention_with(
        options,
        problem,
        [q.view(), k.view(), v.view()],
        &Lengths::default(),
        &mut out.view_mut(),
        problem.return_lse().then_some(lse.as_mut_slice()),
    )
    .unwrap_err();
    assert!(out.bytes().iter().all(|&byte| byte == 0xff), "the output was written");
    error.to_string()
}

#[test]
fn invalid_tile_sizes() {
    let problem = Problem::named("tiny").unwrap();
    let with = |tile_q, tile_kv| {
        let options = Options {
            config: Some(CpuConfig { tile_q, tile_kv }),
            ..Options::default()
        };
        refusal(&options, &problem)
    };
    assert_eq!(with(0, 64), "tile_q is 0; allowed are multiples of 16 from 16 to 1024");
    assert_eq!(
        with(100, 64),
        "tile_q is 100; allowed are multiples of 16 from 16 to 1024"
    );
    assert_eq!(
        with(64, 1028),
        "tile_kv is 1028; allowed are multiples of 4 from 4 to 1024"
    );
    assert_eq!(with(64, 6), "tile_kv is 6; allowed are multiples of 4 from 4 to 1024");
}

#[test]
fn invalid_config_ids() {
    for id in [
        "",
        "cpu/",
        "m64n64",
        "cpu/m64",
        "cpu/m-1n4",
        "cpu/m64n64x",
        "mma/m64n64",
    ] {
        let error = id.parse::<CpuConfig>().unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("`{id}` is not a CPU config; ids look like `cpu/m128n64` (query rows and keys of a tile)")
        );
    }
    assert!(matches!(
        "cpu/m7n64".parse::<CpuConfig>(),
        Err(CpuError::Config { field: "tile_q", .. })
    ));
}

#[test]
fn unavailable_simd_levels() {
    let all = [SimdLevel::Baseline, SimdLevel::Avx2, SimdLevel::Avx512, SimdLevel::Neon];
    for level in all.into_iter().filter(|level| !SimdLevel::available().contains(level)) {
        let options = Options {
            simd: Some(level),
            ..Options::default()
        };
        let message = refusal(&options, &Problem::named("tiny").unwrap());
        assert!(
            message.starts_with(&format!("this machine does not support {level}; it supports baseline")),
            "{message}"
        );
    }
}

#[test]
fn mismatched_tensors() {
    let problem = Problem::builder()
        .heads(1, 1)
        .head_dim(64)
        .seq_len(8)
        .return_lse(true)
        .build()
        .unwrap();
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let mut call = |q: TensorView<'_>, lse: Option<&mut [f32]>| {
        let error = attention(&problem, q, k.view(), v.view(), &mut out.view_mut(), lse).unwrap_err();
        assert!(gaps_untouched(&out.view()).is_ok());
        error
    };
    assert_eq!(
        call(q.view(), None),
        CpuError::Problem(ProblemError::Shape {
            tensor: "lse",
            given: vec![0],
            expected: vec![8],
        })
    );
    let mut lse = vec![0.0; 8];
    let longer = Tensor::filled(DType::F16, Layout::bshd([1, 9, 1, 64]), 0);
    assert!(matches!(
        call(longer.view(), Some(&mut lse)),
        CpuError::Problem(ProblemError::Shape { tensor: "q", .. })
    ));
    let other_dtype = Tensor::filled(DType::BF16, *problem.q_layout(), 0);
    assert_eq!(
        call(other_dtype.view(), Some(&mut lse)).to_string(),
        "q holds bf16; this problem's dtype is fp16"
    );
    let other_strides = Tensor::filled(DType::F16, Layout::bhsd(problem.q_layout().shape), 0);
    // There is one head, so the strides are equal and the tensor is accepted.
    assert_eq!(other_strides.layout().strides[1], problem.q_layout().strides[1]);
}
