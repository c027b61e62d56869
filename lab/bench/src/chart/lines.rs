//! Lines: how far from the best searches are after so many trials, a line a strategy, with the middle half of its seeds.

use maud::{Markup, PreEscaped, html};

use super::{WIDTH, page, round, svg};

/// Space left of the plot, above it, its height, and a line of the legend.
const LEFT: f64 = 44.0;
const TOP: f64 = 18.0;
const PLOT: f64 = 220.0;
const LEGEND: f64 = 18.0;
/// The scale's ends, percent above the best. It is logarithmic; what is nearer the best is drawn at the lower end.
const SCALE: [f64; 2] = [0.5, 300.0];
/// Lines across.
const ACROSS: [f64; 9] = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0];

/// Strokes of the lines, on light paper and on dark: colours that are told apart by those who see few, too.
const STROKES: [(&str, &str); 6] = [
    ("#8a939c", "#7d8792"),
    ("#1f77b4", "#4ea3de"),
    ("#d9822b", "#f0a35c"),
    ("#0b6e4f", "#35c08d"),
    ("#a23b72", "#d979ad"),
    ("#6b4fbb", "#a08ae6"),
];

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What it is called.
    pub name: String,
    /// After each trial: lower quartile, median, upper quartile of the best so far, relative to the best there is (1).
    pub quartiles: Vec<[f64; 3]>,
    /// What stands beside its name in the table.
    pub note: String,
}

/// A chart of lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// The heading.
    pub title: String,
    /// What the numbers are about, a sentence each.
    pub about: Vec<String>,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Lines {
    /// The chart by itself.
    pub fn svg(&self) -> String {
        self.draw().into_string()
    }

    /// The chart in a page.
    ///
    /// ```
    /// use flashcore_bench::chart::{Line, Lines};
    /// let line = Line { name: "random".to_string(), quartiles: vec![[1.5, 2.0, 3.0], [1.0, 1.1, 1.2]], note: "2 trials".to_string() };
    /// let chart = Lines { title: "Searches".to_string(), about: Vec::new(), lines: vec![line] };
    /// assert!(chart.html().contains("random") && chart.svg().starts_with("<svg"));
    /// ```
    pub fn html(&self) -> String {
        let last = |line: &Line| {
            line.quartiles
                .last()
                .map_or("-".to_string(), |[_, median, _]| percent(*median))
        };
        let rows: Vec<Vec<String>> = self
            .lines
            .iter()
            .map(|line| vec![line.name.clone(), line.note.clone(), last(line)])
            .collect();
        let columns = ["strategy", "trials to within 2 %, median", "at the end, median"];
        page(&self.title, &self.about, &self.draw(), &columns, &rows)
    }

    fn draw(&self) -> Markup {
        let trials = self
            .lines
            .iter()
            .map(|line| line.quartiles.len())
            .max()
            .unwrap_or(1)
            .max(2);
        let x = |trial: usize| round(LEFT + (WIDTH - LEFT) * trial as f64 / (trials - 1) as f64);
        let points = |values: &mut dyn Iterator<Item = (usize, f64)>| -> String {
            let point = |(trial, value): (usize, f64)| format!("{},{}", x(trial), y(value));
            values.map(point).collect::<Vec<_>>().join(" ")
        };
        let ticks: Vec<usize> = (0..=4).map(|quarter| (trials - 1) * quarter / 4).collect();
        let bottom = TOP + PLOT;
        let body = html! {
            style { (PreEscaped(style())) }
            text.soft.small x="0" y="8" { "slower than the best, by trials" }
            @for level in ACROSS {
                line.line x1=(LEFT) x2=(WIDTH) y1=(y(1.0 + level / 100.0)) y2=(y(1.0 + level / 100.0)) {}
                text.soft.small x=(LEFT - 4.0) y=(y(1.0 + level / 100.0) + 3.0) text-anchor="end" { (level) " %" }
            }
            @for trial in &ticks {
                text.soft.small x=(x(*trial)) y=(bottom + 14.0) text-anchor="middle" { (trial + 1) }
            }
            @for (index, line) in self.lines.iter().enumerate() {
                @let class = index % STROKES.len();
                @let lower = line.quartiles.iter().map(|q| q[0]).enumerate();
                @let upper = line.quartiles.iter().map(|q| q[2]).enumerate().collect::<Vec<_>>();
                polygon class={ "b" (class) } points=(points(&mut lower.chain(upper.into_iter().rev()))) {}
            }
            @for (index, line) in self.lines.iter().enumerate() {
                @let class = index % STROKES.len();
                polyline class={ "l" (class) } points=(points(&mut line.quartiles.iter().map(|q| q[1]).enumerate())) {
                    title { (line.name) }
                }
            }
            @for (index, line) in self.lines.iter().enumerate() {
                @let (column, row) = (index % 2, index / 2);
                @let left = column as f64 * WIDTH / 2.0;
                @let top = bottom + 26.0 + LEGEND * row as f64;
                line class={ "l" (index % STROKES.len()) } x1=(left) x2=(left + 18.0) y1=(top) y2=(top) {}
                text.ink.small x=(left + 24.0) y=(top + 3.5) { (line.name) ": " (line.note) }
            }
        };
        let rows = self.lines.len().div_ceil(2) as f64;
        svg(&self.title, bottom + 26.0 + LEGEND * rows, &body)
    }
}

/// Height of a value on the logarithmic scale.
fn y(relative: f64) -> f64 {
    let above = ((relative - 1.0) * 100.0).clamp(SCALE[0], SCALE[1]);
    let share = (above / SCALE[0]).ln() / (SCALE[1] / SCALE[0]).ln();
    round(TOP + PLOT * (1.0 - share))
}

fn style() -> String {
    let rules = |dark: bool| -> String {
        let rule = |(index, (light, on_dark)): (usize, &(&str, &str))| {
            let colour = if dark { on_dark } else { light };
            format!(
                ".l{index}{{stroke:{colour};stroke-width:1.8;fill:none}}.b{index}{{fill:{colour};fill-opacity:.13;stroke:none}}"
            )
        };
        STROKES.iter().enumerate().map(rule).collect()
    };
    format!("{}@media(prefers-color-scheme:dark){{{}}}", rules(false), rules(true))
}

fn percent(relative: f64) -> String {
    format!("{:+.1} %", (relative - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_at_the_bottom_and_every_line_is_drawn() {
        assert!(y(1.0) > y(1.02) && y(1.02) > y(2.0) && y(2.0) > y(f64::INFINITY));
        assert_eq!(y(f64::INFINITY), TOP);
        let line = |name: &str| Line {
            name: name.to_string(),
            quartiles: vec![[1.2, 2.0, f64::INFINITY], [1.0, 1.5, 1.9]],
            note: "12".to_string(),
        };
        let chart = Lines {
            title: "Searches".to_string(),
            about: vec!["made up".to_string()],
            lines: vec![line("random"), line("elite")],
        };
        let html = chart.html();
        assert_eq!(
            (html.matches("<polyline").count(), html.matches("<polygon").count()),
            (2, 2)
        );
        assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
        assert!(html.contains("+50.0 %") && html.contains("made up"));
    }
}
