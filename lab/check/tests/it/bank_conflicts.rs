//! Swizzled tiles of family `mma` have no bank conflicts, in any access to shared memory; tiles as they lie in
//! memory have them, and the counts say where.
//!
//! On an H200, Nsight Compute counted no excessive wavefronts ("L1 Wavefronts Shared Excessive": 0) in two of these
//! kernels, m128n64 at head_dim 64 and at 128, swizzled.

use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_ir::Target;
use flashcore_kernels::{Config, Plan, mma};
use flashcore_problem::rng::Rng;
use flashcore_problem::{DType, Problem};
use flashcore_sim::{Class, MemorySite};

/// Whole tiles, so that each access has all its lanes.
fn problem(head_dim: usize, head_dim_v: usize) -> Problem {
    let builder = Problem::builder()
        .heads(2, 1)
        .seq_len_q(128)
        .seq_len_kv(256)
        .head_dim(head_dim);
    builder.head_dim_v(head_dim_v).dtype(DType::F16).build().unwrap()
}

fn counted(problem: &Problem, config: mma::Config) -> Option<CheckReport> {
    let plan = Plan::new(problem, &Config::Mma(config), Target::Sm90a).ok()?;
    let mut options = CheckOptions::default();
    options.sim.memory_counts = true;
    let report = check_plan(&plan, &options).unwrap();
    assert_eq!(report.verdict, Verdict::Clean, "{config}\n{report}");
    Some(report)
}

fn in_shared_memory(site: &&MemorySite) -> bool {
    matches!(site.class, Class::LoadShared | Class::StoreShared)
}

fn with_conflicts(report: &CheckReport) -> Vec<&MemorySite> {
    let shared = report.memory.iter().filter(in_shared_memory);
    shared.filter(|site| site.transactions > site.ideal).collect()
}

/// Every slab that a swizzle is made for: rows of 32, 64 and 128 bytes, one and several slabs, padded or not.
const HEAD_DIMS: [(usize, usize); 8] = [
    (16, 16),
    (32, 32),
    (64, 64),
    (72, 72),
    (96, 96),
    (128, 128),
    (192, 128),
    (256, 256),
];

#[test]
fn swizzled_tiles_have_none() {
    let mut rng = Rng::new(7);
    let mut checked = 0;
    for (head_dim, head_dim_v) in HEAD_DIMS {
        let problem = problem(head_dim, head_dim_v);
        let mut left = 8;
        while left > 0 {
            let config = mma::Config {
                swizzled: true,
                ..mma::FAMILY.sample(&mut rng).into()
            };
            // Rows of two chunks of f32 cannot be read without conflicts as well as written so.
            if head_dim_v < 32 && config.kv_warps > 1 {
                continue;
            }
            let Some(report) = counted(&problem, config) else {
                continue;
            };
            let conflicts = with_conflicts(&report);
            assert!(
                conflicts.is_empty(),
                "{config} at head_dim {head_dim}/{head_dim_v}: {conflicts:#?}"
            );
            // All kinds of accesses were there to be counted.
            let classes: Vec<Class> = report.memory.iter().map(|site| site.class).collect();
            assert!(classes.contains(&Class::LoadShared) && classes.contains(&Class::StoreShared));
            (left, checked) = (left - 1, checked + 1);
        }
    }
    println!("{checked} configs");
}

/// Reading matrices conflicts, for any rows that share their banks: eight at 128 bytes.
#[test]
fn tiles_as_they_lie_have_them() {
    for (head_dim, ways) in [(64, 8), (32, 4), (128, 8)] {
        let id = "m64n64-w4x1-s2-b1-qsh-lin-cond";
        let config = mma::Config::from(mma::FAMILY.read_levers(id).unwrap());
        let report = counted(&problem(head_dim, head_dim), config).unwrap();
        let conflicts = with_conflicts(&report);
        let at = |class| conflicts.iter().filter(|site| site.class == class).collect::<Vec<_>>();
        let loads = at(Class::LoadShared);
        let worst = loads.iter().map(|site| site.transactions / site.ideal).max();
        assert_eq!(worst, Some(ways), "head_dim {head_dim}: {loads:#?}");
        assert!(!at(Class::StoreShared).is_empty(), "{conflicts:#?}");
    }
}
