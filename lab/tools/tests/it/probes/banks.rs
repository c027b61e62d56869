//! Patterns of accesses to shared memory, with conflicts and without.

use flashcore_ir::fragment::LDMATRIX;
use flashcore_ir::{Cache, Element, GlobalPtr, SharedTile, Swizzle, TileShape, Val};
use flashcore_problem::rng::Rng;
use half::f16;

use super::probe::Probe;

/// Words of the memory that patterns lie in.
const WORDS: u32 = 1024;

/// Every probe of banks.
pub(super) fn all() -> Vec<Probe> {
    let mut probes = Vec::new();
    for (name, shape) in [
        ("plain", TileShape::new(32, 32)),
        ("padded", TileShape::new(32, 32).padded(1)),
        ("padded_16_bytes", TileShape::new(32, 32).padded(4)),
        ("swizzled", TileShape::new(32, 32).swizzled(Swizzle::B128)),
    ] {
        probes.push(floats(name, shape));
    }
    for (name, shape) in [
        ("plain", TileShape::new(32, 64)),
        ("padded", TileShape::new(32, 64).padded(8)),
        ("padded_twice", TileShape::new(32, 64).padded(16)),
        ("swizzled_128", TileShape::new(32, 64).swizzled(Swizzle::B128)),
        ("swizzled_64", TileShape::new(32, 64).swizzled(Swizzle::B64)),
        ("swizzled_32", TileShape::new(32, 64).swizzled(Swizzle::B32)),
        ("narrow", TileShape::new(32, 32).swizzled(Swizzle::B64)),
    ] {
        probes.push(halves(name, shape));
    }
    for bytes in [2, 4, 8, 16] {
        for (name, offsets) in patterns(bytes) {
            probes.push(loads(&name, bytes, &offsets));
            if is_permutation(&offsets) {
                probes.push(stores(&name, bytes, &offsets));
            }
            if is_permutation(&offsets) && bytes > 2 {
                probes.push(copies(&name, bytes, false, &offsets));
            }
            if is_permutation(&offsets) && bytes == 16 {
                probes.push(copies(&name, bytes, true, &offsets));
            }
        }
    }
    // Copies of 16 bytes past L1 are written sector by sector.
    let by = |f: &dyn Fn(u32) -> u32| -> [u32; 32] { std::array::from_fn(|lane| f(lane as u32)) };
    for (name, offsets) in [
        ("pairs_column", by(&|lane| lane / 2 * 16 + lane % 2)),
        ("pairs_swapped", by(&|lane| lane ^ 1)),
        ("sectors_shared", by(&|lane| lane / 8 * 8 + lane % 4 * 2 + lane % 8 / 4)),
        (
            "quarters_shared",
            by(&|lane| lane / 16 * 16 + lane % 8 * 2 + lane / 8 % 2),
        ),
        ("one_further", by(&|lane| lane + 1)),
        ("every_second_pair", by(&|lane| lane / 2 * 4 + lane % 2)),
        ("quarters_swapped", by(&|lane| lane ^ 8)),
    ] {
        probes.push(copies(name, 16, true, &offsets));
        probes.push(copies(name, 16, false, &offsets));
    }
    probes
}

fn is_permutation(offsets: &[u32; 32]) -> bool {
    let different: std::collections::BTreeSet<_> = offsets.iter().collect();
    different.len() == 32
}

/// For each lane, the index of the element (of `bytes` bytes) that it accesses.
fn patterns(bytes: u32) -> Vec<(String, [u32; 32])> {
    let elements = 4 * WORDS / bytes;
    let by = |f: &dyn Fn(u32) -> u32| std::array::from_fn(|lane| f(lane as u32) % elements);
    let mut patterns = [
        ("row", by(&|lane| lane)),
        ("one", by(&|_| 5)),
        ("two_rows", by(&|lane| lane * 2)),
        ("four_rows", by(&|lane| lane * 4)),
        ("column", by(&|lane| lane * (128 / bytes))),
        ("odd_column", by(&|lane| lane * (128 / bytes + 1))),
        ("pairs", by(&|lane| lane / 2)),
        ("fours", by(&|lane| lane / 4)),
        ("eights", by(&|lane| lane / 8)),
        ("pairs_apart", by(&|lane| lane / 4 * 2 + lane % 2)),
        ("fours_apart", by(&|lane| lane % 4)),
        ("eights_apart", by(&|lane| lane % 8)),
        ("halves", by(&|lane| lane % 16)),
        ("backwards", by(&|lane| 31 - lane)),
    ]
    .map(|(name, offsets)| (name.to_string(), offsets))
    .to_vec();
    for seed in 0..4 {
        let mut rng = Rng::stream(seed, u64::from(bytes));
        let offsets = std::array::from_fn(|_| rng.below(elements as usize) as u32);
        patterns.push((format!("random_{seed}"), offsets));
        // Few addresses, so that lanes share some.
        let few = std::array::from_fn(|_| rng.below(if seed % 2 == 0 { 12 } else { 40 }) as u32);
        patterns.push((format!("few_{seed}"), few));
    }
    patterns
}

fn about(what: &str, bytes: u32) -> String {
    format!("a warp {what} {bytes} bytes a lane at places from a table")
}

fn loads(name: &str, bytes: u32, offsets: &[u32; 32]) -> Probe {
    Probe::new(&format!("load_{bytes}_{name}"), &about("loads", bytes), 32, |k| {
        let (table, out) = (k.param_ptr::<u32>("table"), k.param_ptr_mut::<u32>("out"));
        let lane = k.lane();
        let words = k.shared_tile::<u32>("words", TileShape::new(1, WORDS));
        let element = table.offset(lane).load();
        for i in 0..WORDS / 32 {
            words.at(0, lane + 32 * i).store(lane * 3 + i);
        }
        k.sync_warp();
        let values = match bytes {
            2 => {
                let halves = k.shared_tile_reusing::<f16, _>("halves", TileShape::new(1, 2 * WORDS), words);
                vec![halves.at(0, element).load().to_f32().reinterpret()]
            }
            _ => words.at(0, element * (bytes / 4)).load_words(bytes / 4, Cache::Default),
        };
        let sum = values[1..].iter().fold(values[0], |sum, &value| sum + value);
        out.offset(lane).store(sum);
    })
    .input(offsets)
    .output(32)
}

fn stores(name: &str, bytes: u32, offsets: &[u32; 32]) -> Probe {
    let name = format!("store_{bytes}_{name}");
    writes(&name, &about("stores", bytes), |words, _, [lane, element]| {
        let (k, value) = (lane.builder(), lane + element);
        if bytes == 2 {
            let halves = k.shared_tile_reusing::<f16, _>("halves", TileShape::new(1, 2 * WORDS), words);
            halves.at(0, element).store(value.to_f32().to_f16());
        } else {
            let values = vec![value; bytes as usize / 4];
            words.at(0, element * (bytes / 4)).store_words(&values, Cache::Default);
        }
    })
    .input(offsets)
    .output(32)
}

fn copies(name: &str, bytes: u32, past_l1: bool, offsets: &[u32; 32]) -> Probe {
    let kind = if past_l1 { "past_l1" } else { "through_l1" };
    let name = format!("copy_{kind}_{bytes}_{name}");
    let table: Vec<u32> = offsets.iter().copied().cycle().take(128).collect();
    writes(&name, &about("copies", bytes), |words, table, [lane, element]| {
        let k = lane.builder();
        let (to, from) = (words.at(0, element * (bytes / 4)), table.offset(lane * (bytes / 4)));
        if past_l1 {
            k.cp_async(to, from, None);
        } else {
            k.cp_async_with(to, from, bytes, None, Cache::Default);
        }
        k.cp_async_commit();
        k.cp_async_wait(0);
    })
    .input(&table)
    .output(32)
}

/// `write` gets each lane and the element that a table says for it to write; then all words are
/// read.
fn writes(
    name: &str,
    about: &str,
    write: impl for<'k> Fn(SharedTile<'k, u32>, GlobalPtr<'k, u32>, [Val<'k, u32>; 2]),
) -> Probe {
    Probe::new(name, about, 32, |k| {
        let (table, out) = (k.param_ptr::<u32>("table"), k.param_ptr_mut::<u32>("out"));
        let lane = k.lane();
        let words = k.shared_tile::<u32>("words", TileShape::new(1, WORDS));
        let element = table.offset(lane).load();
        for i in 0..WORDS / 32 {
            words.at(0, lane + 32 * i).store(0u32);
        }
        k.sync_warp();
        write(words, table, [lane, element]);
        k.sync_warp();
        let sum = k.var(0u32);
        for i in 0..WORDS / 32 {
            sum.add_assign(words.at(0, lane + 32 * i).load());
        }
        out.offset(lane).store(sum);
    })
}

/// A tile of f32, written by rows and read by columns, in accesses of every width that its rows are
/// aligned to.
fn floats(name: &str, shape: TileShape) -> Probe {
    let about = "32 × 32 f32: rows and columns, one, two and four at a time";
    Probe::new(&format!("floats_{name}"), about, 32, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let tile = k.shared_tile::<f32>("tile", shape);
        let lane = k.lane();
        let sum = k.var(0.0f32);
        let take = |words: Vec<_>| {
            words.into_iter().for_each(|word| sum.add_assign(word));
        };
        for row in 0..32 {
            tile.at(row, lane).store(lane.to_f32());
        }
        k.sync_warp();
        take(tile.at(3, lane).load_words(1, Cache::Default));
        take(tile.at(lane, 3).load_words(1, Cache::Default));
        take(tile.at(lane, lane).load_words(1, Cache::Default));
        if name != "padded" {
            take(tile.at(lane, 20).load_words(2, Cache::Default));
            take(tile.at(lane / 16, lane % 16 * 2).load_words(2, Cache::Default));
            take(tile.at(lane, 4).load_words(4, Cache::Default));
            take(tile.at(lane / 8, lane % 8 * 4).load_words(4, Cache::Default));
            take(tile.at(lane / 4, lane % 4 * 4).load_words(4, Cache::Default));
            k.sync_warp();
            tile.at(lane, 4).store_words(&[sum.get(); 4], Cache::Default);
            tile.at(lane, 8).store_words(&[sum.get(); 2], Cache::Default);
        }
        k.sync_warp();
        tile.at(lane, 1).store(sum.get());
        k.sync_warp();
        out.offset(lane).store(tile.at(0, lane).load());
    })
    .output(32)
}

/// A tile of f16 as attention uses it: rows copied in, matrices loaded and stored, fragments
/// stored.
fn halves(name: &str, shape: TileShape) -> Probe {
    let about = "a tile of f16: copies of rows, ldmatrix, stmatrix, fragments";
    // Matrices are of 8 rows of 16 bytes, which the rows of a warp are.
    debug_assert_eq!((LDMATRIX.rows, LDMATRIX.cols), (8, 8));
    Probe::new(&format!("halves_{name}"), about, 32, |k| {
        let (input, out) = (k.param_ptr::<f16>("input"), k.param_ptr_mut::<u32>("out"));
        let tile = k.shared_tile::<f16>("tile", shape);
        let (lane, sum) = (k.lane(), k.var(0u32));
        let take = |words: Vec<_>| {
            for word in words {
                sum.add_assign(flashcore_ir::Val::<<f16 as Element>::Word>::reinterpret::<u32>(word));
            }
        };
        let a_row = tile.cols() / 8;
        for first in (0..32 * a_row).step_by(32) {
            let chunk = lane + first;
            k.cp_async(tile.at(chunk / a_row, chunk % a_row * 8), input.offset(chunk * 8), None);
        }
        k.cp_async_commit();
        k.cp_async_wait(0);
        k.sync_warp();
        take(k.ldmatrix(tile.at(lane % 8, 8), 1, false));
        take(k.ldmatrix(tile.at(lane % 16, 0), 2, false));
        take(k.ldmatrix(tile.at(lane % 16, lane / 16 * 8), 4, false));
        take(k.ldmatrix(tile.at(lane, 8), 4, true));
        take(tile.at(lane / 4, lane % 4 * 2).load_words(1, Cache::Default));
        take(tile.at(lane, 0).load_words(4, Cache::Default));
        k.sync_warp();
        let word = sum.get().reinterpret();
        k.stmatrix(tile.at(lane % 16, lane / 16 * 8), &[word; 4], false);
        k.sync_warp();
        k.stmatrix(tile.at(lane, 0), &[word; 4], true);
        k.sync_warp();
        k.stmatrix(tile.at(lane % 8, 8), &[word], false);
        k.sync_warp();
        tile.at(lane / 4, lane % 4 * 2).store_words(&[word], Cache::Default);
        k.sync_warp();
        tile.at(lane, 0).store_words(&[word; 4], Cache::Default);
        k.sync_warp();
        tile.at(lane, 16).store_words(&[word; 2], Cache::Default);
        k.sync_warp();
        take(tile.at(lane % 8, lane / 8 * 2).load_words(1, Cache::Default));
        out.offset(lane).store(sum);
    })
    .input(&[0x3c00_3c00; 32 * 32])
    .output(32)
}
