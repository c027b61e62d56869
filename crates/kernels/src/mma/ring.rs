//! K and V on their way into shared memory.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{GlobalPtr, KernelBuilder, Val};

use super::Config;
use super::place::{Block, Edges, TileSequence};
use crate::params::Params;
use crate::tiles::{Chunks, HeadTile};

/// The ring of stages. A turn's K and V are one group of copies.
pub(super) struct Ring<'k, 'p, E> {
    k: &'k KernelBuilder,
    params: &'p Params<'k, E>,
    stages: u32,
    /// Where the thread's first chunk of the first rows is.
    k_source: GlobalPtr<'k, E>,
    v_source: GlobalPtr<'k, E>,
    k_chunks: Chunks<'k, E>,
    v_chunks: Chunks<'k, E>,
    k_stage_elements: u32,
    v_stage_elements: u32,
}

impl<'k, 'p, E: MmaElement> Ring<'k, 'p, E> {
    #[track_caller]
    pub(super) fn new(
        k: &'k KernelBuilder,
        params: &'p Params<'k, E>,
        block: &Block<'k>,
        levers: &Config,
        k_tile: HeadTile<'k, E>,
        v_tile: HeadTile<'k, E>,
    ) -> Self {
        let (k_chunks, v_chunks) = (k_tile.chunks(k), v_tile.chunks(k));
        Ring {
            k,
            params,
            stages: levers.stages,
            k_source: k_chunks.source(&params.k, params.k.head(block.batch, block.kv_head)),
            v_source: v_chunks.source(&params.v, params.v.head(block.batch, block.kv_head)),
            k_chunks,
            v_chunks,
            k_stage_elements: k_tile.stage_elements(),
            v_stage_elements: v_tile.stage_elements(),
        }
    }

    /// Where K of a turn is, in elements from the first stage.
    #[track_caller]
    pub(super) fn k_stage(&self, turn: Val<'k, i32>) -> Val<'k, u32> {
        turn.reinterpret::<u32>() % self.stages * self.k_stage_elements
    }

    /// Where V of a turn is, in elements from the first stage.
    #[track_caller]
    pub(super) fn v_stage(&self, turn: Val<'k, i32>) -> Val<'k, u32> {
        turn.reinterpret::<u32>() % self.stages * self.v_stage_elements
    }

    /// Starts the copies of a turn, if there is such a tile, and closes the group.
    #[track_caller]
    pub(super) fn prefetch(&self, sequence: &TileSequence<'k>, turn: Val<'k, i32>, edges: Edges) {
        let end = (edges == Edges::Checked).then_some(self.params.seq_len_kv);
        self.k.verb("prefetch", || {
            self.k.if_(turn.lt(sequence.turns).uniform(), || {
                let first = sequence.first_key(turn, edges);
                let (k_stage, v_stage) = (self.k_stage(turn), self.v_stage(turn));
                self.k_chunks.copy(k_stage, &self.params.k, self.k_source, first, end);
                self.v_chunks.copy(v_stage, &self.params.v, self.v_source, first, end);
            });
            self.k.cp_async_commit();
        });
    }

    /// Waits for the oldest group to have arrived for all warps, and for all to have left the stage before.
    #[track_caller]
    pub(super) fn arrive(&self) {
        self.k.cp_async_wait(self.stages - 2);
        self.k.barrier();
    }

    /// Refills the stage that all warps had left when the group of `turn` arrived.
    #[track_caller]
    pub(super) fn refill(&self, sequence: &TileSequence<'k>, turn: Val<'k, i32>, edges: Edges) {
        self.prefetch(sequence, turn + (self.stages as i32 - 1), edges);
    }
}
