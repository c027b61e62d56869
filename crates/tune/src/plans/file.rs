//! Rows in the file of a device's table: put in and taken out while no other process does.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use flashcore::{PlanClass, PlanDevice, PlanRow, PlanTable, read_table};

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
    keep_unless(folder, device, row, |_| false)?;
    Ok(file_of(folder, device))
}

/// As [`keep`], unless there is a row for the same problems whose kernel is one that stays.
pub(super) fn keep_unless(
    folder: &Path,
    device: &PlanDevice,
    row: PlanRow,
    stays: impl Fn(&str) -> bool,
) -> Result<Put, TuneError> {
    let path = file_of(folder, device);
    std::fs::create_dir_all(folder).map_err(|error| TuneError::file(folder, error))?;
    change(&path, device, |table| {
        if let Some(own) = place_for(&path, table, &row.problem).filter(|own| stays(&own.kernel)) {
            return Ok(Put::Stays(own));
        }
        let class = row.problem.clone();
        table.put(row);
        Ok(Put::Row(place_for(&path, table, &class).map_or(0, |own| own.number)))
    })
}

/// What became of a row that was to be put into a table.
pub(super) enum Put {
    /// It is there, and its number.
    Row(usize),
    /// Another one stays in its place.
    Stays(Place),
}

/// Where a table has the row for exactly these problems.
pub(super) fn place_for(path: &Path, table: &PlanTable, class: &PlanClass) -> Option<Place> {
    let (number, own) = table.rows().find(|(_, row)| row.problem == *class)?;
    Some(Place {
        table: path.display().to_string(),
        number,
        kernel: own.kernel.to_string(),
    })
}

/// Takes the row of a number, from 1, out of the table in a file. Numbers change as rows come and go: where a kernel is
/// named, too, only a row with it is taken out.
///
/// # Errors
/// [`TuneError::File`], a number that no row has, and a row with another kernel.
pub fn drop_row(path: &Path, number: usize, kernel: Option<&str>) -> Result<(), TuneError> {
    let device = read_table(path)
        .map_err(|error| TuneError::file(path, error))?
        .table
        .device;
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
        Ok(())
    })
}

/// Takes the row for exactly these problems out of a device's table, if there is one and its kernel is `beaten`.
pub(super) fn drop_beaten(
    path: &Path,
    device: &PlanDevice,
    class: &PlanClass,
    beaten: impl Fn(&str) -> bool,
) -> Result<Option<Place>, TuneError> {
    if !path.exists() {
        return Ok(None);
    }
    change(path, device, |table| {
        let found = place_for(path, table, class).filter(|own| beaten(&own.kernel));
        if let Some(own) = &found {
            table.entries.remove(own.number - 1);
        }
        Ok(found)
    })
}

/// Changes the table in a file, or begins it, while no other process does.
fn change<T>(
    path: &Path,
    device: &PlanDevice,
    how: impl FnOnce(&mut PlanTable) -> Result<T, TuneError>,
) -> Result<T, TuneError> {
    // The file itself is replaced, so that a lock on it would be on the old one.
    let lock = path.with_extension("lock");
    let open = OpenOptions::new().create(true).truncate(false).write(true).open(&lock);
    let open = open.map_err(|error| TuneError::file(&lock, error))?;
    open.lock().map_err(|error| TuneError::file(&lock, error))?;
    let mut table = match path.exists() {
        true => read_table(path).map_err(|error| TuneError::file(path, error))?.table,
        false => PlanTable::new(device.clone()),
    };
    if table.device != *device {
        let reason = format!("it is a table of {}, and this is {device}; move it away", table.device);
        return Err(TuneError::file(path, reason));
    }
    let done = how(&mut table)?;
    write(path, &table)?;
    Ok(done)
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
        drop_row(&path, 2, Some("cpu/m48n48")).unwrap();
        drop_row(&path, 1, None).unwrap();
        assert!(drop_row(&path, 1, None).unwrap_err().to_string().contains("1 to 0"));
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
