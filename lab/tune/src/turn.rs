//! Searches that share a device take turns on it: while one of them runs candidates there, no other does. Whatever runs
//! beside a kernel makes it slower, and what it is timed against may be spared that.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use flashcore_bench::DeviceIdentity;

use crate::interrupt::Interrupt;

/// How long a search that had its turn leaves others for theirs.
const YIELD: Duration = Duration::from_millis(5);

/// How often one who waits looks whether it is its turn: oftener than others are left theirs.
const LOOK_UP: Duration = Duration::from_millis(1);
/// How long a turn may be waited for without a word: longer than candidates take, unless they are very large.
const LATE: Duration = Duration::from_secs(20);

/// A device that other processes may search on, too.
///
/// ```
/// # use flashcore_bench::DeviceIdentity;
/// use flashcore_tune::{Interrupt, Turns};
/// # let folder = std::env::temp_dir().join(format!("flashcore-turns-doc-{}", std::process::id()));
/// let turns = Turns::on(&DeviceIdentity::cpu(), Some(&folder));
/// let turn = turns.wait(&Interrupt::default(), &mut || eprintln!("another search has it"));
/// assert!(turn.is_some()); // and until it is dropped nobody else has one
/// # drop(turn);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Turns(Option<PathBuf>);

/// A turn on a device, until it is dropped or its process ends.
#[derive(Debug)]
pub struct Turn(Option<File>);

impl Turns {
    /// On a device, with those who keep their locks in the same folder; with nobody where there is none.
    pub fn on(device: &DeviceIdentity, folder: Option<&Path>) -> Turns {
        Turns(folder.map(|folder| folder.join(format!("{}.turn", device.uuid))))
    }

    /// Waits for its turn; `None` if the search is interrupted first. Where that takes long, it is told so, once. A lock that
    /// cannot be had is no reason not to search.
    pub fn wait(&self, interrupt: &Interrupt, is_late: &mut dyn FnMut()) -> Option<Turn> {
        let open = |path: &PathBuf| {
            std::fs::create_dir_all(path.parent()?).ok()?;
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)
                .ok()
        };
        let Some(file) = self.0.as_ref().and_then(open) else {
            return Some(Turn(None));
        };
        let began = Instant::now();
        let mut is_told = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Some(Turn(Some(file))),
                Err(TryLockError::Error(_)) => return Some(Turn(None)),
                Err(TryLockError::WouldBlock) if interrupt.is_asked() => return None,
                Err(TryLockError::WouldBlock) => {}
            }
            if !is_told && began.elapsed() > LATE {
                is_late();
                is_told = true;
            }
            thread::sleep(LOOK_UP);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(file) = &self.0 {
            // Where it cannot be given back the end of the file does so.
            let _ = file.unlock();
            thread::sleep(YIELD);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn wait(turns: &Turns) -> Option<Turn> {
        turns.wait(&Interrupt::default(), &mut || {})
    }

    #[test]
    fn one_at_a_time_and_everybody_in_the_end() {
        let folder = std::env::temp_dir().join(format!("flashcore-turns-{}", std::process::id()));
        let device = DeviceIdentity::cpu();
        let on_it = Turns::on(&device, Some(&folder));
        let first = wait(&on_it);
        // Whoever is interrupted waits no longer.
        let interrupt = Interrupt::default();
        interrupt.ask();
        assert!(on_it.wait(&interrupt, &mut || {}).is_none());
        let (sender, turns) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _second = wait(&Turns::on(&device, Some(&folder)));
                sender.send("second").unwrap();
            });
            // On another device nobody waits.
            let other = DeviceIdentity {
                uuid: "another".to_string(),
                ..DeviceIdentity::cpu()
            };
            drop(wait(&Turns::on(&other, Some(&folder))));
            assert!(turns.recv_timeout(Duration::from_millis(50)).is_err());
            drop(first);
            assert_eq!(turns.recv().unwrap(), "second");
        });
        assert!(wait(&Turns::default()).is_some());
        // One that has its turn has it, whether it is interrupted or not.
        assert!(on_it.wait(&interrupt, &mut || {}).is_some());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
