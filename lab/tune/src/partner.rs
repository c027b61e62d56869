//! A child process that reads questions and writes answers, one line each: a worker or an outside
//! proposer.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use flashcore_bench::outside::from_outside;

const LONGEST: u64 = 1 << 20;
/// Number of lines of standard error that an error message quotes.
const LAST_WORDS: usize = 8;
/// How long to wait for the rest of standard error once the output is closed.
const LAST_WORDS_PATIENCE: Duration = Duration::from_secs(2);
/// How long a process that has closed its output may take to exit.
const LAST_BREATH: Duration = Duration::from_millis(500);
const LOOK_UP: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) enum Silence {
    Timeout,
    /// The process closed its output. What is known of its end.
    Ended(String),
    /// The same, and the process is not to blame for it.
    Outside(String),
    Unreadable(io::Error),
}

#[derive(Debug)]
pub(crate) struct Partner {
    child: Child,
    /// Lines for a thread that writes them: a process that does not read must not block the caller.
    questions: Sender<String>,
    answers: Receiver<io::Result<String>>,
    errors: Option<Receiver<io::Result<String>>>,
}

impl Partner {
    /// Starts a process. The caller decides about standard error.
    pub(crate) fn start(command: &mut Command) -> Result<Partner, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("it cannot be started: {error}"))?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no standard input or output".to_string());
        };
        let (questions, asked) = channel::<String>();
        thread::spawn(move || {
            for line in asked {
                if writeln!(stdin, "{line}").and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        // The bound stops a process that writes more than it was asked for.
        let (sender, answers) = sync_channel(1);
        thread::spawn(move || read_lines(stdout, text, |line| sender.send(line).is_ok()));
        let errors = child.stderr.take().map(|stderr| {
            let (sender, errors) = channel();
            // A library that prints Latin-1 must not lose the process its standard error.
            let lossy = |line: Vec<u8>| Ok(String::from_utf8_lossy(&line).into_owned());
            thread::spawn(move || read_lines(stderr, lossy, |line| sender.send(line).is_ok()));
            errors
        });
        Ok(Partner {
            child,
            questions,
            answers,
            errors,
        })
    }

    pub(crate) fn ask(&mut self, line: String, deadline: Duration) -> Result<String, Silence> {
        // If the process is gone or reads nothing, its output tells.
        let _ = self.questions.send(line);
        match self.answers.recv_timeout(deadline) {
            Ok(line) => line.map_err(Silence::Unreadable),
            Err(RecvTimeoutError::Timeout) => Err(Silence::Timeout),
            Err(RecvTimeoutError::Disconnected) => Err(self.how_it_ended()),
        }
    }

    #[cfg(test)]
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// How a process ended that has closed its output, and the end of its standard error.
    fn how_it_ended(&mut self) -> Silence {
        let since = Instant::now();
        let (how, status) = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break (format!("it ended ({status})"), Some(status)),
                Ok(None) if since.elapsed() < LAST_BREATH => thread::sleep(LOOK_UP),
                Ok(None) | Err(_) => break ("it closed its output".to_string(), None),
            }
        };
        let until = Instant::now() + LAST_WORDS_PATIENCE;
        let mut words: VecDeque<String> = VecDeque::new();
        // A grandchild may keep standard error open, so the end is not waited for without a limit.
        let next = || {
            let left = until.saturating_duration_since(Instant::now());
            self.errors.as_ref()?.recv_timeout(left).ok()?.ok()
        };
        for line in std::iter::from_fn(next) {
            words.push_back(line);
            if words.len() > LAST_WORDS {
                words.pop_front();
            }
        }
        let words = Vec::from(words).join(" ");
        let how = match words.is_empty() {
            true => how,
            false => format!("{how}; {words}"),
        };
        match from_outside(status, &words) {
            Some(why) => Silence::Outside(format!("{why}: {how}")),
            None => Silence::Ended(how),
        }
    }
}

impl Drop for Partner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(line: Vec<u8>) -> io::Result<String> {
    String::from_utf8(line).map_err(io::Error::other)
}

fn read_lines(
    stream: impl Read,
    text: impl Fn(Vec<u8>) -> io::Result<String>,
    mut take: impl FnMut(io::Result<String>) -> bool,
) {
    let mut stream = BufReader::new(stream);
    while let Some(line) = next_line(&mut stream).transpose() {
        let line = line.and_then(&text);
        let is_over = line.is_err();
        if !take(line) || is_over {
            break;
        }
    }
}

fn next_line(stream: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let read = stream.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
    let is_whole = line.pop_if(|last| *last == b'\n').is_some();
    if !is_whole && read as u64 == LONGEST {
        return Err(io::Error::other(format!("a line is longer than {LONGEST} B")));
    }
    Ok((read > 0).then_some(line))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_ends_no_standard_error() {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", "printf '\\351\\n' >&2; echo last >&2; exit 3"]);
        let mut partner = Partner::start(shell.stderr(Stdio::piped())).unwrap();
        let ended = partner.ask(String::new(), Duration::from_secs(120)).unwrap_err();
        let Silence::Ended(how) = &ended else {
            panic!("{ended:?}")
        };
        assert!(how.ends_with("last"), "{how}");
    }
}
