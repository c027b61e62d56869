//! A run's folder: the run's identity, and a line for each trial, written as soon as it is judged.
//! A run that was killed at any moment can be resumed from it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flashcore_bench::problems::stored_name;
use flashcore_bench::{DeviceIdentity, json_file};
use flashcore_check::own::sha256;
use flashcore_ir::files;
use flashcore_problem::Problem;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::board::Board;
use crate::default::DefaultKernel;
use crate::error::TuneError;
use crate::insight::Claims;
use crate::space::Space;
use crate::trial::Trial;

/// Version of the folder's files.
pub const SCHEMA: u32 = 3;

pub(crate) const RUN: &str = "run.json";
const TRIALS: &str = "trials.jsonl";
pub(crate) const SECONDS: &str = "seconds.json";
pub(crate) const BOARD: &str = "board.json";
pub(crate) const CLAIMS: &str = "claims.json";
/// Results of a run, which hold until a trial is added.
const RESULTS: [&str; 4] = [BOARD, CLAIMS, crate::peers::FILE, SECONDS];

const LOCK_PATIENCE: Duration = Duration::from_millis(300);
const LOCK_LOOK_UP: Duration = Duration::from_millis(10);

/// Identity of a run. A run is resumed only if all of it but the command and the time is equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Name of the problem.
    #[serde(deserialize_with = "stored_name")]
    pub case: String,
    /// The problem.
    pub problem: Problem,
    /// The devices, one for each worker.
    pub devices: Vec<DeviceIdentity>,
    /// Git revision of the build.
    pub revision: String,
    /// SHA-256 of the program. Builds by different compilers or options have equal revisions.
    #[serde(default)]
    pub executable: String,
    /// SHA-256 of the space: families, levers, values, and the times of a replay.
    pub space: String,
    /// The strategy.
    pub strategy: String,
    /// Its seed.
    pub seed: u64,
    /// Whether the devices compute. A replay does not; its times say nothing about this machine.
    pub computes: bool,
    /// How far its times may be off, if they are predicted.
    pub trust: Option<String>,
    /// Seed of the inputs, drawn for each run unless it was given; `None` if nothing is computed.
    pub inputs: Option<u64>,
    /// Whether planted candidates are among those tried.
    pub torture: bool,
    /// The first candidate.
    pub start: String,
    /// The kernel that the library ran for the problem when the run began; `None` for a replay.
    pub default: Option<DefaultKernel>,
    /// Source of the rates for predictions and claims: `profile`, or the SHA-256 of measured rates;
    /// `None` if nothing is predicted.
    pub rates: Option<String>,
    /// Candidates that are proposed before the first of them is judged.
    pub window: usize,
    /// The user's kernels among the candidates: labels, with the SHA-256 of their content.
    #[serde(default)]
    pub own: Vec<String>,
    /// The words after `tune` that began it, without those that say where it is kept and what is printed.
    #[serde(default)]
    pub command: Vec<String>,
    /// Seconds since 1970 (UTC) when it began.
    pub started_at: u64,
}

pub(crate) fn digest(space: &Space) -> String {
    let counted = serde_json::to_string(&space.count()).unwrap_or_default();
    sha256(counted + space.measured.as_deref().unwrap_or_default())
}

impl Header {
    /// The default, if the search begins at it.
    pub fn begins_at_default(&self) -> Option<&DefaultKernel> {
        self.default.as_ref().filter(|default| default.kernel == self.start)
    }

    /// What its times are, where nothing was measured on its devices: a `replay`, a `prediction`.
    pub fn untimed(&self) -> Option<&'static str> {
        match (self.computes, self.is_predicted()) {
            (true, _) => None,
            (false, true) => Some("prediction"),
            (false, false) => Some("replay"),
        }
    }

    /// Whether its times are the cost model's.
    pub fn is_predicted(&self) -> bool {
        self.devices.iter().any(|device| device.is_predicted())
    }

    /// Whether the run says something about its devices.
    pub fn is_real(&self) -> bool {
        self.computes && !self.torture
    }

    /// What must be equal for a run to be resumed, shortened for messages.
    fn identity(&self) -> [(&'static str, String); 14] {
        let join = |of: fn(&DeviceIdentity) -> String| self.devices.iter().map(of).collect::<Vec<_>>().join(", ");
        let short = |text: &str| text.chars().take(12).collect();
        let device = |it: &DeviceIdentity| {
            let units = format!("{} units, {} B of L2", it.units, it.l2_bytes);
            format!("{} {} ({}, {}, {units})", it.device, it.name, it.uuid, it.architecture)
        };
        [
            ("the schema of its folder", self.schema.to_string()),
            ("the device", join(device)),
            ("the driver", join(|it| it.driver.clone())),
            ("the source", self.revision.clone()),
            ("the program", short(&self.executable)),
            ("the space", short(&self.space)),
            ("the problem", self.problem.to_string()),
            ("the strategy", self.strategy.clone()),
            ("the seed", self.seed.to_string()),
            ("the seed of the inputs", format!("{:?}", self.inputs)),
            ("the first candidate", self.start.clone()),
            ("the source of rates", short(self.rates.as_deref().unwrap_or("nothing"))),
            ("the window", self.window.to_string()),
            ("the kernels of the user", self.own.join(", ")),
        ]
    }
}

/// A run's folder, open for more trials. It is locked against other processes.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(crate) folder: PathBuf,
    trials: File,
    may_have_results: bool,
}

impl Journal {
    pub(crate) fn begin(folder: &Path, header: &Header) -> Result<Journal, TuneError> {
        std::fs::create_dir_all(folder).map_err(|error| TuneError::file(folder, error))?;
        if folder.join(RUN).exists() {
            let allowed = "one without a run; this one has a run, which --resume continues";
            return Err(TuneError::bad("folder", folder.display(), allowed));
        }
        let journal = Journal::open(folder)?;
        // Written last: a run that is killed before has not begun.
        journal.keep(RUN, header)?;
        Ok(journal)
    }

    pub(crate) fn resume(folder: &Path, header: &Header) -> Result<(Journal, Vec<Trial>), TuneError> {
        let begun = read_header(folder)?;
        for ((what, then), (_, now)) in begun.identity().into_iter().zip(header.identity()) {
            if then != now {
                let remedy = format!(
                    "name its problem ({}) and give its flags, by the same program on the same device, or ",
                    begun.case
                );
                return Err(TuneError::resume(folder, what, [&then, &now], &remedy));
            }
        }
        let journal = Journal::open(folder)?;
        let (trials, whole) = parse_trials(folder)?;
        // Removes a line that was cut off.
        let cut = journal.trials.set_len(whole);
        cut.map_err(|error| TuneError::file(folder, error))?;
        Ok((journal, trials))
    }

    fn open(folder: &Path) -> Result<Journal, TuneError> {
        let path = folder.join(TRIALS);
        let file = files::open_to_write(&path, OpenOptions::new().create(true).append(true).read(true));
        let trials = file.map_err(|error| TuneError::file(&path, error))?;
        // A child process inherits this process's files until its `exec`, and with them the lock of
        // a run that ended meanwhile. That takes milliseconds.
        let mut patience = LOCK_PATIENCE;
        loop {
            match trials.try_lock() {
                Err(TryLockError::WouldBlock) if !patience.is_zero() => {
                    std::thread::sleep(LOCK_LOOK_UP);
                    patience = patience.saturating_sub(LOCK_LOOK_UP);
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(TuneError::file(&path, "another process has this run open"));
                }
                // On a file system without locks the user must see to it.
                Ok(()) | Err(TryLockError::Error(_)) => break,
            }
        }
        Ok(Journal {
            folder: folder.to_path_buf(),
            trials,
            may_have_results: true,
        })
    }

    /// Stores a trial; it is on disk when this returns. Results of the earlier trials are removed
    /// first, so that a run that is killed later has no leaderboard that ignores its last trials.
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
        let written = self.trials.write_all(line.as_bytes());
        let written = written.and_then(|()| self.trials.sync_data());
        written.map_err(|error| TuneError::file(&self.folder, error))
    }

    pub(crate) fn keep(&self, name: &str, value: &impl Serialize) -> Result<(), TuneError> {
        write_json(&self.folder.join(name), value)
    }
}

/// The leaderboard of the run in a folder; `None` while there is none, as in a run that was killed.
pub fn board_of(folder: &Path) -> Result<Option<Board>, TuneError> {
    let path = folder.join(BOARD);
    match read_json(&path) {
        Ok(board) => Ok(Some(board)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let remedy = "remove it and resume the run, which repeats its finals";
            Err(TuneError::file(
                &path,
                format!("it is no leaderboard: {error}; {remedy}"),
            ))
        }
    }
}

/// Seconds from the beginning of the run in a folder to the end of its finals, over all its parts;
/// of killed parts only the trials count. `None` while the run is not finished.
pub fn read_seconds(folder: &Path) -> Option<f64> {
    let seconds: f64 = read_json(&folder.join(SECONDS)).ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

/// The claims of the run in a folder; `None` if it made none, or they cannot be read.
pub fn read_claims(folder: &Path) -> Option<Claims> {
    read_json(&folder.join(CLAIMS)).ok()
}

pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> std::io::Result<T> {
    json_file::read(path, 16 * files::SMALL)
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), TuneError> {
    json_file::write(path, value).map_err(|error| TuneError::file(path, error))
}

/// The identity of the run in a folder.
pub fn read_header(folder: &Path) -> Result<Header, TuneError> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let path = folder.join(RUN);
    if !path.exists() {
        let folder = folder.display();
        return Err(TuneError::Usage(format!("{folder}: there is no run in it: no {RUN}")));
    }
    let version: Version = read_json(&path).map_err(|error| TuneError::file(&path, error))?;
    if version.schema != SCHEMA {
        let reason = format!("a run with schema {}; this program reads {SCHEMA}", version.schema);
        return Err(TuneError::file(&path, reason));
    }
    read_json(&path).map_err(|error| TuneError::file(&path, error))
}

/// The trials of the run in a folder, in order.
pub fn read_trials(folder: &Path) -> Result<Vec<Trial>, TuneError> {
    Ok(parse_trials(folder)?.0)
}

/// The trials, and the number of bytes in whole lines.
fn parse_trials(folder: &Path) -> Result<(Vec<Trial>, u64), TuneError> {
    let path = folder.join(TRIALS);
    let text = files::read_capped(&path, files::LARGE).map_err(|error| TuneError::file(&path, error))?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    let mut trials = Vec::new();
    for (number, line) in text[..whole].split(|&byte| byte == b'\n').enumerate() {
        if line.is_empty() {
            continue;
        }
        let bad = |why: String| TuneError::file(&path, format!("line {}{why}", number + 1));
        let trial: Trial = serde_json::from_slice(line).map_err(|error| bad(format!(": {error}")))?;
        if trial.number != trials.len() {
            return Err(bad(format!(" has trial {}, not {}", trial.number, trials.len())));
        }
        // No search writes this: the file was edited.
        if Duration::try_from_secs_f64(trial.seconds).is_err() || trial.verdict.is_timed() != trial.timed.is_some() {
            let timed = if trial.timed.is_some() { "timed" } else { "not timed" };
            let Trial { seconds, verdict, .. } = trial;
            return Err(bad(format!(
                ": a trial of {seconds} s that is {verdict} and was {timed}"
            )));
        }
        trials.push(trial);
    }
    Ok((trials, whole as u64))
}

#[cfg(test)]
mod tests;
