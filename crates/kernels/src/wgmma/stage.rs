//! What builds that stop after a stage store of a warpgroup's scores and probabilities. Nothing in all others.

use flashcore_ir::{KernelBuilder, Val, Var};

use super::input::Input;
use super::math::Warpgroup;
use super::schedule::Entry;
use crate::lanes::{ACC_COLS, QUAD};
use crate::stage::StopAfter;

/// Where a warpgroup is, as far as a stage needs to know it.
pub(super) struct StagePlace<'k> {
    /// Head of all.
    batch_head: Var<'k, u32>,
    first_row: Var<'k, u32>,
    /// First key of the tile whose scores are worked on.
    first_key: Var<'k, u32>,
}

impl<'k> StagePlace<'k> {
    /// Before the first turn: nowhere yet.
    pub(super) fn new(k: &'k KernelBuilder) -> Self {
        StagePlace {
            batch_head: k.var_unwritten("stage_head"),
            first_row: k.var_unwritten("stage_row"),
            first_key: k.var_unwritten("stage_key"),
        }
    }
}

impl<'k, E: Input> Warpgroup<'k, '_, E> {
    /// The stage that the build stops after.
    pub(super) fn stops_after(&self) -> Option<StopAfter> {
        self.shared.shape.stop_after
    }

    /// A turn of a tile of rows begins.
    #[track_caller]
    pub(super) fn begin_stage(&self, tile: &Entry<'k>, turn: Val<'k, u32>) {
        if let Some(place) = &self.stage {
            let heads = self.shared.params.num_heads;
            place.batch_head.set(tile.batch().fma(heads, tile.head()));
            place.first_row.set(tile.first_row());
            place.first_key.set(tile.first_key(turn));
        }
    }

    /// In a build that stops after scores: stores them.
    #[track_caller]
    pub(super) fn store_scores(&self) {
        if self.stops_after() != Some(StopAfter::Scores) {
            return;
        }
        for register in 0..4 * self.scores.tiles() {
            let score = self.scores.var(register).get();
            // A cap has seen the scales of the head already.
            let score = match &self.scales {
                Some(scales) if !self.shared.shape.softcap => score * scales.scores.get(),
                _ => score,
            };
            if let Some((batch_head, row, key)) = self.place_of(register) {
                self.shared.params.store_score(batch_head, row, key, score);
            }
        }
    }

    /// In a build that stops after probabilities: stores that of an accumulator's register.
    #[track_caller]
    pub(super) fn store_probability(&self, register: u32, p: Val<'k, f32>) {
        if self.stops_after() != Some(StopAfter::Probabilities) {
            return;
        }
        let reference = &self.rows[register as usize / 2 % 2].reference;
        if let Some((batch_head, row, key)) = self.place_of(register) {
            self.shared.params.store_probability(batch_head, row, key, p, reference);
        }
    }

    /// Head of all, query row and key of a register of the scores.
    #[track_caller]
    fn place_of(&self, register: u32) -> Option<(Val<'k, u32>, Val<'k, u32>, Val<'k, u32>)> {
        let place = self.stage.as_ref()?;
        let row = place.first_row + self.lane_row + 8 * (register / 2 % 2);
        let column = register / 4 * ACC_COLS + register % 2;
        let key = place.first_key + self.k.lane() % QUAD * 2u32 + column;
        Some((place.batch_head.get(), row, key))
    }
}
