//! `flashcore check --trace LINE` and `--numerics`: what lanes have at a line, and how each stage's numbers do.

use clap::Args;
use flashcore_check::CheckOptions;
use flashcore_check::watch::{FirstNonfinite, StageNumerics, Watch, numerics, trace_line};
use flashcore_kernels::{Plan, Step};
use flashcore_sim::TraceRecord;
use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::style::{self, DIM, HEAD};

/// Values to look at.
#[derive(Args)]
#[command(next_help_heading = "Values")]
pub(crate) struct WatchArgs {
    /// Print the values of a line (`[FILE:]LINE`, or with :VALUE those whose variable or instruction is called so), in
    /// place of checking; `kernel` for those that the kernel traces itself (`KernelBuilder::trace`)
    #[arg(long, value_name = "LINE[:VALUE]")]
    trace: Option<String>,
    /// Of this block
    #[arg(long, value_name = "X,Y,Z", default_value = "0,0,0", value_parser = block)]
    block: Block,
    /// Of this warp of it
    #[arg(long, value_name = "N", default_value_t = 0)]
    warp: u32,
    /// Of this lane alone
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..32))]
    lane: Option<u32>,
    /// At most so many values, from the first
    #[arg(long, value_name = "N", default_value_t = 32)]
    limit: usize,
    /// Print the largest error of each stage (scores, probabilities, output), and the first NaN and infinity with
    /// their lines, in place of checking
    #[arg(long, conflicts_with_all = ["trace", "stop_after", "plant"])]
    numerics: bool,
}

/// Flags about `--trace`.
pub(crate) const OF_TRACES: &[&str] = &["block", "warp", "lane", "limit"];

#[derive(Clone, Copy, Debug)]
struct Block([u32; 3]);

fn block(text: &str) -> Result<Block, String> {
    let wrong = || "write the block's index as X,Y,Z, e.g. 0,0,0".to_string();
    let parts: Vec<u32> = text
        .split(',')
        .map(|part| part.trim().parse().map_err(|_| wrong()))
        .collect::<Result<_, _>>()?;
    match parts.as_slice() {
        [x] => Ok(Block([*x, 0, 0])),
        [x, y] => Ok(Block([*x, *y, 0])),
        [x, y, z] => Ok(Block([*x, *y, *z])),
        _ => Err(wrong()),
    }
}

impl WatchArgs {
    /// Whether the kernel's own traces are asked for.
    pub(crate) fn own_traces(&self) -> bool {
        self.trace.as_deref() == Some("kernel")
    }

    /// Does what is asked for in place of a check, if anything is.
    pub(crate) fn run(&self, plan: &Plan, options: &CheckOptions, as_json: bool) -> Option<Result<Outcome, Failure>> {
        if self.numerics {
            return Some(show_numerics(plan, options, as_json));
        }
        self.trace.as_ref()?;
        if let Err(failure) = self.check_place(plan) {
            return Some(Err(failure));
        }
        let line = self.trace.as_ref().filter(|_| !self.own_traces())?;
        Some(self.show_line(line, plan, options, as_json))
    }

    /// Refuses blocks and warps that no step of the plan has.
    fn check_place(&self, plan: &Plan) -> Result<(), Failure> {
        let Block(block) = self.block;
        let has_block = |grid: [u32; 3]| grid.iter().zip(block).all(|(&n, i)| i < n);
        let warps = |block: [u32; 3]| block.iter().product::<u32>().div_ceil(32);
        let mut launches = plan.steps().map(|step| &step.launch);
        if launches.any(|launch| has_block(launch.grid) && self.warp < warps(launch.block)) {
            return Ok(());
        }
        let of_step = |step: &Step| {
            let [x, y, z] = step.launch.grid.map(|n| n.saturating_sub(1));
            let last = warps(step.launch.block).saturating_sub(1);
            format!(
                "{} has blocks 0,0,0 to {x},{y},{z} and warps 0 to {last}",
                step.kernel.name()
            )
        };
        let there: Vec<String> = plan.steps().map(of_step).collect();
        let [x, y, z] = block;
        Err(Failure::usage(format!(
            "block {x},{y},{z} warp {} is outside the grid: {}",
            self.warp,
            there.join(", ")
        )))
    }

    fn show_line(&self, line: &str, plan: &Plan, options: &CheckOptions, as_json: bool) -> Result<Outcome, Failure> {
        let watch: Watch = line.parse().map_err(Failure::usage)?;
        let Block(block) = self.block;
        let spinner = style::spinner("simulating");
        let records = trace_line(plan, &watch, (block, self.warp), options).map_err(Failure::failed)?;
        drop(spinner);
        let Some(records) = records else {
            return Err(
                Failure::usage(format!("no instruction of {} has a value at `{line}`", plan.config))
                    .help("lines are those that findings and `explain --ptx --lines` name"),
            );
        };
        if as_json {
            style::print_json(&json!({ "trace": records }));
            return Ok(Outcome::Clean);
        }
        let [x, y, z] = block;
        let mut text = format!(
            "{HEAD}{line}{HEAD:#} of {}, block ({x}, {y}, {z}) warp {}: {}\n",
            plan.config,
            self.warp,
            style::count(records.len() as u64, "value")
        );
        if records.is_empty() {
            text.push_str("  it did not come there\n");
        }
        for record in records.iter().take(self.limit) {
            text.push_str(&record_text(record, self.lane));
        }
        if records.len() > self.limit {
            let left = style::whole((records.len() - self.limit) as u64);
            text.push_str(&format!(
                "  {DIM}{left} more: --limit N, or --trace {line}:VALUE{DIM:#}\n"
            ));
        }
        style::print(&text);
        Ok(Outcome::Clean)
    }
}

/// A value, a lane each.
pub(crate) fn record_text(record: &TraceRecord, only: Option<u32>) -> String {
    let lanes = (0..32usize).filter(|lane| record.lanes >> lane & 1 != 0);
    let lanes = lanes.filter(|lane| only.is_none_or(|only| only as usize == *lane));
    let values: Vec<String> = lanes
        .map(|lane| match record.f32(lane) {
            Some(value) => format!("{lane}: {value}"),
            None => format!("{lane}: {}", record.bits[lane]),
        })
        .collect();
    let values = match values.is_empty() {
        true => "not there".to_string(),
        false => values.join("  "),
    };
    format!(
        "  {DIM}{}{DIM:#}\n{}",
        record.label,
        style::wrap(&format!("    {values}"), 4)
    )
}

fn show_numerics(plan: &Plan, options: &CheckOptions, as_json: bool) -> Result<Outcome, Failure> {
    let spinner = style::spinner("simulating each stage");
    let stages = numerics(plan, options).map_err(Failure::failed)?;
    drop(spinner);
    let is_well = |stage: &StageNumerics| stage.gate.passed() && stage.first_nan.is_none();
    let outcome = match stages.iter().all(is_well) {
        true => Outcome::Clean,
        false => Outcome::Findings,
    };
    if as_json {
        style::print_json(&json!({ "kernel": plan.config.to_string(), "stages": stages }));
        return Ok(outcome);
    }
    let mut text = format!(
        "{HEAD}{}{HEAD:#} by {}, inputs {}\n",
        plan.problem, plan.config, options.inputs
    );
    for stage in &stages {
        let label = match stage.stage {
            "scores" => "S",
            "probabilities" => "P",
            _ => "O",
        };
        text.push_str(&style::field(label, &format!("{}: {}", stage.stage, stage.gate)));
        for first in [&stage.first_nan, &stage.first_infinity].into_iter().flatten() {
            text.push_str(&style::field("", &first_text(first)));
        }
    }
    style::print(&text);
    Ok(outcome)
}

fn first_text(first: &FirstNonfinite) -> String {
    let [x, y, z] = first.block;
    let source = first
        .source
        .as_deref()
        .map_or(String::new(), |source| format!(": {source}"));
    format!(
        "first {} at {} in {}, block ({x}, {y}, {z}) warp {} lane {}{source}",
        first.what, first.at, first.instruction, first.warp, first.lane
    )
}
