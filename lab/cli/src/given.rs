//! Which flags were given: a subcommand that takes a problem or a file has flags that are for one of them alone.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

use crate::failure::Failure;

/// The flags that stand on the command line, by their field's name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given(Vec<String>);

impl Args for Given {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        let is_given = |id: &&clap::Id| matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        // The positional name, the flag of all subcommands, and groups, which are named as types are.
        let is_flag = |id: &&clap::Id| {
            !matches!(id.as_str(), "name" | "color") && !id.as_str().starts_with(|c: char| c.is_ascii_uppercase())
        };
        let given = matches.ids().filter(is_given).filter(is_flag);
        Ok(Given(given.map(ToString::to_string).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Given {
    /// Refuses every flag but these.
    pub(crate) fn allow(&self, allowed: &[&str], subject: &str) -> Result<(), Failure> {
        match self.0.iter().find(|given| !allowed.contains(&given.as_str())) {
            None => Ok(()),
            Some(given) => {
                let allowed: Vec<String> = allowed.iter().map(|id| flag(id)).collect();
                let message = format!("{} is not for {subject}; it takes {}", flag(given), allowed.join(", "));
                Err(Failure::usage(message))
            }
        }
    }

    /// Refuses these flags without another one, which they are about.
    pub(crate) fn require(&self, other: &str, flags: &[&str]) -> Result<(), Failure> {
        match self.0.iter().find(|given| flags.contains(&given.as_str())) {
            Some(given) if !self.0.iter().any(|given| given == other) => {
                Err(Failure::usage(format!("{} needs {}", flag(given), flag(other))))
            }
            _ => Ok(()),
        }
    }

    /// Refuses these flags where a problem is named: they are about such a file.
    pub(crate) fn refuse(&self, refused: &[&str], file: &str) -> Result<(), Failure> {
        match self.0.iter().find(|given| refused.contains(&given.as_str())) {
            None => Ok(()),
            Some(given) => Err(Failure::usage(format!(
                "{} is not for a problem: it is about {file} in place of a problem",
                flag(given)
            ))),
        }
    }
}

/// A flag as it is written.
fn flag(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}
