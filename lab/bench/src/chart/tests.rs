//! Charts word by word, and what must hold of any chart.

use super::*;
use crate::problems::cases;
use crate::report::tests::{report, report_on};
use crate::{BenchError, Mode, Report};

/// Nothing of this machine or build.
fn steady(mut report: Report) -> Report {
    report.run.revision = "0123456789ab".to_string();
    report.run.device.device = "cuda:0".to_string();
    report.run.device.name = "A card".to_string();
    report.run.device.architecture = "sm_90".to_string();
    report.run.device.driver = "580/13000".to_string();
    report
}

fn ladder_report() -> Report {
    steady(report(&[&[
        ("torch/flash", 10.0),
        ("torch/cudnn", 8.8),
        ("scalar/naive-t128-v16", 713.0),
        ("scalar/tiled-m32n32-w4-v16", 60.3),
        ("scalar/tiled-m32n32-w8-v16", 42.1),
    ]]))
}

fn rung(id: &str, name: Option<&str>) -> RungName {
    RungName {
        id: id.to_string(),
        name: name.map(str::to_string),
    }
}

fn grid_report() -> Report {
    let mut all = cases("canonical", None).unwrap();
    all.retain(|case| case.problem.head_dim() <= 128 && case.problem.seq_len_kv() <= 2048);
    all.extend(cases("llama", None).unwrap());
    all.extend(cases("decode", None).unwrap().into_iter().take(2));
    let times: Vec<[(&str, f64); 2]> = (0..all.len())
        .map(|index| [("fa3", 100.0), ("mma/a", 55.0 + 7.0 * index as f64)])
        .collect();
    let shapes: Vec<&[(&str, f64)]> = times.iter().map(|pair| &pair[..]).collect();
    steady(report_on(all, &shapes))
}

#[test]
fn a_ladder_in_a_given_order_with_names() {
    let rungs = [
        rung("scalar/naive-t128-v16", Some("one row a thread")),
        rung("scalar/tiled-m32n32-w8-v16", Some("tiles & <shared> memory")),
        rung("torch/flash", Some("FlashAttention-2")),
        rung("torch/cudnn", None),
    ];
    let chart = ladder(&ladder_report(), "small", Mode::Hot, &rungs).unwrap();
    insta::assert_snapshot!("ladder_svg", chart.svg());
}

#[test]
fn a_ladder_of_everything_goes_down_and_ends_in_peers() {
    let chart = ladder(&ladder_report(), "small", Mode::Hot, &[]).unwrap();
    let ladder = chart.svg();
    let place = |text: &str| {
        ladder
            .find(&format!(">{text}<"))
            .unwrap_or_else(|| panic!("{text}: {ladder}"))
    };
    let order = [
        "scalar/naive-t128-v16",
        "scalar/tiled-m32n32-w4-v16",
        "scalar/tiled-m32n32-w8-v16",
        "torch/flash",
        "torch/cudnn",
    ];
    assert!(order.windows(2).all(|pair| place(pair[0]) < place(pair[1])));
    assert!(ladder.starts_with("<svg xmlns=") && ladder.contains("prefers-color-scheme"));
    // 713.7 of 5 … 1000 µs on a logarithmic scale of 420: ln(142.7) / ln(200).
    assert!(ladder.contains("width=\"393.3\""), "{ladder}");
}

#[test]
fn what_was_not_measured_is_no_rung() {
    let report = ladder_report();
    for (case, mode, rungs, said) in [
        (
            "small-b2",
            Mode::Hot,
            vec![],
            "problem is small-b2 (hot); allowed: small",
        ),
        ("small", Mode::Cold, vec![], "problem is small (cold)"),
        (
            "small",
            Mode::Hot,
            vec![rung("mma/x", None)],
            "rung is mma/x; allowed: torch/flash",
        ),
    ] {
        let error = ladder(&report, case, mode, &rungs).unwrap_err();
        assert!(
            matches!(error, BenchError::Given(_)) && error.to_string().contains(said),
            "{error}"
        );
    }
    let error = ratio(&report, "fa3", Mode::Hot).unwrap_err().to_string();
    assert!(error.contains("fa3 (hot); allowed: torch/flash"), "{error}");
}

#[test]
fn speed_ups_are_bars_from_one() {
    let grid = ratio(&grid_report(), "fa3", Mode::Hot).unwrap();
    insta::assert_snapshot!("speedups_svg", grid.svg());
    let svg = grid.svg();
    for part in ["llama8b-prefill-8k", "llama8b-decode-b64-4k", "d64-s512-causal"] {
        assert!(svg.contains(part), "{part}\n{svg}");
    }
}

#[test]
fn one_file_with_no_script_that_asks_for_nothing() {
    for page in [
        ladder(&ladder_report(), "small", Mode::Hot, &[]).unwrap().svg(),
        ratio(&grid_report(), "fa3", Mode::Hot).unwrap().svg(),
    ] {
        // What is in the page itself need not be asked for.
        let page = page.replace("url(#", "");
        for never in ["<script", "<link", "src=", "url(", "@import", "NaN", "inf"] {
            assert!(!page.contains(never), "{never}\n{page}");
        }
        assert_eq!(
            page.matches("http").count(),
            page.matches("http://www.w3.org/2000/svg").count()
        );
        assert!(page.contains("prefers-color-scheme:dark"));
        // An SVG that names an attribute twice is not drawn at all.
        for tag in page.split('<').filter(|tag| tag.contains("=\"")) {
            let names: Vec<&str> = tag
                .split("=\"")
                .filter_map(|part| part.rsplit([' ', '"']).next())
                .collect();
            let names = &names[..names.len() - 1];
            let once: std::collections::BTreeSet<_> = names.iter().collect();
            assert_eq!(once.len(), names.len(), "{tag}");
        }
        // Nothing lies outside of a phone's width.
        for part in page.split(" x=\"").skip(1) {
            let x: f64 = part.split('"').next().unwrap().parse().unwrap();
            assert!((-EDGE..=WIDTH).contains(&x), "{x}");
        }
    }
}
