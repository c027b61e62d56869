//! Means worked out by hand, and intervals held against the truth.

use flashcore_problem::rng::Rng;

use super::*;
use crate::report::tests::report;

fn shape(case: &str, speedup: f64, lo: f64, hi: f64) -> Shape {
    Shape {
        case: case.to_string(),
        group: Group {
            head_dim: 64,
            mask: "full".to_string(),
            length: Length::Short,
        },
        subject: "mma/a".to_string(),
        speedup,
        interval: Interval { lo, hi },
    }
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

#[test]
fn the_mean_and_its_interval_are_those_of_a_calculation_by_hand() {
    // sqrt(1.21 · 1) = 1.1; half-widths ln 1.1 each, so sqrt(2) ln 1.1 / 2 of the mean's logarithm.
    let shapes = [shape("a", 1.21, 1.1, 1.331), shape("b", 1.0, 1.0 / 1.1, 1.1)];
    let mean = Geomean::of(&shapes).unwrap();
    assert!(close(mean.value, 1.1), "{mean:?}");
    let half = 1.1f64.powf(std::f64::consts::FRAC_1_SQRT_2);
    let interval = mean.interval.unwrap();
    assert!(
        close(interval.lo, 1.1 / half) && close(interval.hi, 1.1 * half),
        "{mean:?}"
    );
    assert_eq!((mean.shapes, mean.worst.case.as_str()), (2, "b"));
    // One shape is its own mean; the ends need not lie alike.
    let alone = Geomean::of(&shapes[..1]).unwrap().interval.unwrap();
    assert!(close(alone.lo, 1.1) && close(alone.hi, 1.331));
    // Three of them: cube root of 2 · 4 · 1.
    let three = [
        shape("a", 2.0, 2.0, 2.0),
        shape("b", 4.0, 4.0, 4.0),
        shape("c", 1.0, 1.0, 1.0),
    ];
    assert!(close(Geomean::of(&three).unwrap().value, 2.0));
    assert!(Geomean::of(&[]).is_none());
}

#[test]
fn a_shape_of_which_little_is_known_leaves_the_mean_without_an_interval() {
    let ratio = Ratio {
        value: 0.5,
        interval: Interval::UNKNOWN,
        of_medians: 0.5,
        rounds: 2,
    };
    let unknown = Shape::new("x", shape("x", 1.0, 1.0, 1.0).group, "mma/a", &ratio);
    assert_eq!((unknown.speedup, unknown.interval.lo), (2.0, 0.0));
    let mean = Geomean::of(&[unknown, shape("a", 2.0, 1.9, 2.1)]).unwrap();
    assert!(mean.interval.is_none() && close(mean.value, 2.0));
}

/// Twelve rounds each of six shapes, whose true speed-ups are known.
#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    let mut rng = Rng::new(9);
    let truth: Vec<f64> = (0..6).map(|i| 0.9 + 0.1 * f64::from(i)).collect();
    let mean = (truth.iter().map(|x| x.ln()).sum::<f64>() / 6.0).exp();
    let (trials, mut held, mut width) = (400, 0, 0.0);
    for _ in 0..trials {
        let shapes: Vec<Shape> = truth
            .iter()
            .map(|speedup| {
                let mut times =
                    |us: f64| -> Vec<f64> { (0..12).map(|_| us * (1.0 + 0.02 * f64::from(rng.normal()))).collect() };
                let ratio = Ratio::paired(&times(100.0 / speedup), &times(100.0), 0.99, 400).unwrap();
                Shape::new("x", shape("x", 1.0, 1.0, 1.0).group, "mma/a", &ratio)
            })
            .collect();
        let interval = Geomean::of(&shapes).unwrap().interval.unwrap();
        held += i32::from((interval.lo..=interval.hi).contains(&mean));
        width += interval.relative_half_width(mean) / f64::from(trials);
    }
    assert!(f64::from(held) / f64::from(trials) >= 0.97, "{held} of {trials}");
    // And says something: six shapes know the mean better than one knows itself (about 2.3 %).
    assert!(width < 0.014, "{width}");
}

#[test]
fn a_report_stands_beside_its_baseline_by_kind_of_problem() {
    let report = report(&[
        &[("torch/flash", 10.0), ("mma/a", 8.0), ("mma/b", 9.0)],
        &[("torch/flash", 10.0), ("mma/a", 12.5)],
        &[("torch/flash", 10.0), ("mma/a", 5.0)],
        &[("torch/flash", 10.0), ("fa3", 5.0)],
    ]);
    assert_eq!(report.main_peer(), Some("torch/flash"));
    let standings = report.standings("torch/flash");
    let [standing] = &standings[..] else {
        panic!("{standings:?}")
    };
    // small, its causal sibling and small-b2: 1.25, 0.8 and 2.
    assert!((standing.all.value - 2f64.powf(1.0 / 3.0)).abs() < 1e-9, "{standing:?}");
    assert_eq!(standing.all.worst.case, "small-causal");
    assert_eq!(standing.missing, ["small-b2-causal"]);
    let groups: Vec<(String, usize)> = standing.groups.iter().map(|(g, m)| (g.to_string(), m.shapes)).collect();
    assert_eq!(
        groups,
        [
            ("D64 causal, up to 1k keys".to_string(), 1),
            ("D64 full, up to 1k keys".to_string(), 2)
        ]
    );
    assert!((standing.groups[1].1.value - 2.5f64.sqrt()).abs() < 1e-9);
    let text = crate::table::standing_text(standing);
    assert!(
        text.lines().all(|line| line.chars().count() <= crate::table::COLUMNS),
        "{text}"
    );
    assert!(text.starts_with("geomean 1.260 × torch/flash ["), "{text}");
    for part in [
        "over 3 shapes",
        "  worst 0.800 [",
        "] (small-causal); 0 of 3 intervals include 1.00\n",
        "of 2 at most",
        "no figure for both: small-b2-causal",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // Not compared with something that was no baseline.
    assert!(report.standings("fa3").is_empty());
}
