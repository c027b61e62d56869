//! What `flashcore tune` shows of GPUs where there is none: what a card is predicted to take, and the kernel that would
//! be used, under the simulator.

use flashcore::{InputKind, Problem};
use flashcore_kernels::Plan;
use flashcore_problem::{DType, ProblemBuilder, ProblemError};

use crate::args::Card;
use crate::failure::Failure;
use crate::style;
use crate::tune::heading;
use crate::{cost, simulated};

/// Most operations of what is simulated: about two seconds on two cores, where tensor cores do the work.
const MOST_FLOPS: f64 = 1.5e9;
/// The same for float32, whose kernels need many more instructions for as many operations.
const MOST_FLOPS_F32: f64 = 0.3e9;
/// Lengths are not cut below this: a tile and the beginning of another are there.
const LEAST_LENGTH: usize = 96;

/// What the card would take that kernels are planned for, beside what the reports took on it.
pub(crate) fn predicted(problem: &Problem) -> String {
    let card = Card::default();
    match simulated::plan(problem, card, None) {
        Ok(choice) => {
            let outcome = cost::predict(&choice.plan, card, &vec![None; choice.plan.steps().count()], None);
            cost::sentence(&outcome, problem, card)
        }
        Err(why) => format!("no kernel on {}: {}", card.title(), why.message()),
    }
}

/// The kernel that a card would use for a problem, under the simulator, on a shape that takes seconds.
pub(crate) fn run(problem: &Problem) -> Result<(), Failure> {
    let card = Card::default();
    let title = heading(
        "No GPU here: its kernel under the simulator",
        &format!("planned for {}", card.title()),
    );
    let choice = match simulated::plan(problem, card, None) {
        Ok(choice) => choice,
        Err(why) => {
            style::print(&(title + &style::field("kernel", &format!("none: {}", why.message()))));
            return Ok(());
        }
    };
    let small = bounded(problem).map_err(Failure::failed)?;
    let looked = Plan::new(&small, &choice.plan.config, card.chip());
    let plan = match looked {
        Ok(plan) => plan,
        Err(refusal) => {
            let why = format!("{} is not simulated: cut to {small}, {refusal}", choice.plan.config);
            style::print(&(title + &style::field("kernel", &why)));
            return Ok(());
        }
    };
    let report = simulated::check(&plan, &simulated::options(InputKind::Normal, 0))?;
    style::print(&title);
    let shape = match small == *problem {
        true => small.to_string(),
        false => format!("{small}, cut from {problem} so that it takes seconds"),
    };
    style::print(&style::field("shape", &shape));
    style::print(&simulated::text(&report));
    Ok(())
}

/// A problem of the same kernel that takes the simulator about two seconds at most: as many sequences, heads, rows and keys
/// as that allows, and all else alike.
fn bounded(problem: &Problem) -> Result<Problem, ProblemError> {
    let most = match problem.dtype() {
        DType::F32 => MOST_FLOPS_F32,
        _ => MOST_FLOPS,
    };
    let mut small = problem.clone();
    while small.flops() > most {
        let [batch, kv_heads, rows, keys] = [
            small.batch(),
            small.num_kv_heads(),
            small.seq_len_q(),
            small.seq_len_kv(),
        ];
        let cut = if batch > 1 {
            [batch / 2, kv_heads, rows, keys]
        } else if kv_heads > 1 {
            [batch, kv_heads / 2, rows, keys]
        } else if rows.max(keys) <= LEAST_LENGTH {
            break;
        } else if rows > keys {
            [batch, kv_heads, (rows / 2).max(LEAST_LENGTH), keys]
        } else if rows == keys {
            let length = (rows / 2).max(LEAST_LENGTH);
            [batch, kv_heads, length, length]
        } else {
            [batch, kv_heads, rows, (keys / 2).max(LEAST_LENGTH)]
        };
        small = of_size(problem, cut)?;
    }
    Ok(small)
}

/// A problem with as many sequences, key heads, rows and keys, and otherwise like another.
fn of_size(like: &Problem, [batch, kv_heads, rows, keys]: [usize; 4]) -> Result<Problem, ProblemError> {
    ProblemBuilder::from(like)
        .batch(batch)
        .heads(kv_heads * like.group_size(), kv_heads)
        .seq_len_q(rows)
        .seq_len_kv(keys)
        .build()
}

#[cfg(test)]
mod tests {
    use flashcore_problem::Layout;

    use super::*;

    #[test]
    fn what_is_simulated_is_bounded_and_alike() {
        for name in ["llama8b-prefill-2k", "llama8b-prefill-8k", "mission", "tiny"] {
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
            let looked = Plan::new(&small, &choice.plan.config, card.chip());
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
