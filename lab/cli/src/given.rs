//! The flags on the command line. A subcommand that takes a problem or a file has flags for only one
//! of them.

use clap::parser::ValueSource;
use clap::{ArgGroup, ArgMatches, Command, Id};

use crate::{Failure, style};

/// The flags of a subcommand on the command line, by the names of their fields. Those of a group are named by its type,
/// such as `CompileArgs`.
#[derive(Default)]
pub(crate) struct Given {
    /// Whether a problem, or what stands in its place, was named.
    pub(crate) names_problem: bool,
    flags: Vec<String>,
    groups: Vec<ArgGroup>,
}

impl Given {
    pub(crate) fn of(command: &Command, matches: &ArgMatches) -> Given {
        let Some((name, matches)) = matches.subcommand() else {
            return Given::default();
        };
        let is_given = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        // Not the positional name, the global flag, and groups, which have the names of types.
        let is_flag = |id: &&str| !["name", "color"].contains(id) && !id.starts_with(|c: char| c.is_ascii_uppercase());
        let given = matches.ids().map(Id::as_str).filter(is_flag).filter(is_given);
        let groups = command.find_subcommand(name).into_iter().flat_map(Command::get_groups);
        let has_name = matches.ids().any(|id| id == "name");
        Given {
            names_problem: has_name && is_given(&"name"),
            flags: given.map(str::to_string).collect(),
            groups: groups.cloned().collect(),
        }
    }

    /// Whether one of these was typed.
    pub(crate) fn has(&self, names: &[&str]) -> bool {
        self.find(names).is_some()
    }

    /// Flags, with those of a group in its place.
    fn members<'a>(&'a self, names: &[&'a str]) -> Vec<&'a str> {
        let of = |name: &&'a str| match self.groups.iter().find(|group| group.get_id() == name) {
            Some(group) => group.get_args().map(Id::as_str).collect(),
            None => vec![*name],
        };
        names.iter().flat_map(of).collect()
    }

    pub(crate) fn allow(&self, allowed: &[&str], subject: &str) -> Result<(), Failure> {
        let allowed = self.members(allowed);
        let Some(given) = self.flags.iter().find(|given| !allowed.contains(&given.as_str())) else {
            return Ok(());
        };
        let (given, allowed) = (flag(given), style::list(allowed.iter().map(|id| flag(id))));
        let why = format!("{given} is not for {subject}; allowed: {allowed}");
        Err(Failure::usage(why))
    }

    /// Refuses these flags for a subject that they are not about.
    pub(crate) fn forbid(&self, forbidden: &[&str], subject: &str) -> Result<(), Failure> {
        match self.find(forbidden) {
            Some(given) => Err(Failure::usage(format!("{} is not for {subject}", flag(given)))),
            None => Ok(()),
        }
    }

    /// Refuses these flags for a problem: they are about such a file.
    pub(crate) fn refuse(&self, refused: &[&str], file: &str) -> Result<(), Failure> {
        self.forbid(refused, &format!("a problem; it needs {file} in place of a problem"))
    }

    fn find(&self, flags: &[&str]) -> Option<&String> {
        let flags = self.members(flags);
        self.flags.iter().find(|given| flags.contains(&given.as_str()))
    }
}

fn flag(id: &str) -> String {
    match id {
        "include" => "-I".to_string(),
        "define" => "-D".to_string(),
        "options" => "what stands after `--`".to_string(),
        _ => format!("--{}", id.replace('_', "-")),
    }
}
