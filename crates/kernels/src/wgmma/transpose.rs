//! V with the keys along its rows, made by a kernel that runs before the main one: products of 8-bit elements need
//! both operands so, and no copy transposes them.
//!
//! For each head and tile of keys the workspace holds `[head_dim_v, cols]`, in the order of [`key_of`], with zeros for
//! keys that there are not. The tiles of a sequence follow each other:
//!
//! | K and V | heads | first tile of sequence `b` |
//! |---|---|---|
//! | packed, `total` rows | of a sequence; `total / cols + batch` tiles each | `first_key / cols + b` |
//! | others | of all sequences; tiles of `seq_len_kv` keys each | 0 |
//!
//! With lengths on the device only tiles with keys that rows see are written, or one, and none of sequences without
//! rows. No key past the end is read.

use flashcore_ir::{Arg, Cache, E4M3, GlobalPtr, Kernel, KernelBuilder, Launch, TensorBox, Val};
use flashcore_problem::{KvLengths, Problem};

use crate::Refusal;
use crate::attention::lengths::{LengthKinds, TensorParam, kinds};
use crate::attention::params::{RowParams, Shape, add_rows, add_tensor, push_buffer};
use crate::attention::scheduler::WorkItem;
use crate::attention::score_mod::HeadScales;
use crate::attention::stream_k::Schedule;
use crate::attention::tensor_rows::Sequence;
use crate::family::padded;
use crate::step::{Identity, KernelCache, Step};

const THREADS: u32 = 128;

/// Bytes that a thread reads of a row at a time.
const CHUNK: u32 = 16;

/// Keys that a thread takes together, neighbours in the new order.
const KEYS: u32 = 4;

/// Blocks of a launch with lengths, about: each takes several tiles of a sequence where the bound has more. Those of
/// short sequences have nothing to do.
const MAX_BLOCKS: usize = 1 << 14;

/// Where the tiles begin: tensor maps ask for 16, copies are quickest from 128.
const ALIGN: u32 = 128;

/// The key at a place of a tile: within 16, places 4q to 4q + 3 hold keys 2q, 2q + 1, 2q + 8 and 2q + 9, as lane q of a
/// quad holds them in accumulators.
const fn key_of(place: u32) -> u32 {
    let (quad, e) = (place % 16 / KEYS, place % KEYS);
    place / 16 * 16 + 2 * quad + e % 2 + 8 * (e / 2)
}

/// The transposed values in the workspace.
#[derive(Clone, Copy)]
pub(super) struct Transposed {
    cols: u64,
    head_dim_v: u64,
    /// Tiles of keys of a head.
    tiles: u64,
    heads: u64,
    /// Bytes of the workspace before them.
    offset: u64,
}

impl Transposed {
    /// The transposed V of a problem, after its schedule if it has one.
    pub(super) fn new(problem: &Problem, cols: u32, schedule: Option<&Schedule>) -> Transposed {
        let (batch, kv_heads) = (problem.batch(), problem.num_kv_heads());
        let (tiles, heads) = match problem.kv_lengths() {
            KvLengths::Packed { total, .. } => (total / cols as usize + batch, kv_heads),
            _ => (problem.seq_len_kv().div_ceil(cols as usize), batch * kv_heads),
        };
        Transposed {
            cols: u64::from(cols),
            head_dim_v: problem.head_dim_v() as u64,
            tiles: tiles as u64,
            heads: heads as u64,
            offset: schedule.map_or(0, |schedule| schedule.bytes().next_multiple_of(u64::from(ALIGN))),
        }
    }

    fn push_workspace(&self, launch: &mut Launch, written: bool) -> usize {
        let bytes = self.offset + self.cols * self.head_dim_v * self.tiles * self.heads;
        push_buffer(launch, "workspace", bytes as usize, ALIGN, written)
    }

    /// Adds their tensor map to the main kernel: its dimensions are (keys of a tile, head_dim, tiles, heads).
    pub(super) fn add_to_main(&self, launch: &mut Launch, boxes: TensorBox) {
        let slot = self.push_workspace(launch, false);
        let sizes = vec![self.cols, self.head_dim_v, self.tiles, self.heads];
        let tile = self.cols * self.head_dim_v;
        let strides = vec![self.cols, tile, tile * self.tiles];
        let map = boxes.recipe(slot, self.offset, sizes, strides);
        launch.args.push(Arg::TensorMap(map));
    }

    /// The step that makes them, before a main kernel of this shape.
    pub(super) fn step(&self, problem: &Problem, main: &Shape, kernels: &KernelCache) -> Result<Step, Refusal> {
        let (family, levers) = ("transpose_v", padded([self.cols as u32]));
        let shape = Shape {
            head_dim_v: main.head_dim_v,
            overlaps: main.overlaps,
            ..Shape::of_lengths(kinds(problem))
        };
        let kernel = kernels.get_or_build(Identity { family, levers, shape }, |&[cols, ..], shape| {
            let (lengths, overlaps) = (shape.lengths_name(), shape.overlaps_name());
            let name = format!("transpose_v_n{cols}_d{}{lengths}{overlaps}", shape.head_dim_v);
            Kernel::build(name, THREADS, |k| body(k, cols, shape))
        })?;
        let (batch, kv_heads) = (problem.batch(), problem.num_kv_heads());
        let blocks = match problem.has_lengths() {
            true => (problem.seq_len_kv().div_ceil(self.cols as usize)).min((MAX_BLOCKS / (batch * kv_heads)).max(1)),
            false => self.tiles as usize,
        };
        let mut launch = Launch::of(&kernel, [blocks as u32, kv_heads as u32, batch as u32]);
        add_tensor(&mut launch, problem, CHUNK, "v", problem.v_layout());
        let slot = self.push_workspace(&mut launch, true);
        let byte_offset = self.offset;
        launch.args.push(Arg::Buffer { slot, byte_offset });
        match problem.has_lengths() {
            true => {
                add_rows(&mut launch, problem, &shape);
                launch.args.push(Arg::U32(self.tiles as u32));
            }
            false => launch.args.push(Arg::U32(problem.seq_len_kv() as u32)),
        }
        Ok(Step { kernel, launch })
    }
}

/// The coordinates in the main kernel's map of the K block from a key on.
#[track_caller]
pub(super) fn tile_at<'k>(
    scales: &HeadScales<'k>,
    sequence: &Sequence<'k>,
    item: &WorkItem<'k>,
    first_key: Val<'k, u32>,
    cols: u32,
) -> [Val<'k, u32>; 3] {
    let (block, zero) = (first_key / cols, first_key.builder().constant(0));
    match sequence.first().k {
        Some(first) => [zero, first / cols + item.batch() + block, item.kv_head()],
        None => [zero, block, scales.head(item.batch(), item.kv_head())],
    }
}

/// A block transposes tiles of a head and sequence: one, or with lengths every `grid_dim`th of those that rows see.
fn body(k: &KernelBuilder, cols: u32, shape: &Shape) {
    let v = TensorParam::<E4M3>::declare(k, "v", k.param_ptr("v"));
    let out = k.param_ptr_mut::<E4M3>("workspace");
    let tile_size = cols * shape.head_dim_v;
    if shape.lengths == LengthKinds::default() {
        let keys = k.param::<u32>("seq_len_kv");
        let (tile, head, batch) = (k.block_idx(0), k.block_idx(1), k.block_idx(2));
        let values = v.head(batch, head);
        let number = batch.fma(k.grid_dim(1), head).fma(k.grid_dim(0), tile);
        let out = out.offset_strided(number, tile_size);
        return transpose_tile(k, [cols, shape.head_dim_v], (&v, values), [tile, keys], out);
    }
    let params = RowParams::declare(k, shape);
    let tiles = k.param::<u32>("tiles");
    shape.begin_next_launch(k);
    shape.wait_for_launch_before(k);
    let (head, batch) = (k.block_idx(1), k.block_idx(2));
    let (params, first) = params.of_sequence(batch);
    let v = v.of_keys(&params, batch, first.k);
    let (values, keys) = (v.head(batch, head), params.seq_len_kv);
    let first_of_all = match first.k {
        Some(first) => head.fma(tiles, first / cols + batch),
        None => batch.fma(k.grid_dim(1), head) * tiles,
    };
    // Rows see keys from the first one's on, to the last one's. Q tiles that see none are computed with the last K
    // block before them, of which the mask leaves nothing.
    let (begin, _) = params.band.keys(k.constant(0));
    let (_, end) = params.band.keys((params.seq_len_q.max(1) - 1).reinterpret());
    let before = (begin.max(1) - 1).reinterpret::<u32>();
    let end = params.seq_len_q.eq(0).select(0, end.max(1)).reinterpret::<u32>();
    let tile = k.var(before / cols + k.block_idx(0));
    k.loop_(|scope| {
        scope.break_if((tile * cols).ge(end).uniform());
        let out = out.offset_strided(first_of_all + tile, tile_size);
        transpose_tile(k, [cols, shape.head_dim_v], (&v, values), [tile.get(), keys], out);
        tile.add_assign(k.grid_dim(0));
    });
    // The next launch, which may have begun, reads them by tensor copies.
    k.fence_proxy_async_global();
}

/// A thread transposes four keys by 16 columns at a time.
#[track_caller]
fn transpose_tile<'k>(
    k: &'k KernelBuilder,
    [cols, head_dim_v]: [u32; 2],
    (v, values): (&TensorParam<'k, E4M3>, GlobalPtr<'k, E4M3>),
    [tile, keys]: [Val<'k, u32>; 2],
    out: GlobalPtr<'k, E4M3>,
) {
    let (groups, chunks) = (cols / KEYS, head_dim_v / CHUNK);
    k.for_divergent(k.thread_idx(), groups * chunks, THREADS, |i| {
        let (place, column) = (i % groups * KEYS, i / groups * CHUNK);
        let first = tile * cols + place / 16 * 16 + place % 16 / 2;
        let rows = [0, 1, 2, 3].map(|place| {
            let key = first + key_of(place);
            let words: Vec<_> = (0..CHUNK / 4).map(|_| k.var(0u32)).collect();
            k.if_(key.lt(keys).divergent(), || {
                let (there, on_page) = v.key_row(values, key);
                let there = there.offset(column);
                let load = || {
                    for (word, value) in words.iter().zip(there.load_words(CHUNK / 4, Cache::ReadOnly)) {
                        word.set(value.reinterpret::<u32>());
                    }
                };
                match on_page {
                    Some(on_page) => k.if_(on_page.divergent(), load),
                    None => load(),
                }
            });
            words
        });
        for word in 0..CHUNK / 4 {
            let four = [0, 1, 2, 3].map(|key: usize| rows[key][word as usize].get());
            for (byte, keys) in transposed(four).into_iter().enumerate() {
                let column = column + (4 * word + byte as u32);
                let to = out.offset(column * cols + place);
                to.store_words(&[keys.reinterpret()], Cache::Default);
            }
        }
    });
}

/// Four words of four bytes, transposed: byte `j` of word `i` becomes byte `i` of word `j`.
#[track_caller]
fn transposed<'k>([a, b, c, d]: [Val<'k, u32>; 4]) -> [Val<'k, u32>; 4] {
    let ab = [0x5140, 0x7362].map(|s: u32| a.prmt(b, s));
    let cd = [0x5140, 0x7362].map(|s: u32| c.prmt(d, s));
    [0, 1, 2, 3].map(|byte: usize| {
        let selector: u32 = if byte.is_multiple_of(2) { 0x5410 } else { 0x7632 };
        ab[byte / 2].prmt(cd[byte / 2], selector)
    })
}
