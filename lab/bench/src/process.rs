//! A child process that is asked, and answers, in lines: [`Program`] says how one is started, [`Process`] owns it. No
//! process that hangs, floods, reads nothing or closes its output keeps this one waiting, or outlives it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::outside::from_outside;

/// The last lines of standard error that are part of an error.
const LAST_WORDS: usize = 8;
/// The bytes that are kept of each.
const LONGEST_WORDS: u64 = 4096;
/// What is waited for them after the process ended.
const LAST_WORDS_PATIENCE: Duration = Duration::from_secs(2);
/// What is waited for the end of a process that closed its output.
const LAST_BREATH: Duration = Duration::from_secs(3);
const LOOK_UP: Duration = Duration::from_millis(10);
/// How long to wait for output before looking whether the process has ended. A child that it started may keep the
/// output open.
const SILENCE: Duration = Duration::from_millis(500);
/// How often in a row it is silent after its end before no line is expected: its last may be long, or on its way.
const SILENCES: usize = 2;

/// An executable, its arguments and its environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What its environment has in place of this process's: a variable that it has not is `None`.
    pub env: Vec<(OsString, Option<OsString>)>,
}

impl Program {
    /// The process, not yet started.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(&self.args);
        self.set_environment(&mut command);
        command
    }

    pub(crate) fn set_environment(&self, command: &mut Command) {
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}

/// Why a process says nothing.
#[derive(Debug)]
pub enum Silence {
    /// The deadline is over.
    Timeout,
    /// It ended, or closed its output.
    Ended(End),
    /// Its output cannot be read, or has a line that is too long.
    Unreadable(io::Error),
}

/// How a process ended.
#[derive(Debug)]
pub struct End {
    /// `None` if it closed its output and goes on.
    status: Option<ExitStatus>,
    /// The last lines of its standard error that are not blank.
    words: Vec<String>,
}

impl End {
    /// Why it ended, if not for its own reasons ([`from_outside`]).
    pub fn outside(&self) -> Option<String> {
        from_outside(self.status, &self.words.join(" "))
    }

    /// Whether it ended by itself, with the status 0.
    pub(crate) fn is_success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// The status, such as `exit status: 3`.
    pub fn status(&self) -> String {
        self.status
            .map_or("it closed its output".to_string(), |status| status.to_string())
    }

    /// The last line of standard error.
    pub fn last_words(&self) -> &str {
        self.words.last().map_or("", String::as_str)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "it ended ({status})")?,
            None => f.write_str("it closed its output")?,
        }
        let words = self.words.join(" ");
        if words.is_empty() {
            Ok(())
        } else {
            write!(f, "; {words}")
        }
    }
}

impl fmt::Display for Silence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Silence::Timeout => f.write_str("it did not answer in time"),
            Silence::Unreadable(error) => write!(f, "its output cannot be read: {error}"),
            Silence::Ended(end) => match end.outside() {
                Some(why) => write!(f, "{why}: {end}"),
                None => write!(f, "{end}"),
            },
        }
    }
}

/// What is kept of standard error, which a process may flood: the last lines that are not blank.
#[derive(Debug)]
struct LastWords {
    kept: Arc<Mutex<VecDeque<String>>>,
    /// Closed at its end.
    end: Receiver<()>,
}

impl LastWords {
    fn of(stream: impl Read + Send + 'static) -> LastWords {
        let (open, end) = channel();
        let kept = Arc::new(Mutex::new(VecDeque::new()));
        let shared = Arc::clone(&kept);
        thread::spawn(move || {
            let _open: Sender<()> = open;
            let mut stream = BufReader::new(stream);
            while let Ok(Some((mut line, is_cut))) = read_line(&mut stream, LONGEST_WORDS) {
                if is_cut {
                    line.push_str("...");
                    if stream.skip_until(b'\n').is_err() {
                        return;
                    }
                }
                if !line.trim().is_empty() {
                    let mut kept = shared.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.truncate(LAST_WORDS - 1);
                    kept.push_front(line);
                }
            }
        });
        LastWords { kept, end }
    }

    /// A grandchild may keep standard error open, so the end is not waited for without a limit.
    fn at_end(&self) -> Vec<String> {
        let _ = self.end.recv_timeout(LAST_WORDS_PATIENCE);
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().rev().cloned().collect()
    }
}

/// A process that was started. It is ended when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// Lines for its standard input, which is closed with this.
    input: Option<Sender<String>>,
    output: Receiver<io::Result<String>>,
    errors: Option<LastWords>,
}

impl Process {
    /// Starts a process, whose lines of output may have so many bytes. The end of standard error is kept if the command
    /// pipes it.
    ///
    /// # Errors
    /// Why it cannot be started.
    pub fn start(command: &mut Command, longest: u64) -> Result<Process, String> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("it cannot be started: {error}"))?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no standard input or output".to_string());
        };
        // Each pipe has a thread, so that a full one blocks nothing else.
        let (input, lines) = channel::<String>();
        thread::spawn(move || {
            for line in lines {
                if writeln!(stdin, "{line}").and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        // The bound stops a process that writes more than it was asked for.
        let (sender, output) = sync_channel(1);
        thread::spawn(move || read_lines(stdout, longest, |line| sender.send(line).is_ok()));
        let errors = child.stderr.take().map(LastWords::of);
        Ok(Process {
            child,
            input: Some(input),
            output,
            errors,
        })
    }

    /// Writes a line, without waiting until it is read: if the process is gone or reads nothing, its output tells.
    pub fn say(&self, line: String) {
        let _ = self.input.as_ref().map(|input| input.send(line));
    }

    /// Closes its standard input after what was said.
    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Writes a line and waits for one.
    ///
    /// # Errors
    /// As [`Process::next`].
    pub fn ask(&mut self, line: String, deadline: Duration) -> Result<String, Silence> {
        self.say(line);
        self.next(Some(deadline))
    }

    /// The next line of its standard output, waited for without a limit if there is no deadline.
    ///
    /// # Errors
    /// There is none.
    pub fn next(&mut self, deadline: Option<Duration>) -> Result<String, Silence> {
        let until = deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let mut silences_after_end = 0;
        loop {
            let left = until.map_or(SILENCE, |until| until.saturating_duration_since(Instant::now()));
            let is_last = left <= SILENCE && until.is_some();
            silences_after_end += usize::from(self.has_ended());
            match self.output.recv_timeout(left.min(SILENCE)) {
                Ok(line) => return line.map_err(Silence::Unreadable),
                Err(RecvTimeoutError::Timeout) if is_last && !self.has_ended() => return Err(Silence::Timeout),
                Err(RecvTimeoutError::Timeout) if !is_last && silences_after_end < SILENCES => {}
                Err(_) => return Err(Silence::Ended(self.end())),
            }
        }
    }

    /// Waits for its end, whatever it writes until then.
    pub(crate) fn finish(&mut self, deadline: Duration) -> Silence {
        let since = Instant::now();
        loop {
            let left = deadline.saturating_sub(since.elapsed());
            match self.next(Some(left)) {
                Ok(_) if left.is_zero() => return Silence::Timeout,
                Ok(_) => {}
                Err(silence) => return silence,
            }
        }
    }

    fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    #[doc(hidden)]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How a process ended that has closed its output.
    fn end(&mut self) -> End {
        let since = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if since.elapsed() < LAST_BREATH => thread::sleep(LOOK_UP),
                Ok(None) | Err(_) => break None,
            }
        };
        let words = self.errors.as_ref().map_or(Vec::new(), LastWords::at_end);
        End { status, words }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Gives each line to `take`, until it takes no more. A line that is too long is an error and the last.
fn read_lines(stream: impl Read, longest: u64, mut take: impl FnMut(io::Result<String>) -> bool) {
    let mut stream = BufReader::new(stream);
    loop {
        let line = match read_line(&mut stream, longest) {
            Ok(None) => return,
            Ok(Some((_, true))) => Err(io::Error::other(format!("a line is longer than {longest} B"))),
            Ok(Some((line, false))) => Ok(line),
            Err(error) => Err(error),
        };
        let is_over = line.is_err();
        if !take(line) || is_over {
            return;
        }
    }
}

/// A line without its end, and whether it is cut because it has more bytes. Libraries print what they like, Latin-1,
/// too: what is no text is replaced.
fn read_line(stream: &mut impl BufRead, longest: u64) -> io::Result<Option<(String, bool)>> {
    let mut line = Vec::new();
    let read = stream.by_ref().take(longest).read_until(b'\n', &mut line)?;
    let is_whole = line.pop_if(|last| *last == b'\n').is_some();
    line.pop_if(|last| *last == b'\r');
    let is_cut = !is_whole && read as u64 == longest;
    Ok((read > 0).then(|| (String::from_utf8_lossy(&line).into_owned(), is_cut)))
}

#[cfg(all(test, unix))]
#[path = "process_tests.rs"]
mod tests;
