//! [`Resource`]s of a card, and the clocks that [`Work`] takes each of them.

use flashcore_ir::{MeasuredCard, Profile};
use serde::Serialize;

use super::calibration;
use super::rates::{Latencies, Rates, replace};
use super::work::{UNITS, Unit, Work};

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

    /// Its name in text; the units whose work occupies it, none for device memory, which SMs share;
    /// and whether each quarter of an SM has its own, so that one warp gets a quarter of the rate.
    fn row(self) -> (&'static str, &'static [Unit], bool) {
        use Unit::{Alu, Convert, Double, Fma, Half, IntMul, Issue, L2Bytes, Mufu, Passes};
        use Unit::{TensorE4m3, TensorF16, TensorF32, TensorWgmma};
        match self {
            Resource::Tensor => ("tensor cores", &[TensorF32, TensorF16, TensorWgmma, TensorE4m3], true),
            Resource::Mufu => ("exponentials (MUFU)", &[Mufu], true),
            Resource::Fma => ("FMA pipe", &[Fma, IntMul, Half, Double], true),
            Resource::Alu => ("ALU pipe", &[Alu, Convert], true),
            Resource::Issue => ("issue slots", &[Issue], true),
            Resource::Shared => ("shared memory", &[Passes], false),
            Resource::L2 => ("L2 to SM", &[L2Bytes], false),
            Resource::Dram => ("device memory", &[], false),
        }
    }

    /// The name in text.
    pub fn title(self) -> &'static str {
        self.row().0
    }
}

/// One SM of a card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sm {
    pub(crate) latency: Latencies,
    /// Work per clock by [`Unit`].
    per_clock: [f64; UNITS],
}

impl Sm {
    /// The rates of the card's architecture, the tensor-core rates of its datasheet, and measured
    /// rates where there are any. Warpgroup products reach the datasheet's rate, and those of e4m3
    /// are twice as fast.
    pub(crate) fn of(profile: &Profile, measured: Option<&MeasuredCard>) -> Sm {
        let mut rates = Rates::of(profile.target);
        let flops = |tflops: f64| tflops * 1e12 / (f64::from(profile.sms) * f64::from(profile.boost_mhz) * 1e6);
        let mut wgmma = flops(profile.tensor_f16_f32acc_tflops);
        let mut e4m3 = 2.0 * wgmma;
        let mut f32 = rates.mma_sync * wgmma;
        let mut f16 = rates.mma_sync * flops(profile.tensor_f16_f16acc_tflops);
        if let Some(measured) = measured.or(profile.rates()) {
            let latency = &mut rates.latency;
            for (assumed, measured) in [
                // A pass is over 128 bytes.
                (&mut rates.passes, measured.shared_bytes.map(|bytes| bytes / 128.0)),
                (&mut rates.mufu, measured.mufu),
                (&mut latency.mufu, measured.mufu_latency),
                (&mut latency.shared, measured.shared_latency),
                (&mut latency.l2, measured.l2_latency),
                (&mut latency.mma, measured.mma_latency),
                (&mut latency.barrier, measured.barrier_latency),
                (&mut f32, measured.tensor_f32),
                (&mut f16, measured.tensor_f16),
                (&mut wgmma, measured.tensor_wgmma),
                (&mut e4m3, measured.tensor_e4m3),
            ] {
                replace(assumed, measured);
            }
        }
        let mut per_clock = [0.0; UNITS];
        for (unit, rate) in [
            (Unit::Issue, rates.issue),
            (Unit::Fma, rates.fma / 32.0),
            (Unit::IntMul, rates.int_mul / 32.0),
            (Unit::Half, rates.half / 32.0),
            (Unit::Double, rates.double / 32.0),
            (Unit::Alu, rates.alu / 32.0),
            (Unit::Convert, rates.convert / 32.0),
            (Unit::Mufu, rates.mufu / 32.0),
            (Unit::TensorF32, f32),
            (Unit::TensorF16, f16),
            (Unit::TensorWgmma, wgmma),
            (Unit::TensorE4m3, e4m3),
            (Unit::Passes, rates.passes),
            (Unit::L2Bytes, rates.l2_bytes),
        ] {
            per_clock[unit as usize] = rate;
        }
        let latency = rates.latency;
        Sm { latency, per_clock }
    }

    /// What many blocks read comes faster: L2 answers SMs that ask for the same at the same time together.
    pub(crate) fn reads_together(&mut self) {
        self.per_clock[Unit::L2Bytes as usize] *= calibration::READ_TOGETHER;
    }

    /// Clocks for which work occupies a resource of the SM.
    pub(crate) fn clocks(&self, work: &Work, resource: Resource) -> f64 {
        let (_, units, _) = resource.row();
        let clocks = units.iter().map(|&unit| work[unit] / self.per_clock[unit as usize]);
        clocks.sum()
    }

    /// Clocks of a warp's work if the warp has a quarter of the SM to itself.
    pub(crate) fn clocks_of_a_warp(&self, work: &Work) -> f64 {
        let clocks = |resource: Resource| {
            let (.., is_split) = resource.row();
            let share = if is_split { 4.0 } else { 1.0 };
            share * self.clocks(work, resource)
        };
        Resource::ALL.into_iter().map(clocks).fold(0.0, f64::max)
    }
}
