//! `flashcore check FILE.py:FUNCTION`: the Python package compiles a function of Triton to PTX. The file runs there as
//! a program of the user's, so it must be trusted.

use std::path::Path;

use flashcore_bench::Own;
use flashcore_bench::python::Python;
use flashcore_check::foreign::{Fill, Given, LaunchFile};
use flashcore_check::own::is_declaration;
use flashcore_check::registers::Assembler;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::kernel_file::KernelFile;
use crate::{Card, Failure, own, style};

/// The module that compiles: `bindings/python/python/flashcore_attn/_triton.py`.
const MODULE: &str = "flashcore_attn._triton";

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Error(String),
    #[serde(untagged)]
    Compiled(Compiled),
}

#[derive(Deserialize)]
struct Compiled {
    ptx: String,
    entry: String,
    shared: u32,
    /// Names of the kernel's parameters.
    names: Vec<String>,
    /// Of each argument: whether it is one. None and 1 are constants.
    kept: Vec<bool>,
    /// Bytes of the buffers that Triton adds.
    scratch: Vec<u64>,
}

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
    let own = Own::read(word)?;
    own::may_run(is_trusted, (&own.label, &own.sha256), &own.file, &own.does())?;
    let launch = &mut given.launch;
    let types = given.types.iter().map(Option::as_deref).chain(std::iter::repeat(None));
    let args = launch.args.iter().zip(types).map(|(arg, ty)| match arg {
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
        "programs": launch.grid.iter().map(|&n| u64::from(n)).product::<u64>(),
    });
    let python = Python::find_for_own().map_err(Failure::environment)?;
    style::note(format_args!("{word} runs in {}", python.executable().display()));
    let answer = python.ask(MODULE, question.to_string()).map_err(Failure::failed)?;
    let unclear = |error| Failure::failed(format!("{MODULE} gave an unclear answer: {error}"));
    let made = match serde_json::from_str(&answer).map_err(unclear)? {
        Answer::Error(why) => return Err(Failure::usage(format!("{word}: {why}"))),
        Answer::Compiled(made) => made,
    };
    let mut kept = made.kept.iter();
    launch.args.retain(|_| kept.next().copied().unwrap_or(true));
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
