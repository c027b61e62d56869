//! A row of the softmax in kernels that compare every key with the row's bounds, which is easy to read. Kernels of
//! `mma.sync` and `wgmma` [mask](super::mask) few tiles instead, which is faster.

use flashcore_ir::{Element, KernelBuilder, Val, Var};

use super::params::Params;
use super::score_mod::RowBias;
use super::softmax::RowMax;

/// A row's running state, of which each of its threads has a copy; `sum` is each thread's own part.
pub(crate) struct MaskedRow<'k> {
    pub row: Val<'k, u32>,
    /// First that it sees, and one past the last.
    pub keys: (Val<'k, i32>, Val<'k, i32>),
    bias: Option<RowBias<'k>>,
    pub max: RowMax<'k>,
    pub sum: Var<'k, f32>,
}

impl<'k> MaskedRow<'k> {
    #[track_caller]
    pub(crate) fn new<E: Element>(
        k: &'k KernelBuilder,
        params: &Params<'k, E>,
        batch: Val<'k, u32>,
        head: Val<'k, u32>,
        row: Val<'k, u32>,
    ) -> Self {
        let keys = params.visible_keys(row);
        let max = RowMax::new(k, params.score_mod.exponent_scale, params.dtype);
        let sum = k.var(0.0);
        let bias = params.score_mod.bias(batch, head, row);
        MaskedRow {
            row,
            keys,
            bias,
            max,
            sum,
        }
    }

    /// The score of a key, from its product.
    #[track_caller]
    pub(crate) fn score<E: Element>(
        &self,
        params: &Params<'k, E>,
        key: impl FnOnce() -> Val<'k, u32>,
        dot: Val<'k, f32>,
    ) -> Val<'k, f32> {
        let score = params.score_mod.score(dot);
        self.bias.map_or(score, |bias| bias.subtract(score, key()))
    }

    /// Whether the row sees a key.
    #[track_caller]
    pub(crate) fn sees(&self, key: Val<'k, u32>) -> Val<'k, bool> {
        let key = key.reinterpret::<i32>();
        key.ge(self.keys.0) & key.lt(self.keys.1)
    }

    /// Raises the maximum to the largest score of the row's `threads` threads, and rescales `sum`. Returns the factor.
    #[track_caller]
    pub(crate) fn raise(&self, largest: Val<'k, f32>, threads: u32) -> Val<'k, f32> {
        let rescale = self.max.raise(largest.reduce_max(threads), 0.0);
        self.sum.mul_assign(rescale);
        rescale
    }

    /// The probability of a score, added to `sum`.
    #[track_caller]
    pub(crate) fn exp(&self, score: Val<'k, f32>) -> Val<'k, f32> {
        let p = self.max.exp(score);
        self.sum.add_assign(p);
        p
    }
}
