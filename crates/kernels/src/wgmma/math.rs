//! What a warpgroup does: scores, their softmax, and the output they weigh, for 64 query rows.
//!
//! Scores and probabilities never leave registers: the accumulators of `S = Q·Kᵀ`, rounded and packed, are
//! operand A of `O += P·V`. Operand A of `S` is Q, from shared memory or, as far as they go, from registers too.

use flashcore_ir::fragment::{AVars, Acc};
use flashcore_ir::pipeline::Reader;
use flashcore_ir::wgmma::WgmmaOperand;
use flashcore_ir::{Cache, Element, KernelBuilder, Val, Var};

use super::input::Input;
use super::kernel::Shared;
use super::schedule::Entry;
use super::stage::StagePlace;
use super::tiles::{padded, step};
use super::turns::Turns;
use crate::lanes::{ACC_COLS, QUAD, largest_of};
use crate::mma::Rescale;
use crate::softmax::Reference;
use crate::stage::StopAfter;

/// A tile of rows and the first key of a tile of keys that needs a mask.
pub(super) type Masked<'k, 'a> = (&'a Entry<'k>, Val<'k, u32>);

/// A warpgroup at work.
pub(super) struct Warpgroup<'k, 'p, E: Input> {
    pub(super) k: &'k KernelBuilder,
    pub(super) shared: &'p Shared<'k, 'p, E>,
    /// Its number among those that compute, the same in all lanes.
    pub(super) index: Val<'k, u32>,
    /// The warp's number among those that compute, the same in all lanes.
    pub(super) warp: Val<'k, u32>,
    /// The lane's first row, within the tile.
    pub(super) lane_row: Val<'k, u32>,
    q: Reader<'k>,
    keys: Reader<'k>,
    values: Reader<'k>,
    q_rows: WgmmaOperand<'k, E>,
    k_tile: WgmmaOperand<'k, E>,
    v_tile: WgmmaOperand<'k, E>,
    turns: Option<Turns<'k>>,
    pub(super) scores: Acc<'k>,
    /// The first columns of Q, as many of them as are held in registers.
    q_held: AVars<'k, E>,
    pub(super) p: AVars<'k, E>,
    pub(super) out: Acc<'k>,
    pub(super) rows: [Row<'k>; 2],
    pub(super) scales: Option<HeadScales<'k>>,
    pub(super) stage: Option<StagePlace<'k>>,
}

/// Scales of the head at hand.
pub(super) struct HeadScales<'k> {
    /// Of products of Q and K.
    pub(super) scores: Var<'k, f32>,
    pub(super) values: Var<'k, f32>,
    /// From products of Q and K, or from what their cap makes of them, to exponents.
    exponents: Var<'k, f32>,
}

/// A row's running state. Its four lanes agree on the reference; `sum` is each lane's own part.
pub(super) struct Row<'k> {
    pub(super) reference: Reference<'k>,
    pub(super) sum: Var<'k, f32>,
    /// What the output is still to be multiplied by.
    pub(super) factor: Var<'k, f32>,
}

impl<'k, 'p, E: Input> Warpgroup<'k, 'p, E> {
    #[track_caller]
    pub(super) fn new(k: &'k KernelBuilder, shared: &'p Shared<'k, 'p, E>) -> Self {
        let (levers, shape) = (shared.levers, shared.shape);
        let warp = (k.thread_idx() / 32).shfl_idx(0u32) - 4;
        let index = warp / 4;
        let turns = levers.take_turns.then(|| Turns::new(index, levers.warpgroups()));
        if let Some(turns) = &turns {
            turns.begin();
        }
        let scales = E::SCALED.then(|| HeadScales {
            scores: k.var_unwritten("score_scale"),
            values: k.var_unwritten("value_scale"),
            exponents: k.var_unwritten("exponent_scale"),
        });
        let reference = || match &scales {
            Some(scales) => Reference::scaled(k, scales.exponents),
            None => Reference::new(k, shared.params),
        };
        Warpgroup {
            k,
            shared,
            index,
            warp,
            lane_row: warp * 16 + k.lane() / QUAD,
            q: shared.q_ring.reader_of(index, levers.warpgroups()),
            keys: shared.k_ring.reader(),
            values: shared.v_ring.reader(),
            q_rows: shared.q_tile.k_major(),
            k_tile: shared.k_tile.k_major(),
            v_tile: match E::TRANSPOSED {
                true => shared.v_tile.k_major(),
                false => shared.v_tile.mn_major(),
            },
            turns,
            scores: k.acc_unwritten("scores", levers.cols / ACC_COLS),
            q_held: k.a_vars("q", levers.q_steps_held(shape)),
            p: k.a_vars("p", levers.cols / step(E::BYTES)),
            out: k.acc_unwritten("out", padded(shape.head_dim_v, E::Out::BYTES) / ACC_COLS),
            rows: [(); 2].map(|()| Row {
                reference: reference(),
                sum: k.var(0.0),
                factor: k.var_unwritten("factor"),
            }),
            scales,
            stage: shape.stop_after.map(|_| StagePlace::new(k)),
        }
    }

    /// Turns of a tile in which this warpgroup's rows see nothing; all of them if it has no rows.
    #[track_caller]
    pub(super) fn unseen(&self, tile: &Entry<'k>) -> Val<'k, u32> {
        match self.shared.levers.warpgroups() {
            1 => self.k.constant(0),
            _ => tile.unseen(self.index),
        }
    }

    /// The first scores of a tile of rows, where the tile before has not seen to them.
    #[track_caller]
    pub(super) fn begin(&self, unseen: Val<'k, u32>, any: Val<'k, bool>) {
        let k = self.k;
        // A warpgroup without rows gives Q back before it waits for turns: who has the turn may wait for the next Q.
        k.if_((!any).uniform(), || {
            self.q.wait();
            self.release(self.q);
        });
        k.for_uniform(0, unseen, 1, |_| self.pass());
        k.if_(any.uniform(), || {
            self.q.wait();
            self.load_q();
            self.keys.wait();
            self.start_scores();
            k.wgmma_wait(0);
            self.release(self.keys);
        });
    }

    /// A turn in which nothing is seen.
    #[track_caller]
    fn pass(&self) {
        self.take_turn();
        self.give_turn();
        for stage in [self.keys, self.values] {
            stage.wait();
            self.release(stage);
        }
    }

    /// All turns of a tile of rows but for the last output.
    #[track_caller]
    pub(super) fn turns(&self, tile: &Entry<'k>, unseen: Val<'k, u32>) {
        let (k, masked) = (self.k, tile.masked());
        self.scale(tile);
        let (second, turns) = (unseen + 1, tile.turns());
        self.release_lone_q(second.eq(turns));
        self.begin_stage(tile, unseen);
        self.first_softmax(tile, tile.first_masked_key(unseen), unseen.lt(masked));
        k.for_uniform(second, masked, 1, |turn| {
            self.begin_stage(tile, turn);
            self.turn(Some((tile, tile.first_masked_key(turn))), (turn + 1).eq(turns));
        });
        k.for_uniform(masked.max(second), turns, 1, |turn| {
            self.begin_stage(tile, turn);
            self.turn(None, (turn + 1).eq(turns));
        });
    }

    /// Finds the scales of the tile's head.
    #[track_caller]
    fn scale(&self, tile: &Entry<'k>) {
        if let (Some(scales), Some(head)) = (&self.shared.scales, &self.scales) {
            let ((scores, values), params) = (scales.of(tile), self.shared.params);
            head.scores.set(scores);
            head.values.set(values);
            // A cap sees scores that are scaled already.
            match self.shared.shape.softcap {
                true => head.exponents.set(params.exponent_scale),
                false => head.exponents.set(params.exponent_scale * scores),
            }
        }
    }

    /// Where there is one stage of Q: gives it back if this was the last product that reads it, as soon as it can be, since
    /// the next Q has no other stage to go to.
    #[track_caller]
    fn release_lone_q(&self, last: Val<'k, bool>) {
        if !self.q_all_held() && self.q_alone() {
            self.k.if_(last.uniform(), || self.release(self.q));
        }
    }

    /// Where there are two: gives this one back when its tile of rows ends, which is soon enough.
    #[track_caller]
    fn release_q_of_two(&self) {
        if !self.q_all_held() && !self.q_alone() {
            self.release(self.q);
        }
    }

    /// Whether products read nothing of Q from shared memory.
    fn q_all_held(&self) -> bool {
        self.q_held.steps() == self.q_rows.steps()
    }

    /// Whether there is one stage of Q.
    fn q_alone(&self) -> bool {
        self.shared.levers.q_stages(self.shared.shape) == 1
    }

    /// The softmax of a tile's first scores, which sets the references.
    #[track_caller]
    fn first_softmax(&self, tile: &Entry<'k>, key0: Val<'k, u32>, masked: Val<'k, bool>) {
        self.out.zero();
        self.cap();
        if self.stops_after() == Some(StopAfter::Scores) {
            return self.store_scores();
        }
        self.k.if_(masked.uniform(), || self.mask((tile, key0)));
        for (half, row) in self.rows.iter().enumerate() {
            row.reference.reset();
            row.sum.set(0.0);
            let largest = largest_of(&self.scores, self.steps(), half);
            row.reference.raise(largest.reduce_max(QUAD), self.margin());
        }
        self.exponentials();
        self.pack();
    }

    /// Scores of one tile of keys, the output of the one before, and the softmax of the scores.
    #[track_caller]
    fn turn(&self, masked: Option<Masked<'k, '_>>, last: Val<'k, bool>) {
        let k = self.k;
        self.keys.wait();
        self.take_turn();
        self.start_scores();
        self.values.wait();
        self.start_output();
        self.give_turn();
        let (bold, stops) = (
            self.shared.levers.rescale == Rescale::Bold,
            self.stops_after() == Some(StopAfter::Scores),
        );
        // Otherwise the softmax falls among the products of the output.
        let output_first = bold || stops;
        k.wgmma_wait(if output_first { 0 } else { 1 });
        self.release(self.keys);
        if output_first {
            self.release(self.values);
        }
        self.release_lone_q(last);
        self.cap();
        if stops {
            return self.store_scores();
        }
        match masked {
            Some(masked) => self.mask(masked),
            None if bold => return self.bold_softmax(),
            None => {}
        }
        let raised = self.raise_references(self.slack(), output_first);
        self.exponentials();
        if !output_first {
            k.wgmma_wait(0);
            self.release(self.values);
            k.if_(raised.uniform(), || {
                for (half, row) in self.rows.iter().enumerate() {
                    self.rescale_output(half, row.factor.get());
                }
            });
        }
        self.pack();
    }

    /// The output of the last tile of keys, with the first scores of the next tile of rows if they `overlap`.
    #[track_caller]
    pub(super) fn change_tiles(&self, any: Val<'k, bool>, overlap: Val<'k, bool>) {
        let k = self.k;
        let end = || {
            self.values.wait();
            self.start_output();
            self.give_turn();
            k.wgmma_wait(0);
            self.release(self.values);
        };
        // Two whole branches: where products in flight meet others that are not, ptxas serialises them all.
        k.if_else(
            overlap.uniform(),
            || {
                // Every product with this Q has been waited for.
                self.release_q_of_two();
                if self.q_held.steps() > 0 {
                    // Nobody waits for the turn while Q goes to registers.
                    self.q.wait();
                    self.load_q();
                    self.take_turn();
                } else {
                    self.take_turn();
                    self.q.wait();
                }
                self.keys.wait();
                self.start_scores();
                end();
                self.release(self.keys);
            },
            || {
                k.if_(any.uniform(), || {
                    self.release_q_of_two();
                    self.take_turn();
                    end();
                });
            },
        );
    }

    /// Loads the columns of Q that are held in registers, and gives its stage back if those are all.
    #[track_caller]
    fn load_q(&self) {
        let (k, tile, held) = (self.k, self.shared.q_tile, self.q_held.steps());
        if held == 0 {
            return;
        }
        // Lanes bring words of 4 bytes; the four of a row a chunk of 16 bytes, of which a step takes two.
        let (word, chunk) = (4 / E::BYTES, 16 / E::BYTES);
        let (row, column) = (self.warp % 4 * 16 + k.lane() / QUAD, k.lane() % QUAD * word);
        let (slab, cols) = (tile.cols() / tile.slabs(), 2 * held * chunk);
        k.verb("Q to registers", || {
            for first in (0..cols).step_by(slab as usize) {
                let place = tile.at_stage(self.q.stage(), row, column + first);
                for column in (0..slab.min(cols - first)).step_by(chunk as usize) {
                    let at = if column == 0 { place } else { tile.across(place, column) };
                    for half in 0..2 {
                        let words = tile.down(at, 8 * half).load_words(1, Cache::Default);
                        self.q_held.word(2 * (first + column) / chunk + half).set(words[0]);
                    }
                }
            }
            // One lane gives the stage back for all, now or when products have read the rest. An arrival does not wait for
            // loads: without the fence the copy that fills the stage next may overtake them.
            k.fence_proxy_async();
            k.sync_warp();
            if self.q_all_held() {
                self.release(self.q);
            }
        });
    }

    #[track_caller]
    fn take_turn(&self) {
        if let Some(turns) = &self.turns {
            turns.take();
        }
    }

    #[track_caller]
    fn give_turn(&self) {
        if let Some(turns) = &self.turns {
            turns.give();
        }
    }

    #[track_caller]
    fn release(&self, stage: Reader<'k>) {
        stage.release();
        stage.advance();
    }

    // ---- Products -------------------------------------------------------------------------------------

    #[track_caller]
    fn start_scores(&self) {
        let k = self.k;
        k.verb("S = Q*K", || {
            k.wgmma_fence();
            let keys = self.k_tile.stage(self.keys.stage());
            let held = self.q_held.steps();
            if held > 0 {
                k.wgmma_rs(self.scores, &self.q_held.operands(), keys.steps_of(0..held), false);
            }
            if !self.q_all_held() {
                let (q, rest) = (self.q_rows.stage(self.q.stage()), held..keys.steps());
                k.wgmma_ss(self.scores, q.steps_of(rest.clone()), keys.steps_of(rest), held > 0);
            }
            k.wgmma_commit();
        });
    }

    #[track_caller]
    fn start_output(&self) {
        let k = self.k;
        if self.stops_after().is_some() {
            // An empty group, so that what is waited for stays the same.
            return k.wgmma_commit();
        }
        k.verb("O += P*V", || {
            k.wgmma_fence();
            let values = self.v_tile.stage(self.values.stage());
            k.wgmma_rs(self.out, &self.p.operands(), values, true);
            k.wgmma_commit();
        });
    }
}
