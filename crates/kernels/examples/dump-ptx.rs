//! Writes the PTX of the kernels that a release is assembled with, one file each: of family `scalar` every tile
//! and warp count at the usual head sizes, and every dtype, access width and option on the default tile; of family
//! `mma` keys split across blocks, with the kernels that merge them; the ladder; builds that stop after a stage.
//!
//! usage: cargo run -p flashcore-kernels --example dump-ptx -- FOLDER

use std::collections::BTreeMap;
use std::path::PathBuf;

use flashcore_ir::Target;
use flashcore_kernels::ladder::{self, scores};
use flashcore_kernels::{Config, Plan, Step, StopAfter, scalar};
use flashcore_problem::{DType, Layout, Problem, ProblemBuilder};

/// Keys split across blocks in every way: warps along rows and along keys, each rule of rescaling, and enough splits
/// for each variant of `combine`.
const SPLIT: [&str; 5] = [
    "mma/m16n64-w1x4-s3-b2-qreg-xor-lazy-gqa-k33",
    "mma/m16n32-w1x2-s4-b3-qreg-xor-bold-gqa-k24",
    "mma/m16n128-w1x8-s2-b1-qsh-xor-eager-gqa-k16",
    "mma/m64n32-w4x1-s2-b1-qsh-xor-lazy-k2",
    "mma/m32n64-w2x2-s2-b1-qsh-xor-bold-gqa-k8",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: dump-ptx FOLDER")?);
    std::fs::create_dir_all(&folder)?;
    let target = Target::Sm90a;

    // Distinct kernels by name: problems that differ only in lengths and strides share one.
    let mut kernels = BTreeMap::new();
    let mut refused = 0;
    for problem in problems() {
        let mut configs = SPLIT.map(str::parse).into_iter().collect::<Result<Vec<Config>, _>>()?;
        for config in scalar::configs() {
            let preferred = scalar::preferred_configs(&problem, 16);
            let varied = problem.dtype() != DType::F16 || problem.softcap().is_some() || config.vector_bytes() != 16;
            if varied && !preferred.contains(&config.with_vector_bytes(preferred[0].vector_bytes())) {
                continue;
            }
            configs.push(Config::Scalar(config));
        }
        for config in configs {
            match Plan::new(&problem, &config, target) {
                Ok(plan) => plan.steps().for_each(|step| add(&mut kernels, step)),
                Err(_) => refused += 1,
            }
        }
    }
    for problem in problems() {
        let varied = problem.dtype() != DType::F16 || problem.softcap().is_some();
        for config in ladder::configs() {
            if varied && (config.warps, config.cols) != (4, 64) {
                continue;
            }
            match Plan::new(&problem, &Config::Ladder(config), target) {
                Ok(plan) => add(&mut kernels, &plan.main),
                Err(_) => refused += 1,
            }
        }
        for levers in scores::Levers::all() {
            match scores::plan(&problem, levers, target) {
                Ok(step) if !varied => add(&mut kernels, &step),
                Ok(_) => {}
                Err(_) => refused += 1,
            }
        }
    }
    // Builds that stop after a stage: one config a family, with all there is on the way to a stage.
    let softcapped = |problem: &Problem| problem.dtype() == DType::F16 && problem.softcap().is_some();
    for problem in problems().into_iter().filter(softcapped) {
        for id in [
            "scalar/tiled-m32n32-w4-v16",
            "mma/m64n64-w4x1-s2-b1-qreg-xor-lazy",
            "ladder/mma-m64n64-w4",
        ] {
            for stop in StopAfter::ALL {
                match Plan::with_stage(&problem, &id.parse()?, target, stop) {
                    Ok(plan) => add(&mut kernels, &plan.main),
                    Err(_) => refused += 1,
                }
            }
        }
    }
    for (name, ptx) in &kernels {
        std::fs::write(folder.join(format!("{name}.ptx")), ptx)?;
    }
    println!(
        "{} kernels in {} ({refused} configs refused their problem)",
        kernels.len(),
        folder.display()
    );
    Ok(())
}

fn add(kernels: &mut BTreeMap<String, String>, step: &Step) {
    kernels.insert(step.kernel.name().to_string(), step.kernel.to_ptx());
}

fn problems() -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |builder: ProblemBuilder| problems.extend(builder.build());
    for head_dim in [8, 64, 72, 128, 200, 256] {
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            add(Problem::builder().head_dim(head_dim).dtype(dtype));
            add(Problem::builder()
                .head_dim(head_dim)
                .dtype(dtype)
                .softcap(30.0)
                .return_lse(true));
        }
    }
    // Rows that start at any element, so that every access width has its kernel.
    for dtype in [DType::F16, DType::BF16, DType::F32] {
        let odd = |shape: [usize; 4]| Layout {
            shape,
            strides: [shape[1] as i64 * 65, 65, 0, 1],
        };
        let layouts = [odd([1, 128, 1, 64]); 4];
        add(Problem::builder()
            .dtype(dtype)
            .layouts(layouts[0], layouts[1], layouts[2], layouts[3]));
    }
    add(Problem::builder().head_dim(192).head_dim_v(128));
    problems
}
