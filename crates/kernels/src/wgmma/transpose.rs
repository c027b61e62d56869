//! V with the keys along its rows, made by a kernel that runs before the main one: products of 8-bit elements need
//! both operands so, and no copy transposes them.
//!
//! For each head and tile of keys the workspace holds `[head_dim_v, cols]`, in the order of [`key_of`], with zeros for
//! keys that there are not.

use flashcore_ir::{Arg, Cache, E4M3, Kernel, KernelBuilder, Launch, Val};
use flashcore_problem::Problem;

use crate::Refusal;
use crate::attention::lengths::TensorParam;
use crate::attention::params::{Shape, add_buffer, add_tensor};
use crate::family::padded;
use crate::step::{Identity, KernelCache, Step};

const THREADS: u32 = 128;

/// Bytes that a thread reads of a row at a time.
const CHUNK: u32 = 16;

/// Keys that a thread takes together, neighbours in the new order.
const KEYS: u32 = 4;

/// Where the workspace begins: tensor maps ask for 16, copies are quickest from 128.
pub(super) const ALIGN: u32 = 128;

/// The key at a place of a tile: within 16, places 4q to 4q + 3 hold keys 2q, 2q + 1, 2q + 8 and 2q + 9, as lane q of a
/// quad holds them in accumulators.
pub(super) const fn key_of(place: u32) -> u32 {
    let (quad, e) = (place % 16 / KEYS, place % KEYS);
    place / 16 * 16 + 2 * quad + e % 2 + 8 * (e / 2)
}

#[derive(Clone, Copy)]
pub(super) struct Transposed {
    pub(super) cols: u64,
    pub(super) head_dim_v: u64,
    /// Tiles of keys of a head.
    pub(super) tiles: u64,
    pub(super) heads: u64,
}

impl Transposed {
    pub(super) fn new(problem: &Problem, cols: u32) -> Transposed {
        Transposed {
            cols: u64::from(cols),
            head_dim_v: problem.head_dim_v() as u64,
            tiles: problem.seq_len_kv().div_ceil(cols as usize) as u64,
            heads: (problem.batch() * problem.num_kv_heads()) as u64,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.cols * self.head_dim_v * self.tiles * self.heads) as usize
    }
}

pub(super) fn step(problem: &Problem, cols: u32, kernels: &KernelCache) -> Result<Step, Refusal> {
    let (family, levers) = ("transpose_v", padded([cols]));
    let shape = Shape::new(problem, CHUNK, None);
    let kernel = kernels.get_or_build(Identity { family, levers, shape }, |&[cols, ..], shape| {
        let name = format!("transpose_v_n{cols}_d{}", shape.head_dim_v);
        Kernel::build(name, THREADS, |k| body(k, cols, shape.head_dim_v))
    })?;
    let to = Transposed::new(problem, cols);
    let grid = [to.tiles as u32, problem.num_kv_heads() as u32, problem.batch() as u32];
    let mut launch = Launch::of(&kernel, grid);
    add_tensor(&mut launch, problem, CHUNK, "v", problem.v_layout());
    add_buffer(&mut launch, "workspace", to.bytes(), ALIGN, true);
    launch.args.push(Arg::U32(problem.seq_len_kv() as u32));
    Ok(Step { kernel, launch })
}

/// A block transposes a tile: a thread four keys by 16 columns at a time.
fn body(k: &KernelBuilder, cols: u32, head_dim_v: u32) {
    let v = TensorParam::<E4M3>::declare(k, "v", k.param_ptr("v"));
    let out = k.param_ptr_mut::<E4M3>("workspace");
    let keys = k.param::<u32>("seq_len_kv");
    let (tile, head, batch) = (k.block_idx(0), k.block_idx(1), k.block_idx(2));
    let values = v.head(batch, head);
    let number = batch.fma(k.grid_dim(1), head).fma(k.grid_dim(0), tile);
    let out = out.offset_strided(number, cols * head_dim_v);
    let (groups, chunks) = (cols / KEYS, head_dim_v / CHUNK);
    k.for_divergent(k.thread_idx(), groups * chunks, THREADS, |i| {
        let (place, column) = (i % groups * KEYS, i / groups * CHUNK);
        let first = tile * cols + place / 16 * 16 + place % 16 / 2;
        let rows = [0, 1, 2, 3].map(|place| {
            let key = first + key_of(place);
            let words: Vec<_> = (0..CHUNK / 4).map(|_| k.var(0u32)).collect();
            k.if_(key.lt(keys).divergent(), || {
                let there = v.row(values, key).offset(column);
                for (word, value) in words.iter().zip(there.load_words(CHUNK / 4, Cache::ReadOnly)) {
                    word.set(value.reinterpret::<u32>());
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
