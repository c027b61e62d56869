//! Products: `mma.sync` with f32 and f16 accumulators, `wgmma` of fp16 and of e4m3.
//!
//! Each row of A is one 1 among zeros and B holds -1, 0 and 1, so that every accumulator is a small whole number of
//! products and counts them exactly, in f16 and in the 14 bits of fp8 products too. The card's power limit is not
//! felt with such numbers, nor in so short a time: these are rates, not what lasts.

use flashcore_ir::fragment::{AOperand, BOperand, MMA_K16N8_B, MMA_M16K16_A, MMA_M16N8_ACC_F32};
use flashcore_ir::wgmma::{WGMMA_M64N8_ACC, WgmmaElement};
use flashcore_ir::{BuildErrors, Cache, E4M3, GlobalPtr, Kernel, KernelBuilder, SharedTile, Swizzle, TileShape};
use half::f16;

use super::{Content, Micro, Scale, Unit, bytes, held, pattern};

/// Threads a block: eight warps, two warpgroups.
const THREADS: u32 = 256;
/// Chains of `mma.sync` a warp.
const TILES: u32 = 8;
/// Products of each chain in a round.
const STEPS: u32 = 4;

pub(super) fn all(scale: &Scale) -> Result<Vec<Micro>, BuildErrors> {
    Ok(vec![
        mma_f32(scale)?,
        mma_f16(scale)?,
        wgmma::<f16>(scale, "wgmma-f16", "wgmma m64n256, fp16", fp16)?,
        wgmma::<E4M3>(scale, "wgmma-e4m3", "wgmma m64n256, e4m3", e4m3)?,
    ])
}

pub(super) fn a(row: u32, col: u32, cols: u32) -> i32 {
    i32::from(col == column_of(row, cols))
}

/// Where row `row` of A has its 1.
fn column_of(row: u32, cols: u32) -> u32 {
    (5 * row + 1) % cols
}

/// Element of B: -1, 0 or 1.
pub(super) fn b(k: u32, col: u32) -> i32 {
    (pattern((1000 * k + col) as usize) % 3) as i32 - 1
}

/// A lane's words of operands A and B of m16n8k16, lanes after each other.
pub(super) fn mma_operands() -> [(&'static str, u64, Content); 2] {
    let pair = |lo: i32, hi: i32| {
        let half = |x: i32| u32::from(f16::from_f32(x as f32).to_bits());
        half(lo) | half(hi) << 16
    };
    let words_a = (0..32 * 4).map(|i| {
        let at = |e| MMA_M16K16_A.at(i / 4, i % 4, e);
        pair(a(at(0).0, at(0).1, 16), a(at(1).0, at(1).1, 16))
    });
    let words_b = (0..32 * 2).map(|i| {
        let at = |e| MMA_K16N8_B.at(i / 2, i % 2, e);
        pair(b(at(0).0, at(0).1), b(at(1).0, at(1).1))
    });
    [held("a", bytes(words_a)), held("b", bytes(words_b))]
}

pub(super) fn mma_sum(lane: u32) -> i32 {
    let of_reg = |reg| {
        let (row, col) = MMA_M16N8_ACC_F32.at(lane, reg, 0);
        b(column_of(row, 16), col)
    };
    (0..4).map(of_reg).sum()
}

pub(super) fn load_operands(k: &KernelBuilder) -> (AOperand<f16>, BOperand<f16>) {
    let (a, b) = (k.param_ptr::<f16>("a"), k.param_ptr::<f16>("b"));
    let a = a.offset(k.lane() * 8).load_words(4, Cache::Default);
    let b = b.offset(k.lane() * 4).load_words(2, Cache::Default);
    (k.a_operand(&[a[0], a[1], a[2], a[3]]), k.b_operand(&[b[0], b[1]]))
}

fn mma_f32(scale: &Scale) -> Result<Micro, BuildErrors> {
    let kernel = Kernel::build("micro_mma_f32", THREADS, |k| {
        let (a, b) = load_operands(k);
        let out = k.param_ptr_mut::<f32>("out");
        let rounds = k.param::<u32>("rounds");
        let acc = k.acc_unwritten("acc", TILES);
        // Chains differ, or they would be one to the compiler.
        (0..4 * TILES).for_each(|i| acc.var(i).set((i / 4) as f32));
        k.for_uniform(0u32, rounds, 1, |_| {
            for step in 0..STEPS * TILES {
                k.mma(acc, step % TILES, a, b);
            }
        });
        let sum = (1..4 * TILES).fold(acc.var(0).get(), |sum, i| sum + acc.var(i).get());
        out.offset(k.block_idx(0) * THREADS + k.thread_idx()).store(sum);
    })?;
    mma(scale, kernel, ["mma-f32", "mma.sync m16n8k16, f32 sums"], 512)
}

fn mma_f16(scale: &Scale) -> Result<Micro, BuildErrors> {
    let kernel = Kernel::build("micro_mma_f16", THREADS, |k| {
        let (a, b) = load_operands(k);
        let out = k.param_ptr_mut::<f32>("out");
        let rounds = k.param::<u32>("rounds");
        let acc = k.acc_f16("acc", TILES);
        for i in 0..2 * TILES {
            let first = k.constant((i / 2) as f32);
            acc.var(i).set(first.pack_f16(first));
        }
        k.for_uniform(0u32, rounds, 1, |_| {
            for step in 0..STEPS * TILES {
                k.mma(acc, step % TILES, a, b);
            }
        });
        let sum = k.var(0.0f32);
        for i in 0..2 * TILES {
            let (lo, hi) = acc.var(i).get().to_f32s();
            sum.add_assign(lo + hi);
        }
        out.offset(k.block_idx(0) * THREADS + k.thread_idx()).store(sum.get());
    })?;
    // f16 counts to 2,048.
    mma(scale, kernel, ["mma-f16", "mma.sync m16n8k16, f16 sums"], 500)
}

fn mma(scale: &Scale, kernel: Kernel, names: [&'static str; 2], rounds: u32) -> Result<Micro, BuildErrors> {
    const BLOCKS_PER_SM: u32 = 2;
    let (blocks, rounds) = (BLOCKS_PER_SM * scale.sms, scale.rounds(rounds));
    let sums: Vec<i32> = (0..32)
        .map(|lane| {
            let steps = (rounds * STEPS * TILES) as i32;
            4 * (0..TILES as i32).sum::<i32>() + steps * mma_sum(lane)
        })
        .collect();
    // A warp's product of 16 × 8 × 16, counted by thread.
    let work = (STEPS * TILES * 2 * 16 * 8 * 16 / 32, Unit::FlopsPerClock);
    let micro = Micro::of_threads(names, kernel, [blocks, rounds], work).reading(mma_operands());
    Ok(micro.checked(move |index, word| f32::from_bits(word) == sums[index % 32] as f32))
}

/// Rows of A a warpgroup, and columns of B.
const ROWS: u32 = 64;
const COLS: u32 = 256;

/// Two warpgroups with 64 rows each, both operands in shared memory, as many of k as a row of 128 bytes holds.
fn wgmma<E: WgmmaElement>(
    scale: &Scale,
    name: &'static str,
    about: &'static str,
    element: fn(i32) -> Vec<u8>,
) -> Result<Micro, BuildErrors> {
    // One after another before a warpgroup waits; the other one's are under way meanwhile.
    const PRODUCTS: u32 = 2;
    let depth = 128 / E::BYTES;
    let kernel = Kernel::build(format!("micro_{}", name.replace('-', "_")), THREADS, |k| {
        k.min_blocks_per_sm(1);
        let (from_a, from_b) = (k.param_ptr::<E>("a"), k.param_ptr::<E>("b"));
        let out = k.param_ptr_mut::<f32>("out");
        let rounds = k.param::<u32>("rounds");
        let shape = |rows| TileShape::new(rows, depth).swizzled(Swizzle::B128).in_slabs();
        let tile_a = k.shared_tile::<E>("a", shape(2 * ROWS));
        let tile_b = k.shared_tile::<E>("b", shape(COLS));
        fill(k, tile_a, from_a);
        fill(k, tile_b, from_b);
        k.fence_proxy_async();
        k.barrier();
        let warpgroup = (k.thread_idx() / 128).shfl_idx(0u32);
        let (a, b) = (tile_a.k_major().rows(warpgroup * ROWS, ROWS), tile_b.k_major());
        let acc = k.acc("acc", COLS / 8);
        k.for_uniform(0u32, rounds, 1, |_| {
            k.wgmma_fence();
            (0..PRODUCTS).for_each(|_| k.wgmma_ss(acc, a, b, true));
            k.wgmma_commit();
            k.wgmma_wait(0);
        });
        let sum = (1..COLS / 2).fold(acc.var(0).get(), |sum, i| sum + acc.var(i).get());
        out.offset(k.block_idx(0) * THREADS + k.thread_idx()).store(sum);
    })?;
    let (blocks, rounds) = (scale.sms, scale.rounds(240));
    let products = rounds * PRODUCTS;
    let of_thread = |thread: u32| {
        let of_reg = |i: u32| {
            let (row, col) = WGMMA_M64N8_ACC.at(thread % 128, i % 4, 0);
            b(column_of(thread / 128 * ROWS + row, depth), i / 4 * 8 + col)
        };
        (0..COLS / 2).map(of_reg).sum::<i32>() * products as i32
    };
    let sums: Vec<i32> = (0..THREADS).map(of_thread).collect();
    let matrix = |rows: u32, value: &dyn Fn(u32, u32) -> i32| -> Vec<u8> {
        let places = (0..rows).flat_map(|row| (0..depth).map(move |col| (row, col)));
        places.flat_map(|(row, col)| element(value(row, col))).collect()
    };
    let rows_a = matrix(2 * ROWS, &|row, col| a(row, col, depth));
    let rows_b = matrix(COLS, &|col, at| b(at, col));
    // A warpgroup's product, counted by thread.
    let work = (PRODUCTS * 2 * ROWS * COLS * depth / 128, Unit::FlopsPerClock);
    let micro = Micro::of_threads([name, about], kernel, [blocks, rounds], work);
    let micro = micro.reading([held("a", rows_a), held("b", rows_b)]);
    Ok(micro.checked(move |index, word| f32::from_bits(word) == sums[index % THREADS as usize] as f32))
}

/// A tile from a matrix of rows as wide as it, 16 bytes a thread at a time.
fn fill<'k, E: WgmmaElement>(k: &'k KernelBuilder, tile: SharedTile<'k, E>, from: GlobalPtr<'k, E>) {
    let a_row = tile.cols() * E::BYTES / 16;
    let elements = 16 / E::BYTES;
    for i in 0..tile.rows() * a_row / THREADS {
        let piece = k.thread_idx() + i * THREADS;
        let words = from.offset(piece * elements).load_words(4, Cache::Default);
        tile.at(piece / a_row, piece % a_row * elements)
            .store_words(&words, Cache::Default);
    }
}

/// -1, 0 or 1 as e4m3: exponent bias 7, three bits of mantissa.
fn e4m3(x: i32) -> Vec<u8> {
    vec![match x {
        0 => 0,
        x if x > 0 => 0x38,
        _ => 0xb8,
    }]
}

fn fp16(x: i32) -> Vec<u8> {
    f16::from_f32(x as f32).to_le_bytes().to_vec()
}
