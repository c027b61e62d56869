//! What elements stand for, where they are too narrow to stand for themselves: themselves times the scale of their K/V
//! head.

use flashcore_ir::{Arg, BufferSpec, Cache, GlobalPtr, KernelBuilder, Launch, Val};
use flashcore_problem::Problem;

use super::schedule::Entry;

/// The buffers, each f32 `[batch, num_kv_heads]`.
const NAMES: [&str; 3] = ["q_scale", "k_scale", "v_scale"];

/// The scales of Q, K and V.
pub(super) struct Scales<'k> {
    of: [GlobalPtr<'k, f32>; 3],
    num_kv_heads: Val<'k, u32>,
}

impl<'k> Scales<'k> {
    pub(super) fn declare(k: &'k KernelBuilder) -> Self {
        Scales {
            of: NAMES.map(|name| k.param_ptr(name)),
            num_kv_heads: k.param("num_kv_heads"),
        }
    }

    /// A K/V head's number among those of all batches.
    #[track_caller]
    pub(super) fn head(&self, tile: &Entry<'k>) -> Val<'k, u32> {
        tile.batch().fma(self.num_kv_heads, tile.kv_head())
    }

    /// What products of Q and K, and values, of a tile's head are to be multiplied by.
    #[track_caller]
    pub(super) fn of(&self, tile: &Entry<'k>) -> (Val<'k, f32>, Val<'k, f32>) {
        let head = self.head(tile);
        let [q, k, v] = self.of.map(|scale| scale.offset(head).load_with(Cache::ReadOnly));
        (q * k, v)
    }
}

/// Adds the arguments of [`Scales::declare`].
pub(super) fn add_to_launch(launch: &mut Launch, problem: &Problem) {
    for name in NAMES {
        let slot = launch.buffers.len();
        launch.buffers.push(BufferSpec {
            name,
            bytes: (4 * problem.batch() * problem.num_kv_heads()) as u64,
            written: false,
            align: 4,
        });
        launch.args.push(Arg::Buffer { slot, byte_offset: 0 });
    }
    launch.args.push(Arg::U32(problem.num_kv_heads() as u32));
}
