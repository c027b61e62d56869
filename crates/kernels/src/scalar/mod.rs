//! Family `scalar`: attention without tensor cores, forward and backward; it serves every problem but those in e4m3.
//!
//! `naive` and `tiled` both compute in f32 and differ only in how work is shared out: each checks the other.

mod backward;
mod common;
mod naive;
mod threads;
mod tiled;

use flashcore_problem::{DType, Direction, Problem};

use crate::args::{Built, with_element};
use crate::attention::forward::{Forward, Sharing};
use crate::attention::params::{Shape, all_strides, check_dtype, grid, query_blocks, widest_access};
use crate::family::{Family, LeverValue, Values, constraint, levers};
use crate::plan::Resolver;
use crate::step::Steps;
use crate::{Refusal, refuse};

/// The family's name.
pub const NAME: &str = "scalar";

/// Values of [`Config::tile`] after the first, none.
const TILES: [(u32, u32); 5] = [(16, 16), (32, 16), (32, 32), (64, 32), (64, 64)];

/// Bytes an access. 2 is for tensors whose rows start at odd halves.
const WIDTHS: [u32; 4] = [16, 8, 4, 2];

impl LeverValue for Option<(u32, u32)> {
    fn number(self) -> u32 {
        let place = TILES.iter().position(|known| self == Some(*known));
        place.map_or(0, |place| place as u32 + 1)
    }

    fn of(number: u32) -> Option<(u32, u32)> {
        (number > 0).then(|| TILES[number as usize - 1])
    }
}

levers! {
    /// One choice of the family's levers.
    Config:
    /// `None`: no tiles, one thread a query row.
    tile: Option<(u32, u32)> = words(&[
            ("naive", "naive"),
            ("m16n16", "tiled-m16n16"),
            ("m32n16", "tiled-m32n16"),
            ("m32n32", "tiled-m32n32"),
            ("m64n32", "tiled-m64n32"),
            ("m64n64", "tiled-m64n64")
        ]),
        "query rows per block and keys per tile: larger tiles reuse more, smaller ones need less; or no tile";
    /// More hide more latency.
    warps: u32 = scaled(|&values| Config::from(values).tile.map_or(("-t", 32), |_| ("-w", 1)), &[2, 4, 8]),
        "warps per block: more warps share the rows, and each reuses less";
    vector_bytes: u32 = number("-v", &WIDTHS),
        "bytes per memory access: wider accesses are fewer instructions and need aligned rows";
}

/// Every config.
pub(crate) fn listed() -> impl Iterator<Item = Config> {
    FAMILY.configs().map(Config::from)
}

/// The family's levers.
pub const FAMILY: Family = Family {
    name: NAME,
    levers: &LEVERS,
    backward: None,
    constraints: &[constraint!("warps", "4 or 8 warps a tile", config => config.tile.is_none() || config.warps > 2)],
    tile: |&values| Config::from(values).tile.map_or(0, |(rows, cols)| rows * cols),
    repeated: None,
};

impl Config {
    pub(crate) fn remedy_for_shared_memory(&self) -> String {
        let size = |(rows, cols): (u32, u32)| rows * cols;
        let smaller = |tile: &&(u32, u32)| Some(size(**tile)) < self.tile.map(size);
        match TILES.iter().rev().find(smaller) {
            Some((rows, cols)) => format!("a smaller tile (m{rows}n{cols}) needs less"),
            None => "scalar/naive uses none".to_string(),
        }
    }

    /// Refuses accesses that the dtype or the strides do not allow.
    fn check_access(&self, problem: &Problem) -> Result<(), Refusal> {
        let (given, allowed) = (self.vector_bytes, widest(problem));
        let element = problem.dtype().size_bytes() as u32;
        refuse!(given < element => lever "vector_bytes" = given, "16, 8, 4, 2, and not less than an element ({element})");
        if given > allowed {
            let vector_bytes = allowed;
            let suggestion = FAMILY.id(&Values::from(Config { vector_bytes, ..*self }));
            return Err(Refusal::Alignment {
                given,
                allowed,
                suggestion,
            });
        }
        Ok(())
    }
}

/// The default configs in order of preference: the fastest for such a problem, then those that need
/// less, with the widest accesses that the strides and `alignment` (bytes) allow. The last, `naive`
/// (of the backward pass the smallest tile), is refused only where bounds of lengths make more blocks
/// than a grid has.
pub fn preferred_configs(problem: &Problem, alignment: u32) -> Vec<Config> {
    let vector_bytes = widest(problem).min(alignment);
    let backward = problem.direction() == Direction::Backward;
    let tiled = if backward {
        backward::preferred(problem)
    } else {
        tiled::preferred(problem)
    };
    let tiled = tiled.iter().map(|&(rows, cols, warps)| (Some((rows, cols)), warps));
    let naive = (!backward).then_some((None, 4));
    let config = |(tile, warps)| Config {
        tile,
        warps,
        vector_bytes,
    };
    tiled.chain(naive).map(config).collect()
}

/// Bytes of the widest accesses that the strides of all tensors allow.
pub fn widest(problem: &Problem) -> u32 {
    let element = problem.dtype().size_bytes();
    widest_access(all_strides(problem).map(|stride| stride as usize * element))
}

pub(crate) fn plan(problem: &Problem, config: &Config, with: Resolver<'_>) -> Result<Steps, Refusal> {
    let Resolver { kernels, tap, .. } = with;
    check_dtype(problem, NAME, &[DType::F32, DType::F16, DType::BF16])?;
    FAMILY.check(&Values::from(*config))?;
    config.check_access(problem)?;
    let shape = Shape::new(problem, config.vector_bytes, tap);
    if problem.direction() == Direction::Backward {
        return backward::plan(problem, config, &shape, kernels);
    }
    if config.tile.is_some() {
        tiled::check(config, &shape)?;
    }
    let kernel = kernels.get_or_build(*config, shape, |config, shape| {
        let name = shape.kernel_name(&format!("{NAME}/{config}"));
        Built::build(name, 32 * config.warps, |k| match config.tile {
            Some(_) => with_element!(floats shape.dtype => tiled::body(k, &config, shape)),
            None => with_element!(floats shape.dtype => naive::body(k, 32 * config.warps, shape)),
        })
    })?;
    let (rows, slices) = match config.tile {
        Some((rows, _)) => (rows, 1),
        None => (32 * config.warps, naive::slices(&shape)),
    };
    let blocks = query_blocks(problem, rows) * slices as usize;
    let main = kernel.step(grid(NAME, [blocks, 1, 1])?, &Forward::new(problem, Sharing::Alone))?;
    Ok(Steps::alone(main))
}
