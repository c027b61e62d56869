//! The judgement, from what was found alone.

use std::fmt;

use flashcore_check::render;
use serde::Serialize;

use super::{Baseline, Computed, Error, Evidence, Row, State};
use crate::Options as Protocol;
use crate::compare::compare;
use crate::document::in_markdown;

/// What may be worse than the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Allowed {
    /// Share by which a kernel may be slower.
    pub slower: f64,
    /// Share by which a relative error may be larger.
    pub error: f64,
}

impl Default for Allowed {
    /// 3 % slower. A tenth more error: a kernel that sums in another order differs by a few percent.
    fn default() -> Self {
        Allowed {
            slower: 0.03,
            error: 0.1,
        }
    }
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckName {
    /// Every kernel is chosen and printed, and does not spill.
    Builds,
    /// The simulator has no finding.
    Findings,
    /// Outputs are right.
    Parity,
    /// Errors are not larger than the baseline's.
    Error,
    /// The evidence of the times is complete.
    Evidence,
    /// No kernel is slower than the baseline's.
    Speed,
    /// No kernel is predicted to be slower, or has more to do, than the baseline's.
    Predicted,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not.
    Failed,
    /// Something that it needs is not there.
    NotJudged,
}

/// A check, and what it found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// Which.
    pub name: CheckName,
    /// How it ended.
    pub outcome: Outcome,
    /// What was judged, or why nothing was.
    pub summary: String,
    /// What failed, and what of it was not judged, one sentence each; of predictions that passed, what they are.
    pub details: Vec<String>,
}

/// What a build was judged to be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    /// The commit of the build.
    pub revision: String,
    /// The baseline's; `None` if there was none.
    pub baseline: Option<String>,
    /// What may be worse.
    pub allowed: Allowed,
    /// Every check.
    pub checks: Vec<Check>,
}

impl fmt::Display for CheckName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::NotJudged => "not judged",
        })
    }
}

impl Judged {
    /// Whether some check failed.
    pub fn failed(&self) -> bool {
        self.has(Outcome::Failed)
    }

    /// Whether some check was not judged, or not wholly.
    pub fn has_gaps(&self) -> bool {
        self.has(Outcome::NotJudged)
    }

    fn has(&self, outcome: Outcome) -> bool {
        self.checks.iter().any(|check| check.outcome == outcome)
    }

    /// A table in Markdown, and what failed.
    pub fn markdown(&self) -> String {
        let baseline = self
            .baseline
            .as_ref()
            .map_or(String::new(), |of| format!(" against {of}"));
        let mut text = format!(
            "## Gate: {}{baseline}\n\n| check | result | |\n|---|---|---|\n",
            self.revision
        );
        for check in &self.checks {
            let (name, outcome, summary) = (check.name, check.outcome, in_markdown(&check.summary));
            text.push_str(&format!("| {name} | {outcome} | {summary} |\n"));
        }
        for check in self.checks.iter().filter(|check| !check.details.is_empty()) {
            text.push_str(&format!("\n**{}**\n\n", check.name));
            check
                .details
                .iter()
                .for_each(|detail| text.push_str(&format!("- {}\n", in_markdown(detail))));
        }
        text
    }
}

/// Judges what was found. Without a baseline, errors and times are not judged.
pub fn judge(state: &State, evidence: Option<&Evidence>, baseline: Option<&Baseline>, allowed: Allowed) -> Judged {
    let mut checks = vec![builds(state), findings(state)];
    let errors = errors(state, baseline, allowed.error);
    match &state.predicted {
        Some(rows) => checks.extend([errors, predicted(rows, baseline, allowed.slower)]),
        None => checks.extend([
            parity(state),
            errors,
            complete(state, evidence),
            speed(evidence, baseline, allowed.slower),
        ]),
    }
    if state.predicted.is_none() && baseline.is_some_and(|baseline| baseline.predicted.is_some()) {
        let why = "the baseline has predictions: they are judged with `--device predict:CARD`";
        checks.push(not_judged(CheckName::Predicted, why));
    }
    Judged {
        revision: state.revision.clone(),
        baseline: baseline.map(|baseline| baseline.revision.clone()),
        allowed,
        checks,
    }
}

fn check(name: CheckName, summary: String, details: Vec<String>) -> Check {
    let outcome = if details.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed
    };
    Check {
        name,
        outcome,
        summary,
        details,
    }
}

fn not_judged(name: CheckName, why: impl Into<String>) -> Check {
    Check {
        outcome: Outcome::NotJudged,
        ..check(name, why.into(), Vec::new())
    }
}

fn builds(state: &State) -> Check {
    let wrong = state.built.iter().filter_map(|built| {
        let wrong = built.wrong.as_ref()?;
        Some(format!("{} for {} ({}): {wrong}", built.kernel, built.card, built.case))
    });
    let count = state.built.len();
    let mut found = check(
        CheckName::Builds,
        format!("{count} kernels, none spills"),
        wrong.collect(),
    );
    match &state.unassembled {
        Some(why) if found.outcome == Outcome::Passed => {
            (found.outcome, found.summary) = (Outcome::NotJudged, format!("{count} kernels print; spills are {why}"));
        }
        _ => found.summary = format!("{count} kernels, {} wrong or spilling", found.details.len()),
    }
    if let Some(why) = &state.left_out {
        found
            .summary
            .push_str(&format!("; problems are left out, such as {why}"));
    }
    found
}

fn findings(state: &State) -> Check {
    let count = state.simulated.len();
    let wrong = wrong(&state.simulated);
    if count == 0 {
        return not_judged(CheckName::Findings, "no kernel was simulated");
    }
    let summary = format!(
        "{count} simulations, one for each kernel and mask, {} not clean",
        wrong.len()
    );
    check(CheckName::Findings, summary, wrong)
}

fn wrong(computed: &[Computed]) -> Vec<String> {
    let wrong = computed.iter().filter_map(|one| {
        let kernel = one.kernel.as_deref().unwrap_or("no kernel");
        Some(format!(
            "{} on {} by {kernel}: {}",
            one.case,
            one.on,
            one.wrong.as_ref()?
        ))
    });
    wrong.collect()
}

fn parity(state: &State) -> Check {
    let Some(device) = &state.device else {
        let why = "no device computed the set; the simulator compared its outputs with float64 (findings)";
        return not_judged(CheckName::Parity, why);
    };
    let wrong = wrong(&state.computed);
    let summary = format!("{} problems on {device}, {} wrong", state.computed.len(), wrong.len());
    check(CheckName::Parity, summary, wrong)
}

fn errors(state: &State, baseline: Option<&Baseline>, allowed: f64) -> Check {
    let Some(baseline) = baseline else {
        return not_judged(CheckName::Error, "there is no baseline");
    };
    let (mut judged, mut unknown, mut worse) = (0, Vec::new(), Vec::new());
    for now in state.errors() {
        let is_same = |old: &&Error| old.on == now.on && old.case == now.case;
        let Some(old) = baseline.errors.iter().find(is_same) else {
            unknown.push(format!("{} on {}", now.case, now.on));
            continue;
        };
        judged += 1;
        if now.frobenius > old.frobenius * (1.0 + allowed) {
            let (case, on, kernel) = (&now.case, &now.on, &now.kernel);
            let times = now.frobenius / old.frobenius;
            let errors = format!(
                "{:.3e}, {times:.2} × the baseline's {:.3e}",
                now.frobenius, old.frobenius
            );
            worse.push(format!("{case} on {on} by {kernel}: relative error {errors}"));
        }
    }
    if judged == 0 {
        return not_judged(CheckName::Error, "the baseline has no error of what was computed here");
    }
    let unknown = match unknown.as_slice() {
        [] => String::new(),
        [first, ..] => format!("; {} not in the baseline, such as {first}", unknown.len()),
    };
    let summary = format!(
        "{judged} errors, {} more than {:.0} % larger{unknown}",
        worse.len(),
        allowed * 100.0
    );
    check(CheckName::Error, summary, worse)
}

fn complete(state: &State, evidence: Option<&Evidence>) -> Check {
    let Some(evidence) = evidence else {
        let why = "no evidence was named: `flashcore bench acceptance`, then `gate --evidence latest`";
        return not_judged(CheckName::Evidence, why);
    };
    let (device, count) = (&evidence.device.name, evidence.times.len());
    let summary = format!("{count} times on {device} of revision {}", evidence.revision);
    check(CheckName::Evidence, summary, evidence.faults(&state.revision))
}

fn speed(evidence: Option<&Evidence>, baseline: Option<&Baseline>, allowed: f64) -> Check {
    let not = |why: &str| not_judged(CheckName::Speed, why);
    let Some(evidence) = evidence else {
        return not("there are no times of this build");
    };
    let Some(old) = baseline.and_then(|baseline| baseline.speed.as_ref()) else {
        return not("the baseline has no times: write one with `--evidence`");
    };
    let [ours, theirs] = [evidence, old].map(|of| &of.device.name);
    if ours != theirs {
        return not(&format!("the baseline was timed on {theirs}, this build on {ours}"));
    }
    let comparison = match compare(
        &old.side("baseline"),
        &evidence.side("this build"),
        &Protocol::default(),
    ) {
        Ok(comparison) => comparison,
        Err(why) => return not(&why.to_string()),
    };
    let slower = comparison.regressions(allowed).into_iter().map(|row| {
        let ratio = &row.ratio;
        let (lo, hi) = (ratio.interval.lo, ratio.interval.hi);
        let times = format!("{}, was {}", render::time(row.b_us, 4), render::time(row.a_us, 4));
        format!(
            "{} by {}: {:.3} × the time [{lo:.3}, {hi:.3}] ({times})",
            row.case, row.label, ratio.value
        )
    });
    let slower: Vec<String> = slower.collect();
    let (count, percent) = (comparison.rows.len(), allowed * 100.0);
    let summary = format!(
        "{count} times on {ours}, {} slower by more than {percent:.1} %",
        slower.len()
    );
    check(CheckName::Speed, summary, slower)
}

fn predicted(rows: &[Row], baseline: Option<&Baseline>, allowed: f64) -> Check {
    let not = |why: &str| not_judged(CheckName::Predicted, why);
    let Some(baseline) = baseline else {
        return not("there is no baseline");
    };
    let Some(old) = &baseline.predicted else {
        return not("the baseline has no predictions: write one with the same --device");
    };
    let is_of = |row: &Row, old: &Row| row.card == old.card && row.case == old.case;
    if !rows.is_empty() && !rows.iter().any(|row| old.iter().any(|old| is_of(row, old))) {
        return not("the baseline has predictions of other cards and problems alone");
    }
    let (mut judged, mut worse, mut new) = (0, Vec::new(), Vec::new());
    for row in rows {
        let known = baseline.of_row(row).filter(|old| old.unknown.is_none());
        match (known, &row.unknown) {
            (Some(_), Some(why)) => {
                let (case, card, kernel) = (&row.case, &row.card, &row.kernel);
                worse.push(format!(
                    "{case} on {card} by {kernel}: nothing is predicted any more: {why}"
                ));
            }
            (Some(old), None) => worse.extend(row.worse_than(old, allowed)),
            (None, _) => {
                new.push(format!("{} on {}", row.case, row.card));
                continue;
            }
        }
        judged += 1;
    }
    let is_gone = |old: &&Row| !rows.iter().any(|row| is_of(row, old));
    let gone = old.iter().filter(is_gone);
    worse.extend(gone.map(|old| format!("{} on {}: no kernel is predicted any more", old.case, old.card)));
    if let (Some(first), true) = (new.first(), worse.is_empty()) {
        let (count, of) = (new.len(), rows.len());
        return not(&format!(
            "{count} of {of} are not in the baseline, such as {first}; {judged} are no worse"
        ));
    }
    let by = rows.first().map_or("", |row| &row.registers_by);
    let (bad, percent) = (worse.len(), allowed * 100.0);
    let text =
        format!("{judged} predictions, {bad} with more than {percent:.1} % more time or work; registers by {by}");
    let compared = rows.iter().filter(|row| row.unknown.is_none());
    let compared = compared.filter_map(|row| Some(row.beside(baseline.of_row(row)?)));
    passed_with(check(CheckName::Predicted, text, worse), compared)
}

/// A check that passed says what it compared; one that failed has its faults.
fn passed_with(mut check: Check, compared: impl Iterator<Item = String>) -> Check {
    if check.outcome == Outcome::Passed {
        check.details = compared.collect();
    }
    check
}
