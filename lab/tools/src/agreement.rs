//! Whether the simulator and a GPU give the same answer for the same kernel and launch.
//!
//! usage: agreement [PROGRAMS] [PROBLEMS] [SEED] [JSON]
//!
//! 1. Random programs of IEEE and integer instructions: the same bits (NaNs count as equal).
//! 2. Tensor-core products: on small integers the same bits, on random values within 2⁻²¹·(|c| + Σ|a·b|).
//! 3. Attention plans on random problems: within what `ex2` and `rcp` may be off.
//!
//! Exits with 1 on any disagreement. Where there is no GPU the simulator runs alone, is held to what is
//! known without one, and the exit code is 3.

use std::error::Error;

use flashcore::{Device, DeviceBuffer, InputKind, Inputs, Plan, Stream};
use flashcore_cuda::{Context, Function, ModuleOptions};
use flashcore_ir::fragment::{MMA_K16N8_B, MMA_M16K16_A, MMA_M16N8_ACC_F32};
use flashcore_ir::{
    Arg, BF16x2, BufferSpec, Cache, F16x2, Kernel, KernelBuilder, Launch, Scalar, Target, TileShape, Val,
};
use flashcore_kernels::{Config, scalar};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, POISON, RandomLimits, Tensor, random_problem};
use flashcore_sim::{SimOptions, simulate};
use half::f16;

type Failures = Vec<String>;

/// The buffers of a launch, by slot.
type Buffers = Vec<Vec<u8>>;

const THREADS: u32 = 64;
/// Values of each type that a random program begins and ends with, a thread.
const POOL: u32 = 4;
const INSTRUCTIONS: usize = 120;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut args = crate::arguments();
    let mut number = |default: u64| args.next().map_or(Ok(default), |a| a.parse());
    let (programs, problems, seed) = (number(100)?, number(60)?, number(1)?);
    let json = crate::arguments().nth(3);
    let device = Device::best();
    let context = match &device {
        Device::Cuda(context) => Some(context),
        Device::Cpu => None,
    };
    let mut failures = Failures::new();
    for index in 0..programs {
        random_program(context, seed * 10_000 + index, &mut failures)?;
    }
    let mma_worst = products(context, seed, &mut failures)?;
    let mut attention_worst = 0.0f64;
    for index in 0..problems {
        attention_worst = attention_worst.max(attention(context, seed * 10_000 + index, &mut failures)?);
    }
    let name = context.map_or("no GPU: the simulator alone", |context| context.info().name.as_str());
    println!(
        "{programs} programs, 200 products, {problems} attention plans on {name}: {} disagree\nworst product {mma_worst:.2} \
         of its bound, worst attention output {attention_worst:.2} of its bound",
        failures.len()
    );
    failures.iter().take(20).for_each(|failure| println!("FAIL {failure}"));
    if let Some(path) = json {
        let report = serde_json::json!({
            "device": name, "driver": context.and_then(|context| context.info().driver_release.clone()), "programs": programs, "products": 200,
            "attention_plans": problems, "seed": seed, "failures": failures,
            "worst_product_of_bound": mma_worst, "worst_attention_of_bound": attention_worst,
        });
        std::fs::write(path, format!("{report:#}\n"))?;
    }
    if !failures.is_empty() {
        std::process::exit(1);
    }
    if let Some(why) = Device::why_not_cuda() {
        eprintln!("{why}");
        std::process::exit(3);
    }
    Ok(())
}

/// Runs one kernel on both, from the same buffers; returns both results.
fn both(
    context: Option<&Context>,
    kernel: &Kernel,
    launch: &Launch,
    buffers: &[Vec<u8>],
) -> Result<(Buffers, Buffers), Box<dyn Error>> {
    let mut simulated = buffers.to_vec();
    let report = simulate(kernel, launch, &mut simulated, &SimOptions::default())?;
    if let Some(finding) = report.findings.first() {
        return Err(format!("{}: {finding}", kernel.name()).into());
    }
    let Some(context) = context else {
        return Ok((simulated.clone(), simulated));
    };
    let stream = Stream::new(context)?;
    let device: Vec<DeviceBuffer> = buffers
        .iter()
        .map(|bytes| DeviceBuffer::from_host(&stream, bytes))
        .collect::<Result<_, _>>()?;
    let slices: Vec<_> = device.iter().map(DeviceBuffer::as_slice).collect();
    Function::load(context, kernel, &ModuleOptions::default())?.run(&stream, launch, &slices)?;
    let measured = device
        .iter()
        .map(|buffer| buffer.to_vec::<u8>(&stream))
        .collect::<Result<_, _>>()?;
    Ok((simulated, measured))
}

fn launch_of(kernel: &Kernel, bytes: [u64; 2]) -> Launch {
    let buffer = |name, bytes, written| BufferSpec {
        name,
        bytes,
        written,
        align: 16,
    };
    Launch {
        grid: [1, 1, 1],
        block: [kernel.threads(), 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: kernel.ledger().total_bytes(),
        buffers: vec![buffer("input", bytes[0], false), buffer("output", bytes[1], true)],
        args: vec![
            Arg::Buffer {
                slot: 0,
                byte_offset: 0,
            },
            Arg::Buffer {
                slot: 1,
                byte_offset: 0,
            },
        ],
    }
}

// ---- 1. Random programs ---------------------------------------------------------------------------

/// What a program computes with, by type, so that NaN bits never turn into integers.
struct Pools<'k> {
    ints: Vec<Val<'k, u32>>,
    signed: Vec<Val<'k, i32>>,
    floats: Vec<Val<'k, f32>>,
    halves: Vec<Val<'k, F16x2>>,
    brains: Vec<Val<'k, BF16x2>>,
}

fn pick<'k, T: Scalar>(pool: &[Val<'k, T>], rng: &mut Rng) -> Val<'k, T> {
    pool[rng.below(pool.len())]
}

fn random_program(context: Option<&Context>, seed: u64, failures: &mut Failures) -> Result<(), Box<dyn Error>> {
    let mut rng = Rng::new(seed);
    let kernel = Kernel::build(format!("program_{seed}"), THREADS, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let at = |i: u32| input.offset(k.thread_idx()).plus((i * THREADS) as i32).load();
        let word = |kind: u32, i: u32| at(kind * POOL + i);
        let mut pools = Pools {
            ints: (0..POOL).map(|i| word(0, i).reinterpret()).collect(),
            signed: (0..POOL).map(|i| word(1, i).reinterpret()).collect(),
            floats: (0..POOL).map(|i| word(2, i)).collect(),
            halves: (0..POOL).map(|i| word(3, i).reinterpret()).collect(),
            brains: (0..POOL).map(|i| word(4, i).reinterpret()).collect(),
        };
        for _ in 0..INSTRUCTIONS {
            instruction(k, &mut pools, &mut rng);
        }
        let store = |slot: usize, value: Val<'_, f32>| {
            output
                .offset(k.thread_idx())
                .plus((slot as u32 * THREADS) as i32)
                .store(value);
        };
        // The values computed last depend on most of the others.
        for i in 0..POOL as usize {
            store(i, pools.ints[pools.ints.len() - 1 - i].reinterpret());
            store(4 + i, pools.signed[pools.signed.len() - 1 - i].reinterpret());
            store(8 + i, pools.floats[pools.floats.len() - 1 - i]);
            store(12 + i, pools.halves[pools.halves.len() - 1 - i].reinterpret());
            store(16 + i, pools.brains[pools.brains.len() - 1 - i].reinterpret());
        }
    })?;

    let words = (5 * POOL * THREADS) as usize;
    let mut input = Vec::with_capacity(words);
    for index in 0..words {
        let bits = rng.next_u64() as u32;
        input.push(match index as u32 / (POOL * THREADS) {
            0 | 1 => bits,
            // Any sign and fraction, exponents that products and sums stay finite with for a while.
            2 => bits & 0x807f_ffff | (100 + bits % 50) << 23,
            3 => bits & 0xbfff_bfff,
            _ => bits & 0xbfff_bfff | 0x2000_2000,
        });
    }
    let bytes = 4 * words as u64;
    let buffers = [bytemuck::cast_slice(&input).to_vec(), vec![POISON; 4 * words]];
    let (simulated, measured) = both(context, &kernel, &launch_of(&kernel, [bytes, bytes]), &buffers)?;
    let (simulated, measured): (&[u32], &[u32]) =
        (bytemuck::cast_slice(&simulated[1]), bytemuck::cast_slice(&measured[1]));
    let differs = simulated
        .iter()
        .zip(measured)
        .enumerate()
        .find(|(i, (a, b))| !match *i as u32 / (POOL * THREADS) {
            2 => a == b || f32::from_bits(**a).is_nan() && f32::from_bits(**b).is_nan(),
            3 => halves_agree(**a, **b, |bits| f16::from_bits(bits).is_nan()),
            4 => halves_agree(**a, **b, |bits| half::bf16::from_bits(bits).is_nan()),
            _ => a == b,
        });
    if let Some((i, (a, b))) = differs {
        let (slot, thread) = (i as u32 / THREADS, i as u32 % THREADS);
        failures.push(format!(
            "program {seed}: value {slot} of thread {thread}: simulator {a:#010x}, GPU {b:#010x}"
        ));
    }
    Ok(())
}

fn halves_agree(a: u32, b: u32, is_nan: impl Fn(u16) -> bool) -> bool {
    [0, 16].iter().all(|shift| {
        let (a, b) = ((a >> shift) as u16, (b >> shift) as u16);
        a == b || is_nan(a) && is_nan(b)
    })
}

fn instruction<'k>(k: &'k KernelBuilder, p: &mut Pools<'k>, rng: &mut Rng) {
    let choice = rng.below(36);
    let (i, j, l) = (pick(&p.ints, rng), pick(&p.ints, rng), pick(&p.ints, rng));
    let (s, t) = (pick(&p.signed, rng), pick(&p.signed, rng));
    let (x, y, z) = (pick(&p.floats, rng), pick(&p.floats, rng), pick(&p.floats, rng));
    let (h, g, e) = (pick(&p.halves, rng), pick(&p.halves, rng), pick(&p.halves, rng));
    let (b, c, d) = (pick(&p.brains, rng), pick(&p.brains, rng), pick(&p.brains, rng));
    let shift = rng.below(40) as u32;
    let even = rng.chance(0.5);
    match choice {
        0 => p.ints.push(i + j),
        1 => p.ints.push(i * j),
        2 => p.ints.push(i.fma(j, l)),
        3 => p.ints.push(i.mul_hi(j)),
        // Sums with a constant: three different values, as lop3 wants.
        4 => p.ints.push((i + 1u32).lop3(j ^ 2u32, l ^ 4u32, rng.below(256) as u8)),
        5 => p.ints.push(i.prmt(j, l & 0x7777)),
        6 => p.ints.push((i << shift) ^ (j >> shift)),
        7 => p.ints.push(i / (j | 1)),
        8 => p.ints.push(i % (j | 1)),
        9 => p.ints.push(i.count_ones() + j.leading_zeros()),
        10 => p.ints.push(i.min(j).max(l)),
        11 => p.ints.push(i.mul_wide(j).to_u32() ^ l),
        12 => p.ints.push(i.shfl_bfly(1 << rng.below(5))),
        13 => p.ints.push(i.shfl_idx(j % 32)),
        14 => p.ints.push(i.lt(j).ballot()),
        15 => p.ints.push(i.redux_add()),
        16 => p.ints.push((!i & j) | l),
        17 => p.signed.push(s - t),
        18 => p.signed.push(s * t),
        19 => p.signed.push(s.mul_hi(t)),
        20 => p.signed.push((s >> shift).max(-t)),
        21 => p.signed.push(s.lt(t).select(s, t)),
        22 => p.signed.push(s.redux_max()),
        23 => p.signed.push(x.to_i32()),
        24 => p.floats.push(x + y),
        25 => p.floats.push(x * y),
        26 => p.floats.push(x.fma(y, z)),
        27 => p.floats.push(x.min(y).max(z)),
        28 => p.floats.push(if even { i.to_f32() } else { s.to_f32() }),
        29 => p.floats.push((x - y).abs()),
        30 => p.halves.push(h + g),
        31 => p.halves.push(h.fma(g, e)),
        32 => p.halves.push(if even { h * g } else { h.max(g) }),
        33 => p.halves.push(x.pack_f16(y)),
        34 => p.brains.push(if even { b.fma(c, d) } else { x.pack_bf16(y) }),
        _ => {
            let (lo, hi) = if even { h.to_f32s() } else { b.to_f32s() };
            p.floats.push(lo.lt(hi).select(lo, k.constant(0.5)));
            p.floats.push(hi);
        }
    }
}

// ---- 2. Tensor-core products ----------------------------------------------------------------------

/// One warp's m16n8k16, its operands brought by `ldmatrix`: A as it lies, B transposed.
fn product_kernel() -> Result<Kernel, flashcore_ir::BuildErrors> {
    Kernel::build("product", 32, |k| {
        let input = k.param_ptr::<f16>("input");
        let output = k.param_ptr_mut::<f32>("output");
        // 16 rows of A (16 of k), then 16 rows of k of B (8 columns, of 16).
        let tile = k.shared_tile::<f16>("operands", TileShape::new(32, 16).padded(8));
        let lane = k.lane();
        for row in [0u32, 16] {
            let (row, col) = (lane / 2 + row, lane % 2 * 8);
            let words = input.offset(row * 16 + col).load_words(4, Cache::Default);
            tile.at(row, col).store_words(&words, Cache::Default);
        }
        k.sync_warp();
        // Matrices of A in register order: rows 0, rows 8, then the same of the columns from 8 on.
        let a = k.ldmatrix(tile.at(lane % 16, lane / 16 * 8), 4, false);
        let b = k.ldmatrix(tile.at(lane % 16 + 16, 0), 2, true);
        let acc = k.acc("acc", 1);
        k.mma(
            acc,
            0,
            k.a_operand::<f16>(&[a[0], a[1], a[2], a[3]]),
            k.b_operand::<f16>(&[b[0], b[1]]),
        );
        for i in 0..4 {
            output.offset(lane * 4).plus(i as i32).store(acc.var(i).get());
        }
    })
}

fn products(context: Option<&Context>, seed: u64, failures: &mut Failures) -> Result<f64, Box<dyn Error>> {
    let kernel = product_kernel()?;
    let launch = launch_of(&kernel, [2 * 512, 4 * 128]);
    let mut worst = 0.0f64;
    for index in 0..200 {
        let exact = index % 2 == 0;
        let mut rng = Rng::new(seed + index);
        let value = |rng: &mut Rng| {
            if exact {
                rng.between(0, 16) as f32 - 8.0
            } else {
                rng.normal()
            }
        };
        let input: Vec<f16> = (0..512).map(|_| f16::from_f32(value(&mut rng))).collect();
        let buffers = [bytemuck::cast_slice(&input).to_vec(), vec![POISON; 512]];
        let (simulated, measured) = both(context, &kernel, &launch, &buffers)?;
        let (simulated, measured): (&[f32], &[f32]) =
            (bytemuck::cast_slice(&simulated[1]), bytemuck::cast_slice(&measured[1]));
        for (lane, reg, _, row, col) in MMA_M16N8_ACC_F32.elements() {
            let terms = (0..16)
                .map(|k| input[(row * 16 + k) as usize].to_f64() * input[(256 + k * 16 + col) as usize].to_f64());
            let (want, size) = terms.fold((0.0, 0.0), |(sum, size): (f64, f64), t| (sum + t, size + t.abs()));
            let at = (lane * 4 + reg) as usize;
            let bound = if exact { 0.0 } else { size * 2f64.powi(-21) };
            for (who, got) in [("simulator", simulated[at]), ("GPU", measured[at])] {
                let error = (f64::from(got) - want).abs();
                if !exact {
                    worst = worst.max(error / bound);
                }
                if error.is_nan() || error > bound {
                    failures.push(format!(
                        "product {index}: {who} has {got} at ({row}, {col}), right is {want}"
                    ));
                }
            }
        }
    }
    // The layouts that the loads above rely on.
    debug_assert_eq!(MMA_M16K16_A.at(4, 1, 0), (9, 0));
    debug_assert_eq!(MMA_K16N8_B.at(1, 0, 1), (3, 0));
    Ok(worst)
}

// ---- 3. Attention ---------------------------------------------------------------------------------

/// The largest difference between the two outputs, relative to its bound.
fn attention(context: Option<&Context>, seed: u64, failures: &mut Failures) -> Result<f64, Box<dyn Error>> {
    let limits = RandomLimits {
        max_work: 8_000_000,
        ..RandomLimits::default()
    };
    let problem = random_problem(seed, &limits)?;
    let target = match context {
        Some(context) => Device::Cuda(context.clone()).target().ok_or("no target")?,
        None => Target::Sm90a,
    };
    let configs: Vec<Plan> = scalar::configs()
        .into_iter()
        .filter_map(|config| Plan::new(&problem, &Config::Scalar(config), target).ok())
        .collect();
    let plan = configs
        .get(seed as usize % configs.len().max(1))
        .ok_or("no config serves the problem")?;

    let inputs = Inputs::generate(&problem, InputKind::Normal, seed);
    let mut buffers: Vec<Vec<u8>> = [&inputs.q, &inputs.k, &inputs.v].map(|t| t.bytes().to_vec()).to_vec();
    let out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    buffers.push(out.bytes().to_vec());
    if problem.return_lse() {
        buffers.push(vec![POISON; 4 * problem.lse_len()]);
    }
    let (simulated, measured) = both(context, &plan.main.kernel, &plan.main.launch, &buffers)?;

    let largest_v = element_values(problem.dtype(), inputs.v.bytes())
        .filter(|v| v.is_finite())
        .fold(0.0, |m: f64, v| m.max(v.abs()));
    // ex2 is off by 2 ulp and rcp by 1 (PTX ISA), in both; the output's rounding may fall to either side.
    let rounding = match problem.dtype() {
        DType::F32 => 2f64.powi(-23),
        DType::F16 => 2f64.powi(-10),
        DType::BF16 | DType::E4M3 => 2f64.powi(-7),
    };
    let mut worst = 0.0f64;
    let pairs = element_values(problem.dtype(), &simulated[3]).zip(element_values(problem.dtype(), &measured[3]));
    for (index, (a, b)) in pairs.enumerate() {
        if a.is_nan() && b.is_nan() {
            continue; // gaps
        }
        let bound = largest_v * 2f64.powi(-19) + rounding * a.abs().max(b.abs());
        worst = worst.max((a - b).abs() / bound);
        if (a - b).is_nan() || (a - b).abs() > bound {
            failures.push(format!(
                "{problem} on {}: element {index}: simulator {a}, GPU {b}",
                plan.config
            ));
            break;
        }
    }
    Ok(worst)
}

fn element_values(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f64> + '_ {
    let count = bytes.len() / dtype.size_bytes();
    (0..count).map(move |i| f64::from(flashcore_problem::tensor::read_element(dtype, bytes, i)))
}
