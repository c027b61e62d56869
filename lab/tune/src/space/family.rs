//! A family for a search: levers by name, configs by id.

use std::fmt;

use flashcore::KernelId;
use flashcore_cpu::CpuConfig;
use flashcore_kernels::ids::lever_parts;
use flashcore_kernels::space as kernels;
use flashcore_kernels::{Config, ladder, mma, scalar, wgmma};
use flashcore_problem::rng::Rng;
use serde::Serialize;

use crate::worker::planted::{self, Conduct};

/// A lever as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeverInfo {
    /// Its name.
    pub name: &'static str,
    /// What it trades.
    pub meaning: &'static str,
    /// Its values.
    pub values: Vec<String>,
    /// For each value, the parts of an id that express it; none if ids omit the value.
    pub in_ids: Vec<Vec<String>>,
}

/// A family of kernels and its levers.
pub struct Family {
    /// Its name, with which its ids begin.
    pub name: &'static str,
    /// Its levers.
    pub levers: Vec<LeverInfo>,
    /// Why combinations are excluded, a sentence each.
    pub constraints: &'static [&'static str],
    pub(super) ops: Box<dyn Ops>,
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Family").field(&self.name).finish()
    }
}

/// Operations on a family's configs by id. None of them for the id of another family.
pub(super) trait Ops: Send + Sync {
    fn owns(&self, id: &str) -> bool;
    fn configs(&self) -> Box<dyn Iterator<Item = String>>;
    fn sample(&self, rng: &mut Rng) -> String;
    /// Configs that differ in one lever.
    fn neighbours(&self, id: &str) -> Vec<String>;
    /// A config that differs in this number of levers.
    fn mutate(&self, id: &str, levers: usize, rng: &mut Rng) -> Option<String>;
    fn crossover(&self, a: &str, b: &str, rng: &mut Rng) -> Option<String>;
    fn values(&self, id: &str) -> Vec<(&'static str, String)>;
    /// Each value of a lever, and the config with it.
    fn settings(&self, id: &str, lever: &str) -> Vec<(String, String)>;
    /// Rows times columns of the tile of scores, for niches.
    fn tile(&self, id: &str) -> usize;
}

/// A space of configs of one type, with their conversion to and from ids.
struct Typed<C: 'static> {
    space: &'static kernels::Space<C>,
    print: fn(&C) -> String,
    parse: fn(&str) -> Option<C>,
    tile: fn(&C) -> usize,
}

impl<C: Copy + PartialEq + Send + Sync> Ops for Typed<C> {
    fn owns(&self, id: &str) -> bool {
        (self.parse)(id).is_some_and(|config| (self.space.allowed)(&config))
    }

    fn configs(&self) -> Box<dyn Iterator<Item = String>> {
        let print = self.print;
        Box::new(self.space.configs().map(move |config| print(&config)))
    }

    fn sample(&self, rng: &mut Rng) -> String {
        (self.print)(&self.space.sample(rng))
    }

    fn neighbours(&self, id: &str) -> Vec<String> {
        let around = (self.parse)(id).map(|config| self.space.neighbours(&config));
        around.unwrap_or_default().iter().map(self.print).collect()
    }

    fn mutate(&self, id: &str, levers: usize, rng: &mut Rng) -> Option<String> {
        let mutant = self.space.mutate(&(self.parse)(id)?, levers, rng)?;
        Some((self.print)(&mutant))
    }

    fn crossover(&self, a: &str, b: &str, rng: &mut Rng) -> Option<String> {
        let child = self.space.crossover(&(self.parse)(a)?, &(self.parse)(b)?, rng);
        Some((self.print)(&child))
    }

    fn values(&self, id: &str) -> Vec<(&'static str, String)> {
        let config = (self.parse)(id);
        let levers = self.space.levers.iter();
        levers
            .filter_map(|lever| Some((lever.name, (lever.value)(config.as_ref()?))))
            .collect()
    }

    fn settings(&self, id: &str, lever: &str) -> Vec<(String, String)> {
        let lever = self.space.levers.iter().find(|one| one.name == lever);
        let (Some(lever), Some(config)) = (lever, (self.parse)(id)) else {
            return Vec::new();
        };
        let settings = (lever.settings)(config).into_iter();
        let allowed = settings.filter(|setting| *setting == config || (self.space.allowed)(setting));
        allowed
            .map(|setting| ((lever.value)(&setting), (self.print)(&setting)))
            .collect()
    }

    fn tile(&self, id: &str) -> usize {
        (self.parse)(id).map_or(0, |config| (self.tile)(&config))
    }
}

impl Family {
    fn new<C: Copy + PartialEq + Send + Sync>(
        name: &'static str,
        space: &'static kernels::Space<C>,
        print: fn(&C) -> String,
        parse: fn(&str) -> Option<C>,
        tile: fn(&C) -> usize,
    ) -> Family {
        let levers = space.levers.iter().zip(lever_parts(space, print));
        let levers = levers.map(|(lever, parts)| {
            let (values, in_ids) = parts.values.into_iter().unzip();
            LeverInfo {
                name: lever.name,
                meaning: lever.meaning,
                values,
                in_ids,
            }
        });
        let typed = Typed {
            space,
            print,
            parse,
            tile,
        };
        Family {
            name,
            levers: levers.collect(),
            constraints: space.constraints,
            ops: Box::new(typed),
        }
    }

    /// Every family whose kernels have ids.
    pub fn all() -> [Family; 5] {
        [
            Family::mma(),
            Family::wgmma(),
            Family::scalar(),
            Family::ladder(),
            Family::cpu(),
        ]
    }

    /// Family `mma`.
    pub fn mma() -> Family {
        let parse = |id: &str| match id.parse() {
            Ok(Config::Mma(config)) => Some(config),
            _ => None,
        };
        let print = |config: &mma::Config| Config::Mma(*config).to_string();
        let tile = |config: &mma::Config| (config.rows * config.cols) as usize;
        Family::new(mma::NAME, &mma::SPACE, print, parse, tile)
    }

    /// Family `wgmma`.
    pub fn wgmma() -> Family {
        let parse = |id: &str| match id.parse() {
            Ok(Config::Wgmma(config)) => Some(config),
            _ => None,
        };
        let print = |config: &wgmma::Config| Config::Wgmma(*config).to_string();
        let tile = |config: &wgmma::Config| (config.rows * config.cols) as usize;
        Family::new(wgmma::NAME, &wgmma::SPACE, print, parse, tile)
    }

    /// Family `scalar`.
    pub fn scalar() -> Family {
        let parse = |id: &str| match id.parse() {
            Ok(Config::Scalar(config)) => Some(config),
            _ => None,
        };
        let print = |config: &scalar::Config| Config::Scalar(*config).to_string();
        let tile = |config: &scalar::Config| match config {
            scalar::Config::Naive(_) => 0,
            scalar::Config::Tiled(levers) => (levers.rows * levers.cols) as usize,
        };
        Family::new(scalar::NAME, &scalar::SPACE, print, parse, tile)
    }

    /// Family `ladder`.
    pub fn ladder() -> Family {
        let parse = |id: &str| match id.parse() {
            Ok(Config::Ladder(config)) => Some(config),
            _ => None,
        };
        let print = |config: &ladder::Config| Config::Ladder(*config).to_string();
        let tile = |config: &ladder::Config| (config.rows() * config.cols) as usize;
        Family::new(ladder::NAME, &ladder::SPACE, print, parse, tile)
    }

    /// The host's kernels.
    pub fn cpu() -> Family {
        let parse = |id: &str| match id.parse() {
            Ok(KernelId::Cpu(config)) => Some(config),
            _ => None,
        };
        let tile = |config: &CpuConfig| config.tile_q * config.tile_kv;
        Family::new("cpu", &CPU_SPACE, CpuConfig::to_string, parse, tile)
    }

    pub(crate) fn planted(space: &'static kernels::Space<Conduct>) -> Family {
        Family::new(planted::NAME, space, Conduct::to_string, Conduct::of_id, |_| 0)
    }

    /// Whether an id is a config of this family whose levers are compatible.
    pub fn owns(&self, id: &str) -> bool {
        self.ops.owns(id)
    }

    /// Every config, in a fixed order.
    pub fn configs(&self) -> impl Iterator<Item = String> + use<> {
        self.ops.configs()
    }

    /// A random config.
    pub(crate) fn sample(&self, rng: &mut Rng) -> String {
        self.ops.sample(rng)
    }

    /// The value of each lever in a config; empty if the id is none of the family.
    pub fn values(&self, id: &str) -> Vec<(&'static str, String)> {
        self.ops.values(id)
    }
}

/// Searched values of [`CpuConfig::tile_q`].
const TILES_Q: [usize; 10] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Searched values of [`CpuConfig::tile_kv`].
const TILES_KV: [usize; 12] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];

/// Levers of the host's kernels.
const CPU_LEVERS: [kernels::Lever<CpuConfig>; 2] = [
    kernels::Lever {
        name: "tile_q",
        meaning: "query rows that a thread takes at a time: more rows stream K and V less often, fewer rows balance better",
        settings: |c| TILES_Q.map(|tile_q| CpuConfig { tile_q, ..c }).to_vec(),
        value: |c| c.tile_q.to_string(),
    },
    kernels::Lever {
        name: "tile_kv",
        meaning: "keys between two updates of the softmax: the tile of scores should stay in the L1 cache",
        settings: |c| TILES_KV.map(|tile_kv| CpuConfig { tile_kv, ..c }).to_vec(),
        value: |c| c.tile_kv.to_string(),
    },
];

static CPU_SPACE: kernels::Space<CpuConfig> = kernels::Space {
    first: CpuConfig {
        tile_q: TILES_Q[0],
        tile_kv: TILES_KV[0],
    },
    levers: &CPU_LEVERS,
    allowed: |_| true,
    constraints: &[],
};
