//! A run's folder: what the run is, and a line for each trial, kept as it happens. A run that was cut off at any moment
//! can be taken up again from it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flashcore_bench::DeviceIdentity;
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::board::Board;
use crate::default::DefaultKernel;
use crate::error::TuneError;
use crate::space::Space;
use crate::trial::Trial;

/// Version of the folder's form.
pub const SCHEMA: u32 = 3;

/// File names in a run's folder.
pub(crate) const RUN: &str = "run.json";
const TRIALS: &str = "trials.jsonl";
const SECONDS: &str = "seconds.json";
/// The leaderboard.
pub(crate) const BOARD: &str = "board.json";
/// What was claimed about candidates, and what came of it.
pub(crate) const CLAIMS: &str = "claims.json";
/// What a run came to: so until a trial is added.
const RESULTS: [&str; 4] = [BOARD, CLAIMS, crate::beside::FILE, SECONDS];

/// How long a run's lock is waited for.
const LOCK_PATIENCE: Duration = Duration::from_millis(300);
/// How often it is tried meanwhile.
const LOCK_LOOK_UP: Duration = Duration::from_millis(10);

/// What a run is. Another run is resumed only where all of it is the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the problem.
    pub case: String,
    /// The problem.
    pub problem: Problem,
    /// The devices, one a worker.
    pub devices: Vec<DeviceIdentity>,
    /// Git revision of the build.
    pub revision: String,
    /// SHA-256 of the program: builds of a modified tree have one revision.
    #[serde(default)]
    pub executable: String,
    /// SHA-256 of what may be proposed: families, levers, values; of a replay of what was measured, too.
    pub space: String,
    /// The strategy.
    pub strategy: String,
    /// Its seed.
    pub seed: u64,
    /// Whether the devices compute. A replay does not: its times say nothing of any machine here.
    pub computes: bool,
    /// Seed of the inputs, drawn anew for each run unless one was named; `None` where nothing is computed.
    pub inputs: Option<u64>,
    /// Whether candidates that are known to be bad are among those tried.
    pub torture: bool,
    /// The first candidate.
    pub start: String,
    /// What the library ran for the problem when the run began; `None` of a replay.
    #[serde(default)]
    pub default: Option<DefaultKernel>,
    /// What predictions and claims rest on: `profile`, or the SHA-256 of rates measured on the device; `None` where nothing
    /// is predicted.
    #[serde(default)]
    pub rates: Option<String>,
    /// Candidates that are proposed before the results of the first of them are looked at.
    pub window: usize,
    /// Seconds since 1970 (UTC) when it began.
    pub started_at: u64,
}

/// Identity of a space.
pub(crate) fn digest(space: &Space) -> String {
    let counted = serde_json::to_string(&space.count()).unwrap_or_default();
    sha256(&(counted + space.measured().unwrap_or_default()))
}

/// SHA-256 of a text, as hexadecimal digits.
pub(crate) fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Header {
    /// The default, if the search begins at it.
    pub fn begins_at_default(&self) -> Option<&DefaultKernel> {
        self.default.as_ref().filter(|default| default.kernel == self.start)
    }

    /// Whether the run says something of the devices that it names.
    pub fn is_real(&self) -> bool {
        self.computes && !self.torture
    }

    /// The first thing in which another run differs, and how.
    fn differs(&self, other: &Header) -> Option<(&'static str, String, String)> {
        let devices = |header: &Header| {
            let one = |device: &DeviceIdentity| {
                let DeviceIdentity {
                    device,
                    name,
                    uuid,
                    // It is compared by itself.
                    driver: _,
                    architecture,
                    units,
                    l2_bytes,
                } = device;
                format!("{device} {name} ({uuid}, {architecture}, {units} units, {l2_bytes} B of L2)")
            };
            header.devices.iter().map(one).collect::<Vec<_>>().join(", ")
        };
        let drivers = |header: &Header| {
            let drivers = header.devices.iter().map(|device| device.driver.clone());
            drivers.collect::<Vec<_>>().join(", ")
        };
        let what = |what, of: &dyn Fn(&Header) -> String| {
            let (then, now) = (of(self), of(other));
            (then != now).then_some((what, then, now))
        };
        what("the form of its folder", &|h| h.schema.to_string())
            .or_else(|| what("the device", &devices))
            .or_else(|| what("the driver", &drivers))
            .or_else(|| what("the source", &|h| h.revision.clone()))
            .or_else(|| what("the program", &|h| h.executable.chars().take(12).collect()))
            .or_else(|| what("the space", &|h| h.space.chars().take(12).collect()))
            .or_else(|| what("the problem", &|h| h.problem.to_string()))
            .or_else(|| what("the strategy", &|h| h.strategy.clone()))
            .or_else(|| what("the seed", &|h| h.seed.to_string()))
            .or_else(|| what("the seed of the inputs", &|h| format!("{:?}", h.inputs)))
            .or_else(|| what("the first candidate", &|h| h.start.clone()))
            .or_else(|| {
                what("what predictions rest on", &|h| {
                    h.rates.as_deref().unwrap_or("nothing").chars().take(12).collect()
                })
            })
            .or_else(|| what("the window", &|h| h.window.to_string()))
    }
}

/// A run's folder, open for more trials. Only one process at a time has it.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    trials: File,
    /// Whether the folder may have what the trials so far came to.
    may_have_results: bool,
}

impl Journal {
    /// Begins a run in a folder, which must have none yet.
    pub(crate) fn begin(folder: &Path, header: &Header) -> Result<Journal, TuneError> {
        std::fs::create_dir_all(folder).map_err(|error| TuneError::file(folder, error))?;
        let path = folder.join(RUN);
        if path.exists() {
            return Err(TuneError::BadOption {
                option: "folder",
                given: folder.display().to_string(),
                allowed: "one without a run; there is a run here already, which --resume takes up".to_string(),
            });
        }
        let journal = Journal::open(folder)?;
        // Whole or not at all: a run that was cut off here has not begun.
        write_whole(&path, &to_json(header)?)?;
        Ok(journal)
    }

    /// Takes a run up again: its trials so far.
    pub(crate) fn resume(folder: &Path, header: &Header) -> Result<(Journal, Vec<Trial>), TuneError> {
        let then = read_header(folder)?;
        if let Some((what, then, now)) = then.differs(header) {
            return Err(TuneError::Resume {
                path: folder.display().to_string(),
                what,
                then,
                now,
            });
        }
        let journal = Journal::open(folder)?;
        let (trials, whole) = parse_trials(folder)?;
        // A line that was cut off is not there.
        journal
            .trials
            .set_len(whole)
            .map_err(|error| TuneError::file(folder, error))?;
        Ok((journal, trials))
    }

    fn open(folder: &Path) -> Result<Journal, TuneError> {
        let path = folder.join(TRIALS);
        let file = OpenOptions::new().create(true).append(true).read(true).open(&path);
        let trials = file.map_err(|error| TuneError::file(&path, error))?;
        // A process that this one starts has all its files until it becomes another program, and so the lock of a run that
        // ended in between: that is over in milliseconds.
        let mut patience = LOCK_PATIENCE;
        loop {
            match trials.try_lock() {
                Err(TryLockError::WouldBlock) if !patience.is_zero() => {
                    std::thread::sleep(LOCK_LOOK_UP);
                    patience = patience.saturating_sub(LOCK_LOOK_UP);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(TuneError::file(&path, "another process is at this run"));
                }
                // A file system without locks: then it is the user's to see that only one is.
                Ok(()) | Err(TryLockError::Error(_)) => break,
            }
        }
        Ok(Journal {
            folder: folder.to_path_buf(),
            trials,
            may_have_results: true,
        })
    }

    /// Where it is.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Keeps a trial. It is on the disk when this returns. What the trials before it came to is gone first: a run that is cut
    /// off from here on has no leaderboard, rather than one that does not know its last trials.
    pub(crate) fn add(&mut self, trial: &Trial) -> Result<(), TuneError> {
        if self.may_have_results {
            for name in RESULTS {
                let path = self.folder.join(name);
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(TuneError::file(&path, error)),
                    _ => {}
                }
            }
            self.may_have_results = false;
        }
        let mut line = serde_json::to_string(trial).map_err(|error| TuneError::file(&self.folder, error))?;
        line.push('\n');
        let written = self
            .trials
            .write_all(line.as_bytes())
            .and_then(|()| self.trials.sync_data());
        written.map_err(|error| TuneError::file(&self.folder, error))
    }

    /// Keeps how long the run took so far, for [`read_seconds`].
    pub(crate) fn keep_seconds(&self, seconds: f64) -> Result<(), TuneError> {
        self.keep(SECONDS, &seconds)
    }

    /// Keeps a file beside the trials.
    pub(crate) fn keep(&self, name: &str, value: &impl Serialize) -> Result<(), TuneError> {
        write_json(&self.folder.join(name), value)
    }
}

/// The leaderboard of the run in a folder: that of all its trials. `None` while there is none, as of a run that was cut off;
/// and where it cannot be read, for then a run that is taken up again makes it anew.
pub fn read_board(folder: &Path) -> Option<Board> {
    board_of(folder).ok().flatten()
}

/// The same for those who are to be told of a file that cannot be read.
///
/// # Errors
/// [`TuneError::File`].
pub fn board_of(folder: &Path) -> Result<Option<Board>, TuneError> {
    let path = folder.join(BOARD);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(TuneError::file(&path, error)),
    };
    let board = serde_json::from_str(&text).map_err(|error| {
        let reason =
            format!("it is no leaderboard: {error}; take it away, and the run, taken up again, holds its finals anew");
        TuneError::file(&path, reason)
    })?;
    Ok(Some(board))
}

/// Seconds that the run in a folder has taken, from its beginning to the end of its finals, over all the times that it was
/// taken up. Of a part that was killed only what its trials took is in it; `None` while the run goes on, and where it was killed.
pub fn read_seconds(folder: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(folder.join(SECONDS)).ok()?;
    let seconds: f64 = serde_json::from_str(&text).ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

/// Writes a value as a file that is there whole or not at all.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), TuneError> {
    write_whole(path, &to_json(value)?)
}

fn to_json(value: &impl Serialize) -> Result<String, TuneError> {
    serde_json::to_string_pretty(value).map_err(|error| TuneError::File {
        path: RUN.to_string(),
        reason: error.to_string(),
    })
}

/// Writes a file so that it is there whole or not at all.
pub(crate) fn write_whole(path: &Path, text: &str) -> Result<(), TuneError> {
    let beside = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|error| TuneError::file(path, error))
}

/// What the run in a folder is.
///
/// # Errors
/// [`TuneError::File`] where there is none that can be read.
pub fn read_header(folder: &Path) -> Result<Header, TuneError> {
    let path = folder.join(RUN);
    let text = std::fs::read_to_string(&path).map_err(|error| TuneError::file(&path, error))?;
    let form: Form = serde_json::from_str(&text).map_err(|error| TuneError::file(&path, error))?;
    if form.schema != SCHEMA {
        let reason = format!("a run in form {}, and this program knows form {SCHEMA}", form.schema);
        return Err(TuneError::file(&path, reason));
    }
    serde_json::from_str(&text).map_err(|error| TuneError::file(&path, error))
}

/// What every version of a header has.
#[derive(Deserialize)]
struct Form {
    schema: u32,
}

/// The trials of the run in a folder, in order.
///
/// # Errors
/// As [`read_header`].
pub fn read_trials(folder: &Path) -> Result<Vec<Trial>, TuneError> {
    Ok(parse_trials(folder)?.0)
}

/// The trials, and how many bytes of the file are whole lines.
fn parse_trials(folder: &Path) -> Result<(Vec<Trial>, u64), TuneError> {
    let path = folder.join(TRIALS);
    let text = std::fs::read(&path).map_err(|error| TuneError::file(&path, error))?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let mut trials = Vec::new();
    for (number, line) in text[..whole].split(|&byte| byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let trial: Trial = serde_json::from_slice(line)
            .map_err(|error| TuneError::file(&path, format!("line {}: {error}", number + 1)))?;
        if trial.number != trials.len() {
            let reason = format!("line {} has trial {}, not {}", number + 1, trial.number, trials.len());
            return Err(TuneError::file(&path, reason));
        }
        // What no search writes: somebody changed the file.
        if Duration::try_from_secs_f64(trial.seconds).is_err() || trial.verdict.is_timed() != trial.timed.is_some() {
            let reason = format!(
                "line {}: a trial of {} s that is {} and was {}timed",
                number + 1,
                trial.seconds,
                trial.verdict,
                if trial.timed.is_some() { "" } else { "not " },
            );
            return Err(TuneError::file(&path, reason));
        }
        trials.push(trial);
    }
    Ok((trials, whole as u64))
}

#[cfg(test)]
pub(crate) mod tests;
