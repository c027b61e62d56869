//! `flashcore run`: computes a problem on a device, compares the output with float64, and times it.

use clap::Args;
use flashcore::{Error, KernelId, Problem};
use flashcore_check::CheckOptions;
use serde_json::json;

use crate::judged_run::JudgedRun;
use crate::machine::{Besides, Place};
use crate::{
    Card, Failure, HEAD, InputArgs, Outcome, Page, ProblemArgs, judged_run, kernels, machine, simulated, style,
};

/// Compute a problem on a device, compare the output with float64, and time it
///
/// The output is compared before anything is timed; the exit code of a wrong output is 1. The time is
/// measured as by `bench`, for one second, or for four runs of a kernel that is slower: on a GPU by CUDA
/// events around graphs of launches, on the CPU by the wall clock. The device `sim` runs the GPU kernel
/// under the checking simulator: it takes seconds, and reports errors of the kernel, not its speed.
#[derive(Args)]
#[command(after_help = "Exit codes: 0 correct, 1 wrong or failed, 2 usage, 3 no driver or no such device")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    problem: ProblemArgs,
    #[command(flatten)]
    inputs: InputArgs,
    /// best, cpu, cuda, cuda:N, sim, or sim:CARD to plan for a card (`list profiles`)
    #[arg(long, value_name = "DEVICE", default_value = "best", help_heading = "How")]
    device: String,
    /// Kernel by id (`list kernels`) [default: the library's choice]
    #[arg(long, value_name = "ID", help_heading = "How")]
    kernel: Option<String>,
    /// Print one JSON object
    #[arg(long, help_heading = "How")]
    json: bool,
}

pub(crate) fn run(args: &RunArgs) -> Result<Outcome, Failure> {
    let problem = args.problem.problem()?;
    let kernel: Option<KernelId> = args.kernel.as_deref().map(kernels::named).transpose()?;
    let InputArgs { inputs, seed } = args.inputs;
    let lengths = args.problem.lengths(&problem)?;
    let device = machine::place(&args.device, Besides::CpuAndSim)?;
    if let Place::Simulator(card) = device {
        let on_gpu = |kernel: KernelId| match kernel {
            KernelId::Gpu(config) => Ok(config),
            kernel => Err(Error::KernelOfOtherDevice {
                kernel: kernel.to_string(),
                device: "sim".to_string(),
                suggestion: "the device cpu",
            }),
        };
        let config = kernel.map(on_gpu).transpose()?;
        let card = card.unwrap_or_else(Card::default);
        let plan = simulated::plan(&problem, card, config)?.plan;
        let options = CheckOptions {
            lengths,
            ..simulated::options(inputs, seed)
        };
        let report = simulated::check(&plan, &options)?;
        let json = || {
            let mut value = simulated::json(&report);
            value["device"] = json!("sim");
            value
        };
        style::show(args.json, json, || {
            let title = card.title();
            let mut page = Page::new(format_args!("{HEAD}{problem}{HEAD:#} under the simulator, for {title}"));
            simulated::add(&mut page, &report);
            page
        });
        return Ok(simulated::outcome(&report));
    }
    if lengths.is_some() {
        let why = "`run` draws the values of lengths, and the file gives `values`";
        return Err(Failure::usage(why).help("`check` and `bench` take them, and so does `run --device sim`"));
    }
    let Place::Here(device) = device else {
        return Err(Failure::usage("`run` predicts nothing: `flashcore explain` does"));
    };
    let case = args.problem.case(&problem);
    let run = judged_run::compute(device, &case, kernel, inputs, seed)?;
    let name = Some(case.name.as_str()).filter(|name| *name != problem.to_string());
    Ok(report(&run, &problem, name, args.json))
}

/// Prints a judged run. A reader that has gone changes nothing: printing does not fail.
fn report(run: &JudgedRun, problem: &Problem, name: Option<&str>, as_json: bool) -> Outcome {
    let json = || run.json(problem, name);
    style::show(as_json, json, || {
        let named = name.map_or(String::new(), |name| format!("{name}: "));
        let mut page = Page::new(format_args!("{named}{HEAD}{problem}{HEAD:#} on {}", run.device));
        run.add(&mut page);
        page
    });
    Outcome::of(run.gate.passed())
}

#[cfg(test)]
mod tests {
    use flashcore_bench::Case;

    use super::*;

    #[test]
    fn a_wrong_answer_is_a_finding_however_it_is_printed() {
        let problem = Problem::named("tiny").unwrap();
        let mut run = judged_run::compute(
            flashcore::Device::Cpu,
            &Case::new("tiny", problem.clone()),
            None,
            flashcore::unstable::testing::InputKind::Normal,
            1,
        )
        .unwrap();
        assert_eq!(report(&run, &problem, None, true), Outcome::Clean);
        run.gate.out.passed = false;
        for as_json in [false, true] {
            assert_eq!(report(&run, &problem, None, as_json), Outcome::Findings);
        }
    }
}
