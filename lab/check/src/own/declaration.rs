//! A declaration as it is written, and what can be wrong in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flashcore_problem::{DType, Problem};
use flashcore_ptx::PtxEntry;
use serde::{Deserialize, Serialize};

use super::value::{Chosen, Language, Value};
use super::{Expression, buffer, served};

/// A declaration as it is written. What it does not name, it does not serve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Declaration {
    /// Name in tables; by default that of the file.
    pub(super) name: Option<String>,
    /// The PTX file, or that of CUDA C++ or Triton (`.py`), relative to the declaration. `{NAME}` stands for a
    /// parameter's value.
    pub(super) ptx: Option<PathBuf>,
    pub(super) source: Option<PathBuf>,
    /// Options of the compiler, in the spelling of nvcc.
    #[serde(default)]
    pub(super) options: Vec<String>,
    /// Values of each parameter.
    #[serde(default)]
    pub(super) parameters: BTreeMap<String, Vec<Value>>,
    /// Conditions that values must fulfil together.
    #[serde(default)]
    pub(super) constraints: Vec<Expression>,
    /// How many times the default tolerance an error may be.
    pub(super) tolerance: Option<f64>,
    /// The kernel; by default the only one of the file.
    pub(super) entry: Option<String>,
    /// Element types that it serves.
    pub(super) dtype: Vec<String>,
    /// What each parameter gets, in order: a tensor, or an expression.
    pub(super) args: Vec<Expression>,
    /// Blocks along x, y, z.
    pub(super) grid: Vec<Expression>,
    /// Threads of a block along x, y, z; by default those that the PTX declares.
    pub(super) block: Option<Vec<Expression>>,
    /// Bytes of dynamic shared memory.
    pub(super) shared: Option<Expression>,
    /// Conditions that a problem must fulfil.
    #[serde(default)]
    pub(super) requires: Vec<Expression>,
}

impl Declaration {
    /// The key of what runs, and its path.
    pub(super) fn code(&self) -> Result<(&'static str, &Path), String> {
        match (&self.ptx, &self.source) {
            (Some(ptx), None) => Ok(("ptx", ptx)),
            (None, Some(source)) => Ok(("source", source)),
            _ => Err("it needs one of ptx = \"FILE.ptx\" and source = \"FILE.cu\" (or FILE.py)".to_string()),
        }
    }

    /// What its code is written in.
    pub(super) fn language(&self) -> Result<Language, String> {
        self.code().map(|(key, path)| Language::of(key, path))
    }

    /// The parameter of a name in expressions, and the word whose choice it is about: `LAYOUT.xor` is 1 where LAYOUT is
    /// xor.
    fn about<'n>(&self, name: &'n str) -> Option<(&'n str, Option<&'n str>)> {
        let (parameter, word) = name
            .split_once('.')
            .map_or((name, None), |(name, word)| (name, Some(word)));
        let is_there = |value: &Value| match (value, word) {
            (Value::Number(_), None) => true,
            (Value::Word(known), Some(word)) => known == word,
            _ => false,
        };
        self.parameters
            .get(parameter)?
            .iter()
            .any(is_there)
            .then_some((parameter, word))
    }

    pub(super) fn is_parameter(&self, name: &str) -> bool {
        self.about(name).is_some()
    }

    /// The value of a parameter's name in expressions.
    pub(super) fn parameter(&self, chosen: &Chosen, name: &str) -> Option<f64> {
        let (parameter, word) = self.about(name)?;
        Some(match chosen.get(parameter)? {
            Value::Number(number) => f64::from(*number),
            Value::Word(known) => f64::from(Some(known.as_str()) == word),
        })
    }

    /// The value of a name in expressions.
    pub(super) fn value(&self, chosen: &Chosen, problem: &Problem, name: &str) -> Option<f64> {
        self.parameter(chosen, name).or_else(|| served::value(problem, name))
    }

    /// What is wrong whatever the kernel is.
    pub(super) fn check(&self) -> Result<(), String> {
        for name in &self.dtype {
            if DType::from_name(name).is_none() {
                let known = DType::ALL.map(DType::name).join(", ");
                return Err(format!("no dtype is named `{name}`; allowed: {known}"));
            }
        }
        for (key, list) in [("grid", Some(&self.grid)), ("block", self.block.as_ref())] {
            if list.is_some_and(|list| !(1..=3).contains(&list.len())) {
                return Err(format!(
                    "{key} has no axis, or more than three; allowed: [x], [x, y], [x, y, z]"
                ));
            }
        }
        if !self.args.iter().any(|argument| argument.to_string() == "out") {
            return Err("no argument is `out`: a kernel must write the output".to_string());
        }
        if !self.names("head_dim") {
            let example = "requires = [\"head_dim == 64\"]";
            return Err(format!(
                "it does not say which head_dim it serves; write {example}, or pass head_dim"
            ));
        }
        Ok(())
    }

    /// What does not fit a kernel.
    pub(super) fn check_entry(&self, entry: &PtxEntry) -> Result<(), String> {
        let (given, needed) = (self.args.len(), entry.params.len());
        if given != needed {
            let params = entry
                .params
                .iter()
                .map(|param| format!("{} (.{})", param.name, param.ty));
            let params = params.collect::<Vec<_>>().join(", ");
            return Err(format!(
                "args lists {given}; `{}` has {needed} parameters: {params}",
                entry.name
            ));
        }
        for (number, (argument, param)) in (1..).zip(self.args.iter().zip(&entry.params)) {
            let known = ["u64", "s64", "b64", "u32", "s32", "b32", "f32"];
            let what = format!(
                "argument {number} (`{argument}` for {} of type .{})",
                param.name, param.ty
            );
            if !known.contains(&param.ty.as_str()) {
                return Err(format!("{what}: parameters may be of type {}", known.join(", ")));
            }
            if buffer(argument).is_some() && param.bytes != 8 {
                return Err(format!("{what}: a tensor needs a parameter of 64 bits"));
            }
        }
        Ok(())
    }

    /// All expressions but the names of tensors, and conditions on parameters.
    pub(super) fn expressions(&self) -> Vec<&Expression> {
        let block = self.block.iter().flatten();
        let args = self.args.iter().filter(|argument| buffer(argument).is_none());
        let all = args.chain(&self.grid).chain(block);
        all.chain(&self.shared).chain(&self.requires).collect()
    }

    /// Whether it names something of the problem.
    pub(super) fn names(&self, name: &str) -> bool {
        self.expressions()
            .iter()
            .any(|expression| expression.names().contains(&name))
            || self.args.iter().any(|argument| argument.to_string() == name)
    }
}
