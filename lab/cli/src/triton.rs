//! `flashcore check FILE.py:FUNCTION`: the Python package compiles a function of Triton to PTX. The file runs there as
//! a program of the user's, so it must be trusted.

use std::path::Path;

use flashcore_bench::Own;
use flashcore_bench::python::Python;
use flashcore_check::foreign::triton::{MODULE, Made, answered};
use flashcore_check::foreign::{Fill, Given, LaunchFile};
use flashcore_check::own::is_declaration;
use flashcore_check::registers::Assembler;
use serde_json::{Map, Value, json};

use crate::kernel_file::KernelFile;
use crate::{Card, Failure, own, style};

/// A file's path if it is the word `FILE.py:FUNCTION`.
pub(crate) fn named(file: &Path) -> Option<&str> {
    let word = file.to_str()?;
    (Own::is_named(word) && !is_declaration(word)).then_some(word)
}

/// Compiles a function for the arguments of a launch, which become those of the PTX. Returns it and its kernel's name.
pub(crate) fn compile(
    word: &str,
    is_trusted: bool,
    constants: Map<String, Value>,
    given: &mut LaunchFile,
    card: Card,
) -> Result<(KernelFile, String), Failure> {
    let own = Own::read(word, card.chip.target)?;
    own::may_run(is_trusted, (&own.label, &own.sha256), &own.file, &own.does())?;
    let launch = &mut given.launch;
    let types = given.types.iter().map(Option::as_deref).chain(std::iter::repeat(None));
    let args = launch.args.iter().zip(types).map(|(arg, ty)| match arg {
        // Launch files have its bits, and Triton's numbers are of 32 and 64.
        Given::Integer(_) if matches!(ty, Some("f16" | "bf16")) => Err(Failure::usage(format!(
            "{word}: a number has the type {}; Triton takes numbers as f32: write its `value` alone",
            ty.unwrap_or_default()
        ))),
        Given::Integer(x) => Ok(json!({ "value": x })),
        Given::Float(x) => Ok(json!({ "value": x })),
        Given::Buffer { fill: Fill::F16, .. } => Ok(json!({ "type": "f16" })),
        Given::Buffer { .. } | Given::Contents { .. } | Given::Into { .. } => {
            Ok(json!({ "type": ty.unwrap_or("f32") }))
        }
        _ => Err(Failure::usage(format!(
            "{word}: arguments of Triton are buffers and numbers"
        ))),
    });
    let question = json!({
        "own": own,
        "args": args.collect::<Result<Vec<_>, _>>()?,
        "constants": constants,
        "target": given.arch.as_deref().unwrap_or(card.chip.target.name()),
        "programs": launch.grid.iter().fold(1, |all: u64, &n| all.saturating_mul(n.into())),
    });
    let python = Python::find_for_own().map_err(Failure::environment)?;
    style::note(format_args!("{word} runs in {}", python.executable().display()));
    let answer = python.ask(MODULE, question.to_string()).map_err(Failure::failed)?;
    let made: Made = answered(&answer).map_err(|why| Failure::usage(format!("{word}: {why}")))?;
    launch.args = keep(std::mem::take(&mut launch.args), &made.kept).map_err(|(number, of)| {
        Failure::usage(format!(
            "{word}: argument {number} points into argument {of}, no buffer"
        ))
    })?;
    launch.args.extend(made.scratch.iter().map(|&bytes| match bytes {
        0 => Given::Integer(0),
        _ => Given::Buffer {
            bytes,
            fill: Fill::Unwritten,
        },
    }));
    for (arg, called) in launch.args.iter_mut().zip(made.names) {
        if let Given::Contents { name, .. } = arg {
            *name = called;
        }
    }
    launch.dynamic_shared = made.shared;
    // Its launcher allows what the card has.
    given.opted_in = true;
    let read = KernelFile {
        bytes: made.ptx.into_bytes(),
        made_by: Some("Triton".to_string()),
        assembler: Assembler::default(),
    };
    Ok((read, made.entry))
}

/// The arguments that Triton keeps. Those that point into the buffer of another have its new place. Fails with the
/// numbers (from 1) of one that points into what is not kept, and of that.
fn keep(args: Vec<Given>, kept: &[bool]) -> Result<Vec<Given>, (usize, usize)> {
    let is_kept = |place: &usize| kept.get(*place).copied().unwrap_or(true);
    let all = args.len();
    let mut left = Vec::new();
    for (place, mut arg) in args.into_iter().enumerate().filter(|(place, _)| is_kept(place)) {
        if let Given::Into { argument, .. } = &mut arg {
            if *argument >= all || !is_kept(argument) {
                return Err((place + 1, argument.saturating_add(1)));
            }
            *argument = (0..*argument).filter(is_kept).count();
        }
        left.push(arg);
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_into_buffers_follow_what_constants_leave() {
        let into = |argument| Given::Into { argument, offset: 4 };
        let buffer = || Given::Buffer {
            bytes: 64,
            fill: Fill::Zero,
        };
        let args = |argument| vec![Given::Integer(1), buffer(), into(argument)];
        let kept = [false, true, true];
        assert_eq!(keep(args(1), &kept), Ok(vec![buffer(), into(0)]));
        assert_eq!(keep(args(0), &kept), Err((3, 1)));
        assert_eq!(keep(args(3), &kept), Err((3, 4)));
    }
}
