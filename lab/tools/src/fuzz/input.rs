//! What a program starts with: first values of its variables, pools to load more from, words of its
//! own.

use flashcore_ir::{Arg, BufferSpec, Kernel, Launch};
use flashcore_problem::POISON;
use flashcore_problem::rng::Rng;

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

/// Where things are in the input.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    threads: u32,
}

/// The pools, in order.
const POOLS: [File; 5] = [File::U, File::S, File::F, File::H, File::B];

fn words(file: File) -> u32 {
    match file {
        File::W | File::X => 2,
        _ => 1,
    }
}

impl Layout {
    /// Of a program's input.
    pub fn of(program: &Program) -> Layout {
        Layout {
            threads: program.threads * program.blocks,
        }
    }

    /// Word `part` of the first value of a variable, of thread 0.
    pub fn first_word(&self, file: File, index: usize, part: u32) -> u32 {
        let before: u32 = File::ALL
            .into_iter()
            .take_while(|&other| other != file)
            .map(|other| words(other) * other.count() as u32)
            .sum();
        (before + words(file) * index as u32 + part) * self.threads
    }

    fn pool_word(&self, file: File) -> u32 {
        let first_values: u32 = File::ALL
            .into_iter()
            .map(|file| words(file) * file.count() as u32)
            .sum();
        let before = POOLS.iter().take_while(|&&other| other != file).count() as u32;
        // Pools begin at multiples of 16 bytes: threads come in warps.
        first_values * self.threads + before * POOL
    }

    fn words(&self) -> u32 {
        self.pool_word(File::B) + POOL
    }
}

/// The contents of the buffers before the launch, by slot.
pub fn buffers(program: &Program, places: usize) -> Vec<Vec<u8>> {
    let layout = Layout::of(program);
    let mut rng = Rng::stream(program.seed, 1);
    let mut input = Vec::with_capacity(layout.words() as usize);
    for file in File::ALL {
        for _ in 0..words(file) * file.count() as u32 * layout.threads {
            input.push(word(file, &mut rng));
        }
    }
    for file in POOLS {
        input.extend((0..POOL).map(|_| word(file, &mut rng)));
    }
    let own = (layout.threads * SCRATCH) as usize;
    let scratch: Vec<u32> = (0..2 * own).map(|_| word(File::U, &mut rng)).collect();
    let scratch_f: Vec<u32> = (0..own).map(|_| word(File::F, &mut rng)).collect();
    let bytes = |words: &[u32]| bytemuck::cast_slice(words).to_vec();
    vec![
        bytes(&input),
        vec![POISON; 4 * places * layout.threads as usize],
        bytes(&scratch),
        bytes(&scratch_f),
        vec![0; 4 * SUMS as usize],
        vec![POISON; (2 * OUT_ROWS * BOX_COLS) as usize],
    ]
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

/// The launch of a program's kernel, for [`buffers`] with as many places.
pub fn launch(program: &Program, kernel: &Kernel, places: usize) -> Launch {
    let layout = Layout::of(program);
    let own = u64::from(4 * layout.threads * SCRATCH);
    let buffer = |name, bytes, written| BufferSpec {
        name,
        bytes,
        written,
        align: 16,
    };
    let at = |slot: Buffer, byte_offset: u64| Arg::Buffer {
        slot: slot as usize,
        byte_offset,
    };
    let mut args = vec![at(Buffer::Input, 0)];
    args.extend(POOLS.map(|file| at(Buffer::Input, u64::from(4 * layout.pool_word(file)))));
    args.extend([
        at(Buffer::Scratch, 0),
        at(Buffer::Scratch, own),
        at(Buffer::ScratchF, 0),
        at(Buffer::Sums, 0),
        at(Buffer::Out, 0),
    ]);
    let row = u64::from(2 * BOX_COLS);
    let boxes = |name: &str, slot: Buffer, byte_offset: u64, rows: u32| {
        let boxes = kernel.tensor_box(name)?;
        let dims = vec![u64::from(BOX_COLS), u64::from(rows)];
        Some(Arg::TensorMap(boxes.recipe(
            slot as usize,
            byte_offset,
            dims,
            vec![row],
        )))
    };
    let pool = u64::from(4 * layout.pool_word(File::H));
    args.extend(boxes("pool_boxes", Buffer::Input, pool, 2 * POOL / BOX_COLS));
    args.extend(boxes("out_boxes", Buffer::Boxes, 0, OUT_ROWS));
    Launch {
        grid: [program.blocks, 1, 1],
        block: [program.threads, 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: kernel.ledger().total_bytes(),
        buffers: vec![
            buffer("input", u64::from(4 * layout.words()), false),
            buffer("out", 4 * places as u64 * u64::from(layout.threads), true),
            buffer("scratch", 2 * own, true),
            buffer("scratch_f", own, true),
            buffer("sums", u64::from(4 * SUMS), true),
            buffer("boxes", row * u64::from(OUT_ROWS), true),
        ],
        args,
    }
}
