//! Blocks that share a tile of keys in the backward pass of family `wgmma`: their sums of dK and dV are right whatever
//! share a block has, and faults in them are found.

use flashcore_check::mutate::Operator;
use flashcore_check::{CheckOptions, check_plan};
use flashcore_ir::{Arg, Target};
use flashcore_kernels::{KernelCache, Plan};
use flashcore_problem::rng::Rng;
use flashcore_problem::{InputKind, Mask, Problem};

use flashcore_sim::FindingKind;

use crate::common::{assert_clean, number};
use crate::planted::{Fault, find_all};
use crate::wgmma_backward::draw;

fn config(head_dim: usize, splits: usize) -> String {
    let id = match head_dim {
        ..=64 => "wgmma/m128n128-s2-pingpong",
        65..=128 => "wgmma/m64n128-s2-pingpong",
        _ => "wgmma/m64n64-s2-c2-free",
    };
    format!("{id}-k{splits}")
}

/// Heads on a K/V head that blocks share in parts, more blocks than Q tiles, tiles that no row sees; gradients in
/// their own layouts, which the last step writes.
#[test]
fn every_share_equals_float64() {
    let (first, count) = (number("FLASHCORE_SEED", 0), number("FLASHCORE_PROBLEMS", 8));
    let kernels = KernelCache::default();
    for seed in first..first + count {
        let mut rng = Rng::new(seed);
        let problem = draw(&mut rng, [64, 128, 256, 96, 192, 40][seed as usize % 6], false);
        let id = config(
            problem.head_dim().max(problem.head_dim_v()),
            [2, 3, 5, 8, 16][rng.below(5)],
        );
        let plan = Plan::with_cache(&problem, &id.parse().unwrap(), Target::Sm90a, &kernels).unwrap();
        assert_clean(&plan, seed, InputKind::Normal);
    }
}

/// Three heads on a K/V head, which two blocks share: the second one begins within a head.
fn plan(head_dim: usize) -> Plan {
    let builder = Problem::builder().heads(3, 1).seq_len_q(240).seq_len_kv(150);
    let builder = builder.head_dim(head_dim).mask(Mask::CAUSAL.top_left());
    let problem = builder.build().unwrap().backward().unwrap();
    Plan::new(&problem, &config(head_dim, 2).parse().unwrap(), Target::Sm90a).unwrap()
}

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    Fault { name: "a part of dK is added twice", operator: Operator::AddTwice,
        place: "add_sum", object: "dk_sums", found: None, at: "", of: "" },
    Fault { name: "a part of dV is added twice", operator: Operator::AddTwice,
        place: "add_sum", object: "dv_sums", found: None, at: "", of: "" },
    Fault { name: "a part of dV is not added", operator: Operator::DropAtomic,
        place: "add_sum", object: "dv_sums", found: None, at: "", of: "" },
    Fault { name: "all warps add to the same keys", operator: Operator::DropAddend,
        place: "add_sum", object: "", found: None, at: "", of: "" },
    Fault { name: "the producer and consumers of a block walk other Q tiles", operator: Operator::DropAddend,
        place: "share.iterations(i)", object: "", found: Some(FindingKind::Deadlock), at: "", of: "" },
];

#[test]
fn faults_of_shared_tiles_are_found() {
    find_all(&plan(128), FAULTS);
}

/// Sums that nothing zeroed, in part, and gradients that nothing rounds.
#[test]
fn sums_without_zeros_are_found() {
    for head_dim in [64, 128, 256] {
        let gradient = |change: &dyn Fn(&mut Plan)| {
            let mut plan = plan(head_dim);
            change(&mut plan);
            check_plan(&plan, &CheckOptions::default())
                .unwrap()
                .gate
                .unwrap()
                .gradient
        };
        // Elements that are zeroed, in groups of four: those of dK, 256 padded keys.
        let width = head_dim.next_multiple_of(64) as u32;
        let args = |plan: &mut Plan, of: u32| {
            let args = plan.before[0].launch.args.iter_mut();
            let counts: Vec<_> = args
                .filter(|arg| matches!(arg, Arg::U32(n) if *n == 256 * width / 2))
                .collect();
            assert_eq!(counts.len(), 1);
            counts.into_iter().for_each(|arg| *arg = Arg::U32(of));
        };
        assert_eq!(gradient(&|plan| args(plan, 256 * width / 4)), Some("dv"));
        assert_eq!(gradient(&|plan| plan.then[0].launch.grid[0] -= 1), Some("dv"));
    }
}
