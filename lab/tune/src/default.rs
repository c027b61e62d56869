//! [`DefaultKernel`]: the kernel that the library chooses for a problem. A search begins at it and
//! reports its gain over it.

use std::fmt;

use flashcore::unstable::plans::{PlanDevice, Plans};
use flashcore::{Attention, Device, KernelId};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::{KernelCache, select, select_among};
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use crate::error::TuneError;

/// The kernel that the library chooses for a problem on a device, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DefaultKernel {
    /// The kernel.
    pub kernel: String,
    /// The row of a plan table that has it, with its evidence. `None`: heuristics chose it.
    pub row: Option<String>,
    /// The heuristics' choice, whatever the tables have.
    pub heuristics: String,
}

impl DefaultKernel {
    /// For a problem on a device with these tables; an error if nothing serves it. The library skips
    /// a kernel that a GPU's compiler spills, which is not known here: the first trial finds out.
    pub fn of(problem: &Problem, device: &PlanDevice, plans: &Plans) -> Result<DefaultKernel, TuneError> {
        let nothing = |what: String| TuneError::nothing(what);
        let heuristics = heuristics(problem, device).map_err(nothing)?;
        let (kernel, row) = match chip_of(device).map_err(nothing)? {
            Some(chip) => {
                let rows = plans.suggestions(problem);
                let choice = select_among(problem, chip, ALIGNMENT, &rows, &KernelCache::default());
                let choice = choice.map_err(|error| nothing(error.to_string()))?;
                (KernelId::Gpu(choice.plan.config), choice.suggestion)
            }
            None => {
                let choice = Attention::with(Device::Cpu, plans.clone())?.plan(problem)?;
                (choice.kernel(), choice.row())
            }
        };
        let row = row.and_then(|place| Some(plans.rows(problem).get(place)?.why()));
        Ok(DefaultKernel {
            kernel: kernel.to_string(),
            row,
            heuristics: heuristics.to_string(),
        })
    }

    /// What chose it: `heuristics`, or `row 1 of` a table with its evidence.
    pub fn by(&self) -> &str {
        self.row.as_deref().unwrap_or("heuristics")
    }
}

impl fmt::Display for DefaultKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.row {
            Some(row) => write!(f, "{}, plan {row}", self.kernel),
            None => write!(f, "{}, by heuristics", self.kernel),
        }
    }
}

const ALIGNMENT: u32 = 16;

fn chip_of(device: &PlanDevice) -> Result<Option<Chip>, String> {
    if !device.is_gpu() {
        return Ok(None);
    }
    let target = Target::from_name(&device.target).ok_or_else(|| format!("no kernel is made for {device}"))?;
    let sms = device.units;
    Ok(Some(Chip { target, sms }))
}

pub(crate) fn heuristics(problem: &Problem, device: &PlanDevice) -> Result<KernelId, String> {
    match chip_of(device)? {
        Some(chip) => select(problem, chip, ALIGNMENT, &KernelCache::default())
            .map(|choice| KernelId::Gpu(choice.plan.config))
            .map_err(|error| error.to_string()),
        None => Ok(KernelId::Cpu(flashcore_cpu::default_config(
            problem,
            device.units as usize,
        ))),
    }
}

#[cfg(test)]
mod tests {
    use flashcore::unstable::plans::{PlanSetting, PlanTarget};

    use super::*;

    #[test]
    fn a_row_precedes_heuristics_and_is_named() {
        let device = PlanDevice {
            name: "NVIDIA H200".to_string(),
            target: "sm_90a".to_string(),
            units: 132,
        };
        let find = |setting| Plans::find(&setting, None, &PlanTarget::Device(device.clone())).unwrap();
        let shipped = find(PlanSetting::Shipped);
        let held = shipped.tables()[0].table.rows().next().unwrap().1;
        let builder = Problem::builder()
            .batch(held.problem.batch)
            .heads(held.problem.heads, held.problem.kv_heads)
            .seq_len_q(held.problem.seq_q)
            .seq_len_kv(held.problem.seq_kv)
            .head_dim(held.problem.head_dim)
            .dtype(held.problem.dtype)
            .mask(held.problem.mask);
        let problem = builder.build().unwrap();
        let default = DefaultKernel::of(&problem, &device, &shipped).unwrap();
        assert_eq!(default.kernel, held.kernel.to_string());
        assert!(default.by().starts_with("row 1 of the shipped table"), "{default}");
        assert!(default.to_string().contains(", plan row 1 of"), "{default}");
        let pinned = DefaultKernel::of(&problem, &device, &find(PlanSetting::Heuristics)).unwrap();
        assert_eq!(
            (pinned.kernel.as_str(), pinned.by()),
            (default.heuristics.as_str(), "heuristics")
        );
        // No row matches it.
        let other = Problem::named("tiny").unwrap();
        let default = DefaultKernel::of(&other, &device, &shipped).unwrap();
        assert_eq!(
            (default.kernel.as_str(), default.row.as_deref()),
            (default.heuristics.as_str(), None)
        );
    }
}
