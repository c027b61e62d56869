//! Refused calls: the message, and that the output is unchanged.

use flashcore_cpu::{CpuConfig, CpuError, Options, SimdLevel, run};
use flashcore_problem::{
    DType, Host, InputKind, Inputs, KvLengths, Layout, Name, Operands, Problem, ProblemBuilder, Tensor, View, ViewMut,
};

use crate::attention;

/// The error of a call with valid tensors and these options.
fn refusal(options: &Options<'_>, problem: &Problem) -> String {
    let inputs = Inputs::generate(problem, InputKind::Normal, 1);
    refused(options, problem, &inputs.q, &inputs.k)
}

/// The error of a call with these options and tensors, V as K.
fn refused(options: &Options<'_>, problem: &Problem, q: &Tensor, k: &Tensor) -> String {
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let error = run(options, problem, Operands::forward(q, k, k, &mut out)).unwrap_err();
    assert!(out.bytes().iter().all(|&byte| byte == 0xff), "the output was written");
    error.to_string()
}

/// A layout with other strides where they say nothing.
fn odd(layout: &Layout) -> Layout {
    Layout {
        strides: [-5, layout.strides[1], 1 << 40, 1],
        ..*layout
    }
}

fn read(tensor: &Tensor) -> View<'_, Host> {
    View::new(DType::F16, odd(tensor.layout()), tensor.bytes())
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
    let problem = Problem::builder().heads(1, 1).head_dim(64).seq_len(8).build().unwrap();
    let k = Tensor::filled(DType::F16, *problem.k_layout(), 0);
    let said = |q: &Tensor| refused(&Options::default(), &problem, q, &k);
    let longer = Tensor::filled(DType::F16, Layout::bshd([1, 9, 1, 64]), 0);
    assert_eq!(
        said(&longer),
        "q has shape [1, 9, 1, 64]; this call needs [1, 8, 1, 64] as [batch, seq, heads, head_dim]"
    );
    let other_dtype = Tensor::filled(DType::BF16, *problem.q_layout(), 0);
    assert_eq!(said(&other_dtype), "q holds bf16; this call needs fp16");
    let with_lse = ProblemBuilder::from(&problem).return_lse(true).build().unwrap();
    let missing = refused(&Options::default(), &with_lse, &k, &k);
    assert!(missing.starts_with("lse was not given"), "{missing}");
}

/// Strides along dimensions of size 1 say nothing, and values may lie in memory that is longer.
#[test]
fn strides_of_one_element_are_ignored() {
    let problem = Problem::builder()
        .heads(1, 1)
        .head_dim(64)
        .seq_len(8)
        .kv_lengths(KvLengths::Cache);
    let problem = problem.return_lse(true).build().unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let (right, right_lse) = attention(&Options::default(), &problem, &inputs).unwrap();
    let (mut out, mut lse) = (Tensor::poisoned(DType::F16, *problem.o_layout()), [7.0; 9]);
    let (out_layout, out_bytes) = (odd(out.layout()), out.bytes_mut());
    let keys = [&inputs.lengths.seqused_k.clone().unwrap()[..], &[9]].concat();
    let operands = Operands::forward(
        read(&inputs.q),
        read(&inputs.k),
        read(&inputs.v),
        ViewMut::new(DType::F16, out_layout, out_bytes),
    )
    .with_mut(Name::Lse, ViewMut::<Host>::from_slice([8], &mut lse))
    .with(Name::SequsedK, View::<Host>::from_slice([1], &keys));
    run(&Options::default(), &problem, operands).unwrap();
    assert_eq!(out.bytes(), right.bytes());
    assert_eq!((&lse[..8], lse[8]), (&right_lse[..], 7.0));
}
