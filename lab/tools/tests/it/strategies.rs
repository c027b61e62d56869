//! Search strategies compared on spaces that were measured once. A replay is kinder than a search on a GPU: each
//! proposal has seen the result of the one before, where there eight are on their way at once, and times are exact.

use std::collections::HashMap;

use flashcore_bench::{Case, stats};
use flashcore_ir::Profile;
use flashcore_problem::Problem;
use flashcore_tune::insight::{self, Advisor, Scored, Tally};
use flashcore_tune::replay::{Failed, Known, Measured, Row, Table};
use flashcore_tune::space::CPU;
use flashcore_tune::strategy::Kind;
use flashcore_tune::{History, Space, Timed, Trial, TuneError, Verdict};
use rayon::prelude::*;

/// A table to replay searches on.
struct Field<'t> {
    space: Space,
    known: HashMap<String, Known>,
    start: &'t str,
    advisor: Option<&'t Advisor>,
}

impl Field<'_> {
    /// A strategy with one seed: the time of the best config after each trial, relative to the best
    /// there is (1 when it is found), and what came of its claims.
    fn replay(&self, kind: Kind, seed: u64, trials: usize) -> Result<(Vec<f64>, Vec<Scored>), TuneError> {
        let Field { space, known, .. } = self;
        let time = |known: &Known| known.as_ref().map_or(f64::INFINITY, |(us, _)| *us);
        let optimum = known.values().map(time).fold(f64::INFINITY, f64::min);
        let mut strategy = kind.start(seed, self.advisor)?;
        let mut history = History::default();
        let mut curve = Vec::with_capacity(trials);
        let mut next = Some((self.start.to_string(), "start".to_string()));
        while let Some((id, origin)) = next {
            let missing = || TuneError::nothing(format!("{id} was not measured"));
            let outcome = known.get(&id).ok_or_else(missing)?;
            history.add(replayed(curve.len(), &id, origin, outcome, optimum));
            let before = curve.last().copied().unwrap_or(f64::INFINITY);
            curve.push(before.min(time(outcome) / optimum));
            if curve.len() >= trials {
                break;
            }
            let proposal = strategy.propose(&history, space)?;
            next = proposal.map(|proposal| (proposal.id, proposal.origin));
        }
        let insights = strategy.insights(&history, space);
        let claims = insights.map(|insights| insights.claims().claims);
        Ok((curve, claims.unwrap_or_default()))
    }
}

fn replayed(number: usize, id: &str, origin: String, known: &Known, optimum: f64) -> Trial {
    let (verdict, reason, timed) = match known {
        Err((verdict, reason)) => (*verdict, reason.clone(), None),
        Ok((us, interval)) => {
            let timed = Timed {
                us: *us,
                interval: *interval,
                against: None,
                ratio: None,
                score: us / optimum,
                registers: None,
                module: None,
                error: None,
                tolerance: None,
            };
            (Verdict::Ambiguous, "replayed".to_string(), Some(timed))
        }
    };
    Trial {
        number,
        id: id.to_string(),
        origin,
        verdict,
        reason,
        timed,
        fingerprint: None,
        same_as: None,
        unjudged: Vec::new(),
        seconds: 0.0,
        counters: None,
    }
}

/// How a strategy did over many seeds on one table.
struct Comparison {
    /// The strategy.
    strategy: &'static str,
    /// Median over seeds of the best after each trial, relative to the best there is.
    medians: Vec<f64>,
    /// Trials in which a quarter of the seeds, half, and three quarters came within [`WITHIN`] of
    /// the best; `None` where they never did.
    trials_within: [Option<usize>; 3],
    /// What came of each kind of claim, over all seeds; empty where none were made.
    claims: Vec<Tally>,
}

/// How near the best is near enough, relative.
const WITHIN: f64 = 0.02;

/// Strategies on a table, from its worst config, over many seeds.
fn compare(
    table: &Table,
    kinds: &[Kind],
    seeds: u64,
    trials: usize,
    advisor: Option<&Advisor>,
) -> Result<Vec<Comparison>, TuneError> {
    let missing = || TuneError::nothing("nothing in the table was timed");
    let worst = table.worst().ok_or_else(missing)?;
    let field = Field {
        space: table.space(),
        known: table.by_id(),
        start: &worst.0,
        advisor,
    };
    let size = field.known.len();
    let compared = kinds.iter().map(|&kind| {
        let replayed = (0..seeds).into_par_iter().map(|seed| field.replay(kind, seed, trials));
        let replayed = replayed.collect::<Result<Vec<_>, _>>()?;
        let (curves, claims): (Vec<Vec<f64>>, Vec<Vec<Scored>>) = replayed.into_iter().unzip();
        let median = |trial: usize| {
            let values = curves.iter().filter_map(|curve| curve.get(trial).or(curve.last()));
            stats::median(&values.copied().collect::<Vec<f64>>())
        };
        // A curve that never comes near counts as infinitely long.
        let near = |curve: &Vec<f64>| curve.iter().position(|best| *best <= 1.0 + WITHIN);
        let within = curves.iter().map(|curve| near(curve).map_or(usize::MAX, |at| at + 1));
        let mut within: Vec<usize> = within.collect();
        within.sort_unstable();
        let part = |of_four: usize| {
            let at = within.get(within.len() * of_four / 4).copied();
            at.filter(|trials| *trials != usize::MAX)
        };
        Ok(Comparison {
            strategy: kind.name(),
            medians: (0..trials.min(size)).map(median).collect(),
            trials_within: [1, 2, 3].map(part),
            claims: insight::table(&claims.concat()),
        })
    });
    compared.collect()
}

/// Strategies on each measured space, as lines, and the trials to within 2 % of the best over all spaces in geometric
/// mean; `None` where half of the seeds never come near.
fn on_measured_spaces(kinds: &[Kind], seeds: u64, trials: usize) -> Vec<(&'static str, Option<f64>)> {
    let measured = Measured::shipped().unwrap();
    let mut means: Vec<_> = kinds.iter().map(|kind| (kind.name(), Some(1.0))).collect();
    for table in &measured.tables {
        let (name, size) = (&table.case.name, table.by_id().len());
        println!("{name}: {size} configs; slower than the best after 10, 50, 200 trials; trials to within 2 %");
        let advisor = measured.advisor(&table.case.problem);
        let compared = compare(table, kinds, seeds, trials, advisor.as_ref()).unwrap();
        for (one, (_, mean)) in compared.iter().zip(&mut means) {
            let after = [10, 50, 200].map(|trials| one.medians.get(trials - 1).map(|best| 100.0 * (best - 1.0)));
            println!("  {:<15} {after:.1?} %  {:?}", one.strategy, one.trials_within);
            Tally::table(&one.claims).iter().for_each(|line| println!("    {line}"));
            let trials = one.trials_within[1].map(|trials| (trials as f64).powf(1.0 / measured.tables.len() as f64));
            *mean = mean.zip(trials).map(|(mean, trials)| mean * trials);
        }
    }
    println!("{means:?}");
    means
}

#[test]
fn evolution_finds_good_kernels_sooner_than_chance() {
    let kinds = [Kind::Random, Kind::Elite];
    let means = on_measured_spaces(&kinds, 10, 450);
    let [(_, Some(chance)), (_, Some(elite))] = means[..] else {
        panic!("{means:?}")
    };
    assert!(elite < chance, "{means:?}");
}

/// The table of docs/tune-internals.md.
#[test]
#[ignore = "takes an hour"]
fn what_the_cost_model_ranks_is_found_soonest() {
    // Exhaustive search has no seeds: it only shows how its families are ordered.
    let means = on_measured_spaces(&Kind::all()[1..], 50, 200);
    let ranked = means.iter().find(|(name, _)| *name == Kind::Ranked.name()).unwrap();
    let soonest = means.iter().filter_map(|(_, mean)| *mean).fold(f64::INFINITY, f64::min);
    assert_eq!(ranked.1, Some(soonest), "{means:?}");
}

/// The host's configs, with the fastest in a valley; what is very large does not work.
fn table() -> Table {
    let (mut timed, mut broken) = (Vec::new(), Vec::new());
    for id in CPU.ids() {
        let (rows, cols) = id.strip_prefix("cpu/m").unwrap().split_once('n').unwrap();
        let (rows, cols): (f64, f64) = (rows.parse().unwrap(), cols.parse().unwrap());
        let us = 1.0 + (rows / 128.0).log2().abs() + (cols / 256.0).log2().abs();
        if rows * cols < 200_000.0 {
            timed.push(Row(id, us, us, us))
        } else {
            broken.push(id)
        }
    }
    Table {
        case: Case::new("valley", Problem::named("small").unwrap()),
        timed,
        failed: vec![Failed {
            verdict: Verdict::BuildFailed,
            reason: "too large".to_string(),
            ids: broken,
        }],
    }
}

#[test]
fn a_replay_only_gets_better_and_ends_at_the_best() {
    let table = table();
    assert_eq!(
        (table.by_id().len(), table.best().unwrap().0.as_str()),
        (120, "cpu/m128n256")
    );
    // It has nothing to say about the host's kernels.
    let advisor = Advisor::new(&Problem::named("small").unwrap(), Profile::named("l4").unwrap());
    let mut field = Field {
        space: table.space(),
        known: table.by_id(),
        start: &table.worst().unwrap().0,
        advisor: Some(&advisor),
    };
    for kind in Kind::all() {
        let (curve, _) = field.replay(kind, 1, 500).unwrap();
        assert!(curve.windows(2).all(|pair| pair[1] <= pair[0]));
        assert_eq!((curve.len(), *curve.last().unwrap()), (120, 1.0), "{}", kind.name());
    }
    field.start = "cpu/m80n16";
    assert!(field.replay(Kind::Random, 1, 5).is_err());
}

#[test]
fn strategies_are_compared_over_seeds() {
    let table = table();
    let kinds = [Kind::Random, Kind::Elite];
    let compared = compare(&table, &kinds, 20, 120, None).unwrap();
    let [chance, elite] = &compared[..] else { panic!() };
    assert!(elite.trials_within[1].unwrap() < chance.trials_within[1].unwrap());
    assert_eq!(chance.medians.len(), 120);
    assert!(chance.trials_within.is_sorted());
}
