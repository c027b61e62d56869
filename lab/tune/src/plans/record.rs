//! [`Record`]: a run's folder says that its leaderboard was settled in the plan tables, so that a run that is taken up again
//! with nothing left to do leaves them alone, whatever became of the row since.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::date;
use crate::error::TuneError;
use crate::journal::{BOARD, PLAN, sha256, write_json};

/// What the leaderboard of a run made of the user's tables, once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// SHA-256 of the leaderboard's file: of another one nothing is said.
    board: String,
    /// When, in seconds since 1970.
    settled_at: u64,
    /// What became of the winner, as it was said then.
    pub plan: Value,
}

impl Record {
    /// Keeps in a run's folder what its leaderboard made of the tables.
    ///
    /// # Errors
    /// [`TuneError::File`].
    pub fn keep(folder: &Path, plan: Value) -> Result<(), TuneError> {
        let board = folder.join(BOARD);
        let text = std::fs::read_to_string(&board).map_err(|error| TuneError::file(&board, error))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let record = Record {
            board: sha256(&text),
            settled_at: now.map_or(0, |since| since.as_secs()),
            plan,
        };
        write_json(&folder.join(PLAN), &record)
    }

    /// What the leaderboard that is in a folder made of the tables; `None` where it was not settled, as in a run that was
    /// killed before.
    pub fn read(folder: &Path) -> Option<Record> {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let record: Record = serde_json::from_str(&read(PLAN)?).ok()?;
        (record.board == sha256(&read(BOARD)?)).then_some(record)
    }

    /// The day, as in tables.
    pub fn date(&self) -> String {
        date(self.settled_at)
    }
}

/// When the leaderboard in a folder was written, in seconds since 1970; `None` where there is none.
pub fn held_at(folder: &Path) -> Option<u64> {
    let written = std::fs::metadata(folder.join(BOARD)).ok()?.modified().ok()?;
    Some(written.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plans::file::tests::folder;

    #[test]
    fn a_leaderboard_is_settled_once_and_another_one_is_not() {
        let folder = folder("record");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(Record::keep(&folder, json!({})).is_err(), "there is no leaderboard");
        std::fs::write(folder.join(BOARD), "one").unwrap();
        assert_eq!(Record::read(&folder), None);
        Record::keep(&folder, json!({ "number": 3 })).unwrap();
        let record = Record::read(&folder).unwrap();
        assert_eq!(record.plan["number"], 3);
        assert_eq!(record.date(), date(held_at(&folder).unwrap()));
        // Its finals were held again.
        std::fs::write(folder.join(BOARD), "another").unwrap();
        assert_eq!(Record::read(&folder), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
