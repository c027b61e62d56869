//! The main kernel of the backward pass: FlashAttention-2's, with keys as rows.
//!
//! A block owns a tile of keys of one K/V head and walks the query rows that see them, of all heads of its group. dK
//! and dV stay in registers; dQ is added up in global memory. Deterministic gradients take two kernels in its place,
//! which add nothing there: one without dQ, and the same code with the two sides exchanged, which owns query rows and
//! walks keys.
//!
//! Q comes through a ring of stages filled by asynchronous copies, and dO through one with a stage less: no warp needs
//! a tile of dO once it has added to dV, so that the next one comes in while dK and dQ are computed. With one stage of
//! each, the next Q comes in behind dK and dQ, too.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{GlobalPtr, KernelBuilder, SharedTile, TileShape, Val};

use super::warp::Warp;
use super::{Outputs, Tiling};
use crate::args::Args;
use crate::attention::block_range::{Band, BlockOrder, BlockRange};
use crate::attention::gradients::{Backward, BackwardParams, dq_sums, tile_of};
use crate::attention::index::Index;
use crate::attention::lengths::TensorParam;
use crate::attention::params::Shape;
use crate::mma::Config;
use crate::mma::producer::Edges;
use crate::tiles::{HeadCopies, HeadTile};

/// Rows of two tensors in shared memory: K and V, or Q and dO.
pub(super) type Pair<T> = [T; 2];

/// Stages of dO: one less than of Q, and one at least.
pub(super) const fn second_stages(levers: &Config) -> u32 {
    if levers.stages > 1 { levers.stages - 1 } else { 1 }
}

/// Tiles of a bundle of heads at least: about as many as run at the same time.
const BUNDLE_TILES: u32 = 256;

/// What a block works on.
pub(super) struct Context<'k, 'p, E> {
    pub(super) k: &'k KernelBuilder,
    pub(super) levers: &'p Config,
    pub(super) shape: &'p Shape,
    pub(super) tiling: Tiling,
    pub(super) outputs: Outputs,
    pub(super) params: BackwardParams<'k, E>,
    /// Those of dQ, if it adds any.
    sums: Option<GlobalPtr<'k, f32>>,
    pub(super) owned: Pair<HeadTile<'k, E>>,
    pub(super) walked: Pair<HeadTile<'k, E>>,
    /// The log-sum-exp and Δ of walked query rows, in as many stages as Q.
    pub(super) numbers: Pair<SharedTile<'k, f32>>,
    /// The tile's batch and head, of K/V or of Q, and its first row.
    pub(super) batch: Val<'k, u32>,
    pub(super) head: Val<'k, u32>,
    pub(super) first: Val<'k, u32>,
    /// Rows of the side that is owned, and which rows of the other one each of them sees.
    pub(super) owned_len: Val<'k, u32>,
    seen: Band<Val<'k, i32>>,
}

pub(super) fn body<'k, E: MmaElement>(k: &'k Args<'k, Backward>, levers: &Config, shape: &Shape, outputs: Outputs) {
    levers.bound_registers(k);
    let params = BackwardParams::<E>::declare(k, shape);
    let written = outputs.written().iter();
    let written: Vec<_> = written.map(|&tensor| k.writes(tensor, shape.vector_bytes)).collect();
    let sums = outputs.adds_dq().then(|| dq_sums(k, true));

    let tiling = Tiling::new(levers, shape);
    let head_dims = [[shape.head_dim, tiling.columns], [shape.head_dim_v, tiling.columns_v]];
    let tiles = |names: Pair<&str>, rows, stages: Pair<u32>| {
        [0, 1].map(|i: usize| HeadTile::widened(k, names[i], rows, head_dims[i], stages[i], levers.swizzled))
    };
    let [owned, walked] = outputs.tile_names();
    let owned = tiles(owned, levers.cols, [1; 2]);
    let walked = tiles(walked, levers.rows, [levers.stages, second_stages(levers)]);
    let row_numbers = TileShape::new(1, levers.rows).stages(levers.stages);
    let numbers = ["lse_tile", "delta_tile"].map(|name| k.shared_tile(name, row_numbers));

    let rows = &params.rows;
    let (most, heads) = if outputs.owns_keys() {
        (rows.seq_len_kv, rows.num_heads / rows.group_size)
    } else {
        (rows.seq_len_q, rows.num_heads)
    };
    let tiles = (most + (levers.cols - 1)) / levers.cols;
    // The first keys and the last rows of a causal mask see most, and begin first: those of all heads of a bundle.
    let sizes = [tiles, k.grid_dim(0) / tiles, (tiles + (BUNDLE_TILES - 1)) / tiles];
    let (batch_head, tile) = tile_of(k.block_idx(0), sizes, !outputs.owns_keys(), [&Index::floor_div; 2]);
    let (batch, head) = (batch_head / heads, batch_head % heads);
    let params = params.of_sequence(batch);
    let rows = &params.rows;
    let (owned_len, seen) = if outputs.owns_keys() {
        (rows.seq_len_kv, rows.band.inverse(rows.seq_len_q.reinterpret()))
    } else {
        (rows.seq_len_q, rows.band)
    };
    let context = Context {
        k,
        levers,
        shape,
        tiling,
        outputs,
        owned,
        walked,
        numbers,
        batch,
        head,
        first: tile * levers.cols,
        owned_len,
        seen,
        params,
        sums,
    };
    let compute = || context.compute(&written);
    context.params.rows.if_has_row(context.first, owned_len, compute);
}

impl<'k, E: MmaElement> Context<'k, '_, E> {
    fn compute(&self, written: &[TensorParam<'k, E>]) {
        let (k, rows) = (self.k, &self.params.rows);
        let [q, keys] = [[self.params.q, self.params.dout], [self.params.k, self.params.v]];
        let (owned, walked) = if self.outputs.owns_keys() { (keys, q) } else { (q, keys) };
        self.copy_owned(owned);
        let warp = Warp::new(self);
        if self.outputs.owns_keys() {
            k.for_uniform(0u32, rows.group_size, 1, |i| {
                let q_head = self.head.fma(rows.group_size, i);
                self.main_loop(&warp, walked, [q_head; 2]);
                // No copy of the next head may overwrite a tile that a warp still reads.
                k.barrier();
            });
        } else {
            warp.load_numbers(self.head_row(self.head));
            self.main_loop(&warp, walked, [self.head / rows.group_size, self.head]);
        }
        // Without a tile, the copies of what is owned may still be under way.
        k.cp_async_wait(0);
        k.barrier();
        warp.store(written);
    }

    /// Of the two tensors of each side.
    pub(super) fn head_dims(&self) -> Pair<u32> {
        [self.shape.head_dim, self.shape.head_dim_v]
    }

    /// Where the numbers and the sums of a query head begin.
    #[track_caller]
    fn head_row(&self, q_head: Val<'k, u32>) -> Val<'k, u32> {
        let place = [self.params.rows.num_heads, self.batch, q_head];
        self.params.statistics.head_row(place, self.params.first)
    }

    /// For each tile of query rows: `Sᵀ = K·Qᵀ`, `dPᵀ = V·dOᵀ`, P and dS of them, `dV += Pᵀ·dO`, `dK += dSᵀ·Q` and
    /// `dQ += dS·K`. With the sides exchanged: `S = Q·Kᵀ`, `dP = dO·Vᵀ`, dS of them and `dQ += dS·K`.
    fn main_loop(&self, warp: &Warp<'k, '_, E>, walked: Pair<TensorParam<'k, E>>, [head, q_head]: Pair<Val<'k, u32>>) {
        let k = self.k;
        let ring = &self.ring(walked, head, self.head_row(q_head));
        let one_stage = self.levers.stages == 1;
        let depth = second_stages(self.levers);
        for i in (0..depth).map(|i| k.constant(i as i32)) {
            if one_stage {
                ring.start_second(i, Edges::Checked);
                ring.start_first(i, Edges::Checked);
            } else {
                ring.start_first(i, Edges::Checked);
                ring.start_second(i, Edges::Checked);
            }
        }
        let step = |i: Val<'k, i32>, edges: Edges| {
            let ahead = i + depth as i32;
            let row = ring.row(i, edges);
            let [first, second] = ring.stages(i);
            // Loads that are hoisted from one product into another take more registers than there are.
            if one_stage {
                // dO comes behind dK and dQ, and Q behind dQ and dP.
                ring.wait(1);
                warp.dp(second);
                k.scheduling_fence();
                ring.wait(0);
                warp.scores(first);
            } else {
                ring.wait(2 * (self.levers.stages - 2));
                ring.start_first(ahead, edges);
                warp.scores(first);
                k.scheduling_fence();
                warp.dp(second);
            }
            k.scheduling_fence();
            warp.differentiate(ring.numbers_at(i), (edges == Edges::Checked).then_some(row));
            if self.outputs.owns_keys() && !self.tiling.shares_columns() {
                warp.add_second(second);
                if !self.outputs.adds_dq() {
                    k.scheduling_fence();
                }
            }
            // dS is there, and P if warps exchange it.
            k.barrier();
            if self.outputs.owns_keys() && self.tiling.shares_columns() {
                warp.add_second(second);
                k.barrier();
            }
            ring.start_second(ahead, edges);
            warp.add_first(first);
            k.scheduling_fence();
            if one_stage {
                k.barrier();
                ring.start_first(ahead, edges);
            }
            if let Some(sums) = self.sums {
                warp.add_dq(sums.offset_strided(ring.head_row + row, self.tiling.columns));
            }
        };
        k.for_uniform(k.constant(0i32), ring.order.masked, 1, |i| step(i, Edges::Checked));
        k.for_uniform(ring.order.masked, ring.order.count, 1, |i| step(i, Edges::Whole));
    }

    /// Starts the copies of the tiles that the block owns; rows past the end become zero.
    fn copy_owned(&self, tensors: Pair<TensorParam<'k, E>>) {
        for (tile, tensor) in self.owned.iter().zip(tensors) {
            let chunks = tile.chunks(self.k);
            let copies = chunks.of_head(tensor, tensor.head(self.batch, self.head));
            copies.start(self.k.constant(0), self.first, Some(self.owned_len));
        }
        self.k.cp_async_commit();
    }

    /// The tiles of the other side that the block's rows see. Rows past the end are masked in all of them.
    fn order(&self) -> BlockOrder<Val<'k, i32>> {
        let (first, len): (Val<'k, i32>, Val<'k, i32>) = (self.first.reinterpret(), self.owned_len.reinterpret());
        let last = first + (self.levers.cols as i32 - 1);
        let range = BlockRange::between(
            self.seen.keys(first),
            self.seen.keys(last.min(len - 1)),
            self.levers.rows,
        );
        let past = last.ge(len);
        let range = BlockRange {
            whole: past.select(range.end, range.whole),
            whole_end: past.select(range.end, range.whole_end),
            ..range
        };
        BlockOrder::ascending(range, false)
    }

    /// The tiles of a head of the side that is walked.
    fn ring(&self, tensors: Pair<TensorParam<'k, E>>, head: Val<'k, u32>, head_row: Val<'k, u32>) -> Ring<'k, '_, E> {
        let chunks = self.walked.map(|tile| tile.chunks(self.k));
        Ring {
            context: self,
            // Anew for each head, so that it takes no registers while rows see all keys.
            order: self.order(),
            copies: [0, 1].map(|i: usize| chunks[i].of_head(tensors[i], tensors[i].head(self.batch, head))),
            head_row,
            len: self.seen.len.reinterpret(),
        }
    }

    /// The first row that a row of the owned side sees, and one past the last; none if it is past the end.
    #[track_caller]
    pub(super) fn seen_by_any(&self, row: Val<'k, u32>) -> (Val<'k, i32>, Val<'k, i32>) {
        let (first, end) = self.seen.visible(row.reinterpret());
        (first, row.lt(self.owned_len).select(end, first))
    }
}

/// The tiles of a head that is walked, on their way into shared memory.
struct Ring<'k, 'c, E> {
    context: &'c Context<'k, 'c, E>,
    order: BlockOrder<Val<'k, i32>>,
    copies: Pair<HeadCopies<'k, E>>,
    /// Where the numbers of the head's query rows begin.
    head_row: Val<'k, u32>,
    len: Val<'k, u32>,
}

impl<'k, E: MmaElement> Ring<'k, '_, E> {
    /// The first row of an iteration's tile.
    #[track_caller]
    fn row(&self, i: Val<'k, i32>, edges: Edges) -> Val<'k, u32> {
        let block = match edges {
            Edges::Checked => self.order.n_block(i),
            Edges::Whole => self.order.whole + i,
        };
        block.reinterpret::<u32>() * self.context.levers.rows
    }

    /// Where the tiles of an iteration are, in elements from the first stage.
    #[track_caller]
    fn stages(&self, i: Val<'k, i32>) -> Pair<Val<'k, u32>> {
        [0, 1].map(|which: usize| self.copies[which].stage(i))
    }

    /// The stage of an iteration's numbers.
    #[track_caller]
    fn numbers_at(&self, i: Val<'k, i32>) -> Val<'k, u32> {
        i.reinterpret::<u32>() % self.context.levers.stages
    }

    /// Waits until all groups of copies but the last `pending` have arrived for all warps, and no warp reads the tiles
    /// before.
    #[track_caller]
    fn wait(&self, pending: u32) {
        self.context.k.cp_async_wait(pending);
        self.context.k.barrier();
    }

    /// Starts the copies of an iteration's tile of Q and of its statistics, if it exists, and commits their group.
    #[track_caller]
    fn start_first(&self, i: Val<'k, i32>, edges: Edges) {
        let (context, k) = (self.context, self.context.k);
        k.verb("start_first", || {
            k.if_(i.lt(self.order.count).uniform(), || {
                self.copy(0, i, edges);
                if context.outputs.owns_keys() {
                    let per_tile = context.levers.rows / 4;
                    let (tile, chunk) = (k.thread_idx() / per_tile, k.thread_idx() % per_tile * 4u32);
                    let (statistics, first) = (&context.params.statistics, self.head_row + self.row(i, edges));
                    for (which, (to, from)) in context.numbers.iter().zip(statistics.places(first)).enumerate() {
                        k.if_(tile.eq(which as u32).divergent(), || {
                            k.cp_async(to.at_stage(self.numbers_at(i), 0, chunk), from.offset(chunk), None);
                        });
                    }
                }
            });
            k.cp_async_commit();
        });
    }

    /// The same for dO.
    #[track_caller]
    fn start_second(&self, i: Val<'k, i32>, edges: Edges) {
        let k = self.context.k;
        k.verb("start_second", || {
            k.if_(i.lt(self.order.count).uniform(), || self.copy(1, i, edges));
            k.cp_async_commit();
        });
    }

    #[track_caller]
    fn copy(&self, which: usize, i: Val<'k, i32>, edges: Edges) {
        self.copies[which].start(self.stages(i)[which], self.row(i, edges), Some(self.len));
    }
}
