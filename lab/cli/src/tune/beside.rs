//! Two searches on one device at once: they take turns there, candidate by candidate. Whoever comes second is told.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use flashcore_tune::runs;

use crate::machine;
use crate::style;

/// Marks devices as taken by a search until it is dropped.
pub(crate) struct Hold(#[expect(dead_code, reason = "held, not read")] Vec<File>);

/// Where locks of devices are, of all searches of a user.
pub(crate) fn folder() -> Option<PathBuf> {
    runs::folder().map(|runs| runs.with_file_name("tune-devices"))
}

/// Marks these devices, and says which of them another search of the user's is on. That is no reason not to begin: they
/// take turns, and the other one may be about to end. Replays time nothing.
pub(crate) fn hold(devices: &[String]) -> Hold {
    let Some(folder) = folder() else {
        return Hold(Vec::new());
    };
    let mut files = Vec::new();
    for device in devices.iter().filter(|device| !device.starts_with("replay:")) {
        let Some(name) = name(device) else { continue };
        // A lock that cannot be had is no reason not to search.
        let Ok((file, is_alone)) = mark(&folder, &name) else {
            continue;
        };
        files.push(file);
        if !is_alone {
            let note = format!(
                "note: another `flashcore tune` is searching on {device}: the two take turns there, candidate by candidate, \
                 so that each tries fewer in its time"
            );
            style::eprint(&style::wrap(&note, 2));
        }
    }
    Hold(files)
}

/// Says that a turn has been waited for long.
pub(crate) fn say_late(device: &str) {
    let note = format!(
        "note: {device} has been waited for for a while: another `flashcore tune` has its turn there; if that one is stopped or \
         hangs, end it"
    );
    style::eprint(&style::wrap(&note, 2));
}

/// What a device is called by every process: a GPU may have another number in each.
fn name(device: &str) -> Option<String> {
    let Some(ordinal) = device.strip_prefix("cuda:") else {
        return Some(device.to_string());
    };
    let gpus = machine::gpus().ok()?;
    let info = gpus.iter().find(|info| info.ordinal.to_string() == ordinal)?;
    Some(info.uuid.to_string())
}

/// Locks a device's file together with all who are on it; whether there is nobody else. A lock of a process that died is
/// gone.
fn mark(folder: &Path, name: &str) -> std::io::Result<(File, bool)> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(format!("{name}.lock"));
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    let is_alone = match file.try_lock() {
        Ok(()) => {
            file.unlock()?;
            true
        }
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(error)) => return Err(error),
    };
    // Nobody has it alone for longer than a moment.
    file.lock_shared()?;
    Ok((file, is_alone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_is_told_so_and_nobody_else() {
        let folder = std::env::temp_dir().join(format!("flashcore-tune-devices-{}", std::process::id()));
        let (first, alone) = mark(&folder, "cpu").unwrap();
        assert!(alone);
        let (second, alone) = mark(&folder, "cpu").unwrap();
        assert!(!alone);
        assert!(mark(&folder, "GPU-1").unwrap().1);
        // The second is still there when the first is gone.
        drop(first);
        assert!(!mark(&folder, "cpu").unwrap().1);
        drop(second);
        assert!(mark(&folder, "cpu").unwrap().1);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
