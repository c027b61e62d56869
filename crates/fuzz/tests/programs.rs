//! The generator makes programs without mistakes, and a difference between two answers is found and shrinks.

use flashcore_fuzz::Program;
use flashcore_fuzz::program::Op;
use flashcore_fuzz::run::Prepared;
use flashcore_fuzz::shrink::shrink;
use flashcore_ir::inst::BinOp;
use flashcore_ir::{Inst, Kernel, Node, ScalarType};

#[test]
fn programs_are_clean_and_compute_the_same_under_every_schedule() {
    for seed in 0..200 {
        let prepared = Prepared::new(Program::random(seed)).unwrap();
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

/// The kernel as a GPU would run it whose arithmetic right shifts were logical ones.
fn with_wrong_shifts(kernel: &Kernel) -> Kernel {
    fn changed(nodes: &[Node]) -> Vec<Node> {
        let mut nodes = nodes.to_vec();
        for node in &mut nodes {
            match node {
                Node::Inst {
                    inst: Inst::Bin { op: BinOp::Shr, ty, .. },
                    ..
                } if *ty == ScalarType::S32 => {
                    *ty = ScalarType::U32;
                }
                Node::If { then, otherwise, .. } => {
                    (*then, *otherwise) = (changed(then), changed(otherwise));
                }
                Node::Loop { body, .. } => *body = changed(body),
                _ => {}
            }
        }
        nodes
    }
    kernel.with_body(changed(kernel.body()))
}

fn differs(program: &Program) -> bool {
    // A smaller one need not build: fewer threads are no warpgroup.
    let Ok(prepared) = Prepared::new(program.clone()) else {
        return false;
    };
    let wrong = with_wrong_shifts(&prepared.emitted.kernel);
    let answers = (
        prepared.simulate(0).unwrap(),
        prepared.simulate_kernel(&wrong, 0).unwrap(),
    );
    prepared.compare(&answers.0, &answers.1).mismatch.is_some()
}

#[test]
fn a_wrong_instruction_is_found_and_its_program_shrinks_to_it() {
    let program = (0..400)
        .map(Program::random)
        .find(differs)
        .expect("no program shows it");
    let small = shrink(&program, 2000, differs);
    assert!(differs(&small));
    let mut shifts = 0;
    small.for_each_op(&mut |op| shifts += u32::from(matches!(op, Op::SShr | Op::SDivConst)));
    assert!(
        shifts == 1 && small.steps.len() <= 2 && small.outputs.len() <= 1,
        "{small:#?}"
    );
    assert_eq!((small.threads, small.blocks), (32, 1));
}
