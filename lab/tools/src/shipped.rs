//! Every kernel that FlashCore chooses by itself, from the families' tables of defaults and the
//! shipped plan tables.

use std::error::Error;

use flashcore::KernelId;
use flashcore::plans::shipped_tables;
use flashcore_ir::{Chip, Target};
use flashcore_kernels::{Config, Plan, Refusal, ladder, mma, scalar, wgmma};
use flashcore_problem::{DType, Mask, Problem, ProblemBuilder};

/// Head sizes, of Q and K and of V.
pub(crate) const HEAD_DIMS: [(usize, usize); 8] = [
    (48, 48),
    (64, 64),
    (72, 72),
    (96, 96),
    (128, 128),
    (192, 128),
    (192, 192),
    (256, 256),
];

/// A row of a plan table: a kernel and its problems.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlanRow {
    pub(crate) config: Config,
    pub(crate) target: Target,
    pub(crate) dtype: DType,
    pub(crate) head_dim: usize,
    pub(crate) head_dim_v: usize,
}

/// The rows for GPUs of all tables that are shipped, each kernel once for each of its dtypes and
/// head sizes.
pub(crate) fn plan_rows() -> Result<Vec<PlanRow>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for named in shipped_tables()? {
        for (_, row) in named.table.rows() {
            let KernelId::Gpu(config) = row.kernel else { continue };
            let target = &named.table.device.target;
            let unknown = || format!("{}: no target is named {target}", named.name);
            let row = PlanRow {
                config,
                target: Target::from_name(target).ok_or_else(unknown)?,
                dtype: row.problem.dtype,
                head_dim: row.problem.head_dim,
                head_dim_v: row.problem.head_dim_v,
            };
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// Batch, heads, rows and keys of decoding, of small, medium and large problems, and of large ones
/// with shorter rows.
const SIZES: [[usize; 4]; 7] = [
    [1, 8, 1, 8192],
    [1, 4, 512, 512],
    [2, 8, 1024, 1024],
    [32, 32, 512, 512],
    [16, 32, 1024, 1024],
    [8, 32, 2048, 2048],
    [8, 32, 4096, 4096],
];

/// The configs of families `mma` and `wgmma` that are chosen for a shape on a target, at any size
/// and mask.
pub(crate) fn proposed(shape: &ProblemBuilder, target: Target) -> Vec<Config> {
    let mut taken = Vec::new();
    for [batch, heads, rows, keys] in SIZES {
        for mask in [Mask::FULL, Mask::CAUSAL] {
            let builder = shape.clone().batch(batch).heads(heads, heads).mask(mask);
            let Ok(problem) = builder.seq_len_q(rows).seq_len_kv(keys).build() else {
                continue;
            };
            let fits = |config: &Config| Plan::new(&problem, config, target).is_ok();
            let of_wgmma = wgmma::proposals(&problem, target).into_iter();
            let of_mma = mma::proposals(&problem, target).into_iter();
            let of_wgmma = of_wgmma.map(|proposal| Config::Wgmma(proposal.config)).find(fits);
            let of_mma = of_mma.map(|proposal| Config::Mma(proposal.config)).find(fits);
            for config in of_wgmma.into_iter().chain(of_mma) {
                if !taken.contains(&config) {
                    taken.push(config);
                }
            }
        }
    }
    taken
}

/// A kernel, and plans of the problems that it is to be clean on; or why it serves none of the
/// kind.
pub(crate) struct Shipped {
    pub(crate) config: Config,
    pub(crate) target: Target,
    pub(crate) dtype: DType,
    /// `head_dim` and `head_dim_v`.
    pub(crate) head_dims: (usize, usize),
    pub(crate) lse: bool,
    pub(crate) softcap: bool,
    pub(crate) plans: Result<Vec<Plan>, Refusal>,
}

impl Shipped {
    /// What it serves: `D64/64 fp16 with soft cap`.
    pub(crate) fn what(&self) -> String {
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
        let head_dim = row.head_dim.max(row.head_dim_v);
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
///
/// # Errors
/// A plan table that cannot be read.
pub(crate) fn shipped() -> Result<Vec<Shipped>, Box<dyn Error>> {
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
