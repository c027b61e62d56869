//! Sections about what a card was used for: the roofline, the busy shares of its units, shared memory over time.

use flashcore_check::cost::Observation;
use flashcore_check::{CheckOptions, log_of, pictures};
use flashcore_ir::{Chip, Ledger, Profile};
use flashcore_kernels::{Config, Plan};
use flashcore_problem::{DType, Problem, ProblemBuilder};

use super::chapter::{Chapter, how, ours, peer};
use super::{Cell, Section, Table, count};
use crate::chart::{Point, Roof, Shares, bars, roofline};
use crate::gather::{EvidenceId, Origin, Recipe, Timing};
use crate::profile::{Goals, Predicted, Row, rows, verdicts};
use crate::{Case, Measured, Mode};

/// Keys that the kernels are predicted for are nearest to.
const KEYS: f64 = 8192.0;
/// Reasons to wait, and lines, of a profile that are shown.
const WAITS: usize = 3;
const LINES: usize = 5;
/// Accesses of shared memory that are drawn.
const LOGGED: usize = 200_000;
/// Keys and rows of the block whose shared memory is drawn, at most: what a block does repeats.
const DRAWN_KEYS: usize = 1024;
/// Width at which the map of shared memory is shown, pixels.
const MAP_PIXELS: u32 = 960;

/// A kernel on a problem whose use of a card is predicted, because no counters of it are at hand.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// Its id.
    pub id: EvidenceId,
    /// The problem.
    pub case: Case,
    /// The kernel's config id.
    pub kernel: String,
    /// The card.
    pub card: &'static Profile,
    told: Option<Result<Predicted, String>>,
    map: Option<Result<(String, Ledger), String>>,
}

impl Prediction {
    /// What is predicted for a chapter: our quickest kernel on the small shape, and for each head size on the problem
    /// nearest to 8k keys, and on the largest batch of decoding. Not yet computed. None for a host, or a card without a
    /// profile.
    pub fn wanted(chapter: &Chapter<'_>) -> Vec<Prediction> {
        let Some(card) = chapter.profile() else {
            return Vec::new();
        };
        let small = Problem::named("small").ok();
        let mut wanted: Vec<(usize, f64, &Timing, &Measured)> = Vec::new();
        for (dtype, mode, timings) in chapter.grids() {
            if mode != Mode::Hot || !matches!(dtype, DType::F16 | DType::BF16) {
                continue;
            }
            let of_grid = |timing: &&&Timing| how(timing) == how(timings[0]);
            for timing in chapter.timings.iter().filter(of_grid) {
                let problem = &timing.result.case.problem;
                let Some(kernel) = ours(timing).filter(|kernel| kernel.info.label.parse::<Config>().is_ok()) else {
                    continue;
                };
                let keys = problem.seq_len_kv() as f64;
                // The kinds in the order of the section; of a kind the one that is nearest, full rather than causal,
                // fp16 rather than bf16.
                let (kind, away) = match problem {
                    problem if Some(problem) == small.as_ref() => (0, 0.0),
                    problem if problem.seq_len_q() == 1 => (1000, 1.0 / (keys * problem.batch() as f64)),
                    problem => (problem.head_dim(), (keys / KEYS).ln().abs()),
                };
                let away = away + 1e-3 * f64::from(u8::from(problem.mask() != flashcore_problem::Mask::FULL));
                let away = away + 1e-4 * f64::from(u8::from(dtype == DType::BF16));
                match wanted.iter().position(|(known, ..)| *known == kind) {
                    Some(place) if wanted[place].1 <= away => {}
                    Some(place) => wanted[place] = (kind, away, timing, kernel),
                    None => wanted.push((kind, away, timing, kernel)),
                }
            }
        }
        wanted.sort_by_key(|(kind, ..)| *kind);
        let of = |(.., timing, kernel): (usize, f64, &Timing, &Measured)| {
            let (case, kernel) = (timing.result.case.clone(), kernel.info.label.clone());
            Prediction {
                id: EvidenceId::of(&["prediction", &case.problem.to_string(), &kernel, card.name]),
                case,
                kernel,
                card,
                told: None,
                map: None,
            }
        };
        wanted.into_iter().map(of).collect()
    }

    /// How it is predicted again.
    pub fn recipe(&self) -> Recipe {
        let what = format!(
            "prediction of {} on {}, {}",
            self.kernel, self.case.name, self.card.title
        );
        let computed = "it is computed by the program that makes the report: cost model and simulator";
        let nothing = Origin {
            key: "prediction".to_string(),
            notes: vec![computed.to_string()],
            ..Origin::default()
        };
        let flags = format!("--kernel {} --profile {}", self.kernel, self.card.name);
        Recipe::of_run(self.id.clone(), what, &nothing).with_command("explain", &self.case, &flags)
    }

    /// Simulates some blocks and predicts.
    pub fn compute(&mut self) {
        let predicted = self.plan(&self.case.problem).and_then(|plan| {
            let observed = Observation::of(&plan).map_err(|error| error.to_string())?;
            let registers: Vec<Option<u32>> = plan.steps().map(|_| None).collect();
            let prediction = observed.predict(self.card, &registers);
            match prediction.does_not_fit() {
                Some(limit) => Err(format!("no block fits on an SM: {limit}")),
                None => Ok(Predicted::of(&observed, &prediction, self.card, None)),
            }
        });
        self.told = Some(predicted);
    }

    /// Simulates a block and draws its shared memory.
    pub fn draw(&mut self) {
        self.map = Some(self.map());
    }

    fn map(&self) -> Result<(String, Ledger), String> {
        let problem = &self.case.problem;
        let group = problem.num_heads() / problem.num_kv_heads().max(1);
        let small = ProblemBuilder::from(problem)
            .batch(1)
            .heads(group, 1)
            .seq_len(problem.seq_len_kv().min(DRAWN_KEYS))
            .seq_len_q(problem.seq_len_q().min(DRAWN_KEYS))
            .build()
            .map_err(|error| error.to_string())?;
        let plan = self.plan(&small)?;
        let log = log_of(&plan, &CheckOptions::default(), LOGGED).map_err(|error| error.to_string())?;
        let ledger = plan.main.kernel.ledger();
        let title = format!("{small} · {}", self.kernel);
        Ok((pictures::memory_map(ledger, &log, &title), ledger.clone()))
    }

    fn plan(&self, problem: &Problem) -> Result<Plan, String> {
        let config: Config = self.kernel.parse().map_err(|error| format!("{error}"))?;
        Plan::new(problem, &config, Chip::from(self.card)).map_err(|refusal| refusal.to_string())
    }
}

pub(super) fn sections(chapter: &Chapter<'_>, predictions: &[Prediction]) -> Vec<Section> {
    vec![roofs(chapter), pipes(chapter, predictions), maps(predictions)]
}

/// The roofline of the largest grid of 16-bit elements.
fn roofs(chapter: &Chapter<'_>) -> Section {
    let mut section = Section::new("Roofline");
    let Some(card) = chapter.profile() else {
        return section;
    };
    let mut grids = chapter.grids().into_iter();
    let Some((.., timings)) = grids.find(|(dtype, ..)| matches!(dtype, DType::F16 | DType::BF16)) else {
        return section;
    };
    let roof = Roof {
        tflops: card.tensor_f16_f32acc_tflops,
        gbps: card.dram_gbps,
    };
    let how = how(timings[0]);
    let mut points = Vec::new();
    for timing in &timings {
        let result = &timing.result;
        let intensity = result.flops / result.bytes;
        for (subject, ours) in [(ours(timing), true), (peer(timing), false)] {
            points.extend(subject.and_then(|subject| subject.summary).map(|summary| Point {
                intensity,
                tflops: result.tflops(summary.p50),
                ours,
            }));
        }
    }
    let description = format!(
        "TFLOP/s against operations per byte that must move, both logarithmic, {how}: FlashCore and the quickest peer on \
         {}, below the limits of {} by its datasheet. Hot inputs may lie in L2 and pass the roof of memory.",
        count(timings.len(), "problem"),
        card.title
    );
    section.draw(
        roofline(&format!("Roofline of {}, {how}", card.title), roof, &points),
        description,
    );
    section
}

/// The busy shares: counters where there are any, else predictions.
fn pipes(chapter: &Chapter<'_>, predictions: &[Prediction]) -> Section {
    let mut section = Section::new("Pipes");
    let mut table = Table::new(
        "Busy shares, per cent of the time.",
        &["problem", "subject", "unit", "measured", "predicted", "evidence"],
    );
    let mut drawn = Vec::new();
    let mut add = |case: &Case, label: &str, rows: &[Row], id: &EvidenceId| {
        drawn.push(Shares {
            title: [case.name.clone(), label.to_string()],
            rows: rows
                .iter()
                .map(|row| (row.title.to_string(), row.measured, row.predicted))
                .collect(),
        });
        let shown = |share: Option<f64>| share.map_or("–".to_string(), |share| format!("{share:.1}"));
        for row in rows {
            table.rows.push(vec![
                Cell::text(&case.name),
                Cell::code(label),
                Cell::text(row.title),
                Cell::number(shown(row.measured)),
                Cell::number(shown(row.predicted)),
                Cell::Evidence(id.clone()),
            ]);
        }
    };
    for profiled in &chapter.profiles {
        // The first launch of a plan does the work.
        let record = &profiled.record;
        let all = rows(record.launches.first(), record.predicted.as_ref());
        add(&record.case, &record.subject.label, &all, &profiled.id);
    }
    let mut why = Vec::new();
    let is_profiled = |wanted: &Prediction| {
        let mut records = chapter.profiles.iter().map(|profiled| &profiled.record);
        records.any(|record| (&record.case.problem, &record.subject.label) == (&wanted.case.problem, &wanted.kernel))
    };
    let mut predicted = 0;
    for wanted in predictions.iter().filter(|wanted| !is_profiled(wanted)) {
        match &wanted.told {
            Some(Ok(told)) => {
                predicted += 1;
                add(&wanted.case, &wanted.kernel, &rows(None, Some(told)), &wanted.id);
            }
            Some(Err(error)) => why.push(format!("{} on {}: {error}", wanted.kernel, wanted.case.name)),
            None => {}
        }
    }
    let profiled = chapter.profiles.len();
    match (profiled, predicted) {
        (0, 0) => {}
        (0, _) => section.say(
            "No counters are among the sources: these shares are PREDICTED by the cost model from simulated blocks, with \
             estimated registers. The command flashcore profile measures them.",
        ),
        (_, 0) => section.say("Counters of single launches by Nsight Compute, with warm caches."),
        _ => section.say(format!(
            "Counters by Nsight Compute of {}, with warm caches. Of {} more there are none: theirs are PREDICTED alone.",
            count(profiled, "kernel"),
            count(predicted, "kernel"),
        )),
    }
    if !drawn.is_empty() {
        let description = format!(
            "Busy shares of the units of the card, a group of bars for each kernel ({}): measured above, predicted below.",
            count(drawn.len(), "kernel")
        );
        section.draw(bars("Busy shares, per cent of the time", &drawn), description);
    }
    section.tabulate(table);
    section.tabulate(goals(chapter));
    section.tabulate(lines(chapter));
    if !why.is_empty() {
        section.say(format!("Not predicted: {}.", why.join("; ")));
    }
    section
}

/// The counters that have a goal, and what warps waited for.
fn goals(chapter: &Chapter<'_>) -> Table {
    let mut table = Table::new(
        "Goals of a launch, per cent, and what most warps waited for.",
        &["problem", "subject", "goals", "waits", "evidence"],
    );
    for profiled in &chapter.profiles {
        let (record, Some(launch)) = (&profiled.record, profiled.record.launches.first()) else {
            continue;
        };
        let goals = verdicts(launch, &Goals::default()).into_iter().filter_map(|verdict| {
            let said = if verdict.reached? { "reached" } else { "not reached" };
            Some(format!(
                "{} {:.0} of {:.0} ({said})",
                verdict.key, verdict.measured, verdict.goal
            ))
        });
        let waits = launch.waits().into_iter().take(WAITS);
        let waits = waits.map(|(reason, share)| format!("{} {share:.0}", reason.replace('_', " ")));
        table.rows.push(vec![
            Cell::text(&record.case.name),
            Cell::code(&record.subject.label),
            Cell::text(goals.collect::<Vec<_>>().join(", ")),
            Cell::text(waits.collect::<Vec<_>>().join(", ")),
            Cell::Evidence(profiled.id.clone()),
        ]);
    }
    table
}

/// The lines of each kernel at which warps were sampled most.
fn lines(chapter: &Chapter<'_>) -> Table {
    let mut table = Table::new(
        "Rust lines at which most warps were sampled, per cent of the samples that are kept, and the shared-memory \
         wavefronts that bank conflicts added there.",
        &["subject", "line", "samples", "waits for", "conflicts", "evidence"],
    );
    for profiled in &chapter.profiles {
        let launch = profiled.record.launches.first();
        let lines = launch.map(|launch| launch.lines.as_slice()).unwrap_or_default();
        let all: f64 = lines.iter().map(|line| line.samples).sum();
        for line in lines.iter().take(LINES).filter(|line| line.samples > 0.0) {
            table.rows.push(vec![
                Cell::code(&profiled.record.subject.label),
                Cell::code(format!("{}:{}", line.file, line.line)),
                Cell::number(format!("{:.1}", 100.0 * line.samples / all)),
                Cell::text(line.waits_for.clone().unwrap_or_default()),
                Cell::number(format!("{:.0}", line.wavefronts_excess)),
                Cell::Evidence(profiled.id.clone()),
            ]);
        }
    }
    table
}

fn maps(predictions: &[Prediction]) -> Section {
    let mut section = Section::new("Shared memory");
    for wanted in predictions {
        match &wanted.map {
            None => {}
            Some(Err(error)) => {
                section.say(format!(
                    "Not drawn for {} on {}: {error}.",
                    wanted.kernel, wanted.case.name
                ));
            }
            Some(Ok((svg, ledger))) => {
                if wanted.kernel.starts_with("wgmma/") {
                    section
                        .say("Bulk copies and wgmma access shared memory without lanes; their accesses are not drawn.");
                }
                let description = format!(
                    "Shared memory of a block of {} (down, a buffer's height is its size) over the operations of the \
                     simulator (across): orange is written, blue is read, purple is both.",
                    wanted.kernel
                );
                section.draw_svg(svg.clone(), MAP_PIXELS, description);
                let mut table = Table::new(
                    format!(
                        "Buffers of {}, {} B in all, counted by the simulator.",
                        wanted.kernel,
                        ledger.total_bytes()
                    ),
                    &["buffer", "offset", "bytes", "evidence"],
                );
                table.rows.extend(ledger.buffers.iter().map(|buffer| {
                    vec![
                        Cell::code(&buffer.name),
                        Cell::number(buffer.offset.to_string()),
                        Cell::number(buffer.bytes.to_string()),
                        Cell::Evidence(wanted.id.clone()),
                    ]
                }));
                section.tabulate(table);
            }
        }
    }
    section
}
