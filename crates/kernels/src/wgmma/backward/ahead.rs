//! Preprocess inside the main kernel, which leaves most of the memory's bandwidth unused.
//!
//! [`preprocess`] prepares the statistics of the first heads alone. Each block of the main kernel prepares those of 128
//! rows of a later head: its last warpgroup loads O and dO before it waits for its first Q tile, and uses them while
//! its first scores are computed. A word for each head counts the blocks that have prepared rows of it. The blocks of
//! that head wait for all of them, which usually have done so long before.
//!
//! CUDA does not promise that blocks start in the order of their numbers, so a block's tile is that of a
//! [ticket](super::scheduler::take_ticket). A block waits only for blocks with smaller tickets, which have started, and
//! for what these do before they wait for any other. So blocks cannot deadlock.

use flashcore_ir::{GlobalPtr, KernelBuilder, Val, Var};
use flashcore_problem::Problem;

use super::kernel::Context;
use super::scheduler::Tile;
use super::{heads_at_once, key_tiles};
use crate::args::Args;
use crate::attention::divisor::ParamDivisor;
use crate::attention::gradients::{Backward, PADDING, declare_array, tile_of};
use crate::attention::preprocess::{self, CHUNK, RowInputs};
use crate::attention::softmax::SixteenBits;
use crate::wgmma::barriers::PREPARED;
use crate::wgmma::{ALIGNMENT, Config};

/// Up to this many keys blocks prepare rows ahead. With more, `preprocess` takes a small part of the time.
const MAX_KEYS: usize = 2048;

/// What a block needs to prepare rows of a later head. Query heads do not share K/V heads.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'k, E> {
    rows: RowInputs<'k, E>,
    /// For each head of all batches: how many blocks have prepared rows of it.
    counts: GlobalPtr<'k, u32>,
    /// How many heads later that head is, and how many `preprocess` prepares.
    heads: Val<'k, u32>,
    /// The number of heads of all batches, and the divisors from a block's ticket to its tile: the tiles of a bundle of
    /// heads, its heads, and the heads of a batch.
    pub(super) all_heads: Val<'k, u32>,
    bundle_tiles: ParamDivisor<'k>,
    bundle_heads: ParamDivisor<'k>,
    batch_heads: ParamDivisor<'k>,
}

/// Whether blocks prepare rows of later heads: if each head has a block for each [`PADDING`] rows, and all bundles have
/// as many heads.
pub(super) fn prepares_ahead(problem: &Problem, config: &Config, width: u32, heads_at_once: u32) -> bool {
    let (rows, keys) = (problem.seq_len_q(), problem.seq_len_kv());
    let (units, blocks) = (rows.div_ceil(PADDING as usize), keys.div_ceil(config.cols as usize));
    let is_plain = !problem.deterministic() && !problem.has_lengths() && problem.group_size() == 1;
    let is_whole = (problem.batch() * problem.num_heads()).is_multiple_of(heads_at_once as usize);
    is_plain && is_whole && width == 64 && units == blocks && keys <= MAX_KEYS
}

/// How many heads later, so that the last block that prepares rows of a head starts a whole wave of blocks before the
/// first block of that head. None if there are not so many heads.
pub(super) fn heads_ahead(tiles: usize, heads_at_once: u32, sms: u32, all_heads: usize) -> Option<u32> {
    let running = (sms as usize).div_ceil(tiles);
    let heads = (heads_at_once as usize + running).next_multiple_of(heads_at_once as usize);
    (heads < all_heads).then_some(heads as u32)
}

/// What a thread of the last warpgroup has loaded: its columns of O and dO of some rows, and the log-sum-exp of one
/// row.
pub(super) struct LoadedRows<'k, E: SixteenBits> {
    words: Vec<[Vec<Var<'k, E::Word>>; 2]>,
    lse: Var<'k, f32>,
    is_last: Val<'k, bool>,
    /// Which columns of its rows the thread has, and its first row.
    lane: Val<'k, u32>,
    first: Val<'k, u32>,
}

impl<'k, E: SixteenBits> LoadedRows<'k, E> {
    fn declare(k: &'k KernelBuilder, context: &Context<'k, '_, E>) -> Option<Self> {
        context.ahead.as_ref()?;
        let lanes = preprocess::row_threads(context.shape);
        let warp = k.warp_idx();
        let thread = k.thread_idx() % 128;
        let word = |_| k.var_unwritten("row");
        let words = |_| (0..CHUNK / E::PER_WORD).map(word).collect();
        Some(LoadedRows {
            // As many passes as lanes share a row, since a warpgroup has a thread for each row.
            words: (0..lanes).map(|_| [(); 2].map(words)).collect(),
            lse: k.var_unwritten("row_lse"),
            is_last: warp.ge(4 * context.partition.warpgroups),
            lane: thread % lanes,
            first: thread / lanes,
        })
    }

    fn row(&self, pass: u32) -> Val<'k, u32> {
        self.first + pass * (PADDING / self.words.len() as u32)
    }

    /// The row whose statistics the thread stores.
    fn own_row(&self) -> Val<'k, u32> {
        self.lane.fma(PADDING / self.words.len() as u32, self.first)
    }
}

impl<'k, E: SixteenBits> Ahead<'k, E> {
    pub(super) fn declare(k: &'k Args<'k, Backward>, levers: Config, width: u32) -> Self {
        Ahead {
            rows: RowInputs::declare(k, "dout_rows", ALIGNMENT),
            counts: declare_array(k, "prepared_blocks", true, |at| at.counts),
            heads: k.number("heads_ahead", |request| request.workspace.first_heads as u32),
            all_heads: k.count("all_heads", |problem| problem.batch() * problem.num_heads()),
            bundle_tiles: k.divisor("bundle_tiles", move |request| {
                let tiles = key_tiles(&request.problem, &levers) as u32;
                Ok(tiles * heads_at_once(&request.problem, width))
            }),
            bundle_heads: k.divisor("bundle_heads", move |request| {
                Ok(heads_at_once(&request.problem, width))
            }),
            batch_heads: k.divisor("batch_heads", |request| Ok(request.problem.num_heads() as u32)),
        }
    }

    /// The head and the tile of a ticket: [`tile_of`], where all bundles have as many heads.
    #[track_caller]
    pub(super) fn tile_of(&self, ticket: Val<'k, u32>, sizes: [Val<'k, u32>; 3]) -> (Val<'k, u32>, Val<'k, u32>) {
        let by_tiles = |number, _| self.bundle_tiles.quotient(number);
        let by_heads = |number, _| self.bundle_heads.quotient(number);
        tile_of(ticket, sizes, false, [&by_tiles, &by_heads])
    }

    /// The batch of a head of all batches, and the head in it.
    #[track_caller]
    pub(super) fn place_of(&self, head: Val<'k, u32>, num_heads: Val<'k, u32>) -> [Val<'k, u32>; 2] {
        let batch = self.batch_heads.quotient(head);
        [batch, head - batch * num_heads]
    }
}

impl<'k, E: SixteenBits> Context<'k, '_, E> {
    /// Calls `body` with the head that this block prepares rows of, if there is one.
    #[track_caller]
    fn if_prepares(&self, tile: &Tile<'k>, body: impl FnOnce(&Ahead<'k, E>, Val<'k, u32>)) {
        let Some(ahead) = &self.ahead else { return };
        let (k, head) = (tile.batch.builder(), tile.batch_kv_head + ahead.heads);
        k.if_(head.lt(ahead.all_heads).uniform(), || body(ahead, head));
    }

    /// Loads O, dO and log-sum-exp in the last warpgroup, before it waits for its first Q tile.
    #[track_caller]
    pub(super) fn load_ahead(&self, k: &'k KernelBuilder, tile: &Tile<'k>) -> Option<LoadedRows<'k, E>> {
        let loaded = LoadedRows::declare(k, self)?;
        self.if_prepares(tile, |ahead, head| {
            k.if_(loaded.is_last.uniform(), || {
                let (first_row, lane) = (tile.index * PADDING, loaded.lane);
                let [batch, head] = ahead.place_of(head, self.params.num_heads);
                let of_head = ahead.rows.of_head(&self.params, batch, head);
                let last = self.params.seq_len_q - 1;
                let has_columns = (lane * CHUNK).lt(self.shape.head_dim_v);
                let column = has_columns.select(lane * CHUNK, 0);
                for (pass, [out, dout]) in loaded.words.iter().enumerate() {
                    let row = (first_row + loaded.row(pass as u32)).min(last);
                    let words = of_head.load(row, column);
                    for (to, words) in [out, dout].into_iter().zip(words) {
                        to.iter().zip(words).for_each(|(to, word)| to.set(word));
                    }
                }
                let row = (first_row + loaded.own_row()).min(last);
                loaded.lse.set(of_head.lse(row));
            });
        });
        Some(loaded)
    }

    /// Computes and stores the statistics of the rows that were loaded: threads have partial sums of several rows, and
    /// then each the sum of one row.
    #[track_caller]
    pub(super) fn store_prepared(&self, k: &'k KernelBuilder, tile: &Tile<'k>, loaded: &Option<LoadedRows<'k, E>>) {
        let Some(loaded) = loaded else { return };
        self.if_prepares(tile, |_, head| {
            k.if_(loaded.is_last.uniform(), || {
                let (first_row, lane) = (tile.index * PADDING, loaded.lane);
                let has_columns = (lane * CHUNK).lt(self.shape.head_dim_v);
                let sum_of = |[out, dout]: &[Vec<Var<'k, E::Word>>; 2]| {
                    let sum = k.var(0.0);
                    for (out, dout) in out.iter().zip(dout) {
                        let (out, dout) = (E::widen(out.get()), E::widen(dout.get()));
                        out.into_iter().zip(dout).for_each(|(o, d)| sum.fma_assign(o, d));
                    }
                    has_columns.select(sum.get(), 0.0)
                };
                let mut sums: Vec<_> = loaded.words.iter().map(sum_of).collect();
                // Pairs of lanes exchange their sums, and each keeps half of the rows.
                while sums.len() > 1 {
                    let (low, high) = sums.split_at(sums.len() / 2);
                    let mask = low.len() as u32;
                    let is_high = (lane & mask).ne(0);
                    let exchanged = |(&low, &high)| {
                        let given: Val<'k, f32> = is_high.select(low, high);
                        is_high.select(high, low) + given.shfl_bfly(mask)
                    };
                    sums = low.iter().zip(high).map(exchanged).collect();
                }
                let row = first_row + loaded.own_row();
                let is_row = row.lt(self.params.seq_len_q);
                let head_row = head * self.statistics.stride;
                let [lse, delta] = self.statistics.places(head_row + row);
                lse.store(is_row.select(preprocess::exponent(loaded.lse.get()), f32::INFINITY));
                delta.store(is_row.select(sums[0], 0.0));
                if let Some(semaphore) = self.semaphore {
                    semaphore.words.offset(head_row + row).store(0u32);
                }
                k.barrier_arrive(PREPARED, 128 + 32);
            });
        });
    }

    /// A producer warp signals that this block has prepared its rows of a later head.
    #[track_caller]
    pub(super) fn signal_prepared(&self, k: &'k KernelBuilder, tile: &Tile<'k>) {
        self.if_prepares(tile, |ahead, head| {
            k.verb("signal_prepared", || {
                k.barrier_among(PREPARED, 128 + 32);
                k.if_(k.elect().divergent(), || ahead.counts.offset(head).add_release(1u32));
            });
        });
    }

    /// Waits until the rows of the tile's head are prepared, in one thread.
    #[track_caller]
    pub(super) fn wait_for_rows(&self, tile: &Tile<'k>) {
        let Some(ahead) = &self.ahead else { return };
        let k = tile.batch.builder();
        let count = ahead.counts.offset(tile.batch_kv_head);
        let wanted = tile.batch_kv_head.ge(ahead.heads).select(tile.tiles_of_head, 0);
        k.verb("wait_for_rows", || {
            k.loop_(|scope| scope.break_if(count.load_acquire().ge(wanted).divergent()));
            // Copies read what threads of other blocks have stored.
            k.fence_proxy_async_global();
        });
    }
}
