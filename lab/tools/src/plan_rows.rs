//! Which kernels the plan tables choose that FlashCore ships.

use std::error::Error;

use flashcore::{KernelId, shipped_tables};
use flashcore_ir::Target;
use flashcore_kernels::Config;
use flashcore_problem::DType;

/// A row of a plan table: a kernel, and what it is chosen for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlanRow {
    pub(crate) config: Config,
    pub(crate) target: Target,
    pub(crate) dtype: DType,
    pub(crate) head_dim: usize,
    pub(crate) head_dim_v: usize,
}

/// The rows for GPUs of all tables that are shipped, each kernel once for each of its dtypes and head sizes.
pub(crate) fn plan_rows() -> Result<Vec<PlanRow>, Box<dyn Error>> {
    let mut rows = Vec::new();
    for named in shipped_tables()? {
        for (_, row) in named.table.rows() {
            let KernelId::Gpu(config) = row.kernel else { continue };
            let target = &named.table.device.target;
            let row = PlanRow {
                config,
                target: Target::from_name(target)
                    .ok_or_else(|| format!("{}: no target is named {target}", named.name))?,
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
