use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::identity::{DeviceIdentity, RunIdentity};
use crate::own::Code;
use crate::{Options, Own, problems};

const QUICK: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Seen {
    cases: Vec<(usize, usize)>,
    inspected: Vec<String>,
}

impl Watcher for Seen {
    fn see(&mut self, event: Event) {
        match event {
            Event::Case(case) => self.cases.push((case.1, case.2)),
            Event::Inspected(label, outcome) => self.inspected.push(format!("{label} {outcome}")),
            _ => {}
        }
    }
}

/// A child that is a shell script, which has the job in `$job`.
fn script(folder: &Path, text: &str) -> Program {
    let path = folder.join("child");
    std::fs::write(&path, format!("#!/bin/sh\nread -r job\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Program {
        path,
        ..Program::default()
    }
}

/// A job with a kernel of the user, which these children never run.
fn job(cases: usize) -> Job {
    let case = problems::cases("tiny", None).unwrap().remove(0);
    Job {
        device: "cpu".into(),
        peers: None,
        store: None,
        build: Build::of_this_program(),
        attended: false,
        request: Request {
            cases: vec![case; cases],
            own: vec![Own {
                label: "own/x".into(),
                file: "x.py".into(),
                sha256: String::new(),
                code: Code::Python("f".into()),
            }],
            ..Request::default()
        },
    }
}

fn said(what: &Value) -> String {
    format!("cat <<'END'\n{what}\nEND\n")
}

fn case(index: usize) -> String {
    let case = &job(1).request.cases[0];
    said(&json!({ "case": (case, index, 2) }))
}

fn report() -> String {
    let report = Report::new(RunIdentity::now(DeviceIdentity::cpu()), Options::default(), None);
    said(&json!({ "report": report }))
}

#[test]
fn one_that_hangs_or_crashes_is_blamed_and_the_rest_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let running = |label: &str, doing: &str| said(&json!({ "running": [label, doing] }));
    // The first child ends in the second problem; the next begins there, and hangs; the last comes to an end.
    let text = format!(
        "case \"$job\" in\n*own/a*CRASHED*own/b*) {}{} ;;\n*CRASHED*) {}{}sleep 600 ;;\n*) {}{}{}{}echo 'no memory' >&2; kill -11 $$ ;;\nesac",
        said(&json!({ "running": null })),
        report(),
        case(0),
        running("own/b", "timing"),
        case(0),
        running("own/c", "inspecting"),
        case(1),
        running("own/a", "calling"),
    );
    let mut seen = Seen::default();
    let report = script(folder.path(), &text).bench(&job(2), QUICK, &mut seen).unwrap();
    let labels: Vec<&str> = report.failed.iter().map(|(label, _)| label.as_str()).collect();
    assert_eq!(labels, ["own/a", "own/b"]);
    let [(_, crashed), (_, hung)] = &report.failed[..] else {
        panic!()
    };
    assert!(
        crashed.starts_with("CRASHED while calling: its process ended (signal: 11"),
        "{crashed}"
    );
    assert!(crashed.ends_with("no memory"), "{crashed}");
    assert!(hung.starts_with("HUNG: no answer while timing within"), "{hung}");
    assert_eq!(seen.cases, [(0, 2), (1, 2), (1, 2)]);
    assert_eq!(seen.inspected.len(), 2);
}

/// A library that prints Latin-1 ends neither what is read nor the process.
#[test]
fn lines_that_are_no_text_are_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!("printf 'na\\357ve\\n\\351\\n'\nprintf '\\351\\n' >&2\n{}", report());
    script(folder.path(), &text).bench(&job(1), QUICK, &mut ()).unwrap();
    let text = "printf '\\351\\n' >&2\necho last >&2\nexit 3";
    let error = script(folder.path(), text).bench(&job(1), QUICK, &mut ()).unwrap_err();
    assert!(error.to_string().ends_with(": last"), "{error}");
}

#[test]
fn what_no_kernel_of_the_user_did_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let error = |text: &str| {
        let child = script(folder.path(), text);
        child.bench(&job(1), QUICK, &mut ()).unwrap_err().to_string()
    };
    assert!(error("exit 3").contains("it ended without a report (exit status: 3)"));
    let failed = said(&json!({ "failed": "out of memory" }));
    assert!(error(&failed).contains("out of memory"));
    // It came back before.
    let back = [json!({ "running": ["own/a", "timing"] }), json!({ "running": null })].map(|what| said(&what));
    assert!(error(&format!("{}{failed}", back.concat())).contains("out of memory"));
    // A child that runs a kernel although it failed.
    let again = said(&json!({ "running": ["own/a", "building"] }));
    assert!(error(&again).contains("own/a was run again after it had failed"));
}

#[test]
fn a_child_that_is_killed_from_outside_blames_no_kernel() {
    let folder = tempfile::tempdir().unwrap();
    let calling = said(&json!({ "running": ["own/a", "calling"] }));
    let full = "echo 'No space left on device (os error 28)' >&2; exit 1";
    for end in ["kill -9 $$", "kill -25 $$", full] {
        let child = script(folder.path(), &format!("{calling}{end}"));
        let error = child.bench(&job(1), QUICK, &mut ()).unwrap_err();
        assert!(error.is_environment(), "{end}: {error}");
        assert!(
            error.to_string().contains("own/a (calling), which is not to blame"),
            "{end}: {error}"
        );
    }
}

#[test]
fn a_served_job_is_one() {
    let error = serve(std::io::empty(), &mut Vec::new()).unwrap_err();
    assert!(
        error.to_string().contains("there is no job on standard input"),
        "{error}"
    );
}

#[test]
fn a_lost_device_is_blamed_on_the_one_that_runs() {
    let folder = tempfile::tempdir().unwrap();
    let text = format!(
        "case \"$job\" in\n*CRASHED*) {} ;;\n*) {}{} ;;\nesac",
        report(),
        said(&json!({ "running": ["own/a", "inspecting"] })),
        said(&json!({ "failed": "an illegal memory access" })),
    );
    let report = script(folder.path(), &text).bench(&job(1), QUICK, &mut ()).unwrap();
    assert_eq!(report.failed[0].1, "CRASHED while inspecting: an illegal memory access");
}

#[test]
fn a_served_job_ends_in_a_report_or_says_why_not() {
    let served = |line: &str| {
        let mut output = Vec::new();
        // An input without an end: the process would be aborted.
        let input = std::io::Cursor::new(format!("{line}\n").into_bytes()).chain(Endless);
        serve(input, &mut output).unwrap();
        String::from_utf8(output).unwrap()
    };
    let mut job = job(1);
    job.request.kernels = vec!["cpu/m16n16".to_string()];
    job.request.options = Options {
        budget_ms: 20.0,
        warm_up_min_us: 100.0,
        ..Options::for_cpu()
    };
    let text = served(&serde_json::to_string(&job).unwrap());
    let last = text.lines().last().unwrap();
    let Ok(Said::Report(report)) = serde_json::from_str(last) else {
        panic!("{last}")
    };
    assert_eq!(report.results[0].measurement.subjects.len(), 1);
    assert!(text.contains("{\"case\":") && text.contains("{\"sample\":"));
    assert!(served("nonsense").contains("the job cannot be read"));
    job.request.kernels = vec!["own/x".to_string()];
    job.device = "toaster".into();
    assert!(served(&serde_json::to_string(&job).unwrap()).contains("toaster"));
}

struct Endless;

impl Read for Endless {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        loop {
            std::thread::park();
        }
    }
}
