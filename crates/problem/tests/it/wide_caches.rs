//! Caches of more than 2^31 elements.

use flashcore_problem::{DType, Direction, KvLengths, Layout, Problem, ProblemBuilder};

/// One row over 128 keys: what the test changes one field of.
fn valid() -> ProblemBuilder {
    Problem::builder().heads(1, 1).seq_len_q(1).seq_len_kv(128).head_dim(64)
}

fn refusal(builder: ProblemBuilder) -> String {
    builder.build().unwrap_err().to_string()
}

/// A cache may span more, a page of it not; and not where kernels count in 32 bits.
#[test]
fn caches_beyond_32_bit_indices() {
    let pages = |page_size, pages| KvLengths::Paged {
        page_size,
        pages,
        max_pages: 128,
    };
    let many = |batch| valid().batch(batch).kv_lengths(KvLengths::Cache);
    let paged = |page_size, count| valid().kv_lengths(pages(page_size, count));
    let cache = paged(16, 1 << 22).build().unwrap();
    assert_eq!(
        cache.k_layout().shape[0] * cache.k_layout().strides[0] as usize,
        1 << 32
    );
    assert!(many(1 << 20).build().is_ok());
    assert_eq!(
        refusal(paged(1 << 26, 2)),
        "the number of elements of k is 4294967296; at most 2147483648 is supported"
    );
    let q = Layout::bshd([1, 1, 1, 64]);
    let strided = |dim: usize, stride| {
        let mut layout = Layout::bshd([4, 64, 1, 64]);
        layout.strides[dim] = stride;
        valid().kv_lengths(pages(64, 4)).layouts(q, layout, layout, q)
    };
    assert!(strided(0, u32::MAX.into()).build().is_ok());
    assert!(refusal(strided(0, 1 << 32)).ends_with("strides must be below 2^32 elements"));
    assert_eq!(
        refusal(strided(1, 1 << 26)),
        "the span of k in elements is 4227858496; at most 2147483648 is supported"
    );
    assert!(many(1 << 20).dtype(DType::E4M3).build().is_ok());
    let narrow = many(1 << 20).direction(Direction::Backward);
    assert!(refusal(narrow).starts_with("the number of elements of k is"));
}
