//! Reports as text: tables for terminals (at most 100 columns), Markdown, CSV.

mod ranking;
mod standing;

use std::fmt::Write;

pub use ranking::ranking_text;
pub(crate) use standing::geomean_text;
pub use standing::standing_text;

use crate::compare::Comparison;
use crate::store::csv_line;
use crate::{Absent, CaseResult, Interval, Measured, Ratio, Reading, Report, Turns};

/// Columns of a line at most.
pub const COLUMNS: usize = 100;
const LABEL: usize = 32;
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
    let text = format!(
        "{name} ({}, {}{driver}), revision {revision}",
        device.device, device.architecture
    );
    clip_to(&text, COLUMNS)
}

/// One problem in one mode.
pub fn case_text(result: &CaseResult) -> String {
    let measurement = &result.measurement;
    let mut circumstances = vec![
        measurement.how(),
        format!("{} rounds", measurement.rounds),
        measurement.stop.words().to_string(),
    ];
    circumstances.extend(state(&measurement.readings));
    let rate = if result.is_memory_bound() { "GB/s" } else { "TFLOP/s" };
    let ratio = "× base";
    let mut out = vec![
        format!("{}  {}", result.case.name, result.case.problem),
        format!("  {}", circumstances.join(", ")),
        format!(
            "  {:<LABEL$} {:>10} {:>10} {rate:>8} {ratio:>7} {:<15} verdict",
            "subject", "p50 µs", "p90 µs", "interval"
        ),
    ];
    for (index, subject) in measurement.subjects.iter().enumerate() {
        out.push(subject_line(result, subject, index == measurement.baseline));
    }
    out.extend(absent_lines(&result.absent));
    let smallest = result.quickest(|_| true).and_then(|subject| subject.summary);
    if let (Some(floor), Some(smallest)) = (result.floor_us, smallest)
        && smallest.p50 < NEAR_FLOOR * floor
    {
        out.push(format!("  (an empty kernel takes {} µs here)", number(floor)));
    }
    lines(out)
}

fn absent_lines(absent: &[Absent]) -> impl Iterator<Item = String> {
    absent.iter().map(|(label, reason)| format!("  {label}: {reason}"))
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
    text.collect()
}

fn subject_line(result: &CaseResult, subject: &Measured, is_baseline: bool) -> String {
    let mut label = subject.info.label.clone();
    if subject.info.launch == crate::LaunchMode::Plain {
        label.push_str(" (plain)");
    }
    if !subject.settled && subject.summary.is_some() {
        label.push_str(" ~");
    }
    let label = clip_to(&label, LABEL);
    let Some(summary) = subject.summary else {
        let why = subject.trouble.as_deref().unwrap_or("not timed");
        return format!("  {label:<LABEL$} {why}");
    };
    let rate = match result.is_memory_bound() {
        true => result.gbps(summary.p50),
        false => result.tflops(summary.p50),
    };
    let [p50, p90, rate] = [summary.p50, summary.p90, rate].map(number);
    let (ratio, interval) = match subject.ratio {
        Some(ratio) => (times(ratio.value), span(ratio.interval, times)),
        None => (String::new(), String::new()),
    };
    let verdict = match subject.verdict {
        Some(verdict) => verdict.to_string(),
        None if is_baseline => "(base)".to_string(),
        None => String::new(),
    };
    format!("  {label:<LABEL$} {p50:>10} {p90:>10} {rate:>8} {ratio:>7} {interval:<15} {verdict}")
}

/// Clocks, power and temperature over the rounds, as ranges; what held the clocks down.
fn state(readings: &[Reading]) -> Vec<String> {
    fn range<T: PartialOrd + Copy + std::fmt::Display>(values: impl Iterator<Item = T>, unit: &str) -> Option<String> {
        let mut ends: Option<(T, T)> = None;
        for value in values {
            let (lo, hi) = ends.unwrap_or((value, value));
            ends = Some((if value < lo { value } else { lo }, if value > hi { value } else { hi }));
        }
        ends.map(|(lo, hi)| match lo == hi {
            true => format!("{lo} {unit}"),
            false => format!("{lo}–{hi} {unit}"),
        })
    }
    let mut parts = Vec::new();
    parts.extend(range(readings.iter().filter_map(|reading| reading.sm_mhz), "MHz"));
    let power = readings.iter().filter_map(|reading| reading.power_w).map(f64::round);
    parts.extend(range(power, "W"));
    parts.extend(range(readings.iter().filter_map(|reading| reading.temperature_c), "°C"));
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
pub(crate) fn times(ratio: f64) -> String {
    match ratio {
        x if x >= 1e4 => format!("{x:.0e}"),
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.3}"),
    }
}

/// `[0.991, 1.012]`; `[unknown]` without ends.
pub(crate) fn bracketed(interval: Option<Interval>) -> String {
    match interval.filter(|interval| interval.hi.is_finite()) {
        Some(Interval { lo, hi }) => format!("[{}, {}]", times(lo), times(hi)),
        None => "[unknown]".to_string(),
    }
}

/// An interval, its ends shown by `end`.
pub(crate) fn span(interval: Interval, end: fn(f64) -> String) -> String {
    match interval.hi.is_finite() {
        true => format!("{}–{}", end(interval.lo), end(interval.hi)),
        false => "unknown".to_string(),
    }
}

/// Lines as text, each clipped to [`COLUMNS`].
fn lines(all: Vec<String>) -> String {
    let clipped = all.iter().map(|line| clip_to(line.trim_end(), COLUMNS) + "\n");
    clipped.collect()
}

pub(crate) fn clip_to(text: &str, columns: usize) -> String {
    let text = text.replace('\n', " ");
    if text.chars().count() <= columns {
        return text;
    }
    let kept: String = text.chars().take(columns - 1).collect();
    format!("{}…", kept.trim_end())
}

/// The report in Markdown: one table a mode, one row a problem and subject.
pub fn markdown(report: &Report) -> String {
    let mut out = format!("{}\n\n", device_line(report));
    for turns in turns_lines(report) {
        let _ = writeln!(out, "- {turns}");
    }
    for note in &report.notes {
        let _ = writeln!(out, "- {note}");
    }
    out.push_str("\n| problem | mode | subject | p50 µs | p10 | p90 | TFLOP/s | GB/s | ratio | interval | verdict |\n");
    out.push_str("|---|---|---|--:|--:|--:|--:|--:|--:|---|---|\n");
    for (result, subject) in rows(report) {
        let row = fields(result, subject, number, "–").join(" | ");
        let _ = writeln!(out, "| {} |", row.replace('\n', " "));
    }
    out
}

/// The report as CSV: one line a problem, mode and subject.
pub fn csv(report: &Report) -> String {
    let mut out =
        "problem,mode,subject,p50_us,p10_us,p90_us,tflops,gbps,ratio,interval,verdict,shape,module,device_uuid,driver,revision\n"
            .to_string();
    for (result, subject) in rows(report) {
        let mut fields = fields(result, subject, |value| format!("{value:.6}"), "-");
        fields.extend([
            result.case.problem.to_string(),
            subject.info.module.clone().unwrap_or_default(),
            report.run.device.uuid.clone(),
            report.run.device.driver.clone(),
            report.run.revision.clone(),
        ]);
        let _ = writeln!(out, "{}", csv_line(&fields));
    }
    out
}

fn rows(report: &Report) -> impl Iterator<Item = (&CaseResult, &Measured)> {
    report
        .results
        .iter()
        .flat_map(|result| result.measurement.subjects.iter().map(move |subject| (result, subject)))
}

fn fields(result: &CaseResult, subject: &Measured, number: impl Fn(f64) -> String, dash: &str) -> Vec<String> {
    let of = |value: Option<f64>| value.map_or(String::new(), &number);
    let summary = subject.summary;
    let ratio = subject.ratio;
    let verdict = match (subject.verdict, &subject.trouble) {
        (Some(verdict), _) => verdict.to_string(),
        (None, Some(trouble)) => trouble.clone(),
        (None, None) => String::new(),
    };
    vec![
        result.case.name.clone(),
        result.measurement.how(),
        subject.info.label.clone(),
        of(summary.map(|s| s.p50)),
        of(summary.map(|s| s.p10)),
        of(summary.map(|s| s.p90)),
        of(summary.map(|s| result.tflops(s.p50))),
        of(summary.map(|s| result.gbps(s.p50))),
        of(ratio.map(|r| r.value)),
        ratio.map_or(
            String::new(),
            |Ratio {
                 interval: Interval { lo, hi },
                 ..
             }| format!("{lo:.4}{dash}{hi:.4}"),
        ),
        verdict,
    ]
}

/// A comparison of two sides.
pub fn comparison_text(comparison: &Comparison) -> String {
    let mut out = vec![format!("A: {}", comparison.a), format!("B: {}", comparison.b)];
    if !comparison.paired {
        out.push("measured in different runs: differences of clock and temperature are part of the ratio".to_string());
    }
    out.push(format!(
        "{:<22} {:<9} {:<17} {:>8} {:>8} {:>7} {:<13} verdict",
        "problem", "mode", "subject", "A µs", "B µs", "B / A", "interval"
    ));
    out.extend(comparison.rows.iter().map(|row| {
        format!(
            "{:<22} {:<9} {:<17} {:>8} {:>8} {:>7} {:<13} {}",
            clip_to(&row.case, 22),
            row.mode,
            clip_to(&row.label, 17),
            number(row.a_us),
            number(row.b_us),
            times(row.ratio.value),
            span(row.ratio.interval, times),
            row.verdict
        )
    }));
    lines(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::report;

    fn example() -> Report {
        let long = "mma/m128n64-w4-s2-xor-with-a-name-that-goes-on-and-on";
        let shapes: [&[(&str, f64)]; 2] = [
            &[("torch/flash", 10.1), (long, 8.0), ("scalar/naive-t128-v16", 123_456.7)],
            &[("torch/flash", 10.0), ("mma/a", 10.03)],
        ];
        let mut report = report(&shapes);
        report
            .notes
            .push("clocks are not recorded: ".to_string() + &"x".repeat(200));
        let result = &mut report.results[0];
        result.absent.push(("fa3".into(), "not installed".into()));
        result.measurement.readings = vec![
            Reading {
                sm_mhz: Some(1500),
                power_w: Some(690.4),
                throttle: vec!["SW_POWER_CAP".into()],
                ..Reading::default()
            },
            Reading {
                sm_mhz: Some(1560),
                power_w: Some(695.0),
                ..Reading::default()
            },
        ];
        report
    }

    #[test]
    fn tables_fit_a_hundred_columns_and_say_what_matters() {
        let text = text(&example());
        for line in text.lines() {
            assert!(line.chars().count() <= COLUMNS, "{}: {line}", line.chars().count());
        }
        for part in [
            "1500–1560 MHz",
            "690–695 W",
            "SW_POWER_CAP",
            "(base)",
            "FASTER",
            "SLOWER",
            "SAME",
            "fa3: not installed",
            "an empty kernel takes 0.740 µs",
            "TFLOP/s",
            "hot (short turns)",
            "short turns: 2.00 ms of the same subject untimed, then 0.500 ms or more timed",
        ] {
            assert!(text.contains(part), "{part} is missing from\n{text}");
        }
    }

    #[test]
    fn markdown_and_csv_have_a_row_a_subject() {
        let report = example();
        assert_eq!(
            markdown(&report)
                .lines()
                .filter(|line| line.starts_with("| mission"))
                .count(),
            5
        );
        let csv = csv(&report);
        assert_eq!(csv.lines().count(), 6);
        assert!(csv.lines().all(|line| line.split(',').count() == 16), "{csv}");
    }
}
