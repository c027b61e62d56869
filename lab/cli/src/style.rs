//! Output: colours, widths and numbers. `anstream` drops colours where output is not a terminal,
//! with `NO_COLOR` and with `--color never`.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use flashcore_check::render::{self, between_words};
pub(crate) use flashcore_check::render::{BAD, GOOD};
use flashcore_ir::files;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::Failure;
pub(crate) use crate::stdout::print;

pub(crate) const HEAD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const CODE: Style = AnsiColor::Cyan.on_default();

/// The widest line printed, however wide the terminal.
const MAX_WIDTH: usize = 100;
/// The narrowest line that text is wrapped to.
const MIN_WIDTH: usize = 40;
const LABEL: usize = 10;

#[derive(Clone, Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    pub(crate) fn new(first: impl Display) -> Page {
        let mut page = Page::default();
        page.line(first);
        page
    }

    /// An empty line and a heading, with what it is about.
    pub(crate) fn heading(&mut self, title: impl Display, about: impl Display) {
        self.line(format_args!("\n{HEAD}{title}{HEAD:#} {DIM}· {about}{DIM:#}"));
    }

    /// An indented line that is less important, such as the head of a table.
    pub(crate) fn dim(&mut self, text: impl Display) {
        self.line(format_args!("  {DIM}{text}{DIM:#}"));
    }

    pub(crate) fn line(&mut self, text: impl Display) {
        self.add(format_args!("{text}\n"));
    }

    pub(crate) fn add(&mut self, text: impl Display) {
        self.0.push_str(&text.to_string());
    }

    /// Adds text wrapped between words; every line but the first is indented.
    pub(crate) fn wrap(&mut self, indent: usize, text: impl Display) {
        self.0.push_str(&wrap(&text.to_string(), indent));
    }

    /// Adds a label in its own column, and text wrapped to the right of it.
    pub(crate) fn field(&mut self, label: &str, text: impl Display) {
        for (i, line) in wrap_to(&text.to_string(), 0, width() - LABEL - 2).lines().enumerate() {
            let label = if i == 0 { label } else { "" };
            self.line(format_args!("  {DIM}{label:<LABEL$}{DIM:#}{line}"));
        }
    }

    pub(crate) fn fields(&mut self, label: &str, texts: impl IntoIterator<Item: Display>) {
        texts.into_iter().for_each(|text| self.field(label, text));
    }

    /// Adds names in columns, as many as fit a line.
    pub(crate) fn columns(&mut self, names: &[&str]) {
        let column = names.iter().map(|name| name.len()).max().unwrap_or(0) + 2;
        let per_line = ((width() - 2) / column).max(1);
        for names in names.chunks(per_line) {
            let line: String = names.iter().map(|name| format!("{name:<column$}")).collect();
            self.line(format_args!("  {}", line.trim_end()));
        }
    }

    pub(crate) fn print(&self) {
        print(&self.0);
    }
}

impl Display for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Columns to print to: those of the terminal, or [`MAX_WIDTH`] if there is none.
pub(crate) fn width() -> usize {
    let terminal = terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
    terminal.unwrap_or(MAX_WIDTH).clamp(MIN_WIDTH, MAX_WIDTH)
}

/// Text wrapped between words, every line but the first of a paragraph indented, with a newline at
/// its end. Line breaks stay; a word longer than a line is not broken.
pub(crate) fn wrap(text: &str, indent: usize) -> String {
    wrap_to(text, indent, width())
}

fn wrap_to(text: &str, indent: usize, width: usize) -> String {
    let indent = " ".repeat(indent);
    let lines = text
        .lines()
        .flat_map(|line| textwrap::wrap(line, between_words(width, &indent)));
    lines.fold(String::new(), |out, line| out + &line + "\n")
}

/// Lines that were laid out by hand, for terminals that are narrower: what does not fit goes on in the column of the
/// line's description, or two columns further in where it has none.
pub(crate) fn relaid(text: &str, width: usize) -> String {
    /// A description has so many columns at least.
    const LEAST: usize = 20;
    let line = |line: &str| {
        let body = line.trim_start();
        let margin = line.len() - body.len();
        let described = body.rfind("  ").map(|at| margin + body[..at].chars().count() + 2);
        let indent = described.filter(|column| column + LEAST <= width);
        let indent = " ".repeat(indent.unwrap_or(margin + 2));
        textwrap::wrap(line, between_words(width, &indent)).join("\n")
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Text with what a terminal would obey or reorder written out (`\u202e`): control characters but line ends, tabs and
/// our own colours, and characters that change the direction of text or are not seen. Everything printed passes here,
/// as names may come from files of others. In JSON it is the same text.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| matches!(c, '\n' | '\t') || !(c.is_control() || is_unseen(c));
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = colour_of(rest);
        if colour > 0 || is_plain(c) {
            let taken = colour.max(c.len_utf8());
            shown.push_str(&rest[..taken]);
            rest = &rest[taken..];
        } else {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units).iter();
            units.for_each(|unit| shown.push_str(&format!("\\u{unit:04x}")));
            rest = &rest[c.len_utf8()..];
        }
    }
    Cow::Owned(shown)
}

/// Whether a character changes the direction of text or has no width (Unicode's Bidi_Control, and format characters
/// that hide or join).
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Bytes of a sequence at the beginning of a text that sets a colour or a weight, as ours do; 0 if there is none.
/// Others hide text or move the cursor.
fn colour_of(text: &str) -> usize {
    let Some(body) = text.strip_prefix("\u{1b}[") else {
        return 0;
    };
    let Some((codes, _)) = body.split_once('m') else {
        return 0;
    };
    // Neither black nor white, which hide text on a background of the same.
    let is_ours = |code: &str| matches!(code.parse(), Ok(0 | 1 | 2 | 4 | 22 | 24 | 31..=36 | 39 | 91..=96));
    if codes.split(';').all(is_ours) {
        3 + codes.len()
    } else {
        0
    }
}

pub(crate) fn eprint(text: &str) {
    let mut stderr = anstream::stderr().lock();
    let _ = stderr.write_all(escaped(text).as_bytes()).and_then(|()| stderr.flush());
}

pub(crate) fn note(text: impl Display) {
    eprint(&wrap(&format!("note: {text}"), 2));
}

pub(crate) fn print_json(value: &Value) {
    print(&format!("{value:#}\n"));
}

/// Prints one JSON object with `--json`, and text without.
pub(crate) fn show(as_json: bool, json: impl FnOnce() -> Value, text: impl FnOnce() -> Page) {
    if as_json { print_json(&json()) } else { text().print() }
}

/// Bytes of the output of another command, such as `bench --json`, and of tables.
pub(crate) const MOST_READ: u64 = 16 * files::SMALL;

pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    files::read_text_capped(path, MOST_READ).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Refuses a file to write that is a folder, or whose folder is not there.
pub(crate) fn check_folder(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(Failure::usage(format!(
            "{} is a folder; name a file in it",
            path.display()
        )));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Err(Failure::usage(format!("there is no folder {}", folder.display()))
            .help("make it first, or name a file in another folder")),
        None => Ok(()),
    }
}

/// The ending of a file to write, which says what it is to hold.
pub(crate) fn ending<'a>(path: &'a Path, allowed: &[&str]) -> Result<&'a str, Failure> {
    if path.is_dir() {
        check_folder(path)?;
    }
    let ending = path.extension().and_then(|ending| ending.to_str());
    match ending.filter(|ending| allowed.contains(ending)) {
        Some(ending) => check_folder(path).map(|()| ending),
        None => {
            let why = format!("{} ends in none of .{}", path.display(), allowed.join(", ."));
            Err(Failure::usage(why))
        }
    }
}

/// Refuses files to write that are folders, whose folders are not there, or whose path is given twice.
pub(crate) fn check_files<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<(), Failure> {
    let mut seen = Vec::new();
    for path in paths {
        check_folder(path)?;
        if seen.contains(&path) {
            let says = format!("{} is named for two outputs; name a file for each", path.display());
            return Err(Failure::usage(says));
        }
        seen.push(path);
    }
    Ok(())
}

pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
    let failed = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
    // A file of text is read on terminals, too.
    let bytes = bytes.as_ref();
    let text = str::from_utf8(bytes).map(escaped);
    let bytes = text.as_ref().map_or(bytes, |text| text.as_bytes());
    flashcore::unstable::files::write_whole(path, bytes).map_err(failed)
}

/// A whole number with separated thousands: `33,280`.
pub(crate) fn whole(n: impl TryInto<u64>) -> String {
    render::thousands(n.try_into().unwrap_or_default())
}

/// A number of things: `1 block`, `1,024 blocks`.
pub(crate) fn count(n: impl TryInto<u64>, what: &str) -> String {
    render::count(n.try_into().unwrap_or_default(), what)
}

pub(crate) fn list(things: impl IntoIterator<Item: Display>) -> String {
    let texts = things.into_iter().map(|thing| thing.to_string());
    texts.collect::<Vec<_>>().join(", ")
}

/// Three significant digits: `0.0123`, `4.56`, `789`, `12,345`.
pub(crate) fn digits3(x: f64) -> String {
    render::significant(x, 3)
}

/// Microseconds in a readable unit: `4.80 µs`, `3.21 ms`, `1.50 s`.
pub(crate) fn micros(us: f64) -> String {
    render::time(us, 3)
}

pub(crate) fn flops(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e12 => format!("{} TFLOP/s", digits3(rate / 1e12)),
        rate => format!("{} GFLOP/s", digits3(rate / 1e9)),
    }
}

/// Shows on a terminal's standard error that something is going on, until it is dropped.
pub(crate) struct Spinner(pub(crate) ProgressBar);

pub(crate) fn spinner(what: &str) -> Spinner {
    Spinner(bar("{spinner} {msg} {elapsed}").with_message(escaped(what).into_owned()))
}

impl Spinner {
    pub(crate) fn say(&self, what: &str) {
        self.0.set_message(escaped(what).into_owned());
    }
}

/// A line that is kept up to date; drawn only if standard error is a terminal.
pub(crate) fn bar(template: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
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
        assert_eq!(whole(33280u32), "33,280");
        assert_eq!(whole(1_000_000u64), "1,000,000");
        assert_eq!(whole(7u64), "7");
        assert_eq!(
            (count(1u32, "block"), count(1024usize, "warp")),
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
    fn lines_laid_out_by_hand_keep_their_columns() {
        let text = "Sets:\n  small     one two three\n  plain words here";
        assert_eq!(relaid(text, 40), text);
        assert_eq!(
            relaid(text, 34),
            text,
            "it fits, although the description would be narrow"
        );
        assert_eq!(
            relaid("  run  four words of text that go on", 27),
            "  run  four words of text\n       that go on"
        );
        assert_eq!(relaid("  plain words here", 12), "  plain\n    words\n    here");
    }

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        assert_eq!(escaped("a\tb\nü λ 語"), "a\tb\nü λ 語");
        // Right to left, an end of line that overwrites, a bell, a window's title, hidden text, a C1 control.
        let names = "a\u{202e}b\rc\u{7}\u{1b}]0;x\u{7}\u{1b}[8mh\u{1b}[30mi\u{9b}2J\u{200b}\u{e0041}";
        let shown = r"a\u202eb\u000dc\u0007\u001b]0;x\u0007\u001b[8mh\u001b[30mi\u009b2J\u200b\udb40\udc41";
        assert_eq!(escaped(names), shown);
        let ours = format!("{BAD}x\u{2066}{BAD:#}");
        assert_eq!(escaped(&ours), ours.replace('\u{2066}', r"\u2066"));
        // JSON says the same as before.
        let json = serde_json::json!({ "name": names });
        let printed = escaped(&json.to_string()).into_owned();
        assert!(!printed.contains('\u{202e}'));
        assert_eq!(serde_json::from_str::<Value>(&printed).unwrap(), json);
    }

    #[test]
    fn text_wraps_between_words() {
        assert_eq!(wrap_to("one two three", 2, 8), "one two\n  three\n");
        assert_eq!(wrap_to("  one two\nthree", 4, 9), "  one two\nthree\n");
        let styled = format!("{BAD}one{BAD:#} two");
        assert_eq!(wrap_to(&styled, 0, 7), format!("{styled}\n"));
        let mut page = Page::default();
        page.field("label", "word ".repeat(60));
        let widths = page.0.lines().map(textwrap::core::display_width);
        assert!(widths.max() <= Some(MAX_WIDTH), "{page}");
    }
}
