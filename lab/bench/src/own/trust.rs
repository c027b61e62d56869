//! Which files of users may run: a list of SHA-256 sums in the user's private cache folder.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::{BenchError, Result};

/// The list of what a user has allowed to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    file: PathBuf,
}

impl Trust {
    /// The user's: `trusted` in `$FLASHCORE_CACHE_DIR`, `$XDG_CACHE_HOME/flashcore` or `~/.cache/flashcore`.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn of_user() -> Result<Trust> {
        Trust::from_env(|name| std::env::var_os(name))
    }

    fn from_env(env: impl Fn(&str) -> Option<OsString>) -> Result<Trust> {
        let of = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // A relative folder of the system would be one of whoever wrote the current folder.
        let of_system = |name: &str| of(name).filter(|folder| folder.is_absolute());
        let folder = of("FLASHCORE_CACHE_DIR")
            .or_else(|| of_system("XDG_CACHE_HOME").map(|folder| folder.join("flashcore")))
            .or_else(|| of_system("HOME").map(|folder| folder.join(".cache").join("flashcore")))
            .or_else(|| of_system("LOCALAPPDATA").map(|folder| folder.join("flashcore")));
        let nowhere = "there is no cache folder to remember trusted files in; set FLASHCORE_CACHE_DIR";
        let folder = folder.ok_or_else(|| BenchError::Given(nowhere.to_string()))?;
        Ok(Trust {
            file: folder.join("trusted"),
        })
    }

    /// The file of the list.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Whether a file of this content may run.
    ///
    /// # Errors
    /// A list that cannot be read, or that others than the user can write.
    pub fn knows(&self, sha256: &str) -> Result<bool> {
        let text = match std::fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(self.wrong(error)),
        };
        self.check_private()?;
        let mut sums = text.lines().filter_map(|line| line.split_whitespace().next());
        Ok(sums.any(|sum| sum == sha256))
    }

    /// Adds the content of a file to the list. Only the user can read and write it.
    ///
    /// # Errors
    /// A list that cannot be written, or that others can write.
    pub fn add(&self, sha256: &str, file: &Path) -> Result<()> {
        if self.knows(sha256)? {
            return Ok(());
        }
        let write = || {
            std::fs::create_dir_all(self.file.parent().unwrap_or(Path::new(".")))?;
            let mut options = std::fs::OpenOptions::new();
            options.create(true).append(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let path = file.display().to_string().replace('\n', " ");
            options
                .open(&self.file)?
                .write_all(format!("{sha256} {path}\n").as_bytes())
        };
        write().map_err(|error| self.wrong(error))?;
        self.check_private()
    }

    #[cfg(unix)]
    fn check_private(&self) -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        /// Permissions of a group and of others to write.
        const WRITE: u32 = 0o022;
        let mode = std::fs::metadata(&self.file)
            .map_err(|error| self.wrong(error))?
            .permissions()
            .mode();
        match mode & WRITE {
            0 => Ok(()),
            _ => Err(self.wrong("other users can write it, so it is not believed; delete it, or chmod 600 it")),
        }
    }

    #[cfg(not(unix))]
    fn check_private(&self) -> Result<()> {
        Ok(())
    }

    fn wrong(&self, reason: impl std::fmt::Display) -> BenchError {
        BenchError::Given(format!("the list of trusted files {}: {reason}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(trust: &Trust, sha256: &str) -> Result<()> {
        trust.add(sha256, Path::new("/home/me/mine.py"))
    }

    #[test]
    fn content_is_trusted_once_and_a_change_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let trust = Trust::from_env(|name| (name == "XDG_CACHE_HOME").then(|| folder.path().into())).unwrap();
        assert_eq!(trust.file(), folder.path().join("flashcore/trusted"));
        assert!(!trust.knows("aa").unwrap());
        add(&trust, "aa").unwrap();
        add(&trust, "aa").unwrap();
        assert!(trust.knows("aa").unwrap() && !trust.knows("ab").unwrap());
        let text = std::fs::read_to_string(trust.file()).unwrap();
        assert_eq!(text, "aa /home/me/mine.py\n");
        assert!(Trust::from_env(|_| None).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_list_that_others_can_write_is_not_believed() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let trust = Trust::from_env(|name| (name == "FLASHCORE_CACHE_DIR").then(|| folder.path().into())).unwrap();
        add(&trust, "aa").unwrap();
        let mode = |mode| std::fs::set_permissions(trust.file(), std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            std::fs::metadata(trust.file()).unwrap().permissions().mode() & 0o777,
            0o600
        );
        mode(0o666);
        assert!(
            trust
                .knows("aa")
                .unwrap_err()
                .to_string()
                .contains("other users can write it")
        );
        assert!(add(&trust, "ab").is_err());
        mode(0o644);
        assert!(trust.knows("aa").unwrap());
    }
}
