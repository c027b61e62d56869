//! The section about where numbers come from.

use super::chapter::Chapter;
use super::{Cell, Section, Table};
use crate::identity::short;

pub(super) fn section(chapter: &Chapter<'_>) -> Section {
    let mut section = Section::new("Provenance");
    section.say(
        "The command at the top of this report tells of an evidence id the command that was run, device, driver, build \
         and kernel hash. The id of a run stands for all its numbers.",
    );
    let mut table = Table::new("The runs.", &["run", "date", "revision", "file", "notes", "evidence"]);
    for origin in &chapter.origins {
        let name = origin.path.file_name().unwrap_or_default().to_string_lossy();
        table.rows.push(vec![
            Cell::text(&origin.key),
            Cell::text(&origin.date),
            Cell::code(short(&origin.revision)),
            Cell::text(name),
            Cell::text(origin.notes.join("; ")),
            Cell::Evidence(origin.id.clone()),
        ]);
    }
    section.tabulate(table);
    section
}
