//! How a Hopper kernel reads: attention forward, one head a block row, 64 query rows a block,
//! written with pipelines, tensor copies, warpgroup products and warp roles. Small and plain rather
//! than fast: no overlap of softmax with products, no persistent tiles, no mask but for the tail.
//!
//! `cargo run -p flashcore-ir --example hopper_attention` prints its PTX; the simulator runs it.

use flashcore_ir::fragment::Acc;
use flashcore_ir::pipeline::{Consumer, Producer};
use flashcore_ir::{BuildErrors, Kernel, KernelBuilder, Role, SharedTile, Swizzle, TensorMap, TileShape, Val};
use half::f16;

/// Columns of Q, K, V and O.
pub(crate) const HEAD_DIM: u32 = 64;
/// Query rows a block.
pub(crate) const ROWS: u32 = 64;
/// Keys a tile.
pub(crate) const KEYS: u32 = 64;
/// Tiles of keys and of values in shared memory at once.
const STAGES: u32 = 2;

/// Prints the kernel as PTX.
fn main() -> Result<(), BuildErrors> {
    print!("{}", attention()?.to_ptx());
    Ok(())
}

/// `O = softmax(scale · Q·Kᵀ) · V` of fp16 tensors seen as (head_dim, seq, heads).
///
/// Parameters: tensor maps `q`, `k`, `v`, `out`; `seq_len_kv`; `scale_log2`, which is the scale
/// times log2(e). Grid: (tiles of query rows, heads).
///
/// # Errors
/// None: it is written to build.
pub(crate) fn attention() -> Result<Kernel, BuildErrors> {
    Kernel::build("hopper_attention", 256, |k| {
        k.min_blocks_per_sm(1);
        let tile = |rows| TileShape::new(rows, HEAD_DIM).swizzled(Swizzle::B128).in_slabs();
        let q_tile = k.shared_tile::<f16>("q_tile", tile(ROWS));
        let k_tile = k.shared_tile::<f16>("k_tile", tile(KEYS).stages(STAGES));
        let v_tile = k.shared_tile::<f16>("v_tile", tile(KEYS).stages(STAGES));
        // Q is no longer needed once O is complete.
        let o_tile = k.shared_tile_reusing::<f16, _>("o_tile", tile(ROWS), q_tile);
        let tiles = Tiles {
            q_tile,
            k_tile,
            v_tile,
            o_tile,
            q: k.param_tensor_map("q", q_tile.tensor_box(&[ROWS, 1])),
            k: k.param_tensor_map("k", k_tile.tensor_box(&[KEYS, 1])),
            v: k.param_tensor_map("v", v_tile.tensor_box(&[KEYS, 1])),
            out: k.param_tensor_map_mut("out", o_tile.tensor_box(&[ROWS, 1])),
        };
        let (seq_len_kv, scale_log2) = (k.param::<u32>("seq_len_kv"), k.param::<f32>("scale_log2"));
        let (first_row, head) = (k.block_idx(0) * ROWS, k.block_idx(1));

        // Four consumer warps read each stage.
        let q_ring = k.pipeline("q", 1, 4);
        let k_ring = k.pipeline("k", STAGES, 4);
        let v_ring = k.pipeline("v", STAGES, 4);
        k.start_pipelines(&[q_ring, k_ring, v_ring]);

        k.roles(vec![
            Role::new("producer", 4, || {
                let (q, keys, values) = (q_ring.producer(), k_ring.producer(), v_ring.producer());
                let warp = k.warp_idx();
                k.if_(warp.eq(0).uniform(), || {
                    k.if_(k.elect().divergent(), || {
                        copy(tiles.q_tile, tiles.q, q, first_row, head);
                        k.for_uniform(0u32, seq_len_kv, KEYS, |first_key| {
                            copy(tiles.k_tile, tiles.k, keys, first_key, head);
                            copy(tiles.v_tile, tiles.v, values, first_key, head);
                        });
                    });
                });
            })
            .registers(40),
            Role::new("consumer", 4, || {
                let (q, keys, values) = (q_ring.consumer(), k_ring.consumer(), v_ring.consumer());
                let (scores, out) = (k.acc_unwritten("scores", KEYS / 8), k.acc("out", HEAD_DIM / 8));
                let rows = [0, 1].map(|half| RowState::new(k, half));
                let (q_operand, k_operand) = (tiles.q_tile.k_major(), tiles.k_tile.k_major());
                let v_operand = tiles.v_tile.mn_major();
                q.wait();
                k.for_uniform(0u32, seq_len_kv, KEYS, |first_key| {
                    read(k, keys, || {
                        k.wgmma_fence();
                        k.wgmma_ss(scores, q_operand, k_operand.stage(keys.stage()), false);
                    });
                    mask(k, scores, seq_len_kv - first_key);
                    rows.iter().for_each(|row| row.softmax_step(scores, out, scale_log2));
                    let p = scores.to_a::<f16>();
                    read(k, values, || {
                        k.wgmma_fence();
                        k.wgmma_rs(out, &p, v_operand.stage(values.stage()), true);
                    });
                });
                rows.iter().for_each(|row| row.normalise(out));
                store(k, tiles.o_tile, tiles.out, out, first_row, head);
            })
            .registers(232),
        ]);
    })
}

/// The tiles and the tensors that they are copied from or to.
struct Tiles<'k> {
    q_tile: SharedTile<'k, f16>,
    k_tile: SharedTile<'k, f16>,
    v_tile: SharedTile<'k, f16>,
    o_tile: SharedTile<'k, f16>,
    q: TensorMap<'k>,
    k: TensorMap<'k>,
    v: TensorMap<'k>,
    out: TensorMap<'k>,
}

/// Fills the next stage of a tile with the rows of a head from `first_row` on.
#[track_caller]
fn copy<'k>(
    tile: SharedTile<'k, f16>,
    map: TensorMap<'k>,
    fill: Producer<'k>,
    first_row: Val<'k, u32>,
    head: Val<'k, u32>,
) {
    fill.acquire();
    fill.expect(tile.stage_bytes());
    tile.load_tma(fill.stage(), map.at(&[first_row, head]), fill.full());
    fill.advance();
}

/// Waits for the next stage, runs the product that reads it to its end, and gives the stage back.
#[track_caller]
fn read<'k>(k: &'k KernelBuilder, stage: Consumer<'k>, product: impl FnOnce()) {
    stage.wait();
    product();
    k.wgmma_commit();
    k.wgmma_wait(0);
    stage.release();
    stage.advance();
}

/// Scores of keys from number `keys` of the tile on become minus infinity.
#[track_caller]
fn mask<'k>(k: &'k KernelBuilder, scores: Acc<'k>, keys: Val<'k, u32>) {
    let first = k.lane() % 4u32 * 2;
    for i in 0..4 * scores.tiles() {
        let key = first + (i / 4 * 8 + i % 2);
        let score = scores.var(i);
        score.set(key.lt(keys).select(score, f32::NEG_INFINITY));
    }
}

/// The running state of one of the two rows that a lane holds a part of.
struct RowState<'k> {
    half: u32,
    max: flashcore_ir::Var<'k, f32>,
    sum: flashcore_ir::Var<'k, f32>,
}

impl<'k> RowState<'k> {
    #[track_caller]
    fn new(k: &'k KernelBuilder, half: u32) -> Self {
        RowState {
            half,
            // Not minus infinity: its difference to itself must be a number.
            max: k.var(-1e30),
            sum: k.var(0.0),
        }
    }

    /// This row's registers of an accumulator (`WGMMA_M64N8_ACC`).
    fn registers(&self, acc: Acc<'k>) -> impl Iterator<Item = flashcore_ir::Var<'k, f32>> {
        let half = self.half;
        (0..acc.tiles()).flat_map(move |tile| (0..2).map(move |e| acc.var(4 * tile + 2 * half + e)))
    }

    /// Scores become probabilities relative to the new maximum; the sums so far are rescaled.
    #[track_caller]
    fn softmax_step(&self, scores: Acc<'k>, out: Acc<'k>, scale_log2: Val<'k, f32>) {
        let old = self.max.get();
        for score in self.registers(scores) {
            self.max.max_assign(score);
        }
        // The row lies over four lanes.
        self.max.set(self.max.get().reduce_max(4));
        let rescale = ((old - self.max) * scale_log2).exp2();
        self.sum.mul_assign(rescale);
        for value in self.registers(out) {
            value.mul_assign(rescale);
        }
        let offset = -(self.max * scale_log2);
        for score in self.registers(scores) {
            let p = score.get().fma(scale_log2, offset).exp2();
            score.set(p);
            self.sum.add_assign(p);
        }
    }

    /// Divides the row of the output by its sum.
    #[track_caller]
    fn normalise(&self, out: Acc<'k>) {
        let norm = self.sum.get().reduce_sum(4).recip();
        for value in self.registers(out) {
            value.mul_assign(norm);
        }
    }
}

/// Stores the output through a tile: registers to shared memory, shared memory to the tensor.
#[track_caller]
fn store<'k>(
    k: &'k KernelBuilder,
    tile: SharedTile<'k, f16>,
    map: TensorMap<'k>,
    out: Acc<'k>,
    first_row: Val<'k, u32>,
    head: Val<'k, u32>,
) {
    let (warp, lane) = ((k.thread_idx() - 128) / 32, k.lane());
    let (row, first) = (warp * 16 + lane / 4, lane % 4u32 * 2);
    // The bytes are those of Q's rows, which no product reads any more.
    for j in 0..out.tiles() {
        for half in 0..2 {
            let at = 4 * j + 2 * half;
            let word = out.var(at).get().pack_f16(out.var(at + 1).get());
            tile.at(row + 8 * half, first + 8 * j)
                .store_words(&[word], flashcore_ir::Cache::Default);
        }
    }
    k.fence_proxy_async();
    k.barrier_among(1, 128);
    k.if_(k.thread_idx().eq(128).divergent(), || {
        tile.store_tma(0, map.at(&[first_row, head]));
        k.bulk_commit();
        k.bulk_wait_read(0);
    });
}
