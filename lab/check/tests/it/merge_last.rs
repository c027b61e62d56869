//! Lever `merge_last`: pieces of tiles merged by the block that finishes its piece last. Blocks run together here, under
//! seeded schedules, so that every block is the last one under some.

use std::sync::Arc;

use flashcore_check::mutate::{Operator, mutations};
use flashcore_check::{CheckOptions, Verdict, check_plan};
use flashcore_ir::inst::{AtomOp, FlagInst, Scope, Space};
use flashcore_ir::{Chip, Inst, Node, SourceLine, Target};
use flashcore_kernels::{Plan, Refusal};
use flashcore_problem::rng::Rng;
use flashcore_problem::tensor::write_element;
use flashcore_problem::{DType, KvLengths, Mask, POISON, Problem, ProblemBuilder, QLengths};
use flashcore_sim::{Finding, FindingKind, SimOptions, Written, simulate};

use crate::planted::quoted;

const KERNELS: [&str; 3] = [
    "mma/m16n32-w1x2-s2-b1-qsh-xor-cond-gqa-last",
    "mma/m16n64-w1x4-s2-b1-qreg-xor-spec-gqa-last",
    "mma/m32n64-w2x1-s3-b2-qsh-xor-always-gqa-last",
];

const PAGED: KvLengths = KvLengths::Paged {
    page_size: 16,
    pages: 120,
    max_pages: 57,
};

fn decode(batch: usize, heads: usize, kv_heads: usize) -> ProblemBuilder {
    let builder = Problem::builder().batch(batch).heads(heads, kv_heads).head_dim(32);
    let builder = builder.seq_len_q(1).seq_len_kv(900).return_lse(true);
    builder.dtype(DType::BF16).kv_lengths(PAGED)
}

fn plan(problem: ProblemBuilder, kernel: &str, sms: u32) -> Plan {
    let target = Target::Sm80;
    Plan::new(
        &problem.build().unwrap(),
        &kernel.parse().unwrap(),
        Chip { target, sms },
    )
    .unwrap()
}

fn clean(plan: &Plan, seed: u64, schedules: u32) {
    let options = CheckOptions {
        seed,
        schedules,
        first_schedule: seed,
        ..CheckOptions::default()
    };
    let report = check_plan(plan, &options).unwrap();
    let (problem, config) = (&plan.problem, plan.config);
    assert_eq!(
        report.verdict,
        Verdict::Clean,
        "{problem} by {config}, seed {seed}\n{report}"
    );
    assert_eq!(report.differs_under, None, "{problem} by {config}, seed {seed}");
}

/// Whoever is the last block, the bits are the same. Rows of several passes of the threads, few and many pieces, tiles whole
/// and in pieces, sinks, packed rows.
#[test]
fn the_last_block_merges() {
    let packed = QLengths::Packed { total: 40, used: true };
    let problems = [
        (decode(3, 8, 2), 13),
        (decode(1, 4, 1), 23),
        (decode(3, 6, 2).seq_len_q(4).mask(Mask::CAUSAL).head_dim_v(40), 9),
        (decode(2, 2, 2).kv_lengths(KvLengths::Cache).sinks(DType::F32), 5),
        (decode(4, 12, 2).seq_len_q(30).mask(Mask::CAUSAL).q_lengths(packed), 7),
    ];
    for (i, (problem, sms)) in problems.into_iter().enumerate() {
        for seed in 0..2 {
            let plan = plan(problem.clone(), KERNELS[(i + seed) % KERNELS.len()], sms);
            assert_eq!(plan.steps().count(), 2);
            clean(&plan, seed as u64, 3);
        }
    }
}

/// Makes a schedule, and launches the main kernel as many times by it, each under another order of blocks. Returns output and
/// log-sum-exp of each launch, and all findings.
fn launches(plan: &Plan, count: u64) -> (Vec<[Vec<u8>; 2]>, Vec<Finding>) {
    let mut rng = Rng::new(7);
    let mut content = |name: &str, bytes: usize| match name {
        "seqused_k" => [900i32, 35, 612].iter().flat_map(|x| x.to_le_bytes()).collect(),
        "block_table" => (0..bytes as i32 / 4)
            .map(|i| i % 120)
            .flat_map(i32::to_le_bytes)
            .collect(),
        _ => {
            let mut all = vec![0; bytes];
            (0..bytes / 2).for_each(|i| write_element(DType::BF16, &mut all, i, rng.normal()));
            all
        }
    };
    let names = ["q", "k", "v", "seqused_k", "block_table"];
    let specs = || plan.steps().flat_map(|step| &step.launch.buffers);
    let given = names.map(|name| {
        let spec = specs().find(|spec| spec.name == name).unwrap();
        (name, content(name, spec.bytes as usize))
    });
    let mut workspace = vec![POISON; plan.workspace_bytes() as usize];
    let (mut written, mut findings, mut results) = (Written::default(), Vec::new(), Vec::new());
    let again = std::iter::repeat_n(&plan.main, count as usize);
    for (seed, step) in plan.before.iter().chain(again).enumerate() {
        let specs = &step.launch.buffers;
        let slot = |name| specs.iter().position(|spec| spec.name == name);
        let mut bytes: Vec<Vec<u8>> = specs
            .iter()
            .map(|spec| match given.iter().find(|(name, _)| *name == spec.name) {
                Some((_, bytes)) => bytes.clone(),
                None if spec.name == "workspace" => workspace.clone(),
                None => vec![POISON; spec.bytes as usize],
            })
            .collect();
        let mut options = SimOptions {
            seed: seed as u64,
            ..SimOptions::default()
        };
        let of_workspace = slot("workspace").unwrap();
        options.written.insert(of_workspace, written.clone());
        let report = simulate(&step.kernel, &step.launch, &mut bytes, &options).unwrap();
        written.add(&report.written[&of_workspace]);
        findings.extend(report.findings);
        if let (Some(out), Some(lse)) = (slot("out"), slot("lse")) {
            results.push([out, lse].map(|slot| bytes[slot].clone()));
        }
        workspace = bytes.swap_remove(of_workspace);
    }
    (results, findings)
}

/// What is kept of a schedule serves the next launch: the counts are 0 again.
#[test]
fn a_kept_schedule_serves_every_launch() {
    let (results, findings) = launches(&plan(decode(3, 8, 2), KERNELS[0], 13), 4);
    assert!(findings.is_empty(), "{findings:?}");
    assert!(results.iter().all(|result| *result == results[0]));
    let [out, lse] = &results[0];
    assert!(lse.chunks(4).all(|bytes| bytes != [POISON; 4]) && out.chunks(2).any(|bytes| bytes != [POISON; 2]));
}

/// Mistakes in who merges, and when: what breaks, the line or the comment before it, and what is found; else the output of one
/// of two launches is wrong.
#[rustfmt::skip]
const PLANTED: [(&str, Operator, &str, Option<FindingKind>); 8] = [
    ("counted without order", Operator::RelaxFlag, "tile.fetch_add(", RACE),
    ("counted while other warps still write", Operator::DropBarrier, "and partials are written.", RACE),
    ("counts not reset", Operator::DropStore, "tile.store(pieces)", None),
    ("a block that is not the last merges", Operator::IgnoreCondition, "finished.eq(pieces)", RACE),
    ("the last block but one merges", Operator::DropAddend, "let finished =", RACE),
    ("a piece not counted", Operator::DropAtomic, "tile.fetch_add(", None),
    ("a piece counted for the next tile", Operator::OffsetOne, "let place = slot", None),
    ("merged before it is known who is last", Operator::DropBarrier, "// Now all threads know", Some(FindingKind::Race)),
];

const RACE: Option<FindingKind> = Some(FindingKind::BlockRace);

#[test]
fn mistakes_in_merging_are_found() {
    let plan = plan(decode(3, 8, 2), KERNELS[0], 13);
    let (right, findings) = launches(&plan, 2);
    assert!(findings.is_empty(), "{findings:?}");
    for (name, operator, place, found) in PLANTED {
        let kernel = &plan.main.kernel;
        let all = mutations(kernel).into_iter().filter(|m| m.operator == operator);
        let text = |line: SourceLine| {
            let before = SourceLine {
                line: line.line - 1,
                ..line
            };
            quoted(before) + &quoted(line)
        };
        let here: Vec<_> = all.filter(|m| text(m.line).contains(place)).collect();
        assert!(!here.is_empty(), "{name}: nowhere to plant it");
        for mutation in here {
            let mut mutant = plan.clone();
            mutant.main.kernel = Arc::new(mutation.apply(kernel));
            let (results, findings) = launches(&mutant, 2);
            match found {
                Some(kind) => assert!(
                    findings.iter().any(|finding| finding.kind == kind),
                    "{name}: {findings:?}"
                ),
                None => assert!(results != right, "{name}: {mutation}"),
            }
        }
    }
}

/// Half of the order is not enough: a count that is relaxed with a fence before it or after it alone.
#[test]
fn missing_release_and_acquire_are_found() {
    let plan = plan(decode(3, 8, 2), KERNELS[0], 13);
    for (fence_first, missing) in [(true, "acquire"), (false, "release")] {
        let kernel = &plan.main.kernel;
        let relaxed = |node: &Node| match node {
            Node::Inst {
                inst: Inst::Flag(FlagInst::FetchAdd { dst, ty, addr, value }),
                site,
            } => {
                let (op, space, dst, ty) = (AtomOp::Add, Space::Global, Some(*dst), *ty);
                let (addr, value) = (*addr, *value);
                let count = Inst::Atom {
                    op,
                    ty,
                    space,
                    dst,
                    addr,
                    value,
                };
                let scope = Scope::Device;
                let insts = match fence_first {
                    true => [Inst::Fence { scope }, count],
                    false => [count, Inst::Fence { scope }],
                };
                Some(insts.map(|inst| Node::Inst { inst, site: *site }).into())
            }
            _ => None,
        };
        let mut mutant = plan.clone();
        mutant.main.kernel = Arc::new(kernel.with_body(kernel.replaced(&mut |node| relaxed(node))));
        let (_, findings) = launches(&mutant, 1);
        assert!(
            findings.iter().any(|finding| finding.kind == FindingKind::BlockRace),
            "without {missing}"
        );
    }
}

#[test]
fn it_is_refused_where_no_tile_is_cut() {
    let without = Problem::builder().heads(8, 2).head_dim(64).seq_len_q(1).seq_len_kv(900);
    let invariant = decode(3, 8, 2).batch_invariant(96);
    let not_packed = KERNELS[0].replace("-gqa", "");
    for (problem, kernel) in [
        (without, KERNELS[0]),
        (invariant, KERNELS[0]),
        (decode(3, 8, 2), &not_packed),
    ] {
        let problem = problem.build().unwrap();
        let refusal = Plan::new(&problem, &kernel.parse().unwrap(), Target::Sm80).unwrap_err();
        assert!(
            matches!(
                refusal,
                Refusal::Lever {
                    lever: "merge_last",
                    ..
                }
            ),
            "{refusal}"
        );
    }
}
