//! Tables that cannot be written, and runs that were settled in them before: what a search found is printed whole, and
//! tables are touched once.

use std::path::{Path, PathBuf};

use flashcore_bench::{DeviceIdentity, Interval, Ratio};
use flashcore_problem::Problem;
use flashcore_tune::plans;
use serde_json::{Value, json};

use super::{flashcore, folder, json, made_up, said_of, words};

/// A kernel that takes twice as long as heuristics'.
const SLOW: &str = "cpu/m16n4";
/// The problem that is searched.
const LENGTH: usize = 100;

fn problem(length: usize) -> Problem {
    let tiny = Problem::builder().heads(1, 1).head_dim(64).seq_len(length);
    tiny.build().unwrap()
}

/// A search that begins at a row and finds out that heuristics' kernel is faster.
fn tune(run: &Path) -> String {
    format!(
        "tune tiny --full --batch 1 --heads 1 --kv-heads 1 --head-dim 64 --seq {LENGTH} --device cpu --strategy random \
         --trials 2 --folder {}",
        run.display()
    )
}

/// A table with a row that has the slow kernel; where it is.
fn slow_row(plans_folder: &Path, length: usize) -> PathBuf {
    let device = DeviceIdentity::cpu();
    let ratio = Ratio {
        value: 0.9,
        interval: Interval { lo: 0.89, hi: 0.91 },
        of_medians: 0.9,
        rounds: 9,
    };
    let row = plans::row(
        &problem(length),
        SLOW,
        "cpu/m16n16",
        &ratio,
        &device,
        ("1a2b3c4d5e6f", 0),
    )
    .unwrap();
    plans::put(plans_folder, &plans::device_of(&device), row).unwrap().file
}

#[test]
fn a_table_that_cannot_be_written_costs_the_row_and_nothing_else() {
    let home = folder("unwritable");
    made_up(&home, &json!({ SLOW: 2000 }));
    let tables = home.join("flashcore/plans");
    let file = slow_row(&tables, LENGTH);
    std::fs::rename(&file, tables.join("0.json")).unwrap();
    std::fs::write(&file, "not a table").unwrap();

    let run = home.join("one run");
    let output = flashcore(&tune(Path::new("")), &home)
        .args([run.as_os_str(), "--json".as_ref()])
        .output()
        .unwrap();
    let (out, err) = said_of(&output);
    assert_eq!(output.status.code(), Some(1), "{err}");
    let found: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"));
    let heuristics = plans::heuristics(&problem(LENGTH), &DeviceIdentity::cpu()).unwrap();
    assert_eq!(found["run"]["start"], SLOW, "{found:#}");
    assert_eq!(found["board"]["winner"], heuristics.to_string(), "{found:#}");
    let why = found["plan"]["error"].as_str().unwrap();
    assert!(
        why.starts_with(&*file.to_string_lossy()) && why.contains("no plan table"),
        "{why}"
    );
    assert_eq!(why.matches(&*file.to_string_lossy()).count(), 1, "{why}");
    // It was known before the search began, and in the end it is said what to do.
    let (before, after) = (
        words(&err).find("a winner cannot be kept in the plan table"),
        words(&err).find("the winner is in no plan table"),
    );
    assert!(before.is_some() && before < after, "{err}");
    let typed = err.lines().find(|line| line.contains("--resume --folder")).unwrap();
    assert!(typed.contains(&format!("'{}'", run.display())), "{err}");

    // To people the end of a run is whole, too.
    let output = flashcore(&tune(&home.join("plain")), &home).output().unwrap();
    let (out, err) = said_of(&output);
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    for part in ["the row could not be written", "evidence ", "go on "] {
        assert!(words(&out).contains(part), "{part}: {out}");
    }
    // Nobody who wants no row is told of it.
    let output = flashcore(&format!("{} --skip plan", tune(&home.join("none"))), &home).output();
    let (_, err) = said_of(&output.unwrap());
    assert!(!words(&err).contains("winner"), "{err}");

    // Mended, and what was typed for it.
    std::fs::remove_file(&file).unwrap();
    let resume = format!("{} --resume --json", tune(&home.join("plain")));
    let again = json(&mut flashcore(&resume, &home));
    assert!(again["plan"]["error"].is_null(), "{again:#}");
    assert_eq!(again["plan"]["row"]["kernel"], heuristics.to_string(), "{again:#}");
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_is_said_before_the_search() {
    let home = folder("no-folder");
    std::fs::create_dir_all(home.join("flashcore")).unwrap();
    std::fs::write(home.join("flashcore/plans"), "in the way").unwrap();
    let output = flashcore("tune tiny --device cpu --trials 1", &home).output().unwrap();
    let (out, err) = said_of(&output);
    assert!(
        words(&err).contains("a winner cannot be kept in the plan table"),
        "{err}"
    );
    assert!(out.contains("evidence"), "{out}{err}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// A run that is resumed with nothing left to do: killed after its finals and before the row was written, it writes it.
#[test]
fn a_run_that_is_resumed_puts_the_same_row() {
    let home = folder("settled");
    made_up(&home, &json!({ SLOW: 2000 }));
    let tables = home.join("flashcore/plans");
    let (file, run) = (slow_row(&tables, LENGTH), home.join("run"));
    let typed = format!("{} --json", tune(&run));
    let found = json(&mut flashcore(&typed, &home));
    // The winner is what heuristics choose, and replaces the row that was slower.
    let heuristics = plans::heuristics(&problem(LENGTH), &DeviceIdentity::cpu()).unwrap();
    assert_eq!(found["plan"]["row"]["kernel"], heuristics.to_string(), "{found:#}");
    let rows = || json(&mut flashcore("plans --json", &home))["tables"][0]["rows"].clone();
    assert_eq!(rows(), json!([found["plan"]["row"]]));
    std::fs::remove_file(&file).unwrap();
    for _ in 0..2 {
        let again = json(&mut flashcore(&format!("{typed} --resume"), &home));
        assert_eq!((&again["plan"], &again["trials"]), (&found["plan"], &found["trials"]));
        assert_eq!(rows(), json!([found["plan"]["row"]]));
    }
    std::fs::remove_dir_all(&home).unwrap();
}
