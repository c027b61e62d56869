//! Mistakes planted in kernels are found, each with its kind and its line; the kernels as they are,
//! are clean.

use flashcore_check::mutate::{Mutation, Operator, mutations};
use flashcore_check::{CheckOptions, CheckReport, Verdict, check_plan};
use flashcore_ir::{Arg, Kernel, Launch, Target};
use flashcore_kernels::Plan;
use flashcore_problem::{Mask, Problem};
use flashcore_sim::FindingKind::{
    BarrierMismatch, BlockRace, DivisionByZero, Livelock, Misaligned, MissingLanes, NeverWritten, OutOfBounds, Race,
};

use crate::planted::{self, Fault, quoted};

const KERNEL: &str = "scalar/tiled-m32n32-w4-v16";

fn plan(problem: &Problem) -> Plan {
    Plan::new(problem, &KERNEL.parse().unwrap(), Target::Sm89).unwrap()
}

/// Tails of rows, keys and columns; two heads on one K/V head.
fn odd_problem() -> Problem {
    let builder = Problem::builder().heads(2, 1).seq_len_q(45).seq_len_kv(77).head_dim(40);
    builder.mask(Mask::CAUSAL).return_lse(true).build().unwrap()
}

fn check_with(plan: &Plan, kernel: Kernel, launch: Launch) -> CheckReport {
    planted::check_with(plan, kernel, launch, &CheckOptions::default())
}

#[rustfmt::skip]
const PLANTED: &[Fault] = &[
    Fault { name: "dropped barrier: the next tile overwrites this one", operator: Operator::DropBarrier,
        place: "k.barrier();", object: "", found: Some(Race), at: "load_tile(", of: "k_tile" },
    Fault { name: "barrier count: three warps of four", operator: Operator::CountBarrier,
        place: "k.barrier();", object: "", found: Some(BarrierMismatch), at: "k.barrier();", of: "" },
    Fault { name: "shuffle taken for a fence", operator: Operator::DropWarpBarrier,
        place: "k.sync_warp();", object: "", found: Some(Race), at: r#"k.verb("O += P·V""#, of: "p_tile" },
    Fault { name: "stride off by one, storing a tile", operator: Operator::StrideOne,
        place: "load_tile(", object: "", found: Some(Misaligned), at: "load_tile(", of: "q_tile" },
    Fault { name: "stride off by one, reading a tile", operator: Operator::StrideOne,
        place: r#"k.verb("scores = Q·Kᵀ""#, object: "", found: Some(Misaligned), at: r#"k.verb("scores = Q·Kᵀ""#, of: "q_tile" },
    Fault { name: "stride 16 bytes too large, reading a tile", operator: Operator::StrideSixteen,
        place: r#"k.verb("scores = Q·Kᵀ""#, object: "", found: Some(NeverWritten), at: r#"k.verb("scores = Q·Kᵀ""#, of: "q_tile" },
    Fault { name: "tail of the keys unmasked", operator: Operator::BoundOne,
        place: "load_tile(", object: "", found: Some(OutOfBounds), at: "load_tile(", of: "k" },
    Fault { name: "tail of the rows unmasked", operator: Operator::BoundOne,
        place: "k.if_(row.row.lt(params.seq_len_q).divergent()", object: "", found: Some(OutOfBounds), at: ".store_f32s(", of: "out" },
    Fault { name: "tail of the columns unmasked", operator: Operator::BoundOne,
        place: "out.store(i,", object: "", found: Some(BlockRace), at: ".store_f32s(", of: "out" },
    Fault { name: "column clamp left out", operator: Operator::Unclamp,
        place: r#"k.verb("O += P·V""#, object: "", found: Some(OutOfBounds), at: r#"k.verb("O += P·V""#, of: "v_tile" },
    Fault { name: "buffer too small: P", operator: Operator::ShrinkBuffer,
        place: r#"let p_tile"#, object: "p_tile", found: Some(OutOfBounds), at: "p_row.plus(", of: "p_tile" },
    Fault { name: "buffer too small: Q", operator: Operator::ShrinkBuffer,
        place: r#"let q_tile"#, object: "q_tile", found: Some(OutOfBounds), at: "load_tile(", of: "q_tile" },
    Fault { name: "P never stored", operator: Operator::DropStore,
        place: "p_row.plus(", object: "p_tile", found: Some(NeverWritten), at: r#"k.verb("O += P·V""#, of: "p_tile" },
    Fault { name: "part of K never stored", operator: Operator::DropStore,
        place: "load_tile(", object: "k_tile", found: Some(NeverWritten), at: r#"k.verb("scores = Q·Kᵀ""#, of: "k_tile" },
    Fault { name: "one access too far, reading V", operator: Operator::NextAccess,
        place: "load_tile(", object: "v", found: Some(OutOfBounds), at: "load_tile(", of: "v" },
    Fault { name: "two bytes too far, storing P", operator: Operator::OffAccess,
        place: "p_row.plus(", object: "p_tile", found: Some(Misaligned), at: "p_row.plus(", of: "p_tile" },
    Fault { name: "counter that stands still", operator: Operator::DropStep,
        place: "load_tile(", object: "", found: Some(Livelock), at: "load_tile(", of: "" },
    Fault { name: "half a warp's mask in a full warp's shuffle", operator: Operator::HalfWarp,
        place: "largest.reduce_max(", object: "", found: Some(MissingLanes), at: "largest.reduce_max(", of: "" },
];

#[test]
fn planted_mistakes_are_found_with_kind_and_line() {
    planted::find_all(&plan(&odd_problem()), PLANTED);
}

#[test]
fn launches_that_lie_are_found_too() {
    let plan = plan(&odd_problem());
    let argument = |name: &str| {
        plan.main
            .kernel
            .params()
            .iter()
            .position(|param| param.name == name)
            .unwrap()
    };
    let check = |change: &dyn Fn(&mut Launch)| {
        let mut launch = plan.main.launch.clone();
        change(&mut launch);
        check_with(&plan, (*plan.main.kernel).clone(), launch)
    };
    let has = |report: &CheckReport, kind, object: &str| {
        let of = |found: &flashcore_check::Found| found.finding.object.as_deref().unwrap_or("") == object;
        assert!(
            report.findings.iter().any(|f| f.finding.kind == kind && of(f)),
            "{report}"
        );
    };
    let longer = check(&|launch| launch.args[argument("seq_len_kv")] = Arg::U32(78));
    has(&longer, OutOfBounds, "k");
    let odd_stride = check(&|launch| launch.args[argument("v_seq_stride")] = Arg::U32(41));
    has(&odd_stride, Misaligned, "v");
    let no_group = check(&|launch| launch.args[argument("group_size")] = Arg::U32(0));
    has(&no_group, DivisionByZero, "");
    let overlapping = check(&|launch| launch.args[argument("out_head_stride")] = Arg::U32(0));
    has(&overlapping, BlockRace, "out");
}

#[test]
fn wrong_answers_without_a_finding_are_wrong() {
    let plan = plan(&odd_problem());
    let unmasked: Vec<Mutation> = mutations(&plan.main.kernel)
        .into_iter()
        .filter(|m| m.operator == Operator::Unmask && quoted(m.line).contains("sees.select(score"))
        .collect();
    let report = check_with(&plan, unmasked[0].apply(&plan.main.kernel), plan.main.launch.clone());
    assert_eq!(report.verdict, Verdict::Wrong, "{report}");
    assert!(
        report.to_string().contains("error[wrong-output]: FAIL: max abs"),
        "{report}"
    );
    let unwritten: Vec<Mutation> = mutations(&plan.main.kernel)
        .into_iter()
        .filter(|m| m.operator == Operator::DropStore && m.object.as_deref() == Some("lse"))
        .collect();
    let report = check_with(&plan, unwritten[0].apply(&plan.main.kernel), plan.main.launch.clone());
    assert_eq!(report.verdict, Verdict::Wrong, "{report}");
    assert!(report.gate.unwrap().lse.unwrap().unwritten > 0);
}

#[test]
fn the_kernel_as_it_is_is_clean_over_50_schedules() {
    for problem in [
        odd_problem(),
        Problem::builder().head_dim(64).heads(2, 2).seq_len(96).build().unwrap(),
    ] {
        let options = CheckOptions {
            schedules: 50,
            ..CheckOptions::default()
        };
        let report = check_plan(&plan(&problem), &options).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{report}");
        assert_eq!(report.schedules.len(), 50);
    }
}
