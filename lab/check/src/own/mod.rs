//! Kernels of users: a PTX file with a declaration of its arguments, which takes part in what the project's kernels
//! take part in.
//!
//! [`Declared::read`] reads a declaration (TOML, `docs/own-kernel.md` has the keys). [`Declared::launch`] is the one
//! place that turns a declaration and a problem into a [`Launch`], for the simulator and for the driver.
//! [`check_declared`] simulates it and judges its output.

mod expression;
mod served;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use flashcore_ir::ptx::read::{PtxEntry, PtxModule};
use flashcore_ir::{Arg, BufferSpec, Launch, Target, files};
use flashcore_problem::{DType, Problem};
use flashcore_ptx::Module;
use flashcore_sim::{PtxKernel, PtxLaunch, SimError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use expression::{Expression, ExpressionError};

use crate::check::check_steps;
use crate::checked::{Checked, Work};
use crate::render::few;
use crate::{CheckError, CheckOptions, CheckReport};

/// How labels of users' kernels begin.
pub const PREFIX: &str = "own/";

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
    /// The simulator cannot run it.
    #[error(transparent)]
    Check(#[from] CheckError),
}

/// A declaration as it is written. What it does not name, it does not serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Declaration {
    /// Name in tables; by default that of the file.
    name: Option<String>,
    /// The PTX file, relative to the declaration.
    ptx: PathBuf,
    /// The kernel; by default the only one of the file.
    entry: Option<String>,
    /// Element types that it serves.
    dtype: Vec<String>,
    /// What each parameter gets, in order: a tensor, or an expression.
    args: Vec<Expression>,
    /// Blocks along x, y, z.
    grid: Vec<Expression>,
    /// Threads of a block along x, y, z; by default those that the PTX declares.
    block: Option<Vec<Expression>>,
    /// Bytes of dynamic shared memory.
    shared: Option<Expression>,
    /// Conditions that a problem must fulfil.
    #[serde(default)]
    requires: Vec<Expression>,
}

/// A user's PTX kernel: its declaration and its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Declared {
    /// Its label: [`PREFIX`] and its name.
    pub label: String,
    /// The file of its declaration.
    pub file: String,
    /// The kernel's name in the PTX.
    pub entry: String,
    /// The PTX.
    pub ptx: String,
    declaration: Declaration,
}

/// A tensor that an argument may name.
#[derive(Clone, Copy)]
struct Buffer {
    name: &'static str,
    is_written: bool,
    bytes: fn(&Problem) -> usize,
}

const fn scales(name: &'static str) -> Buffer {
    Buffer {
        name,
        is_written: false,
        bytes: |problem| problem.num_scales() * size_of::<f32>(),
    }
}

const BUFFERS: [Buffer; 8] = [
    Buffer {
        name: "q",
        is_written: false,
        bytes: |problem| problem.q_layout().span() * problem.dtype().size_bytes(),
    },
    Buffer {
        name: "k",
        is_written: false,
        bytes: |problem| problem.k_layout().span() * problem.dtype().size_bytes(),
    },
    Buffer {
        name: "v",
        is_written: false,
        bytes: |problem| problem.v_layout().span() * problem.dtype().size_bytes(),
    },
    Buffer {
        name: "out",
        is_written: true,
        bytes: |problem| problem.o_layout().span() * problem.out_dtype().size_bytes(),
    },
    Buffer {
        name: "lse",
        is_written: true,
        bytes: |problem| problem.lse_len() * size_of::<f32>(),
    },
    scales("q_scale"),
    scales("k_scale"),
    scales("v_scale"),
];

fn buffer(argument: &Expression) -> Option<Buffer> {
    let text = argument.to_string();
    BUFFERS.into_iter().find(|buffer| buffer.name == text.trim())
}

/// Bytes of the PTX of a declared kernel, which is read and compiled whole.
const MOST_PTX: u64 = 8 * files::SMALL;

/// Whether a name is that of a declaration: it ends in `.toml`.
pub fn is_declaration(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "toml")
}

impl Declared {
    /// Reads a declaration and its PTX, with the bytes of both files, which identify it.
    ///
    /// # Errors
    /// Files that cannot be read, and mistakes in them.
    pub fn read(path: &Path) -> Result<(Declared, Vec<u8>), OwnError> {
        let file = path.display().to_string();
        let wrong = |reason: String| OwnError::Declaration(file.clone(), reason);
        let text = files::read_text_capped(path, files::SMALL).map_err(|error| wrong(error.to_string()))?;
        let declaration: Declaration = toml::from_str(&text).map_err(|error| wrong(of_toml(&text, &error)))?;
        let at = path.parent().unwrap_or(Path::new("")).join(&declaration.ptx);
        let ptx = files::read_text_capped(&at, MOST_PTX);
        let ptx = ptx.map_err(|error| wrong(format!("ptx is {}: {error}", declaration.ptx.display())))?;
        let bytes = [text.as_bytes(), ptx.as_bytes()].concat();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((Declared::new(file.clone(), stem, declaration, ptx)?, bytes))
    }

    fn new(file: String, stem: String, declaration: Declaration, ptx: String) -> Result<Declared, OwnError> {
        let wrong = |reason: String| OwnError::Declaration(file.clone(), reason);
        let name = declaration.name.clone().unwrap_or(stem);
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == ',' || c.is_control()) {
            return Err(wrong(format!(
                "name is `{name}`; allowed: characters but spaces and commas"
            )));
        }
        let module = PtxModule::declarations(&ptx).map_err(|error| wrong(error.to_string()))?;
        let names: Vec<&str> = module.entries.iter().map(|entry| entry.name.as_str()).collect();
        let entry = match (&declaration.entry, names.as_slice()) {
            (Some(entry), names) if names.contains(&entry.as_str()) => entry.clone(),
            (None, [one]) => one.to_string(),
            (Some(entry), names) => {
                return Err(wrong(format!("entry is `{entry}`; the PTX has {}", few(names))));
            }
            (None, names) => {
                return Err(wrong(format!(
                    "the PTX has the kernels {}; name one: entry = \"…\"",
                    few(names)
                )));
            }
        };
        let declared = Declared {
            label: format!("{PREFIX}{name}"),
            file: file.clone(),
            entry,
            ptx,
            declaration,
        };
        declared
            .check(&declared.entry_of(&module).map_err(&wrong)?)
            .map_err(wrong)?;
        Ok(declared)
    }

    fn entry_of(&self, module: &PtxModule) -> Result<PtxEntry, String> {
        let entry = module.entry(&self.entry).cloned();
        entry.ok_or_else(|| format!("the PTX has no kernel `{}`", self.entry))
    }

    /// What is wrong whatever the problem is.
    fn check(&self, entry: &PtxEntry) -> Result<(), String> {
        let declaration = &self.declaration;
        for name in &declaration.dtype {
            if DType::from_name(name).is_none() {
                let known = DType::ALL.map(DType::name).join(", ");
                return Err(format!("no dtype is named `{name}`; allowed: {known}"));
            }
        }
        let (given, needed) = (declaration.args.len(), entry.params.len());
        if given != needed {
            let params = entry
                .params
                .iter()
                .map(|param| format!("{} (.{})", param.name, param.ty));
            let params = params.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "args lists {given}; `{}` has {needed} parameters: {params}",
                self.entry
            ));
        }
        for (key, list) in [("grid", Some(&declaration.grid)), ("block", declaration.block.as_ref())] {
            if list.is_some_and(|list| !(1..=3).contains(&list.len())) {
                return Err(format!(
                    "{key} has no axis, or more than three; allowed: [x], [x, y], [x, y, z]"
                ));
            }
        }
        if !declaration.args.iter().any(|argument| argument.to_string() == "out") {
            return Err("no argument is `out`: a kernel must write the output".to_string());
        }
        if !self.names("head_dim") {
            let example = "requires = [\"head_dim == 64\"]";
            return Err(format!(
                "it does not say which head_dim it serves; write {example}, or pass head_dim"
            ));
        }
        for (number, (argument, param)) in (1..).zip(declaration.args.iter().zip(&entry.params)) {
            let known = ["u64", "s64", "b64", "u32", "s32", "b32", "f32"];
            let what = format!(
                "argument {number} (`{argument}` for {} of type .{})",
                param.name, param.ty
            );
            if !known.contains(&param.ty.as_str()) {
                return Err(format!("{what}: parameters may be of type {}", known.join(", ")));
            }
            if buffer(argument).is_some() && param.bytes != 8 {
                return Err(format!("{what}: a tensor needs a parameter of 64 bits"));
            }
        }
        for expression in self.expressions() {
            if let Some(name) = expression.names().into_iter().find(|name| !served::is_name(name)) {
                let (names, tensors) = (served::names(), BUFFERS.map(|buffer| buffer.name).join(", "));
                let why = format!("`{expression}`: nothing is named `{name}`; there are {names}");
                return Err(format!("{why}; alone in args also {tensors}"));
            }
        }
        Ok(())
    }

    /// All expressions but the names of tensors.
    fn expressions(&self) -> Vec<&Expression> {
        let declaration = &self.declaration;
        let block = declaration.block.iter().flatten();
        let args = declaration.args.iter().filter(|argument| buffer(argument).is_none());
        let all = args.chain(&declaration.grid).chain(block);
        all.chain(&declaration.shared).chain(&declaration.requires).collect()
    }

    /// Whether the declaration names something of the problem.
    fn names(&self, name: &str) -> bool {
        let args = &self.declaration.args;
        self.expressions()
            .iter()
            .any(|expression| expression.names().contains(&name))
            || args.iter().any(|argument| argument.to_string() == name)
    }

    /// Whether it writes the log-sum-exp.
    pub fn writes_lse(&self) -> bool {
        self.names("lse")
    }

    /// The launch for a problem.
    ///
    /// # Errors
    /// [`OwnError::NotServed`], and values that do not fit a grid, a block or a parameter.
    pub fn launch(&self, problem: &Problem) -> Result<Launch, OwnError> {
        let not_served = |error: ExpressionError| OwnError::NotServed(error.to_string());
        self.serves(problem).map_err(OwnError::NotServed)?;
        let wrong = |reason: String| OwnError::Declaration(self.file.clone(), reason);
        let module = PtxModule::declarations(&self.ptx).map_err(|error| wrong(error.to_string()))?;
        let entry = self.entry_of(&module).map_err(wrong)?;
        let (declaration, value) = (&self.declaration, |name: &str| served::value(problem, name));
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
        for (argument, param) in declaration.args.iter().zip(&entry.params) {
            let arg = match buffer(argument) {
                Some(buffer) => Arg::Buffer {
                    slot: slot(&mut launch.buffers, buffer, problem),
                    byte_offset: 0,
                },
                None => number(argument, &param.ty, &value).map_err(not_served)?,
            };
            launch.args.push(arg);
        }
        Ok(launch)
    }
}

/// The slot of a tensor, which several arguments may name.
fn slot(buffers: &mut Vec<BufferSpec>, buffer: Buffer, problem: &Problem) -> usize {
    let known = buffers.iter().position(|spec| spec.name == buffer.name);
    known.unwrap_or_else(|| {
        buffers.push(BufferSpec {
            name: buffer.name,
            bytes: (buffer.bytes)(problem) as u64,
            written: buffer.is_written,
            align: ALIGN,
        });
        buffers.len() - 1
    })
}

/// A number for a parameter of this type. One of 32 bits without a type gets an integer if the value is whole.
fn number(argument: &Expression, ty: &str, value: &dyn Fn(&str) -> Option<f64>) -> Result<Arg, ExpressionError> {
    let found = argument.value(value)?;
    let [least, most] = match ty {
        "f32" => return Ok(Arg::F32(found as f32)),
        "s32" => [f64::from(i32::MIN), f64::from(i32::MAX)],
        "b32" => [f64::from(i32::MIN), f64::from(u32::MAX)],
        "u32" => [0.0, f64::from(u32::MAX)],
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
    };
    Ok(check_steps(&checked, options)?)
}

impl Declared {
    /// The kernel with its launch, for the simulator.
    ///
    /// # Errors
    /// As [`check_declared`].
    fn kernel(&self, problem: &Problem) -> Result<PtxKernel, OwnError> {
        let launch = self.launch(problem)?;
        let file = self.declaration.ptx.display();
        let wrong =
            |error: SimError| OwnError::Declaration(self.file.clone(), format!("{file} cannot be simulated: {error}"));
        let module = Module::read(&self.ptx).map_err(|error| wrong(error.into()))?;
        let asked = PtxLaunch::of(&launch, file.to_string());
        PtxKernel::read(&module, &self.entry, &asked).map_err(wrong)
    }
}
