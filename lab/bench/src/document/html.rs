//! A document as one HTML file: for screens in light and dark, for narrow ones, and for paper.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::strip::{dot, strip};
use super::{Block, Cell, Document, Picture, Section, Table};
use crate::chart::{marks, page_style};

/// Rows of a table above which it scrolls in a box on a screen. On paper it does not.
const LONG: usize = 24;

/// A rule a line.
const STYLE: &str = include_str!("page.css");

pub(super) fn page(document: &Document) -> String {
    let chapters = |section: &&(usize, &Section)| section.1.level == 2;
    let sections: Vec<(usize, &Section)> = document.sections.iter().enumerate().collect();
    let first = sections.iter().find(chapters).map(|(place, _)| *place);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content="flashcore report";
                title { (document.title) }
                style { (PreEscaped(page_style())) @for rule in STYLE.lines() { (PreEscaped(rule)) } }
            }
            body {
                svg width="0" height="0" aria-hidden="true" {
                    (marks())
                    @if has_strips(document) { (dot()) }
                }
                header {
                    h1 { (document.title) }
                    @for line in &document.about { p.about { (line) } }
                }
                @if first.is_some() {
                    nav aria-label="Contents" {
                        ul {
                            @for (place, section) in &sections {
                                @if section.level == 2 { li { a href={ "#s" (place) } { (section.title) } } }
                            }
                        }
                    }
                }
                main {
                    @for (place, section) in &sections {
                        @match section.level {
                            2 => {
                                h2 id={ "s" (place) } class=[(Some(*place) == first).then_some("first")] { (section.title) }
                                (all(section))
                            },
                            // A chapter's beginning says what was found; the rest is there for those who look for it.
                            _ => details { summary id={ "s" (place) } { (section.title) } (all(section)) },
                        }
                    }
                }
            }
        }
    };
    page.into_string() + "\n"
}

fn has_strips(document: &Document) -> bool {
    let mut blocks = document.sections.iter().flat_map(|section| &section.blocks);
    let is_strip = |cell: &Cell| matches!(cell, Cell::Rounds(rounds) if !rounds.is_empty());
    blocks.any(|block| matches!(block, Block::Table(table) if table.rows.iter().flatten().any(is_strip)))
}

fn all(section: &Section) -> Markup {
    html! { @for block in &section.blocks { (draw(block)) } }
}

fn draw(block: &Block) -> Markup {
    match block {
        Block::Prose(text) => html! { p { (text) } },
        Block::Sentences(all) => html! {
            ul {
                @for (text, from) in all {
                    li {
                        (text)
                        @for id in from { " " code.id { (id) } }
                    }
                }
            }
        },
        Block::Picture(picture) => figure(picture),
        Block::Table(all) => table(all),
    }
}

/// Pictures are as wide as the page at most; on a narrow screen those that would be too small to read scroll.
fn figure(picture: &Picture) -> Markup {
    let Picture { description, drawing } = picture;
    let [least, most] = drawing.widths();
    html! {
        figure {
            div.wide tabindex="0" role="group" aria-label="picture" {
                div style={ "max-width:" (most) "px;min-width:" (least) "px" } { (drawing.within()) }
            }
            figcaption { (description) }
        }
    }
}

fn table(table: &Table) -> Markup {
    let is_long = table.rows.len() > LONG;
    // The class of a column is that of its first cell.
    let first = table.rows.first().map(Vec::as_slice).unwrap_or_default();
    let is_number = |column: usize| matches!(first.get(column), Some(Cell::Number(_)));
    // A class for each of the columns is shorter than one, or an element, for each of the cells.
    let class = |(at, cell): (usize, &Cell)| match cell {
        Cell::Number(_) => Some(format!("n{at}")),
        Cell::Code(_) => Some(format!("c{at}")),
        Cell::Evidence(_) => Some("e".to_string()),
        Cell::Text(_) | Cell::Rounds(_) => None,
    };
    let classes = first.iter().enumerate().filter_map(class).collect::<Vec<_>>().join(" ");
    html! {
        div.wide.long[is_long] tabindex="0" role="region" aria-label="table" {
            table class=[(!classes.is_empty()).then_some(&classes)] {
                caption { (table.caption) }
                thead {
                    tr;
                    @for (place, column) in table.columns.iter().enumerate() {
                        th class=[is_number(place).then_some("n")] scope="col" { (column) }
                    }
                }
                tbody {
                    // Rows and cells end where the next one begins, as HTML allows: of a report a tenth is saved.
                    @for (at, row) in table.rows.iter().enumerate() {
                        @let above = at.checked_sub(1).and_then(|above| table.rows[above].first());
                        // What rows have in common stands in the first of them.
                        @let is_told = above == row.first() && matches!(above, Some(Cell::Text(_)));
                        tr; @for (column, cell) in row.iter().enumerate() {
                            @if is_told && column == 0 { td; } @else { (draw_cell(cell)) }
                        }
                    }
                }
            }
        }
    }
}

fn draw_cell(cell: &Cell) -> Markup {
    match cell {
        Cell::Text(text) => html! { td class=[(text.len() > 40).then_some("t")]; (text) },
        Cell::Number(text) | Cell::Code(text) => html! { td; (text) },
        Cell::Rounds(rounds) if rounds.is_empty() => html! { td; },
        Cell::Rounds(rounds) => html! { td; (strip(rounds)) },
        Cell::Evidence(id) => html! { td; (id) },
    }
}
