//! Errors that end a search: what was kept until then, and how to go on.

use std::process::Command;

use super::{environment, flashcore, folder, json, kept, trials, words};

/// Something is in the way of the leaderboard, as a full disk would be: put there once the search is under way.
#[test]
fn an_error_after_trials_says_what_is_kept_and_how_to_go_on() {
    let home = folder("errors");
    let (run, script) = (home.join("run"), home.join("propose.sh"));
    let (in_the_way, put_right) = (run.join("board.json"), home.join("put-right"));
    let answer = r#"{"propose": ["cpu/m32n32"]}"#;
    let text = format!(
        "read line; echo '{answer}'\nread line; test -e {} || mkdir {}; echo '{answer}'\n",
        put_right.display(),
        in_the_way.display()
    );
    std::fs::write(&script, text).unwrap();
    let mut command = flashcore(
        &format!("tune tiny --device cpu --trials 9 --folder {}", run.display()),
        &home,
    );
    let proposer = format!("sh {}", script.display());
    let output = command
        .env_remove("CARGO")
        .args(["--proposer", &proposer])
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(words(&err).contains("error: ") && err.contains("board.json"), "{err}");
    assert!(kept(&run) >= 2, "{err}");
    let said = format!("kept {} trials in {}", kept(&run), run.display());
    assert!(words(&err).contains(&said), "{err}");
    let typed = err.lines().find_map(|line| line.trim().strip_prefix("resume")).unwrap();

    // Put right, it goes on.
    std::fs::remove_dir(&in_the_way).unwrap();
    std::fs::write(&put_right, "").unwrap();
    let mut again = Command::new("sh");
    again.args(["-c", &format!("{typed} --json")]);
    let resumed = json(environment(&mut again, &home));
    assert!(
        trials(&resumed).len() >= 2 && resumed["board"]["winner"].is_string(),
        "{resumed:#}"
    );

    // Its folder says what the problem was.
    let unnamed = format!("tune --device cpu --peers none --resume --folder {}", run.display());
    let output = flashcore(&unnamed, &home).output().unwrap();
    let err = words(&String::from_utf8(output.stderr).unwrap());
    assert!(
        err.contains("continuing tiny on ") && err.contains("(`flashcore tune tiny --device cpu --trials 9"),
        "{err}"
    );

    // What is another run is not gone on with.
    let other = format!(
        "tune tiny --device cpu --strategy random --resume --folder {}",
        run.display()
    );
    let output = flashcore(&other, &home).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(
        words(&err).contains("begin a new run") && !err.contains("resume  "),
        "{err}"
    );
    std::fs::remove_dir_all(&home).unwrap();
}

/// Every candidate would fail, since its worker cannot be told where to write.
#[cfg(unix)]
#[test]
fn a_folder_that_json_cannot_name_is_refused() {
    use std::os::unix::ffi::OsStrExt;

    let home = folder("errors-utf8");
    let run = home.join(std::ffi::OsStr::from_bytes(b"run-\xff"));
    let mut command = flashcore("tune tiny --device cpu --trials 2 --peers none", &home);
    let output = command.arg("--folder").arg(&run).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(words(&err).contains("allowed: a path in UTF-8"), "{err}");
    assert!(!run.exists(), "{err}");
    std::fs::remove_dir_all(&home).unwrap();
}
