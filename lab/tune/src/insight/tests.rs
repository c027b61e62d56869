use flashcore_bench::profile::{KernelProfile, LineProfile};
use flashcore_ir::Profile;
use flashcore_problem::{Mask, Problem};

use super::*;
use crate::space::ALL;
use crate::tests::{made_up, trial};

/// Sixteen sequences of sixteen heads, so that the card has more than one wave of blocks.
fn problem(keys: usize) -> Problem {
    let shape = Problem::builder().batch(16).heads(16, 16).head_dim(64);
    shape
        .seq_len_q(256)
        .seq_len_kv(keys)
        .mask(if keys == 256 { Mask::CAUSAL } else { Mask::FULL })
        .build()
        .unwrap()
}

fn space() -> Space {
    Space::new(ALL.into(), |_| Ok(()))
}

fn claims(problem: &Problem, id: &str) -> Vec<Claim> {
    let advisor = Advisor::new(problem, Profile::named("h200").unwrap());
    rules::claims(id, None, &advisor, &space(), &|_| false)
}

/// Asserts that a claim of a kind is made about one config, with a lever and a line, and not about
/// another.
fn kind(problem: &Problem, kind: ClaimKind, must: &str, lever: [&str; 3], line: &str, must_not: &str) {
    let made = claims(problem, must);
    let claim = made.iter().find(|claim| claim.kind == kind && claim.lever == lever[0]);
    let claim = claim.unwrap_or_else(|| panic!("{kind} is not claimed of {must}: {made:#?}"));
    assert_eq!([&*claim.from, &*claim.to], lever[1..], "{claim}");
    assert!(claim.line.as_deref().unwrap_or_default().contains(line), "{claim}");
    assert_eq!(claim.expected.is_none(), kind == ClaimKind::Spills, "{claim}");
    assert!(claim.expected.is_none_or(|percent| percent <= -2.0), "{claim}");
    // What it proposes is the change it names.
    let turned = space().turned(must, lever[0]);
    assert!(
        turned.contains(&(lever[2].to_string(), claim.proposes.clone())),
        "{claim}"
    );
    let others = claims(problem, must_not);
    assert!(others.iter().all(|claim| claim.kind != kind), "{must_not}: {others:#?}");
}

#[test]
fn the_simulator_finds_bank_conflicts_and_sectors() {
    kind(
        &problem(16),
        ClaimKind::BankConflicts,
        "mma/m32n64-w1x4-s2-b3-qsh-lin-always",
        ["swizzled", "false", "true"],
        "mma/kernel.rs:",
        "mma/m32n64-w1x4-s2-b3-qsh-xor-always",
    );
    kind(
        &problem(16),
        ClaimKind::Uncoalesced,
        "scalar/tiled-m32n32-w8-v2",
        ["tile", "m32n32", "m64n32"],
        "scalar/tiled.rs:",
        "scalar/tiled-m32n32-w8-v16",
    );
}

#[test]
fn registers_make_claims() {
    kind(
        &problem(256),
        ClaimKind::Spills,
        "mma/m64n64-w2x1-s4-b2-qreg-xor-spec",
        ["cols", "64", "128"],
        "",
        // One of its changes takes 261 registers where 255 are left, which is within what the
        // estimate is off by.
        "mma/m32n64-w1x2-s2-b1-qreg-xor-cond",
    );
    kind(
        &problem(256),
        ClaimKind::Registers,
        "mma/m128n32-w8x1-s2-b1-qreg-xor-cond",
        ["min_blocks", "1", "2"],
        "",
        "mma/m64n64-w2x1-s4-b2-qsh-xor-spec",
    );
}

#[test]
fn occupancy_and_waves_make_claims() {
    kind(
        &problem(256),
        ClaimKind::Room,
        "mma/m64n64-w2x1-s4-b2-qsh-xor-spec",
        ["stages", "4", "3"],
        "",
        "ladder/hybrid-m128n64-w8",
    );
    let small = Problem::named("small").unwrap();
    kind(
        &small,
        ClaimKind::Waves,
        "mma/m64n64-w2x1-s2-b1-qsh-xor-always",
        ["splits", "1", "2"],
        "",
        "mma/m16n64-w1x2-s2-b1-qsh-xor-always",
    );
}

#[test]
fn the_binding_resource_makes_claims() {
    kind(
        &problem(256),
        ClaimKind::SharedMemory,
        "ladder/mma-m128n64-w8",
        ["warps", "8", "4"],
        "ladder/mma.rs:",
        "wgmma/m64n48-s4-free-always",
    );
    // Eight query heads that read the same keys, one row each.
    let decode = Problem::builder().batch(64).heads(32, 4).seq_len_q(1).seq_len_kv(1024);
    kind(
        &decode.head_dim(64).build().unwrap(),
        ClaimKind::L2,
        "mma/m16n64-w1x4-s3-b2-qreg-xor-cond",
        ["pack_heads", "false", "true"],
        "mma/",
        "mma/m16n64-w1x4-s3-b2-qreg-xor-cond-gqa",
    );
    // Clusters save bytes too, and are not proposed for that.
    let of_clusters = claims(&problem(256), "wgmma/m192n112-s4-free-always");
    assert!(
        of_clusters.iter().all(|claim| claim.kind != ClaimKind::L2),
        "{of_clusters:#?}"
    );
    kind(
        &Problem::named("small").unwrap(),
        ClaimKind::Latency,
        "wgmma/m64n48-s4-free-always",
        ["cols", "48", "64"],
        "",
        "mma/m64n64-w4x1-s2-b1-qsh-xor-always",
    );
    let tiny = Problem::named("tiny").unwrap();
    kind(
        &tiny,
        ClaimKind::Launch,
        "mma/m16n32-w1x2-s4-b1-qreg-xor-spec-k2",
        ["splits", "2", "1"],
        "",
        "mma/m16n32-w1x2-s4-b1-qreg-xor-spec",
    );
    kind(
        &tiny,
        ClaimKind::Arithmetic,
        "ladder/hybrid-m128n64-w8",
        ["warps", "8", "4"],
        "ladder/hybrid.rs:",
        "mma/m16n32-w1x2-s4-b1-qreg-xor-spec",
    );
}

#[test]
fn configs_without_a_plan_or_a_model_have_no_claims() {
    let small = Problem::named("small").unwrap();
    for id in ["cpu/m64n64", "planted/hangs", "mma/m128n256-w4x1-s5-b1-qreg-xor-cond"] {
        assert_eq!(claims(&small, id), [], "{id}");
    }
}

#[test]
fn claims_are_scored_by_the_trial_of_their_change() {
    let advisor = Advisor::new(&problem(256), Profile::named("h200").unwrap());
    let mut insights = Insights::new(advisor);
    let mut history = History::default();
    history.add(trial(0, "start", Some(1.0)));
    insights.follow(&history, &space());
    let expected = [
        ("a", ClaimKind::Room, Some(-10.0), Some(0.92), Score::CameTrue),
        ("b", ClaimKind::Room, Some(-10.0), Some(0.98), Score::DidNot),
        ("c", ClaimKind::Room, Some(-10.0), Some(1.10), Score::SignWrong),
        ("d", ClaimKind::Room, Some(-10.0), None, Score::Failed),
        ("e", ClaimKind::Spills, None, None, Score::CameTrue),
        ("f", ClaimKind::Spills, None, Some(0.90), Score::DidNot),
    ];
    for (to, kind, percent, ..) in expected {
        insights.add(made_up("start", to, kind, percent));
    }
    insights.add(made_up("start", "never tried", ClaimKind::Room, Some(-50.0)));
    assert_eq!(insights.open("start").count(), 7);
    for (number, (to, _, _, score, _)) in expected.iter().enumerate() {
        history.add(trial(number + 1, to, *score));
    }
    insights.follow(&history, &space());
    let scores: Vec<Option<Score>> = insights.claims().claims.iter().map(|scored| scored.score).collect();
    let wanted: Vec<Option<Score>> = expected.iter().map(|one| Some(one.4)).chain([None]).collect();
    assert_eq!(scores, wanted);
    assert_eq!(insights.open("start").count(), 1);
    let [spills, room] = &insights.table()[..] else {
        panic!()
    };
    assert_eq!(
        (spills.kind, spills.made, spills.tried, spills.came_true),
        (ClaimKind::Spills, 2, 2, 1)
    );
    assert_eq!((spills.expected, spills.measured), (None, None));
    assert_eq!(
        (room.made, room.tried, room.came_true, room.sign_wrong, room.failed),
        (5, 4, 1, 1, 1)
    );
    assert_eq!(room.expected, Some(-10.0));
    // -8, -2 and +10 per cent.
    assert!(room.measured.unwrap().abs() < 1e-9);
    assert_eq!(
        (room.trust(), insights.trust(ClaimKind::Room, Source::Model)),
        (2.0 / 6.0, 2.0 / 6.0)
    );
    // A kind without trials has a trust of one half.
    assert_eq!(insights.trust(ClaimKind::Latency, Source::Model), 0.5);
}

#[test]
fn the_same_history_makes_the_same_claims_however_it_is_followed() {
    let advisor = Advisor::new(&problem(256), Profile::named("h200").unwrap());
    let space = space();
    let mut history = History::default();
    let (mut step_by_step, mut at_once) = (Insights::new(advisor.clone()), Insights::new(advisor));
    let ids = [
        ("mma/m64n64-w2x1-s4-b2-qsh-xor-spec", Some(1.0)),
        ("mma/m64n64-w2x1-s3-b2-qsh-xor-spec", Some(0.9)),
        ("mma/m64n32-w2x1-s4-b2-qsh-xor-spec", Some(1.2)),
        ("wgmma/m64n48-s4-free-always", Some(0.8)),
        ("mma/m64n64-w2x1-s3-b2-qreg-xor-spec", None),
        // Too slow for offspring, and not the fastest of its niche.
        ("mma/m64n64-w2x2-s3-b2-qsh-xor-spec", Some(1.5)),
    ];
    for (number, (id, score)) in ids.into_iter().enumerate() {
        history.add(trial(number, id, score));
        step_by_step.follow(&history, &space);
    }
    at_once.follow(&history, &space);
    let claims = step_by_step.claims();
    assert_eq!(claims, at_once.claims());
    assert!(claims.claims.iter().any(|scored| scored.score == Some(Score::CameTrue)));
    assert!(claims.claims.iter().all(|scored| scored.claim.about != ids[5].0));
    // A change that was already tried has no claim.
    let late = claims.claims.iter().filter(|scored| scored.claim.about == ids[1].0);
    assert!(late.clone().count() > 0 && late.clone().all(|scored| scored.claim.proposes != ids[0].0));
    let text = serde_json::to_string(&claims).unwrap();
    assert_eq!(serde_json::from_str::<Claims>(&text).unwrap(), claims);
}

#[test]
fn kernels_that_spilled_on_an_h200_are_predicted_to_spill() {
    // Of the first eight of two searches of before this rule: `git show
    // 1f6798e:evidence/h200/tune/run-mission.txt`, and run-measured.txt there.
    let spilled = [
        "mma/m32n128-w2x4-s2-b3-qsh-xor-always",
        "mma/m32n128-w2x4-s4-b3-qsh-xor-always",
        "mma/m32n128-w2x4-s4-b3-qsh-xor-cond",
        "mma/m32n128-w2x4-s4-b3-qsh-xor-spec",
        "mma/m32n128-w2x4-s5-b3-qsh-xor-always",
        "mma/m32n256-w2x2-s2-b4-qsh-xor-spec",
    ];
    let built = [
        "mma/m32n128-w2x2-s5-b1-qreg-xor-cond",
        "mma/m32n128-w2x2-s4-b3-qsh-xor-always",
        "wgmma/m64n128-s2-c2-free-spec",
        "wgmma/m64n64-s2-c2-free-spec",
    ];
    // They were built, and are 7 % and 40 % slower than the default.
    let wrongly = [
        "mma/m32n128-w1x4-s4-b3-qsh-xor-always",
        "mma/m32n64-w2x4-s4-b3-qsh-xor-always",
    ];
    let advisor = Advisor::new(&Problem::named("small").unwrap(), Profile::named("h200").unwrap());
    let told = |ids: &[&str]| -> Vec<bool> {
        let ids: Vec<String> = ids.iter().map(|id| id.to_string()).collect();
        let predicted = advisor.predict(&ids).into_iter();
        predicted.map(|one| one.unwrap().spills).collect()
    };
    assert_eq!(told(&spilled), [true; 6]);
    assert_eq!(told(&built), [false; 4]);
    assert_eq!(told(&wrongly), [true; 2]);
}

#[test]
fn predictions_and_tables_have_what_is_known() {
    let advisor = Advisor::new(&Problem::named("tiny").unwrap(), Profile::named("l4").unwrap());
    let predicted = advisor.predict(&["scalar/naive-t128-v16".to_string(), "cpu/m64n64".to_string()]);
    assert!(predicted[0].is_some_and(|one| one.micros > 1.0 && !one.spills) && predicted[1].is_none());
    assert!(is_to_spill((290, 255), None) && !is_to_spill((261, 255), None));
    assert!(!is_to_spill((290, 255), Some((280, 255))));
    let lines = Tally::table(&[]);
    assert!(lines.len() == 1 && lines[0].starts_with("kind ") && lines[0].ends_with(" measured"));
}

/// Counters of a launch, with the line that has most samples.
fn counted(shares: &[(&str, f64)], stalls: &[(&str, f64)], line: Option<LineProfile>) -> KernelProfile {
    let map = |of: &[(&str, f64)]| of.iter().map(|(key, value)| (key.to_string(), *value)).collect();
    KernelProfile {
        counters: map(shares),
        stalls: map(stalls),
        lines: line.into_iter().collect(),
        ..KernelProfile::default()
    }
}

fn line(waits_for: &str, wavefronts_excess: f64) -> LineProfile {
    LineProfile {
        file: "/build/crates/kernels/src/mma/kernel.rs".to_string(),
        line: 118,
        source: String::new(),
        samples: 900.0,
        instructions: 64.0,
        wavefronts: 2000.0,
        wavefronts_excess,
        waits_for: Some(waits_for.to_string()),
    }
}

#[test]
fn measured_bottlenecks_make_claims_with_a_line_a_lever_and_a_gain() {
    let small = Problem::named("small").unwrap();
    let advisor = Advisor::new(&small, Profile::named("h200").unwrap());
    let of = |about: &str, counters: &KernelProfile, tried: &dyn Fn(&str) -> bool| {
        rules::claims_of_counters(about, counters, &advisor, &space(), tried)
    };
    // Conflicts that take most of the time of shared memory.
    let linear = "mma/m64n64-w4x1-s2-b1-qsh-lin-always";
    let conflicts = [
        ("wavefronts", 2_400_000.0),
        ("wavefronts_excess", 2_000_000.0),
        ("shared", 80.0),
    ];
    let counters = counted(&conflicts, &[("selected", 40.0)], Some(line("short_sb", 1500.0)));
    let claims = of(linear, &counters, &|_| false);
    let claim = claims
        .iter()
        .find(|claim| claim.kind == ClaimKind::BankConflicts)
        .unwrap();
    assert_eq!(
        (claim.source, &*claim.lever, &*claim.to),
        (Source::Counters, "swizzled", "true")
    );
    assert_eq!(claim.line.as_deref(), Some("crates/kernels/src/mma/kernel.rs:118"));
    assert_eq!(
        claim.evidence,
        "ncu: 2,000,000 of 2,400,000 shared-memory wavefronts are bank conflicts"
    );
    // At most what the conflicts cost: 83 % of the wavefronts, in 80 % of the time.
    let gain = claim.expected.unwrap();
    assert!((-66.7..=-30.0).contains(&gain), "{gain}");
    // What was tried is not claimed, and one without a bottleneck has no claim.
    assert!(
        of(linear, &counters, &|id| id.contains("-xor-"))
            .iter()
            .all(|claim| claim.lever != "swizzled")
    );
    assert_eq!(
        of(
            linear,
            &counted(&conflicts[..1], &[("selected", 60.0), ("wait", 14.0)], None),
            &|_| false
        ),
        []
    );

    // Warps that wait for memory, at a line: more stages, or more warps. The model alone does not know that they wait.
    let swizzled = "mma/m64n64-w4x1-s2-b1-qsh-xor-always";
    let waits = counted(
        &[("sm_busy", 20.0)],
        &[("long_scoreboard", 45.0), ("barrier", 5.0)],
        Some(line("long_sb", 0.0)),
    );
    let claims = of(swizzled, &waits, &|_| false);
    let claim = claims.iter().find(|claim| claim.lever == "stages").unwrap();
    assert_eq!((claim.kind, claim.source), (ClaimKind::Latency, Source::Counters));
    assert!(
        claim
            .evidence
            .contains("45 % of the samples of warps wait for global memory"),
        "{claim}"
    );
    assert!(
        claim.line.is_some() && claim.expected.is_some_and(|gain| (-45.0..=-2.0).contains(&gain)),
        "{claim}"
    );
    // Where device memory binds, that is the bottleneck, whatever warps wait for.
    let bound = counted(&[("dram", 86.0), ("sm_busy", 12.0)], &[("long_scoreboard", 60.0)], None);
    assert!(
        of(swizzled, &bound, &|_| false)
            .iter()
            .all(|claim| claim.kind == ClaimKind::L2)
    );
}

#[test]
fn claims_of_counters_are_made_scored_and_trusted_apart() {
    let small = Problem::named("small").unwrap();
    let about = "mma/m64n64-w4x1-s2-b1-qsh-lin-always";
    let conflicts = [
        ("wavefronts", 2_400_000.0),
        ("wavefronts_excess", 2_000_000.0),
        ("shared", 80.0),
    ];
    let counters = counted(&conflicts, &[], Some(line("short_sb", 1500.0)));
    let mut first = trial(0, about, Some(1.0));
    first.counters = Some(Box::new(counters));
    // A trial is a line of JSON, so a resumed run makes the same claims.
    let text = serde_json::to_string(&first).unwrap();
    assert_eq!(serde_json::from_str::<Trial>(&text).unwrap(), first);
    let mut history = History::default();
    history.add(first);
    let mut insights = Insights::new(Advisor::new(&small, Profile::named("h200").unwrap()));
    insights.follow(&history, &space());
    let proposed = "mma/m64n64-w4x1-s2-b1-qsh-xor-always";
    let sources: Vec<Source> = insights
        .open(about)
        .filter(|of| of.proposes == proposed)
        .map(|of| of.source)
        .collect();
    assert_eq!(sources, [Source::Model, Source::Counters]);
    // It takes a third of the time: both claims come true, each in its own row.
    history.add(trial(1, proposed, Some(0.3)));
    insights.follow(&history, &space());
    let of = |source: Source| {
        let table = insights.table();
        *table
            .iter()
            .find(|tally| (tally.kind, tally.source) == (ClaimKind::BankConflicts, source))
            .unwrap()
    };
    assert_eq!((of(Source::Model).came_true, of(Source::Counters).came_true), (1, 1));
    assert!(insights.trust(ClaimKind::BankConflicts, Source::Counters) > 0.5);
    assert_eq!(insights.trust(ClaimKind::Waves, Source::Counters), 0.5);
    let lines = Tally::table(&insights.table());
    assert!(
        lines.iter().any(|line| line.starts_with("bank-conflicts (ncu)")),
        "{lines:?}"
    );
    assert!(lines.iter().all(|line| line.chars().count() <= 96), "{lines:?}");
    // Files of before there were counters have neither.
    let old = serde_json::to_value(insights.claims())
        .unwrap()
        .to_string()
        .replace("\"source\":\"counters\",", "");
    assert!(serde_json::from_str::<Claims>(&old).is_ok());
}
