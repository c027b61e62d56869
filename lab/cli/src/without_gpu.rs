//! The GPU part of `flashcore tune` on a machine without a GPU: the predicted time on a card, and its
//! kernel under the simulator.

use flashcore::Problem;
use flashcore::unstable::testing::InputKind;
use flashcore_kernels::Plan;
use flashcore_problem::{DType, ProblemBuilder, ProblemError};

use crate::{Card, Failure, Page, cost, simulated};

/// Most operations to simulate: about two seconds on two cores with tensor cores.
const MOST_FLOPS: f64 = 1.5e9;
/// The same for float32, whose kernels need many more instructions.
const MOST_FLOPS_F32: f64 = 0.3e9;
/// The shortest length: a tile and the beginning of another.
const LEAST_LENGTH: usize = 96;

pub(crate) fn predicted(problem: &Problem) -> String {
    let card = Card::default();
    match simulated::plan(problem, card, None) {
        Ok(choice) => {
            let outcome = cost::predict(&choice.plan, card, &vec![None; choice.plan.steps().count()], None);
            cost::sentence(&outcome, card)
        }
        Err(why) => format!("no kernel on {}: {}", card.title(), why.message),
    }
}

pub(crate) fn run(problem: &Problem) -> Result<(), Failure> {
    let card = Card::default();
    let mut page = Page::default();
    let planned = format!("planned for {}", card.title());
    page.heading("No GPU here: its kernel under the simulator", planned);
    let choice = match simulated::plan(problem, card, None) {
        Ok(choice) => choice,
        Err(why) => {
            page.field("kernel", format_args!("none: {}", why.message));
            page.print();
            return Ok(());
        }
    };
    let small = bounded(problem).map_err(Failure::failed)?;
    let config = choice.plan.config;
    match Plan::new(&small, &config, card.chip) {
        Ok(plan) => {
            let report = simulated::check(&plan, &simulated::options(InputKind::Normal, 0))?;
            let shape = if small == *problem {
                small.to_string()
            } else {
                format!("{small}, cut from {problem} so that it takes seconds")
            };
            page.field("shape", shape);
            simulated::add(&mut page, &report);
        }
        Err(refusal) => {
            let text = format!("{config} is not simulated: cut to {small}, {refusal}");
            page.field("kernel", text);
        }
    }
    page.print();
    Ok(())
}

/// A problem of the same kernel with fewer sequences, heads, rows and keys, for about two seconds.
fn bounded(problem: &Problem) -> Result<Problem, ProblemError> {
    let most = match problem.dtype() {
        DType::F32 => MOST_FLOPS_F32,
        _ => MOST_FLOPS,
    };
    let mut small = problem.clone();
    while small.flops() > most {
        let (mut batch, mut kv_heads) = (small.batch(), small.num_kv_heads());
        let (mut rows, mut keys) = (small.seq_len_q(), small.seq_len_kv());
        let longest = rows.max(keys);
        if batch > 1 {
            batch /= 2;
        } else if kv_heads > 1 {
            kv_heads /= 2;
        } else if longest <= LEAST_LENGTH {
            break;
        } else {
            // The longer one, or both.
            for length in [&mut rows, &mut keys] {
                if *length == longest {
                    *length = (longest / 2).max(LEAST_LENGTH);
                }
            }
        }
        small = ProblemBuilder::from(problem)
            .batch(batch)
            .heads(kv_heads * problem.group_size(), kv_heads)
            .seq_len_q(rows)
            .seq_len_kv(keys)
            .build()?;
    }
    Ok(small)
}

#[cfg(test)]
mod tests {
    use flashcore_problem::Layout;

    use super::*;

    #[test]
    fn what_is_simulated_is_bounded_and_alike() {
        for name in ["llama8b-prefill-2k", "llama8b-prefill-8k", "small", "tiny"] {
            let problem = Problem::named(name).unwrap();
            let small = bounded(&problem).unwrap();
            assert!(small.flops() <= MOST_FLOPS, "{name}: {small}");
            assert_eq!(
                (small.group_size(), small.head_dim(), small.mask(), small.dtype()),
                (
                    problem.group_size(),
                    problem.head_dim(),
                    problem.mask(),
                    problem.dtype()
                )
            );
            // No smaller than it must be: half of what is allowed, or all that there is.
            assert!(small == problem || small.flops() > MOST_FLOPS / 5.0, "{name}: {small}");
            let card = Card::parse("l4").unwrap();
            let choice = simulated::plan(&problem, card, None).unwrap();
            let looked = Plan::new(&small, &choice.plan.config, card.chip);
            assert!(looked.is_ok(), "{name}: {small}: {}", looked.err().unwrap());
        }
        let odd = Problem::builder()
            .batch(3)
            .heads(6, 3)
            .seq_len(5000)
            .head_dim(64)
            .head_dim_v(32);
        let odd = odd
            .dtype(DType::F32)
            .softcap(20.0)
            .return_lse(true)
            .layout(Layout::bhsd);
        let odd = odd.build().unwrap();
        let small = bounded(&odd).unwrap();
        assert!(small.flops() <= MOST_FLOPS_F32, "{small}");
        assert_eq!((small.softcap(), small.return_lse()), (Some(20.0), true));
        let sizes = [1, small.seq_len_q(), 2, 64];
        assert_eq!(*small.q_layout(), Layout::bhsd(sizes));
    }
}
