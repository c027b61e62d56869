//! Rows in the file of a device's table: put in and taken out while no other process does.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use flashcore::{PlanClass, PlanDevice, PlanError, PlanRow, PlanTable, read_table};

use crate::error::TuneError;
use crate::journal::write_whole;
use crate::plans::settle::Place;

/// The file of a device's table in a folder of tables.
///
/// ```
/// use flashcore::PlanDevice;
/// let device = PlanDevice { name: "NVIDIA H200".to_string(), target: "sm_90a".to_string(), units: 132 };
/// let file = flashcore_tune::plans::file_of(std::path::Path::new("plans"), &device);
/// assert_eq!(file.to_str(), Some("plans/nvidia-h200-132.json"));
/// ```
pub fn file_of(folder: &Path, device: &PlanDevice) -> PathBuf {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    let mut name: String = device.name.chars().map(plain).collect();
    while name.contains("--") {
        name = name.replace("--", "-");
    }
    let name = name.trim_matches('-');
    folder.join(format!("{name}-{}.json", device.units))
}

/// Puts a row into the table of a device, in place of one for the same problems. Several processes may do so at once:
/// each waits for the other, and the file is there whole at any moment.
///
/// # Errors
/// [`TuneError::File`]: a folder that cannot be written; a file that is there and is no table, which is left alone.
pub fn keep(folder: &Path, device: &PlanDevice, row: PlanRow) -> Result<PathBuf, TuneError> {
    // Of nothing a row stays in its place.
    keep_unless(folder, device, row, |_| None::<()>)?;
    Ok(file_of(folder, device))
}

/// As [`keep`], unless there is a row for the same problems that stays; why it does says `stays`, which sees it under the
/// lock.
pub(super) fn keep_unless<Why>(
    folder: &Path,
    device: &PlanDevice,
    row: PlanRow,
    stays: impl Fn(&PlanRow) -> Option<Why>,
) -> Result<Put<Why>, TuneError> {
    let path = file_of(folder, device);
    std::fs::create_dir_all(folder).map_err(|error| TuneError::file(folder, error))?;
    change(&path, device, |table| {
        let own = own_row(&path, table, &row.problem);
        if let Some((place, why)) = own.and_then(|(place, own)| Some((place, stays(own)?))) {
            return Ok(Put::Stays(place, why));
        }
        let class = row.problem.clone();
        table.put(row);
        Ok(Put::Row(place_for(&path, table, &class).map_or(0, |own| own.number)))
    })
}

/// What became of a row that was to be put into a table.
pub(super) enum Put<Why> {
    /// It is there, and its number.
    Row(usize),
    /// Another one stays in its place.
    Stays(Place, Why),
}

/// The row of a table for exactly these problems, and where it is.
fn own_row<'a>(path: &Path, table: &'a PlanTable, class: &PlanClass) -> Option<(Place, &'a PlanRow)> {
    let (number, own) = table.rows().find(|(_, row)| row.problem == *class)?;
    let place = Place {
        table: path.display().to_string(),
        number,
        kernel: own.kernel.to_string(),
    };
    Some((place, own))
}

/// Where a table has the row for exactly these problems.
pub(super) fn place_for(path: &Path, table: &PlanTable, class: &PlanClass) -> Option<Place> {
    own_row(path, table, class).map(|(place, _)| place)
}

/// Whether a row of this device could be put into the table in a folder of tables: what is there is a table of the device, and
/// the folder can be written. To be asked before a search, which would else find it out at its end. The folder is made, as a
/// row would make it; no table is changed.
///
/// # Errors
/// As [`keep`].
pub fn can_keep(folder: &Path, device: &PlanDevice) -> Result<(), TuneError> {
    let path = file_of(folder, device);
    std::fs::create_dir_all(folder).map_err(|error| TuneError::file(folder, error))?;
    let _held = locked(&path)?;
    table_of(&path, device)?;
    // A folder that has the lock from before may be one in which nothing new can be.
    let beside = path.with_extension("new");
    let written = File::create(&beside).and_then(|_| std::fs::remove_file(&beside));
    written.map_err(|error| TuneError::file(&beside, error))
}

/// Takes the row of a number, from 1, out of the table in a file. Numbers change as rows come and go: where a kernel is
/// named, too, only a row with it is taken out. What was taken out, and where it was.
///
/// # Errors
/// [`TuneError::File`], a number that no row has, and a row with another kernel.
pub fn drop_row(path: &Path, number: usize, kernel: Option<&str>) -> Result<Place, TuneError> {
    let device = read(path)?.device;
    change(path, &device, |table| {
        let rows = table.entries.len();
        if !(1..=rows).contains(&number) {
            return Err(TuneError::BadOption {
                option: "the row",
                given: number.to_string(),
                allowed: format!("1 to {rows}"),
            });
        }
        let there = match &table.entries[number - 1].row {
            Ok(row) => row.kernel.to_string(),
            Err(_) => "what cannot be used".to_string(),
        };
        if let Some(kernel) = kernel.filter(|kernel| *kernel != there) {
            return Err(TuneError::BadOption {
                option: "the kernel",
                given: kernel.to_string(),
                allowed: format!("{there}, which row {number} has by now; `flashcore plans` shows all rows"),
            });
        }
        table.entries.remove(number - 1);
        Ok(Place {
            table: path.display().to_string(),
            number,
            kernel: there,
        })
    })
}

/// Takes the row for exactly these problems out of a device's table, unless it stays; why it does says `stays`, as for
/// [`keep_unless`]. `None` where there is no such row.
pub(super) fn drop_unless<Why>(
    path: &Path,
    device: &PlanDevice,
    class: &PlanClass,
    stays: impl Fn(&PlanRow) -> Option<Why>,
) -> Result<Option<Taken<Why>>, TuneError> {
    if !path.exists() {
        return Ok(None);
    }
    change(path, device, |table| {
        let Some((place, own)) = own_row(path, table, class) else {
            return Ok(None);
        };
        if let Some(why) = stays(own) {
            return Ok(Some(Taken::Stays(place, why)));
        }
        table.entries.remove(place.number - 1);
        Ok(Some(Taken::Out(place)))
    })
}

/// What became of a row that was to be taken out of a table.
pub(super) enum Taken<Why> {
    /// It is gone; where it was.
    Out(Place),
    /// It stays.
    Stays(Place, Why),
}

/// Changes the table in a file, or begins it, while no other process does.
fn change<T>(
    path: &Path,
    device: &PlanDevice,
    how: impl FnOnce(&mut PlanTable) -> Result<T, TuneError>,
) -> Result<T, TuneError> {
    let _held = locked(path)?;
    let mut table = table_of(path, device)?;
    let done = how(&mut table)?;
    write(path, &table)?;
    Ok(done)
}

/// Waits until no other process is at a table, and keeps them away until it is dropped.
fn locked(path: &Path) -> Result<File, TuneError> {
    // The file itself is replaced, so that a lock on it would be on the old one.
    let lock = path.with_extension("lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&lock);
    let open = open.map_err(|error| TuneError::file(&lock, error))?;
    open.lock().map_err(|error| TuneError::file(&lock, error))?;
    Ok(open)
}

/// The table in a file, which must be of this device; an empty one where there is no file.
fn table_of(path: &Path, device: &PlanDevice) -> Result<PlanTable, TuneError> {
    if !path.exists() {
        return Ok(PlanTable::new(device.clone()));
    }
    let table = read(path)?;
    if table.device != *device {
        let reason = format!("it is a table of {}, and this is {device}; move it away", table.device);
        return Err(TuneError::file(path, reason));
    }
    Ok(table)
}

/// The table in a file. The library's error names the file, and so does this crate's: it is named once.
pub(super) fn read(path: &Path) -> Result<PlanTable, TuneError> {
    let why = |error| match error {
        PlanError::Unreadable { reason, .. } => reason,
        PlanError::NotATable { reason, .. } => {
            format!("it is no plan table: {reason}; mend it, or move it away and let `flashcore tune` write a new one")
        }
        PlanError::Format { given, known, .. } => {
            format!("it has format {given}; this build reads {known}: use the build that wrote it, or move it away")
        }
        other => other.to_string(),
    };
    match read_table(path) {
        Ok(named) => Ok(named.table),
        Err(error) => Err(TuneError::file(path, why(error))),
    }
}

/// Writes a table so that it is there whole or not at all.
///
/// # Errors
/// [`TuneError::File`].
pub fn write(path: &Path, table: &PlanTable) -> Result<(), TuneError> {
    let text = table.to_json().map_err(|error| TuneError::file(path, error))?;
    write_whole(path, &text)
}

#[cfg(test)]
pub(in crate::plans) mod tests {
    use super::*;
    use crate::plans::device_of;
    use crate::plans::tests::{host, of};

    /// A folder of tables that is not there yet.
    pub(in crate::plans) fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("flashcore-plan-rows-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn two_that_write_at_once_lose_no_row() {
        let folder = folder("two");
        let device = device_of(&host());
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (folder, device) = (&folder, &device);
                scope.spawn(move || {
                    for turn in 0..10 {
                        keep(folder, device, of(64 * (1 + writer * 10 + turn), "cpu/m64n64")).unwrap();
                        // Whole at any moment.
                        read_table(&file_of(folder, device)).unwrap();
                    }
                });
            }
        });
        let table = read_table(&file_of(&folder, &device)).unwrap().table;
        assert_eq!(table.rows().count(), 40);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_row_that_is_another_by_now_is_not_dropped() {
        let folder = folder("drop");
        let device = device_of(&host());
        let path = keep(&folder, &device, of(128, "cpu/m48n48")).unwrap();
        // It becomes the second one.
        keep(&folder, &device, of(64, "cpu/m64n64")).unwrap();
        let error = drop_row(&path, 1, Some("cpu/m48n48")).unwrap_err().to_string();
        assert!(error.contains("cpu/m64n64, which row 1 has by now"), "{error}");
        assert_eq!(read_table(&path).unwrap().table.rows().count(), 2);
        let gone = drop_row(&path, 2, Some("cpu/m48n48")).unwrap();
        assert_eq!((gone.number, gone.kernel.as_str()), (2, "cpu/m48n48"));
        drop_row(&path, 1, None).unwrap();
        assert!(drop_row(&path, 1, None).unwrap_err().to_string().contains("1 to 0"));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_keeps_a_row_out_is_known_before_there_is_one() {
        let folder = folder("beforehand");
        let device = device_of(&host());
        let path = file_of(&folder, &device);
        let why = |folder: &Path| can_keep(folder, &device).unwrap_err().to_string();
        can_keep(&folder, &device).unwrap();
        assert!(!path.exists() && !path.with_extension("new").exists());
        // Nothing new can be there.
        std::fs::create_dir(path.with_extension("new")).unwrap();
        assert!(why(&folder).contains(".new: "), "{}", why(&folder));
        assert!(keep(&folder, &device, of(64, "cpu/m64n64")).is_err());
        std::fs::remove_dir(path.with_extension("new")).unwrap();
        std::fs::write(&path, "not a table").unwrap();
        assert!(why(&folder).contains("it is no plan table"), "{}", why(&folder));
        assert!(why(&path).contains("exists"), "{}", why(&path));
        std::fs::remove_file(&path).unwrap();
        keep(&folder, &device, of(64, "cpu/m64n64")).unwrap();
        can_keep(&folder, &device).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_file_that_is_no_table_is_left_alone() {
        let folder = folder("alone");
        std::fs::create_dir_all(&folder).unwrap();
        let device = device_of(&host());
        let path = file_of(&folder, &device);
        for text in ["not a table", r#"{"format": 7, "device": {}, "rows": []}"#] {
            std::fs::write(&path, text).unwrap();
            let error = keep(&folder, &device, of(64, "cpu/m64n64")).unwrap_err().to_string();
            assert!(error.contains("move it away"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        let other = PlanTable::new(PlanDevice {
            target: "x86_64/none".to_string(),
            ..device.clone()
        });
        write(&path, &other).unwrap();
        let error = keep(&folder, &device, of(64, "cpu/m64n64")).unwrap_err().to_string();
        assert!(error.contains("it is a table of"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
