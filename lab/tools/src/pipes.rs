//! Predictions held against a profiler's counters, over a list of kernels that was fixed before.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use flashcore::Device;
use flashcore_bench::profile::{COUNTS, Ncu, Predicted, Predictions, ProfileRecord, Profiler, WITHIN};
use flashcore_bench::store::{RunRow, Selector, default_path};
use flashcore_bench::{Case, DeviceIdentity, Options as Protocol, RunIdentity, Store, date, problems};
use flashcore_check::cost::Observation;
use flashcore_ir::Profile;
use flashcore_kernels::Plan;
use serde_json::{Value, json};

/// The kernels: a problem and an id in each line, `seen` if its counters had been read before.
const LIST: &str = include_str!("../data/pipes.txt");

/// Holds predicted pipe shares and bank conflicts against those that `ncu` reads.
///
/// `--measure` profiles every kernel of the list (`lab/tools/data/pipes.txt`) on the GPU of this
/// machine, about five minutes, and keeps the counters in the evidence store. Without it the latest
/// profiles there are compared. `--predict` prints what is predicted, and needs no GPU. Shares
/// count where either value is at least 10 %; a prediction is right within 10 points. Fails if less
/// than 80 % of the rows are right, or if bank conflicts differ.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Profile the kernels first.
    #[arg(long)]
    measure: bool,
    /// Print the predictions alone.
    #[arg(long, conflicts_with = "measure")]
    predict: bool,
    /// The evidence folder, in place of this host's, or an export.
    #[arg(long, value_name = "FOLDER")]
    store: Option<PathBuf>,
    /// The `flashcore` to run under ncu [default: the one in this program's folder].
    #[arg(long, value_name = "FILE")]
    flashcore: Option<PathBuf>,
    /// The card that is predicted.
    #[arg(long, default_value = "h200")]
    profile: String,
    /// Kernels of the list whose problem begins so.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
    /// Write the rows for `evidence/` here.
    #[arg(long, value_name = "FILE.jsonl")]
    rows: Option<PathBuf>,
}

/// A kernel of the list.
struct Entry {
    case: Case,
    kernel: String,
    seen: bool,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    let name = &options.profile;
    let profile =
        Profile::named(name).ok_or_else(|| format!("no card is named `{name}`; there are {}", Profile::names()))?;
    let list: Vec<Entry> = list()?
        .into_iter()
        .filter(|of| of.case.name.starts_with(&options.only))
        .collect();
    if options.predict {
        for entry in &list {
            println!("{}", predicted_line(entry, &predict(entry, profile)?.1));
        }
        return crate::verdict(!list.is_empty());
    }
    let path = options
        .store
        .clone()
        .or_else(default_path)
        .ok_or("no place for evidence: give --store")?;
    let store = Store::open(&path)?;
    if options.measure {
        measure(options, &store, &list, profile)?;
    }
    let runs = store.runs(&Selector::All)?;
    let run = runs.iter().rfind(|run| run.profiles > 0);
    let run = run.ok_or_else(|| format!("{} has no profiles; --measure makes them", path.display()))?;
    let records = store.profiles(run)?;
    let (text, passed) = report(&records, &list);
    print!("{text}");
    if let Some(file) = &options.rows {
        std::fs::write(file, rows(run, &records, &list)?)?;
    }
    crate::verdict(passed)
}

/// The kernels of the list.
fn list() -> Result<Vec<Entry>, Box<dyn Error>> {
    let mut canonical = problems::cases("canonical", None)?;
    let lines = LIST.lines().filter(|line| !line.starts_with('#'));
    let entry = |line: &str| -> Result<Entry, Box<dyn Error>> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[name, kernel, ..] = words.as_slice() else {
            return Err(format!("`{line}` is not a problem and a kernel").into());
        };
        let case = match canonical.iter_mut().find(|case| case.name == name) {
            Some(case) => case.clone(),
            None => problems::cases(name, None)?.remove(0),
        };
        Ok(Entry {
            case,
            kernel: kernel.to_string(),
            seen: words.get(2) == Some(&"seen"),
        })
    };
    lines.map(entry).collect()
}

/// The plan of a kernel, and its prediction.
fn predict(entry: &Entry, profile: &Profile) -> Result<(Plan, Predicted), Box<dyn Error>> {
    let refused = |why: &dyn std::fmt::Display| format!("{} on {}: {why}", entry.kernel, entry.case.name);
    let plan = Plan::new(&entry.case.problem, &entry.kernel.parse()?, profile.target).map_err(|why| refused(&why))?;
    let observed = Observation::of(&plan).map_err(|why| refused(&why))?;
    let prediction = observed.predict(profile, &[]);
    let predicted = Predicted::of(&observed, &prediction, profile, None);
    Ok((plan, predicted))
}

fn measure(options: &Options, store: &Store, list: &[Entry], profile: &Profile) -> Result<(), Box<dyn Error>> {
    let device = Device::cuda(0)?;
    let Device::Cuda(context) = &device else {
        return Err("profiles are of GPUs".into());
    };
    let profiler = Profiler {
        ncu: Ncu::find()?,
        program: crate::flashcore(options.flashcore.as_deref())?,
    };
    let identity = RunIdentity::now(DeviceIdentity::cuda(context.info()));
    let run = store.begin_run(&identity, &Protocol::default(), None)?;
    for entry in list {
        eprintln!("{} {}", entry.case.name, entry.kernel);
        let (plan, predicted) = predict(entry, profile)?;
        // One that fails does not cost the others.
        match profiler.kernel(&entry.case, &plan, "cuda:0") {
            Ok(record) => run.add_profile(&ProfileRecord {
                predicted: Some(predicted),
                ..record
            })?,
            Err(why) => eprintln!("  {why}"),
        }
    }
    Ok(run.finish()?)
}

fn is_of(record: &ProfileRecord, entry: &Entry) -> bool {
    record.case == entry.case && record.subject.label == entry.kernel
}

/// The records of kernels of the list that had not been seen before the list was made.
fn unseen(records: &[ProfileRecord], list: &[Entry]) -> Vec<ProfileRecord> {
    let fresh = |record: &&ProfileRecord| list.iter().any(|entry| !entry.seen && is_of(record, entry));
    records.iter().filter(fresh).cloned().collect()
}

/// The comparison as text, and whether it passes: the kernels of the list alone.
fn report(records: &[ProfileRecord], list: &[Entry]) -> (String, bool) {
    let mut text = String::new();
    let (listed, missing): (Vec<&Entry>, Vec<&Entry>) = list
        .iter()
        .partition(|entry| records.iter().any(|record| is_of(record, entry)));
    let of_list = |record: &&ProfileRecord| listed.iter().any(|entry| is_of(record, entry));
    let records: Vec<ProfileRecord> = records.iter().filter(of_list).cloned().collect();
    let all = Predictions::of(&records);
    let _ = writeln!(
        text,
        "{:<20}{:<44}{:<10}{:>10}{:>10}",
        "problem", "kernel", "share", "measured", "predicted"
    );
    for row in &all.shares {
        let mark = if row.is_within() { "" } else { "  off" };
        let (case, kernel, key) = (&row.case, &row.kernel, row.key);
        let _ = writeln!(
            text,
            "{case:<20}{kernel:<44}{key:<10}{:>10.1}{:>10.1}{mark}",
            row.measured, row.predicted
        );
    }
    for row in &all.conflicts {
        let mark = if row.measured == row.predicted {
            "equal"
        } else {
            "DIFFER"
        };
        let (case, kernel) = (&row.case, &row.kernel);
        let _ = writeln!(
            text,
            "{case:<20}{kernel:<44}conflicts {} {} {mark}",
            row.measured, row.predicted
        );
    }
    let fresh = Predictions::of(&unseen(&records, list));
    let mut score = |name: &str, of: &Predictions| {
        let (within, rows, equal, kernels) = (of.within(), of.shares.len(), of.equal(), of.conflicts.len());
        let percent = 100.0 * within as f64 / rows.max(1) as f64;
        let _ = writeln!(
            text,
            "{name}: {within} of {rows} rows of {COUNTS:.0} % or more within {WITHIN:.0} points ({percent:.0} %); bank \
             conflicts equal on {equal} of {kernels} kernels"
        );
        rows > 0 && percent >= 80.0 && equal == kernels
    };
    let passed = score("all", &all);
    let passed = score("not seen before", &fresh) && passed;
    for entry in &missing {
        let _ = writeln!(text, "no counters of {} {}", entry.case.name, entry.kernel);
    }
    (text, passed && missing.is_empty())
}

fn predicted_line(entry: &Entry, predicted: &Predicted) -> String {
    let shares = predicted.shares.iter().filter(|(_, share)| **share >= COUNTS);
    let shares: Vec<String> = shares.map(|(key, share)| format!("{key} {share:.0}")).collect();
    let (case, kernel, excess) = (&entry.case.name, &entry.kernel, predicted.wavefronts_excess);
    format!(
        "{case} {kernel}: {:.2} us, conflicts {excess}, {}",
        predicted.micros,
        shares.join(", ")
    )
}

/// Rows of `evidence/`: the run, its score, and each share and number of conflicts.
fn rows(run: &RunRow, records: &[ProfileRecord], list: &[Entry]) -> Result<String, Box<dyn Error>> {
    const RUN: &str = "pipes-predicted";
    let identity = &run.identity;
    let driver = identity.device.driver.split('/').next();
    let tool = records.first().map(|record| record.tool.clone());
    let mut lines = vec![json!({
        "run": RUN,
        "date": date(identity.started_at),
        "device": identity.device.name,
        "driver": driver,
        "revision": identity.revision,
        "command": "flashcore-tools pipes --measure",
        "raw": {},
        "at": null,
        "note": tool,
    })];
    let score = |name: &str, of: &Predictions| -> [Value; 2] {
        let claim = |what: &str, value: usize, all: usize| json!({ "run": RUN, "claim": format!("{what}, {name}"), "value": value, "unit": "rows", "of": all });
        [
            claim("pipe shares within 10 points", of.within(), of.shares.len()),
            claim("kernels with equal bank conflicts", of.equal(), of.conflicts.len()),
        ]
    };
    let all = Predictions::of(records);
    lines.extend(score("all kernels of the list", &all));
    lines.extend(score(
        "kernels not seen before",
        &Predictions::of(&unseen(records, list)),
    ));
    let tenth = |value: f64| (10.0 * value).round() / 10.0;
    for conflicts in &all.conflicts {
        let (case, kernel) = (&conflicts.case, &conflicts.kernel);
        let of_kernel = all
            .shares
            .iter()
            .filter(|row| (&row.case, &row.kernel) == (case, kernel));
        let shares = of_kernel.map(|row| (row.key.to_string(), json!([tenth(row.measured), tenth(row.predicted)])));
        lines.push(json!({
            "run": RUN,
            "claim": format!("busy pipes, measured and predicted, {case}"),
            "value": shares.collect::<serde_json::Map<_, _>>(),
            "unit": "% of the launch",
            "kernel": kernel,
            "wavefronts_by_conflicts": [conflicts.measured, conflicts.predicted],
        }));
    }
    let lines = lines.iter().map(Value::to_string);
    Ok(lines.map(|line| line + "\n").collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flashcore_bench::profile::KernelProfile;
    use flashcore_bench::{LaunchMode, SubjectInfo};

    use super::*;

    /// Counters as predicted, but for one share and the conflicts.
    fn record(entry: &Entry, mufu: f64, conflicts: f64) -> ProfileRecord {
        let shares = [("tensor", 50.0), ("mufu", 30.0), ("alu", 3.0)];
        let mut counters: BTreeMap<String, f64> = shares.map(|(key, share)| (key.to_string(), share)).into();
        let predicted = Predicted {
            shares: counters.clone(),
            wavefronts_excess: 64.0,
            ..Predicted::default()
        };
        counters.insert("mufu".into(), mufu);
        counters.insert("wavefronts_excess".into(), conflicts);
        ProfileRecord {
            case: entry.case.clone(),
            subject: SubjectInfo::new(entry.kernel.clone(), LaunchMode::Plain),
            tool: "ncu 1".into(),
            launches: vec![KernelProfile {
                counters,
                ..KernelProfile::default()
            }],
            predicted: Some(predicted),
        }
    }

    #[test]
    fn the_list_has_plans_and_kernels_that_were_not_seen() {
        let list = list().unwrap();
        assert!(list.len() >= 20 && list.iter().filter(|entry| entry.seen).count() == 4);
        for Entry { case, kernel, .. } in &list {
            assert!(
                !kernel.starts_with("scalar/"),
                "{kernel}: the model was fitted to this family"
            );
            let target = flashcore_ir::Target::Sm90a;
            Plan::new(&case.problem, &kernel.parse().unwrap(), target).unwrap_or_else(|why| panic!("{kernel}: {why}"));
        }
    }

    #[test]
    fn planted_differences_are_found() {
        let list = list().unwrap();
        let right: Vec<ProfileRecord> = list.iter().map(|entry| record(entry, 39.0, 64.0)).collect();
        let (text, passed) = report(&right, &list);
        assert!(passed && text.contains("not seen before: 38 of 38 rows"), "{text}");
        // A share that is off by eleven points on each kernel: half of the rows.
        let wrong: Vec<ProfileRecord> = list.iter().map(|entry| record(entry, 41.0, 64.0)).collect();
        let (text, passed) = report(&wrong, &list);
        assert!(
            !passed && text.contains("all: 23 of 46 rows") && text.contains("  off"),
            "{text}"
        );
        // One conflict more on one kernel, or a kernel without counters.
        let mut one = right.clone();
        one[3] = record(&list[3], 30.0, 65.0);
        let (text, passed) = report(&one, &list);
        assert!(!passed && text.contains("conflicts 65 64 DIFFER"), "{text}");
        let (text, passed) = report(&right[1..], &list);
        assert!(!passed && text.contains("no counters of mission "), "{text}");
    }
}
