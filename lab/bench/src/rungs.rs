//! The ladder: configs of families `scalar`, `ladder` and `mma`, each with one idea more than the last, up to what the
//! library runs.

use flashcore_ir::Chip;
use flashcore_kernels::{Config, KernelCache, Plan, Suggestion, mma, scalar, select_among};
use flashcore_problem::Problem;

/// A rung of the ladder: what it is called, and the config that it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rung {
    /// What is new to it, such as `+ cp.async`.
    pub label: &'static str,
    /// The config.
    pub config: Config,
}

/// The ladder for a problem on a target, lowest rung first: from a thread a row to what the library runs there. Each
/// rung differs from the one before in what its label says; rows, keys a tile and warps are the same from `hybrid`
/// to `+ swizzle`. Then come `tuned`, the default of family `mma`, and `default`, where the library runs another one:
/// of `suggestions`, such as rows of a plan table, the first that serves, as [`select_among`] chooses.
///
/// Whether a rung serves a problem, its plan says; scalar rungs come with accesses as wide as the strides allow, and
/// `tuned` is left out where family `mma` has no default.
///
/// ```
/// use flashcore_bench::rungs;
/// use flashcore_ir::Target;
/// use flashcore_problem::Problem;
/// let rungs = rungs(&Problem::named("small")?, Target::Sm89, &[]);
/// assert_eq!(rungs[0].config.to_string(), "scalar/naive-t128-v16");
/// assert_eq!((rungs[3].label, rungs[7].label), ("hybrid", "tuned"));
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn rungs(problem: &Problem, chip: impl Into<Chip>, suggestions: &[Suggestion]) -> Vec<Rung> {
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
    let choice = select_among(problem, chip, mma::ALIGNMENT, suggestions, &KernelCache::default());
    let run = choice.ok().map(|choice| choice.plan.config);
    let run = run.filter(|config| rungs.last().is_none_or(|rung| rung.config != *config));
    rungs.extend(run.map(|config| Rung {
        label: "default",
        config,
    }));
    rungs
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_ir::Target;

    #[test]
    fn every_rung_serves_the_problem_it_is_about_on_every_card() {
        let problem = Problem::named("small").unwrap();
        for target in [Target::Sm80, Target::Sm89, Target::Sm90a, Target::Sm120] {
            let rungs = rungs(&problem, target, &[]);
            assert_eq!(rungs.len(), 8);
            for rung in &rungs {
                Plan::new(&problem, &rung.config, target).unwrap_or_else(|refusal| panic!("{}: {refusal}", rung.label));
            }
        }
    }

    #[test]
    fn the_last_rung_is_what_the_library_runs() {
        let kernels = KernelCache::default();
        for name in ["small", "llama"] {
            let problem = match name {
                "small" => Problem::named(name).unwrap(),
                _ => Problem::builder()
                    .heads(32, 8)
                    .seq_len(8192)
                    .head_dim(128)
                    .build()
                    .unwrap(),
            };
            for target in [Target::Sm89, Target::Sm90a] {
                let last = rungs(&problem, target, &[]).pop().unwrap().config;
                let choice = select_among(&problem, target, mma::ALIGNMENT, &[], &kernels).unwrap();
                assert_eq!(last, choice.plan.config, "{name} on {target}");
            }
            let config = "mma/m64n32-w4x1-s2-b1-qreg-xor-cond".parse().unwrap();
            let row = Suggestion {
                config,
                why: "a row of a table".to_string(),
            };
            let last = rungs(&problem, Target::Sm90a, &[row]).pop().unwrap();
            assert_eq!((last.label, last.config), ("default", config));
        }
    }
}
