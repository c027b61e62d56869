//! Prints reports like compiler messages: the error, its place with the quoted line, the lanes, and
//! help.

use std::fmt::{self, Write};

use anstyle::{AnsiColor, Style};
use flashcore_sim::{Actor, Line};
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

use crate::foreign::Problem;
use crate::report::{CheckReport, Found, VALUES, Verdict};
use crate::source;

/// The style of errors.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Of success and help.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Of arrows, bars and line numbers.
const RULE: Style = AnsiColor::Blue.on_default().bold();
/// Of messages.
const STRONG: Style = Style::new().bold();

/// Default width of messages.
pub const WIDTH: usize = 100;

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&plain(&findings(self, WIDTH)))?;
        f.write_str(&plain(&summary(self)))
    }
}

/// Text without its styles, for files and pipes. What it quotes stays as it is.
pub fn plain(styled: &str) -> String {
    let without = |text: String, style: &Style| text.replace(&style.render().to_string(), "");
    let text = [BAD, GOOD, RULE, STRONG].iter().fold(styled.to_string(), without);
    text.replace(&format!("{BAD:#}"), "")
}

/// Refusals, findings and errors of the output, one paragraph each; empty for a clean report.
pub fn findings(report: &CheckReport, width: usize) -> String {
    let titled = |kind: &str, message: &str| {
        let mut out = String::new();
        title(&mut out, kind, message, width);
        out
    };
    let mut all = Vec::new();
    let refusals = report.refusals.iter();
    all.extend(refusals.map(|refusal| titled("refused", &refusal.to_string())));
    all.extend(report.values.iter().take(FEW).map(|why| titled(VALUES, why)));
    all.extend(left_out(report.values.len()).map(|text| titled(VALUES, &text)));
    if let Some(last) = all.last_mut().filter(|_| !report.values.is_empty()) {
        let text = "kernels cut lengths to bounds and read such pages as zeros; the output was not compared";
        help(last, text, 1, width);
    }
    let found = report.findings.iter().take(FEW);
    all.extend(found.map(|found| finding(found, report.schedules.len(), width)));
    all.extend(left_out(report.findings.len()).map(|text| titled("findings", &text)));
    if let Some(gate) = report.gate.as_ref().filter(|gate| !gate.passed()) {
        all.push(titled("wrong-output", &gate.to_string()));
    }
    if let Some(seed) = report.differs_under {
        let first = report.schedules.first().copied().unwrap_or_default();
        let message = format!("the output under schedule {seed} differs from that under schedule {first}");
        all.push(titled("schedule-dependent", &message));
    }
    all.into_iter().map(|paragraph| paragraph + "\n").collect()
}

/// What is said of things of a list that are not shown.
fn left_out(count: usize) -> Option<String> {
    (count > FEW).then(|| format!("{} more are left out here", thousands((count - FEW) as u64)))
}

/// Things of a list that a message names.
pub const FEW: usize = 20;

/// The first things of a list, and how many there are more.
pub fn few(things: &[impl std::fmt::Display]) -> String {
    let shown: Vec<String> = things.iter().take(FEW).map(ToString::to_string).collect();
    match things.len().saturating_sub(FEW) {
        0 => shown.join(", "),
        more => format!("{} and {} more", shown.join(", "), thousands(more as u64)),
    }
}

/// An integer with separated thousands: `33,280`.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 block`, `2,000 blocks`.
pub fn count(n: u64, what: &str) -> String {
    let plural = if n == 1 { "" } else { "s" };
    format!("{} {what}{plural}", thousands(n))
}

/// So many significant digits: with three `0.0123`, `4.56`, `789`, `12,345`.
pub fn significant(x: f64, digits: i32) -> String {
    let magnitude = x.abs();
    if !x.is_finite() {
        return x.to_string();
    }
    if magnitude >= 1000.0 {
        let sign = if x < 0.0 { "-" } else { "" };
        return format!("{sign}{}", thousands(magnitude.round() as u64));
    }
    if magnitude == 0.0 {
        return "0".to_string();
    }
    // Of the rounded number: 0.9996 is 1.00.
    let rounded = format!("{magnitude:.*e}", (digits - 1).max(0) as usize);
    let exponent = rounded.rsplit('e').next().and_then(|exponent| exponent.parse().ok());
    let places = (digits - 1 - exponent.unwrap_or(0)).clamp(0, 9) as usize;
    format!("{x:.places$}")
}

/// The unit in which people read a time: its microseconds and its name. Every time that is shown with its unit has it
/// from here; columns of files that other programs read are in µs.
pub fn unit_of_time(us: f64) -> (f64, &'static str) {
    match us.abs() {
        us if us >= 999.5e3 => (1e6, "s"),
        us if us >= 999.5 => (1e3, "ms"),
        _ => (1.0, "µs"),
    }
}

/// Microseconds in the unit of [`unit_of_time`], with so many significant digits: `4.80 µs`, `57.9 ms`, `1.50 s`.
pub fn time(us: f64, digits: i32) -> String {
    let (size, unit) = unit_of_time(us);
    format!("{} {unit}", significant(us / size, digits))
}

/// The verdict in one line.
pub fn summary(report: &CheckReport) -> String {
    let schedules = count(report.schedules.len() as u64, "schedule");
    match report.verdict {
        Verdict::Clean => {
            let Some(blocks) = report.only_blocks.map(thousands) else {
                return format!("{GOOD}clean{GOOD:#} under {schedules}");
            };
            let all = thousands(report.steps.iter().map(|step| step.blocks).max().unwrap_or(0));
            format!("{GOOD}clean{GOOD:#} in {blocks} of {all} blocks under {schedules}; the output was not compared")
        }
        Verdict::Refused => format!("{BAD}refused{BAD:#}: it cannot be launched and was not simulated"),
        Verdict::Findings => {
            let findings = count((report.values.len() + report.findings.len()) as u64, "finding");
            format!("{BAD}{findings}{BAD:#} under {schedules}")
        }
        Verdict::Wrong => format!("{BAD}wrong{BAD:#} under {schedules}"),
    }
}

/// One finding as [`findings`] prints it, after a number of schedules.
pub fn finding(found: &Found, schedules: usize, width: usize) -> String {
    let mut out = String::new();
    let finding = &found.finding;
    title(&mut out, finding.kind.name(), &finding.message, width);
    let lines = [finding.line(), finding.other_line()].into_iter().flatten();
    let margin = lines.map(|line| line.line.to_string().len()).max().unwrap_or(1);
    let side = Side(margin);
    side.place(&mut out, "-->", &finding.lines, found.source.as_deref(), &finding.actor);
    if let Some(other) = &finding.other {
        let source = found.other_source.as_deref();
        side.place(&mut out, "and", &other.lines, source, &other.actor);
    }
    if let (Some(object), Some((first, end))) = (&finding.object, finding.bytes) {
        side.note(&mut out, &format!("{object}: bytes {first}..{end}"));
    }
    let times = match finding.count {
        1 => "once",
        count => &format!("{count} times"),
    };
    let seed = found.schedules.first().copied().unwrap_or_default();
    let under = match (schedules, found.schedules.len()) {
        (1, _) => format!("under schedule {seed}"),
        (of, n) => format!("under {n} of {of} schedules, the first of them {seed}"),
    };
    side.note(&mut out, &format!("seen {times}, {under}"));
    if let Some(text) = &finding.help {
        help(&mut out, text, margin, width);
    }
    out
}

/// A problem of a kernel of a file, with the quoted line if the file is found.
pub fn problem(problem: &Problem, file: &str, width: usize) -> String {
    let mut out = String::new();
    let kind = problem.kind;
    let (label, style) = if problem.kind.is_warning() {
        (format!("warning[{kind}]"), STRONG)
    } else {
        (format!("error[{kind}]"), BAD)
    };
    labelled(&mut out, &label, &problem.message, style, width);
    let margin = problem.line.map_or(1, |line| line.to_string().len());
    let side = Side(margin);
    if let Some(line) = problem.line {
        let _ = writeln!(out, "{:margin$}{RULE}-->{RULE:#} {file}:{line}", "");
        side.quote(&mut out, line, source::quote(file, line).as_deref());
    }
    if let Some(cuda) = problem.cuda {
        let text = wrap(&format!("CUDA says: {cuda}"), margin + 3, margin + 3, width);
        side.note(&mut out, &text);
    }
    help(&mut out, &problem.help, margin, width);
    out
}

fn help(out: &mut String, text: &str, margin: usize, width: usize) {
    let text = wrap(text, margin + 7, margin + 3, width);
    let _ = writeln!(out, "{:margin$} {GOOD}help{GOOD:#}: {text}", "");
}

fn title(out: &mut String, kind: &str, message: &str, width: usize) {
    labelled(out, &format!("error[{kind}]"), message, BAD, width);
}

fn labelled(out: &mut String, label: &str, message: &str, style: Style, width: usize) {
    let text = wrap(message, label.len() + 2, 2, width);
    let _ = writeln!(out, "{style}{label}{style:#}: {STRONG}{text}{STRONG:#}");
}

/// The lines below a title, with a margin of so many columns.
struct Side(usize);

impl Side {
    fn place(&self, out: &mut String, arrow: &str, lines: &[Line], source: Option<&str>, actor: &Actor) {
        let Side(margin) = self;
        let Some(kernel) = lines.first() else { return };
        let _ = writeln!(
            out,
            "{:margin$}{RULE}{arrow}{RULE:#} {}:{}:{}",
            "", kernel.file, kernel.line, kernel.column
        );
        self.quote(out, kernel.line, source);
        for line in &lines[1..] {
            let place = match line.verb {
                // Users have the source, which it was made from.
                Some("PTX") => format!("line {} of its PTX", line.line),
                Some(verb) => format!("through {}:{}:{} in `{verb}`", line.file, line.line, line.column),
                None => format!("through {}:{}:{}", line.file, line.line, line.column),
            };
            self.note(out, &place);
        }
        self.note(out, &format!("by {actor}"));
    }

    fn quote(&self, out: &mut String, line: u32, source: Option<&str>) {
        let Side(margin) = self;
        if let Some(source) = source {
            let _ = writeln!(out, "{RULE}{:margin$} |{RULE:#}", "");
            let _ = writeln!(out, "{RULE}{line:margin$} |{RULE:#}     {source}");
            let _ = writeln!(out, "{RULE}{:margin$} |{RULE:#}", "");
        }
    }

    fn note(&self, out: &mut String, text: &str) {
        let Side(margin) = self;
        let _ = writeln!(out, "{:margin$} {RULE}={RULE:#} {text}", "");
    }
}

/// Wraps text between words. `used` columns of the first line are taken; the others are indented.
fn wrap(text: &str, used: usize, indent: usize, width: usize) -> String {
    let [taken, indent] = [used, indent].map(|columns| " ".repeat(columns));
    let lines = textwrap::wrap(text, between_words(width, &indent).initial_indent(&taken)).join("\n");
    lines.strip_prefix(&taken).unwrap_or(&lines).to_string()
}

/// How texts are wrapped: at spaces alone, wherever a date or an id has a hyphen. Later lines are indented.
pub fn between_words(width: usize, indent: &str) -> Options<'_> {
    Options::new(width)
        .subsequent_indent(indent)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashcore_sim::{Finding, FindingKind, Other};

    #[test]
    fn times_have_the_unit_that_people_read() {
        let shown = [0.74, 4.8, 999.4, 999.6, 57_981.0, 999_400.0, 999_600.0, 1.5e6, 3.6e9].map(|us| time(us, 3));
        let expected = [
            "0.740 µs",
            "4.80 µs",
            "999 µs",
            "1.00 ms",
            "58.0 ms",
            "999 ms",
            "1.00 s",
            "1.50 s",
            "3,600 s",
        ];
        assert_eq!(shown, expected);
        assert_eq!(significant(-1234.5, 3), "-1,235");
        // The end of an interval that is not known.
        assert_eq!(time(f64::INFINITY, 3), "inf s");
        assert_eq!(
            [4.8, 57_981.0, 900.0].map(|us| time(us, 4)),
            ["4.800 µs", "57.98 ms", "900.0 µs"]
        );
    }

    fn found() -> Found {
        let line = |line, verb| Line {
            file: "src/kernel.rs",
            line,
            column: 9,
            verb,
        };
        let actor = |warp, lanes| Actor {
            block: [3, 0, 0],
            warp,
            lanes,
        };
        Found {
            finding: Finding {
                kind: FindingKind::Race,
                message: "reads `p_tile` row 3 column 0, which warp 0 lane 5 wrote; nothing orders the two accesses"
                    .to_string(),
                lines: vec![line(120, None), line(7, Some("load_tile"))],
                actor: actor(1, 0xf0),
                other: Some(Other {
                    lines: vec![line(98, None)],
                    actor: actor(0, 1 << 5),
                }),
                object: Some("p_tile".to_string()),
                bytes: Some((192, 196)),
                element: None,
                help: Some("put a barrier between them".into()),
                count: 12,
            },
            source: Some("let p = load4(p_tile.at(thread_row, key));".to_string()),
            other_source: None,
            schedules: vec![4, 7],
        }
    }

    #[test]
    fn a_finding_reads_like_a_compilers() {
        let text = plain(&finding(&found(), 50, 60));
        let expected = "\
error[race]: reads `p_tile` row 3 column 0, which warp 0
  lane 5 wrote; nothing orders the two accesses
   --> src/kernel.rs:120:9
    |
120 |     let p = load4(p_tile.at(thread_row, key));
    |
    = through src/kernel.rs:7:9 in `load_tile`
    = by block (3, 0, 0) warp 1 lanes 4–7
   and src/kernel.rs:98:9
    = by block (3, 0, 0) warp 0 lane 5
    = p_tile: bytes 192..196
    = seen 12 times, under 2 of 50 schedules, the first of them 4
    help: put a barrier between them
";
        assert_eq!(text, expected);
    }

    #[test]
    fn colours_are_only_where_they_are_asked_for() {
        let text = finding(&found(), 1, 100);
        assert!(text.contains("\u{1b}["));
        assert!(!plain(&text).contains('\u{1b}'));
        let quoted = "a line with \u{1b}]0;a title\u{7} and \u{1b}[2J";
        assert_eq!(plain(&format!("{RULE}|{RULE:#} {quoted}")), format!("| {quoted}"));
        assert!(text.contains("under schedule 4"));
    }
}
