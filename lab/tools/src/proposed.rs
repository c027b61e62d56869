//! Which configs of families `mma` and `wgmma` are chosen where nobody names one, told by asking at any size and mask. Read by
//! `dump-ptx`, and by the test that simulates them (`flashcore-check`).

use flashcore_ir::Target;
use flashcore_kernels::{Config, Plan, mma, wgmma};
use flashcore_problem::{Mask, ProblemBuilder};

/// Head sizes, of Q and K and of V.
pub(crate) const HEAD_DIMS: [(usize, usize); 8] = [
    (48, 48),
    (64, 64),
    (72, 72),
    (96, 96),
    (128, 128),
    (192, 128),
    (192, 192),
    (256, 256),
];

/// Batch, heads, rows and keys of decoding, of small, medium and large problems, and of large ones with shorter rows.
const SIZES: [[usize; 4]; 7] = [
    [1, 8, 1, 8192],
    [1, 4, 512, 512],
    [2, 8, 1024, 1024],
    [32, 32, 512, 512],
    [16, 32, 1024, 1024],
    [8, 32, 2048, 2048],
    [8, 32, 4096, 4096],
];

/// What is taken for a shape on a target, at any size and mask.
pub(crate) fn proposed(shape: &ProblemBuilder, target: Target) -> Vec<Config> {
    let mut taken = Vec::new();
    for [batch, heads, rows, keys] in SIZES {
        for mask in [Mask::FULL, Mask::CAUSAL] {
            let builder = shape.clone().batch(batch).heads(heads, heads).mask(mask);
            let Ok(problem) = builder.seq_len_q(rows).seq_len_kv(keys).build() else {
                continue;
            };
            let fits = |config: &Config| Plan::new(&problem, config, target).is_ok();
            let of_wgmma = wgmma::proposals(&problem, target)
                .into_iter()
                .map(|p| Config::Wgmma(p.config));
            let of_mma = mma::proposals(&problem, target)
                .into_iter()
                .map(|p| Config::Mma(p.config));
            for config in [of_wgmma.into_iter().find(fits), of_mma.into_iter().find(fits)]
                .into_iter()
                .flatten()
            {
                if !taken.contains(&config) {
                    taken.push(config);
                }
            }
        }
    }
    taken
}
