//! Compiles CUDA C++ to PTX with a compiler of this machine, in a [sandbox](crate::sandbox).
//!
//! It is the first of these that is there: what `FLASHCORE_NVCC` names; nvcc of `PATH`, `CUDA_HOME`, `CUDA_PATH` or
//! `/usr/local/cuda`; nvcc of PyPI, in the packages of a Python environment; NVRTC, which Python calls and which knows
//! no code of the host; clang, which needs the headers of a toolkit.

use std::ffi::OsString;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flashcore_ir::{Target, files};
use thiserror::Error;

use crate::programs;
use crate::sandbox::{self, Confinement, Policy, SandboxError};

/// What asks a Python environment where its packages and its interpreter are: what runs may be a script of pyenv.
const ASK_FOR_PACKAGES: &str = "import sys, sysconfig; print(sysconfig.get_path('purelib')); print(sys.executable)";
/// Calls NVRTC: library, source, output, options.
const CALL_NVRTC: &str = include_str!("nvrtc.py");
/// The packages of PyPI that compile CUDA C++.
pub const PACKAGES: &str = "nvidia-cuda-nvcc nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-nvvm";

/// How a source is compiled.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// The file.
    pub file: &'a Path,
    /// The architecture, unless an option names one.
    pub target: Target,
    /// More options, in the spelling of nvcc: `-I`, `-D`, `-std=`, and any other.
    pub options: &'a [String],
    /// Files and folders that it may read, besides the file and what lies next to it.
    pub reads: &'a [PathBuf],
    /// When the compiler is ended.
    pub limit: Duration,
    /// Whether it is confined.
    pub confinement: Confinement,
}

/// A compiled source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Its PTX, with the lines of the source.
    pub ptx: String,
    /// The compiler.
    pub compiler: String,
    /// The ptxas that came with it.
    pub ptxas: Option<PathBuf>,
    /// What it said: warnings.
    pub messages: String,
}

/// Why a source was not compiled.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompileError {
    /// No compiler was found.
    #[error(
        "no CUDA compiler was found: not in FLASHCORE_NVCC, PATH, CUDA_HOME, CUDA_PATH or /usr/local/cuda, not in the \
         packages of Python, no NVRTC, no clang++"
    )]
    NoCompiler,
    /// The compiler refused the source.
    #[error("{compiler} does not compile it:\n{messages}")]
    Refused {
        /// Which.
        compiler: String,
        /// What it said.
        messages: String,
    },
    /// The compiler was ended.
    #[error("{compiler} did not end within {} s", .limit.as_secs())]
    Late {
        /// Which.
        compiler: String,
        /// The time that it had.
        limit: Duration,
    },
    /// It cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The compiler could not be run.
    #[error("{0} could not be used: {1}")]
    Broken(String, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Compiler {
    Nvcc(PathBuf),
    Clang(PathBuf),
    /// Python, and the library that it loads.
    Nvrtc(PathBuf, PathBuf),
}

impl fmt::Display for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compiler::Nvcc(path) | Compiler::Clang(path) | Compiler::Nvrtc(_, path) => path.display().fmt(f),
        }
    }
}

impl Compiler {
    fn find() -> Result<Compiler, CompileError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        // First: a wrong variable is told of wherever a compiler is.
        let python = python()?;
        if let Some(name) = variable("FLASHCORE_NVCC") {
            let broken = |error: std::io::Error| CompileError::Broken(name.display().to_string(), error.to_string());
            let path = programs::find(&name).map_err(broken)?;
            let is_clang = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().contains("clang"));
            return Ok(if is_clang {
                Compiler::Clang(path)
            } else {
                Compiler::Nvcc(path)
            });
        }
        let toolkits = ["CUDA_HOME", "CUDA_PATH"]
            .into_iter()
            .filter_map(variable)
            .map(PathBuf::from);
        let mut in_toolkits = toolkits
            .chain([PathBuf::from("/usr/local/cuda")])
            .map(|toolkit| toolkit.join("bin/nvcc"))
            .filter(|path| path.is_absolute() && path.is_file());
        if let Some(path) = programs::find("nvcc".as_ref()).ok().or_else(|| in_toolkits.next()) {
            return Ok(Compiler::Nvcc(path));
        }
        let environment = python.as_ref().and_then(|python| packages_of(python));
        let package = |names: &[&str]| {
            let (packages, _) = environment.as_ref()?;
            names.iter().map(|name| packages.join(name)).find(|path| path.is_file())
        };
        if let Some(path) = package(&["nvidia/cu13/bin/nvcc", "nvidia/cuda_nvcc/bin/nvcc"]) {
            return Ok(Compiler::Nvcc(path));
        }
        let nvrtc = package(&["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"]);
        if let Some(((_, python), library)) = environment.zip(nvrtc) {
            return Ok(Compiler::Nvrtc(python, library));
        }
        let clang = programs::find("clang++".as_ref()).ok().map(Compiler::Clang);
        clang.ok_or(CompileError::NoCompiler)
    }

    fn command(&self, source: &Source<'_>, to: &Path) -> Command {
        let Source { file, options, .. } = source;
        // The options of the user may name another.
        let arch = (!options.iter().any(|option| names_arch(option))).then(|| source.target.name());
        let mut command;
        match self {
            Compiler::Nvcc(path) => {
                command = Command::new(path);
                command
                    .args(["-ptx", "-lineinfo"])
                    .args(arch.map(|arch| format!("-arch={arch}")));
                command.args(*options).arg(file).arg("-o").arg(to);
            }
            Compiler::Clang(path) => {
                command = Command::new(path);
                command.args(["-x", "cuda", "--cuda-device-only", "-S", "-O3", "-gline-tables-only"]);
                command.args(arch.map(|arch| format!("--cuda-gpu-arch={arch}")));
                let is_of_ptxas = |option: &&String| !option.starts_with("--maxrregcount");
                let in_words_of_clang = |option: &String| match option.strip_prefix("-arch=") {
                    Some(arch) => format!("--cuda-gpu-arch={arch}"),
                    None => option.clone(),
                };
                command
                    .args(options.iter().filter(is_of_ptxas).map(in_words_of_clang))
                    .arg(file)
                    .arg("-o")
                    .arg(to);
            }
            Compiler::Nvrtc(python, library) => {
                command = Command::new(python);
                command.args(["-I", "-c", CALL_NVRTC]).arg(library).arg(file).arg(to);
                let arch = arch.map(|arch| format!("-arch={arch}"));
                // For `sm_` it makes machine code alone.
                let for_ptx = |option: String| option.replacen("-arch=sm_", "-arch=compute_", 1);
                let options = arch.into_iter().chain(options.iter().cloned());
                // CUDA's headers, next to the folder of the library.
                let headers = library
                    .parent()
                    .and_then(Path::parent)
                    .map(|folder| folder.join("include"));
                let headers = headers.filter(|headers| headers.is_dir());
                command.args(headers.map(|headers| format!("-I{}", headers.display())));
                command.arg("-lineinfo").args(options.map(for_ptx));
            }
        }
        command
    }

    /// What a compiler of a source may use.
    fn policy(&self, source: &Source<'_>, folder: &Path) -> Policy {
        let mut policy = Policy::compiler(folder, source.limit);
        let (program, library) = match self {
            Compiler::Nvcc(path) | Compiler::Clang(path) => (path, path),
            Compiler::Nvrtc(python, library) => (python, library),
        };
        policy = policy.run(program);
        // The packages of PyPI have headers and libraries next to each other.
        let packages = library.ancestors().find(|folder| folder.ends_with("nvidia"));
        policy = packages.into_iter().fold(policy, Policy::read);
        // The host's compiler, with which nvcc preprocesses.
        let host = std::env::var_os("NVCC_CCBIN").into_iter();
        for name in host.chain(["gcc".into(), "g++".into(), "c++".into()]) {
            policy = programs::find(&name)
                .iter()
                .fold(policy, |policy, path| policy.run(path));
        }
        for name in [
            "CUDA_HOME",
            "CUDA_PATH",
            "CPATH",
            "CPLUS_INCLUDE_PATH",
            "C_INCLUDE_PATH",
        ] {
            let folders = std::env::var_os(name).unwrap_or_default();
            let folders = std::env::split_paths(&folders).filter(|folder| folder.is_absolute());
            policy = folders.fold(policy, Policy::read);
        }
        // The file, and what lies next to it.
        let absolute = std::path::absolute(source.file).unwrap_or_else(|_| source.file.to_path_buf());
        let real = std::fs::canonicalize(&absolute).unwrap_or_else(|_| absolute.clone());
        for file in [&absolute, &real] {
            policy = file.parent().into_iter().fold(policy.read(file), Policy::read);
        }
        source.reads.iter().fold(policy, Policy::read)
    }
}

/// What is there of what options name, such as folders of headers.
pub fn named(options: &[String]) -> Vec<PathBuf> {
    let named = options.iter().map(|option| match option.strip_prefix("-I") {
        Some(folder) => folder,
        None => option.split_once('=').map_or(option.as_str(), |(_, value)| value),
    });
    named.map(PathBuf::from).filter(|path| path.exists()).collect()
}

/// The most registers of a thread by options of a compiler, to PTX, which ignores them.
pub fn most_registers(options: &[String]) -> Option<u32> {
    const NAMES: [&str; 2] = ["--maxrregcount=", "-maxrregcount="];
    let limit = |option: &String| NAMES.iter().find_map(|name| option.strip_prefix(name)?.parse().ok());
    options.iter().filter_map(limit).find(|limit| *limit > 0)
}

/// Whether an option names the architecture.
pub fn names_arch(option: &str) -> bool {
    const OF_ARCH: [&str; 5] = ["-arch", "--gpu-arch", "-gencode", "--generate-code", "--cuda-gpu-arch"];
    OF_ARCH.iter().any(|name| option.starts_with(name))
}

/// The interpreter of the user's environment.
pub(super) fn python() -> Result<Option<PathBuf>, CompileError> {
    let named = std::env::var_os("FLASHCORE_PYTHON").filter(|name| !name.is_empty());
    let of_environment = || {
        let folder = std::env::var_os("VIRTUAL_ENV").filter(|folder| !folder.is_empty())?;
        Some(Path::new(&folder).join("bin/python")).filter(|path| path.is_absolute() && path.is_file())
    };
    let on_path = || {
        ["python3", "python"]
            .iter()
            .find_map(|name| programs::find(name.as_ref()).ok())
    };
    match named {
        Some(name) => {
            let broken = |error: std::io::Error| CompileError::Broken(name.display().to_string(), error.to_string());
            programs::find(&name).map(Some).map_err(broken)
        }
        None => Ok(of_environment().or_else(on_path)),
    }
}

/// The packages of a Python environment, and its interpreter.
pub(super) fn packages_of(python: &Path) -> Option<(PathBuf, PathBuf)> {
    let mut asked = Command::new(python);
    asked.args(["-I", "-c", ASK_FOR_PACKAGES]);
    let ran = programs::run(&mut asked, programs::TO_ANSWER).ok()?;
    let (packages, interpreter) = ran.stdout.trim_end().split_once('\n')?;
    ran.status.success().then(|| (packages.into(), interpreter.into()))
}

/// Compiles a CUDA C++ file.
///
/// # Errors
/// There is no compiler or sandbox, it refuses the source, or it does not end in time.
pub fn compile(source: &Source<'_>) -> Result<Compiled, CompileError> {
    compile_with(&Compiler::find()?, source)
}

fn compile_with(compiler: &Compiler, source: &Source<'_>) -> Result<Compiled, CompileError> {
    let name = compiler.to_string();
    let broken = |error: std::io::Error| CompileError::Broken(name.clone(), error.to_string());
    let folder = programs::scratch_folder().map_err(broken)?;
    let to = folder.path().join("kernel.ptx");
    let mut command = compiler.command(source, &to);
    let policy = compiler.policy(source, folder.path());
    let messages = ran(&mut command, &name, &policy, source.confinement)?;
    let messages = messages.trim().to_string();
    // The compiler may have left a link to what it could not read.
    let ptx = files::read_text_unlinked(&to, files::LARGE).map_err(broken)?;
    Ok(Compiled {
        ptx: with_given_paths(&ptx, source.file),
        ptxas: match compiler {
            Compiler::Nvcc(path) => Some(path.with_file_name("ptxas")).filter(|path| path.is_file()),
            Compiler::Clang(_) | Compiler::Nvrtc(..) => None,
        },
        compiler: version(&ptx).map_or(name.clone(), |version| format!("{name} ({version})")),
        messages,
    })
}

/// What a compiler says that was confined, and ended well.
pub(super) fn ran(
    command: &mut Command,
    name: &str,
    policy: &Policy,
    confinement: Confinement,
) -> Result<String, CompileError> {
    let compiler = name.to_string();
    sandbox::wrap(command, policy, confinement)?;
    let (limit, most) = match confinement {
        Confinement::Sandboxed => (policy.cpu, policy.tasks),
        Confinement::Unsandboxed => (policy.cpu, u32::MAX),
    };
    let ran = match programs::run_few(command, limit, most) {
        Ok(ran) => ran,
        Err(error) if error.kind() == ErrorKind::TimedOut => return Err(CompileError::Late { compiler, limit }),
        Err(error) if error.kind() == ErrorKind::QuotaExceeded => {
            let messages = error.to_string();
            return Err(CompileError::Refused { compiler, messages });
        }
        Err(error) => return Err(CompileError::Broken(compiler, error.to_string())),
    };
    let mut messages = (ran.stdout + &ran.stderr).trim().to_string();
    if ran.status.success() {
        return Ok(messages);
    }
    if confinement == Confinement::Sandboxed {
        let advice = sandbox::advice(&messages).map(|advice| format!("\n{advice}"));
        messages.extend(advice);
    }
    if messages.is_empty() {
        messages = ran.status.to_string();
    }
    Err(CompileError::Refused { compiler, messages })
}

/// The PTX with the path of the source as the user gave it: compilers make it absolute.
fn with_given_paths(ptx: &str, file: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let lines = ptx.split_inclusive('\n').map(|line| {
        if !line.trim_start().starts_with(".file") {
            return line.to_string();
        }
        let (absolute, mut folder) = (here.join(file), OsString::from(&here));
        folder.push(std::path::MAIN_SEPARATOR_STR);
        let quoted = |path: &Path| format!("\"{}\"", path.display());
        let line = line.replace(&quoted(&absolute), &quoted(file));
        line.replace(&format!("\"{}", folder.display()), "\"")
    });
    lines.collect()
}

/// The release in a PTX text of NVIDIA's compilers: `// Cuda compilation tools, release 13.0, V13.0.88`.
fn version(ptx: &str) -> Option<String> {
    let line = ptx
        .lines()
        .take(20)
        .find(|line| line.contains("compilation tools, release"))?;
    let release = line.split("release ").nth(1)?.split(',').next()?;
    Some(format!("CUDA {release}"))
}

#[cfg(all(test, unix))]
#[path = "compile_tests.rs"]
mod tests;
