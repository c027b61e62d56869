//! The tile scheduler of the backward pass: which tile of keys a block has, and the Q tiles that see it.

use flashcore_ir::inst::AtomOp;
use flashcore_ir::{KernelBuilder, SharedTile, TileShape, Val};

use super::kernel::Context;
use super::split::Share;
use super::{WGMMA_M, tile_keys};
use crate::attention::block_range::{Band, BlockOrder, BlockRange};
use crate::attention::gradients::{DqSemaphore, tile_of};
use crate::attention::index::Index;
use crate::attention::softmax::SixteenBits;
use crate::attention::tensor_rows::Sequence;
use crate::wgmma::Config;

/// The tile of keys of a block, and the Q tiles that see it.
pub(super) struct Tile<'k> {
    /// Number of the tile in its head.
    pub(super) index: Val<'k, u32>,
    /// The first of this block's keys.
    pub(super) first_key: Val<'k, u32>,
    /// The K/V head, counted through all batches, and in its batch.
    pub(super) batch_kv_head: Val<'k, u32>,
    pub(super) kv_head: Val<'k, u32>,
    pub(super) kv_heads: Val<'k, u32>,
    pub(super) tiles_of_head: Val<'k, u32>,
    pub(super) batch: Val<'k, u32>,
    pub(super) sequence: Sequence<'k>,
    /// The query rows that see a key.
    seen_by: Band<Val<'k, i32>>,
    range: BlockRange<Val<'k, i32>>,
    pub(super) order: BlockOrder<Val<'k, i32>>,
    /// The first Q tile that sees any of the next tile's keys, whose block adds to its dQ first.
    pub(super) next_first: Val<'k, i32>,
    /// The iteration that the block begins with; after the last one it goes on with the first. Not 0 only where the
    /// first block at a Q tile stores its part of dQ and no Q tile needs a mask: blocks that start together then begin
    /// with different Q tiles, and do not wait for each other.
    shift: Option<Val<'k, i32>>,
    /// This block's share of the Q tiles of all heads, if several blocks [share the tile](super::split).
    share: Option<Share<'k>>,
}

/// A query head whose Q tiles a block walks, and the block's range of iterations.
pub(super) struct QueryHead<'k> {
    /// Its number in the batch.
    pub(super) index: Val<'k, u32>,
    /// Its first row in the statistics and in the sums of dQ.
    pub(super) first_row: Val<'k, u32>,
    pub(super) from: Val<'k, i32>,
    pub(super) to: Val<'k, i32>,
}

/// Up to this many query rows, a block begins with the Q tile on the diagonal of its keys ([`Tile::shift`]). With more,
/// the waits for the first block matter little, and blocks at the same Q tile share it in the L2 cache.
const SHIFTED_ROWS: u32 = 8192;

/// The Q tiles, of `rows` rows, that see any of the `cols` keys from `first` on, and the first Q tile that sees any of
/// the `cols` keys after those (`i32::MAX` past the last of all `keys`). All Q tiles from there to the end see both.
#[track_caller]
pub(super) fn q_tiles<I: Index>(seen_by: &Band<I>, first: I, keys: I, [rows, cols]: [u32; 2]) -> (BlockRange<I>, I) {
    let rows_that_see = |key: I| seen_by.keys(key);
    let next = first + first.constant(cols as i32);
    let last = (next - first.constant(1)).min(keys - first.constant(1));
    let range = BlockRange::between(rows_that_see(first), rows_that_see(last), rows);
    let next_first = rows_that_see(next).0.floor_div(first.constant(rows as i32));
    (range, I::select(next.lt(keys), next_first, first.constant(i32::MAX)))
}

/// `thread` takes the number of the tile of its block, or of its cluster. A barrier of the block must follow.
#[track_caller]
pub(super) fn take_ticket<'k>(
    k: &'k KernelBuilder,
    semaphore: DqSemaphore<'k>,
    cluster: u32,
    thread: u32,
) -> SharedTile<'k, u32> {
    let ticket = k.shared_tile("ticket", TileShape::new(1, 4));
    let is_taker = k.thread_idx().eq(thread);
    let takes = match cluster {
        1 => is_taker,
        _ => is_taker & k.cluster_rank().eq(0),
    };
    k.if_(takes.divergent(), || {
        ticket.at(0, 0).store(semaphore.tickets.atomic(AtomOp::Add, 1u32));
    });
    ticket
}

impl<'k, E: SixteenBits> Context<'k, '_, E> {
    /// The tile of a block: its K/V head of all batches, its number in the head, and the number of tiles of a head. If
    /// several blocks [share the tile](super::split), also the block's number among them.
    #[track_caller]
    fn tile_of_block(&self, k: &'k KernelBuilder) -> ([Val<'k, u32>; 3], Option<Val<'k, u32>>) {
        let (cluster, cols) = (self.levers.cluster, tile_keys(self.levers));
        let clusters = |blocks: Val<'k, u32>| if cluster > 1 { blocks / cluster } else { blocks };
        let number = match self.ticket.map(|ticket| ticket.at(0, 0)) {
            None => clusters(k.block_idx(0)),
            Some(taken) if cluster > 1 => taken.in_block(0).load().shfl_idx(0u32),
            Some(taken) => taken.load().shfl_idx(0u32),
        };
        let tiles = (self.params.seq_len_kv + (cols - 1)) / cols;
        let at_once = self.heads_at_once;
        let (head, index) = match &self.ahead {
            None => {
                let heads = clusters(k.grid_dim(0)) / tiles;
                tile_of(number, [tiles, heads, at_once], self.ordered, [&Index::floor_div; 2])
            }
            Some(ahead) => ahead.tile_of(number, [tiles, ahead.all_heads, at_once]),
        };
        // Each block of a shared tile counts as a head.
        match self.split() {
            None => ([head, index, tiles], None),
            Some(split) => ([head / split.blocks, index, tiles], Some(head % split.blocks)),
        }
    }

    /// Calls `body` with this block's tile, unless all its keys are past the end of the sequence. Blocks of a cluster
    /// share a tile and walk the same Q tiles, even if the keys of one of them are past the end.
    #[track_caller]
    pub(super) fn with_tile(&self, k: &'k KernelBuilder, body: impl FnOnce(&Tile<'k>)) {
        let (Config { rows, cluster, .. }, cols) = (*self.levers, tile_keys(self.levers));
        let ([head, index, tiles], block_of_tile) = self.tile_of_block(k);
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
        let first_key_of_block = match cluster {
            1 => first_key,
            _ => k.cluster_rank().fma(WGMMA_M, first_key),
        };
        let kv_head = kv_head.unwrap_or_else(|| head % kv_heads);
        let order = BlockOrder::ascending(range, false);
        let shift = self.in_any_order().map(|_| {
            let own: Val<'k, i32> = (first_key / rows).reinterpret();
            let shifts = order.masked.eq(0) & own.lt(order.count) & order.count.le((SHIFTED_ROWS / rows) as i32);
            shifts.select(own, 0)
        });
        let share = self.split().zip(block_of_tile);
        let share = share.map(|(split, index)| split.share(index, order.count, self.params.group_size));
        let tile = Tile {
            index,
            first_key: first_key_of_block,
            batch_kv_head: head,
            tiles_of_head: tiles,
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
        let params = &tile.sequence.params;
        params.if_has_row(first_key, params.seq_len_kv, || body(&tile));
    }

    /// Calls `body` with each query head of the tile's group whose Q tiles the block walks.
    #[track_caller]
    pub(super) fn each_head(&self, tile: &Tile<'k>, body: impl FnOnce(QueryHead<'k>)) {
        let (k, group_size) = (tile.batch.builder(), self.params.group_size);
        let (first, end) = match &tile.share {
            None => (k.constant(0u32), group_size),
            Some(share) => share.heads(),
        };
        k.for_uniform(first, end, 1, |i| {
            let head = tile.kv_head.fma(group_size, i);
            let place = [self.params.num_heads, tile.batch, head];
            let first_row = self.statistics.head_row(place, tile.sequence.first);
            let (from, to) = match &tile.share {
                None => (k.constant(0i32), tile.q_tiles()),
                Some(share) => share.iterations(i),
            };
            body(QueryHead {
                index: head,
                first_row,
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

    /// The Q tile of an iteration. Where dQ is added in order, Q tiles ascend: the block of the next tile of keys,
    /// which adds first, begins at the same Q tile or a later one, and so is ahead of this block at every Q tile of
    /// both.
    #[track_caller]
    pub(super) fn m_block(&self, tile: &Tile<'k>, i: Val<'k, i32>) -> Val<'k, i32> {
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
    /// Number of Q tiles that see any of its keys.
    pub(super) fn q_tiles(&self) -> Val<'k, i32> {
        self.order.count
    }

    /// The query rows that see a key, none if it is past the end.
    #[track_caller]
    pub(super) fn rows_that_see(&self, key: Val<'k, u32>) -> (Val<'k, i32>, Val<'k, i32>) {
        let (first, end) = self.seen_by.visible(key.reinterpret());
        (first, key.lt(self.sequence.params.seq_len_kv).select(end, first))
    }

    /// One past the last iteration of a query head that needs a mask; its first one if none does.
    #[track_caller]
    pub(super) fn masked_end(&self, head: &QueryHead<'k>) -> Val<'k, i32> {
        match &self.share {
            None => self.order.masked,
            Some(_) => self.order.masked.min(head.to).max(head.from),
        }
    }

    /// Whether some rows of a Q tile do not see all keys.
    #[track_caller]
    pub(super) fn is_masked(&self, m_block: Val<'k, i32>) -> Val<'k, bool> {
        m_block.lt(self.range.whole) | m_block.ge(self.range.whole_end)
    }
}
