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
pub(crate) use speed::{is_drawn, work_of};
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
        let style = html! { style { (PreEscaped(style("@media(prefers-color-scheme:dark)"))) } };
        self.element(None, style).into_string()
    }

    /// For a page that has [`page_style`], with a description for those who cannot see it.
    pub(crate) fn within(&self, description: &str) -> Markup {
        self.element(Some(description), html! {})
    }

    fn element(&self, description: Option<&str>, style: Markup) -> Markup {
        let [width, height] = self.size;
        html! {
            svg xmlns="http://www.w3.org/2000/svg"
                viewBox={ (-EDGE) " " (-EDGE) " " (width + 2.0 * EDGE) " " (round(height) + 2.0 * EDGE) }
                width=(self.pixels) role="img" aria-label=(self.title) {
                title { (self.title) }
                @if let Some(description) = description { desc { (description) } }
                (style)
                rect.paper x=(-EDGE) y=(-EDGE) width="100%" height="100%" {}
                (self.body)
            }
        }
    }

    /// Pixels in a page: the least width at which small letters can be read, and the width where there is room, with
    /// letters somewhat larger than those of tables.
    pub(crate) fn widths(&self) -> [u32; 2] {
        [0.82, 1.35].map(|scale| ((self.size[0] * scale) as u32).min(self.pixels))
    }
}

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

/// Coordinates to a tenth: enough for a screen, and the same on every machine.
fn round(x: f64) -> f64 {
    (x * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests;
