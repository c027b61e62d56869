//! Which files of users may run: a list of SHA-256 sums in the user's private cache folder. It is believed only where
//! [no other user](private) can have written it.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use flashcore_ir::files;

use super::private;
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
    /// There is no such folder, or the first is relative: the current folder has no say in this.
    pub fn of_user() -> Result<Trust> {
        Trust::from_env(|name| std::env::var_os(name))
    }

    fn from_env(env: impl Fn(&str) -> Option<OsString>) -> Result<Trust> {
        let of = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let given = of("FLASHCORE_CACHE_DIR");
        if let Some(given) = given.as_ref().filter(|folder| folder.is_relative()) {
            let why = "a relative path, which would depend on the current folder; give an absolute one";
            return Err(BenchError::Given(format!(
                "FLASHCORE_CACHE_DIR is `{}`, {why}",
                given.display()
            )));
        }
        // The XDG Base Directory Specification has relative paths ignored.
        let base = |name: &str| of(name).filter(|folder| folder.is_absolute());
        let folder = given
            .or_else(|| base("XDG_CACHE_HOME").map(|folder| folder.join("flashcore")))
            .or_else(|| base("HOME").map(|folder| folder.join(".cache").join("flashcore")))
            .or_else(|| base("LOCALAPPDATA").map(|folder| folder.join("flashcore")));
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
    /// A list that cannot be read, or that others than the user can write or replace.
    pub fn knows(&self, sha256: &str) -> Result<bool> {
        if self
            .file
            .symlink_metadata()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound)
        {
            return Ok(false);
        }
        self.check_private()?;
        let text = files::read_text_capped(&self.file, files::SMALL).map_err(|error| self.wrong(error))?;
        let mut sums = text.lines().filter_map(|line| line.split_whitespace().next());
        Ok(sums.any(|sum| sum == sha256))
    }

    /// Adds the content of a file to the list. Only the user can read and write it.
    ///
    /// # Errors
    /// A list that cannot be written, or that others can write or replace.
    pub fn add(&self, sha256: &str, file: &Path) -> Result<()> {
        if self.knows(sha256)? {
            return Ok(());
        }
        let mut folders = std::fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut folders, 0o700);
        let folder = self.file.parent().unwrap_or(Path::new("."));
        folders
            .recursive(true)
            .create(folder)
            .map_err(|error| self.wrong(error))?;
        // Before anything is written: in a private folder nothing changes meanwhile.
        self.check_private()?;
        let write = || {
            let mut options = std::fs::OpenOptions::new();
            options.create(true).append(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            let path = file.display().to_string().replace('\n', " ");
            files::open_to_write(&self.file, &mut options)?.write_all(format!("{sha256} {path}\n").as_bytes())
        };
        write().map_err(|error| self.wrong(error))
    }

    fn check_private(&self) -> Result<()> {
        private::check(&self.file).map_err(|why| self.wrong(format!("{why}. Until then it is not believed")))
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
        let why = trust.knows("aa").unwrap_err().to_string();
        assert!(
            why.contains("other users can write it") && why.contains("not believed"),
            "{why}"
        );
        assert!(add(&trust, "ab").is_err());
        mode(0o644);
        assert!(trust.knows("aa").unwrap());
    }
    #[test]
    fn the_current_folder_has_no_list() {
        let of = |name: &'static str, value: &'static str| {
            Trust::from_env(move |asked| match asked {
                "HOME" => Some("/home/me".into()),
                _ => (asked == name).then(|| value.into()),
            })
        };
        assert!(
            of("FLASHCORE_CACHE_DIR", "cache")
                .unwrap_err()
                .to_string()
                .contains("a relative path")
        );
        for name in ["XDG_CACHE_HOME", "none"] {
            let trust = of(name, "cache").unwrap();
            assert_eq!(trust.file(), Path::new("/home/me/.cache/flashcore/trusted"));
        }
    }
}
