//! Random and adversarial problems on a device, each against the float64 reference.
//!
//! usage: parity [DEVICE] [PROBLEMS] [SEED] [JSON] [--inputs KIND] [--family NAME]
//!
//! Every fourth problem takes the config that would be chosen; the others take one drawn from a family drawn
//! at random, or from the one asked for, so that all of them are exercised. A config that refuses the problem, or that
//! the device's compiler spills, is drawn again. Every third problem has adversarial inputs, unless one kind is asked
//! for. Outputs start as poison, and gaps between rows must still hold it afterwards. Exits with 1 if anything
//! is off.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Mutex;

use flashcore::{
    Attention, Comparison, Config, Device, InputKind, Inputs, Plan, Problem, Tensor, Tolerance, compare, compare_lse,
    reference,
};
use flashcore_cpu::CpuConfig;
use flashcore_cuda::CudaError;
use flashcore_problem::rng::Rng;
use flashcore_problem::{POISON, RandomLimits, gaps_untouched, random_problem};
use rayon::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut positional, mut asked) = (Vec::new(), Asked::default());
    let mut args = std::env::args().skip(1);
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
}

struct Outcome {
    problem: Problem,
    kernel: String,
    inputs: InputKind,
    out: Comparison,
}

fn one(device: &Device, seed: u64, index: u64, asked: Asked) -> Result<Outcome, Box<dyn Error>> {
    let limits = RandomLimits {
        head_dim_v: true,
        ..RandomLimits::default()
    };
    let problem = random_problem(seed, &limits)?;
    let kind = asked.inputs.unwrap_or(match index % 3 {
        2 => InputKind::ALL[(index / 3) as usize % InputKind::ALL.len()],
        _ => InputKind::Normal,
    });
    let attention = if index.is_multiple_of(4) {
        Attention::new(device.clone())
    } else {
        any_kernel(device, &problem, seed, asked.family)?
    };
    let kernel = attention.plan(&problem)?.kernel().to_string();

    let Inputs { q, k, v } = Inputs::generate(&problem, kind, seed);
    let mut out = Tensor::filled(problem.dtype(), *problem.o_layout(), POISON);
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
    })
}

/// A kernel of the device that serves the problem, drawn by the seed: of one family, or of any.
fn any_kernel(
    device: &Device,
    problem: &Problem,
    seed: u64,
    family: Option<&'static str>,
) -> Result<Attention, Box<dyn Error>> {
    const TRIES: usize = 1000;
    let Some(target) = device.target() else {
        let config = CpuConfig {
            tile_q: [16, 48, 128][seed as usize % 3],
            tile_kv: [4, 64, 200][seed as usize / 3 % 3],
        };
        return Ok(Attention::with_kernel(
            device.clone(),
            flashcore::KernelId::Cpu(config),
        )?);
    };
    let mut rng = Rng::new(seed);
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
            let attention = Attention::with_kernel(device.clone(), flashcore::KernelId::Gpu(config))?;
            match attention.workspace_bytes(problem, 16) {
                Ok(_) => return Ok(attention),
                // Spilled: one draw in a few at large head sizes.
                Err(flashcore::Error::Cuda(CudaError::Module(_))) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    // Such as odd strides, which only one family serves.
    Ok(Attention::new(device.clone()))
}

#[derive(Default)]
struct Tally {
    passed: usize,
    worst: BTreeMap<String, (f64, f64)>,
    groups: BTreeMap<String, usize>,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        let Outcome {
            problem,
            kernel,
            inputs,
            out,
        } = outcome;
        self.passed += 1;
        let worst = self.worst.entry(format!("{} {inputs}", problem.dtype())).or_default();
        *worst = (worst.0.max(out.max_abs), worst.1.max(out.frobenius));
        let mask = problem.mask().to_string();
        let mask = mask.split('(').next().unwrap_or_default().to_string();
        let long = if problem.seq_len_q().min(problem.seq_len_kv()) >= 256 {
            "S >= 256"
        } else {
            "S < 256"
        };
        // Kernels by family and by each of their levers: there are too many to count them one by one.
        let (family, levers) = kernel.split_once('/').unwrap_or((&kernel, ""));
        let levers = levers.split('-').map(|lever| format!("{family} {lever}"));
        for group in [mask, problem.dtype().to_string(), long.to_string(), family.to_string()]
            .into_iter()
            .chain(levers)
        {
            *self.groups.entry(group).or_default() += 1;
        }
    }

    fn print(&self, device: &Device, seed: u64) {
        println!(
            "{} passed, {} failed on {device}, seed {seed}",
            self.passed,
            self.failures.len()
        );
        for (case, (max_abs, frobenius)) in &self.worst {
            println!("  {case:<24} worst max abs {max_abs:.2e}, worst frobenius {frobenius:.2e}");
        }
        for failure in self.failures.iter().take(20) {
            println!("FAIL {failure}");
        }
    }

    fn to_json(&self, device: &Device, problems: u64, seed: u64) -> String {
        let worst: BTreeMap<_, _> = self
            .worst
            .iter()
            .map(|(case, (max_abs, frobenius))| {
                (case, serde_json::json!({ "max_abs": max_abs, "frobenius": frobenius }))
            })
            .collect();
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
        let report = serde_json::json!({
            "device": device, "problems": problems, "seed": seed, "passed": self.passed, "failed": self.failures,
            "worst": worst, "counts": self.groups,
        });
        format!("{report:#}\n")
    }
}
