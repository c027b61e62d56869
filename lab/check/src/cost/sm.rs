//! [`Resource`]s of a card, and the clocks that [`Work`] takes each of them.

use flashcore_ir::Profile;
use serde::Serialize;

use super::measured::{MeasuredCard, replace};
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

/// Bytes of a pass over shared memory.
const PASS_BYTES: f64 = 128.0;

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
    /// The same of e4m3: twice as many, by the datasheet.
    tensor_e4m3: f64,
}

impl Sm {
    /// By the card's profile, and where there is any by what was measured on the card.
    pub(crate) fn of(profile: &Profile, measured: Option<&MeasuredCard>) -> Sm {
        let rates = Rates::of(profile.target);
        let per_clock = |tflops: f64| tflops * 1e12 / (f64::from(profile.sms) * f64::from(profile.boost_mhz) * 1e6);
        let mut sm = Sm {
            tensor_f32: rates.mma_sync * per_clock(profile.tensor_f16_f32acc_tflops),
            tensor_f16: rates.mma_sync * per_clock(profile.tensor_f16_f16acc_tflops),
            tensor_wgmma: per_clock(profile.tensor_f16_f32acc_tflops),
            tensor_e4m3: 2.0 * per_clock(profile.tensor_f16_f32acc_tflops),
            rates,
        };
        if let Some(measured) = measured {
            sm.take(measured);
        }
        sm
    }

    fn take(&mut self, measured: &MeasuredCard) {
        let rates = &mut self.rates;
        replace(&mut rates.l2_bytes, measured.l2_bytes);
        replace(&mut rates.passes, measured.shared_bytes.map(|bytes| bytes / PASS_BYTES));
        replace(&mut rates.fma, measured.fma);
        replace(&mut rates.mufu, measured.mufu);
        replace(&mut rates.latency.mufu, measured.mufu_latency);
        replace(&mut rates.latency.shared, measured.shared_latency);
        replace(&mut rates.latency.l2, measured.l2_latency);
        replace(&mut rates.latency.mma, measured.mma_latency);
        replace(&mut rates.latency.barrier, measured.barrier_latency);
        replace(&mut self.tensor_f32, measured.tensor_f32);
        replace(&mut self.tensor_f16, measured.tensor_f16);
        replace(&mut self.tensor_wgmma, measured.tensor_wgmma);
        replace(&mut self.tensor_e4m3, measured.tensor_e4m3);
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
                    + work.tensor_e4m3 / self.tensor_e4m3
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
