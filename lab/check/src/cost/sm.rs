//! [`Resource`]s of a card, and the clocks that [`Work`] takes each of them.

use flashcore_ir::Profile;
use serde::Serialize;

use super::measured::{MeasuredCard, replace};
use super::rates::Rates;
use super::work::Work;

/// A resource that can bind a kernel.
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
    /// All resources.
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

    /// The name in text.
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

    /// Whether each quarter of an SM has its own, so that one warp gets a quarter of the rate.
    fn is_split(self) -> bool {
        !matches!(self, Resource::Shared | Resource::L2 | Resource::Dram)
    }
}

/// Bytes per pass over shared memory.
const PASS_BYTES: f64 = 128.0;

/// One SM of a card: the rates of its architecture, and the tensor-core rates of its datasheet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sm {
    pub(crate) rates: Rates,
    /// Tensor FLOPs per clock of `mma.sync` with f32 accumulators.
    tensor_f32: f64,
    /// The same with f16 accumulators.
    tensor_f16: f64,
    /// The same of warpgroup products, which reach the datasheet's rate.
    tensor_wgmma: f64,
    /// The same of e4m3: twice as many according to the datasheet.
    tensor_e4m3: f64,
}

impl Sm {
    /// From the card's profile, and measured rates where there are any.
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
        let Some(measured) = measured else { return sm };
        let rates = &mut sm.rates;
        for (assumed, measured) in [
            (&mut rates.l2_bytes, measured.l2_bytes),
            (&mut rates.passes, measured.shared_bytes.map(|bytes| bytes / PASS_BYTES)),
            (&mut rates.fma, measured.fma),
            (&mut rates.mufu, measured.mufu),
            (&mut rates.latency.mufu, measured.mufu_latency),
            (&mut rates.latency.shared, measured.shared_latency),
            (&mut rates.latency.l2, measured.l2_latency),
            (&mut rates.latency.mma, measured.mma_latency),
            (&mut rates.latency.barrier, measured.barrier_latency),
            (&mut sm.tensor_f32, measured.tensor_f32),
            (&mut sm.tensor_f16, measured.tensor_f16),
            (&mut sm.tensor_wgmma, measured.tensor_wgmma),
            (&mut sm.tensor_e4m3, measured.tensor_e4m3),
        ] {
            replace(assumed, measured);
        }
        sm
    }

    /// Clocks for which work occupies a resource of the SM; 0 for device memory, which SMs share.
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

    /// Clocks of a warp's work if the warp has a quarter of the SM to itself.
    pub(crate) fn clocks_of_a_warp(&self, work: &Work) -> f64 {
        let clocks = |resource: Resource| {
            let share = if resource.is_split() { 4.0 } else { 1.0 };
            share * self.clocks(work, resource)
        };
        Resource::ALL.into_iter().map(clocks).fold(0.0, f64::max)
    }
}
