//! Sets of problems with lengths: of a server, with the heads of Llama 3 8B, packed prompts, caches, pages, and batches
//! of both; and packed documents of a training step.

use flashcore_problem::{DType, KvLengths, Mask, Problem, ProblemBuilder, ProblemError, QLengths};

use crate::Case;
use crate::problems::llama_layer;
use crate::sequences::{Sequences, Span, each};

/// Keys of a page.
const PAGE_SIZES: [usize; 3] = [16, 64, 128];
/// Sequences of a step that decodes, and the keys of each.
const DECODING: [(&str, usize, Span); 6] = [
    ("b1-4k", 1, Span::Equal(4096)),
    ("b1-32k", 1, Span::Equal(32_768)),
    ("b8-1k-8k", 8, Span::Between([1024, 8192])),
    ("b64-1k-8k", 64, Span::Between([1024, 8192])),
    ("b64-4k", 64, Span::Equal(4096)),
    ("b256-512-2k", 256, Span::Between([512, 2048])),
];

/// A causal problem of a layer with bounds and totals that the sequences just reach. Keys are in pages, in a contiguous
/// cache (a page size of 0), or packed.
fn case(
    name: String,
    layer: ProblemBuilder,
    sequences: &[Sequences],
    packed_q: bool,
    page_size: Option<usize>,
) -> Result<Case, ProblemError> {
    let all: Vec<[usize; 2]> = each(sequences).map(|lens| lens.map(|len| len.unwrap_or(1))).collect();
    let of = |axis: usize| all.iter().map(move |lens| lens[axis]);
    let most = |axis: usize| of(axis).max().unwrap_or(1);
    let packed = |axis: usize| of(axis).sum::<usize>();
    let kv_lengths = match page_size {
        None => KvLengths::Packed {
            total: packed(1),
            used: false,
        },
        Some(0) => KvLengths::Cache,
        Some(page_size) => KvLengths::Paged {
            page_size,
            pages: of(1).map(|keys| keys.div_ceil(page_size)).sum(),
            max_pages: most(1).div_ceil(page_size),
        },
    };
    let builder = layer.batch(all.len()).mask(Mask::CAUSAL);
    let builder = builder.seq_len_q(most(0)).seq_len_kv(most(1)).kv_lengths(kv_lengths);
    let builder = match packed_q {
        true => builder.q_lengths(QLengths::Packed {
            total: packed(0),
            used: false,
        }),
        false => builder,
    };
    Ok(Case {
        sequences: sequences.to_vec(),
        ..Case::new(name, builder.build()?)
    })
}

/// Prompts, packed; and two batches of equal lengths without lengths too.
pub(crate) fn varlen(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let prompts = |name: &str, count, len| {
        let both = Some(len);
        let group = Sequences {
            count,
            rows: both,
            keys: both,
        };
        case(format!("varlen-{name}"), llama_layer(dtype), &[group], true, None)
    };
    let dense = |name: &str, batch, len| -> Result<Case, ProblemError> {
        let builder: ProblemBuilder = llama_layer(dtype).batch(batch).seq_len(len).mask(Mask::CAUSAL);
        let problem: Problem = builder.build()?;
        Ok(Case::new(format!("dense-{name}"), problem))
    };
    Ok(vec![
        prompts("16x100-4000", 16, Span::Between([100, 4000]))?,
        prompts("128x16-512", 128, Span::Between([16, 512]))?,
        prompts("4x8k", 4, Span::Equal(8192))?,
        dense("4x8k", 4, 8192)?,
        prompts("16x2k", 16, Span::Equal(2048))?,
        dense("16x2k", 16, 2048)?,
    ])
}

/// Documents of a training step, packed: 16,384 tokens in nine of 200 to 3,446.
pub(crate) fn documents(name: String, layer: ProblemBuilder) -> Result<Case, ProblemError> {
    let group = |count, len| Sequences {
        count,
        rows: Some(len),
        keys: Some(len),
    };
    let all = [group(8, Span::Between([200, 4000])), group(1, Span::Equal(2225))];
    case(name, layer, &all, true, None)
}

fn decoding(dtype: DType, prefix: &str, page_size: usize) -> Result<Vec<Case>, ProblemError> {
    let cases = DECODING.into_iter().map(|(name, count, keys)| {
        let group = Sequences {
            count,
            rows: None,
            keys: Some(keys),
        };
        let name = format!("{prefix}-{name}");
        case(name, llama_layer(dtype), &[group], false, Some(page_size))
    });
    cases.collect()
}

/// One row of each sequence, contiguous caches.
pub(crate) fn caches(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    decoding(dtype, "cache", 0)
}

/// The same with caches of pages.
pub(crate) fn paged(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let of_size = |size| decoding(dtype, &format!("paged{size}"), size);
    let sets = PAGE_SIZES.map(of_size).into_iter();
    Ok(sets.collect::<Result<Vec<_>, _>>()?.concat())
}

/// A chunk of a long prompt and sequences that decode, in one call; then chunks alone.
pub(crate) fn mixed(dtype: DType) -> Result<Vec<Case>, ProblemError> {
    let group = |count, rows, keys| Sequences {
        count,
        rows: Some(Span::Equal(rows)),
        keys: Some(Span::Equal(keys)),
    };
    let both = [group(1, 2048, 8192), group(63, 1, 4096)];
    let mut cases = Vec::new();
    for size in PAGE_SIZES {
        let name = format!("mixed{size}-2k-at-8k-63x1-at-4k");
        cases.push(case(name, llama_layer(dtype), &both, true, Some(size))?);
    }
    for (count, rows, keys) in [(16, 16, 4096), (16, 64, 4096), (4, 64, 16_384), (16, 256, 4096)] {
        let name = format!("chunks-{count}x{rows}-at-{}k", keys / 1024);
        cases.push(case(
            name,
            llama_layer(dtype),
            &[group(count, rows, keys)],
            true,
            Some(64),
        )?);
    }
    Ok(cases)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problems::{Work, cases};

    #[test]
    fn sets_have_the_lengths_of_their_names() {
        let work = |set: &str, name: &str| {
            let cases = cases(set, Some(DType::BF16)).unwrap();
            let case = cases.into_iter().find(|case| case.name == name).unwrap();
            (case.work().unwrap(), case)
        };
        let (packed, _) = work("varlen", "varlen-4x8k");
        let (dense, case) = work("varlen", "dense-4x8k");
        assert_eq!(packed, dense);
        assert_eq!(dense, Work::of_bounds(&case.problem));
        let (decode, case) = work("paged", "paged64-b64-4k");
        assert_eq!(
            decode.bytes,
            (64u64 * 4096 * 8 * 256 * 2 + 2 * 64 * 32 * 128 * 2) as f64
        );
        assert_eq!(decode.flops, 4.0 * (64 * 32) as f64 * (4096 * 128) as f64);
        assert_eq!(case.lengths().unwrap().block_table.unwrap().len(), 64 * 64);
        // Lengths that differ count as they are, not as their bounds.
        let (cache, case) = work("decode", "cache-b64-1k-8k");
        let of_bounds = Work::of_bounds(&case.problem).bytes;
        assert!(cache.bytes < 0.62 * of_bounds && cache.bytes > 0.5 * of_bounds);
        let (mixed, _) = work("mixed", "mixed16-2k-at-8k-63x1-at-4k");
        let pairs = 2048.0 * (6144.0 + 2049.0 / 2.0) + 63.0 * 4096.0;
        assert!((mixed.flops / (4.0 * 128.0 * 32.0 * pairs) - 1.0).abs() < 1e-12);
    }
}
