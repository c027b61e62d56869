//! Runs the built command, away from the machine's GPUs, settings and terminal.

pub(crate) mod json;

use std::process::{Command, Stdio};

/// What came of a command.
pub(crate) struct Ran {
    /// Exit code.
    pub(crate) code: i32,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output and standard error with one space between words. Where a line ends depends on how long the CPU's
    /// name and the paths in it are, so tests look for text in this.
    pub(crate) fn words(&self) -> String {
        words(&format!("{}\n{}", self.stdout, self.stderr))
    }
}

/// Text with one space between words.
pub(crate) fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Asserts that no line is wider than 100 columns. A word is not broken, so a line may end with one that is longer,
/// such as a path.
pub(crate) fn assert_fits(arguments: &str, text: &str) {
    for line in text.lines().filter(|line| line.chars().count() > 100) {
        let longest = line.split(' ').map(|word| word.chars().count()).max();
        assert!(longest > Some(60), "flashcore {arguments}: {line}");
    }
}

/// The command with these arguments, not yet run.
pub(crate) fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashcore"));
    command
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        // No GPU and no offline assembler, so that tests say the same everywhere.
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("PATH", "")
        .env("FLASHCORE_PLANS", "shipped")
        // Nothing on standard error that depends on how fast the machine is.
        .env("FLASHCORE_PROGRESS", "0")
        .env_remove("FLASHCORE_PTXAS")
        .env_remove("NO_COLOR")
        .env_remove("CARGO")
        .env_remove("COLUMNS");
    command
}

/// Runs the command with these arguments, separated by spaces.
pub(crate) fn flashcore(arguments: &str) -> Ran {
    run(&mut command(arguments))
}

/// The standard output of a command that succeeds without a message.
pub(crate) fn shown(arguments: &str) -> String {
    let ran = flashcore(arguments);
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (0, ""),
        "flashcore {arguments}\n{}",
        ran.stdout
    );
    ran.stdout
}

/// Runs a command.
pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.output().expect("the command starts");
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("output is UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("errors are UTF-8"),
    }
}

/// Runs a command whose reader has gone before the first line of its standard output.
pub(crate) fn run_unread(command: &mut Command) -> Ran {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the command ends");
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: String::new(),
        stderr: String::from_utf8(output.stderr).expect("errors are UTF-8"),
    }
}
