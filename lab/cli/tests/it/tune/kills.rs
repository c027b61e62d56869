//! Searches and workers that are killed at moments nobody knows beforehand, and taken up again.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use flashcore_problem::rng::Rng;

use super::{children, essence, flashcore, folder, json, kept, table, trials};

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_run_that_is_killed_twenty_times_ends_like_one_that_was_not() {
    let home = folder("killed");
    let file = home.join("space.json");
    std::fs::write(&file, serde_json::to_string(&table()).unwrap()).unwrap();
    let run = |to: &str, more: &str| {
        let device = file.display();
        let kept = home.join(to).display().to_string();
        let words = format!("tune tiny --device replay:{device} --seed 3 --budget 110 --json --folder {kept} {more}");
        flashcore(&words, &home)
    };
    let undisturbed = json(&mut run("whole", ""));
    assert_eq!(trials(&undisturbed).len(), 110);
    assert_eq!(undisturbed["board"]["winner"], "cpu/m128n256");
    assert!(undisturbed["plan"]["none"].as_str().unwrap().contains("replay"));
    assert!(!home.join("flashcore/plans").exists());

    let disturbed = home.join("cut");
    let mut rng = Rng::new(20);
    let (mut kills, mut between, mut of_workers) = (0, 0, 0);
    for _ in 0..400 {
        if kills == 20 {
            break;
        }
        let more = if disturbed.join("run.json").exists() {
            "--resume"
        } else {
            ""
        };
        let mut command = run("cut", more);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let before = kept(&disturbed);
        // Wait until a few more trials are kept, then a moment that is not known beforehand.
        let more_trials = before + 1 + rng.below(6);
        while kept(&disturbed) < more_trials && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(rng.below(3000) as u64));
        if kills % 2 == 0 {
            // The worker; the parent takes another one and goes on for a moment.
            for worker in children(child.id()) {
                let killed = Command::new("kill").args(["-9", &worker.to_string()]).status().unwrap();
                of_workers += usize::from(killed.success());
            }
            kills += 1;
            thread::sleep(Duration::from_millis(rng.below(5) as u64));
        }
        if child.try_wait().unwrap().is_none() {
            between += usize::from((1..110).contains(&kept(&disturbed)));
            kills += 1;
            end(child);
        }
    }
    assert_eq!(kills, 20);
    assert!(
        between >= 5 && of_workers >= 5,
        "{between} kills in the middle, {of_workers} workers killed"
    );
    let resumed = json(&mut run("cut", "--resume"));
    assert_eq!(essence(&resumed), essence(&undisturbed));

    // And what is not the same run is not taken up.
    let other = run("cut", "--resume --strategy random").output().unwrap();
    let said = String::from_utf8(other.stderr).unwrap();
    assert_eq!(other.status.code(), Some(2), "{said}");
    assert!(said.contains("the strategy was elite and is random"), "{said}");
    let mut faster = table();
    faster.tables[0].timed.iter_mut().for_each(|row| row.1 *= 0.99);
    std::fs::write(&file, serde_json::to_string(&faster).unwrap()).unwrap();
    let other = run("cut", "--resume").output().unwrap();
    let said = String::from_utf8(other.stderr).unwrap();
    assert_eq!(other.status.code(), Some(2), "{said}");
    assert!(said.contains("the space was"), "{said}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// With a clock nothing is the same twice: what was kept before each kill stays as it is to the byte. What the first two trials
/// came to does not outlive the third.
#[test]
fn trials_with_a_clock_outlive_kills_to_the_byte() {
    let home = folder("killed-cpu");
    let run = home.join("run");
    let words = format!(
        "tune tiny --device cpu --strategy elite --seed 3 --json --folder {} --budget",
        run.display()
    );
    let read = || std::fs::read(run.join("trials.jsonl")).unwrap_or_default();
    let of_two = json(&mut flashcore(&format!("{words} 2"), &home));
    let shown = || json(&mut flashcore(&format!("leaderboard --json {}", run.display()), &home));
    assert_eq!(shown()["board"], of_two["board"]);
    for kill in 0..3 {
        let before = read();
        let mut command = flashcore(&format!("{words} 9 --resume"), &home);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let wanted = kept(&run) + 1;
        while kept(&run) < wanted && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        // In the middle of the next one.
        thread::sleep(Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        end(child);
        assert!(read().starts_with(&before) && kept(&run) >= wanted, "kill {kill}");
        let shown = shown();
        for stale in ["board", "claims", "peers", "seconds"] {
            assert!(shown[stale].is_null(), "{stale} of the trials before: {shown:#}");
        }
    }
    let before = read();
    let whole = json(&mut flashcore(&format!("{words} 9 --resume"), &home));
    assert!(read().starts_with(&before));
    assert_eq!(trials(&whole).len(), 9);
    assert!(whole["board"]["winner"].is_string(), "{whole:#}");
    assert_eq!(whole["board"]["head_to_head"]["ok"], true);
    std::fs::remove_dir_all(&home).unwrap();
}

/// A program that is built anew while it searches: workers that are started after that are what the others were.
#[test]
fn a_program_that_is_replaced_goes_on_with_itself() {
    let home = folder("replaced");
    let (run, programs) = (home.join("run"), home.join("programs"));
    std::fs::create_dir(&programs).unwrap();
    let program = programs.join("flashcore");
    std::fs::copy(env!("CARGO_BIN_EXE_flashcore"), &program).unwrap();
    let words = format!(
        "tune tiny --device cpu --seed 3 --budget 8 --json --folder {}",
        run.display()
    );
    let mut command = Command::new(&program);
    command.args(words.split_whitespace());
    command
        .env("XDG_DATA_HOME", &home)
        .env("FLASHCORE_PYTHON", "no-python-here");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    while kept(&run) < 2 && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    // As a build does: another file under the same name.
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "#!/bin/sh\nexit 9\n").unwrap();
    let workers = children(child.id());
    for worker in &workers {
        Command::new("kill").args(["-9", &worker.to_string()]).status().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(trials(&found).len(), 8);
    assert_eq!((workers.len(), &found["workers_started"]), (1, &2.into()));
    std::fs::remove_dir_all(&home).unwrap();
}
