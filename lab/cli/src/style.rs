//! How output looks: colours, widths, numbers. Colours are dropped where output is no terminal, on
//! `NO_COLOR` and on `--color never` (by anstream).

use std::io::{ErrorKind, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
pub(crate) use flashcore_check::render::thousands as whole;
use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// A heading.
pub(crate) const HEAD: Style = Style::new().bold();
/// A label, or something less important.
pub(crate) const DIM: Style = Style::new().dimmed();
/// Something that is right.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Something that is wrong.
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Something to type.
pub(crate) const CODE: Style = AnsiColor::Cyan.on_default();

/// Widest line printed, however wide the terminal.
const MAX_WIDTH: usize = 100;
/// Narrowest line that text is wrapped to.
const MIN_WIDTH: usize = 40;

/// Columns to print to: the terminal's, or [`MAX_WIDTH`] where there is none.
pub(crate) fn width() -> usize {
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    terminal.unwrap_or(MAX_WIDTH).clamp(MIN_WIDTH, MAX_WIDTH)
}

/// Text broken between words to the width, every line but the first of a paragraph indented, with a newline
/// at its end. Lines of the text stay lines; a word longer than a line is not broken.
pub(crate) fn wrap(text: &str, indent: usize) -> String {
    wrap_to(text, indent, width())
}

fn wrap_to(text: &str, indent: usize, width: usize) -> String {
    let indent = " ".repeat(indent);
    let options = Options::new(width)
        .subsequent_indent(&indent)
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    text.lines()
        .flat_map(|line| textwrap::wrap(line, &options))
        .fold(String::new(), |out, line| out + &line + "\n")
}

/// A label in a column of its own, then text that is wrapped beside it.
pub(crate) fn field(label: &str, text: &str) -> String {
    const LABEL: usize = 10;
    let mut out = String::new();
    for (i, line) in wrap_to(text, 0, width() - LABEL - 2).lines().enumerate() {
        let label = if i == 0 { label } else { "" };
        out.push_str(&format!("  {DIM}{label:<LABEL$}{DIM:#}{line}\n"));
    }
    out
}

/// Whether standard output can no longer be written to.
static STDOUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Prints to standard output. After the reader has gone (`| head`) nothing more is printed, and the command goes on:
/// its exit code is its verdict, whether or not someone reads the text. Any other error, such as a full disk, ends
/// the command as a failure.
pub(crate) fn print(text: &str) {
    if STDOUT_CLOSED.load(Ordering::Relaxed) {
        return;
    }
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => STDOUT_CLOSED.store(true, Ordering::Relaxed),
        Err(error) => {
            drop(stdout);
            eprint(&wrap(
                &format!("{BAD}error{BAD:#}: standard output cannot be written: {error}"),
                2,
            ));
            std::process::exit(1);
        }
    }
}

/// Prints to standard error. A message that cannot be written changes nothing about the command.
pub(crate) fn eprint(text: &str) {
    let mut stderr = anstream::stderr().lock();
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

/// Prints a value as indented JSON.
pub(crate) fn print_json(value: &serde_json::Value) {
    print(&format!("{value:#}\n"));
}

/// So many things: `1 block`, `1,024 blocks`.
pub(crate) fn count(n: u64, what: &str) -> String {
    format!("{} {what}{}", whole(n), if n == 1 { "" } else { "s" })
}

/// Three significant digits: `0.0123`, `4.56`, `789`, `12,345`.
pub(crate) fn digits3(x: f64) -> String {
    let magnitude = x.abs();
    if magnitude >= 1000.0 {
        return whole(x.round() as u64);
    }
    let places = match magnitude {
        0.0 => 0,
        _ => (2 - magnitude.log10().floor() as i32).clamp(0, 9) as usize,
    };
    format!("{x:.places$}")
}

/// Microseconds in the unit that reads best: `4.80 µs`, `3.21 ms`, `1.50 s`.
pub(crate) fn micros(us: f64) -> String {
    match us {
        us if us >= 1e6 => format!("{} s", digits3(us / 1e6)),
        us if us >= 1e3 => format!("{} ms", digits3(us / 1e3)),
        us => format!("{} µs", digits3(us)),
    }
}

/// Operations a second in the unit that reads best.
pub(crate) fn flops(per_second: f64) -> String {
    if per_second >= 1e12 {
        format!("{} TFLOP/s", digits3(per_second / 1e12))
    } else {
        format!("{} GFLOP/s", digits3(per_second / 1e9))
    }
}

/// Shows that something is going on, on a terminal, until it is dropped.
pub(crate) fn spinner(what: &str) -> Spinner {
    let bar = indicatif::ProgressBar::new_spinner();
    if let Ok(style) = indicatif::ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(what.to_string());
    bar.enable_steady_tick(Duration::from_millis(100));
    Spinner(bar)
}

/// A spinner on standard error; see [`spinner`].
pub(crate) struct Spinner(indicatif::ProgressBar);

impl Spinner {
    /// Says something else from now on.
    pub(crate) fn say(&self, what: String) {
        self.0.set_message(what);
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(whole(33280), "33,280");
        assert_eq!(whole(1_000_000), "1,000,000");
        assert_eq!(whole(7), "7");
        assert_eq!(
            (count(1, "block"), count(1024, "warp")),
            ("1 block".to_string(), "1,024 warps".to_string())
        );
        assert_eq!(digits3(0.01234), "0.0123");
        assert_eq!(digits3(4.5), "4.50");
        assert_eq!(digits3(0.0), "0");
        assert_eq!(digits3(12_345.0), "12,345");
        assert_eq!(micros(4.8), "4.80 µs");
        assert_eq!(micros(3210.0), "3.21 ms");
        assert_eq!(flops(4.3e11), "430 GFLOP/s");
        assert_eq!(flops(6.5e14), "650 TFLOP/s");
    }

    #[test]
    fn text_wraps_between_words() {
        assert_eq!(wrap_to("one two three", 2, 8), "one two\n  three\n");
        assert_eq!(wrap_to("  one two\nthree", 4, 9), "  one two\nthree\n");
        let styled = format!("{BAD}one{BAD:#} two");
        assert_eq!(wrap_to(&styled, 0, 7), format!("{styled}\n"));
        assert!(
            field("label", &"word ".repeat(60))
                .lines()
                .all(|line| textwrap::core::display_width(line) <= MAX_WIDTH)
        );
    }
}
