//! The chart of speeds as SVG and HTML.

use std::fmt::Write;

use maud::{Markup, PreEscaped, html};

use super::super::{Chart, length, round};
use super::{Panel, Point, SERIES, Speed};

/// Colours of the lines on light paper and on dark. From the palette of Okabe and Ito, which colour-blind readers can tell
/// apart; each line also has its own marker.
const COLOURS: [(&str, &str, &str); 4] = [
    ("a", "#0060a8", "#56b4e9"),
    ("b", "#d55e00", "#f08a3c"),
    ("c", "#00805f", "#1fb58a"),
    ("d", "#69717a", "#9aa4ae"),
];

/// Width of the chart, of the space for the scale, of that for the names right of a panel, and around everything.
const WIDTH: f64 = 900.0;
const SCALE: f64 = 38.0;
const NAMES: f64 = 120.0;
const EDGE: f64 = 16.0;
/// Height of the heading, of a panel's plot, of its title above and its scale below, and of the notes.
const HEAD: f64 = 66.0;
const PLOT: f64 = 170.0;
const TITLE: f64 = 26.0;
const BELOW: f64 = 34.0;
const NOTE: f64 = 16.0;
/// Least distance between two names.
const APART: f64 = 14.0;
/// Width of a small letter in the widest common font.
const LETTER: f64 = 7.0;

impl Speed {
    /// The chart, with its numbers as a table.
    pub fn chart(&self) -> Chart {
        let rows = self.panels.iter().flat_map(|panel| {
            let lines = SERIES.iter().zip(&panel.lines);
            lines.flat_map(move |((name, ..), line)| {
                line.iter().map(move |point| {
                    let mut row = vec![
                        format!("D{} {} {}", panel.head_dim, panel.mask(), length(point.seq_len)),
                        name.to_string(),
                        point.subject.clone(),
                    ];
                    row.extend([point.tflops, point.range[0], point.range[1]].map(|value| format!("{value:.1}")));
                    row
                })
            })
        });
        Chart {
            title: self.heading(),
            about: self.about.clone(),
            drawing: self.draw(),
            columns: vec!["problem", "series", "subject", "TFLOP/s", "10th percentile", "90th"],
            rows: rows.collect(),
        }
    }

    /// On how many problems FlashCore is the quickest, of those that have a peer.
    fn standing(&self) -> [usize; 2] {
        let mut standing = [0, 0];
        for panel in &self.panels {
            for ours in &panel.lines[0] {
                let same = |line: &Vec<Point>| {
                    line.iter()
                        .find(|point| point.seq_len == ours.seq_len)
                        .map(|p| p.tflops)
                };
                if let Some(best) = panel.lines[1..].iter().filter_map(same).reduce(f64::max) {
                    standing[0] += usize::from(ours.tflops > best);
                    standing[1] += 1;
                }
            }
        }
        standing
    }

    fn heading(&self) -> String {
        // What it is about begins with the device.
        let device = self.about.first().and_then(|about| about.split(',').next());
        let device = device.unwrap_or("unknown device");
        format!("Attention forward, {device}: TFLOP/s by sequence length (higher is better)")
    }

    fn draw(&self) -> Markup {
        let of = |causal: bool| self.panels.iter().filter(move |panel| panel.causal == causal);
        let rows: Vec<Vec<&Panel>> = [false, true].map(|causal| of(causal).collect()).into();
        let rows: Vec<Vec<&Panel>> = rows.into_iter().filter(|row: &Vec<_>| !row.is_empty()).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(1) as f64;
        let points = || self.panels.iter().flat_map(|panel| panel.lines.iter().flatten());
        let most = points().map(|point| point.range[1]).fold(0.0, f64::max);
        let step = 100.0 * (most / 500.0).ceil().max(1.0);
        let top = step * (most / step).ceil();
        let lengths = points().map(|point| point.seq_len);
        let axes = Axes {
            width: (WIDTH - 2.0 * EDGE - SCALE) / columns - NAMES,
            step,
            top,
            from: lengths.clone().min().unwrap_or(1),
            to: lengths.max().unwrap_or(2),
        };
        let row_height = TITLE + PLOT + BELOW;
        let bottom = HEAD + row_height * rows.len() as f64;
        let [won, all] = self.standing();
        let notes = [
            format!("FlashCore is the fastest on {won} of {all} problems."),
            "Points are medians over rounds; bars reach from the 10th to the 90th percentile.".to_string(),
            self.about.join(" · "),
        ];
        let height = bottom + 10.0 + NOTE * notes.len() as f64;
        html! {
            svg xmlns="http://www.w3.org/2000/svg" viewBox={ "0 0 " (WIDTH) " " (round(height)) }
                width=(WIDTH) height=(round(height)) role="img" aria-label=(self.heading()) {
                title { (self.heading()) }
                style { (PreEscaped(style())) }
                rect.paper x="0.5" y="0.5" width=(WIDTH - 1.0) height=(round(height) - 1.0) rx="8" {}
                text.ink.head x=(EDGE) y="28" { (self.heading()) }
                (legend())
                @for (r, row) in rows.iter().enumerate() {
                    @for (c, panel) in row.iter().enumerate() {
                        @let x = round(EDGE + SCALE + c as f64 * (axes.width + NAMES));
                        @let y = round(HEAD + TITLE + r as f64 * row_height);
                        g transform={ "translate(" (x) " " (y) ")" } { (axes.draw(panel, c == 0)) }
                    }
                }
                @for (index, note) in notes.iter().enumerate() {
                    text.soft.small x=(EDGE) y=(round(bottom + 8.0 + NOTE * index as f64)) { (note) }
                }
            }
        }
    }
}

fn legend() -> Markup {
    let mut x = EDGE;
    let entries = SERIES.map(|(_, class, words)| {
        let at = x;
        x += 24.0 + LETTER * words.chars().count() as f64 + 18.0;
        (at, class, words)
    });
    html! {
        @for (x, class, words) in &entries {
            line class={ "l" (class) } x1=(round(*x)) x2=(round(x + 18.0)) y1="46" y2="46" {}
            path class={ "m" (class) } d={ "M" (round(x + 9.0)) " 46" (shape(class)) } {}
            text.small.ink.bold[*class == "a"] x=(round(x + 24.0)) y="50" { (words) }
        }
    }
}

/// The shape of a line's points, drawn around where the path is: a disc, a square, a triangle, a diamond.
fn shape(class: &str) -> &'static str {
    match class {
        "a" => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0",
        "b" => "m-3.2-3.2h6.4v6.4h-6.4z",
        "c" => "m0-4.2l4 7.4h-8z",
        _ => "m0-4.2l4.2 4.2l-4.2 4.2l-4.2-4.2z",
    }
}

/// The axes that all panels share.
struct Axes {
    width: f64,
    step: f64,
    top: f64,
    from: usize,
    to: usize,
}

impl Axes {
    /// Lengths are on a logarithmic scale.
    fn x(&self, seq_len: usize) -> f64 {
        let share = (seq_len as f64 / self.from as f64).ln() / (self.to as f64 / self.from as f64).ln().max(1e-9);
        round(6.0 + share * (self.width - 12.0))
    }

    fn y(&self, tflops: f64) -> f64 {
        round(PLOT * (1.0 - tflops / self.top))
    }

    /// From the 10th to the 90th percentile.
    fn bar(&self, point: &Point) -> String {
        let [low, high] = point.range.map(|tflops| self.y(tflops));
        format!("M{} {low}V{high}", self.x(point.seq_len))
    }

    fn draw(&self, panel: &Panel, is_first: bool) -> Markup {
        let levels: Vec<f64> = (0..=(self.top / self.step).round() as usize)
            .map(|i| i as f64 * self.step)
            .collect();
        let mut lengths: Vec<usize> = panel.lines.iter().flatten().map(|point| point.seq_len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        // FlashCore is drawn last: nothing lies over it.
        let order = [3, 2, 1, 0];
        html! {
            text.ink.bold x="0" y="-9" { "head_dim " (panel.head_dim) ", " (panel.mask()) }
            path.line d=(levels.iter().map(|level| format!("M0 {}H{}", self.y(*level), round(self.width))).collect::<String>()) {}
            @if is_first {
                @for level in &levels {
                    text.soft.small x="-7" y=(self.y(*level) + 4.0) text-anchor="end" { (level) }
                }
            }
            @for keys in &lengths {
                text.soft.small x=(self.x(*keys)) y=(PLOT + 15.0) text-anchor="middle" { (length(*keys)) }
            }
            @for index in order {
                @let (_, class, _) = SERIES[index];
                @let line = &panel.lines[index];
                @let at = |point: &Point| [self.x(point.seq_len), self.y(point.tflops)];
                @let points = line.iter().map(at).map(|[x, y]| format!("{x},{y}"));
                @let marks = line.iter().map(at).map(|[x, y]| format!("M{x} {y}{}", shape(class)));
                polyline class={ "l" (class) } points=(points.collect::<Vec<_>>().join(" ")) {}
                path class={ "e" (class) } d=(line.iter().map(|point| self.bar(point)).collect::<String>()) {}
                path class={ "m" (class) } d=(marks.collect::<String>()) {}
            }
            @for (index, y) in self.names(panel) {
                @let (name, class, _) = SERIES[index];
                @let last = panel.lines[index].last().map_or(0.0, |point| point.tflops);
                text class={ "small t" (class) @if index == 0 { " bold" } } x=(round(self.width + 6.0)) y=(round(y + 4.0)) {
                    (name) " " (format!("{last:.0}"))
                }
            }
        }
    }

    /// Where the names of a panel's lines stand: at their last points, moved apart where they would overlap.
    fn names(&self, panel: &Panel) -> Vec<(usize, f64)> {
        let last = |(index, line): (usize, &Vec<Point>)| Some((index, self.y(line.last()?.tflops)));
        let mut names: Vec<(usize, f64)> = panel.lines.iter().enumerate().filter_map(last).collect();
        names.sort_by(|a, b| a.1.total_cmp(&b.1));
        // Pushed down one after the other, and back up from the bottom of the panel.
        for at in 1..names.len() {
            names[at].1 = names[at].1.max(names[at - 1].1 + APART);
        }
        let mut limit = PLOT - 2.0;
        for (_, y) in names.iter_mut().rev() {
            *y = y.min(limit);
            limit = *y - APART;
        }
        names
    }
}

fn style() -> String {
    let mut out = "text{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:13px}\
.small{font-size:12px}.head{font-size:17px;font-weight:600}.bold{font-weight:700}.line{stroke-width:1}"
        .to_string();
    for (class, ..) in COLOURS {
        let (width, bar) = if class == "a" { (3.2, 2.0) } else { (1.6, 1.2) };
        let _ = write!(
            out,
            ".l{class}{{fill:none;stroke-width:{width};stroke-linejoin:round}}.e{class}{{stroke-width:{bar}}}"
        );
    }
    let rules = |dark: bool| -> String {
        let pick = |light: &'static str, on_dark: &'static str| if dark { on_dark } else { light };
        let mut rules = format!(
            ".paper{{fill:{};stroke:{}}}.ink{{fill:{}}}.soft{{fill:{}}}.line{{stroke:{}}}",
            pick("#ffffff", "#14171a"),
            pick("#e3e7eb", "#2a3036"),
            pick("#1b1f24", "#e8ebee"),
            pick("#57606a", "#a3adb8"),
            pick("#e6e9ed", "#2a3036"),
        );
        for (class, light, on_dark) in COLOURS {
            let colour = pick(light, on_dark);
            let _ = write!(
                rules,
                ".l{class},.e{class}{{stroke:{colour}}}.m{class},.t{class}{{fill:{colour}}}"
            );
        }
        rules
    };
    let (light, dark) = (rules(false), rules(true));
    let _ = write!(out, "{light}@media(prefers-color-scheme:dark){{{dark}}}");
    out
}
