//! `flashcore report` and `flashcore reproduce`: on the store, on exports, on searches, and on what is none. And what
//! is published of runs.

use std::path::Path;
use std::process::Command;

use crate::common::{assert_fits, command, run};

/// A command in a folder, whose data folder is in it too, with made-up times of kernels on the host.
fn there(folder: &Path, arguments: &str) -> Command {
    let mut command = command(arguments);
    command
        .current_dir(folder)
        .env("XDG_DATA_HOME", folder.join("data"))
        .env("FLASHCORE_CPU_NAME", "Some CPU")
        .env("FLASHCORE_PYTHON", "/no/such/python")
        .env("FLASHCORE_HOST_TIMES", folder.join("times.json"));
    command
}

fn times(folder: &Path, text: &str) {
    std::fs::write(folder.join("times.json"), text).unwrap();
}

/// A folder with a bench of two kernels of the host in its store.
fn benched() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    times(folder.path(), r#"{"cpu/m16n16": 900, "cpu/m32n16": 1000}"#);
    let bench = "bench tiny --device cpu --kernel cpu/m16n16,cpu/m32n16 --peers none --budget 0.01";
    let ran = run(&mut there(folder.path(), bench));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    folder
}

/// The id in the first line of Markdown that has this text, which ends in it.
fn id_of<'t>(markdown: &'t str, text: &str) -> &'t str {
    let line = markdown
        .lines()
        .find(|line| line.contains(text))
        .unwrap_or_else(|| panic!("{text}: {markdown}"));
    line.trim_end_matches(" |")
        .trim_end_matches('`')
        .rsplit('`')
        .next()
        .unwrap()
}

#[test]
fn the_store_makes_a_report_whose_numbers_are_reproduced() {
    let folder = benched();
    let at = folder.path();
    let ran = run(&mut there(at, "report"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    let markdown = ran.stdout;
    assert!(markdown.starts_with("# FlashCore: what was measured\n"), "{markdown}");
    let id = id_of(&markdown, "| tiny | `cpu/m16n16` | 900.0 |");
    let shown = run(&mut there(at, &format!("reproduce {id}")));
    assert_eq!((shown.code, shown.stderr.as_str()), (0, ""));
    assert_fits("reproduce", &shown.stdout);
    let words = shown.words();
    let command = "flashcore bench tiny --kernel cpu/m16n16,cpu/m32n16 --peers none";
    for expected in [
        "tiny, hot, cpu/m16n16",
        "value 900.0 µs",
        "device Some CPU",
        "here device, driver and build",
    ] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
    assert!(
        words.contains(command) || words.contains("flashcore bench tiny --kernel cpu/m16n16 --peers none"),
        "{words}"
    );
    // The same times again, then others.
    let again = format!("reproduce {id} --run --budget 0.01 --store none");
    let same = run(&mut there(at, &again));
    assert_eq!(same.code, 0, "{}{}", same.stdout, same.stderr);
    assert!(
        same.words().contains("reproduced: the intervals overlap"),
        "{}",
        same.words()
    );
    times(at, r#"{"cpu/m16n16": 1100, "cpu/m32n16": 1000}"#);
    let slower = run(&mut there(at, &again));
    assert_eq!(slower.code, 1, "{}{}", slower.stdout, slower.stderr);
    let words = slower.words();
    assert!(
        words.contains("now 1.100 ms") && words.contains("not reproduced"),
        "{words}"
    );
    let json = run(&mut there(at, &format!("reproduce {id} --json")));
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["recipe"]["id"], id);
    assert!(json["recipe"]["command"].is_string() && json["again"].is_null());
    assert_eq!(json["recipe"]["time"]["us"], 900.0);
}

#[test]
fn a_predicted_device_is_in_reports_and_charts() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    std::fs::write(
        at.join("p.toml"),
        "[[problems]]\nname = \"small\"\nheads = 2\nseq = 128\n",
    )
    .unwrap();
    let kernels = "scalar/naive-t128-v16,scalar/tiled-m32n32-w4-v16,mma/m64n64-w4x1-s2-b1-qsh-xor-always,default";
    let bench = format!("bench p.toml --device predict:l4 --kernel {kernels}");
    let ran = run(&mut there(at, &bench));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    assert_fits("bench", &ran.stdout);
    for said in [
        "hot (PREDICTED), by the cost model",
        "NVIDIA L4 (PREDICTED) (predict:l4, sm_89)",
    ] {
        assert!(ran.stdout.contains(said), "{said}\n{}", ran.stdout);
    }
    let rows = ran.stdout.lines().filter(|line| line.ends_with(" PREDICTED"));
    assert_eq!(rows.count(), 4, "{}", ran.stdout);
    let ran = run(&mut there(at, "report"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{}", ran.stdout);
    for said in [
        "## NVIDIA L4 (PREDICTED)",
        "The ladder",
        "| small | `scalar/naive-t128-v16` |",
    ] {
        assert!(ran.stdout.contains(said), "{said}\n{}", ran.stdout);
    }
    let id = id_of(&ran.stdout, "| small | `scalar/naive-t128-v16` |");
    let words = run(&mut there(at, &format!("reproduce {id}"))).words();
    for said in ["(PREDICTED)", "--device predict:l4 --kernel scalar/naive-t128-v16"] {
        assert!(words.contains(said), "{said}: {words}");
    }
    let ran = run(&mut there(
        at,
        "evidence chart ladder latest --problem small -o ladder.svg",
    ));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let svg = std::fs::read_to_string(at.join("ladder.svg")).unwrap();
    assert!(svg.contains("small: µs a run, PREDICTED"), "{svg}");
}

#[test]
fn reports_of_files_name_their_form_and_what_is_in_them() {
    let folder = benched();
    let at = folder.path();
    assert_eq!(run(&mut there(at, "evidence export all -o runs.jsonl")).code, 0);
    let ran = run(&mut there(at, "report runs.jsonl -o report.html"));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(
        ran.stdout.starts_with("report.html: ") && ran.words().contains("1 run, 2 times"),
        "{}",
        ran.stdout
    );
    let page = std::fs::read_to_string(at.join("report.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<details>"));
    // Where the run is from.
    assert!(page.contains("<td>runs.jsonl<td>"), "{page}");
}

#[test]
fn only_runs_of_a_commit_are_published() {
    // Messages are broken into lines.
    let says = |text: &str, words: &str| text.split_whitespace().collect::<Vec<_>>().join(" ").contains(words);
    let folder = benched();
    let at = folder.path();
    // Folders above the temporary one may be a clone.
    let nowhere = run(there(at, "evidence publish small latest").current_dir("/"));
    assert_eq!(nowhere.code, 2);
    assert!(says(&nowhere.stderr, "has evidence/current.toml"), "{}", nowhere.stderr);
    std::fs::create_dir(at.join("evidence")).unwrap();
    std::fs::create_dir(at.join("docs")).unwrap();
    std::fs::write(at.join("evidence/current.toml"), "checked = []\n").unwrap();
    let init = Command::new("git")
        .arg("-C")
        .arg(at)
        .args(["init", "-q"])
        .status()
        .unwrap();
    assert!(init.success());
    // This program was not built from a commit of that repository.
    let elsewhere = run(&mut there(at, "evidence publish small latest"));
    assert!(
        elsewhere.code != 0 && says(&elsewhere.stderr, "is no commit of it"),
        "{}",
        elsewhere.stderr
    );
    let other = run(&mut there(at, "evidence publish small nothing"));
    assert_eq!(other.code, 2, "{}", other.stderr);
    let name = run(&mut there(at, "evidence publish a/b latest"));
    assert!(
        name.code == 2 && says(&name.stderr, "`a/b` is no name of a bundle"),
        "{}",
        name.stderr
    );
    let empty = run(&mut there(at, "evidence render --check"));
    assert_eq!((empty.code, empty.stdout.as_str()), (0, ""), "{}", empty.stderr);
    std::fs::write(at.join("README.md"), "<!-- figure a --><!-- /figure -->\n").unwrap();
    let unknown = run(&mut there(at, "evidence render --check"));
    assert!(
        unknown.code != 0 && says(&unknown.stderr, "figure `a` is not in current.toml"),
        "{}",
        unknown.stderr
    );
}

#[test]
fn a_search_has_its_history_in_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    times(at, r#"{"cpu/m16n16": 900, "cpu/m32n16": 500}"#);
    let ran = run(&mut there(at, "tune tiny --device cpu --trials 6 --folder search"));
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let report = run(&mut there(at, "report search"));
    assert_eq!(report.code, 0, "{}", report.stderr);
    let markdown = report.stdout;
    assert!(
        markdown.contains("### Tuning: tiny") && markdown.contains("| trial | kernel |"),
        "{markdown}"
    );
    let id = id_of(&markdown, "| 0 | `cpu/");
    let shown = run(&mut there(at, &format!("reproduce {id} search")));
    assert!(
        shown.words().contains("trial 0 of the search on tiny"),
        "{}",
        shown.words()
    );
}

#[test]
fn what_cannot_be_reported_is_said() {
    let folder = benched();
    let at = folder.path();
    std::fs::write(at.join("broken.jsonl"), "no evidence\n").unwrap();
    std::fs::write(at.join("row.jsonl"), "{\"run\":\"a\",\"date\":1}\n").unwrap();
    std::fs::write(at.join("torn.jsonl"), "{").unwrap();
    std::fs::create_dir(at.join("empty")).unwrap();
    // A run of the store with a wrong line in its middle, as an export.
    run(&mut there(at, "evidence export -o line.jsonl"));
    let export = std::fs::read_to_string(at.join("line.jsonl")).unwrap();
    let (header, rest) = export.split_once('\n').unwrap();
    let wrong = format!("{header}\n{{\"sample\":{{\"subject\":0}}}}\n{rest}");
    std::fs::write(at.join("line.jsonl"), wrong).unwrap();
    let wrong_line = "error: line.jsonl: line 2: missing field";
    for (arguments, code, expected) in [
        ("report line.jsonl", 2, wrong_line),
        ("evidence compare line.jsonl latest", 2, wrong_line),
        ("evidence import line.jsonl", 2, wrong_line),
        ("evidence chart lines line.jsonl", 2, wrong_line),
        (
            "report nothing",
            2,
            "no run has a key or a revision that begins with `nothing`",
        ),
        ("report no/such.jsonl", 2, "no/such.jsonl: no such file or folder"),
        ("report broken.jsonl", 2, "broken.jsonl is not an evidence file"),
        ("report torn.jsonl -o torn.md", 2, "no number is in torn.jsonl"),
        ("report row.jsonl", 2, "row.jsonl is not an evidence file"),
        ("report empty", 2, "empty has no evidence: no file in it ends in .jsonl"),
        ("report -o report.pdf", 2, "report.pdf ends in none of .html, .md"),
        ("report -o no/such/report.html", 2, "there is no folder no/such"),
        (
            "report --store other",
            2,
            "other has no run yet, and there is no search",
        ),
        ("reproduce 0000000000 --store none", 2, "--store none is for --run"),
        ("reproduce xyz", 2, "`xyz` is no evidence id: 4 to 10 of the digits"),
        ("reproduce abc", 2, "`abc` is no evidence id"),
        (
            "reproduce 0000000000",
            2,
            "no number of these sources has the id `0000000000`",
        ),
        ("reproduce 0000000000 --budget 3", 2, "--run"),
    ] {
        let ran = run(&mut there(at, arguments));
        let words = ran.words();
        assert_eq!(ran.code, code, "flashcore {arguments}: {words}");
        assert!(words.contains(expected), "flashcore {arguments}: {words}");
        assert!(!words.contains("panicked"), "{words}");
        assert_fits(arguments, &ran.stderr);
    }
    // A variable of a shell that is not set names no run.
    let ran = run(there(at, "report").arg(""));
    assert_eq!(ran.code, 2, "{}", ran.words());
}

/// One run of three is damaged: the report has the others, and says what it has not.
#[test]
fn a_damaged_run_takes_no_other_away() {
    let folder = benched();
    let at = folder.path();
    for _ in 0..2 {
        let bench = "bench tiny --device cpu --kernel cpu/m16n16,cpu/m32n16 --peers none --budget 0.01";
        assert_eq!(run(&mut there(at, bench)).code, 0);
    }
    let mut files = Vec::new();
    let mut folders = vec![at.join("data/flashcore/evidence")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "jsonl") {
                files.push(path);
            }
        }
    }
    assert_eq!(files.len(), 3, "{files:?}");
    let text = std::fs::read_to_string(&files[0]).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // A sample in the middle, so that the run is listed and cannot be read.
    let damaged = [&lines[..3], &[r#"{"sample":{"subject":"#], &lines[4..]].concat();
    std::fs::write(&files[0], damaged.join("\n") + "\n").unwrap();
    for selection in ["", " all"] {
        let ran = run(&mut there(at, &format!("report{selection}")));
        let said = ran.words();
        assert_eq!(ran.code, 0, "{said}");
        assert!(said.contains("note: not read: ") && said.contains("line 4"), "{said}");
        assert_eq!(ran.stdout.matches("Note: not read: ").count(), 1, "{}", ran.stdout);
        assert!(ran.stdout.contains("| tiny | `cpu/m16n16` | 900.0 |"), "{}", ran.stdout);
    }
    // That one alone is an error.
    let key = files[0].file_stem().unwrap().to_string_lossy().into_owned();
    let ran = run(&mut there(at, &format!("report {key}")));
    assert!(ran.code != 0 && ran.words().contains("line 4"), "{}", ran.words());
}
