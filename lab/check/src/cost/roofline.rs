//! Draws a prediction: the time of each resource alone, and the combined time.

use std::fmt::Write;

use super::predict::{Bound, Prediction};

/// Width of the image, and the range of the bars.
const WIDTH: f64 = 720.0;
const BARS_FROM: f64 = 170.0;
const BARS_TO: f64 = 640.0;
const ROW: f64 = 26.0;
const TOP: f64 = 64.0;

/// The prediction as an SVG for light and dark backgrounds: a bar for each resource, for latency
/// and for the launch; a line at the predicted time and a band over its interval. `title` names the
/// kernel and the card.
///
/// ```
/// # use flashcore_check::cost::{Observation, roofline};
/// # use flashcore_ir::{Profile, Target};
/// # use flashcore_kernels::Plan;
/// # use flashcore_problem::Problem;
/// # let plan = Plan::new(&Problem::named("tiny")?, &"scalar/tiled-m16n16-w4-v16".parse()?, Target::Sm89)?;
/// let prediction = Observation::of(&plan)?.predict(Profile::named("l4").unwrap(), &[]);
/// let svg = roofline::svg(&prediction, "tiny on an L4");
/// assert!(svg.starts_with("<svg") && svg.contains("tiny on an L4"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn svg(prediction: &Prediction, title: &str) -> String {
    let mut bars: Vec<(Bound, f64)> = prediction
        .uses
        .iter()
        .map(|used| (Bound::Resource(used.resource), used.micros))
        .collect();
    bars.push((Bound::Latency, prediction.latency_micros));
    bars.push((Bound::Launch, prediction.launch_micros));
    bars.sort_by(|a, b| b.1.total_cmp(&a.1));
    let longest = bars.iter().map(|bar| bar.1).fold(prediction.high_micros, f64::max);
    let x = |micros: f64| BARS_FROM + (BARS_TO - BARS_FROM) * micros / longest;
    let bottom = TOP + ROW * bars.len() as f64;
    let height = bottom + 44.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\" role=\"img\">\n<style>\n  text {{ fill: #1f2328; }}\n  .bar {{ fill: #8c959f; }}\n  \
         .binds {{ fill: #bc4c00; }}\n  .band {{ fill: #0969da; opacity: 0.15; }}\n  .time {{ stroke: #0969da; \
         stroke-width: 2; }}\n  @media (prefers-color-scheme: dark) {{\n    text {{ fill: #e6edf3; }}\n    .bar {{ \
         fill: #6e7681; }}\n    .binds {{ fill: #f0883e; }}\n    .band {{ fill: #58a6ff; opacity: 0.25; }}\n    \
         .time {{ stroke: #58a6ff; }}\n  }}\n</style>\n<title>{title}</title>\n",
        title = escaped(title)
    );
    let _ = writeln!(
        svg,
        "<text x=\"12\" y=\"22\" font-size=\"15\">{}</text>\n<text x=\"12\" y=\"44\">predicted {} µs, between {} and {} \
         µs; bars: the time of each alone</text>",
        escaped(title),
        micros(prediction.micros),
        micros(prediction.low_micros),
        micros(prediction.high_micros)
    );
    let _ = writeln!(
        svg,
        "<rect class=\"band\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        x(prediction.low_micros),
        TOP - 4.0,
        x(prediction.high_micros) - x(prediction.low_micros),
        bottom - TOP + 4.0
    );
    for (row, (what, time)) in bars.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let class = if *what == prediction.binds { "binds" } else { "bar" };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text><rect class=\"{class}\" x=\"{BARS_FROM}\" \
             y=\"{:.1}\" width=\"{:.1}\" height=\"16\"/><text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            BARS_FROM - 8.0,
            y + 13.0,
            what.title(),
            y,
            (x(*time) - BARS_FROM).max(0.5),
            x(*time) + 6.0,
            y + 13.0,
            micros(*time)
        );
    }
    let at = x(prediction.micros);
    let _ = writeln!(
        svg,
        "<line class=\"time\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{bottom:.1}\"/>\n<text x=\"{at:.1}\" \
         y=\"{:.1}\" text-anchor=\"middle\">combined: {} µs</text>\n</svg>",
        TOP - 4.0,
        bottom + 18.0,
        micros(prediction.micros)
    );
    svg
}

/// Microseconds with three significant digits.
fn micros(time: f64) -> String {
    match time {
        t if t >= 100.0 => format!("{t:.0}"),
        t if t >= 10.0 => format!("{t:.1}"),
        t => format!("{t:.2}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
