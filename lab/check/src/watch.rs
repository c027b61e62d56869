//! Watching values: what any lane has at any line, and where numbers stop being numbers.
//!
//! A kernel is a value, so watching is another kernel with traces after the instructions of interest; the simulator
//! shows them, and nothing else changes.

use std::sync::Arc;

use flashcore_ir::inst::{BinOp, Cvt, MmaAcc, StoreSource};
use flashcore_ir::{Inst, Kernel, Node, Reg, RegClass, ScalarType, SiteId, SourceLine};
use flashcore_kernels::{Plan, StopAfter};
use flashcore_sim::TraceRecord;
use serde::Serialize;
use thiserror::Error;

use crate::check::{CheckError, CheckOptions, observe};
use crate::gate::Gate;
use crate::source;

/// Which values to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// End of the file's path; any file where there is none.
    pub file: Option<String>,
    /// The line: the kernel's own, or one within a verb.
    pub line: u32,
    /// Part of a variable's name or of an instruction's; all values where there is none.
    pub value: Option<String>,
}

/// What is wrong with `[FILE:]LINE[:VALUE]`.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` names no line; write [FILE:]LINE[:VALUE], e.g. 120, warp.rs:120 or warp.rs:120:ex2")]
pub struct NoLine(String);

impl std::str::FromStr for Watch {
    type Err = NoLine;

    /// ```
    /// use flashcore_check::watch::Watch;
    /// let watch: Watch = "warp.rs:120:ex2".parse()?;
    /// assert_eq!((watch.file.as_deref(), watch.line, watch.value.as_deref()), (Some("warp.rs"), 120, Some("ex2")));
    /// assert_eq!("120".parse::<Watch>()?.file, None);
    /// assert!("warp.rs".parse::<Watch>().is_err());
    /// # Ok::<(), flashcore_check::watch::NoLine>(())
    /// ```
    fn from_str(text: &str) -> Result<Watch, NoLine> {
        let wrong = || NoLine(text.to_string());
        let mut parts = text.split(':').peekable();
        let is_number = |part: &&str| !part.is_empty() && part.chars().all(|c| c.is_ascii_digit());
        let file = match parts.peek() {
            Some(first) if !is_number(first) => parts.next().map(str::to_string),
            _ => None,
        };
        let line = parts.next().and_then(|line| line.parse().ok()).ok_or_else(wrong)?;
        let value = parts.next().filter(|value| !value.is_empty()).map(str::to_string);
        match (&file, parts.next()) {
            (_, Some(_)) => Err(wrong()),
            (Some(file), None) if file.is_empty() => Err(wrong()),
            _ => Ok(Watch { file, line, value }),
        }
    }
}

impl Watch {
    fn is_at(&self, line: SourceLine) -> bool {
        line.line == self.line && self.file.as_ref().is_none_or(|file| line.file.ends_with(file.as_str()))
    }

    fn names(&self, what: &str) -> bool {
        self.value.as_ref().is_none_or(|value| what.contains(value.as_str()))
    }
}

/// A value that is watched.
#[derive(Clone, Debug, PartialEq)]
struct Watched {
    /// What it is called: the instruction, and the variable where it has a name.
    what: String,
    site: SiteId,
    ty: ScalarType,
}

/// A kernel that traces the values of a line, and how many there are.
fn watching(kernel: &Kernel, watch: &Watch) -> (Kernel, usize) {
    instrumented(kernel, &|inst, site| {
        let at_line = kernel.backtrace(site).iter().any(|(line, _)| watch.is_at(*line));
        if !at_line {
            return Vec::new();
        }
        let values = written_or_read(inst).into_iter();
        let named = values.map(|reg| (reg, called(kernel, inst, reg)));
        named
            .filter(|(_, what)| watch.names(what))
            .map(|(reg, what)| (reg, what, ScalarType::B64))
            .collect()
    })
    .into_counted()
}

/// What an instruction and a register of it are called.
fn called(kernel: &Kernel, inst: &Inst, reg: Reg) -> String {
    let op = flashcore_ir::ptx::mnemonic(inst);
    let number = format!("{}{}", register_prefix(reg.class), reg.index);
    match kernel.reg_name(reg) {
        Some(name) => format!("{op} {number} ({name})"),
        None => format!("{op} {number}"),
    }
}

fn register_prefix(class: RegClass) -> &'static str {
    match class {
        RegClass::Pred => "%p",
        RegClass::B16 => "%h",
        RegClass::B32 => "%r",
        RegClass::B64 => "%rd",
        RegClass::F32 => "%f",
    }
}

/// The registers that an instruction writes, or where it writes none those that it reads. None of an asynchronous
/// product, whose registers nobody may touch yet; 16-bit registers cannot be traced.
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

/// A kernel with traces in it.
struct Instrumented {
    kernel: Kernel,
    watched: Vec<Watched>,
}

impl Instrumented {
    fn into_counted(self) -> (Kernel, usize) {
        (self.kernel, self.watched.len())
    }
}

/// What to trace after an instruction: registers, what to call them, their types.
type Choose<'a> = dyn Fn(&Inst, SiteId) -> Vec<(Reg, String, ScalarType)> + 'a;

fn instrumented(kernel: &Kernel, choose: &Choose<'_>) -> Instrumented {
    let first = kernel.traces().len() as u32;
    let mut watched = Vec::new();
    let body = with_traces(kernel.body(), choose, first, &mut watched);
    let labels: Vec<String> = watched.iter().map(|watched: &Watched| watched.what.clone()).collect();
    Instrumented {
        kernel: kernel.with_traces(body, labels),
        watched,
    }
}

fn with_traces(nodes: &[Node], choose: &Choose<'_>, first: u32, watched: &mut Vec<Watched>) -> Vec<Node> {
    let mut out = Vec::with_capacity(nodes.len());
    for node in nodes {
        match node {
            Node::Inst { inst, site } => {
                out.push(node.clone());
                for (reg, what, ty) in choose(inst, *site) {
                    let label = first + watched.len() as u32;
                    watched.push(Watched { what, site: *site, ty });
                    let inst = Inst::Trace { label, src: reg };
                    out.push(Node::Inst { inst, site: *site });
                }
            }
            Node::If {
                condition,
                then,
                otherwise,
                site,
            } => out.push(Node::If {
                condition: *condition,
                then: with_traces(then, choose, first, watched),
                otherwise: with_traces(otherwise, choose, first, watched),
                site: *site,
            }),
            Node::Loop { body, site } => out.push(Node::Loop {
                body: with_traces(body, choose, first, watched),
                site: *site,
            }),
            Node::BreakIf { .. } => out.push(node.clone()),
        }
    }
    out
}

/// The values of a line, of one warp of one block, in the order in which they came.
///
/// # Errors
/// Where the plan cannot be simulated.
///
/// ```
/// use flashcore_check::CheckOptions;
/// use flashcore_check::watch::trace_line;
/// use flashcore_ir::Target;
/// use flashcore_kernels::Plan;
/// use flashcore_problem::Problem;
/// let plan = Plan::new(&Problem::named("tiny")?, &"scalar/tiled-m16n16-w4-v16".parse()?, Target::Sm89)?;
/// // Nothing is at line 1.
/// assert!(trace_line(&plan, &"1".parse()?, ([0; 3], 0), &CheckOptions::default())?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn trace_line(
    plan: &Plan,
    watch: &Watch,
    of: ([u32; 3], u32),
    options: &CheckOptions,
) -> Result<Option<Vec<TraceRecord>>, CheckError> {
    let mut watching_plan = plan.clone();
    let mut count = 0;
    for step in watching_plan.steps_mut() {
        let (kernel, values) = watching(&step.kernel, watch);
        step.kernel = Arc::new(kernel);
        count += values;
    }
    if count == 0 {
        return Ok(None);
    }
    let options = CheckOptions {
        trace: true,
        trace_of: Some(of),
        ..options.clone()
    };
    let (traces, _) = observe(&watching_plan, &options, &[])?;
    Ok(Some(traces.concat()))
}

/// The first value that is no number any more, or that is infinite where no mask is.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FirstNonfinite {
    /// `NaN` or `infinity`.
    pub what: &'static str,
    /// The instruction.
    pub instruction: String,
    /// The kernel's line, as `file:line`.
    pub at: String,
    /// The line itself, where it is at hand.
    pub source: Option<String>,
    /// Who had it.
    pub block: [u32; 3],
    /// Warp of the block.
    pub warp: u32,
    /// The first lane of it.
    pub lane: u32,
}

/// What the numbers of a stage look like.
#[derive(Clone, Debug, Serialize)]
pub struct StageNumerics {
    /// `scores`, `probabilities` or `output`.
    pub stage: &'static str,
    /// Against float64.
    pub gate: Gate,
    /// The first NaN, if there is one.
    pub first_nan: Option<FirstNonfinite>,
    /// The first infinity that no mask made, if there is one.
    pub first_infinity: Option<FirstNonfinite>,
}

/// Each stage of a plan: its largest error, and where its numbers stop being numbers. The stages before the output
/// are those of builds that stop after them.
///
/// # Errors
/// Where a stage cannot be built or simulated.
pub fn numerics(plan: &Plan, options: &CheckOptions) -> Result<Vec<StageNumerics>, CheckError> {
    let mut stages = Vec::new();
    for stop in StopAfter::ALL {
        // A family that cannot stop there has no such stage to show.
        if let Ok(stopped) = Plan::with_stage(&plan.problem, &plan.config, plan.target, stop) {
            stages.push(stage(stop.name(), &stopped, options)?);
        }
    }
    stages.push(stage("output", plan, options)?);
    Ok(stages)
}

fn stage(name: &'static str, plan: &Plan, options: &CheckOptions) -> Result<StageNumerics, CheckError> {
    let mut watching_plan = plan.clone();
    let mut by_step = Vec::new();
    for step in watching_plan.steps_mut() {
        let kernel = step.kernel.clone();
        let instrumented = instrumented(&kernel, &|inst, _| {
            let Some(ty) = float_result(inst) else {
                return Vec::new();
            };
            let values = written_or_read(inst).into_iter();
            values.map(|reg| (reg, called(&kernel, inst, reg), ty)).collect()
        });
        step.kernel = Arc::new(instrumented.kernel);
        by_step.push((kernel, instrumented.watched));
    }
    let types: Vec<Vec<ScalarType>> = by_step
        .iter()
        .map(|(kernel, watched)| {
            // The kernel's own traces come first, and are not asked for.
            let own = kernel.traces().iter().map(|_| ScalarType::Pred);
            own.chain(watched.iter().map(|watched| watched.ty)).collect()
        })
        .collect();
    let options = CheckOptions {
        trace: true,
        ..options.clone()
    };
    let (traces, gate) = observe(&watching_plan, &options, &types)?;
    let (mut first_nan, mut first_infinity) = (None, None);
    for ((kernel, watched), traces) in by_step.iter().zip(traces) {
        for record in traces {
            let own = kernel.traces().len();
            let Some(watched) = (record.index as usize).checked_sub(own).and_then(|at| watched.get(at)) else {
                continue;
            };
            let (lane, is_nan) = culprit(&record, watched.ty);
            let first = if is_nan { &mut first_nan } else { &mut first_infinity };
            if first.is_none() {
                let line = kernel.kernel_line(watched.site);
                *first = Some(FirstNonfinite {
                    what: if is_nan { "NaN" } else { "infinity" },
                    instruction: watched.what.clone(),
                    at: line.to_string(),
                    source: source::quote(line.file, line.line),
                    block: record.block,
                    warp: record.warp,
                    lane,
                });
            }
        }
    }
    Ok(StageNumerics {
        stage: name,
        gate,
        first_nan,
        first_infinity,
    })
}

/// The first lane whose value is out of the ordinary, and whether it is a NaN.
fn culprit(record: &TraceRecord, ty: ScalarType) -> (u32, bool) {
    let there =
        |lane: &u32| record.lanes >> lane & 1 != 0 && flashcore_sim::is_nonfinite(ty, record.bits[*lane as usize]);
    let lane = (0..32).find(there).unwrap_or(0);
    let bits = record.bits[lane as usize];
    let half_is_nan = |bits: u64, exponent: u64, mantissa: u64| bits & exponent == exponent && bits & mantissa != 0;
    let either =
        |exponent, mantissa| half_is_nan(bits, exponent, mantissa) || half_is_nan(bits >> 16, exponent, mantissa);
    let is_nan = match ty {
        ScalarType::F32 => f32::from_bits(bits as u32).is_nan(),
        ScalarType::F16 => half_is_nan(bits, 0x7c00, 0x03ff),
        ScalarType::BF16 => half_is_nan(bits, 0x7f80, 0x007f),
        ScalarType::F16x2 => either(0x7c00, 0x03ff),
        ScalarType::BF16x2 => either(0x7f80, 0x007f),
        _ => false,
    };
    (lane, is_nan)
}

/// The type of an instruction's result, where it computes floats or brings them from memory; moves and selections
/// make none.
fn float_result(inst: &Inst) -> Option<ScalarType> {
    let float = |ty: ScalarType| {
        let is_float = matches!(ty, ScalarType::F32 | ScalarType::F16x2 | ScalarType::BF16x2);
        is_float.then_some(ty)
    };
    match inst {
        Inst::Bin { op, ty, .. } if !matches!(op, BinOp::And | BinOp::Or | BinOp::Xor) => float(*ty),
        Inst::Un { ty, .. } | Inst::Fma { ty, .. } | Inst::CvtPack { ty, .. } => float(*ty),
        Inst::Cvt {
            op: Cvt::F32FromF16 | Cvt::F32FromU32 | Cvt::F32FromS32,
            ..
        } => Some(ScalarType::F32),
        Inst::Mma { acc, .. } => Some(match acc {
            MmaAcc::F32 => ScalarType::F32,
            MmaAcc::F16 => ScalarType::F16x2,
        }),
        Inst::Ld { dst, .. } if dst.class == RegClass::F32 => Some(ScalarType::F32),
        Inst::St {
            src: StoreSource::Regs(reg),
            ..
        } if reg.class == RegClass::F32 => Some(ScalarType::F32),
        _ => None,
    }
}
