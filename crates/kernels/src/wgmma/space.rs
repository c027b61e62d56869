//! The family's space: every config that the levers allow. Problems refuse more; that is for
//! [`Plan::new`](crate::Plan::new) to say.

use flashcore_problem::rng::Rng;

use super::{CLUSTERS, COLS, Config, ROWS, STAGES};
use crate::mma::Rescale;

/// Every config whose levers go together, in a fixed order.
///
/// ```
/// use flashcore_kernels::wgmma;
/// assert!(wgmma::configs().len() > 500);
/// ```
pub fn configs() -> Vec<Config> {
    let mut configs = Vec::new();
    for rows in ROWS {
        for cols in COLS.step_by(16) {
            for stages in STAGES {
                for cluster in CLUSTERS {
                    for take_turns in [false, true] {
                        configs.extend(Rescale::ALL.map(|rescale| Config {
                            rows,
                            cols,
                            stages,
                            cluster,
                            take_turns,
                            rescale,
                        }));
                    }
                }
            }
        }
    }
    configs.retain(|config| config.check_levers().is_ok());
    configs
}

/// A config drawn evenly from [`configs`].
///
/// ```
/// use flashcore_kernels::wgmma;
/// use flashcore_problem::rng::Rng;
/// assert_eq!(wgmma::sample(&mut Rng::new(3)), wgmma::sample(&mut Rng::new(3)));
/// ```
pub fn sample(rng: &mut Rng) -> Config {
    let configs = configs();
    configs[rng.below(configs.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_all_configs_round_trip() {
        for config in configs() {
            assert_eq!(Config::from_id(&config.id()), Some(config));
        }
    }
}
