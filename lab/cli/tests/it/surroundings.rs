//! What the command finds around it: standard streams, variables, and names from files of others.

use std::process::Command;

use crate::common::{command, run, run_unread, words};

/// What writes to standard output, by a subcommand each.
const PRINTS: [&str; 8] = [
    "list",
    "list problems --json",
    "explain tiny",
    "check tiny --json",
    "plans",
    "run tiny --device cpu --json",
    "--help",
    "--version",
];

/// The command in a shell that redirects its output.
#[cfg(unix)]
fn redirected(arguments: &str, redirection: &str) -> Command {
    let plain = command(arguments);
    let mut shell = Command::new("/bin/sh");
    let program = env!("CARGO_BIN_EXE_flashcore");
    shell.args(["-c", &format!("exec {program} {arguments} {redirection}")]);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_is_lost_is_told_by_the_exit_code() {
    for arguments in PRINTS {
        let unread = run_unread(&mut command(arguments));
        assert_eq!((unread.code, unread.stderr.as_str()), (141, ""), "{arguments}");
        for (redirection, why) in [(">&-", "it is closed"), (">/dev/full", "No space left on device")] {
            let ran = run(&mut redirected(arguments, redirection));
            assert_eq!(ran.code, 1, "{arguments} {redirection}: {}", ran.stderr);
            let says = format!("standard output cannot be written: {why}");
            assert!(ran.words().contains(&says), "{arguments} {redirection}: {}", ran.stderr);
        }
        // Who wants none says so.
        let dropped = run(&mut redirected(arguments, ">/dev/null"));
        assert_eq!((dropped.code, dropped.stderr.as_str()), (0, ""), "{arguments}");
    }
}

/// A job that is not there was once aborted by chance.
#[test]
fn a_worker_without_a_job_says_so() {
    for _ in 0..30 {
        let ran = run(&mut command("worker --bench"));
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(
            ran.words().contains("there is no job on standard input"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn a_number_of_threads_that_cannot_be_is_refused() {
    for given in ["99999999", "-1", "all"] {
        let ran = run(command("list devices").env("RAYON_NUM_THREADS", given));
        assert_eq!(ran.code, 2, "{given}: {}", ran.stdout);
        let says = format!("RAYON_NUM_THREADS is {given}; allowed: 1 to 1,024");
        assert!(ran.words().contains(&says), "{}", ran.stderr);
    }
    let ran = run(command("list devices").env("RAYON_RS_NUM_CPUS", "99999999"));
    assert!(
        ran.code == 2 && ran.words().contains("RAYON_RS_NUM_CPUS is"),
        "{}",
        ran.stderr
    );
    assert_eq!(run(command("list devices").env("RAYON_NUM_THREADS", "3")).code, 0);
}

/// The folder that somebody else wrote, in which the command is started.
#[test]
fn a_relative_data_folder_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let plans = folder.path().join("data/flashcore/plans");
    std::fs::create_dir_all(&plans).unwrap();
    std::fs::write(plans.join("theirs.json"), "{}").unwrap();
    let home = folder.path().join("home");
    let shown = |data: &str| {
        let mut command = command("plans");
        command
            .current_dir(folder.path())
            .env("HOME", &home)
            .env("FLASHCORE_PLANS", "user");
        run(command.env("XDG_DATA_HOME", data)).words()
    };
    assert!(!shown("data").contains("theirs.json"), "{}", shown("data"));
    let absolute = folder.path().join("data").display().to_string();
    assert!(shown(&absolute).contains("theirs.json"), "{}", shown(&absolute));
}

#[test]
fn names_of_others_reorder_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("theirs.toml");
    let problem = |name: &str| format!("[[problems]]\nname = \"{name}\"\nheads = 1\nseq = 16\nhead_dim = 64\n");
    let name = r"a\u202Eb\u001B]0;x\u0007c";
    std::fs::write(&file, problem(name) + &problem("other")).unwrap();
    let file = file.display();
    for arguments in [format!("run {file}"), format!("explain {file}:other{}", '\u{202e}')] {
        let ran = run(&mut command(&arguments));
        let said = ran.stdout.clone() + &ran.stderr;
        assert!(!said.contains(['\u{202e}', '\u{1b}', '\u{7}']), "{arguments}: {said:?}");
        assert!(ran.code == 2 && said.contains(r"\u202e"), "{arguments}: {said}");
    }
}

#[test]
fn lists_of_errors_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("many.toml");
    let problem = |at: usize| format!("[[problems]]\nname = \"problem-{at}\"\nheads = 1\nseq = 16\nhead_dim = 64\n");
    std::fs::write(&file, (0..3000).map(problem).collect::<String>()).unwrap();
    let ran = run(&mut command(&format!("run {}", file.display())));
    assert_eq!(ran.code, 2, "{}", ran.stderr);
    assert!(ran.words().contains("problem-19 and 2,980 more"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("problem-20"), "{}", ran.stderr);
    // A single name may be of any length, too.
    let long = "x".repeat(100_000);
    let ran = run(&mut command(&format!("run {long}")));
    assert!(ran.code == 2 && ran.stderr.len() < 10_000, "{} bytes", ran.stderr.len());
    assert!(words(&ran.stderr).contains("characters are left out"), "{}", ran.stderr);
}
