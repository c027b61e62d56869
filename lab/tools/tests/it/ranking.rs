//! How well the cost model's predictions rank the configs of spaces that were measured once: where the truly best one
//! stands, and which configs are predicted to spill.

use std::ops::Range;

use flashcore_bench::Agreement;
use flashcore_check::cost::Observation;
use flashcore_ir::Profile;
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::Problem;
use flashcore_problem::rng::Rng;
use flashcore_tune::insight::is_to_spill;
use flashcore_tune::replay::{Measured, Row, Table};
use rayon::prelude::*;

/// Timed first, as `--strategy ranked` does.
const FIRST: usize = 8;
/// Drawn in a part of the space, as `--strategy ranked` does.
const PART: usize = 96;

/// Predicts configs of the measured spaces, `drawn` of each problem, with the profile's rates. Spearman's rank
/// correlation with the measured times, by problem.
fn predict(problems: Range<usize>, drawn: usize) -> Vec<f64> {
    let measured = Measured::shipped().unwrap();
    let device = &measured.identity.device;
    let profile = Profile::of_device(&device.name, device.units).unwrap();
    let tables = measured.tables[problems].iter();
    let correlations = tables.map(|table| {
        let mut timed: Vec<&Row> = table.timed.iter().collect();
        shuffle(&mut timed, 1);
        timed.truncate(drawn);
        let observed: Vec<Option<Observation>> = timed
            .par_iter()
            .map(|row| observe(&table.case.problem, &row.0, profile))
            .collect();
        println!(
            "\n{} ({}), {} configs timed",
            table.case.name,
            table.case.problem,
            table.timed.len()
        );
        println!("  Spearman  measured/predicted   best stands at  first 8 lose  8 of 96 lose  8 drawn lose");
        report(table, &timed, &observed, profile)
    });
    correlations.collect()
}

#[test]
fn predictions_rank_kernels_of_the_small_shape() {
    let correlation = predict(0..1, 40)[0];
    assert!(correlation > 0.6, "{correlation}");
}

/// The tables of docs/tune-internals.md.
#[test]
#[ignore = "takes minutes"]
fn predictions_rank_every_measured_kernel() {
    let correlations = predict(0..4, usize::MAX);
    assert!(
        correlations.iter().all(|&correlation| correlation > 0.75),
        "{correlations:?}"
    );
}

fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut rng = Rng::new(seed);
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i + 1));
    }
}

fn observe(problem: &Problem, id: &str, profile: &Profile) -> Option<Observation> {
    let kernels = KernelCache::default();
    let plan = Plan::with_cache(problem, &id.parse::<Config>().ok()?, profile, &kernels).ok()?;
    Observation::with_cache(&plan, &kernels).ok()
}

/// How many of those that did not build are taken to spill, and how many of the others.
fn spills(table: &Table, timed: &[&Row], observed: &[Option<Observation>], profile: &Profile) {
    let is_last = |observed: &Option<Observation>| {
        let registers = observed.as_ref().and_then(|seen| seen.registers(profile.target));
        registers.is_some_and(|registers| is_to_spill(registers, None))
    };
    let failed: Vec<&String> = table.failed.iter().flat_map(|group| &group.ids).collect();
    let rightly = failed
        .par_iter()
        .filter(|id| is_last(&observe(&table.case.problem, id, profile)));
    let all = timed.iter().zip(observed);
    let wrongly: Vec<&&Row> = all.filter(|(_, seen)| is_last(seen)).map(|(row, _)| row).collect();
    println!(
        "  put last as likely to spill: {} of {} that did not build, {} of {} that did",
        rightly.count(),
        failed.len(),
        wrongly.len(),
        timed.len()
    );
    let best = table.best().map_or(f64::NAN, |row| row.1);
    let Some(fastest) = wrongly.iter().min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return;
    };
    let faster = timed.iter().filter(|row| row.1 < fastest.1).count();
    println!(
        "  the fastest of the latter: {}, {:.1} % slower than the best, place {} of {}",
        fastest.0,
        100.0 * (fastest.1 / best - 1.0),
        faster + 1,
        timed.len()
    );
}

fn report(table: &Table, timed: &[&Row], observed: &[Option<Observation>], profile: &Profile) -> f64 {
    let pairs = observed.iter().zip(timed);
    let pairs = pairs.filter_map(|(observed, row)| Some((observed.as_ref()?.predict(profile, &[]).micros, row.1)));
    let mut pairs: Vec<(f64, f64)> = pairs.collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let agreement = Agreement::of(&pairs).unwrap();
    let best = table.best().map_or(f64::NAN, |row| row.1);
    let stands = pairs.iter().position(|pair| pair.1 <= best);
    println!(
        "  {:>8.3}  {:>9.2} ({:.2}-{:.2})  {:>7?} of {:<5} {:>8.1} %   {:>8.1} %    {:>8.1} %",
        agreement.spearman,
        agreement.median_ratio,
        agreement.p10_ratio,
        agreement.p90_ratio,
        stands.map(|at| at + 1),
        pairs.len(),
        100.0 * (fastest(&pairs[..FIRST.min(pairs.len())]) / best - 1.0),
        100.0 * lost(&pairs, PART, best),
        100.0 * lost(&pairs, FIRST, best)
    );
    spills(table, timed, observed, profile);
    agreement.spearman
}

fn fastest(pairs: &[(f64, f64)]) -> f64 {
    pairs.iter().map(|pair| pair.1).fold(f64::INFINITY, f64::min)
}

/// How much slower than the best is the fastest of the first eight by prediction, out of `part`
/// drawn configs: median over draws. With eight drawn this is what chance loses.
fn lost(pairs: &[(f64, f64)], part: usize, best: f64) -> f64 {
    let loss = |seed| {
        let mut drawn: Vec<usize> = (0..pairs.len()).collect();
        shuffle(&mut drawn, seed);
        drawn.truncate(part);
        // Pairs are in the order of predictions.
        drawn.sort_unstable();
        let first: Vec<(f64, f64)> = drawn.iter().take(FIRST).map(|&at| pairs[at]).collect();
        fastest(&first) / best - 1.0
    };
    let mut losses: Vec<f64> = (0..1000).map(loss).collect();
    losses.sort_by(f64::total_cmp);
    losses[losses.len() / 2]
}
