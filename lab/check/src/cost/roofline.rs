//! Draws a prediction: the time of each resource alone, and the combined time.

use super::predict::Prediction;
use crate::render;
use crate::svg::Svg;

const WIDTH: f64 = 720.0;
const BARS_FROM: f64 = 170.0;
const BARS_TO: f64 = 640.0;
const ROW: f64 = 26.0;
const TOP: f64 = 64.0;

/// The prediction as an SVG for light and dark backgrounds: a bar for each resource, for latency
/// and for the launch; a line at the predicted time and a band over its interval. `title` names the
/// kernel and the card.
pub fn svg(prediction: &Prediction, title: &str) -> String {
    let bars = prediction.terms();
    let longest = bars.iter().map(|bar| bar.1).fold(prediction.high_micros, f64::max);
    let x = |micros: f64| BARS_FROM + (BARS_TO - BARS_FROM) * micros / longest;
    let bottom = TOP + ROW * bars.len() as f64;
    let [low, time, high] = [prediction.low_micros, prediction.micros, prediction.high_micros];
    let about = format!(
        "predicted {}, between {} and {}; bars: the time of each alone",
        micros(time),
        micros(low),
        micros(high)
    );
    let classes = [
        ["bar", "fill: #8c959f;", "fill: #6e7681;"],
        ["binds", "fill: #bc4c00;", "fill: #f0883e;"],
        ["band", "fill: #0969da; opacity: 0.15;", "fill: #58a6ff; opacity: 0.25;"],
        ["time", "fill: #0969da;", "fill: #58a6ff;"],
    ];
    let mut svg = Svg::new([WIDTH, bottom + 44.0], title, &about, &classes);
    svg.rect("band", [x(low), TOP - 4.0, x(high) - x(low), bottom - TOP + 4.0]);
    for (row, (what, time)) in bars.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let class = if *what == prediction.binds { "binds" } else { "bar" };
        svg.text([BARS_FROM - 8.0, y + 13.0], " text-anchor=\"end\"", what.title());
        svg.rect(class, [BARS_FROM, y, (x(*time) - BARS_FROM).max(0.5), 16.0]);
        svg.text([x(*time) + 6.0, y + 13.0], "", micros(*time));
    }
    svg.rect("time", [x(time) - 1.0, TOP - 4.0, 2.0, bottom - TOP + 4.0]);
    let combined = format!("combined: {}", micros(time));
    svg.text([x(time), bottom + 18.0], " text-anchor=\"middle\"", combined);
    svg.finish()
}

fn micros(us: f64) -> String {
    render::time(us, 3)
}
