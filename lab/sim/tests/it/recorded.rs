//! The simulator computes what a GPU has computed: the text of 400 random programs of the kernel language, Hopper's
//! instructions among them, read as that of any compiler.

use std::io::Read;
use std::path::Path;

use flashcore_ir::{ScalarType, Swizzle, TensorMapRecipe};
use flashcore_problem::POISON;
use flashcore_problem::rng::Rng;
use flashcore_ptx::Module;
use flashcore_sim::{PtxArg, PtxBuffer, PtxKernel, PtxLaunch, SimOptions, TensorSums};
use half::{bf16, f16};
use serde::Deserialize;

/// Words of each pool of values, and of the scratch memory of a thread of each type.
const POOL: usize = 256;
const SCRATCH: usize = 8;
/// Rows and columns of a box, and rows of the tensor that boxes are stored to: a second block's box is cut off.
const BOX: [u32; 2] = [8, 32];
const OUT_ROWS: u32 = BOX[0] + 5;
/// Words that have bounds are recorded of one thread in so many.
const EVERY: usize = 16;

/// A program, and what a GPU has left in its buffers.
#[derive(Clone, Deserialize)]
struct Recorded {
    seed: u64,
    blocks: u32,
    threads: u32,
    shared: u32,
    /// By place of the output, a word of each thread: its [`Bound`].
    places: String,
    /// Whether the rows of boxes are swizzled.
    swizzled: bool,
    /// A digest of the words that must be equal.
    exact: String,
    /// Those of the others that are kept.
    near: Vec<u32>,
    text: String,
}

/// How a word is compared: `u` by its bits; `f`, `h` and `b` as one f32, two f16 or two bf16, of which all NaN are one;
/// `l` within the bound of `lg2.approx`; a number as an f32 that is at most so many others off.
type Bound = char;

/// The buffers, by slot.
const INPUT: usize = 0;
const OUT: usize = 1;
const BUFFERS: [(&str, Bound); 6] = [
    ("input", 'u'),
    ("out", ' '),
    ("scratch", 'u'),
    ("scratch_f", 'f'),
    ("sums", 'u'),
    ("boxes", 'h'),
];

fn recorded() -> Vec<Recorded> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/recorded/h200.jsonl.zst");
    let mut text = String::new();
    let (file, _) = flashcore_ir::files::open_regular(&path).unwrap();
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(file).unwrap();
    decoder.read_to_string(&mut text).unwrap();
    // The first line names the GPU.
    text.lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

impl Recorded {
    fn all_threads(&self) -> usize {
        (self.blocks * self.threads) as usize
    }

    /// The launch, and what its buffers hold before it. The values are those that the GPU was given.
    fn launch(&self, module: &Module) -> (PtxLaunch, Vec<Vec<u8>>) {
        let threads = self.all_threads();
        let mut rng = Rng::stream(self.seed, 1);
        let mut random = |file: char, count: usize| (0..count).map(|_| word(file, &mut rng)).collect::<Vec<u32>>();
        // First values of each type, words of a thread, then pools.
        let firsts = [
            ('u', 6),
            ('s', 4),
            ('w', 6),
            ('x', 6),
            ('f', 6),
            ('h', 4),
            ('b', 4),
            ('p', 3),
        ];
        let mut input: Vec<u32> = firsts
            .into_iter()
            .flat_map(|(file, words)| random(file, words * threads))
            .collect();
        let pools = ['u', 's', 'f', 'h', 'b'].map(|file| {
            let at = 4 * input.len() as u64;
            input.extend(random(file, POOL));
            (file, at)
        });
        let own = threads * SCRATCH;
        let bytes = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        let (scratch, scratch_f) = (random('u', 2 * own), random('f', own));
        let held = vec![
            bytes(input),
            vec![POISON; 4 * self.places.len().max(1) * threads],
            bytes(scratch),
            bytes(scratch_f),
            vec![0; 128],
            vec![POISON; (2 * OUT_ROWS * BOX[1]) as usize],
        ];
        let map = |slot, byte_offset, rows: u32| TensorMapRecipe {
            slot,
            byte_offset,
            element: ScalarType::F16,
            dims: vec![BOX[1].into(), rows.into()],
            byte_strides: vec![u64::from(2 * BOX[1])],
            box_dims: vec![BOX[1], BOX[0]],
            swizzle: if self.swizzled { Swizzle::B64 } else { Swizzle::None },
            ragged: None,
        };
        let pool = |file: char| pools.iter().find(|(known, _)| *known == file).unwrap().1;
        let arg = |name: &str| {
            let (slot, offset, map) = match name.strip_prefix("param_").unwrap() {
                "first" => (INPUT, 0, None),
                "scratch_u" => (2, 0, None),
                "scratch_s" => (2, 4 * own as u64, None),
                "scratch_f" => (3, 0, None),
                "sums" => (4, 0, None),
                "out" => (OUT, 0, None),
                "pool_boxes" => (INPUT, 0, Some(map(INPUT, pool('h'), 2 * POOL as u32 / BOX[1]))),
                "out_boxes" => (5, 0, Some(map(5, 0, OUT_ROWS))),
                pool_of => (INPUT, pool(pool_of.chars().last().unwrap()), None),
            };
            let pointers = if map.is_some() { Vec::new() } else { vec![(0, slot)] };
            let bytes = if map.is_some() {
                vec![0; 128]
            } else {
                offset.to_le_bytes().to_vec()
            };
            PtxArg { bytes, pointers, map }
        };
        let (entry, _) = module.entries().next().unwrap();
        let buffer = |(bytes, (name, _)): (&Vec<u8>, (&str, Bound))| PtxBuffer {
            name: name.to_string(),
            bytes: bytes.len() as u64,
            element: 4,
            written: true,
        };
        let launch = PtxLaunch {
            file: format!("{}.ptx", entry.name),
            grid: [self.blocks, 1, 1],
            block: [self.threads, 1, 1],
            dynamic_shared: self.shared,
            buffers: held.iter().zip(BUFFERS).map(buffer).collect(),
            args: entry.params.iter().map(|param| arg(&param.name)).collect(),
            variables: Vec::new(),
        };
        (launch, held)
    }

    /// The words that the simulator leaves: each with its place, its thread and how it is compared.
    fn simulate(&self, seed: u64) -> Result<Vec<(usize, usize, Bound, u32)>, String> {
        let module = Module::read(&self.text).map_err(|error| error.to_string())?;
        let (launch, mut held) = self.launch(&module);
        let options = SimOptions {
            seed,
            tensor_sums: TensorSums::Hopper,
            ..SimOptions::default()
        };
        let name = &module.declared.entries[0].name;
        let kernel = PtxKernel::read(&module, name, &launch).map_err(|error| error.to_string())?;
        let report = kernel
            .simulate(&mut held, &options)
            .map_err(|error| error.to_string())?;
        if let Some(finding) = report.findings.first() {
            return Err(finding.to_string());
        }
        let (threads, places) = (self.all_threads(), self.places.as_bytes());
        let mut words = Vec::new();
        for (bytes, (_, bound)) in held.iter().zip(BUFFERS).skip(OUT) {
            for (index, bytes) in bytes.as_chunks().0.iter().enumerate() {
                let (place, thread) = match bound {
                    ' ' => (index / threads, index % threads),
                    _ => (index % SCRATCH, index / SCRATCH),
                };
                let bound = if bound == ' ' {
                    places.get(place).copied().map(char::from)
                } else {
                    Some(bound)
                };
                words.extend(bound.map(|bound| (place, thread, bound, u32::from_le_bytes(*bytes))));
            }
        }
        Ok(words)
    }

    /// Compares the simulator with the GPU.
    fn check(&self, seed: u64) -> Result<(), String> {
        let words = self
            .simulate(seed)
            .map_err(|why| format!("seed {}: {why}", self.seed))?;
        let (exact, near): (Vec<_>, Vec<_>) = words.into_iter().partition(|(_, _, bound, _)| "ufhb".contains(*bound));
        let canonical = exact
            .into_iter()
            .flat_map(|(_, _, bound, word)| canonical(bound, word).to_le_bytes());
        if digest(canonical) != self.exact {
            return Err(format!(
                "seed {}: the simulator computes other bits than the GPU",
                self.seed
            ));
        }
        let near = near
            .into_iter()
            .filter(|(place, thread, ..)| thread % EVERY == place % EVERY);
        let near: Vec<(Bound, u32)> = near.map(|(_, _, bound, word)| (bound, word)).collect();
        if near.len() != self.near.len() {
            return Err(format!(
                "seed {}: {} words, {} recorded",
                self.seed,
                near.len(),
                self.near.len()
            ));
        }
        let far = near
            .into_iter()
            .zip(&self.near)
            .find(|((bound, ours), theirs)| !is_near(*bound, *ours, **theirs));
        match far {
            Some(((bound, ours), theirs)) => Err(format!(
                "seed {}: the simulator computes {ours:#010x}, the GPU {theirs:#010x}, beyond the bound {bound}",
                self.seed
            )),
            None => Ok(()),
        }
    }
}

/// A word with every NaN made the same one.
fn canonical(bound: Bound, word: u32) -> u32 {
    let halves = |is_nan: fn(u16) -> bool| {
        let one = |bits: u16| if is_nan(bits) { 0x7fff } else { u32::from(bits) };
        one(word as u16) | one((word >> 16) as u16) << 16
    };
    match bound {
        'f' if f32::from_bits(word).is_nan() => 0x7fff_ffff,
        'h' => halves(|bits| f16::from_bits(bits).is_nan()),
        'b' => halves(|bits| bf16::from_bits(bits).is_nan()),
        _ => word,
    }
}

/// Whether an approximation is within its bound: `ex2` and `rcp` so many numbers apart, all subnormals and zeros being
/// one; `lg2` at most 2^-22 off for results within ±1, and 2^-22 of the result beyond (PTX ISA).
fn is_near(bound: Bound, ours: u32, theirs: u32) -> bool {
    let [a, b] = [ours, theirs].map(f32::from_bits);
    if ours == theirs || a.is_nan() && b.is_nan() || a == b {
        return true;
    }
    match bound.to_digit(10) {
        Some(allowed) => {
            let place = |x: f32| x.abs().to_bits().max(f32::MIN_POSITIVE.to_bits() - 1);
            let is_zero = [a, b].iter().all(|x| x.abs() < f32::MIN_POSITIVE);
            let agrees = is_zero || a.is_sign_negative() == b.is_sign_negative();
            agrees && !a.is_nan() && !b.is_nan() && place(a).abs_diff(place(b)) <= allowed
        }
        None => (f64::from(a) - f64::from(b)).abs() <= 2f64.powi(-22) * f64::from(a.abs()).max(1.0),
    }
}

/// FNV-1a, 64 bits: to notice change, not to withstand an attack.
fn digest(bytes: impl IntoIterator<Item = u8>) -> String {
    let hash = bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

/// A random word as a value of a type: ordinary ones, and those at the edges.
fn word(file: char, rng: &mut Rng) -> u32 {
    const INTEGERS: [u32; 10] = [0, 1, 2, 31, 32, u32::MAX, 0x8000_0000, 0x7fff_ffff, 0xffff, 0x0001_0000];
    #[rustfmt::skip]
    const FLOATS: [u32; 18] = [
        0x0000_0000, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fff_ffff, 0x7f7f_ffff, 0x0080_0000, 0x0000_0001,
        0x3f80_1000, 0x3f80_3000, 0x3f80_8000, 0x3f81_8000, 0x477f_e000, 0x477f_f000, 0x43e0_0000, 0x43e8_0001,
        0x4f00_0000, 0xcf00_0001,
    ];
    #[rustfmt::skip]
    const HALVES: [u16; 12] = [
        0x0000, 0x8000, 0x7c00, 0xfc00, 0x7fff, 0x7bff, 0xfbff, 0x0400, 0x0001, 0x83ff, 0x3c00, 0xbc00,
    ];
    #[rustfmt::skip]
    const BRAINS: [u16; 12] = [
        0x0000, 0x8000, 0x7f80, 0xff80, 0x7fff, 0x7f7f, 0xff7f, 0x0080, 0x0001, 0x807f, 0x3f80, 0xbf80,
    ];
    let bits = rng.next_u64();
    let (bits, choice) = (bits as u32, bits >> 32);
    let halves = |edges: &[u16]| {
        let edge = |n: u32| u32::from(edges[n as usize % edges.len()]);
        match choice % 8 {
            0 => edge(bits) | edge(bits >> 16) << 16,
            1 => edge(bits) | bits & 0xbfff_0000,
            // Below 2 in magnitude.
            _ => bits & 0xbfff_bfff,
        }
    };
    match file {
        'f' => match choice % 16 {
            0 => FLOATS[bits as usize % FLOATS.len()],
            1 => bits & 0x807f_ffff, // subnormal
            2 => bits & 0x7fff_ffff | 0x4000_0000,
            3 => ((bits % 33) as f32 - 16.0).to_bits(),
            // Any sign and fraction, exponents that products and sums stay finite with for a while.
            _ => bits & 0x807f_ffff | (100 + (choice as u32 >> 8) % 54) << 23,
        },
        'h' => halves(&HALVES),
        'b' => halves(&BRAINS),
        _ => match choice % 8 {
            0 => INTEGERS[bits as usize % INTEGERS.len()],
            1 | 2 => bits % 64,
            3 => (bits % 64).wrapping_neg(),
            _ => bits,
        },
    }
}

#[test]
fn the_simulator_computes_what_a_gpu_has_computed() {
    let all = recorded();
    let wrong: Vec<String> = all.iter().filter_map(|program| program.check(0).err()).collect();
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        all.len(),
        wrong.join("\n")
    );
    assert_eq!(all.len(), 400);
}

#[test]
fn programs_compute_the_same_under_other_schedules() {
    // Of four one parts lanes.
    for (seed, program) in (1..=3).cycle().zip(recorded().iter().step_by(4)) {
        assert_eq!(program.check(seed), Ok(()));
    }
}

#[test]
fn an_answer_that_changes_is_noticed() {
    let all = recorded();
    let program = all.iter().find(|program| !program.near.is_empty()).unwrap();
    let mut other = program.clone();
    other.exact = "another".to_string();
    assert!(other.check(0).unwrap_err().contains("other bits"));
    let mut other = program.clone();
    other.near[0] ^= 1 << 30;
    assert!(other.check(0).unwrap_err().contains("beyond the bound"));
    // Arithmetic right shifts as logical ones.
    let shifts = |program: &&Recorded| {
        let mut other = (*program).clone();
        other.text = other.text.replace("shr.s32", "shr.u32");
        other.text != program.text && other.check(0).is_err()
    };
    assert!(all.iter().take(40).any(|program| shifts(&program)));
}
