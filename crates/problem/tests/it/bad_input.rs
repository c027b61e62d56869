//! Invalid problems and tensors, and their error messages.

use flashcore_problem::{
    DType, InputKind, Inputs, KvLengths, Layout, Lengths, MAX_SOFTMAX_SCALE, Mask, Problem, ProblemBuilder, QLengths,
    Tensor, TensorView, View, ViewMut, compare, compare_lse, reference, reference_rows,
};
use flashcore_problem::{ProblemError, ReferenceRow, Slack, Tolerance};

/// B1 H1 S128 D64: what a test changes one field of.
fn valid() -> ProblemBuilder {
    Problem::builder().heads(1, 1).seq_len(128).head_dim(64)
}

fn refusal(builder: ProblemBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

#[test]
fn what_has_no_default_must_be_given() {
    let builder = Problem::builder;
    let rest = "before `.build()`";
    assert_eq!(
        refusal(builder().seq_len(8).head_dim(64)),
        format!("heads was not given; call `.heads(query_heads, kv_heads)` {rest}")
    );
    assert_eq!(
        refusal(builder().heads(1, 1).seq_len_kv(8).head_dim(64)),
        format!("seq_len_q was not given; call `.seq_len(n)` or `.seq_len_q(n)` {rest}")
    );
    assert_eq!(
        refusal(builder().heads(1, 1).seq_len_q(8).head_dim(64)),
        format!("seq_len_kv was not given; call `.seq_len_kv(n)` {rest}")
    );
    assert_eq!(
        refusal(builder().heads(1, 1).seq_len(8)),
        format!("head_dim was not given; call `.head_dim(n)` {rest}")
    );
    // A problem has all of them.
    let problem = ProblemBuilder::from(&valid().build().unwrap());
    assert_eq!(problem.build(), valid().build());
}

#[test]
fn zero_sizes() {
    let make = valid;
    assert_eq!(refusal(make().batch(0)), "batch is 0; it must be at least 1");
    assert_eq!(refusal(make().heads(0, 1)), "heads is 0; it must be at least 1");
    assert_eq!(refusal(make().heads(1, 0)), "kv_heads is 0; it must be at least 1");
    assert_eq!(refusal(make().seq_len_q(0)), "seq_len_q is 0; it must be at least 1");
    assert_eq!(refusal(make().seq_len_kv(0)), "seq_len_kv is 0; it must be at least 1");
    assert_eq!(refusal(make().head_dim(0)), "head_dim is 0; it must be at least 1");
    assert_eq!(refusal(make().head_dim_v(0)), "head_dim_v is 0; it must be at least 1");
}

#[test]
fn shapes_beyond_memory_are_refused() {
    for shape in [
        [usize::MAX, usize::MAX, 2, 16],
        [2, 1 << 33, 1 << 33, 8],
        [2, 2, 2, usize::MAX],
    ] {
        let error = Tensor::from_slice(shape, &[0f32; 3]).unwrap_err().to_string();
        assert!(error.starts_with("the span of the tensor in elements is "), "{error}");
        assert!(TensorView::from_slice(Layout::bhsd(shape), &[0f32; 3]).is_err());
    }
}

#[test]
fn strides_beyond_memory_are_refused_where_values_are_read() {
    let mut memory = [0f32; 4];
    for (shape, strides) in [
        ([2, 2, 1, 1], [i64::MAX, i64::MAX, 1, 1]), // no i64 holds their sum
        ([3, 1, 1, 1], [i64::MAX, 1, 1, 1]),        // nor their product
        ([2, 1, 1, 1], [1 << 62, 1, 1, 1]),         // so many bytes and 4 are 4 in 64 bits
        ([usize::MAX, 1, 1, 2], [i64::MAX, 1, 1, 1]),
        ([1, 1, 2, 2], [4, 4, -2, 1]),
    ] {
        let layout = Layout { shape, strides };
        let read = View::from_slice(layout, &memory).values::<f32>().unwrap_err();
        let written = ViewMut::from_slice(layout, &mut memory)
            .into_values::<f32>()
            .unwrap_err();
        for error in [read, written] {
            assert_eq!(
                error.to_string(),
                format!(
                    "the tensor has strides {strides:?} for shape {shape:?}: they reach before its memory, which has 16 bytes, \
                     or past all memory"
                )
            );
        }
    }
    let strides = [i64::MAX, i64::MIN, 2, 1]; // of dimensions without a step
    let layout = Layout {
        shape: [1, 1, 2, 2],
        strides,
    };
    assert_eq!(View::from_slice(layout, &memory).values::<f32>().unwrap(), memory);
}

#[test]
fn splits_have_keys_and_no_more_than_a_sequence_can() {
    let keys = |keys| refusal(valid().batch_invariant(keys));
    assert!(keys(0).starts_with("batch_invariant is 0; a split has 1 key or more"));
    assert!(keys(usize::MAX).ends_with("; at most 268435456 is supported"));
}

#[test]
fn invalid_head_dims() {
    let rest = "allowed are multiples of 8 from 8 to 256 (pad the tensors with zero columns to the next multiple of 8)";
    assert_eq!(refusal(valid().head_dim(7)), format!("head_dim is 7; {rest}"));
    assert_eq!(refusal(valid().head_dim(264)), format!("head_dim is 264; {rest}"));
    assert_eq!(refusal(valid().head_dim_v(12)), format!("head_dim_v is 12; {rest}"));
}

#[test]
fn heads_not_a_multiple_of_kv_heads() {
    assert_eq!(
        refusal(valid().heads(8, 3)),
        "8 query heads are not a multiple of 3 K/V heads; each K/V head must serve the same number of query heads"
    );
}

#[test]
fn sizes_beyond_32_bit_indices() {
    assert_eq!(
        refusal(valid().seq_len_q(1 << 29)),
        "seq_len_q is 536870912; at most 268435456 is supported"
    );
    assert_eq!(
        refusal(valid().batch(1 << 16).seq_len(1 << 16)),
        "the number of elements of q is 274877906944; at most 2147483648 is supported"
    );
    // The product overflows a u64.
    let huge = valid().batch(usize::MAX).heads(usize::MAX, 1).seq_len(1 << 28);
    assert!(matches!(huge.build(), Err(ProblemError::TooLarge { .. })));
    let mut sparse = Layout::bshd([2, 128, 1, 64]);
    sparse.strides[0] = 1 << 40;
    let dense = Layout::bshd([2, 128, 1, 64]);
    assert_eq!(
        refusal(valid().batch(2).layouts(dense, sparse, dense, dense)),
        "the span of k in elements is 1099511635968; at most 2147483648 is supported"
    );
}

#[test]
fn invalid_scale_softcap_and_offsets() {
    for scale in [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -1.0,
        0.0,
        1.01e5,
        1e7,
        f32::MAX,
    ] {
        assert_eq!(
            refusal(valid().softmax_scale(scale)),
            format!("softmax_scale is {scale}; it must be finite, above 0 and at most 1e5, the largest that is tested")
        );
    }
    for cap in [f32::NAN, f32::INFINITY, -30.0, 0.0, 0.9e-5, 1001.0] {
        assert_eq!(
            refusal(valid().softcap(cap)),
            format!("softcap is {cap}; it must be finite, from 1e-5 to 1e3 (leave it out for no cap)")
        );
    }
    for scale in [1e-45, 1.0, MAX_SOFTMAX_SCALE] {
        assert_eq!(valid().softmax_scale(scale).build().unwrap().softmax_scale(), scale);
    }
    assert_eq!(
        refusal(valid().offsets(i32::MIN, 0)),
        "q_offset is -2147483648; it must lie within ±2^28"
    );
    assert_eq!(
        refusal(valid().offsets(0, 1 << 30)),
        "kv_offset is 1073741824; it must lie within ±2^28"
    );
}

#[test]
fn invalid_layouts() {
    let dense = Layout::bshd([1, 128, 1, 64]);
    let with = |strides| Layout {
        shape: dense.shape,
        strides,
    };
    let refused = |q: Layout, o: Layout| refusal(valid().layouts(q, dense, dense, o));
    assert_eq!(
        refused(with([8192, 1, 64, 128]), dense),
        "q has stride 128 along head_dim; it must be 1 (make the last dimension contiguous, e.g. `.contiguous()` in \
         PyTorch)"
    );
    assert_eq!(
        refused(with([8192, -64, 64, 1]), dense),
        "q has strides [8192, -64, 64, 1] for shape [1, 128, 1, 64]: a negative stride is not supported; copy the \
         tensor first"
    );
    assert_eq!(
        refused(dense, with([8192, 32, 64, 1])),
        "out has strides [8192, 32, 64, 1] for shape [1, 128, 1, 64]: elements overlap; those of an output must not"
    );
    assert_eq!(
        refused(Layout::bshd([1, 64, 1, 64]), dense),
        "q has shape [1, 64, 1, 64]; this problem needs [1, 128, 1, 64] as [batch, seq, heads, head_dim]"
    );
}

#[test]
fn invalid_kinds_of_lengths() {
    let paged = |page_size, pages, max_pages| {
        let paged = KvLengths::Paged {
            page_size,
            pages,
            max_pages,
        };
        refusal(valid().seq_len(100).kv_lengths(paged))
    };
    assert_eq!(paged(0, 9, 9), "page_size is 0; it must be at least 1");
    assert_eq!(paged(16, 0, 7), "pages is 0; it must be at least 1");
    assert_eq!(
        paged(16, 9, 6),
        "max_pages is 6; pages of page_size keys must hold seq_len_kv keys: raise it, or lower seq_len_kv"
    );
    let packed = valid().seq_len(8).q_lengths(QLengths::Packed { total: 0, used: false });
    assert_eq!(refusal(packed), "total of q_lengths is 0; it must be at least 1");
    for batch in [usize::MAX, (1 << 31) + 1] {
        let many = valid().seq_len(8).batch(batch);
        let many = many.q_lengths(QLengths::Packed { total: 9, used: false });
        assert_eq!(
            refusal(many.kv_lengths(KvLengths::Packed { total: 9, used: false })),
            format!("the number of heads of all sequences is {batch}; at most 2147483648 is supported")
        );
    }
}

/// Every mistake in the values of lengths names the array, and the entry or sequence.
#[test]
fn invalid_values_of_lengths() {
    let problem = valid()
        .batch(2)
        .seq_len_q(4)
        .seq_len_kv(40)
        .mask(Mask::window(Some(15), Some(0)));
    let paged = KvLengths::Paged {
        page_size: 16,
        pages: 5,
        max_pages: 3,
    };
    let problem = problem
        .q_lengths(QLengths::Packed { total: 6, used: true })
        .kv_lengths(paged)
        .build()
        .unwrap();
    let right = Lengths {
        cu_seqlens_q: Some(vec![0, 2, 6]),
        seqused_q: Some(vec![2, 3]),
        seqused_k: Some(vec![0, 40]),
        block_table: Some(vec![-1, -1, -1, -1, 4, 0]), // the first page of sequence 1 is out of every window
        ..Lengths::default()
    };
    assert_eq!(
        problem.sequences(&right.as_slices()).unwrap()[1].kv_row(39),
        Some([0, 7])
    );
    let wrong = |change: fn(&mut Lengths<Vec<i32>>)| {
        let mut lengths = right.clone();
        change(&mut lengths);
        problem.sequences(&lengths.as_slices()).unwrap_err().to_string()
    };
    assert_eq!(
        wrong(|l| l.seqused_k = None),
        "seqused_k was not given; this problem of 2 sequences needs 2 entries of it"
    );
    assert_eq!(
        wrong(|l| l.cu_seqlens_k = Some(vec![0, 1, 2])),
        "cu_seqlens_k was given, but this problem of 2 sequences has no use for it: leave it out"
    );
    assert_eq!(
        wrong(|l| l.cu_seqlens_q = Some(vec![0, 6])),
        "cu_seqlens_q has 2 entries; this problem of 2 sequences needs 3"
    );
    assert_eq!(
        wrong(|l| l.cu_seqlens_q = Some(vec![1, 2, 6])),
        "cu_seqlens_q starts at 1; it must start at 0"
    );
    assert_eq!(
        wrong(|l| l.cu_seqlens_q = Some(vec![0, 2, 1])),
        "cu_seqlens_q decreases from 2 to 1 at entry 2; it must not"
    );
    assert_eq!(
        wrong(|l| l.cu_seqlens_q = Some(vec![0, 3, 7])),
        "cu_seqlens_q has 7 in entry 2; its tensors have 6 rows"
    );
    assert_eq!(
        wrong(|l| l.cu_seqlens_q = Some(vec![0, 5, 6])),
        "cu_seqlens_q gives sequence 0 5 rows; the problem's bound is 4: raise it"
    );
    // Each sequence is judged by itself, also behind one that is wrong.
    let mut below = right.clone();
    below.cu_seqlens_q = Some(vec![0, i32::MIN, 5]);
    let found = problem.length_findings(&below.as_slices());
    let why = "cu_seqlens_q has -2147483648 in entry 1; it must be 0 or more";
    assert_eq!((found.len(), found[1].to_string()), (2, why.to_string()));
    assert_eq!(
        wrong(|l| l.seqused_q = Some(vec![2, 5])),
        "seqused_q has 5 for sequence 1; allowed are 0 to 4"
    );
    assert_eq!(
        wrong(|l| l.seqused_k = Some(vec![-1, 2])),
        "seqused_k has -1 for sequence 0; allowed are 0 to 40"
    );
    assert_eq!(
        wrong(|l| l.block_table = Some(vec![-1, -1, -1, 0, 4, 5])),
        "block_table has 5 in entry 2 of sequence 1; the cache has pages 0 to 4"
    );
    assert_eq!(
        wrong(|l| l.block_table = Some(vec![-1, -1, -1, 0, -1, 0])),
        "block_table has -1 in entry 1 of sequence 1, no page, but rows see keys of it"
    );
}

#[test]
fn deserialising_validates() {
    let json = serde_json::to_string(&Problem::named("small").unwrap()).unwrap();
    let edited = json.replace("\"head_dim\":64", "\"head_dim\":7");
    assert_ne!(json, edited);
    let error = serde_json::from_str::<Problem>(&edited).unwrap_err().to_string();
    assert!(
        error.starts_with("head_dim is 7; allowed are multiples of 8"),
        "{error}"
    );
}

#[test]
fn short_and_misaligned_buffers() {
    let layout = Layout::bshd([1, 4, 1, 8]);
    let words = [0u32; 16];
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    assert_eq!(
        TensorView::new("k", DType::F16, layout, &bytes[..62])
            .unwrap_err()
            .to_string(),
        "k needs 64 bytes for its shape and strides; the buffer has 62"
    );
    assert_eq!(
        TensorView::new("v", DType::F32, Layout::bshd([1, 1, 1, 8]), &bytes[2..])
            .unwrap_err()
            .to_string(),
        "v's data is not aligned to its f32 elements (4 bytes); copy it to memory that is"
    );
    let mut overlapping = layout;
    overlapping.strides[1] = 4;
    assert!(TensorView::new("q", DType::F16, overlapping, bytemuck::cast_slice(&words)).is_ok());
    let refused = overlapping.check_injective("out");
    assert!(matches!(refused, Err(ProblemError::Tensor { tensor: "out", .. })));
}

#[test]
fn reference_errors() {
    let problem = valid().seq_len(8).build().unwrap();
    let Inputs { q, k, v, .. } = Inputs::generate(&problem, InputKind::Normal, 1);
    let (q, k, v) = (q.view(), k.view(), v.view());
    let rows = reference_rows(&problem, &q, &k, &v, &Lengths::default(), &[[0, 0, 7], [0, 0, 8]]);
    assert_eq!(rows.unwrap_err().to_string(), "row index is 8; at most 7 is supported");
    let other = valid().seq_len(8).mask(Mask::CAUSAL).heads(2, 1).build().unwrap();
    assert!(matches!(
        reference(&other, &q, &k, &v),
        Err(ProblemError::Shape { tensor: "q", .. })
    ));
}

#[test]
fn comparison_errors() {
    let problem = valid().seq_len(8).build().unwrap();
    let tolerance = Tolerance::of(DType::F16);
    let (out, hull) = (vec![0.0; 64], vec![[-1.0, 1.0]; 64]);
    let slack = Slack { out, hull, lse: 0.0 };
    let right = ReferenceRow {
        index: [0, 0, 7],
        out: vec![0.0; 64],
        lse: 0.0,
        largest_score: 0.0,
        slack,
    };
    let mut short = [right.clone()];
    short[0].out.truncate(3);
    let mut beyond = [right];
    beyond[0].index[2] = 8;
    let out = Tensor::poisoned(DType::F16, *problem.o_layout());
    assert!(matches!(
        compare(&problem, &out.view(), &short, tolerance),
        Err(ProblemError::Shape { .. })
    ));
    assert!(matches!(
        compare(&problem, &out.view(), &beyond, tolerance),
        Err(ProblemError::Shape { .. })
    ));
    assert!(matches!(
        compare_lse(&problem, &[0.0; 8], &beyond, tolerance),
        Err(ProblemError::Shape { .. })
    ));
    let wrong = Tensor::poisoned(DType::BF16, *problem.o_layout());
    assert!(matches!(
        compare(&problem, &wrong.view(), &short, tolerance),
        Err(ProblemError::DType { .. })
    ));
}

#[test]
fn a_page_that_no_row_sees_may_be_missing() {
    // The band of every row lies past the last key.
    let problem = valid()
        .seq_len_q(4)
        .seq_len_kv(8)
        .mask(Mask::window(Some(0), Some(0)))
        .offsets(100, 0);
    let paged = KvLengths::Paged {
        page_size: 4,
        pages: 1,
        max_pages: 2,
    };
    let problem = problem.kv_lengths(paged).build().unwrap();
    let lengths = Lengths {
        seqused_k: Some(&[5][..]),
        block_table: Some(&[0, -1][..]),
        ..Lengths::default()
    };
    assert_eq!(problem.sequences(&lengths).unwrap()[0].len_kv, 5);
}

#[test]
fn sinks_and_slopes_that_do_not_fit() {
    use flashcore_problem::Alibi;
    assert_eq!(
        refusal(valid().sinks(DType::E4M3)),
        "sinks is e4m3; sinks are f32, fp16 or bf16"
    );
    let small = refusal(valid().alibi(Alibi::Heads).softmax_scale(1e-31));
    assert!(small.starts_with("softmax_scale is 0.0"), "{small}");
    assert!(
        small.ends_with("with ALiBi it must be at least 1e-24: the bias is divided by it"),
        "{small}"
    );
    let backward = |builder: ProblemBuilder| builder.build().unwrap().backward().unwrap_err().to_string();
    assert!(backward(valid().sinks(DType::F32)).starts_with("sinks is f32; the backward pass takes none"));
    assert!(backward(valid().alibi(Alibi::Heads)).starts_with("alibi is alibi; the backward pass has no bias"));

    let problem = valid()
        .batch(2)
        .sinks(DType::BF16)
        .alibi(Alibi::BatchHeads)
        .build()
        .unwrap();
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let (q, k, v) = (inputs.q.view(), inputs.k.view(), inputs.v.view());
    assert!(problem.check_inputs(&q, &k, &v).is_ok());
    let bare = TensorView::new("q", q.dtype(), *q.layout(), q.bytes()).unwrap();
    let why = |q: &TensorView<'_>| problem.check_inputs(q, &k, &v).unwrap_err().to_string();
    assert_eq!(
        why(&bare),
        "0 sinks were given; this problem needs 1, [num_heads] (`TensorView::with_sinks` of q)"
    );
    let (sinks, slopes) = ([0.5], [0.5, 1.0]);
    assert_eq!(
        why(&bare.with_sinks(&sinks).with_alibi_slopes(&sinks)),
        "1 alibi_slopes were given; this problem needs 2, [batch, num_heads] (`TensorView::with_alibi_slopes` of q)"
    );
    let with = |sink: f32, slope: f32| {
        let (sinks, slopes) = ([sink], [1.0, slope]);
        why(&bare.with_sinks(&sinks).with_alibi_slopes(&slopes))
    };
    let allowed = "allowed are numbers up to 1e38 that bf16 has, and −∞ for no sink";
    assert_eq!(with(0.1, 1.0), format!("sinks has 0.1 at 0; {allowed}"));
    assert_eq!(with(f32::INFINITY, 1.0), format!("sinks has inf at 0; {allowed}"));
    // Its product with log2(e) is not finite.
    let large = 2f32.powi(127);
    assert_eq!(with(large, 1.0), format!("sinks has {large} at 0; {allowed}"));
    assert_eq!(with(f32::NAN, 1.0), format!("sinks has NaN at 0; {allowed}"));
    assert_eq!(
        with(0.5, -1.0),
        "alibi_slopes has -1 at 1; allowed are numbers from 0 to 1e5"
    );
    let none = valid().batch(2).build().unwrap();
    let unwanted = none.check_inputs(&bare.with_alibi_slopes(&slopes), &k, &v).unwrap_err();
    assert_eq!(
        unwanted.to_string(),
        "alibi_slopes were given; this problem has none: leave them out, or build it with them"
    );
}
