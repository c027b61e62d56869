//! Faults planted in family `wgmma`: barrier counts, phases, bytes, descriptors, early releases, missing fences. Each
//! gives the finding that says what is wrong, at the place where it goes wrong; a wrong answer only where that is all
//! it gives.

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;
use flashcore_problem::{Mask, Problem, ProblemBuilder};
use flashcore_sim::FindingKind;

use crate::planted::{Fault, check_with, find_all, is_found, place};

/// The head_dim and the config that faults are planted in.
const USUAL: (usize, &str) = (64, "wgmma/m128n128-s3-pingpong-spec");
/// The same with all of Q in registers, and room for one stage of it.
const Q_HELD: (usize, &str) = (192, "wgmma/m128n80-s2-pingpong-spec-qreg");

/// A pair of blocks that shares K and V, of two heads of one on them.
const IN_PAIRS: (usize, &str) = (64, "wgmma/m128n64-s2-c2-free-cond-qreg");

/// Two blocks with four tiles of rows each, some seen in part by one warpgroup only, some without rows for one.
fn plan((head_dim, config): (usize, &str)) -> Plan {
    let builder = Problem::builder()
        .heads(4, 2)
        .seq_len_q(150)
        .seq_len_kv(430)
        .head_dim(head_dim);
    with(config, builder.mask(Mask::CAUSAL))
}

/// A config on two SMs.
fn with(config: &str, problem: ProblemBuilder) -> Plan {
    let (problem, config) = (problem.build().unwrap(), config.parse().unwrap());
    let chip = Chip {
        target: Target::Sm90a,
        sms: 2,
    };
    Plan::new(&problem, &config, chip).unwrap()
}

#[rustfmt::skip]
const FAULTS: &[Fault] = &[
    // Barriers and their counts.
    Fault { name: "nobody waits for the mbarriers to be made", operator: Operator::DropBarrier,
        place: "start_pipelines", object: "", found: Some(FindingKind::Mbarrier), at: "self.q.wait()", of: "`q.full`" },
    Fault { name: "the block's barrier waits for a warp that is not there", operator: Operator::CountMore,
        place: "start_pipelines", object: "", found: Some(FindingKind::Deadlock), at: "start_pipelines", of: "" },
    Fault { name: "the scheduler barrier is for a warp fewer", operator: Operator::CountBarrier,
        place: "warp_scheduler_barrier_sync", object: "", found: Some(FindingKind::BarrierMismatch), at: "warp_scheduler_barrier", of: "" },
    Fault { name: "the scheduler barrier is for a warp more", operator: Operator::CountMore,
        place: "warp_scheduler_barrier_arrive", object: "", found: Some(FindingKind::BarrierMismatch), at: "warp_scheduler_barrier", of: "" },
    Fault { name: "the wrong warpgroup is let go", operator: Operator::WrongBarrier,
        place: "warp_scheduler_barrier_arrive", object: "", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "the first warpgroup is never let go", operator: Operator::DropArrive,
        place: "barrier.arrive()", object: "", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "a warpgroup does not wait for the others", operator: Operator::DropBarrier,
        place: "warp_scheduler_barrier_sync", object: "", found: Some(FindingKind::BarrierMismatch), at: "", of: "" },

    // Mbarriers: making them, arrivals, bytes.
    Fault { name: "an mbarrier is not made", operator: Operator::DropInit,
        place: "start_pipelines", object: "v.full", found: Some(FindingKind::Mbarrier), at: "expect", of: "`v.full`" },
    Fault { name: "a full stage waits for an arrival more", operator: Operator::ExtraArrival,
        place: "start_pipelines", object: "k.full", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "an empty stage waits for an arrival more", operator: Operator::ExtraArrival,
        place: "start_pipelines", object: "k.empty", found: Some(FindingKind::Deadlock), at: "acquire", of: "" },
    Fault { name: "a warp never releases a stage", operator: Operator::DropArrive,
        place: "release", object: "v.empty", found: Some(FindingKind::Deadlock), at: "acquire", of: "" },
    Fault { name: "every lane of a warp releases a stage", operator: Operator::IgnoreCondition,
        place: "release", object: "", found: Some(FindingKind::Mbarrier), at: "release", of: "`k.empty`" },
    Fault { name: "every lane copies", operator: Operator::EveryLane,
        place: "k.elect()", object: "", found: Some(FindingKind::Mbarrier), at: "expect", of: "`q.full`" },
    Fault { name: "sixteen bytes too many are announced", operator: Operator::ExtraBytes,
        place: "expect", object: "k.full", found: Some(FindingKind::TransactionBytes), at: "wait_full", of: "" },
    Fault { name: "half of the bytes are announced", operator: Operator::HalfBytes,
        place: "expect", object: "q.full", found: Some(FindingKind::TransactionBytes), at: "wait_full", of: "" },
    Fault { name: "bytes are never announced", operator: Operator::DropArrive,
        place: "expect", object: "v.full", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "a copy is left out", operator: Operator::DropCopy,
        place: "load_tma", object: "q_tile", found: Some(FindingKind::TransactionBytes), at: "wait_full", of: "" },
    Fault { name: "a copy completes at the next stage's mbarrier", operator: Operator::WrongMbarrier,
        place: "load_tma", object: "k_tile", found: Some(FindingKind::TransactionBytes), at: "load_tma", of: "`k.full`" },

    // Phases.
    Fault { name: "a wait takes parity 0 each time round", operator: Operator::FixedParity,
        place: "wait_full", object: "k.full", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "a wait takes the other parity: nothing has been copied yet", operator: Operator::FlipParity,
        place: "wait_full", object: "k.full", found: Some(FindingKind::MissingWait), at: "S = Q*K", of: "k_tile" },
    Fault { name: "a cursor's phase is not turned", operator: Operator::DropSwizzle,
        place: "advance", object: "", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "a phase that was waited for is waited for again", operator: Operator::DropRemainder,
        place: "acquire", object: "", found: Some(FindingKind::WrongPhase), at: "acquire", of: "`q.empty`" },
    Fault { name: "scores do not wait for the keys", operator: Operator::DropPhaseWait,
        place: "wait_full", object: "k.full", found: Some(FindingKind::MissingWait), at: "S = Q*K", of: "k_tile" },
    Fault { name: "the output does not wait for the values", operator: Operator::DropPhaseWait,
        place: "wait_full", object: "v.full", found: Some(FindingKind::MissingWait), at: "O += P*V", of: "v_tile" },
    Fault { name: "a stage is filled again before it is free", operator: Operator::DropPhaseWait,
        place: "acquire", object: "v.empty", found: Some(FindingKind::Race), at: "load_tma", of: "v_tile" },

    // Early releases, and what is in flight.
    Fault { name: "keys are released while their product runs", operator: Operator::DropAsyncWait,
        place: "k.wgmma_wait(0)", object: "", found: Some(FindingKind::Race), at: "load_tma", of: "k_tile" },
    Fault { name: "values are released while their product runs", operator: Operator::WeakenAsyncWait,
        place: "next_block(rows, None", object: "", found: Some(FindingKind::Race), at: "load_tma", of: "v_tile" },
    Fault { name: "scores are read while they are computed", operator: Operator::WeakenAsyncWait,
        place: "k.wgmma_wait(0)", object: "", found: Some(FindingKind::InFlight), at: "", of: "scores" },
    Fault { name: "probabilities are overwritten while they are multiplied", operator: Operator::DropAsyncWait,
        place: "next_block(rows, None", object: "", found: Some(FindingKind::InFlight), at: "", of: "p" },
    Fault { name: "a group of products is never closed", operator: Operator::DropCommit,
        place: "O += P*V", object: "", found: Some(FindingKind::InFlight), at: "", of: "out" },
    Fault { name: "output is overwritten while it is stored", operator: Operator::DropAsyncWait,
        place: "bulk_wait_read(pending)", object: "", found: Some(FindingKind::Race), at: "group.store(", of: "out_tile" },
    Fault { name: "a block ends while its output is stored", operator: Operator::DropAsyncWait,
        place: "bulk_wait_read(0)", object: "", found: Some(FindingKind::MissingWait), at: "store_tma", of: "" },
    Fault { name: "a group of stores is never closed", operator: Operator::DropCommit,
        place: "k.bulk_commit()", object: "", found: Some(FindingKind::MissingWait), at: "store_tma", of: "" },
    Fault { name: "a lane stores what its warp has not written yet", operator: Operator::DropWarpBarrier,
        place: "group.store(", object: "", found: Some(FindingKind::Race), at: "", of: "out_tile" },

    // Fences.
    Fault { name: "no fence: mbarriers are not made known to copies", operator: Operator::DropFence,
        place: "start_pipelines", object: "", found: Some(FindingKind::MissingFence), at: "load_tma", of: "" },
    Fault { name: "no proxy fence: copies do not see what threads wrote", operator: Operator::DropFence,
        place: "group.store(", object: "", found: Some(FindingKind::MissingFence), at: "store_tma", of: "out_tile" },
    Fault { name: "no wgmma fence after registers were written", operator: Operator::DropFence,
        place: "S = Q*K", object: "", found: Some(FindingKind::MissingFence), at: "S = Q*K", of: "scores" },

    // Descriptors, tiles, tensor maps, registers.
    Fault { name: "a descriptor with the wrong stride", operator: Operator::DescriptorStride,
        place: "S = Q*K", object: "", found: Some(FindingKind::Descriptor), at: "S = Q*K", of: "q_tile" },
    Fault { name: "a descriptor with the wrong swizzle", operator: Operator::DescriptorSwizzle,
        place: "O += P*V", object: "", found: Some(FindingKind::Descriptor), at: "O += P*V", of: "v_tile" },
    Fault { name: "an operand taken the other way round", operator: Operator::FlipTranspose,
        place: "S = Q*K", object: "", found: Some(FindingKind::Descriptor), at: "S = Q*K", of: "k_tile" },
    Fault { name: "a descriptor that begins 16 bytes too far", operator: Operator::DescriptorStart,
        place: "S = Q*K", object: "", found: None, at: "", of: "" },
    Fault { name: "a tile a row too short", operator: Operator::ShrinkBuffer,
        place: "let v_tile", object: "v_tile", found: Some(FindingKind::OutOfBounds), at: "load_tma", of: "v_tile" },
    Fault { name: "another tensor's map", operator: Operator::WrongParam,
        place: "let k_rows", object: "", found: Some(FindingKind::OutOfBounds), at: "load_tma", of: "k" },
    Fault { name: "a copy of the row after", operator: Operator::RowOff,
        place: "load_tma", object: "k_tile", found: None, at: "", of: "" },
    Fault { name: "the copying warps keep their registers", operator: Operator::DropRegisters,
        place: "k.roles(", object: "", found: Some(FindingKind::Deadlock), at: "", of: "" },
    Fault { name: "warps ask for more registers than there are", operator: Operator::MoreRegisters,
        place: "k.roles(", object: "", found: Some(FindingKind::Deadlock), at: "", of: "" },
];

/// The same where Q is held in registers.
#[rustfmt::skip]
const FAULTS_OF_Q_HELD: &[Fault] = &[
    Fault { name: "Q is loaded before it is there", operator: Operator::DropPhaseWait,
        place: "wait_full", object: "q.full", found: Some(FindingKind::MissingWait), at: "Q to registers", of: "q_tile" },
    Fault { name: "Q is given back twice", operator: Operator::IgnoreCondition,
        place: "release", object: "", found: Some(FindingKind::Mbarrier), at: "release", of: "`q.empty`" },
    Fault { name: "a word of Q is not loaded", operator: Operator::DropLoad,
        place: "Q to registers", object: "q_tile", found: None, at: "", of: "" },
    Fault { name: "the chunks of a row of Q are not where its swizzle has them", operator: Operator::DropSwizzle,
        place: "Q to registers", object: "", found: None, at: "", of: "" },
    Fault { name: "Q of the next tile overwrites Q that is multiplied", operator: Operator::DropAsyncWait,
        place: "next_block(rows, None", object: "", found: Some(FindingKind::InFlight), at: "", of: "q" },
    Fault { name: "the copy of the next Q overtakes the loads of this one", operator: Operator::DropFence,
        place: "Q to registers", object: "", found: Some(FindingKind::MissingFence), at: "load_tma", of: "q_tile" },
    Fault { name: "no wgmma fence after Q was loaded", operator: Operator::DropFence,
        place: "S = Q*K", object: "", found: Some(FindingKind::MissingFence), at: "S = Q*K", of: "q" },
];

/// What blocks of a pair owe each other.
#[rustfmt::skip]
const FAULTS_OF_PAIRS: &[Fault] = &[
    Fault { name: "a block begins before the other one's mbarriers are made", operator: Operator::DropClusterWait,
        place: "start_pipelines", object: "", found: Some(FindingKind::Mbarrier), at: "acquire", of: "`q.empty`" },
    Fault { name: "mbarriers are made, and nothing says so to the other block", operator: Operator::RelaxArrive,
        place: "start_pipelines", object: "", found: Some(FindingKind::Mbarrier), at: "acquire", of: "`q.empty`" },
    Fault { name: "a block ends while the other one may arrive at its mbarriers", operator: Operator::DropClusterWait,
        place: "cluster_wait", object: "", found: Some(FindingKind::PeerLifetime), at: "release", of: "" },
    Fault { name: "K is given back to the own block twice", operator: Operator::OwnBlock,
        place: "release_and_advance(self.keys)", object: "", found: Some(FindingKind::Race), at: "load_tma", of: "k_tile" },
    Fault { name: "half of a tile of K comes to one block alone", operator: Operator::DropMulticast,
        place: "self.keys.tile, k_rows", object: "", found: Some(FindingKind::TransactionBytes), at: "wait_full", of: "" },
    Fault { name: "a block expects its own half of K alone", operator: Operator::HalfBytes,
        place: "self.keys.tile, k_rows", object: "", found: Some(FindingKind::TransactionBytes), at: "wait_full", of: "" },
    Fault { name: "K is given back to one block alone", operator: Operator::DropArrive,
        place: "release_and_advance(self.keys)", object: "", found: Some(FindingKind::Deadlock), at: "acquire", of: "" },
];

#[test]
fn planted_faults_are_found_with_kind_and_place() {
    find_all(&plan(USUAL), FAULTS);
}

#[test]
fn planted_faults_of_q_in_registers_are_found_with_kind_and_place() {
    find_all(&plan(Q_HELD), FAULTS_OF_Q_HELD);
}

#[test]
fn planted_faults_of_pairs_are_found_with_kind_and_place() {
    find_all(&plan(IN_PAIRS), FAULTS_OF_PAIRS);
}

/// Where there are more K blocks, barriers further on order what lanes loaded before the stage is filled again.
#[test]
fn a_lane_that_gives_q_back_for_its_warp_is_found_where_a_tile_has_one_turn() {
    let problem = Problem::builder().heads(8, 8).seq_len_q(128);
    // All of Q in registers: at the first tile of a block as well as at the next. A part of it: at the first alone,
    // since at the next a whole tile, with barriers, comes before Q is given back.
    for (config, keys, head_dim, expected) in [
        ("wgmma/m128n80-s2-pingpong-spec-qreg", 70, 192, 2),
        ("wgmma/m192n64-s3-pingpong-spec-qreg", 50, 128, 1),
    ] {
        let plan = with(config, problem.clone().seq_len_kv(keys).head_dim(head_dim));
        assert_eq!(early_releases_of_q_found(&plan), expected, "{config}");
    }
}

/// The places where a warp barrier left out after Q was loaded is a race.
fn early_releases_of_q_found(plan: &Plan) -> usize {
    let fault = Fault {
        name: "a lane gives Q back that its warp has not loaded yet",
        operator: Operator::DropWarpBarrier,
        place: "Q to registers",
        object: "",
        found: Some(FindingKind::Race),
        at: "load_tma",
        of: "q_tile",
    };
    let options = CheckOptions {
        schedules: 8,
        ..CheckOptions::default()
    };
    let kernel = &plan.main.kernel;
    let report = check_plan(plan, &options).unwrap();
    assert_eq!(report.verdict, Verdict::Clean, "{report}");
    let all = mutations(kernel);
    let planted = all
        .iter()
        .filter(|m| m.operator == fault.operator && place(m, kernel).contains(fault.place));
    planted
        .filter(|mutation| {
            let mutant = mutation.apply(kernel);
            let report = check_with(plan, mutant, plan.main.launch.clone(), &options);
            is_found(&report, &fault)
        })
        .count()
}

#[test]
fn the_kernel_as_it_is_is_clean() {
    let options = CheckOptions {
        schedules: 4,
        ..CheckOptions::default()
    };
    for config in [USUAL, Q_HELD, IN_PAIRS] {
        let report = check_plan(&plan(config), &options).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{report}");
    }
}
