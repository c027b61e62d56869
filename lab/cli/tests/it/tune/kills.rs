//! Searches and workers that are killed at moments nobody knows beforehand, and taken up again.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use flashcore_bench::DeviceIdentity;
use flashcore_problem::Problem;
use flashcore_problem::rng::Rng;
use flashcore_tune::plans;
use flashcore_tune::space::CPU;
use serde_json::{Map, Value};

use super::{
    DEADLINE, children, environment, essence, flashcore, folder, json, kept, made_up, said_of, table, trials, words,
};

/// More trials than are made before a search is killed.
const MANY: usize = 10_000;

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
        let typed = format!("tune tiny --device replay:{device} --seed 3 --trials 110 --json --folder {kept} {more}");
        flashcore(&typed, &home)
    };
    let undisturbed = json(&mut run("whole", ""));
    assert_eq!(trials(&undisturbed).len(), 110);
    assert_eq!(undisturbed["board"]["winner"], "cpu/m128n256");
    assert!(undisturbed["plan"]["none"].as_str().unwrap().contains("replay"));
    assert!(!home.join("flashcore/plans").exists());

    let mut rng = Rng::new(20);
    let (mut run_number, mut kills, mut between, mut of_workers) = (0, 0, 0, 0);
    // A search that ends before it is killed is compared, and another one begun.
    for _ in 0..400 {
        let name = format!("cut-{run_number}");
        let disturbed = home.join(&name);
        if kills >= 20 && between >= 5 && of_workers >= 5 {
            break;
        }
        let more = if disturbed.join("run.json").exists() {
            "--resume"
        } else {
            ""
        };
        let mut command = run(&name, more);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Wait until a few more trials are kept, then a moment that is not known beforehand.
        let more_trials = kept(&disturbed) + 1 + rng.below(6);
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
        if kept(&disturbed) == 110 {
            let resumed = json(&mut run(&name, "--resume"));
            assert_eq!(essence(&resumed), essence(&undisturbed));
            run_number += 1;
        }
    }
    assert!(
        kills >= 20 && between >= 5 && of_workers >= 5,
        "{kills} kills, {between} in the middle, {of_workers} workers killed"
    );
    let last = format!("cut-{run_number}");
    let resumed = json(&mut run(&last, if home.join(&last).exists() { "--resume" } else { "" }));
    assert_eq!(essence(&resumed), essence(&undisturbed));

    // And what is not the same run is not taken up.
    let other = run(&last, "--resume --strategy random").output().unwrap();
    let said = String::from_utf8(other.stderr).unwrap();
    assert_eq!(other.status.code(), Some(2), "{said}");
    assert!(words(&said).contains("the strategy was elite and is random"), "{said}");
    let mut faster = table();
    faster.tables[0].timed.iter_mut().for_each(|row| row.1 *= 0.99);
    std::fs::write(&file, serde_json::to_string(&faster).unwrap()).unwrap();
    let other = run(&last, "--resume").output().unwrap();
    let said = String::from_utf8(other.stderr).unwrap();
    assert_eq!(other.status.code(), Some(2), "{said}");
    assert!(words(&said).contains("the space was"), "{said}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// With a clock nothing is the same twice: what was kept before each kill stays as it is to the byte. What the first
/// two trials came to does not outlive the third.
#[test]
fn trials_with_a_clock_outlive_kills_to_the_byte() {
    let home = folder("killed-cpu");
    // Runs are long by the made-up clock, so that a measurement needs few of them.
    let default = plans::heuristics(&Problem::named("tiny").unwrap(), &DeviceIdentity::cpu()).unwrap();
    let ids = CPU.ids().chain([default.to_string()]);
    let times: Map<String, Value> = ids.map(|id| (id, 50_000.0.into())).collect();
    made_up(&home, &times.into());
    let run = home.join("run");
    let typed = format!(
        "tune tiny --device cpu --strategy elite --seed 3 --json --folder {} --trials",
        run.display()
    );
    let read = || std::fs::read(run.join("trials.jsonl")).unwrap_or_default();
    let of_two = json(&mut flashcore(&format!("{typed} 2"), &home));
    let shown = || json(&mut flashcore(&format!("tune show --json {}", run.display()), &home));
    assert_eq!(shown()["board"], of_two["board"]);
    for kill in 0..3 {
        let before = read();
        let mut command = flashcore(&format!("{typed} {MANY} --resume"), &home);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let wanted = kept(&run) + 1;
        while kept(&run) < wanted && child.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
        end(child);
        assert!(read().starts_with(&before) && kept(&run) >= wanted, "kill {kill}");
        let shown = shown();
        for stale in ["board", "claims", "peers", "seconds"] {
            assert!(shown[stale].is_null(), "{stale} of the trials before: {shown:#}");
        }
    }
    let before = read();
    let all = kept(&run) + 2;
    let whole = json(&mut flashcore(&format!("{typed} {all} --resume"), &home));
    assert!(read().starts_with(&before));
    assert_eq!(trials(&whole).len(), all);
    assert!(whole["board"]["winner"].is_string(), "{whole:#}");
    assert_eq!(whole["board"]["head_to_head"]["ok"], true);
    std::fs::remove_dir_all(&home).unwrap();
}

/// Where files may not grow, no candidate is blamed, and nothing is kept that a resumed run could not mend.
#[test]
fn a_limit_of_file_sizes_blames_no_candidate() {
    let home = folder("limited");
    let run = home.join("run");
    let typed = format!(
        "tune tiny --seq 2048 --device cpu --strategy exhaustive --trials 4 --seed 3 --json --folder {}",
        run.display()
    );
    let mut limited = Command::new("/bin/sh");
    // 32 KiB: less than an output has, more than the run's own files.
    let program = env!("CARGO_BIN_EXE_flashcore");
    limited.args(["-c", &format!("ulimit -f 64 && exec {program} {typed}")]);
    let output = environment(&mut limited, &home).output().unwrap();
    let said = words(&String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("File too large (os error 27)"), "{said}");
    let kept = std::fs::read_to_string(run.join("trials.jsonl")).unwrap();
    assert!(!kept.contains("LAUNCH_FAILED"), "{kept}");
    let resumed = json(&mut flashcore(&format!("{typed} --resume"), &home));
    let trials = trials(&resumed);
    assert_eq!(trials.len(), 4);
    assert!(trials.iter().all(|trial| trial.timed.is_some()), "{trials:#?}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// Workers that something kills, and a run that is resumed when it is over.
#[test]
fn candidates_whose_workers_were_killed_are_tried_again_on_resume() {
    let home = folder("sick");
    let (script, run) = (home.join("start.sh"), home.join("run"));
    // A worker of a search that has a file `sick` is killed at its first candidate.
    let text = r#"if [ ! -e "$0.sick" ]; then exec "$1" worker; fi
while read -r line; do
    case $line in *'"open"'*) exit;; *) printf '%s\n' "$line";; esac
done | "$1" worker
kill -9 $$
"#;
    std::fs::write(&script, text).unwrap();
    let program = env!("CARGO_BIN_EXE_flashcore");
    let search = |more: &str| {
        let typed = format!("tune small --device replay:shipped --strategy elite --seed 3 --trials 8 --json {more}");
        let mut command = flashcore(&typed, &home);
        command.args(["--workers", &format!("sh {} {program}", script.display()), "--folder"]);
        command.arg(&run);
        command
    };
    std::fs::write(home.join("start.sh.sick"), "").unwrap();
    let output = search("").output().unwrap();
    let (_, said) = said_of(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(words(&said).contains("3 times in a row"), "{said}");
    assert!(words(&said).contains("no candidate is to blame"), "{said}");
    std::fs::remove_file(home.join("start.sh.sick")).unwrap();
    let resumed = json(&mut search("--resume"));
    let trials = trials(&resumed);
    let undecided: Vec<&str> = trials[..3].iter().map(|trial| trial.id.as_str()).collect();
    assert!(trials[..3].iter().all(|trial| trial.is_undecided()), "{trials:#?}");
    let again: Vec<&str> = trials[3..6].iter().map(|trial| trial.id.as_str()).collect();
    assert_eq!(again, undecided);
    assert!(trials[3..].iter().all(|trial| !trial.is_undecided()), "{trials:#?}");
    assert!(resumed["board"]["winner"].is_string(), "{resumed:#}");
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
    // The fourth one hangs until its deadline, so that there is a search to do this to.
    let typed = format!(
        "tune tiny --lse --device cpu --torture --family planted --strategy exhaustive --seed 1 --trials 6 --json \
         --deadline {DEADLINE} --folder {}",
        run.display()
    );
    let mut command = Command::new(&program);
    command.args(typed.split_whitespace());
    let mut child = environment(&mut command, &home).stdout(Stdio::piped()).spawn().unwrap();
    while kept(&run) < 3 && child.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(1));
    }
    // As a build does: another file under the same name.
    std::fs::remove_file(&program).unwrap();
    std::fs::write(&program, "#!/bin/sh\nexit 9\n").unwrap();
    for worker in children(child.id()) {
        Command::new("kill").args(["-9", &worker.to_string()]).status().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(trials(&found).len(), 6);
    // The first, one after the one that hangs, and more for those that crash.
    assert!(found["workers_started"].as_u64() > Some(2), "{found:#}");
    std::fs::remove_dir_all(&home).unwrap();
}
