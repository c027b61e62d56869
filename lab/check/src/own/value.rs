//! Values of a declaration's parameters, and what its code is written in.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A value of a parameter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a whole number from 0 to 4294967295 or a word")]
pub enum Value {
    /// A number.
    Number(u32),
    /// A word.
    Word(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Word(word) => word.fmt(f),
        }
    }
}

/// A value for each parameter.
pub type Chosen = BTreeMap<String, Value>;

/// What a kernel is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// CUDA C++.
    Cuda,
    /// PTX.
    Ptx,
    /// A function of Triton.
    Triton,
}

impl Language {
    /// All of them.
    pub const ALL: [Language; 3] = [Language::Cuda, Language::Ptx, Language::Triton];

    /// The extension of its files.
    pub const fn extension(self) -> &'static str {
        match self {
            Language::Cuda => "cu",
            Language::Ptx => "ptx",
            Language::Triton => "py",
        }
    }

    /// That of what a declaration names by a key.
    pub(super) fn of(key: &str, path: &Path) -> Language {
        match key {
            "ptx" => Language::Ptx,
            _ if path.extension().is_some_and(|extension| extension == "py") => Language::Triton,
            _ => Language::Cuda,
        }
    }
}
