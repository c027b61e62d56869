//! `S = scale·Q·Kᵀ` by itself, written to memory in the problem's dtype: how fast one product is on tensor cores and
//! without, and against a library's matrix product. It answers no attention problem, so it is no
//! [`Config`](crate::Config).
//!
//! Every key is multiplied, whatever the mask. Loads and stores, 16 bytes an access through shared memory, are those of
//! both engines.

use std::fmt;

use flashcore_ir::fragment::MmaElement;
use flashcore_ir::{Cache, Target, Val, Var, Widen};
use flashcore_problem::{Name, Problem};

use super::common::{ScoreOperands, WARP_ROWS};
use crate::args::{Args, build};
use crate::attention::params::{ALIGNMENT, OTHER_FAMILIES, SIXTEEN_BITS, check_lengths, check_problem};
use crate::attention::row_tile::{ACC_COLS, RowTile, lane_column, lane_row};
use crate::step::Step;
use crate::tiles::{CHUNK, HeadTile, padded, tile_bytes};
use crate::{Refusal, refuse};

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// f32 FMAs on elements widened as they are read.
    Scalar,
    /// `mma.sync`, a warp 16 rows.
    TensorCores,
}

/// The engine and its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levers {
    /// What multiplies.
    pub engine: Engine,
    /// Query rows and keys a block, a warp for each 16 of them: one of [`TILES`].
    pub tile: u32,
}

/// Tiles there are.
pub const TILES: [u32; 2] = [64, 128];

/// Threads that share a row in the scalar engine.
const THREAD_COLS: u32 = 16;

impl Levers {
    /// Every choice.
    pub fn all() -> Vec<Levers> {
        let engines = [Engine::Scalar, Engine::TensorCores].into_iter();
        let all = engines.flat_map(|engine| TILES.map(|tile| Levers { engine, tile }));
        all.collect()
    }
}

impl fmt::Display for Levers {
    /// `scores-m64n64-mma`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = match self.engine {
            Engine::Scalar => "scalar",
            Engine::TensorCores => "mma",
        };
        f.pad(&format!("scores-m{0}n{0}-{engine}", self.tile))
    }
}

/// Kernel and launch. Buffers are `q`, `k` in the problem's layouts, and `scores`, dense `[batch, num_heads, seq_len_q,
/// seq_len_kv]` in its dtype.
///
/// ```
/// use flashcore_ir::Target;
/// use flashcore_kernels::ladder::scores::{Engine, Levers, plan};
/// use flashcore_problem::Problem;
/// let step = plan(&Problem::named("small")?, Levers { engine: Engine::TensorCores, tile: 128 }, Target::Sm89)?;
/// assert_eq!(step.launch.grid, [512 / 128, 512 / 128, 8]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Problems of other dtypes than fp16 and bf16, rows or keys that are no whole 16-byte chunks, soft caps, ALiBi, tiles
/// that are not in [`TILES`] or take more shared memory than there is.
pub fn plan(problem: &Problem, levers: Levers, target: Target) -> Result<Step, Refusal> {
    const FAMILY: &str = "ladder/scores";
    check_lengths(problem, FAMILY, OTHER_FAMILIES)?;
    check_problem(problem, FAMILY, &SIXTEEN_BITS)?;
    refuse!(!TILES.contains(&levers.tile) => lever "tile" = levers.tile, "64, 128");
    let keys = problem.seq_len_kv();
    refuse!(problem.softcap().is_some() => FAMILY, "leave it away", "a soft cap");
    refuse!(problem.alibi().is_some() => FAMILY, "leave it away", "ALiBi");
    refuse!(!keys.is_multiple_of(CHUNK as usize) =>
        FAMILY, "round them up to a multiple of 8", "{keys} keys (it stores 8 at a time)");
    let head_dim = problem.head_dim() as u32;
    let needed = 2 * tile_bytes(levers.tile, head_dim, 1) + tile_bytes(levers.tile, levers.tile, 1);
    Refusal::check_shared_memory(needed, target, || "a tile of 64 needs less".to_string())?;
    let name = format!("{levers}_{}_d{head_dim}", problem.dtype()).replace('-', "_");
    let kernel = build!(&name, 2 * levers.tile, sixteen_bits problem.dtype() => body(k, levers, head_dim))?;
    let lengths = [problem.seq_len_q(), problem.seq_len_kv()];
    let tiles = lengths.map(|len| len.div_ceil(levers.tile as usize) as u32);
    let heads = (problem.batch() * problem.num_heads()) as u32;
    kernel.step([tiles[1], tiles[0], heads], problem)
}

fn body<'k, E: MmaElement + Widen>(k: &'k Args<'k, Problem>, levers: Levers, head_dim: u32) {
    k.min_blocks_per_sm(1);
    let [q, keys] = [Name::Q, Name::K].map(|tensor| k.reads::<E>(tensor, ALIGNMENT));
    let all_scores = k.output::<E>("scores", ALIGNMENT, |problem| problem.lse_len() * problem.seq_len_kv());
    let seq_len_q = k.count("seq_len_q", Problem::seq_len_q);
    let seq_len_kv = k.count("seq_len_kv", Problem::seq_len_kv);
    let num_heads = k.count("num_heads", Problem::num_heads);
    let group_size = k.count("group_size", Problem::group_size);
    let scale = k.number("scale", Problem::softmax_scale);

    let tile = levers.tile;
    let (first_key, first_row) = (k.block_idx(0) * tile, k.block_idx(1) * tile);
    let (batch, head) = (k.block_idx(2) / num_heads, k.block_idx(2) % num_heads);

    let q_tile = HeadTile::declare(k, "q_tile", tile, head_dim, 1, true);
    let k_tile = HeadTile::declare(k, "k_tile", tile, head_dim, 1, true);
    let s_tile = HeadTile::<E>::declare(k, "s_tile", tile, tile, 1, true);

    let (q_head, k_head) = (q.head(batch, head), keys.head(batch, head / group_size));
    for (tile, tensor, head, first, end) in [
        (q_tile, q, q_head, first_row, seq_len_q),
        (k_tile, keys, k_head, first_key, seq_len_kv),
    ] {
        let copies = tile.chunks(k).of_head(tensor, head);
        copies.start(k.constant(0), first, Some(end));
    }
    k.cp_async_commit();
    k.cp_async_wait(0);
    k.barrier();
    match levers.engine {
        Engine::Scalar => scalar([q_tile, k_tile, s_tile], scale),
        Engine::TensorCores => tensor_cores([q_tile, k_tile, s_tile], scale),
    }
    k.barrier();
    s_tile.chunks(k).for_each(|row, column, place| {
        let (row, key) = (first_row + row, first_key + column);
        k.if_((row.lt(seq_len_q) & key.lt(seq_len_kv)).divergent(), || {
            let to = all_scores.offset_strided(k.block_idx(2).fma(seq_len_q, row), seq_len_kv);
            let words = place.load_words(CHUNK / 2, Cache::Default);
            to.offset(key).store_words(&words, Cache::Default);
        });
    });
}

#[track_caller]
fn tensor_cores<'k, E: MmaElement>([q_tile, k_tile, s_tile]: [HeadTile<'k, E>; 3], scale: Val<'k, f32>) {
    let k = scale.builder();
    let warp = k.thread_idx() / 32u32;
    let scores: RowTile<'_> = RowTile::new(k.acc("s", k_tile.tile.rows() / ACC_COLS));
    ScoreOperands::new(k, q_tile, k_tile, warp).multiply(k, scores.0, q_tile.head_dim);
    let (row, column) = (warp * WARP_ROWS + lane_row(k), lane_column(k));
    for tile in 0..scores.tiles() {
        for half in 0..2 {
            let pair = scores.pair(tile, half).map(|product| product * scale);
            let place = s_tile.at_column(row + 8 * half as u32, ACC_COLS * tile, column);
            place.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
        }
    }
}

/// A thread multiplies every `threads / 16`-th row with every sixteenth key.
#[track_caller]
fn scalar<'k, E: MmaElement + Widen>([q_tile, k_tile, s_tile]: [HeadTile<'k, E>; 3], scale: Val<'k, f32>) {
    let k = scale.builder();
    let (row, key) = (k.thread_idx() / THREAD_COLS, k.thread_idx() % THREAD_COLS);
    let row_step = k.threads() / THREAD_COLS;
    let (rows, keys) = (q_tile.tile.rows() / row_step, k_tile.tile.rows() / THREAD_COLS);
    let scores: Vec<Var<'k, f32>> = (0..rows * keys).map(|_| k.var(0.0)).collect();
    let none = k.constant(0u32);
    for d in (0..padded(q_tile.head_dim)).step_by(CHUNK as usize) {
        let chunk = |tile: HeadTile<'k, E>, first: Val<'k, u32>, down: u32| {
            let place = tile.tile.down(tile.at_column(first, d, none), down);
            place.load_f32s(CHUNK, 16, Cache::Default)
        };
        let q: Vec<_> = (0..rows).map(|i| chunk(q_tile, row, i * row_step)).collect();
        for j in 0..keys {
            let key = chunk(k_tile, key, j * THREAD_COLS);
            for (i, q) in q.iter().enumerate() {
                let score = scores[i * keys as usize + j as usize];
                q.iter().zip(&key).for_each(|(&q, &key)| score.fma_assign(q, key));
            }
        }
    }
    for (i, scores) in scores.chunks(keys as usize).enumerate() {
        for (j, score) in scores.iter().enumerate() {
            let place = s_tile.at_column(row + i as u32 * row_step, THREAD_COLS * j as u32, key);
            place.store_f32s(&[*score * scale], E::BYTES, Cache::Default);
        }
    }
}
