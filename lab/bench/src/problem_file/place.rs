//! Where in a problem file a mistake is: its line and its key.

use toml::de::DeTable;

/// What TOML's reader says, with line and key.
pub(super) fn of_toml(text: &str, error: &toml::de::Error) -> String {
    let at = error.span().map_or(0, |span| span.start).min(text.len());
    // The key stands before the last `=` up to the end of this line.
    let length = text.get(at..).and_then(|rest| rest.find('\n'));
    let end = length.map_or(text.len(), |length| at + length);
    let mut lines = text.get(..end).unwrap_or_default().lines().rev();
    let key = lines.find_map(|line| Some(line.split_once('=')?.0.trim()));
    located(line_of(text, at), key, error.message())
}

/// What JSON's reader says, with line and, unless the syntax is wrong, key.
pub(super) fn of_json(text: &str, error: &serde_json::Error) -> String {
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
    let before = text.get(..lines.map(str::len).sum::<usize>() + error.column());
    let before = before.unwrap_or(text);
    let message = error.to_string();
    let message = message
        .rsplit_once(" at line ")
        .map_or(message.as_str(), |(message, _)| message);
    let key = last_key(before).filter(|_| error.is_data());
    located(error.line().max(1), key, message)
}

/// A value of the problem `index` that makes no sense, with the line of the first of `keys` that this problem has.
/// The text is one that could be read.
pub(super) fn of_value(text: &str, is_toml: bool, index: usize, keys: &[&str], reason: &str) -> String {
    let place = if is_toml { in_toml } else { in_json };
    match keys.iter().find_map(|key| Some((*key, place(text, index, key)?))) {
        Some((key, at)) => located(line_of(text, at), Some(key), reason),
        None => format!("problem {}: {reason}", index + 1),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or_default().matches('\n').count() + 1
}

/// `line 3, key heads: …`. A message that names the key already, as that of an unknown key, is left as it is. Names of
/// Rust's types become words.
fn located(line: usize, key: Option<&str>, message: &str) -> String {
    let mut message = message.trim_end().replace('\n', " ");
    if message == "invalid type: map, expected a sequence" && key.is_none_or(|key| key == "problems") {
        message = "`problems` is one table, and a list is expected: `[[problems]]` in TOML, `[…]` in JSON".to_string();
    }
    for (rust, words) in [
        ("unknown field", "unknown key"),
        ("missing field `problems`", "the key `problems` is missing"),
        ("expected usize", "expected a whole number from 0 on"),
        ("expected u32", "expected a whole number from 0 to 4294967295"),
        ("expected f32", "expected a number"),
        ("expected struct Entry", "expected a problem with keys such as `heads`"),
        (
            "expected struct Keyed",
            "expected an object with the key `problems`, or a list",
        ),
    ] {
        message = message.replace(rust, words);
    }
    // Keys of the files of kernels.
    if ["`args`", "`grid`", "`ptx`", "`source`"]
        .iter()
        .any(|key| message.contains(&format!("unknown key {key}")))
    {
        message.push_str("; the launch of a FILE.cu is for `check FILE.cu --launch`, a declaration for `--kernel`");
    }
    match key.filter(|_| !message.contains("unknown key") && !message.contains("is missing")) {
        Some(key) => format!("line {line}, key `{key}`: {message}"),
        None => format!("line {line}: {message}"),
    }
}

fn in_toml(text: &str, index: usize, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let problem = table.get_ref().get("problems")?.get_ref().get(index)?;
    let (name, _) = problem.get_ref().as_table()?.get_key_value(key)?;
    Some(name.span().start)
}

/// Where a key of the problem `index` is in a JSON text. Problems are the outermost objects of a list, and else those
/// one level below.
fn in_json(text: &str, index: usize, key: &str) -> Option<usize> {
    let level = if text.trim_start().starts_with('[') { 1 } else { 2 };
    let quoted = format!("\"{key}\"");
    let (mut depth, mut problems, mut in_string, mut escaped) = (0, 0, false, false);
    for (at, char) in text.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => {
                let after = text[at..].strip_prefix(&quoted).map(str::trim_start);
                let is_key = !in_string && after.is_some_and(|after| after.starts_with(':'));
                if is_key && depth == level && problems == index + 1 {
                    return Some(at);
                }
                in_string = !in_string;
            }
            '{' if !in_string => {
                depth += 1;
                problems += usize::from(depth == level);
            }
            '}' if !in_string => depth -= 1,
            _ => {}
        }
    }
    None
}

/// The last key in a beginning of a JSON text, unless its value has a colon too.
fn last_key(text: &str) -> Option<&str> {
    let (before, _) = text.rsplit_once(':')?;
    before.trim_end().strip_suffix('"')?.rsplit('"').next()
}
