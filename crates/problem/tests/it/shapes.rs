//! Tensors whose shape is not the problem's.

use flashcore_problem::{DType, Layout, Name, Operands, Problem, ProblemBuilder, Task, Tensor};

fn refused(builder: ProblemBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

#[test]
fn mismatched_tensors() {
    let problem = Problem::builder()
        .heads(1, 1)
        .seq_len(4)
        .head_dim(64)
        .return_lse(true)
        .build()
        .unwrap();
    let layout = *problem.q_layout();
    let right = Tensor::filled(DType::F16, layout, 0);
    let check = |q: &Tensor, out: Layout, lse: usize| {
        let (mut out, mut lse) = (Tensor::filled(DType::F16, out, 0), vec![0.0f32; lse]);
        let operands = Operands::forward(q, &right, &right, &mut out).with_mut(Name::Lse, &mut lse);
        let error = { operands }.check(&problem.tensors()).unwrap_err();
        error.to_string()
    };
    assert_eq!(
        check(&Tensor::filled(DType::F32, layout, 0), layout, 4),
        "q holds f32; this call needs fp16"
    );
    let longer = Tensor::filled(DType::F16, Layout::bshd([1, 5, 1, 64]), 0);
    assert_eq!(
        check(&longer, layout, 4),
        "q has shape [1, 5, 1, 64]; this call needs [1, 4, 1, 64] as [batch, seq, heads, head_dim]"
    );
    let mut padded = layout;
    padded.strides[1] = 72;
    assert_eq!(
        check(&right, padded, 4),
        "out has strides [256, 72, 64, 1] for shape [1, 4, 1, 64]; this call needs [256, 64, 64, 1]: build the task from \
         the layouts of its tensors"
    );
    assert_eq!(check(&right, layout, 3), "lse has shape [3]; this call needs [4]");
    // The reference takes tensors, not operands.
    let of_reference = |q: &Tensor| {
        let refused = problem.check_inputs(&q.view(), &right.view(), &right.view());
        refused.unwrap_err().to_string()
    };
    assert!(of_reference(&longer).starts_with("q has shape [1, 5, 1, 64]; this problem needs [1, 4, 1, 64]"));
    assert_eq!(
        of_reference(&Tensor::filled(DType::F16, padded, 0)),
        "q has strides [256, 72, 64, 1] for shape [1, 4, 1, 64]: the problem has other strides; build it from the layouts \
         of the tensors"
    );
}

/// Calls of the builder that are easily forgotten after `Problem::of`.
#[test]
fn shapes_of_pages_and_packed_rows_name_the_call_that_is_missing() {
    let tensor = |shape: [usize; 4]| Tensor::filled(DType::F16, shape.into(), 0);
    let (q, pages) = (tensor([2, 1, 8, 64]), tensor([40, 16, 2, 64]));
    assert_eq!(
        refused(Problem::of(&q, &pages, &pages)),
        "k has shape [40, 16, 2, 64]; this problem needs [2, 16, 2, 64] as [batch, seq, heads, head_dim]; pages [pages, \
         page_size, heads, head_dim] need `.paged(max_pages)`, and packed rows [1, total, heads, head_dim] \
         `.kv_lengths(KvLengths::Packed { .. })`"
    );
    assert!(Problem::of(&q, &pages, &pages).paged(7).build().is_ok());
    let packed = tensor([1, 20, 8, 64]);
    assert_eq!(
        refused(Problem::of(&packed, &pages, &pages).batch(3).seq_len_q(10).paged(7)),
        "q has shape [1, 20, 8, 64]; this problem needs [3, 10, 8, 64] as [batch, seq, heads, head_dim]; packed rows [1, \
         total, heads, head_dim] need `.packed_q(sequences, most)`"
    );
    // Other shapes are no such mistake.
    let [k, v] = [tensor([2, 16, 2, 64]), tensor([2, 8, 2, 64])];
    let other = refused(Problem::of(&q, &k, &v));
    assert!(other.ends_with("as [batch, seq, heads, head_dim]"), "{other}");
}
