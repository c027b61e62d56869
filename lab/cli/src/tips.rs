//! Errors in the arguments: what clap says, without its tip about values, and how the command spells what was typed.

use clap::error::{ContextKind, ContextValue};
use flashcore_bench::problem_text;

use crate::{Card, GOOD, in_place};

/// Commands that have no `--profile`, and the device that says which card is meant.
const BY_DEVICE: [(&[&str], &str, &str); 2] = [
    (
        &["bench", "tune", "profile"],
        "a card that is not here is a device",
        "predict",
    ),
    (&["run", "parity"], "the simulator is a device of a card", "sim"),
];

/// Spellings of earlier versions and of other tools: commands, spelling, what to write.
const GONE: &str = include_str!("help/gone.txt");

/// The text of an error, of help, or of the version.
pub(crate) fn told(message: &clap::Error) -> String {
    let text = message.render().ansi().to_string();
    if !message.use_stderr() {
        return text;
    }
    // What is a value of no flag is not to be passed as one.
    let lines = text
        .split_inclusive('\n')
        .filter(|line| !line.contains("as a value, use '"));
    let text = lines.collect::<String>().replace("\n\n\n", "\n\n");
    let words: Vec<String> = std::env::args().skip(1).collect();
    let given = [ContextKind::InvalidArg, ContextKind::InvalidSubcommand].into_iter();
    let mut given = given.filter_map(|kind| match message.get(kind)? {
        ContextValue::String(word) => Some(word.as_str()),
        _ => None,
    });
    let help = |word| {
        replaced(word, &words)
            .or_else(|| by_device(word, &words))
            .or_else(|| quoted(word))
    };
    match given.find_map(help) {
        // What clap takes for similar is not what replaced it.
        Some(help) => {
            let error = text.split("\n\n").next().unwrap_or_default();
            format!("{}\n  {GOOD}help{GOOD:#}: {help}\n", error.trim_end())
        }
        None => text,
    }
}

/// Whether a command line is of one of these commands.
fn is_of<'a>(words: &[String], mut commands: impl Iterator<Item = &'a str>) -> bool {
    commands.any(|command| words.iter().any(|word| word == command))
}

fn replaced(spelling: &str, words: &[String]) -> Option<String> {
    let mut rows = GONE.lines().map(|line| line.splitn(3, " | ").collect::<Vec<_>>());
    rows.find_map(|row| match row[..] {
        [commands, gone, now] if gone == spelling => {
            let is_here = commands == "any" || is_of(words, commands.split(' '));
            is_here.then(|| now.to_string())
        }
        _ => None,
    })
}

/// Words of a problem's text that are arguments of their own.
fn quoted(word: &str) -> Option<String> {
    problem_text::is_field(word).then(|| in_place::QUOTED.to_string())
}

/// How a card is named for the command of these words.
fn by_device(flag: &str, words: &[String]) -> Option<String> {
    let mut known = BY_DEVICE.iter().filter(|_| flag == "--profile");
    let (_, why, device) = known.find(|(commands, _, _)| is_of(words, commands.iter().copied()))?;
    let value = words
        .iter()
        .enumerate()
        .find_map(|(at, word)| match word.strip_prefix(flag)? {
            "" => words.get(at + 1).cloned(),
            joined => joined.strip_prefix('=').map(str::to_string),
        });
    let card = value.and_then(|name| Card::parse(&name).ok());
    let name = card.map_or("CARD", |card| card.name());
    Some(format!("{why}: write `--device {device}:{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_of_another_command_is_spelled_as_here() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_string).collect();
            by_device("--profile", &words)
        };
        assert!(
            of("tune small --profile L4")
                .unwrap()
                .ends_with("`--device predict:l4`")
        );
        assert!(of("bench --profile=h100").unwrap().ends_with("`--device predict:h100`"));
        assert!(of("bench --profile").unwrap().ends_with("`--device predict:CARD`"));
        assert!(of("run --profile sm_89").unwrap().ends_with("`--device sim:sm_89`"));
        assert_eq!(of("check --profile l4"), None);
    }
}
