//! Every kernel that FlashCore chooses by itself, from the tables themselves, is clean on small problems: each under a
//! hundred schedules where there is time, in CI under one: every fifth and the first of each config on a problem of a
//! mask in turn, and what family `wgmma` and the plan tables choose for a head size on all of them.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;

use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::{Config, Plan, Refusal, ladder, mma, scalar, wgmma};
use flashcore_problem::{DType, Mask, Problem, ProblemBuilder};
use flashcore_tools::shipped::{HEAD_DIMS, one_head, plan_rows, proposed};
use rayon::prelude::*;

use crate::words;

const EVERY: usize = 5;

/// A kernel as far as its table tells it from others: 16-bit dtypes have rows in common.
type Chosen = (String, bool, (usize, usize));

fn key(config: &Config, dtype: DType, head_dims: (usize, usize)) -> Chosen {
    (config.to_string(), dtype == DType::E4M3, head_dims)
}

/// What must run whatever the sample: each row of family `wgmma` at the head size that it is for,
/// what the family chooses at each head size, and what plan tables choose.
fn must_run() -> BTreeSet<Chosen> {
    let mut must = BTreeSet::new();
    for dtype in [DType::F16, DType::E4M3] {
        for (config, head_dims) in wgmma::defaults(dtype) {
            must.insert(key(&Config::Wgmma(config), dtype, head_dims));
        }
        for head_dims in HEAD_DIMS {
            let configs = proposed(&one_head(head_dims).dtype(dtype), Target::Sm90a).into_iter();
            // How many splits there are is no matter of the kernel's.
            let of_wgmma = configs.filter_map(|config| match config {
                Config::Wgmma(config) if config.splits > 1 => {
                    Some(Config::Wgmma(wgmma::Config { splits: 3, ..config }))
                }
                Config::Wgmma(config) => Some(Config::Wgmma(config)),
                _ => None,
            });
            must.extend(of_wgmma.map(|config| key(&config, dtype, head_dims)));
        }
    }
    for row in plan_rows().unwrap() {
        must.insert(key(&row.config, row.dtype, row.head_dims));
    }
    must
}

/// Runs a kernel on the `turn`th of its problems, if it serves them.
fn is_clean(kernel: &Shipped, turn: usize) -> bool {
    let Ok(plans) = &kernel.plans else { return false };
    let report = check(plans, turn, 1, turn as u64);
    let what = format!("{} on {}, {}", kernel.config, kernel.target, kernel.what());
    assert_eq!(report.verdict, Verdict::Clean, "{what}\n{report}");
    true
}

#[test]
fn every_default_is_clean() {
    let all = shipped().unwrap();
    let (mut configs, mut must) = (BTreeSet::new(), must_run());
    let of = |kernel: &Shipped| key(&kernel.config, kernel.dtype, kernel.head_dims);
    let mut runs = Vec::new();
    for (i, kernel) in all.iter().enumerate().filter(|(_, kernel)| kernel.plans.is_ok()) {
        if i.is_multiple_of(EVERY) || !configs.contains(&kernel.config.to_string()) {
            configs.insert(kernel.config.to_string());
            must.remove(&of(kernel));
            runs.push((kernel, i / EVERY));
        }
    }
    // Each on all of its problems, in one of the 16-bit dtypes: a race may need a mask that leaves tiles one K block.
    let (all_of_them, mut ran) = (must_run(), BTreeSet::new());
    for kernel in &all {
        let problems = kernel.plans.as_ref().map_or(0, Vec::len);
        let plain = !kernel.lse && !kernel.softcap;
        if plain && all_of_them.contains(&of(kernel)) {
            for turn in 0..problems {
                if ran.insert((of(kernel), turn)) {
                    configs.insert(kernel.config.to_string());
                    must.remove(&of(kernel));
                    runs.push((kernel, turn));
                }
            }
        }
    }
    runs.into_par_iter()
        .for_each(|(kernel, turn)| assert!(is_clean(kernel, turn)));
    assert!(must.is_empty(), "not run: {must:?}");
    let dtypes = [DType::F16, DType::BF16, DType::E4M3];
    let wgmma = dtypes.into_iter().flat_map(wgmma::defaults);
    let wgmma = wgmma.map(|(config, _)| Config::Wgmma(config));
    let mma = mma::defaults().into_iter().map(|(config, ..)| Config::Mma(config));
    for config in wgmma.chain(mma) {
        assert!(configs.contains(&config.to_string()), "{config} was not run");
    }
}

/// `FLASHCORE_SCHEDULES="SCHEDULES KERNEL"` runs another number of schedules, and kernels whose id contains this. With
/// the word `one-per-config` it runs one kernel of each config, that of its largest head size.
///
/// The schedules of a kernel are shared out among its problems, each with another mask.
#[test]
#[ignore = "takes hours"]
fn every_shipped_kernel_is_clean_under_many_schedules() {
    let words = words("FLASHCORE_SCHEDULES", "100");
    let schedules: u32 = words[0].parse().unwrap();
    let mut all = shipped().unwrap();
    let (mut clean, mut refused, mut wrong, mut simulations) = (0, 0, 0, 0);
    for word in &words[1..] {
        match word.as_str() {
            "one-per-config" => all = one_of_each_config(all),
            part => all.retain(|kernel| kernel.config.to_string().contains(part)),
        }
    }
    for kernel in &all {
        let verdict = match &kernel.plans {
            Err(refusal) => {
                refused += 1;
                format!("refused: {refusal}")
            }
            Ok(plans) => {
                let each = schedules.div_ceil(plans.len() as u32);
                let reports = (0..plans.len()).map(|turn| check(plans, turn, each, u64::from(each) * turn as u64));
                let reports: Vec<CheckReport> = reports.collect();
                simulations += reports.iter().map(|report| report.schedules.len()).sum::<usize>();
                let found = reports.iter().find(|report| report.verdict != Verdict::Clean);
                clean += usize::from(found.is_none());
                wrong += usize::from(found.is_some());
                found.map_or("clean".to_string(), CheckReport::to_string)
            }
        };
        println!("{} {} {}: {verdict}", kernel.config, kernel.target, kernel.what());
    }
    println!(
        "{} kernels: {clean} clean, {refused} refuse such problems, {wrong} not clean; {simulations} simulations",
        all.len()
    );
    assert_eq!(wrong, 0);
}

/// The last kernel that serves its problems of each config, in 16 and in 8 bits: head sizes go upwards.
fn one_of_each_config(all: Vec<Shipped>) -> Vec<Shipped> {
    let mut last = BTreeMap::new();
    for kernel in all.into_iter().filter(|kernel| kernel.plans.is_ok()) {
        last.insert((kernel.config.to_string(), kernel.dtype == DType::E4M3), kernel);
    }
    last.into_values().collect()
}

fn check(plans: &[Plan], turn: usize, schedules: u32, first_schedule: u64) -> CheckReport {
    let options = CheckOptions {
        schedules,
        first_schedule,
        ..CheckOptions::default()
    };
    check_plan(&plans[turn % plans.len()], &options).unwrap()
}

/// A kernel, and plans of the problems that it is to be clean on; or why it serves none of the
/// kind.
struct Shipped {
    config: Config,
    target: Target,
    dtype: DType,
    /// `head_dim` and `head_dim_v`.
    head_dims: (usize, usize),
    lse: bool,
    softcap: bool,
    plans: Result<Vec<Plan>, Refusal>,
}

impl Shipped {
    /// What it serves: `D64/64 fp16 with soft cap`.
    fn what(&self) -> String {
        let option = match (self.lse, self.softcap) {
            (true, _) => " with log-sum-exp",
            (_, true) => " with soft cap",
            _ => "",
        };
        format!("D{}/{} {}{option}", self.head_dims.0, self.head_dims.1, self.dtype)
    }
}

/// A mask and a number of keys. The last are one K block for any kernel, so that nothing but the
/// change of tiles orders anything.
const CASES: [(Mask, usize); 5] = [
    (Mask::FULL, 140),
    (Mask::CAUSAL, 140),
    (Mask::window(Some(40), Some(3)), 140),
    (Mask::CAUSAL.top_left(), 140),
    (Mask::FULL, 30),
];

/// A config with the largest head_dim that it is for, a target and a dtype.
type Row = (Config, usize, Target, DType);

/// Every config that is chosen somewhere.
fn configs() -> Result<Vec<Row>, Box<dyn Error>> {
    let mut configs: Vec<Row> = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::E4M3] {
        let wgmma = wgmma::defaults(dtype).into_iter();
        configs.extend(wgmma.map(|(config, most)| (Config::Wgmma(config), most.0, Target::Sm90a, dtype)));
    }
    for dtype in [DType::F16, DType::BF16] {
        for (config, head_dim, target) in mma::defaults() {
            configs.push((Config::Mma(config), head_dim, target, dtype));
            // Decoding shares the keys out among blocks.
            if config.pack_heads {
                let split = Config::Mma(mma::Config { splits: 3, ..config });
                configs.push((split, head_dim, target, dtype));
            }
        }
        let ladder = ladder::FAMILY.configs();
        configs.extend(ladder.map(|config| (Config::Ladder(config.into()), 128, Target::Sm80, dtype)));
    }
    for row in plan_rows()? {
        let head_dim = row.head_dims.0.max(row.head_dims.1);
        let wanted = (row.config, row.target, row.dtype);
        let mut all = configs.iter_mut();
        match all.find(|(config, _, target, dtype)| (*config, *target, *dtype) == wanted) {
            Some((_, most, ..)) => *most = head_dim.max(*most),
            None => configs.push((row.config, head_dim, row.target, row.dtype)),
        }
    }
    Ok(configs)
}

/// Options that make another kernel of a config: log-sum-exp, and a soft cap.
const OPTIONS: [(bool, bool); 3] = [(false, false), (true, false), (false, true)];

/// All kernels, in the order of the tables.
fn shipped() -> Result<Vec<Shipped>, Box<dyn Error>> {
    let mut all = Vec::new();
    for (config, most, target, dtype) in configs()? {
        for head_dims in HEAD_DIMS {
            for options in OPTIONS {
                // What an option adds does not depend on the head size or the dtype.
                let plain = options == (false, false);
                if head_dims.0 > most || !plain && (head_dims.0 != 64 || dtype == DType::BF16) {
                    continue;
                }
                all.push(kernel(config, target, head_dims, dtype, options));
            }
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for head_dims in HEAD_DIMS {
            let Ok(problem) = sized(head_dims, dtype, 2, CASES[0]).build() else {
                continue;
            };
            for config in scalar::preferred_configs(&problem, 16) {
                let config = Config::Scalar(config);
                all.push(kernel(config, Target::Sm80, head_dims, dtype, OPTIONS[0]));
            }
        }
    }
    Ok(all)
}

fn kernel(
    config: Config,
    target: Target,
    head_dims: (usize, usize),
    dtype: DType,
    (lse, softcap): (bool, bool),
) -> Shipped {
    let pairs = matches!(config, Config::Wgmma(config) if config.cluster > 1);
    // A cluster takes two tiles at a time, of two heads of one on K and V.
    let heads = if pairs { 6 } else { 2 };
    let of_heads = CASES.map(|case| sized(head_dims, dtype, heads, case));
    // Where heads share no K and V, a pair is two tiles of rows, and the last tile has no partner.
    let of_rows = sized(head_dims, dtype, 2, (Mask::CAUSAL, 300))
        .heads(2, 2)
        .seq_len_q(300);
    let builders = of_heads.into_iter().chain(pairs.then_some(of_rows));
    let plans = builders.map(|builder| {
        let mut builder = builder.return_lse(lse);
        if softcap {
            builder = builder.softcap(30.0);
        }
        let problem = builder.build().map_err(|error| Refusal::Build(error.to_string()))?;
        // One SM, so that a block (or a cluster) of a persistent kernel has several tiles.
        Plan::new(&problem, &config, Chip { target, sms: 1 })
    });
    Shipped {
        config,
        target,
        dtype,
        head_dims,
        lse,
        softcap,
        plans: plans.collect(),
    }
}

/// Tails of rows and of keys; two heads on one of K and V.
fn sized(
    (head_dim, head_dim_v): (usize, usize),
    dtype: DType,
    heads: usize,
    (mask, keys): (Mask, usize),
) -> ProblemBuilder {
    let builder = Problem::builder().heads(heads, heads / 2);
    builder
        .seq_len_q(100)
        .seq_len_kv(keys)
        .head_dim(head_dim)
        .head_dim_v(head_dim_v)
        .dtype(dtype)
        .mask(mask)
}
