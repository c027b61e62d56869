//! Runs a program that handles or is a stranger's code without the user's rights: [`wrap`] confines a command to a
//! folder of its own, the files that a [`Policy`] names, and limits of memory, time and processes, without a network.
//! SECURITY.md says what this holds off, and what it does not.

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod linux;
#[cfg(all(test, target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod tests;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use thiserror::Error;

/// Variables that are kept, by how their names begin: others may hold keys and passwords.
const KEPT: &[&str] = &[
    "C_INCLUDE_PATH",
    "CONDA_PREFIX",
    "CPATH",
    "CPLUS_INCLUDE_PATH",
    "CUDA_",
    "FLASHCORE_",
    "LANG",
    "LC_",
    "LD_LIBRARY_PATH",
    "LIBRARY_PATH",
    "NVCC_",
    "NVIDIA_",
    "PATH",
    "PYTHON",
    "RUST_BACKTRACE",
    "TORCH_CUDA_",
    "VIRTUAL_ENV",
];
/// What lies next to a `bin` and is installed, as are folders of a target: in `~/.local` there is more.
const INSTALLED: &[&str] = &[
    "include",
    "lib",
    "lib32",
    "lib64",
    "libexec",
    "nvvm",
    "pyvenv.cfg",
    "targets",
];
/// Most bytes of a file that is written.
const LARGEST_FILE: u64 = 4 << 30;

/// Whether foreign code is confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Confinement {
    /// It is, or it does not run.
    #[default]
    Sandboxed,
    /// It has the user's rights, within limits of memory and time: `--trust=unsandboxed`.
    Unsandboxed,
}

/// Why a command cannot be confined.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SandboxError {
    /// The system lacks what confines.
    #[error(
        "foreign code runs in a sandbox, for which this system lacks {0}; `explain`, `check FILE.cu` and `tune` have \
         --trust=unsandboxed; a declaration can name PTX in place of a source"
    )]
    Missing(&'static str),
    /// The sandbox could not be made.
    #[error("the sandbox cannot be made: {0}")]
    Broken(String),
}

/// What a confined command may use, besides the programs and libraries of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The only folder that it may change; its `HOME` and `TMPDIR`.
    pub folder: PathBuf,
    /// Files and folders that it may read and execute.
    pub reads: Vec<PathBuf>,
    /// Most bytes of memory of each of its processes.
    pub memory: u64,
    /// Most time on a CPU of each of its processes.
    pub cpu: Duration,
    /// Most processes and threads at a time, for [`run_few`](crate::programs::run_few): no limit of the system binds
    /// root.
    pub tasks: u32,
    /// Whether it may start programs in groups of their own, which it then has to end.
    pub starts_groups: bool,
    /// Whether it may use GPUs: their devices, and what their driver reads of the system and of processes.
    pub uses_gpus: bool,
}

impl Policy {
    /// For a compiler that works in a folder.
    pub fn compiler(folder: &Path, limit: Duration) -> Policy {
        Policy {
            folder: folder.to_path_buf(),
            reads: Vec::new(),
            memory: 16 << 30,
            cpu: limit,
            tasks: 1024,
            starts_groups: false,
            uses_gpus: false,
        }
    }

    /// For this program as a process that reads, simulates and times kernels, as long as it is asked to. A driver
    /// reserves more addresses than there is memory.
    pub fn worker(folder: &Path, uses_gpus: bool) -> Policy {
        let policy = Policy::compiler(folder, Duration::MAX);
        let memory = if uses_gpus { u64::MAX } else { policy.memory };
        Policy {
            memory,
            tasks: u32::MAX,
            starts_groups: true,
            uses_gpus,
            ..policy
        }
    }

    /// Lets it read a file, or a folder. One that holds the user's home folder is not opened.
    #[must_use]
    pub fn read(mut self, path: impl Into<PathBuf>) -> Policy {
        let path = path.into();
        if !holds_home(&path) && !self.reads.contains(&path) {
            self.reads.push(path);
        }
        self
    }

    /// Lets it run a program: its folder, and what is installed next to it if that is a `bin`.
    #[must_use]
    pub fn run(mut self, program: &Path) -> Policy {
        let real = std::fs::canonicalize(program).unwrap_or_else(|_| program.to_path_buf());
        for program in [program, &real] {
            let Some(folder) = program.parent() else { continue };
            self = self.read(folder);
            if let (Some("bin"), Some(root)) = (folder.file_name().and_then(OsStr::to_str), folder.parent()) {
                let beside = std::fs::read_dir(root).into_iter().flatten().flatten();
                let installed = beside.filter(|entry| {
                    let name = entry.file_name();
                    let name = name.to_string_lossy();
                    INSTALLED.contains(&&*name) || name.ends_with("-linux-gnu")
                });
                self = installed.fold(self, |policy, entry| policy.read(entry.path()));
            }
        }
        self
    }
}

/// Whether a folder is the home folder, or one that it is in.
pub fn holds_home(folder: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let folder = real(folder);
    folder.parent().is_none() || home.is_some_and(|home| real(&home).starts_with(&folder))
}

/// What to say after the words of a program that a sandbox refused something.
pub fn advice(words: &str) -> Option<&'static str> {
    const REFUSALS: [&str; 2] = ["Permission denied", "Operation not permitted"];
    REFUSALS.iter().any(|refusal| words.contains(refusal)).then_some(
        "it ran in a sandbox, without a network, which reads the folder of the source (not the home folder), those of -I \
         (a declaration's: below its folder) and the compiler's own; `explain` and `check FILE.cu` have \
         --trust=unsandboxed, which runs it with your rights",
    )
}

/// Confines the process that a command will start, and all that this starts.
///
/// # Errors
/// The system has no sandbox, or a file of the policy cannot be opened.
pub fn wrap(command: &mut Command, policy: &Policy, confinement: Confinement) -> Result<(), SandboxError> {
    if confinement == Confinement::Unsandboxed {
        limit(command, policy);
        return Ok(());
    }
    let is_given = |name: &OsStr| command.get_envs().any(|(given, _)| given == name);
    let is_kept = |name: &OsStr| {
        KEPT.iter()
            .any(|kept| name.as_encoded_bytes().starts_with(kept.as_bytes()))
    };
    let names = std::env::vars_os().map(|(name, _)| name);
    let dropped: Vec<_> = names.filter(|name| !is_given(name) && !is_kept(name)).collect();
    for name in dropped {
        command.env_remove(name);
    }
    for name in ["HOME", "TMPDIR", "CUDA_CACHE_PATH", "FLASHCORE_CACHE_DIR"] {
        command.env(name, &policy.folder);
    }
    confine(command, policy)
}

/// Whether this system has a sandbox.
///
/// # Errors
/// What it lacks.
pub fn available() -> Result<(), SandboxError> {
    let folder = std::env::temp_dir();
    confine(
        &mut Command::new("/bin/true"),
        &Policy::compiler(&folder, Duration::ZERO),
    )
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
fn confine(command: &mut Command, policy: &Policy) -> Result<(), SandboxError> {
    linux::confine(command, policy)
}

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn confine(_: &mut Command, _: &Policy) -> Result<(), SandboxError> {
    Err(SandboxError::Missing("Linux on x86-64 or ARM64"))
}

/// Memory and time alone.
#[cfg(unix)]
fn limit(command: &mut Command, policy: &Policy) {
    let limits = Limits::of(policy);
    // SAFETY: between fork and exec it calls setrlimit alone, and allocates nothing.
    #[allow(unsafe_code)]
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, move || limits.set());
    }
}

#[cfg(not(unix))]
fn limit(_: &mut Command, _: &Policy) {}

/// The limits of each process.
#[cfg(unix)]
#[derive(Clone, Copy, Debug)]
struct Limits {
    memory: u64,
    seconds: u64,
}

#[cfg(unix)]
impl Limits {
    fn of(policy: &Policy) -> Limits {
        Limits {
            memory: policy.memory,
            seconds: policy.cpu.as_secs().max(1),
        }
    }

    fn set(self) -> std::io::Result<()> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let limits = [
            (Resource::Data, self.memory),
            (Resource::As, self.memory),
            (Resource::Cpu, self.seconds),
            (Resource::Fsize, LARGEST_FILE),
            (Resource::Core, 0),
        ];
        for (resource, limit) in limits {
            // Those that this process has may be lower.
            let most = getrlimit(resource).maximum.map_or(limit, |most| most.min(limit));
            let (current, maximum) = (Some(most), Some(most));
            setrlimit(resource, Rlimit { current, maximum })?;
        }
        Ok(())
    }
}
