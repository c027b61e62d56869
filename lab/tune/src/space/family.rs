//! A family as a search sees it: levers by name, configs by id.

use std::fmt;

use flashcore::KernelId;
use flashcore_cpu::CpuConfig;
use flashcore_kernels::ids::lever_parts;
use flashcore_kernels::space as kernels;
use flashcore_kernels::{Config, ladder, mma, scalar, wgmma};
use flashcore_problem::rng::Rng;
use serde::Serialize;

use crate::worker::planted::{self, Conduct};

/// A lever, as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeverInfo {
    /// Its name.
    pub name: &'static str,
    /// What it trades for what.
    pub meaning: &'static str,
    /// Its values.
    pub values: Vec<String>,
    /// For each value, the parts of an id that say so: none where ids leave the value out.
    pub in_ids: Vec<Vec<String>>,
}

/// A family of kernels and its levers.
pub struct Family {
    /// Its name, which its ids begin with.
    pub name: &'static str,
    /// Its levers.
    pub levers: Vec<LeverInfo>,
    /// What keeps combinations out, a sentence each.
    pub constraints: &'static [&'static str],
    ops: Box<dyn Ops>,
}

impl fmt::Debug for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Family")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What a search does with a family, on ids.
trait Ops: Send + Sync {
    fn owns(&self, id: &str) -> bool;
    fn configs(&self) -> Box<dyn Iterator<Item = String>>;
    fn sample(&self, rng: &mut Rng) -> String;
    fn neighbours(&self, id: &str) -> Vec<String>;
    fn mutate(&self, id: &str, levers: usize, rng: &mut Rng) -> Option<String>;
    fn crossover(&self, a: &str, b: &str, rng: &mut Rng) -> Option<String>;
    fn values(&self, id: &str) -> Vec<(&'static str, String)>;
    fn settings(&self, id: &str, lever: &str) -> Vec<(String, String)>;
    /// Rows times columns of the tile, for niches.
    fn tile(&self, id: &str) -> usize;
}

/// A space of configs of one type, and how they go by ids.
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
        let Some(config) = (self.parse)(id) else {
            return Vec::new();
        };
        let levers = self.space.levers.iter();
        levers.map(|lever| (lever.name, (lever.value)(&config))).collect()
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
    fn new<C: Copy + PartialEq + Send + Sync>(name: &'static str, typed: Typed<C>) -> Family {
        let space = typed.space;
        let parts = lever_parts(space, typed.print);
        let levers = space.levers.iter().zip(parts).map(|(lever, parts)| {
            let (values, in_ids) = parts.values.into_iter().unzip();
            LeverInfo {
                name: lever.name,
                meaning: lever.meaning,
                values,
                in_ids,
            }
        });
        Family {
            name,
            levers: levers.collect(),
            constraints: space.constraints,
            ops: Box::new(typed),
        }
    }

    /// Family `mma`.
    pub fn mma() -> Family {
        Family::new(
            mma::NAME,
            Typed {
                space: &mma::SPACE,
                print: |config| Config::Mma(*config).to_string(),
                parse: |id| match id.parse() {
                    Ok(Config::Mma(config)) => Some(config),
                    _ => None,
                },
                tile: |config| (config.rows * config.cols) as usize,
            },
        )
    }

    /// Family `wgmma`.
    pub fn wgmma() -> Family {
        Family::new(
            wgmma::NAME,
            Typed {
                space: &wgmma::SPACE,
                print: |config| Config::Wgmma(*config).to_string(),
                parse: |id| match id.parse() {
                    Ok(Config::Wgmma(config)) => Some(config),
                    _ => None,
                },
                tile: |config| (config.rows * config.cols) as usize,
            },
        )
    }

    /// Family `scalar`.
    pub fn scalar() -> Family {
        Family::new(
            scalar::NAME,
            Typed {
                space: &scalar::SPACE,
                print: |config| Config::Scalar(*config).to_string(),
                parse: |id| match id.parse() {
                    Ok(Config::Scalar(config)) => Some(config),
                    _ => None,
                },
                tile: |config| match config {
                    scalar::Config::Naive(_) => 0,
                    scalar::Config::Tiled(levers) => (levers.rows * levers.cols) as usize,
                },
            },
        )
    }

    /// Family `ladder`.
    pub fn ladder() -> Family {
        Family::new(
            ladder::NAME,
            Typed {
                space: &ladder::SPACE,
                print: |config| Config::Ladder(*config).to_string(),
                parse: |id| match id.parse() {
                    Ok(Config::Ladder(config)) => Some(config),
                    _ => None,
                },
                tile: |config| (config.rows() * config.cols) as usize,
            },
        )
    }

    /// The host's kernels.
    pub fn cpu() -> Family {
        Family::new(
            "cpu",
            Typed {
                space: &CPU_SPACE,
                print: CpuConfig::to_string,
                parse: |id| match id.parse() {
                    Ok(KernelId::Cpu(config)) => Some(config),
                    _ => None,
                },
                tile: |config| config.tile_q * config.tile_kv,
            },
        )
    }

    pub(crate) fn planted(space: &'static kernels::Space<Conduct>) -> Family {
        Family::new(
            planted::NAME,
            Typed {
                space,
                print: Conduct::to_string,
                parse: Conduct::of_id,
                tile: |_| 0,
            },
        )
    }

    /// Whether an id names a config of this family whose levers go together.
    pub fn owns(&self, id: &str) -> bool {
        self.ops.owns(id)
    }

    /// Every config, in a fixed order.
    pub fn configs(&self) -> impl Iterator<Item = String> + use<> {
        self.ops.configs()
    }

    pub(crate) fn sample(&self, rng: &mut Rng) -> String {
        self.ops.sample(rng)
    }

    pub(super) fn neighbours(&self, id: &str) -> Vec<String> {
        self.ops.neighbours(id)
    }

    pub(super) fn mutate(&self, id: &str, levers: usize, rng: &mut Rng) -> Option<String> {
        self.ops.mutate(id, levers, rng)
    }

    pub(super) fn crossover(&self, a: &str, b: &str, rng: &mut Rng) -> Option<String> {
        self.ops.crossover(a, b, rng)
    }

    /// Each lever with its value in a config of the family; nothing where the id is none.
    pub fn values(&self, id: &str) -> Vec<(&'static str, String)> {
        self.ops.values(id)
    }

    pub(super) fn settings(&self, id: &str, lever: &str) -> Vec<(String, String)> {
        self.ops.settings(id, lever)
    }

    /// Family and class of tile: by elements of the tile of scores.
    pub(super) fn niche(&self, id: &str) -> String {
        let class = match self.ops.tile(id) {
            0 => "none",
            1..=2048 => "small",
            2049..=8192 => "medium",
            _ => "large",
        };
        format!("{}, {class} tiles", self.name)
    }
}

/// Values of [`CpuConfig::tile_q`] that are searched.
const TILES_Q: [usize; 10] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Values of [`CpuConfig::tile_kv`] that are searched.
const TILES_KV: [usize; 12] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];

/// Levers of the host's kernels.
pub const CPU_LEVERS: [kernels::Lever<CpuConfig>; 2] = [
    kernels::Lever {
        name: "tile_q",
        meaning: "query rows that a thread takes at a time: more rows stream K and V less often, fewer share better",
        settings: |c| TILES_Q.map(|tile_q| CpuConfig { tile_q, ..c }).to_vec(),
        value: |c| c.tile_q.to_string(),
    },
    kernels::Lever {
        name: "tile_kv",
        meaning: "keys between two updates of the softmax: the tile of scores should stay in the first-level cache",
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
