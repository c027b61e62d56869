//! Configuration of the CPU kernel: tile sizes and per-call options.

use std::fmt;
use std::str::FromStr;

use rayon::ThreadPool;
use serde::{Deserialize, Serialize};

use crate::{CpuError, SimdLevel};

/// Tile sizes of the CPU kernel. They change the speed and the order of additions, nothing else.
///
/// Prints and parses as its id:
///
/// ```
/// use flashcore_cpu::CpuConfig;
/// let config: CpuConfig = "cpu/m128n64".parse()?;
/// assert_eq!(config, CpuConfig { tile_q: 128, tile_kv: 64 });
/// assert_eq!(config.to_string(), "cpu/m128n64");
/// # Ok::<(), flashcore_cpu::CpuError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CpuConfig {
    /// Query rows per tile. One thread computes a tile and streams K and V through its cache once.
    /// A multiple of 16, at most 1024.
    pub tile_q: usize,
    /// Keys per update of the running softmax. The score tile, `64 · tile_kv · 4` bytes, should fit
    /// in the L1 cache. A multiple of 4, at most 1024.
    pub tile_kv: usize,
}

impl CpuConfig {
    /// Upper limit of both tile sizes.
    pub const MAX_TILE: usize = 1024;
    /// Step of `tile_q`: the lane count of the widest vector.
    pub const TILE_Q_STEP: usize = 16;
    /// Step of `tile_kv`: the keys the micro-kernel processes at once.
    pub const TILE_KV_STEP: usize = 4;

    /// Refuses tile sizes outside their limits with [`CpuError::Config`].
    pub fn check(&self) -> Result<(), CpuError> {
        for (field, given, step) in [
            ("tile_q", self.tile_q, CpuConfig::TILE_Q_STEP),
            ("tile_kv", self.tile_kv, CpuConfig::TILE_KV_STEP),
        ] {
            if given == 0 || given > CpuConfig::MAX_TILE || !given.is_multiple_of(step) {
                return Err(CpuError::Config {
                    field,
                    given,
                    step,
                    limit: CpuConfig::MAX_TILE,
                });
            }
        }
        Ok(())
    }
}

impl fmt::Display for CpuConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("cpu/m{}n{}", self.tile_q, self.tile_kv))
    }
}

impl FromStr for CpuConfig {
    type Err = CpuError;

    fn from_str(id: &str) -> Result<CpuConfig, CpuError> {
        let sizes = id.strip_prefix("cpu/m").and_then(|rest| rest.split_once('n'));
        let parsed = sizes.and_then(|(m, n)| Some((m.parse().ok()?, n.parse().ok()?)));
        let Some((tile_q, tile_kv)) = parsed else {
            return Err(CpuError::ConfigId { given: id.to_string() });
        };
        let config = CpuConfig { tile_q, tile_kv };
        config.check()?;
        Ok(config)
    }
}

/// Options of one call. The default selects everything automatically.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// Tile sizes; `None` selects them from the problem and the number of threads.
    pub config: Option<CpuConfig>,
    /// Thread pool; `None` uses rayon's current pool.
    pub pool: Option<&'a ThreadPool>,
    /// Instruction set; `None` uses the best one of the machine.
    pub simd: Option<SimdLevel>,
}
