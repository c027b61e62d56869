//! Prints the ids of the space that was measured on an H200 and is shipped for replays, one a line.
//!
//! usage: cargo run -p flashcore-tune --example measured-space -- PROBLEM > ids.txt
//!
//! PROBLEM: a named problem, or one of a set, such as d128-s1024 of `canonical`. What a plan refuses there on sm_90a
//! is left out. Then `flashcore bench PROBLEM --kernel ids.txt --sweep --json` measures them.

use flashcore_bench::problems;
use flashcore_ir::Target;
use flashcore_kernels::{Config, KernelCache, Plan, mma, wgmma};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).ok_or("usage: measured-space PROBLEM")?;
    let of_sets = problems::cases("all", None)?.into_iter().find(|case| case.name == name);
    let problem = match of_sets {
        Some(case) => case.problem,
        None => flashcore::Problem::named(&name)?,
    };
    let mma = mma::SPACE.configs().filter(wanted_mma).map(Config::Mma);
    let wgmma = wgmma::SPACE.configs().filter(wanted_wgmma).map(Config::Wgmma);
    for config in mma.chain(wgmma) {
        if Plan::with_cache(&problem, &config, Target::Sm90a, &KernelCache::default()).is_ok() {
            println!("{config}");
        }
    }
    Ok(())
}

/// Levers that matter on such problems, at values that are neither hopeless nor for decoding.
fn wanted_mma(config: &mma::Config) -> bool {
    let rows_a_warp = config.rows / config.warps;
    let sizes = [16, 32, 64, 128].contains(&config.rows) && [32, 64, 128].contains(&config.cols) && rows_a_warp <= 32;
    let split = config.kv_warps <= 2 && config.splits == 1 && !config.pack_heads;
    let rest = [2, 4].contains(&config.stages) && config.min_blocks <= 2 && config.swizzled;
    sizes && split && rest && config.rescale != mma::Rescale::Eager
}

fn wanted_wgmma(config: &wgmma::Config) -> bool {
    let sizes = config.cols.is_multiple_of(32) || config.cols == 176;
    let together = config.cluster == 1 || config.stages == 2;
    sizes && together && config.stages <= 3
}
