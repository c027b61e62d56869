//! What the command prints of what it measured on the host, and charts of it.

use crate::common::json::json;
use crate::common::{assert_fits, flashcore, shown, words};

fn shown_whatever_is_noted(arguments: &str) -> String {
    let ran = flashcore(arguments);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    ran.stdout
}

/// What was benched is drawn, from the store and from an export alike.
#[test]
fn charts_are_drawn_from_evidence() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let store = at("store");
    let shapes = at("shapes.toml");
    let two = "[[problems]]\nname = \"one\"\nseq = 64\n[[problems]]\nname = \"two\"\nseq = 64\nbatch = 2\n";
    std::fs::write(&shapes, two).expect("a file");
    shown_whatever_is_noted(&format!(
        "bench tiny {shapes} --device cpu --peers none --store {store} --kernel cpu/m16n16,cpu/m64n64 --budget 0.05"
    ));
    let ladder =
        format!("evidence --store {store} chart ladder --problem tiny --kernel cpu/m16n16=small --kernel cpu/m64n64");
    let svg = shown(&ladder);
    assert!(svg.starts_with("<svg") && svg.contains(">small<"), "{svg}");
    shown(&format!("{ladder} -o {}", at("ladder.svg")));
    assert_eq!(std::fs::read_to_string(at("ladder.svg")).expect("a file"), svg);

    shown(&format!("evidence --store {store} export -o {}", at("a.jsonl")));
    let of_export = at("a.jsonl");
    assert_eq!(
        shown(&format!(
            "evidence --store none chart ladder {of_export} --problem tiny --kernel cpu/m16n16=small --kernel cpu/m64n64"
        )),
        svg
    );

    // A kernel of ours can be the baseline, as the help of a run without peers says.
    let ratio = shown(&format!(
        "evidence --store none chart ratio {of_export} --baseline cpu/m64n64"
    ));
    assert!(ratio.contains("hot: times as fast as cpu/m64n64"), "{ratio}");

    shown_whatever_is_noted(&format!(
        "bench tiny --device cpu --peers none --store {} --kernel cpu/m16n16 --budget 0.01",
        at("one")
    ));
    shown(&format!("evidence export --store {} -o {}", at("one"), at("one.jsonl")));
    // A baseline that nothing has is told of; no run is exported in place of one that is not there.
    let ran =
        flashcore("bench tiny --device cpu --peers none --store none --kernel cpu/m16n16 --budget 0.01 --baseline fa3");
    assert!(
        ran.code == 0 && words(&ran.stderr).contains("note: no subject's label begins with `fa3`"),
        "{}",
        ran.stderr
    );
    std::fs::write(at("empty.jsonl"), "").expect("a file");
    for (arguments, said) in [
        (
            format!("evidence export nope --store {store}"),
            "no run has a key or a revision that begins with `nope`",
        ),
        (
            format!("evidence import {} --store {store}", at("empty.jsonl")),
            "empty.jsonl: it has no whole line, so no run",
        ),
        (
            // Two batches of one shape would be one point.
            format!("evidence --store none chart lines {of_export}"),
            "two of head_dim 64 and length 64",
        ),
        (
            format!("evidence --store none chart lines {of_export} --mode cold"),
            "mode is cold",
        ),
        (
            format!("evidence --store none chart ratio {of_export} --baseline nope"),
            "it has cpu/",
        ),
        (
            format!("evidence chart ratio {of_export} --store none"),
            "no peer was timed in that run",
        ),
        (
            format!("evidence chart ratio {} --store {store}", at("one.jsonl")),
            "that run timed one kernel; a ratio needs two help: `flashcore bench --kernel ID,ID`",
        ),
        (
            format!("evidence --store none chart ladder {of_export} --problem x"),
            "problem is x (hot); allowed: tiny, one, two",
        ),
        (format!("{ladder} -o {}", at("ladder.png")), "ends in none of .svg"),
        (format!("{ladder} --kernel cpu/m8n8"), "rung is cpu/m8n8"),
    ] {
        let ran = flashcore(&arguments);
        assert!(
            ran.code == 2 && ran.words().contains(said),
            "{arguments}\n{}",
            ran.stderr
        );
    }
}

#[test]
fn a_store_without_runs_and_files_that_are_no_evidence_say_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("notes.md"), "# Notes\n").expect("a file");
    for (arguments, code, said) in [
        (
            format!("evidence show latest --store {}", at("empty")),
            2,
            "empty has no run yet help: `flashcore bench` makes one",
        ),
        (
            format!("evidence chart lines --store {}", at("empty")),
            2,
            "empty has no run yet help: `flashcore bench` makes one",
        ),
        (
            format!("evidence chart lines {}", at("notes.md")),
            2,
            "notes.md is not an evidence file",
        ),
        (
            format!(
                "bench tiny --device cpu --peers none --kernel cpu/m16n16 --budget 0.01 --store {}",
                at("notes.md/x")
            ),
            3,
            "help: name another folder with --store; `bench` keeps nothing with --store none",
        ),
    ] {
        let ran = flashcore(&arguments);
        assert!(
            ran.code == code && ran.words().contains(said),
            "{arguments}: {} {}",
            ran.code,
            ran.words()
        );
    }
}

/// A bench that was killed leaves a run without its end, which is shown as cut off and not as finished.
#[test]
fn a_bench_that_was_killed_is_shown_as_cut_off() {
    let folder = std::env::temp_dir().join(format!("flashcore-killed-{}", std::process::id()));
    let store = folder.display().to_string();
    shown_whatever_is_noted(&format!(
        "bench tiny --device cpu --peers none --store {store} --kernel cpu/m16n16 --budget 0.01"
    ));
    let run = std::fs::read_dir(&folder)
        .expect("the store")
        .next()
        .expect("a run")
        .expect("a file")
        .path();
    let text = std::fs::read_to_string(&run).expect("lines");
    assert!(json(&format!("evidence --store {store} list --json"))["runs"][0]["finished"] == true);
    // What a kill in the middle of a line leaves.
    let end = text.find("{\"end\"").expect("its end");
    std::fs::write(&run, &text[..end + 9]).expect("written");
    let shown_again = shown(&format!("evidence --store {store} show"));
    for part in [
        "the run has no closing line",
        "9 bytes were dropped",
        "cut off before it ended",
    ] {
        assert!(shown_again.contains(part), "{part}\n{shown_again}");
    }
    assert!(!shown_again.contains("time budget spent"), "{shown_again}");
    let list = words(&shown(&format!("evidence list --store {store}")));
    for part in ["1 measurement, ", ", cut off, last line torn: 9 bytes dropped"] {
        assert!(list.contains(part), "{part}\n{list}");
    }
    let listed = &json(&format!("evidence --store {store} list --json"))["runs"][0];
    assert_eq!((&listed["finished"], &listed["torn_bytes"]), (&false.into(), &9.into()));
    std::fs::remove_dir_all(folder).expect("removed");
}

/// A list says what each run is of and when it was; a beginning that several runs share is said to be of several.
#[test]
fn runs_are_told_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let store = at("store");
    for problem in ["tiny", "tiny --dtype bf16"] {
        shown_whatever_is_noted(&format!(
            "bench {problem} --device cpu --peers none --store {store} --kernel cpu/m16n16 --budget 0.01"
        ));
    }
    let list = shown(&format!("evidence --store {store}"));
    assert_eq!(list.matches(" UTC ").count(), 2, "{list}");
    assert!(list.contains("    tiny: 1 measurement, "), "{list}");
    assert_fits("evidence", &list);
    let runs = json(&format!("evidence --json --store {store}"))["runs"].clone();
    assert_eq!(runs[0]["cases"][0], "tiny", "{runs:#}");
    let revision = runs[0]["identity"]["revision"].as_str().expect("a revision");
    let last = runs[1]["key"].as_str().expect("a key");
    let ran = flashcore(&format!("evidence show {revision} --store {store}"));
    let noted = format!("note: 2 runs begin with `{revision}`; this is the latest, {last} of ");
    assert!(words(&ran.stderr).contains(&noted), "{}", ran.stderr);
    assert_eq!(flashcore(&format!("evidence show {last} --store {store}")).stderr, "");
    // What a file has, as JSON.
    shown(&format!("evidence export --store {store} -o {}", at("all.jsonl")));
    let import = format!("evidence import {} --store {} --json", at("all.jsonl"), at("other"));
    let added = json(&import);
    assert_eq!((&added["runs"], &added["known"]), (&2.into(), &0.into()), "{added}");
    let report = json(&format!("report {} -o {} --json", at("all.jsonl"), at("r.md")));
    assert_eq!(report["has"]["runs"], 2, "{report}");
    // `--store none` is for what keeps evidence.
    assert!(!shown("evidence --help").contains("--no-store"));
}

/// Ratios of times and of speeds are told apart.
#[test]
fn a_comparison_says_which_way_its_ratios_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().display();
    shown_whatever_is_noted(&format!(
        "bench tiny --device cpu --kernel cpu/m16n16 --peers none --budget 0.01 --store {store}"
    ));
    let text = shown_whatever_is_noted(&format!("evidence compare latest latest --store {store}"));
    assert!(text.contains("B / A: ratio of times, that of the medians"), "{text}");
    assert!(text.contains("below 1 is faster"), "{text}");
}
