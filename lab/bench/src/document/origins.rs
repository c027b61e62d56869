//! The section about where numbers come from.

use super::chapter::Chapter;
use super::{Cell, Section, Table};

pub(super) fn section(chapter: &Chapter<'_>) -> Section {
    let mut section = Section::new("Provenance");
    section.say(
        "Each number above has an evidence id. The command at the top of this report, flashcore reproduce with that id, prints \
         the number's command, device, driver, build and kernel hash, and what differs on your machine; --run measures it \
         again. The id of a run stands for all its numbers.",
    );
    let mut table = Table::new(
        "The runs.",
        &["run", "date", "revision", "command", "file", "notes", "evidence"],
    );
    for origin in &chapter.origins {
        let name = origin.path.file_name().unwrap_or_default().to_string_lossy();
        table.rows.push(vec![
            Cell::text(&origin.key),
            Cell::text(&origin.date),
            Cell::code(origin.revision.as_deref().unwrap_or("not recorded")),
            Cell::code(origin.command.as_deref().unwrap_or("that of each number")),
            Cell::text(name),
            Cell::text(origin.notes.join("; ")),
            Cell::Evidence(origin.id.clone()),
        ]);
    }
    section.tabulate(table);
    section
}
