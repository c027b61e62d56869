//! A kernel compared with itself, and with itself slowed by 3 %, again and again.

use std::error::Error;

use flashcore::unstable::cuda::{Context, Stream};
use flashcore::unstable::plans::Config;
use flashcore::unstable::testing::InputKind;
use flashcore_bench::gpu::{ClosureSubject, GpuBed, GpuStopwatch, GpuTools, KernelSubject, Launching, PreparedPlan};
use flashcore_bench::stats::median;
use flashcore_bench::{self as bench, Bed, Case, Mode, Subject, Verdict, draw, measure, problems};
use flashcore_cuda::{Function, ModuleOptions};
use flashcore_kernels::Step;

use super::{plan_of, words};
use crate::selfcheck::{PLANTED, SelfCheck, count, selfcheck};

/// The slowdown is a kernel that spins for 3 % of the time of each chain of runs. Turns are short: hundreds of trials
/// with steady ones would take an hour.
///
/// `FLASHCORE_SELFCHECK="TRIALS PROBLEM KERNEL"` takes others; without a kernel the one that heuristics choose.
#[test]
fn the_same_kernel_is_the_same_and_three_percent_are_found() {
    super::run(|context| {
        let words = words("FLASHCORE_SELFCHECK", "100 bert-base");
        let [trials, problem, kernel @ ..] = &words[..] else {
            return Err("FLASHCORE_SELFCHECK is TRIALS PROBLEM KERNEL".into());
        };
        let kernel = kernel.first().map(|id| id.parse()).transpose()?;
        let case = &problems::cases(problem, None)?[0];
        let found = on_gpu(context, trials.parse()?, case, kernel.as_ref())?;
        let percent = |x: f64| format!("{:.1} %", x * 100.0);
        let (same, planted) = (&found.same, &found.planted);
        for (what, verdicts) in [("the same kernel  ", same), ("slowed by 3 %    ", planted)] {
            let counts = [Verdict::Same, Verdict::Faster, Verdict::Slower, Verdict::Ambiguous].map(|verdict| {
                let count = count(verdicts, verdict);
                format!("{count} {verdict}")
            });
            println!("{what} {}, of {} trials", counts.join(", "), verdicts.len());
        }
        println!("false verdicts    {} (at most 2 %)", percent(found.false_verdicts()));
        println!("slowdowns found   {} (at least 95 %)", percent(found.found()));
        println!("slowdown measured {} (median)", percent(median(&found.measured)));
        assert!(found.passed(), "{found:?}");
        Ok(())
    });
}

fn on_gpu(context: &Context, trials: u32, case: &Case, kernel: Option<&Config>) -> Result<SelfCheck, Box<dyn Error>> {
    let stream = Stream::new(context)?;
    let tools = GpuTools::new(&stream)?;
    let plan = plan_of(&case.problem, kernel, context)?;
    let bed = GpuBed::new(&stream, &tools, &case.problem, plan.workspace_bytes())?;
    for place in 0..2 {
        bed.load(place, &draw(&case.problem, InputKind::Normal, place as u64))?;
    }
    let subject = |place: usize, launching| KernelSubject::new(&stream, &plan, &[bed.tensors(place)], &[], launching);

    // How long a run takes decides how long the chain and the planted kernel are.
    let mut alone: Vec<Box<dyn Subject + '_>> = vec![Box::new(subject(0, Launching::Graph)?)];
    let settings = bench::Options::default();
    let mut stopwatch = GpuStopwatch::new(&tools, &stream);
    let first = measure(&settings, Mode::Screen, &mut alone, 0, &mut stopwatch, None, &mut ())?;
    let run_us = first.subjects[0].summary.ok_or("the kernel was not timed")?.p50;
    // 3 % of 400 µs is long compared with the launch of the planted kernel.
    let chain = (400.0 / run_us).ceil().max(1.0) as u32;
    let planted_us = PLANTED * f64::from(chain) * run_us;
    println!(
        "{} on {}, {}: {run_us:.2} µs a run, chains of {chain}, {planted_us:.1} µs planted",
        plan.config,
        context.info().name,
        case.problem
    );
    drop(alone);

    let load = |step: &Step| Function::load(context, &step.kernel, &ModuleOptions::default());
    let functions = plan.steps().map(load).collect::<Result<Vec<_>, _>>()?;
    Ok(selfcheck(trials, |number, slowdown| {
        let other: Box<dyn Subject + '_> = if slowdown == 0.0 {
            Box::new(subject(1, Launching::GraphOf(chain))?.labelled("itself"))
        } else {
            let launches = plan.steps().map(|step| &step.launch).zip(&functions);
            let run = PreparedPlan::of(launches, &bed.tensors(1))?;
            let turns = tools.turns(planted_us);
            let tools = &tools;
            let work = move |stream: &Stream| {
                (0..chain).try_for_each(|_| run.enqueue(stream))?;
                tools.spin_turns(stream, turns)
            };
            Box::new(ClosureSubject::new("slowed", &stream, chain, work)?)
        };
        let first: Box<dyn Subject + '_> = Box::new(subject(0, Launching::GraphOf(chain))?);
        let mut subjects = vec![first, other];
        let settings = bench::Options {
            seed: u64::from(number) + 1,
            ..bench::Options::default()
        };
        measure(&settings, Mode::Screen, &mut subjects, 0, &mut stopwatch, None, &mut ())
    })?)
}
