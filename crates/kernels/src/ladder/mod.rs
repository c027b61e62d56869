//! Family `ladder`: kernels as they were on the way to family `mma`, each with one idea more than the last.
//!
//! - `hybrid`: tensor cores for `Q·Kᵀ`; scores go through shared memory, the rest is scalar.
//! - `mma`: tensor cores for both products; P stays in registers.
//!
//! What comes before them is family `scalar`, what comes after are levers of family `mma`; `flashcore_bench::rungs`
//! has them all in order. [`scores`] is the first product by itself.

mod common;
mod hybrid;
mod mma;
pub mod scores;

use flashcore_problem::{Direction, Problem};

use crate::args::{Built, with_element};
use crate::attention::forward::{Forward, Sharing};
use crate::attention::params::{OTHER_FAMILIES, SIXTEEN_BITS, Shape, check_lengths, check_problem, query_blocks};
use crate::family::{Family, Values, constraint, lever_values, levers};
use crate::plan::Resolver;
use crate::step::Step;
use crate::{Refusal, refuse};
use common::WARP_ROWS;

/// The family's name.
pub const NAME: &str = "ladder";

/// Which rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Tensor cores for `Q·Kᵀ` only.
    Hybrid,
    /// Tensor cores for both products, nothing overlapped.
    Mma,
}

/// What `O += P·V` takes P as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum P {
    /// As is usual: f32 in [`Kind::Hybrid`], rounded to the problem's dtype in [`Kind::Mma`].
    Usual,
    /// Rounded to the problem's dtype: [`Kind::Hybrid`] alone.
    SixteenBits,
    /// f32, as the sum of two terms in the problem's dtype with a product each: [`Kind::Mma`] alone. Of 24 bits fp16
    /// keeps 22, bf16 16.
    F32,
}

lever_values!(Kind: Hybrid, Mma);
lever_values!(P: Usual, SixteenBits, F32);

levers! {
    /// A rung and the little it lets one choose.
    Config:
    kind: Kind = words(&[("hybrid", "hybrid"), ("mma", "mma")]),
        "tensor cores for one product (hybrid), or for both (mma)";
    warps: u32 = scaled(|_| ("-m", WARP_ROWS), &[4, 8]), "warps per block, 16 query rows each";
    cols: u32 = number("n", &[32, 64]),
        "keys per tile: more keys need fewer barriers, fewer keys need less shared memory";
    p: P = words(&[("usual", ""), ("16-bit", "-p16"), ("f32", "-pf32")]),
        "P of O += P*V: f32 (usual in hybrid; in mma two terms of 16 bits) or 16 bits (usual in mma)";
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
    constraints: &[
        constraint!("p", "p16 in hybrid, where P is f32 without it",
            Config { kind, p, .. } => p != P::SixteenBits || kind == Kind::Hybrid),
        constraint!("p", "pf32 in mma, where P has 16 bits without it",
            Config { kind, p, .. } => p != P::F32 || kind == Kind::Mma),
    ],
    tile: |&values| {
        let config = Config::from(values);
        config.rows() * config.cols
    },
    repeated: Some((1, "-w")),
};

impl Config {
    /// Query rows a block.
    pub fn rows(&self) -> u32 {
        WARP_ROWS * self.warps
    }

    pub(crate) fn remedy_for_shared_memory(&self) -> String {
        let remedy = match self.cols {
            64 => "n32 needs less",
            _ => "fewer warps, or family mma with swizzled tiles, need less",
        };
        remedy.to_string()
    }
}

/// Refuses what spills, by a few bytes, with the copies of a tile in flight through registers (ptxas 12.0 and 13.0).
fn check_registers(problem: &Problem, config: &Config) -> Result<(), Refusal> {
    let head_dim = problem.head_dim().max(problem.head_dim_v());
    let most = match config.kind {
        Kind::Hybrid => 192,
        Kind::Mma => 208,
    };
    refuse!(config.cols >= 64 && head_dim > most => NAME, "with 32 keys a tile it does",
        "head_dim {head_dim} with 64 keys a tile: registers would spill");
    Ok(())
}

pub(crate) fn plan(problem: &Problem, config: &Config, with: Resolver<'_>) -> Result<Step, Refusal> {
    let Resolver { kernels, tap, .. } = with;
    refuse!(problem.direction() == Direction::Backward => NAME, OTHER_FAMILIES, "the backward pass");
    check_lengths(problem, NAME, OTHER_FAMILIES)?;
    check_problem(problem, NAME, &SIXTEEN_BITS)?;
    FAMILY.check(&Values::from(*config))?;
    check_registers(problem, config)?;
    let shape = Shape::new(problem, 16, tap);
    let kernel = kernels.get_or_build(*config, shape, |config, shape| {
        let name = shape.kernel_name(&format!("{NAME}/{config}"));
        Built::build(name, 32 * config.warps, |k| match config.kind {
            Kind::Hybrid => with_element!(sixteen_bits shape.dtype => hybrid::body(k, &config, shape)),
            Kind::Mma => with_element!(sixteen_bits shape.dtype => mma::body(k, &config, shape)),
        })
    })?;
    let blocks = query_blocks(problem, config.rows()) as u32;
    kernel.step([blocks, 1, 1], &Forward::new(problem, Sharing::Alone))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use flashcore_ir::Target;
    use flashcore_problem::DType;

    #[test]
    fn what_it_does_not_serve_it_refuses() {
        let config = "ladder/mma-m128n64-w8".parse().unwrap();
        let refused = |problem: Problem, target| Plan::new(&problem, &config, target).unwrap_err().to_string();
        let f32s = refused(
            Problem::builder()
                .heads(1, 1)
                .seq_len(128)
                .head_dim(64)
                .dtype(DType::F32)
                .build()
                .unwrap(),
            Target::Sm80,
        );
        assert!(f32s.contains("ladder does not serve f32"), "{f32s}");
        let wide = refused(
            Problem::builder()
                .heads(1, 1)
                .seq_len(128)
                .head_dim(200)
                .build()
                .unwrap(),
            Target::Sm89,
        );
        assert!(wide.contains("sm_89 allows 101376") && wide.contains("n32"), "{wide}");
        let widest = refused(
            Problem::builder()
                .heads(1, 1)
                .seq_len(128)
                .head_dim(256)
                .build()
                .unwrap(),
            Target::Sm90a,
        );
        assert!(widest.contains("with 32 keys a tile it does"), "{widest}");
        let Err(refusal) = FAMILY.check(&Values::from(Config {
            kind: Kind::Mma,
            warps: 3,
            cols: 64,
            p: P::Usual,
        })) else {
            panic!("three warps");
        };
        assert_eq!(refusal.to_string(), "warps is 3; allowed: 4, 8");
    }
}
