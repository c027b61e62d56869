//! Files of JSON that are read and written whole.

use std::io;
use std::path::Path;

use flashcore::unstable::files::write_whole;
use flashcore_ir::files;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Reads a file of so many bytes at most.
///
/// # Errors
/// A file that cannot be read, that is larger, or that is no such value.
pub fn read<T: DeserializeOwned>(path: &Path, most: u64) -> io::Result<T> {
    let wrong = |error| io::Error::new(io::ErrorKind::InvalidData, format!("its JSON is wrong: {error}"));
    serde_json::from_slice(&files::read_capped(path, most)?).map_err(wrong)
}

/// Writes a value, so that the file is never in part what it was.
///
/// # Errors
/// A file that cannot be written.
pub fn write(path: &Path, value: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    write_whole(path, text.as_bytes())
}
