//! Attention over parts of the keys, merged, is attention over all of them.

use flashcore::testing::{InputKind, Inputs, Tolerance, compare, reference};
use flashcore::{Attention, DType, Device, Part, Problem, ProblemBuilder, Tensor};

fn builder(dtype: DType) -> ProblemBuilder {
    Problem::builder()
        .batch(2)
        .heads(4, 2)
        .head_dim(64)
        .seq_len_q(7)
        .dtype(dtype)
        .return_lse(true)
}

/// Rows `range` of every sequence of K or V.
fn rows(tensor: &Tensor, range: std::ops::Range<usize>) -> Tensor {
    let [batch, _, heads, columns] = tensor.layout().shape;
    let shape = [batch, range.len(), heads, columns].into();
    Tensor::from_fn(tensor.dtype(), shape, |b, s, h, d| {
        tensor.view().get(b, range.start + s, h, d)
    })
}

#[test]
fn parts_of_the_keys_are_merged() {
    for (device, dtype) in [Device::cpu(), Device::best()]
        .into_iter()
        .flat_map(|device| [DType::F32, DType::BF16, DType::F16].map(|dtype| (device.clone(), dtype)))
    {
        let attention = Attention::new(device).unwrap();
        let all = builder(dtype).seq_len_kv(90).build().unwrap();
        let Inputs { q, k, v, .. } = Inputs::generate(&all, InputKind::Normal, 5);
        let part_of = |range: std::ops::Range<usize>| {
            let problem = builder(dtype).seq_len_kv(range.len()).build().unwrap();
            let (k, v) = (rows(&k, range.clone()), rows(&v, range));
            attention.forward(&problem, &q, &k, &v).unwrap()
        };
        let mut parts = [part_of(0..40), part_of(40..41), part_of(41..90)];
        // A part without keys, whose output may hold anything.
        let out = Tensor::from_fn(dtype, *all.o_layout(), |_, _, _, _| f32::NAN);
        let lse = Some(vec![f32::NEG_INFINITY; all.lse_len()]);
        let mut empty = attention.forward(&all, &q, &k, &v).unwrap();
        (empty.out, empty.lse) = (out, lse);
        let given: Vec<Part<'_>> = parts.iter().chain([&empty]).map(Part::from).collect();
        let merged = attention.combine(&all, &given).unwrap();
        let want = reference(&all, &q.view(), &k.view(), &v.view()).unwrap();
        let comparison = compare(&all, &merged.out.view(), &want, Tolerance::of(dtype)).unwrap();
        assert!(comparison.passed, "{dtype}: {comparison:?}");
        let usual = attention.forward(&all, &q, &k, &v).unwrap().lse.unwrap();
        for (merged, usual) in merged.lse.as_ref().unwrap().iter().zip(&usual) {
            assert!((merged - usual).abs() < 1e-4, "{merged}, {usual}");
        }
        // A part that counts twice, which the comparison must find.
        parts[1] = parts[0].clone();
        let given: Vec<Part<'_>> = parts.iter().map(Part::from).collect();
        let wrong = attention.combine(&all, &given).unwrap();
        assert!(
            !compare(&all, &wrong.out.view(), &want, Tolerance::of(dtype))
                .unwrap()
                .passed
        );
        // Nothing but parts without keys.
        let nothing = attention.combine(&all, &[(&empty).into(), (&empty).into()]).unwrap();
        assert!(nothing.out.bytes().iter().all(|byte| *byte == 0));
        assert!(nothing.lse.unwrap().iter().all(|lse| *lse == f32::NEG_INFINITY));
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let attention = Attention::new(Device::cpu()).unwrap();
    let problem = builder(DType::F32).seq_len_kv(9).build().unwrap();
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 5);
    let output = attention.forward(&problem, &q, &k, &v).unwrap();
    let refuse = |problem: &Problem, parts: &[Part<'_>]| attention.combine(problem, parts).unwrap_err().to_string();
    let part = Part::from(&output);
    assert_eq!(
        refuse(&problem, &[]),
        "the number of parts is 0; allowed are 1 to 8 (merge some of them first, and give the result as a part)"
    );
    assert!(refuse(&problem, &[part; 9]).starts_with("the number of parts is 9;"));
    let mut without_lse = output.clone();
    without_lse.lse = None;
    assert!(refuse(&problem, &[(&without_lse).into()]).starts_with("lse has shape [0]; this problem needs [56]"));
    let other = builder(DType::F32).seq_len_q(8).seq_len_kv(9).build().unwrap();
    assert!(refuse(&other, &[part]).starts_with("out has shape [2, 7, 4, 64]; this problem needs [2, 8, 4, 64]"));
    let other = builder(DType::F16).seq_len_kv(9).build().unwrap();
    assert_eq!(refuse(&other, &[part]), "out holds f32; this problem's dtype is fp16");
}
