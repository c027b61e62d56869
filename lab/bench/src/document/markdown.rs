//! A document as one Markdown file.

use std::fmt::Write;

use super::{Block, Cell, Document, Table, strip};

pub(super) fn page(document: &Document) -> String {
    let mut out = format!("# {}\n\n", escaped(&document.title));
    for line in &document.about {
        let _ = writeln!(out, "- {}", escaped(line));
    }
    for section in &document.sections {
        let marks = "#".repeat(usize::from(section.level));
        let _ = writeln!(out, "\n{marks} {}", escaped(&section.title));
        for block in &section.blocks {
            out.push('\n');
            add(&mut out, block);
        }
    }
    out
}

fn add(out: &mut String, block: &Block) {
    match block {
        Block::Prose(text) => {
            let _ = writeln!(out, "{}", escaped(text));
        }
        Block::Sentences(all) => {
            for (text, from) in all {
                let from: String = from.iter().map(|id| format!(" `{id}`")).collect();
                let _ = writeln!(out, "- {}{from}", escaped(text));
            }
        }
        Block::Picture(picture) => {
            let _ = writeln!(out, "*Picture in the HTML form: {}*", escaped(&picture.description));
        }
        Block::Table(table) => add_table(out, table),
    }
}

fn add_table(out: &mut String, table: &Table) {
    let _ = writeln!(out, "{}\n\n| {} |", escaped(&table.caption), table.columns.join(" | "));
    let first = table.rows.first();
    let rules = (0..table.columns.len()).map(|column| match first.and_then(|row| row.get(column)) {
        Some(Cell::Number(_)) => "--:",
        _ => "---",
    });
    let _ = writeln!(out, "|{}|", rules.collect::<Vec<_>>().join("|"));
    for row in &table.rows {
        let cells = row.iter().map(|cell| match cell {
            Cell::Text(text) | Cell::Number(text) => escaped(text),
            Cell::Code(text) if text.is_empty() => String::new(),
            Cell::Code(text) => format!("`{}`", text.replace(['`', '\n'], " ").replace('|', "\\|")),
            Cell::Rounds(rounds) => strip::words(rounds),
            Cell::Evidence(id) => format!("`{id}`"),
        });
        let _ = writeln!(out, "| {} |", cells.collect::<Vec<_>>().join(" | "));
    }
}

/// Text with the characters that Markdown and HTML give a meaning escaped, on one line.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' => out.push(' '),
            '<' => out.push_str("&lt;"),
            '&' => out.push_str("&amp;"),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' => out.extend(['\\', character]),
            _ => out.push(character),
        }
    }
    out
}
