//! Random programs with branches and loops, compared with a thread-by-thread evaluation. Tests
//! lowering, row sharing, divergence and reconvergence.

use crate::common;

use common::Case;
use flashcore_ir::{KernelBuilder, Val, Var};
use flashcore_problem::rng::Rng;

const VARS: usize = 5;

enum Step {
    /// `vars[0] = vars[1] op vars[2]`, through a chain of temporaries.
    Compute(usize, u32, usize, usize),
    /// `if vars[a] % m < t`.
    If(usize, u32, u32, Vec<Step>, Vec<Step>),
    /// A loop with `vars[a] % m` iterations.
    Repeat(usize, u32, Vec<Step>),
}

fn random_steps(rng: &mut Rng, depth: u32) -> Vec<Step> {
    let steps = rng.between(1, 5);
    (0..steps)
        .map(|_| {
            let mut var = || rng.below(VARS);
            let (a, b, c) = (var(), var(), var());
            match (depth, rng.below(6) as u32) {
                (1.., 0) => {
                    let then = random_steps(rng, depth - 1);
                    let otherwise = if rng.chance(0.5) {
                        random_steps(rng, depth - 1)
                    } else {
                        Vec::new()
                    };
                    Step::If(a, rng.between(2, 8) as u32, rng.below(9) as u32, then, otherwise)
                }
                (1.., 1) => Step::Repeat(a, rng.between(1, 4) as u32, random_steps(rng, depth - 1)),
                (_, op) => Step::Compute(a, op, b, c),
            }
        })
        .collect()
}

fn evaluate(steps: &[Step], vars: &mut [u32; VARS]) {
    for step in steps {
        match step {
            Step::Compute(d, op, a, b) => {
                let (x, y) = (vars[*a], vars[*b]);
                let t = x.wrapping_mul(3).wrapping_add(y);
                vars[*d] = match op {
                    0 => t ^ x,
                    1 => t.wrapping_sub(y),
                    2 => t.min(y).wrapping_add(x),
                    3 => t >> (y % 32),
                    4 => ((u64::from(t) * u64::from(x)) >> 16) as u32,
                    _ => {
                        if t < x {
                            t
                        } else {
                            y
                        }
                    }
                };
            }
            Step::If(a, m, t, then, otherwise) => {
                evaluate(if vars[*a] % m < *t { then } else { otherwise }, vars);
            }
            Step::Repeat(a, m, body) => {
                for _ in 0..vars[*a] % m {
                    evaluate(body, vars);
                }
            }
        }
    }
}

fn build<'k>(k: &'k KernelBuilder, steps: &[Step], vars: &[Var<'k, u32>; VARS]) {
    for step in steps {
        match step {
            Step::Compute(d, op, a, b) => {
                let (x, y): (Val<'k, u32>, Val<'k, u32>) = (vars[*a].get(), vars[*b].get());
                let t = x * 3 + y;
                vars[*d].set(match op {
                    0 => t ^ x,
                    1 => t - y,
                    2 => t.min(y) + x,
                    3 => t >> (y % 32u32),
                    4 => (t.mul_wide(x) >> 16u32).to_u32(),
                    _ => t.lt(x).select(t, y),
                });
            }
            Step::If(a, m, t, then, otherwise) => {
                let cond = (vars[*a].get() % *m).lt(*t).divergent();
                if otherwise.is_empty() {
                    k.if_(cond, || build(k, then, vars));
                } else {
                    k.if_else(cond, || build(k, then, vars), || build(k, otherwise, vars));
                }
            }
            Step::Repeat(a, m, body) => {
                let times = vars[*a].get() % *m;
                k.for_divergent(0u32, times, 1, |_| build(k, body, vars));
            }
        }
    }
}

#[test]
fn lanes_match_thread_by_thread_evaluation() {
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let steps = random_steps(&mut rng, 3);
        let mut case = Case::new(64, |k| {
            let output = k.param_ptr_mut::<u32>("output");
            let t = k.thread_idx();
            let vars: [Var<'_, u32>; VARS] = std::array::from_fn(|i| k.var(t * (i as u32 * 7 + 1)));
            build(k, &steps, &vars);
            for (i, var) in vars.iter().enumerate() {
                output.offset(t).plus(64 * i as i32).store(var.get());
            }
        })
        .output("output", 256 * VARS)
        .seed(seed);
        case.run_clean();
        let got = case.u32s(0);
        for t in 0..64u32 {
            let mut vars: [u32; VARS] = std::array::from_fn(|i| t * (i as u32 * 7 + 1));
            evaluate(&steps, &mut vars);
            for (i, expected) in vars.iter().enumerate() {
                assert_eq!(
                    got[64 * i + t as usize],
                    *expected,
                    "seed {seed}, thread {t}, variable {i}"
                );
            }
        }
    }
}
