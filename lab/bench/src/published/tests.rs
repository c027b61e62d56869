//! A repository with one bundle, and a bad one for each rule.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::verify::loose_speeds;
use super::*;
use crate::defences::Inspection;
use crate::problems::cases;
use crate::store::{Selector, hash_of_rows};
use crate::{Case, DeviceIdentity, LaunchMode, Options, RunIdentity, Sample, SubjectInfo};

const LIST: &str = "checked = [\"README.md\"]\n
[[figure]]\nid = \"times\"\nbundles = [\"small\"]\nform = \"table\"\n
[[figure]]\nid = \"all\"\nbundles = [\"small\"]\nform = \"geomean\"\npeers = [\"torch/cudnn\", \"fa3\"]\n
[[figure]]\nid = \"count\"\nbundles = [\"small\"]\nform = \"count\"\nproblems = [\"small*\"]\n
[[figure]]\nid = \"slowest\"\nbundles = [\"small\"]\nform = \"slowest\"\n
[[figure]]\nid = \"chart\"\nbundles = [\"small\"]\nform = \"chart\"\nproblems = [\"small\"]\nto = \"docs/small.svg\"\n";
const README: &str = "# R\n\n<!-- figure times -->old<!-- /figure -->\n\nIt is <!-- figure all --><!-- /figure -->,\n\
    faster on <!-- figure count -->2 ×<!-- /figure -->,\n\
    <!-- figure slowest --><!-- /figure -->. Version 3 is 4 times\n";
const OURS: &str = "mma/m32n128-w2x2-s5-b1-qreg-xor-cond";

fn run_git(root: &Path, words: &[&str]) {
    let user = ["-c", "user.name=a", "-c", "user.email=a@b"];
    let ran = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(user)
        .args(words)
        .output()
        .unwrap();
    assert!(
        ran.status.success(),
        "{words:?}: {}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

/// A repository with a commit, a list, a page and the bundle of a run: of two problems in which the second kernel is
/// faster than cuDNN by a tenth and by nothing, and FA3 is slower than both.
fn repository() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    let at = root.path();
    for folder in [FOLDER, "docs", "store"] {
        std::fs::create_dir(at.join(folder)).unwrap();
    }
    std::fs::write(at.join(FOLDER).join(CURRENT), LIST).unwrap();
    std::fs::write(at.join("README.md"), README).unwrap();
    run_git(at, &["init", "-q"]);
    run_git(at, &["add", "README.md"]);
    run_git(at, &["commit", "-qm", "one"]);
    let bundle = bundle(at, &cases("small-set", None).unwrap()[..2], &[1.1, 1.0]);
    std::fs::write(path_of(at, "small"), bundle).unwrap();
    root
}

/// The bundle of a run on these problems, with the gains over cuDNN, at a commit of a repository.
fn bundle(at: &Path, cases: &[Case], gains: &[f64]) -> Vec<u8> {
    let revision = whole_revision(at, "HEAD").unwrap();
    let identity = RunIdentity {
        revision: revision[..12].to_string(),
        command: ["flashcore", "bench", "small-set"].map(str::to_string).to_vec(),
        ..RunIdentity::now(DeviceIdentity::cpu())
    };
    let store = Store::at(&at.join("store"));
    let writer = store.begin_run(&identity, &Options::default(), None).unwrap();
    let mut infos: Vec<SubjectInfo> = ["torch/cudnn", OURS, "fa3"]
        .map(|label| SubjectInfo::new(label, LaunchMode::Graph(1)))
        .to_vec();
    infos[1].kernel = Some(OURS.to_string());
    infos[1].module = Some("0123456789abcdef".repeat(4));
    for peer in [0, 2] {
        infos[peer].versions = BTreeMap::from([("torch".to_string(), "2.11".to_string())]);
    }
    let found = Inspection {
        max_abs: 1.23456e-3,
        ..Inspection::default()
    };
    let subjects: Vec<_> = infos.into_iter().map(|info| (info, Some(found.clone()))).collect();
    for (case, gain) in cases.iter().zip(gains) {
        writer.begin_measurement(case, Mode::Hot, 0, &subjects).unwrap();
        for round in 0..9 {
            for (subject, us) in [10.0 * gain, 10.0, 20.0].into_iter().enumerate() {
                let noise = f64::from((round + subject as u32) % 3) / 100.0;
                let sample = Sample {
                    subject,
                    round,
                    position: 0,
                    runs: 10,
                    total_us: 10.0 * (us + noise),
                    at_us: 0.0,
                };
                writer.add_sample(&sample).unwrap();
            }
        }
        let mut ended = crate::Measurement::without_rounds(Mode::Hot, 0, Vec::new(), crate::Stop::Rounds);
        ended.rounds = 9;
        writer.end_measurement(&ended).unwrap();
    }
    let path = writer.path().to_path_buf();
    writer.finish().unwrap();
    let store = Store::at(&path);
    let run = store.runs(&Selector::Latest).unwrap().remove(0);
    store.bundled(&run, &|revision| whole_revision(at, revision)).unwrap()
}

/// As many problems as the README's figures have.
#[test]
fn the_report_of_the_current_set_is_small() {
    let mut gathered = crate::gather::Gathered::default();
    let evidence = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence");
    for bundle in crate::store::files_in(&evidence, "jsonl").unwrap() {
        let bytes = std::fs::metadata(&bundle).unwrap().len();
        assert!(bytes < 48 << 10, "{}: {bytes}", bundle.display());
    }
    gathered.add_files(&[evidence]).unwrap();
    assert!(gathered.timings.len() > 100);
    let chapters = crate::document::chapters(&gathered);
    let sections = chapters.iter().flat_map(|chapter| chapter.sections(Vec::new()));
    let page = crate::document::Document {
        sections: sections.collect(),
        ..crate::document::Document::default()
    };
    let html = page.html();
    assert!(html.len() <= 150_000, "{}", html.len());
}

#[test]
fn pages_say_what_the_bundles_say() {
    let root = repository();
    let current = Current::read(root.path()).unwrap();
    let changed = current.render(root.path()).unwrap();
    let [(chart, svg), (page, text)] = &changed[..] else {
        panic!("{changed:?}");
    };
    assert!(chart.ends_with("docs/small.svg") && svg.contains("<svg"), "{svg}");
    assert!(page.ends_with("README.md"));
    for expected in [
        "| problem | FlashCore | cuDNN | FA3 | speed-up over the best other |\n|---|--:|--:|--:|--:|\n",
        "| small | 10.01 | 11.01 | 20.01 | 1.099 [1.099, 1.102] |\n",
        "It is <!-- figure all -->1.048 × [1.048, 1.050] over 2 problems, worst 0.999 [0.999, 1.002] (small-causal); \
         1 of 2 intervals include 1.00<!-- /figure -->,",
        "faster on <!-- figure count -->1 of 2 (the intervals of 1 include 1.00)<!-- /figure -->,",
        "<!-- figure slowest -->small-causal 0.999 [0.999, 1.002]; small 1.099 [1.099, 1.102]<!-- /figure -->.",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    for (path, text) in &changed {
        std::fs::write(path, text).unwrap();
    }
    assert_eq!(current.render(root.path()).unwrap(), []);
    // One digit of a bundle.
    let path = path_of(root.path(), "small");
    let bundle = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, bundle.replace(",11010,", ",19010,")).unwrap();
    assert!(!current.render(root.path()).unwrap().is_empty());
    // Names of before are those of now.
    std::fs::write(&path, bundle.replace("\"name\":\"small", "\"name\":\"mission")).unwrap();
    assert_eq!(current.render(root.path()).unwrap(), []);
    let (runs, _) = Store::at(&path).list(&Selector::All).unwrap();
    assert_eq!(runs[0].cases, ["small", "small-causal"]);
    // Marks that say nothing.
    for (text, why) in [
        (
            "<!-- figure nothing --><!-- /figure -->",
            "figure `nothing` is not in current.toml",
        ),
        ("<!-- figure times -->", "figure `times` has no `<!-- /figure -->`"),
        ("nothing", "figure `all` of current.toml is in no page"),
    ] {
        std::fs::write(root.path().join("README.md"), text).unwrap();
        let error = current.render(root.path()).unwrap_err().to_string();
        assert!(error.ends_with(why), "{error}");
    }
}

#[test]
fn each_rule_has_a_bundle_that_breaks_it() {
    let root = repository();
    let at = root.path();
    let current = Current::read(at).unwrap();
    let loose = "README.md: `4 times` is in no figure";
    assert_eq!(current.faults(at).unwrap(), [loose]);
    std::fs::write(
        at.join("README.md"),
        "It takes <!-- figure times -->4 µs<!-- /figure -->.\n",
    )
    .unwrap();
    assert_eq!(current.faults(at).unwrap(), Vec::<String>::new());
    let good = std::fs::read_to_string(path_of(at, "small")).unwrap();
    // A bundle after a change of its header and of its first row, with the hash of its rows.
    let changed = |change: &dyn Fn(&mut Value, &mut Value)| {
        let mut lines: Vec<Value> = good.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let [header, row, ..] = &mut lines[..] else { panic!() };
        change(&mut header["bundle"], &mut row["row"]);
        let rows: Vec<String> = lines[1..].iter().map(|line| format!("{line}\n")).collect();
        lines[0]["bundle"]["rows"] = json!(hash_of_rows(rows.iter().map(String::as_bytes)));
        format!("{}\n{}", lines[0], rows.concat())
    };
    let in_command = |word: &str| changed(&|header, _| header["identity"]["command"][2] = json!(word));
    let without_rows = {
        let mut header: Value = serde_json::from_str(good.lines().next().unwrap()).unwrap();
        header["bundle"]["rows"] = json!(hash_of_rows([]));
        format!("{header}\n")
    };
    let nine = |ns: u64| json!(vec![ns; 9]);
    let mut bad: Vec<(String, &str)> = vec![
        (changed(&|_, row| row["speed"] = json!(1)), "unknown field `speed`"),
        (
            changed(&|header, _| header["identity"]["device"]["age"] = json!(1)),
            "unknown field `age`",
        ),
        (
            changed(&|header, _| header["note"] = json!("x")),
            "unknown field `note`",
        ),
        (
            changed(&|_, row| row["subjects"][1]["subject"] = json!("mma/m32n...")),
            "`...`: something was cut off",
        ),
        (
            changed(&|_, row| row["subjects"][1]["subject"] = json!("mma/m32n…")),
            "`…`: something was cut off",
        ),
        (
            changed(&|header, _| header["identity"]["command"][2] = json!("FILE")),
            "the command has `FILE`",
        ),
        (
            changed(&|header, _| header["identity"]["command"][2] = json!("/tmp/a.toml")),
            "the command has `/tmp/a.toml`",
        ),
        (
            changed(&|header, _| header["identity"]["command"] = json!([])),
            "there is no command",
        ),
        (
            changed(&|_, row| row["subjects"][1]["kernel"] = json!("mma/m32n128-w2")),
            "`mma/m32n128-w2` is no kernel's id",
        ),
        (
            changed(&|header, _| header["identity"]["revision"] = json!("0".repeat(40))),
            "is no ancestor of HEAD",
        ),
        (
            changed(&|header, _| header["identity"]["revision"] = json!("1a2b3c4d5e6f-modified-9f8e7d6c")),
            "the build's tree was modified",
        ),
        (
            changed(&|_, row| row["subjects"][2]["round_ns"] = json!([1, 2, 3, 4, 5, 6, 7])),
            "in 7 rounds; at least 8",
        ),
        (changed(&|_, row| row["subjects"][2]["round_ns"][1] = Value::Null), ""),
        (
            changed(&|_, row| row["subjects"][0]["rejected"] = json!("wrong")),
            "torch/cudnn was rejected",
        ),
        (
            changed(&|_, row| row["subjects"][0]["error"] = Value::Null),
            "torch/cudnn was not inspected",
        ),
        (
            changed(&|header, _| header["peers"]["fa3"] = json!({})),
            "the version of fa3 is not known",
        ),
        (changed(&|_, row| row["subjects"][0]["round_ns"] = nine(5)), ""),
        (good.replace("10000", "10001"), "are not those that were published"),
        (
            changed(&|header, _| header["options"]["confidence"] = json!(0.5)),
            "its intervals have confidence 0.5; pages say 0.99",
        ),
        (
            changed(&|_, row| row["subjects"][2]["round_ns"][3] = json!(0)),
            "fa3 has a time of 0 in round 3",
        ),
        (without_rows, "has no rows"),
        (good.repeat(30), "bytes; at most 65536"),
    ];
    for word in ["FILE.toml", "OUT/x", "FILE1", "--to=FILE", "<FILE>", "MY-FILE"] {
        bad.push((in_command(word), "which cannot be typed as it stands"));
    }
    for word in [
        "sweep.toml:BUGnone-M16-REGS64",
        "REGS64x",
        "predict:h200",
        "small",
        "a-B.toml",
    ] {
        bad.push((in_command(word), ""));
    }
    for (text, expected) in bad {
        std::fs::write(path_of(at, "small"), &text).unwrap();
        let faults = current.faults(at).unwrap();
        match expected {
            // Eight rounds are enough, and another time with its hash is another measurement.
            "" => assert_eq!(faults, Vec::<String>::new()),
            _ => assert!(
                faults.iter().any(|fault| fault.contains(expected)),
                "{expected}: {faults:?}"
            ),
        }
    }
    std::fs::write(path_of(at, "small"), &good).unwrap();
    // A bundle that is in no figure, and too many of them.
    for number in 0..17 {
        std::fs::write(
            path_of(at, &format!("more-{number}")),
            format!("{}\n{good}", " ".repeat(65_000)),
        )
        .unwrap();
    }
    let faults = current.faults(at).unwrap();
    let has = |what: &str| faults.iter().any(|fault| fault.contains(what));
    assert!(
        has("more-1.jsonl: no figure of current.toml") && has("bytes of bundles; at most 1048576"),
        "{faults:?}"
    );
    // A revision of no branch counts where its tag says that it was measured.
    let clone = tempfile::tempdir().unwrap();
    let url = format!("file://{}", at.display());
    run_git(clone.path(), &["clone", "-q", "--depth", "1", &url, "shallow"]);
    let shallow = clone.path().join("shallow");
    std::fs::create_dir(shallow.join(FOLDER)).unwrap();
    let error = current.faults(&shallow).unwrap_err().to_string();
    assert!(error.contains("git fetch --unshallow"), "{error}");
}

#[test]
fn rows_belong_to_the_run_above_them() {
    let root = repository();
    let at = root.path();
    std::fs::write(at.join("README.md"), "Nothing.\n").unwrap();
    let current = Current::read(at).unwrap();
    let problems = cases("small-set", None).unwrap();
    let runs = [(0..1, 1.1), (1..2, 1.2)].map(|(of, gain)| {
        let bundle = String::from_utf8(bundle(at, &problems[of], &[gain])).unwrap();
        let (header, rows) = bundle.split_once('\n').unwrap();
        (format!("{header}\n"), rows.to_string())
    });
    let [(one, rows_of_one), (two, rows_of_two)] = &runs;
    let path = path_of(at, "small");
    std::fs::write(&path, [one, rows_of_one, two, rows_of_two].map(String::as_str).concat()).unwrap();
    assert_eq!(current.faults(at).unwrap(), Vec::<String>::new());
    std::fs::write(&path, [two, rows_of_two, one, rows_of_one].map(String::as_str).concat()).unwrap();
    assert_eq!(current.faults(at).unwrap(), Vec::<String>::new());
    std::fs::write(&path, [one, rows_of_two, two, rows_of_one].map(String::as_str).concat()).unwrap();
    let faults = current.faults(at).unwrap();
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults
            .iter()
            .all(|fault| fault.ends_with("are not those that were published"))
    );
    std::fs::remove_file(&path).unwrap();
    let faults = current.faults(at).unwrap();
    assert_eq!(
        faults[0],
        "current.toml: figure `times` is made of `small`, and there is no such bundle"
    );
}

#[test]
fn names_of_bundles_are_no_paths() {
    let root = repository();
    for name in ["../small", "h200/small", "..", "", "small.jsonl"] {
        let list = LIST.replacen("\"small\"", &format!("\"{name}\""), 1);
        std::fs::write(root.path().join(FOLDER).join(CURRENT), list).unwrap();
        let error = Current::read(root.path()).unwrap_err().to_string();
        assert!(error.ends_with(&format!("`{name}` {BUNDLE_NAMES}")), "{error}");
    }
}

#[test]
fn speeds_are_found_however_they_are_spelled() {
    for loose in [
        "2,870 µs",
        "37µs",
        "37μs",
        "40–50 µs",
        "40-50us",
        "1.4×",
        "1.4 ×",
        "1.4x",
        "× 1.022",
        "×1.022",
        "12 %",
        "12%",
        "4 times",
        "709 TFLOP/s",
        "**1.4×**",
        "~3.35 TB/s",
    ] {
        for page in [
            format!("It is {loose} here."),
            format!("It is ({loose})."),
            format!("{loose}, it is"),
        ] {
            let found = loose_speeds(&page);
            assert_eq!(found.len(), 1, "{page}: {found:?}");
        }
    }
    let none = "In version 3, times differ: 4096 keys, 64×64 tiles, sm_90 × none, 8 heads, 3.\n```\n4 µs\n```\n`1.4×`";
    assert_eq!(loose_speeds(none), Vec::<String>::new());
}
