//! Remembering which modules the compiler warned about.
//!
//! Warnings are printed when a kernel is compiled, not when the driver finds it in its disk cache.
//! Without a memory of our own, a module refused in one process would be accepted by the next. Only
//! refusals are stored, so the folder is nearly always empty; a file can only make a module be
//! refused, so it needs no protection beyond the user's own folder.

use std::ffi::OsString;
use std::path::PathBuf;

use flashcore_ir::files;

use crate::identity::ModuleIdentity;

/// A folder with one file for each module that drew performance warnings.
#[derive(Debug, Clone)]
pub(crate) struct WarningMemory {
    folder: Option<PathBuf>,
}

impl WarningMemory {
    /// The user's: `$FLASHCORE_CACHE_DIR`, `$XDG_CACHE_HOME/flashcore` or `~/.cache/flashcore`. Relative folders are
    /// ignored.
    pub(crate) fn of_user() -> Self {
        Self::from_env(|name| std::env::var_os(name))
    }

    fn from_env(env: impl Fn(&str) -> Option<OsString>) -> Self {
        let of = |name: &str| env(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
        let base = of("FLASHCORE_CACHE_DIR")
            .or_else(|| of("XDG_CACHE_HOME").map(|folder| folder.join("flashcore")))
            .or_else(|| of("HOME").map(|folder| folder.join(".cache").join("flashcore")))
            .or_else(|| of("LOCALAPPDATA").map(|folder| folder.join("flashcore")));
        Self {
            folder: base.map(|base| base.join("warned-modules")),
        }
    }

    /// Warnings that a compilation of this module drew earlier.
    pub(crate) fn recall(&self, identity: &ModuleIdentity) -> Vec<String> {
        let path = self.folder.as_ref().map(|folder| folder.join(identity.hex()));
        let text = path
            .and_then(|path| files::read_text_capped(&path, files::SMALL).ok())
            .unwrap_or_default();
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.map(str::to_string).collect()
    }

    /// Stores warnings; returns a note if that is not possible.
    pub(crate) fn remember(&self, identity: &ModuleIdentity, warnings: &[String]) -> Option<String> {
        let reason = match &self.folder {
            None => "there is no home folder".to_string(),
            Some(folder) => {
                let written = std::fs::create_dir_all(folder)
                    .and_then(|()| std::fs::write(folder.join(identity.hex()), warnings.join("\n")));
                match written {
                    Ok(()) => return None,
                    Err(error) => format!("{}: {error}", folder.display()),
                }
            }
        };
        Some(format!(
            "the compiler's warnings cannot be remembered ({reason}): once the driver has this module in its cache, other \
             processes will not see them; set FLASHCORE_CACHE_DIR to a folder that can be written"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> ModuleIdentity {
        ModuleIdentity::new("ret;", "sm_90", "580")
    }

    #[test]
    fn warnings_survive_the_process() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let memory = || WarningMemory::from_env(|name| (name == "FLASHCORE_CACHE_DIR").then(|| path.into()));
        assert!(memory().recall(&identity()).is_empty());
        let warnings = vec!["(C7514) serialized".to_string(), "(C7504) ignored".to_string()];
        assert_eq!(memory().remember(&identity(), &warnings), None);
        assert_eq!(memory().recall(&identity()), warnings);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_note() {
        let memory = WarningMemory::from_env(|name| (name == "HOME").then(|| "/proc".into()));
        let note = memory.remember(&identity(), &["(C7514)".to_string()]).unwrap();
        assert!(note.contains("/proc/.cache/flashcore") && note.contains("FLASHCORE_CACHE_DIR"));
        assert!(memory.recall(&identity()).is_empty());
        let nowhere = WarningMemory::from_env(|_| None);
        assert!(nowhere.remember(&identity(), &[]).unwrap().contains("no home folder"));
    }
}
