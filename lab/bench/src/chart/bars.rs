//! Shares of kernels as bars: what counters say, and what was predicted.

use maud::{Markup, html};

use super::{Drawing, PIXELS, WIDTH, round};

/// Space for the names, and for the numbers at the right.
const NAMES: f64 = 112.0;
const NUMBERS: f64 = 58.0;
/// Height of a kernel's title, of a share, and of its two bars.
const TITLE: f64 = 38.0;
const ROW: f64 = 20.0;
const BAR: f64 = 7.0;
const LEGEND: f64 = 26.0;

/// A kernel's shares.
#[derive(Clone, Debug)]
pub(crate) struct Shares {
    /// The problem, and the kernel below it.
    pub(crate) title: [String; 2],
    /// Each share: its name, what was measured, what was predicted, per cent.
    pub(crate) rows: Vec<(String, Option<f64>, Option<f64>)>,
}

/// The bars of some kernels, one below the other.
pub(crate) fn bars(title: &str, kernels: &[Shares]) -> Drawing {
    let mut y = LEGEND;
    let drawn = kernels.iter().map(|kernel| {
        let top = y;
        y += TITLE + ROW * kernel.rows.len() as f64 + 8.0;
        (top, kernel)
    });
    let drawn: Vec<(f64, &Shares)> = drawn.collect();
    let body = html! {
        (legend())
        @for (top, kernel) in &drawn {
            g transform={ "translate(0 " (round(*top)) ")" } { (shares(kernel)) }
        }
    };
    Drawing::new(title, [WIDTH, y], PIXELS, body)
}

fn legend() -> Markup {
    html! {
        @for (x, class, word) in [(0, "ours", "measured"), (110, "peer", "predicted")] {
            rect class=(class) x=(x) y="4" width="14" height=(BAR) rx="1" {}
            text.soft.small x=(x + 20) y="12" { (word) }
        }
    }
}

fn shares(kernel: &Shares) -> Markup {
    let scale = (WIDTH - NAMES - NUMBERS) / 100.0;
    let bottom = TITLE + ROW * kernel.rows.len() as f64;
    let shown = |share: Option<f64>| share.map_or("–".to_string(), |share| format!("{share:.0}"));
    html! {
        text.ink.bold x="0" y="14" { (kernel.title[0]) }
        text.soft.small x="0" y="28" { (kernel.title[1]) }
        @for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
            @let x = round(NAMES + scale * percent);
            line.line x1=(x) x2=(x) y1=(TITLE - 4.0) y2=(bottom) {}
        }
        @for (place, (name, measured, predicted)) in kernel.rows.iter().enumerate() {
            @let y = TITLE + ROW * place as f64;
            text.ink.small x="0" y=(y + 11.0) { (name) }
            @for (share, class, top) in [(measured, "ours", y), (predicted, "peer", y + BAR + 1.0)] {
                @if let Some(share) = share {
                    rect class=(class) x=(NAMES) y=(round(top)) height=(BAR) rx="1"
                        width=(round((scale * share.clamp(0.0, 100.0)).max(0.5))) {}
                }
            }
            text.soft.small x=(WIDTH) y=(y + 11.0) text-anchor="end" {
                (shown(*measured)) " / " (shown(*predicted)) " %"
            }
        }
    }
}
