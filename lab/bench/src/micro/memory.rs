//! Bytes: from and to device memory, from shared memory.

use flashcore_ir::{BuildErrors, Cache, Kernel, TileShape, Val};

use super::{Content, Micro, Scale, Unit, pattern};

const THREADS: u32 = 256;
/// Accesses of 16 bytes that a thread has under way at a time.
const ACCESSES: u32 = 8;
/// Words that a block reads at a time: 32 KB.
pub(super) const CHUNK_WORDS: u32 = THREADS * ACCESSES * 4;

/// `out = in`, a block a chunk: every byte crosses device memory twice.
pub(super) fn copy(scale: &Scale) -> Result<Micro, BuildErrors> {
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

const SHARED_WORDS: u32 = 4096;
const SHARED_LOADS: u32 = 16;
/// Words of a load.
const WORDS: u32 = 4;
/// Words between two loads, and between two rounds.
const SHARED_STEP: u32 = 128;

/// Sums over shared memory: loads of [`WORDS`] words, which lie next to each other in a warp.
pub(super) fn shared(scale: &Scale) -> Result<Micro, BuildErrors> {
    const BLOCKS_PER_SM: u32 = 4;
    let kernel = Kernel::build("micro_shared_16", THREADS, |k| {
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
        let mine = tile.at(0u32, k.lane() * WORDS);
        k.for_uniform(0u32, rounds, 1, |round| {
            // Another place each round: what does not change would be loaded once.
            let here = mine.offset((round & 15u32) * SHARED_STEP);
            for load in 0..SHARED_LOADS {
                let at = here.plus((load * SHARED_STEP) as i32);
                let words = at.load_words(WORDS, Cache::Default);
                words.iter().for_each(|&word| sum.add_assign(word));
            }
        });
        out.offset(k.block_idx(0) * THREADS + k.thread_idx()).store(sum.get());
    })?;
    let blocks = BLOCKS_PER_SM * scale.sms;
    let rounds = scale.rounds(225);
    let of_lane = |lane: u32| {
        let of_round = |round: u32| {
            let first = lane * WORDS + round % 16 * SHARED_STEP;
            let read = (0..SHARED_LOADS * WORDS).map(|i| first + i / WORDS * SHARED_STEP + i % WORDS);
            read.fold(0u32, |sum, at| sum.wrapping_add(pattern(at as usize)))
        };
        (0..rounds).fold(0u32, |sum, round| sum.wrapping_add(of_round(round)))
    };
    let sums: Vec<u32> = (0..32).map(of_lane).collect();
    let names = ["shared-16", "shared memory, 16 B a lane"];
    let work = (SHARED_LOADS * WORDS * 4, Unit::BytesPerClock);
    let micro = Micro::of_threads(names, kernel, [blocks, rounds], work);
    let micro = micro.reading([("in", u64::from(SHARED_WORDS) * 4, Content::Pattern)]);
    Ok(micro.checked(move |index, word| word == sums[index % 32]))
}
