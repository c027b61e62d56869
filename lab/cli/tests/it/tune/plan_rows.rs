//! Which kernel a search begins at, and what is used from then on: rows of plan tables.

use flashcore::unstable::plans::PlanDevice;
use flashcore_bench::{DeviceIdentity, Interval, Ratio};
use flashcore_problem::Problem;
use flashcore_tune::plans;
use serde_json::{Value, json};
use std::path::Path;

use super::{flashcore, folder, json, made_up, trials, words};

/// What the host's kernel is chosen by, as `run` has it.
fn chosen(problem: &str, home: &Path, plans: &str) -> Value {
    let words = format!("run {problem} --device cpu --json");
    json(flashcore(&words, home).env("FLASHCORE_PLANS", plans))
}

#[test]
fn a_winner_is_what_is_used_from_then_on() {
    let home = folder("plans");
    let problem = "tiny --seq 64 --heads 2 --head-dim 64";
    let start = chosen(problem, &home, "shipped")["kernel"].clone();
    // Whatever is tried is faster than heuristics' kernel, all by as much.
    made_up(&home, &json!({ start.as_str().unwrap(): 2000 }));
    let typed = format!("tune {problem} --device cpu --strategy elite --trials 3 --json");
    let run = json(&mut flashcore(&typed, &home));
    let winner = &run["board"]["winner"];
    assert_eq!(run["run"]["start"], start);
    assert_ne!(*winner, start, "{run:#}");
    assert_eq!(run["plan"]["row"]["kernel"], *winner);
    assert_eq!(
        (&run["plan"]["row"]["gain"], &run["plan"]["used"]),
        (&0.5.into(), winner)
    );
    // A row with made-up times says so.
    assert_eq!(run["plan"]["row"]["driver"], "made-up times");
    let used = chosen(problem, &home, "");
    assert_eq!(used["kernel"], *winner);
    assert!(used["why"].as_str().unwrap().starts_with("row 1 of "), "{used}");
    let listed = json(&mut flashcore("plans --json", &home));
    assert_eq!(listed["tables"][0]["rows"][0], run["plan"]["row"]);
    let place = format!("{}:{}", run["plan"]["file"].as_str().unwrap(), run["plan"]["number"]);
    let other = flashcore(&format!("plans drop {place}:none"), &home).output().unwrap();
    let said = String::from_utf8(other.stderr).unwrap();
    assert!(
        other.status.code() == Some(2) && words(&said).contains("has now"),
        "{said}"
    );
    let dropped = flashcore(&format!("plans drop {place}"), &home).output().unwrap();
    assert!(dropped.status.success());
    assert_eq!(chosen(problem, &home, "")["kernel"], start);
    // Nothing is kept where that was asked for.
    let again = format!("{typed} --seed 2 --skip plan");
    assert_eq!(json(&mut flashcore(&again, &home))["plan"]["none"], "--skip plan");
    let listed = json(&mut flashcore("plans --json", &home));
    assert_eq!(
        listed["tables"][0]["rows"].as_array().map(Vec::len),
        Some(0),
        "{listed:#}"
    );
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_backward_winner_is_used_for_backward_passes() {
    let home = folder("backward-plans");
    let problem = "tiny --seq 64 --heads 2 --head-dim 64";
    let backward = format!("{problem} --backward");
    let (start, forward) = (chosen(&backward, &home, "shipped"), chosen(problem, &home, ""));
    made_up(&home, &json!({ start["kernel"].as_str().unwrap(): 2000 }));
    let typed = format!("tune {backward} --device cpu --strategy elite --trials 3 --json");
    let run = json(&mut flashcore(&typed, &home));
    let winner = &run["board"]["winner"];
    assert_ne!(*winner, start["kernel"], "{run:#}");
    let row = &run["plan"]["row"];
    assert_eq!(
        (&row["kernel"], &row["problem"]["direction"]),
        (winner, &"backward".into())
    );
    assert_eq!(run["plan"]["used"], *winner);
    let used = chosen(&backward, &home, "");
    assert_eq!(used["kernel"], *winner);
    assert!(used["why"].as_str().unwrap().starts_with("row 1 of "), "{used}");
    assert_eq!(chosen(problem, &home, "")["kernel"], forward["kernel"]);
    let listed = flashcore("plans", &home).output().unwrap();
    let listed = words(&String::from_utf8(listed.stdout).unwrap());
    assert!(listed.contains("B1 H2/2 Sq64 Skv64 D64 fp16 full backward"), "{listed}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// `explain` names the row that a backward pass has its kernel from, or why it cannot run.
#[test]
fn explain_names_the_row_of_a_backward_pass() {
    let home = folder("explained");
    let of_plans = home.join("flashcore/plans");
    let device = PlanDevice {
        name: "NVIDIA H200".to_string(),
        target: "sm_90a".to_string(),
        units: 132,
    };
    let problem = Problem::named("small-backward").unwrap();
    let ratio = Ratio {
        value: 0.9,
        interval: Interval { lo: 0.89, hi: 0.91 },
        of_medians: 0.9,
        rounds: 9,
    };
    let explained = |words: &str| {
        let words = format!("explain small --profile h200 --json {words}");
        json(&mut flashcore(&words, &home))
    };
    for (kernel, runs) in [
        ("mma/m64n128-w1x8-s2-b1-qsh-xor", true),
        ("wgmma/m64n128-s2-free", false),
    ] {
        let (when, of) = (("1a2b3c4d5e6f", 0), DeviceIdentity::cpu());
        let row = plans::row(&problem, kernel, "wgmma/m128n128-s2-pingpong", &ratio, &of, when).unwrap();
        plans::put(&of_plans, &device, row).unwrap();
        let found = explained("--backward");
        assert_eq!(found["kernel"] == kernel, runs, "{found:#}");
        let of_row = &found["plans"]["row"]["row"];
        assert_eq!(of_row["problem"]["direction"] == "backward", runs, "{found:#}");
        let text = flashcore("explain small --backward --profile h200", &home)
            .output()
            .unwrap();
        let text = words(&String::from_utf8(text.stdout).unwrap());
        let said = if runs {
            "row 1 of ".to_string()
        } else {
            format!("{kernel} (row 1 of ")
        };
        assert!(text.contains(&said), "{text}");
        let forward = explained("");
        assert_ne!(forward["kernel"], kernel);
        // The shipped table has a row for that.
        assert!(forward["plans"]["row"]["row"]["problem"]["direction"].is_null());
    }
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_search_begins_at_what_the_library_would_run() {
    let home = folder("default");
    let problem = Problem::named("tiny").unwrap();
    let device = DeviceIdentity::cpu();
    let ratio = Ratio {
        value: 0.9,
        interval: Interval { lo: 0.89, hi: 0.91 },
        of_medians: 0.9,
        rounds: 9,
    };
    let heuristics = plans::heuristics(&problem, &device).unwrap().to_string();
    let row = plans::row(
        &problem,
        "cpu/m48n80",
        &heuristics,
        &ratio,
        &device,
        ("1a2b3c4d5e6f", 0),
    )
    .unwrap();
    let of_plans = home.join("flashcore/plans");
    let file = plans::put(&of_plans, &plans::device_of(&device), row).unwrap().file;

    let typed = "tune tiny --device cpu --strategy random --trials 2 --json --folder";
    let kept = home.join("run").display().to_string();
    let run = json(&mut flashcore(&format!("{typed} {kept}"), &home));
    assert_eq!(run["run"]["start"], "cpu/m48n80", "{run:#}");
    let by = run["run"]["default"]["row"].as_str().unwrap();
    assert!(by.starts_with("row 1 of ") && by.contains("10.0 %"), "{by}");
    // A row may be older than the heuristics beside it.
    let tried: Vec<String> = trials(&run).into_iter().map(|trial| trial.id).collect();
    assert_eq!(tried, ["cpu/m48n80".to_string(), heuristics.clone()]);
    let shown = flashcore(&format!("tune show {kept}"), &home).output().unwrap();
    let shown = words(&String::from_utf8(shown.stdout).unwrap());
    assert!(shown.contains("cpu/m48n80, the default (row 1 of"), "{shown}");

    // It goes on from there when the table is gone; a new run and a pinned one do not.
    std::fs::remove_file(file).unwrap();
    let resumed = json(&mut flashcore(&format!("{typed} {kept} --resume"), &home));
    assert_eq!(resumed["run"]["default"], run["run"]["default"]);
    let mut plain = flashcore("tune tiny --device cpu --strategy random --trials 2", &home);
    let said = words(&String::from_utf8(plain.output().unwrap().stdout).unwrap());
    assert!(said.contains(&format!("{heuristics}, by heuristics")), "{said}");
    assert!(
        said.contains(&format!("{heuristics}, the default (heuristics)")),
        "{said}"
    );
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_table_that_was_named_and_is_none_is_said() {
    let home = folder("named");
    let file = home.join("named.json");
    std::fs::write(&file, "{}").unwrap();
    for typed in [
        "run tiny --device cpu",
        "plans",
        "explain small --profile h200",
        "bench tiny --device cpu --store none",
    ] {
        let output = flashcore(typed, &home).env("FLASHCORE_PLANS", &file).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{typed}: {said}");
        assert!(words(&said).contains("is no plan table"), "{typed}: {said}");
    }
    // In the user's folder it is noted, and spoils nothing.
    std::fs::create_dir_all(home.join("flashcore/plans")).unwrap();
    std::fs::rename(&file, home.join("flashcore/plans/named.json")).unwrap();
    let output = flashcore("run tiny --device cpu", &home).output().unwrap();
    let said = words(&String::from_utf8(output.stdout).unwrap());
    assert!(output.status.success() && said.contains("is no plan table"), "{said}");
    let output = flashcore("explain small --profile h200 --json", &home)
        .output()
        .unwrap();
    let explained: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(explained["plans"]["notes"][0].as_str().unwrap().contains("named.json"));
    assert_eq!(flashcore("plans", &home).output().unwrap().status.code(), Some(1));
    std::fs::remove_dir_all(&home).unwrap();
}
