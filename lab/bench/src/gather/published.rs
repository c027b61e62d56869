//! Published rows: JSON lines, each a run or a figure of a run (`evidence/README.md` describes the keys).
//!
//! A figure that is the time of a kernel on a problem becomes a measurement, together with the peers' times in its row
//! and with other rows of the same run, problem and mode. Any other figure stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use flashcore_check::render::few;
use flashcore_ir::files;
use flashcore_problem::{DType, Mask, Problem};
use serde_json::{Map, Value};

use super::{EvidenceId, Figure, Gathered, Origin, Timing};
use crate::{
    BenchError, Case, CaseResult, Interval, LaunchMode, Measured, Measurement, Mode, Ratio, Result, Stop, SubjectInfo,
    Summary,
};

/// Keys of a row that is a time; a row with others keeps them as a [`Figure`].
const TIME_KEYS: [&str; 11] = [
    "run",
    "claim",
    "value",
    "unit",
    "kernel",
    "tflops",
    "peers_us",
    "others_us",
    "ratio",
    "interval",
    "note",
];
/// Begins the key of a speed-up over a peer, whose interval is then the row's.
const SPEEDUP: &str = "speedup_over_";
/// Largest difference between a paired ratio and that of two medians for which they are taken for the same pair.
const SAME_PAIR: f64 = 0.02;

type Row = Map<String, Value>;

/// Rows of files. A run may be in another file than its figures.
#[derive(Default)]
pub(super) struct Rows {
    runs: Vec<(PathBuf, Row)>,
    figures: Vec<(PathBuf, Row)>,
}

/// Whether a file has published rows: its first line says so.
pub(super) fn is_published(file: &Path) -> Result<bool> {
    let bytes = files::read_capped(file, files::LARGE)
        .map_err(|error| BenchError::Given(format!("{}: {error}", file.display())))?;
    let first = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let row: Value = serde_json::from_slice(first).unwrap_or_default();
    Ok(row["run"].is_string())
}

impl Rows {
    /// Reads a file.
    ///
    /// # Errors
    /// A line that is no row.
    pub(super) fn read(&mut self, file: &Path) -> Result<()> {
        let wrong = |line: usize, why: &dyn std::fmt::Display| {
            BenchError::Given(format!("{}: line {}: {why}", file.display(), line + 1))
        };
        let text = files::read_text_capped(file, files::LARGE).map_err(|error| wrong(0, &error))?;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let row: Row = serde_json::from_str(line).map_err(|error| wrong(number, &error))?;
            let is_text = |key: &str| row.get(key).is_some_and(Value::is_string);
            let needed: &[&str] = match row.contains_key("claim") {
                true => &["run", "claim", "unit"],
                false => &["run", "date", "device", "command"],
            };
            if let Some(missing) = needed.iter().find(|key| !is_text(key)) {
                return Err(wrong(number, &format!("`{missing}` is not there, or is no text")));
            }
            match row.contains_key("claim") {
                true => self.figures.push((file.to_path_buf(), row)),
                false => self.runs.push((file.to_path_buf(), row)),
            }
        }
        Ok(())
    }

    /// Adds all that was read.
    pub(super) fn add_to(self, gathered: &mut Gathered) {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for (path, row) in &self.runs {
            let origin = origin(path, row);
            // A file given twice has each run once.
            if places.contains_key(&origin.key) {
                continue;
            }
            places.insert(origin.key.clone(), gathered.origins.len());
            gathered.origins.push(origin);
        }
        let mut lost: BTreeSet<String> = BTreeSet::new();
        let mut ids = Ids::default();
        // Rows of one run, problem and mode are of the same rounds.
        let mut groups: Vec<(usize, Problem, Mode, Vec<Time>)> = Vec::new();
        for (path, row) in &self.figures {
            let Some(&origin) = places.get(&text(row, "run")) else {
                lost.insert(text(row, "run"));
                continue;
            };
            match time(row, &gathered.origins[origin]) {
                Some((problem, mode, time)) => {
                    let is_same = |group: &&mut (usize, Problem, Mode, Vec<Time>)| {
                        (group.0, &group.1, group.2) == (origin, &problem, mode)
                    };
                    match groups.iter_mut().find(is_same) {
                        Some(group) => group.3.push(time),
                        None => groups.push((origin, problem, mode, vec![time])),
                    }
                }
                None => gathered.figures.push(figure(path, row, origin, &mut ids)),
            }
        }
        for (origin, problem, mode, times) in groups {
            let run = gathered.origins[origin].key.clone();
            let timing = measurement(origin, &run, problem, mode, times, &mut ids);
            gathered.timings.push(timing);
        }
        if !lost.is_empty() {
            let lost: Vec<String> = lost.into_iter().collect();
            let lost = few(&lost);
            gathered.notes.push(format!(
                "rows of runs that no file given describes are left out: {lost}; name the folder that has them all"
            ));
        }
    }
}

/// The ids given out. Two rows of a run may say the same of one kernel: the second has another id.
#[derive(Default)]
struct Ids(BTreeMap<Vec<String>, usize>);

impl Ids {
    fn of(&mut self, run: &str, what: &str, label: &str) -> EvidenceId {
        let parts = [run, what, label].map(str::to_string).to_vec();
        let count = self.0.entry(parts).or_default();
        *count += 1;
        let nth = count.to_string();
        EvidenceId::of(&["published", run, what, label, &nth])
    }
}

fn text(row: &Row, key: &str) -> String {
    row.get(key).and_then(Value::as_str).unwrap_or_default().to_string()
}

fn origin(path: &Path, row: &Row) -> Origin {
    let given = |key: &str| Some(text(row, key)).filter(|text| !text.is_empty());
    let key = text(row, "run");
    Origin {
        id: EvidenceId::of(&["run", &key]),
        path: path.to_path_buf(),
        device: text(row, "device"),
        driver: text(row, "driver"),
        uuid: None,
        units: None,
        revision: given("revision"),
        date: text(row, "date"),
        command: given("command"),
        options: None,
        notes: given("note").into_iter().collect(),
        key,
    }
}

fn figure(path: &Path, row: &Row, origin: usize, ids: &mut Ids) -> Figure {
    let plain = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        Value::Object(all) => {
            let all = all.iter().map(|(key, value)| format!("{key} {value}"));
            all.collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    let (run, what) = (text(row, "run"), text(row, "claim"));
    let shown = ["run", "claim", "value", "unit"];
    let details = row.iter().filter(|(key, _)| !shown.contains(&key.as_str()));
    let details = details.map(|(key, value)| format!("{} {}", key.replace('_', " "), plain(value)));
    let topic = path.file_stem().unwrap_or_default();
    Figure {
        origin,
        id: ids.of(&run, &what, &text(row, "kernel")),
        value: row.get("value").map(plain).unwrap_or_default(),
        unit: text(row, "unit"),
        details: details.collect::<Vec<_>>().join("; "),
        topic: topic.to_string_lossy().into_owned(),
        what,
    }
}

/// What a row says of a kernel's time.
struct Time {
    /// What the row calls it.
    what: String,
    /// The kernel's label, then those of others in the row; µs.
    us: Vec<(String, f64)>,
    /// The kernel's paired time over that of a subject, with its interval.
    ratio: Option<(String, f64, Option<Interval>)>,
}

/// The row as a time; `None` if it is something else.
fn time(row: &Row, origin: &Origin) -> Option<(Problem, Mode, Time)> {
    let speedup = row.keys().find_map(|key| key.strip_prefix(SPEEDUP));
    let is_known = |key: &String| TIME_KEYS.contains(&key.as_str()) || key.starts_with(SPEEDUP);
    let (what, us, label) = (text(row, "claim"), row.get("value")?.as_f64()?, text(row, "kernel"));
    if text(row, "unit") != "us" || label.is_empty() || us <= 0.0 || !row.keys().all(is_known) {
        return None;
    }
    let (shape, mode) = match what.split_once(", ") {
        Some((shape, mode)) => (shape, mode.parse().ok()?),
        None => (what.as_str(), mode_of(origin)),
    };
    let problem = problem(shape)?;
    let mut all = vec![(label, us)];
    for key in ["peers_us", "others_us"] {
        for (label, us) in row.get(key).and_then(Value::as_object).into_iter().flatten() {
            all.push((label.clone(), us.as_f64().filter(|us| *us > 0.0)?));
        }
    }
    let number = |key: &str| row.get(key).and_then(Value::as_f64).filter(|number| *number > 0.0);
    let ends: Option<Vec<f64>> = row
        .get("interval")
        .and_then(Value::as_array)
        .and_then(|ends| ends.iter().map(Value::as_f64).collect());
    let interval = match ends.as_deref() {
        Some([lo, hi]) => Some(Interval::new(*lo, *hi)),
        _ => None,
    };
    let ratio = match (speedup, number("ratio")) {
        (Some(base), _) => {
            let value = number(&format!("{SPEEDUP}{base}"))?;
            let interval = interval.map(|speedup| Interval::new(1.0 / speedup.hi, 1.0 / speedup.lo));
            let label = if base == "cudnn" { "torch/cudnn" } else { base };
            Some((label.to_string(), 1.0 / value, interval))
        }
        (None, Some(value)) => base_of(&all, value, origin).map(|base| (base, value, interval)),
        (None, None) => None,
    };
    Some((problem, mode, Time { what, us: all, ratio }))
}

/// The mode of a run that its rows do not name: that of its command, else `bench`'s own.
fn mode_of(origin: &Origin) -> Mode {
    let flag = flag(origin, "--mode").and_then(|modes| modes.parse().ok());
    flag.unwrap_or(Mode::Hot)
}

/// The value of a flag of the run's command.
fn flag<'o>(origin: &'o Origin, name: &str) -> Option<&'o str> {
    let mut words = origin.command.as_deref()?.split_whitespace();
    words.find(|word| *word == name)?;
    words.next()
}

/// Which subject a row's ratio is relative to: what the command names, `bench`'s rule (the first peer asked for), or
/// the only one whose median fits.
fn base_of(us: &[(String, f64)], ratio: f64, origin: &Origin) -> Option<String> {
    let others = us.get(1..).unwrap_or_default();
    let asked = flag(origin, "--baseline").or_else(|| flag(origin, "--peers")?.split(',').next());
    if let Some((label, _)) = others.iter().find(|(label, _)| Some(label.as_str()) == asked) {
        return Some(label.clone());
    }
    let fits = |other: &&(String, f64)| (us[0].1 / other.1 / ratio - 1.0).abs() <= SAME_PAIR;
    let mut fitting = others.iter().filter(fits);
    match (fitting.next(), fitting.next()) {
        (Some((label, _)), None) => Some(label.clone()),
        _ => None,
    }
}

/// Reads what a problem with a full or a causal mask prints; `None` for any other text.
pub fn problem(text: &str) -> Option<Problem> {
    let words: Vec<&str> = text.split(' ').collect();
    let [batch, heads, seq_q, seq_kv, head_dim, dtype, mask] = words[..] else {
        return None;
    };
    let number = |text: &str, prefix: &str| text.strip_prefix(prefix)?.parse::<usize>().ok();
    let (heads, kv_heads) = heads.strip_prefix('H')?.split_once('/')?;
    let mask = match mask {
        "full" => Mask::FULL,
        "causal" => Mask::CAUSAL,
        _ => return None,
    };
    let built = Problem::builder()
        .batch(number(batch, "B")?)
        .heads(heads.parse().ok()?, kv_heads.parse().ok()?)
        .seq_len(number(seq_kv, "Skv")?)
        .seq_len_q(number(seq_q, "Sq")?)
        .head_dim(number(head_dim, "D")?)
        .dtype(DType::from_name(dtype)?)
        .mask(mask)
        .build()
        .ok()?;
    (built.to_string() == text).then_some(built)
}

fn measurement(origin: usize, run: &str, problem: Problem, mode: Mode, times: Vec<Time>, ids: &mut Ids) -> Timing {
    let (mut subjects, mut known): (Vec<Measured>, Vec<EvidenceId>) = (Vec::new(), Vec::new());
    for Time { what, us, ratio } in &times {
        for (place, (label, us)) in us.iter().enumerate() {
            // A peer's time stands in the row of each kernel that was timed with it.
            if subjects.iter().any(|subject| subject.info.label == *label) {
                continue;
            }
            let mut subject = Measured::untimed(info(label), None);
            subject.summary = Some(median_alone(*us));
            subject.settled = true;
            if let (0, Some((_, value, interval))) = (place, ratio) {
                subject.ratio = Some(Ratio {
                    value: *value,
                    interval: interval.unwrap_or(Interval::UNKNOWN),
                    of_medians: *value,
                    rounds: 0,
                });
            }
            subjects.push(subject);
            known.push(ids.of(run, what, label));
        }
    }
    let base = times.iter().find_map(|time| time.ratio.as_ref().map(|(base, ..)| base));
    let baseline = subjects.iter().position(|subject| Some(&subject.info.label) == base);
    let name = name_of(&problem);
    // No subject is the baseline where none is known.
    let measurement = Measurement::without_rounds(mode, baseline.unwrap_or(usize::MAX), subjects, Stop::Rounds);
    let inspections = vec![None; measurement.subjects.len()];
    Timing {
        origin,
        result: CaseResult::new(Case::new(name, problem), measurement, inspections, Vec::new(), None),
        ids: known,
    }
}

/// The name of a problem that has one, else its shape.
fn name_of(problem: &Problem) -> String {
    let named = flashcore_problem::NAMED_PROBLEMS
        .iter()
        .find(|named| named.builder().build().is_ok_and(|built| built == *problem));
    named.map_or(problem.to_string(), |named| named.name.to_string())
}

fn info(label: &str) -> SubjectInfo {
    let family = label.split_once('/').map(|(family, _)| family);
    let families = flashcore_kernels::FAMILIES.map(|family| family.name);
    let ours = family.is_some_and(|family| family == "cpu" || families.contains(&family));
    SubjectInfo {
        kernel: ours.then(|| label.to_string()),
        // How it was launched was not recorded: the host waits for none of these.
        ..SubjectInfo::new(label, LaunchMode::Graph(1))
    }
}

/// A summary of which only the median is known.
fn median_alone(us: f64) -> Summary {
    let unknown = f64::NAN;
    Summary {
        count: 0,
        min: unknown,
        p10: unknown,
        p50: us,
        p90: unknown,
        max: unknown,
        mad: unknown,
        interval: Interval::UNKNOWN,
    }
}
