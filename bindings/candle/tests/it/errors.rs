//! Refusals: each names its argument, what was given, and what is allowed.

use candle::{DType, Device, Result, Tensor};
use flashcore_candle::*;

fn of(shape: &[usize], dtype: DType) -> Tensor {
    Tensor::ones(shape, dtype, &Device::Cpu).unwrap()
}

fn refused(result: Result<Tensor>, message: &str) {
    let error = result.unwrap_err().to_string();
    // With RUST_BACKTRACE, candle appends one.
    assert_eq!(error.lines().next(), Some(message));
}

#[test]
fn slopes_that_do_not_fit() {
    let q = &of(&[1, 4, 2, 16], DType::F32);
    let alibi = |slopes: &Tensor| flash_attn_alibi(q, q, q, slopes, 1.0, true);
    refused(alibi(&of(&[2], DType::F16)), "alibi_slopes holds F16; it must be F32");
    refused(
        alibi(&of(&[3], DType::F32)),
        "alibi_slopes has shape [3]; it must be [num_heads], a slope for each query head",
    );
    let wide = of(&[2, 2], DType::F32);
    refused(
        alibi(&wide.narrow(1, 0, 1).unwrap().squeeze(1).unwrap()),
        "alibi_slopes is not contiguous; call `.contiguous()`",
    );
    let below = Tensor::new(&[0.5f32, -1.0], &Device::Cpu).unwrap();
    refused(
        alibi(&below),
        "alibi_slopes has -1 at 1; allowed are numbers from 0 to 1e5",
    );
    let variable = candle::Var::from_tensor(q).unwrap();
    let out = flash_attn_alibi(&variable, q, q, &of(&[2], DType::F32), 1.0, true).unwrap();
    let error = out.sum_all().unwrap().backward().unwrap_err().to_string();
    assert!(
        error.starts_with("alibi is alibi; the backward pass has no bias"),
        "{error}"
    );
}

#[test]
fn tensors_that_do_not_fit() {
    let q = &of(&[1, 4, 6, 16], DType::F16);
    let call = |k: &Tensor, v: &Tensor| flash_attn(q, k, v, 1.0, false);
    let k = &of(&[1, 5, 2, 16], DType::F16);
    refused(
        call(&of(&[1, 5, 2, 16], DType::BF16), k),
        "k holds BF16; q, k and v have one dtype",
    );
    let wide = &of(&[1, 4, 6, 16], DType::F64);
    refused(
        flash_attn(wide, wide, wide, 1.0, false),
        "q holds F64; allowed are F16, BF16 and F32",
    );
    refused(
        call(&of(&[5, 2, 16], DType::F16), k),
        "k has shape [5, 2, 16]; it must be [batch, seq, heads, head_dim]",
    );
    refused(
        call(k, &of(&[1, 5, 3, 16], DType::F16)),
        "v has shape [1, 5, 3, 16]; this problem needs [1, 5, 2, 16] as [batch, seq, heads, head_dim]",
    );
    let four = &of(&[1, 5, 4, 16], DType::F16);
    refused(
        call(four, four),
        "6 query heads are not a multiple of 4 K/V heads; each K/V head must serve the same number of query heads",
    );
    let wide = &of(&[1, 4, 1, 320], DType::F16);
    let error = flash_attn(wide, wide, wide, 1.0, false).unwrap_err().to_string();
    assert!(
        error.starts_with("head_dim is 320; allowed are multiples of 8 from 8 to 256"),
        "{error}"
    );
    let strided = &of(&[1, 5, 16, 2], DType::F16).transpose(2, 3).unwrap();
    let error = call(strided, k).unwrap_err().to_string();
    assert!(
        error.starts_with("k has stride 2 along head_dim; it must be 1"),
        "{error}"
    );
}

#[test]
fn values_that_are_not_allowed() {
    let q = &of(&[1, 4, 1, 16], DType::F32);
    let error = flash_attn(q, q, q, f32::NAN, false).unwrap_err().to_string();
    assert!(error.starts_with("softmax_scale is NaN"), "{error}");
    let result = flash_attn_alibi_windowed_softcap(q, q, q, None, 1.0, None, None, -1.0);
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("softcap is -1"), "{error}");
}

#[test]
fn lengths_that_do_not_fit() {
    let rows = &of(&[6, 2, 16], DType::F32);
    let sums = |values: &[u32]| Tensor::new(values, &Device::Cpu).unwrap();
    let call =
        |q: &Tensor, k: &Tensor, max_q, max_k| flash_attn_varlen(rows, rows, rows, q, k, max_q, max_k, 1.0, false);
    let fits = &sums(&[0, 2, 6]);
    call(fits, fits, 4, 4).unwrap();
    let of_floats = &of(&[3], DType::F32);
    refused(call(of_floats, fits, 4, 4), "seqlens_q holds F32; it must be U32");
    let one = &sums(&[0]);
    refused(
        call(fits, one, 4, 4),
        "seqlens_k has shape [1]; it must be [batch + 1], at least two entries",
    );
    refused(
        call(fits, &sums(&[0, 6]), 4, 6),
        "seqlens_k is for 1 sequences; seqlens_q is for 2",
    );
    let every_second = &sums(&[0, 9, 2, 9, 6, 9])
        .reshape((3, 2))
        .unwrap()
        .narrow(1, 0, 1)
        .unwrap();
    let every_second = &every_second.squeeze(1).unwrap();
    refused(
        call(every_second, fits, 4, 4),
        "seqlens_q is not contiguous; call `.contiguous()`",
    );
    let longest = "it must be at least 1: the rows of the longest sequence, or more";
    refused(call(fits, fits, 0, 4), &format!("max_seqlen_q is 0; {longest}"));
    refused(call(fits, fits, 4, 0), &format!("max_seqlen_k is 0; {longest}"));
    refused(
        call(fits, fits, 3, 4),
        "seqlens_q gives sequence 1 4 rows; the problem's bound is 3: raise it",
    );
    refused(
        call(fits, &sums(&[0, 2, 7]), 4, 5),
        "seqlens_k has 7 in entry 2; its tensors have 6 rows",
    );
    let falls = &sums(&[0, 4, 2]);
    refused(
        call(falls, fits, 4, 4),
        "seqlens_q decreases from 4 to 2 at entry 2; it must not",
    );
    let large = &sums(&[0, 2, u32::MAX]);
    refused(
        call(fits, large, 4, 4),
        "seqlens_k is 4294967295 in an entry; entries are from 0 to 2^31 - 1",
    );
}

#[test]
fn pages_that_do_not_fit() {
    let q = &of(&[6, 2, 16], DType::F32);
    let cache = &of(&[3, 32, 1, 16], DType::F32);
    let sums = &Tensor::new(&[0u32, 2, 6], &Device::Cpu).unwrap();
    let table = &Tensor::new(&[[0u32, 1], [2, 7]], &Device::Cpu).unwrap();
    let call = |sums_k: &Tensor, table: &Tensor, ranges, page| {
        flash_attn_varlen_paged_windowed(
            q, cache, cache, sums, sums_k, table, ranges, 4, 64, 1.0, None, None, page, None,
        )
    };
    call(sums, table, None, 32).unwrap();
    refused(
        call(sums, table, Some(sums), 32),
        "mm_prefix_ranges is not served by FlashCore: leave it out; masks are bands around the diagonal",
    );
    refused(
        call(sums, table, None, 16),
        "page_block_size is 16; the pages of k have 32 keys",
    );
    let refused_keys = |sums_k: &[u32], message| {
        let sums_k = &Tensor::new(sums_k, &Device::Cpu).unwrap();
        refused(call(sums_k, table, None, 32), message);
    };
    refused_keys(
        &[0, 6, 2],
        "a difference of seqlens_k has -4 for sequence 1; allowed are 0 to 64",
    );
    refused_keys(
        &[0, 65, 66],
        "a difference of seqlens_k has 65 for sequence 0; allowed are 0 to 64",
    );
    let one = &table.narrow(0, 0, 1).unwrap();
    refused(
        call(sums, one, None, 32),
        "block_table has shape [1, 2]; it must be [batch, max_pages], with the batch of seqlens_q",
    );
    let long = &Tensor::new(&[0u32, 2, 40], &Device::Cpu).unwrap();
    let error = call(long, table, None, 32).unwrap_err().to_string();
    assert!(
        error.starts_with("block_table has 7 in entry 1 of sequence 1; the cache has pages 0 to 2"),
        "{error}"
    );
}

#[test]
fn tensors_without_rows_are_checked() {
    let empty = |heads, dim| of(&[0, heads, dim], DType::F32);
    let (q, none) = (
        &of(&[6, 2, 16], DType::F32),
        &Tensor::new(&[0u32, 0], &Device::Cpu).unwrap(),
    );
    let sums = &Tensor::new(&[0u32, 6], &Device::Cpu).unwrap();
    let call = |k: &Tensor, sums_k: &Tensor| flash_attn_varlen(q, k, k, sums, sums_k, 6, 0, 1.0, false);
    let out = call(&empty(1, 16), none).unwrap().flatten_all().unwrap();
    assert!(out.to_vec1::<f32>().unwrap().iter().all(|&x| x == 0.0));
    refused(
        call(&empty(1, 16), &Tensor::new(0u32, &Device::Cpu).unwrap()),
        "seqlens_k has shape []; it must be [batch + 1], at least two entries",
    );
    let error = call(&empty(1, 8), none).unwrap_err().to_string();
    assert!(error.starts_with("k has shape [1, 1, 1, 8]"), "{error}");
    let table = &Tensor::new(&[[0u32]], &Device::Cpu).unwrap();
    for (shape, page, says) in [([3, 0, 1, 16], 0, "page_size is 0"), ([0, 32, 1, 16], 32, "pages is 0")] {
        let cache = &of(&shape, DType::F32);
        let paged = flash_attn_varlen_paged_windowed(
            q, cache, cache, sums, sums, table, None, 6, 6, 1.0, None, None, page, None,
        );
        let error = paged.unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
}
