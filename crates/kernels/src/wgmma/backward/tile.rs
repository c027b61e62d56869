//! Which tile of keys a block has, and the Q tiles that see it: the backward pass's scheduler.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::inst::AtomOp;
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{KernelBuilder, SharedTile, TileShape, Val};

use super::kernel::Context;
use super::split::Share;
use super::{UNIT, tile_keys};
use crate::attention::block_range::{Band, BlockOrder, BlockRange};
use crate::attention::gradients::{DqSemaphore, tile_of};
use crate::attention::index::Index;
use crate::attention::tensor_rows::Sequence;
use crate::wgmma::Config;

/// The tile of a block, and the Q tiles that see it.
pub(super) struct Tile<'k> {
    pub(super) index: Val<'k, u32>,
    /// The first of this block's keys.
    pub(super) first_key: Val<'k, u32>,
    /// K/V head, counted through all batches, and number of tiles of a head.
    pub(super) head: Val<'k, u32>,
    pub(super) tiles: Val<'k, u32>,
    pub(super) kv_head: Val<'k, u32>,
    pub(super) kv_heads: Val<'k, u32>,
    pub(super) batch: Val<'k, u32>,
    pub(super) sequence: Sequence<'k>,
    /// The query rows that see a key.
    seen_by: Band<Val<'k, i32>>,
    range: BlockRange<Val<'k, i32>>,
    pub(super) order: BlockOrder<Val<'k, i32>>,
    /// The first Q tile that sees any of the next tile's keys, whose block adds to its dQ first.
    pub(super) next_first: Val<'k, i32>,
    /// The iteration with which the block begins, if no Q tile needs a mask and the first block at a Q tile stores its
    /// part of dQ. Blocks that start together then reach different Q tiles first, and do not wait for each other. After
    /// the last Q tile, the block goes on with the first.
    shift: Option<Val<'k, i32>>,
    /// This block's share of the Q tiles of all heads, if several blocks [share the tile](super::split).
    share: Option<Share<'k>>,
}

/// A query head that a block walks: the head, the place of its rows in statistics and sums, and the block's range of
/// iterations over its Q tiles.
pub(super) struct Walk<'k> {
    pub(super) head: Val<'k, u32>,
    pub(super) head_row: Val<'k, u32>,
    pub(super) from: Val<'k, i32>,
    pub(super) to: Val<'k, i32>,
}

/// Up to this many query rows, a block begins its walk at the rows that have its keys' numbers ([`Tile::shift`]). With
/// more, waits for the first block matter little, and blocks at the same Q tile share it in the L2 cache.
const SHIFTED_ROWS: u32 = 8192;

/// The tiles of `rows` query rows that see a key from `first` on, `cols` of all `keys`; and the first one that sees a
/// key of the next tile, of which there is none past the end. Every tile from there on to the end sees both.
#[track_caller]
pub(super) fn q_tiles<I: Index>(seen_by: &Band<I>, first: I, keys: I, [rows, cols]: [u32; 2]) -> (BlockRange<I>, I) {
    let rows_that_see = |key: I| seen_by.keys(key);
    let next = first + first.constant(cols as i32);
    let last = (next - first.constant(1)).min(keys - first.constant(1));
    let range = BlockRange::between(rows_that_see(first), rows_that_see(last), rows);
    let next_first = rows_that_see(next).0.floor_div(first.constant(rows as i32));
    (range, I::select(next.lt(keys), next_first, first.constant(i32::MAX)))
}

/// One thread takes the number of a block's tile, one for all blocks of a cluster; a barrier of the block comes next.
#[track_caller]
pub(super) fn take_ticket<'k>(
    k: &'k KernelBuilder,
    semaphore: DqSemaphore<'k>,
    cluster: u32,
    thread: u32,
) -> SharedTile<'k, u32> {
    let ticket = k.shared_tile("ticket", TileShape::new(1, 4));
    let is_taker = k.thread_idx().eq(thread);
    let takes = if cluster > 1 {
        is_taker & k.cluster_rank().eq(0)
    } else {
        is_taker
    };
    k.if_(takes.divergent(), || {
        ticket.at(0, 0).store(semaphore.tickets.atomic(AtomOp::Add, 1u32));
    });
    ticket
}

impl<'k, E: MmaElement + WgmmaElement> Context<'k, '_, E> {
    /// Calls `body` with this block's tile, if its sequence is that long. Blocks of a cluster share a tile and walk the
    /// same Q tiles, even if the keys of one of them are past the end.
    #[track_caller]
    pub(super) fn with_tile(&self, k: &'k KernelBuilder, body: impl FnOnce(&Tile<'k>)) {
        let (Config { rows, cluster, .. }, most_keys) = (*self.levers, self.params.seq_len_kv);
        let (cols, paired) = (tile_keys(self.levers), cluster > 1);
        let clusters = |blocks: Val<'k, u32>| if paired { blocks / cluster } else { blocks };
        let number = match self.ticket.map(|ticket| ticket.at(0, 0)) {
            None => clusters(k.block_idx(0)),
            Some(taken) if paired => taken.in_block(0).load().shfl_idx(0u32),
            Some(taken) => taken.load().shfl_idx(0u32),
        };
        let tiles = (most_keys + (cols - 1)) / cols;
        let at_once = self.heads_at_once;
        let (head, index) = match &self.ahead {
            None => {
                let heads = clusters(k.grid_dim(0)) / tiles;
                tile_of(number, [tiles, heads, at_once], self.ordered, [&Index::floor_div; 2])
            }
            Some(ahead) => ahead.tile_of(number, [tiles, ahead.all_heads, at_once]),
        };
        // The blocks of a tile count as heads of their own.
        let (head, of_tile) = match self.split() {
            None => (head, None),
            Some(split) => (head / split.blocks, Some(head % split.blocks)),
        };
        let first_key = index * cols;
        let num_heads = self.params.num_heads;
        let (kv_heads, batch, kv_head) = match &self.ahead {
            None => {
                let kv_heads = num_heads / self.params.group_size;
                (kv_heads, head / kv_heads, None)
            }
            Some(ahead) => {
                let [batch, kv_head] = ahead.place_of(head, num_heads);
                (num_heads, batch, Some(kv_head))
            }
        };
        let sequence = Sequence::of_batch(&self.params, batch);
        let params = &sequence.params;
        let seen_by = params.band.inverse(params.seq_len_q.reinterpret());
        let (first, keys): (Val<'k, i32>, Val<'k, i32>) = (first_key.reinterpret(), params.seq_len_kv.reinterpret());
        let (range, next_first) = q_tiles(&seen_by, first, keys, [rows, cols]);
        // Keys past the end are masked in every Q tile.
        let past = (first + (cols as i32 - 1)).ge(keys);
        let range = BlockRange {
            whole: past.select(range.end, range.whole),
            whole_end: past.select(range.end, range.whole_end),
            ..range
        };
        let of_block = if paired {
            k.cluster_rank().fma(UNIT, first_key)
        } else {
            first_key
        };
        let kv_head = kv_head.unwrap_or_else(|| head % kv_heads);
        let order = BlockOrder::ascending(range, false);
        let shift = self.in_any_order().map(|_| {
            let own: Val<'k, i32> = (first_key / rows).reinterpret();
            let shifts = order.masked.eq(0) & own.lt(order.count) & order.count.le((SHIFTED_ROWS / rows) as i32);
            shifts.select(own, 0)
        });
        let share = self.split().zip(of_tile);
        let share = share.map(|(split, index)| split.share(index, order.count, self.params.group_size));
        let tile = Tile {
            index,
            first_key: of_block,
            head,
            tiles,
            kv_head,
            kv_heads,
            batch,
            seen_by,
            range,
            order,
            next_first,
            shift,
            share,
            sequence,
        };
        tile.sequence
            .params
            .if_has_row(first_key, tile.sequence.params.seq_len_kv, || body(&tile));
    }

    /// Calls `body` with each query head of the tile's group that the block walks.
    #[track_caller]
    pub(super) fn each_head(&self, tile: &Tile<'k>, body: impl FnOnce(Walk<'k>)) {
        let (k, group_size) = (tile.batch.builder(), self.params.group_size);
        let (first, end) = match &tile.share {
            None => (k.constant(0u32), group_size),
            Some(share) => share.heads(),
        };
        k.for_uniform(first, end, 1, |i| {
            let head = tile.kv_head.fma(group_size, i);
            let first = tile.sequence.first();
            let head_row = self.statistics.head_row(self.params.num_heads, tile.batch, head, first);
            let (from, to) = match &tile.share {
                None => (k.constant(0i32), tile.q_tiles()),
                Some(share) => share.iterations(i),
            };
            body(Walk {
                head,
                head_row,
                from,
                to,
            });
        });
    }

    /// Number of Q tiles that the block walks, of all heads.
    #[track_caller]
    pub(super) fn all_q_tiles(&self, tile: &Tile<'k>) -> Val<'k, u32> {
        match &tile.share {
            None => tile.q_tiles().reinterpret::<u32>() * self.params.group_size,
            Some(share) => share.count,
        }
    }

    /// Whether the block walks any Q tile.
    #[track_caller]
    pub(super) fn any_q_tile(&self, tile: &Tile<'k>) -> Val<'k, bool> {
        match &tile.share {
            None => tile.q_tiles().gt(0),
            Some(share) => share.count.gt(0),
        }
    }

    /// The Q tile of an iteration. Where dQ is added in order, they go upwards: the block of the next keys begins at
    /// the same tile or a later one, so that it comes to each tile of both first.
    #[track_caller]
    pub(super) fn q_tile_of(&self, tile: &Tile<'k>, i: Val<'k, i32>) -> Val<'k, i32> {
        if self.ordered {
            return tile.range.first + i;
        }
        let Some(shift) = tile.shift else {
            return tile.order.n_block(i);
        };
        let (i, count) = (i + shift, tile.q_tiles());
        tile.order.n_block(i.ge(count).select(i - count, i))
    }
}

impl<'k> Tile<'k> {
    /// Q tiles that see any of its keys.
    pub(super) fn q_tiles(&self) -> Val<'k, i32> {
        self.order.count
    }

    /// The query rows that see a key, none if it is past the end.
    #[track_caller]
    pub(super) fn rows_that_see(&self, key: Val<'k, u32>) -> (Val<'k, i32>, Val<'k, i32>) {
        let (first, end) = self.seen_by.visible(key.reinterpret());
        (first, key.lt(self.sequence.params.seq_len_kv).select(end, first))
    }

    /// One past the last iteration of a walk that needs a mask; the first one if there is none.
    #[track_caller]
    pub(super) fn masked(&self, walk: &Walk<'k>) -> Val<'k, i32> {
        match &self.share {
            None => self.order.masked,
            Some(_) => self.order.masked.min(walk.to).max(walk.from),
        }
    }

    /// Whether some rows of a Q tile do not see all keys.
    #[track_caller]
    pub(super) fn is_masked(&self, m_block: Val<'k, i32>) -> Val<'k, bool> {
        m_block.lt(self.range.whole) | m_block.ge(self.range.whole_end)
    }
}
