//! Sources of all kinds, and what is wrong with some.

use std::path::PathBuf;

use super::*;

/// The published rows of the repository.
fn committed(folder: &str) -> Gathered {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../evidence")
        .join(folder);
    let mut gathered = Gathered::default();
    gathered.add_files(&[path]).unwrap();
    gathered
}

#[test]
fn every_committed_row_is_read_once_and_has_its_own_id() {
    let folders = ["h200", "cpu", "ci", "simulator"];
    let all: Vec<Gathered> = folders.map(committed).into();
    let mut ids: Vec<String> = Vec::new();
    for gathered in &all {
        assert_eq!(gathered.notes, Vec::<String>::new());
        ids.extend(gathered.origins.iter().map(|origin| origin.id.to_string()));
        ids.extend(gathered.figures.iter().map(|figure| figure.id.to_string()));
        ids.extend(
            gathered
                .timings
                .iter()
                .flat_map(|timing| timing.ids.iter().map(ToString::to_string)),
        );
    }
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
    assert!(count > 900, "{count}");
    for id in &ids {
        let found: usize = all.iter().map(|gathered| gathered.find(id).len()).sum();
        assert_eq!(found, 1, "{id}");
    }
}

#[test]
fn a_row_with_peers_is_a_measurement_with_a_paired_ratio() {
    let gathered = committed("h200");
    let mut timings = gathered.timings.iter();
    let of_grid = |timing: &&Timing| gathered.origins[timing.origin].key == "grid-hot-fp16";
    let timing = timings.find(of_grid).unwrap();
    let (problem, measurement) = (&timing.result.case.problem, &timing.result.measurement);
    assert_eq!(problem.to_string(), "B32 H32/32 Sq512 Skv512 D64 fp16 full");
    let labels: Vec<&str> = measurement
        .subjects
        .iter()
        .map(|subject| subject.info.label.as_str())
        .collect();
    assert_eq!(
        labels,
        ["wgmma/m192n128-s3-pingpong-spec", "fa3", "torch/cudnn", "torch/flash"]
    );
    assert!(measurement.subjects[0].info.is_ours() && !measurement.subjects[1].info.is_ours());
    assert_eq!(time_of(&measurement.subjects[0]), Some((171.67, None)));
    let ratio = measurement.subjects[0].ratio.unwrap();
    assert_eq!(
        (ratio.value, ratio.interval.lo, ratio.interval.hi),
        (0.7481, 0.6786, 0.7926)
    );
    // The first peer of the run's command.
    assert_eq!(measurement.baseline, 1);
    // A ladder's rows are one measurement.
    let ladder = gathered
        .timings
        .iter()
        .find(|timing| gathered.origins[timing.origin].key == "ladder");
    assert_eq!(ladder.unwrap().ids.len(), 11);
}

#[test]
fn what_is_no_evidence_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let failure = |path: PathBuf| Gathered::default().add_files(&[path]).unwrap_err().to_string();
    let run = "{\"run\":\"a\",\"date\":\"2026-01-01\",\"device\":\"X\",\"command\":\"x\"}\n";
    for (text, expected) in [
        (
            format!("{run}{{\"run\":\"a\",\"claim\":3}}\n"),
            "line 2: `claim` is not there, or is no text",
        ),
        (format!("{run}no json\n"), "line 2: expected"),
        ("{\"run\":\"a\"}\n".to_string(), "line 1: `date` is not there"),
        ("something else\n".to_string(), "is not an evidence file"),
    ] {
        let message = failure(file("x.jsonl", &text));
        assert!(message.contains(expected), "{message}");
    }
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(failure(empty).ends_with("has no evidence: no file in it ends in .jsonl"));
    assert!(failure(folder.path().join("none")).contains("No such file"));
    let lone = file(
        "x.jsonl",
        "{\"run\":\"b\",\"claim\":\"c\",\"value\":1,\"unit\":\"us\"}\n",
    );
    let mut gathered = Gathered::default();
    gathered.add_files(&[lone]).unwrap();
    assert!(
        gathered.is_empty() && gathered.notes[0].contains("left out: b;"),
        "{:?}",
        gathered.notes
    );
}

#[test]
fn a_recipe_has_the_command_and_says_what_differs() {
    let gathered = committed("h200");
    let timing = &gathered.timings[0];
    let recipe = gathered.recipe(&Found::Time(timing, 0)).unwrap();
    let label = &timing.result.measurement.subjects[0].info.label;
    let command = recipe.command.as_deref().unwrap();
    assert!(
        command.starts_with("flashcore bench problem.json --kernel "),
        "{command}"
    );
    assert!(command.contains(label) && command.contains(" --mode "), "{command}");
    assert!(recipe.problem_file.is_some() && recipe.run_command.is_some());
    let mut here = crate::DeviceIdentity {
        device: "cuda:0".to_string(),
        name: "NVIDIA H200".to_string(),
        uuid: "GPU-1".to_string(),
        driver: "580.159.04/13000".to_string(),
        architecture: "sm_90".to_string(),
        units: 132,
        l2_bytes: 0,
    };
    let revision = recipe.revision.clone().unwrap();
    assert_eq!(recipe.differences(&here, &revision), Vec::<String>::new());
    here.driver = "570.1/12080".to_string();
    here.name = "NVIDIA L4".to_string();
    let expected = [
        "the device was NVIDIA H200; here: NVIDIA L4",
        "the driver was 580.159.04; here: 570.1/12080",
        &format!("the build was {revision}; here: ffffffffffff"),
    ];
    assert_eq!(recipe.differences(&here, "ffffffffffff"), expected);
    // A host has no driver, so none is missing.
    let of_host = Recipe {
        device: Some(here.name.clone()),
        driver: None,
        uuid: None,
        ..recipe.clone()
    };
    here.driver = String::new();
    assert_eq!(of_host.differences(&here, &revision), Vec::<String>::new());
    // A figure that is no time has only its run's command.
    let figure = gathered.recipe(&Found::Figure(&gathered.figures[0])).unwrap();
    assert!(figure.time.is_none() && figure.command.is_none() && figure.run_command.is_some());
    let run = gathered.recipe(&Found::Run(&gathered.origins[timing.origin])).unwrap();
    assert!(
        run.notes.iter().any(|note| note.contains("times, each with an id")),
        "{:?}",
        run.notes
    );
}

#[test]
fn times_agree_where_their_intervals_overlap() {
    let recorded = |interval: Option<Interval>| Recorded {
        case: crate::problems::cases("tiny", None).unwrap().remove(0),
        mode: Mode::Hot,
        label: "cpu/m16n16".to_string(),
        ours: true,
        baseline: None,
        us: 10.0,
        interval,
        options: None,
    };
    let then = recorded(Some(Interval::new(9.0, 11.0)));
    assert_eq!(then.agrees(Interval::new(10.9, 12.0)), Some(true));
    assert_eq!(then.agrees(Interval::new(11.1, 12.0)), Some(false));
    assert_eq!(then.agrees(Interval::new(7.0, 8.9)), Some(false));
    assert_eq!(recorded(None).agrees(Interval::new(9.0, 11.0)), None);
}
