//! The line of Rust source that a finding names, where the source is at hand.
//!
//! Kernels carry paths as the compiler saw them, relative to their workspace. Nothing is embedded:
//! the line is read from disk, or left out where there is none.

use std::path::{Path, PathBuf};

/// Line `line` (from 1) of `file`, without the spaces around it.
///
/// A relative path is looked for in the current folder and in those above it, which finds the
/// workspace from any folder inside it.
pub fn quote(file: &str, line: u32) -> Option<String> {
    let text = std::fs::read_to_string(find(Path::new(file))?).ok()?;
    let line = text.lines().nth((line as usize).checked_sub(1)?)?.trim();
    (!line.is_empty()).then(|| line.to_string())
}

fn find(file: &Path) -> Option<PathBuf> {
    if file.is_absolute() {
        return file.is_file().then(|| file.to_path_buf());
    }
    let here = std::env::current_dir().ok()?;
    here.ancestors()
        .map(|folder| folder.join(file))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_workspace_from_inside_it() {
        assert_eq!(
            quote(file!(), 1).as_deref(),
            Some("//! The line of Rust source that a finding names, where the source is at hand.")
        );
    }

    #[test]
    fn what_is_not_there_is_left_out() {
        assert_eq!(quote("no/such/file.rs", 1), None);
        assert_eq!(quote(file!(), 0), None);
        assert_eq!(quote(file!(), 1_000_000), None);
    }
}
