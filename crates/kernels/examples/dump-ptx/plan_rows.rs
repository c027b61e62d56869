//! Which kernels the plan tables choose that FlashCore ships. Read by `dump-ptx`, and by what simulates every shipped kernel
//! (`flashcore-check`).

use std::error::Error;
use std::path::Path;

use flashcore_ir::Target;
use flashcore_kernels::Config;
use flashcore_problem::DType;
use serde_json::Value;

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
    // Data of another room, read as text: this room knows of no plan tables.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/flashcore/data/plans");
    let mut files: Vec<_> = std::fs::read_dir(&folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_, std::io::Error>>()?;
    files.sort();
    let mut rows = Vec::new();
    for file in files {
        let table: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
        let wrong = |what: &str, value: &Value| format!("{}: {value} is no {what}", file.display());
        for row in table["rows"]
            .as_array()
            .ok_or_else(|| wrong("list of rows", &table["rows"]))?
        {
            let (kernel, problem) = (row["kernel"].as_str().unwrap_or_default(), &row["problem"]);
            if kernel.starts_with("cpu/") {
                continue;
            }
            let number = |name: &str| problem[name].as_u64().ok_or_else(|| wrong(name, problem));
            let (target, dtype) = (&table["device"]["target"], &problem["dtype"]);
            let row = PlanRow {
                config: kernel.parse()?,
                target: target
                    .as_str()
                    .and_then(Target::from_name)
                    .ok_or_else(|| wrong("target", target))?,
                dtype: dtype
                    .as_str()
                    .and_then(DType::from_name)
                    .ok_or_else(|| wrong("dtype", dtype))?,
                head_dim: number("head_dim")? as usize,
                head_dim_v: number("head_dim_v")? as usize,
            };
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    Ok(rows)
}
