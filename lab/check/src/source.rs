//! Reads the source line of a finding.
//!
//! Kernels contain paths relative to their workspace, as the compiler saw them. The line is read
//! from disk if the file exists.

use std::path::{Path, PathBuf};

use flashcore_ir::files;

/// Line `line` (from 1) of `file`, trimmed.
///
/// A relative path is searched in the current folder and its parents, which finds the workspace
/// from any folder inside it.
pub fn quote(file: &str, line: u32) -> Option<String> {
    let text = files::read_text_capped(&find(Path::new(file))?, files::SMALL).ok()?;
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
            Some("//! Reads the source line of a finding.")
        );
    }

    #[test]
    fn what_is_not_there_is_left_out() {
        assert_eq!(quote("no/such/file.rs", 1), None);
        assert_eq!(quote(file!(), 0), None);
        assert_eq!(quote(file!(), 1_000_000), None);
    }
}
