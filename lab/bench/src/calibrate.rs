//! Calibrates a GPU for the cost model: measures its rates, times kernels that no constant of the model was fitted to,
//! and compares them with what is predicted. The result is a file that stands for the card where it is not.

use flashcore::Device;
use flashcore_check::cost::{CARD_SCHEMA, CardFile};
use flashcore_ir::{Calibration, Chip, Clocks, PROFILES, Profile, Seen, Target};
use flashcore_kernels::{Config, KernelCache, Plan, near};
use flashcore_problem::Problem;
use flashcore_problem::rng::Rng;
use rayon::prelude::*;
use serde::Serialize;

use crate::agreement::{Agreement, Timed};
use crate::micro::{DeviceRates, device};
use crate::{BenchError, Case, DeviceIdentity, Options, Request, Result, run, rungs};

/// The problems, none of which the model's constants were fitted to (`lab/check/data/scalar-times.csv`).
const PROBLEMS: [&str; 12] = [
    "small-b2-causal",
    "small-f32",
    "gpt2",
    "vit-l16",
    "sd-cross",
    "llama8b-chunk-8k",
    "llama8b-decode-8k",
    "llama70b-prefill-4k",
    "gpt-oss-window-4k",
    "mpt7b-alibi-2k",
    "falcon7b-mqa-2k",
    "mistral7b-window-8k",
];
/// Kernels of a problem besides the default: on the cores of the SM, and on tensor cores.
const DRAWN: (usize, usize) = (1, 2);
/// Seed of the kernels drawn.
const SEED: u64 = 1;
/// Fewest kernels of a kind that tell an interval.
const FEWEST: usize = 5;
/// Milliseconds for the rounds of a problem, so that all take a few minutes.
const BUDGET_MS: f64 = 2_000.0;

/// Comparisons, each with its name.
type Named = Vec<(String, Agreement)>;

/// What a calibration gives, and writes.
#[derive(Clone, Debug, Serialize)]
pub struct Calibrated {
    /// What predictions take.
    #[serde(flatten)]
    pub card: CardFile,
    /// Values of the profile that are those of another card, of its architecture, and which card; none where the
    /// profile is built in.
    pub assumed: Option<String>,
    /// By kind of kernels and source of the rates.
    pub agreement: Named,
    /// The kernels.
    pub kernels: Vec<HeldOut>,
    /// The rates as they were measured.
    pub microbenchmarks: DeviceRates,
}

/// A kernel that was timed, and not fitted to. Times are in µs.
#[derive(Clone, Debug, Serialize)]
pub struct HeldOut {
    /// The problem.
    pub problem: String,
    /// The kernel.
    pub kernel: String,
    /// Whether it uses tensor cores.
    pub on_tensor_cores: bool,
    /// The measured time.
    pub measured: f64,
    /// Predicted with the card's profile alone.
    pub by_profile: f64,
    /// Predicted with the measured rates.
    pub by_rates: f64,
}

/// Calibrates a GPU. `at` is told what is done.
///
/// # Errors
/// A device that is no GPU or of an architecture without a profile, a kernel whose result is wrong, too few kernels.
pub fn calibrate(device: &Device, at: &dyn Fn(&str)) -> Result<Calibrated> {
    let no_gpu = || BenchError::Given(format!("only GPUs are calibrated, and {device} is none"));
    let context = device.context().ok_or_else(no_gpu)?;
    let (info, identity) = (context.info(), DeviceIdentity::cuda(context.info()));
    let (profile, assumed) = profile_of(&identity, info.chip().target, info.sm_clock_khz / 1000)?;
    at("measuring rates");
    let microbenchmarks = device::measured(context, &[])?;
    let rates = microbenchmarks.card();
    let (cache, mut timed) = (KernelCache::default(), Vec::new());
    for (index, name) in PROBLEMS.into_iter().enumerate() {
        at(&format!("timing {name}, problem {} of {}", index + 1, PROBLEMS.len()));
        timed.extend(time(device, index, Chip::from(&profile), &cache)?);
    }
    at("predicting");
    let held_out = |timed: &Timed| {
        let sources = [None, Some(&rates)];
        // What the model does not cover is no part of its error.
        let predicted = timed.predictions(&profile, &sources, &cache).ok()?;
        Some(HeldOut {
            problem: timed.problem.clone(),
            kernel: timed.config.to_string(),
            on_tensor_cores: predicted[0].trust.on_tensor_cores,
            measured: timed.micros,
            by_profile: predicted[0].micros,
            by_rates: predicted[1].micros,
        })
    };
    let kernels: Vec<HeldOut> = timed.par_iter().filter_map(held_out).collect();
    let (agreement, [scalar, tensor]) = compared(&kernels)?;
    Ok(Calibrated {
        card: CardFile {
            schema: CARD_SCHEMA,
            profile,
            calibration: Calibration { rates, tensor, scalar },
        },
        assumed,
        agreement,
        kernels,
        microbenchmarks,
    })
}

/// The profile of a device. One that is not built in has what the driver says, and the rest of the card of its
/// architecture with the nearest number of SMs, at its own number and clock: what that is, is said.
fn profile_of(device: &DeviceIdentity, target: Target, mhz: u32) -> Result<(Profile, Option<String>)> {
    let (name, sms) = (&device.name, device.units);
    if let Some(known) = Profile::of_device(name, sms) {
        return Ok((*known, None));
    }
    if mhz == 0 || sms == 0 {
        let why = format!("the driver says {sms} SMs at {mhz} MHz of {name}, of which no profile can be made");
        return Err(BenchError::Failed(why));
    }
    let alike = PROFILES.iter().filter(|profile| profile.target == target);
    let nearest = alike.min_by_key(|profile| profile.sms.abs_diff(sms));
    let nothing = || {
        let known = Profile::names();
        BenchError::Given(format!(
            "no profile is of a card like {name} ({target}); profiles are {known}"
        ))
    };
    let like = nearest.ok_or_else(nothing)?;
    let size = f64::from(sms) * f64::from(mhz) / (f64::from(like.sms) * f64::from(like.boost_mhz));
    let profile = Profile {
        name: "calibrated",
        title: name.clone().leak(),
        sms,
        boost_mhz: mhz,
        clocks: Clocks {
            highest: f64::from(mhz),
            sustained: f64::from(mhz) * like.clocks.sustained / like.clocks.highest,
            source: "the driver's highest clock, and the part of it that the nearest card sustains",
        },
        l2_bytes: device.l2_bytes,
        tensor_f16_f32acc_tflops: like.tensor_f16_f32acc_tflops * size,
        tensor_f16_f16acc_tflops: like.tensor_f16_f16acc_tflops * size,
        f32_tflops: like.f32_tflops * size,
        source: "the driver, and the nearest card of the architecture",
        ..*like
    };
    let assumed = format!(
        "{}'s bandwidth and power limit, its rates for as many SMs at {mhz} MHz, and the part of the clock that it \
         sustains",
        like.title
    );
    Ok((profile, Some(assumed)))
}

/// Times the default and the drawn kernels of the problem at this place.
fn time(device: &Device, index: usize, chip: Chip, cache: &KernelCache) -> Result<Vec<Timed>> {
    let name = PROBLEMS[index];
    let problem = Problem::named(name)?;
    let kernels = drawn(&problem, index, chip, cache);
    let request = Request {
        kernels: std::iter::once("default".to_string()).chain(kernels).collect(),
        cases: vec![Case::new(name, problem)],
        options: Options {
            budget_ms: BUDGET_MS,
            ..Options::default()
        },
        ..Request::default()
    };
    let report = run(device, &request, &mut (), None, &mut ())?;
    let mut timed = Vec::new();
    for result in &report.results {
        for (subject, inspection) in result.measurement.subjects.iter().zip(&result.inspections) {
            if let Some(wrong) = inspection.as_ref().filter(|found| !found.passed()) {
                let why = format!("{} on {name}: {wrong}", subject.info.label);
                return Err(BenchError::Failed(why));
            }
            let (Some(summary), Ok(config)) = (&subject.summary, subject.info.label.parse()) else {
                continue;
            };
            timed.push(Timed {
                problem: name.to_string(),
                shape: result.case.problem.clone(),
                config,
                micros: summary.p50,
            });
        }
    }
    Ok(timed)
}

/// Some rungs of the ladder and neighbours of the default, the same in every run, and others for each problem.
fn drawn(problem: &Problem, index: usize, chip: Chip, cache: &KernelCache) -> Vec<String> {
    let rungs = rungs(problem, chip, &[]).into_iter().map(|rung| rung.config);
    let all = rungs.chain(near(problem, chip, cache));
    let serving = all.filter(|config| Plan::with_cache(problem, config, chip, cache).is_ok());
    let (scalar, tensor): (Vec<_>, Vec<_>) = serving.partition(|config| matches!(config, Config::Scalar(_)));
    let mut rng = Rng::stream(SEED, index as u64);
    let mut ids = Vec::new();
    for (mut pool, count) in [(scalar, DRAWN.0), (tensor, DRAWN.1)] {
        for _ in 0..count.min(pool.len()) {
            ids.push(pool.swap_remove(rng.below(pool.len())).to_string());
        }
    }
    ids
}

/// The errors by kind of kernels and source of rates, and the intervals with measured rates: scalar, tensor cores.
fn compared(kernels: &[HeldOut]) -> Result<(Named, [Seen; 2])> {
    type Predicted = fn(&HeldOut) -> f64;
    let sources: [(&str, Predicted); 2] = [("profile", |one| one.by_profile), ("rates", |one| one.by_rates)];
    let mut agreement = Vec::new();
    let mut seen = [Seen {
        kernels: 0,
        low: 1.0,
        high: 1.0,
    }; 2];
    for (kind, on_tensor_cores) in [("scalar", Some(false)), ("tensor cores", Some(true)), ("all", None)] {
        for (source, predicted) in sources {
            let of_kind = kernels
                .iter()
                .filter(|one| on_tensor_cores.is_none_or(|on| one.on_tensor_cores == on));
            let pairs: Vec<(f64, f64)> = of_kind.map(|one| (predicted(one), one.measured)).collect();
            let few = || {
                BenchError::Failed(format!(
                    "{} kernels were timed, {kind}; {FEWEST} are needed",
                    pairs.len()
                ))
            };
            let found = Agreement::of(&pairs)
                .filter(|found| found.count >= FEWEST)
                .ok_or_else(few)?;
            if let Some(on) = on_tensor_cores {
                // The last source, the measured rates, is what predictions take.
                seen[usize::from(on)] = Seen {
                    kernels: found.count,
                    low: found.p10_ratio,
                    high: found.p90_ratio,
                };
            }
            agreement.push((format!("{kind}, {source}"), found));
        }
    }
    Ok((agreement, seen))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn device(name: &str, units: u32) -> DeviceIdentity {
        DeviceIdentity {
            name: name.to_string(),
            units,
            l2_bytes: 24 << 20,
            ..DeviceIdentity::predicted(&PROFILES[0])
        }
    }

    #[test]
    fn a_card_that_is_not_built_in_is_made_of_the_nearest_one() {
        let known = profile_of(&device("NVIDIA L4", 58), Target::Sm89, 2040).unwrap();
        assert_eq!(known, (*Profile::named("l4").unwrap(), None));
        let (half, assumed) = profile_of(&device("NVIDIA L2", 29), Target::Sm89, 2040).unwrap();
        assert_eq!((half.title, half.sms, half.l2_bytes), ("NVIDIA L2", 29, 24 << 20));
        assert_eq!((half.dram_gbps, half.f32_tflops), (300.0, 30.3 / 2.0));
        assert!(assumed.unwrap().starts_with("NVIDIA L4's bandwidth"));
        let error = profile_of(&device("NVIDIA T4", 40), Target::Sm75, 1590)
            .unwrap_err()
            .to_string();
        assert!(error.contains("a card like NVIDIA T4 (sm_75)"), "{error}");
        let error = profile_of(&device("NVIDIA L2", 29), Target::Sm89, 0)
            .unwrap_err()
            .to_string();
        assert!(error.contains("29 SMs at 0 MHz"), "{error}");
    }

    #[test]
    fn every_problem_is_there_and_has_the_same_kernels_in_every_run() {
        let cache = KernelCache::default();
        let problem = Problem::named("small-b2-causal").unwrap();
        let of = |index| drawn(&problem, index, Target::Sm89.into(), &cache);
        let scalar: BTreeSet<String> = (0..PROBLEMS.len()).map(|index| of(index).swap_remove(0)).collect();
        assert!(scalar.len() > 2, "{scalar:?}");
        assert_eq!((of(0).len(), of(0)), (DRAWN.0 + DRAWN.1, of(0)));
        let floats = drawn(&Problem::named("small-f32").unwrap(), 0, Target::Sm89.into(), &cache);
        assert!(floats.iter().all(|id| id.starts_with("scalar/")), "{floats:?}");
        let fitted = include_str!("../../check/data/scalar-times.csv");
        for name in PROBLEMS {
            assert!(Problem::named(name).is_ok(), "{name}");
            assert!(
                !fitted.lines().any(|line| line.starts_with(&format!("{name},"))),
                "{name}"
            );
        }
    }

    #[test]
    fn kinds_and_sources_are_compared_apart() {
        let one = |on_tensor_cores, measured: f64, by_profile, by_rates| HeldOut {
            problem: "p".to_string(),
            kernel: "k".to_string(),
            on_tensor_cores,
            measured,
            by_profile,
            by_rates,
        };
        let of_kind = |on, ratio: f64| {
            (1..=11).map(move |time| {
                let time = f64::from(time);
                one(on, ratio * time * (1.0 + (time - 6.0) / 100.0), 2.0 * time, time)
            })
        };
        let kernels: Vec<HeldOut> = of_kind(false, 1.0).chain(of_kind(true, 1.5)).collect();
        let (agreement, [scalar, tensor]) = compared(&kernels).unwrap();
        let of = |name: &str| &agreement.iter().find(|(named, _)| named == name).unwrap().1;
        assert_eq!((of("all, rates").count, of("scalar, profile").count), (22, 11));
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(of("scalar, profile").median_ratio, 0.5);
        close(of("tensor cores, rates").median_ratio, 1.5);
        close(of("tensor cores, rates").spearman, 1.0);
        assert_eq!((scalar.kernels, tensor.kernels), (11, 11));
        close(scalar.low, 0.96);
        close(scalar.high, 1.04);
        close(tensor.high, 1.5 * 1.04);
        let error = compared(&kernels[..13]).unwrap_err().to_string();
        assert!(
            error.contains("2 kernels were timed, tensor cores; 5 are needed"),
            "{error}"
        );
    }
}
