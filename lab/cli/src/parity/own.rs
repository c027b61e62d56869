//! `flashcore parity --kernel FILE`: kernels of the user, on random problems that they serve.

use flashcore::Problem;
use flashcore_bench::own::Code;
use flashcore_bench::parity::{Engine, problem_served};
use flashcore_bench::{Case, Own};
use flashcore_check::CheckOptions;
use flashcore_check::own::{Declared, check_declared};
use flashcore_ir::Chip;
use serde::Serialize;
use serde_json::json;

use super::{ParityArgs, SHOWN, engine};
use crate::own::Judged;
use crate::{BAD, CODE, Failure, GOOD, Outcome, Page, style};

/// Problems if no number is given: each runs in another process, with guards.
const PROBLEMS: u64 = 20;

/// What was found of a kernel.
#[derive(Default, Serialize)]
struct Found {
    kernel: String,
    right: usize,
    /// Problems for which it raised an error, and the first of the errors.
    not_served: usize,
    why_not: Option<String>,
    /// Problems that were left after it hung or crashed.
    not_run: usize,
    wrong: Vec<Wrong>,
}

#[derive(Serialize)]
struct Wrong {
    number: u64,
    problem: String,
    what: String,
    command: String,
}

pub(super) fn run(args: &ParityArgs) -> Result<Outcome, Failure> {
    let engine = engine(&args.device)?;
    let words = &args.kernel;
    if let Some(word) = words.iter().find(|word| !Own::is_named(word)) {
        let why = format!("--kernel {word}: allowed are FILE.toml and FILE.py:FUNCTION");
        return Err(Failure::usage(why).help("kernels of FlashCore are drawn; --family chooses among them"));
    }
    let found = words
        .iter()
        .map(|word| of_kernel(args, &engine, word))
        .collect::<Result<Vec<_>, _>>()?;
    let report = json!({ "device": engine.to_string(), "seed": args.seed, "kernels": found });
    style::show(args.json, || report, || page(args, &engine, &found));
    Ok(Outcome::of(
        found.iter().all(|found| found.wrong.is_empty() && found.right > 0),
    ))
}

fn of_kernel(args: &ParityArgs, engine: &Engine, word: &str) -> Result<Found, Failure> {
    let own = match engine {
        // A simulated kernel harms nothing: it needs no trust.
        Engine::Sim { chip, .. } => Own::read(word, chip.target)?,
        Engine::Device(device) => args.own.ids(&[word.to_string()], device)?.1.remove(0),
    };
    let ptx = match &own.code {
        Code::Ptx(ptx) => Some(ptx.as_ref()),
        Code::Python(_) => None,
    };
    let serves = |problem: &Problem| ptx.is_none_or(|ptx| ptx.launch(problem).is_ok());
    let count = args.problems.unwrap_or(PROBLEMS);
    let numbers = args.only.map_or(0..count, |number| number..number + 1);
    let mut cases = Vec::new();
    for number in numbers.clone() {
        let Some(problem) = problem_served(args.seed.wrapping_mul(1_000_003).wrapping_add(number), &serves) else {
            let why = format!("{} serves none of 4,000 random problems", own.label);
            return Err(Failure::failed(why).help("what it serves follows from the names in its declaration"));
        };
        let name = format!("number {number}");
        cases.push(Case::new(name, problem));
    }
    let judged = match (engine, ptx) {
        (Engine::Device(device), _) => {
            let _spinner = style::spinner(&format!("judging {}", own.label));
            args.own.judged(device, &cases, &own)?
        }
        (Engine::Sim { chip, .. }, Some(ptx)) => simulated(*chip, &cases, ptx)?,
        (Engine::Sim { .. }, None) => {
            let why = format!("{} is a Python function, which cannot be simulated", own.label);
            return Err(Failure::usage(why).help("leave out --device sim: it runs on the host or a GPU"));
        }
    };
    let mut found = Found {
        kernel: own.label.clone(),
        not_run: cases.len() - judged.len(),
        ..Found::default()
    };
    for ((number, case), judged) in numbers.zip(&cases).zip(judged) {
        match judged {
            Judged::Right => found.right += 1,
            Judged::NotServed(why) => {
                found.not_served += 1;
                found.why_not.get_or_insert(why);
            }
            Judged::Wrong(what) => found.wrong.push(Wrong {
                number,
                problem: case.problem.to_string(),
                what,
                command: format!(
                    "flashcore parity --only {number} --seed {} {} --kernel {word}",
                    args.seed,
                    engine.flags()
                ),
            }),
        }
    }
    Ok(found)
}

fn simulated(chip: Chip, cases: &[Case], declared: &Declared) -> Result<Vec<Judged>, Failure> {
    let judge = |case: &Case| {
        let report = check_declared(declared, &case.problem, chip.target, &CheckOptions::default())?;
        Ok(report.fault().map_or(Judged::Right, Judged::Wrong))
    };
    cases.iter().map(judge).collect()
}

fn page(args: &ParityArgs, engine: &Engine, found: &[Found]) -> Page {
    let mut page = Page::default();
    for found in found {
        let (right, wrong) = (found.right, found.wrong.len());
        let of = format!("{} on {engine}, seed {}", found.kernel, args.seed);
        match (wrong, right) {
            (0, 0) => page.wrap(2, format_args!("{BAD}nothing judged{BAD:#}: {of}")),
            (0, _) => page.wrap(2, format_args!("{GOOD}{right} right{GOOD:#}: {of}")),
            _ => page.wrap(2, format_args!("{BAD}{wrong} wrong{BAD:#}, {right} right: {of}")),
        }
        if let Some(why) = &found.why_not {
            let problems = style::count(found.not_served, "problem");
            page.field("not served", format_args!("{problems}, such as: {why}"));
        }
        if found.not_run > 0 {
            page.field("not run", style::count(found.not_run, "problem"));
        }
        for wrong in found.wrong.iter().take(SHOWN) {
            page.line(format_args!("\n{BAD}mismatch{BAD:#} in problem {}", wrong.number));
            page.field("problem", &wrong.problem);
            page.field("what", &wrong.what);
            page.line(format_args!("  {CODE}{}{CODE:#}", wrong.command));
        }
    }
    page
}
