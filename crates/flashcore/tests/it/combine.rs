//! Attention over parts of the keys, merged, is attention over all of them.

use flashcore::unstable::testing::{InputKind, Inputs, Tolerance, compare, reference};
use flashcore::{
    Attention, Combine, DType, Device, Error, Name, Operands, Output, Problem, ProblemBuilder, Tensor, View,
};

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

/// The merge of parts: their output and log-sum-exp.
fn merge(attention: &Attention, problem: &Problem, parts: &[&Output]) -> Result<Output, Error> {
    let mut merged = parts[0].clone();
    let parts: Vec<[View<'_, _>; 2]> = parts
        .iter()
        .map(|part| [&part.out, part.lse.as_ref().unwrap()].map(View::from))
        .collect();
    let merge = Combine::of(problem, parts.len())?;
    let operands = Operands::combine(parts, &mut merged.out);
    let operands = match &mut merged.lse {
        Some(lse) if problem.return_lse() => operands.with_mut(Name::Lse, lse),
        _ => operands,
    };
    attention.run(&merge, operands)?;
    Ok(merged)
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
        let lse = Some(Tensor::from_fn(DType::F32, all.lse_layout(), |_, _, _, _| {
            f32::NEG_INFINITY
        }));
        let mut empty = attention.forward(&all, &q, &k, &v).unwrap();
        (empty.out, empty.lse) = (out, lse);
        let merged = merge(&attention, &all, &[&parts[0], &parts[1], &parts[2], &empty]).unwrap();
        let want = reference(&all, &q.view(), &k.view(), &v.view()).unwrap();
        let comparison = compare(&all, &merged.out.view(), &want, Tolerance::of(dtype)).unwrap();
        assert!(comparison.passed, "{dtype}: {comparison:?}");
        let usual = attention.forward(&all, &q, &k, &v).unwrap().lse.unwrap();
        let [merged_lse, usual] = [merged.lse.as_ref().unwrap(), &usual].map(|lse| lse.as_slice::<f32>().unwrap());
        for (merged, usual) in merged_lse.iter().zip(usual) {
            assert!((merged - usual).abs() < 1e-4, "{merged}, {usual}");
        }
        // A part that counts twice, which the comparison must find.
        parts[1] = parts[0].clone();
        let wrong = merge(&attention, &all, &[&parts[0], &parts[1], &parts[2]]).unwrap();
        assert!(
            !compare(&all, &wrong.out.view(), &want, Tolerance::of(dtype))
                .unwrap()
                .passed
        );
        // Nothing but parts without keys.
        let nothing = merge(&attention, &all, &[&empty, &empty]).unwrap();
        assert!(nothing.out.bytes().iter().all(|byte| *byte == 0));
        let lse = nothing.lse.unwrap();
        assert!(
            lse.as_slice::<f32>()
                .unwrap()
                .iter()
                .all(|lse| *lse == f32::NEG_INFINITY)
        );
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let attention = Attention::new(Device::cpu()).unwrap();
    let problem = builder(DType::F32).seq_len_kv(9).build().unwrap();
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 5);
    let output = attention.forward(&problem, &q, &k, &v).unwrap();
    let refuse = |problem: &Problem, parts: &[&Output]| merge(&attention, problem, parts).unwrap_err().to_string();
    assert_eq!(
        Combine::of(&problem, 0).unwrap_err().to_string(),
        "the number of parts is 0; allowed are 1 to 8 (merge some of them first, and give the result as a part)"
    );
    assert!(refuse(&problem, &[&output; 9]).starts_with("the number of parts is 9;"));
    let mut short = output.clone();
    short.lse = Some(Tensor::filled(DType::F32, [7].into(), 0));
    assert!(refuse(&problem, &[&output, &short]).starts_with("lse1 has shape [7]; this call needs [2, 4, 7]"));
    let other = builder(DType::F32).seq_len_q(8).seq_len_kv(9).build().unwrap();
    assert!(refuse(&other, &[&output]).starts_with("out0 has shape [2, 7, 4, 64]; this call needs [2, 8, 4, 64]"));
    let other = builder(DType::F16).seq_len_kv(9).build().unwrap();
    assert_eq!(refuse(&other, &[&output]), "out0 holds f32; this call needs fp16");
    assert!(Combine::of(&problem.backward().unwrap(), 2).is_err());
}
