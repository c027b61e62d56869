//! The kernel of family `mma`: FlashAttention-2's loop on `mma.sync` tensor cores.
//!
//! A block computes `rows` query rows of one head. Its warps share the rows out, and with `kv_warps` also
//! the keys of each tile. K and V come through a ring of stages filled by asynchronous copies; scores
//! and probabilities never leave registers, since the accumulators of `S = Q·Kᵀ`, rounded and packed, are
//! the operand of `O += P·V`.
//!
//! Tiles that need a mask come first, so that the long loop over the others has none. One barrier a
//! tile: it says both that the tile has arrived and that its predecessor's stage may be overwritten.

use flashcore_ir::fragment::{AOperand, Acc, MmaElement};
use flashcore_ir::{Cache, GlobalPtr, KernelBuilder, TileShape, Val, Var, Widen};

use super::Config;
use crate::params::{Params, Shape};
use crate::softmax::{RunningMax, normaliser};
use crate::tiles::{CHUNK, Chunks, Fragments, HeadTile, STEP, a_lane, b_lane, padded, tile_bytes};

/// With lazy rescaling a row's reference stays until a score is this many powers of two above it.
/// Probabilities then reach 2⁸, which fp16 and the f32 sums hold with room to spare.
const LAZY_POWERS: f32 = 8.0;

/// Score columns of one tensor-core accumulator.
const ACC_COLS: u32 = 8;

/// Lanes that share a row of an accumulator.
const QUAD: u32 = 4;

pub(super) fn body<'k, E: MmaElement + Widen>(k: &'k KernelBuilder, levers: &Config, shape: &Shape) {
    k.min_blocks_per_sm(levers.min_blocks);
    let params = Params::<E>::declare(k, shape);
    let block = Block::new(k, &params, levers);
    let warp = WarpPlace::new(k, levers);

    let xor = levers.swizzled;
    let q_tile = HeadTile::declare(k, "q_tile", levers.rows, shape.head_dim, 1, xor);
    let k_tile = HeadTile::declare(k, "k_tile", levers.cols, shape.head_dim, levers.stages, xor);
    let v_tile = HeadTile::declare(k, "v_tile", levers.cols, shape.head_dim_v, levers.stages, xor);

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
    let q_place = q_tile.fragments(row + warp.first_row, col);
    let v_place = v_tile.fragments(row + warp.first_key, col);
    let (row, col) = b_lane(k.lane());
    let k_place = k_tile.fragments(row + warp.first_key, col);

    let state = State::new(k, &params, &block, &warp, levers, shape);
    let core = Core {
        k,
        params: &params,
        levers,
        shape,
        k_place,
        v_place,
        state: &state,
        warp: &warp,
    };

    if levers.ahead {
        core.run_ahead(&sequence, &ring, q_place);
    } else {
        core.run(&sequence, &ring, q_place);
    }

    // Nobody needs the tiles any more, and no copy into them is under way.
    k.cp_async_wait(0);
    k.barrier();
    let epilogue = Epilogue {
        k,
        params: &params,
        block: &block,
        warp: &warp,
        levers,
        shape,
    };
    if levers.kv_warps == 1 {
        epilogue.store(&state, q_tile);
    } else {
        epilogue.merge_and_store(&state, k_tile, v_tile);
    }
}

// ---- Who computes what --------------------------------------------------------------------------------

/// The block's query rows and head.
///
/// Packed, a row is a query row of one of the heads that share K and V: row `i` is query row
/// `i / group_size` of head `i % group_size` of the group.
struct Block<'k> {
    batch: Val<'k, u32>,
    /// First of the heads whose rows these are.
    head: Val<'k, u32>,
    kv_head: Val<'k, u32>,
    first_row: Val<'k, u32>,
    /// Rows there are, of all tiles.
    num_rows: Val<'k, u32>,
    /// Query heads to a row's index, if packed.
    packed: Option<Val<'k, u32>>,
}

impl<'k> Block<'k> {
    /// The grid is (heads of a group, tiles of rows, groups): heads whose K and V fit into the L2 cache
    /// together run together, and the tiles with the most keys (the last, if causal) first.
    #[track_caller]
    fn new<E: MmaElement>(k: &'k KernelBuilder, params: &Params<'k, E>, levers: &Config) -> Self {
        let tile = k.grid_dim(1) - 1 - k.block_idx(1);
        let index = k.block_idx(2).fma(k.grid_dim(0), k.block_idx(0));
        let first_row = tile * levers.rows;
        if levers.pack_heads {
            let kv_heads = params.num_heads / params.group_size;
            let kv_head = index % kv_heads;
            return Block {
                batch: index / kv_heads,
                head: kv_head * params.group_size,
                kv_head,
                first_row,
                num_rows: params.seq_len_q * params.group_size,
                packed: Some(params.group_size),
            };
        }
        let head = index % params.num_heads;
        Block {
            batch: index / params.num_heads,
            head,
            kv_head: head / params.group_size,
            first_row,
            num_rows: params.seq_len_q,
            packed: None,
        }
    }

    /// Head and query row of one of the block's rows.
    #[track_caller]
    fn head_and_query(&self, row: Val<'k, u32>) -> (Val<'k, u32>, Val<'k, u32>) {
        match self.packed {
            Some(group) => (self.head + row % group, row / group),
            None => (self.head, row),
        }
    }

    /// Where a row of Q begins, and whether there is one.
    #[track_caller]
    fn query_row<E: MmaElement>(&self, params: &Params<'k, E>, row: Val<'k, u32>) -> (GlobalPtr<'k, E>, Val<'k, bool>) {
        let (head, query) = self.head_and_query(row);
        (
            params.q.row(params.q.head(self.batch, head), query),
            row.lt(self.num_rows),
        )
    }
}

/// A warp's part of the block's rows and of each tile's keys.
struct WarpPlace<'k> {
    /// Number along the keys.
    kv_warp: Val<'k, u32>,
    /// First row, within the block.
    first_row: Val<'k, u32>,
    /// First key, within a tile.
    first_key: Val<'k, u32>,
}

impl<'k> WarpPlace<'k> {
    #[track_caller]
    fn new(k: &'k KernelBuilder, levers: &Config) -> Self {
        // The same in every lane; read from one, so that the compiler knows.
        let warp = (k.thread_idx() / 32u32).shfl_idx(0u32);
        let (row_warp, kv_warp) = match levers.kv_warps {
            1 => (warp, k.constant(0)),
            _ => (warp % levers.warps, warp / levers.warps),
        };
        WarpPlace {
            kv_warp,
            first_row: row_warp * levers.rows_per_warp(),
            first_key: kv_warp * levers.keys_per_warp(),
        }
    }
}

// ---- Which tiles, in which order ----------------------------------------------------------------------

/// The tiles of keys that the block's rows see, in the order they are taken: those that need a mask first
/// (at the low end, then at the high end), then those that every row sees whole.
struct TileSequence<'k> {
    cols: u32,
    first: Val<'k, i32>,
    /// Turns that need a mask at the low end.
    masked_low: Val<'k, i32>,
    /// What takes a turn at the high end to its tile.
    high: Val<'k, i32>,
    /// What takes an unmasked turn to its tile.
    whole: Val<'k, i32>,
    /// Turns that need a mask.
    masked: Val<'k, i32>,
    turns: Val<'k, i32>,
}

impl<'k> TileSequence<'k> {
    #[track_caller]
    fn new<E: MmaElement>(k: &'k KernelBuilder, params: &Params<'k, E>, block: &Block<'k>, levers: &Config) -> Self {
        let cols = levers.cols as i32;
        let last_row = (block.first_row + (levers.rows - 1)).min(block.num_rows - 1);
        let (_, first_query) = block.head_and_query(block.first_row);
        let (_, last_query) = block.head_and_query(last_row);
        // Bounds grow with the row: the first row sees the lowest key, the last row the highest.
        let (lowest, whole_end) = params.visible_keys(first_query);
        let (whole_first, highest) = params.visible_keys(last_query);
        let up = |keys: Val<'k, i32>| (keys + (cols - 1)) / cols;
        let (first, end) = (lowest / cols, up(highest));
        let whole = up(whole_first).max(first).min(end);
        let high = (whole_end / cols).max(whole).min(end);
        let masked_low = whole - first;
        let masked = masked_low + (end - high);
        TileSequence {
            cols: levers.cols,
            first,
            masked_low,
            high: high - masked_low,
            whole: whole - masked,
            masked,
            turns: (end - first).max(k.constant(0)),
        }
    }

    /// First key of the tile of a turn.
    #[track_caller]
    fn first_key(&self, turn: Val<'k, i32>, edges: Edges) -> Val<'k, u32> {
        let base = match edges {
            Edges::Whole => self.whole,
            Edges::Checked => {
                let masked = turn.lt(self.masked_low).select(self.first, self.high);
                turn.lt(self.masked).select(masked, self.whole)
            }
        };
        (turn + base).reinterpret::<u32>() * self.cols
    }
}

/// Whether a tile may reach past what its rows see or what there is.
#[derive(Clone, Copy, PartialEq)]
enum Edges {
    Checked,
    Whole,
}

// ---- K and V on their way into shared memory ----------------------------------------------------------

/// The ring of stages. Group of copies `t` holds K of turn `t`, and V of turn `t - lag`: a kernel that
/// computes scores a turn ahead needs K a turn before V.
struct Ring<'k, 'p, E> {
    k: &'k KernelBuilder,
    params: &'p Params<'k, E>,
    stages: u32,
    lag: i32,
    k_head: GlobalPtr<'k, E>,
    v_head: GlobalPtr<'k, E>,
    k_chunks: Chunks<'k, E>,
    v_chunks: Chunks<'k, E>,
    /// Where the next copies go and the next reads come from, in elements from the first stage.
    k_write: Stage<'k>,
    v_write: Stage<'k>,
    k_read: Stage<'k>,
    v_read: Stage<'k>,
}

/// A stage of a ring, as elements from its first one.
#[derive(Clone, Copy)]
struct Stage<'k> {
    at: Var<'k, u32>,
    step: u32,
    end: u32,
}

impl<'k> Stage<'k> {
    #[track_caller]
    fn first<E: MmaElement>(k: &'k KernelBuilder, tile: HeadTile<'k, E>, stages: u32) -> Self {
        Stage {
            at: k.var(0u32),
            step: tile.stage_elements(),
            end: tile.stage_elements() * stages,
        }
    }

    /// This stage; the next call gives the next.
    #[track_caller]
    fn take(&self) -> Val<'k, u32> {
        let now = self.at.get();
        let next = now + self.step;
        self.at.set(next.lt(self.end).select(next, 0u32));
        now
    }
}

impl<'k, 'p, E: MmaElement> Ring<'k, 'p, E> {
    #[track_caller]
    fn new(
        k: &'k KernelBuilder,
        params: &'p Params<'k, E>,
        block: &Block<'k>,
        levers: &Config,
        k_tile: HeadTile<'k, E>,
        v_tile: HeadTile<'k, E>,
    ) -> Self {
        Ring {
            k,
            params,
            stages: levers.stages,
            lag: i32::from(levers.ahead),
            k_head: params.k.head(block.batch, block.kv_head),
            v_head: params.v.head(block.batch, block.kv_head),
            k_chunks: k_tile.chunks(k),
            v_chunks: v_tile.chunks(k),
            k_write: Stage::first(k, k_tile, levers.stages),
            v_write: Stage::first(k, v_tile, levers.stages),
            k_read: Stage::first(k, k_tile, levers.stages),
            v_read: Stage::first(k, v_tile, levers.stages),
        }
    }

    /// Starts the copies of group `turn`, as far as there are such tiles, and closes the group.
    #[track_caller]
    fn prefetch(&self, sequence: &TileSequence<'k>, turn: Val<'k, i32>, edges: Edges) {
        let end = (edges == Edges::Checked).then_some(self.params.seq_len_kv);
        self.k.verb("prefetch", || {
            self.k.if_(turn.lt(sequence.turns).uniform(), || {
                let first = sequence.first_key(turn, edges);
                let stage = self.k_write.take();
                self.k_chunks.copy(stage, &self.params.k, self.k_head, first, end);
            });
            let turn = turn - self.lag;
            let exists = match self.lag {
                0 => turn.lt(sequence.turns),
                _ => turn.lt(sequence.turns) & turn.ge(0),
            };
            self.k.if_(exists.uniform(), || {
                let first = sequence.first_key(turn, edges);
                let stage = self.v_write.take();
                self.v_chunks.copy(stage, &self.params.v, self.v_head, first, end);
            });
            self.k.cp_async_commit();
        });
    }

    /// Waits for the group of `turn` to arrive for all warps, and refills the stage that all have left.
    #[track_caller]
    fn advance(&self, sequence: &TileSequence<'k>, turn: Val<'k, i32>, edges: Edges) {
        self.k.cp_async_wait(self.stages - 2);
        self.k.barrier();
        self.prefetch(sequence, turn + (self.stages as i32 - 1), edges);
    }
}

// ---- The warp's rows ----------------------------------------------------------------------------------

/// What a warp carries from tile to tile.
struct State<'k> {
    /// One for each 16 rows.
    blocks: Vec<RowBlock<'k>>,
    /// How far a score may rise above its row's reference, unscaled.
    slack: Val<'k, f32>,
}

/// 16 rows: a lane holds parts of two, `lane / 4` and eight further down.
struct RowBlock<'k> {
    out: Acc<'k>,
    rows: [Row<'k>; 2],
}

/// A row's running state. Its four lanes agree on the maximum; `sum` is each lane's own part.
struct Row<'k> {
    /// Row of the block's head or heads.
    row: Val<'k, u32>,
    max: RunningMax<'k>,
    sum: Var<'k, f32>,
}

impl<'k> State<'k> {
    #[track_caller]
    fn new<E: MmaElement>(
        k: &'k KernelBuilder,
        params: &Params<'k, E>,
        block: &Block<'k>,
        warp: &WarpPlace<'k>,
        levers: &Config,
        shape: &Shape,
    ) -> Self {
        let first = block.first_row + warp.first_row + k.lane() / QUAD;
        let mut blocks = Vec::new();
        for m in 0..levers.row_blocks() {
            blocks.push(RowBlock {
                out: k.acc(&format!("out{m}"), padded(shape.head_dim_v) / ACC_COLS),
                rows: [0, 8].map(|down| Row {
                    row: first + (16 * m + down),
                    max: RunningMax::new(k, params),
                    sum: k.var(0.0),
                }),
            });
        }
        State {
            blocks,
            slack: params.exponent_scale.recip() * LAZY_POWERS,
        }
    }
}

/// Scores of a warp: one accumulator for each 16 rows. A lane's values of row half `h` of 8 columns `j`
/// are registers `4j + 2h` and the next.
struct Scores<'k> {
    blocks: Vec<Acc<'k>>,
}

// ---- The loop -----------------------------------------------------------------------------------------

struct Core<'k, 'p, E> {
    k: &'k KernelBuilder,
    params: &'p Params<'k, E>,
    levers: &'p Config,
    shape: &'p Shape,
    k_place: Fragments<'k, E>,
    v_place: Fragments<'k, E>,
    state: &'p State<'k>,
    warp: &'p WarpPlace<'k>,
}

/// Where Q's operands come from.
enum Query<'k, E> {
    /// Loaded once: `[row block][step]`.
    Registers(Vec<Vec<AOperand<E>>>),
    /// Loaded again for each tile.
    Shared(Fragments<'k, E>),
}

impl<'k, E: MmaElement> Query<'k, E> {
    #[track_caller]
    fn operands(&self, k: &'k KernelBuilder, row_blocks: u32, step: u32) -> Vec<AOperand<E>> {
        match self {
            Query::Registers(operands) => operands.iter().map(|block| block[step as usize]).collect(),
            Query::Shared(place) => {
                let mut operands = Vec::new();
                for m in 0..row_blocks {
                    operands.push(place.a(k, 16 * m, step * STEP));
                }
                operands
            }
        }
    }
}

impl<'k, E: MmaElement> Core<'k, '_, E> {
    /// Tile by tile: scores, softmax, output.
    fn run(&self, sequence: &TileSequence<'k>, ring: &Ring<'k, '_, E>, q_place: Fragments<'k, E>) {
        let query = self.query(q_place);
        let scores = self.new_scores("s");
        let tile = |turn: Val<'k, i32>, edges: Edges| {
            ring.advance(sequence, turn, edges);
            let (k_stage, v_stage) = (ring.k_read.take(), ring.v_read.take());
            let work = |key0: Option<Val<'k, u32>>| {
                let (k_place, v_place) = (self.k_place.offset(k_stage), self.v_place.offset(v_stage));
                self.clear(&scores);
                self.score_steps(&query)
                    .iter()
                    .for_each(|step| self.score(&query, &k_place, &scores, step));
                self.cap(&scores);
                if let Some(key0) = key0 {
                    self.mask(&scores, key0);
                }
                self.raise_maxima(&scores);
                for step in 0..self.key_steps() {
                    self.exponentials(&scores, step);
                    self.accumulate(&scores, &v_place, step);
                }
            };
            match edges {
                Edges::Whole => work(None),
                Edges::Checked => {
                    let key0 = sequence.first_key(turn, edges) + self.warp.first_key;
                    self.k.if_(self.sees(key0).uniform(), || work(Some(key0)));
                }
            }
        };
        let k = self.k;
        k.for_uniform(0, sequence.masked, 1, |turn| tile(turn, Edges::Checked));
        k.for_uniform(sequence.masked, sequence.turns, 1, |turn| tile(turn, Edges::Whole));
    }

    /// The same with the scores of the next tile computed among the exponentials of this one.
    fn run_ahead(&self, sequence: &TileSequence<'k>, ring: &Ring<'k, '_, E>, q_place: Fragments<'k, E>) {
        let k = self.k;
        let query = self.query(q_place);
        let (even, odd) = (self.new_scores("s_even"), self.new_scores("s_odd"));

        // Scores of the first tile, by themselves.
        let first_scores = || {
            ring.advance(sequence, k.constant(0), Edges::Checked);
            let k_place = self.k_place.offset(ring.k_read.take());
            self.clear(&even);
            self.score_steps(&query)
                .iter()
                .for_each(|step| self.score(&query, &k_place, &even, step));
            self.cap(&even);
            k.if_(sequence.masked.gt(0).uniform(), || {
                let key0 = sequence.first_key(k.constant(0), Edges::Checked);
                self.mask(&even, key0 + self.warp.first_key);
            });
        };
        // Takes in `now`, the scores of the turn before, and computes `next`, those of `turn`.
        let tile = |now: &Scores<'k>, next: &Scores<'k>, turn: Val<'k, i32>, edges: Edges| {
            ring.advance(sequence, turn, edges);
            let k_place = self.k_place.offset(ring.k_read.take());
            let v_place = self.v_place.offset(ring.v_read.take());
            self.raise_maxima(now);
            self.clear(next);
            let score_steps = self.score_steps(&query);
            let mut parts = score_steps.chunks(score_steps.len().div_ceil(self.key_steps() as usize));
            for step in 0..self.key_steps() {
                self.exponentials(now, step);
                for part in parts.next().unwrap_or_default() {
                    self.score(&query, &k_place, next, part);
                }
                self.accumulate(now, &v_place, step);
            }
            self.cap(next);
            if edges == Edges::Checked {
                self.mask(next, sequence.first_key(turn, edges) + self.warp.first_key);
            }
        };
        k.if_(sequence.turns.gt(0).uniform(), || {
            first_scores();
            k.for_uniform(1, sequence.masked, 1, |turn| {
                tile(&even, &odd, turn, Edges::Checked);
                self.copy(&odd, &even);
            });
            // Two turns a round, so that scores need not be moved.
            let turn = k.var(sequence.masked.max(1));
            k.loop_(|rounds| {
                rounds.break_if(turn.get().ge(sequence.turns).uniform());
                tile(&even, &odd, turn.get(), Edges::Whole);
                turn.add_assign(1);
                let done = turn.get().ge(sequence.turns);
                k.if_(done.uniform(), || self.copy(&odd, &even));
                rounds.break_if(done.uniform());
                tile(&odd, &even, turn.get(), Edges::Whole);
                turn.add_assign(1);
            });
            // The last tile's output.
            ring.advance(sequence, sequence.turns, Edges::Whole);
            let v_place = self.v_place.offset(ring.v_read.take());
            self.raise_maxima(&even);
            for step in 0..self.key_steps() {
                self.exponentials(&even, step);
                self.accumulate(&even, &v_place, step);
            }
        });
    }

    /// Steps of 16 keys in a warp's part of a tile.
    fn key_steps(&self) -> u32 {
        self.levers.keys_per_warp() / STEP
    }

    /// Q's operands: loaded here once, if they stay in registers.
    #[track_caller]
    fn query(&self, place: Fragments<'k, E>) -> Query<'k, E> {
        if !self.levers.q_in_registers {
            return Query::Shared(place);
        }
        // Q's group of copies is the oldest.
        self.k.cp_async_wait(self.levers.stages - 1);
        self.k.barrier();
        let mut operands = Vec::new();
        for m in 0..self.levers.row_blocks() {
            let steps = 0..padded(self.shape.head_dim) / STEP;
            operands.push(steps.map(|step| place.a(self.k, 16 * m, step * STEP)).collect());
        }
        Query::Registers(operands)
    }

    fn new_scores(&self, name: &str) -> Scores<'k> {
        let mut blocks = Vec::new();
        for m in 0..self.levers.row_blocks() {
            let tiles = self.levers.keys_per_warp() / ACC_COLS;
            blocks.push(self.k.acc_unwritten(&format!("{name}{m}"), tiles));
        }
        Scores { blocks }
    }

    #[track_caller]
    fn clear(&self, scores: &Scores<'k>) {
        for block in &scores.blocks {
            block.zero();
        }
    }

    #[track_caller]
    fn copy(&self, from: &Scores<'k>, to: &Scores<'k>) {
        for (from, to) in from.blocks.iter().zip(&to.blocks) {
            for i in 0..4 * from.tiles() {
                to.var(i).set(from.var(i));
            }
        }
    }

    // ---- S = Q·Kᵀ ----

    /// The products of one tile of scores, in order: with Q in registers key block by key block, so that
    /// scores are finished early; with Q in shared memory step by step, so that it is read once a tile.
    fn score_steps(&self, query: &Query<'k, E>) -> Vec<ScoreStep> {
        let steps = padded(self.shape.head_dim) / STEP;
        let all = 0..self.key_steps();
        match query {
            Query::Registers(_) => all
                .flat_map(|keys| {
                    (0..steps).map(move |step| ScoreStep {
                        keys: keys..keys + 1,
                        step,
                    })
                })
                .collect(),
            Query::Shared(_) => (0..steps)
                .map(|step| ScoreStep {
                    keys: all.clone(),
                    step,
                })
                .collect(),
        }
    }

    #[track_caller]
    fn score(&self, query: &Query<'k, E>, k_place: &Fragments<'k, E>, scores: &Scores<'k>, part: &ScoreStep) {
        self.k.verb("S += Q*K", || {
            let q = query.operands(self.k, self.levers.row_blocks(), part.step);
            for keys in part.keys.clone() {
                let [left, right] = k_place.b_rows(self.k, keys * STEP, part.step * STEP);
                for (scores, &q) in scores.blocks.iter().zip(&q) {
                    self.k.mma(*scores, 2 * keys, q, left);
                    self.k.mma(*scores, 2 * keys + 1, q, right);
                }
            }
        });
    }

    // ---- Softmax ----

    /// Whether any of the warp's rows sees any of its keys in the tile.
    #[track_caller]
    fn sees(&self, key0: Val<'k, u32>) -> Val<'k, bool> {
        let key0 = key0.reinterpret::<i32>();
        let (mut low, mut high) = (None::<Val<'k, i32>>, None::<Val<'k, i32>>);
        for row in self.state.blocks.iter().flat_map(|block| &block.rows) {
            let (first, end) = self.params.visible_keys(row.query(self.packed()));
            low = Some(low.map_or(first, |low| low.min(first)));
            high = Some(high.map_or(end, |high| high.max(end)));
        }
        match (low, high) {
            (Some(low), Some(high)) => {
                let mine = high.gt(key0) & low.lt(key0 + self.levers.keys_per_warp() as i32);
                mine.vote_any()
            }
            _ => key0.lt(0),
        }
    }

    fn packed(&self) -> Option<Val<'k, u32>> {
        self.levers.pack_heads.then_some(self.params.group_size)
    }

    /// With soft cap: scores, not yet scaled, are capped.
    #[track_caller]
    fn cap(&self, scores: &Scores<'k>) {
        if !self.shape.softcap {
            return;
        }
        for block in &scores.blocks {
            for i in 0..4 * block.tiles() {
                let score = block.var(i);
                score.set(self.params.score(score.get()));
            }
        }
    }

    /// Scores that a row does not see become −∞.
    #[track_caller]
    fn mask(&self, scores: &Scores<'k>, key0: Val<'k, u32>) {
        self.k.verb("mask", || {
            let first = (key0 + self.k.lane() % QUAD * 2u32).reinterpret::<i32>();
            for (scores, block) in scores.blocks.iter().zip(&self.state.blocks) {
                for (half, row) in block.rows.iter().enumerate() {
                    let (low, end) = self.params.visible_keys(row.query(self.packed()));
                    // Relative to this lane's first key, so that the columns are constants.
                    let (low, end) = (low - first, end - first);
                    for (column, register) in lane_columns(scores, half) {
                        let score = scores.var(register);
                        let sees = low.le(column) & end.gt(column);
                        score.set(sees.select(score, f32::NEG_INFINITY));
                    }
                }
            }
        });
    }

    /// Raises the references of the rows to the scores, where they ask for it, and brings what was summed
    /// before to the new ones.
    ///
    /// Lazily, that is only where a score is far above its row's reference: any reference gives the same
    /// quotients, and most tiles then need neither exchange between lanes nor rescaling.
    #[track_caller]
    fn raise_maxima(&self, scores: &Scores<'k>) {
        let k = self.k;
        k.verb("raise_maxima", || {
            let mut maxima = Vec::new();
            for (scores, block) in scores.blocks.iter().zip(&self.state.blocks) {
                for (half, row) in block.rows.iter().enumerate() {
                    maxima.push((row, &block.out, half, largest(scores, half)));
                }
            }
            let raise = || {
                for (row, out, half, largest) in &maxima {
                    let factor = row.max.raise(largest.reduce_max(QUAD));
                    row.sum.mul_assign(factor);
                    for (_, register) in lane_columns(out, *half) {
                        out.var(register).mul_assign(factor);
                    }
                }
            };
            if !self.levers.lazy {
                raise();
                return;
            }
            let mut any = None::<Val<'k, bool>>;
            for (row, _, _, largest) in &maxima {
                let above = largest.gt(row.max.max + self.state.slack);
                any = Some(any.map_or(above, |any| any | above));
            }
            if let Some(any) = any {
                k.if_(any.vote_any().uniform(), raise);
            }
        });
    }

    /// Scores of 16 keys become probabilities, in place.
    #[track_caller]
    fn exponentials(&self, scores: &Scores<'k>, step: u32) {
        self.k.verb("exponentials", || {
            for (scores, block) in scores.blocks.iter().zip(&self.state.blocks) {
                for (half, row) in block.rows.iter().enumerate() {
                    for (_, register) in lane_columns(scores, half).skip(4 * step as usize).take(4) {
                        let score = scores.var(register);
                        let p = row.max.exp(score.get());
                        row.sum.add_assign(p);
                        score.set(p);
                    }
                }
            }
        });
    }

    // ---- O += P·V ----

    #[track_caller]
    fn accumulate(&self, scores: &Scores<'k>, v_place: &Fragments<'k, E>, step: u32) {
        self.k.verb("O += P*V", || {
            let p: Vec<AOperand<E>> = scores.blocks.iter().map(|block| block.to_a_step(step)).collect();
            for column in 0..padded(self.shape.head_dim_v) / STEP {
                let [left, right] = v_place.b_cols(self.k, step * STEP, column * STEP);
                for (block, &p) in self.state.blocks.iter().zip(&p) {
                    self.k.mma(block.out, 2 * column, p, left);
                    self.k.mma(block.out, 2 * column + 1, p, right);
                }
            }
        });
    }
}

/// Products with one step of Q, for some blocks of 16 keys.
struct ScoreStep {
    keys: std::ops::Range<u32>,
    step: u32,
}

impl<'k> Row<'k> {
    /// The query row that it is.
    #[track_caller]
    fn query(&self, packed: Option<Val<'k, u32>>) -> Val<'k, u32> {
        match packed {
            Some(group) => self.row / group,
            None => self.row,
        }
    }
}

/// Columns, from the lane's first, and registers of a lane's values in one of its two rows of an accumulator.
fn lane_columns(acc: &Acc<'_>, half: usize) -> impl Iterator<Item = (i32, u32)> + use<> {
    (0..acc.tiles())
        .flat_map(move |tile| (0..2).map(move |e| ((ACC_COLS * tile + e) as i32, 4 * tile + 2 * half as u32 + e)))
}

/// The largest of a lane's values in a row, in two chains so that they do not wait for each other.
#[track_caller]
fn largest<'k>(scores: &Acc<'k>, half: usize) -> Val<'k, f32> {
    let mut chains: [Option<Val<'k, f32>>; 2] = [None, None];
    for (i, (_, register)) in lane_columns(scores, half).enumerate() {
        let value = scores.var(register).get();
        let chain = &mut chains[i % 2];
        *chain = Some(chain.map_or(value, |largest| largest.max(value)));
    }
    match chains {
        [Some(a), Some(b)] => a.max(b),
        [Some(a), None] | [None, Some(a)] => a,
        [None, None] => scores.var(0).get(),
    }
}

// ---- The result ---------------------------------------------------------------------------------------

struct Epilogue<'k, 'p, E> {
    k: &'k KernelBuilder,
    params: &'p Params<'k, E>,
    block: &'p Block<'k>,
    warp: &'p WarpPlace<'k>,
    levers: &'p Config,
    shape: &'p Shape,
}

impl<'k, E: MmaElement + Widen> Epilogue<'k, '_, E> {
    /// Rounds the output into shared memory and stores it from there, 16 bytes an access.
    #[track_caller]
    fn store(&self, state: &State<'k>, q_tile: HeadTile<'k, E>) {
        let (k, levers, head_dim_v) = (self.k, self.levers, self.shape.head_dim_v);
        let fits = tile_bytes(levers.rows, head_dim_v, 1) <= tile_bytes(levers.rows, self.shape.head_dim, 1);
        let out_tile = if fits {
            HeadTile::reusing(k, "out_tile", levers.rows, head_dim_v, levers.swizzled, q_tile)
        } else {
            HeadTile::declare(k, "out_tile", levers.rows, head_dim_v, 1, levers.swizzled)
        };
        let first = self.warp.first_row + k.lane() / QUAD;
        let column = k.lane() % QUAD * 2u32;
        for (m, block) in state.blocks.iter().enumerate() {
            for (half, row) in block.rows.iter().enumerate() {
                let sum = row.sum.get().reduce_sum(QUAD);
                let norm = normaliser(sum);
                for tile in 0..padded(head_dim_v) / ACC_COLS {
                    let pair = [0, 1].map(|e| block.out.var(4 * tile + 2 * half as u32 + e) * norm);
                    let place = out_tile.at_column(first + (16 * m as u32 + 8 * half as u32), tile * ACC_COLS, column);
                    place.store_words(&[E::pack(pair[0], pair[1])], Cache::Default);
                }
                self.store_lse(row.row, sum, row.max.offset.get(), k.lane() % QUAD);
            }
        }
        k.barrier();
        out_tile.chunks(k).for_each(|row, column, place| {
            let row = self.block.first_row + row;
            let exists = row.lt(self.block.num_rows) & column.lt(head_dim_v);
            k.if_(exists.divergent(), || {
                let words = place.load_words(4, Cache::Default);
                self.out_row(row).offset(column).store_words(&words, Cache::Default);
            });
        });
    }

    /// Stores the log-sum-exp of a row, if it is asked for and this is the one lane of four to do it.
    #[track_caller]
    fn store_lse(&self, row: Val<'k, u32>, sum: Val<'k, f32>, offset: Val<'k, f32>, lane: Val<'k, u32>) {
        if !self.shape.lse {
            return;
        }
        let mine = lane.eq(0) & row.lt(self.block.num_rows);
        self.k.if_(mine.divergent(), || {
            let (head, query) = self.block.head_and_query(row);
            let batch_head = self.block.batch.fma(self.params.num_heads, head);
            self.params.store_lse(batch_head, query, offset, sum);
        });
    }

    #[track_caller]
    fn out_row(&self, row: Val<'k, u32>) -> GlobalPtr<'k, E> {
        let (head, query) = self.block.head_and_query(row);
        self.params.out.row(self.params.out.head(self.block.batch, head), query)
    }

    /// Merges what the warps along the keys have found, and stores it.
    ///
    /// Each leaves its output, not yet normalised, with the sums and references it is relative to, in the
    /// bytes of the tiles of keys; then all threads share the rows out anew.
    #[track_caller]
    fn merge_and_store(&self, state: &State<'k>, k_tile: HeadTile<'k, E>, v_tile: HeadTile<'k, E>) {
        let (k, levers, head_dim_v) = (self.k, self.levers, self.shape.head_dim_v);
        let cols = padded(head_dim_v);
        // Rows that start eight banks apart: the pairs that four rows of a quad write are then in different ones.
        let shape = TileShape::new(levers.rows, cols)
            .padded(merge_padding(cols))
            .stages(levers.kv_warps);
        let needed = 4 * levers.rows * (cols + merge_padding(cols)) * levers.kv_warps;
        let (of_k, of_v) = (k_tile.shared(), v_tile.shared());
        let parts = if needed <= of_k.stages() * of_k.stage_bytes() {
            k.shared_tile_reusing::<f32, E>("parts", shape, of_k)
        } else if needed <= of_v.stages() * of_v.stage_bytes() {
            k.shared_tile_reusing::<f32, E>("parts", shape, of_v)
        } else {
            k.shared_tile::<f32>("parts", shape)
        };
        // A row's offset and sum.
        let sums = k.shared_tile::<f32>("sums", TileShape::new(levers.rows, 2).stages(levers.kv_warps));

        let first = self.warp.first_row + k.lane() / QUAD;
        let column = k.lane() % QUAD * 2u32;
        let mine = parts.at_stage(self.warp.kv_warp, first, column);
        let mine_sums = sums.at_stage(self.warp.kv_warp, first, 0);
        for (m, block) in state.blocks.iter().enumerate() {
            for (half, row) in block.rows.iter().enumerate() {
                let down = 16 * m as u32 + 8 * half as u32;
                let place = parts.down(mine, down);
                for tile in 0..cols / ACC_COLS {
                    let pair = [0, 1].map(|e| block.out.var(4 * tile + 2 * half as u32 + e).get());
                    place.plus((tile * ACC_COLS) as i32).store_words(&pair, Cache::Default);
                }
                let sum = row.sum.get().reduce_sum(QUAD);
                k.if_((k.lane() % QUAD).eq(0).divergent(), || {
                    let pair = [row.max.offset.get(), sum];
                    sums.down(mine_sums, down).store_words(&pair, Cache::Default);
                });
            }
        }
        k.barrier();

        let per_row = head_dim_v / CHUNK;
        k.for_divergent(k.thread_idx(), levers.rows * per_row, k.threads(), |chunk| {
            let (row_in_tile, column) = (chunk / per_row, chunk % per_row * CHUNK);
            // The lowest offset belongs to the highest reference.
            let mut found = Vec::new();
            for part in 0..levers.kv_warps {
                let pair = sums.at_stage(part, row_in_tile, 0).load_words(2, Cache::Default);
                found.push((pair[0], pair[1]));
            }
            let offset = found[1..].iter().fold(found[0].0, |lowest, part| lowest.min(part.0));
            let mut sum = k.constant(0.0);
            let mut out = vec![k.constant(0.0); CHUNK as usize];
            for (part, &(part_offset, part_sum)) in found.iter().enumerate() {
                let factor = (offset - part_offset).exp2();
                sum = part_sum.fma(factor, sum);
                let place = parts.at_stage(part as u32, row_in_tile, column);
                for quad in 0..2 {
                    let values = place.plus(4 * quad).load_words(4, Cache::Default);
                    for (out, value) in out[4 * quad as usize..].iter_mut().zip(values) {
                        *out = value.fma(factor, *out);
                    }
                }
            }
            let norm = normaliser(sum);
            let row = self.block.first_row + row_in_tile;
            k.if_(row.lt(self.block.num_rows).divergent(), || {
                let values: Vec<_> = out.iter().map(|&value| value * norm).collect();
                self.out_row(row).offset(column).store_f32s(&values, 16, Cache::Default);
            });
            self.store_lse(row, sum, offset, column);
        });
    }
}

/// Elements that rows of f32 are padded by, so that neighbouring rows start eight banks apart.
pub(super) const fn merge_padding(cols: u32) -> u32 {
    (8 + 32 - cols % 32) % 32
}
