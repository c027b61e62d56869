//! The space that was measured on an H200 for replays: its ids, and the file made from its reports.

use std::path::PathBuf;

use flashcore_bench::{Report, problems};
use flashcore_ir::{Target, files};
use flashcore_kernels::{Config, KernelCache, Plan, mma, wgmma};
use flashcore_problem::Problem;
use flashcore_tune::replay::Measured;

/// Lists the configs of a space to be measured, or makes the file of spaces from reports.
///
/// `flashcore bench PROBLEM --kernel IDS --sweep --json > REPORT.json` measures them
/// (`scripts/measure-space.sh`).
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A named problem, or one of a set, such as d128-s1024 of `canonical`: prints the ids that
    /// sm_90a does not refuse.
    #[arg(required_unless_present = "of")]
    problem: Option<String>,
    /// Print the file of spaces that sweeps' reports have measured.
    #[arg(long, num_args = 1.., conflicts_with = "problem")]
    of: Vec<PathBuf>,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let Some(name) = &options.problem else {
        let mut reports = Vec::new();
        for path in &options.of {
            let mut printed: serde_json::Value = serde_json::from_str(&files::read_text_capped(path, files::LARGE)?)?;
            reports.push(serde_json::from_value::<Report>(printed["report"].take())?);
        }
        println!("{}", serde_json::to_string(&Measured::of_sweeps(&reports)?)?);
        return crate::verdict(true);
    };
    let mut of_sets = problems::cases("all", None)?.into_iter();
    let problem = match of_sets.find(|case| case.name == *name) {
        Some(case) => case.problem,
        None => Problem::named(name)?,
    };
    let mma = mma::FAMILY.configs().map(mma::Config::from);
    let mma = mma.filter(|config| wanted_mma(config, &problem)).map(Config::Mma);
    let wgmma = wgmma::FAMILY.configs().map(wgmma::Config::from);
    let wgmma = wgmma.filter(wanted_wgmma).map(Config::Wgmma);
    for config in mma.chain(wgmma) {
        if Plan::with_cache(&problem, &config, Target::Sm90a, &KernelCache::default()).is_ok() {
            println!("{config}");
        }
    }
    crate::verdict(true)
}

/// Levers that matter on such problems, at values that are neither hopeless nor for decoding.
fn wanted_mma(config: &mma::Config, problem: &Problem) -> bool {
    // Of long problems small tiles and several warps on the same rows are far from the best.
    if problem.seq_len_q() >= 1024 && (config.kv_warps > 1 || config.rows < 32 || config.cols < 64) {
        return false;
    }
    let rows_a_warp = config.rows / config.warps;
    let sizes = [16, 32, 64, 128].contains(&config.rows) && [32, 64, 128].contains(&config.cols) && rows_a_warp <= 32;
    let split = config.kv_warps <= 2 && config.splits == 1 && !config.pack_heads;
    let rest = [2, 4].contains(&config.stages) && config.min_blocks <= 2 && config.swizzled;
    sizes && split && rest && config.rescale != mma::Rescale::Always
}

fn wanted_wgmma(config: &wgmma::Config) -> bool {
    let sizes = config.cols.is_multiple_of(32) || config.cols == 176;
    let together = config.cluster == 1 || config.stages == 2;
    sizes && together && config.stages <= 3
}
