//! Tables that cannot be written, and runs that were settled in them before: what a search found is printed whole, and
//! tables are touched once.

use std::path::{Path, PathBuf};

use flashcore_bench::{DeviceIdentity, Interval, Ratio};
use flashcore_problem::Problem;
use flashcore_tune::plans;
use serde_json::Value;

use super::{flashcore, folder, json, said, words};

/// It does half the work again of heuristics' kernel, and more, on as many threads, so that that one wins whatever else the
/// machine does: K and V are read anew for every 16 rows, four keys at a time.
const SLOW: &str = "cpu/m16n4";
/// The problem that is searched, and one a little longer whose rows serve it, too.
const LENGTH: usize = 1000;
const LONGER: usize = 1024;

fn problem(length: usize) -> Problem {
    let tiny = Problem::builder().heads(1, 1).head_dim(64).seq_len(length);
    tiny.build().unwrap()
}

/// A search that begins at a row and finds out that heuristics' kernel is faster.
fn tune(run: &Path) -> String {
    format!(
        "tune tiny --full --batch 1 --heads 1 --kv-heads 1 --head-dim 64 --seq {LENGTH} --device cpu --strategy random \
         --budget 2 --folder {}",
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
    plans::keep(plans_folder, &plans::device_of(&device), row).unwrap()
}

#[test]
fn a_table_that_cannot_be_written_costs_the_row_and_nothing_else() {
    let home = folder("unwritable");
    let tables = home.join("flashcore/plans");
    let file = slow_row(&tables, LENGTH);
    std::fs::rename(&file, tables.join("0.json")).unwrap();
    std::fs::write(&file, "not a table").unwrap();

    let run = home.join("one run");
    let output = flashcore(&tune(Path::new("")), &home)
        .args([run.as_os_str(), "--json".as_ref()])
        .output()
        .unwrap();
    let (out, err) = said(&output);
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
        words(&err).find("a winner could not be kept in the plan table as it is"),
        words(&err).find("the winner is in no plan table"),
    );
    assert!(before.is_some() && before < after, "{err}");
    let typed = err.lines().find(|line| line.contains("--resume --folder")).unwrap();
    assert!(typed.contains(&format!("'{}'", run.display())), "{err}");

    // To people the end of a run is whole, too.
    let output = flashcore(&tune(&home.join("plain")), &home).output().unwrap();
    let (out, err) = said(&output);
    assert_eq!(output.status.code(), Some(1), "{out}{err}");
    for part in ["no row was written, and one should have been", "evidence ", "go on "] {
        assert!(words(&out).contains(part), "{part}: {out}");
    }
    // Nobody who wants no row is told of it.
    let output = flashcore(&format!("{} --no-plan", tune(&home.join("none"))), &home).output();
    let (_, err) = said(&output.unwrap());
    assert!(!words(&err).contains("winner"), "{err}");

    // Mended, and what was typed for it.
    std::fs::remove_file(&file).unwrap();
    let resume = format!("{} --resume --json", tune(&home.join("plain")));
    let again = json(&mut flashcore(&resume, &home));
    assert!(again["plan"]["error"].is_null(), "{again:#}");
    let why = again["plan"]["none"].as_str().unwrap();
    assert!(why.starts_with("heuristics choose"), "{why}");
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_folder_that_cannot_be_written_is_said_before_the_search() {
    let home = folder("no-folder");
    std::fs::create_dir_all(home.join("flashcore")).unwrap();
    std::fs::write(home.join("flashcore/plans"), "in the way").unwrap();
    let output = flashcore("tune tiny --device cpu --budget 1", &home).output().unwrap();
    let (out, err) = said(&output);
    assert!(
        words(&err).contains("a winner could not be kept in the plan table as it is"),
        "{err}"
    );
    assert!(out.contains("evidence"), "{out}{err}");
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_run_with_nothing_new_leaves_tables_alone() {
    let home = folder("settled");
    let tables = home.join("flashcore/plans");
    let (file, run) = (slow_row(&tables, LONGER), home.join("run"));
    let rows = || {
        let listed = json(&mut flashcore("plans --json", &home));
        listed["tables"][0]["rows"].as_array().unwrap().len()
    };
    // The row of the longer problem would go before heuristics, and so one is written that says what they say.
    let words_of_run = tune(&run);
    let found = json(&mut flashcore(&format!("{words_of_run} --json"), &home));
    let plan = &found["plan"];
    assert_eq!((plan["over"]["kernel"].as_str(), rows()), (Some(SLOW), 2), "{found:#}");
    assert_eq!(
        (&plan["used"], &plan["row"]["kernel"]),
        (&found["board"]["winner"], &found["board"]["winner"])
    );
    let place = format!("{}:{}", file.display(), plan["number"]);
    let drop = || json(&mut flashcore(&format!("plans --drop {place} --json"), &home))["dropped"].clone();
    let gone = drop();
    assert_eq!(
        (&gone["number"], &gone["kernel"]),
        (&plan["number"], &plan["row"]["kernel"]),
        "{gone}"
    );

    // It was taken out on purpose, and stays out; what became of it is said.
    let resume = format!("{words_of_run} --resume --json");
    let again = json(&mut flashcore(&resume, &home));
    assert_eq!(rows(), 1, "{again:#}");
    let why = again["plan"]["none"].as_str().unwrap();
    assert!(
        why.contains("had nothing new to do") && why.contains("was written into"),
        "{why}"
    );
    assert_eq!(again["plan"]["then"], *plan);
    let (out, _) = said(&flashcore(&format!("{words_of_run} --resume"), &home).output().unwrap());
    assert!(
        words(&out).contains("plan no table was touched, for this run had nothing new to do"),
        "{out}"
    );

    // Killed after its finals and before the row was written: then it writes it.
    std::fs::remove_file(run.join("plan.json")).unwrap();
    let late = json(&mut flashcore(&resume, &home));
    assert_eq!(
        (late["plan"]["row"].clone(), rows()),
        (plan["row"].clone(), 2),
        "{late:#}"
    );
    // So does one that has something new.
    assert_eq!(drop(), gone);
    let more = json(&mut flashcore(&resume.replace("--budget 2", "--budget 3"), &home));
    assert_eq!((more["trials"].as_array().unwrap().len(), rows()), (3, 2), "{more:#}");
    std::fs::remove_dir_all(&home).unwrap();
}
