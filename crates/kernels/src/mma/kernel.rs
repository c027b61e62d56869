//! The kernel of family `mma`: FlashAttention-2's main loop on `mma.sync` tensor cores.
//!
//! A block computes `rows` query rows of one head. Its warps share the rows, and with `kv_warps` also the keys of each
//! K block. K and V come through a ring of stages filled by asynchronous copies.
//!
//! Where lengths are on the device, blocks may work through lists of items, each a Q tile or a piece of one, made by a
//! [schedule](crate::attention::stream_k).
//!
//! K blocks that need a mask come first, so that the long loop over the others has none. One barrier per K block says
//! both that the block has arrived and that its predecessor's stage may be overwritten.

use super::consumer::{Warp, WarpPlace};
use super::producer::{Block, Edges, KvPart, Ring};
use super::{Config, Rescale};
use crate::args::Args;
use crate::attention::forward::Forward;
use crate::attention::params::{Params, Shape};
use crate::attention::softmax::SixteenBits;
use crate::attention::stream_k::Items;
use crate::tiles::{HeadTile, StagedFragments, a_lane, b_lane};

pub(super) fn body<'k, E: SixteenBits>(k: &'k Args<'k, Forward>, levers: &Config, shape: &Shape) {
    levers.bound_registers(k);
    let params = Params::<E>::declare(k, shape);
    if shape.listed {
        shape.wait_for_launch_before(k);
        Items::declare(k, levers.rows, levers.cols).for_each(k, |item, rows, is_last| {
            compute(&Block::of_item(k, params, (item, &rows, is_last), levers, shape));
            // No copy of the next item's may overwrite a tile that a warp still reads.
            k.barrier();
        });
        return;
    }
    let block = Block::new(k, params, levers, shape);
    let (first_row, count) = (block.first_row, block.rows.count);
    block.params.if_has_row(first_row, count, || compute(&block));
}

fn compute<E: SixteenBits>(block: &Block<'_, '_, E>) {
    let Block { k, levers, shape, .. } = *block;
    let place = WarpPlace::new(k, levers);

    let xor = levers.swizzled;
    let q_tile = HeadTile::declare(k, "q_tile", levers.rows, shape.head_dim, 1, xor);
    let k_tile = HeadTile::declare(k, "k_tile", levers.cols, shape.head_dim, levers.stages, xor);
    let v_tile = HeadTile::declare(k, "v_tile", levers.cols, shape.head_dim_v, levers.stages, xor);

    // Copies of Q, then of the first K blocks, start before anything else is computed.
    block.copy_q(q_tile);
    let ring = Ring::new(block, [k_tile, v_tile]);
    for n_block in 0..levers.stages - 1 {
        ring.prefetch(k.constant(n_block as i32), Edges::Checked);
    }

    let (row, col) = a_lane(k.lane());
    let q_fragments = q_tile.fragments(row + place.first_row, col);
    let v_fragments = v_tile.staged_fragments(row + place.first_key, col);
    let (row, col) = b_lane(k.lane());
    let k_fragments = k_tile.staged_fragments(row + place.first_key, col);

    let mut warp = Warp::new(block, place, q_fragments);
    if levers.q_in_registers {
        // Q's group of copies is the oldest.
        k.cp_async_wait(levers.stages - 1);
        k.barrier();
        warp.load_q();
    }
    main_loop(&warp, &ring, k_fragments, v_fragments);

    // Late: at the start it cost up to 1.2 us (runs `overlap-h100` and `serve-late`).
    let begin_next = || shape.begin_next_launch(k);
    match &block.keys {
        KvPart::All => {}
        KvPart::Split(..) => begin_next(),
        KvPart::Item(_, is_last) => k.if_(is_last.uniform(), begin_next),
    }
    // The epilogue reuses the tiles. Q's copy may still be in flight if there was no K block to wait for.
    if !levers.q_in_registers {
        k.cp_async_wait(0);
    }
    k.barrier();
    match levers.kv_warps {
        1 => warp.store(q_tile),
        _ => warp.merge_and_store(k_tile, v_tile),
    }
}

/// For each K block: `S = Q·Kᵀ`, `P = softmax(S)`, `O += P·V`.
fn main_loop<'k, E: SixteenBits>(
    warp: &Warp<'k, '_, E>,
    ring: &Ring<'k, '_, E>,
    k_fragments: StagedFragments<'k, E>,
    v_fragments: StagedFragments<'k, E>,
) {
    let (k, n_blocks) = (warp.k, &ring.n_blocks);
    let begin = |n_block| {
        warp.begin_score_mod(|| ring.first_key(n_block, Edges::Checked));
        [
            k_fragments.at(ring.stage(0, n_block)),
            v_fragments.at(ring.stage(1, n_block)),
        ]
    };
    k.for_uniform(0, n_blocks.masked, 1, |n_block| {
        let [k_fragments, v_fragments] = begin(n_block);
        let first_key = ring.first_key(n_block, Edges::Checked);
        ring.wait();
        ring.refill(n_block, Edges::Checked);
        k.if_(warp.sees(first_key).uniform(), || {
            warp.scores(&k_fragments, warp.steps());
            warp.mask(first_key);
            warp.softmax_and_output(&v_fragments);
        });
    });
    k.for_uniform(n_blocks.masked, n_blocks.count, 1, |n_block| {
        let [k_fragments, v_fragments] = begin(n_block);
        // With Q in registers, products start before the addresses of the next copies are computed. Otherwise that is
        // done before the scores take their registers.
        let refill = |after_scores: bool| {
            if after_scores == warp.levers.q_in_registers {
                ring.refill(n_block, Edges::Whole);
            }
        };
        ring.wait();
        refill(false);
        if warp.levers.rescale == Rescale::Speculative {
            warp.speculative_block(&k_fragments, &v_fragments, || refill(true));
        } else {
            warp.scores(&k_fragments, warp.steps());
            refill(true);
            warp.softmax_and_output(&v_fragments);
        }
    });
}
