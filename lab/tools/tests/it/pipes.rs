//! `scripts/pipes.py`: predicted shares of pipes held against a profiler's counters.

use std::path::Path;
use std::process::Command;

use flashcore_bench::problems;
use flashcore_kernels::Plan;
use serde_json::json;

const LIST: &str = include_str!("../../data/pipes.txt");

/// Problem, kernel and whether its counters had been read before, of each line.
fn listed() -> Vec<(&'static str, &'static str, bool)> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    words
        .map(|words| (words[0], words[1], words.get(2) == Some(&"seen")))
        .collect()
}

#[test]
fn the_list_has_plans_and_kernels_that_were_not_seen() {
    let list = listed();
    assert!(list.len() >= 20 && list.iter().filter(|(.., seen)| *seen).count() == 4);
    let canonical = problems::cases("canonical", None).unwrap();
    for (problem, kernel, _) in list {
        assert!(
            !kernel.starts_with("scalar/"),
            "{kernel}: the model was fitted to this family"
        );
        let of_grid = canonical.iter().find(|case| case.name == problem).cloned();
        let case = of_grid.unwrap_or_else(|| problems::cases(problem, None).unwrap().remove(0));
        let target = flashcore_ir::Target::Sm90a;
        Plan::new(&case.problem, &kernel.parse().unwrap(), target).unwrap_or_else(|why| panic!("{kernel}: {why}"));
    }
}

#[test]
fn planted_differences_are_found() {
    if !Command::new("python3")
        .arg("--version")
        .output()
        .is_ok_and(|ran| ran.status.success())
    {
        return eprintln!("NOT RUN: no python3 here");
    }
    let (folder, list) = (tempfile::tempdir().unwrap(), listed());
    // Counters as predicted, but for one share and the conflicts.
    let write = |number: usize, mufu: f64, conflicts: f64| {
        let (problem, kernel, _) = list[number];
        // Of these `sm_busy` follows from others and `alu` is too small to count.
        let shares = [
            ("tensor", 50.0, 50.0),
            ("mufu", mufu, 30.0),
            ("alu", 3.0, 3.0),
            ("sm_busy", 90.0, 20.0),
        ];
        let rows = shares.map(|(key, read, predicted)| json!({ "key": key, "measured": read, "predicted": predicted }));
        let told = json!({ "kernels": [{
            "rows": rows,
            "counters": { "counters": { "wavefronts_excess": conflicts } },
            "prediction": { "micros": 1.0, "wavefronts_excess": 64.0 },
        }] });
        let name = format!("{problem} {}.json", kernel.replace('/', " "));
        std::fs::write(folder.path().join(name), told.to_string()).unwrap();
    };
    let run = || {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/pipes.py");
        let mut command = Command::new("python3");
        command.arg(script).arg(folder.path()).args(["--flashcore", "false"]);
        let ran = command.output().unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
        (ran.status.success(), said)
    };
    (0..list.len()).for_each(|number| write(number, 39.0, 64.0));
    let (passed, said) = run();
    assert!(passed && said.contains("not seen before: 38 of 38 rows"), "{said}");
    // A share that is off by eleven points on each kernel: half of the rows.
    (0..list.len()).for_each(|number| write(number, 41.0, 64.0));
    let (passed, said) = run();
    assert!(
        !passed && said.contains("all: 23 of 46 rows") && said.contains("  off"),
        "{said}"
    );
    // One conflict more on one kernel, or a kernel without counters.
    (0..list.len()).for_each(|number| write(number, 39.0, 64.0));
    write(3, 30.0, 65.0);
    let (passed, said) = run();
    assert!(!passed && said.contains("conflicts 65.0 64.0 DIFFER"), "{said}");
    write(3, 30.0, 64.0);
    let (problem, kernel, _) = list[0];
    std::fs::remove_file(
        folder
            .path()
            .join(format!("{problem} {}.json", kernel.replace('/', " "))),
    )
    .unwrap();
    let (passed, said) = run();
    assert!(!passed && said.contains("no counters of small "), "{said}");
}
