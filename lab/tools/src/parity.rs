//! Random and adversarial problems on a device, each against the float64 reference.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use flashcore::plans::{Config, Plan};
use flashcore::testing::{Comparison, InputKind, Inputs, Tolerance, compare, compare_lse, reference_rows};
use flashcore::{Attention, DType, Device, KernelId, Problem, Tensor};
use flashcore_cpu::CpuConfig;
use flashcore_cuda::{CudaError, ModuleRefusal};
use flashcore_kernels::{FAMILIES, ladder, mma, wgmma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{POISON, RandomLimits, others_untouched, random_problem};
use rayon::prelude::*;
use serde::Serialize;
use serde_json::{Value, json};

/// Compares kernels with the float64 reference on random and adversarial problems; fails if
/// anything is off.
///
/// Every fourth problem runs the config that would be chosen for it; the others run one drawn from
/// a random family, so that all families are exercised. A config that refuses the problem, or that
/// the device's compiler spills, is drawn again. Every third problem has adversarial inputs.
/// Outputs start as poison, and gaps between rows must still hold it afterwards.
///
/// The report has, by family: problems, kernels, the values that each lever had, the worst errors
/// by dtype and inputs, and how many drawn kernels the compiler spilled.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(default_value = "best")]
    device: Device,
    #[arg(default_value_t = 200)]
    problems: u64,
    #[arg(default_value_t = 1)]
    seed: u64,
    /// Where to write the report.
    json: Option<PathBuf>,
    /// Inputs of every problem.
    #[arg(long, value_parser = PossibleValuesParser::new(InputKind::ALL.map(InputKind::name))
        .try_map(|name| InputKind::from_name(&name).ok_or("unknown inputs")))]
    inputs: Option<InputKind>,
    /// Family of every kernel that is drawn; problems then have dtypes and strides that it serves.
    #[arg(long, value_parser = PossibleValuesParser::new(FAMILIES.map(|family| family.name)))]
    family: Option<String>,
    /// Dtype of every problem. A problem of e4m3 that no kernel of the device serves is drawn
    /// again.
    #[arg(long, value_parser = PossibleValuesParser::new(DType::ALL.map(DType::name))
        .try_map(|name| DType::from_name(&name).ok_or("unknown dtype")))]
    dtype: Option<DType>,
    /// Problems of packed sequences, caches and pages, with NaN past every end.
    #[arg(long)]
    lengths: bool,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let Options {
        device, problems, seed, ..
    } = options;
    let tally = Mutex::new(Tally::default());
    // References are computed on all cores, in the order in which threads are free.
    (0..*problems).into_par_iter().for_each(|index| {
        let result = one(options, seed.wrapping_mul(1_000_003).wrapping_add(index), index);
        let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(outcome) => tally.add(outcome),
            Err(error) => tally.failed.push(format!("problem {index}: {error}")),
        }
    });
    let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.print(device, *seed);
    if let Some(path) = &options.json {
        let mut report = json!({ "device": crate::device_name(device), "problems": problems, "seed": seed });
        if let (Value::Object(report), Value::Object(found)) = (&mut report, serde_json::to_value(&tally)?) {
            report.extend(found);
        }
        crate::write_json(path, &report)?;
    }
    crate::verdict(tally.failed.is_empty())
}

impl Options {
    /// Problems that the family and the dtype serve: tensor cores take 16-bit numbers, and their
    /// families copy 16 bytes at a time.
    fn limits(&self) -> RandomLimits {
        const ALL: &[DType] = &DType::ALL;
        let all = RandomLimits {
            head_dim_v: true,
            lengths: self.lengths,
            ..RandomLimits::default()
        };
        let of_dtype = |dtype| ALL.iter().find(|known| **known == dtype).map(std::slice::from_ref);
        let dtypes = match (self.dtype.and_then(of_dtype), self.family.as_deref()) {
            (Some(dtypes), _) => dtypes,
            (None, Some(ladder::NAME | mma::NAME | wgmma::NAME)) => &[DType::F16, DType::BF16],
            (None, _) => return all,
        };
        RandomLimits {
            dtypes,
            odd_strides: dtypes == [DType::F32],
            ..all
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
    /// Some rows are fully masked.
    masked_rows: bool,
}

/// A problem of the seed, and how many were drawn before it. With e4m3 it is the first that the
/// device serves.
fn served_problem(options: &Options, seed: u64) -> Result<(Problem, usize), Box<dyn Error>> {
    const TRIES: usize = 200;
    let mut seeds = Rng::new(seed);
    let mut problem = random_problem(seed, &options.limits())?;
    if options.dtype != Some(DType::E4M3) {
        return Ok((problem, 0));
    }
    let attention = Attention::new(options.device.clone());
    for refused in 0..TRIES {
        match attention.plan(&problem) {
            Err(flashcore::Error::NoPlan(_)) => problem = random_problem(seeds.next_u64(), &options.limits())?,
            _ => return Ok((problem, refused)),
        }
    }
    let device = &options.device;
    Err(format!("none of {TRIES} problems is served on {device}; the last: {problem}").into())
}

fn one(options: &Options, seed: u64, index: u64) -> Result<Outcome, Box<dyn Error>> {
    let device = &options.device;
    let (problem, redrawn) = served_problem(options, seed)?;
    // A third adversarial, drawn by itself: what a problem is follows from the seed, too.
    let mut kinds = Rng::stream(seed, 7);
    let adversarial = kinds.below(3) == 0;
    let drawn = kinds.pick(&InputKind::ALL).filter(|_| adversarial);
    let kind = options.inputs.unwrap_or(drawn.copied().unwrap_or(InputKind::Normal));
    let (attention, spilled) = if index.is_multiple_of(4) {
        (Attention::new(device.clone()), 0)
    } else {
        any_kernel(device, &problem, seed, options.family.as_deref())?
    };
    let kernel = attention.plan(&problem)?.kernel();

    let inputs = Inputs::generate(&problem, kind, seed);
    let (tensors, lengths) = (
        [inputs.q.view(), inputs.k.view(), inputs.v.view()],
        inputs.lengths.as_slices(),
    );
    let mut out = Tensor::filled(problem.out_dtype(), *problem.o_layout(), POISON);
    let mut lse = vec![f32::NAN; if problem.return_lse() { problem.lse_len() } else { 0 }];
    let given = problem.return_lse().then_some(lse.as_mut_slice());
    let fail = |what: String| format!("{problem} (seed {seed}, {kind} inputs) on {kernel}: {what}");
    attention
        .forward_lengths(&problem, tensors, &lengths, &mut out, given)
        .map_err(|error| fail(error.to_string()))?;

    let [q, k, v] = &tensors;
    let rows = problem.query_rows(&lengths)?;
    let want = reference_rows(&problem, q, k, v, &lengths, &rows)?;
    let tolerance = Tolerance::of(problem.dtype());
    let result = compare(&problem, &out.view(), &want, tolerance)?;
    if !result.passed && !rows.is_empty() {
        return Err(fail(result.to_string()).into());
    }
    others_untouched(&out.view(), rows).map_err(|gap| fail(gap.to_string()))?;
    if problem.return_lse() {
        // Scores are f32 whatever the dtype, but their inputs are not: the f32 tolerance holds for
        // all.
        let result = compare_lse(&problem, &lse, &want, Tolerance { atol: 2e-5, rtol: 2e-5 })?;
        if !result.passed && !want.is_empty() {
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
        masked_rows: want.iter().any(|row| row.lse == f64::NEG_INFINITY),
    })
}

/// A kernel that serves the problem, drawn by the seed from one family or from all, and how many
/// drawn before it spilled.
fn any_kernel(
    device: &Device,
    problem: &Problem,
    seed: u64,
    family: Option<&str>,
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
    // Where no config of the drawn family serves the problem, another family is drawn.
    for _ in FAMILIES {
        let drawn = FAMILIES[rng.below(FAMILIES.len())];
        let given = FAMILIES.into_iter().find(|known| Some(known.name) == family);
        let family = given.unwrap_or(drawn);
        for _ in 0..TRIES {
            let config = Config::of(&family, family.sample(&mut rng));
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
    // Few families serve odd strides, for example.
    Ok((Attention::new(device.clone()), spilled))
}

#[derive(Default, Serialize)]
struct Tally {
    passed: usize,
    failed: Vec<String>,
    redrawn: usize,
    families: BTreeMap<&'static str, Family>,
    /// Problems by mask, dtype, inputs and length.
    counts: BTreeMap<String, usize>,
}

#[derive(Default, Serialize)]
struct Family {
    problems: usize,
    #[serde(serialize_with = "count")]
    kernels: BTreeSet<String>,
    spilled: usize,
    /// Problems by the values of each lever.
    levers: BTreeMap<&'static str, BTreeMap<String, usize>>,
    /// Largest errors by dtype and inputs.
    worst: BTreeMap<String, Worst>,
}

#[derive(Default, Serialize)]
struct Worst {
    max_abs: f64,
    frobenius: f64,
    /// Share of the allowed error.
    of_allowed: f64,
}

fn count<S: serde::Serializer>(kernels: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(kernels.len() as u64)
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        let Outcome { problem, out, .. } = &outcome;
        self.passed += 1;
        self.redrawn += outcome.redrawn;
        let (family, levers) = match &outcome.kernel {
            KernelId::Gpu(config) => {
                let (family, values) = config.levers();
                (family.name, family.print(&values))
            }
            _ => ("cpu", Vec::new()),
        };
        let family = self.families.entry(family).or_default();
        family.problems += 1;
        family.spilled += outcome.spilled;
        family.kernels.insert(outcome.kernel.to_string());
        for (lever, value) in levers {
            *family.levers.entry(lever).or_default().entry(value).or_default() += 1;
        }
        let worst = format!("{} {}", problem.dtype(), outcome.inputs);
        let worst = family.worst.entry(worst).or_default();
        worst.max_abs = worst.max_abs.max(out.max_abs);
        worst.frobenius = worst.frobenius.max(out.frobenius);
        worst.of_allowed = worst.of_allowed.max(out.of_allowed);

        let mask = problem.mask().to_string();
        let long = problem.seq_len_q().min(problem.seq_len_kv()) >= 256;
        let groups = [
            mask.split('(').next().unwrap_or_default(),
            &problem.dtype().to_string(),
            outcome.inputs.name(),
            if long { "S >= 256" } else { "S < 256" },
            ["no fully masked row", "fully masked rows"][usize::from(outcome.masked_rows)],
        ];
        for group in groups {
            *self.counts.entry(group.to_string()).or_default() += 1;
        }
    }

    fn print(&self, device: &Device, seed: u64) {
        let failed = self.failed.len();
        println!("{} passed, {failed} failed on {device}, seed {seed}", self.passed);
        if self.redrawn > 0 {
            println!("{} more problems were drawn that no kernel serves", self.redrawn);
        }
        for (name, family) in &self.families {
            let Family { problems, spilled, .. } = family;
            let kernels = family.kernels.len();
            println!("{name}: {problems} problems, {kernels} kernels, {spilled} more spilled");
            for (case, worst) in &family.worst {
                println!(
                    "  {case:<24} worst max abs {:.2e}, worst frobenius {:.2e}, at most {:.2} of what is allowed",
                    worst.max_abs, worst.frobenius, worst.of_allowed
                );
            }
        }
        for failure in self.failed.iter().take(20) {
            println!("FAIL {failure}");
        }
    }
}
