//! The ladder: configs of families `scalar`, `ladder` and `mma`, each with one idea more than the last.

use flashcore_ir::Chip;
use flashcore_problem::Problem;

use crate::{Config, Plan, mma, scalar};

/// A rung of the ladder: what it is called, and the config that it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rung {
    /// What is new to it, such as `+ cp.async`.
    pub label: &'static str,
    /// The config.
    pub config: Config,
}

/// The ladder for a problem on a target, lowest rung first: from a thread a row to the default of family `mma`. Each
/// rung differs from the one before in what its label says; rows, keys a tile and warps are the same from `hybrid`
/// to `+ swizzle`.
///
/// Whether a rung serves a problem, its plan says; scalar rungs come with accesses as wide as the strides allow, and
/// `tuned` is left out where family `mma` has no default.
///
/// ```
/// use flashcore_ir::Target;
/// use flashcore_kernels::rungs;
/// use flashcore_problem::Problem;
/// let rungs = rungs(&Problem::named("mission")?, Target::Sm89);
/// assert_eq!(rungs[0].config.to_string(), "scalar/naive-t128-v16");
/// assert_eq!((rungs[3].label, rungs[7].label), ("hybrid", "tuned"));
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn rungs(problem: &Problem, chip: impl Into<Chip>) -> Vec<Rung> {
    let chip = chip.into();
    const UNTUNED: [(&str, &str); 7] = [
        ("naive", "scalar/naive-t128-v16"),
        ("tiled, 4 warps", "scalar/tiled-m32n32-w4-v16"),
        ("tiled, 8 warps", "scalar/tiled-m32n32-w8-v16"),
        ("hybrid", "ladder/hybrid-m64n64-w4"),
        ("mma", "ladder/mma-m64n64-w4"),
        ("+ cp.async", "mma/m64n64-w4x1-s2-b1-qsh-lin-always"),
        ("+ swizzle", "mma/m64n64-w4x1-s2-b1-qsh-xor-always"),
    ];
    let mut rungs = Vec::new();
    for (label, id) in UNTUNED {
        let config = match id.parse() {
            Ok(Config::Scalar(config)) => {
                let vector_bytes = scalar::widest(problem);
                Config::Scalar(scalar::Config { vector_bytes, ..config })
            }
            Ok(config) => config,
            Err(_) => continue,
        };
        rungs.push(Rung { label, config });
    }
    let tuned = mma::proposals(problem, chip)
        .map(|proposal| Config::Mma(proposal.config))
        .find(|config| Plan::new(problem, config, chip).is_ok());
    rungs.extend(tuned.map(|config| Rung { label: "tuned", config }));
    rungs
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_ir::Target;

    #[test]
    fn every_rung_serves_the_problem_it_is_about_on_every_card() {
        let problem = Problem::named("mission").unwrap();
        for target in [Target::Sm80, Target::Sm89, Target::Sm90a, Target::Sm120] {
            let rungs = rungs(&problem, target);
            assert_eq!(rungs.len(), 8);
            for rung in &rungs {
                Plan::new(&problem, &rung.config, target).unwrap_or_else(|refusal| panic!("{}: {refusal}", rung.label));
            }
        }
    }
}
