//! [`Config`]: one choice of a family's levers, with a short stable id.

use std::fmt;
use std::str::FromStr;

use flashcore_problem::Problem;
use flashcore_problem::rng::Rng;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{ladder, mma, scalar, wgmma};

/// One choice of a family's levers. Its id (`Display`, `FromStr`) is stable: plan tables and evidence carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum Config {
    /// Family `ladder`: kernels as they were on the way to `mma`.
    Ladder(ladder::Config),
    /// Family `mma`: `mma.sync` tensor cores, for sm_80 and newer.
    Mma(mma::Config),
    /// Family `scalar`: no tensor cores.
    Scalar(scalar::Config),
    /// Family `wgmma`: Hopper's asynchronous tensor cores, for sm_90a.
    Wgmma(wgmma::Config),
}

/// An id that names no config.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no kernel is named `{given}`; ids look like {examples}")]
pub struct UnknownConfig {
    /// What was given.
    pub given: String,
    /// Ids that exist.
    pub examples: String,
}

impl Config {
    /// Every config of every family.
    pub fn all() -> Vec<Config> {
        let scalar = scalar::configs().into_iter().map(Config::Scalar);
        scalar
            .chain(ladder::configs().into_iter().map(Config::Ladder))
            .collect()
    }

    /// The names of all families.
    pub const FAMILIES: [&str; 4] = [ladder::NAME, mma::NAME, scalar::NAME, wgmma::NAME];

    /// A config of a family, by its name, drawn by `rng`; `None` where no family has the name. A problem may refuse
    /// it: then draw again.
    ///
    /// ```
    /// use flashcore_kernels::Config;
    /// use flashcore_problem::rng::Rng;
    /// let config = Config::sample("mma", &mut Rng::new(1)).expect("a family of this name");
    /// assert_eq!(config.family(), "mma");
    /// ```
    pub fn sample(family: &str, rng: &mut Rng) -> Option<Config> {
        match family {
            ladder::NAME => Some(Config::Ladder(ladder::SPACE.sample(rng))),
            mma::NAME => Some(Config::Mma(mma::SPACE.sample(rng))),
            scalar::NAME => Some(Config::Scalar(scalar::SPACE.sample(rng))),
            wgmma::NAME => Some(Config::Wgmma(wgmma::SPACE.sample(rng))),
            _ => None,
        }
    }

    /// The family's name.
    pub fn family(&self) -> &'static str {
        match self {
            Config::Ladder(_) => ladder::NAME,
            Config::Mma(_) => mma::NAME,
            Config::Scalar(_) => scalar::NAME,
            Config::Wgmma(_) => wgmma::NAME,
        }
    }

    /// Which lever saves shared memory on a problem, for a refusal.
    pub(crate) fn remedy_for_shared_memory(&self, problem: &Problem) -> String {
        match self {
            Config::Ladder(config) => config.remedy_for_shared_memory(),
            Config::Mma(config) => config.remedy_for_shared_memory(),
            Config::Scalar(config) => config.remedy_for_shared_memory(),
            Config::Wgmma(config) => config.remedy_for_shared_memory(problem),
        }
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = match self {
            Config::Ladder(config) => config.id(),
            Config::Mma(config) => config.id(),
            Config::Scalar(config) => config.id(),
            Config::Wgmma(config) => config.id(),
        };
        f.pad(&format!("{}/{id}", self.family()))
    }
}

impl FromStr for Config {
    type Err = UnknownConfig;

    fn from_str(id: &str) -> Result<Config, UnknownConfig> {
        let parsed = match id.split_once('/') {
            Some((ladder::NAME, levers)) => ladder::Config::from_id(levers).map(Config::Ladder),
            Some((mma::NAME, levers)) => mma::Config::from_id(levers).map(Config::Mma),
            Some((scalar::NAME, levers)) => scalar::Config::from_id(levers).map(Config::Scalar),
            Some((wgmma::NAME, levers)) => wgmma::Config::from_id(levers).map(Config::Wgmma),
            _ => None,
        };
        parsed.ok_or_else(|| UnknownConfig {
            given: id.to_string(),
            examples: "mma/m128n64-w4x1-s2-b2-qreg-xor-lazy, scalar/tiled-m32n32-w4-v16".to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_round_trip() {
        for id in [
            "mma/m128n64-w4x1-s2-b2-qreg-xor-lazy",
            "mma/m32n128-w2x4-s4-b1-qsh-lin-eager-gqa",
            "mma/m16n64-w1x4-s3-b2-qreg-xor-lazy-gqa-k33",
            "mma/m64n64-w4x1-s2-b2-qreg-xor-bold-k2",
            "scalar/naive-t128-v16",
            "scalar/tiled-m64n32-w8-v4",
            "wgmma/m192n128-s2-turns-lazy",
            "wgmma/m128n176-s2-free-bold",
        ] {
            assert_eq!(id.parse::<Config>().unwrap().to_string(), id);
        }
    }

    #[test]
    fn unknown_ids_say_what_ids_look_like() {
        for id in [
            "",
            "scalar",
            "mma/m64",
            "scalar/tiled-m64",
            "scalar/naive-t128-v16-x",
            "mma/m16n64-w1x4-s3-b2-qreg-xor-lazy-k1",
            "mma/m16n64-w1x4-s3-b2-qreg-xor-lazy-k2-gqa",
        ] {
            let error = id.parse::<Config>().unwrap_err();
            assert!(error.to_string().contains("scalar/tiled-m32n32-w4-v16"), "{error}");
        }
    }
}
