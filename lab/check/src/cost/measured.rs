//! [`MeasuredCard`]: what was measured on a card, in place of what its profile says and the model assumes.

use serde::{Deserialize, Serialize};

/// Rates of a card by measurement (`flashcore device`). What is `None` stays as profile and [`Rates`](super::Rates)
/// have it. Rates are those of an SM in a clock, as in [`Rates`](super::Rates).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCard {
    /// On what and when, in a few words.
    pub source: String,
    /// SM clock in short kernels, MHz.
    pub mhz: Option<f64>,
    /// Device memory, GB/s, as a copy reaches them.
    pub dram_gbps: Option<f64>,
    /// Bytes from L2.
    pub l2_bytes: Option<f64>,
    /// Bytes from shared memory.
    pub shared_bytes: Option<f64>,
    /// Lanes of f32 fused products.
    pub fma: Option<f64>,
    /// Lanes of exponentials.
    pub mufu: Option<f64>,
    /// FLOPs of `mma.sync` with f32 accumulators.
    pub tensor_f32: Option<f64>,
    /// The same with f16 accumulators.
    pub tensor_f16: Option<f64>,
    /// FLOPs of warpgroups' products of 16-bit elements.
    pub tensor_wgmma: Option<f64>,
    /// The same of e4m3.
    pub tensor_e4m3: Option<f64>,
    /// Microseconds of a launch in a graph.
    pub launch_micros: Option<f64>,
    /// Clocks until an exponential can be used.
    pub mufu_latency: Option<f64>,
    /// The same of a load from shared memory.
    pub shared_latency: Option<f64>,
    /// The same of a load that hits L2.
    pub l2_latency: Option<f64>,
    /// The same of `mma.sync.m16n8k16`.
    pub mma_latency: Option<f64>,
    /// Clocks of a barrier that everybody has reached.
    pub barrier_latency: Option<f64>,
}

/// Takes over what was measured.
pub(crate) fn replace(assumed: &mut f64, measured: Option<f64>) {
    if let Some(value) = measured.filter(|value| value.is_finite() && *value > 0.0) {
        *assumed = value;
    }
}
