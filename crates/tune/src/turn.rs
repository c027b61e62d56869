//! Searches that share a device take turns on it: while one of them runs candidates there, no other does. Whatever runs
//! beside a kernel makes it slower, and what it is timed against may be spared that.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use flashcore_bench::DeviceIdentity;

/// How long a search that had its turn leaves others for theirs.
const YIELD: Duration = Duration::from_millis(5);

/// A device that other processes may search on, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns(Option<PathBuf>);

/// A turn on a device, until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Turn(Option<File>);

impl Turns {
    /// On a device, with those who keep their locks in the same folder; with nobody where there is none.
    pub(crate) fn on(device: &DeviceIdentity, folder: Option<&Path>) -> Turns {
        Turns(folder.map(|folder| folder.join(format!("{}.turn", device.uuid))))
    }

    /// Waits for its turn. A lock that cannot be had is no reason not to search.
    pub(crate) fn wait(&self) -> Turn {
        let lock = |path: &PathBuf| {
            std::fs::create_dir_all(path.parent()?).ok()?;
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
            let file = file.ok()?;
            file.lock().ok()?;
            Some(file)
        };
        Turn(self.0.as_ref().and_then(lock))
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

    #[test]
    fn one_at_a_time_and_everybody_in_the_end() {
        let folder = std::env::temp_dir().join(format!("flashcore-turns-{}", std::process::id()));
        let device = DeviceIdentity::cpu();
        let first = Turns::on(&device, Some(&folder)).wait();
        let (sender, turns) = channel();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _second = Turns::on(&device, Some(&folder)).wait();
                sender.send("second").unwrap();
            });
            // On another device nobody waits.
            let other = DeviceIdentity {
                uuid: "another".to_string(),
                ..DeviceIdentity::cpu()
            };
            drop(Turns::on(&other, Some(&folder)).wait());
            assert!(turns.recv_timeout(Duration::from_millis(50)).is_err());
            drop(first);
            assert_eq!(turns.recv().unwrap(), "second");
        });
        drop(Turns::default().wait());
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
