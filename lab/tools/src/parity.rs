//! Random and adversarial problems on a device, each against the float64 reference.
//!
//! usage: parity [DEVICE] [PROBLEMS] [SEED] [JSON] [--inputs KIND] [--family NAME] [--dtype NAME]
//!
//! Every fourth problem takes the config that would be chosen; the others take one drawn from a family drawn
//! at random, or from the one asked for, so that all of them are exercised. A config that refuses the problem, or that
//! the device's compiler spills, is drawn again. Every third problem has adversarial inputs, unless one kind is asked
//! for. With a family, problems are such as it serves: of a dtype and strides that it does not refuse. A problem of
//! e4m3 that no kernel of the device serves (its rows are not at multiples of 16 bytes, say) is drawn again. Outputs
//! start as poison, and gaps between rows must still hold it afterwards. Exits with 1 if anything is off.
//!
//! JSON has by family how many problems and kernels there were, the values that each lever had, the worst errors by
//! dtype and inputs, and how many drawn kernels the compiler spilled.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::sync::Mutex;

use flashcore::{
    Attention, Comparison, Config, DType, Device, InputKind, Inputs, KernelId, Plan, Problem, Tensor, Tolerance,
    compare, compare_lse, reference,
};
use flashcore_cpu::CpuConfig;
use flashcore_cuda::{CudaError, ModuleRefusal};
use flashcore_kernels::{ladder, mma, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{POISON, RandomLimits, gaps_untouched, random_problem};
use rayon::prelude::*;
use serde_json::{Value, json};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let (mut positional, mut asked) = (Vec::new(), Asked::default());
    let mut args = crate::arguments();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--inputs" => {
                let name = args.next().unwrap_or_default();
                asked.inputs = Some(InputKind::from_name(&name).ok_or_else(|| {
                    let known = InputKind::ALL.map(InputKind::name).join(", ");
                    format!("no inputs are named `{name}`; known are {known}")
                })?);
            }
            "--family" => {
                let name = args.next().unwrap_or_default();
                let family = Config::FAMILIES.into_iter().find(|family| *family == name);
                asked.family = Some(family.ok_or_else(|| {
                    format!("no family is named `{name}`; known are {}", Config::FAMILIES.join(", "))
                })?);
            }
            "--dtype" => {
                let name = args.next().unwrap_or_default();
                asked.dtype = Some(DType::from_name(&name).ok_or_else(|| {
                    let known = DType::ALL.map(DType::name).join(", ");
                    format!("no dtype is named `{name}`; known are {known}")
                })?);
            }
            _ => positional.push(arg),
        }
    }
    let given = |index: usize, default: &'static str| positional.get(index).map_or(default, String::as_str);
    let device: Device = given(0, "best").parse()?;
    let problems: u64 = given(1, "200").parse()?;
    let seed: u64 = given(2, "1").parse()?;
    let json = positional.get(3);

    let tally = Mutex::new(Tally::default());
    // References are computed on all cores; the device takes what comes.
    (0..problems).into_par_iter().for_each(|index| {
        let result = one(&device, seed.wrapping_mul(1_000_003).wrapping_add(index), index, asked);
        let mut tally = tally.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match result {
            Ok(outcome) => tally.add(outcome),
            Err(error) => tally.failures.push(format!("problem {index}: {error}")),
        }
    });
    let tally = tally.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    tally.print(&device, seed);
    if let Some(path) = json {
        std::fs::write(path, tally.to_json(&device, problems, seed))?;
    }
    if !tally.failures.is_empty() {
        std::process::exit(1);
    }
    Ok(())
}

/// What a command line narrows the problems to.
#[derive(Clone, Copy, Default)]
struct Asked {
    inputs: Option<InputKind>,
    family: Option<&'static str>,
    dtype: Option<DType>,
}

impl Asked {
    /// Tensor cores take 16-bit numbers, and these families copy 16 bytes at a time.
    fn limits(&self) -> RandomLimits {
        let all = RandomLimits {
            head_dim_v: true,
            ..RandomLimits::default()
        };
        match (self.dtype, self.family) {
            (Some(DType::E4M3), _) => RandomLimits {
                dtypes: &[DType::E4M3],
                odd_strides: false,
                ..all
            },
            (Some(DType::F32), _) => RandomLimits {
                dtypes: &[DType::F32],
                ..all
            },
            (Some(DType::F16), _) => RandomLimits {
                dtypes: &[DType::F16],
                odd_strides: false,
                ..all
            },
            (Some(DType::BF16), _) => RandomLimits {
                dtypes: &[DType::BF16],
                odd_strides: false,
                ..all
            },
            (None, Some(ladder::NAME | mma::NAME | wgmma::NAME)) => RandomLimits {
                dtypes: &[DType::F16, DType::BF16],
                odd_strides: false,
                ..all
            },
            _ => all,
        }
    }
}

struct Outcome {
    problem: Problem,
    kernel: KernelId,
    inputs: InputKind,
    out: Comparison,
    /// Kernels that were drawn before and spilled.
    spilled: usize,
    /// Problems that were drawn before and that no kernel serves.
    redrawn: usize,
    /// Some rows attend to nothing.
    blind_rows: bool,
}

/// A problem of the seed; of e4m3 the first of the seed's that the device serves, and how many it does not.
fn served_problem(device: &Device, seed: u64, asked: Asked) -> Result<(Problem, usize), Box<dyn Error>> {
    const TRIES: usize = 200;
    let mut seeds = Rng::new(seed);
    let mut problem = random_problem(seed, &asked.limits())?;
    if asked.dtype != Some(DType::E4M3) {
        return Ok((problem, 0));
    }
    let attention = Attention::new(device.clone());
    for refused in 0..TRIES {
        match attention.plan(&problem) {
            Err(flashcore::Error::NoPlan(_)) => problem = random_problem(seeds.next_u64(), &asked.limits())?,
            _ => return Ok((problem, refused)),
        }
    }
    Err(format!("none of {TRIES} problems is served on {device}; the last: {problem}").into())
}

fn one(device: &Device, seed: u64, index: u64, asked: Asked) -> Result<Outcome, Box<dyn Error>> {
    let (problem, redrawn) = served_problem(device, seed, asked)?;
    let kind = asked.inputs.unwrap_or(match index % 3 {
        2 => InputKind::ALL[(index / 3) as usize % InputKind::ALL.len()],
        _ => InputKind::Normal,
    });
    let (attention, spilled) = if index.is_multiple_of(4) {
        (Attention::new(device.clone()), 0)
    } else {
        any_kernel(device, &problem, seed, asked.family)?
    };
    let kernel = attention.plan(&problem)?.kernel();

    let Inputs { q, k, v } = Inputs::generate(&problem, kind, seed);
    let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), POISON);
    let mut lse = vec![f32::NAN; if problem.return_lse() { problem.lse_len() } else { 0 }];
    let given = problem.return_lse().then_some(lse.as_mut_slice());
    let fail = |what: String| format!("{problem} (seed {seed}, {kind} inputs) on {kernel}: {what}");
    attention
        .forward(&problem, q.view(), k.view(), v.view(), &mut out.view_mut(), given)
        .map_err(|error| fail(error.to_string()))?;

    let want = reference(&problem, &q.view(), &k.view(), &v.view())?;
    let tolerance = Tolerance::of_inputs(problem.dtype(), kind);
    let result = compare(&problem, &out.view(), &want, tolerance)?;
    if !result.passed {
        return Err(fail(result.to_string()).into());
    }
    gaps_untouched(&out.view()).map_err(|gap| fail(gap.to_string()))?;
    if problem.return_lse() {
        // Scores are f32 whatever the dtype, but their inputs are not: the f32 tolerance holds for all.
        let result = compare_lse(&problem, &lse, &want, Tolerance { atol: 2e-5, rtol: 2e-5 })?;
        if !result.passed {
            return Err(fail(format!("log-sum-exp: {result}")).into());
        }
    }
    Ok(Outcome {
        problem,
        kernel,
        inputs: kind,
        out: result,
        spilled,
        redrawn,
        blind_rows: want.lse.contains(&f64::NEG_INFINITY),
    })
}

/// A kernel of the device that serves the problem, drawn by the seed, of one family or of any; and how many drawn
/// before it spilled.
fn any_kernel(
    device: &Device,
    problem: &Problem,
    seed: u64,
    family: Option<&'static str>,
) -> Result<(Attention, usize), Box<dyn Error>> {
    const TRIES: usize = 1000;
    let Some(target) = device.target() else {
        let config = CpuConfig {
            tile_q: [16, 48, 128][seed as usize % 3],
            tile_kv: [4, 64, 200][seed as usize / 3 % 3],
        };
        return Ok((Attention::with_kernel(device.clone(), KernelId::Cpu(config))?, 0));
    };
    let mut rng = Rng::new(seed);
    let mut spilled = 0;
    // Where none of the family drawn serves the problem, others get their turn.
    for _ in 0..Config::FAMILIES.len() {
        let drawn = Config::FAMILIES[rng.below(Config::FAMILIES.len())];
        for _ in 0..TRIES {
            let Some(config) = Config::sample(family.unwrap_or(drawn), &mut rng) else {
                break;
            };
            if Plan::new(problem, &config, target).is_err() {
                continue;
            }
            let attention = Attention::with_kernel(device.clone(), KernelId::Gpu(config))?;
            match attention.workspace_bytes(problem, 16) {
                Ok(_) => return Ok((attention, spilled)),
                // One draw in a few at large head sizes.
                Err(flashcore::Error::Cuda(CudaError::Module(refusal)))
                    if matches!(*refusal, ModuleRefusal::LocalMemory { .. }) =>
                {
                    spilled += 1
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    // Such as odd strides, which only one family serves.
    Ok((Attention::new(device.clone()), spilled))
}

#[derive(Default)]
struct Tally {
    passed: usize,
    redrawn: usize,
    groups: BTreeMap<String, usize>,
    families: BTreeMap<&'static str, Family>,
    failures: Vec<String>,
}

/// What was seen of a family.
#[derive(Default)]
struct Family {
    problems: usize,
    spilled: usize,
    kernels: BTreeSet<String>,
    /// Problems by the values of each lever.
    levers: BTreeMap<String, BTreeMap<String, usize>>,
    /// Largest absolute and Frobenius error, and share of what is allowed, by dtype and inputs.
    worst: BTreeMap<String, [f64; 3]>,
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        let Outcome { problem, out, .. } = &outcome;
        self.passed += 1;
        self.redrawn += outcome.redrawn;
        let family = match &outcome.kernel {
            KernelId::Cpu(_) => "cpu",
            KernelId::Gpu(config) => config.family(),
        };
        let family = self.families.entry(family).or_default();
        family.problems += 1;
        family.spilled += outcome.spilled;
        family.kernels.insert(outcome.kernel.to_string());
        for (lever, value) in levers(&outcome.kernel) {
            *family.levers.entry(lever).or_default().entry(value).or_default() += 1;
        }
        let worst = format!("{} {}", problem.dtype(), outcome.inputs);
        let worst = family.worst.entry(worst).or_default();
        let seen = [out.max_abs, out.frobenius, out.of_allowed];
        worst
            .iter_mut()
            .zip(seen)
            .for_each(|(worst, seen)| *worst = worst.max(seen));

        let mask = problem.mask().to_string();
        let long = problem.seq_len_q().min(problem.seq_len_kv()) >= 256;
        let groups = [
            mask.split('(').next().unwrap_or_default(),
            &problem.dtype().to_string(),
            outcome.inputs.name(),
            if long { "S >= 256" } else { "S < 256" },
            if outcome.blind_rows {
                "rows that see nothing"
            } else {
                "rows that all see keys"
            },
        ];
        for group in groups {
            *self.groups.entry(group.to_string()).or_default() += 1;
        }
    }

    fn print(&self, device: &Device, seed: u64) {
        println!(
            "{} passed, {} failed on {device}, seed {seed}",
            self.passed,
            self.failures.len()
        );
        if self.redrawn > 0 {
            println!("{} more problems were drawn that no kernel serves", self.redrawn);
        }
        for (name, family) in &self.families {
            let Family { problems, spilled, .. } = family;
            println!(
                "{name}: {problems} problems, {} kernels, {spilled} more spilled",
                family.kernels.len()
            );
            for (case, [max_abs, frobenius, share]) in &family.worst {
                println!(
                    "  {case:<24} worst max abs {max_abs:.2e}, worst frobenius {frobenius:.2e}, at most {share:.2} of what is allowed"
                );
            }
        }
        for failure in self.failures.iter().take(20) {
            println!("FAIL {failure}");
        }
    }

    fn to_json(&self, device: &Device, problems: u64, seed: u64) -> String {
        let device = match device {
            Device::Cpu => "cpu".to_string(),
            Device::Cuda(context) => {
                let info = context.info();
                format!(
                    "{}, driver {}",
                    info.name,
                    info.driver_release.as_deref().unwrap_or("unknown")
                )
            }
        };
        let families: BTreeMap<_, _> = self
            .families
            .iter()
            .map(|(name, family)| (name, family.to_json()))
            .collect();
        let report = json!({
            "device": device, "problems": problems, "seed": seed, "passed": self.passed, "failed": self.failures,
            "redrawn": self.redrawn,
            "families": families, "counts": self.groups,
        });
        format!("{report:#}\n")
    }
}

impl Family {
    fn to_json(&self) -> Value {
        let worst = self.worst.iter().map(|(case, [max_abs, frobenius, share])| {
            (
                case,
                json!({ "max_abs": max_abs, "frobenius": frobenius, "of_allowed": share }),
            )
        });
        json!({
            "problems": self.problems, "kernels": self.kernels.len(), "spilled": self.spilled, "levers": self.levers,
            "worst": worst.collect::<BTreeMap<_, _>>(),
        })
    }
}

/// The levers of a kernel and their values, as they are serialised.
fn levers(kernel: &KernelId) -> Vec<(String, String)> {
    let KernelId::Gpu(config) = kernel else {
        return Vec::new();
    };
    let Ok(Value::Object(levers)) = serde_json::to_value(config) else {
        return Vec::new();
    };
    let value = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_string);
    let levers = levers.iter().filter(|(name, _)| *name != "family");
    levers.map(|(name, of)| (name.clone(), value(of))).collect()
}
