//! Documents: the results of runs as one file to read, print and keep, in HTML or Markdown.
//!
//! A [`Document`] is sections of prose, pictures and tables. Each number stands in a row or a sentence that ends in the
//! [`EvidenceId`] of the number, which `flashcore reproduce` resolves. An HTML file has everything in it: pictures,
//! their colours in light and dark, and no script.

mod chapter;
mod errors;
mod hardware;
mod html;
mod markdown;
mod origins;
mod speeds;
mod strip;
mod summary;

pub use chapter::{Chapter, chapters};
pub(crate) use markdown::escaped as in_markdown;

use flashcore_check::render;

use crate::chart::Drawing;
use crate::gather::EvidenceId;

/// A document.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// Its title.
    pub title: String,
    /// What it is about, a line each.
    pub about: Vec<String>,
    /// Its sections.
    pub sections: Vec<Section>,
}

/// A heading and what is below it.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// 2 for a chapter, 3 for a section of one.
    pub level: u8,
    /// What is below it, in order.
    pub blocks: Vec<Block>,
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Block {
    /// A paragraph.
    Prose(String),
    /// A list of sentences, each with the evidence that it is about.
    Sentences(Vec<(String, Vec<EvidenceId>)>),
    /// A picture. Markdown says in its place that it is in the HTML form.
    Picture(Box<Picture>),
    /// A table.
    Table(Table),
}

/// A picture, and what it shows in words.
#[derive(Clone, Debug)]
pub struct Picture {
    /// What it shows, for those who cannot see it, and below it.
    description: String,
    drawing: Drawing,
}

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What is in it.
    pub caption: String,
    /// Heads of the columns.
    pub columns: Vec<&'static str>,
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A number, right-aligned.
    Number(String),
    /// A name from code, such as a kernel's id.
    Code(String),
    /// The time of a run in each round, µs.
    Rounds(Vec<f64>),
    /// The id of the row's numbers.
    Evidence(EvidenceId),
}

impl Section {
    /// A section of a chapter.
    pub fn new(title: impl Into<String>) -> Section {
        Section {
            title: title.into(),
            level: 3,
            blocks: Vec::new(),
        }
    }

    /// The first section of a chapter: its heading.
    pub fn chapter(title: impl Into<String>) -> Section {
        Section {
            level: 2,
            ..Section::new(title)
        }
    }

    /// Adds a paragraph.
    pub fn say(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Prose(text.into()));
    }

    /// Adds a chart.
    pub fn draw(&mut self, drawing: Drawing, description: impl Into<String>) {
        self.blocks.push(Block::Picture(Box::new(Picture {
            description: description.into(),
            drawing,
        })));
    }

    /// Adds a table, unless it has no rows.
    pub fn tabulate(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Table(table));
        }
    }

    /// Whether nothing is below the heading.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

impl Table {
    /// A table without rows.
    pub fn new(caption: impl Into<String>, columns: &[&'static str]) -> Table {
        Table {
            caption: caption.into(),
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }
}

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    /// A number.
    pub fn number(text: impl Into<String>) -> Cell {
        Cell::Number(text.into())
    }

    /// A name from code.
    pub fn code(text: impl Into<String>) -> Cell {
        Cell::Code(text.into())
    }
}

impl Document {
    /// As one HTML file.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// As one Markdown file; its pictures are only in the HTML file.
    pub fn markdown(&self) -> String {
        markdown::page(self)
    }
}

/// A number of things: `1 run`, `2 runs`.
fn count(number: usize, what: &str) -> String {
    render::count(number as u64, what)
}

#[cfg(test)]
mod tests;
