//! Ctrl-C in the middle of a search, as a terminal sends it: to the whole process group.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use flashcore_tune::Verdict;
use flashcore_tune::worker::planted::Conduct;

use super::{DEADLINE, children, environment, flashcore, folder, json, kept, said_of, trials, words};

/// Among planted candidates: the fourth one hangs until its deadline.
const WORDS: &str =
    "tune tiny --lse --device cpu --torture --family planted --strategy exhaustive --seed 1 --trials 50";
/// Trials before that.
const BEFORE: usize = 3;

/// Begins a search, and waits until the candidate that hangs is the next one.
fn at_the_one_that_hangs(deadline: u64, run: &Path, home: &Path) -> Child {
    let words = format!("{WORDS} --deadline {deadline} --folder {}", run.display());
    wait_for_it(flashcore(&words, home), run)
}

fn wait_for_it(mut command: Command, run: &Path) -> Child {
    // What is to be typed then names the program itself.
    command.env_remove("CARGO").process_group(0);
    wait_for_it_in_group(&mut command, run)
}

fn wait_for_it_in_group(command: &mut Command, run: &Path) -> Child {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    while kept(run) < BEFORE {
        assert!(began.elapsed() < Duration::from_secs(60), "{} trials", kept(run));
        thread::sleep(Duration::from_millis(5));
    }
    child
}

/// The candidate at hand was finished, and no other was begun. The signal may come before the one that hangs is begun:
/// the search ends all the same.
fn ended_after_the_one_at_hand(run: &Path, said: &str) {
    let kept = kept(run);
    assert!(kept >= BEFORE && kept < Conduct::SEARCHED.len(), "{kept}: {said}");
    assert!(words(said).contains(&format!("{kept} trials in")), "{said}");
    assert!(said.contains("--resume --folder"), "{said}");
}

fn ctrl_c(child: &Child) {
    send("INT", &format!("-{}", child.id()));
}

/// Sends a signal to a process, or to a group of them.
fn send(signal: &str, to: &str) {
    // Of one that has just ended there is nothing to say: how it ended is looked at.
    let sent = Command::new("kill").args([&format!("-{signal}"), "--", to]).status();
    sent.unwrap();
}

#[test]
fn the_first_one_keeps_what_was_at_hand_and_says_how_to_go_on() {
    let home = folder("interrupted");
    let run = home.join("run");
    let child = at_the_one_that_hangs(DEADLINE, &run, &home);
    ctrl_c(&child);
    let output = child.wait_with_output().unwrap();
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(output.status.code(), Some(130), "{out}{err}");
    assert!(err.contains("Ctrl-C again ends at once"), "{err}");
    ended_after_the_one_at_hand(&run, &out);
    let typed = out
        .lines()
        .find_map(|line| line.trim().strip_prefix("resume"))
        .unwrap()
        .trim();
    let deadline = format!("--deadline {DEADLINE}");
    assert!(typed.contains(&deadline) && typed.contains("--resume"), "{typed}");
    let mut again = Command::new("sh");
    again.args(["-c", &format!("{typed} --json")]);
    let resumed = json(environment(&mut again, &home));
    let trials = trials(&resumed);
    for conduct in Conduct::SEARCHED {
        let trial = trials.iter().find(|trial| trial.id == conduct.to_string()).unwrap();
        assert_eq!(
            trial.verdict,
            super::deserved(conduct).unwrap_or(trial.verdict),
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
    let mut child = at_the_one_that_hangs(300, &run, &home);
    let workers = children(child.id());
    assert!(!workers.is_empty());
    ctrl_c(&child);
    let mut told = BufReader::new(child.stderr.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(told.any(|line| line.contains("Ctrl-C again ends at once")));
    // The search waits 300 s for the candidate that hangs, unless it had not begun yet.
    ctrl_c(&child);
    let err: String = told.collect();
    let output = child.wait_with_output().unwrap();
    let out = said_of(&output).0;
    assert_eq!(output.status.code(), Some(130), "{err}");
    let said = words(&(out + &err));
    assert!(
        said.contains("3 trials in") && said.contains("--resume --folder"),
        "{said}"
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
        assert!(began.elapsed() < Duration::from_secs(60), "{workers:?} are left");
        thread::sleep(Duration::from_millis(20));
    }
    let typed = format!(
        "{WORDS} --deadline {DEADLINE} --json --resume --folder {}",
        run.display()
    );
    let resumed = trials(&json(&mut flashcore(&typed, &home)));
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
        let typed = format!("{WORDS} --deadline {DEADLINE} --folder {}", run.display());
        let child = wait_for_it(not_ignoring_hangups(flashcore(&typed, &home)), &run);
        send(signal, &child.id().to_string());
        let output = child.wait_with_output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(130), "{signal}: {out}");
        ended_after_the_one_at_hand(&run, &out);
        std::fs::remove_dir_all(&home).unwrap();
    }
}

/// Under `nohup` a search goes on without its terminal.
#[test]
#[cfg(target_os = "linux")]
fn a_hangup_that_is_ignored_ends_nothing() {
    let home = folder("nohup");
    let run = home.join("run");
    let typed = format!("{WORDS} --deadline {DEADLINE} --folder {}", run.display());
    let searches = flashcore(&typed, &home);
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' HUP; exec \"$@\"", "sh"])
        .arg(searches.get_program());
    command.args(searches.get_args());
    let set = searches.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let child = wait_for_it_in_group(command.envs(set), &run);
    send("HUP", &child.id().to_string());
    send("TERM", &child.id().to_string());
    let output = child.wait_with_output().unwrap();
    let (out, err) = said_of(&output);
    assert_eq!(output.status.code(), Some(130), "{err}");
    // Of two signals that count the second one would have ended it at once, and said that on standard error.
    ended_after_the_one_at_hand(&run, &out);
    std::fs::remove_dir_all(&home).unwrap();
}
