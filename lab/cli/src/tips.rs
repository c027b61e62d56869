//! Errors in the arguments: what clap says, without its tip about values, and how the command spells what was typed.

use clap::error::{ContextKind, ContextValue};

use flashcore_bench::problem_text;

use crate::{Card, GOOD, args};

/// Commands that have no `--profile`, and the device that says which card is meant.
const BY_DEVICE: [(&[&str], &str, &str); 2] = [
    (&["bench", "tune", "profile"], "a card that is not here is a device", "predict"),
    (&["run", "parity"], "the simulator is a device of a card", "sim"),
];

/// Flags of earlier versions by their commands (none: of any), and what replaced each.
const GONE: [(&[&str], &str, &str); 59] = [
    (&[], "--sweep", "`tune --strategy exhaustive` tries a space, and `bench` takes any number of kernels"),
    (&[], "--predicted", "`tune --predicted --profile CARD` is `tune --device predict:CARD`"),
    (&[], "--simulate", "`profile` predicts shares and keeps them; `explain --svg` draws shared memory"),
    (&["report"], "--markdown", "write `report -o FILE.md`"),
    (&["check", "explain"], "--smem", "write `--launch smem=BYTES`"),
    (&["check", "explain"], "--threads", "write `--launch threads=N`, along axes as 32x8"),
    (&["check", "explain"], "--grid", "write `--launch grid=8x4`"),
    (&["check", "explain"], "--opted-in", "write `--launch opted-in`"),
    (&["check", "explain"], "--entry", "write `--launch entry=NAME`"),
    (&["check", "explain"], "--std", "write it at the end, after `--`: `-- -std=c++17`"),
    (&["check", "explain"], "-s", "write it at the end, after `--`: `-- -std=c++17`"),
    (&["check", "explain"], "-I", "write it at the end, after `--`: `-- -IDIR`"),
    (&["check", "explain"], "-D", "write it at the end, after `--`: `-- -DNAME=VALUE`"),
    (&["check", "explain"], "--maxrregcount", "write it at the end, after `--`: `-- --maxrregcount=N`"),
    (&["check", "explain"], "--compiler-limit", "write `--deadline TIME`"),
    (&["check"], "--outputs", "write `--output DIR`"),
    (&["check"], "--schedule", "write `--schedules 1@SEED`"),
    (&["check"], "--numerics", "write `--tap all`"),
    (&["check"], "--block", "write `--trace LINE,block=1x0x0`"),
    (&["check"], "--warp", "write `--trace LINE,warp=N`"),
    (&["check"], "--lane", "write `--trace LINE,lane=N`"),
    (&["check"], "--limit", "write `--trace LINE,limit=N`"),
    (&["explain"], "--lines", "write `--ptx=lines`"),
    (&["explain"], "--step", "write `--ptx=N`"),
    (&["list"], "--kernel", "write `list levers ID`"),
    (&["list"], "--problem", "write `list ladder PROBLEM`"),
    (&["bench"], "--config", "write `--kernel IDS`"),
    (&["bench"], "--csv", "write `--output FILE.csv`"),
    (&["bench"], "--plain", "write `--mode plain`, or `--mode hot,plain`"),
    (&["bench"], "--steady-lead", "write `--lead 40ms`"),
    (&["bench"], "--sustained-rounds", "write `--rounds N`"),
    (&["gate", "kbench"], "--markdown", "write `--output FILE.md`"),
    (&["gate"], "--baseline", "write `--against FILE`"),
    (&["gate"], "--slower", "write `--allow slower=3%`"),
    (&["gate"], "--error", "write `--allow error=10%`"),
    (&["gate"], "--store", "`--evidence FOLDER` reads another store"),
    (&["evidence"], "--gate", "write `--slower SHARE`"),
    (&["evidence"], "--format", "write `--output FILE.csv`, or `--output csv` to print it"),
    (&["evidence"], "--rung", "write `--kernel ID=NAME`"),
    (&["evidence"], "--rungs", "write `--kernel FILE`"),
    (&[], "--no-store", "write `--store none`"),
    (&["parity"], "--no-sdpa", "write `--peers none`"),
    (&["parity"], "--lengths", "write `--with lengths`"),
    (&["parity"], "--sinks-alibi", "write `--with sinks-alibi`"),
    (&["tune"], "--start", "write `--kernel ID`"),
    (&["tune"], "--no-plan", "write `--skip plan`"),
    (&["tune"], "--no-measure", "write `--skip measure`"),
    (&["plans"], "--of", "write `plans make FILES --output FILE`"),
    (&["plans"], "--drop", "write `plans drop FILE:ROW`"),
    (&["plans", "device"], "--out", "write `--output FILE`"),
    (&["profile"], "--goal-sm", "write `--goal sm=PERCENT`"),
    (&["profile"], "--goal-dram", "write `--goal dram=PERCENT`"),
    (&["profile"], "--goal-tensor", "write `--goal tensor=PERCENT`"),
    (&["device"], "--rates", "write `device FILE.json`"),
    (&["device"], "--only", "write `--measure=NAMES`"),
    (&["kbench"], "--task-only", "write `--kernel none`"),
    (&["kbench"], "--atol", "write `--tolerance abs=X`"),
    (&["kbench"], "--rtol", "write `--tolerance rel=X`"),
    (&["kbench"], "--calls", "write `--rounds 10xCALLS`"),
];

/// Commands of earlier versions, and what replaced each.
const GONE_COMMANDS: [(&str, &str); 2] = [
    ("compare", "write `flashcore evidence compare A B`"),
    ("leaderboard", "write `flashcore tune show`"),
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
    let words: Vec<String> = std::env::args().skip(1).collect();
    let of = |kind| match message.get(kind) {
        Some(ContextValue::String(word)) => Some(word.as_str()),
        _ => None,
    };
    let flag = of(ContextKind::InvalidArg).and_then(|flag| replaced(flag, &words).or_else(|| by_device(flag, &words)).or_else(|| quoted(flag)));
    let command = of(ContextKind::InvalidSubcommand);
    let command = command.and_then(|command| GONE_COMMANDS.iter().find(|(gone, _)| *gone == command));
    if let Some(help) = flag.or_else(|| command.map(|(_, now)| now.to_string())) {
        text.push_str(&format!("  {GOOD}help{GOOD:#}: {help}\n"));
    }
    text
}

/// Whether a command line is of one of these commands.
fn is_of(words: &[String], commands: &[&str]) -> bool {
    commands.iter().any(|command| words.iter().any(|word| word == command))
}

fn replaced(flag: &str, words: &[String]) -> Option<String> {
    let is_it = |(commands, gone, _): &&(&[&str], &str, &str)| {
        *gone == flag && (commands.is_empty() || is_of(words, commands))
    };
    GONE.iter().find(is_it).map(|(_, _, now)| now.to_string())
}

/// Words of a problem's text that are arguments of their own.
fn quoted(word: &str) -> Option<String> {
    problem_text::is_field(word).then(|| args::QUOTED.to_string())
}

/// How a card is named for the command of these words.
fn by_device(flag: &str, words: &[String]) -> Option<String> {
    let mut known = BY_DEVICE.iter().filter(|_| flag == "--profile");
    let (_, why, device) = known.find(|(commands, _, _)| is_of(words, commands))?;
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
