//! Kernels of users: a PTX file with a declaration of its arguments, which takes part in what the project's kernels
//! take part in.
//!
//! [`Declared::read`] reads a declaration (TOML, `docs/own-kernel.md` has the keys). [`Declared::launch`] is the one
//! place that turns a declaration and a problem into a [`Launch`], for the simulator and for the driver.
//! [`check_declared`] simulates it and judges its output.

mod declaration;
mod expression;
mod served;
mod template;
#[cfg(test)]
mod tests;
mod triton;
mod value;

use std::path::Path;

use flashcore_ir::proof::LaunchRefusal;
use flashcore_ir::{Arg, BufferSpec, Launch, Target};
use flashcore_problem::Problem;
use flashcore_ptx::Module;
use flashcore_ptx::{PtxEntry, PtxModule};
use flashcore_sim::{PtxKernel, PtxLaunch, SimError};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

pub use expression::{Expression, ExpressionError};
pub use template::Template;
pub use value::{Chosen, Language, Value};

use declaration::Declaration;

use crate::check::check_steps;
use crate::checked::{Checked, Work};
use crate::foreign::{is_called, readable};
use crate::registers::{Assembler, Registers, Unknown, assemble};
use crate::render::few;
use crate::{CheckError, CheckOptions, CheckReport};

/// How labels of users' kernels begin.
pub const PREFIX: &str = "own/";

/// SHA-256 in hexadecimal digits, by which content is known that may run.
pub fn sha256(content: impl AsRef<[u8]>) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The alignment that kernels may rely on, that of `cuMemAlloc`.
const ALIGN: u32 = 256;

/// Why a user's kernel cannot be used.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum OwnError {
    /// A mistake in the declaration or its PTX: the file, and what is wrong.
    #[error("{0}: {1}")]
    Declaration(String, String),
    /// A problem that the declaration does not serve, and why.
    #[error("it does not serve this problem: {0}")]
    NotServed(String),
    /// Values of parameters that are not there, or do not go together.
    #[error("{0}")]
    Values(String),
    /// Its compiler did not end.
    #[error("{0}")]
    Late(String),
    /// Nothing of it is at fault: there is no compiler or sandbox, or a file of ours cannot be written.
    #[error("{0}")]
    Environment(String),
    /// Its source does not compile, or there is no PTX for its values.
    #[error("{0}")]
    NotBuilt(String),
    /// PTX that the simulator does not execute: the file, and what of it.
    #[error("{0} cannot be simulated: {1}")]
    NotSimulated(String, String),
    /// The check fails for another reason.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// A user's kernel as PTX: a [`Template`] with values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Declared {
    /// Its label: [`PREFIX`], its name, and its values.
    pub label: String,
    /// The file of its declaration.
    pub file: String,
    /// The kernel's name in the PTX.
    pub entry: String,
    /// The PTX.
    pub ptx: String,
    /// The file of the PTX or of its source, for findings.
    pub text: String,
    chosen: Chosen,
    declaration: Declaration,
}

/// The tensors that arguments may name.
const BUFFERS: [&str; 8] = ["q", "k", "v", "out", "lse", "q_scale", "k_scale", "v_scale"];
/// Those of them that a kernel writes.
const WRITTEN: [&str; 2] = ["out", "lse"];

fn buffer(argument: &Expression) -> Option<&'static str> {
    let text = argument.to_string();
    BUFFERS.into_iter().find(|name| *name == text.trim())
}

fn bytes_of(problem: &Problem, name: &str) -> usize {
    match (name, served::layout(problem, name)) {
        ("out", Some(layout)) => layout.span() * problem.out_dtype().size_bytes(),
        (_, Some(layout)) => layout.span() * problem.dtype().size_bytes(),
        ("lse", None) => problem.lse_len() * size_of::<f32>(),
        (_, None) => problem.num_scales() * size_of::<f32>(),
    }
}

/// The file and the values of `mine.toml` or `mine.toml:M64-WARPS4`.
pub fn named(word: &str) -> Option<(&str, &str)> {
    let is_toml = |name: &str| Path::new(name).extension().is_some_and(|extension| extension == "toml");
    match word.rsplit_once(':') {
        Some((file, values)) if is_toml(file) => Some((file, values)),
        _ => is_toml(word).then_some((word, "")),
    }
}

/// The file and the function of `mine.py:attention`.
pub fn function(word: &str) -> Option<(&str, &str)> {
    match word.rsplit_once(':') {
        Some((file, function)) if file.ends_with(".py") => Some((file, function)),
        None if word.ends_with(".py") => Some((word, "")),
        _ => None,
    }
}

/// Whether a word names a declaration.
pub fn is_declaration(word: &str) -> bool {
    named(word).is_some()
}

impl Declared {
    /// Reads a declaration without parameters, or with values for all of them after a colon (`mine.toml:M64-WARPS4`),
    /// and compiles its source; with the bytes of all files, which identify it.
    ///
    /// # Errors
    /// Files that cannot be read, mistakes in them, and what a compiler says.
    pub fn read(word: &str, target: Target) -> Result<(Declared, Vec<u8>), OwnError> {
        let (file, values) = named(word).unwrap_or((word, ""));
        let (template, bytes) = Template::read(Path::new(file))?;
        let chosen = template.chosen(values)?;
        Ok((template.build(&chosen, target, template::TO_COMPILE)?, bytes))
    }

    fn new(template: &Template, chosen: &Chosen, text: String, ptx: String) -> Result<Declared, OwnError> {
        let wrong = |reason: String| OwnError::Declaration(template.file.clone(), reason);
        let module = PtxModule::declarations(&ptx).map_err(|error| wrong(format!("{text}: {error}")))?;
        let names: Vec<String> = module.entries.iter().map(|entry| readable(&entry.name)).collect();
        let given = template.declaration.entry.as_deref();
        let is_meant = |entry: &&PtxEntry| given.is_none_or(|given| is_called(&entry.name, given));
        let meant: Vec<&PtxEntry> = module.entries.iter().filter(is_meant).collect();
        let entry = match (given, meant.as_slice()) {
            (_, [one]) => *one,
            (Some(given), _) => return Err(wrong(format!("entry is `{given}`; {text} has {}", few(&names)))),
            (None, _) => {
                let why = format!("{text} has the kernels {}; name one: entry = \"…\"", few(&names));
                return Err(wrong(why));
            }
        };
        template.declaration.check_entry(entry).map_err(&wrong)?;
        Ok(Declared {
            label: template.id(chosen),
            file: template.file.clone(),
            entry: entry.name.clone(),
            ptx: match template.max_registers(chosen).filter(|_| entry.max_registers.is_none()) {
                Some(most) => with_most_registers(&ptx, &entry.name, most),
                None => ptx,
            },
            text,
            chosen: chosen.clone(),
            declaration: template.declaration.clone(),
        })
    }

    /// The values of its parameters, as they follow the file in a word: `M64-WARPS4`.
    pub fn values(&self) -> String {
        let all: String = self.chosen.iter().map(template::of_value).collect();
        all.trim_start_matches('-').to_string()
    }

    /// How many times the default tolerance an error may be.
    pub fn tolerance(&self) -> f64 {
        self.declaration.tolerance.unwrap_or(1.0)
    }

    /// Whether it writes the log-sum-exp.
    pub fn writes_lse(&self) -> bool {
        self.declaration.names("lse")
    }

    /// The launch for a problem.
    ///
    /// # Errors
    /// [`OwnError::NotServed`], and values that do not fit a grid, a block or a parameter.
    pub fn launch(&self, problem: &Problem) -> Result<Launch, OwnError> {
        let not_served = |error: ExpressionError| OwnError::NotServed(error.to_string());
        self.declaration
            .serves(&self.chosen, problem)
            .map_err(OwnError::NotServed)?;
        let wrong = |reason: String| OwnError::Declaration(self.file.clone(), reason);
        let module = PtxModule::declarations(&self.ptx).map_err(|error| wrong(error.to_string()))?;
        let entry = module.entry(&self.entry).cloned();
        let entry = entry.ok_or_else(|| wrong(format!("the PTX has no kernel `{}`", self.entry)))?;
        let (declaration, value) = (&self.declaration, |name: &str| {
            self.declaration.value(&self.chosen, problem, name)
        });
        let axes = |list: &[Expression], most: [u32; 3]| {
            let mut axes = [1; 3];
            for (axis, (expression, most)) in axes.iter_mut().zip(list.iter().zip(most)) {
                *axis = expression.whole(&value, 1, most)?;
            }
            Ok(axes)
        };
        let block = match &declaration.block {
            Some(block) => axes(block, [1024, 1024, 64]).map_err(not_served)?,
            None => {
                let why = format!(
                    "`{}` does not declare its threads; write block = [128], or as many",
                    self.entry
                );
                [entry.threads_allowed().ok_or_else(|| wrong(why))?, 1, 1]
            }
        };
        let shared = declaration.shared.as_ref();
        let shared = shared.map_or(Ok(0), |shared| shared.whole(&value, 0, i32::MAX as u32));
        let mut launch = Launch {
            grid: axes(&declaration.grid, [i32::MAX as u32, 65_535, 65_535]).map_err(not_served)?,
            block,
            cluster: entry.required_cluster.unwrap_or([1; 3]),
            dynamic_shared_bytes: shared.map_err(not_served)?,
            programmatic: false,
            buffers: Vec::new(),
            args: Vec::new(),
        };
        let is_triton = declaration.language() == Ok(Language::Triton);
        for (argument, param) in declaration.args.iter().zip(&entry.params) {
            let arg = match buffer(argument) {
                Some(name) => Arg::Buffer {
                    slot: slot(&mut launch.buffers, name, problem),
                    byte_offset: 0,
                },
                None => number(argument, &param.ty, is_triton, &value).map_err(not_served)?,
            };
            launch.args.push(arg);
        }
        Ok(launch)
    }
}

/// The slot of a tensor, which several arguments may name.
fn slot(buffers: &mut Vec<BufferSpec>, name: &'static str, problem: &Problem) -> usize {
    let known = buffers.iter().position(|spec| spec.name == name);
    known.unwrap_or_else(|| {
        buffers.push(BufferSpec {
            name,
            bytes: bytes_of(problem, name) as u64,
            written: WRITTEN.contains(&name),
            align: ALIGN,
        });
        buffers.len() - 1
    })
}

/// A number for a parameter of this type. PTX calls an `int` u32, too; one of Triton has a sign.
fn number(
    argument: &Expression,
    ty: &str,
    is_triton: bool,
    value: &dyn Fn(&str) -> Option<f64>,
) -> Result<Arg, ExpressionError> {
    let found = argument.value(value)?;
    let [least, most] = match ty {
        "f32" => return Ok(Arg::F32(found as f32)),
        "s32" => [f64::from(i32::MIN), f64::from(i32::MAX)],
        "u32" | "b32" if is_triton => [f64::from(i32::MIN), f64::from(i32::MAX)],
        "u32" | "b32" => [f64::from(i32::MIN), f64::from(u32::MAX)],
        // Beyond 2^53 not every number is a f64.
        _ => [-9_007_199_254_740_992.0, 9_007_199_254_740_992.0],
    };
    if found.fract() != 0.0 || !(least..=most).contains(&found) {
        let why = format!("is {found} here; its parameter (.{ty}) takes a whole number from {least} to {most}");
        return Err(argument.wrong(why));
    }
    Ok(match ty {
        "s32" => Arg::I32(found as i32),
        "u32" | "b32" => Arg::U32(found as i64 as u32),
        _ => Arg::U64(found as i64 as u64),
    })
}

/// The PTX with a limit of a kernel's registers. Compilers to PTX leave theirs to ptxas, which is the driver's here.
fn with_most_registers(ptx: &str, entry: &str, most: u32) -> String {
    let body = || {
        let name = ptx.find(&format!(".entry {entry}("))?;
        let end = name + ptx[name..].find(')')?;
        Some(end + ptx[end..].find('{')?)
    };
    let Some((before, after)) = body().map(|at| ptx.split_at(at)) else {
        return ptx.to_string();
    };
    format!("{before}.maxnreg {most}\n{after}")
}

/// What TOML's reader says, with the line, in the words of the documentation.
fn of_toml(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start);
    let line = text.get(..at).unwrap_or_default().matches('\n').count() + 1;
    let message = error
        .message()
        .replace("unknown field", "unknown key")
        .replace("missing field", "missing key");
    format!("line {line}: {}", message.trim_end().replace('\n', " "))
}

/// Checks a user's kernel on a problem: the launch proof, then a simulation under each schedule on generated inputs;
/// the output is compared with float64.
///
/// # Errors
/// A problem that it does not serve, or PTX that the kernel language does not have.
pub fn check_declared(
    declared: &Declared,
    problem: &Problem,
    target: Target,
    options: &CheckOptions,
) -> Result<CheckReport, OwnError> {
    let kernel = declared.kernel(problem)?;
    let checked = Checked {
        problem,
        kernel: declared.label.clone(),
        target,
        tap: None,
        steps: vec![Work::Ptx(&kernel)],
        workspace_bytes: 0,
        reproducible: true,
        tolerance: declared.tolerance(),
    };
    Ok(check_steps(&checked, options)?)
}

impl Declared {
    /// Its registers on an architecture, by the offline assembler.
    ///
    /// # Errors
    /// Why they are not known.
    pub fn registers(&self, target: Target) -> Result<Registers, Unknown> {
        assemble(&self.ptx, &self.entry, target, &Assembler::default()).map(|(registers, _)| registers)
    }

    /// Why a card cannot launch it for a problem, if so.
    ///
    /// # Errors
    /// As [`check_declared`].
    pub fn refusals(&self, problem: &Problem, target: Target) -> Result<Vec<LaunchRefusal>, OwnError> {
        Ok(Work::Ptx(&self.kernel(problem)?).refusals(target))
    }

    /// The kernel with its launch, for the simulator.
    ///
    /// # Errors
    /// As [`check_declared`].
    pub(crate) fn kernel(&self, problem: &Problem) -> Result<PtxKernel, OwnError> {
        Ok(self.kernel_of(problem)?.1)
    }

    /// Its text, and what the simulator reads of it.
    pub(crate) fn kernel_of(&self, problem: &Problem) -> Result<(Module, PtxKernel), OwnError> {
        let launch = self.launch(problem)?;
        let file = &self.text;
        let wrong = |error: SimError| OwnError::NotSimulated(file.clone(), error.to_string());
        let module = Module::read(&self.ptx).map_err(|error| wrong(error.into()))?;
        let asked = PtxLaunch::of(&launch, file.clone());
        let read = PtxKernel::read(&module, &self.entry, &asked).map_err(wrong)?;
        Ok((module, read))
    }
}
