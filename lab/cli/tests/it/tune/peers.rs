//! What a search's winner is compared with at its end. Peers are a stand-in for Python, which says what it is told to.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flashcore_bench::{
    Case, CaseResult, DeviceIdentity, Interval, LaunchMode, Measured, Measurement, Mode, Options, Ratio, Report,
    RunIdentity, Stop, SubjectInfo, Summary, Verdict,
};
use flashcore_problem::Problem;
use flashcore_tune::plans;

use super::{flashcore, folder, json, words};

/// One candidate, which therefore stands.
const WORDS: &str = "tune tiny --device cpu --strategy exhaustive --trials 1";

/// A report of a kernel and a peer that takes 1.8 times as long.
fn report(case: Case, kernel: &str) -> Report {
    let ratio = Ratio {
        value: 1.8,
        interval: Interval { lo: 1.79, hi: 1.81 },
        of_medians: 1.8,
        rounds: 12,
    };
    let subject = |label: &str, kernel: Option<&str>, us: f64, ratio| Measured {
        info: SubjectInfo {
            kernel: kernel.map(str::to_string),
            ..SubjectInfo::new(label, LaunchMode::Host)
        },
        summary: Summary::of(&[us; 12], 0.99),
        ratio,
        verdict: ratio.map(|_| Verdict::Slower),
        settled: true,
        trouble: None,
    };
    let subjects = vec![
        subject(kernel, Some(kernel), 10.0, None),
        subject("torch/flash", None, 18.0, Some(ratio)),
    ];
    let measurement = Measurement {
        mode: Mode::Hot,
        turns: None,
        baseline: 0,
        subjects,
        stop: Stop::Narrow,
        rounds: 12,
        readings: Vec::new(),
    };
    let mut report = Report::new(RunIdentity::now(DeviceIdentity::cpu()), Options::for_cpu(), None);
    let mut result = CaseResult::new(case, measurement, vec![None, None], Vec::new(), None);
    result.absent.push(("fa3".to_string(), "no such library".to_string()));
    report.results.push(result);
    report
}

/// A program that can import everything, keeps what it is asked to bench, and says this.
fn python(home: &Path, said: &str) -> PathBuf {
    let path = home.join("python");
    let asked = home.join("asked.json");
    let text = format!(
        "#!/bin/sh\ncase \"$2\" in *run_module*) ;; *) exit 0 ;; esac\ncat > '{}'\ncat <<'END'\n{said}\nEND\n",
        asked.display()
    );
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[test]
fn the_winner_stands_beside_the_default_and_peers() {
    let home = folder("peers");
    let problem = Problem::named("tiny").unwrap();
    let default = plans::heuristics(&problem, &DeviceIdentity::cpu()).unwrap().to_string();
    let name = "tiny".to_string();
    let report = report(Case::new(name, problem), &default);
    let said = format!(r#"{{"report": {}}}"#, serde_json::to_string(&report).unwrap());
    let python = python(&home, &said);
    let run = json(flashcore(&format!("{WORDS} --json"), &home).env("FLASHCORE_PYTHON", &python));
    assert_eq!(run["peers"]["winner"], default.as_str());
    assert_eq!(run["peers"]["report"]["results"][0]["absent"][0][0], "fa3");
    let asked: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(home.join("asked.json")).unwrap()).unwrap();
    assert_eq!((&asked["device"], &asked["peers"]), (&"cpu".into(), &"all".into()));
    assert_eq!(asked["request"]["kernels"], serde_json::json!([default]));
    assert_eq!(asked["request"]["baseline"], default.as_str());
    assert!(
        asked["store"].as_str().unwrap().contains(home.to_str().unwrap()),
        "{asked}"
    );

    // The same for people, and again from the files.
    let mut named = flashcore(&format!("{WORDS} --peers torch/flash,fa3"), &home);
    let output = named.env("FLASHCORE_PYTHON", &python).output().unwrap();
    let shown = flashcore("tune show tiny", &home).output().unwrap();
    for text in [output.stdout, shown.stdout] {
        let text = words(&String::from_utf8(text).unwrap());
        assert!(
            text.contains("1.800 [1.790, 1.810] times as fast as torch/flash"),
            "{text}"
        );
        assert!(text.contains("fa3: no such library"), "{text}");
    }
    let asked = std::fs::read_to_string(home.join("asked.json")).unwrap();
    assert!(asked.contains(r#""peers":["torch/flash","fa3"]"#), "{asked}");
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn peers_that_cannot_be_had_are_said_and_cost_nothing_else() {
    let home = folder("no-peers");
    let run = json(&mut flashcore(&format!("{WORDS} --json"), &home));
    let missing = run["peers"]["missing"].as_str().unwrap();
    assert!(
        missing.contains("no-python-here") && run["peers"]["report"].is_null(),
        "{missing}"
    );
    let shown = flashcore("tune show tiny", &home).output().unwrap();
    assert!(words(&String::from_utf8(shown.stdout).unwrap()).contains("no peers: they need"));
    // Not asked for, and the leaderboard has the rest.
    let run = json(&mut flashcore(&format!("{WORDS} --json --peers none"), &home));
    assert!(run["peers"].is_null());
    // A default that was not tried is measured all the same.
    let run = json(&mut flashcore(
        &format!("{WORDS} --json --peers none --kernel cpu/m16n16"),
        &home,
    ));
    let labels = run["peers"]["report"]["results"][0]["measurement"]["subjects"]
        .as_array()
        .unwrap();
    let labels: Vec<&str> = labels
        .iter()
        .map(|subject| subject["info"]["label"].as_str().unwrap())
        .collect();
    assert_eq!(
        labels,
        ["cpu/m16n16", run["run"]["default"]["kernel"].as_str().unwrap()]
    );
    // A Python that dies costs its figures, not the run.
    let broken = python(&home, r#"{"failed": "out of memory"}"#);
    let run = json(flashcore(&format!("{WORDS} --json"), &home).env("FLASHCORE_PYTHON", broken));
    assert!(run["peers"]["missing"].as_str().unwrap().contains("out of memory"));
    assert!(run["board"]["winner"].is_string());
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn what_an_old_package_of_another_build_timed_is_printed_and_an_error() {
    let home = folder("another-build");
    let mut report = report(
        Case::new("tiny".to_string(), Problem::named("tiny").unwrap()),
        "cpu/m16n128",
    );
    (report.run.revision, report.run.version) = ("older".to_string(), "0.0.1".to_string());
    let python = python(&home, &serde_json::json!({ "report": report }).to_string());
    let mut bench = flashcore("bench tiny --device cpu --store none --json", &home);
    let output = bench.env("FLASHCORE_PYTHON", &python).output().unwrap();
    let errors = words(&String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(3), "{errors}");
    let why = "the Python package flashcore_attn was built from revision older (version 0.0.1), this command from";
    assert!(errors.contains(why), "{errors}");
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(printed["report"]["notes"][0].as_str().unwrap().starts_with(why));
    assert_eq!(printed["report"]["results"][0]["absent"][0][0], "fa3");
    let asked: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(home.join("asked.json")).unwrap()).unwrap();
    assert_eq!(asked["build"]["revision"], env!("FLASHCORE_BUILD_REVISION"));
    std::fs::remove_dir_all(&home).unwrap();
}
