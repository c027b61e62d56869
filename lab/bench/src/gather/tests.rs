//! Sources of all kinds, and what is wrong with some.

use std::path::PathBuf;

use super::*;

#[test]
fn what_is_no_evidence_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let failure = |path: PathBuf| Gathered::default().add_files(&[path]).unwrap_err().to_string();
    let message = failure(file("x.jsonl", "something else\n"));
    assert!(message.contains("is not an evidence file"), "{message}");
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(failure(empty).ends_with("has no evidence: no file in it ends in .jsonl"));
    assert!(failure(folder.path().join("none")).contains("No such file"));
}

#[test]
fn a_recipe_says_what_differs() {
    let mut here = crate::DeviceIdentity {
        device: "cuda:0".to_string(),
        name: "NVIDIA H200".to_string(),
        uuid: "GPU-1".to_string(),
        driver: "580.159.04/13000".to_string(),
        architecture: "sm_90".to_string(),
        units: 132,
        l2_bytes: 0,
    };
    let origin = Origin {
        id: EvidenceId::of(&["run", "a"]),
        key: "a".to_string(),
        path: PathBuf::from("a.jsonl"),
        device: here.clone(),
        revision: "0123456789ab".to_string(),
        date: "2026-11-30".to_string(),
        command: Some("flashcore bench small-set".to_string()),
        options: None,
        notes: Vec::new(),
    };
    let recipe = Recipe::of_run(origin.id.clone(), "run a".to_string(), &origin);
    assert_eq!(recipe.run_command.as_deref(), Some("flashcore bench small-set"));
    let revision = recipe.revision.clone().unwrap();
    assert_eq!(recipe.differences(&here, &revision), Vec::<String>::new());
    here.driver = "570.1/12080".to_string();
    here.name = "NVIDIA L4".to_string();
    let expected = [
        "the device was NVIDIA H200; here: NVIDIA L4",
        "the driver was 580.159.04/13000; here: 570.1/12080",
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
