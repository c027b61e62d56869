//! [`Config`]: one choice of a family's levers, with a short stable id.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use flashcore_problem::Problem;
use thiserror::Error;

use crate::family::{Family, Values};
use crate::{ladder, mma, scalar, wgmma};

/// Makes [`Config`], [`FAMILIES`] and what converts between them of the families, each with the module that has its
/// `NAME`, `FAMILY`, `Config` and `listed`, the configs that lists show.
macro_rules! families {
    ($(#[doc = $what:literal] $variant:ident($module:ident);)*) => {
        /// One choice of a family's levers. Its id (`Display`, `FromStr`) is stable: plan tables and evidence carry it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Config {
            $(#[doc = $what] $variant($module::Config),)*
        }

        /// Every family.
        pub const FAMILIES: [Family; [$($module::NAME),*].len()] = [$($module::FAMILY),*];

        impl Config {
            /// The config with these values of the levers of one of [`FAMILIES`].
            ///
            /// ```
            /// use flashcore_kernels::{Config, mma};
            /// use flashcore_problem::rng::Rng;
            /// let config = Config::of(&mma::FAMILY, mma::FAMILY.sample(&mut Rng::new(1)));
            /// assert_eq!(config.family(), "mma");
            /// ```
            ///
            /// # Panics
            /// With a family that is not among them.
            pub fn of(family: &Family, values: Values) -> Config {
                match family.name {
                    $($module::NAME => Config::$variant(values.into()),)*
                    other => unreachable!("family {other} is not among FAMILIES"),
                }
            }

            /// What lists show, each once: what each family's `listed` gives.
            pub fn all() -> Vec<Config> {
                let mut all = Vec::new();
                $(all.extend($module::listed().map(Config::$variant));)*
                let mut seen = HashSet::new();
                all.retain(|config| seen.insert(*config));
                all
            }

            /// Its family, and the values of its levers.
            pub fn levers(&self) -> (Family, Values) {
                match *self {
                    $(Config::$variant(config) => ($module::FAMILY, config.into()),)*
                }
            }
        }
    };
}

families! {
    /// Family `mma`: `mma.sync` tensor cores, for sm_80 and newer.
    Mma(mma);
    /// Family `wgmma`: Hopper's asynchronous tensor cores, for sm_90a.
    Wgmma(wgmma);
    /// Family `scalar`: no tensor cores.
    Scalar(scalar);
    /// Family `ladder`: kernels as they were on the way to `mma`.
    Ladder(ladder);
}

const EXAMPLES: &str = "mma/m128n64-w4x1-s2-b2-qreg-xor-cond, scalar/tiled-m32n32-w4-v16, cpu/m128n128";

/// An id that names no config.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no kernel is named `{given}`{reason}; ids look like {EXAMPLES}")]
pub struct UnknownConfig {
    /// What was given.
    pub given: String,
    /// Where reading it ended, after a colon; empty if it begins with no family's name.
    pub reason: String,
}

impl Config {
    /// The family's name.
    pub fn family(&self) -> &'static str {
        self.levers().0.name
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
        let (family, values) = self.levers();
        f.pad(&family.id(&values))
    }
}

impl FromStr for Config {
    type Err = UnknownConfig;

    fn from_str(id: &str) -> Result<Config, UnknownConfig> {
        let read = |family: &Family| Some(Config::of(family, family.read(id)?));
        FAMILIES.iter().find_map(read).ok_or_else(|| UnknownConfig {
            given: id.to_string(),
            reason: FAMILIES.iter().find_map(|family| family.unread(id)).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_each_config_once_and_those_of_every_family() {
        let all = Config::all();
        for (at, config) in all.iter().enumerate() {
            assert!(!all[..at].contains(config), "{config} is there twice");
        }
        for family in FAMILIES {
            let listed = all.iter().filter(|config| config.family() == family.name);
            assert!(listed.count() >= 8, "{}", family.name);
        }
        // One that the tables of 16-bit dtypes and of e4m3 both have.
        assert!(all.contains(&"wgmma/m64n128-s3-free-spec".parse().unwrap()));
    }

    #[test]
    fn ids_round_trip() {
        for id in [
            "mma/m128n64-w4x1-s2-b2-qreg-xor-cond",
            "mma/m32n128-w2x4-s4-b1-qsh-lin-always-gqa",
            "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa-k33",
            "mma/m64n64-w4x1-s2-b2-qreg-xor-spec-k2",
            "scalar/naive-t128-v16",
            "scalar/tiled-m64n32-w8-v4",
            "wgmma/m192n128-s2-pingpong-cond",
            "wgmma/m128n176-s2-free-spec",
            "wgmma/m64n128-s2-free",
            "wgmma/m64n128-s2-pingpong",
        ] {
            assert_eq!(id.parse::<Config>().unwrap().to_string(), id);
        }
    }

    /// Evidence and plan tables have ids from before words were changed.
    #[test]
    fn old_ids_are_read() {
        for (old, new) in [
            ("wgmma/m192n128-s2-turns-bold", "wgmma/m192n128-s2-pingpong-spec"),
            (
                "wgmma/m64n64-s2-c2-free-lazy-qreg-k2",
                "wgmma/m64n64-s2-c2-free-cond-qreg-k2",
            ),
            (
                "mma/m32n32-w2x1-s2-b1-qreg-xor-eager-gqa-k3",
                "mma/m32n32-w2x1-s2-b1-qreg-xor-always-gqa-k3",
            ),
        ] {
            assert_eq!(old.parse::<Config>().unwrap().to_string(), new);
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
            "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-k1",
            "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-k2-gqa",
        ] {
            let error = id.parse::<Config>().unwrap_err();
            assert!(error.to_string().contains("scalar/tiled-m32n32-w4-v16"), "{error}");
        }
    }
}
