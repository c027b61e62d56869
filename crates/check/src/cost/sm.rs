//! [`Resource`]s of a card, and the clocks that [`Work`] takes each of them.

use flashcore_ir::Profile;
use serde::Serialize;

use super::rates::Rates;
use super::work::Work;

/// What a kernel can run out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Tensor cores.
    Tensor,
    /// Special functions: exponentials and reciprocals.
    Mufu,
    /// f32 arithmetic and integer products.
    Fma,
    /// Integers, logic, comparisons, conversions.
    Alu,
    /// Issue slots of the schedulers.
    Issue,
    /// Shared memory and L1: passes over 128 bytes, exchanges between lanes.
    Shared,
    /// Bytes from and to L2.
    L2,
    /// Bytes from and to device memory.
    Dram,
}

impl Resource {
    /// All of them.
    pub const ALL: [Resource; 8] = [
        Resource::Tensor,
        Resource::Mufu,
        Resource::Fma,
        Resource::Alu,
        Resource::Issue,
        Resource::Shared,
        Resource::L2,
        Resource::Dram,
    ];

    /// As people say it.
    pub fn title(self) -> &'static str {
        match self {
            Resource::Tensor => "tensor cores",
            Resource::Mufu => "exponentials (MUFU)",
            Resource::Fma => "FMA pipe",
            Resource::Alu => "ALU pipe",
            Resource::Issue => "issue slots",
            Resource::Shared => "shared memory",
            Resource::L2 => "L2 to SM",
            Resource::Dram => "device memory",
        }
    }

    /// Whether each quarter of an SM has its own, so that a warp alone gets a quarter of the rate.
    fn is_split(self) -> bool {
        !matches!(self, Resource::Shared | Resource::L2 | Resource::Dram)
    }
}

/// One SM of a card: rates of its architecture, and what the card's clock and datasheet make of its tensor cores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sm {
    pub(crate) rates: Rates,
    /// Tensor FLOPs a clock with f32 accumulators, as `mma.sync` reaches them.
    tensor_f32: f64,
    /// The same with f16 accumulators.
    tensor_f16: f64,
    /// The same of warpgroups' products, which reach the datasheet's.
    tensor_wgmma: f64,
}

impl Sm {
    pub(crate) fn of(profile: &Profile) -> Sm {
        let rates = Rates::of(profile.target);
        let per_clock = |tflops: f64| tflops * 1e12 / (f64::from(profile.sms) * f64::from(profile.boost_mhz) * 1e6);
        Sm {
            tensor_f32: rates.mma_sync * per_clock(profile.tensor_f16_f32acc_tflops),
            tensor_f16: rates.mma_sync * per_clock(profile.tensor_f16_f16acc_tflops),
            tensor_wgmma: per_clock(profile.tensor_f16_f32acc_tflops),
            rates,
        }
    }

    /// Clocks of the whole SM that work takes a resource; 0 for device memory, which SMs share.
    pub(crate) fn clocks(&self, work: &Work, resource: Resource) -> f64 {
        let rates = &self.rates;
        let warps = |lanes: f64| 32.0 / lanes;
        match resource {
            Resource::Tensor => {
                work.tensor_f32 / self.tensor_f32
                    + work.tensor_f16 / self.tensor_f16
                    + work.tensor_wgmma / self.tensor_wgmma
            }
            Resource::Mufu => work.mufu * warps(rates.mufu),
            Resource::Fma => {
                work.fma * warps(rates.fma) + work.int_mul * warps(rates.int_mul) + work.half * warps(rates.half)
            }
            Resource::Alu => work.alu * warps(rates.alu) + work.convert * warps(rates.convert),
            Resource::Issue => work.issued / rates.issue,
            Resource::Shared => work.passes / rates.passes,
            Resource::L2 => work.l2_bytes / rates.l2_bytes,
            Resource::Dram => 0.0,
        }
    }

    /// Clocks that a warp's work takes when the warp has a quarter of the SM to itself.
    pub(crate) fn clocks_of_a_warp(&self, work: &Work) -> f64 {
        let clocks = |resource: Resource| {
            let share = if resource.is_split() { 4.0 } else { 1.0 };
            share * self.clocks(work, resource)
        };
        Resource::ALL.into_iter().map(clocks).fold(0.0, f64::max)
    }
}
