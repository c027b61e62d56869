//! [`Problem`]: the description of an attention computation.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    Alibi, CausalAlign, DType, Direction, GradientLayouts, KeyRange, KvLengths, Layout, Mask, Memory, ProblemBuilder,
    ProblemError, QLengths, TensorView, View, refuse,
};

/// Largest factor on `Q·Kᵀ`. Outputs are tested up to it, on every backend. Scores are kept in f32:
/// from about 1e7 their rounding alone takes P out of the range of fp16, and from 1e8 of f32.
pub const MAX_SOFTMAX_SCALE: f32 = 1e5;

/// The soft caps that outputs are tested for. Larger ones lose digits of the scores in f32.
pub const SOFTCAPS: std::ops::RangeInclusive<f32> = 1e-5..=1e3;

/// Upper limit of a tensor's span in elements: kernels use 32-bit indices.
pub const MAX_ELEMENTS: usize = 1 << 31;

/// Maximum sequence length: row index plus mask offset must fit in an `i32`.
pub const MAX_SEQ_LEN: usize = 1 << 28;

/// An attention computation: `O = softmax(scale · Q·Kᵀ, masked) · V` for every batch and head.
///
/// Tensors are `[batch, seq, heads, head_dim]` with any strides ([`Layout`]). For e4m3, each of Q,
/// K and V has one f32 scale per (batch, K/V head), where a sequence is an entry of the batch
/// ([`TensorView::with_scales`], [`TensorView::with_scales_of`]):
/// `O = v_scale · softmax(scale · q_scale · k_scale · Q·Kᵀ, masked) · V`, in bf16.
///
/// Sinks and ALiBi slopes, where the problem has them, are given with Q ([`TensorView::with_sinks`],
/// [`TensorView::with_alibi_slopes`]).
///
/// A problem is computed forward, or [backward](crate::direction).
///
/// [`Problem::builder`] and deserialisation validate all fields, so every `Problem` is valid.
///
/// ```
/// # use flashcore_problem as flashcore;
/// use flashcore::{DType, Mask, Problem};
/// let problem = Problem::builder()
///     .batch(1).heads(32, 8).seq_len(4096).head_dim(128)
///     .dtype(DType::BF16).mask(Mask::CAUSAL)
///     .build()?;
/// assert_eq!(problem.group_size(), 4); // query heads per K/V head
/// # Ok::<(), flashcore::ProblemError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")] // so that the impls below can validate
pub struct Problem {
    pub(crate) batch: usize,
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) seq_len_q: usize,
    pub(crate) seq_len_kv: usize,
    pub(crate) head_dim: usize,
    pub(crate) head_dim_v: usize,
    pub(crate) dtype: DType,
    pub(crate) mask: Mask,
    pub(crate) q_offset: i32,
    pub(crate) kv_offset: i32,
    pub(crate) softmax_scale: f32,
    pub(crate) softcap: Option<f32>,
    pub(crate) return_lse: bool,
    pub(crate) q: Layout,
    pub(crate) k: Layout,
    pub(crate) v: Layout,
    pub(crate) o: Layout,
    #[serde(default)]
    pub(crate) q_lengths: QLengths,
    #[serde(default)]
    pub(crate) kv_lengths: KvLengths,
    #[serde(default, skip_serializing_if = "Direction::is_forward")]
    pub(crate) direction: Direction,
    /// Of a backward problem, and only of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gradients: Option<GradientLayouts>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) deterministic: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch_invariant: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sinks: Option<DType>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) alibi: Option<Alibi>,
}

/// No field is NaN.
impl Eq for Problem {}

/// By what nearly all problems of a program differ in: few words, as calls are looked up by it.
impl Hash for Problem {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let sizes = [self.batch, self.num_heads, self.seq_len_q, self.seq_len_kv];
        let [q, k] = [&self.q, &self.k].map(|layout| (layout.shape[1], layout.strides[1]));
        (sizes, q, k, self.direction.is_forward()).hash(state);
    }
}

/// The names of the fields; one that is left out here does not compile.
macro_rules! names {
    ($($field:ident),* $(,)?) => {
        impl Problem {
            /// The names of the fields, by which a crate that knows each of them notices a new one.
            #[doc(hidden)]
            pub const FIELDS: &[&str] = {
                let _ = |Problem { $($field: _),* }: &Problem| ();
                &[$(stringify!($field)),*]
            };
        }
    };
}

names! {
    batch, num_heads, num_kv_heads, seq_len_q, seq_len_kv, head_dim, head_dim_v, dtype, mask, q_offset,
    kv_offset, softmax_scale, softcap, return_lse, q, k, v, o, q_lengths, kv_lengths, direction, gradients,
    deterministic, batch_invariant, sinks, alibi
}

/// A method for each field that returns its value.
macro_rules! getters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => {
        impl Problem {
            $($(#[$doc])*
            pub fn $field(&self) -> $type {
                self.$field
            })*
        }
    };
}

getters! {
    /// Sequences in the batch.
    batch: usize;
    /// Query heads.
    num_heads: usize;
    /// Key/value heads; `num_heads` is a multiple of it.
    num_kv_heads: usize;
    /// Query rows per sequence, or their upper bound ([`QLengths`]).
    seq_len_q: usize;
    /// Keys per sequence, or their upper bound ([`KvLengths`]).
    seq_len_kv: usize;
    /// Columns of Q and K.
    head_dim: usize;
    /// Columns of V and O.
    head_dim_v: usize;
    /// Element type of Q, K and V; that of O is [`out_dtype`](Self::out_dtype).
    dtype: DType;
    /// Which keys each row attends to.
    mask: Mask;
    /// Position of query row 0 in its sequence, added to the mask's diagonal.
    q_offset: i32;
    /// Position of key 0 in its sequence, subtracted from the mask's diagonal.
    kv_offset: i32;
    /// Factor on `Q·Kᵀ`: `1/√head_dim` unless set, at most 1e5.
    softmax_scale: f32;
    /// `Some(c)`: `c·tanh(s/c)` is applied to scaled scores before the mask.
    softcap: Option<f32>;
    /// Whether the log-sum-exp is requested: f32 `[batch, heads, seq_len_q]`, or `[heads, total]`
    /// of packed query rows, natural logarithm. A backward pass always reads it.
    return_lse: bool;
    /// Where the query rows of a sequence lie.
    q_lengths: QLengths;
    /// Where the keys of a sequence lie.
    kv_lengths: KvLengths;
    /// Whether gradients must be the same bits in every run: a backward pass may otherwise add in an
    /// order that depends on timing, if it is faster. O and the log-sum-exp always are.
    deterministic: bool;
    /// `Some(keys)`: the bits of an output do not depend on the other sequences of the batch, and keys
    /// are split every `keys` of them
    /// ([`ProblemBuilder::batch_invariant`](crate::ProblemBuilder::batch_invariant)).
    batch_invariant: Option<usize>;
    /// `Some(dtype)`: each query head has a sink, a logit that counts in the sum of the softmax and has
    /// no value. The log-sum-exp includes it.
    sinks: Option<DType>;
    /// Whether `slope·|i − j|` is subtracted from the scaled, soft-capped score of a row at position `i`
    /// and a key at position `j`, and which slopes there are. Positions are those of the mask's diagonal
    /// ([`KeyRange::diagonal`]).
    alibi: Option<Alibi>;
}

impl Serialize for Problem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Problem::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Problem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Problem, D::Error> {
        let unchecked = Problem::deserialize(deserializer)?;
        ProblemBuilder::unchecked(unchecked).build().map_err(D::Error::custom)
    }
}

impl Problem {
    /// Starts with one sequence of fp16, full attention. Heads, lengths and head_dim must be given.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::Problem;
    /// let error = Problem::builder().heads(8, 8).head_dim(64).build().unwrap_err();
    /// assert!(error.to_string().starts_with("seq_len_q was not given; call `.seq_len(n)`"));
    /// ```
    pub fn builder() -> ProblemBuilder {
        ProblemBuilder::default()
    }

    /// Starts with the sizes, layouts and dtype of tensors, full attention, so that nothing is stated twice. O is in
    /// the order of Q, K and V, if they have the same. Fields that are set later count: those of packed sequences and
    /// caches, whose tensors do not say how many sequences there are.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{DType, Layout, Mask, Problem, Tensor};
    /// let rows = |heads| Tensor::from_fn(DType::BF16, Layout::bhsd([2, 512, heads, 64]), |_, s, _, _| s as f32);
    /// let (q, k, v) = (rows(8), rows(2), rows(2));
    /// let problem = Problem::of(&q, &k, &v).mask(Mask::CAUSAL).build()?;
    /// assert_eq!((problem.batch(), problem.num_heads(), problem.num_kv_heads()), (2, 8, 2));
    /// assert_eq!((problem.seq_len_kv(), problem.dtype()), (512, DType::BF16));
    /// assert_eq!(*problem.o_layout(), Layout::bhsd([2, 512, 8, 64]));
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    ///
    /// Tensors are in host or device memory. If they hold integers, [`ProblemBuilder::build`] has no dtype and takes
    /// fp16; the call then refuses them.
    pub fn of<'a, M: Memory>(
        q: impl Into<View<'a, M>>,
        k: impl Into<View<'a, M>>,
        v: impl Into<View<'a, M>>,
    ) -> ProblemBuilder {
        let q = q.into();
        let dtype = q.element().float().unwrap_or(DType::F16);
        ProblemBuilder::of_layouts(dtype, [*q.layout(), *k.into().layout(), *v.into().layout()])
    }

    /// The default factor on `Q·Kᵀ`: `1/√head_dim`.
    pub fn default_scale(head_dim: usize) -> f32 {
        1.0 / (head_dim as f32).sqrt()
    }

    /// The layouts of all its tensors of rows: Q, K, V, O and, of a backward problem, dO and the gradients.
    #[doc(hidden)]
    pub fn layouts(&self) -> impl Iterator<Item = &Layout> {
        let gradients = self.gradients.iter().flat_map(|g| [&g.dout, &g.dq, &g.dk, &g.dv]);
        [&self.q, &self.k, &self.v, &self.o].into_iter().chain(gradients)
    }

    /// Query heads per K/V head (1: MHA; `num_heads`: MQA).
    pub fn group_size(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }
    /// Element type of O: bf16 for e4m3, otherwise that of Q, K and V.
    pub fn out_dtype(&self) -> DType {
        self.dtype.output()
    }
    /// Scales of each of Q, K and V, `[batch, num_kv_heads]`, for e4m3; otherwise 0. See
    /// [`TensorView::with_scales`].
    pub fn num_scales(&self) -> usize {
        match self.dtype {
            DType::E4M3 => self.batch * self.num_kv_heads,
            _ => 0,
        }
    }
    /// Sinks, `[num_heads]`: 0 if the problem has none.
    pub fn num_sinks(&self) -> usize {
        self.sinks.map_or(0, |_| self.num_heads)
    }
    /// ALiBi slopes, f32 `[num_heads]` or `[batch, num_heads]`: 0 if the problem has none.
    pub fn num_alibi_slopes(&self) -> usize {
        match self.alibi {
            None => 0,
            Some(Alibi::Heads) => self.num_heads,
            Some(Alibi::BatchHeads) => self.batch * self.num_heads,
        }
    }
    /// Layout of Q, `[batch, seq_len_q, num_heads, head_dim]`; other lengths than equal ones have
    /// other shapes ([`QLengths`], [`KvLengths`]).
    pub fn q_layout(&self) -> &Layout {
        &self.q
    }
    /// Layout of K, `[batch, seq_len_kv, num_kv_heads, head_dim]`.
    pub fn k_layout(&self) -> &Layout {
        &self.k
    }
    /// Layout of V, `[batch, seq_len_kv, num_kv_heads, head_dim_v]`.
    pub fn v_layout(&self) -> &Layout {
        &self.v
    }
    /// Layout of O, `[batch, seq_len_q, num_heads, head_dim_v]`.
    pub fn o_layout(&self) -> &Layout {
        &self.o
    }
    /// Elements of the log-sum-exp: rows and heads of O.
    pub fn lse_len(&self) -> usize {
        self.o.shape[..3].iter().product()
    }

    /// The problem that a kernel is chosen for where the choice must not depend on the batch
    /// ([`batch_invariant`](Self::batch_invariant)): that of one sequence, with the same bounds.
    /// `None` where it may.
    pub fn of_one_sequence(&self) -> Option<Problem> {
        self.batch_invariant?;
        let mut one = Problem {
            batch: 1,
            ..self.clone()
        };
        if let QLengths::Packed { total, .. } = &mut one.q_lengths {
            *total = self.seq_len_q;
        }
        if let KvLengths::Packed { total, .. } = &mut one.kv_lengths {
            *total = self.seq_len_kv;
        }
        let [q_rows, kv_rows] = [
            one.q_lengths.rows(1, self.seq_len_q),
            one.kv_lengths.rows(1, self.seq_len_kv),
        ];
        for (layout, rows) in [
            (&mut one.q, q_rows),
            (&mut one.o, q_rows),
            (&mut one.k, kv_rows),
            (&mut one.v, kv_rows),
        ] {
            layout.shape[..2].copy_from_slice(&rows);
        }
        Some(one)
    }

    /// The mask resolved for this problem's lengths and offsets; where lengths differ, for the
    /// bounds ([`Sequence::keys`](crate::Sequence::keys) has those of a sequence).
    pub fn key_range(&self) -> KeyRange {
        self.key_range_of(self.seq_len_q, self.seq_len_kv)
    }

    /// The mask resolved for a sequence of `seq_len_q` query rows and `seq_len_kv` keys.
    pub fn key_range_of(&self, seq_len_q: usize, seq_len_kv: usize) -> KeyRange {
        let aligned = match self.mask.align {
            CausalAlign::BottomRight => seq_len_kv as i32 - seq_len_q as i32,
            CausalAlign::TopLeft => 0,
        };
        let diagonal = i64::from(aligned) + i64::from(self.q_offset) - i64::from(self.kv_offset);
        // Both limits exceed every row index, so clamping does not change the visible keys.
        let clamp = |edge: i64| edge.clamp(KeyRange::UNBOUNDED_LO.into(), KeyRange::UNBOUNDED_HI.into()) as i32;
        KeyRange {
            lo: self
                .mask
                .window_left
                .map_or(KeyRange::UNBOUNDED_LO, |w| clamp(diagonal - i64::from(w))),
            hi: self
                .mask
                .window_right
                .map_or(KeyRange::UNBOUNDED_HI, |w| clamp(diagonal + i64::from(w))),
            seq_len_kv,
            diagonal: diagonal as i32,
        }
    }

    /// The keys that row `row` of a sequence attends to, with the lengths of [`Problem::key_range`].
    pub fn visible_keys(&self, row: usize) -> Range<usize> {
        self.key_range().keys(row)
    }

    /// FLOPs of the products over visible keys: `2·(head_dim + head_dim_v)` per visible (row, key)
    /// pair and head for the two of the forward pass, `2·(3·head_dim + 2·head_dim_v)` for the five of
    /// the backward pass. Softmax is not counted, as usual in the field. Lengths that differ count as
    /// their bounds.
    pub fn flops(&self) -> f64 {
        let pairs: f64 = (0..self.seq_len_q).map(|row| self.visible_keys(row).len() as f64).sum();
        let columns = match self.direction {
            Direction::Forward => self.head_dim + self.head_dim_v,
            Direction::Backward => 3 * self.head_dim + 2 * self.head_dim_v,
        };
        2.0 * columns as f64 * pairs * (self.batch * self.num_heads) as f64
    }

    /// Checks shape, dtype, strides and scales of Q, K and V, and the sinks and slopes of Q, against the
    /// problem.
    pub fn check_inputs(&self, q: &TensorView<'_>, k: &TensorView<'_>, v: &TensorView<'_>) -> Result<(), ProblemError> {
        check_tensor("q", self.dtype, &self.q, q)?;
        check_tensor("k", self.dtype, &self.k, k)?;
        check_tensor("v", self.dtype, &self.v, v)?;
        for (tensor, view) in [("q", q), ("k", k), ("v", v)] {
            let given = view.scales().map_or(0, <[f32]>::len);
            refuse!(given != self.num_scales() => scales(tensor, given, self.batch, self.num_kv_heads));
            if given > 0 && view.scaled != self.batch {
                let (scaled, batch) = (view.scaled, self.batch);
                let message = format!(
                    "the scales of {tensor} are of {scaled} sequences, and the problem has {batch} (`with_scales_of`)"
                );
                return ProblemError::tensor(tensor, message);
            }
        }
        self.check_head_values(q)
    }

    /// Checks shape, dtype and strides of the output against the problem.
    pub fn check_output(&self, out: &TensorView<'_>) -> Result<(), ProblemError> {
        check_tensor("out", self.out_dtype(), &self.o, out)
    }
}

pub(crate) fn check_tensor(
    tensor: &'static str,
    expected: DType,
    layout: &Layout,
    view: &TensorView<'_>,
) -> Result<(), ProblemError> {
    let (dtype, given) = (view.dtype(), view.layout());
    ProblemError::check_dtype(tensor, dtype, expected)?;
    ProblemError::check_shape(tensor, &given.shape, &layout.shape)?;
    refuse!(given.strides != layout.strides =>
        strides(tensor, given, "the problem has other strides; build it from the layouts of the tensors"));
    Ok(())
}
