//! [`PlanSummary`]: which kernel would serve a problem, and why.

#[cfg(feature = "cpu")]
use flashcore_cpu::CpuConfig;
use flashcore_kernels::Choice;

use crate::KernelId;

/// How a problem would be computed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum PlanSummary {
    /// On the CPU, with these levers, chosen for this reason.
    #[cfg(feature = "cpu")]
    Cpu(CpuChoice),
    /// On a GPU, with this plan, chosen for this reason.
    Gpu(Box<Choice>),
}

/// The levers chosen on the CPU, and how.
#[cfg(feature = "cpu")]
#[derive(Clone, Debug, PartialEq)]
pub struct CpuChoice {
    /// The levers.
    pub config: CpuConfig,
    /// Why these, in a sentence.
    pub why: String,
    /// Place of the row they are from in [`Plans::rows`](super::Plans::rows), if they are from one.
    pub row: Option<usize>,
}

impl PlanSummary {
    /// The kernel's id.
    pub fn kernel(&self) -> KernelId {
        match self {
            #[cfg(feature = "cpu")]
            PlanSummary::Cpu(choice) => KernelId::Cpu(choice.config),
            PlanSummary::Gpu(choice) => KernelId::Gpu(choice.plan.config),
        }
    }

    /// Why this kernel, in a sentence.
    pub fn why(&self) -> &str {
        match self {
            #[cfg(feature = "cpu")]
            PlanSummary::Cpu(choice) => &choice.why,
            PlanSummary::Gpu(choice) => &choice.why,
        }
    }

    /// Place of the row it is from in [`Plans::rows`](super::Plans::rows) of the problem, if it is from a plan table.
    pub fn row(&self) -> Option<usize> {
        match self {
            #[cfg(feature = "cpu")]
            PlanSummary::Cpu(choice) => choice.row,
            PlanSummary::Gpu(choice) => choice.suggestion,
        }
    }
}
