//! Functions of Triton: the Python package compiles them to PTX, and says what it was asked to write of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::CompileError;
use super::compile::{packages_of, python, ran};
use crate::programs;
use crate::sandbox::{Confinement, Policy};

/// The module that compiles: `bindings/python/python/flashcore_attn/_triton.py`.
pub const MODULE: &str = "flashcore_attn._triton";

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer<T> {
    Error(String),
    #[serde(untagged)]
    Is(T),
}

/// A compiled function.
#[derive(Clone, Debug, Deserialize)]
pub struct Made {
    /// Its PTX.
    pub ptx: String,
    /// The kernel's name there.
    pub entry: String,
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// Names of the kernel's parameters.
    pub names: Vec<String>,
    /// Of each argument: whether it is a parameter. None and 1 are constants.
    pub kept: Vec<bool>,
    /// Bytes of the buffers that Triton adds, as the last parameters.
    pub scratch: Vec<u64>,
}

/// Reads the line with which [`MODULE`] answers.
///
/// # Errors
/// What is wrong with the function, or that the line is unclear.
pub fn answered<T: DeserializeOwned>(line: &str) -> Result<T, String> {
    match serde_json::from_str(line) {
        Ok(Answer::Is(made)) => Ok(made),
        Ok(Answer::Error(why)) => Err(why),
        Err(error) => Err(format!("{MODULE} gave an unclear answer: {error}")),
    }
}

/// Asks [`MODULE`] in the user's Python, which is confined to a folder and what else it may read.
///
/// # Errors
/// There is no Python with the packages, or no sandbox; the function is refused; it does not end in time.
pub(crate) fn ask<T: DeserializeOwned>(
    question: &Value,
    folder: &Path,
    reads: &[PathBuf],
    limit: Duration,
) -> Result<T, CompileError> {
    let lacks = |why: String| {
        let needs =
            "Triton and flashcore_attn are needed in the Python that FLASHCORE_PYTHON names, VIRTUAL_ENV or PATH";
        CompileError::Broken("Python".to_string(), format!("{why}; {needs}"))
    };
    let named = python()?.ok_or_else(|| lacks("there is none".to_string()))?;
    // The name may be that of a script, and packages may lie elsewhere.
    let (site, program) = packages_of(&named).unwrap_or_else(|| (named.clone(), named));
    let compiler = program.display().to_string();
    let asked = folder.join("question.json");
    std::fs::write(&asked, question.to_string())
        .map_err(|error| CompileError::Broken(compiler.clone(), error.to_string()))?;
    let mut command = Command::new(&program);
    // Modules are looked for in this folder first, which has none.
    command.args(["-m", MODULE]).arg(&asked).current_dir(folder);
    let policy = modules(&program, folder)
        .into_iter()
        .chain(reads.iter().cloned())
        .chain([site])
        .fold(Policy::compiler(folder, limit).run(&program), Policy::read);
    let said = ran(&mut command, &compiler, &policy, Confinement::Sandboxed).map_err(|error| match error {
        CompileError::Refused { messages, .. } if messages.contains("No module named") => lacks(last_line(&messages)),
        error => error,
    })?;
    // What ran is a copy of the file in a folder that is removed: messages name the file alone.
    let said = said.replace(&format!("{}/", source_in(folder).display()), "");
    let line = said.lines().find(|line| line.starts_with('{')).unwrap_or(&said);
    answered(line).map_err(|messages| {
        if messages.contains("No module named 'triton'") {
            return lacks(messages);
        }
        CompileError::Refused { compiler, messages }
    })
}

/// Where an interpreter looks for modules: an environment may take those of another.
fn modules(program: &Path, folder: &Path) -> Vec<PathBuf> {
    let mut asked = Command::new(program);
    asked
        .args(["-c", "import sys; print('\\n'.join(sys.path))"])
        .current_dir(folder);
    let said = programs::run(&mut asked, programs::TO_ANSWER).map(|ran| ran.stdout);
    let said = said.unwrap_or_default();
    said.lines()
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .collect()
}

/// The folder of the file's copy.
pub(crate) fn source_in(folder: &Path) -> PathBuf {
    folder.join("source")
}

fn last_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().to_string()
}
