//! V with the keys along its rows, made by a kernel that runs before the main one: products of 8-bit elements need
//! both operands so, and no copy transposes them. It also gathers K where tensor copies cannot bring it.
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
//!
//! Tensor copies bring at least eight keys of a page at a time, from pages that are a whole number of rows apart. From
//! other caches the kernel copies K, too ([`gathered`]): the keys of the same tiles, with zeros for those on no page,
//! to a contiguous cache `[batch, kv_heads, seq_len_kv, head_dim]` after the tiles of V.

use flashcore_ir::{Cache, E4M3, Element, GlobalPtr, SharedTile, Val, Var};
use flashcore_problem::{DType, KvLengths, Layout, Name, Problem, ProblemBuilder};

use super::maps::check_repeated;
use super::{NAME, Request};
use crate::Refusal;
use crate::args::{Args, Built, Part};
use crate::attention::forward::{Forward, Sharing};
use crate::attention::lengths::{LengthKinds, TensorParam, kinds};
use crate::attention::params::{RowParams, Shape};
use crate::attention::scheduler::WorkItem;
use crate::attention::score_mod::HeadScales;
use crate::attention::tensor_rows::{Flat, MIN_PAGE_ROWS, RowsOf, Sequence, TensorRows, page_rows};
use crate::step::{KernelCache, Step};

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

/// Whether the plans of an e4m3 problem gather K in each call: no tensor copy brings it from a cache whose pages have
/// no multiple of 8 keys, whose pages or sequences are not a whole number of rows apart, that repeats K (a stride of
/// 0), or that has more than 2^30 rows.
///
/// ```
/// use flashcore_kernels::wgmma::gathers_keys;
/// use flashcore_problem::{DType, KvLengths, Problem};
/// let gathers = |page_size| {
///     let pages = KvLengths::Paged { page_size, pages: 9, max_pages: 9 };
///     let problem = Problem::builder().heads(2, 2).seq_len(9).head_dim(64).dtype(DType::E4M3);
///     problem.kv_lengths(pages).build().map(|problem| gathers_keys(&problem))
/// };
/// assert_eq!((gathers(1)?, gathers(16)?, gathers(20)?), (true, false, true));
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn gathers_keys(problem: &Problem) -> bool {
    let is_cache = matches!(problem.kv_lengths(), KvLengths::Cache | KvLengths::Paged { .. });
    let is_copied = || {
        let (layout, remedy) = (problem.k_layout(), "");
        page_rows(NAME, problem, MIN_PAGE_ROWS)?;
        check_repeated("k", layout, remedy)?;
        Flat::new(NAME, "k", layout, remedy)
    };
    problem.dtype() == DType::E4M3 && is_cache && is_copied().is_err()
}

/// The problem that the schedule, the main kernel and `combine` compute where K is gathered: over a contiguous cache.
/// `None` where it is not.
pub(super) fn gathered(problem: &Problem) -> Result<Option<Problem>, Refusal> {
    if !gathers_keys(problem) {
        return Ok(None);
    }
    let (batch, keys, heads) = (problem.batch(), problem.seq_len_kv(), problem.num_kv_heads());
    // Of V only the shape counts.
    let [k, v] = [problem.head_dim(), problem.head_dim_v()].map(|head_dim| {
        let row = row_bytes(head_dim) as i64;
        let head = keys as i64 * row;
        Layout {
            shape: [batch, keys, heads, head_dim],
            strides: [heads as i64 * head, row, head, 1],
        }
    });
    let cache = ProblemBuilder::from(problem).kv_lengths(KvLengths::Cache);
    let cache = cache.layouts(*problem.q_layout(), k, v, *problem.o_layout()).build();
    let remedy = "lower batch or seq_len_kv, or use pages of a multiple of 8 keys";
    let refused = |error| {
        let what = format!("a cache whose keys it must gather: {error}");
        Refusal::unsupported(NAME, what, remedy)
    };
    let cache = cache.map_err(refused)?;
    Flat::new(NAME, "gathered_k", &k, remedy)?;
    Ok(Some(cache))
}

/// Bytes from one gathered row of K to the next: tensor maps ask for multiples of 16.
fn row_bytes(head_dim: usize) -> usize {
    head_dim.next_multiple_of(CHUNK as usize)
}

/// The transposed values in the workspace, and the gathered keys after them.
#[derive(Clone, Copy)]
pub(super) struct Transposed {
    cols: u64,
    head_dim_v: u64,
    /// Tiles of keys of a head.
    tiles: u64,
    heads: u64,
    /// Bytes of the workspace before them.
    offset: u64,
    /// Columns of K where it is gathered, and the bytes that it takes.
    keys: Option<(u32, u64)>,
}

impl Transposed {
    /// The transposed V of a problem, after its schedule, which takes so many bytes; then K if it is [`gathered`].
    pub(super) fn new(problem: &Problem, gathered: Option<&Problem>, cols: u32, schedule: u64) -> Transposed {
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
            offset: schedule.next_multiple_of(u64::from(ALIGN)),
            keys: gathered.map(|problem| (problem.head_dim() as u32, problem.k_layout().span() as u64)),
        }
    }

    /// Bytes of the workspace before the gathered keys.
    fn end(&self) -> u64 {
        self.offset + self.cols * self.head_dim_v * self.tiles * self.heads
    }

    /// A part of the workspace.
    fn part(&self, offset: u64) -> Part {
        let bytes = self.end() + self.keys.map_or(0, |(_, bytes)| bytes);
        let align = ALIGN;
        Part { bytes, offset, align }
    }

    /// Where gathered keys are.
    pub(super) fn gathered_keys(&self) -> Option<Part> {
        self.keys.map(|_| self.part(self.end()))
    }

    /// Declares the tensor map of the values for the main kernel: its dimensions are (keys of a tile, head_dim, tiles,
    /// heads). Boxes have `rows` columns of V as rows.
    pub(super) fn declare<'k, E: Element>(
        k: &'k Args<'k, Request>,
        tile: SharedTile<'_, E>,
        rows: u32,
    ) -> TensorRows<'k> {
        let of = RowsOf::Transposed;
        let boxes = of.boxes(tile, rows);
        let map = k.tensor_map(Name::V.as_str(), false, boxes, move |launch, request| {
            let values = &request.more.values;
            let part = values.part(values.offset);
            let tile = values.cols * values.head_dim_v;
            let sizes = vec![values.cols, values.head_dim_v, values.tiles, values.heads];
            let byte_strides = vec![values.cols, tile, tile * values.tiles];
            Ok(boxes.recipe(part.push(launch, false), part.offset, sizes, byte_strides))
        });
        TensorRows::new(map, rows, of, None)
    }

    /// The step that makes them, of the problem as it is given, before a main kernel of this shape.
    pub(super) fn step(&self, problem: &Problem, main: &Shape, kernels: &KernelCache) -> Result<Step, Refusal> {
        let shape = Shape {
            head_dim: self.keys.map_or(0, |(head_dim, _)| head_dim),
            head_dim_v: main.head_dim_v,
            overlaps: main.overlaps,
            ..Shape::of_lengths(kinds(problem))
        };
        let kernel = kernels.get_or_build(self.cols as u32, shape, |cols, shape| {
            let (lengths, overlaps) = (shape.lengths_name(), shape.overlaps_name());
            let keys = match shape.head_dim {
                0 => String::new(),
                head_dim => format!("_gather_k{head_dim}"),
            };
            let name = format!("transpose_v_n{cols}_d{}{keys}{lengths}{overlaps}", shape.head_dim_v);
            Built::build(name, THREADS, |k| body(k, cols, shape))
        })?;
        let (batch, kv_heads) = (problem.batch(), problem.num_kv_heads());
        let blocks = if problem.has_lengths() {
            (problem.seq_len_kv().div_ceil(self.cols as usize)).min((MAX_BLOCKS / (batch * kv_heads)).max(1))
        } else {
            self.tiles as usize
        };
        let across = if self.keys.is_some() { 2 * blocks } else { blocks };
        let request = Forward {
            problem: problem.clone(),
            sharing: Sharing::Alone,
            more: *self,
        };
        kernel.step([across as u32, kv_heads as u32, batch as u32], &request)
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
    match sequence.first.k {
        Some(first) => [zero, first / cols + item.batch() + block, item.kv_head()],
        None => [zero, block, scales.head(item.batch(), item.kv_head())],
    }
}

/// A block transposes tiles of a head and sequence: one, or with lengths every `grid_dim`th of those that rows see.
/// Where K is gathered, every second block copies the tiles of K that the one before it transposes of V.
fn body<'k>(k: &'k Args<'k, Forward<Transposed>>, cols: u32, shape: &Shape) {
    let v = k.reads::<E4M3>(Name::V, CHUNK);
    let out = k.part::<E4M3>("workspace", true, |request| Ok(request.more.part(request.more.offset)));
    let tile_size = cols * shape.head_dim_v;
    if shape.lengths == LengthKinds::default() {
        let keys = k.count("seq_len_kv", Problem::seq_len_kv);
        let (tile, head, batch) = (k.block_idx(0), k.block_idx(1), k.block_idx(2));
        let values = v.head(batch, head);
        let number = batch.fma(k.grid_dim(1), head).fma(k.grid_dim(0), tile);
        let out = out.offset_strided(number, tile_size);
        return transpose_tile([cols, shape.head_dim_v], (&v, values), [tile, keys], out);
    }
    let gathers = shape.head_dim > 0;
    let keys_to = gathers.then(|| {
        let keys = k.reads::<E4M3>(Name::K, CHUNK);
        let to = k.part::<E4M3>("gathered_k", true, |request| Ok(request.more.part(request.more.end())));
        (keys, to)
    });
    let params = RowParams::declare(k, shape);
    let tiles = k.number("tiles", |request| request.more.tiles as u32);
    shape.begin_next_launch(k);
    shape.wait_for_launch_before(k);
    let (head, batch) = (k.block_idx(1), k.block_idx(2));
    let most_keys = params.seq_len_kv;
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
    let gather = keys_to.map(|(from, to)| {
        let from = from.of_keys(&params, batch, None);
        let first_row = batch.fma(k.grid_dim(1), head) * most_keys;
        let to = to.offset_strided(first_row, row_bytes(shape.head_dim as usize) as u32);
        (from, from.head(batch, head), to)
    });
    // Where K is gathered, two blocks have the same tiles.
    let halved = |blocks: Val<'k, u32>| if gathers { blocks >> 1u32 } else { blocks };
    let tile = k.var(before / cols + halved(k.block_idx(0)));
    k.loop_(|scope| {
        scope.break_if((tile * cols).ge(end).uniform());
        let transpose = || {
            let out = out.offset_strided(first_of_all + tile, tile_size);
            transpose_tile([cols, shape.head_dim_v], (&v, values), [tile.get(), keys], out);
        };
        match &gather {
            None => transpose(),
            Some((from, head, to)) => {
                let copy = || copy_tile([cols, shape.head_dim], (from, *head), [tile.get(), keys], *to);
                k.if_else((k.block_idx(0) & 1u32).eq(0).uniform(), transpose, copy);
            }
        }
        tile.add_assign(halved(k.grid_dim(0)));
    });
    // The next launch, which may have begun, reads them by tensor copies.
    k.fence_proxy_async_global();
}

/// A tensor, and where one of its heads begins.
type Head<'t, 'k> = (&'t TensorParam<'k, E4M3>, GlobalPtr<'k, E4M3>);

/// A thread transposes four keys by 16 columns at a time. `size`: keys of a tile, and columns.
#[track_caller]
fn transpose_tile<'k>(size: [u32; 2], v: Head<'_, 'k>, [tile, keys]: [Val<'k, u32>; 2], out: GlobalPtr<'k, E4M3>) {
    let ([cols, head_dim_v], k) = (size, tile.builder());
    let (groups, chunks) = (cols / KEYS, head_dim_v / CHUNK);
    k.for_divergent(k.thread_idx(), groups * chunks, THREADS, |i| {
        let (place, column) = (i % groups * KEYS, i / groups * CHUNK);
        let first = tile * cols + place / 16 * 16 + place % 16 / 2;
        let rows = load_rows(v, |place| first + key_of(place), keys, column, CHUNK);
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

/// A thread copies `KEYS` rows of a tile at a time, 16 columns of each, or 8 where a row has no whole number of 16.
#[track_caller]
fn copy_tile<'k>(size: [u32; 2], from: Head<'_, 'k>, [tile, end]: [Val<'k, u32>; 2], to: GlobalPtr<'k, E4M3>) {
    let ([cols, head_dim], k) = (size, tile.builder());
    let is_whole = head_dim.is_multiple_of(CHUNK);
    let chunk = if is_whole { CHUNK } else { CHUNK / 2 };
    let (groups, chunks) = (cols / KEYS, head_dim / chunk);
    k.for_divergent(k.thread_idx(), groups * chunks, THREADS, |i| {
        let (first, column) = (tile * cols + i / chunks, i % chunks * chunk);
        let key_at = |n: u32| first + n * groups;
        let rows = load_rows(from, key_at, end, column, chunk);
        for (n, words) in (0..KEYS).zip(rows) {
            let key = key_at(n);
            let words: Vec<_> = words.into_iter().map(|word| word.get().reinterpret()).collect();
            let row = to.offset_strided(key, row_bytes(head_dim as usize) as u32);
            let to = row.offset(column);
            k.if_(key.lt(end).divergent(), || to.store_words(&words, Cache::Default));
        }
    });
}

/// `bytes` columns of four keys, as words: zeros for keys from `keys` on, and for those on no page.
#[track_caller]
fn load_rows<'k>(
    (tensor, head): Head<'_, 'k>,
    key_at: impl Fn(u32) -> Val<'k, u32>,
    keys: Val<'k, u32>,
    column: Val<'k, u32>,
    bytes: u32,
) -> [Vec<Var<'k, u32>>; KEYS as usize] {
    let k = keys.builder();
    [0, 1, 2, 3].map(|n| {
        let key = key_at(n);
        let words: Vec<_> = (0..bytes / 4).map(|_| k.var(0u32)).collect();
        k.if_(key.lt(keys).divergent(), || {
            let (there, on_page) = tensor.key_row(head, key);
            let there = there.offset(column);
            let load = || {
                for (word, value) in words.iter().zip(there.load_words(bytes / 4, Cache::ReadOnly)) {
                    word.set(value.reinterpret::<u32>());
                }
            };
            match on_page {
                Some(on_page) => k.if_(on_page.divergent(), load),
                None => load(),
            }
        });
        words
    })
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
