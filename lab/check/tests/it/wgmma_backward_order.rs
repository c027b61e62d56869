//! Sums of dQ in order in the backward pass of family `wgmma`: the same bits under all schedules, and faults in the
//! order are found.

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::{KernelCache, select};
use flashcore_problem::{Mask, Problem};
use flashcore_sim::FindingKind;

use crate::planted::{check_with, place};
use crate::wgmma_backward::planned;

/// Faults by head size: what is planted where (in a line, a verb or an object), and the finding; none where only bits
/// change.
#[rustfmt::skip]
const FAULTS_OF_ORDER: &[(usize, Operator, &str, Option<FindingKind>)] = &[
    (128, Operator::InvertCondition, "wait_for_semaphore", None),
    (128, Operator::RelaxFlag, "wait_for_semaphore", Some(FindingKind::BlockRace)),
    (128, Operator::RelaxFlag, "release_semaphore", Some(FindingKind::BlockRace)),
    (128, Operator::OnlyRead, "release_semaphore", None),
    (128, Operator::DropStore, "release_semaphore", Some(FindingKind::Deadlock)),
    // The first block adds to what was there, others overwrite.
    (128, Operator::InvertCondition, "store_dq", None),
    // A warp waits for its turn and passes it on for the threads that add.
    (256, Operator::InvertCondition, "wait_for_semaphore", None),
    (256, Operator::RelaxFlag, "wait_for_semaphore", Some(FindingKind::BlockRace)),
    (256, Operator::RelaxFlag, "release_semaphore", Some(FindingKind::BlockRace)),
    (256, Operator::DropStore, "release_semaphore", Some(FindingKind::Deadlock)),
    (256, Operator::DropArrive, "dq.acquired", Some(FindingKind::Deadlock)),
    (256, Operator::DropPhaseWait, "dq.acquired", Some(FindingKind::BlockRace)),
    (256, Operator::DropArrive, "dq.added", Some(FindingKind::Deadlock)),
    // It comes to the next turns before consumers have seen this one.
    (256, Operator::DropPhaseWait, "dq.added", Some(FindingKind::Deadlock)),
    (256, Operator::DropWarpBarrier, "self.add_dq(exchange.dq_order", Some(FindingKind::BlockRace)),
    (256, Operator::InvertCondition, "; add_dq", None),
];

/// In order nothing zeroes the sums: a tile of dQ that no key adds to is zero all the same.
#[test]
fn tiles_without_keys_are_zero_in_order() {
    for head_dim in [128, 256] {
        let mask = Mask::window(Some(10), Some(0)).top_left();
        let builder = Problem::builder().heads(1, 1).seq_len_q(200).seq_len_kv(40);
        let builder = builder.head_dim(head_dim).mask(mask).deterministic(true);
        let problem = builder.build().unwrap().backward().unwrap();
        let plan = select(&problem, Target::Sm90a, 16, &KernelCache::default())
            .unwrap()
            .plan;
        let report = check_plan(&plan, &CheckOptions::default()).unwrap();
        assert_eq!(report.verdict, Verdict::Clean, "{report}");
    }
}

/// The same bits under all schedules, of blocks that run together and that start when others end. Without a wait a
/// block adds too early, which changes the bits; without a release the next one waits for ever.
#[test]
fn sums_in_order_are_the_same_under_all_schedules() {
    let options = CheckOptions {
        schedules: 3,
        ..CheckOptions::default()
    };
    for (head_dim, sms) in [(128, 132), (128, 1), (256, 2)] {
        let plan = planned(
            head_dim,
            true,
            Chip {
                target: Target::Sm90a,
                sms,
            },
        );
        assert!(plan.reproducible);
        let report = check_plan(&plan, &options).unwrap();
        assert_eq!(
            report.verdict,
            Verdict::Clean,
            "head_dim {head_dim} on {sms} SMs\n{report}"
        );
        let kernel = &plan.main.kernel;
        let planted = FAULTS_OF_ORDER.iter().filter(|fault| fault.0 == head_dim && sms > 1);
        for (_, operator, text, kind) in planted {
            let mut all = mutations(kernel).into_iter();
            let found = all.rfind(|m| {
                let object = m.object.as_deref() == Some(text);
                m.operator == *operator && (object || place(m, kernel).contains(text))
            });
            let mutant = found.expect(text).apply(kernel);
            let report = check_with(&plan, mutant, plan.main.launch.clone(), &options);
            let mut kinds = report.findings.iter().map(|found| found.finding.kind);
            let is_found = match kind {
                Some(kind) => kinds.any(|found| found == *kind),
                None => report.verdict != Verdict::Clean,
            };
            assert!(is_found, "{operator} at {text}: {report}");
        }
    }
}
