//! From the arguments of a call to a [`Problem`].

use candle::{DType, DeviceLocation, Layout, Tensor};
use flashcore::{KvLengths, Name, Problem, QLengths};

use crate::op::Lengths;
use crate::{Error, FlashAttn};

/// The three tensors, in the order in which they are given.
pub(crate) const INPUTS: [Name; 3] = [Name::Q, Name::K, Name::V];

/// Their names in errors.
pub(crate) const TENSORS: [&str; 3] = ["q", "k", "v"];

/// What the call asks for. `None` where no row sees a key, because there are no rows or no keys:
/// the result is zeros.
pub(crate) fn problem(
    options: &FlashAttn,
    lengths: Lengths<'_>,
    tensors: [(DType, &Layout); 3],
    location: DeviceLocation,
) -> Result<Option<Problem>, Error> {
    let dtype = tensors[0].0;
    for (tensor, (given, _)) in TENSORS.into_iter().zip(tensors) {
        let allowed = match given {
            DType::F16 | DType::BF16 | DType::F32 if given == dtype => continue,
            DType::F16 | DType::BF16 | DType::F32 => "q, k and v have one dtype",
            _ => "allowed are F16, BF16 and F32",
        };
        return Err(Error::DType { tensor, given, allowed });
    }
    const DENSE: &str = "[batch, seq, heads, head_dim]";
    const PACKED: &str = "[total, heads, head_dim]";
    const PAGES: &str = "[pages, page_block_size, heads, head_dim]";
    let (of_q, of_kv) = match lengths.map(|lengths| &lengths.block_table) {
        None => (DENSE, DENSE),
        Some(None) => (PACKED, PACKED),
        Some(Some(_)) => (PACKED, PAGES),
    };
    let four = |place: usize, expected| four_dimensions(TENSORS[place], tensors[place].1, expected, expected == PACKED);
    let (mut q, mut k, mut v) = (four(0, of_q)?, four(1, of_kv)?, four(2, of_kv)?);
    // No problem is empty: what has no rows is checked as if it had one. A cache has pages.
    let mut is_empty = one_row(&mut q);
    if of_kv != PAGES && k.shape[..2] == v.shape[..2] {
        is_empty |= one_row(&mut k);
        one_row(&mut v);
    }
    let [q_batch, q_rows, heads, head_dim] = q.shape;
    let [kv_batch, kv_rows, kv_heads, _] = k.shape;
    let seq_len_kv = lengths.map_or(kv_rows, |lengths| lengths.max_seqlen_k);
    let builder = Problem::builder().heads(heads, kv_heads).head_dim(head_dim);
    let builder = builder.layouts(q, k, v, flashcore::Layout::bshd(q.shape));
    let builder = builder.dtype(match dtype {
        DType::F16 => flashcore::DType::F16,
        DType::BF16 => flashcore::DType::BF16,
        _ => flashcore::DType::F32,
    });
    if let Some(slopes) = &options.alibi_slopes {
        let expected = "[num_heads], a slope for each query head";
        check_array("alibi_slopes", slopes, &[DType::F32], location, expected, |dims| {
            dims == [heads]
        })?;
    }
    let builder = options.of(builder, seq_len_kv);
    let builder = match lengths {
        None => builder.batch(q_batch).seq_len_q(q_rows).seq_len_kv(seq_len_kv),
        Some(lengths) => {
            let batch = check_entries("seqlens_q", &lengths.seqlens_q, location)?;
            let of_keys = check_entries("seqlens_k", &lengths.seqlens_k, location)?;
            if of_keys != batch {
                let (given, allowed) = (format!("for {of_keys} sequences"), format!("seqlens_q is for {batch}"));
                return Err(Error::argument("seqlens_k", given, allowed));
            }
            let keys = match &lengths.block_table {
                None => KvLengths::Packed {
                    total: kv_rows,
                    used: false,
                },
                Some(block_table) => KvLengths::Paged {
                    page_size: kv_rows,
                    pages: kv_batch,
                    max_pages: check_table(block_table, batch, location)?,
                },
            };
            let bounds = [
                ("max_seqlen_q", lengths.max_seqlen_q),
                ("max_seqlen_k", lengths.max_seqlen_k),
            ];
            if let Some((argument, _)) = bounds.into_iter().find(|(_, max)| *max == 0 && !is_empty) {
                let allowed = "it must be at least 1: the rows of the longest sequence, or more";
                return Err(Error::argument(argument, 0, allowed));
            }
            let total = q_rows;
            let builder = builder.batch(batch).q_lengths(QLengths::Packed { total, used: false });
            let builder = builder.kv_lengths(keys);
            builder
                .seq_len_q(lengths.max_seqlen_q.max(1))
                .seq_len_kv(seq_len_kv.max(1))
        }
    };
    let problem = builder.build()?;
    Ok((!is_empty).then_some(problem))
}

/// Gives a tensor without rows or batches one of them; whether it had none.
fn one_row(layout: &mut flashcore::Layout) -> bool {
    let rows = &mut layout.shape[..2];
    let is_empty = rows.contains(&0);
    for n in rows {
        *n = (*n).max(1);
    }
    is_empty
}

/// A tensor's layout; packed rows are those of a batch of one.
fn four_dimensions(
    tensor: &'static str,
    layout: &Layout,
    expected: &'static str,
    packed: bool,
) -> Result<flashcore::Layout, Error> {
    let (dims, strides) = (layout.dims(), layout.stride());
    let mut found = flashcore::Layout::bshd([1; 4]);
    let first = usize::from(packed);
    if dims.len() + first != 4 {
        let given = dims.to_vec();
        return Err(Error::Rank {
            tensor,
            given,
            expected,
        });
    }
    found.shape[first..].copy_from_slice(dims);
    for (to, stride) in found.strides[first..].iter_mut().zip(strides) {
        *to = *stride as i64;
    }
    if packed {
        found.strides[0] = found.strides[1] * found.shape[1] as i64;
    }
    Ok(found)
}

/// Checks an array of `batch + 1` sums of lengths, and returns the batch.
fn check_entries(tensor: &'static str, entries: &Tensor, location: DeviceLocation) -> Result<usize, Error> {
    let expected = "[batch + 1], at least two entries";
    let fits = |dims: &[usize]| dims.len() == 1 && dims[0] >= 2;
    check_array(tensor, entries, &[DType::U32], location, expected, fits)?;
    Ok(entries.elem_count() - 1)
}

/// Checks a block table, and returns the entries of a sequence.
fn check_table(table: &Tensor, batch: usize, location: DeviceLocation) -> Result<usize, Error> {
    let expected = "[batch, max_pages], with the batch of seqlens_q";
    let fits = |dims: &[usize]| dims.len() == 2 && dims[0] == batch;
    check_array(
        "block_table",
        table,
        &[DType::U32, DType::I32],
        location,
        expected,
        fits,
    )?;
    Ok(table.dims()[1])
}

/// Checks that a tensor of one of these dtypes is on a device, without gaps, and of a shape that fits.
fn check_array(
    tensor: &'static str,
    of: &Tensor,
    dtypes: &[DType],
    location: DeviceLocation,
    expected: &'static str,
    fits: impl Fn(&[usize]) -> bool,
) -> Result<(), Error> {
    let (given, at) = (of.dtype(), of.device().location());
    if !dtypes.contains(&given) {
        let allowed = match dtypes {
            [DType::F32] => "it must be F32",
            [DType::U32] => "it must be U32",
            _ => "allowed are U32 and I32",
        };
        return Err(Error::DType { tensor, given, allowed });
    }
    if at != location {
        let (given, expected) = (at, location);
        return Err(Error::Device {
            tensor,
            given,
            expected,
        });
    }
    if !of.is_contiguous() {
        return Err(Error::Strided { tensor });
    }
    if !fits(of.dims()) {
        let given = of.dims().to_vec();
        return Err(Error::Rank {
            tensor,
            given,
            expected,
        });
    }
    Ok(())
}

/// The layout of a tensor of a problem.
pub(crate) fn layout_of(problem: &Problem, name: Name) -> Result<flashcore::Layout, Error> {
    match problem.tensor(name) {
        Some(spec) => Ok(spec.layout),
        None => Err(Error::argument(
            name.as_str(),
            "a tensor",
            "this call has no use for it",
        )),
    }
}
