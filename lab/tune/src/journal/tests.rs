use super::*;
use crate::tests::{folder, header, trial};

#[test]
fn trials_survive_and_a_truncated_line_does_not() {
    let folder = folder("cut");
    let mut journal = Journal::begin(&folder, &header()).unwrap();
    let trials = [trial(0, "a", Some(1.0)), trial(1, "b", None)];
    trials.iter().for_each(|trial| journal.add(trial).unwrap());
    assert!(
        Journal::resume(&folder, &header())
            .unwrap_err()
            .to_string()
            .contains("another process")
    );
    drop(journal);
    let path = folder.join(TRIALS);
    let mut text = std::fs::read(&path).unwrap();
    text.extend_from_slice(b"{\"number\": 2, \"id\": \"c");
    std::fs::write(&path, text).unwrap();
    let (mut journal, read) = Journal::resume(&folder, &header()).unwrap();
    assert_eq!(read, trials);
    journal.add(&trial(2, "c", Some(0.9))).unwrap();
    assert_eq!(read_trials(&folder).unwrap().len(), 3);
    assert!(
        Journal::begin(&folder, &header())
            .unwrap_err()
            .to_string()
            .contains("which --resume continues")
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn results_are_removed_by_the_next_trial_and_not_before() {
    let folder = folder("results");
    let mut journal = Journal::begin(&folder, &header()).unwrap();
    journal.add(&trial(0, "a", Some(1.0))).unwrap();
    RESULTS.iter().for_each(|name| journal.keep(name, &1.5).unwrap());
    drop(journal);
    let is_there = || RESULTS.map(|name| folder.join(name).exists());
    // Resumed with nothing left to do.
    drop(Journal::resume(&folder, &header()).unwrap());
    assert_eq!(is_there(), [true; 4]);
    let (mut journal, _) = Journal::resume(&folder, &header()).unwrap();
    journal.add(&trial(1, "b", Some(1.0))).unwrap();
    assert_eq!(is_there(), [false; 4]);
    assert_eq!((read_seconds(&folder), board_of(&folder).unwrap()), (None, None));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_edited_line_is_an_error() {
    let folder = folder("corrupt");
    drop(Journal::begin(&folder, &header()).unwrap());
    for change in [
        |trial: &mut Trial| trial.seconds = -1.0,
        |trial: &mut Trial| trial.seconds = 1e300,
        |trial: &mut Trial| trial.timed = None,
    ] {
        let mut trial = trial(0, "a", Some(1.0));
        change(&mut trial);
        std::fs::write(folder.join(TRIALS), serde_json::to_string(&trial).unwrap() + "\n").unwrap();
        let error = Journal::resume(&folder, &header()).unwrap_err().to_string();
        assert!(error.contains("line 1: a trial of"), "{error}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn another_run_is_not_resumed() {
    let folder = folder("other");
    drop(Journal::begin(&folder, &header()).unwrap());
    type Change = fn(&mut Header);
    let changes: [(&str, Change); 12] = [
        ("the device was", |h| h.devices[0].uuid = "other".to_string()),
        // The same host with fewer processors, and a card that is split into parts.
        ("the device was", |h| h.devices[0].units += 1),
        ("the device was", |h| h.devices[0].architecture = "sm_80".to_string()),
        ("the device was", |h| h.devices[0].l2_bytes += 1),
        ("the driver was", |h| h.devices[0].driver = "570".to_string()),
        ("the space was", |h| h.space = "ffff".to_string()),
        ("the source was abc and is def here", |h| h.revision = "def".to_string()),
        ("the program was 1111 and is 2222 here", |h| {
            h.executable = "2222".to_string()
        }),
        ("the source of rates was profile and is 3333 here", |h| {
            h.rates = Some("3333".to_string())
        }),
        ("the seed was 1 and is 2", |h| h.seed = 2),
        ("the seed of the inputs was", |h| h.inputs = Some(8)),
        ("the problem was", |h| h.problem = Problem::named("small").unwrap()),
    ];
    for (said, change) in changes {
        let mut other = header();
        change(&mut other);
        let error = Journal::resume(&folder, &other).unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("name its problem (tiny)"),
            "{error}"
        );
    }
    let later = Header {
        started_at: 99,
        ..header()
    };
    assert!(Journal::resume(&folder, &later).is_ok());
    // For an older schema the message names it, and no missing field.
    std::fs::write(folder.join(RUN), r#"{"schema": 1, "case": "tiny"}"#).unwrap();
    let error = Journal::resume(&folder, &later).unwrap_err().to_string();
    assert!(error.contains("with schema 1"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}
