//! `flashcore profile` where there is no GPU: predictions, counters of another machine, refusals.

use crate::common::json::json;
use crate::common::{assert_fits, flashcore, words};

/// Launches profiled on an H200; `lab/bench` tests how they are read.
const FROM: &str = "../bench/tests/data/ncu-h200.csv";

fn from() -> String {
    format!("{}/{FROM}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn without_a_gpu_predictions_stand_alone_and_say_so() {
    let line = "profile small --device predict:h200";
    let found = json(&format!("{line} --json"));
    let kernel = &found["kernels"][0];
    assert_eq!(kernel["kernel"], "mma/m32n128-w2x2-s5-b1-qreg-xor-cond");
    assert!(kernel["counters"].is_null() && kernel["verdicts"].as_array().is_some_and(Vec::is_empty));
    let rows = kernel["rows"].as_array().expect("rows");
    assert!(
        rows.iter()
            .any(|row| row["key"] == "tensor" && row["predicted"].as_f64() > Some(1.0))
    );
    assert!(rows.iter().all(|row| row["measured"].is_null()), "{rows:?}");
    let text = flashcore(line).stdout;
    assert!(
        words(&text).contains("predicted only (the device is predict:h200)"),
        "{text}"
    );
    assert_fits(line, &text);
    // An architecture is no card: why nothing is predicted is said.
    let found = json("profile small --device predict:sm_120 --json");
    let why = found["kernels"][0]["unpredicted"].as_str().expect("a reason");
    assert!(why.contains("sm_120 is an architecture"), "{why}");
}

#[test]
fn counters_of_another_machine_are_read_and_judged() {
    let line = format!("profile --from {}", from());
    let found = json(&format!("{line} --json --goal tensor=71"));
    let kernels = found["kernels"].as_array().expect("kernels");
    assert_eq!(kernels.len(), 4);
    assert_eq!(kernels[0]["counters"]["counters"]["tensor"], 70.48);
    let tensor = kernels[0]["verdicts"].as_array().expect("verdicts").iter();
    let reached: Vec<_> = tensor.map(|verdict| verdict["reached"].as_bool()).collect();
    assert_eq!(reached, [Some(true), Some(false), None]);
    let text = flashcore(&line).stdout;
    assert!(
        text.contains("goal 70 reached") && text.contains("below the goal of 30"),
        "{text}"
    );
    assert_fits(&line, &text);
}

#[test]
fn a_row_for_each_metric_is_read_and_has_insights() {
    let line = format!("profile --from {}", from().replace("ncu-h200", "ncu-details"));
    let found = json(&format!("{line} --json"));
    let counters = &found["kernels"][0]["counters"]["counters"];
    assert_eq!((&counters["dram"], &counters["tensor"]), (&12.5.into(), &8.75.into()));
    let insight = &found["kernels"][1]["insights"][0];
    assert_eq!(insight["saves_at_most"], 60.0);
    assert!(insight["lever"].as_str().expect("a lever").contains("mma or wgmma"));
    assert_eq!(found["ignored"].as_array().expect("a list").len(), 2);
    let text = flashcore(&line).stdout;
    let said = words(&text);
    assert!(
        said.contains("90,000 of 300,000 shared-memory wavefronts") && said.contains("saves at most 55 %"),
        "{text}"
    );
    assert!(said.contains("ignored launch__occupancy_limit_registers"), "{text}");
    assert_fits(&line, &text);
    // A file of which nothing is known is no profile.
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(
        file.path(),
        "\"ID\",\"Kernel Name\",\"x__y.sum\"\n\"\",\"\",\"\"\n\"0\",\"k\",\"1\"\n",
    )
    .expect("written");
    let ran = flashcore(&format!("profile --from {}", file.path().display()));
    assert!(
        ran.code == 2 && ran.words().contains("none of its metrics is known (x__y.sum)"),
        "{}",
        ran.words()
    );
}

#[test]
fn goals_and_files_that_make_no_sense_are_refused() {
    for (line, says) in [
        ("profile --goal sm=170", "give per cent from 0 to 100"),
        ("profile --from /nowhere.csv", "/nowhere.csv"),
        ("profile --kernel mma/m1", "mma/m1"),
    ] {
        let ran = flashcore(line);
        assert!(ran.code == 2 && ran.words().contains(says), "{line}\n{}", ran.words());
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    let ran = flashcore(&format!("profile --from {}", file.path().display()));
    assert!(ran.code == 2 && ran.words().contains("--page raw"), "{}", ran.words());
}

#[test]
fn kept_counters_are_listed_and_shown_and_are_no_times() {
    use flashcore_bench::profile::{ProfileRecord, csv};
    use flashcore_bench::{DeviceIdentity, LaunchMode, Options, RunIdentity, Store, SubjectInfo, problems};

    let text = std::fs::read_to_string(from()).expect("a file");
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::at(folder.path());
    let identity = RunIdentity::now(DeviceIdentity::cpu());
    let run = store.begin_run(&identity, &Options::default(), None).expect("a run");
    let case = problems::cases("small-set", None).expect("a set").remove(0);
    for launches in csv::read(&text).expect("a table").chunks(2) {
        let record = ProfileRecord {
            case: case.clone(),
            subject: SubjectInfo::new("torch/cudnn", LaunchMode::Plain),
            tool: "ncu 2025.3.1.0".to_string(),
            launches: launches.to_vec(),
            predicted: None,
        };
        run.add_profile(&record).expect("written");
    }
    run.finish().expect("finished");
    let at = folder.path().display();
    let list = words(&flashcore(&format!("evidence list --store {at}")).stdout);
    assert!(list.contains("2 profiles"), "{list}");
    let found = json(&format!("evidence list --store {at} --json"));
    assert_eq!(
        (&found["runs"][0]["profiles"], &found["runs"][0]["samples"]),
        (&2.into(), &0.into())
    );
    let shown = flashcore(&format!("evidence show --store {at}")).stdout;
    let plain = words(&shown);
    assert!(
        plain.contains("by ncu 2025.3.1.0") && plain.contains("torch/cudnn: mma_m32n128"),
        "{plain}"
    );
    assert!(plain.contains("goal 30 reached"), "{plain}");
    assert_fits("evidence show", &shown);
    let found = json(&format!("evidence show --store {at} --json"));
    assert_eq!(found["profiles"][0]["launches"][0]["counters"]["tensor"], 70.48);
    assert!(found["profiles"][0]["predicted"].is_null());
    // There is nothing to draw, and a chart says so.
    let chart = flashcore(&format!("evidence chart lines --store {at}"));
    assert!(
        chart.code == 2 && chart.words().contains("profiles and no times"),
        "{}",
        chart.words()
    );
}
