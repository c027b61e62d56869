//! Makes a failing program smaller while it still fails.

use crate::fuzz::program::{Program, Step};

/// Tries a failing program in smaller forms, at most `trials` of them, and returns the smallest
/// that still fails.
///
/// ```
/// use flashcore_tools::fuzz::program::{Op, Program};
/// use flashcore_tools::fuzz::shrink::shrink;
/// let divides = |program: &Program| program.any_op(|op| op == Op::UDiv);
/// let program = (0..).map(Program::random).find(divides).unwrap();
/// let small = shrink(&program, 1000, divides);
/// assert_eq!((small.steps.len(), small.outputs.len()), (1, 0));
/// ```
pub fn shrink(program: &Program, trials: usize, mut fails: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut left = trials;
    let mut keep = |best: &mut Program, smaller: Program| {
        if left == 0 || smaller == *best {
            return false;
        }
        left -= 1;
        let failed = fails(&smaller);
        if failed {
            *best = smaller;
        }
        failed
    };
    loop {
        let before = best.clone();
        for simplify in [
            |program: &mut Program| program.blocks = 1,
            |program: &mut Program| program.threads = 32,
            |program: &mut Program| program.tiles = 0,
        ] {
            let mut simpler = best.clone();
            simplify(&mut simpler);
            keep(&mut best, simpler);
        }
        // Runs of steps, long ones first.
        let mut run = best.outputs.len().max(count(&best.steps));
        while run > 0 {
            let mut first = 0;
            while first < count(&best.steps) {
                let smaller = Program {
                    steps: without(&best.steps, first, run, &mut 0),
                    ..best.clone()
                };
                if !keep(&mut best, smaller) {
                    first += run;
                }
            }
            let mut first = 0;
            while first < best.outputs.len() {
                let mut smaller = best.clone();
                smaller.outputs.drain(first..(first + run).min(best.outputs.len()));
                if !keep(&mut best, smaller) {
                    first += run;
                }
            }
            run /= 2;
        }
        // Branches and loops are replaced by their steps.
        let mut number = 0;
        while number < count(&best.steps) {
            let smaller = Program {
                steps: unwrapped(&best.steps, number, &mut 0),
                ..best.clone()
            };
            if !keep(&mut best, smaller) {
                number += 1;
            }
        }
        if best == before {
            return best;
        }
    }
}

/// Steps, those within others too.
fn count(steps: &[Step]) -> usize {
    let inner = |step: &Step| step.inner().into_iter().map(count).sum::<usize>();
    steps.iter().map(|step| 1 + inner(step)).sum()
}

/// The steps less those numbered from `first` on, `run` of them; `next` is the number of the next
/// one met.
fn without(steps: &[Step], first: usize, run: usize, next: &mut usize) -> Vec<Step> {
    let mut out = Vec::new();
    for step in steps {
        let number = *next;
        *next += 1;
        let step = step.with_inner(|inner| without(inner, first, run, next));
        if !(first..first + run).contains(&number) {
            out.push(step);
        }
    }
    out
}

/// The steps with the one of that number replaced by the steps in it.
fn unwrapped(steps: &[Step], wanted: usize, next: &mut usize) -> Vec<Step> {
    let mut out = Vec::new();
    for step in steps {
        let here = *next == wanted;
        *next += 1;
        let step = step.with_inner(|inner| unwrapped(inner, wanted, next));
        match step {
            Step::If { .. } | Step::Loop { .. } if here => out.extend(step.inner().concat()),
            step => out.push(step),
        }
    }
    out
}
