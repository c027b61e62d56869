//! `flashcore` without arguments: is attention correct on the best device, how fast is it, and which device is it?
//! Then, without a GPU, the same of the GPU kernel under the simulator. Words of ours come after the answer.

use flashcore::unstable::testing::InputKind;
use flashcore::{Device, Problem};
use flashcore_bench::Case;
use serde_json::json;

use crate::{
    CODE, Card, DIM, Failure, HEAD, Outcome, Page, driver_cache, judged_run, list, simulated, style, without_gpu,
};

pub(crate) fn run(as_json: bool) -> Result<Outcome, Failure> {
    let version = env!("CARGO_PKG_VERSION");
    if !as_json {
        style::print(&format!(
            "{HEAD}FlashCore {version}{HEAD:#} {DIM}· is fused attention correct on this machine, and how fast is it?{DIM:#}\n"
        ));
    }
    let problem = Problem::named("small")?;
    let device = Device::best();
    let has_gpu = matches!(device, Device::Cuda(_));
    let case = Case::new("small", problem.clone());
    let run = judged_run::compute(device, &case, None, InputKind::Normal, 0)?;
    if !as_json {
        // The answer, before what takes longer.
        let mut page = Page::default();
        let (heads, rows, columns) = (problem.num_heads(), problem.seq_len_q(), problem.head_dim());
        let dtype = problem.dtype().name();
        let shape = format!("{heads} heads, {rows} queries and keys, head_dim {columns}, {dtype}");
        page.heading(format_args!("Attention on {}", run.device), shape);
        run.add(&mut page);
        page.print();
    }
    let mut simulated = None;
    if !has_gpu {
        let card = Card::default();
        let plan = simulated::plan(&problem, card, None)?.plan;
        let options = simulated::options(InputKind::Normal, 0);
        simulated = Some((card, simulated::check(&plan, &options)?));
    }
    let outcome = match (&simulated, Outcome::of(run.gate.passed())) {
        (Some((_, report)), Outcome::Clean) => simulated::outcome(report),
        (_, outcome) => outcome,
    };
    if as_json {
        let checked = simulated.as_ref().map(|(_, report)| simulated::json(report));
        style::print_json(&json!({ "answer": run.json(&problem, Some("small")), "simulated": checked }));
        return Ok(outcome);
    }
    let mut page = Page::default();
    if let Some((card, report)) = &simulated {
        let planned = format!("planned for {}", card.title());
        page.heading("The GPU kernel, simulated on the CPU", planned);
        let spinner = style::spinner("predicting");
        page.field("predicted", without_gpu::predicted(&problem));
        drop(spinner);
        simulated::add(&mut page, report);
    }
    page.line(format_args!("\n{HEAD}Devices{HEAD:#}"));
    list::add_devices(&mut page);
    if has_gpu {
        for note in driver_cache::cache_report().notes {
            page.field("cache", note);
        }
    }
    page.line(format_args!("\n{HEAD}Next{HEAD:#}"));
    let command = invocation();
    let column = command.len() + 31;
    for (arguments, what) in [
        ("run small-b2-causal", "another problem; `list problems` has more"),
        (
            "check tiny --plant drop-barrier",
            "a race planted in a kernel, found at its line",
        ),
        ("explain small --profile l4", "why this kernel, what it uses, what fits"),
    ] {
        let typed = format!("{command} {arguments}");
        page.line(format_args!("  {CODE}{typed:<column$}{CODE:#} {DIM}{what}{DIM:#}"));
    }
    page.print();
    Ok(outcome)
}

/// How this program was called, to be typed again.
pub(crate) fn invocation() -> &'static str {
    match std::env::var_os("CARGO") {
        None => "flashcore",
        Some(_) if cfg!(debug_assertions) => "cargo run --",
        Some(_) => "cargo run --release --",
    }
}
