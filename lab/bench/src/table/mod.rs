//! Reports as text: tables for terminals (at most 100 columns), CSV.

use std::fmt::Write;

use flashcore_check::render;

use crate::compare::Comparison;
use crate::standing::{Geomean, Standing};
use crate::store::csv_line;
use crate::{Case, CaseResult, Interval, Measured, Ratio, Reading, Report, Stop, Turns};

/// Columns of a line at most.
pub const COLUMNS: usize = 100;
/// Width of the column of labels, in characters. A longer label is printed on the line before its row.
const LABEL: usize = 32;
/// Columns of a kind of problem.
const GROUP: usize = 28;
/// The verdict on a time that nothing measured.
const PREDICTED: &str = "PREDICTED";
/// Names of problems without a figure that are listed.
const NAMES: usize = 6;
/// Times below this many empty kernels are shown with the time of one.
const NEAR_FLOOR: f64 = 20.0;

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut out = vec![device_line(report)];
    out.extend(turns_lines(report));
    out.extend(report.notes.iter().map(|note| format!("note: {note}")));
    let mut text = lines(out);
    for result in &report.results {
        text.push('\n');
        text.push_str(&case_text(result));
    }
    text
}

/// Device, driver, revision, in one line.
pub fn device_line(report: &Report) -> String {
    let device = &report.run.device;
    let driver = match device.driver.as_str() {
        "" => String::new(),
        driver => format!(", driver {driver}"),
    };
    let (name, revision) = (&device.name, &report.run.revision);
    let (id, architecture) = (&device.device, &device.architecture);
    let text = format!("{name} ({id}, {architecture}{driver}), revision {revision}");
    clip_to(&text, COLUMNS)
}

/// One problem in one mode.
pub fn case_text(result: &CaseResult) -> String {
    let measurement = &result.measurement;
    let mut circumstances = vec![measurement.how()];
    if measurement.stop != Stop::Predicted {
        circumstances.push(format!("{} rounds", measurement.rounds));
    }
    circumstances.push(measurement.stop.words().to_string());
    circumstances.extend(state(&measurement.readings));
    let rate = if result.is_memory_bound() { "GB/s" } else { "TFLOP/s" };
    // One unit for the rows of a table: that of the quickest.
    let smallest = result.quickest(|_| true).and_then(|subject| subject.summary);
    let unit = render::unit_of_time(smallest.map_or(0.0, |summary| summary.p50));
    let [p50, p90, of_time] = ["p50", "p90", "interval"].map(|name| format!("{name} {}", unit.1));
    // That of a predicted time is the model's.
    let interval = if measurement.stop == Stop::Predicted {
        &of_time
    } else {
        "interval"
    };
    let mut out = vec![
        title(&result.case),
        format!("  {}", circumstances.join(", ")),
        row(["subject", &p50, &p90, rate, "× base", interval, "verdict"]),
    ];
    for (index, subject) in measurement.subjects.iter().enumerate() {
        out.extend(subject_lines(result, subject, index == measurement.baseline, unit.0));
    }
    // A reason ends with what to do about it.
    for (label, reason) in &result.absent {
        let said = format!("  {label}: {reason}");
        let wrapped = textwrap::wrap(&said, render::between_words(COLUMNS, "    ")).into_iter();
        out.extend(wrapped.map(String::from));
    }
    if let (Some(floor), Some(smallest)) = (result.floor_us, smallest)
        && smallest.p50 < NEAR_FLOOR * floor
    {
        out.push(format!("  (an empty kernel takes {} here)", render::time(floor, 3)));
    }
    lines(out)
}

/// A problem's name and its shape, or its shape alone where that is its name.
fn title(case: &Case) -> String {
    match case.problem.to_string() {
        shape if shape == case.name => shape,
        shape => format!("{}  {shape}", case.name),
    }
}

/// What turns are like, a line for each kind; empty where only other modes were measured.
pub fn turns_lines(report: &Report) -> Vec<String> {
    let options = &report.options;
    let ms = |us: f64| number(us / 1e3);
    let kinds = [
        (Turns::Short, options.lead_us, options.sample_us),
        (Turns::Steady, options.steady_lead_us, options.steady_sample_us),
    ];
    let turns = report.results.iter().map(|result| result.measurement.turns);
    let is_used = |kind| turns.clone().any(|turns| turns == Some(kind));
    let used = kinds.into_iter().filter(|(kind, ..)| is_used(*kind));
    let text = used.map(|(kind, lead, sample)| {
        let (lead, sample) = (ms(lead), ms(sample));
        format!("{kind} turns: {lead} ms of the same subject untimed, then {sample} ms or more timed")
    });
    let in_turn =
        (options.caches > 1).then(|| format!("hot runs take turns with {} copies of K and V", options.caches));
    text.chain(in_turn).collect()
}

/// The row of a subject, after a line for a label that is longer than its column: two kernels may differ at the end of
/// their ids alone. `unit` is that of the times, in microseconds.
fn subject_lines(result: &CaseResult, subject: &Measured, is_baseline: bool, unit: f64) -> Vec<String> {
    let mut label = subject.info.label.clone();
    if subject.info.launch == crate::LaunchMode::Plain {
        label.push_str(" (plain)");
    }
    if !subject.settled && subject.summary.is_some() {
        label.push_str(" ~");
    }
    let mut lines = Vec::new();
    if label.chars().count() > LABEL {
        lines.push(format!("  {}", std::mem::take(&mut label)));
    }
    let Some(summary) = subject.summary else {
        let why = subject.trouble.as_deref().unwrap_or("not timed");
        lines.push(format!("  {label:<LABEL$} {why}"));
        return lines;
    };
    let rate = if result.is_memory_bound() {
        result.gbps(summary.p50)
    } else {
        result.tflops(summary.p50)
    };
    let [p50, p90, rate] = [summary.p50 / unit, summary.p90 / unit, rate].map(number);
    let (ratio, interval) = match (subject.ratio, subject.info.predicted) {
        (_, Some(predicted)) => {
            let base = result.baseline().filter(|_| !is_baseline).and_then(|base| base.summary);
            let ratio = base.map(|base| times(summary.p50 / base.p50));
            (
                ratio.unwrap_or_default(),
                span(predicted.interval, |us| number(us / unit)),
            )
        }
        (Some(ratio), None) => (times(ratio.value), span(ratio.interval, times)),
        (None, None) => (String::new(), String::new()),
    };
    let verdict = match subject.verdict {
        _ if subject.info.predicted.is_some() => PREDICTED.to_string(),
        Some(verdict) => verdict.to_string(),
        None if is_baseline => "(base)".to_string(),
        None => String::new(),
    };
    lines.push(row([&label, &p50, &p90, &rate, &ratio, &interval, &verdict]));
    lines
}

fn row([label, p50, p90, rate, ratio, interval, verdict]: [&str; 7]) -> String {
    format!("  {label:<LABEL$} {p50:>10} {p90:>10} {rate:>8} {ratio:>7} {interval:<15} {verdict}")
}

/// Clocks, power and temperature over the rounds, as ranges; what held the clocks down.
fn state(readings: &[Reading]) -> Vec<String> {
    let range = |of: fn(&Reading) -> Option<f64>, unit: &str| {
        let values = || readings.iter().filter_map(of);
        match (values().reduce(f64::min)?, values().reduce(f64::max)?) {
            (lo, hi) if lo == hi => Some(format!("{lo} {unit}")),
            (lo, hi) => Some(format!("{lo}–{hi} {unit}")),
        }
    };
    let mut parts = Vec::new();
    parts.extend(range(|reading| reading.sm_mhz.map(f64::from), "MHz"));
    parts.extend(range(|reading| reading.power_w.map(f64::round), "W"));
    parts.extend(range(|reading| reading.temperature_c.map(f64::from), "°C"));
    let reasons = readings.iter().flat_map(|reading| &reading.throttle);
    let mut reasons: Vec<&str> = reasons.map(String::as_str).collect();
    reasons.sort_unstable();
    reasons.dedup();
    parts.extend((!reasons.is_empty()).then(|| reasons.join(" ")));
    parts
}

/// Four significant digits or so.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        x if !x.is_finite() => "–".to_string(),
        x if x >= 1000.0 => format!("{value:.0}"),
        x if x >= 100.0 => format!("{value:.1}"),
        x if x >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A ratio: to the tenth of a percent near 1, where it matters.
pub fn times(ratio: f64) -> String {
    match ratio {
        x if x >= 1e4 => format!("{x:.0e}"),
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.3}"),
    }
}

/// `[0.991, 1.012]`; `[unknown]` without ends.
pub fn bracketed(interval: Option<Interval>) -> String {
    match interval.filter(|interval| interval.hi.is_finite()) {
        Some(Interval { lo, hi }) => format!("[{}, {}]", times(lo), times(hi)),
        None => "[unknown]".to_string(),
    }
}

/// An interval, its ends shown by `end`.
pub fn span(interval: Interval, end: impl Fn(f64) -> String) -> String {
    if interval.hi.is_finite() {
        format!("{}–{}", end(interval.lo), end(interval.hi))
    } else {
        "unknown".to_string()
    }
}

/// Lines as text, each clipped to [`COLUMNS`].
fn lines(all: Vec<String>) -> String {
    let clipped = all.iter().map(|line| clip_to(line.trim_end(), COLUMNS) + "\n");
    clipped.collect()
}

/// Text on one line of so many columns at most.
pub fn clip_to(text: &str, columns: usize) -> String {
    let text = text.replace('\n', " ");
    if text.chars().count() <= columns {
        return text;
    }
    let kept: String = text.chars().take(columns - 1).collect();
    format!("{}…", kept.trim_end())
}

/// The report as CSV: one line a problem, mode and subject.
pub fn csv(report: &Report) -> String {
    let mut out =
        "problem,mode,subject,p50_us,p10_us,p90_us,tflops,gbps,ratio,interval,verdict,shape,module,device_uuid,driver,revision\n"
            .to_string();
    for result in &report.results {
        for subject in &result.measurement.subjects {
            let _ = writeln!(out, "{}", csv_line(&fields(report, result, subject)));
        }
    }
    out
}

fn fields(report: &Report, result: &CaseResult, subject: &Measured) -> [String; 16] {
    let of = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.6}"));
    let (summary, ratio, device) = (subject.summary, subject.ratio, &report.run.device);
    let verdict = match (subject.verdict, &subject.trouble) {
        _ if subject.info.predicted.is_some() => PREDICTED.to_string(),
        (Some(verdict), _) => verdict.to_string(),
        (None, Some(trouble)) => trouble.clone(),
        (None, None) => String::new(),
    };
    [
        result.case.name.clone(),
        result.measurement.how(),
        subject.info.label.clone(),
        of(summary.map(|s| s.p50)),
        of(summary.map(|s| s.p10)),
        of(summary.map(|s| s.p90)),
        of(summary.map(|s| result.tflops(s.p50))),
        of(summary.map(|s| result.gbps(s.p50))),
        of(ratio.map(|r| r.value)),
        ratio.map_or(String::new(), |Ratio { interval, .. }| {
            format!("{:.4}-{:.4}", interval.lo, interval.hi)
        }),
        verdict,
        result.case.problem.to_string(),
        subject.info.module.clone().unwrap_or_default(),
        device.uuid.clone(),
        device.driver.clone(),
        report.run.revision.clone(),
    ]
}

/// A comparison of two sides.
pub fn comparison_text(comparison: &Comparison) -> String {
    let mut out = vec![format!("A: {}", comparison.a), format!("B: {}", comparison.b)];
    out.push("measured in different runs: differences of clock and temperature are part of the ratio".to_string());
    let line = |[case, mode, label, a, b, ratio, interval, verdict]: [&str; 8]| {
        format!("{case:<22} {mode:<9} {label:<17} {a:>8} {b:>8} {ratio:>7} {interval:<13} {verdict}")
    };
    out.push("B / A: ratio of times, that of the medians; below 1 is faster".to_string());
    out.push(line([
        "problem", "mode", "subject", "A", "B", "B / A", "interval", "verdict",
    ]));
    out.extend(comparison.rows.iter().map(|row| {
        let (case, label, mode) = (clip_to(&row.case, 22), clip_to(&row.label, 17), row.mode.to_string());
        let ([a, b], ratio) = (
            [row.a_us, row.b_us].map(|us| render::time(us, 4)),
            times(row.ratio.value),
        );
        let (interval, verdict) = (span(row.ratio.interval, times), row.verdict.to_string());
        line([&case, &mode, &label, &a, &b, &ratio, &interval, &verdict])
    }));
    lines(out)
}

/// The mean over all problems, and by kind where there is more than one.
pub fn standing_text(standing: &Standing) -> String {
    let mut out = vec![
        geomean_text(standing),
        format!("  {}", worst_text(&standing.all)),
        format!(
            "  {}: {}; a ratio of speeds, not of times: above 1 is faster",
            standing.mode, standing.subject
        ),
    ];
    if standing.groups.len() > 1 {
        out.push(format!(
            "  {:<GROUP$} {:>6} {:>7} {:<16} worst",
            "kind", "shapes", "geomean", "interval"
        ));
        out.extend(standing.groups.iter().map(|(group, mean)| {
            let (value, interval) = (times(mean.value), bracketed(mean.interval));
            let shapes = mean.shapes;
            format!(
                "  {group:<GROUP$} {shapes:>6} {value:>7} {interval:<16} {}",
                worst(mean)
            )
        }));
    }
    if !standing.missing.is_empty() {
        let names: Vec<&str> = standing.missing.iter().take(NAMES).map(String::as_str).collect();
        let rest = match standing.missing.len().saturating_sub(NAMES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        out.push(format!("  no figure for both: {}{rest}", names.join(", ")));
    }
    lines(out)
}

/// The mean over all problems, in a line.
pub(crate) fn geomean_text(standing: &Standing) -> String {
    let all = &standing.all;
    let (value, base, interval) = (times(all.value), clip_to(&standing.base, 24), bracketed(all.interval));
    let shapes = all.shapes;
    format!("geomean {value} × {base} {interval} over {shapes} shapes")
}

/// The problem with the smallest speed-up, and how sure the speed-ups are.
pub(crate) fn worst_text(mean: &Geomean) -> String {
    let (worst, unsure, all) = (&mean.worst, mean.unsure, mean.shapes);
    let (value, interval) = (times(worst.speedup), bracketed(Some(worst.interval)));
    format!(
        "worst {value} {interval} ({}); {unsure} of {all} intervals include 1.00",
        worst.case
    )
}

fn worst(mean: &Geomean) -> String {
    format!("{} ({})", times(mean.worst.speedup), mean.worst.case)
}

#[cfg(test)]
mod tests;
