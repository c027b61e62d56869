//! How well the cost model's predictions rank the configs of spaces that were measured once.

use std::path::PathBuf;
use std::time::Instant;

use flashcore_bench::Agreement;
use flashcore_bench::micro::DeviceRates;
use flashcore_check::cost::{MeasuredCard, Observation};
use flashcore_ir::Profile;
use flashcore_kernels::{Config, KernelCache, Plan};
use flashcore_problem::Problem;
use flashcore_problem::rng::Rng;
use flashcore_tune::insight::is_to_spill;
use flashcore_tune::read_measured;
use flashcore_tune::replay::{Row, Table};
use rayon::prelude::*;

/// Timed first, as `--strategy ranked` does.
const FIRST: usize = 8;
/// Drawn in a part of the space, as `--strategy ranked` does.
const PART: usize = 96;

/// Predicts the configs of measured spaces: the rank of the truly best one, and which configs are
/// predicted to spill.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Measured spaces.
    file: String,
    /// Rates that `flashcore device` measured on the card, to predict with as well.
    #[arg(long)]
    measured: Option<PathBuf>,
    /// Predict this many configs, drawn at random, in place of all.
    #[arg(long, default_value_t = usize::MAX, hide_default_value = true)]
    drawn: usize,
    /// Print a line for each config: its id, its time and the predicted one, µs.
    #[arg(long)]
    configs: bool,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let read = |path: &PathBuf| DeviceRates::read(path).map(|rates| rates.card());
    let card = options.measured.as_ref().map(read).transpose()?;
    let measured = read_measured(&options.file)?;
    let device = &measured.identity.device;
    let profile = Profile::of_device(&device.name, device.units).ok_or("no profile for the card")?;
    println!(
        "measured on {} (driver {}), revision {}",
        device.name, device.driver, measured.identity.revision
    );
    for table in &measured.tables {
        let mut timed: Vec<&Row> = table.timed.iter().collect();
        shuffle(&mut timed, 1);
        timed.truncate(options.drawn);
        let began = Instant::now();
        let observed: Vec<Option<Observation>> = timed
            .par_iter()
            .map(|row| observe(&table.case.problem, &row.0, profile))
            .collect();
        let each = began.elapsed().as_secs_f64() / timed.len() as f64;
        println!(
            "\n{} ({}), {} configs timed; {} predicted, {:.0} ms each on {} threads",
            table.case.name,
            table.case.problem,
            table.timed.len(),
            observed.iter().flatten().count(),
            1e3 * each,
            rayon::current_num_threads()
        );
        println!(
            "  rates      Spearman  measured/predicted   best stands at  first 8 lose  8 of 96 lose  8 drawn lose"
        );
        report("profile's", table, &timed, &observed, profile, None);
        spills(table, &timed, &observed, profile);
        if options.configs {
            for (row, observed) in timed.iter().zip(&observed) {
                let micros = observed.as_ref().map(|observed| observed.predict(profile, &[]).micros);
                println!("  {} {} {:.3}", row.0, row.1, micros.unwrap_or(f64::NAN));
            }
        }
        if let Some(card) = &card {
            report("measured", table, &timed, &observed, profile, Some(card));
        }
    }
    crate::verdict(true)
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

fn report(
    name: &str,
    table: &Table,
    timed: &[&Row],
    observed: &[Option<Observation>],
    profile: &Profile,
    card: Option<&MeasuredCard>,
) {
    let predicted = |observed: &Observation| observed.predict_measured(profile, card, &[]).micros;
    let pairs = observed.iter().zip(timed);
    let pairs = pairs.filter_map(|(observed, row)| Some((predicted(observed.as_ref()?), row.1)));
    let mut pairs: Vec<(f64, f64)> = pairs.collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let Some(agreement) = Agreement::of(&pairs) else { return };
    let best = table.best().map_or(f64::NAN, |row| row.1);
    let stands = pairs.iter().position(|pair| pair.1 <= best);
    let stands = stands.map_or("-".to_string(), |at| (at + 1).to_string());
    println!(
        "  {name:<10} {:>8.3}  {:>9.2} ({:.2}-{:.2})  {:>7} of {:<5} {:>8.1} %   {:>8.1} %    {:>8.1} %",
        agreement.spearman,
        agreement.median_ratio,
        agreement.p10_ratio,
        agreement.p90_ratio,
        stands,
        pairs.len(),
        100.0 * (fastest(&pairs[..FIRST.min(pairs.len())]) / best - 1.0),
        100.0 * lost(&pairs, PART, best),
        100.0 * lost(&pairs, FIRST, best)
    );
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
