//! Finds programs without ever looking in the current folder, which may be a stranger's: entries of `PATH` that are
//! empty or relative are passed over.

use std::ffi::{OsStr, OsString};
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Where a system without `PATH` looks.
const USUAL: &str = "/usr/local/bin:/usr/bin:/bin";

/// The absolute path of a program: of a name, in the folders of `PATH`; an absolute path is taken as it is.
///
/// # Errors
/// [`ErrorKind::NotFound`]: no such program in any absolute folder of `PATH`. [`ErrorKind::InvalidInput`]: a relative
/// path, whose meaning would depend on the current folder.
pub fn find(name: &OsStr) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| USUAL.into());
    find_in(name, &path)
}

/// The same for a program that the user names now, such as in a flag: a relative path is one from the current folder.
///
/// # Errors
/// As [`find`], without the second.
pub fn find_named(name: &OsStr) -> Result<PathBuf, Error> {
    match is_name(name) {
        true => find(name),
        false => std::path::absolute(name),
    }
}

fn is_name(name: &OsStr) -> bool {
    Path::new(name).file_name() == Some(name)
}

fn find_in(name: &OsStr, path: &OsStr) -> Result<PathBuf, Error> {
    let given = Path::new(name);
    if given.is_absolute() {
        return Ok(given.to_path_buf());
    }
    if !is_name(name) {
        let why = "is a relative path, which would depend on the current folder; give an absolute one";
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    let mut with_suffix = OsString::from(name);
    with_suffix.push(std::env::consts::EXE_SUFFIX);
    let folders = std::env::split_paths(path).filter(|folder| folder.is_absolute());
    let mut candidates = folders.map(|folder| folder.join(&with_suffix));
    candidates.find(|file| is_program(file)).ok_or_else(|| {
        let why = "not found in any folder of PATH (its relative and empty entries are not looked in)";
        Error::new(ErrorKind::NotFound, why)
    })
}

fn is_program(file: &Path) -> bool {
    let Ok(found) = std::fs::metadata(file) else {
        return false;
    };
    #[cfg(unix)]
    let may_run = std::os::unix::fs::PermissionsExt::mode(&found.permissions()) & 0o111 != 0;
    #[cfg(not(unix))]
    let may_run = true;
    found.is_file() && may_run
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_absolute_folders_of_path_are_looked_in() {
        let folder = tempfile::tempdir().unwrap();
        let [here, there] = ["here", "there"].map(|name| folder.path().join(name));
        for place in [&here, &there] {
            std::fs::create_dir(place).unwrap();
            std::fs::write(place.join("tool"), "").unwrap();
        }
        let find = |path: &str| find_in("tool".as_ref(), path.as_ref()).map_err(|error| error.kind());
        let both = format!("{}:{}", here.display(), there.display());
        // A file that may not be run is none.
        assert_eq!(find(&both), Err(ErrorKind::NotFound));
        std::fs::set_permissions(there.join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(&both), Ok(there.join("tool")));
        // A relative way to a folder that has the program, whatever the current folder is.
        let up = "../".repeat(std::env::current_dir().unwrap().components().count());
        let relative = format!("{up}{}", there.strip_prefix("/").unwrap().display());
        assert!(Path::new(&relative).join("tool").is_file());
        for path in [relative.clone(), String::new(), format!("{relative}::.")] {
            assert_eq!(find(&path), Err(ErrorKind::NotFound), "{path}");
            assert_eq!(find(&format!("{path}:{both}")), Ok(there.join("tool")), "{path}");
        }
        let find = |name: &str| find_in(name.as_ref(), both.as_ref()).map_err(|error| error.kind());
        for name in ["./tool", "there/tool", ".", "..", ""] {
            assert_eq!(find(name), Err(ErrorKind::InvalidInput), "{name}");
        }
        assert_eq!(find("/some/tool"), Ok("/some/tool".into()));
    }
}
