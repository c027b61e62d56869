//! Makes a failing program smaller while it still fails.

use crate::fuzz::program::{Program, Step};

/// Tries a failing program in smaller forms, at most `trials` of them, and returns the smallest
/// that still fails.
///
/// ```
/// use flashcore_tools::fuzz::program::{Op, Program};
/// use flashcore_tools::fuzz::shrink::shrink;
/// let divides = |program: &Program| program.ops().contains(&Op::UDiv);
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
        // Runs of steps and of outputs, long ones first.
        let mut run = best.outputs.len().max(count(&best.steps));
        while run > 0 {
            let mut first = 0;
            while first < count(&best.steps) {
                let removed = first..first + run;
                let mut smaller = best.clone();
                smaller.steps = replaced(&best.steps, &mut 0, &|number, step| match removed.contains(&number) {
                    true => Vec::new(),
                    false => vec![step],
                });
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
        let mut wanted = 0;
        while wanted < count(&best.steps) {
            let mut smaller = best.clone();
            smaller.steps = replaced(&best.steps, &mut 0, &|number, step| match step {
                Step::If { .. } | Step::Loop { .. } if number == wanted => step.inner().concat(),
                step => vec![step],
            });
            if !keep(&mut best, smaller) {
                wanted += 1;
            }
        }
        if best == before {
            return best;
        }
    }
}

/// With those within others.
fn count(steps: &[Step]) -> usize {
    let inner = |step: &Step| step.inner().into_iter().map(count).sum::<usize>();
    steps.iter().map(|step| 1 + inner(step)).sum()
}

/// The steps with each replaced by what `by` makes of it and its number; `next` is the number of
/// the next one met.
fn replaced(steps: &[Step], next: &mut usize, by: &impl Fn(usize, Step) -> Vec<Step>) -> Vec<Step> {
    let replace = |step: &Step| {
        let number = *next;
        *next += 1;
        by(number, step.with_inner(|inner| replaced(inner, next, by)))
    };
    steps.iter().flat_map(replace).collect()
}
