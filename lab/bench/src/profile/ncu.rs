//! Finds and runs Nsight Compute.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flashcore_check::programs;

use super::child::Said;
use super::{KernelProfile, counters, csv};
use crate::process::Program;

/// Names the `ncu` to use.
const NCU_VARIABLE: &str = "FLASHCORE_NCU";

/// Where toolkits install it, if it is not on PATH.
const USUAL: [&str; 2] = ["/usr/local/cuda/bin/ncu", "/opt/nvidia/nsight-compute/ncu"];

/// Nsight Compute on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ncu {
    path: PathBuf,
    /// Its version, such as `2025.3.1.0`.
    pub version: String,
}

/// Why there are no counters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NcuError {
    /// No such program as these.
    #[error(
        "Nsight Compute was not found ({0}); it comes with the CUDA toolkit (package `nsight-compute-*`); \
         {NCU_VARIABLE} names one"
    )]
    Missing(String),
    /// The driver keeps counters from users.
    #[error(
        "the driver lets only administrators read counters (ERR_NVGPUCTRPERM): run as root, or load the driver with \
         `options nvidia NVreg_RestrictProfilingToAdminUsers=0` (/etc/modprobe.d) and restart; in a container, add \
         `--cap-add=SYS_ADMIN`"
    )]
    Permission,
    /// The machine has no counters: what ncu said.
    #[error("ncu cannot reach the counters of this machine: {0}; virtual machines often hide them")]
    Unreachable(String),
    /// It ran and failed: its own words, or the program's.
    #[error("ncu failed: {0}")]
    Failed(String),
}

/// Which launches of a program are profiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Range {
    /// `count` after the first `skip` of the kernels with these names, or of all. The first one named does the work.
    Launches {
        names: Vec<String>,
        skip: usize,
        count: usize,
    },
    /// Those between `cudaProfilerStart` and `cudaProfilerStop`, in any process that the program starts: a library may
    /// launch any number for a call.
    Marked,
}

/// The arguments with which a program is profiled into a report: the counters that are needed and warp samples, clocks
/// and caches left as they are. Metrics `without` are left out.
pub(super) fn arguments(report: &Path, range: &Range, without: &[String]) -> Vec<String> {
    // What is derived comes with its section, and cannot be asked for by name.
    let metrics = counters().map(|(_, metric)| metric);
    let metrics = metrics.filter(|metric| !metric.starts_with("derived__") && !without.contains(metric));
    let metrics: Vec<String> = metrics.collect();
    let mut arguments = vec![
        // Clocks belong to the machine's owner, and warm caches are what `bench` measures by
        // default.
        "--clock-control=none".to_string(),
        "--cache-control=none".to_string(),
        "--section=SourceCounters".to_string(),
        "--import-source=yes".to_string(),
        format!("--metrics={}", metrics.join(",")),
        "--force-overwrite".to_string(),
        format!("--export={}", report.display()),
    ];
    arguments.extend(match range {
        Range::Launches { names, skip, count } => {
            let named = format!("--kernel-name=regex:^({})$", names.join("|"));
            let counts = [format!("--launch-skip={skip}"), format!("--launch-count={count}")];
            let named = (!names.is_empty()).then_some(named);
            named.into_iter().chain(counts).collect()
        }
        Range::Marked => ["--profile-from-start=off", "--target-processes=all"]
            .map(str::to_string)
            .to_vec(),
    });
    arguments
}

impl Ncu {
    /// The one that `FLASHCORE_NCU` names, else the one on PATH, else where toolkits put it.
    pub fn find() -> Result<Ncu, NcuError> {
        let named = std::env::var_os(NCU_VARIABLE).filter(|name| !name.is_empty());
        let candidates: Vec<OsString> = match named {
            Some(name) => vec![name],
            None => std::iter::once("ncu").chain(USUAL).map(OsString::from).collect(),
        };
        let found = candidates.iter().find_map(|path| Ncu::at(Path::new(path)));
        let tried = || candidates.join(OsStr::new(", ")).to_string_lossy().into_owned();
        found.ok_or_else(|| NcuError::Missing(tried()))
    }

    /// The one at a path, if it says its version.
    pub fn at(path: &Path) -> Option<Ncu> {
        let path = &programs::find(path.as_os_str()).ok()?;
        let output = Command::new(path).arg("--version").stdin(Stdio::null()).output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout);
        let version = said.lines().find_map(|line| line.strip_prefix("Version "))?;
        let version = version.split_whitespace().next()?.to_string();
        Some(Ncu {
            path: path.to_path_buf(),
            version,
        })
    }

    /// Runs a program under ncu and reads the counters of the launches in a range. Returns what the program said, too.
    /// Metrics that this ncu or this card does not have are left out.
    pub(super) fn profile(&self, range: &Range, program: &Program) -> Result<(Vec<KernelProfile>, String), NcuError> {
        let folder = tempfile::tempdir().map_err(|error| NcuError::Failed(format!("no temporary folder: {error}")))?;
        let report = folder.path().join("profile.ncu-rep");
        let mut without = Vec::new();
        let said = loop {
            match self.run(&arguments(&report, range, &without), Some(program)) {
                Err(NcuError::Failed(why)) => {
                    let unknown = unknown_metrics(&why);
                    if unknown.iter().all(|metric| without.contains(metric)) {
                        return Err(NcuError::Failed(why));
                    }
                    without.extend(unknown);
                }
                said => break said?,
            }
        };
        if said.contains(NO_LAUNCH) {
            let why = match Said::in_text(&said) {
                Some(Said::Failed(reason)) => reason,
                _ => "it saw no launch".to_string(),
            };
            return Err(NcuError::Failed(why));
        }
        let import = |page: &[&str]| {
            let mut arguments: Vec<String> = vec![format!("--import={}", report.display()), "--csv".to_string()];
            arguments.extend(page.iter().map(ToString::to_string));
            self.run(&arguments, None)
        };
        let raw = import(&["--page=raw", "--print-units=base"])?;
        let mut profiles = csv::read(&raw).map_err(NcuError::Failed)?;
        if let Range::Launches { names, .. } = range {
            profiles.sort_by_key(|profile| names.first().is_some_and(|main| profile.kernel != *main));
        }
        let Some(first) = profiles.first_mut() else {
            return Err(NcuError::Failed("it saw no launch".to_string()));
        };
        // The source page does not say where one launch ends: lines are of the first, which does
        // the work. Peers have no lines of ours.
        if *range != Range::Marked {
            let kernel = format!("--kernel-name=regex:^{}$", first.kernel);
            first.lines = csv::lines(&import(&["--page=source", "--print-source=cuda,sass", &kernel])?);
        }
        Ok((profiles, said))
    }

    fn run(&self, arguments: &[String], program: Option<&Program>) -> Result<String, NcuError> {
        let mut command = Command::new(&self.path);
        command.args(arguments).stdin(Stdio::null());
        if let Some(program) = program {
            command.arg(&program.path).args(&program.args);
            program.set_environment(&mut command);
        }
        let output = command.output().map_err(|error| NcuError::Failed(error.to_string()))?;
        let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        judge(&out, &err, output.status.success())?;
        Ok(out.into_owned())
    }
}

fn judge(out: &str, err: &str, succeeded: bool) -> Result<(), NcuError> {
    let all = || out.lines().chain(err.lines());
    if all().any(|line| line.contains("ERR_NVGPUCTRPERM")) {
        return Err(NcuError::Permission);
    }
    if let Some(line) = all().find(|line| line.contains("Failed to initialize the profiler")) {
        return Err(NcuError::Unreachable(plain(line)));
    }
    if succeeded {
        return Ok(());
    }
    if let Some(Said::Failed(reason)) = Said::in_text(out) {
        return Err(NcuError::Failed(reason));
    }
    let errors: Vec<String> = all().filter(|line| line.starts_with(ERROR)).map(plain).collect();
    let last = || err.lines().chain(out.lines()).rfind(|line| !line.trim().is_empty());
    Err(NcuError::Failed(if errors.is_empty() {
        plain(last().unwrap_or("it printed no reason"))
    } else {
        errors.join("; ")
    }))
}

/// How a line begins in which ncu says what went wrong.
const ERROR: &str = "==ERROR==";
/// What ncu says of a program without a launch in the range.
const NO_LAUNCH: &str = "No kernels were profiled";
/// What ncu says of a metric that it does not know, before its name.
const UNKNOWN_METRIC: &str = "Failed to find metric ";

/// The metrics that ncu did not find, by its errors.
fn unknown_metrics(why: &str) -> Vec<String> {
    let parts = why.split(UNKNOWN_METRIC).skip(1);
    let name = |part: &str| {
        part.split([' ', ',', ';'])
            .next()
            .unwrap_or_default()
            .trim_matches('"')
            .to_string()
    };
    parts.map(name).filter(|name| !name.is_empty()).collect()
}

fn plain(line: &str) -> String {
    line.trim_start_matches(ERROR).trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_fix() {
        let said = "==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n";
        let error = judge(said, "", false).unwrap_err();
        assert_eq!(error, NcuError::Permission);
        assert!(error.to_string().contains("NVreg_RestrictProfilingToAdminUsers=0"));
        let said = "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n";
        let error = judge(said, "", false).unwrap_err().to_string();
        assert!(
            error.contains("LibraryNotLoaded") && error.contains("virtual machines"),
            "{error}"
        );
        let error = judge("", "cannot open cuda:7\n", false).unwrap_err().to_string();
        assert_eq!(error, "ncu failed: cannot open cuda:7");
        let said = "==ERROR== Failed to find metric x\n==ERROR== The application returned an error code (9).\n";
        let error = judge(said, "", false).unwrap_err().to_string();
        assert!(error.contains("Failed to find metric x; The application"), "{error}");
        assert_eq!(judge("nothing\n", "", true), Ok(()));
        // The program's own reason is better than ncu's.
        let said = "==PROF== Connected\n{\"failed\": \"fa3 has no fp32\"}\n==ERROR== The application returned 1.\n";
        let error = judge(said, "", false).unwrap_err().to_string();
        assert_eq!(error, "ncu failed: fa3 has no fp32");
    }

    #[test]
    fn metrics_that_ncu_does_not_know_are_named() {
        let why = "Failed to find metric lts__x.avg; Failed to find metric \"dram__y.sum\"; The application";
        assert_eq!(unknown_metrics(why), ["lts__x.avg", "dram__y.sum"]);
        assert!(unknown_metrics("cannot open cuda:7").is_empty());
        let all = arguments(
            Path::new("/tmp/p"),
            &Range::Marked,
            &["smsp__inst_executed.sum".to_string()],
        );
        assert!(!all.iter().any(|argument| argument.contains("smsp__inst_executed.sum")));
        assert!(all.contains(&"--profile-from-start=off".to_string()));
    }

    #[test]
    fn a_missing_tool_is_an_error_that_says_how_to_name_one() {
        assert_eq!(Ncu::at(Path::new("/nowhere/ncu")), None);
        let error = NcuError::Missing("ncu".into()).to_string();
        assert!(error.contains("FLASHCORE_NCU"), "{error}");
    }
}
