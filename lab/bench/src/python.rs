//! Benches in a Python process, where PyTorch, FlashAttention-3 and -4 and FlashInfer can be peers:
//! `python -m flashcore_attn._bench` runs this very library there, with Python's functions among the subjects.
//! `docs/peers.md` has the lines that are exchanged.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use flashcore_check::programs;

use crate::child::{Job, LONGEST};
use crate::identity::UNKNOWN;
use crate::process::{Process, Program, Silence};
use crate::{Build, Report, Result, Watcher};

/// The environment variable that names the Python to use.
pub const PYTHON_VARIABLE: &str = "FLASHCORE_PYTHON";

/// What has to be importable.
const PROBE: &str = "import torch, flashcore_attn._bench";
/// The same for users' functions on the host, which NumPy is enough for.
const PROBE_OWN: &str = "import flashcore_attn._bench";

/// How long that may take: libraries of some GB may lie on a slow disk.
const PATIENCE: Duration = Duration::from_secs(600);

/// Takes the current folder from the front of the path on which modules are looked for: Python puts it there for `-c`,
/// and so for us `-m`, for which it would be there while `runpy` is imported. `sys` is built in. `PYTHONSAFEPATH` is
/// not known before Python 3.11.
const NOT_FROM_HERE: &str = "import sys\nif sys.path[:1] == ['']: del sys.path[0]\n";

/// Variables that name folders of code.
const FOLDERS: [&str; 3] = ["PYTHONHOME", "PYTHONUSERBASE", "PYTHONPYCACHEPREFIX"];

/// What a Python runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Runs<'a> {
    /// A program.
    Code(&'a str),
    /// A module, as `-m` does.
    Module(&'a str),
    /// A file of ours, whose folder is the first in which modules are looked for.
    File(&'a Path),
}

/// A Python in which peers can be benched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    executable: PathBuf,
}

impl Python {
    /// The Python that `FLASHCORE_PYTHON` names, else `python3`, else `python`, if PyTorch and `flashcore_attn` can be
    /// imported there.
    ///
    /// # Errors
    /// One sentence that says what is missing, to be shown once; benching goes on without peers.
    pub fn find() -> Result<Python, String> {
        Python::importing(PROBE).map_err(|why| {
            let needs = "they need a Python with PyTorch and flashcore";
            let install = "in a clone, pip install torch ./bindings/python";
            format!("no peers: {needs} ({why}); {PYTHON_VARIABLE} names one; {install}")
        })
    }

    /// The first of the same in which `flashcore_attn` can be imported, for users' functions.
    ///
    /// # Errors
    /// One sentence that says what is missing.
    pub fn find_for_own() -> Result<Python, String> {
        Python::importing(PROBE_OWN).map_err(|why| {
            let install = "in a clone, pip install numpy ./bindings/python";
            format!("a Python with the package flashcore is needed ({why}); {PYTHON_VARIABLE} names one; {install}")
        })
    }

    /// The first Python that runs some imports, or why the first that was tried does not.
    pub(crate) fn importing(imports: &str) -> Result<Python, String> {
        let named = std::env::var_os(PYTHON_VARIABLE).filter(|name| !name.is_empty());
        let candidates = match named {
            Some(name) => vec![name],
            None => vec!["python3".into(), "python".into()],
        };
        let mut reasons = Vec::new();
        for executable in candidates {
            let found = Python::named(&executable).and_then(|python| python.imports(imports, PATIENCE));
            match found {
                Ok(python) => return Ok(python),
                Err(reason) => reasons.push(format!("{}: {reason}", executable.display())),
            }
        }
        Err(reasons.swap_remove(0))
    }

    /// The Python of a name on `PATH`, or at an absolute path: never one that depends on the current folder.
    ///
    /// # Errors
    /// There is none, or the path is relative.
    pub fn named(name: impl AsRef<OsStr>) -> Result<Python, String> {
        let executable = programs::find(name.as_ref()).map_err(|error| error.to_string())?;
        Ok(Python { executable })
    }

    fn imports(self, imports: &str, deadline: Duration) -> Result<Python, String> {
        let mut probe = self.child(Runs::Code(imports), [""; 0]).command();
        let mut probe = Process::start(probe.stderr(Stdio::piped()), LONGEST)?;
        probe.close_input();
        match probe.finish(deadline) {
            Silence::Ended(end) if end.is_success() => Ok(self),
            Silence::Ended(end) if !end.last_words().is_empty() => Err(end.last_words().trim().to_string()),
            Silence::Timeout => Err(format!("`{imports}` did not end within {} s", deadline.as_secs_f64())),
            silence => Err(silence.to_string()),
        }
    }

    /// A process of it, the only way in which one is started. No code is taken from the current folder, which may be a
    /// stranger's: neither as Python does by itself, nor by entries of `PYTHONPATH` that are empty or relative, nor by
    /// other variables with relative folders. All else is as the user's own Python has it.
    pub(crate) fn child<T: Into<OsString>>(&self, runs: Runs<'_>, args: impl IntoIterator<Item = T>) -> Program {
        let what: [OsString; 2] = match runs {
            Runs::Code(text) => ["-c".into(), format!("{NOT_FROM_HERE}{text}").into()],
            Runs::Module(name) => {
                let run = format!("import runpy\nrunpy.run_module({name:?}, run_name='__main__', alter_sys=True)");
                ["-c".into(), format!("{NOT_FROM_HERE}{run}").into()]
            }
            Runs::File(path) => ["-B".into(), path.into()],
        };
        Program {
            path: self.executable.clone(),
            args: what.into_iter().chain(args.into_iter().map(Into::into)).collect(),
            env: environment(|name| std::env::var_os(name)),
        }
    }

    /// Whether it has peers of these labels for a kind of device, `cpu` or `cuda`.
    ///
    /// # Errors
    /// Those that are missing, each with what installs it.
    pub fn has_peers(&self, labels: &[String], kind: &str) -> Result<(), String> {
        let asks = format!(
            "import sys\nfrom flashcore_attn import peers\nlabels = {labels:?}\n\
             found, absent = peers.find({kind:?}, labels)\n\
             missing = [label + ': ' + absent.get(label, 'no peer on {kind}; there are ' + ', '.join(found))\n\
             \x20          for label in labels if label not in found]\n\
             if missing: sys.exit('; '.join(missing))"
        );
        self.clone().imports(&asks, PATIENCE).map(drop)
    }

    /// The program.
    pub fn executable(&self) -> &Path {
        &self.executable
    }

    /// Benches there, and passes on what happens; [`Program::bench`] has the rules. The package refuses a job of
    /// another build; packages that do not know this rule time their own kernels, which a note of the report then says.
    ///
    /// # Errors
    /// [`BenchError::Machine`](crate::BenchError::Machine) with what the process said if it did not end in a report.
    pub fn bench(&self, job: &Job, deadline: Duration, watcher: &mut dyn Watcher) -> Result<Report> {
        let child = self.child(Runs::Module("flashcore_attn._bench"), [""; 0]);
        let mut report = child.bench(job, deadline, watcher)?;
        let note = check_package(&job.build, &report.run.build()).unwrap_or_else(Some);
        report.notes.extend(note.filter(|note| !report.notes.contains(note)));
        Ok(report)
    }

    /// The line with which a module answers a line; `PATIENCE` is the longest that it may take.
    ///
    /// # Errors
    /// What the process said if it did not answer.
    pub fn ask(&self, module: &str, line: String) -> Result<String, String> {
        let mut command = self.child(Runs::Module(module), [""; 0]).command();
        let mut process = Process::start(command.stderr(Stdio::piped()), LONGEST)?;
        process.ask(line, PATIENCE).map_err(|silence| match silence {
            Silence::Ended(end) if !end.last_words().is_empty() => end.last_words().trim().to_string(),
            silence => silence.to_string(),
        })
    }
}

/// Whether a Python package has the kernels of a command. Where a revision is unknown, the versions are compared, and
/// the note says so.
///
/// # Errors
/// Both builds, and what to do.
pub fn check_package(command: &Build, package: &Build) -> Result<Option<String>, String> {
    let built = format!("the Python package flashcore_attn was built from {package}, this command from {command}");
    let are_known = [command, package].iter().all(|build| build.revision != UNKNOWN);
    if are_known && command.revision == package.revision {
        return Ok(None);
    }
    if !are_known && command.version == package.version {
        return Ok(Some(format!(
            "{built}: the versions are the same, but with an unknown revision the kernels may differ"
        )));
    }
    Err(format!(
        "{built}, and the kernels timed with peers or Python functions are the package's: install the package of this \
         command's source (in its clone, `pip install ./bindings/python`), or time neither peers (`--peers none`) nor \
         Python functions"
    ))
}

/// What of the environment a Python gets changed.
fn environment(env: impl Fn(&str) -> Option<OsString>) -> Vec<(OsString, Option<OsString>)> {
    let mut changed = Vec::new();
    if let Some(path) = env("PYTHONPATH") {
        let kept: Vec<PathBuf> = std::env::split_paths(&path)
            .filter(|entry| entry.is_absolute())
            .collect();
        // They were parts of such a list, so they join.
        let joined = std::env::join_paths(&kept).ok().filter(|joined| !joined.is_empty());
        changed.push(("PYTHONPATH".into(), joined));
    }
    let relative = |name: &&str| env(name).is_some_and(|folder| Path::new(&folder).is_relative());
    changed.extend(
        FOLDERS
            .into_iter()
            .filter(relative)
            .map(|name| (OsString::from(name), None)),
    );
    changed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::child::DEADLINE;
    use crate::identity::{DeviceIdentity, RunIdentity};
    use crate::options::Options;

    fn build(revision: &str, version: &str) -> Build {
        Build {
            revision: revision.into(),
            version: version.into(),
        }
    }

    fn job() -> Job {
        Job {
            device: "cpu".into(),
            peers: None,
            store: None,
            build: build("newer", "0.2.0"),
            attended: false,
            request: Request::default(),
        }
    }

    /// What is said of a package with the revision `older`.
    const ANOTHER: &str = "the Python package flashcore_attn was built from revision older (version 0.1.0), this command \
        from revision newer (version 0.2.0), and the kernels timed with peers or Python functions are the package's: \
        install the package of this command's source (in its clone, `pip install ./bindings/python`), or time neither \
        peers (`--peers none`) nor Python functions";

    #[test]
    fn a_package_has_the_kernels_of_a_command_if_revisions_or_unknown_ones_versions_are_the_same() {
        let command = build("newer", "0.2.0");
        assert_eq!(check_package(&command, &command), Ok(None));
        assert_eq!(
            check_package(&command, &build("older", "0.1.0")),
            Err(ANOTHER.to_string())
        );
        for (command, package) in [
            ("newer", "older"),
            ("newer", "newer-modified-1a2b3c4d"),
            ("newer-modified-5e6f7a8b", "newer-modified-1a2b3c4d"),
            ("newer-modified-5e6f7a8b", "newer-modified"),
        ] {
            check_package(&build(command, "0.1.0"), &build(package, "0.1.0")).unwrap_err();
        }
        for (command, package) in [("newer", UNKNOWN), (UNKNOWN, "newer"), (UNKNOWN, UNKNOWN)] {
            let note = check_package(&build(command, "0.1.0"), &build(package, "0.1.0")).unwrap();
            assert_eq!(
                note.unwrap(),
                format!(
                    "the Python package flashcore_attn was built from revision {package} (version 0.1.0), this command from \
                     revision {command} (version 0.1.0): the versions are the same, but with an unknown revision the \
                     kernels may differ"
                )
            );
            check_package(&build(command, "0.2.0"), &build(package, "0.1.0")).unwrap_err();
        }
    }

    #[test]
    fn a_job_reads_as_the_process_expects() {
        let job = Job {
            device: "cuda:0".into(),
            ..job()
        };
        let text = serde_json::to_string(&job).unwrap();
        assert!(
            text.starts_with(
                r#"{"device":"cuda:0","peers":"all","store":null,"build":{"revision":"newer","version":"0.2.0"},"attended":false,"request":{"cases":[]"#
            ),
            "{text}"
        );
        let named = Job {
            peers: Some(vec!["fa3".to_string()]),
            ..job
        };
        let text = serde_json::to_string(&named).unwrap();
        assert!(text.contains(r#""peers":["fa3"],"#), "{text}");
    }

    #[derive(Default)]
    struct Notes(Vec<String>);

    impl Watcher for Notes {
        fn see(&mut self, event: crate::Event) {
            match event {
                crate::Event::Note(note) => self.0.push(note),
                crate::Event::Inspected(label, outcome) => self.0.push(format!("{label} {outcome}")),
                _ => {}
            }
        }
    }

    /// A stand-in for Python: a script that says `lines`.
    #[cfg(unix)]
    fn script(name: &str, lines: &[String], exit: i32) -> (Python, std::path::PathBuf) {
        let said: String = lines.iter().map(|line| format!("cat <<'END'\n{line}\nEND\n")).collect();
        shell(name, &format!("{said}echo 'Warning: old' >&2\nexit {exit}"))
    }

    #[cfg(unix)]
    fn shell(name: &str, runs: &str) -> (Python, std::path::PathBuf) {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("flashcore-python-{name}-{}", std::process::id()));
        std::fs::write(&path, format!("#!/bin/sh\ncat > /dev/null\n{runs}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        (Python::named(&path).unwrap(), path)
    }

    /// What it starts holds its pipes.
    #[cfg(unix)]
    #[test]
    fn a_grandchild_of_the_interpreter_is_not_waited_for() {
        for (name, exit, expected) in [("with", 0, Ok(())), ("without", 1, Err("no torch".to_string()))] {
            let marker = std::env::temp_dir().join(format!("flashcore-python-marker-{name}-{}", std::process::id()));
            let holds = format!("(sleep 60; touch '{0}') & echo $! > '{0}.id'", marker.display());
            let (python, path) = shell(name, &format!("{holds}\necho 'no torch' >&2\nexit {exit}"));
            let found = python.imports(PROBE, PATIENCE).map(|_| ());
            let was_waited_for = marker.exists();
            let id = marker.with_extension("id");
            let grandchild = std::fs::read_to_string(&id).unwrap();
            std::process::Command::new("/bin/kill")
                .arg(grandchild.trim())
                .status()
                .unwrap();
            std::fs::remove_file(path).unwrap();
            std::fs::remove_file(id).unwrap();
            assert_eq!(found, expected);
            assert!(!was_waited_for);
        }
    }

    #[cfg(unix)]
    #[test]
    fn an_interpreter_that_does_not_end_or_never_stops_writing_is_over_at_its_deadline() {
        for (name, runs) in [("sleeps", "exec sleep 600"), ("writes", "exec yes")] {
            let (python, path) = shell(name, runs);
            let found = python.imports("import torch", Duration::from_millis(500));
            std::fs::remove_file(path).unwrap();
            assert_eq!(found.unwrap_err(), "`import torch` did not end within 0.5 s");
        }
        let (python, path) = shell("silent-end", "exit 3");
        let found = python.imports("import torch", PATIENCE);
        std::fs::remove_file(path).unwrap();
        assert_eq!(found.unwrap_err(), "it ended (exit status: 3)");
    }

    #[cfg(unix)]
    #[test]
    fn what_the_process_says_is_passed_on_and_a_silent_end_is_an_error() {
        let job = job();
        let mut report = Report::new(RunIdentity::now(DeviceIdentity::cpu()), Options::default(), None);
        (report.run.revision, report.run.version) = ("older".into(), "0.1.0".into());
        let lines = [
            "a library says hello".to_string(),
            r#"{"note": "fa3: not there"}"#.to_string(),
            r#"{"inspected": ["torch/flash", "pass"]}"#.to_string(),
            format!(r#"{{"report": {}}}"#, serde_json::to_string(&report).unwrap()),
        ];
        let (python, path) = script("good", &lines, 0);
        let mut notes = Notes::default();
        let back = python.bench(&job, DEADLINE, &mut notes).unwrap();
        assert_eq!(notes.0, ["fa3: not there", "torch/flash pass"]);
        // A package that does not know the rule: what it timed is kept.
        assert_eq!(back.notes, ["fa3: not there", ANOTHER]);
        assert_eq!(back.run, report.run);
        std::fs::remove_file(path).unwrap();

        let (python, path) = script("silent", &[], 3);
        let error = python.bench(&job, DEADLINE, &mut ()).unwrap_err().to_string();
        assert!(
            error.contains("without a report") && error.contains("Warning: old"),
            "{error}"
        );
        std::fs::remove_file(path).unwrap();

        // Among others a package that knows the rule.
        let (python, path) = script("failed", &[serde_json::json!({ "failed": ANOTHER }).to_string()], 1);
        let error = python.bench(&job, DEADLINE, &mut ()).unwrap_err();
        assert_eq!(error.to_string(), format!("{}: {ANOTHER}", path.display()));
        assert!(error.is_environment());
        std::fs::remove_file(path).unwrap();
    }
}
