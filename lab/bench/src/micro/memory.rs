//! Bytes: from and to device memory, from L2, from shared memory with and without bank conflicts.

use flashcore_ir::{Arg, BuildErrors, Cache, Kernel, TileShape, Val, Var};

use super::{Content, Micro, Scale, Unit, pattern};

const THREADS: u32 = 256;
/// Accesses of 16 bytes that a thread has under way at a time.
const ACCESSES: u32 = 8;
/// Words that a block reads at a time: 32 KB.
pub(super) const CHUNK_WORDS: u32 = THREADS * ACCESSES * 4;

pub(super) fn all(scale: &Scale) -> Result<Vec<Micro>, BuildErrors> {
    let mut all = vec![copy(scale)?, l2(scale)?];
    for (names, words_and_stride) in [
        (["shared-16", "shared memory, 16 B a lane"], [4, 4]),
        (["shared-4", "shared memory, 4 B a lane"], [1, 1]),
        (["shared-4-2way", "the same, two lanes a bank"], [1, 2]),
        (["shared-4-4way", "the same, four lanes a bank"], [1, 4]),
    ] {
        all.push(shared(scale, names, words_and_stride)?);
    }
    Ok(all)
}

/// `out = in`, a block a chunk: every byte crosses device memory twice.
fn copy(scale: &Scale) -> Result<Micro, BuildErrors> {
    let kernel = Kernel::build("micro_copy", THREADS, |k| {
        let (from, to) = (k.param_ptr::<u32>("in"), k.param_ptr_mut::<u32>("out"));
        let first = k.block_idx(0) * CHUNK_WORDS + k.thread_idx() * 4;
        let (from, to) = (from.offset(first), to.offset(first));
        let at = |i: u32| (i * THREADS * 4) as i32;
        let load = |i| from.plus(at(i)).load_words(4, Cache::Streaming);
        let words: Vec<Vec<Val<'_, u32>>> = (0..ACCESSES).map(load).collect();
        for (i, words) in words.iter().enumerate() {
            to.plus(at(i as u32)).store_words(words, Cache::Streaming);
        }
    })?;
    let blocks = (scale.copy_bytes / 4 / u64::from(CHUNK_WORDS)) as u32;
    let work = (2.0 * scale.copy_bytes as f64, Unit::GigabytesPerSecond);
    let mut micro = Micro::new(["copy", "device memory, read and written"], kernel, [blocks, 1], work);
    micro.launch.args.clear();
    let micro = micro.reading([("in", scale.copy_bytes, Content::Pattern)]);
    Ok(micro.writing(scale.copy_bytes, |index, word| word == pattern(index)))
}

fn add_all<'k>(sum: Var<'k, u32>, words: &[Val<'k, u32>]) {
    words.iter().for_each(|&word| sum.add_assign(word));
}

/// Sums over a set that fits into L2, past L1: block `b` reads chunk `b + round · blocks` in each round.
fn l2(scale: &Scale) -> Result<Micro, BuildErrors> {
    const BLOCKS_PER_SM: u32 = 4;
    let kernel = Kernel::build("micro_l2", THREADS, |k| {
        let (from, out) = (k.param_ptr::<u32>("in"), k.param_ptr_mut::<u32>("out"));
        let (last_chunk, rounds) = (k.param::<u32>("last_chunk"), k.param::<u32>("rounds"));
        let (sum, chunk) = (k.var(0u32), k.var(k.block_idx(0)));
        k.for_uniform(0u32, rounds, 1, |_| {
            let first = (chunk.get() & last_chunk) * CHUNK_WORDS + k.thread_idx() * 4;
            let from = from.offset(first);
            let load = |i: u32| from.plus((i * THREADS * 4) as i32).load_words(4, Cache::L2);
            let words: Vec<Vec<Val<'_, u32>>> = (0..ACCESSES).map(load).collect();
            words.iter().for_each(|words| add_all(sum, words));
            chunk.add_assign(k.grid_dim(0));
        });
        out.offset(k.block_idx(0) * THREADS + k.thread_idx()).store(sum.get());
    })?;
    let (blocks, rounds) = (BLOCKS_PER_SM * scale.sms, scale.rounds(64));
    let chunks = (scale.cached_bytes / 4 / u64::from(CHUNK_WORDS)) as usize;
    let of_chunk = move |chunk: usize, thread: usize| {
        let words = (0..ACCESSES as usize * 4).map(|i| i / 4 * (THREADS as usize * 4) + i % 4);
        let first = chunk * CHUNK_WORDS as usize + thread * 4;
        words.fold(0u32, |sum, word| sum.wrapping_add(pattern(first + word)))
    };
    let sums: Vec<u32> = (0..chunks * THREADS as usize)
        .map(|i| of_chunk(i / THREADS as usize, i % THREADS as usize))
        .collect();
    let right = move |index: usize, word: u32| {
        let (block, thread) = (index / THREADS as usize, index % THREADS as usize);
        let chunk = |round: u32| (block + round as usize * blocks as usize) % chunks;
        let sum = (0..rounds).fold(0u32, |sum, round| {
            sum.wrapping_add(sums[chunk(round) * THREADS as usize + thread])
        });
        word == sum
    };
    let work = (ACCESSES * 16, Unit::BytesPerClock);
    let mut micro = Micro::of_threads(["l2", "L2, read past L1"], kernel, [blocks, rounds], work);
    micro.launch.args.insert(0, Arg::U32(chunks as u32 - 1));
    Ok(micro
        .reading([("in", scale.cached_bytes, Content::Pattern)])
        .checked(right))
}

const SHARED_WORDS: u32 = 4096;
const SHARED_LOADS: u32 = 16;
/// Words between two loads, and between two rounds.
const SHARED_STEP: u32 = 128;

/// Sums over shared memory: loads of `words` words, lanes `stride` words apart.
fn shared(scale: &Scale, [name, about]: [&'static str; 2], [words, stride]: [u32; 2]) -> Result<Micro, BuildErrors> {
    const BLOCKS_PER_SM: u32 = 4;
    let kernel = Kernel::build(format!("micro_{}", name.replace('-', "_")), THREADS, |k| {
        let (from, out) = (k.param_ptr::<u32>("in"), k.param_ptr_mut::<u32>("out"));
        let rounds = k.param::<u32>("rounds");
        let tile = k.shared_tile::<u32>("words", TileShape::new(1, SHARED_WORDS));
        for i in 0..SHARED_WORDS / THREADS {
            let i = k.thread_idx() + i * THREADS;
            let word = from.offset(i).load();
            tile.at(0u32, i).store(word);
        }
        k.barrier();
        let sum = k.var(0u32);
        let mine = tile.at(0u32, k.lane() * stride);
        k.for_uniform(0u32, rounds, 1, |round| {
            // Another place each round: what does not change would be loaded once.
            let here = mine.offset((round & 15u32) * SHARED_STEP);
            for load in 0..SHARED_LOADS {
                let at = here.plus((load * SHARED_STEP) as i32);
                add_all(sum, &at.load_words(words, Cache::Default));
            }
        });
        out.offset(k.block_idx(0) * THREADS + k.thread_idx()).store(sum.get());
    })?;
    let blocks = BLOCKS_PER_SM * scale.sms;
    // All take about as long: a pass over the banks is a clock.
    let rounds = scale.rounds(900 / (words * stride).clamp(1, 4));
    let of_lane = |lane: u32| {
        let of_round = |round: u32| {
            let first = lane * stride + round % 16 * SHARED_STEP;
            let read = (0..SHARED_LOADS * words).map(|i| first + i / words * SHARED_STEP + i % words);
            read.fold(0u32, |sum, at| sum.wrapping_add(pattern(at as usize)))
        };
        (0..rounds).fold(0u32, |sum, round| sum.wrapping_add(of_round(round)))
    };
    let sums: Vec<u32> = (0..32).map(of_lane).collect();
    let work = (SHARED_LOADS * words * 4, Unit::BytesPerClock);
    let micro = Micro::of_threads([name, about], kernel, [blocks, rounds], work);
    let micro = micro.reading([("in", u64::from(SHARED_WORDS) * 4, Content::Pattern)]);
    Ok(micro.checked(move |index, word| word == sums[index % 32]))
}
