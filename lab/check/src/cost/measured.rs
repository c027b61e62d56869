//! [`MeasuredCard`]: measured rates of a card, which replace those of its profile.

use serde::{Deserialize, Serialize};

/// Measured rates of a card (`flashcore device`), per SM and clock as in [`Rates`](super::Rates). A
/// `None` leaves the value of the profile or of [`Rates`](super::Rates).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCard {
    /// Where and when it was measured.
    pub source: String,
    /// SM clock in short kernels, MHz.
    pub mhz: Option<f64>,
    /// Bandwidth of device memory in a copy, GB/s.
    pub dram_gbps: Option<f64>,
    /// Bytes from L2 per clock.
    pub l2_bytes: Option<f64>,
    /// Bytes from shared memory per clock.
    pub shared_bytes: Option<f64>,
    /// Lanes of f32 fused products per clock.
    pub fma: Option<f64>,
    /// Lanes of exponentials per clock.
    pub mufu: Option<f64>,
    /// FLOPs of `mma.sync` with f32 accumulators per clock.
    pub tensor_f32: Option<f64>,
    /// FLOPs of `mma.sync` with f16 accumulators per clock.
    pub tensor_f16: Option<f64>,
    /// FLOPs of warpgroup products of 16-bit elements per clock.
    pub tensor_wgmma: Option<f64>,
    /// FLOPs of warpgroup products of e4m3 per clock.
    pub tensor_e4m3: Option<f64>,
    /// Time of a launch in a graph, microseconds.
    pub launch_micros: Option<f64>,
    /// Latency of an exponential, clocks.
    pub mufu_latency: Option<f64>,
    /// Latency of a load from shared memory, clocks.
    pub shared_latency: Option<f64>,
    /// Latency of a load that hits L2, clocks.
    pub l2_latency: Option<f64>,
    /// Latency of `mma.sync.m16n8k16`, clocks.
    pub mma_latency: Option<f64>,
    /// Latency of a barrier at which all warps have arrived, clocks.
    pub barrier_latency: Option<f64>,
}

/// Replaces an assumed value by a measured one.
pub(crate) fn replace(assumed: &mut f64, measured: Option<f64>) {
    if let Some(value) = measured.filter(|value| value.is_finite() && *value > 0.0) {
        *assumed = value;
    }
}
