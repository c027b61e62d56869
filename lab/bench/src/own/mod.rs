//! Kernels of users: PTX with a declaration of its arguments, and Python functions. They are timed by the same
//! protocol, in a [child process](crate::child) with a deadline, after the user has said that they [may run](Trust).

mod private;
mod trust;

use std::path::{Path, PathBuf};

use flashcore::Device;
pub use flashcore_check::own::sha256;
use flashcore_check::own::{Declared, PREFIX, function, is_declaration};
use flashcore_ir::{Target, files};
use serde::{Deserialize, Serialize};

pub use trust::Trust;

use crate::{BenchError, Result};

/// A user's kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// Its name in tables: `own/attention`, `own/mine:attention`.
    pub label: String,
    /// The declaration, or the Python file: an absolute path.
    pub file: PathBuf,
    /// SHA-256 of what runs: of the declaration and its PTX, or of the Python file. 64 hexadecimal digits.
    pub sha256: String,
    /// What runs.
    pub code: Code,
}

/// What runs of a user's kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A kernel of a PTX file.
    Ptx(Box<Declared>),
    /// The function of this name in the Python file.
    Python(String),
}

/// Whether a label is that of a user's kernel.
pub fn is_own(label: &str) -> bool {
    label.starts_with(PREFIX)
}

/// What sources are compiled for that are to run on a device. On the host they do not: it is what every card serves.
pub fn target_of(device: &Device) -> Target {
    device
        .context()
        .map_or(Target::Sm80, |context| context.info().chip().target)
}

impl Own {
    /// Whether a word of a command line is a user's kernel: `FILE.toml`, `FILE.toml:VALUES`, `FILE.py:FUNCTION`.
    pub fn is_named(word: &str) -> bool {
        is_declaration(word) || function(word).is_some()
    }

    /// Reads the kernel that a word names. A source is compiled for the target, in the sandbox; nothing else of it
    /// runs.
    ///
    /// # Errors
    /// [`BenchError::Given`]: a file that cannot be read, or a mistake in it.
    pub fn read(word: &str, target: Target) -> Result<Own> {
        let given = |reason: String| BenchError::Given(reason);
        let absolute = |file: &str| std::path::absolute(file).map_err(|error| given(format!("{file}: {error}")));
        let Some((file, name)) = function(word) else {
            let declared = Declared::read(word, target).map_err(|error| given(error.to_string()));
            let (declared, bytes) = declared?;
            return Ok(Own {
                label: declared.label.clone(),
                file: absolute(&declared.file)?,
                sha256: sha256(&bytes),
                code: Code::Ptx(Box::new(declared)),
            });
        };
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        if name.is_empty() || !name.chars().all(is_part) || name.starts_with(|c: char| c.is_numeric()) {
            return Err(given(format!("`{word}` names no function; write {file}:FUNCTION")));
        }
        let bytes =
            files::read_capped(Path::new(file), files::SMALL).map_err(|error| given(format!("{file}: {error}")))?;
        let stem = Path::new(file)
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        Ok(Own {
            label: format!("{PREFIX}{stem}:{name}"),
            file: absolute(file)?,
            sha256: sha256(&bytes),
            code: Code::Python(name.to_string()),
        })
    }

    /// The word that [`Own::read`] takes: the file, and after a colon the function or the values of its parameters.
    pub fn word(&self) -> String {
        let file = self.file.display();
        let known = match &self.code {
            Code::Python(name) => name.clone(),
            Code::Ptx(declared) => declared.values(),
        };
        format!("{file}:{known}").trim_end_matches(':').to_string()
    }

    /// Whether it runs in Python.
    pub fn is_python(&self) -> bool {
        matches!(self.code, Code::Python(_))
    }

    /// What running it means, in a clause.
    pub fn does(&self) -> String {
        let file = self.file.display();
        match &self.code {
            Code::Ptx(declared) => format!("launches the kernel `{}` of {file} on the GPU", declared.entry),
            Code::Python(_) => format!("runs {file}, and what that imports, as a Python program with your rights"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_declarations_and_functions() {
        for (word, is_own) in [
            ("mine.toml", true),
            ("a/mine.py:attention", true),
            ("mine.py", true),
            ("scalar/naive-t128-v16", false),
            ("ids.txt", false),
        ] {
            assert_eq!(Own::is_named(word), is_own, "{word}");
        }
        for (word, said) in [
            ("mine.py", "`mine.py` names no function; write mine.py:FUNCTION"),
            ("mine.py:a b", "names no function"),
            ("mine.py:1st", "names no function"),
            ("none.py:attention", "none.py: No such file"),
            ("none.toml", "none.toml: No such file"),
        ] {
            let error = Own::read(word, Target::Sm80).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn what_runs_is_known_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.py");
        std::fs::write(&file, "def attention(q, k, v): return q\n").unwrap();
        let word = format!("{}:attention", file.display());
        let read = || Own::read(&word, Target::Sm80).unwrap();
        let own = read();
        assert_eq!((own.label.as_str(), own.sha256.len()), ("own/mine:attention", 64));
        assert_eq!(own.word(), word);
        assert!(own.is_python() && own.does().contains("with your rights"));
        std::fs::write(&file, "def attention(q, k, v): return v\n").unwrap();
        assert_ne!(read().sha256, own.sha256);
        let docs = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/own-kernel"));
        let declaration = std::fs::read_to_string(docs.join("attention.toml")).unwrap();
        std::fs::copy(docs.join("attention.ptx"), folder.path().join("attention.ptx")).unwrap();
        for (parameters, word) in [
            ("name = \"one-x\"\n", "one.toml"),
            ("[parameters]\nM = [4]\nN = [1, 2]\n", "two.toml:M4-N2"),
        ] {
            let file = folder.path().join(&word[..8]);
            std::fs::write(file, format!("{declaration}{parameters}")).unwrap();
            let word = folder.path().join(word).display().to_string();
            let own = Own::read(&word, Target::Sm80).unwrap();
            assert_eq!((own.word(), own.is_python()), (word, false));
        }
        let text = serde_json::to_string(&own).unwrap();
        assert_eq!(serde_json::from_str::<Own>(&text).unwrap(), own);
    }
}
