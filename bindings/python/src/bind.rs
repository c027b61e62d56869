//! From tensors and numbers to a problem: all checks of a call, once, for operators, the way round the dispatcher and
//! `attention`. [`run`](crate::run) then computes it.

use flashcore::{Alibi, DType, GradientLayouts, KvLengths, Layout, Lengths, Problem, ProblemBuilder, QLengths};

use crate::error::Error;
use crate::foreign::{Element, Foreign, Place, element_of};
use crate::options::{GIVEN_BHSD, MEMORY_BHSD, OUT_BHSD, Options};
use crate::table::{
    BLOCK_TABLE, DOUT, GRADIENTS, K, LENGTHS, LSE, OUT, Q, SCALES, SEQUSED_K, SINKS, SLOPES, TENSORS, V,
};

/// The tensors of a call by their places in [`TENSORS`]; [`Foreign::ABSENT`] where there is none.
pub(crate) type Operands = [Foreign; TENSORS.len()];

/// A call that was checked.
pub(crate) struct Checked {
    pub(crate) place: Place,
    pub(crate) options: Options,
    /// None where there is nothing to compute.
    pub(crate) problem: Option<Problem>,
    /// What it writes, to be allocated unless it is there, and the place of the first among operands.
    pub(crate) results: [Foreign; 3],
    pub(crate) first_result: usize,
    /// Kernels do not write rows of results that are of no sequence; those of gradients are zeros.
    pub(crate) zeroed: bool,
}

/// What a call has besides its tensors: sequences, kinds of lengths, and bounds.
struct Kinds {
    batch: usize,
    q: QLengths,
    max_q: usize,
    kv: KvLengths,
    max_kv: usize,
}

/// How many entries the arrays of lengths that are given have.
fn lengths_of(given: &Operands) -> Lengths<usize> {
    let entries = |tensor: &Foreign| tensor.sizes().iter().product::<i64>() as usize;
    Lengths::from(std::array::from_fn(|n| given[LENGTHS + n].given().map(entries)))
}

/// A forward pass. Its output is new unless it is among the operands.
pub(crate) fn forward(given: &Operands, options: &Options) -> Result<Checked, Error> {
    let mut options = *options;
    options.return_lse |= options.schedule != 0; // schedules are of problems that have it
    let (kinds, [q, k, v], dtype) = Kinds::of(given, &options)?;
    let of_q = &given[Q];
    let ([first, rows, heads, _], [.., head_dim_v]) = (q.shape, v.shape);
    let shape = [first, rows, heads, head_dim_v];
    let packed = kinds.q != QLengths::Equal;
    let (place, element) = (of_q.place, element_of(dtype.output()));
    let (o, out) = match given[OUT].given() {
        Some(out) => (check_out(out, of_q, dtype, &options)?, *out),
        None => {
            let o = options.dense(shape);
            let mut out = fresh("out", element, place, &o, packed);
            if !packed && options.layout & OUT_BHSD != 0 {
                out = out.swapped();
            }
            (o, out)
        }
    };
    let of_lse: &[usize] = match (options.return_lse, packed) {
        (false, _) => &[0],
        (true, true) => &[heads, rows],
        (true, false) => &[first, heads, rows],
    };
    let lse = Foreign::fresh_dense("lse", element_of(DType::F32), place, of_lse);
    let values = check_values(given, [kinds.batch, heads, k.shape[2]], dtype)?;
    let has_lengths = packed || kinds.kv != KvLengths::Equal;
    let problem = if has_lengths && (rows == 0 || kinds.batch == 0) {
        None // no row is of a sequence
    } else {
        let problem = kinds.builder(&options, dtype, [&q, &k, &v, &o], values).build()?;
        if has_lengths {
            problem.check_given(&lengths_of(given), |entries| *entries)?;
        }
        Some(problem)
    };
    Ok(Checked {
        place,
        options,
        problem,
        results: [out, lse, Foreign::ABSENT],
        first_result: OUT,
        zeroed: false,
    })
}

/// A result of this layout, to be allocated. Packed rows are a batch of one.
fn fresh(name: &'static str, element: Element, place: Place, layout: &Layout, packed: bool) -> Foreign {
    let first = usize::from(packed);
    Foreign::fresh(name, element, place, &layout.shape[first..], &layout.strides[first..])
}

/// The layout of an output that is given.
fn check_out(out: &Foreign, q: &Foreign, dtype: DType, options: &Options) -> Result<Layout, Error> {
    out.check_place(q)?;
    out.check_rank(4)?;
    if out.element != element_of(dtype.output()) {
        let (holds, needed) = (out.dtype()?, dtype.output());
        return Err(Error::DType(format!(
            "out holds {holds} and q {dtype}; the output is {needed}, so give out= of that"
        )));
    }
    Ok(if options.layout & OUT_BHSD == 0 {
        out.layout()
    } else {
        out.swapped().layout()
    })
}

/// What a problem has of sinks and slopes, which are dense; and that scales are those of its dtype.
fn check_values(
    given: &Operands,
    [batch, heads, kv_heads]: [usize; 3],
    dtype: DType,
) -> Result<(Option<DType>, Option<Alibi>), Error> {
    let q = &given[Q];
    for scale in given[SCALES..SINKS].iter().filter_map(Foreign::given) {
        if dtype != DType::E4M3 {
            return Err(Error::DType(format!(
                "{} was given, but q holds {dtype}; only float8_e4m3fn tensors have scales: leave it out",
                scale.name
            )));
        }
        scale.check_floats(&[DType::F32], &[batch, kv_heads], q)?;
    }
    let sinks = given[SINKS].given().map(|sinks| {
        sinks.check_floats(&[DType::F32, DType::F16, DType::BF16], &[heads], q)?;
        sinks.dtype()
    });
    let slopes = given[SLOPES].given().map(|slopes| match slopes.rank {
        2 => slopes
            .check_floats(&[DType::F32], &[batch, heads], q)
            .map(|()| Alibi::BatchHeads),
        _ => slopes.check_floats(&[DType::F32], &[heads], q).map(|()| Alibi::Heads),
    });
    Ok((sinks.transpose()?, slopes.transpose()?))
}

/// A backward pass: of equal lengths, or packed ones.
pub(crate) fn backward(given: &Operands, options: &Options) -> Result<Checked, Error> {
    let packed = given[LENGTHS..SCALES].iter().any(Foreign::is_given);
    let options = &Options {
        batch_invariant: None, // of the forward pass alone
        layout: if packed { 0 } else { options.layout & MEMORY_BHSD },
        return_lse: true,
        ..*options
    };
    if packed {
        needed(&given[LENGTHS + 2])?;
    }
    let (kinds, [q, k, v], dtype) = Kinds::of(given, options)?;
    let of_q = &given[Q];
    let rank = if packed { 3 } else { 4 };
    for other in [OUT, DOUT] {
        given[other].check_place(of_q)?;
        given[other].check_rank(rank)?;
    }
    let (out, dout) = (given[OUT].layout(), given[DOUT].layout());
    let layouts = GradientLayouts {
        dout,
        dq: options.dense(q.shape),
        dk: options.dense(k.shape),
        dv: options.dense(v.shape),
    };
    let gradient = |n: usize, layout| {
        let name = TENSORS[GRADIENTS + n].as_str();
        fresh(name, of_q.element, of_q.place, layout, packed)
    };
    let results = [
        gradient(0, &layouts.dq),
        gradient(1, &layouts.dk),
        gradient(2, &layouts.dv),
    ];
    let bound = |problem| Checked {
        place: of_q.place,
        options: *options,
        problem,
        results,
        first_result: GRADIENTS,
        zeroed: packed,
    };
    if packed && (q.num_elements() == 0 || kinds.batch == 0) {
        return Ok(bound(None)); // no row is of a sequence
    }
    let problem = kinds
        .builder(options, dtype, [&q, &k, &v, &out], (None, None))
        .gradient_layouts(layouts)
        .deterministic(options.deterministic)
        .build()?;
    for other in [OUT, DOUT] {
        given[other].agree(of_q, dtype)?; // after e4m3 was refused, whose out is bf16
    }
    problem.check_given(&lengths_of(given), |entries| *entries)?;
    let [batch, rows, heads, _] = q.shape;
    let lse: &[usize] = if packed { &[heads, rows] } else { &[batch, heads, rows] };
    given[LSE].check_floats(&[DType::F32], lse, of_q)?;
    Ok(bound(Some(problem)))
}

fn needed(tensor: &Foreign) -> Result<(), Error> {
    match tensor.given() {
        Some(_) => Ok(()),
        None => Err(format!("{} was not given", tensor.name).into()),
    }
}

impl Kinds {
    /// Those of a call, the layouts of q, k and v as the library has them, and their dtype.
    fn of(given: &Operands, options: &Options) -> Result<(Kinds, [Layout; 3], DType), Error> {
        let [q, k, v] = [&given[Q], &given[K], &given[V]];
        let packed = [LENGTHS, LENGTHS + 2].map(|n| given[n].is_given());
        let has_lengths = given[LENGTHS..SCALES].iter().any(Foreign::is_given);
        let rank = |packed| if packed { 3 } else { 4 };
        if has_lengths && !packed[1] && matches!(q.rank, 3 | 4) && rank(packed[0]) != q.rank {
            let (dims, was) = (q.rank, if packed[0] { "was given" } else { "was not given" });
            return Err(
                format!("q has {dims} dimensions and cu_seqlens_q {was}; packed queries have 3, and need it").into(),
            );
        }
        q.check_rank(rank(packed[0]))?;
        k.check_rank(rank(packed[1]))?;
        v.check_rank(rank(packed[1]))?;
        let bhsd = options.layout & GIVEN_BHSD != 0 && !packed[0] && !packed[1];
        let layout = |x: &Foreign| if bhsd { x.swapped().layout() } else { x.layout() };
        let mut layouts = [layout(q), layout(k), layout(v)];
        let [mut cu_q, mut used_q, mut cu_k, mut used_k, mut table] = [None; 5];
        if has_lengths {
            let numbers = |n: usize| given[LENGTHS + n].numbers(1, q);
            (cu_q, used_q, cu_k, used_k) = (numbers(0)?, numbers(1)?, numbers(2)?, numbers(3)?);
            table = given[BLOCK_TABLE].numbers(2, q)?;
        }
        if cu_k.is_some() {
            needed(&given[LENGTHS])?;
        } else if has_lengths {
            needed(&given[SEQUSED_K])?;
        }
        let [batch, rows, ..] = layouts[0].shape;
        let (batch, of_q, max_q) = match cu_q {
            None => (batch, QLengths::Equal, rows),
            Some(starts) => {
                let (total, used) = (rows, used_q.is_some());
                (
                    starts - 1,
                    QLengths::Packed { total, used },
                    bound("max_seqlen_q", options.max_q)?,
                )
            }
        };
        let (kv, max_kv) = match (cu_k, table) {
            _ if !has_lengths => (KvLengths::Equal, layouts[1].shape[1]),
            (Some(_), _) => {
                let (total, used) = (layouts[1].shape[1], used_k.is_some());
                (KvLengths::Packed { total, used }, bound("max_seqlen_k", options.max_k)?)
            }
            (None, None) => (KvLengths::Cache, layouts[1].shape[1]),
            (None, Some(_)) => {
                if bhsd {
                    [layouts[1], layouts[2]] = single_rows([layouts[1], layouts[2]])?;
                }
                let [pages, page_size, ..] = layouts[1].shape;
                let [rows, max_pages] = [0, 1].map(|n| given[BLOCK_TABLE].shape[n] as usize);
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
                (
                    kv,
                    bound("max_seqlen_k", options.max_k)?.min((page_size * max_pages).max(1)),
                )
            }
        };
        let kinds = Kinds {
            batch,
            q: of_q,
            max_q,
            kv,
            max_kv,
        };
        let dtype = q.dtype()?;
        q.check_place(q)?;
        for other in [K, V] {
            given[other].agree(q, dtype)?;
        }
        Ok((kinds, layouts, dtype))
    }

    /// The problem of q, k, v and the output with these layouts. `values`: what it has of sinks and slopes.
    fn builder(
        &self,
        options: &Options,
        dtype: DType,
        [q, k, v, o]: [&Layout; 4],
        values: (Option<DType>, Option<Alibi>),
    ) -> ProblemBuilder {
        let builder = options.builder(dtype, [q, k, v, o], values);
        // No sequence has more rows than the tensors; but their size, which the batch decides, may not choose a kernel.
        let cut = |bound: usize, rows: usize| match options.batch_invariant {
            Some(_) => bound,
            None => bound.min(rows.max(1)),
        };
        let max_q = match self.q {
            QLengths::Equal => self.max_q,
            QLengths::Packed { .. } => cut(self.max_q, q.shape[1]),
        };
        let max_kv = match self.kv {
            KvLengths::Packed { .. } => cut(self.max_kv, k.shape[1]),
            KvLengths::Equal | KvLengths::Cache | KvLengths::Paged { .. } => self.max_kv,
        };
        let builder = match (self.q, self.kv) {
            (QLengths::Equal, KvLengths::Equal) => return builder,
            _ => builder.batch(self.batch).seq_len_q(max_q).seq_len_kv(max_kv),
        };
        builder.q_lengths(self.q).kv_lengths(self.kv)
    }
}

/// A bound that the caller gave, at least 1.
fn bound(name: &str, given: i64) -> Result<usize, Error> {
    match usize::try_from(given) {
        Ok(bound) => Ok(bound.max(1)),
        Err(_) => Err(format!("{name} is {given}; it is a bound of lengths, at least 0").into()),
    }
}

/// A cache `[batch, capacity, kv_heads, head_dim]` as pages of one key, which may overlap. Tables then count rows from
/// its first one.
fn single_rows(cache: [Layout; 2]) -> Result<[Layout; 2], Error> {
    let apart = |x: &Layout| match x.strides {
        _ if x.shape[0] == 1 => Some(0),
        [sequence, row, ..] => (row > 0 && sequence % row == 0).then(|| sequence / row),
    };
    let Some(rows) = apart(&cache[0]).filter(|_| apart(&cache[0]) == apart(&cache[1])) else {
        return Err("sequences of k and v are not the same whole number of rows apart; make both contiguous".into());
    };
    Ok(cache.map(|x| {
        let ([batch, capacity, heads, head_dim], [_, row, head, element]) = (x.shape, x.strides);
        Layout {
            shape: [batch.saturating_sub(1) * rows as usize + capacity, 1, heads, head_dim],
            strides: [row, (heads * head_dim) as i64, head, element], // of one key: never taken
        }
    }))
}
