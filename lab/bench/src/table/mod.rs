//! Reports as text: tables for terminals (at most 100 columns), Markdown, CSV.

mod ranking;
mod standing;

use std::fmt::Write;

pub use ranking::ranking_text;
pub use standing::standing_text;

use crate::compare::Comparison;
use crate::measure::Measured;
use crate::options::Turns;
use crate::report::{CaseResult, Report};
use crate::stats::Ratio;
use crate::store::csv_field;
use crate::telemetry::Reading;

/// Columns of a line at most.
pub const COLUMNS: usize = 100;
/// Columns of a label.
const LABEL: usize = 32;
/// Times below this many empty kernels are shown beside one.
const NEAR_FLOOR: f64 = 20.0;

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut out = format!("{}\n{}", device_line(report), turns_lines(report));
    for note in &report.notes {
        line(&mut out, &format!("note: {note}"));
    }
    for result in &report.results {
        out.push('\n');
        out.push_str(&case_text(result));
    }
    out
}

/// Device, driver, revision, in one line.
pub fn device_line(report: &Report) -> String {
    let device = &report.run.device;
    let driver = if device.driver.is_empty() {
        String::new()
    } else {
        format!(", driver {}", device.driver)
    };
    clip(&format!(
        "{} ({}, {}{driver}), revision {}",
        device.name, device.device, device.architecture, report.run.revision
    ))
}

/// One problem in one mode.
pub fn case_text(result: &CaseResult) -> String {
    let measurement = &result.measurement;
    let mut out = String::new();
    line(&mut out, &format!("{}  {}", result.case.name, result.case.problem));
    let mut circumstances = vec![
        measurement.how(),
        format!("{} rounds", measurement.rounds),
        measurement.stop.words().to_string(),
    ];
    circumstances.extend(state(&measurement.readings));
    line(&mut out, &format!("  {}", circumstances.join(", ")));
    let rate = if result.is_memory_bound() { "GB/s" } else { "TFLOP/s" };
    let ratio = "× base";
    let _ = writeln!(
        out,
        "  {:<LABEL$} {:>10} {:>10} {rate:>8} {ratio:>7} {:<15} verdict",
        "subject", "p50 µs", "p90 µs", "interval"
    );
    for (index, subject) in measurement.subjects.iter().enumerate() {
        let _ = writeln!(
            out,
            "{}",
            subject_line(result, subject, index == measurement.baseline).trim_end()
        );
    }
    for (label, reason) in &result.absent {
        line(&mut out, &format!("  {label}: {reason}"));
    }
    let smallest = result
        .quickest(|_| true)
        .and_then(|subject| subject.summary)
        .map(|summary| summary.p50);
    if let (Some(floor), Some(smallest)) = (result.floor_us, smallest)
        && smallest < NEAR_FLOOR * floor
    {
        line(
            &mut out,
            &format!("  (an empty kernel takes {} µs here)", number(floor)),
        );
    }
    out
}

/// What turns are like, a line each kind there is; empty where only other modes were measured.
pub fn turns_lines(report: &Report) -> String {
    let kinds: Vec<Turns> = report
        .results
        .iter()
        .filter_map(|result| result.measurement.turns)
        .collect();
    let options = &report.options;
    let ms = |us: f64| number(us / 1e3);
    let mut out = String::new();
    for (kind, lead_us, sample_us) in [
        (Turns::Short, options.lead_us, options.sample_us),
        (Turns::Steady, options.steady_lead_us, options.steady_sample_us),
    ] {
        if kinds.contains(&kind) {
            let text = format!(
                "{kind} turns: {} ms of the same subject untimed, then {} ms or more timed",
                ms(lead_us),
                ms(sample_us)
            );
            line(&mut out, &text);
        }
    }
    out
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
        return clip(&format!("  {label:<LABEL$} {why}"));
    };
    let rate = if result.is_memory_bound() {
        result.gbps(summary.p50)
    } else {
        result.tflops(summary.p50)
    };
    let (ratio, interval) = match subject.ratio {
        Some(ratio) => (times(ratio.value), span(&ratio)),
        None => (String::new(), String::new()),
    };
    let verdict = match subject.verdict {
        Some(verdict) => verdict.name(),
        None if is_baseline => "(base)",
        None => "",
    };
    format!(
        "  {label:<LABEL$} {:>10} {:>10} {:>8} {ratio:>7} {interval:<15} {verdict}",
        number(summary.p50),
        number(summary.p90),
        number(rate)
    )
}

/// Clocks, power and temperature over the rounds, as ranges; what held the clocks down.
fn state(readings: &[Reading]) -> Vec<String> {
    fn range<T: PartialOrd + Copy + std::fmt::Display>(values: impl Iterator<Item = T>, unit: &str) -> Option<String> {
        let mut ends: Option<(T, T)> = None;
        for value in values {
            let (lo, hi) = ends.unwrap_or((value, value));
            ends = Some((if value < lo { value } else { lo }, if value > hi { value } else { hi }));
        }
        ends.map(|(lo, hi)| {
            if lo == hi {
                format!("{lo} {unit}")
            } else {
                format!("{lo}–{hi} {unit}")
            }
        })
    }
    let mut parts = Vec::new();
    parts.extend(range(readings.iter().filter_map(|reading| reading.sm_mhz), "MHz"));
    parts.extend(range(
        readings.iter().filter_map(|reading| reading.power_w).map(f64::round),
        "W",
    ));
    parts.extend(range(readings.iter().filter_map(|reading| reading.temperature_c), "°C"));
    let mut reasons: Vec<&str> = readings
        .iter()
        .flat_map(|r| r.throttle.iter().map(String::as_str))
        .collect();
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

fn span(ratio: &Ratio) -> String {
    if ratio.interval.hi.is_finite() {
        format!("{}–{}", times(ratio.interval.lo), times(ratio.interval.hi))
    } else {
        "unknown".to_string()
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(&clip(text));
    out.push('\n');
}

fn clip(text: &str) -> String {
    clip_to(text, COLUMNS)
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
    for turns in turns_lines(report).lines() {
        let _ = writeln!(out, "- {turns}");
    }
    for note in &report.notes {
        let _ = writeln!(out, "- {note}");
    }
    out.push_str("\n| problem | mode | subject | p50 µs | p10 | p90 | TFLOP/s | GB/s | ratio | interval | verdict |\n");
    out.push_str("|---|---|---|--:|--:|--:|--:|--:|--:|---|---|\n");
    for (result, subject) in rows(report) {
        let _ = writeln!(
            out,
            "| {} |",
            fields(result, subject, number, "–").join(" | ").replace('\n', " ")
        );
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
        let quoted: Vec<String> = fields.iter().map(|field| csv_field(field)).collect();
        let _ = writeln!(out, "{}", quoted.join(","));
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
        ratio.map_or(String::new(), |r| {
            format!("{:.4}{dash}{:.4}", r.interval.lo, r.interval.hi)
        }),
        verdict,
    ]
}

/// A comparison of two sides.
pub fn comparison_text(comparison: &Comparison) -> String {
    let mut out = String::new();
    line(&mut out, &format!("A: {}", comparison.a));
    line(&mut out, &format!("B: {}", comparison.b));
    if !comparison.paired {
        line(
            &mut out,
            "measured in different runs: differences of clock and temperature are part of the ratio",
        );
    }
    let _ = writeln!(
        out,
        "{:<22} {:<9} {:<17} {:>8} {:>8} {:>7} {:<13} verdict",
        "problem", "mode", "subject", "A µs", "B µs", "B / A", "interval"
    );
    for row in &comparison.rows {
        let interval = span(&row.ratio);
        let text = format!(
            "{:<22} {:<9} {:<17} {:>8} {:>8} {:>7} {interval:<13} {}",
            clip_to(&row.case, 22),
            row.mode.name(),
            clip_to(&row.label, 17),
            number(row.a_us),
            number(row.b_us),
            times(row.ratio.value),
            row.verdict
        );
        let _ = writeln!(out, "{text}");
    }
    out
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
