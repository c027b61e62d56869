//! Every kernel that FlashCore chooses by itself, from the families' tables of defaults and the
//! shipped plan tables.

use std::error::Error;

use flashcore::KernelId;
use flashcore::unstable::plans::shipped_tables;
use flashcore_ir::Target;
use flashcore_kernels::{Config, Plan, mma, wgmma};
use flashcore_problem::{DType, Mask, Problem, ProblemBuilder};

/// Head sizes, of Q and K and of V.
pub const HEAD_DIMS: [(usize, usize); 11] = [
    (48, 48),
    (64, 64),
    (72, 72),
    (80, 80),
    (96, 96),
    (112, 112),
    (128, 128),
    (160, 160),
    (192, 128),
    (192, 192),
    (256, 256),
];

/// One head of 128 rows and keys.
pub fn one_head((head_dim, head_dim_v): (usize, usize)) -> ProblemBuilder {
    let builder = Problem::builder().heads(1, 1).seq_len(128);
    builder.head_dim(head_dim).head_dim_v(head_dim_v)
}

/// A row of a plan table: a kernel and its problems.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlanRow {
    /// The kernel.
    pub config: Config,
    /// The architecture of the table's device.
    pub target: Target,
    /// Dtype of the problems.
    pub dtype: DType,
    /// Their `head_dim` and `head_dim_v`.
    pub head_dims: (usize, usize),
}

/// The rows for GPUs of all tables that are shipped, each kernel once for each of its dtypes and
/// head sizes.
///
/// # Errors
/// A table that cannot be read, or one of a target that is none.
pub fn plan_rows() -> Result<Vec<PlanRow>, Box<dyn Error>> {
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
                head_dims: (row.problem.head_dim, row.problem.head_dim_v),
            };
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

/// What family `wgmma` proposes for a problem, the best first. Tiles with too little room leave it to the next ones.
pub fn of_wgmma(problem: &Problem, target: Target) -> impl Iterator<Item = Config> {
    let configs = wgmma::proposals(problem, target).into_iter();
    let configs = configs.map(|proposal| Config::Wgmma(proposal.config));
    configs.filter(move |config| Plan::new(problem, config, target).is_ok())
}

/// The same of family `mma`.
pub fn of_mma(problem: &Problem, target: Target) -> impl Iterator<Item = Config> {
    let configs = mma::proposals(problem, target).map(|proposal| Config::Mma(proposal.config));
    configs.filter(move |config| Plan::new(problem, config, target).is_ok())
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
pub fn proposed(shape: &ProblemBuilder, target: Target) -> Vec<Config> {
    let mut taken = Vec::new();
    for [batch, heads, rows, keys] in SIZES {
        for mask in [Mask::FULL, Mask::CAUSAL] {
            let builder = shape.clone().batch(batch).heads(heads, heads).mask(mask);
            let Ok(problem) = builder.seq_len_q(rows).seq_len_kv(keys).build() else {
                continue;
            };
            for config in of_wgmma(&problem, target)
                .take(1)
                .chain(of_mma(&problem, target).take(1))
            {
                if !taken.contains(&config) {
                    taken.push(config);
                }
            }
        }
    }
    taken
}
