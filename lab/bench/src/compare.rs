//! Two sides compared: configs in one run, or evidence files, runs and revisions against each other.

use std::path::Path;

use flashcore_kernels::Config;
use serde::{Deserialize, Serialize};

use crate::standing::Group;
use crate::stats::{RESAMPLES, median};
use crate::store::Selector;
use crate::{BenchError, Mode, Options, Ratio, Result, Sample, Store, Turns, Verdict};

/// The times of one subject on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Name of the problem.
    pub(crate) case: String,
    /// The problem in one line: what has to be equal.
    pub(crate) problem: String,
    group: Group,
    pub(crate) mode: Mode,
    turns: Option<Turns>,
    /// Copies of K and V that hot runs took turns with.
    #[serde(default = "one_cache")]
    pub(crate) caches: u32,
    pub(crate) label: String,
    /// Whether it is a kernel of this project.
    pub(crate) ours: bool,
    /// Whether an inspection passed; those that failed one are left out.
    pub(crate) inspected: bool,
    /// Why it was left out of the last rounds.
    pub(crate) trouble: Option<String>,
    /// Samples, µs a run.
    pub(crate) times: Vec<f64>,
}

/// Of baselines that an earlier build wrote.
fn one_cache() -> u32 {
    1
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Side {
    /// What it is, for people.
    pub(crate) name: String,
    pub(crate) entries: Vec<Entry>,
}

/// One subject on one problem, on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Name of the problem.
    pub(crate) case: String,
    pub(crate) group: Group,
    pub(crate) mode: Mode,
    pub(crate) label: String,
    /// Medians, µs.
    pub(crate) a_us: f64,
    pub(crate) b_us: f64,
    /// Time of B relative to A.
    pub(crate) ratio: Ratio,
    /// What that says about B.
    pub(crate) verdict: Verdict,
}

/// Two sides compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    pub(crate) a: String,
    pub(crate) b: String,
    /// What both have.
    pub(crate) rows: Vec<Row>,
}

impl Side {
    /// The samples of the selected runs of a store. Where several runs have the same subject on the same problem, the
    /// latest counts.
    pub fn of_store(store: &Store, selector: &Selector, name: &str) -> Result<Side> {
        let runs = store.runs(selector)?;
        if runs.is_empty() {
            let allowed = format!(
                "a key or revision, or how it begins, in {} (`flashcore evidence` lists them), or a file",
                store.path().display()
            );
            return Err(BenchError::bad_option("run", name, allowed));
        }
        let cut_off = runs.iter().filter(|run| !run.finished).count();
        let name = match (cut_off, runs.len()) {
            (0, _) => name.to_string(),
            (_, all) => format!("{name} (cut off: {cut_off} of {all} runs have no closing line)"),
        };
        let mut entries: Vec<Entry> = Vec::new();
        for run in &runs {
            for recorded in store.measurements(run)? {
                for (index, subject) in recorded.measurement.subjects.iter().enumerate() {
                    let found = recorded.inspections[index].as_ref();
                    let rejected = found.is_some_and(|found| !found.passed());
                    let of = recorded.samples.iter().filter(|sample| sample.subject == index);
                    let entry = Entry {
                        case: recorded.case.name.clone(),
                        problem: recorded.case.problem.to_string(),
                        group: Group::of(&recorded.case.problem),
                        mode: recorded.measurement.mode,
                        turns: recorded.measurement.turns,
                        caches: run.options.caches,
                        label: subject.info.label.clone(),
                        ours: subject.info.is_ours(),
                        inspected: found.is_some(),
                        trouble: subject.trouble.clone(),
                        times: of.map(Sample::run_us).collect(),
                    };
                    if rejected || entry.times.is_empty() {
                        continue;
                    }
                    entries.retain(|known| !(known.is_of(&entry) && known.label == entry.label));
                    entries.push(entry);
                }
            }
        }
        Ok(Side { name, entries })
    }

    /// What a command line names: an export, of which all runs count, or a folder of runs, of which the latest does;
    /// else a run's key or a revision in the store at `store`.
    pub fn named(name: &str, store: &Path) -> Result<Side> {
        let (store, selector) = named(name, store)?;
        Side::of_store(&store, &selector, name)
    }
}

/// The runs that a command line names: see [`Side::named`].
pub(crate) fn named(name: &str, store: &Path) -> Result<(Store, Selector)> {
    let path = Path::new(name);
    Ok(match name {
        _ if path.is_file() => (Store::at(path), Selector::All),
        _ if path.is_dir() => (Store::at(path), Selector::Latest),
        "latest" => (Store::at(store), Selector::Latest),
        _ => (Store::at(store), Selector::Prefix(name.to_string())),
    })
}

impl Entry {
    fn is_of(&self, other: &Entry) -> bool {
        // A long kernel's short turns and steady ones are times in two states of the card. With copies of K and V, runs
        // read them from memory, not from L2.
        let how = |entry: &Entry| (entry.mode, entry.turns, entry.caches);
        self.problem == other.problem && how(self) == how(other)
    }
}

/// The label, or the id that its kernel has today: words of ids have changed.
fn id_of_today(label: &str) -> String {
    label
        .parse()
        .map_or(label.to_string(), |config: Config| config.to_string())
}

/// Compares sides that were measured apart. Subjects are matched by problem, mode and label; where the sides have no
/// label in common on a problem and one kernel of ours each, those two are compared.
pub fn compare(a: &Side, b: &Side, options: &Options) -> Result<Comparison> {
    let mut rows = Vec::new();
    for theirs in &b.entries {
        let of_problem = || a.entries.iter().filter(|entry| entry.is_of(theirs));
        let same_label = of_problem().find(|entry| id_of_today(&entry.label) == id_of_today(&theirs.label));
        let only = |side: &Side| {
            side.entries
                .iter()
                .filter(|entry| entry.is_of(theirs) && entry.ours)
                .count()
                == 1
        };
        let ours_alone = theirs.ours && only(a) && only(b);
        let matched = same_label.or_else(|| of_problem().find(|entry| entry.ours && ours_alone));
        let Some(base) = matched else {
            continue;
        };
        let Some(ratio) = Ratio::unpaired(&theirs.times, &base.times, options.confidence, RESAMPLES) else {
            continue;
        };
        rows.push(Row {
            case: theirs.case.clone(),
            group: theirs.group.clone(),
            mode: theirs.mode,
            label: theirs.label.clone(),
            a_us: median(&base.times),
            b_us: median(&theirs.times),
            ratio,
            verdict: Verdict::of(&ratio, options.threshold),
        });
    }
    if rows.is_empty() {
        let (a, b) = (&a.name, &b.name);
        return Err(BenchError::Given(format!(
            "{a} and {b} have no problem in common to compare, in the same mode with the same turns and --caches; bench \
             both on the same problems with the same build first"
        )));
    }
    let (a, b) = (a.name.clone(), b.name.clone());
    Ok(Comparison { a, b, rows })
}

impl Comparison {
    /// The rows on which B is a regression: slower by more than `gate` (0.03 for 3 %) by its value, and slower at all
    /// by the whole interval.
    pub fn regressions(&self, gate: f64) -> Vec<&Row> {
        self.rows
            .iter()
            .filter(|row| row.ratio.value > 1.0 + gate && row.ratio.interval.lo > 1.0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::Length;

    fn entry(case: &str, label: &str, us: f64) -> Entry {
        Entry {
            case: case.to_string(),
            problem: case.to_string(),
            group: Group {
                head_dim: 64,
                mask: "full".to_string(),
                length: Length::Short,
            },
            mode: Mode::Hot,
            turns: Some(Turns::Short),
            caches: 1,
            label: label.to_string(),
            ours: !label.starts_with("torch/"),
            inspected: true,
            trouble: None,
            times: (0..20).map(|i| us * (1.0 + 0.001 * f64::from(i % 4))).collect(),
        }
    }

    fn side(name: &str, entries: Vec<Entry>) -> Side {
        Side {
            name: name.to_string(),
            entries,
        }
    }

    #[test]
    fn revisions_are_compared_subject_by_subject_and_the_gate_finds_regressions() {
        let a = side(
            "old",
            vec![
                entry("x", "mma/a", 100.0),
                entry("y", "mma/a", 50.0),
                entry("x", "torch/flash", 90.0),
            ],
        );
        let b = side(
            "new",
            vec![
                entry("x", "mma/a", 105.0),
                entry("y", "mma/a", 48.0),
                entry("z", "mma/a", 1.0),
            ],
        );
        let comparison = compare(&a, &b, &Options::default()).unwrap();
        assert_eq!(comparison.rows.len(), 2);
        assert_eq!(comparison.rows[0].verdict, Verdict::Slower);
        assert_eq!(comparison.rows[1].verdict, Verdict::Faster);
        let worse = comparison.regressions(0.03);
        assert_eq!((worse.len(), worse[0].case.as_str()), (1, "x"));
        assert!(comparison.regressions(0.06).is_empty());
        let text = crate::table::comparison_text(&comparison);
        assert!(
            text.contains("different runs") && text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }

    #[test]
    fn old_ids_are_compared_with_those_of_today() {
        let ids = |of: fn(&str) -> String| ["free", "turns"].map(|word| entry("x", &of(word), 100.0)).to_vec();
        let a = side("old", ids(|word| format!("wgmma/m192n128-s2-{word}-bold")));
        let b = side(
            "new",
            ids(|word| format!("wgmma/m192n128-s2-{}-spec", word.replace("turns", "pingpong"))),
        );
        let comparison = compare(&a, &b, &Options::default()).unwrap();
        assert_eq!(comparison.rows.len(), 2);
    }

    #[test]
    fn a_kernel_that_got_another_id_is_still_compared() {
        let a = side("old", vec![entry("x", "mma/a", 100.0), entry("x", "torch/flash", 90.0)]);
        let b = side("new", vec![entry("x", "mma/b", 90.0), entry("x", "torch/cudnn", 80.0)]);
        let comparison = compare(&a, &b, &Options::default()).unwrap();
        assert_eq!(comparison.rows.len(), 1);
        assert_eq!(comparison.rows[0].label, "mma/b");
        let mut steady = a.clone();
        steady
            .entries
            .iter_mut()
            .for_each(|entry| entry.turns = Some(Turns::Steady));
        assert!(compare(&a, &steady, &Options::default()).is_err());
        let mut in_turn = a.clone();
        in_turn.entries.iter_mut().for_each(|entry| entry.caches = 8);
        let error = compare(&a, &in_turn, &Options::default()).unwrap_err().to_string();
        assert!(error.contains("the same turns and --caches"), "{error}");
        assert!(compare(&in_turn, &in_turn, &Options::default()).is_ok());
        let c = side("other", vec![entry("y", "mma/b", 90.0)]);
        assert!(
            compare(&a, &c, &Options::default())
                .unwrap_err()
                .to_string()
                .contains("no problem in common")
        );
    }

    #[test]
    fn two_sides_stand_beside_each_other_too() {
        let of = |name: &str, us: [f64; 2]| side(name, vec![entry("x", "mma/a", us[0]), entry("y", "mma/a", us[1])]);
        let comparison = compare(&of("a", [10.0, 10.0]), &of("b", [8.0, 20.0]), &Options::default()).unwrap();
        let standings = comparison.standings();
        let [standing] = &standings[..] else {
            panic!("{standings:?}")
        };
        assert!(
            (standing.all.value - 0.625f64.sqrt()).abs() < 1e-3,
            "{}",
            standing.all.value
        );
    }
}
