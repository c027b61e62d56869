//! Ctrl-C in the middle of a search, as a terminal sends it: to the whole process group.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flashcore_tune::Verdict;
use flashcore_tune::worker::planted::Conduct;

use super::{children, flashcore, folder, json, kept, trials};

/// Among planted candidates: the fourth one hangs until its deadline.
const WORDS: &str =
    "tune tiny --lse --device cpu --torture --family planted --strategy exhaustive --seed 1 --budget 50";
/// Trials before that.
const BEFORE: usize = 3;

/// Begins a search, and waits until it is at the candidate that hangs.
fn at_the_one_that_hangs(deadline: u32, run: &Path, home: &Path) -> Child {
    let words = format!("{WORDS} --deadline {deadline} --folder {}", run.display());
    wait_for_it(flashcore(&words, home), run)
}

fn wait_for_it(mut command: Command, run: &Path) -> Child {
    // What is to be typed then names the program itself.
    command.env_remove("CARGO").process_group(0);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while kept(run) < BEFORE {
        assert!(began.elapsed() < Duration::from_secs(60), "{} trials", kept(run));
        thread::sleep(Duration::from_millis(5));
    }
    thread::sleep(Duration::from_millis(300));
    child
}

fn ctrl_c(child: &Child) {
    send("INT", &format!("-{}", child.id()));
}

/// Sends a signal to a process, or to a group of them.
fn send(signal: &str, to: &str) {
    let status = Command::new("kill").args([&format!("-{signal}"), "--", to]).status();
    assert!(status.unwrap().success());
}

#[test]
fn the_first_one_keeps_what_was_at_hand_and_says_how_to_go_on() {
    let home = folder("interrupted");
    let run = home.join("run");
    let child = at_the_one_that_hangs(2, &run, &home);
    ctrl_c(&child);
    let output = child.wait_with_output().unwrap();
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(output.status.code(), Some(130), "{out}{err}");
    assert!(err.contains("Ctrl-C again ends at once"), "{err}");
    assert!(out.contains("4 trials in"), "{out}");
    // The one at hand was finished, and nobody was blamed for the signal.
    assert_eq!(kept(&run), BEFORE + 1);
    let typed = out
        .lines()
        .find_map(|line| line.trim().strip_prefix("resume"))
        .unwrap()
        .trim();
    assert!(typed.contains("--deadline 2") && typed.contains("--resume"), "{typed}");
    let mut again = Command::new("sh");
    again
        .args(["-c", &format!("{typed} --json")])
        .env("XDG_DATA_HOME", &home);
    let resumed = json(again.env("FLASHCORE_PYTHON", "no-python-here"));
    let trials = trials(&resumed);
    for conduct in Conduct::ALL {
        let trial = trials.iter().find(|trial| trial.id == conduct.to_string()).unwrap();
        assert_eq!(
            trial.verdict,
            conduct.deserves(false).unwrap_or(trial.verdict),
            "{conduct}"
        );
    }
    assert!(resumed["board"]["winner"].is_string());
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
#[cfg(target_os = "linux")]
fn the_second_one_ends_it_at_once() {
    let home = folder("interrupted-twice");
    let run = home.join("run");
    let child = at_the_one_that_hangs(300, &run, &home);
    let workers = children(child.id());
    assert!(!workers.is_empty());
    ctrl_c(&child);
    thread::sleep(Duration::from_millis(500));
    let pressed = Instant::now();
    ctrl_c(&child);
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(pressed.elapsed() < Duration::from_secs(5), "{err}");
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(
        err.contains("3 trials in") && err.contains("--resume --folder"),
        "{err}"
    );
    assert_eq!(kept(&run), BEFORE);
    // The worker goes too, though its candidate never ends.
    let is_there = |worker: &u32| {
        let line = std::fs::read(format!("/proc/{worker}/cmdline"));
        // Empty of one that has ended and that nobody has asked about.
        line.is_ok_and(|line| !line.is_empty())
    };
    let began = Instant::now();
    while workers.iter().any(is_there) {
        assert!(began.elapsed() < Duration::from_secs(10), "{workers:?} are left");
        thread::sleep(Duration::from_millis(20));
    }
    let words = format!("{WORDS} --deadline 2 --json --resume --folder {}", run.display());
    let resumed = trials(&json(&mut flashcore(&words, &home)));
    let hangs = resumed
        .iter()
        .find(|trial| trial.id == Conduct::Hangs.to_string())
        .unwrap();
    assert_eq!((hangs.number, hangs.verdict), (BEFORE, Verdict::Hung));
    std::fs::remove_dir_all(&home).unwrap();
}

/// The same command, where these tests themselves run under `nohup`.
fn not_ignoring_hangups(command: Command) -> Command {
    if !cfg!(target_os = "linux") {
        return command;
    }
    let mut heeds = Command::new("env");
    heeds.arg("--default-signal=HUP").arg(command.get_program());
    heeds.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => heeds.env(name, value),
            None => heeds.env_remove(name),
        };
    }
    heeds
}

/// What a service manager, a queue's time limit and a terminal that is closed send: to the program alone.
#[test]
fn other_signals_that_ask_it_to_end_keep_as_much() {
    for signal in ["TERM", "HUP"] {
        let home = folder(&format!("ended-by-{signal}"));
        let run = home.join("run");
        let words = format!("{WORDS} --deadline 2 --folder {}", run.display());
        let child = wait_for_it(not_ignoring_hangups(flashcore(&words, &home)), &run);
        send(signal, &child.id().to_string());
        let output = child.wait_with_output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(130), "{signal}: {out}");
        assert_eq!(kept(&run), BEFORE + 1, "{signal}: {out}");
        assert!(
            out.contains("4 trials in") && out.contains("--resume --folder"),
            "{signal}: {out}"
        );
        std::fs::remove_dir_all(&home).unwrap();
    }
}

/// Under `nohup` a search goes on without its terminal.
#[test]
#[cfg(target_os = "linux")]
fn a_hangup_that_is_ignored_ends_nothing() {
    let home = folder("nohup");
    let run = home.join("run");
    let words = format!("{WORDS} --deadline 2 --json --folder {}", run.display());
    let searches = flashcore(&words, &home);
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(searches.get_program());
    command.args(searches.get_args()).env("XDG_DATA_HOME", &home);
    command.env("FLASHCORE_PYTHON", "no-python-here");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while kept(&run) < BEFORE {
        assert!(began.elapsed() < Duration::from_secs(60), "{} trials", kept(&run));
        thread::sleep(Duration::from_millis(5));
    }
    send("HUP", &child.id().to_string());
    thread::sleep(Duration::from_millis(200));
    send("TERM", &child.id().to_string());
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    // Of two signals that count the second one would have ended it at once.
    assert_eq!((output.status.code(), kept(&run)), (Some(130), BEFORE + 1), "{err}");
    std::fs::remove_dir_all(&home).unwrap();
}
