//! Judges whether a foreign kernel can be launched: the problems, CUDA's error, and the remedy.

use std::fmt;

use flashcore_ir::Target;
use flashcore_ir::proof::{CodeForm, KernelFacts, LaunchRefusal, LaunchShape, prove, prove_code, prove_without_opt_in};
use serde::Serialize;

use super::{ForeignKernel, Shared};

/// The launch to judge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Blocks along x, y, z; by default one cluster.
    pub grid: Option<[u32; 3]>,
    /// Threads per block; by default those that the kernel requires, or its maximum.
    pub threads: Option<u32>,
    /// Bytes of dynamic shared memory per block.
    pub dynamic_shared: u32,
    /// Whether the host raises the limit of dynamic shared memory (`cudaFuncSetAttribute`) first.
    pub opted_in: bool,
    /// Expected sizes to verify: a symbol or `total`, and bytes.
    pub claims: Vec<(String, u64)>,
}

/// The outcome of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// No problem is known.
    Launches,
    /// It works if the host first opts in to more than 48 KB.
    NeedsOptIn,
    /// It cannot be built or launched.
    Refused,
    /// It can be launched, but there are warnings.
    Doubtful,
}

/// The kind of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProblemKind {
    /// More than 48 KB of shared memory declared.
    StaticShared,
    /// More shared memory than a block may have.
    Shared,
    /// More than 48 KB without opting in.
    OptIn,
    /// Dynamic shared memory that is declared and not requested, or the other way round.
    DynamicShared,
    /// An empty grid, or one that exceeds the limits.
    Grid,
    /// A block size that the card or the kernel does not allow.
    Threads,
    /// A cluster that the card or the kernel does not allow.
    Cluster,
    /// Too many registers per block.
    Registers,
    /// Registers spilled to local memory.
    Spills,
    /// Code for another architecture.
    Architecture,
    /// An expected size that is wrong.
    Miscounted,
    /// An instruction that does not exist in PTX.
    NoSuchInstruction,
}

/// Its name in messages and files, such as `opt-in`.
impl fmt::Display for ProblemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl ProblemKind {
    /// Whether the launch works nevertheless.
    pub fn is_warning(self) -> bool {
        matches!(
            self,
            ProblemKind::DynamicShared | ProblemKind::Spills | ProblemKind::Miscounted
        )
    }

    /// Whether the launch cannot work, whatever the host does.
    pub fn is_refusal(self) -> bool {
        !self.is_warning() && self != ProblemKind::OptIn
    }
}

/// A problem of a foreign kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The kind.
    pub kind: ProblemKind,
    /// The problem with its numbers.
    pub message: String,
    /// CUDA's error, if there is one.
    pub cuda: Option<&'static str>,
    /// The remedy.
    pub help: String,
    /// The line of the file.
    pub line: Option<u32>,
}

impl Problem {
    fn new(kind: ProblemKind, message: String, help: impl Into<String>) -> Problem {
        Problem {
            kind,
            message,
            cuda: None,
            help: help.into(),
            line: None,
        }
    }

    fn at(self, line: Option<u32>) -> Problem {
        Problem { line, ..self }
    }
}

/// The verdict of a list of problems.
pub fn verdict(problems: &[Problem]) -> Verdict {
    match problems {
        [] => Verdict::Launches,
        some if some.iter().any(|problem| problem.kind.is_refusal()) => Verdict::Refused,
        some if some.iter().any(|problem| problem.kind == ProblemKind::OptIn) => Verdict::NeedsOptIn,
        _ => Verdict::Doubtful,
    }
}

/// All known problems of a launch on an architecture, errors first.
pub fn judge(kernel: &ForeignKernel, asked: &Asked, target: Target) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (line, message) in &kernel.impossible {
        let help = "use cp.async.ca for 4 and 8 bytes, cp.async.cg for 16";
        problems.push(Problem {
            cuda: Some("ptxas refuses the text; no module is built"),
            line: Some(*line),
            ..Problem::new(ProblemKind::NoSuchInstruction, message.clone(), help)
        });
    }
    for refusal in refusals(kernel, asked, target) {
        problems.push(of_refusal(kernel, &refusal));
    }
    problems.extend(spills(kernel));
    problems.extend(undeclared(kernel, asked));
    for (name, bytes) in &asked.claims {
        problems.extend(claim(kernel, asked, name, *bytes));
    }
    problems.sort_by_key(|problem| !problem.kind.is_refusal());
    problems
}

/// Threads per block of the launch, if known.
pub fn threads_of(kernel: &ForeignKernel, asked: &Asked) -> Option<u32> {
    asked.threads.or(kernel.required_threads).or(kernel.max_threads)
}

/// The refusals of the launch proof. An unknown block size is not judged.
fn refusals(kernel: &ForeignKernel, asked: &Asked, target: Target) -> Vec<LaunchRefusal> {
    let facts = KernelFacts {
        static_shared_bytes: kernel.static_shared,
        registers: kernel.registers,
        max_threads: kernel.max_threads,
        required_block: kernel.required_threads.map(|threads| [threads, 1, 1]),
        required_cluster: kernel.required_cluster,
        ..KernelFacts::default()
    };
    let shape = LaunchShape {
        grid: asked.grid.or(kernel.required_cluster).unwrap_or([1; 3]),
        dynamic_shared_bytes: asked.dynamic_shared,
        ..LaunchShape::linear(1, threads_of(kernel, asked).unwrap_or(1))
    };
    let (limits, on) = (target.limits(), target.name());
    let mut refusals: Vec<LaunchRefusal> = prove_code(&kernel.made_for, kernel.form, target).into_iter().collect();
    refusals.extend(prove(&shape, &facts, &limits, on));
    use LaunchRefusal::{Shared, StaticShared};
    let has_too_much = refusals
        .iter()
        .any(|refusal| matches!(refusal, StaticShared { .. } | Shared { .. }));
    if !asked.opted_in && !has_too_much {
        refusals.extend(prove_without_opt_in(&shape, &facts, &limits, on));
    }
    refusals
}

/// A refusal with CUDA's error and the names of the kernel's shared memory.
fn of_refusal(kernel: &ForeignKernel, refusal: &LaunchRefusal) -> Problem {
    use LaunchRefusal as R;
    use ProblemKind as K;
    const INVALID: &str = "cudaErrorInvalidValue or cudaErrorInvalidConfiguration at launch";
    let (kind, cuda) = match refusal {
        R::Architecture { .. } => (
            K::Architecture,
            "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device",
        ),
        R::StaticShared { .. } => (
            K::StaticShared,
            "ptxas: uses too much shared data (0xc000 max); no module is built, so a launch fails or runs the \
             previous module. Shared memory never spills",
        ),
        R::Shared { .. } => (
            K::Shared,
            "cudaFuncSetAttribute: cudaErrorInvalidValue, and the launch fails with `invalid argument`; CUTLASS reports \
             `Error Internal`",
        ),
        R::OptIn { .. } => (
            K::OptIn,
            "cudaErrorInvalidValue at launch: `invalid argument`; outputs are not written",
        ),
        R::Registers { .. } => (
            K::Registers,
            "cudaErrorLaunchOutOfResources: too many resources requested for launch",
        ),
        R::Zero { what: "grid", .. } | R::Axis { what: "grid", .. } => (K::Grid, INVALID),
        R::NeedsHopper { .. } | R::ClusterSize { .. } | R::ClusterGrid { .. } | R::Required { what: "cluster", .. } => {
            (K::Cluster, "cudaErrorInvalidClusterSize at launch")
        }
        _ => (K::Threads, INVALID),
    };
    let (mut message, mut help) = (refusal.what(), refusal.remedy());
    match *refusal {
        R::StaticShared {
            given,
            total,
            allowed,
            opt_in,
            ..
        } => {
            message.push_str(&made_of(kernel));
            let excess = if total <= u64::from(opt_in) {
                given - u64::from(allowed)
            } else {
                total - u64::from(opt_in)
            };
            help.push_str(&format!("; or save {excess} B{}", levers(kernel, excess)));
        }
        R::Required {
            what: "block",
            required: [x, y, z],
            ..
        } => {
            let threads = u64::from(x) * u64::from(y) * u64::from(z);
            help = format!("launch it with {threads} threads a block (`--launch threads={threads}`)");
        }
        R::OptIn { .. } => {
            help.push_str(
                "; if the host does so, say it: `--launch opted-in`, or `opted_in = true` in the launch file",
            );
        }
        R::Zero { what: "block", .. } => help = "launch at least one warp".to_string(),
        _ => {}
    }
    let line = match kind {
        K::StaticShared | K::Shared | K::OptIn => {
            let symbols = kernel.shared.iter();
            let largest = symbols.max_by_key(|symbol| (symbol.bytes, symbol.is_dynamic));
            largest.and_then(|symbol| symbol.line)
        }
        K::Architecture | K::Grid => None,
        _ => kernel.line,
    };
    Problem {
        cuda: Some(cuda),
        line,
        ..Problem::new(kind, message, help)
    }
}

/// The symbols of the sum, largest first.
fn made_of(kernel: &ForeignKernel) -> String {
    let mut symbols: Vec<&Shared> = kernel.shared.iter().filter(|symbol| symbol.bytes > 0).collect();
    if symbols.len() < 2 {
        return String::new();
    }
    symbols.sort_by_key(|symbol| std::cmp::Reverse(symbol.bytes));
    let term = |symbol: &&Shared| format!("`{}` {}", symbol.name, symbol.bytes);
    format!(": {}", symbols.iter().map(term).collect::<Vec<_>>().join(" + "))
}

/// Symbols whose removal, or the removal of half of them, would save this many bytes.
fn levers(kernel: &ForeignKernel, bytes: u64) -> String {
    let mut found: Vec<&Shared> = kernel.shared.iter().filter(|symbol| symbol.bytes >= bytes).collect();
    found.sort_by_key(|symbol| symbol.bytes);
    if found.is_empty() {
        return String::new();
    }
    let levers = found.iter().map(|symbol| {
        if symbol.bytes / 2 >= bytes {
            format!("half of `{}` ({} B)", symbol.name, symbol.bytes / 2)
        } else {
            format!("all of `{}` ({} B)", symbol.name, symbol.bytes)
        }
    });
    format!(": {} would do", levers.collect::<Vec<_>>().join(", or "))
}

fn spills(kernel: &ForeignKernel) -> Option<Problem> {
    let (bytes, what) = match (kernel.spilled_bytes, kernel.stack_bytes) {
        (Some(bytes), _) if bytes > 0 => (bytes, "spilled because registers are missing"),
        (None, Some(bytes)) if bytes > 0 => (bytes, "on the stack: spills, or arrays indexed at run time"),
        _ => return None,
    };
    let message =
        format!("{bytes} B per thread in local memory, {what}; local memory is device memory behind the caches");
    let help = "use smaller tiles per thread, fewer live values, or a looser __launch_bounds__";
    Some(Problem::new(ProblemKind::Spills, message, help).at(kernel.line))
}

fn undeclared(kernel: &ForeignKernel, asked: &Asked) -> Option<Problem> {
    // A cubin does not say whether its kernel uses dynamic shared memory.
    if kernel.form == CodeForm::Cubin || !kernel.calls.is_empty() {
        return None;
    }
    let dynamic = kernel.shared.iter().find(|symbol| symbol.is_dynamic);
    let (message, help) = match (dynamic, asked.dynamic_shared) {
        (Some(symbol), 0) => (
            format!("the size of `{}` is set at launch, and no size was given", symbol.name),
            "give the bytes that the host requests: --launch smem=N",
        ),
        (None, bytes) if bytes > 0 => (
            format!("the launch requests {bytes} B of dynamic shared memory, but the kernel declares none"),
            "do not request them: they only lower the occupancy",
        ),
        _ => return None,
    };
    let line = dynamic.and_then(|symbol| symbol.line);
    Some(Problem::new(ProblemKind::DynamicShared, message, help).at(line))
}

/// Compares an expected size with the actual one.
fn claim(kernel: &ForeignKernel, asked: &Asked, name: &str, counted: u64) -> Option<Problem> {
    let symbol = kernel.shared.iter().find(|symbol| symbol.name == name);
    let (bytes, declared) = match symbol {
        Some(symbol) if symbol.is_dynamic => (u64::from(asked.dynamic_shared), None),
        Some(symbol) => (symbol.bytes, symbol.declared.as_deref()),
        None if name == "total" => (kernel.static_shared + u64::from(asked.dynamic_shared), None),
        None => {
            let known: Vec<&str> = kernel.shared.iter().map(|symbol| symbol.name.as_str()).collect();
            let message = format!("{counted} B are expected for `{name}`, which the kernel does not have");
            let help = format!("the kernel has {}, and `total`", known.join(", "));
            return Some(Problem::new(ProblemKind::Miscounted, message, help));
        }
    };
    if bytes == counted {
        return None;
    }
    let shape = declared.map_or(String::new(), |declared| format!(", declared {declared}"));
    let difference = if bytes > counted {
        format!("{} B more", bytes - counted)
    } else {
        format!("{} B fewer", counted - bytes)
    };
    let message = format!("`{name}` takes {bytes} B{shape}; {counted} B were expected: {difference}");
    let help = format!(
        "compilers pad shared memory only for alignment; the kernel has {} B{}",
        kernel.static_shared,
        made_of(kernel)
    );
    let line = symbol.and_then(|symbol| symbol.line);
    Some(Problem::new(ProblemKind::Miscounted, message, help).at(line))
}
