//! Benches in a Python process, where PyTorch, FlashAttention-3 and -4 and FlashInfer can be peers:
//! `python -m flashcore._bench` runs this very library there, with Python's functions among the subjects.
//! `docs/peers.md` has the lines that are exchanged.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child::{Child, Job};
use crate::{Report, Result, Watcher, revision};

/// The environment variable that names the Python to use.
pub const PYTHON_VARIABLE: &str = "FLASHCORE_PYTHON";

/// What has to be importable.
const PROBE: &str = "import torch, flashcore._bench";
/// The same for users' functions on the host, which NumPy is enough for.
const PROBE_OWN: &str = "import flashcore._bench";

/// A Python in which peers can be benched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    executable: OsString,
}

impl Python {
    /// The Python that `FLASHCORE_PYTHON` names, else `python3`, else `python`, if PyTorch and `flashcore` can be
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

    /// The first of the same in which `flashcore` can be imported, for users' functions.
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
            let mut probe = Command::new(&executable);
            let reason = match probe.args(["-c", imports]).stdin(Stdio::null()).output() {
                Ok(output) if output.status.success() => return Ok(Python { executable }),
                Ok(output) => last_line(&output.stderr),
                Err(error) => error.to_string(),
            };
            reasons.push(format!("{}: {reason}", executable.display()));
        }
        Err(reasons.swap_remove(0))
    }

    #[cfg(test)]
    pub(crate) fn at(executable: OsString) -> Python {
        Python { executable }
    }

    /// The program.
    pub fn executable(&self) -> &OsStr {
        &self.executable
    }

    /// Benches there, and passes on what happens; [`Child::bench`] has the rules.
    ///
    /// # Errors
    /// [`BenchError::Device`](crate::BenchError::Device) with what the process said if it did not end in a report.
    pub fn bench(&self, job: &Job, deadline: Duration, watcher: &mut dyn Watcher) -> Result<Report> {
        let child = Child {
            program: self.executable.clone(),
            args: ["-m", "flashcore._bench"].map(OsString::from).to_vec(),
        };
        let mut report = child.bench(job, deadline, watcher)?;
        let (theirs, ours) = (&report.run.revision, revision());
        if theirs != ours {
            let built = format!("the Python package was built from revision {theirs}, this command from {ours}");
            let note = format!("{built}: the kernels timed are the package's");
            watcher.note(&note);
            report.notes.push(note);
        }
        Ok(report)
    }
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    last.unwrap_or("it failed without a word").trim().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Request;
    use crate::child::DEADLINE;
    use crate::identity::{DeviceIdentity, RunIdentity};
    use crate::options::Options;

    #[test]
    fn a_job_reads_as_the_process_expects() {
        let job = Job {
            device: "cuda:0".into(),
            peers: None,
            store: None,
            attended: false,
            request: Request::default(),
        };
        let text = serde_json::to_string(&job).unwrap();
        assert!(
            text.starts_with(r#"{"device":"cuda:0","peers":"all","store":null,"attended":false,"request":{"cases":[]"#),
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
        fn note(&mut self, note: &str) {
            self.0.push(note.into());
        }
        fn inspected(&mut self, label: &str, outcome: &str) {
            self.0.push(format!("{label} {outcome}"));
        }
    }

    /// A stand-in for Python: a script that says `lines`.
    #[cfg(unix)]
    fn script(name: &str, lines: &[String], exit: i32) -> (Python, std::path::PathBuf) {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("flashcore-python-{name}-{}", std::process::id()));
        let said: String = lines.iter().map(|line| format!("cat <<'END'\n{line}\nEND\n")).collect();
        std::fs::write(
            &path,
            format!("#!/bin/sh\ncat > /dev/null\n{said}echo 'Warning: old' >&2\nexit {exit}\n"),
        )
        .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let executable = path.clone().into_os_string();
        (Python { executable }, path)
    }

    #[cfg(unix)]
    #[test]
    fn what_the_process_says_is_passed_on_and_a_silent_end_is_an_error() {
        let job = Job {
            device: "cpu".into(),
            peers: None,
            store: None,
            attended: false,
            request: Request::default(),
        };
        let mut report = Report::new(RunIdentity::now(DeviceIdentity::cpu()), Options::default(), None);
        report.run.revision = "older".into();
        let lines = [
            "a library says hello".to_string(),
            r#"{"note": "fa3: not there"}"#.to_string(),
            r#"{"inspected": ["torch/flash", "pass"]}"#.to_string(),
            format!(r#"{{"report": {}}}"#, serde_json::to_string(&report).unwrap()),
        ];
        let (python, path) = script("good", &lines, 0);
        let mut notes = Notes::default();
        let back = python.bench(&job, DEADLINE, &mut notes).unwrap();
        assert_eq!(notes.0[..2], ["fa3: not there", "torch/flash pass"]);
        assert!(notes.0[2].contains("revision older"), "{:?}", notes.0);
        assert_eq!(back.run, report.run);
        std::fs::remove_file(path).unwrap();

        let (python, path) = script("silent", &[], 3);
        let error = python.bench(&job, DEADLINE, &mut ()).unwrap_err().to_string();
        assert!(
            error.contains("without a report") && error.contains("Warning: old"),
            "{error}"
        );
        std::fs::remove_file(path).unwrap();

        let (python, path) = script("failed", &[r#"{"failed": "out of memory"}"#.to_string()], 1);
        assert!(
            python
                .bench(&job, DEADLINE, &mut ())
                .unwrap_err()
                .to_string()
                .contains("out of memory")
        );
        std::fs::remove_file(path).unwrap();
    }
}
