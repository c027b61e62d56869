//! A user's kernel with parameters, some of whose values make it bad: every value is a candidate.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use flashcore_tune::{Trial, Verdict};
use serde_json::Value;

use super::{essence, flashcore, folder, json, kept, said_of, trials, words};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/own-kernel");

/// What is wrong, as a change of the example's PTX.
const BUGS: [(&str, &str, &str); 5] = [
    ("none", "", ""),
    ("hang", "    ret;", "FOREVER:\n    bra FOREVER;"),
    // The sum so far is not rescaled.
    ("sum", "mul.f32 %f6, %f6, %f13;", ""),
    // Warps write one word.
    (
        "race",
        "    mov.u32 %r9, %ctaid.x;",
        "    .shared .b32 word;\n    st.shared.u32 [word], %r8;\n    mov.u32 %r9, %ctaid.x;",
    ),
    (
        "large",
        "    .reg .pred %p<4>;",
        "    .shared .align 4 .b8 large[50000];\n    .reg .pred %p<4>;",
    ),
];

/// A declaration with a PTX file for each value.
fn swept(home: &Path, tolerance: &str) -> PathBuf {
    let ptx = std::fs::read_to_string(Path::new(EXAMPLES).join("attention.ptx")).unwrap();
    for warps in [1, 2, 4] {
        for (bug, from, to) in BUGS {
            assert!(ptx.contains(from), "{from}");
            let rows = "shl.b32 %r9, %r9, 2;";
            let text = ptx
                .replace(from, to)
                .replace(rows, &format!("shl.b32 %r9, %r9, {};", warps / 2));
            std::fs::write(home.join(format!("attention-{warps}-{bug}.ptx")), text).unwrap();
        }
    }
    let toml = std::fs::read_to_string(Path::new(EXAMPLES).join("attention.toml")).unwrap();
    let toml = toml
        .replace("attention.ptx", "attention-{WARPS}-{BUG}.ptx")
        .replace("seq_q / 4", "seq_q / WARPS")
        .replace("[128]", "[\"WARPS * 32\"]");
    let own = "constraints = [\"BUG.none + (WARPS == 4) >= 1\"]\n\n[parameters]\nWARPS = [1, 2, 4]\n\
               BUG = [\"none\", \"hang\", \"sum\", \"race\", \"large\"]\n";
    let file = home.join("mine.toml");
    std::fs::write(&file, format!("{toml}{tolerance}\n{own}")).unwrap();
    file
}

fn tune(home: &Path, file: &Path, to: &str, more: &str) -> std::process::Command {
    let (file, to) = (file.display(), home.join(to).display().to_string());
    let typed = format!(
        "tune {file} --heads 2 --seq 128 --device predict:l4 --strategy exhaustive --trials 40 --seed 3 --folder {to} {more}"
    );
    flashcore(&typed, home)
}

fn trial<'t>(trials: &'t [Trial], values: &str) -> &'t Trial {
    let id = format!("own/mine-{values}");
    trials
        .iter()
        .find(|trial| trial.id == id)
        .unwrap_or_else(|| panic!("{id} in {trials:#?}"))
}

#[test]
fn every_value_is_a_candidate_and_bad_ones_are_refused_with_the_reason() {
    let home = folder("own-swept");
    let file = swept(&home, "");
    let run = json(&mut tune(&home, &file, "run", "--json"));
    let tried = trials(&run);
    // The default, three that are right, and four that are not.
    assert_eq!(tried.len(), 8, "{tried:#?}");
    for (values, verdict, said) in [
        ("BUGhang-WARPS4", Verdict::Hung, "livelock"),
        ("BUGsum-WARPS4", Verdict::Wrong, "FAIL"),
        ("BUGrace-WARPS4", Verdict::Wrong, "race"),
        ("BUGlarge-WARPS4", Verdict::Refused, "50000 B of static shared memory"),
    ] {
        let found = trial(&tried, values);
        assert!(
            found.verdict == verdict && found.reason.contains(said),
            "{values}: {found:?}"
        );
    }
    for values in ["BUGnone-WARPS1", "BUGnone-WARPS2", "BUGnone-WARPS4"] {
        let timed = trial(&tried, values).timed.clone().unwrap();
        assert!(
            timed.error.is_some_and(|error| error < 1e-3) && timed.tolerance.is_none(),
            "{timed:?}"
        );
    }
    let rows = run["board"]["rows"].as_array().unwrap();
    let own: Vec<&Value> = rows
        .iter()
        .filter(|row| row["id"].as_str().unwrap().starts_with("own/"))
        .collect();
    assert_eq!(own.len(), 3, "{rows:#?}");
    assert!(
        own.iter()
            .all(|row| row["simulated"]["ok"] == true && row["error"].is_number()),
        "{own:#?}"
    );
    let board = words(
        &said_of(
            &flashcore(&format!("tune show {}", home.join("run").display()), &home)
                .output()
                .unwrap(),
        )
        .0,
    );
    assert!(
        board.contains("own/mine-BUGnone-WARPS4") && board.contains("yours; largest error"),
        "{board}"
    );
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_search_among_them_that_is_killed_ends_like_one_that_was_not() {
    let home = folder("own-killed");
    let file = swept(&home, "tolerance = 2");
    let whole = json(&mut tune(&home, &file, "whole", "--json"));
    let mut child = tune(&home, &file, "cut", "")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while kept(&home.join("cut")) < 3 && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(kept(&home.join("cut")) >= 3);
    let resumed = json(&mut tune(&home, &file, "cut", "--json --resume"));
    assert_eq!(essence(&resumed), essence(&whole));
    let timed = trial(&trials(&resumed), "BUGnone-WARPS4").timed.clone().unwrap();
    assert_eq!(timed.tolerance, Some(2.0));
    // A change of what runs is another run.
    let text = std::fs::read_to_string(home.join("attention-1-none.ptx")).unwrap();
    std::fs::write(home.join("attention-1-none.ptx"), text + "// changed\n").unwrap();
    let other = said_of(&tune(&home, &file, "cut", "--resume").output().unwrap()).1;
    assert!(words(&other).contains("the kernels of the user was"), "{other}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// Compiles.
mod with_nvcc {
    use super::*;

    #[test]
    #[ignore = "needs nvcc"]
    fn a_source_is_swept_and_its_faults_are_found() {
        let home = folder("own-nvcc");
        let text = std::fs::read_to_string(Path::new(EXAMPLES).join("sweep.toml")).unwrap();
        std::fs::copy(Path::new(EXAMPLES).join("sweep.cu"), home.join("sweep.cu")).unwrap();
        let fewer = text
            .replace("WARPS = [2, 4, 8]", "WARPS = [4]")
            .replace("VEC = [2, 4, 8]", "VEC = [8]");
        let file = home.join("mine.toml");
        std::fs::write(&file, fewer).unwrap();
        let mut command = tune(&home, &file, "run", "--json");
        // The environment of tests has no Python; the compiler is that of this one.
        if let Some(python) = std::env::var_os("FLASHCORE_PYTHON") {
            command.env("FLASHCORE_PYTHON", python);
        }
        let run = json(&mut command);
        let tried = trials(&run);
        for (bug, m, verdict, said) in [
            ("hang", 32, Verdict::Wrong, "livelock"),
            ("fragment", 32, Verdict::Wrong, "FAIL"),
            ("race", 32, Verdict::Wrong, "race"),
            ("none", 64, Verdict::Refused, "shared memory"),
        ] {
            let found = trial(&tried, &format!("BUG{bug}-M{m}-REGS255-VEC8-WARPS4"));
            assert!(found.verdict == verdict && found.reason.contains(said), "{found:?}");
        }
        for m in [16, 32] {
            let found = trial(&tried, &format!("BUGnone-M{m}-REGS255-VEC8-WARPS4"));
            assert!(found.verdict.is_timed(), "{found:?}");
        }
        std::fs::remove_dir_all(&home).unwrap();
    }
}
