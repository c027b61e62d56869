//! Recipes: how a number is measured again, and what it was measured with.

use flashcore_check::cost::PREDICT;
use flashcore_check::render;
use flashcore_ir::Profile;
use flashcore_problem::Problem;
use serde::Serialize;

use super::{EvidenceId, Found, Gathered, Number, Origin, Profiled, Timing, time_of};
use crate::identity::CALIBRATED;
use crate::{Case, DeviceIdentity, Interval, Mode, Options, problem_file, problems};

/// Digits of a revision that two builds must have in common.
const REVISION: usize = 7;

/// How a number is measured again.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Recipe {
    /// The number's id.
    pub id: EvidenceId,
    /// What it is.
    pub what: String,
    /// The run that it is of.
    pub run: String,
    /// When that was (UTC).
    pub date: String,
    /// Device, driver, board or host, build, as recorded; `None` for what was not, and for predictions.
    pub device: Option<String>,
    /// The driver.
    pub driver: Option<String>,
    /// The board or host.
    pub uuid: Option<String>,
    /// Git revision of the build.
    pub revision: Option<String>,
    /// SHA-256 of the kernel's module.
    pub module: Option<String>,
    /// The command of the whole run, where recorded.
    pub run_command: Option<String>,
    /// The command that measures this number alone; `None` where only the run's does.
    pub command: Option<String>,
    /// The problem file that the command reads, where the problem has no name.
    pub problem_file: Option<String>,
    /// The value that was recorded, as text with its unit.
    pub value: Option<String>,
    /// The time, if the number is one that can be measured again by itself.
    pub time: Option<Recorded>,
    /// What else a reader must know.
    pub notes: Vec<String>,
}

/// A recorded time, and all it takes to measure it again.
#[derive(Clone, Debug, Serialize)]
pub struct Recorded {
    /// The problem.
    pub case: Case,
    /// The mode.
    pub mode: Mode,
    /// Label of the subject.
    pub label: String,
    /// Whether the subject is a kernel of ours.
    pub ours: bool,
    /// Label of the subject that it was compared with, if it was, and whether that is a kernel of ours.
    pub baseline: Option<(String, bool)>,
    /// Median, µs.
    pub us: f64,
    /// Interval of the median, µs, where recorded.
    pub interval: Option<Interval>,
    /// Settings of the protocol, where recorded.
    pub options: Option<Options>,
}

/// What the file of a problem without a name is called in commands.
const FILE: &str = "problem.json";

impl Recipe {
    /// A recipe with what is known of a run.
    pub fn of_run(id: EvidenceId, what: String, origin: &Origin) -> Recipe {
        let known = |text: &str| Some(text.to_string()).filter(|text| !text.is_empty());
        Recipe {
            id,
            what,
            run: origin.key.clone(),
            date: origin.date.clone(),
            device: known(&origin.device.name),
            driver: known(&origin.device.driver),
            uuid: known(&origin.device.uuid),
            revision: Some(origin.revision.clone()),
            run_command: origin.command.clone(),
            notes: origin.notes.clone(),
            ..Recipe::default()
        }
    }

    /// Says with which subcommand a problem is run: by its name, or from a file. To `bench` a name may be that of a
    /// set.
    #[must_use]
    pub fn with_command(mut self, subcommand: &str, case: &Case, flags: &str) -> Recipe {
        let named = |name: &str| match subcommand {
            "bench" => problems::cases(name, None).is_ok_and(|cases| cases == [case.clone()]),
            _ => Problem::named(name).is_ok_and(|problem| problem == case.problem),
        };
        // A shape as a name has spaces.
        let problem = if !case.name.contains(char::is_whitespace) && named(&case.name) {
            Some(case.name.clone())
        } else {
            self.problem_file = problem_file::text(case);
            self.problem_file.as_ref().map(|_| FILE.to_string())
        };
        self.command = problem.map(|problem| {
            format!("flashcore {subcommand} {problem} {flags}")
                .trim_end()
                .to_string()
        });
        self
    }

    /// What differs here and now from the run, a sentence each: device, driver, board, build. `revision` is that of
    /// this program.
    pub fn differences(&self, here: &DeviceIdentity, revision: &str) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, then: Option<&str>, now: &str| match then {
            None => differences.push(format!("{what} was not recorded; here: {}", said(now))),
            Some(then) if then != now => differences.push(format!("{what} was {then}; here: {}", said(now))),
            Some(_) => {}
        };
        compare("the device", self.device.as_deref(), &here.name);
        // A host has no driver.
        if self.driver.is_some() || !here.driver.is_empty() {
            compare("the driver", self.driver.as_deref(), &here.driver);
        }
        if self.uuid.is_some() {
            compare("the board or host", self.uuid.as_deref(), &here.uuid);
        }
        let same = |then: &str| then.len() >= REVISION && (revision.starts_with(then) || then.starts_with(revision));
        match self.revision.as_deref() {
            Some(then) if same(then) && !then.contains("unknown") => {}
            then => compare("the build", then, revision),
        }
        differences
    }
}

fn said(text: &str) -> &str {
    if text.is_empty() { "none" } else { text }
}

/// A time with its interval.
fn value(us: f64, interval: Option<Interval>) -> String {
    let interval = interval.map_or(String::new(), |Interval { lo, hi }| {
        format!(", between {} and {}", render::time(lo, 4), render::time(hi, 4))
    });
    format!("{}{interval}", render::time(us, 4))
}

impl Recorded {
    /// Whether a time that was measured again agrees: the two intervals have a time in common. `None` where no interval
    /// was recorded.
    pub fn agrees(&self, again: Interval) -> Option<bool> {
        let then = self.interval?;
        Some(again.lo <= then.hi && then.lo <= again.hi)
    }

    /// The flags of `bench` that measure it.
    fn flags(&self) -> String {
        let subjects = || {
            let baseline = self.baseline.iter().map(|(label, ours)| (label.as_str(), *ours));
            baseline.chain([(self.label.as_str(), self.ours)])
        };
        let labels = |ours: bool| {
            let mut labels: Vec<&str> = subjects()
                .filter(|subject| subject.1 == ours)
                .map(|subject| subject.0)
                .collect();
            labels.dedup();
            labels.join(",")
        };
        let mut flags = Vec::new();
        let (kernels, peers) = (labels(true), labels(false));
        flags.extend((!kernels.is_empty()).then(|| format!("--kernel {kernels}")));
        flags.push(format!("--peers {}", if peers.is_empty() { "none" } else { &peers }));
        flags.extend(self.baseline.iter().map(|(label, _)| format!("--baseline {label}")));
        flags.push(format!("--mode {}", self.mode));
        flags.extend(
            self.options
                .iter()
                .map(|options| format!("--budget {}", options.budget_ms / 1e3)),
        );
        flags.join(" ")
    }

    /// The recipe of a time of a run.
    pub fn recipe(self, id: EvidenceId, what: String, origin: &Origin) -> Recipe {
        let mut recipe = Recipe::of_run(id, what, origin).with_command("bench", &self.case, &self.flags());
        recipe.value = Some(value(self.us, self.interval));
        recipe.time = Some(self);
        recipe
    }
}

impl Gathered {
    /// The recipe of what was found; `None` if that is of other sources.
    pub fn recipe(&self, found: &Found<'_>) -> Option<Recipe> {
        let (origin, id, what) = (found.origin, found.id.clone(), found.what());
        let mut recipe = Recipe::of_run(id.clone(), what.clone(), origin);
        match found.number {
            Number::Run => {
                let of_run = |timing: &&Timing| self.origins[timing.origin].id == origin.id;
                let numbers: usize = self.timings.iter().filter(of_run).map(|timing| timing.ids.len()).sum();
                if numbers > 0 {
                    recipe
                        .notes
                        .push(format!("it has {numbers} times, each with an id and a command"));
                }
                Some(recipe)
            }
            Number::Profile(Profiled { record, .. }) => {
                recipe.module = record.subject.module.clone();
                recipe.notes.push(format!("counters by {}", record.tool));
                let flag = if record.subject.is_ours() {
                    "--kernel"
                } else {
                    "--peers"
                };
                Some(recipe.with_command("profile", &record.case, &format!("{flag} {}", record.subject.label)))
            }
            Number::Time(timing, place) => {
                let measurement = &timing.result.measurement;
                let subject = measurement.subjects.get(place)?;
                let baseline = measurement
                    .subjects
                    .get(measurement.baseline)
                    .filter(|_| place != measurement.baseline);
                let Some((us, interval)) = time_of(subject) else {
                    let why = subject.trouble.as_deref().unwrap_or("it was not timed");
                    recipe.notes.push(why.to_string());
                    return Some(recipe);
                };
                if !subject.info.is_ours() && !subject.info.is_peer() {
                    let label = &subject.info.label;
                    recipe.notes.push(format!(
                        "{label} is a kernel of the user: bench --kernel with its file times it"
                    ));
                    return Some(recipe);
                }
                if subject.info.predicted.is_some() {
                    // The file of a calibrated card is not known.
                    let device = &origin.device;
                    let card =
                        Profile::of_device(&device.name, device.units).filter(|_| !device.name.contains(CALIBRATED));
                    let name = card.map_or("CARD", |card| card.name);
                    let flags = format!("--device {PREDICT}{name} --kernel {}", subject.info.label);
                    (recipe.device, recipe.uuid) = (None, None);
                    recipe.value = Some(format!("{} (PREDICTED)", value(us, interval)));
                    return Some(recipe.with_command("bench", &timing.result.case, &flags));
                }
                let recorded = Recorded {
                    case: timing.result.case.clone(),
                    mode: timing.mode(),
                    label: subject.info.label.clone(),
                    ours: subject.info.is_ours(),
                    baseline: baseline.map(|subject| (subject.info.label.clone(), subject.info.is_ours())),
                    us,
                    interval,
                    options: origin.options.clone(),
                };
                let mut recipe = recorded.recipe(id, what, origin);
                recipe.module = subject.info.module.clone();
                Some(recipe)
            }
        }
    }
}
