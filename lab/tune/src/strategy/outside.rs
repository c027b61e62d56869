//! An outside proposer: any program that reads what was tried and answers with configs, a JSON
//! object a line. A language model can sit there; whatever it proposes goes through the same
//! gates. `docs/tune-protocols.md` has the protocol.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use super::{Proposal, Strategy};
use crate::error::TuneError;
use crate::insight::{Advisor, Claim, Insights, Tally};
use crate::space::{Counted, Space};
use crate::trial::{History, Trial};

/// What the proposer is told, a line at a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Question<'a> {
    /// What is asked and what may be proposed: in the first line only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub about: Option<About<'a>>,
    /// Trials since the line before.
    pub trials: &'a [Trial],
    /// The fastest config so far.
    pub best: Option<&'a str>,
    /// What the fastest configs are made of, and what is beside them.
    pub fastest: &'a [Fast],
    /// Proposals that were not taken since the line before, and why.
    pub turned_down: &'a [(String, String)],
    /// What is claimed about the fastest configs, of changes that nobody has tried.
    pub claims: &'a [Claim],
    /// What came of each kind of claim so far.
    pub record: &'a [Tally],
}

/// A fast config by its levers, so that nobody has to read ids or to make any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fast {
    /// The config.
    pub id: String,
    /// The value of each lever.
    pub levers: BTreeMap<&'static str, String>,
    /// Configs that differ in one lever, may be proposed, and were not.
    pub neighbours: Vec<Neighbour>,
}

/// A config that differs from another in one lever.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Neighbour {
    /// The lever.
    pub lever: &'static str,
    /// Its value here.
    pub to: String,
    /// The config.
    pub id: String,
}

impl Fast {
    fn of(id: &str, history: &History, space: &Space) -> Fast {
        let levers = space.values(id);
        let beside = levers.iter().flat_map(|&(lever, _)| {
            let turned = space.turned(id, lever).into_iter();
            turned.map(move |(to, id)| Neighbour { lever, to, id })
        });
        Fast {
            id: id.to_string(),
            neighbours: beside
                .filter(|near| near.id != id && !history.is_seen(&near.id))
                .collect(),
            levers: levers.into_iter().collect(),
        }
    }
}

/// What a search is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About<'a> {
    /// The problem.
    pub problem: &'a Problem,
    /// The device's name.
    pub device: &'a str,
    /// Families and levers.
    pub space: Vec<Counted>,
}

/// What the proposer answers, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// Ids of configs to try, in order. None ends the search.
    pub propose: Vec<String>,
    /// Why these.
    #[serde(default)]
    pub why: String,
}

/// The fastest so many configs are those of which more is told: claims, levers, what is beside them.
const FASTEST: usize = 3;
/// Lines in a row without one config that is new, before the proposer is taken to be stuck.
const PATIENCE: usize = 20;

/// Claims of changes that are not on their way either: those have no score yet.
fn untried<'c>(claims: impl Iterator<Item = &'c Claim>, history: &History) -> impl Iterator<Item = &'c Claim> {
    claims.filter(|claim| !history.is_seen(&claim.proposes))
}

/// How long one that has closed its output may take to end.
const LAST_BREATH: Duration = Duration::from_millis(500);
/// How often it is looked up meanwhile whether it has ended.
const LOOK_UP: Duration = Duration::from_millis(10);
/// Most characters of a line that is no answer that are shown.
const SHOWN: usize = 200;

/// Longest line that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// The next line of an answer, without its end.
fn next_line(output: &mut impl BufRead) -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = output.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
    let is_whole = line.pop_if(|last| *last == b'\n').is_some();
    if !is_whole && read as u64 == LONGEST {
        return Err(std::io::Error::other(format!("a line is longer than {LONGEST} B")));
    }
    let text = String::from_utf8(line).map_err(std::io::Error::other)?;
    Ok((read > 0).then_some(text))
}

/// A proposer in a process of its own.
#[derive(Debug)]
pub struct Outside {
    command: String,
    child: Child,
    /// Lines that are written to it by a thread, since one that does not read would hold up the search.
    questions: Sender<String>,
    lines: Receiver<std::io::Result<String>>,
    deadline: Duration,
    /// What is left of the search's time.
    left: Duration,
    problem: Problem,
    device: String,
    queue: VecDeque<(String, String)>,
    turned_down: Vec<(String, String)>,
    told: usize,
    introduced: bool,
    insights: Option<Insights>,
}

impl Outside {
    /// Starts a program, its words separated by blanks; an answer may take `deadline`.
    ///
    /// # Errors
    /// [`TuneError::Proposer`] if it cannot be started.
    pub fn start(command: &str, problem: &Problem, device: &str, deadline: Duration) -> Result<Outside, TuneError> {
        let failed = |reason: String| TuneError::Proposer {
            command: command.to_string(),
            reason,
        };
        let mut words = command.split_whitespace();
        let program = words.next().ok_or_else(|| failed("name a program".to_string()))?;
        let mut child = Command::new(program)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(format!("it cannot be started: {error}")))?;
        let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(failed("it has no standard input or output".to_string()));
        };
        let (questions, asked) = channel::<String>();
        thread::spawn(move || {
            for line in asked {
                if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
                    break;
                }
            }
        });
        // One that writes more than it is asked for waits, and so does what it writes.
        let (sender, lines) = sync_channel(1);
        thread::spawn(move || {
            let mut output = BufReader::new(stdout);
            while let Some(line) = next_line(&mut output).transpose() {
                let is_over = line.is_err();
                if sender.send(line).is_err() || is_over {
                    break;
                }
            }
        });
        Ok(Outside {
            command: command.to_string(),
            child,
            questions,
            lines,
            deadline,
            left: Duration::MAX,
            problem: problem.clone(),
            device: device.to_string(),
            queue: VecDeque::new(),
            turned_down: Vec::new(),
            told: 0,
            introduced: false,
            insights: None,
        })
    }

    /// The same, told of claims about the fastest configs, too.
    #[must_use]
    pub fn informed(mut self, advisor: Advisor) -> Outside {
        self.insights = Some(Insights::new(advisor));
        self
    }

    fn failed(&self, reason: impl ToString) -> TuneError {
        TuneError::Proposer {
            command: self.command.clone(),
            reason: reason.to_string(),
        }
    }

    /// Its answer; `None` where the search's time is over first.
    fn ask(&mut self, history: &History, space: &Space) -> Result<Option<Reply>, TuneError> {
        let ranked = history.ranked();
        let (mut claims, mut record) = (Vec::new(), Vec::new());
        if let Some(insights) = &mut self.insights {
            insights.follow(history, space);
            let fastest = ranked.iter().take(FASTEST);
            let open = fastest.flat_map(|trial| insights.open(&trial.id));
            claims.extend(untried(open, history).cloned());
            record = insights.table();
        }
        let fastest = ranked.iter().take(FASTEST);
        let fastest: Vec<Fast> = fastest.map(|trial| Fast::of(&trial.id, history, space)).collect();
        let question = Question {
            about: (!self.introduced).then(|| About {
                problem: &self.problem,
                device: &self.device,
                space: space.count(),
            }),
            trials: &history.trials()[self.told..],
            best: ranked.first().map(|trial| trial.id.as_str()),
            fastest: &fastest,
            turned_down: &self.turned_down,
            claims: &claims,
            record: &record,
        };
        let mut line = serde_json::to_string(&question).map_err(|error| self.failed(error))?;
        line.push('\n');
        // Whoever is gone or reads nothing is found out by what it writes, or does not.
        let _ = self.questions.send(line);
        (self.introduced, self.told) = (true, history.trials().len());
        self.turned_down.clear();
        let answer = match self.lines.recv_timeout(self.deadline.min(self.left)) {
            Ok(Ok(line)) => line,
            Ok(Err(error)) => return Err(self.failed(format!("what it writes cannot be read: {error}"))),
            Err(RecvTimeoutError::Timeout) if self.left < self.deadline => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {
                return Err(self.failed(format!("no answer within {} s", self.deadline.as_secs())));
            }
            Err(RecvTimeoutError::Disconnected) => {
                let how = self.how_it_ended();
                return Err(self.failed(format!("{how} without an answer")));
            }
        };
        serde_json::from_str(&answer).map(Some).map_err(|error| {
            let what = if error.is_data() { "no answer" } else { "no JSON" };
            let answer: String = answer.chars().take(SHOWN).collect();
            self.failed(format!(
                "it wrote `{answer}`, which is {what} ({error}); write a line such as {{\"propose\": [\"cpu/m64n128\"]}}"
            ))
        })
    }

    /// What became of it once it writes no more.
    fn how_it_ended(&mut self) -> String {
        let looked_at = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return format!("it ended ({status})"),
                Ok(None) if looked_at.elapsed() < LAST_BREATH => thread::sleep(LOOK_UP),
                Ok(None) | Err(_) => return "it closed its output".to_string(),
            }
        }
    }
}

impl Outside {
    /// The next one that is new.
    fn next(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        for _ in 0..PATIENCE {
            while let Some((id, why)) = self.queue.pop_front() {
                if !history.is_seen(&id) {
                    // What the space refuses is tried all the same: the verdict is REFUSED, with its reason.
                    return Ok(Some(Proposal::new(id, why)));
                }
                self.turned_down.push((id, "it was tried before".to_string()));
            }
            let Some(reply) = self.ask(history, space)?.filter(|reply| !reply.propose.is_empty()) else {
                return Ok(None);
            };
            let why = if reply.why.is_empty() {
                "proposed".to_string()
            } else {
                reply.why
            };
            self.queue.extend(reply.propose.into_iter().map(|id| (id, why.clone())));
        }
        Err(self.failed(format!("{PATIENCE} answers in a row had no config that was new")))
    }

    /// Ends it. It is this process's own child; it may have ended already.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Strategy for Outside {
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        let next = self.next(history, space);
        // It is not asked again.
        if !matches!(next, Ok(Some(_))) {
            self.end();
        }
        next
    }

    fn hurry(&mut self, left: Duration) {
        self.left = left;
    }

    fn is_replayable(&self) -> bool {
        false
    }

    fn insights(&mut self, history: &History, space: &Space) -> Option<&Insights> {
        let insights = self.insights.as_mut()?;
        insights.follow(history, space);
        Some(insights)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, unix))]
mod tests;
