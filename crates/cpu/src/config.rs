//! The levers of the host kernel, and how a call is run.

use std::fmt;
use std::str::FromStr;

use rayon::ThreadPool;
use serde::{Deserialize, Serialize};

use crate::{CpuError, SimdLevel};

/// The levers: how many query rows and keys one tile has. They change speed, and the order of
/// additions; no other part of the answer.
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
    /// Query rows that one thread takes at a time: K and V stream through its cache once for all of
    /// them. A multiple of 16, at most 1024.
    pub tile_q: usize,
    /// Keys between two updates of the running softmax: the tile of scores, `64 · tile_kv · 4`
    /// bytes, should stay in the first-level cache. A multiple of 4, at most 1024.
    pub tile_kv: usize,
}

impl CpuConfig {
    /// Most rows or keys of a tile.
    pub const MAX_TILE: usize = 1024;
    /// What `tile_q` is a multiple of: the lanes of the widest vectors.
    pub const TILE_Q_STEP: usize = 16;
    /// What `tile_kv` is a multiple of: the keys the micro-kernel takes at once.
    pub const TILE_KV_STEP: usize = 4;

    /// Checks the levers.
    ///
    /// # Errors
    /// [`CpuError::Config`].
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

/// How a call is run. The default chooses everything by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// The levers; `None`: chosen for the problem and the number of threads.
    pub config: Option<CpuConfig>,
    /// The threads to run on; `None`: rayon's current pool.
    pub pool: Option<&'a ThreadPool>,
    /// The vector instructions to use; `None`: the best that the machine has.
    pub simd: Option<SimdLevel>,
}
