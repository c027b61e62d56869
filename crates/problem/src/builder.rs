//! Builder of [`Problem`]: collects the fields and validates them.

use crate::head_values::MIN_ALIBI_SCALE;
use crate::problem::{MAX_ELEMENTS, MAX_SEQ_LEN, MAX_SOFTMAX_SCALE, SOFTCAPS};
use crate::{
    Alibi, DType, Direction, GradientLayouts, KvLengths, Layout, Mask, Problem, ProblemError, QLengths, direction,
    refuse,
};

/// Collects the fields of a [`Problem`]; [`ProblemBuilder::build`] validates them.
///
/// Heads, lengths and head_dim have no default. The others have: one sequence, fp16, no mask, a
/// scale of `1/√head_dim`, dense `[batch, seq, heads, head_dim]`, no log-sum-exp.
#[derive(Clone, Debug)]
pub struct ProblemBuilder {
    /// The fields whose default depends on no other. The rest is set by `build`.
    problem: Problem,
    heads: Option<(usize, usize)>,
    seq_len_q: Option<usize>,
    seq_len_kv: Option<usize>,
    head_dim: Option<usize>,
    head_dim_v: Option<usize>,
    softmax_scale: Option<f32>,
    layout: fn([usize; 4]) -> Layout,
    pub(crate) layouts: [Option<Layout>; 4],
}

impl Default for ProblemBuilder {
    fn default() -> Self {
        let unset = Layout::bshd([0; 4]);
        ProblemBuilder {
            problem: Problem {
                batch: 1,
                num_heads: 0,
                num_kv_heads: 0,
                seq_len_q: 0,
                seq_len_kv: 0,
                head_dim: 0,
                head_dim_v: 0,
                dtype: DType::F16,
                mask: Mask::FULL,
                q_offset: 0,
                kv_offset: 0,
                softmax_scale: 1.0,
                softcap: None,
                return_lse: false,
                q: unset,
                k: unset,
                v: unset,
                o: unset,
                q_lengths: QLengths::Equal,
                kv_lengths: KvLengths::Equal,
                direction: Direction::Forward,
                gradients: None,
                deterministic: false,
                batch_invariant: None,
                sinks: None,
                alibi: None,
            },
            heads: None,
            seq_len_q: None,
            seq_len_kv: None,
            head_dim: None,
            head_dim_v: None,
            softmax_scale: None,
            layout: Layout::bshd,
            layouts: [None; 4],
        }
    }
}

/// Starts from the fields of another problem. If all four layouts are [`Layout::bshd`], or all are
/// [`Layout::bhsd`], they follow later changes of the shape. Other layouts stay as they are.
impl From<&Problem> for ProblemBuilder {
    fn from(problem: &Problem) -> ProblemBuilder {
        let layouts = [problem.q, problem.k, problem.v, problem.o];
        let mut named = [Layout::bshd as fn([usize; 4]) -> Layout, Layout::bhsd].into_iter();
        let named = named.find(|layout| layouts.iter().all(|one| layout(one.shape) == *one));
        let has_own_scale = problem.softmax_scale != Problem::default_scale(problem.head_dim);
        let has_own_head_dim_v = problem.head_dim_v != problem.head_dim;
        let mut builder = ProblemBuilder::unchecked(problem.clone());
        // As do those of gradients where they are what their tensors' ask for.
        if problem.gradients == Some(GradientLayouts::like(problem)) {
            builder.problem.gradients = None;
        }
        ProblemBuilder {
            head_dim_v: has_own_head_dim_v.then_some(problem.head_dim_v),
            softmax_scale: has_own_scale.then_some(problem.softmax_scale),
            layout: named.unwrap_or(Layout::bshd),
            layouts: if named.is_some() { [None; 4] } else { layouts.map(Some) },
            ..builder
        }
    }
}

/// A method for each field that sets it.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($value:ident: $type:ty) $($field:ident).+ = $set:expr;)*) => {
        impl ProblemBuilder {
            $($(#[$doc])*
            pub fn $name(mut self, $value: $type) -> Self {
                self.$($field).+ = $set;
                self
            })*
        }
    };
}

setters! {
    /// Sequences in the batch.
    batch(batch: usize) problem.batch = batch;
    /// Rows of Q.
    seq_len_q(seq_len_q: usize) seq_len_q = Some(seq_len_q);
    /// Rows of K and V.
    seq_len_kv(seq_len_kv: usize) seq_len_kv = Some(seq_len_kv);
    /// Columns of Q and K, and of V unless [`head_dim_v`](Self::head_dim_v) is called. Required.
    head_dim(head_dim: usize) head_dim = Some(head_dim);
    /// Columns of V and O.
    head_dim_v(head_dim_v: usize) head_dim_v = Some(head_dim_v);
    /// Element type.
    dtype(dtype: DType) problem.dtype = dtype;
    /// Which keys each row attends to.
    mask(mask: Mask) problem.mask = mask;
    /// Factor on `Q·Kᵀ`, above 0 and at most 1e5. Default: `1/√head_dim`.
    softmax_scale(scale: f32) softmax_scale = Some(scale);
    /// Applies `cap·tanh(s/cap)` to scaled scores, with a cap from 1e-5 to 1e3.
    softcap(cap: f32) problem.softcap = Some(cap);
    /// Gives each query head a sink ([`Problem::sinks`]): f32, fp16 or bf16. Default: none.
    sinks(dtype: impl Into<Option<DType>>) problem.sinks = dtype.into();
    /// Adds ALiBi's bias to scores ([`Problem::alibi`]). Default: none.
    alibi(slopes: impl Into<Option<Alibi>>) problem.alibi = slopes.into();
    /// Also requests the log-sum-exp.
    return_lse(yes: bool) problem.return_lse = yes;
    /// Where the query rows of a sequence lie; `seq_len_q` is then their upper bound. Default: equal lengths.
    ///
    /// **Warning.** On a GPU, whose kernels cannot refuse values, rows past the bound are not written, without an
    /// error, unless values are checked (`FLASHCORE_CHECK=1`).
    q_lengths(lengths: QLengths) problem.q_lengths = lengths;
    /// Where the keys of a sequence lie; `seq_len_kv` is then their upper bound. Default: equal
    /// lengths.
    kv_lengths(lengths: KvLengths) problem.kv_lengths = lengths;
    /// Which way the problem is computed. A backward pass reads the log-sum-exp, so that
    /// [`return_lse`](Self::return_lse) is set. Default: forward.
    direction(direction: Direction) problem.direction = direction;
    /// Whether gradients must be the same bits in every run ([`Problem::deterministic`]). Of a forward
    /// problem, it is that of its backward pass. Default: no.
    deterministic(deterministic: bool) problem.deterministic = deterministic;
    /// The bits of an output do not depend on the other sequences of the batch, nor on how many there
    /// are: keys are split every `split_keys` of them (at least 1; rounded up to whole K blocks), and
    /// not where the work of the batch is even, and the kernel is chosen as for one sequence. Problems
    /// that differ in `batch`, in the totals of packed tensors and in pages of a cache alone give the
    /// same bits; the bounds `seq_len_q` and `seq_len_kv` must be the same. Sequences whose rows fit
    /// into one tile are split, others are not. A smaller `split_keys` keeps more multiprocessors at
    /// work on few long caches, and needs more workspace. Forward only. Default: splits follow the
    /// batch.
    batch_invariant(split_keys: usize) problem.batch_invariant = Some(split_keys);
}

impl ProblemBuilder {
    /// Starts from the fields of another problem, but on dense tensors of equal lengths: for a
    /// smaller or larger problem of the same kind.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{Problem, ProblemBuilder};
    /// let problem = Problem::builder().heads(32, 8).seq_len(4096).head_dim(128).softcap(50.0).build()?;
    /// let small = ProblemBuilder::like(&problem).heads(4, 1).seq_len(64).build()?;
    /// assert_eq!((small.head_dim(), small.softcap(), small.seq_len_q()), (128, Some(50.0), 64));
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    pub fn like(problem: &Problem) -> ProblemBuilder {
        let mut builder = ProblemBuilder::from(problem).layout(Layout::bshd);
        builder.problem.gradients = None;
        builder.q_lengths(QLengths::Equal).kv_lengths(KvLengths::Equal)
    }

    /// The sizes and layouts of Q, K and V.
    pub(crate) fn of_layouts(dtype: DType, of: [Layout; 3]) -> ProblemBuilder {
        let [q, k, v] = of.map(|layout| layout.shape);
        let builder = Problem::builder().dtype(dtype).batch(q[0]).heads(q[2], k[2]);
        let builder = builder.seq_len_q(q[1]).seq_len_kv(k[1]).head_dim(q[3]).head_dim_v(v[3]);
        let is_heads_first = of.iter().all(|layout| Layout::bhsd(layout.shape) == *layout);
        ProblemBuilder {
            layout: if is_heads_first { Layout::bhsd } else { Layout::bshd },
            layouts: [Some(of[0]), Some(of[1]), Some(of[2]), None],
            ..builder
        }
    }

    /// Takes all fields of a problem that is not validated yet.
    pub(crate) fn unchecked(problem: Problem) -> ProblemBuilder {
        ProblemBuilder {
            heads: Some((problem.num_heads, problem.num_kv_heads)),
            seq_len_q: Some(problem.seq_len_q),
            seq_len_kv: Some(problem.seq_len_kv),
            head_dim: Some(problem.head_dim),
            head_dim_v: Some(problem.head_dim_v),
            softmax_scale: Some(problem.softmax_scale),
            layout: Layout::bshd,
            layouts: [problem.q, problem.k, problem.v, problem.o].map(Some),
            problem,
        }
    }

    /// Each query sees the keys up to its own, aligned at the end: [`Mask::CAUSAL`].
    pub fn causal(self) -> Self {
        self.mask(Mask::CAUSAL)
    }

    /// Query heads and key/value heads: equal, or `num_heads` a multiple of `num_kv_heads`.
    /// Required.
    pub fn heads(mut self, num_heads: usize, num_kv_heads: usize) -> Self {
        self.heads = Some((num_heads, num_kv_heads));
        self
    }
    /// Rows of Q, K and V. Required, or [`seq_len_q`](Self::seq_len_q) and
    /// [`seq_len_kv`](Self::seq_len_kv).
    pub fn seq_len(self, seq_len: usize) -> Self {
        self.seq_len_q(seq_len).seq_len_kv(seq_len)
    }
    /// Positions of query row 0 and key 0 in their sequences (chunked prefill, context parallel).
    pub fn offsets(mut self, q_offset: i32, kv_offset: i32) -> Self {
        (self.problem.q_offset, self.problem.kv_offset) = (q_offset, kv_offset);
        self
    }
    /// Layout of all four tensors: [`Layout::bshd`] (default) or [`Layout::bhsd`].
    pub fn layout(mut self, layout: fn([usize; 4]) -> Layout) -> Self {
        (self.layout, self.layouts) = (layout, [None; 4]);
        self
    }
    /// Individual layouts of Q, K, V and O. Their shapes must match the other fields.
    pub fn layouts(mut self, q: Layout, k: Layout, v: Layout, o: Layout) -> Self {
        self.layouts = [Some(q), Some(k), Some(v), Some(o)];
        self
    }
    /// Layouts of dO, dQ, dK and dV, and [`Direction::Backward`]. Default: those of O, Q, K and V, but
    /// dense gradients for inputs whose elements share addresses.
    pub fn gradient_layouts(mut self, layouts: GradientLayouts) -> Self {
        (self.problem.direction, self.problem.gradients) = (Direction::Backward, Some(layouts));
        self
    }

    /// Builds the problem.
    ///
    /// # Errors
    /// [`ProblemError::Missing`] for the first required field that was not given; the first invalid
    /// field.
    pub fn build(self) -> Result<Problem, ProblemError> {
        let missing = |field, call| ProblemError::Missing { field, call };
        let mut problem = self.problem;
        (problem.num_heads, problem.num_kv_heads) =
            self.heads.ok_or(missing("heads", ".heads(query_heads, kv_heads)"))?;
        problem.seq_len_q = self
            .seq_len_q
            .ok_or(missing("seq_len_q", ".seq_len(n)` or `.seq_len_q(n)"))?;
        problem.seq_len_kv = self.seq_len_kv.ok_or(missing("seq_len_kv", ".seq_len_kv(n)"))?;
        problem.head_dim = self.head_dim.ok_or(missing("head_dim", ".head_dim(n)"))?;
        problem.head_dim_v = self.head_dim_v.unwrap_or(problem.head_dim);
        problem.softmax_scale = self.softmax_scale.unwrap_or(Problem::default_scale(problem.head_dim));
        check_sizes(&problem)?;
        check_values(&problem)?;
        check_lengths(&problem)?;

        let [q_batch, q_rows] = problem.q_lengths.rows(problem.batch, problem.seq_len_q);
        let [kv_batch, kv_rows] = problem.kv_lengths.rows(problem.batch, problem.seq_len_kv);
        let shapes = [
            ("q", [q_batch, q_rows, problem.num_heads, problem.head_dim]),
            ("k", [kv_batch, kv_rows, problem.num_kv_heads, problem.head_dim]),
            ("v", [kv_batch, kv_rows, problem.num_kv_heads, problem.head_dim_v]),
            ("out", [q_batch, q_rows, problem.num_heads, problem.head_dim_v]),
        ];
        // Kernels find pages and sequences of a cache in 64 bits.
        let is_cache = matches!(problem.kv_lengths, KvLengths::Cache | KvLengths::Paged { .. });
        let is_wide = is_cache && problem.direction == Direction::Forward;
        let lengths = (problem.q_lengths, problem.kv_lengths);
        let slots = [&mut problem.q, &mut problem.k, &mut problem.v, &mut problem.o];
        for ((slot, (tensor, expected)), given) in slots.into_iter().zip(shapes).zip(self.layouts) {
            let is_wide = is_wide && ["k", "v"].contains(&tensor);
            let counted = &expected[usize::from(is_wide)..];
            let elements = counted.iter().fold(1u128, |all, &n| all.saturating_mul(n as u128));
            let what = format_args!("the number of elements of {tensor}");
            ProblemError::check_size(what, elements, MAX_ELEMENTS as u128)?;
            *slot = given.unwrap_or_else(|| (self.layout)(expected));
            ProblemError::check_problem_shape(tensor, slot.shape, expected, lengths)?;
            if is_wide {
                slot.check_cache(tensor)?;
            } else {
                slot.check(tensor)?;
            }
        }
        problem.o.check_injective("out")?;
        match problem.direction {
            Direction::Forward => problem.gradients = None,
            Direction::Backward => {
                direction::check_served(&problem)?;
                let layouts = problem.gradients.unwrap_or_else(|| GradientLayouts::like(&problem));
                layouts.check(&problem)?;
                (problem.gradients, problem.return_lse) = (Some(layouts), true);
            }
        }
        Ok(problem)
    }
}

fn check_sizes(problem: &Problem) -> Result<(), ProblemError> {
    let sizes = [
        ("batch", problem.batch),
        ("heads", problem.num_heads),
        ("kv_heads", problem.num_kv_heads),
        ("seq_len_q", problem.seq_len_q),
        ("seq_len_kv", problem.seq_len_kv),
        ("head_dim", problem.head_dim),
        ("head_dim_v", problem.head_dim_v),
    ];
    if let Some(&(field, _)) = sizes.iter().find(|s| s.1 == 0) {
        return ProblemError::value(field, 0, "it must be at least 1");
    }
    for (field, given) in [("head_dim", problem.head_dim), ("head_dim_v", problem.head_dim_v)] {
        refuse!(given % 8 != 0 || given > 256 => value(field, given,
            "allowed are multiples of 8 from 8 to 256 (pad the tensors with zero columns to the next multiple of 8)"));
    }
    if !problem.num_heads.is_multiple_of(problem.num_kv_heads) {
        return Err(ProblemError::HeadGroups {
            num_heads: problem.num_heads,
            num_kv_heads: problem.num_kv_heads,
        });
    }
    for (field, given) in [("seq_len_q", problem.seq_len_q), ("seq_len_kv", problem.seq_len_kv)] {
        ProblemError::check_size(field, given as u128, MAX_SEQ_LEN as u128)?;
    }
    Ok(())
}

fn check_values(problem: &Problem) -> Result<(), ProblemError> {
    let scale = problem.softmax_scale;
    refuse!(!(scale > 0.0 && scale <= MAX_SOFTMAX_SCALE) =>
        value("softmax_scale", scale, "it must be finite, above 0 and at most 1e5, the largest that is tested"));
    if let Some(cap) = problem.softcap
        && !SOFTCAPS.contains(&cap)
    {
        let allowed = "it must be finite, from 1e-5 to 1e3 (leave it out for no cap)";
        return ProblemError::value("softcap", cap, allowed);
    }
    refuse!(problem.batch_invariant == Some(0) =>
        value("batch_invariant", 0, "a split has 1 key or more (leave it out where splits may follow the batch)"));
    ProblemError::check_size(
        "batch_invariant",
        problem.batch_invariant.unwrap_or(1) as u128,
        MAX_SEQ_LEN as u128,
    )?;
    if let (Some(keys), Direction::Backward) = (problem.batch_invariant, problem.direction) {
        let allowed = "it is of the forward pass alone: leave it out of a backward problem";
        return ProblemError::value("batch_invariant", keys, allowed);
    }
    refuse!(problem.sinks == Some(DType::E4M3) => value("sinks", DType::E4M3, "sinks are f32, fp16 or bf16"));
    refuse!(problem.alibi.is_some() && scale < MIN_ALIBI_SCALE =>
        value("softmax_scale", scale, "with ALiBi it must be at least 1e-24: the bias is divided by it"));
    for (field, given) in [("q_offset", problem.q_offset), ("kv_offset", problem.kv_offset)] {
        refuse!(given.unsigned_abs() as usize > MAX_SEQ_LEN => value(field, given, "it must lie within ±2^28"));
    }
    Ok(())
}

fn check_lengths(problem: &Problem) -> Result<(), ProblemError> {
    let (q, kv) = (problem.q_lengths, problem.kv_lengths);
    let mut sizes = Vec::new();
    if let QLengths::Packed { total, .. } = q {
        sizes.push(("total of q_lengths", total));
    }
    match kv {
        KvLengths::Equal | KvLengths::Cache => {}
        KvLengths::Packed { total, .. } => sizes.push(("total of kv_lengths", total)),
        KvLengths::Paged {
            page_size,
            pages,
            max_pages,
        } => {
            sizes.extend([("page_size", page_size), ("pages", pages), ("max_pages", max_pages)]);
        }
    }
    if let Some(&(field, _)) = sizes.iter().find(|size| size.1 == 0) {
        return ProblemError::value(field, 0, "it must be at least 1");
    }
    for (field, size) in sizes {
        ProblemError::check_size(field, size as u128, MAX_SEQ_LEN as u128)?;
    }
    if problem.has_lengths() {
        // Packed and paged tensors say nothing of how many sequences there are.
        let heads = problem.batch as u128 * problem.num_heads as u128;
        ProblemError::check_size("the number of heads of all sequences", heads, MAX_ELEMENTS as u128)?;
    }
    if let KvLengths::Paged {
        page_size, max_pages, ..
    } = kv
    {
        let entries = problem.batch as u128 * max_pages as u128;
        ProblemError::check_size(
            "the number of entries of block_table",
            entries,
            MAX_ELEMENTS as u128 / 2,
        )?;
        refuse!(page_size * max_pages < problem.seq_len_kv => value("max_pages", max_pages,
            "pages of page_size keys must hold seq_len_kv keys: raise it, or lower seq_len_kv"));
    }
    Ok(())
}
