//! `flashcore check --trace LINE` and `--tap all`: the values of lanes at a line, and the errors of each
//! stage.

use clap::Args;
use flashcore_check::CheckOptions;
use flashcore_check::watch::{FirstNonfinite, TapNumerics, Watch, numerics, trace_line};
use flashcore_kernels::{Plan, Step};
use flashcore_sim::TraceRecord;
use serde_json::json;

use crate::quantity::{axes, fields};
use crate::{Failure, HEAD, Outcome, Page, style};

/// Values to print.
#[derive(Args)]
pub(crate) struct WatchArgs {
    /// Print values of a line, as FILE:LINE or FILE:LINE:VALUE,warp=2,lane=7
    ///
    /// Written [FILE:]LINE[:VALUE], or `kernel`, perhaps with ,block=1x0x0,warp=2,lane=7,limit=9. With :VALUE only
    /// those of this variable or instruction, in place of checking; `kernel` adds those that the kernel traces
    /// (`KernelBuilder::trace`). They are of block and warp 0 and of all lanes, and 32 are printed.
    #[arg(long, value_name = "LINE", value_parser = traced, help_heading = "How")]
    pub(crate) trace: Option<Traced>,
}

/// A line, and which of its values are printed.
#[derive(Clone, Debug)]
pub(crate) struct Traced {
    line: String,
    block: [u32; 3],
    warp: u32,
    /// All of them by default.
    lane: Option<u32>,
    limit: usize,
}

fn traced(text: &str) -> Result<Traced, String> {
    const FIELDS: [&str; 4] = ["block", "warp", "lane", "limit"];
    let (line, rest) = text
        .split_once(',')
        .map_or((text, None), |(line, rest)| (line, Some(rest)));
    let mut traced = Traced {
        line: line.to_string(),
        block: [0; 3],
        warp: 0,
        lane: None,
        limit: 32,
    };
    if traced.line == "kernel" && rest.is_some() {
        return Err("`kernel` takes no fields: all that the kernel traces is printed".to_string());
    }
    let number = |value: &str| {
        value
            .parse::<u32>()
            .map_err(|_| format!("`{value}` is no number; write lane=3"))
    };
    for (key, value) in rest.map(|rest| fields(rest, &FIELDS)).transpose()?.unwrap_or_default() {
        match key {
            "block" => traced.block = axes(&value, 0)?,
            "warp" => traced.warp = number(&value)?,
            "lane" => traced.lane = Some(number(&value)?),
            _ => traced.limit = number(&value)? as usize,
        }
    }
    match traced.lane {
        Some(lane) if lane > 31 => Err(format!("lane is {lane}; allowed: 0 to 31")),
        _ => Ok(traced),
    }
}

impl WatchArgs {
    pub(crate) fn own_traces(&self) -> bool {
        self.trace.as_ref().is_some_and(|traced| traced.line == "kernel")
    }

    pub(crate) fn run(&self, plan: &Plan, options: &CheckOptions, as_json: bool) -> Option<Result<Outcome, Failure>> {
        let traced = self.trace.as_ref()?;
        match traced.check_place(plan) {
            Err(failure) => Some(Err(failure)),
            Ok(()) if self.own_traces() => None,
            Ok(()) => Some(traced.show_line(plan, options, as_json)),
        }
    }
}

impl Traced {
    /// Refuses blocks and warps that no step of the plan has.
    fn check_place(&self, plan: &Plan) -> Result<(), Failure> {
        let has_block = |grid: [u32; 3]| grid.iter().zip(self.block).all(|(&n, i)| i < n);
        let warps = |block: [u32; 3]| block.iter().product::<u32>().div_ceil(32);
        let mut launches = plan.steps().map(|step| &step.launch);
        if launches.any(|launch| has_block(launch.grid) && self.warp < warps(launch.block)) {
            return Ok(());
        }
        let of_step = |step: &Step| {
            let [x, y, z] = step.launch.grid.map(|n| n.saturating_sub(1));
            let (name, last) = (step.kernel.name(), warps(step.launch.block).saturating_sub(1));
            format!("{name} has blocks 0,0,0 to {x},{y},{z} and warps 0 to {last}")
        };
        let known = style::list(plan.steps().map(of_step));
        let ([x, y, z], warp) = (self.block, self.warp);
        let why = format!("block {x},{y},{z} warp {warp} is outside the grid: {known}");
        Err(Failure::usage(why))
    }

    fn show_line(&self, plan: &Plan, options: &CheckOptions, as_json: bool) -> Result<Outcome, Failure> {
        let line = &self.line;
        let watch: Watch = line.parse().map_err(Failure::usage)?;
        let spinner = style::spinner("simulating");
        let records = trace_line(plan, &watch, (self.block, self.warp), options).map_err(Failure::failed)?;
        drop(spinner);
        let Some(records) = records else {
            let why = format!("no instruction of {} has a value at `{line}`", plan.config);
            return Err(Failure::usage(why).help("give a line that findings or `explain --ptx=lines` name"));
        };
        let json = || json!({ "trace": records });
        style::show(as_json, json, || {
            let ([x, y, z], warp, count) = (self.block, self.warp, style::count(records.len(), "value"));
            let of = format!("{}, block ({x}, {y}, {z}) warp {warp}", plan.config);
            let mut page = Page::new(format_args!("{HEAD}{line}{HEAD:#} of {of}: {count}"));
            if records.is_empty() {
                page.line("  the warp did not execute this line");
            }
            for record in records.iter().take(self.limit) {
                add_record(&mut page, record, self.lane);
            }
            if records.len() > self.limit {
                let left = style::whole(records.len() - self.limit);
                page.dim(format_args!(
                    "{left} more: --trace {line},limit=N, or --trace {line}:VALUE"
                ));
            }
            page
        });
        Ok(Outcome::Clean)
    }
}

pub(crate) fn add_record(page: &mut Page, record: &TraceRecord, only: Option<u32>) {
    let lanes = (0..32usize).filter(|lane| record.lanes >> lane & 1 != 0);
    let lanes = lanes.filter(|lane| only.is_none_or(|only| only as usize == *lane));
    // A line does not end between a lane and its value.
    const BOUND: char = '\u{a0}';
    let values = lanes.map(|lane| match record.f32(lane) {
        Some(value) => format!("{lane}:{BOUND}{value}"),
        None => format!("{lane}:{BOUND}{}", record.bits[lane]),
    });
    let values = values.collect::<Vec<_>>().join("  ");
    page.dim(&record.label);
    let text = format!("    {}", if values.is_empty() { "no such lane" } else { &values });
    page.add(style::wrap(&text, 4).replace(BOUND, " "));
}

pub(crate) fn show_numerics(plan: &Plan, options: &CheckOptions, as_json: bool) -> Result<Outcome, Failure> {
    let spinner = style::spinner("simulating each tap");
    let taps = numerics(plan, options).map_err(Failure::failed)?;
    drop(spinner);
    let json = || json!({ "kernel": plan.config.to_string(), "taps": taps });
    style::show(as_json, json, || {
        let (problem, config, inputs) = (&plan.problem, plan.config, options.inputs);
        let mut page = Page::new(format_args!("{HEAD}{problem}{HEAD:#} by {config}, inputs {inputs}"));
        for tap in &taps {
            let label = match tap.tap {
                "scores" => "S",
                "probabilities" => "P",
                _ => "O",
            };
            page.field(label, format_args!("{}: {}", tap.tap, tap.gate));
            let firsts = [&tap.first_nan, &tap.first_infinity].into_iter().flatten();
            page.fields("", firsts.map(first_text));
        }
        page
    });
    let is_clean = |tap: &TapNumerics| tap.gate.passed() && tap.first_nan.is_none();
    Ok(Outcome::of(taps.iter().all(is_clean)))
}

fn first_text(first: &FirstNonfinite) -> String {
    let (what, at, instruction) = (&first.what, &first.at, &first.instruction);
    let ([x, y, z], warp, lane) = (first.block, first.warp, first.lane);
    let source = first.source.as_ref();
    let source = source.map_or(String::new(), |source| format!(": {source}"));
    format!("first {what} at {at} in {instruction}, block ({x}, {y}, {z}) warp {warp} lane {lane}{source}")
}
