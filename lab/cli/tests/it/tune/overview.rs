//! What `flashcore tune show` says of runs that were cut off, and of files that cannot be read.

use std::path::Path;

use serde_json::Value;

use super::{flashcore, folder, json, words};

/// The overview's exit code, its text and its JSON.
fn overview(home: &Path) -> (Option<i32>, String, Value) {
    let output = flashcore("tune show", home).output().unwrap();
    let text = words(&String::from_utf8(output.stdout).unwrap());
    (
        output.status.code(),
        text,
        json(&mut flashcore("tune show --json", home)),
    )
}

#[test]
fn runs_that_were_cut_off_and_files_that_are_broken_are_told_of() {
    let home = folder("overview");
    assert!(overview(&home).1.contains("There is no run yet"));
    let run = json(&mut flashcore("tune tiny --device cpu --trials 2 --json", &home));
    let kept = Path::new(run["folder"].as_str().unwrap());

    // As a run that was killed: it has trials and no leaderboard.
    let board = std::fs::read_to_string(kept.join("board.json")).unwrap();
    std::fs::remove_file(kept.join("board.json")).unwrap();
    let (code, text, all) = overview(&home);
    assert_eq!(code, Some(0), "{text}");
    let go_on = format!("--resume --folder {}", kept.display());
    assert!(
        text.contains("tiny on") && text.contains("2 trials") && text.contains(&go_on),
        "{text}"
    );
    assert!(!text.contains("There is no run"), "{text}");
    assert_eq!(
        (&all["unfinished"][0]["trials"], &all["unfinished"][0]["folder"]),
        (&2.into(), &run["folder"])
    );
    assert!(
        all["unfinished"][0]["go_on"].as_str().unwrap().contains(&go_on),
        "{all:#}"
    );
    let none = flashcore("tune show nope", &home).output().unwrap();
    let none = words(&String::from_utf8(none.stderr).unwrap());
    assert!(
        none.contains("no run of a problem of that name help: there are runs of tiny"),
        "{none}"
    );
    let shown = flashcore("tune show tiny", &home).output().unwrap();
    let shown = words(&String::from_utf8(shown.stdout).unwrap());
    assert!(
        shown.contains("No leaderboard yet") && shown.contains(&go_on),
        "{shown}"
    );

    // A leaderboard that cannot be read is none that is missing.
    std::fs::write(kept.join("board.json"), &board[..board.len() / 2]).unwrap();
    let (code, text, all) = overview(&home);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("board.json: it is no leaderboard: its JSON is wrong: EOF"),
        "{text}"
    );
    assert_eq!(all["unreadable"][0]["folder"], run["folder"]);
    for words_of in ["tune show tiny", "plans make FOLDER -o OUT"] {
        let out = home.join("out.json");
        let typed = words_of
            .replace("FOLDER", &kept.display().to_string())
            .replace("OUT", &out.display().to_string());
        let output = flashcore(&typed, &home).output().unwrap();
        let said = words(&String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(3), "{typed}: {said}");
        assert!(
            said.contains("board.json: it is no leaderboard: its JSON is wrong: EOF"),
            "{typed}: {said}"
        );
    }

    std::fs::write(kept.join("board.json"), board).unwrap();
    std::fs::write(kept.join("run.json"), "{").unwrap();
    let (code, text, all) = overview(&home);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("run.json: its JSON is wrong: EOF") && !text.contains("There is no run"),
        "{text}"
    );
    assert!(
        all["unreadable"][0]["why"]
            .as_str()
            .unwrap()
            .contains("run.json: its JSON is wrong: EOF"),
        "{all:#}"
    );
    let output = flashcore("tune show tiny", &home).output().unwrap();
    let said = words(&String::from_utf8(output.stderr).unwrap());
    assert!(
        output.status.code() == Some(2) && said.contains("1 run cannot be read"),
        "{said}"
    );
    std::fs::remove_dir_all(&home).unwrap();
}
