//! Mistakes in synchronisation, each with the same kernel without the mistake.

use flashcore_ir::{Cache, KernelBuilder, SharedTile, TileShape};

use super::probe::Probe;
use super::races_hopper::{self, SIDE};

const THREADS: u32 = 128;

/// A kernel with a mistake and without.
pub(super) struct Race {
    /// The mistake's name.
    pub(super) name: &'static str,
    /// What it is, in a line.
    pub(super) about: &'static str,
    /// The kind of finding that the simulator gives.
    pub(super) kind: &'static str,
    blocks: u32,
    threads: u32,
    data: &'static [Data],
    /// Writes the kernel; without the mistake where the flag is set.
    body: fn(&KernelBuilder, bool),
}

/// Writes what only one of a race's two kernels has.
pub(super) fn when(has: bool, write: impl FnOnce()) {
    if has {
        write();
    }
}

/// What a parameter points to.
#[derive(Clone, Copy)]
pub(super) enum Data {
    /// The same word as often as the second number says.
    Input(u32, u32),
    /// Words that the kernel writes.
    Output(u32),
    /// A tensor map of 16-bit rows of [`SIDE`]: its name, rows, and whether the kernel writes it.
    Matrix(&'static str, u32, bool),
}

pub(super) use Data::{Input, Matrix, Output};

pub(super) fn race(name: &'static str, kind: &'static str) -> Race {
    Race {
        name,
        about: "",
        kind,
        blocks: 1,
        threads: 0,
        data: &[],
        body: |_, _| {},
    }
}

impl Race {
    /// The kernel with the mistake.
    pub(super) fn racy(&self) -> Probe {
        self.probe("racy", false)
    }

    /// The kernel without it.
    pub(super) fn clean(&self) -> Probe {
        self.probe("clean", true)
    }

    fn probe(&self, suffix: &str, clean: bool) -> Probe {
        let name = format!("{}_{suffix}", self.name);
        let mut probe = Probe::new(&name, self.about, self.threads, |k| (self.body)(k, clean));
        probe.case.launch.grid = [self.blocks, 1, 1];
        self.data.iter().fold(probe, |mut probe, data| match *data {
            Input(word, count) => probe.input(&vec![word; count as usize]),
            Output(words) => probe.output(words),
            Matrix(parameter, rows, written) => {
                let name = if written { "output" } else { "input" };
                let slot = probe.case.buffer(name, vec![0; 2 * (rows * SIDE) as usize], written);
                probe.case.matrix(parameter, slot, 0, [rows, SIDE]);
                probe
            }
        })
    }

    pub(super) fn about(self, about: &'static str) -> Race {
        Race { about, ..self }
    }

    pub(super) fn blocks(self, blocks: u32) -> Race {
        Race { blocks, ..self }
    }

    pub(super) fn kernel(self, threads: u32, data: &'static [Data], body: fn(&KernelBuilder, bool)) -> Race {
        Race {
            threads,
            data,
            body,
            ..self
        }
    }
}

/// A row of words, one a thread.
pub(super) fn row<'k>(k: &'k KernelBuilder, name: &str, words: u32) -> SharedTile<'k, u32> {
    k.shared_tile(name, TileShape::new(1, words))
}

/// The first of two warps stores words and then does `arrive`; the other reads them between `before`
/// and `after`.
pub(super) fn hand_over(k: &KernelBuilder, arrive: impl Fn(), before: impl Fn(), after: impl Fn()) {
    let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 32), k.thread_idx());
    let word = || words.at(0, t & 31u32);
    k.if_else(
        t.lt(32).uniform(),
        || {
            word().store(t);
            arrive();
        },
        || {
            before();
            let value = word().load();
            after();
            out.offset(t).store(value);
        },
    );
}

/// Each thread copies 16 bytes and reads those of the thread 64 further on.
fn copied(k: &KernelBuilder, wait: impl Fn()) {
    let (input, out) = (k.param_ptr::<u32>("input"), k.param_ptr_mut::<u32>("out"));
    let (words, t) = (row(k, "words", 4 * THREADS), k.thread_idx());
    k.cp_async(words.at(0, t * 4), input.offset(t * 4), None);
    k.cp_async_commit();
    wait();
    let sum = words.at(0, (t ^ 64u32) * 4).load_words(4, Cache::Default);
    out.offset(t).store(sum[0] + sum[1] + sum[2] + sum[3]);
}

const COPIED: [Data; 2] = [Input(3, 4 * THREADS), Output(THREADS)];

/// Every race.
pub(super) fn all() -> Vec<Race> {
    let mut races = vec![
        race("no_barrier", "race")
            .about("another warp's word is read without a barrier")
            .kernel(THREADS, &[Output(THREADS)], |k, clean| {
                let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", THREADS), k.thread_idx());
                words.at(0, t).store(t);
                when(clean, || k.barrier());
                out.offset(t).store(words.at(0, t ^ 64u32).load());
            }),
        race("reused_stage", "race")
            .about("a loop fills a tile anew while warps still read it")
            .kernel(THREADS, &[Input(7, 4 * THREADS), Output(THREADS)], |k, clean| {
                let (input, out) = (k.param_ptr::<u32>("input"), k.param_ptr_mut::<u32>("out"));
                let (words, t) = (row(k, "words", THREADS), k.thread_idx());
                let sum = k.var(0u32);
                k.for_uniform(0u32, 4u32, 1, |round| {
                    words.at(0, t).store(input.offset(round * THREADS + t).load());
                    k.barrier();
                    sum.add_assign(words.at(0, t ^ 64u32).load());
                    when(clean, || k.barrier());
                });
                out.offset(t).store(sum);
            }),
        race("reused_buffer", "race")
            .about("probabilities take the place of scores that are still read")
            .kernel(64, &[Output(64)], |k, clean| {
                let out = k.param_ptr_mut::<f32>("out");
                let scores = k.shared_tile::<f32>("scores", TileShape::new(64, 64));
                let probs = k.shared_tile_reusing::<f32, f32>("probs", TileShape::new(64, 64), scores);
                let t = k.thread_idx();
                for col in 0..64 {
                    scores.at(t, col).store((t * 64 + col).to_f32());
                }
                k.barrier();
                let sum = k.var(0.0f32);
                for row in 0..64 {
                    sum.add_assign(scores.at(row, t).load());
                }
                when(clean, || k.barrier());
                for col in 0..64 {
                    probs.at(t, col).store(sum.get());
                }
                k.barrier();
                out.offset(t).store(probs.at(t, 0).load());
            }),
        race("same_word", "race")
            .about("two warps write one word in turn, without a barrier between")
            .kernel(64, &[Output(64)], |k, clean| {
                let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 32), k.thread_idx());
                k.if_(t.lt(32).uniform(), || words.at(0, t & 31u32).store(t));
                when(clean, || k.barrier());
                k.if_(t.ge(32).uniform(), || words.at(0, t & 31u32).store(t));
                k.barrier();
                out.offset(t).store(words.at(0, t & 31u32).load());
            }),
        race("plain_counter", "race")
            .about("a counter is added to with loads and stores, and atomically")
            .kernel(64, &[Output(64)], |k, clean| {
                let (out, count, t) = (k.param_ptr_mut::<u32>("out"), row(k, "count", 1), k.thread_idx());
                k.if_(t.eq(0).divergent(), || count.at(0, 0).store(0u32));
                k.barrier();
                k.if_else(
                    t.lt(32).uniform(),
                    || count.at(0, 0).reduce_add(1u32),
                    || {
                        if clean {
                            count.at(0, 0).reduce_add(2u32);
                        } else {
                            k.if_(t.eq(40).divergent(), || {
                                let old = count.at(0, 0).load();
                                count.at(0, 0).store(old + 2u32);
                            });
                        }
                    },
                );
                k.barrier();
                out.offset(t).store(count.at(0, 0).load());
            }),
        race("half_barrier", "race")
            .about("a barrier of two warps is taken for one of four")
            .kernel(THREADS, &[Output(THREADS)], |k, clean| {
                let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", THREADS), k.thread_idx());
                words.at(0, t).store(t);
                if clean {
                    k.barrier_among(1, THREADS);
                } else {
                    // Warps 0 and 1 meet, and so do 2 and 3.
                    k.barrier_among(t / 64 + 1, 64);
                }
                out.offset(t).store(words.at(0, t ^ 64u32).load());
            }),
        race("early_read", "race")
            .about("a word is read before the named barrier")
            .kernel(64, &[Output(64)], |k, clean| {
                let wait = || k.barrier_among(1, 64);
                hand_over(
                    k,
                    || k.barrier_arrive(1, 64),
                    || when(clean, wait),
                    || when(!clean, wait),
                );
            }),
        race("copy_not_waited", "missing-wait")
            .about("cp.async: a barrier, but no wait before it")
            .kernel(THREADS, &COPIED, |k, clean| {
                copied(k, || {
                    when(clean, || k.cp_async_wait(0));
                    k.barrier();
                })
            }),
        race("copy_of_others", "missing-wait")
            .about("cp.async: each thread waits for its own copies and reads another's")
            .kernel(THREADS, &COPIED, |k, clean| {
                copied(k, || {
                    k.cp_async_wait(0);
                    when(clean, || k.barrier());
                })
            }),
        race("copy_too_new", "missing-wait")
            .about("cp.async: all groups but one are waited for, and the last is read")
            .kernel(THREADS, &[Input(3, 8 * THREADS), Output(THREADS)], |k, clean| {
                let (input, out) = (k.param_ptr::<u32>("input"), k.param_ptr_mut::<u32>("out"));
                let tile = k.shared_tile::<u32>("words", TileShape::new(2, 4 * THREADS));
                let t = k.thread_idx();
                for stage in 0..2 {
                    let from = input.offset(t * 4 + stage * 4 * THREADS);
                    k.cp_async(tile.at(stage, t * 4), from, None);
                    k.cp_async_commit();
                }
                k.cp_async_wait(if clean { 0 } else { 1 });
                k.barrier();
                let read = |stage: u32| tile.at(stage, (t ^ 64u32) * 4).load();
                out.offset(t).store(read(0) + read(1));
            }),
        race("warp_exchange", "race")
            .about("lanes exchange words through shared memory without a warp barrier")
            .kernel(32, &[Output(32)], |k, clean| {
                let (out, words, lane) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 32), k.lane());
                words.at(0, lane).store(lane * lane);
                when(clean, || k.sync_warp());
                out.offset(lane).store(words.at(0, lane ^ 1u32).load());
            }),
        race("shuffle_as_fence", "race")
            .about("a shuffle is taken for a warp barrier")
            .kernel(32, &[Output(32)], |k, clean| {
                let (out, words, lane) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 32), k.lane());
                words.at(0, lane).store(lane * lane);
                let largest = lane.max(lane.shfl_bfly(1));
                when(clean, || k.sync_warp());
                out.offset(lane).store(words.at(0, lane ^ 1u32).load() + largest);
            }),
        race("other_blocks", "block-race")
            .about("two blocks write one word of global memory")
            .blocks(2)
            .kernel(32, &[Output(64)], |k, clean| {
                let (out, lane) = (k.param_ptr_mut::<u32>("out"), k.lane());
                let first = if clean { k.block_idx(0) * 32 } else { k.constant(0u32) };
                out.offset(first + lane).store(lane + k.block_idx(0));
            }),
    ];
    races.extend(races_hopper::all());
    races
}
