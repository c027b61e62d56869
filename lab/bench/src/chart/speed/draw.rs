//! The chart of speeds as SVG.

use maud::{Markup, html};

use super::super::{Drawing, length, round};
use super::{Point, SERIES, Speed};

/// Width of the chart, of the space for the scale, and of that for the names right of a panel.
const WIDTH: f64 = 740.0;
const SCALE: f64 = 46.0;
const NAMES: f64 = 100.0;
/// Width at which it is shown, pixels.
const PIXELS: u32 = 900;
/// Height of the heading, of a panel's plot, of its title above and its scale below, and of the notes.
const HEAD: f64 = 66.0;
const PLOT: f64 = 150.0;
const TITLE: f64 = 26.0;
const BELOW: f64 = 44.0;
const NOTE: f64 = 16.0;
const APART: f64 = 14.0;
/// Half the height of a point's mark.
const MARK: f64 = 4.0;
/// Width of a small letter in the widest common font.
const LETTER: f64 = 6.0;

impl Speed {
    /// On how many problems FlashCore is the quickest, of those that have a peer.
    fn standing(&self) -> [usize; 2] {
        let mut standing = [0, 0];
        for ours in self.points.iter().filter(|point| point.series == 0) {
            let problem = |point: &Point| (point.causal, point.head_dim, point.seq_len);
            let peers = self
                .points
                .iter()
                .filter(|point| point.series > 0 && problem(point) == problem(ours));
            if let Some(best) = peers.map(|peer| peer.tflops).reduce(f64::max) {
                standing[0] += usize::from(ours.tflops > best);
                standing[1] += 1;
            }
        }
        standing
    }

    /// The lines that the chart has.
    fn legend(&self) -> Markup {
        let mut x = 0.0;
        let is_drawn = |series: &usize| self.points.iter().any(|point| point.series == *series);
        let entries = (0..SERIES.len()).filter(is_drawn).map(|series| {
            let (at, (_, _, class, words)) = (x, SERIES[series]);
            x += 24.0 + LETTER * words.chars().count() as f64 + 18.0;
            (at, class, words)
        });
        let entries: Vec<_> = entries.collect();
        html! {
            @for (x, class, words) in &entries {
                @let (from, middle, to) = (round(*x), round(x + 9.0), round(x + 18.0));
                path class={ "curve l" (class) } d={ "M" (from) " 46H" (to) } {}
                path class={ "p" (class) } d={ "M" (middle) " 46" } {}
                text.small.ink.bold[*class == "a"] x=(round(x + 24.0)) y="50" { (words) }
            }
        }
    }

    fn heading(&self) -> String {
        // What it is about begins with the device.
        let device = self.about.first().and_then(|about| about.split(',').next());
        let device = device.unwrap_or("unknown device");
        let is_backward = self.about.iter().any(|about| about.contains("backward"));
        let pass = if is_backward { "backward" } else { "forward" };
        format!("Attention {pass}, {device}: TFLOP/s by sequence length (higher is better)")
    }

    /// The chart.
    pub fn draw<'s>(&'s self) -> Drawing {
        // Full masks above, causal ones below: a panel for each head_dim.
        let by_mask = self.points.chunk_by(|a, b| a.causal == b.causal);
        let panels = |row: &'s [Point]| row.chunk_by(|a, b| a.head_dim == b.head_dim).collect();
        let rows: Vec<Vec<&[Point]>> = by_mask.map(panels).collect();
        let columns = rows.iter().map(Vec::len).max().unwrap_or(1) as f64;
        let points = || self.points.iter();
        let most = points()
            .map(|point| point.tflops.max(point.range[1]))
            .fold(0.0, f64::max);
        let step = step(most);
        let top = step * (most / step).ceil();
        let lengths = points().map(|point| point.seq_len);
        let axes = Axes {
            width: (WIDTH - SCALE) / columns - NAMES,
            step,
            top,
            from: lengths.clone().min().unwrap_or(1),
            to: lengths.max().unwrap_or(2),
        };
        let row_height = TITLE + PLOT + BELOW;
        let bottom = HEAD + row_height * rows.len() as f64;
        let [won, all] = self.standing();
        let notes = [
            format!("FlashCore's median is the fastest on {won} of {all} problems."),
            "Points are medians over rounds; longer bars reach from the 10th to the 90th percentile.".to_string(),
            self.about.join(" · "),
        ];
        let body = html! {
            text.ink.bold x="0" y="20" { (self.heading()) }
            (self.legend())
            @for (r, row) in rows.iter().enumerate() {
                @for (c, panel) in row.iter().enumerate() {
                    @let x = round(SCALE + c as f64 * (axes.width + NAMES));
                    @let y = round(HEAD + TITLE + r as f64 * row_height);
                    g transform={ "translate(" (x) " " (y) ")" } { (axes.draw(panel, c == 0)) }
                }
            }
            @for (index, note) in notes.iter().enumerate() {
                text.soft.small x="0" y=(round(bottom + 8.0 + NOTE * index as f64)) { (note) }
            }
        };
        let height = bottom + NOTE * notes.len() as f64;
        Drawing::new(&self.heading(), [WIDTH, height], PIXELS, body)
    }
}

/// Distance of the lines of the scale: whole hundreds on large GPUs; 1, 2 or 5 × 10ⁿ below 100.
fn step(most: f64) -> f64 {
    if most >= 100.0 {
        return 100.0 * (most / 500.0).ceil();
    }
    let decade = 10f64.powf((most.max(1e-6) / 4.0).log10().floor());
    let least = most / 5.0;
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * decade);
    steps.into_iter().find(|step| *step >= least).unwrap_or(10.0 * decade)
}

/// The points of a series in a panel.
fn line(panel: &[Point], series: usize) -> &[Point] {
    let from = panel.partition_point(|point| point.series < series);
    let to = panel.partition_point(|point| point.series <= series);
    &panel[from..to]
}

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

    /// From the 10th to the 90th percentile, where the point does not hide it.
    fn bar(&self, point: &Point) -> Option<String> {
        let [low, high] = point.range.map(|tflops| self.y(tflops));
        let middle = self.y(point.tflops);
        let is_seen = (low - middle).max(middle - high) > MARK;
        is_seen.then(|| format!("M{} {low}V{high}", self.x(point.seq_len)))
    }

    fn draw(&self, panel: &[Point], is_first: bool) -> Markup {
        let levels: Vec<f64> = (0..=(self.top / self.step).round() as usize)
            .map(|i| i as f64 * self.step)
            .collect();
        let mut lengths: Vec<usize> = panel.iter().map(|point| point.seq_len).collect();
        lengths.sort_unstable();
        lengths.dedup();
        // FlashCore is drawn last: nothing lies over it.
        let order = (0..SERIES.len()).rev();
        html! {
            text.ink.bold x="0" y="-9" { "head_dim " (panel[0].head_dim) ", " (panel[0].mask()) }
            path.line d=(levels.iter().map(|level| format!("M0 {}H{}", self.y(*level), round(self.width))).collect::<String>()) {}
            @if is_first {
                text.soft.small x="-7" y="-9" text-anchor="end" { "TFLOP/s" }
                // What labels have in common stands once.
                text.soft.small text-anchor="end" {
                    @for level in &levels {
                        tspan x="-7" y=(self.y(*level) + 4.0) { (round(level * 100.0) / 100.0) }
                    }
                }
            }
            text.soft.small y=(PLOT + 15.0) text-anchor="middle" {
                @for keys in &lengths {
                    tspan x=(self.x(*keys)) { (length(*keys)) }
                }
                tspan x=(round(self.width / 2.0)) y=(PLOT + 29.0) { "sequence length" }
            }
            @for index in order.filter(|series| !line(panel, *series).is_empty()) {
                @let (_, _, class, _) = SERIES[index];
                @let line = line(panel, index);
                @let at = |point: &Point| [self.x(point.seq_len), self.y(point.tflops)];
                @let points = line.iter().map(at).map(|[x, y]| format!("{x},{y}"));
                polyline class={ "curve l" (class) " p" (class) } points=(points.collect::<Vec<_>>().join(" ")) {}
                path class={ "bar l" (class) } d=(line.iter().filter_map(|point| self.bar(point)).collect::<String>()) {}
            }
            @for (last, y) in self.names(panel) {
                @let (_, name, class, _) = SERIES[last.series];
                text class={ "small m" (class) @if last.series == 0 { " bold" } } x=(round(self.width + 6.0)) y=(round(y + 4.0)) {
                    (name) " " (format!("{:.0}", last.tflops))
                }
            }
        }
    }

    /// Where the names of a panel's lines stand: at their last points, moved apart where they would overlap.
    fn names<'p>(&self, panel: &'p [Point]) -> Vec<(&'p Point, f64)> {
        let last = (0..SERIES.len()).filter_map(|series| line(panel, series).last());
        let mut names: Vec<(&Point, f64)> = last.map(|point| (point, self.y(point.tflops))).collect();
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
