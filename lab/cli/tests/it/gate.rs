//! `flashcore gate`: it writes a baseline, passes against it, and fails against a better one.

use std::path::Path;

use serde_json::Value;

use crate::common::{flashcore, words};

/// One card, no device: some seconds.
const QUICK: &str = "--profile l4 --device sim";

/// A problem that takes little to simulate.
const SMALL: &str = "[[problems]]\nname = \"small\"\nheads = 2\nseq = 96\n";
/// What the loop of the user's kernel ends with, and 2^0 as a factor before it: more to do, and the same output.
const LOOP_END: &str = "    add.u32 %r21, %r21, 1;";
const MORE: &str = "    ex2.approx.ftz.f32 %f17, 0f00000000;\n    mul.f32 %f6, %f6, %f17;\n";

fn edit(path: &Path, change: impl Fn(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).expect("a baseline")).expect("JSON");
    change(&mut value);
    std::fs::write(path, value.to_string()).expect("a file");
}

#[test]
fn a_baseline_is_written_and_judged_against() {
    let folder = tempfile::tempdir().expect("a folder");
    let (base, summary) = (folder.path().join("base.json"), folder.path().join("gate.md"));
    // It is written, although not everything could be judged.
    let written = flashcore(&format!("gate --write {} {QUICK} --strict", base.display()));
    assert_eq!(written.code, 3, "{}{}", written.stdout, written.stderr);
    // No assembler, no device, no evidence: each is said.
    for part in [
        "spills are not known here",
        "no device computed the set",
        "no evidence was named",
    ] {
        assert!(words(&written.stdout).contains(part), "{part}\n{}", written.stdout);
    }
    let judge = format!("gate --against {} {QUICK}", base.display());
    edit(&base, |baseline| {
        let error = &mut baseline["errors"][0]["frobenius"];
        *error = (error.as_f64().expect("an error") / 1.5).into();
    });
    let ran = flashcore(&format!("{judge} -o {}", summary.display()));
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(ran.words().contains("1.50 × the baseline's"), "{}", ran.stdout);
    assert!(ran.words().contains("the gate fails"), "{}", ran.stdout);
    let markdown = std::fs::read_to_string(&summary).expect("a summary");
    assert!(markdown.contains("| error | FAILED | "), "{markdown}");

    let races = flashcore(&format!("{judge} --allow error=90% --plant drop-barrier --json"));
    assert_eq!(races.code, 1, "{}", races.stderr);
    let races: Value = serde_json::from_str(&races.stdout).expect("JSON");
    let checks = races["judged"]["checks"].as_array().expect("checks");
    let failed: Vec<&Value> = checks.iter().filter(|check| check["outcome"] == "failed").collect();
    assert!(failed.len() == 1 && failed[0]["name"] == "findings", "{races}");
    assert!(races["state"]["device"].is_null());
}

#[test]
fn a_kernel_that_became_slower_fails_without_a_gpu() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/own-kernel");
    for name in ["attention.toml", "attention.ptx"] {
        std::fs::copy(example.join(name), file(name)).expect("a copy");
    }
    std::fs::write(file("problems.toml"), SMALL).expect("a file");
    let at = |name: &str| file(name).display().to_string();
    let gate = |flags: &str| {
        let (problems, kernel) = (at("problems.toml"), at("attention.toml"));
        flashcore(&format!(
            "gate {problems} --device predict:l4 --kernel {kernel} {flags}"
        ))
    };
    for base in ["base.json", "again.json"] {
        let written = gate(&format!("--write {}", at(base)));
        assert_eq!((written.code, written.stderr.as_str()), (0, ""), "{}", written.stdout);
    }
    let read = |name: &str| std::fs::read(file(name)).expect("a baseline");
    assert_eq!(read("base.json"), read("again.json"));
    let judge = format!("--against {}", at("base.json"));
    let same = gate(&format!("{judge} --allow slower=0.1%"));
    assert_eq!(same.code, 0, "{}{}", same.stdout, same.stderr);
    for part in [
        "1 predictions, 0 with more",
        "small on l4 by own/attention: PREDICTED ",
        " µs, was ",
    ] {
        assert!(same.words().contains(part), "{part}: {}", same.stdout);
    }

    let ptx = std::fs::read_to_string(file("attention.ptx")).expect("the kernel");
    let slower = ptx.replace(LOOP_END, &format!("{}{LOOP_END}", MORE.repeat(3)));
    assert_ne!(ptx, slower);
    std::fs::write(file("attention.ptx"), slower).expect("a file");
    let ran = gate(&format!("{judge} --json"));
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    let found: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let checks = found["judged"]["checks"].as_array().expect("checks");
    let failed: Vec<&Value> = checks.iter().filter(|check| check["outcome"] == "failed").collect();
    assert!(failed.len() == 1 && failed[0]["name"] == "predicted", "{found}");
    let said = failed[0]["details"][0].as_str().expect("what grew");
    for part in [
        "small on l4 by own/attention: PREDICTED ",
        "; f32 instructions ",
        "; special functions ",
        "× the baseline's",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let base: Value = serde_json::from_slice(&read("base.json")).expect("JSON");
    let micros = |found: &Value| found[0]["micros"].as_f64().expect("a time");
    let ratio = micros(&found["state"]["predicted"]) / micros(&base["predicted"]);
    assert!((1.03..1.08).contains(&ratio), "{ratio}: {said}");

    edit(&file("base.json"), |baseline| {
        baseline["predicted"][0]["registers_by"] = "ptxas 13.0 for sm_89".into();
    });
    let ran = gate(&judge);
    let why = "the baseline's registers are by ptxas 13.0 for sm_89, and here by an estimate";
    assert!(ran.code == 3 && ran.words().contains(why), "{}", ran.stderr);
}

#[test]
fn a_baseline_of_other_problems_compares_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let base = folder.path().join("base.json").display().to_string();
    let written = flashcore(&format!("gate tiny --device predict:l4 --write {base}"));
    assert_eq!(written.code, 0, "{}", written.stderr);
    for (asked, said) in [
        (
            "small --device predict:l4",
            "base.json has tiny on l4; you asked for small on l4",
        ),
        (
            "tiny --device predict:h200",
            "base.json has tiny on l4; you asked for tiny on h200",
        ),
        (&format!("small {QUICK}"), "base.json has tiny; you asked for small"),
    ] {
        let ran = flashcore(&format!("gate {asked} --against {base}"));
        assert!(ran.code == 3 && ran.words().contains(said), "{asked}: {}", ran.stderr);
    }
}

#[test]
fn another_kernel_of_ours_is_judged_by_its_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let [base, problems] = ["base.json", "problems.toml"].map(|name| folder.path().join(name).display().to_string());
    std::fs::write(&problems, SMALL).expect("a file");
    let gate = |kernel: &str, flags: &str| {
        let kernel = format!("mma/m64n64-w4x1-s2-b1-qreg-{kernel}-cond");
        flashcore(&format!(
            "gate {problems} --device predict:l4 --kernel {kernel} {flags}"
        ))
    };
    assert_eq!(gate("xor", &format!("--write {base}")).code, 0);
    // Without a swizzle there are bank conflicts.
    let slower = gate("lin", &format!("--against {base}"));
    assert_eq!(slower.code, 1, "{}{}", slower.stdout, slower.stderr);
    for part in [
        "predicted FAILED",
        "(it was mma/m64n64-w4x1-s2-b1-qreg-xor-cond): PREDICTED",
    ] {
        assert!(slower.words().contains(part), "{part}: {}", slower.stdout);
    }
}

#[test]
fn what_a_predicted_device_does_not_take_is_said() {
    for (arguments, said) in [
        ("gate --write x --device predict:l5", "card is l5; allowed: l4"),
        (
            "gate --write x --device predict:l4 --profile h200",
            "leave out --profile",
        ),
        (
            "gate --write x --device predict:l4 --evidence latest",
            "--evidence has measured times",
        ),
        (
            "gate --write x --device cpu --kernel mine.toml",
            "is judged by --device sim",
        ),
        (
            "gate --write x --device sim --kernel no-such.toml",
            "no-such.toml: No such file",
        ),
        ("gate no-such-set --write x", "`no-such-set` is no problem, no set"),
        (
            "bench tiny --device predict:l4 --mode cold",
            "times are predicted for warm caches",
        ),
        ("bench tiny --device predict:l5", "card is l5; allowed: l4"),
        ("run tiny --device predict:l4", "no device is named `predict:l4`"),
        (
            "bench tiny --device predict:l4 --peers fa3",
            "fa3 is not predicted: leave --peers out",
        ),
    ] {
        let ran = flashcore(arguments);
        assert!(
            ran.code == 2 && ran.words().contains(said),
            "{arguments}: {}",
            ran.stderr
        );
    }
}
