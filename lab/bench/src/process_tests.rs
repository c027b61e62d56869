//! A planted child for each way in which one may fail.

use super::*;

const LONG: Duration = Duration::from_secs(120);

fn started(script: &str) -> Process {
    let mut shell = Command::new("/bin/sh");
    Process::start(shell.args(["-c", script]).stderr(Stdio::piped()), 1 << 16).unwrap()
}

fn end(silence: Result<String, Silence>) -> End {
    match silence {
        Err(Silence::Ended(end)) => end,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lines_go_to_and_fro() {
    let mut process = started("while read -r line; do echo \"$line again\"; done; echo over");
    assert_eq!(process.ask("one".to_string(), LONG).unwrap(), "one again");
    process.say("two".to_string());
    process.close_input();
    assert_eq!(process.next(Some(LONG)).unwrap(), "two again");
    assert_eq!(process.next(None).unwrap(), "over");
    assert_eq!(end(process.next(None)).to_string(), "it ended (exit status: 0)");
}

#[test]
fn one_that_hangs_is_over_at_its_deadline_and_ended() {
    let mut process = started("read -r never; sleep 600");
    let silence = process.ask("hello".to_string(), Duration::from_millis(50));
    assert!(matches!(silence, Err(Silence::Timeout)));
    let id = process.id();
    drop(process);
    let there = Command::new("/bin/kill")
        .args(["-0", &id.to_string()])
        .stderr(Stdio::null())
        .status();
    assert!(!there.unwrap().success());
}

#[test]
fn one_that_dies_says_how_and_its_last_words() {
    let mut process = started("echo no memory >&2; kill -11 $$");
    let how = end(process.next(None));
    assert!(how.status().starts_with("signal: 11"), "{how}");
    assert_eq!((how.last_words(), how.outside()), ("no memory", None));
    let mut process = started("kill -9 $$");
    assert!(end(process.next(None)).outside().is_some());
}

#[test]
fn what_is_no_text_ends_no_stream() {
    let mut process = started("printf 'na\\357ve\\n'; printf '\\351\\n\\n' >&2; echo last >&2; exit 3");
    assert_eq!(process.next(None).unwrap(), "na\u{fffd}ve");
    let how = end(process.next(None)).to_string();
    assert_eq!(how, "it ended (exit status: 3); \u{fffd} last");
}

#[test]
fn only_the_last_words_are_kept() {
    let mut process = started("for i in 1 2 3 4 5 6 7 8 9 10; do echo $i >&2; done; exit 1");
    let how = end(process.next(None)).to_string();
    assert_eq!(how, "it ended (exit status: 1); 3 4 5 6 7 8 9 10");
}

/// A process that writes so much has had most of it read.
#[test]
fn one_that_floods_standard_error_keeps_no_more_than_its_last_words() {
    let mut process = started("yes flood | head -n 200000 >&2; echo flooded; read -r go; echo last >&2; exit 1");
    assert_eq!(process.next(None).unwrap(), "flooded");
    assert!(process.errors.as_ref().unwrap().kept.lock().unwrap().len() <= LAST_WORDS);
    process.say("go".to_string());
    let how = end(process.next(None)).to_string();
    let floods = "flood ".repeat(LAST_WORDS - 1);
    assert_eq!(how, format!("it ended (exit status: 1); {floods}last"));
}

#[test]
fn a_long_line_of_standard_error_is_cut_and_the_next_is_read() {
    let mut process = started("yes x | tr -d '\\n' | head -c 1000000 >&2; echo >&2; echo last >&2; exit 3");
    let how = end(process.next(None)).to_string();
    let cut = "x".repeat(4096);
    assert_eq!(how, format!("it ended (exit status: 3); {cut}... last"));
}

#[test]
fn one_that_floods_is_read_to_the_longest_line() {
    let mut process = started("yes x | tr -d '\\n'");
    let silence = process.next(Some(LONG)).unwrap_err();
    assert!(matches!(&silence, Silence::Unreadable(why) if why.to_string().contains("longer than 65536 B")));
}

#[test]
fn one_that_reads_nothing_blocks_nothing() {
    let mut process = started("echo deaf; exec sleep 600");
    let line = process.ask("x".repeat(1 << 20), LONG).unwrap();
    assert_eq!(line, "deaf");
}

#[test]
fn one_that_closes_its_output_and_goes_on_is_at_an_end() {
    let mut process = started("exec >&-; exec sleep 600");
    assert_eq!(end(process.next(Some(LONG))).to_string(), "it closed its output");
}

/// The process ended, and what it started holds its pipes.
#[test]
fn a_grandchild_that_holds_the_pipes_is_not_waited_for() {
    let mut process = started("sleep 600 & echo $!; exit 4");
    let grandchild = process.next(None).unwrap();
    let how = end(process.next(None)).to_string();
    Command::new("/bin/kill").arg(grandchild).status().unwrap();
    assert_eq!(how, "it ended (exit status: 4)");
}

/// A process that ended, while what it started holds its output, and the number of that.
fn ended() -> (Process, String) {
    let mut process = started("sleep 600 2>&- & echo $!; exit 4");
    let grandchild = process.next(None).unwrap();
    while !process.has_ended() {
        thread::sleep(LOOK_UP);
    }
    (process, grandchild)
}

#[test]
fn the_last_line_of_one_that_ended_has_time() {
    let (mut process, grandchild) = ended();
    let since = Instant::now();
    let how = end(process.next(None)).to_string();
    let waited = since.elapsed();
    Command::new("/bin/kill").arg(grandchild).status().unwrap();
    assert_eq!(how, "it ended (exit status: 4)");
    assert!(waited >= 2 * SILENCE, "{waited:?}");
}

#[test]
fn one_that_ended_has_not_hung_however_short_the_deadline() {
    for deadline in [Duration::ZERO, Duration::from_millis(10), SILENCE] {
        let (mut process, grandchild) = ended();
        let silence = process.next(Some(deadline));
        Command::new("/bin/kill").arg(grandchild).status().unwrap();
        assert_eq!(end(silence).to_string(), "it ended (exit status: 4)");
    }
}
