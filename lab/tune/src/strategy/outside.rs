//! An outside proposer: a program that reads the trials and answers with configs, one JSON object a
//! line. It can ask a language model. Its proposals go through the same gates, and may carry code.
//! `docs/tune-protocols.md` has the protocol.

use std::collections::{BTreeMap, VecDeque};
use std::process::Command;
use std::time::Duration;

use flashcore_bench::process::{Process, Silence};
use flashcore_check::own::Template;
use flashcore_check::programs;
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

mod facts;

use super::{Proposal, Strategy};
use crate::error::TuneError;
use crate::insight::{Advisor, Claim, Insights, Tally};
use crate::own::{Code, OwnKernels};
use crate::space::{Counted, Space};
use crate::trial::{History, Trial};
use facts::{Card, Failed, Floor, Incumbent, failures};

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Question<'a> {
    /// In the first line only.
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<About<'a>>,
    trials: &'a [Trial],
    best: Option<&'a str>,
    fastest: &'a [Fast],
    /// The best, when it is another one than in the line before.
    #[serde(skip_serializing_if = "Option::is_none")]
    incumbent: Option<Incumbent<'a>>,
    /// The last candidates that failed.
    failures: &'a [Failed<'a>],
    /// Proposals since the line before that were not accepted, and why.
    turned_down: &'a [(String, String)],
    /// Claims about the fastest configs whose change was not tried.
    claims: &'a [Claim],
    /// Results of each kind of claim so far.
    record: &'a [Tally],
}

/// A fast config by its levers, so that a proposer need not parse or build ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Fast {
    id: String,
    levers: BTreeMap<&'static str, String>,
    /// Configs that differ in one lever, may be proposed, and were not.
    neighbours: Vec<Neighbour>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Neighbour {
    lever: &'static str,
    to: String,
    id: String,
}

impl Fast {
    fn of(id: &str, history: &History, space: &Space) -> Fast {
        let levers = space.values(id);
        let near = levers.iter().flat_map(|&(lever, _)| {
            let turned = space.turned(id, lever).into_iter();
            turned.map(move |(to, id)| Neighbour { lever, to, id })
        });
        Fast {
            id: id.to_string(),
            neighbours: near
                .filter(|near| near.id != id && !history.is_seen(&near.id))
                .collect(),
            levers: levers.into_iter().collect(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct About<'a> {
    problem: &'a Problem,
    device: &'a str,
    /// Null where nothing models the device.
    card: Option<&'a Card>,
    floor_us: Option<Floor>,
    space: &'a [Counted],
    /// Kernels of the user: their declarations and texts.
    own: Vec<&'a Template>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reply {
    /// Ids of configs to try, in order. An answer without one, and without source, ends the search.
    #[serde(default)]
    propose: Vec<String>,
    /// Code to try before them.
    #[serde(default)]
    source: Vec<Code>,
    #[serde(default)]
    why: String,
}

/// Number of fastest configs whose claims, levers and neighbours a question has.
const FASTEST: usize = 3;
/// Bytes of an answer at most.
const LONGEST: u64 = 1 << 20;
/// Answers in a row without a new config after which the proposer is considered stuck.
const PATIENCE: usize = 20;

/// Claims whose change is not pending either; a pending change has no score yet.
fn untried<'c>(claims: impl Iterator<Item = &'c Claim>, history: &History) -> impl Iterator<Item = &'c Claim> {
    claims.filter(|claim| !history.is_seen(&claim.proposes))
}

/// Most characters of a line that an error message quotes.
const SHOWN: usize = 200;

/// A proposer in a child process.
#[derive(Debug)]
pub struct Outside {
    command: String,
    /// `None` after it has ended.
    partner: Option<Process>,
    deadline: Duration,
    left: Duration,
    problem: Problem,
    device: String,
    own: OwnKernels,
    queue: VecDeque<(String, String)>,
    turned_down: Vec<(String, String)>,
    told: usize,
    introduced: bool,
    /// The best that it was told the source of.
    incumbent: Option<String>,
    insights: Option<Insights>,
}

impl Outside {
    /// Starts a program, given with its arguments as words separated by blanks. `deadline` limits
    /// the time for an answer. With an advisor its questions have claims about the fastest configs.
    pub fn start(
        command: &str,
        problem: &Problem,
        device: &str,
        deadline: Duration,
        advisor: Option<Advisor>,
    ) -> Result<Outside, TuneError> {
        let mut outside = Outside {
            command: command.to_string(),
            partner: None,
            deadline,
            left: Duration::MAX,
            problem: problem.clone(),
            device: device.to_string(),
            own: OwnKernels::default(),
            queue: VecDeque::new(),
            turned_down: Vec::new(),
            told: 0,
            introduced: false,
            incumbent: None,
            insights: advisor.map(Insights::new),
        };
        let mut words = command.split_whitespace();
        let program = words
            .next()
            .ok_or_else(|| TuneError::bad("proposer", "``", "a program and its arguments"))?;
        let program = programs::find_named(program.as_ref());
        let program = program.map_err(|error| outside.failed(format!("it cannot be started: {error}")))?;
        let partner = Process::start(Command::new(program).args(words), LONGEST);
        outside.partner = Some(partner.map_err(|reason| outside.failed(reason))?);
        Ok(outside)
    }

    /// The same for a search among kernels of the user, of which it is told, and for which it may write code.
    #[must_use]
    pub fn with_own(self, own: &OwnKernels) -> Outside {
        let own = own.clone();
        Outside { own, ..self }
    }

    fn failed(&self, reason: impl ToString) -> TuneError {
        TuneError::proposer(&self.command, reason.to_string())
    }

    /// Its answer; `None` if the time of the search ends first.
    fn ask(&mut self, history: &History, space: &Space) -> Result<Option<Reply>, TuneError> {
        let ranked = history.ranked();
        let (mut claims, mut record) = (Vec::new(), Vec::new());
        if let Some(insights) = &mut self.insights {
            let insights = insights.follow(history, space);
            let fastest = ranked.iter().take(FASTEST);
            let open = fastest.flat_map(|trial| insights.open(&trial.id));
            claims.extend(untried(open, history).cloned());
            record = insights.table();
        }
        let fastest = ranked.iter().take(FASTEST);
        let fastest: Vec<Fast> = fastest.map(|trial| Fast::of(&trial.id, history, space)).collect();
        let advisor = self.insights.as_ref().map(Insights::advisor);
        let best = ranked.first().map(|trial| trial.id.as_str());
        let new = ranked.first().filter(|_| self.incumbent.as_deref() != best);
        let card = advisor.filter(|_| !self.introduced).map(Card::of);
        let question = Question {
            about: (!self.introduced).then(|| About {
                problem: &self.problem,
                device: &self.device,
                floor_us: card.as_ref().map(|card| card.floor(&self.problem)),
                card: card.as_ref(),
                space: space.count(),
                own: self.own.templates().collect(),
            }),
            trials: &history.trials()[self.told..],
            best,
            fastest: &fastest,
            incumbent: new.map(|trial| Incumbent::of(trial, advisor, &self.own)),
            failures: &failures(history),
            turned_down: &self.turned_down,
            claims: &claims,
            record: &record,
        };
        let line = serde_json::to_string(&question).map_err(|error| self.failed(error))?;
        (self.introduced, self.told) = (true, history.trials().len());
        self.incumbent = best.map(str::to_string);
        self.turned_down.clear();
        let Some(partner) = &mut self.partner else {
            return Ok(None);
        };
        let answer = match partner.ask(line, self.deadline.min(self.left)) {
            Ok(line) => line,
            Err(Silence::Timeout) if self.left < self.deadline => return Ok(None),
            Err(Silence::Timeout) => {
                return Err(self.failed(format!("no answer within {} s", self.deadline.as_secs())));
            }
            Err(silence @ Silence::Ended(_)) => return Err(self.failed(format!("{silence} without an answer"))),
            Err(silence) => return Err(self.failed(silence)),
        };
        serde_json::from_str(&answer).map(Some).map_err(|error| {
            let what = if error.is_data() { "no answer" } else { "no JSON" };
            let answer: String = answer.chars().take(SHOWN).collect();
            self.failed(format!(
                "it wrote `{answer}`, which is {what} ({error}); write a line such as {{\"propose\": [\"cpu/m64n128\"]}}"
            ))
        })
    }

    fn next(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        for _ in 0..PATIENCE {
            while let Some((id, why)) = self.queue.pop_front() {
                if !history.is_seen(&id) {
                    // A config that the space refuses becomes a trial with its reason.
                    return Ok(Some(Proposal::new(id, why)));
                }
                self.turned_down.push((id, "it was tried before".to_string()));
            }
            let is_answer = |reply: &Reply| !reply.propose.is_empty() || !reply.source.is_empty();
            let Some(reply) = self.ask(history, space)?.filter(is_answer) else {
                return Ok(None);
            };
            let why = Some(reply.why).filter(|why| !why.is_empty());
            let why = why.unwrap_or("proposed".to_string());
            for code in reply.source {
                match self.own.adopt(&code) {
                    Ok(id) => self.queue.push_back((id, why.clone())),
                    Err(reason) => self.turned_down.push((code.kernel, reason)),
                }
            }
            self.queue.extend(reply.propose.into_iter().map(|id| (id, why.clone())));
        }
        Err(self.failed(format!("{PATIENCE} answers in a row had no config that was new")))
    }
}

impl Strategy for Outside {
    fn propose(&mut self, history: &History, space: &Space) -> Result<Option<Proposal>, TuneError> {
        let next = self.next(history, space);
        // It is not asked again.
        if !matches!(next, Ok(Some(_))) {
            self.partner = None;
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
        Some(self.insights.as_mut()?.follow(history, space))
    }
}

#[cfg(all(test, unix))]
mod tests;
