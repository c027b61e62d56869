//! What a program starts with.

use flashcore_ir::Kernel;
use flashcore_problem::POISON;
use flashcore_problem::rng::Rng;
use flashcore_sim::Case;

use crate::fuzz::program::{File, Program};

/// Words of each pool.
pub const POOL: u32 = 256;
/// Words of scratch memory that each thread has of each type.
pub const SCRATCH: u32 = 8;
/// Counters common to all threads, a quarter for each kind of reduction.
pub const SUMS: u32 = 32;

/// Rows of a box that is copied.
pub const BOX_ROWS: u32 = 8;
/// Columns of a box and of the tensors that boxes are parts of: pool and place for boxes as rows of
/// halves.
pub const BOX_COLS: u32 = 32;
/// Rows of the tensor that boxes are stored to: a second block's box is cut off.
const OUT_ROWS: u32 = BOX_ROWS + 5;

/// The buffers, by slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// First values, then pools.
    Input,
    /// Answers.
    Out,
    /// Words that each thread has for itself: u32, i32.
    Scratch,
    /// The same, f32.
    ScratchF,
    /// Common counters.
    Sums,
    /// What tensor copies store.
    Boxes,
}

/// The pools, in order.
const POOLS: [File; 5] = [File::U, File::S, File::F, File::H, File::B];

/// Words of the first values of a type, of one thread.
fn words(file: File) -> u32 {
    file.words() * file.count() as u32
}

/// Word `part` of the first value of a variable, of thread 0.
pub fn first_word(program: &Program, file: File, index: usize, part: u32) -> u32 {
    let before = File::ALL.into_iter().take_while(|&other| other != file);
    (before.map(words).sum::<u32>() + file.words() * index as u32 + part) * program.all_threads()
}

/// A program's kernel with its launch and buffers; the kernel writes words to `places` places.
pub fn case(program: &Program, kernel: Kernel, places: usize) -> Case {
    let threads = program.all_threads();
    let mut rng = Rng::stream(program.seed, 1);
    let mut random = |file: File, count: u32| -> Vec<u32> { (0..count).map(|_| word(file, &mut rng)).collect() };
    let mut input = File::ALL.map(|file| random(file, words(file) * threads)).concat();
    // Pools begin at multiples of 16 bytes: threads come in warps.
    let pools = POOLS.map(|file| {
        let at = 4 * input.len() as u64;
        input.extend(random(file, POOL));
        at
    });
    let own = threads * SCRATCH;
    let (scratch, scratch_f) = (random(File::U, 2 * own), random(File::F, own));

    let mut case = Case::new(kernel);
    case.launch.grid = [program.blocks, 1, 1];
    let bytes = |words: &[u32]| bytemuck::cast_slice(words).to_vec();
    case.buffer("input", bytes(&input), false);
    case.buffer("out", vec![POISON; 4 * places * threads as usize], true);
    case.buffer("scratch", bytes(&scratch), true);
    case.buffer("scratch_f", bytes(&scratch_f), true);
    case.buffer("sums", vec![0; 4 * SUMS as usize], true);
    case.buffer("boxes", vec![POISON; (2 * OUT_ROWS * BOX_COLS) as usize], true);
    case.address(Buffer::Input as usize, 0);
    for pool in pools {
        case.address(Buffer::Input as usize, pool);
    }
    case.address(Buffer::Scratch as usize, 0);
    case.address(Buffer::Scratch as usize, u64::from(4 * own));
    for buffer in [Buffer::ScratchF, Buffer::Sums, Buffer::Out] {
        case.address(buffer as usize, 0);
    }
    let [_, _, _, halves, _] = pools;
    case.matrix(
        "pool_boxes",
        Buffer::Input as usize,
        halves,
        [2 * POOL / BOX_COLS, BOX_COLS],
    );
    case.matrix("out_boxes", Buffer::Boxes as usize, 0, [OUT_ROWS, BOX_COLS]);
    case
}

/// A random word as a value of a type: ordinary ones, and those at the edges.
fn word(file: File, rng: &mut Rng) -> u32 {
    let bits = rng.next_u64();
    let (bits, choice) = (bits as u32, bits >> 32);
    match file {
        File::F => match choice % 16 {
            0 => F32_EDGES[bits as usize % F32_EDGES.len()],
            1 => bits & 0x807f_ffff, // subnormal
            2 => bits & 0x7fff_ffff | 0x4000_0000,
            3 => ((bits % 33) as f32 - 16.0).to_bits(),
            // Any sign and fraction, exponents that products and sums stay finite with for a while.
            _ => bits & 0x807f_ffff | (100 + (choice as u32 >> 8) % 54) << 23,
        },
        File::H => half_word(bits, choice, &F16_EDGES, 0xbfff),
        File::B => half_word(bits, choice, &BF16_EDGES, 0xbfff),
        _ => match choice % 8 {
            0 => INT_EDGES[bits as usize % INT_EDGES.len()],
            1 | 2 => bits % 64,
            3 => (bits % 64).wrapping_neg(),
            _ => bits,
        },
    }
}

fn half_word(bits: u32, choice: u64, edges: &[u16], mask: u32) -> u32 {
    let edge = |n: u32| u32::from(edges[n as usize % edges.len()]);
    match choice % 8 {
        0 => edge(bits) | edge(bits >> 16) << 16,
        1 => edge(bits) | bits & 0xffff_0000 & mask << 16,
        // Below 2 in magnitude.
        _ => bits & (mask | mask << 16),
    }
}

const INT_EDGES: [u32; 10] = [0, 1, 2, 31, 32, u32::MAX, 0x8000_0000, 0x7fff_ffff, 0xffff, 0x0001_0000];

/// ±0, ±∞, NaN, the largest, the smallest, the smallest subnormal, halfway between f16 and bf16
/// numbers, the largest e4m3 and past it, bounds of integers.
#[rustfmt::skip]
const F32_EDGES: [u32; 18] = [
    0x0000_0000, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fff_ffff, 0x7f7f_ffff, 0x0080_0000, 0x0000_0001,
    0x3f80_1000, 0x3f80_3000, 0x3f80_8000, 0x3f81_8000, 0x477f_e000, 0x477f_f000, 0x43e0_0000, 0x43e8_0001,
    0x4f00_0000, 0xcf00_0001,
];
const F16_EDGES: [u16; 12] = [
    0x0000, 0x8000, 0x7c00, 0xfc00, 0x7fff, 0x7bff, 0xfbff, 0x0400, 0x0001, 0x83ff, 0x3c00, 0xbc00,
];
const BF16_EDGES: [u16; 12] = [
    0x0000, 0x8000, 0x7f80, 0xff80, 0x7fff, 0x7f7f, 0xff7f, 0x0080, 0x0001, 0x807f, 0x3f80, 0xbf80,
];
