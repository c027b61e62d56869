//! Whether only the user can have written a file, as ssh asks of `authorized_keys`: the file, the folder that it is in,
//! and those above, by owner, permissions and links.

use std::path::Path;

/// What a list that is not private says of itself: which check failed, and what mends it.
#[cfg(not(unix))]
pub(super) fn check(_: &Path) -> Result<(), String> {
    Ok(())
}

/// Checks a file, or where it would be. Its path is absolute.
///
/// # Errors
/// Which check failed, and the command that mends it.
#[cfg(unix)]
pub(super) fn check(file: &Path) -> Result<(), String> {
    check_as(file, rustix::process::geteuid().as_raw())
}

#[cfg(unix)]
fn check_as(file: &Path, user: u32) -> Result<(), String> {
    use std::os::unix::fs::MetadataExt;
    /// Permissions of the group and of others to write; of others alone; and that only owners may rename.
    const WRITE: u32 = 0o022;
    const OTHERS_WRITE: u32 = 0o002;
    const STICKY: u32 = 0o1000;

    let seen = |path: &Path| {
        path.symlink_metadata()
            .map_err(|error| format!("{}: {error}", path.display()))
    };
    let is_mine = |owner: u32| owner == user || owner == 0;
    let shown = |path: &Path| format!("'{}'", path.display());
    let path = shown(file);
    let wrong = match seen(file) {
        Ok(found) if found.is_symlink() => Some(format!(
            "it is a link, and whoever owns its target could change it; `rm {path}` removes the link"
        )),
        Ok(found) if !is_mine(found.uid()) => Some(format!(
            "it belongs to user {}, and you are user {user}; `rm -f {path}` removes it, `sudo chown {user} {path}` makes \
             it yours",
            found.uid()
        )),
        Ok(found) if found.mode() & WRITE != 0 => Some(format!(
            "other users can write it (its mode is {:o}); `rm {path}` removes it, `chmod go-w {path}` keeps what it lists",
            found.mode() & 0o7777
        )),
        _ => None,
    };
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    // As it is written, and where the links in that lead.
    let folder = file.parent().unwrap_or(Path::new("/"));
    let real = folder
        .canonicalize()
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    for ancestor in folder.ancestors().chain(real.ancestors()) {
        let (path, found) = (shown(ancestor), seen(ancestor)?);
        if !is_mine(found.uid()) {
            let (kind, owner) = (if found.is_symlink() { "link" } else { "folder" }, found.uid());
            let why = format!("the {kind} {path} on the way to it belongs to user {owner}, and you are user {user}");
            return Err(format!("{why}; `sudo chown -h {user} {path}` makes it yours"));
        }
        // Links have no permissions. Groups may write further up: the folder itself cannot be replaced by theirs,
        // which would have another owner.
        let forbidden = if ancestor == real { WRITE } else { OTHERS_WRITE };
        if !found.is_symlink() && found.mode() & forbidden != 0 && found.mode() & STICKY == 0 {
            let mode = found.mode() & 0o7777;
            let why = format!("other users can replace files in its folder {path} (the mode is {mode:o})");
            return Err(format!("{why}; `chmod go-w {path}` mends that"));
        }
    }
    Ok(())
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn each_check_names_itself_and_the_command_that_mends_it() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        let (folder, file) = (home.join("flashcore"), home.join("flashcore/trusted"));
        std::fs::create_dir(&folder).unwrap();
        let user = home.metadata().unwrap().uid();
        let mode = |path: &Path, mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        let check = || check_as(&file, user);
        let refused = |parts: [String; 2]| {
            let why = check().unwrap_err();
            assert!(parts.iter().all(|part| why.contains(part)), "{parts:?}: {why}");
        };
        let here = |path: &Path| format!("'{}'", path.display());
        mode(&folder, 0o755);
        // Where it would be.
        assert_eq!(check(), Ok(()));
        std::fs::write(&file, "").unwrap();
        for (bits, is_private) in [
            (0o600, true),
            (0o644, true),
            (0o664, false),
            (0o646, false),
            (0o666, false),
        ] {
            mode(&file, bits);
            if is_private {
                assert_eq!(check(), Ok(()), "{bits:o}")
            } else {
                refused([format!("its mode is {bits:o}"), format!("`chmod go-w {}`", here(&file))])
            }
        }
        mode(&file, 0o600);
        for (bits, is_private) in [
            (0o700, true),
            (0o1777, true),
            (0o1775, true),
            (0o775, false),
            (0o757, false),
        ] {
            mode(&folder, bits);
            if is_private {
                assert_eq!(check(), Ok(()), "{bits:o}")
            } else {
                refused([
                    format!("the mode is {bits:o}"),
                    format!("`chmod go-w {}`", here(&folder)),
                ])
            }
        }
        mode(&folder, 0o700);
        // Further up: others may not replace the folder.
        mode(&home, 0o770);
        assert_eq!(check(), Ok(()));
        mode(&home, 0o777);
        refused(["the mode is 777".to_string(), format!("`chmod go-w {}`", here(&home))]);
        mode(&home, 0o700);
        // A way that goes through a link ends at the same file.
        symlink(&folder, home.join("link")).unwrap();
        assert_eq!(check_as(&home.join("link/trusted"), user), Ok(()));
        // The file of somebody else, and everything of somebody else.
        if user != 0 {
            let why = check_as(&file, user + 1).unwrap_err();
            let owner = format!("it belongs to user {user}, and you are user {}", user + 1);
            assert!(
                why.contains(&owner) && why.contains(&format!("`rm -f {}`", here(&file))),
                "{why}"
            );
            let why = check_as(&home.join("flashcore/none"), user + 1).unwrap_err();
            assert!(why.contains("the folder") && why.contains("chown -h"), "{why}");
        }
        // The list is a link.
        std::fs::rename(&file, home.join("elsewhere")).unwrap();
        symlink(home.join("elsewhere"), &file).unwrap();
        refused(["it is a link".to_string(), format!("`rm {}`", here(&file))]);
    }

    /// Where tests run as root, which may give files away.
    #[test]
    fn what_belongs_to_another_user_is_not_private() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("trusted");
        std::fs::write(&file, "").unwrap();
        if std::os::unix::fs::chown(&file, Some(12345), None).is_err() {
            return println!("skipped: only root can give a file away");
        }
        let why = check(&file).unwrap_err();
        assert!(why.contains("it belongs to user 12345, and you are user 0"), "{why}");
        std::fs::remove_file(&file).unwrap();
        std::os::unix::fs::chown(home.path(), Some(12345), None).unwrap();
        let why = check(&file).unwrap_err();
        assert!(why.contains("on the way to it belongs to user 12345"), "{why}");
    }
}
