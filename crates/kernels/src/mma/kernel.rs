//! The kernel of family `mma`: FlashAttention-2's loop on `mma.sync` tensor cores.
//!
//! A block computes `rows` query rows of one head. Its warps share the rows out, and with `kv_warps` also
//! the keys of each tile. K and V come through a ring of stages filled by asynchronous copies.
//!
//! Tiles that need a mask come first, so that the long loop over the others has none. One barrier a
//! tile: it says both that the tile has arrived and that its predecessor's stage may be overwritten.

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{KernelBuilder, Val, Widen};

use super::epilogue::Epilogue;
use super::place::{Block, Edges, TileSequence, WarpPlace};
use super::ring::Ring;
use super::stage::Stage;
use super::warp::{Query, Scores, State, Warp};
use super::{Config, Rescale};
use crate::params::{Params, Shape};
use crate::tiles::{Fragments, HeadTile, StagedFragments, a_lane, b_lane};

pub(super) fn body<E: MmaElement + Widen>(k: &KernelBuilder, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(levers.min_blocks);
    let params = Params::<E>::declare(k, shape);
    let block = Block::new(k, &params, levers);
    let place = WarpPlace::new(k, levers);

    let xor = levers.swizzled;
    let q_tile = HeadTile::declare(k, "q_tile", levers.rows, shape.head_dim, 1, xor);
    let k_tile = HeadTile::declare(k, "k_tile", levers.cols, shape.head_dim, levers.stages, xor);
    let v_tile = HeadTile::declare(k, "v_tile", levers.cols, shape.head_dim_v, levers.stages, xor);

    // Q, then the first tiles of keys, are on their way before anything else is worked out.
    q_tile.chunks(k).copy_rows(k.constant(0), |row| {
        let (src, exists) = block.query_row(&params, block.first_row + row);
        (src, Some(exists))
    });
    k.cp_async_commit();
    let sequence = TileSequence::new(k, &params, &block, levers);
    let ring = Ring::new(k, &params, &block, levers, k_tile, v_tile);
    for turn in 0..levers.stages - 1 {
        ring.prefetch(&sequence, k.constant(turn as i32), Edges::Checked);
    }

    let (row, col) = a_lane(k.lane());
    let q_place = q_tile.fragments(row + place.first_row, col);
    let v_place = v_tile.staged_fragments(row + place.first_key, col);
    let (row, col) = b_lane(k.lane());
    let k_place = k_tile.staged_fragments(row + place.first_key, col);

    let state = State::new(k, &params, &block, &place, levers, shape);
    if levers.q_in_registers {
        // Q's group of copies is the oldest.
        k.cp_async_wait(levers.stages - 1);
        k.barrier();
    }
    let stage = shape.stop_after.map(|_| Stage::new(&block, &sequence));
    let warp = Warp {
        k,
        params: &params,
        levers,
        shape,
        place: &place,
        state: &state,
        query: Query::new(k, levers, shape, q_place),
        scores: Scores::new(k, levers),
        stage,
    };
    let tiles = Tiles {
        warp: &warp,
        sequence: &sequence,
        ring: &ring,
        k_place,
        v_place,
    };
    tiles.run();

    // Nobody needs the tiles any more, and no copy into them is under way: but for Q's, if there was no tile of keys.
    if !levers.q_in_registers {
        k.cp_async_wait(0);
    }
    k.barrier();
    if shape.stop_after.is_some() {
        return;
    }
    let epilogue = Epilogue {
        k,
        params: &params,
        block: &block,
        warp: &place,
        levers,
        shape,
    };
    if levers.kv_warps == 1 {
        epilogue.store(&state, q_tile);
    } else {
        epilogue.merge_and_store(&state, k_tile, v_tile);
    }
}

/// The loop over the tiles of keys.
struct Tiles<'k, 'p, E> {
    warp: &'p Warp<'k, 'p, E>,
    sequence: &'p TileSequence<'k>,
    ring: &'p Ring<'k, 'p, E>,
    k_place: StagedFragments<'k, E>,
    v_place: StagedFragments<'k, E>,
}

impl<'k, E: MmaElement> Tiles<'k, '_, E> {
    /// Tile by tile: scores, their softmax, and the output that they weigh.
    fn run(&self) {
        let (k, warp) = (self.warp.k, self.warp);
        let p = warp.probabilities("p");
        k.for_uniform(0, self.sequence.masked, 1, |turn| {
            let [k_place, v_place] = self.places(turn);
            let key0 = self.sequence.first_key(turn, Edges::Checked);
            self.ring.arrive();
            self.ring.refill(self.sequence, turn, Edges::Checked);
            k.if_(warp.sees(key0).uniform(), || {
                warp.scores(&k_place, warp.steps());
                warp.mask(key0);
                warp.raise_references(warp.steps());
                warp.softmax_steps(&p, warp.steps(), |step| warp.accumulate(&p, &v_place, step));
            });
        });
        k.for_uniform(self.sequence.masked, self.sequence.turns, 1, |turn| {
            let [k_place, v_place] = self.places(turn);
            let refill = || self.ring.refill(self.sequence, turn, Edges::Whole);
            self.ring.arrive();
            // Products first, then the addresses of the next copies; but where registers are short, before
            // the scores take theirs.
            let late = warp.levers.q_in_registers;
            if !late {
                refill();
            }
            if warp.levers.rescale == Rescale::Bold {
                warp.bold_tile(&k_place, &v_place, &p, || {
                    if late {
                        refill()
                    }
                });
            } else {
                warp.scores(&k_place, warp.steps());
                if late {
                    refill();
                }
                warp.raise_references(warp.steps());
                warp.softmax_steps(&p, warp.steps(), |step| warp.accumulate(&p, &v_place, step));
            }
        });
    }

    /// Where K and V of a turn are.
    #[track_caller]
    fn places(&self, turn: Val<'k, i32>) -> [Fragments<'k, E>; 2] {
        if let Some(stage) = &self.warp.stage {
            stage.begin(self.sequence, turn);
        }
        [
            self.k_place.at(self.ring.k_stage(turn)),
            self.v_place.at(self.ring.v_stage(turn)),
        ]
    }
}
