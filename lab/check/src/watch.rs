//! Shows the values of any lane at any line, and the first NaN or infinity.
//!
//! The kernel is copied with traces after the selected instructions, and the copy is simulated.

use std::sync::Arc;

use flashcore_ir::inst::{BinOp, MmaAcc};
use flashcore_ir::kernel::KernelParts;
use flashcore_ir::{Inst, Kernel, Node, Reg, RegClass, ScalarType, SiteId, SourceLine};
use flashcore_kernels::{Plan, Tap};
use flashcore_sim::{Nonfinite, TraceRecord, nonfinite};
use serde::Serialize;
use thiserror::Error;

use crate::check::{CheckError, CheckOptions, observe};
use crate::gate::Gate;
use crate::mutate::replaced;
use crate::source;

/// Selects values to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// End of the file's path; `None` for any file.
    pub file: Option<String>,
    /// The line: the kernel's own, or one within a verb; `None` for all of the file.
    pub line: Option<u32>,
    /// Part of the name of a variable or an instruction; `None` for all values.
    pub value: Option<String>,
}

/// A text that is neither `[FILE:]LINE[:VALUE]` nor `FILE:VALUE`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` names no line; write [FILE:]LINE[:VALUE] or FILE:VALUE, e.g. 120, warp.rs:120:ex2 or warp.rs:ex2")]
pub struct NoLine(String);

impl std::str::FromStr for Watch {
    type Err = NoLine;

    fn from_str(text: &str) -> Result<Watch, NoLine> {
        let wrong = || NoLine(text.to_string());
        let mut parts = text.split(':').peekable();
        let is_number = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
        let file = match parts.peek() {
            Some(first) if !is_number(first) => parts.next().map(str::to_string),
            _ => None,
        };
        let line = parts.next_if(is_number).map(|line| line.parse().map_err(|_| wrong()));
        let line = line.transpose()?;
        let value = parts.next().filter(|value| !value.is_empty()).map(str::to_string);
        let names_lines = line.is_some() || (file.is_some() && value.is_some());
        let is_empty = file.as_ref().is_some_and(String::is_empty);
        if !names_lines || is_empty || parts.next().is_some() {
            return Err(wrong());
        }
        Ok(Watch { file, line, value })
    }
}

impl Watch {
    fn is_at(&self, line: SourceLine) -> bool {
        self.line.is_none_or(|number| line.line == number)
            && self.file.as_ref().is_none_or(|file| line.file.ends_with(file.as_str()))
    }

    fn names(&self, what: &str) -> bool {
        self.value.as_ref().is_none_or(|value| what.contains(value.as_str()))
    }
}

struct Watched {
    /// The instruction, and the name of the variable if it has one.
    what: String,
    site: SiteId,
    ty: ScalarType,
}

fn called(kernel: &Kernel, inst: &Inst, reg: Reg) -> String {
    let prefix = reg.class.prefix();
    let name = kernel.reg_name(reg).map_or(String::new(), |name| format!(" ({name})"));
    format!("{} %{prefix}{}{name}", flashcore_ir::ptx::mnemonic(inst), reg.index)
}

/// The registers that an instruction writes, or those it reads if it writes none. None for
/// asynchronous products, whose registers must not be touched yet. 16-bit registers cannot be
/// traced.
fn written_or_read(inst: &Inst) -> Vec<Reg> {
    if matches!(inst, Inst::Wgmma(_) | Inst::Trace { .. }) {
        return Vec::new();
    }
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    inst.visit_regs(|reg, n| reads.push((reg, n)), |reg, n| writes.push((reg, n)));
    let of = if writes.is_empty() { reads } else { writes };
    of.into_iter()
        .flat_map(|(first, n)| (0..n).map(move |i| first.plus(i)))
        .filter(|reg| reg.class != RegClass::B16)
        .collect()
}

/// A kernel that traces the registers of the types that `choose` gives for each instruction, and
/// the traced values.
fn instrumented(kernel: &Kernel, choose: impl Fn(&Inst, SiteId) -> Vec<(Reg, ScalarType)>) -> (Kernel, Vec<Watched>) {
    let mut watched = Vec::new();
    let body = replaced(kernel, &mut |node| {
        let Node::Inst { inst, site } = node else { return None };
        let mut nodes = vec![node.clone()];
        for (src, ty) in choose(inst, *site) {
            let label = (kernel.traces().len() + watched.len()) as u32;
            let (what, site) = (called(kernel, inst, src), *site);
            watched.push(Watched { what, site, ty });
            let inst = Inst::Trace { label, src };
            nodes.push(Node::Inst { inst, site });
        }
        Some(nodes)
    });
    let labels = watched.iter().map(|watched| watched.what.clone());
    let traces = kernel.traces().iter().cloned().chain(labels).collect();
    let parts = KernelParts {
        body,
        traces,
        ..kernel.parts().clone()
    };
    (Kernel::of_parts(parts), watched)
}

/// The values at a line in one warp of one block, in order of execution. `None` if nothing is at
/// the line.
pub fn trace_line(
    plan: &Plan,
    watch: &Watch,
    of: ([u32; 3], u32),
    options: &CheckOptions,
) -> Result<Option<Vec<TraceRecord>>, CheckError> {
    let mut watching_plan = plan.clone();
    let mut count = 0;
    for step in watching_plan.steps_mut() {
        let kernel = step.kernel.clone();
        let (traced, watched) = instrumented(&kernel, |inst, site| {
            let at_line = kernel.backtrace(site).iter().any(|(line, _)| watch.is_at(*line));
            let mut regs = if at_line { written_or_read(inst) } else { Vec::new() };
            regs.retain(|&reg| watch.names(&called(&kernel, inst, reg)));
            regs.into_iter().map(|reg| (reg, ScalarType::B64)).collect()
        });
        step.kernel = Arc::new(traced);
        count += watched.len();
    }
    if count == 0 {
        return Ok(None);
    }
    let mut options = options.clone();
    (options.sim.trace, options.sim.trace_of) = (true, Some(of));
    let (traces, _) = observe(&watching_plan, &options, &[])?;
    Ok(Some(traces.concat()))
}

/// The first NaN, or the first infinity that no mask made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstNonfinite {
    /// `NaN` or `infinity`.
    pub what: &'static str,
    /// The instruction.
    pub instruction: String,
    /// The kernel's line, as `file:line`.
    pub at: String,
    /// The source line, if the file is found.
    pub source: Option<String>,
    /// The block.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// The first such lane.
    pub lane: u32,
}

/// Numerics of a tap.
#[derive(Clone, Debug, Serialize)]
pub struct TapNumerics {
    /// `scores`, `probabilities` or `output`.
    pub tap: &'static str,
    /// Comparison with float64.
    pub gate: Gate,
    /// The first NaN, if there is one.
    pub first_nan: Option<FirstNonfinite>,
    /// The first infinity that no mask made, if there is one.
    pub first_infinity: Option<FirstNonfinite>,
}

/// The largest error and the first NaN and infinity of each tap of a plan, and of its output. Each is stored
/// by a build of its own.
pub fn numerics(plan: &Plan, options: &CheckOptions) -> Result<Vec<TapNumerics>, CheckError> {
    let mut numerics = Vec::new();
    for tap in Tap::ALL {
        // A family need not have this tap.
        if let Ok(tapped) = Plan::with_tap(&plan.problem, &plan.config, plan.target, tap) {
            numerics.push(numerics_of(tap.name(), &tapped, options)?);
        }
    }
    numerics.push(numerics_of("output", plan, options)?);
    Ok(numerics)
}

fn numerics_of(name: &'static str, plan: &Plan, options: &CheckOptions) -> Result<TapNumerics, CheckError> {
    let mut watching_plan = plan.clone();
    let mut by_step = Vec::new();
    for step in watching_plan.steps_mut() {
        let kernel = step.kernel.clone();
        let (traced, watched) = instrumented(&kernel, |inst, _| {
            let regs = written_or_read(inst).into_iter();
            regs.filter_map(|reg| Some((reg, float_type(inst, reg)?))).collect()
        });
        step.kernel = Arc::new(traced);
        by_step.push((kernel, watched));
    }
    let types: Vec<Vec<ScalarType>> = by_step
        .iter()
        .map(|(kernel, watched)| {
            // The kernel's own traces come first and are not shown.
            let own = kernel.traces().iter().map(|_| ScalarType::Pred);
            own.chain(watched.iter().map(|watched| watched.ty)).collect()
        })
        .collect();
    let mut options = options.clone();
    options.sim.trace = true;
    let (traces, gate) = observe(&watching_plan, &options, &types)?;
    let (mut first_nan, mut first_infinity) = (None, None);
    for ((kernel, watched), traces) in by_step.iter().zip(traces) {
        for record in traces {
            let own = kernel.traces().len();
            let Some(watched) = (record.index as usize).checked_sub(own).and_then(|at| watched.get(at)) else {
                continue;
            };
            let there = (0..32).filter(|lane| record.lanes >> lane & 1 != 0);
            let mut nonfinite = there.filter_map(|lane| Some((lane, nonfinite(watched.ty, record.bits[lane])?)));
            let Some((lane, what)) = nonfinite.next() else { continue };
            let (first, what) = match what {
                Nonfinite::Nan => (&mut first_nan, "NaN"),
                Nonfinite::Infinity => (&mut first_infinity, "infinity"),
            };
            if first.is_none() {
                let line = kernel.kernel_line(watched.site);
                *first = Some(FirstNonfinite {
                    what,
                    instruction: watched.what.clone(),
                    at: line.to_string(),
                    source: source::quote(line.file, line.line),
                    block: record.block,
                    warp: record.warp,
                    lane: lane as u32,
                });
            }
        }
    }
    Ok(TapNumerics {
        tap: name,
        gate,
        first_nan,
        first_infinity,
    })
}

/// The type of the floats in a register that an instruction computes, or moves from or to memory.
fn float_type(inst: &Inst, reg: Reg) -> Option<ScalarType> {
    match inst {
        // These move or select what another instruction has computed.
        Inst::Mov { .. }
        | Inst::Selp { .. }
        | Inst::Param { .. }
        | Inst::Bin {
            op: BinOp::And | BinOp::Or | BinOp::Xor,
            ..
        } => None,
        Inst::Bin { ty, .. } | Inst::Un { ty, .. } | Inst::Fma { ty, .. } | Inst::CvtPack { ty, .. } => {
            let is_float = matches!(ty, ScalarType::F32 | ScalarType::F16x2 | ScalarType::BF16x2);
            is_float.then_some(*ty)
        }
        Inst::Mma { acc: MmaAcc::F16, .. } => Some(ScalarType::F16x2),
        _ => (reg.class == RegClass::F32).then_some(ScalarType::F32),
    }
}
