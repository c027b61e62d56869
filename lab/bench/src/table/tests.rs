//! What tables must hold, whatever is in them.

use super::*;
use crate::report::tests::report;

fn example() -> Report {
    let long = "mma/m128n64-w4-s2-xor-with-a-name-that-goes-on-and-on";
    let shapes: [&[(&str, f64)]; 2] = [
        &[("torch/flash", 10.1), (long, 8.0), ("scalar/naive-t128-v16", 123_456.7)],
        &[("torch/flash", 10.0), ("mma/a", 10.03)],
    ];
    let mut report = report(&shapes);
    report
        .notes
        .push("clocks are not recorded: ".to_string() + &"x".repeat(200));
    let result = &mut report.results[0];
    result.absent.push(("fa3".into(), "not installed".into()));
    result.measurement.readings = vec![
        Reading {
            sm_mhz: Some(1500),
            power_w: Some(690.4),
            throttle: vec!["SW_POWER_CAP".into()],
            ..Reading::default()
        },
        Reading {
            sm_mhz: Some(1560),
            power_w: Some(695.0),
            ..Reading::default()
        },
    ];
    report
}

#[test]
fn tables_fit_a_hundred_columns_and_say_what_matters() {
    let text = text(&example());
    for line in text.lines() {
        assert!(line.chars().count() <= COLUMNS, "{}: {line}", line.chars().count());
    }
    for part in [
        "1500–1560 MHz",
        "690–695 W",
        "SW_POWER_CAP",
        "(base)",
        "FASTER",
        "SLOWER",
        "SAME",
        "fa3: not installed",
        "an empty kernel takes 0.740 µs",
        "TFLOP/s",
        "hot (short turns)",
        "  mma/m128n64-w4-s2-xor-with-a-name-that-goes-on-and-on\n                ",
        "short turns: 2.00 ms of the same subject untimed, then 0.500 ms or more timed",
    ] {
        assert!(text.contains(part), "{part} is missing from\n{text}");
    }
}

/// A row of microseconds has five digits before the point on a CPU, which people do not read.
#[test]
fn times_are_in_the_unit_that_people_read() {
    let text = text(&report(&[&[("cpu/a", 57_981.0), ("cpu/b", 1_526_040.0)]]));
    assert!(text.contains("p50 ms     p90 ms"), "{text}");
    let numbers = text.split_whitespace().filter_map(|word| word.parse::<f64>().ok());
    assert!(
        numbers.clone().count() > 4 && numbers.clone().all(|number| number < 10_000.0),
        "{text}"
    );
}

#[test]
fn csv_has_a_row_a_subject() {
    let csv = csv(&example());
    assert_eq!(csv.lines().count(), 6);
    assert!(csv.lines().all(|line| line.split(',').count() == 16), "{csv}");
}
