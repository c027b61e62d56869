//! Charts of evidence: SVG in light and dark, readable at the width of a phone, with no script.
//!
//! CSS classes give the colours, which follow the reader's scheme. A chart stands alone, or in a page of
//! [`document`](crate::document), which has the numbers.

mod bars;
mod history;
mod ladder;
mod roofline;
mod speed;
mod speedups;

use maud::{Markup, PreEscaped, html};

pub(crate) use bars::{Shares, bars};
pub use history::history;
pub use ladder::{RungName, ladder};
pub(crate) use ladder::{ladder_of, problems};
pub(crate) use roofline::{Point, Roof, roofline};
pub use speed::Speed;
pub(crate) use speed::{is_drawn, name_of, work_of};
pub use speedups::ratio;
pub(crate) use speedups::speedups;

/// Width of a chart for phones in its own units, about pixels there. Wider screens scale it up to [`MAX_PX`].
const WIDTH: f64 = 420.0;
const EDGE: f64 = 6.0;
/// Widest that such a chart is shown, pixels.
const MAX_PX: u32 = 680;
/// Width at which the drawings of a report alone are shown, pixels.
const PIXELS: u32 = 620;

/// What classes of an SVG look like on light paper, and other colours on dark; a rule a line. No CSS variables: many
/// viewers of SVG lack them. Lines and their markers (`la` to `md`) are from the palette of Okabe and Ito, which
/// colour-blind readers can tell apart.
const LIGHT: &str = include_str!("light.css");
const DARK: &str = include_str!("dark.css");

fn style(if_dark: &str) -> String {
    let [light, dark] = [LIGHT, DARK].map(|rules| rules.lines().collect::<String>());
    format!("{light}{if_dark}{{{dark}}}")
}

/// A picture: what is inside of an SVG element, and its size.
#[derive(Clone, Debug)]
pub struct Drawing {
    title: String,
    /// Width and height in its own units.
    size: [f64; 2],
    /// Width at which it is shown, pixels.
    pixels: u32,
    body: Markup,
}

impl Drawing {
    fn new(title: &str, size: [f64; 2], pixels: u32, body: Markup) -> Drawing {
        Drawing {
            title: title.to_string(),
            size,
            pixels,
            body,
        }
    }

    /// With its own colours, so that it can stand alone.
    pub fn svg(&self) -> String {
        let svg = html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox=(self.view()) width=(self.pixels) role="img"
                aria-label=(self.title) {
                title { (self.title) }
                style { (PreEscaped(style("@media(prefers-color-scheme:dark)"))) }
                (self.marks())
                rect.paper x=(-EDGE) y=(-EDGE) width="100%" height="100%" {}
                (self.body)
            }
        };
        svg.into_string()
    }

    /// For a page that has [`page_style`] and [`marks`], and its own paper.
    pub(crate) fn within(&self) -> Markup {
        html! { svg viewBox=(self.view()) role="img" { title { (self.title) } (self.body) } }
    }

    /// Of the marks those that it has.
    fn marks(&self) -> Markup {
        let has = |(class, _): &(&str, &str)| self.body.0.contains(&format!("p{class}\""));
        html! { @for (class, shape) in SHAPES.into_iter().filter(has) { (mark(class, shape)) } }
    }

    fn view(&self) -> String {
        let [width, height] = self.size;
        format!(
            "{} {} {} {}",
            -EDGE,
            -EDGE,
            width + 2.0 * EDGE,
            round(height) + 2.0 * EDGE
        )
    }

    /// Pixels in a page: the least width at which small letters can be read, and the width where there is room, with
    /// letters somewhat larger than those of tables.
    pub(crate) fn widths(&self) -> [u32; 2] {
        [0.82, 1.35].map(|scale| ((self.size[0] * scale) as u32).min(self.pixels))
    }
}

/// What lines have at their points, a shape for each class of line, so that colours alone need not tell them apart:
/// `light.css` puts them there. Once in a page.
pub(crate) fn marks() -> Markup {
    html! { @for (class, shape) in SHAPES { (mark(class, shape)) } }
}

fn mark(class: &str, shape: &str) -> Markup {
    html! {
        marker id={ "p" (class) } viewBox="-5 -5 10 10" markerUnits="userSpaceOnUse" markerWidth="10" markerHeight="10" {
            path class={ "m" (class) } d=(shape) {}
        }
    }
}

/// The shape of each class of lines, drawn around the origin: a disc, a square, a triangle, a diamond, a cross.
const SHAPES: [(&str, &str); 5] = [
    ("a", "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0"),
    ("b", "M-3.2-3.2h6.4v6.4h-6.4z"),
    ("c", "M0-4.2l4 7.4h-8z"),
    ("d", "M0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z"),
    ("e", "M-4-1.2h2.8v-2.8h2.4v2.8h2.8v2.4h-2.8v2.8h-2.4v-2.8h-2.8z"),
];

/// Colours of the drawings of a page. Printed pages are light.
pub(crate) fn page_style() -> String {
    style("@media screen and (prefers-color-scheme:dark)")
}

/// `512`, `4k`.
fn length(keys: usize) -> String {
    match (keys, keys % 1024) {
        (1024.., 0) => format!("{}k", keys / 1024),
        _ => keys.to_string(),
    }
}

/// Where a value lies between two on a logarithmic scale.
fn share([from, to]: [f64; 2], value: f64) -> f64 {
    ((value / from).ln() / (to / from).ln()).clamp(0.0, 1.0)
}

/// Coordinates to a tenth: enough for a screen, and the same on every machine.
fn round(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests;
