//! What builds that stop after a stage store of a warp's scores and probabilities. Nothing in all others.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Val, Var};

use super::place::{Block, Edges, TileSequence};
use super::warp::Warp;
use crate::lanes::{ACC_COLS, QUAD};
use crate::stage::StopAfter;

/// Where a warp is, as far as a stage needs to know it.
pub(super) struct Stage<'k, 'p> {
    block: &'p Block<'k>,
    /// First key of the tile whose scores are worked on.
    tile: Var<'k, u32>,
}

impl<'k, 'p> Stage<'k, 'p> {
    /// Before the first turn.
    #[track_caller]
    pub(super) fn new(block: &'p Block<'k>, sequence: &TileSequence<'k>) -> Self {
        let k = block.first_row.builder();
        Stage {
            block,
            tile: k.var(sequence.first_key(k.constant(0), Edges::Checked)),
        }
    }

    #[track_caller]
    pub(super) fn begin(&self, sequence: &TileSequence<'k>, turn: Val<'k, i32>) {
        self.tile.set(sequence.first_key(turn, Edges::Checked));
    }
}

impl<'k, E: MmaElement> Warp<'k, '_, E> {
    /// In a build that stops after scores: stores the pair that would become word `word` of a step of 16 keys.
    #[track_caller]
    pub(super) fn store_scores(&self, m: usize, step: u32, word: usize) {
        let (half, column) = of_word(step, word);
        for e in 0..2 {
            let Some((batch_head, row, key)) = self.stage_place(m, half, column + e) else {
                continue;
            };
            let score = self.scores.blocks[m].var(8 * step + 2 * word as u32 + e);
            self.params.store_score(batch_head, row, key, score.get());
        }
    }

    /// In a build that stops after probabilities: stores the pair that becomes word `word` of a step of 16 keys.
    #[track_caller]
    pub(super) fn store_probabilities(&self, m: usize, step: u32, word: usize, pair: [Val<'k, f32>; 2]) {
        if !self.shape.stops_after(StopAfter::Probabilities) {
            return;
        }
        let (half, column) = of_word(step, word);
        for (e, p) in pair.into_iter().enumerate() {
            let Some((batch_head, row, key)) = self.stage_place(m, half, column + e as u32) else {
                continue;
            };
            let reference = &self.state.blocks[m].rows[half].reference;
            self.params.store_probability(batch_head, row, key, p, reference);
        }
    }

    /// Head of all, query row and key of a lane's value in half `half` of row block `m`, `column` columns from the
    /// lane's first.
    #[track_caller]
    fn stage_place(&self, m: usize, half: usize, column: u32) -> Option<(Val<'k, u32>, Val<'k, u32>, Val<'k, u32>)> {
        let stage = self.stage.as_ref()?;
        let (head, row) = stage.block.head_and_query(self.state.row(m, half));
        let batch_head = stage.block.batch.fma(self.params.num_heads, head);
        let first = stage.tile + self.place.first_key + self.k.lane() % QUAD * 2u32;
        Some((batch_head, row, first + column))
    }
}

/// Half of its rows, and column from the lane's first, of word `word` of a step of 16 keys.
fn of_word(step: u32, word: usize) -> (usize, u32) {
    (word % 2, ACC_COLS * (2 * step + word as u32 / 2))
}
