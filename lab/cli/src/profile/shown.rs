//! What `flashcore profile` shows of a call: its counters next to what is predicted of them.

use flashcore_bench::SubjectInfo;
use flashcore_bench::profile::{self, Goals, KernelProfile, LineRow, Predicted, ProfileRecord, Verdict};
use serde_json::{Value, json};

use crate::{BAD, GOOD, HEAD, Page, style};

/// Lines shown of each kernel, unless asked for others.
pub(super) const LINES: usize = 5;

/// A call that was profiled, predicted, or both.
pub(super) struct Shown {
    pub(super) subject: SubjectInfo,
    /// What read the counters; empty where nothing did.
    pub(super) tool: String,
    pub(super) launches: Vec<KernelProfile>,
    pub(super) predicted: Option<Predicted>,
    /// Why nothing is predicted, where something should be.
    pub(super) unpredicted: Option<String>,
}

impl Shown {
    /// A call whose counters were read, of which nothing is predicted.
    pub(super) fn read(subject: SubjectInfo, tool: String, launches: Vec<KernelProfile>) -> Shown {
        Shown {
            subject,
            tool,
            launches,
            predicted: None,
            unpredicted: None,
        }
    }

    /// A call that is predicted, or why it is not.
    pub(super) fn predicted(subject: SubjectInfo, predicted: Result<Predicted, String>) -> Shown {
        Shown {
            predicted: predicted.as_ref().ok().cloned(),
            unpredicted: predicted.err(),
            ..Shown::read(subject, String::new(), Vec::new())
        }
    }

    /// Each launch with its label and what is predicted of it; one without counters if nothing was launched. The
    /// prediction is of the whole plan; of several kernels the first does the work.
    fn parts(&self) -> impl Iterator<Item = (String, Option<&KernelProfile>, Option<&Predicted>)> {
        let label = &self.subject.label;
        let first = (label.clone(), self.launches.first(), self.predicted.as_ref());
        let others = self.launches.iter().skip(1);
        let others = others.map(move |launch| (format!("{label}: {}", launch.kernel), Some(launch), None));
        std::iter::once(first).chain(others)
    }

    /// One object for each launch.
    pub(super) fn json(&self, goals: &Goals) -> Vec<Value> {
        let of = |(label, launch, predicted): (String, Option<&KernelProfile>, Option<&Predicted>)| {
            json!({
                "kernel": label,
                "subject": self.subject,
                "rows": profile::rows(launch, predicted),
                "insights": launch.map_or_else(Vec::new, |launch| profile::insights(launch, goals)),
                "verdicts": launch.map_or_else(Vec::new, |launch| profile::verdicts(launch, goals)),
                "lines": profile::lines(launch, predicted),
                "counters": launch,
                "prediction": predicted,
                "unpredicted": self.unpredicted,
            })
        };
        self.parts().map(of).collect()
    }

    /// Adds its launches one after another.
    pub(super) fn add(&self, page: &mut Page, goals: &Goals, lines: usize) {
        for (name, launch, predicted) in self.parts() {
            // Names of templates are long.
            let name: String = name.chars().take(style::width()).collect();
            page.line(format_args!("\n{HEAD}{name}{HEAD:#}"));
            add_launch(page, launch, predicted, goals, lines);
        }
        page.fields("predicted", self.unpredicted.as_ref().map(|why| format!("not: {why}")));
    }
}

/// Adds the profiles of a run of the evidence store.
pub(crate) fn add_kept(page: &mut Page, records: Vec<ProfileRecord>) {
    for record in records {
        let (case, tool) = (&record.case, &record.tool);
        // A problem without a name is named by its sizes.
        let sizes = Some(format!(": {}", case.problem)).filter(|sizes| sizes[2..] != case.name);
        let sizes = sizes.unwrap_or_default();
        page.line(format_args!("\n{HEAD}{}{HEAD:#}{sizes}, by {tool}", case.name));
        let shown = Shown {
            predicted: record.predicted,
            ..Shown::read(record.subject, record.tool, record.launches)
        };
        shown.add(page, &Goals::default(), LINES);
    }
}

fn add_launch(
    page: &mut Page,
    launch: Option<&KernelProfile>,
    predicted: Option<&Predicted>,
    goals: &Goals,
    lines: usize,
) {
    let time = |us: Option<f64>| us.map_or("-".to_string(), style::micros);
    page.dim(format_args!(
        "{:<24}{:>12}{:>12}",
        "busy, % of the time", "measured", "predicted"
    ));
    let verdicts = launch.map_or_else(Vec::new, |launch| profile::verdicts(launch, goals));
    for row in profile::rows(launch, predicted) {
        let share = |share: Option<f64>| share.map_or("-".to_string(), |share| format!("{share:.1}"));
        let verdict = verdicts.iter().find(|verdict| verdict.key == row.key);
        let (title, measured, predicted) = (row.title, share(row.measured), share(row.predicted));
        let verdict = verdict.map(goal).unwrap_or_default();
        page.line(format_args!("  {title:<24}{measured:>12}{predicted:>12}{verdict}"));
    }
    let measured = launch.and_then(|launch| launch.get("time_ns")).map(|ns| ns / 1e3);
    let (measured, of_model) = (time(measured), time(predicted.map(|predicted| predicted.micros)));
    page.line(format_args!("  {:<24}{measured:>12}{of_model:>12}", "time"));
    let whole = |value: Option<f64>| value.map_or("-".to_string(), |value| style::whole(value as u64));
    let counter = |key: &str| whole(launch.and_then(|launch| launch.get(key)));
    if let Some(launch) = launch {
        let text = format!(
            "grid {}, block {}, {} registers a thread, {} B of dynamic shared memory a block",
            launch.grid,
            launch.block,
            counter("registers"),
            counter("shared_bytes")
        );
        page.field("launch", text);
        let text = format!(
            "{} of {} shared-memory wavefronts",
            counter(if launch.get("wavefronts_excess").is_some() {
                "wavefronts_excess"
            } else {
                "bank_conflicts"
            }),
            counter("wavefronts")
        );
        page.field("conflicts", text);
        let waits = launch.waits();
        let waits = waits.iter().take(5);
        let waits = waits.map(|(reason, share)| format!("{} {share:.0} %", reason.replace('_', " ")));
        page.field("waits", style::list(waits));
        for insight in profile::insights(launch, goals) {
            let left = launch
                .get("time_ns")
                .map(|ns| ns / 1e3 * (1.0 - insight.saves_at_most / 100.0));
            let left = left.map_or(String::new(), |us| format!(", to {}", style::micros(us)));
            let (evidence, lever, saves) = (&insight.evidence, &insight.lever, insight.saves_at_most);
            page.field(
                "insight",
                format_args!("{evidence}: {lever}; saves at most {saves:.0} % of the time{left}"),
            );
        }
    }
    if let Some(predicted) = predicted {
        let (excess, all) = (
            whole(Some(predicted.wavefronts_excess)),
            whole(Some(predicted.wavefronts)),
        );
        page.field(
            "simulated",
            format_args!("{excess} of {all} shared-memory wavefronts by bank conflicts"),
        );
        page.field("model", format_args!("{} binds", predicted.binds));
    }
    add_lines(page, &profile::lines(launch, predicted), lines);
}

/// What a verdict adds to the row of its counter.
fn goal(verdict: &Verdict) -> String {
    let goal = verdict.goal;
    match verdict.reached {
        Some(true) => format!("   {GOOD}goal {goal:.0} reached{GOOD:#}"),
        Some(false) => format!("   {BAD}below the goal of {goal:.0}{BAD:#}"),
        None => format!("   goal {goal:.0}: something else binds"),
    }
}

/// Adds the lines at which warps were sampled most, with what is predicted of them.
fn add_lines(page: &mut Page, lines: &[LineRow], most: usize) {
    let shown: Vec<&LineRow> = lines.iter().filter(|line| matters(line)).take(most).collect();
    if shown.is_empty() {
        return;
    }
    page.dim(format_args!(
        "{:>9} {:<10}{:>9}{:>13}{:>13}  line",
        "samples", "waits for", "model", "conflicts", "simulated"
    ));
    for line in shown {
        let percent = |share: Option<f64>| share.map_or("-".to_string(), |share| format!("{share:.0} %"));
        let whole = |value: Option<f64>| value.map_or("-".to_string(), |value| style::whole(value.round() as u64));
        let measured = line.measured.as_ref();
        let predicted = line.predicted.as_ref();
        let row = format!(
            "{:>9} {:<10}{:>9}{:>13}{:>13}  {}:{}  {}",
            percent(line.samples),
            measured.and_then(|line| line.waits_for.as_deref()).unwrap_or("-"),
            percent(predicted.map(|line| line.share)),
            whole(measured.map(|line| line.wavefronts_excess)),
            whole(predicted.map(|line| line.wavefronts_excess)),
            line.file
                .rsplit_once("/src/")
                .map_or(line.file.as_str(), |(_, file)| file),
            line.line,
            measured.map_or("", |line| line.source.trim()),
        );
        page.line(row.chars().take(style::width()).collect::<String>().trim_end());
    }
}

fn matters(line: &LineRow) -> bool {
    line.samples > Some(0.0) || line.predicted.as_ref().is_some_and(|line| line.share > 0.0)
}
