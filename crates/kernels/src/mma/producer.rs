//! What a block computes, and the copies of Q, K and V into shared memory.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{KernelBuilder, Val};

use super::Config;
use crate::attention::block_range::{BlockOrder, block_range, share};
use crate::attention::params::{Params, Shape};
use crate::attention::query_rows::QueryRows;
use crate::attention::scheduler::WorkItem;
use crate::attention::softmax::Rescale;
use crate::tiles::{HeadCopies, HeadTile};

/// The work of a block: a Q tile of a head, or of the heads that share K and V, and its K blocks.
pub(super) struct Block<'k, 'p, E> {
    pub(super) k: &'k KernelBuilder,
    pub(super) levers: &'p Config,
    pub(super) shape: &'p Shape,
    /// Those of the block's sequence.
    pub(super) params: Params<'k, E>,
    pub(super) rows: QueryRows<'k>,
    pub(super) kv_head: Val<'k, u32>,
    pub(super) first_row: Val<'k, u32>,
    pub(super) keys: KvPart<'k>,
}

/// Which of the K blocks that its rows see a block computes.
pub(super) enum KvPart<'k> {
    All,
    /// One split of them: its number, and how many there are.
    Split(Val<'k, u32>, Val<'k, u32>),
    /// Those of a work item, which may be a piece of a tile, and whether it is the block's last item.
    Item(WorkItem<'k>, Val<'k, bool>),
}

impl<'k, 'p, E: MmaElement> Block<'k, 'p, E> {
    /// The grid is (heads of a group, Q tiles, groups): heads whose K and V fit into the L2 cache together run
    /// together, and the tiles with the most keys (the last, if causal) first. Where the keys are split, it is (heads,
    /// Q tiles, splits).
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, params: Params<'k, E>, levers: &'p Config, shape: &'p Shape) -> Self {
        let tile = k.grid_dim(1) - 1 - k.block_idx(1);
        let (keys, index) = match params.partials {
            Some(_) => (KvPart::Split(k.block_idx(2), k.grid_dim(2)), k.block_idx(0)),
            None => (KvPart::All, k.block_idx(2).fma(k.grid_dim(0), k.block_idx(0))),
        };
        let first_row = tile * levers.rows;
        let group = params.group_size;
        let (batch, head, kv_head) = if levers.pack_heads {
            let kv_heads = params.num_heads / group;
            let kv_head = index % kv_heads;
            (index / kv_heads, kv_head * group, kv_head)
        } else {
            let head = index % params.num_heads;
            (index / params.num_heads, head, head / group)
        };
        let params = params.of_sequence(batch);
        let rows = QueryRows::new(&params, levers.tile_heads(), [batch, head]);
        Block {
            k,
            levers,
            shape,
            params,
            rows,
            kv_head,
            first_row,
            keys,
        }
    }

    /// The block of a work item; `rows` are the words of its sequence's rows.
    #[track_caller]
    pub(super) fn of_item(
        k: &'k KernelBuilder,
        params: Params<'k, E>,
        (item, rows, is_last): (WorkItem<'k>, &[Val<'k, u32>], Val<'k, bool>),
        levers: &'p Config,
        shape: &'p Shape,
    ) -> Self {
        let batch = item.batch();
        let rows = params.rows_of_words(rows);
        let params = params.with_rows(batch, rows);
        Block {
            k,
            levers,
            shape,
            rows: QueryRows::new(&params, levers.tile_heads(), [batch, item.head()]),
            params,
            kv_head: item.kv_head(),
            first_row: item.first_row(),
            keys: KvPart::Item(item, is_last),
        }
    }

    #[track_caller]
    pub(super) fn copy_q(&self, q_tile: HeadTile<'k, E>) {
        q_tile.chunks(self.k).copy_rows(self.k.constant(0), |row| {
            let row = self.first_row + row;
            (self.rows.of(&self.params.q, row), Some(row.lt(self.rows.count)))
        });
        self.k.cp_async_commit();
    }

    /// The order of the block's K blocks. The first one sets the maxima of the rows: with speculative softmax, which
    /// does that only in the loop with a mask, it counts as one that needs a mask.
    #[track_caller]
    fn n_blocks(&self) -> BlockOrder<Val<'k, i32>> {
        let Block { levers, params, .. } = self;
        let speculative = levers.rescale == Rescale::Speculative;
        let first_masked = |part: BlockOrder<_>| if speculative { part.first_masked() } else { part };
        if let KvPart::Item(item, _) = &self.keys {
            return first_masked(item.order());
        }
        let last_row = (self.first_row + (levers.rows - 1)).min(self.rows.count - 1);
        let (first, last) = (self.rows.query(self.first_row), self.rows.query(last_row));
        let range = block_range(&params.band, first.reinterpret(), last.reinterpret(), levers.cols);
        let all = BlockOrder::ascending(range, speculative);
        let KvPart::Split(split, splits) = self.keys else {
            return all;
        };
        let (begin, count) = share(all.count.reinterpret::<u32>(), split, splits);
        first_masked(all.part(begin.reinterpret(), count.reinterpret()))
    }
}

/// Whether a K block may need a mask or reach past the last key (`Checked`), or is seen whole by every row. In the
/// backward pass, the same of a tile of rows.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Edges {
    Checked,
    Whole,
}

/// The ring of stages of K and V. The copies of a K block are one `cp.async` group.
pub(super) struct Ring<'k, 'b, E> {
    block: &'b Block<'k, 'b, E>,
    pub(super) n_blocks: BlockOrder<Val<'k, i32>>,
    /// Copies of K and of V.
    copies: [HeadCopies<'k, E>; 2],
}

impl<'k, 'b, E: MmaElement> Ring<'k, 'b, E> {
    #[track_caller]
    pub(super) fn new(block: &'b Block<'k, 'b, E>, tiles: [HeadTile<'k, E>; 2]) -> Self {
        let n_blocks = block.n_blocks();
        let chunks = tiles.map(|tile| tile.chunks(block.k));
        let copies = [(0, block.params.k), (1, block.params.v)].map(|(i, tensor)| {
            let head = tensor.head(block.rows.batch, block.kv_head);
            chunks[i].of_head(tensor, head)
        });
        Ring {
            block,
            n_blocks,
            copies,
        }
    }

    #[track_caller]
    pub(super) fn first_key(&self, n_block: Val<'k, i32>, edges: Edges) -> Val<'k, u32> {
        let block = match edges {
            Edges::Whole => n_block + self.n_blocks.whole,
            Edges::Checked => self.n_blocks.n_block(n_block),
        };
        block.reinterpret::<u32>() * self.block.levers.cols
    }

    /// Elements before the stage of an iteration, in the tile of K (`which` 0) or of V (1).
    #[track_caller]
    pub(super) fn stage(&self, which: usize, n_block: Val<'k, i32>) -> Val<'k, u32> {
        self.copies[which].stage(n_block)
    }

    /// Starts the copies of an iteration, if it exists, and commits their group, which may be empty.
    #[track_caller]
    pub(super) fn prefetch(&self, n_block: Val<'k, i32>, edges: Edges) {
        let Block { k, params, .. } = self.block;
        let end = (edges == Edges::Checked).then_some(params.seq_len_kv);
        k.verb("prefetch", || {
            k.if_(n_block.lt(self.n_blocks.count).uniform(), || {
                let first = self.first_key(n_block, edges);
                let stages = [0, 1].map(|which| self.stage(which, n_block));
                for (copies, stage) in self.copies.iter().zip(stages) {
                    copies.start(stage, first, end);
                }
            });
            k.cp_async_commit();
        });
    }

    /// Waits until the oldest group has arrived for all warps, and no warp reads the stage of the K block before.
    #[track_caller]
    pub(super) fn wait(&self) {
        self.block.k.cp_async_wait(self.block.levers.stages - 2);
        self.block.k.barrier();
    }

    /// Refills the stage that is free after the wait for iteration `n_block`.
    #[track_caller]
    pub(super) fn refill(&self, n_block: Val<'k, i32>, edges: Edges) {
        self.prefetch(n_block + (self.block.levers.stages as i32 - 1), edges);
    }
}
