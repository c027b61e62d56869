//! Rates and latencies of an SM by architecture, each with its source, and those measured on a card,
//! which replace them ([`MeasuredCard`](flashcore_ir::MeasuredCard)).
//!
//! Sources, by letter:
//! - **T**: CUDA C++ Best Practices Guide 13, "Throughput of Native Arithmetic Instructions" (in
//!   the programming guide until CUDA 12): results per clock per SM; a packed pair counts as one
//!   lane.
//! - **W**: NVIDIA's whitepapers of the A100, Ada and H100: four schedulers per SM that issue one
//!   instruction per clock each; 128 bytes per clock per SM from shared memory and L1; the A100's
//!   L2 delivers 5,120 bytes per clock to all 108 SMs.
//! - **L**: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture", arXiv
//!   2402.13499: latencies in clocks, rounded, and `mma.sync` reaching 62.9 % of the H100's dense
//!   fp16 peak on average, where the A100 and the RTX 4090 reach nearly all of theirs.
//! - **A**: an assumption, with its reason.

use flashcore_ir::Target;
use serde::Serialize;

/// Rates of an SM, lanes per clock unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Warp instructions issued (W).
    pub issue: f64,
    /// f32 sums, products and fused products (T).
    pub fma: f64,
    /// 32-bit integer products, which take the FMA pipe (T).
    pub int_mul: f64,
    /// f64 sums, products and fused products (T).
    pub double: f64,
    /// Packed 16-bit sums, products and fused products, lanes of two each (T).
    pub half: f64,
    /// Integer sums, logic, shifts, comparisons, selections, f32 minimum and maximum (T).
    pub alu: f64,
    /// f16 to f32, and f32 to a packed pair. T has 64 for the first. A for the second: T's 16 for
    /// f32 to f16 is for the scalar instruction on the special-function pipe; Nsight Compute does
    /// not list the packed one (`F2FP`) among that pipe's instructions.
    pub convert: f64,
    /// ex2, lg2, rcp, and conversions between integers and floats (T).
    pub mufu: f64,
    /// Warp instructions of the load/store unit (W: 32 lanes per clock), each at least one pass
    /// over the 128 bytes of shared memory or L1.
    pub passes: f64,
    /// Bytes from L2: its total rate divided by the SMs (W for sm_80). A for sm_90, 32: fits the
    /// times of `scalar/naive` on an H200, and is about the 5.6 TB/s that others measure on an
    /// H100. A for sm_86, sm_89 and sm_120, 16: about the 5 TB/s that others measure on an RTX
    /// 4090.
    pub l2_bytes: f64,
    /// Fraction of the dense tensor rate that `mma.sync` reaches (L; A for sm_100: as sm_90, since
    /// its peak also needs another instruction).
    pub mma_sync: f64,
    /// Latencies in clocks.
    pub latency: Latencies,
}

/// Clocks from issue until the result can be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latencies {
    /// Arithmetic of fixed latency: f32, integer, logic (Abdelkhalik et al., arXiv 2208.11174: 4
    /// when dependent).
    pub arithmetic: f64,
    /// Conversions and packed halves (A: one step more than arithmetic).
    pub convert: f64,
    /// ex2, lg2, rcp (Abdelkhalik et al. for ex2: 18 with its range step).
    pub mufu: f64,
    /// Shuffles, votes, reductions: through the same crossbar as shared memory (A: as a shared
    /// load).
    pub exchange: f64,
    /// A load from shared memory without conflicts, `ldmatrix` included (L).
    pub shared: f64,
    /// A load from global memory that hits L2 (L).
    pub l2: f64,
    /// `mma.sync.m16n8k16` with f32 accumulators (L).
    pub mma: f64,
    /// A barrier at which all warps have arrived (A: as a shared load).
    pub barrier: f64,
    /// From a branch to the next instruction (A: the depth of the front end).
    pub branch: f64,
}

impl Rates {
    /// The rates of an architecture.
    pub const fn of(target: Target) -> Rates {
        let (fma, half) = match target {
            Target::Sm75 => (64.0, 64.0),
            Target::Sm80 => (64.0, 128.0),
            Target::Sm86 | Target::Sm89 | Target::Sm120 => (128.0, 64.0),
            Target::Sm90a | Target::Sm100 => (128.0, 128.0),
        };
        let double = match target {
            Target::Sm80 => 32.0,
            Target::Sm90a | Target::Sm100 => 64.0,
            Target::Sm75 | Target::Sm86 | Target::Sm89 | Target::Sm120 => 2.0,
        };
        let l2_bytes = match target {
            Target::Sm75 | Target::Sm80 => 47.0,
            Target::Sm90a | Target::Sm100 => 32.0,
            Target::Sm86 | Target::Sm89 | Target::Sm120 => 16.0,
        };
        let (shared, l2) = match target {
            Target::Sm75 | Target::Sm80 | Target::Sm90a | Target::Sm100 => (29.0, 265.0),
            Target::Sm86 | Target::Sm89 | Target::Sm120 => (30.0, 275.0),
        };
        Rates {
            issue: 4.0,
            fma,
            int_mul: 64.0,
            double,
            half,
            alu: 64.0,
            convert: 64.0,
            mufu: 16.0,
            passes: 1.0,
            l2_bytes,
            mma_sync: match target {
                Target::Sm90a | Target::Sm100 => 0.629,
                _ => 1.0,
            },
            latency: Latencies {
                arithmetic: 4.0,
                convert: 6.0,
                mufu: 18.0,
                exchange: shared,
                shared,
                l2,
                mma: 33.0,
                barrier: shared,
                branch: 10.0,
            },
        }
    }
}

/// Replaces an assumed value by a measured one.
pub(crate) fn replace(assumed: &mut f64, measured: Option<f64>) {
    if let Some(value) = measured.filter(|value| value.is_finite() && *value > 0.0) {
        *assumed = value;
    }
}
