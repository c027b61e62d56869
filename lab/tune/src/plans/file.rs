//! Storing and removing rows of a device's plan table, under a lock.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use flashcore::unstable::files::write_whole;
use flashcore::unstable::plans::{PlanDevice, PlanError, PlanRow, PlanTable, read_table};
use flashcore_ir::files;
use serde::Serialize;

use crate::error::TuneError;

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    /// The file.
    pub file: PathBuf,
    /// Number of the row, from 1.
    pub number: usize,
    /// Its kernel.
    pub kernel: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {} of {}", self.number, self.file.display())
    }
}

/// The file of a device's table in a folder of tables.
pub fn file_of(folder: &Path, device: &PlanDevice) -> PathBuf {
    let name = device.name.to_ascii_lowercase();
    let words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    folder.join(format!("{}-{}.json", words.join("-"), device.units))
}

/// Stores a row in the table of a device. It replaces a row for the same problems. Several
/// processes may do this at once: each waits for the others, and readers see the old table or the
/// new one. A file that is not a table of this device is an error and is not changed.
pub fn put(folder: &Path, device: &PlanDevice, row: PlanRow) -> Result<Place, TuneError> {
    let file = file_of(folder, device);
    std::fs::create_dir_all(folder).map_err(|error| TuneError::file(folder, error))?;
    let _lock = locked(&file)?;
    let mut table = table_of(&file, device)?;
    let (class, kernel) = (row.problem.clone(), row.kernel.to_string());
    table.put(row);
    write(&file, &table)?;
    let number = table.rows().find(|(_, row)| row.problem == class);
    Ok(Place {
        number: number.map_or(0, |(number, _)| number),
        file,
        kernel,
    })
}

/// Whether [`put`] would succeed, for a check before a long search. Creates the folder and changes
/// no table.
pub fn can_put(folder: &Path, device: &PlanDevice) -> Result<(), TuneError> {
    let file = file_of(folder, device);
    std::fs::create_dir_all(folder).map_err(|error| TuneError::file(folder, error))?;
    let _lock = locked(&file)?;
    table_of(&file, device)?;
    // An existing lock file does not show that a new file can be written. What lies there may be a link of others.
    let new = file.with_extension("new");
    let _ = std::fs::remove_file(&new);
    let written = File::create_new(&new).and_then(|_| std::fs::remove_file(&new));
    written.map_err(|error| TuneError::file(&new, error))
}

/// Removes the row with a number, from 1, from the table in a file. Numbers change when rows
/// change, so with a kernel only a row that has it is removed.
pub fn drop_row(file: &Path, number: usize, kernel: Option<&str>) -> Result<Place, TuneError> {
    if !file.exists() {
        return Err(TuneError::Usage(format!("{}: there is no such file", file.display())));
    }
    // Without a table no lock file is created.
    read(file)?;
    let _lock = locked(file)?;
    let mut table = read(file)?;
    let rows = table.entries.len();
    if !(1..=rows).contains(&number) {
        return Err(TuneError::bad("the row", number, format!("1 to {rows}")));
    }
    let there = match &table.entries[number - 1].row {
        Ok(row) => row.kernel.to_string(),
        Err(_) => "an unusable row".to_string(),
    };
    if let Some(kernel) = kernel.filter(|kernel| *kernel != there) {
        let allowed = format!("{there}, which row {number} has now; `flashcore plans` shows all rows");
        return Err(TuneError::bad("the kernel", kernel, allowed));
    }
    table.entries.remove(number - 1);
    write(file, &table)?;
    Ok(Place {
        file: file.to_path_buf(),
        number,
        kernel: there,
    })
}

fn locked(file: &Path) -> Result<File, TuneError> {
    // The table's file is replaced, so the lock needs a file that is not.
    let lock = file.with_extension("lock");
    let open = files::open_to_write(&lock, OpenOptions::new().create(true).truncate(false).write(true));
    let open = open.map_err(|error| TuneError::file(&lock, error))?;
    open.lock().map_err(|error| TuneError::file(&lock, error))?;
    Ok(open)
}

/// The table in a file, which must be of this device; an empty one if there is no file.
fn table_of(file: &Path, device: &PlanDevice) -> Result<PlanTable, TuneError> {
    if !file.exists() {
        return Ok(PlanTable::new(device.clone()));
    }
    let table = read(file)?;
    if table.device != *device {
        let reason = format!("it is a table of {}, and this is {device}; move it away", table.device);
        return Err(TuneError::file(file, reason));
    }
    Ok(table)
}

/// Both the library's error and this crate's have the file name; one is dropped.
fn read(file: &Path) -> Result<PlanTable, TuneError> {
    let why = |error| match error {
        PlanError::Unreadable { reason, .. } => reason,
        PlanError::NotATable { reason, .. } => {
            let remedy = "correct it, or move it away and let `flashcore tune` write a new one";
            format!("it is no plan table: {reason}; {remedy}")
        }
        PlanError::Format { given, known, .. } => {
            format!("it has format {given}; this build reads {known}: use the build that wrote it, or move it away")
        }
        other => other.to_string(),
    };
    let named = read_table(file).map_err(|error| TuneError::file(file, why(error)))?;
    Ok(named.table)
}

/// Writes a table, whole or not at all.
pub fn write(file: &Path, table: &PlanTable) -> Result<(), TuneError> {
    let text = table.to_json().map_err(|error| TuneError::file(file, error))?;
    write_whole(file, text.as_bytes()).map_err(|error| TuneError::file(file, error))
}
