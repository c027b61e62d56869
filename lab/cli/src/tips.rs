//! Errors in the arguments: what clap says, without its tip about values, and how the command spells what was typed.

use clap::error::{ContextKind, ContextValue};

use crate::{Card, GOOD};

/// Flags that other commands have, and how the same is asked of the command that was typed.
const ELSEWHERE: [(&str, &[&str], &str); 1] =
    [("--profile", &["bench", "tune"], "a card that is not here is a device")];

/// Flags of earlier versions, and what replaced each.
const GONE: [(&str, &str); 4] = [
    (
        "--sweep",
        "`bench --sweep` is gone: `tune --strategy exhaustive` tries a space, and `bench` takes any number of kernels",
    ),
    (
        "--predicted",
        "`tune --predicted --profile CARD` is `tune --device predict:CARD`",
    ),
    (
        "--simulate",
        "`profile` predicts shares and keeps them for reports; `explain --svg` draws shared memory",
    ),
    ("--markdown", "`report -o FILE.md` writes runs in Markdown"),
];

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
    let mut text = lines.collect::<String>().replace("\n\n\n", "\n\n");
    if let Some(ContextValue::String(flag)) = message.get(ContextKind::InvalidArg)
        && let Some(help) = replaced(flag).or_else(|| spelled(flag, &std::env::args().skip(1).collect::<Vec<_>>()))
    {
        text.push_str(&format!("  {GOOD}help{GOOD:#}: {help}\n"));
    }
    text
}

fn replaced(flag: &str) -> Option<String> {
    let (_, now) = GONE.iter().find(|(gone, _)| *gone == flag)?;
    Some(now.to_string())
}

/// How a flag that the command of these words does not have is spelled there.
fn spelled(flag: &str, words: &[String]) -> Option<String> {
    let is_of = |commands: &[&str]| commands.iter().any(|command| words.iter().any(|word| word == command));
    let (_, _, why) = ELSEWHERE
        .iter()
        .find(|(known, commands, _)| flag == *known && is_of(commands))?;
    let value = words
        .iter()
        .enumerate()
        .find_map(|(at, word)| match word.strip_prefix(flag)? {
            "" => words.get(at + 1).cloned(),
            joined => joined.strip_prefix('=').map(str::to_string),
        });
    let card = value.and_then(|name| Card::parse(&name).ok());
    let name = card
        .and_then(|card| card.profile)
        .map_or("CARD", |profile| profile.name);
    Some(format!("{why}: write `--device predict:{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_of_another_command_is_spelled_as_here() {
        let of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_string).collect();
            spelled("--profile", &words)
        };
        assert!(
            of("tune small --profile L4")
                .unwrap()
                .ends_with("`--device predict:l4`")
        );
        assert!(of("bench --profile=h100").unwrap().ends_with("`--device predict:h100`"));
        assert!(of("bench --profile").unwrap().ends_with("`--device predict:CARD`"));
        assert_eq!(of("run --profile l4"), None);
    }
}
