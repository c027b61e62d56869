//! What `flashcore tune` shows of GPUs where there is none: the kernel that would be used, under the simulator, and
//! strategies compared on a space that was measured on an H200.

use flashcore::{InputKind, Problem};
use flashcore_bench::Case;
use flashcore_kernels::Plan;
use flashcore_problem::{DType, Layout, ProblemError};
use flashcore_tune::replay::{Comparison, Measured, Row, Table, WITHIN, compare};
use flashcore_tune::strategy::{Kind, Population};

use crate::args::Card;
use crate::failure::Failure;
use crate::simulated;
use crate::style::{self, CODE, DIM};
use crate::tune::heading;

/// Seeds a strategy is replayed with: enough for a median within seconds.
const SEEDS: u64 = 15;
/// Trials of a replay.
const TRIALS: usize = 120;
/// Strategies that are compared.
const STRATEGIES: [Kind; 4] = [
    Kind::Random,
    Kind::HillClimbing,
    Kind::Evolution(Population::Elite),
    Kind::Evolution(Population::Niches),
];

/// What shows the default on a card, which predicts hundreds of configs before it tries one: too long to watch here.
const MODELLED: &str = "flashcore tune --device replay:shipped --budget 20";

/// Most operations of what is simulated: about two seconds on two cores, where tensor cores do the work.
const MOST_FLOPS: f64 = 1.5e9;
/// The same for float32, whose kernels need many more instructions for as many operations.
const MOST_FLOPS_F32: f64 = 0.3e9;
/// Lengths are not cut below this: a tile and the beginning of another are there.
const LEAST_LENGTH: usize = 96;

pub(crate) fn run(case: &Case) -> Result<(), Failure> {
    under_the_simulator(&case.problem)?;
    replay_of_strategies(case)
}

/// The kernel that a card would use for a problem, under the simulator, on a shape that takes seconds.
fn under_the_simulator(problem: &Problem) -> Result<(), Failure> {
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

/// A problem with as many sequences, key heads, rows and keys, and all else as another has it.
fn of_size(like: &Problem, [batch, kv_heads, rows, keys]: [usize; 4]) -> Result<Problem, ProblemError> {
    let mut builder = Problem::builder()
        .batch(batch)
        .heads(kv_heads * like.group_size(), kv_heads)
        .seq_len_q(rows)
        .seq_len_kv(keys)
        .head_dim(like.head_dim())
        .head_dim_v(like.head_dim_v())
        .dtype(like.dtype())
        .mask(like.mask())
        .offsets(like.q_offset(), like.kv_offset())
        .softmax_scale(like.softmax_scale())
        .return_lse(like.return_lse());
    if let Some(softcap) = like.softcap() {
        builder = builder.softcap(softcap);
    }
    let sizes = [like.batch(), like.seq_len_q(), like.num_heads(), like.head_dim()];
    if *like.q_layout() == Layout::bhsd(sizes) {
        builder = builder.layout(Layout::bhsd);
    }
    builder.build()
}

/// Strategies on the shipped space of the problem, or on its first.
fn replay_of_strategies(case: &Case) -> Result<(), Failure> {
    let measured = Measured::shipped()?;
    let Some(table) = measured
        .tables
        .iter()
        .find(|table| table.case == *case)
        .or(measured.tables.first())
    else {
        return Ok(());
    };
    let device = &measured.identity.device.name;
    style::print(&heading(
        &format!("Search strategies, replayed on times of an {device}"),
        &table.case.problem.to_string(),
    ));
    style::print(&about(table, device));
    let spinner = style::spinner("replaying");
    let compared = compare(table, &STRATEGIES, SEEDS, TRIALS, None)?;
    drop(spinner);
    style::print(&text(&compared));
    let modelled = format!(
        "the strategy where a model of the card is known, looks at configs before it tries them, which takes longer: \
         {CODE}{MODELLED}{CODE:#}"
    );
    style::print(&style::field(Kind::Ranked.name(), &modelled));
    Ok(())
}

/// What the table says, for who has never seen one.
fn about(table: &Table, device: &str) -> String {
    let Some(Row(best, us, ..)) = table.best() else {
        return String::new();
    };
    let text = format!(
        "  {} configs were timed on an {device} once. The fastest is {best}, {}. Each search begins at the slowest and \
         knows the times of what it has tried. In the table: how much slower than the fastest the best config is that a \
         search has found after so many trials (0.0 % is the fastest itself), the median of several searches.",
        table.len(),
        style::micros(*us)
    );
    style::wrap(&text, 2)
}

fn text(compared: &[Comparison]) -> String {
    let at = |comparison: &Comparison, trials: usize| {
        let found = comparison.quartiles.get(trials - 1);
        found.map_or("-".to_string(), |quartiles| {
            format!("{:.1} %", (quartiles[1] - 1.0) * 100.0)
        })
    };
    let mut text = format!(
        "  {DIM}{:<10}{:>9}{:>12}{:>12}{:>12}   at most {:.0} % slower after{DIM:#}\n",
        "strategy",
        "searches",
        "20 trials",
        "60 trials",
        "120 trials",
        WITHIN * 100.0
    );
    for comparison in compared {
        let within = match (comparison.trials_within, comparison.share_within) {
            (Some(trials), Some(share)) => format!("{trials} trials ({:.1} % of the configs)", share * 100.0),
            _ => format!("more than {} trials", comparison.quartiles.len()),
        };
        let [twenty, sixty, last] = [20, 60, 120].map(|trials| at(comparison, trials));
        text.push_str(&format!(
            "  {:<10}{SEEDS:>9}{twenty:>12}{sixty:>12}{last:>12}   {within}\n",
            comparison.strategy
        ));
    }
    text
}

#[cfg(test)]
mod tests {
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
