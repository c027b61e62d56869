//! Calls on host tensors: what they return, and how they name a wrong argument.

use std::collections::BTreeSet;

use flashcore::unstable::testing::{InputKind, Inputs, Tolerance, compare, compare_lse, reference};
use flashcore::{
    Attention, DType, Device, Error, Host, KvLengths, Layout, Mask, Name, Operands, Problem, ProblemBuilder, Tensor,
    TensorView, ViewMut, f16,
};

fn problem() -> ProblemBuilder {
    let builder = Problem::builder()
        .batch(2)
        .heads(4, 2)
        .seq_len_q(9)
        .seq_len_kv(33)
        .head_dim(64);
    builder.mask(Mask::CAUSAL).return_lse(true)
}

#[test]
fn an_output_is_that_of_the_reference_in_either_form() {
    for layout in [Layout::bshd, Layout::bhsd] {
        let problem = problem().layout(layout).build().unwrap();
        let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 4);
        let attention = Attention::new(Device::cpu()).unwrap();
        let output = attention.forward(&problem, &q, &k, &v).unwrap();

        let want = reference(&problem, &q.view(), &k.view(), &v.view()).unwrap();
        let tolerance = Tolerance::of(problem.dtype());
        assert!(compare(&problem, &output.out.view(), &want, tolerance).unwrap().passed);
        let lse = output.lse.as_ref().unwrap().as_slice::<f32>().unwrap();
        assert!(compare_lse(&problem, lse, &want, tolerance).unwrap().passed);

        let (mut out, mut own_lse) = (vec![f16::NAN; output.out.layout().span()], vec![0.0; problem.lse_len()]);
        let view = ViewMut::from_slice(*problem.o_layout(), &mut out);
        let operands = Operands::forward(&q, &k, &v, view).with_mut(Name::Lse, &mut own_lse);
        attention.run(&attention.prepare(&problem).unwrap(), operands).unwrap();
        assert_eq!(
            (out.as_slice(), own_lse.as_slice()),
            (output.out.as_slice::<f16>().unwrap(), lse)
        );
    }
}

#[test]
fn no_log_sum_exp_unless_it_is_asked_for() {
    let problem = problem().return_lse(false).build().unwrap();
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 4);
    let output = Attention::new(Device::cpu())
        .unwrap()
        .forward(&problem, &q, &k, &v)
        .unwrap();
    assert!(output.lse.is_none());
}

#[test]
fn errors_name_the_argument() {
    let problem = problem().build().unwrap();
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 4);
    let attention = Attention::new(Device::cpu()).unwrap();
    let forward = |q: TensorView<'_>, k: TensorView<'_>, v: TensorView<'_>| {
        attention.forward(&problem, q, k, v).unwrap_err().to_string()
    };
    let wide = Tensor::filled(DType::F32, *problem.q_layout(), 0);
    assert_eq!(
        forward(wide.view(), k.view(), v.view()),
        "q holds f32; this call needs fp16"
    );
    assert!(forward(q.view(), q.view(), v.view()).starts_with("k has shape [2, 9, 4, 64]; this call needs"));
    let padded = Tensor::filled(DType::F16, Layout::bhsd([2, 33, 2, 64]), 0);
    assert!(forward(q.view(), k.view(), padded.view()).starts_with("v has strides"));

    let mut short = Tensor::filled(DType::F16, Layout::bshd([2, 8, 4, 64]), 0);
    let mut lse = vec![0f32; problem.lse_len()];
    let run = |operands: Operands<'_, Host>| attention.run(&problem, operands).unwrap_err();
    let error = run(Operands::forward(&q, &k, &v, &mut short).with_mut(Name::Lse, &mut lse));
    assert!(matches!(error, Error::Operand { name: Name::Out, .. }));
    assert!(error.to_string().starts_with("out has shape [2, 8, 4, 64]"), "{error}");
    let mut out = Tensor::filled(DType::F16, *problem.o_layout(), 0);
    assert_eq!(
        run(Operands::forward(&q, &k, &v, &mut out)).to_string(),
        "lse was not given; this call needs f32 [2, 4, 9] (`.with_mut(Name::Lse, …)`)"
    );
    let error = run(Operands::forward(&q, &k, &v, &mut out).with(Name::Lse, &lse));
    assert_eq!(
        error.to_string(),
        "lse is written by this call: give it by `.with_mut(Name::Lse, …)`"
    );
    // `main` prints `Debug` of an error that it returns.
    assert_eq!(format!("{error:?}"), error.to_string());
}

/// A verb that takes Q, K and V alone names the one that takes lengths.
#[test]
fn a_problem_with_lengths_is_told_which_verb_takes_them() {
    let problem = Problem::builder().batch(2).heads(4, 2).seq_len(9).head_dim(64);
    let problem = problem.kv_lengths(KvLengths::Cache).return_lse(true).build().unwrap();
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 4);
    let attention = Attention::new(Device::cpu()).unwrap();
    assert_eq!(
        attention.forward(&problem, &q, &k, &v).unwrap_err().to_string(),
        "seqused_k was not given, and `forward` does not take it: call `run` with \
         `Operands::forward(…).with(Name::SequsedK, …)`"
    );
    let equal = Problem::of(&q, &k, &v).return_lse(true).build().unwrap();
    let output = attention.forward(&equal, &q, &k, &v).unwrap();
    assert_eq!(
        attention
            .backward(&problem, &q, &k, &v, &output, &q)
            .unwrap_err()
            .to_string(),
        "seqused_k was not given, and `backward` does not take it: call `run` with \
         `Operands::backward(…).with(Name::SequsedK, …)`"
    );
}

#[test]
fn typed_slices_of_the_wrong_length_or_type_are_refused() {
    let error = Tensor::from_slice([1, 2, 1, 64], &[0f32; 129]).unwrap_err().to_string();
    assert_eq!(
        error,
        "129 values were given; shape [1, 2, 1, 64] with strides [128, 64, 64, 1] needs 128"
    );
    let tensor = Tensor::from_slice([1, 2, 1, 64], &[0f32; 128]).unwrap();
    let error = tensor.as_slice::<f16>().unwrap_err().to_string();
    assert_eq!(
        error,
        "the tensor holds f32, and the values are fp16; give or read values of f32"
    );
    let overlapping = Layout {
        shape: [1, 2, 1, 64],
        strides: [128, 0, 64, 1],
    };
    assert!(TensorView::from_slice(overlapping, &[0f32; 64]).is_ok());
    assert!(overlapping.check_injective("out").is_err());
}

/// The crates that a program names in `use` items.
fn crates_used(program: &str) -> BTreeSet<&str> {
    let paths = program.lines().filter_map(|line| line.strip_prefix("use "));
    paths.filter_map(|path| path.split([':', ';']).next()).collect()
}

#[test]
fn examples_need_no_crates_but_the_ones_they_are_about() {
    let own_kernel = include_str!("../../examples/02-own-kernel.rs");
    assert_eq!(
        crates_used(own_kernel),
        BTreeSet::from(["flashcore", "flashcore_sim", "std"])
    );
    for example in [
        include_str!("../../examples/01-attention.rs"),
        include_str!("../../examples/03-device-memory.rs"),
        include_str!("../../examples/04-which-kernel.rs"),
        include_str!("../../examples/06-gradients.rs"),
        include_str!("../../examples/07-serving.rs"),
        include_str!("../../examples/09-queue.rs"),
    ] {
        assert_eq!(crates_used(example), BTreeSet::from(["flashcore"]));
    }
    // Those that teach one thing are short: as many lines of code, the one of `fn main` and its end included.
    for example in [
        include_str!("../../examples/01-attention.rs"),
        include_str!("../../examples/03-device-memory.rs"),
        include_str!("../../examples/05-cudarc.rs"),
        include_str!("../../examples/06-gradients.rs"),
        include_str!("../../examples/07-serving.rs"),
        include_str!("../../examples/09-queue.rs"),
    ] {
        let is_code =
            |line: &&str| !line.is_empty() && !line.trim_start().starts_with("//") && !line.starts_with("use ");
        assert!(example.lines().filter(is_code).count() <= 15, "{example}");
    }
    // Paths in expressions would be others.
    assert!(!own_kernel.contains("bytemuck") && !own_kernel.contains("flashcore_ir"));
}
