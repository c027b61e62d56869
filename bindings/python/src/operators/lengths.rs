//! `flashcore::fwd_varlen` and `::fwd_kvcache`: sequences of different lengths, whose values are
//! int32 tensors on the device.
//!
//! An array that is not given is a tensor of one dimension without elements: optional arguments are
//! not allocated alike in all releases of PyTorch. Rows of the results that are of no sequence are
//! not written.

use std::ptr::null_mut;

use flashcore::{DType, KvLengths, Layout, Lengths, ProblemBuilder, QLengths};

use super::schedule::Kept;
use super::{
    Array, BHSD_NAMES, Call, HeadValues, Results, Rows, check_inference, forward_options, options_of, scales_of, serve,
};
use crate::input::{Described, Input, Numbers};
use crate::libtorch::{Error, Libtorch, Tensor};
use crate::options::Options;
use crate::problem::builder_of;

/// Packed queries, keys and values `[total, heads, head_dim]`.
pub(super) const VARLEN: &str = "fwd_varlen(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, Tensor seqused_q, \
     Tensor cu_seqlens_k, Tensor seqused_k, float softmax_scale, bool causal, int window_left, int window_right, \
     float softcap, SymInt max_seqlen_q, SymInt max_seqlen_k, bool deterministic=False, \
     int sm_margin=0, int split_keys=0) -> (Tensor out, Tensor lse)";

/// Queries `[batch, seq, heads, head_dim]`, or packed, over a cache: contiguous `[batch, seq,
/// kv_heads, head_dim]`, or with a block table of pages `[pages, page_size, kv_heads, head_dim]`.
pub(super) const KVCACHE: &str = "fwd_kvcache(Tensor q, Tensor k_cache, Tensor v_cache, Tensor cu_seqlens_q, \
     Tensor seqused_q, Tensor seqused_k, Tensor block_table, float softmax_scale, bool causal, int window_left, \
     int window_right, float softcap, SymInt max_seqlen_q, SymInt max_seqlen_k, int sm_margin=0, \
     int split_keys=0) -> (Tensor out, Tensor lse)";

/// Queries `[batch, heads, seq, head_dim]` over rows of a cache `[batch, kv_heads, capacity, head_dim]`, whose
/// sequences are a whole number of rows apart. `rows` is `[batch, keys]`: where each key is, counted in rows of the
/// cache from its first one. The output `[batch, seq, heads, head_dim]` alone, with the least work of the host.
pub(super) const ROWS: &str = "fwd_kvcache.rows(Tensor query, Tensor key, Tensor value, Tensor seqused_k, Tensor rows, \
     float softmax_scale, bool causal, int window_left, int window_right, float softcap) -> Tensor";

/// The same with sinks and slopes, without gradients.
pub(super) const VARLEN_MODIFIED: &str = "fwd_varlen.modified(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, \
     Tensor seqused_q, Tensor cu_seqlens_k, Tensor seqused_k, Tensor sinks, Tensor alibi_slopes, float softmax_scale, \
     bool causal, int window_left, int window_right, float softcap, SymInt max_seqlen_q, SymInt max_seqlen_k, \
     int sm_margin=0, int split_keys=0) -> (Tensor out, Tensor lse)";

pub(super) const KVCACHE_MODIFIED: &str = "fwd_kvcache.modified(Tensor q, Tensor k_cache, Tensor v_cache, \
     Tensor cu_seqlens_q, Tensor seqused_q, Tensor seqused_k, Tensor block_table, Tensor sinks, Tensor alibi_slopes, \
     float softmax_scale, bool causal, int window_left, int window_right, float softcap, SymInt max_seqlen_q, \
     SymInt max_seqlen_k, int sm_margin=0, int split_keys=0) -> (Tensor out, Tensor lse)";

/// The same of float8_e4m3fn, with scales `[batch, kv_heads]` of q, k and v; the output is bfloat16.
pub(super) const VARLEN_SCALED: &str = "fwd_varlen.scaled(Tensor q, Tensor k, Tensor v, Tensor cu_seqlens_q, \
     Tensor seqused_q, Tensor cu_seqlens_k, Tensor seqused_k, Tensor q_scale, Tensor k_scale, Tensor v_scale, \
     float softmax_scale, bool causal, int window_left, int window_right, float softcap, SymInt max_seqlen_q, \
     SymInt max_seqlen_k, int sm_margin=0, int split_keys=0) -> (Tensor out, Tensor lse)";

pub(super) const KVCACHE_SCALED: &str = "fwd_kvcache.scaled(Tensor q, Tensor k_cache, Tensor v_cache, \
     Tensor cu_seqlens_q, Tensor seqused_q, Tensor seqused_k, Tensor block_table, Tensor q_scale, Tensor k_scale, \
     Tensor v_scale, float softmax_scale, bool causal, int window_left, int window_right, float softcap, \
     SymInt max_seqlen_q, SymInt max_seqlen_k, int sm_margin=0, int split_keys=0) -> (Tensor out, Tensor lse)";

/// The same with the number of a schedule that `make_schedule` made.
pub(super) const SCHEDULED: &str = "fwd_kvcache.scheduled(Tensor q, Tensor k_cache, Tensor v_cache, \
     Tensor cu_seqlens_q, Tensor seqused_q, Tensor seqused_k, Tensor block_table, float softmax_scale, bool causal, \
     int window_left, int window_right, float softcap, SymInt max_seqlen_q, SymInt max_seqlen_k, int sm_margin, \
     int split_keys, int number) -> (Tensor out, Tensor lse)";

pub(super) unsafe extern "C-unwind" fn forward_varlen_modified(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with nine numbers.
    unsafe { serve(stack, inputs, 9, varlen) }
}

pub(super) unsafe extern "C-unwind" fn forward_kvcache_modified(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with nine numbers.
    unsafe { serve(stack, inputs, 9, kvcache) }
}

pub(super) unsafe extern "C-unwind" fn forward_varlen(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with ten numbers.
    unsafe { serve(stack, inputs, 10, varlen) }
}

pub(super) unsafe extern "C-unwind" fn forward_kvcache(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with nine numbers.
    unsafe { serve(stack, inputs, 9, kvcache) }
}

pub(super) unsafe extern "C-unwind" fn forward_scheduled(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with ten numbers.
    unsafe { serve(stack, inputs, 10, scheduled) }
}

pub(super) unsafe extern "C-unwind" fn forward_rows(stack: *mut u64, inputs: u64, _outputs: u64) {
    // SAFETY: the schema ends with five numbers, and has one result.
    unsafe { serve(stack, inputs, 5, rows) }
}

fn varlen<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 2> {
    let packed = |n: usize, name| inputs[n].describe::<3>(name).map(Rows::from);
    let tensors = [packed(0, "q")?, packed(1, "k")?, packed(2, "v")?];
    let (kinds, lengths) = packed_kinds(&tensors, &inputs[3..7], numbers)?;
    let options = forward_options(numbers)?;
    let call = kinds.prepare(torch, tensors, lengths, &inputs[7..], options, None)?;
    with_lse(call.run()?)
}

/// Packed sequences, from the tensors of lengths and the numbers of an operator.
pub(super) fn packed_kinds(
    [q, k, _]: &[Rows; 3],
    lengths: &[Input],
    numbers: &[u64],
) -> Result<(Kinds, Lengths<Array>), Error> {
    let array_of = |n: usize, name| lengths[n].describe_i32::<1>(name, q.place);
    let cu_seqlens_q = needed("cu_seqlens_q", array_of(0, "cu_seqlens_q")?)?;
    let seqused_q = array_of(1, "seqused_q")?;
    let cu_seqlens_k = needed("cu_seqlens_k", array_of(2, "cu_seqlens_k")?)?;
    let seqused_k = array_of(3, "seqused_k")?;
    let (total_q, total) = (q.layout.shape[1], k.layout.shape[1]);
    let (q_used, used) = (seqused_q.is_some(), seqused_k.is_some());
    let kinds = Kinds {
        batch: sequences("cu_seqlens_q", &cu_seqlens_q)?,
        q: QLengths::Packed {
            total: total_q,
            used: q_used,
        },
        max_q: bound("max_seqlen_q", numbers[5])?,
        kv: KvLengths::Packed { total, used },
        max_kv: bound("max_seqlen_k", numbers[6])?,
    };
    let arrays = [Some(cu_seqlens_q), seqused_q, Some(cu_seqlens_k), seqused_k].map(|given| given.map(array));
    let [cu_seqlens_q, seqused_q, cu_seqlens_k, seqused_k] = arrays;
    let lengths = Lengths {
        cu_seqlens_q,
        seqused_q,
        cu_seqlens_k,
        seqused_k,
        block_table: None,
    };
    Ok((kinds, lengths))
}

fn kvcache<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 2> {
    with_lse(cache(torch, &inputs[..7], &inputs[7..], numbers, None, true)?.run()?)
}

fn scheduled<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 2> {
    let (numbers, number) = numbers.split_at(9);
    let kept = Some(Kept::find(number[0] as i64)?);
    with_lse(cache(torch, &inputs[..7], &[], numbers, kept, true)?.run()?)
}

/// A call of `flashcore::fwd_kvcache`, with the log-sum-exp or without.
pub(super) fn cache<'a>(
    torch: &'a Libtorch,
    inputs: &[Input],
    values: &[Input],
    numbers: &[u64],
    kept: Option<Kept>,
    return_lse: bool,
) -> Result<Prepared<'a>, Error> {
    let q = match inputs[0].dims {
        3 => Rows::from(inputs[0].describe::<3>("q")?),
        _ => Rows::from(inputs[0].describe::<4>("q")?),
    };
    let cache = |n: usize, name| inputs[n].describe::<4>(name).map(Rows::from);
    let tensors = [q, cache(1, "k")?, cache(2, "v")?];
    let place = tensors[0].place;
    let cu_seqlens_q = inputs[3].describe_i32::<1>("cu_seqlens_q", place)?;
    let seqused_q = inputs[4].describe_i32::<1>("seqused_q", place)?;
    let seqused_k = needed("seqused_k", inputs[5].describe_i32::<1>("seqused_k", place)?)?;
    let block_table = inputs[6].describe_i32::<2>("block_table", place)?;
    let (q_shape, [pages, page_size, ..]) = (tensors[0].layout.shape, tensors[1].layout.shape);
    let packed = inputs[0].dims == 3;
    if packed != cu_seqlens_q.is_some() {
        let dims = if packed { 3 } else { 4 };
        let given = if packed { "was not given" } else { "was given" };
        return Err(
            format!("q has {dims} dimensions and cu_seqlens_q {given}; packed queries have 3, and need it").into(),
        );
    }
    let (batch, q) = match &cu_seqlens_q {
        None => (q_shape[0], QLengths::Equal),
        Some(starts) => {
            let (total, used) = (q_shape[1], seqused_q.is_some());
            (sequences("cu_seqlens_q", starts)?, QLengths::Packed { total, used })
        }
    };
    let (kv, max_kv) = match block_table {
        None => (KvLengths::Cache, page_size),
        Some(Numbers {
            shape: [rows, max_pages],
            ..
        }) => {
            if rows != batch {
                return Err(
                    format!("block_table has {rows} rows; it must have one for each of {batch} sequences").into(),
                );
            }
            let kv = KvLengths::Paged {
                page_size,
                pages,
                max_pages,
            };
            (kv, bound("max_seqlen_k", numbers[6])?.min(page_size * max_pages))
        }
    };
    let max_q = if packed {
        bound("max_seqlen_q", numbers[5])?
    } else {
        q_shape[1]
    };
    let kinds = Kinds {
        batch,
        q,
        max_q,
        kv,
        max_kv,
    };
    let lengths = Lengths {
        cu_seqlens_q: cu_seqlens_q.map(array),
        seqused_q: seqused_q.map(array),
        cu_seqlens_k: None,
        seqused_k: Some(array(seqused_k)),
        block_table: block_table.map(array),
    };
    let options = Options {
        return_lse,
        ..forward_options(numbers)?
    };
    kinds.prepare(torch, tensors, lengths, values, options, kept)
}

fn rows<'a>(torch: &'a Libtorch, inputs: &[Input], numbers: &[u64]) -> Results<'a, 1> {
    check_inference(torch, "fwd_kvcache.rows", "fwd_kvcache")?;
    let of = |n: usize| inputs[n].describe::<4>(BHSD_NAMES[n]);
    let q = Rows::of_bhsd(of(0)?);
    let ([k, v], place) = (single_rows([of(1)?, of(2)?])?, q.place);
    let seqused_k = needed("seqused_k", inputs[3].describe_i32::<1>("seqused_k", place)?)?;
    let table = needed("rows", inputs[4].describe_i32::<2>("rows", place)?)?;
    let ([batch, max_pages], queries) = (table.shape, q.layout.shape[0]);
    if queries != batch {
        return Err(format!("query has {queries} sequences and rows {batch}; both have one for each sequence").into());
    }
    let kv = KvLengths::Paged {
        page_size: 1,
        pages: k.layout.shape[0],
        max_pages,
    };
    let kinds = Kinds {
        batch,
        q: QLengths::Equal,
        max_q: q.layout.shape[1],
        kv,
        max_kv: max_pages.max(1),
    };
    let lengths = Lengths {
        cu_seqlens_q: None,
        seqused_q: None,
        cu_seqlens_k: None,
        seqused_k: Some(array(seqused_k)),
        block_table: Some(array(table)),
    };
    let options = Options {
        return_lse: false,
        ..options_of(numbers)
    };
    let call = kinds.prepare(torch, [q, k, v], lengths, &[], options, None)?;
    Ok([call.run()?.0])
}

/// A cache `[batch, kv_heads, capacity, head_dim]` as pages of one key, which may overlap.
fn single_rows(cache: [Described<4>; 2]) -> Result<[Rows; 2], Error> {
    let apart = |x: &Described<4>| match x.strides {
        _ if x.shape[0] == 1 => Some(0),
        [sequence, _, row, _] => (row > 0 && sequence % row == 0).then(|| sequence / row),
    };
    let rows = apart(&cache[0]).filter(|_| apart(&cache[0]) == apart(&cache[1]));
    let Some(rows) = rows else {
        return Err(
            "sequences of key and value are not the same whole number of rows apart; make both contiguous".into(),
        );
    };
    Ok(cache.map(|mut x| {
        let ([batch, heads, capacity, head_dim], [_, head, row, element]) = (x.shape, x.strides);
        x.shape = [(batch - 1) * rows + capacity, 1, heads, head_dim];
        x.strides = [row, row, head, element];
        x.into()
    }))
}

fn with_lse<'a>((out, lse): (Tensor<'a>, Option<Tensor<'a>>)) -> Results<'a, 2> {
    Ok([out, needed("lse", lse)?])
}

/// Packed tensors, as the library has them: `[1, total, heads, head_dim]`.
impl From<Described<3>> for Rows {
    fn from(tensor: Described<3>) -> Rows {
        let ([total, heads, head_dim], [row, head, element]) = (tensor.shape, tensor.strides);
        Rows::from(Described {
            name: tensor.name,
            dtype: tensor.dtype,
            place: tensor.place,
            shape: [1, total, heads, head_dim],
            strides: [0, row, head, element], // a stride that is never taken
            first: tensor.first,
        })
    }
}

/// What a call has besides its tensors: sequences, kinds of lengths, and bounds.
pub(super) struct Kinds {
    pub(super) batch: usize,
    pub(super) q: QLengths,
    pub(super) max_q: usize,
    pub(super) kv: KvLengths,
    pub(super) max_kv: usize,
}

impl Kinds {
    /// The problem of q, k, v and o with these layouts, to be told of gradients.
    pub(super) fn builder(&self, dtype: DType, layouts: [&Layout; 4], options: &Options) -> ProblemBuilder {
        // No sequence has more rows than the tensors; but their size, which the batch decides, may not choose a kernel.
        let cut = |bound: usize, rows: usize| match options.batch_invariant {
            Some(_) => bound,
            None => bound.min(rows.max(1)),
        };
        let [rows, keys] = [layouts[0].shape[1], layouts[1].shape[1]];
        let max_q = match self.q {
            QLengths::Equal => self.max_q,
            QLengths::Packed { .. } => cut(self.max_q, rows),
        };
        let max_kv = match self.kv {
            KvLengths::Packed { .. } => cut(self.max_kv, keys),
            KvLengths::Equal | KvLengths::Cache | KvLengths::Paged { .. } => self.max_kv,
        };
        let builder = builder_of(dtype, layouts, options).batch(self.batch);
        let builder = builder.seq_len_q(max_q).seq_len_kv(max_kv);
        builder.q_lengths(self.q).kv_lengths(self.kv)
    }

    /// A call with its output, and its log-sum-exp if the options ask for it. `values` are sinks and slopes, or three
    /// scales.
    fn prepare<'a>(
        self,
        torch: &'a Libtorch,
        tensors: [Rows; 3],
        lengths: Lengths<Array>,
        values: &[Input],
        mut options: Options,
        kept: Option<Kept>,
    ) -> Result<Prepared<'a>, Error> {
        let [q, k, v] = &tensors;
        let (place, dtype) = q.agree(&[k, v])?;
        let ([first, rows, heads, _], [.., head_dim_v]) = (q.layout.shape, v.layout.shape);
        let o_layout = Layout::bshd([first, rows, heads, head_dim_v]);
        let packed = self.q != QLengths::Equal;
        let out = if packed {
            let strides = [(heads * head_dim_v) as i64, head_dim_v as i64, 1];
            torch.empty([rows, heads, head_dim_v], strides, Some(dtype.output()), place)?
        } else {
            torch.empty(o_layout.shape, o_layout.strides, Some(dtype.output()), place)?
        };
        let lse = options.return_lse.then(|| match packed {
            true => torch.empty([heads, rows], [rows as i64, 1], Some(DType::F32), place),
            false => {
                let strides = [(heads * rows) as i64, rows as i64, 1];
                torch.empty([first, heads, rows], strides, Some(DType::F32), place)
            }
        });
        let lse = lse.transpose()?;
        if rows == 0 || self.batch == 0 {
            return Ok(Prepared { call: None, out, lse }); // no row is of a sequence
        }
        let layouts = [&q.layout, &k.layout, &v.layout, &o_layout];
        // By the schemas: `modified` has two, `scaled` three.
        let (scales, head_values) = values.split_at(if values.len() == 3 { 3 } else { 0 });
        let head_values = HeadValues::new(head_values, place, [self.batch, heads], &mut options)?;
        let problem = self.builder(dtype, layouts, &options).build()?;
        let scales = scales_of(scales, &problem, place)?;
        problem.check_given(&lengths, |array| array.len)?;
        let call = Call {
            torch,
            place,
            sm_margin: options.sm_margin,
            problem,
            tensors,
            scales,
            head_values,
            lengths,
            outputs: [out.first()?, lse.as_ref().map_or(Ok(null_mut()), Tensor::first)?],
            gradients: None,
            kept,
        };
        let call = Some(call);
        Ok(Prepared { call, out, lse })
    }
}

/// A call that has been checked, and whose results are allocated.
pub(super) struct Prepared<'a> {
    /// None where there is nothing to compute.
    call: Option<Call<'a>>,
    out: Tensor<'a>,
    lse: Option<Tensor<'a>>,
}

impl<'a> Prepared<'a> {
    /// Refuses what [`Prepared::run`] would refuse of a schedule and of multiprocessors.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.call.as_ref().map_or(Ok(()), Call::check)
    }

    /// The output, and its log-sum-exp.
    pub(super) fn run(self) -> Result<(Tensor<'a>, Option<Tensor<'a>>), Error> {
        self.call.as_ref().map_or(Ok(()), Call::run)?;
        Ok((self.out, self.lse))
    }
}

fn needed<T>(name: &str, given: Option<T>) -> Result<T, Error> {
    given.ok_or_else(|| format!("{name} was not given").into())
}

pub(super) fn array<const N: usize>(numbers: Numbers<N>) -> Array {
    Array {
        first: numbers.first,
        len: numbers.shape.iter().product(),
    }
}

/// How many sequences there are between the entries of `cu_seqlens_*`.
fn sequences(name: &str, starts: &Numbers<1>) -> Result<usize, Error> {
    let too_short = || format!("{name} has no entries; it has one more than there are sequences").into();
    starts.shape[0].checked_sub(1).ok_or_else(too_short)
}

/// A bound that the caller gave, at least 1.
fn bound(name: &str, bits: u64) -> Result<usize, Error> {
    match usize::try_from(bits as i64) {
        Ok(bound) => Ok(bound.max(1)),
        Err(_) => Err(format!("{name} is {}; it is a bound of lengths, at least 0", bits as i64).into()),
    }
}
