//! The lock of a device. A user's searches on one device alternate, candidate by candidate, because
//! a kernel that runs at the same time would disturb the times.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use flashcore_bench::DeviceIdentity;
use flashcore_ir::files;

use crate::interrupt::Interrupt;
use crate::runs;

/// How long a search leaves the device to others after a candidate.
const YIELD: Duration = Duration::from_millis(5);
/// Interval at which a waiting search tries the lock; shorter than [`YIELD`].
const LOOK_UP: Duration = Duration::from_millis(1);
/// Wait after which [`Waits::Long`] is reported: longer than most candidates take.
const LATE: Duration = Duration::from_secs(20);

/// The lock of a device that other processes may search on.
#[derive(Clone, Debug, Default)]
pub struct DeviceLock(Option<PathBuf>);

/// A held device, released when it is dropped or the process ends.
#[derive(Debug)]
pub struct Held(Option<File>);

/// A wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// Another search has it.
    Begun,
    /// Another search has had it for 20 s.
    Long,
}

/// The folder of a user's device locks; `None` if there is no data folder.
pub fn folder() -> Option<PathBuf> {
    runs::folder().map(|runs| runs.with_file_name("tune-devices"))
}

impl DeviceLock {
    /// For a device, shared with searches that use the same folder; not shared without a folder.
    pub fn on(device: &DeviceIdentity, folder: Option<&Path>) -> DeviceLock {
        DeviceLock(folder.map(|folder| folder.join(format!("{}.lock", device.uuid))))
    }

    /// Waits for the device; `None` if the search is interrupted first. Reports when it begins to
    /// wait, and when that takes long. If the lock file cannot be opened, the search continues
    /// without it.
    pub fn wait(&self, interrupt: &Interrupt, told: &mut dyn FnMut(Waits)) -> Option<Held> {
        let open = |path: &PathBuf| {
            std::fs::create_dir_all(path.parent()?).ok()?;
            let mut options = OpenOptions::new();
            files::open_to_write(path, options.create(true).truncate(false).write(true)).ok()
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
            let now = if began.elapsed() > LATE {
                Waits::Long
            } else {
                Waits::Begun
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
            // If this fails, closing the file unlocks it.
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
    fn one_search_at_a_time_has_a_device() {
        let folder = std::env::temp_dir().join(format!("flashcore-device-lock-{}", std::process::id()));
        let lock = DeviceLock::on(&DeviceIdentity::cpu(), Some(&folder));
        let first = wait(&lock);
        // An interrupted search stops waiting.
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
            // On another device there is no wait.
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
        // A free device is taken even after an interrupt.
        assert!(lock.wait(&interrupt, &mut |_| {}).is_some());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
