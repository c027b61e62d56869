//! Mistakes in synchronisation, each beside the same kernel without.

use flashcore_ir::{BuildErrors, Cache, KernelBuilder, SharedTile, TileShape};

use super::{Probe, races_hopper};

/// Threads of most of these.
const THREADS: u32 = 128;

/// A kernel with a mistake and without.
pub struct Race {
    /// The mistake's name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// The kind of finding that the simulator gives.
    pub kind: &'static str,
    pub(super) build: fn(&str, &str, bool) -> Result<Probe, BuildErrors>,
}

impl Race {
    /// The kernel with the mistake.
    ///
    /// # Errors
    /// None: it is written to build.
    ///
    /// ```
    /// let race = flashcore_tools::fuzz::probe::races::all().remove(0);
    /// let report = race.racy()?.simulate(0)?;
    /// assert!(report.findings.iter().any(|finding| finding.kind.name() == race.kind));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn racy(&self) -> Result<Probe, BuildErrors> {
        (self.build)(&format!("{}_racy", self.name), self.about, false)
    }

    /// The kernel without it.
    ///
    /// # Errors
    /// None: it is written to build.
    ///
    /// ```
    /// let race = flashcore_tools::fuzz::probe::races::all().remove(0);
    /// assert!(race.clean()?.simulate(0)?.is_clean());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clean(&self) -> Result<Probe, BuildErrors> {
        (self.build)(&format!("{}_clean", self.name), self.about, true)
    }
}

/// Every race.
pub fn all() -> Vec<Race> {
    let race = |name, about, kind, build| Race {
        name,
        about,
        kind,
        build,
    };
    let mut races = vec![
        race(
            "no_barrier",
            "another warp's word is read without a barrier",
            "race",
            no_barrier,
        ),
        race(
            "reused_stage",
            "a loop fills a tile anew while warps still read it",
            "race",
            reused_stage,
        ),
        race(
            "reused_buffer",
            "probabilities take the place of scores that are still read",
            "race",
            reused_buffer,
        ),
        race(
            "same_word",
            "two warps write one word in turn, without a barrier between",
            "race",
            same_word,
        ),
        race(
            "plain_counter",
            "a counter is added to with loads and stores, and atomically",
            "race",
            plain_counter,
        ),
        race(
            "half_barrier",
            "a barrier of two warps is taken for one of four",
            "race",
            half_barrier,
        ),
        race(
            "early_read",
            "a word is read before the named barrier",
            "race",
            early_read,
        ),
        race(
            "copy_not_waited",
            "cp.async: a barrier, but no wait before it",
            "missing-wait",
            copy_not_waited,
        ),
        race(
            "copy_of_others",
            "cp.async: each thread waits for its own copies and reads another's",
            "missing-wait",
            copy_of_others,
        ),
        race(
            "copy_too_new",
            "cp.async: all groups but one are waited for, and the last is read",
            "missing-wait",
            copy_too_new,
        ),
        race(
            "warp_exchange",
            "lanes exchange words through shared memory without a warp barrier",
            "race",
            warp_exchange,
        ),
        race(
            "shuffle_as_fence",
            "a shuffle is taken for a warp barrier",
            "race",
            shuffle_as_fence,
        ),
        race(
            "other_blocks",
            "two blocks write one word of global memory",
            "block-race",
            other_blocks,
        ),
    ];
    races.extend(races_hopper::all());
    races
}

/// A row of words, one a thread.
pub(super) fn row<'k>(k: &'k KernelBuilder, name: &str, words: u32) -> SharedTile<'k, u32> {
    k.shared_tile(name, TileShape::new(1, words))
}

fn no_barrier(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, THREADS, |k| {
        let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", THREADS), k.thread_idx());
        words.at(0, t).store(t);
        if clean {
            k.barrier();
        }
        out.offset(t).store(words.at(0, t ^ 64u32).load());
    })?;
    Ok(probe.output(THREADS))
}

fn reused_stage(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, THREADS, |k| {
        let (input, out) = (k.param_ptr::<u32>("input"), k.param_ptr_mut::<u32>("out"));
        let (words, t) = (row(k, "words", THREADS), k.thread_idx());
        let sum = k.var(0u32);
        k.for_uniform(0u32, 4u32, 1, |round| {
            words.at(0, t).store(input.offset(round * THREADS + t).load());
            k.barrier();
            sum.add_assign(words.at(0, t ^ 64u32).load());
            if clean {
                k.barrier();
            }
        });
        out.offset(t).store(sum);
    })?;
    Ok(probe.input(&[7; 4 * THREADS as usize]).output(THREADS))
}

fn reused_buffer(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, 64, |k| {
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
        if clean {
            k.barrier();
        }
        for col in 0..64 {
            probs.at(t, col).store(sum.get());
        }
        k.barrier();
        out.offset(t).store(probs.at(t, 0).load());
    })?;
    Ok(probe.output(64))
}

fn same_word(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, 64, |k| {
        let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 32), k.thread_idx());
        k.if_(t.lt(32).uniform(), || words.at(0, t & 31u32).store(t));
        if clean {
            k.barrier();
        }
        k.if_(t.ge(32).uniform(), || words.at(0, t & 31u32).store(t));
        k.barrier();
        out.offset(t).store(words.at(0, t & 31u32).load());
    })?;
    Ok(probe.output(64))
}

fn plain_counter(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, 64, |k| {
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
    })?;
    Ok(probe.output(64))
}

fn half_barrier(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, THREADS, |k| {
        let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", THREADS), k.thread_idx());
        words.at(0, t).store(t);
        if clean {
            k.barrier_among(1, THREADS);
        } else {
            // Warps 0 and 1 meet, and so do 2 and 3.
            k.barrier_among(t / 64 + 1, 64);
        }
        out.offset(t).store(words.at(0, t ^ 64u32).load());
    })?;
    Ok(probe.output(THREADS))
}

fn early_read(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, 64, |k| {
        let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 32), k.thread_idx());
        k.if_else(
            t.lt(32).uniform(),
            || {
                words.at(0, t & 31u32).store(t);
                k.barrier_arrive(1, 64);
            },
            || {
                if clean {
                    k.barrier_among(1, 64);
                }
                let value = words.at(0, t & 31u32).load();
                if !clean {
                    k.barrier_among(1, 64);
                }
                out.offset(t).store(value);
            },
        );
    })?;
    Ok(probe.output(64))
}

/// Each thread copies 16 bytes; what it reads is the word of the thread 64 further on.
fn copied(name: &str, about: &str, wait: impl Fn(&KernelBuilder)) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, THREADS, |k| {
        let (input, out) = (k.param_ptr::<u32>("input"), k.param_ptr_mut::<u32>("out"));
        let (words, t) = (row(k, "words", 4 * THREADS), k.thread_idx());
        k.cp_async(words.at(0, t * 4), input.offset(t * 4), None);
        k.cp_async_commit();
        wait(k);
        let sum = words.at(0, (t ^ 64u32) * 4).load_words(4, Cache::Default);
        out.offset(t).store(sum[0] + sum[1] + sum[2] + sum[3]);
    })?;
    Ok(probe.input(&[3; 4 * THREADS as usize]).output(THREADS))
}

fn copy_not_waited(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    copied(name, about, |k| {
        if clean {
            k.cp_async_wait(0);
        }
        k.barrier();
    })
}

fn copy_of_others(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    copied(name, about, |k| {
        k.cp_async_wait(0);
        if clean {
            k.barrier();
        }
    })
}

fn copy_too_new(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, THREADS, |k| {
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
    })?;
    Ok(probe.input(&[3; 8 * THREADS as usize]).output(THREADS))
}

fn warp_exchange(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, 32, |k| {
        let (out, words, lane) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 32), k.lane());
        words.at(0, lane).store(lane * lane);
        if clean {
            k.sync_warp();
        }
        out.offset(lane).store(words.at(0, lane ^ 1u32).load());
    })?;
    Ok(probe.output(32))
}

fn shuffle_as_fence(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let probe = Probe::new(name, about, 32, |k| {
        let (out, words, lane) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 32), k.lane());
        words.at(0, lane).store(lane * lane);
        let largest = lane.max(lane.shfl_bfly(1));
        if clean {
            k.sync_warp();
        }
        out.offset(lane).store(words.at(0, lane ^ 1u32).load() + largest);
    })?;
    Ok(probe.output(32))
}

fn other_blocks(name: &str, about: &str, clean: bool) -> Result<Probe, BuildErrors> {
    let mut probe = Probe::new(name, about, 32, |k| {
        let (out, lane) = (k.param_ptr_mut::<u32>("out"), k.lane());
        let first = if clean { k.block_idx(0) * 32 } else { k.constant(0u32) };
        out.offset(first + lane).store(lane + k.block_idx(0));
    })?
    .output(64);
    probe.launch.grid = [2, 1, 1];
    Ok(probe)
}
