//! Holds a foreign kernel against a card: what is wrong, what CUDA says about it, what to do.

use flashcore_ir::{Limits, Target};
use serde::Serialize;

use super::{ForeignKernel, Form, Shared};

/// The launch that is asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Threads a block; where nothing is said, those that the kernel requires, or the most that it allows.
    pub threads: Option<u32>,
    /// Bytes of dynamic shared memory a block.
    pub dynamic_shared: u64,
    /// Whether the host raises the limit of dynamic shared memory (`cudaFuncSetAttribute`) before it launches.
    pub opted_in: bool,
    /// What somebody counts: a symbol, or `total`, and its bytes.
    pub claims: Vec<(String, u64)>,
}

/// What comes of launching the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Nothing is known to be wrong.
    Launches,
    /// It works if the host opts in to more than 48 KB first.
    NeedsOptIn,
    /// It cannot be built or launched.
    Refused,
    /// It can be launched, but not everything is as it was said to be.
    Doubtful,
}

/// Kinds of problems.
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
    /// Dynamic shared memory that is declared and not asked for, or the other way round.
    DynamicShared,
    /// Threads that the card or the kernel does not allow.
    Threads,
    /// Threads times registers.
    Registers,
    /// Registers kept in local memory.
    Spills,
    /// Code for another architecture.
    Architecture,
    /// Bytes counted wrong.
    Miscounted,
    /// An instruction that PTX has not.
    NoSuchInstruction,
}

impl ProblemKind {
    /// As it is printed.
    ///
    /// ```
    /// assert_eq!(flashcore_check::foreign::ProblemKind::OptIn.name(), "opt-in");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            ProblemKind::StaticShared => "static-shared",
            ProblemKind::Shared => "shared",
            ProblemKind::OptIn => "opt-in",
            ProblemKind::DynamicShared => "dynamic-shared",
            ProblemKind::Threads => "threads",
            ProblemKind::Registers => "registers",
            ProblemKind::Spills => "spills",
            ProblemKind::Architecture => "architecture",
            ProblemKind::Miscounted => "miscounted",
            ProblemKind::NoSuchInstruction => "no-such-instruction",
        }
    }

    /// Whether the launch works all the same.
    pub fn is_warning(self) -> bool {
        matches!(
            self,
            ProblemKind::DynamicShared | ProblemKind::Spills | ProblemKind::Miscounted
        )
    }

    /// Whether the launch cannot work with it, whatever the host does.
    pub fn is_refusal(self) -> bool {
        !self.is_warning() && self != ProblemKind::OptIn
    }
}

/// Something wrong with a foreign kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What kind.
    pub kind: ProblemKind,
    /// What is wrong, with its numbers.
    pub message: String,
    /// What CUDA says, where it says anything.
    pub cuda: Option<&'static str>,
    /// What to do.
    pub help: String,
    /// Line of the file that it is about.
    pub line: Option<u32>,
}

/// What a list of problems comes to.
///
/// ```
/// use flashcore_check::foreign::{Asked, Verdict, judge, read, verdict};
/// use flashcore_ir::Target;
/// let text = ".version 7.0 .target sm_80 .extern .shared .b8 tiles[]; .entry k() { mov.u32 %r1, tiles; ret; }";
/// let kernel = &read(text.as_bytes())?[0];
/// let asked = |dynamic_shared, opted_in| Asked { dynamic_shared, opted_in, ..Asked::default() };
/// let verdict_of = |asked| verdict(&judge(kernel, &asked, Target::Sm89));
/// assert_eq!(verdict_of(asked(49_152, false)), Verdict::Launches);
/// assert_eq!(verdict_of(asked(76_800, false)), Verdict::NeedsOptIn);
/// assert_eq!(verdict_of(asked(76_800, true)), Verdict::Launches);
/// assert_eq!(verdict_of(asked(147_456, true)), Verdict::Refused);
/// # Ok::<(), flashcore_check::foreign::ForeignError>(())
/// ```
pub fn verdict(problems: &[Problem]) -> Verdict {
    if problems.iter().any(|problem| problem.kind.is_refusal()) {
        return Verdict::Refused;
    }
    if problems.iter().any(|problem| problem.kind == ProblemKind::OptIn) {
        return Verdict::NeedsOptIn;
    }
    match problems.is_empty() {
        true => Verdict::Launches,
        false => Verdict::Doubtful,
    }
}

/// Everything that is known to be wrong with launching a kernel so on an architecture; the gravest first.
pub fn judge(kernel: &ForeignKernel, asked: &Asked, target: Target) -> Vec<Problem> {
    let mut problems = Vec::new();
    problems.extend(kernel.impossible.iter().map(|(line, message)| Problem {
        kind: ProblemKind::NoSuchInstruction,
        message: message.clone(),
        cuda: Some("ptxas refuses the text; no module is built"),
        help: "use one that there is: cp.async.ca for 4 and 8 bytes, cp.async.cg for 16".to_string(),
        line: Some(*line),
    }));
    problems.extend(architecture(kernel, target));
    problems.extend(shared(kernel, asked, target));
    problems.extend(threads(kernel, asked, target));
    problems.extend(registers(kernel, asked, target));
    problems.extend(spills(kernel));
    problems.extend(undeclared(kernel, asked));
    problems.extend(
        asked
            .claims
            .iter()
            .filter_map(|(name, bytes)| claim(kernel, asked, name, *bytes)),
    );
    problems.sort_by_key(|problem| !problem.kind.is_refusal());
    problems
}

/// Threads a block of the launch, as far as they are known.
///
/// ```
/// use flashcore_check::foreign::{Asked, read, threads_of};
/// let kernel = &read(b".version 7.0 .target sm_80 .entry k() .maxntid 128 { ret; }")?[0];
/// assert_eq!(threads_of(kernel, &Asked::default()), Some(128));
/// assert_eq!(threads_of(kernel, &Asked { threads: Some(64), ..Asked::default() }), Some(64));
/// # Ok::<(), flashcore_check::foreign::ForeignError>(())
/// ```
pub fn threads_of(kernel: &ForeignKernel, asked: &Asked) -> Option<u32> {
    asked.threads.or(kernel.required_threads).or(kernel.max_threads)
}

/// `sm_90a` as 90 and its suffix.
fn number(name: &str) -> Option<(u32, &str)> {
    let digits = name.strip_prefix("sm_").or(name.strip_prefix("compute_"))?;
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    Some((digits[..end].parse().ok()?, &digits[end..]))
}

fn architecture(kernel: &ForeignKernel, target: Target) -> Option<Problem> {
    let (sm, suffix) = number(&kernel.made_for)?;
    let here = target.sm();
    let (fits, why) = match (kernel.form, suffix) {
        (Form::Ptx, "") => (here >= sm, "PTX is compiled for its own architecture and later ones"),
        (_, "a") => (
            here == sm,
            "architecture-specific code runs on its own architecture alone",
        ),
        (_, "f") => (
            here >= sm && here / 10 == sm / 10,
            "family-specific code runs on its own family",
        ),
        _ => (
            here >= sm && here / 10 == sm / 10,
            "machine code runs on its own architecture and later ones of the same major version",
        ),
    };
    if fits {
        return None;
    }
    Some(Problem {
        kind: ProblemKind::Architecture,
        message: format!("made for {}; {target} cannot run it: {why}", kernel.made_for),
        cuda: Some("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution on the device"),
        help: format!("compile it for {target} (nvcc -arch={target}), or ship PTX of an older architecture beside it"),
        line: None,
    })
}

fn shared(kernel: &ForeignKernel, asked: &Asked, target: Target) -> Option<Problem> {
    let limits = target.limits();
    let (static_limit, limit) = (
        u64::from(limits.static_shared_per_block),
        u64::from(limits.shared_per_block),
    );
    let (declared, total) = (kernel.static_shared, kernel.static_shared + asked.dynamic_shared);
    let line = largest(kernel).and_then(|symbol| symbol.line);
    if declared > static_limit {
        let help = if total <= limit {
            format!(
                "declare it dynamic (`extern __shared__`), ask for {total} B at launch, and opt in with \
                 cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, {total}); or save {} B{}",
                declared - static_limit,
                levers(kernel, declared - static_limit)
            )
        } else {
            format!(
                "even dynamic, {total} B are {} B more than {target} has; save them{}",
                total - limit,
                levers(kernel, total - limit)
            )
        };
        return Some(Problem {
            kind: ProblemKind::StaticShared,
            message: format!(
                "{declared} B of static shared memory{}; {static_limit} B is the limit for static declarations on every \
                 card, or {limit} B dynamic with opt-in on {target}; {} B too much",
                made_of(kernel),
                declared - static_limit
            ),
            cuda: Some(
                "ptxas: uses too much shared data (0xc000 max); no module is built, so a launch runs the one that was \
                 there before, or fails. Shared memory never spills",
            ),
            help,
            line,
        });
    }
    let sum = match declared {
        0 => format!("{total} B of dynamic shared memory"),
        _ => format!(
            "{total} B of shared memory ({declared} static + {} dynamic)",
            asked.dynamic_shared
        ),
    };
    if total > limit {
        return Some(Problem {
            kind: ProblemKind::Shared,
            message: format!(
                "{sum}; a block on {target} may have {limit}; {} B too much",
                total - limit
            ),
            cuda: Some(
                "cudaFuncSetAttribute: cudaErrorInvalidValue, and the launch fails with `invalid argument`; CUTLASS reports \
                 `Error Internal`",
            ),
            help: format!(
                "smaller tiles or fewer stages, {} B less{}",
                total - limit,
                fits_on(total)
            ),
            line,
        });
    }
    (total > static_limit && !asked.opted_in).then(|| Problem {
        kind: ProblemKind::OptIn,
        message: format!("{sum}; beyond {static_limit} B only after opting in ({target} then allows {limit})"),
        cuda: Some("cudaErrorInvalidValue at launch: `invalid argument`; outputs keep what was in them"),
        help: format!(
            "call cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, {}) once before launching",
            asked.dynamic_shared
        ),
        line,
    })
}

/// The largest symbol.
fn largest(kernel: &ForeignKernel) -> Option<&Shared> {
    kernel
        .shared
        .iter()
        .max_by_key(|symbol| (symbol.bytes, symbol.is_dynamic))
}

/// The symbols that make up the sum, largest first.
fn made_of(kernel: &ForeignKernel) -> String {
    let mut symbols: Vec<&Shared> = kernel.shared.iter().filter(|symbol| symbol.bytes > 0).collect();
    if symbols.len() < 2 {
        return String::new();
    }
    symbols.sort_by_key(|symbol| std::cmp::Reverse(symbol.bytes));
    let terms: Vec<String> = symbols
        .iter()
        .map(|symbol| format!("`{}` {}", symbol.name, symbol.bytes))
        .collect();
    format!(" ({})", terms.join(" + "))
}

/// Symbols of which half, or which gone, would save so much.
fn levers(kernel: &ForeignKernel, bytes: u64) -> String {
    let mut found: Vec<&Shared> = kernel.shared.iter().filter(|symbol| symbol.bytes >= bytes).collect();
    found.sort_by_key(|symbol| symbol.bytes);
    let levers: Vec<String> = found
        .iter()
        .map(|symbol| match symbol.bytes / 2 >= bytes {
            true => format!("half of `{}` ({} B)", symbol.name, symbol.bytes / 2),
            false => format!("all of `{}` ({} B)", symbol.name, symbol.bytes),
        })
        .collect();
    match levers.is_empty() {
        true => String::new(),
        false => format!(": {} would do", levers.join(", or ")),
    }
}

/// Architectures on which a block may have so much.
fn fits_on(bytes: u64) -> String {
    let fits = |target: &&Target| target.is_supported() && u64::from(target.limits().shared_per_block) >= bytes;
    let names: Vec<&str> = Target::ALL.iter().filter(fits).map(|target| target.name()).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!("; it fits on {}", names.join(", ")),
    }
}

fn threads(kernel: &ForeignKernel, asked: &Asked, target: Target) -> Option<Problem> {
    let Limits { threads_per_block, .. } = target.limits();
    let problem = |message: String, cuda, help: String| {
        Some(Problem {
            kind: ProblemKind::Threads,
            message,
            cuda: Some(cuda),
            help,
            line: kernel.line,
        })
    };
    let given = asked.threads?;
    const INVALID: &str = "cudaErrorInvalidValue or cudaErrorInvalidConfiguration at launch";
    if given == 0 || given > threads_per_block {
        return problem(
            format!("{given} threads a block; {target} allows 1 to {threads_per_block}"),
            INVALID,
            "use fewer warps".to_string(),
        );
    }
    if let Some(needed) = kernel.required_threads.filter(|&needed| needed != given) {
        return problem(
            format!("{given} threads a block; the kernel was compiled for exactly {needed} (.reqntid)"),
            INVALID,
            format!("launch {needed} threads"),
        );
    }
    let most = kernel.max_threads.filter(|&most| given > most)?;
    problem(
        format!("{given} threads a block; the kernel was compiled for at most {most} (.maxntid, __launch_bounds__)"),
        INVALID,
        format!("launch at most {most} threads, or raise its __launch_bounds__"),
    )
}

fn registers(kernel: &ForeignKernel, asked: &Asked, target: Target) -> Option<Problem> {
    let threads = threads_of(kernel, asked)?;
    let refusal = crate::proof::prove_registers(threads, kernel.registers?, target)?;
    Some(Problem {
        kind: ProblemKind::Registers,
        message: refusal.to_string(),
        cuda: Some("cudaErrorLaunchOutOfResources: too many resources requested for launch"),
        help: format!("compile it with __launch_bounds__({threads}), or launch fewer threads"),
        line: kernel.line,
    })
}

fn spills(kernel: &ForeignKernel) -> Option<Problem> {
    let (bytes, what) = match (kernel.spilled_bytes, kernel.stack_bytes) {
        (Some(bytes), _) if bytes > 0 => (bytes, "spilled for want of registers"),
        (None, Some(bytes)) if bytes > 0 => (bytes, "on the stack: spills, or arrays indexed at run time"),
        _ => return None,
    };
    Some(Problem {
        kind: ProblemKind::Spills,
        message: format!("{bytes} B a thread in local memory, {what}; that is device memory behind the caches"),
        cuda: None,
        help: "smaller tiles a thread, fewer values alive at once, or a looser __launch_bounds__".to_string(),
        line: kernel.line,
    })
}

fn undeclared(kernel: &ForeignKernel, asked: &Asked) -> Option<Problem> {
    // A cubin does not say whether its kernel uses dynamic shared memory.
    if kernel.form == Form::Cubin || !kernel.calls.is_empty() {
        return None;
    }
    let dynamic = kernel.shared.iter().find(|symbol| symbol.is_dynamic);
    let (message, help) = match (dynamic, asked.dynamic_shared) {
        (Some(symbol), 0) => (
            format!("`{}` gets its size at launch, and no size was given", symbol.name),
            "say how many bytes the host asks for: --smem N".to_string(),
        ),
        (None, bytes) if bytes > 0 => (
            format!("{bytes} B of dynamic shared memory are asked for, and the kernel declares none"),
            "leave them out: they only lower the occupancy".to_string(),
        ),
        _ => return None,
    };
    Some(Problem {
        kind: ProblemKind::DynamicShared,
        message,
        cuda: None,
        help,
        line: dynamic.and_then(|symbol| symbol.line),
    })
}

/// What somebody counts, against what there is.
fn claim(kernel: &ForeignKernel, asked: &Asked, name: &str, counted: u64) -> Option<Problem> {
    let symbol = kernel.shared.iter().find(|symbol| symbol.name == name);
    let (bytes, declared) = match symbol {
        Some(symbol) if symbol.is_dynamic => (asked.dynamic_shared, None),
        Some(symbol) => (symbol.bytes, symbol.declared.as_deref()),
        None if name == "total" => (kernel.static_shared + asked.dynamic_shared, None),
        None => {
            let known: Vec<&str> = kernel.shared.iter().map(|symbol| symbol.name.as_str()).collect();
            return Some(Problem {
                kind: ProblemKind::Miscounted,
                message: format!("{counted} B are counted for `{name}`, which the kernel has not"),
                cuda: None,
                help: format!("there are {}, and `total`", known.join(", ")),
                line: None,
            });
        }
    };
    if bytes == counted {
        return None;
    }
    let shape = declared.map_or(String::new(), |declared| format!(", declared {declared}"));
    let difference = match bytes > counted {
        true => format!("{} B more", bytes - counted),
        false => format!("{} B fewer", counted - bytes),
    };
    Some(Problem {
        kind: ProblemKind::Miscounted,
        message: format!("`{name}` takes {bytes} B{shape}; {counted} B were counted: {difference}"),
        cuda: None,
        help: "compilers pad shared memory by alignment only, and the table below has it all: count again".to_string(),
        line: symbol.and_then(|symbol| symbol.line),
    })
}
