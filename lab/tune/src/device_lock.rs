//! One search runs candidates on a device at a time. Searches of a user that share a device take it in turns, candidate by
//! candidate: what runs at the same time as a kernel makes it slower, and may spare what it is timed against.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use flashcore_bench::DeviceIdentity;

use crate::interrupt::Interrupt;
use crate::runs;

/// How long a search that had the device leaves it to others.
const YIELD: Duration = Duration::from_millis(5);
/// How often a search that waits tries the lock: more often than others yield.
const LOOK_UP: Duration = Duration::from_millis(1);
/// How long the lock may be waited for without a word: longer than candidates take, unless they are very large.
const LATE: Duration = Duration::from_secs(20);

/// The lock of a device that other processes may search on, too.
///
/// ```
/// # use flashcore_bench::DeviceIdentity;
/// use flashcore_tune::{DeviceLock, Interrupt};
/// # let folder = std::env::temp_dir().join(format!("flashcore-lock-doc-{}", std::process::id()));
/// let lock = DeviceLock::on(&DeviceIdentity::cpu(), Some(&folder));
/// let held = lock.wait(&Interrupt::default(), &mut |waits| eprintln!("{waits:?}"));
/// assert!(held.is_some()); // and until it is dropped no other process has it
/// # drop(held);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeviceLock(Option<PathBuf>);

/// A device, until it is dropped or its process ends.
#[derive(Debug)]
pub struct Held(Option<File>);

/// How long a search waits for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Another search has it at this moment.
    Begun,
    /// Another search has had it for long.
    Long,
}

/// The folder of the locks of a user's devices; `None` where there is no place for runs either.
pub fn folder() -> Option<PathBuf> {
    runs::folder().map(|runs| runs.with_file_name("tune-devices"))
}

impl DeviceLock {
    /// On a device, shared with those who keep their locks in the same folder; with none where there is no folder.
    pub fn on(device: &DeviceIdentity, folder: Option<&Path>) -> DeviceLock {
        DeviceLock(folder.map(|folder| folder.join(format!("{}.lock", device.uuid))))
    }

    /// Waits for the device; `None` if the search is interrupted first. Says when it begins to wait, and once more when
    /// that takes long. A lock file that cannot be opened is no reason not to search.
    pub fn wait(&self, interrupt: &Interrupt, told: &mut dyn FnMut(Waits)) -> Option<Held> {
        let open = |path: &PathBuf| {
            std::fs::create_dir_all(path.parent()?).ok()?;
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true).open(path).ok()
        };
        let Some(file) = self.0.as_ref().and_then(open) else {
            return Some(Held(None));
        };
        let began = Instant::now();
        let mut said = None;
        loop {
            match file.try_lock() {
                Ok(()) => return Some(Held(Some(file))),
                Err(TryLockError::Error(_)) => return Some(Held(None)),
                Err(TryLockError::WouldBlock) if interrupt.is_asked() => return None,
                Err(TryLockError::WouldBlock) => {}
            }
            let now = match began.elapsed() > LATE {
                true => Waits::Long,
                false => Waits::Begun,
            };
            if said != Some(now) {
                told(now);
                said = Some(now);
            }
            thread::sleep(LOOK_UP);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Where it cannot be unlocked, closing it does so.
            let _ = file.unlock();
            thread::sleep(YIELD);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn wait(lock: &DeviceLock) -> Option<Held> {
        lock.wait(&Interrupt::default(), &mut |_| {})
    }

    #[test]
    fn one_at_a_time_and_everybody_in_the_end() {
        let folder = std::env::temp_dir().join(format!("flashcore-device-lock-{}", std::process::id()));
        let lock = DeviceLock::on(&DeviceIdentity::cpu(), Some(&folder));
        let first = wait(&lock);
        // Whoever is interrupted waits no longer.
        let interrupt = Interrupt::default();
        interrupt.ask();
        assert!(lock.wait(&interrupt, &mut |_| {}).is_none());
        let (sender, news) = channel();
        thread::scope(|scope| {
            let (folder, lock) = (&folder, &lock);
            scope.spawn(move || {
                let told = &mut |waits| sender.send(format!("{waits:?}")).unwrap();
                let _second = lock.wait(&Interrupt::default(), told);
                sender.send("has it".to_string()).unwrap();
            });
            // On another device nobody waits.
            let other = DeviceIdentity {
                uuid: "another".to_string(),
                ..DeviceIdentity::cpu()
            };
            drop(wait(&DeviceLock::on(&other, Some(folder))));
            assert_eq!(news.recv().unwrap(), "Begun");
            drop(first);
            assert_eq!(news.recv().unwrap(), "has it");
        });
        assert!(wait(&DeviceLock::default()).is_some());
        // One that can have it has it, whether it is interrupted or not.
        assert!(lock.wait(&interrupt, &mut |_| {}).is_some());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
