//! What was measured on a card: rates of small kernels, and how far predictions with them are off.

use serde::{Deserialize, Serialize};

/// Measured rates of a card (`flashcore device`), per SM and clock. A `None` leaves the
/// value of the profile, or what the cost model assumes of the architecture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCard {
    /// Where and when it was measured.
    pub source: String,
    /// SM clock in short kernels, MHz.
    pub mhz: Option<f64>,
    /// Bandwidth of device memory in a copy, GB/s.
    pub dram_gbps: Option<f64>,
    /// Bytes from shared memory per clock.
    pub shared_bytes: Option<f64>,
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

/// What `flashcore device calibrate` saw on a card. Predictions for a [`Profile`](crate::Profile) that has it take its
/// rates, and its errors as their interval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The rates.
    pub rates: MeasuredCard,
    /// The error on kernels that use tensor cores.
    pub tensor: Seen,
    /// The error on those that do not.
    pub scalar: Seen,
}

/// Measured times of kernels that nothing was fitted to, relative to the predicted ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Kernels.
    pub kernels: usize,
    /// 10th percentile of the ratios.
    pub low: f64,
    /// 90th percentile.
    pub high: f64,
}
