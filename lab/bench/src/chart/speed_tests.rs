use super::*;

fn point(series: usize, (seq_len, causal): (usize, bool), tflops: f64) -> Point {
    Point {
        head_dim: 64,
        causal,
        series,
        seq_len,
        tflops,
        range: [tflops - 1.0, tflops + 1.0],
    }
}

fn of(points: impl IntoIterator<Item = Point>) -> Result<Speed> {
    let mut speed = Speed::default();
    for point in points {
        speed.add(point)?;
    }
    Ok(speed)
}

#[test]
fn names_of_lines_that_end_together_do_not_overlap() {
    let lines = 0..SERIES.len();
    let points = lines.flat_map(|series| [512, 1024].map(|seq| point(series, (seq, false), 100.0)));
    let svg = of(points).unwrap().draw().svg();
    // The names end in the value at the last point.
    let mut heights: Vec<f64> = svg
        .split("<text")
        .filter(|text| text.contains(" 100</text>"))
        .map(|text| {
            text.split("y=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    heights.sort_by(f64::total_cmp);
    assert_eq!(heights.len(), SERIES.len(), "{svg}");
    assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= 13.9), "{heights:?}");
    let svg = svg.replace("url(#", "");
    for never in ["<script", "url(", "NaN", "inf"] {
        assert!(!svg.contains(never), "{never}\n{svg}");
    }
}

#[test]
fn what_is_won_and_lost_is_counted() {
    let svg = of([
        point(0, (512, false), 100.0),
        point(1, (512, false), 90.0),
        point(0, (1024, false), 100.0),
        point(1, (1024, false), 110.0),
        // No peer to be compared with.
        point(0, (512, true), 100.0),
    ]);
    let svg = svg.unwrap().draw().svg();
    assert!(svg.contains("fastest on 1 of 2 problems"), "{svg}");
}

#[test]
fn two_numbers_for_one_point_are_refused() {
    let twice = of([point(1, (512, false), 1.0), point(1, (512, false), 1.0)]);
    let error = twice.unwrap_err().to_string();
    assert!(error.contains("two of head_dim 64 and length 512"), "{error}");
}
