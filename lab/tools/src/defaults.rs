//! The kernels that heuristics choose, judged against the best of many trials on random problems.

mod bed;
mod sweep;

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use flashcore::Device;
use flashcore::unstable::cuda::Stream;
use flashcore_bench::stats::{RESAMPLES, median};
use flashcore_bench::{Case, Ratio, problems};
use flashcore_ir::{Chip, files};
use flashcore_kernels::{KernelCache, Plan, near, select};
use flashcore_problem::DType;
use flashcore_problem::rng::Rng;
use flashcore_tune::worker::{Compilers, Deadlines, Program, compilers_for};
use flashcore_tune::{Gatekeeper, Space};
use rayon::prelude::*;
use serde_json::json;

use self::bed::{Loaded, Memory};
use self::sweep::Listed;

/// Judges the kernel that heuristics choose against the best of many trials, problem by problem.
///
/// Half of the trials are the default, kernels near it and their mutants; the other half are
/// mutants and mixtures of the fastest of those. All are timed briefly, the best again, and the
/// winner is then measured against the default in fresh rounds. Outputs of finalists are compared
/// with the default's. Fails if the default is within `--within` of the winner on less than
/// `--share` of the problems.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Sets, named problems or files, as `flashcore bench` takes them.
    #[arg(required = true)]
    problems: Vec<String>,
    /// Trials a problem.
    #[arg(long, default_value_t = 200)]
    trials: usize,
    /// Relative time that the default may lose.
    #[arg(long, default_value_t = 0.05)]
    within: f64,
    /// Share of the problems on which it may not lose more.
    #[arg(long, default_value_t = 0.9)]
    share: f64,
    /// Begin no further problem after so many seconds.
    #[arg(long, default_value_t = 350)]
    seconds: u64,
    /// Seed of the trials.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The `flashcore` whose workers compile [default: the one in this program's folder].
    #[arg(long, value_name = "FILE")]
    flashcore: Option<PathBuf>,
    /// Write a row for each problem here.
    #[arg(long, value_name = "FILE.jsonl", required_unless_present = "only")]
    rows: Option<PathBuf>,
    /// Write every trial's time here, µs.
    #[arg(long, value_name = "FILE.jsonl")]
    times: Option<PathBuf>,
    /// Judge nothing: time the kernels of this file, lists of ids by the names of problems.
    #[arg(long, value_name = "FILE.json", requires = "times", conflicts_with = "rows")]
    only: Option<PathBuf>,
}

/// Problems whose kernels are compiled together.
const GROUP: usize = 12;
/// Trials that are the parents of the second half.
const PARENTS: usize = 8;
/// Share of the second half that are mixtures of two parents, and that are drawn from the whole space.
const MIXTURES: f32 = 0.2;
const IMMIGRANTS: f32 = 0.1;
/// Draws for a trial that is new.
const DRAWS: usize = 2000;
/// A batch of a brief timing, of a final and of its untimed runs before, µs.
const BRIEF_US: f64 = 600.0;
const FINAL_US: f64 = 3_000.0;
const LEAD_US: f64 = 1_500.0;
/// Trials that are timed again, and their rounds; finalists and rounds of the last measurement.
const AGAIN: usize = 12;
const AGAIN_ROUNDS: usize = 3;
const FINALISTS: usize = 6;
const FINAL_ROUNDS: usize = 6;
const LAST_ROUNDS: usize = 14;
/// What two correct outputs of normal inputs may differ by: two roundings of numbers below 4.
fn tolerance(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 8e-3,
        _ => 6e-2,
    }
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let mut cases = Vec::new();
    for name in &options.problems {
        cases.extend(problems::cases(name, None)?);
    }
    let program = Program {
        path: crate::flashcore(options.flashcore.as_deref())?,
        args: vec!["worker".into()],
        env: Vec::new(),
    };
    let device = Device::cuda(0)?;
    let context = device.context().ok_or("the judge needs a CUDA device")?;
    let (stream, chip) = (Stream::new(context)?, context.info().chip());
    let devices = [format!("cuda:{}", context.info().ordinal)];
    let count = compilers_for(GROUP * options.trials);
    let compilers = Compilers::new(&program, &devices, Deadlines::default(), count);
    let mut times = options.times.as_ref().map(File::create).transpose()?;
    if let (Some(only), Some(times)) = (&options.only, &mut times) {
        let listed: Listed = serde_json::from_slice(&files::read_capped(only, files::LARGE)?)?;
        sweep::sweep(&cases, &listed, &stream, chip, &compilers, times)?;
        return crate::verdict(true);
    }
    let rows = options.rows.as_ref().ok_or("--rows says where the rows go")?;
    let mut rows = File::create(rows)?;

    let (began, limit) = (Instant::now(), Duration::from_secs(options.seconds));
    let (mut judged, mut good) = (0, 0);
    for group in cases.chunks(GROUP) {
        if began.elapsed() > limit {
            break;
        }
        let mut searches: Vec<Search> = group
            .par_iter()
            .enumerate()
            .map(|(at, case)| Search::new(case, chip, options.seed + at as u64, options.trials / 2))
            .collect::<Result<_, String>>()?;
        compile(&compilers, &searches);
        let built = began.elapsed();
        for search in &mut searches {
            search.time_new(&stream)?;
        }
        let timed = began.elapsed();
        searches
            .par_iter_mut()
            .for_each(|search| search.second_half(options.trials));
        compile(&compilers, &searches);
        eprintln!(
            "{built:.1?} compiled, {timed:.1?} timed, {:.1?} compiled again",
            began.elapsed()
        );
        for mut search in searches {
            search.time_new(&stream)?;
            let verdict = search.judge(&stream)?;
            judged += 1;
            good += usize::from(verdict.ratio.value <= 1.0 + options.within);
            writeln!(rows, "{}", verdict.row(&search))?;
            println!("{:.0?} {}", began.elapsed(), verdict.line(&search));
            if let Some(times) = &mut times {
                let of: BTreeMap<&String, f64> = search
                    .timed
                    .iter()
                    .map(|(id, us)| (id, (us * 100.0).round() / 100.0))
                    .collect();
                writeln!(
                    times,
                    "{}",
                    json!({"case": search.case.name, "us": of, "failed": search.failed})
                )?;
            }
        }
    }
    let share = good as f64 / f64::from(judged.max(1) as u32);
    println!(
        "the default is within {} % of the best of {} trials on {good} of {judged} problems ({:.0} %), {} were left out",
        100.0 * options.within,
        options.trials,
        100.0 * share,
        cases.len() - judged
    );
    crate::verdict(judged == cases.len() && share >= options.share)
}

fn compile(compilers: &Compilers, searches: &[Search]) {
    for search in searches {
        compilers.begin(&search.case.problem, search.new.iter().cloned());
    }
    compilers.wait(|_| ());
}

/// The trials of a problem.
struct Search {
    case: Case,
    space: Space,
    chip: Chip,
    rng: Rng,
    default: String,
    seen: BTreeSet<String>,
    /// Those that are not timed yet.
    new: Vec<String>,
    timed: BTreeMap<String, f64>,
    failed: BTreeMap<String, String>,
}

impl Search {
    /// The default, what is near it, and mutants of those.
    fn new(case: &Case, chip: Chip, seed: u64, trials: usize) -> Result<Search, String> {
        let kernels = KernelCache::default();
        let default = select(&case.problem, chip, 16, &kernels).map_err(|error| format!("{}: {error}", case.name))?;
        let gate = Gatekeeper::new(&case.problem, Some(chip));
        let mut search = Search {
            case: case.clone(),
            space: gate.space(gate.families(), false),
            chip,
            rng: Rng::new(seed),
            default: default.plan.config.to_string(),
            seen: BTreeSet::new(),
            new: Vec::new(),
            timed: BTreeMap::new(),
            failed: BTreeMap::new(),
        };
        let near: Vec<String> = near(&case.problem, chip, &kernels)
            .iter()
            .map(ToString::to_string)
            .collect();
        for id in &near {
            search.add(id.clone());
        }
        search.fill(trials, |space, rng| {
            // The default's neighbours as often as those of all others together.
            let parent = if rng.chance(0.5) { near.first() } else { rng.pick(&near) };
            let levers = rng.between(1, 3);
            space.mutate(parent?, levers, rng)
        });
        Ok(search)
    }

    fn add(&mut self, id: String) {
        if self.seen.insert(id.clone()) {
            self.new.push(id);
        }
    }

    fn fill(&mut self, trials: usize, mut draw: impl FnMut(&Space, &mut Rng) -> Option<String>) {
        for _ in 0..DRAWS {
            if self.seen.len() >= trials {
                break;
            }
            if let Some(id) = draw(&self.space, &mut self.rng) {
                self.add(id);
            }
        }
    }

    fn ranked(&self) -> Vec<String> {
        let mut ranked: Vec<(&String, &f64)> = self.timed.iter().collect();
        ranked.sort_by(|a, b| a.1.total_cmp(b.1));
        ranked.into_iter().map(|(id, _)| id.clone()).collect()
    }

    fn second_half(&mut self, trials: usize) {
        let mut parents = self.ranked();
        parents.truncate(PARENTS);
        self.fill(trials, |space, rng| {
            if rng.chance(IMMIGRANTS) {
                return space.sample(rng);
            }
            let parent = rng.pick(&parents)?.clone();
            if rng.chance(MIXTURES) {
                return space.crossover(&parent, rng.pick(&parents)?, rng);
            }
            let levers = rng.between(1, 2);
            space.mutate(&parent, levers, rng)
        });
    }

    fn plan(&self, id: &str, kernels: &KernelCache) -> Result<Plan, Box<dyn Error>> {
        Ok(Plan::with_cache(&self.case.problem, &id.parse()?, self.chip, kernels)?)
    }

    /// Times every new trial briefly.
    fn time_new(&mut self, stream: &Stream) -> Result<(), Box<dyn Error>> {
        let (kernels, ids) = (KernelCache::default(), std::mem::take(&mut self.new));
        let plans: Vec<(String, Plan)> = ids
            .into_par_iter()
            .filter_map(|id| Some((id.clone(), self.plan(&id, &kernels).ok()?)))
            .collect();
        let memory = Memory::new(stream, &self.case.problem, plans.iter().map(|(_, plan)| plan))?;
        for (id, plan) in &plans {
            let time = || {
                let loaded = Loaded::new(stream, plan, &memory)?;
                let runs = loaded.runs(BRIEF_US)?;
                loaded.time(stream, 0, runs)
            };
            match time() {
                Ok(us) => drop(self.timed.insert(id.clone(), us)),
                Err(error) => drop(self.failed.insert(id.clone(), error.to_string())),
            }
        }
        Ok(())
    }

    /// Measures the fastest and the default again, in turns, then the winner against the default.
    fn judge(&mut self, stream: &Stream) -> Result<Judged, Box<dyn Error>> {
        let kernels = KernelCache::default();
        let mut ids = self.ranked();
        ids.retain(|id| *id != self.default);
        ids.truncate(AGAIN);
        ids.insert(0, self.default.clone());
        let plans: Vec<Plan> = ids.iter().map(|id| self.plan(id, &kernels)).collect::<Result<_, _>>()?;
        let memory = Memory::new(stream, &self.case.problem, plans.iter())?;
        let loaded = plans.iter().map(|plan| Loaded::new(stream, plan, &memory));
        let loaded: Vec<Loaded<'_>> = loaded.collect::<Result<_, _>>()?;
        let mut among: Vec<usize> = (1..loaded.len()).collect();
        let brief = self.rounds(stream, &loaded, &among, AGAIN_ROUNDS, (0.0, 2.0 * BRIEF_US))?;
        among.sort_by(|a, b| median(&brief[a]).total_cmp(&median(&brief[b])));
        // Only finalists whose output is the default's may win.
        let want = memory.output(stream, &loaded[0])?;
        let mut finalists = vec![0];
        for place in among {
            let got = memory.output(stream, &loaded[place])?;
            let off = want.iter().zip(&got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // NaN is no output either.
            if off <= tolerance(self.case.problem.dtype()) && got.iter().all(|x| x.is_finite()) {
                finalists.push(place);
            } else {
                self.failed.insert(
                    ids[place].clone(),
                    format!("its output differs from the default's by {off}"),
                );
            }
            if finalists.len() > FINALISTS {
                break;
            }
        }
        let finals = self.rounds(stream, &loaded, &finalists, FINAL_ROUNDS, (LEAD_US, FINAL_US))?;
        let best = finalists
            .iter()
            .min_by(|a, b| median(&finals[*a]).total_cmp(&median(&finals[*b])));
        let best = *best.ok_or("no finalist")?;
        let mut judged = Judged {
            best: ids[best].clone(),
            us: [median(&finals[&0]); 2],
            ratio: Ratio::paired(&[1.0; 8], &[1.0; 8], 0.99, RESAMPLES).ok_or("no ratio")?,
        };
        if best != 0 {
            let last = self.rounds(stream, &loaded, &[0, best], LAST_ROUNDS, (LEAD_US, FINAL_US))?;
            judged.us = [median(&last[&0]), median(&last[&best])];
            judged.ratio = Ratio::paired(&last[&0], &last[&best], 0.99, RESAMPLES).ok_or("no ratio")?;
        }
        Ok(judged)
    }

    /// Times some kernels in turns, each round in another order, `us` of untimed and timed runs each.
    fn rounds(
        &mut self,
        stream: &Stream,
        loaded: &[Loaded<'_>],
        places: &[usize],
        rounds: usize,
        us: (f64, f64),
    ) -> Result<BTreeMap<usize, Vec<f64>>, Box<dyn Error>> {
        let mut order = places.to_vec();
        let mut times: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
        let mut runs = BTreeMap::new();
        for &place in places {
            runs.insert(place, [loaded[place].runs(us.0)?, loaded[place].runs(us.1)?]);
        }
        for _ in 0..rounds {
            for at in (1..order.len()).rev() {
                order.swap(at, self.rng.below(at + 1));
            }
            for &place in &order {
                let [lead, timed] = runs[&place];
                let lead = if us.0 > 0.0 { lead } else { 0 };
                times
                    .entry(place)
                    .or_default()
                    .push(loaded[place].time(stream, lead, timed)?);
            }
        }
        Ok(times)
    }
}

/// The winner of a problem; times and their ratio are the default's, then the winner's.
struct Judged {
    best: String,
    us: [f64; 2],
    ratio: Ratio,
}

impl Judged {
    fn row(&self, search: &Search) -> serde_json::Value {
        json!({
            "case": search.case.name, "problem": search.case.problem.to_string(), "default": search.default, "best": self.best,
            "default_us": self.us[0], "best_us": self.us[1], "ratio": self.ratio.value,
            "interval": [self.ratio.interval.lo, self.ratio.interval.hi],
            "timed": search.timed.len(), "failed": search.failed.len(),
        })
    }

    fn line(&self, search: &Search) -> String {
        let [default_us, best_us] = self.us;
        format!(
            "{:.3} {} {}: {} {default_us:.1} us, {} {best_us:.1} us",
            self.ratio.value, search.case.name, search.case.problem, search.default, self.best
        )
    }
}
