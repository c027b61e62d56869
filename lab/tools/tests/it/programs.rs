//! The generator makes programs without mistakes, and a difference between two answers is found and
//! shrinks.

use flashcore_ir::inst::BinOp;
use flashcore_ir::{Inst, Node, ScalarType};
use flashcore_sim::TensorSums;
use flashcore_tools::fuzz::Program;
use flashcore_tools::fuzz::program::Op;
use flashcore_tools::fuzz::run::Prepared;
use flashcore_tools::fuzz::shrink::shrink;

#[test]
fn programs_are_clean_and_compute_the_same_under_every_schedule() {
    // Beyond the seeds of the corpus, whose programs lack operations that came later.
    for seed in 400..600 {
        let prepared = Prepared::new(Program::random(seed), TensorSums::Exact).unwrap();
        let answers = [1, 2].map(|schedule| {
            prepared
                .simulate(schedule)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"))
        });
        let comparison = prepared.compare(&answers[0], &answers[1]);
        assert_eq!(comparison.mismatch, None, "seed {seed}");
        assert!(comparison.words > 0);
    }
}

/// What tensor cores do is within the bounds that are stated for those whose last bit is not known.
#[test]
fn hopper_sums_are_within_the_bounds_of_exact_ones() {
    let mut worst = std::collections::BTreeMap::new();
    for seed in 0..300 {
        let [exact, hopper] =
            [TensorSums::Exact, TensorSums::Hopper].map(|sums| Prepared::new(Program::random(seed), sums).unwrap());
        let comparison = exact.compare(&exact.simulate(0).unwrap(), &hopper.simulate(0).unwrap());
        assert_eq!(comparison.mismatch, None, "seed {seed}");
        for (name, difference) in comparison.worst {
            let entry: &mut f64 = worst.entry(name).or_default();
            *entry = entry.max(difference);
        }
    }
    // They differ, and the bounds are not far from what comes up.
    for name in ["product", "product of e4m3", "product in f16"] {
        assert!(worst[name] > 0.02, "{worst:?}");
    }
}

/// A kernel with its instructions changed, wherever they stand.
fn changed(nodes: &[Node], change: &impl Fn(&mut Inst)) -> Vec<Node> {
    let mut nodes = nodes.to_vec();
    for node in &mut nodes {
        match node {
            Node::Inst { inst, .. } => change(inst),
            Node::If { then, otherwise, .. } => {
                (*then, *otherwise) = (changed(then, change), changed(otherwise, change));
            }
            Node::Loop { body, .. } => *body = changed(body, change),
            _ => {}
        }
    }
    nodes
}

/// Whether a program's answer is another where instructions mean something else.
fn differs(program: &Program, change: &impl Fn(&mut Inst)) -> bool {
    // A smaller one need not build: fewer threads are no warpgroup.
    let Ok(prepared) = Prepared::new(program.clone(), TensorSums::Exact) else {
        return false;
    };
    let mut wrong = prepared.clone();
    wrong.case.kernel = wrong.case.kernel.with_body(changed(wrong.case.kernel.body(), change));
    let answers = [&prepared, &wrong].map(|prepared| prepared.simulate(0).unwrap());
    prepared.compare(&answers[0], &answers[1]).mismatch.is_some()
}

/// The smallest program that shows a wrong meaning.
fn smallest(change: impl Fn(&mut Inst)) -> Program {
    let mut programs = (0..400).map(Program::random);
    let program = programs
        .find(|program| differs(program, &change))
        .expect("no program shows it");
    let small = shrink(&program, 2000, |program| differs(program, &change));
    assert!(differs(&small, &change));
    small
}

#[test]
fn a_wrong_instruction_is_found_and_its_program_shrinks_to_it() {
    // Arithmetic right shifts as logical ones.
    let small = smallest(|inst| {
        if let Inst::Bin { op: BinOp::Shr, ty, .. } = inst
            && *ty == ScalarType::S32
        {
            *ty = ScalarType::U32;
        }
    });
    let ops = small.ops();
    let shifts = ops.iter().filter(|op| matches!(op, Op::SShr | Op::SDivConst)).count();
    assert!(
        shifts == 1 && small.steps.len() <= 2 && small.outputs.len() <= 1,
        "{small:#?}"
    );
    assert_eq!((small.threads, small.blocks), (32, 1));
}

#[test]
fn a_wrong_fragment_is_found_and_its_program_shrinks_to_it() {
    // Matrices transposed that should not be, and the other way round.
    let small = smallest(|inst| {
        if let Inst::LdMatrix { transposed, .. } = inst {
            *transposed = !*transposed;
        }
    });
    let loads = small.ops().iter().filter(|&&op| op == Op::LdMatrix).count();
    assert!(
        loads == 1 && small.steps.len() <= 2 && small.outputs.len() <= 1,
        "{small:#?}"
    );
}
