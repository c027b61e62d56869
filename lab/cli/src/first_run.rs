//! `flashcore` without arguments: attention on the best device, whether it is right, and how long it takes.

use flashcore::{Device, InputKind, Problem};

use crate::args::Card;
use crate::failure::{Failure, Outcome};
use crate::style::{self, CODE, DIM, HEAD};
use crate::tune::without_gpu;
use crate::{answer, list, machine, run, simulated};

pub(crate) fn run() -> Result<Outcome, Failure> {
    style::print(&format!(
        "{HEAD}FlashCore {}{HEAD:#} {DIM}· fused attention for NVIDIA GPUs, in Rust{DIM:#}\n",
        env!("CARGO_PKG_VERSION"),
    ));
    let problem = Problem::named("mission")?;
    let device = Device::best();
    let has_gpu = matches!(device, Device::Cuda(_));
    let spinner = style::spinner("computing");
    let answer = answer::compute(device, &problem, None, InputKind::Normal, 0)?;
    let predicted = (!has_gpu).then(|| without_gpu::predicted(&problem));
    drop(spinner);
    style::print(&format!(
        "\n{HEAD}Attention on {}{HEAD:#} {DIM}· {problem}{DIM:#}\n{}",
        answer.device,
        answer.text(&problem, &machine::line_of(&answer.device), predicted.as_deref())
    ));
    let mut outcome = run::outcome(&answer);

    if !has_gpu {
        let card = Card::default();
        let plan = simulated::plan(&problem, card, None)?.plan;
        let report = simulated::check(&plan, &simulated::options(InputKind::Normal, 0))?;
        style::print(&format!(
            "\n{HEAD}The GPU kernel under the simulator{HEAD:#} {DIM}· planned for {}{DIM:#}\n{}",
            card.title(),
            simulated::text(&report)
        ));
        if outcome == Outcome::Clean {
            outcome = simulated::outcome(&report);
        }
    }
    style::print(&format!("\n{HEAD}Devices{HEAD:#}\n{}", list::device_fields()));
    if has_gpu {
        for note in flashcore_cuda::cache_report().notes {
            style::print(&style::field("cache", &note));
        }
    }

    let command = invocation();
    let mut next = format!("\n{HEAD}Next{HEAD:#}\n");
    for (arguments, what) in [
        ("run mission-b2-causal", "another problem; `list problems` has more"),
        ("check mission --schedules 5", "the GPU kernel under five schedules"),
        (
            "explain mission --profile l4",
            "why this kernel, what it uses, what fits",
        ),
    ] {
        let typed = format!("{command} {arguments}");
        let column = command.len() + 31;
        next.push_str(&format!("  {CODE}{typed:<column$}{CODE:#} {DIM}{what}{DIM:#}\n"));
    }
    style::print(&next);
    Ok(outcome)
}

/// How this program was called, to be typed again.
pub(crate) fn invocation() -> &'static str {
    if std::env::var_os("CARGO").is_none() {
        return "flashcore";
    }
    if cfg!(debug_assertions) {
        "cargo run --"
    } else {
        "cargo run --release --"
    }
}
