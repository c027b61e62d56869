//! The roofline of a card: rates against operations a byte, both logarithmic, below what memory and tensor cores allow
//! (Williams, Waterman, Patterson, "Roofline", CACM 2009).

use maud::{Markup, html};

use super::{Drawing, PIXELS, WIDTH, round, share};

const HEIGHT: f64 = 260.0;
/// Space for the scale at the left and at the bottom, and for the heading.
const LEFT: f64 = 44.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 26.0;

/// A rate on a problem.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    /// Operations for each byte that must move.
    pub(crate) intensity: f64,
    /// TFLOP/s.
    pub(crate) tflops: f64,
    /// Whether the kernel is ours.
    pub(crate) ours: bool,
}

/// What a card allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roof {
    /// TFLOP/s of its tensor cores for these element types.
    pub(crate) tflops: f64,
    /// GB/s of its memory.
    pub(crate) gbps: f64,
}

impl Roof {
    /// Most TFLOP/s at an intensity.
    pub(crate) fn at(self, intensity: f64) -> f64 {
        (self.gbps * intensity / 1e3).min(self.tflops)
    }
}

pub(crate) fn roofline(title: &str, roof: Roof, points: &[Point]) -> Drawing {
    let values = |of: fn(&Point) -> f64| points.iter().map(of).filter(|value| *value > 0.0);
    let least = |of: fn(&Point) -> f64| values(of).fold(f64::INFINITY, f64::min);
    let ridge = 1e3 * roof.tflops / roof.gbps;
    let axes = Axes {
        x: decades(
            least(|point| point.intensity).min(ridge),
            values(|point| point.intensity).fold(ridge, f64::max),
        ),
        y: [
            decades(least(|point| point.tflops).min(roof.tflops), 1.0)[0],
            roof.tflops * 1.5,
        ],
    };
    let [from, to] = axes.x;
    let line: Vec<String> = [from, ridge, to]
        .iter()
        .map(|x| format!("{},{}", axes.x_at(*x), axes.y_at(roof.at(*x))))
        .collect();
    let body = html! {
        path.pa d="M6 8" {}
        text.ink.small x="14" y="12" { "FlashCore" }
        path.pb d="M92 8" {}
        text.ink.small x="100" y="12" { "the quickest peer" }
        (axes.grid())
        polyline.curve.best fill="none" points=(line.join(" ")) {}
        text.soft.small x=(WIDTH) y=(round(axes.y_at(roof.tflops) - 5.0)) text-anchor="end" {
            (format!("{:.0} TFLOP/s", roof.tflops))
        }
        text.soft.small x=(WIDTH) y=(TOP + HEIGHT + 30.0) text-anchor="end" { "operations per byte that must move" }
        text.soft.small x="0" y=(TOP + HEIGHT + 30.0) { (format!("roof of memory: {:.0} GB/s", roof.gbps)) }
        text.soft.small x=(LEFT - 5.0) y=(TOP - 2.0) text-anchor="end" { "TFLOP/s" }
        // Ours are drawn last: nothing lies over them.
        @for (class, ours) in [("pb", false), ("pa", true)] {
            path class=(class) d=(points.iter().filter(|point| point.ours == ours).map(|point| axes.mark(point)).collect::<String>()) {}
        }
    };
    Drawing::new(title, [WIDTH, TOP + HEIGHT + BOTTOM], PIXELS, body)
}

/// Powers of ten around values.
fn decades(least: f64, most: f64) -> [f64; 2] {
    let power = |value: f64, round: fn(f64) -> f64| 10f64.powf(round(value.max(1e-9).log10()));
    [
        power(least, f64::floor),
        power(most, f64::ceil).max(10.0 * power(least, f64::floor)),
    ]
}

struct Axes {
    x: [f64; 2],
    y: [f64; 2],
}

impl Axes {
    fn x_at(&self, intensity: f64) -> f64 {
        round(LEFT + (WIDTH - LEFT) * share(self.x, intensity))
    }

    fn y_at(&self, tflops: f64) -> f64 {
        round(TOP + HEIGHT * (1.0 - share(self.y, tflops)))
    }

    fn grid(&self) -> Markup {
        let powers = |[from, to]: [f64; 2]| {
            let (from, to) = (from.log10().round() as i32, to.log10().floor() as i32);
            (from..=to).map(|power| 10f64.powi(power)).collect::<Vec<f64>>()
        };
        html! {
            @for x in powers(self.x) {
                line.line x1=(self.x_at(x)) x2=(self.x_at(x)) y1=(TOP) y2=(TOP + HEIGHT) {}
                text.soft.small x=(self.x_at(x)) y=(TOP + HEIGHT + 14.0) text-anchor=(anchor(self.x_at(x))) { (x) }
            }
            @for y in powers(self.y) {
                line.line x1=(LEFT) x2=(WIDTH) y1=(self.y_at(y)) y2=(self.y_at(y)) {}
                text.soft.small x=(LEFT - 5.0) y=(self.y_at(y) + 4.0) text-anchor="end" { (y) }
            }
        }
    }

    fn mark(&self, point: &Point) -> String {
        format!("M{} {}", self.x_at(point.intensity), self.y_at(point.tflops))
    }
}

/// Labels at the right end stay inside.
fn anchor(x: f64) -> &'static str {
    if x > WIDTH - 20.0 { "end" } else { "middle" }
}
