//! A document as one HTML file: for screens in light and dark, for narrow ones, and for paper.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{Block, Cell, Document, Image, Picture, Section, Table};
use crate::chart::page_style;

/// Rows of a table above which it scrolls in a box on a screen. On paper it does not.
const LONG: usize = 24;

const STYLE: &str = "\
:root{color-scheme:light dark;--page:#ffffff;--ink:#1b1f24;--soft:#5c6670;--line:#d5dae0;--code:#f2f4f6;--link:#0060a8}\
@media screen and (prefers-color-scheme:dark){:root{--page:#14171a;--ink:#e8ebee;--soft:#a3adb8;--line:#353c44;\
--code:#22272c;--link:#56b4e9}}\
*{box-sizing:border-box}\
body{margin:1.5rem auto;padding:0 1rem;max-width:1080px;background:var(--page);color:var(--ink);\
font:16px/1.5 system-ui,sans-serif;overflow-wrap:break-word}\
h1{font-size:1.6rem;line-height:1.25;margin:0 0 .5rem}\
h2{font-size:1.35rem;line-height:1.25;margin:2.5rem 0 .5rem;padding-top:.5rem;border-top:2px solid var(--line)}\
summary{font-size:1.1rem;font-weight:600;margin:1rem 0 .5rem;cursor:pointer}\
p{margin:.5rem 0;max-width:46rem}.about{color:var(--soft);margin:.1rem 0}\
ul{padding-left:1.2rem;margin:.5rem 0;max-width:46rem}li{margin:.25rem 0}nav ul{columns:2 16rem}\
a{color:var(--link)}\
code,pre{font:.85em/1.4 ui-monospace,monospace}\
pre{background:var(--code);padding:.6rem .8rem;border-radius:4px;white-space:pre-wrap}\
.id,.e td:last-child{color:var(--soft);white-space:nowrap}.e td:last-child{font:.85em/1.4 ui-monospace,monospace}\
figure{margin:1rem 0;break-inside:avoid}figcaption{color:var(--soft);font-size:.85rem;max-width:46rem}\
.wide{overflow-x:auto;margin:.75rem 0}.long{max-height:26rem;overflow-y:auto;border:1px solid var(--line)}\
figure svg{display:block;width:100%;height:auto}\
table{border-collapse:collapse;font-size:.82rem;font-variant-numeric:tabular-nums}\
caption{text-align:left;color:var(--soft);padding:.2rem .5rem .4rem 0}\
th,td{padding:.2rem .8rem .2rem .3rem;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}\
th{background:var(--page);font-weight:600}.long th{position:sticky;top:0}\
.n,.n0 td:nth-child(1),.n1 td:nth-child(2),.n2 td:nth-child(3),.n3 td:nth-child(4),.n4 td:nth-child(5),\
.n5 td:nth-child(6),.n6 td:nth-child(7),.n7 td:nth-child(8),.n8 td:nth-child(9),.n9 td:nth-child(10){text-align:right;white-space:nowrap}\
td.t{min-width:16rem;max-width:30rem}td code{white-space:nowrap}\
@media print{@page{margin:14mm}details::details-content{content-visibility:visible}body{max-width:none;margin:0;padding:0;font-size:10pt}h2{break-before:page}\
h2.first{break-before:auto}h2,summary{break-after:avoid}.wide,.long{overflow:visible;max-height:none;border:none}\
.long th{position:static}table{font-size:6.6pt;width:100%}td.t{min-width:0;max-width:none}tr{break-inside:avoid}\
td.t,td code{overflow-wrap:anywhere;white-space:normal}\
th,td{padding-right:.4rem}figure svg{max-height:220mm}figure div{min-width:0!important}\
nav{display:none}a{color:inherit;text-decoration:none}}";

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
                style { (PreEscaped(page_style())) (PreEscaped(STYLE)) }
            }
            body {
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
                            // The heading of the page is its own.
                            0 => (all(section)),
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
        Block::Command(text) => html! { pre { code { (text) } } },
        Block::Picture(picture) => figure(picture),
        Block::Table(all) => table(all),
    }
}

/// Pictures are as wide as the page at most; on a narrow screen those that would be too small to read scroll.
fn figure(picture: &Picture) -> Markup {
    let Picture { description, image } = picture;
    let (svg, [least, most]) = match image {
        Image::Drawing(drawing) => (drawing.within(description), drawing.widths()),
        // It was written by this program, with its texts escaped.
        Image::Svg(svg, pixels) => (PreEscaped(svg.clone()), [*pixels * 2 / 3, *pixels]),
    };
    html! {
        figure {
            div.wide tabindex="0" role="group" aria-label=(description) {
                div style={ "max-width:" (most) "px;min-width:" (least) "px" } { (svg) }
            }
            figcaption { (description) }
        }
    }
}

fn table(table: &Table) -> Markup {
    let is_long = table.rows.len() > LONG;
    // The class of a column is that of its first cell.
    let is_number = |column: usize| {
        let cell = table.rows.first().and_then(|row| row.get(column));
        matches!(cell, Some(Cell::Number(_)))
    };
    // A class for each of the columns is shorter than one for each of the cells.
    let numbers = (0..table.columns.len())
        .filter(|at| is_number(*at))
        .map(|at| format!("n{at}"));
    let evidence = table.rows.first().and_then(|row| row.last());
    let evidence = matches!(evidence, Some(Cell::Evidence(_))).then(|| "e".to_string());
    let classes = numbers.chain(evidence).collect::<Vec<_>>().join(" ");
    html! {
        div.wide.long[is_long] tabindex="0" role="region" aria-label=(table.caption) {
            table class=[(!classes.is_empty()).then_some(&classes)] {
                caption { (table.caption) }
                thead {
                    tr {
                        @for (place, column) in table.columns.iter().enumerate() {
                            th class=[is_number(place).then_some("n")] scope="col" { (column) }
                        }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr { @for cell in row { (draw_cell(cell)) } }
                    }
                }
            }
        }
    }
}

fn draw_cell(cell: &Cell) -> Markup {
    match cell {
        Cell::Text(text) => html! { td class=[(text.len() > 40).then_some("t")] { (text) } },
        Cell::Number(text) => html! { td { (text) } },
        Cell::Code(text) => html! { td { code { (text) } } },
        Cell::Evidence(id) => html! { td { (id) } },
    }
}
