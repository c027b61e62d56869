//! Where this user's files lie, and how a file is written whole or not at all.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

fn set(name: &str) -> Option<PathBuf> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value.map(PathBuf::from)
}

/// A folder that a variable names. A relative one is ignored, as the XDG Base Directory Specification asks for: what
/// lies there would depend on the current folder, and so on whoever wrote it.
fn folder_of(name: &str) -> Option<PathBuf> {
    set(name).filter(|folder| folder.is_absolute())
}

/// Where this user's data of FlashCore lie: `flashcore` in `$XDG_DATA_HOME`, or in
/// `~/.local/share`. `None` where neither `XDG_DATA_HOME` nor `HOME` is set to an absolute path.
pub fn data_folder() -> Option<PathBuf> {
    let data = folder_of("XDG_DATA_HOME").or_else(|| Some(folder_of("HOME")?.join(".local/share")))?;
    Some(data.join("flashcore"))
}

/// Writes a file so that a reader finds the old one, the new one, and nothing in between; creates
/// its folder. The bytes are on disk before the name is. A link stays, and leads to the new file.
/// What is no file, such as a pipe or a path below `/dev`, is written to. The file keeps its mode.
/// Its folder must be writable.
///
/// # Errors
/// What the file system says. The unfinished file is removed, and the old one stays.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // Of a link that leads nowhere yet, the link itself.
    let there = std::fs::metadata(path).or_else(|_| std::fs::symlink_metadata(path));
    // `/dev/stdout` may lead to a file that is open elsewhere.
    let is_device = path.starts_with("/dev") || path.starts_with("/proc");
    if is_device || there.is_ok_and(|there| !there.is_file()) {
        return std::fs::write(path, bytes);
    }
    let path = &path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.part", std::process::id()));
    let unfinished = path.with_file_name(name);
    let write = || {
        // What lies there was left by a process of this number, or is a link of others.
        let _ = std::fs::remove_file(&unfinished);
        let mut file = std::fs::File::create_new(&unfinished)?;
        if let Ok(old) = std::fs::metadata(path) {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    };
    write().inspect_err(|_| {
        let _ = std::fs::remove_file(&unfinished);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = std::env::temp_dir().join(format!("flashcore-files-{}", std::process::id()));
        let path = folder.join("deep/a.json");
        write_whole(&path, b"one").unwrap();
        write_whole(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        #[cfg(unix)]
        {
            let link = folder.join("deep/link.json");
            std::os::unix::fs::symlink("a.json", &link).unwrap();
            write_whole(&link, b"three").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"three");
            std::fs::remove_file(&path).unwrap();
            write_whole(&link, b"two").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"two");
            std::fs::remove_file(&link).unwrap();
            write_whole(Path::new("/dev/null"), b"x").unwrap();
            assert!(!std::fs::metadata("/dev/null").unwrap().is_file());
        }
        // A folder in its place cannot be replaced by a file.
        assert!(write_whole(&folder.join("deep"), b"x").is_err());
        let names = |folder: &Path| {
            let entries = std::fs::read_dir(folder).unwrap();
            entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
        };
        assert_eq!(
            (names(&folder), names(&folder.join("deep"))),
            (vec!["deep".into()], vec!["a.json".into()])
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
