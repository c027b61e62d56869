//! The evidence store: what was committed survives a kill; what is exported comes back the same.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;

use flashcore_bench::compare::{Side, compare};
use flashcore_bench::defences::{Inspection, Reason};
use flashcore_bench::problems::cases;
use flashcore_bench::store::{RunWriter, Selector, Store};
use flashcore_bench::{
    BenchError, DeviceIdentity, LaunchMode, Measurement, Mode, Observer, Options, Reading, Report, RunIdentity, Sample,
    Stop, Subject, SubjectInfo, measure, table,
};
use flashcore_problem::rng::Rng;

use super::simulate::{Noise, SimulatedGpu};

pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("flashcore-evidence-{name}-{}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

struct Keep<'a>(&'a RunWriter);

impl Observer for Keep<'_> {
    fn sample(&mut self, sample: &Sample) -> Result<(), BenchError> {
        self.0.add_sample(sample)
    }
    fn round(&mut self, round: u32, _: Option<&Reading>) -> Result<(), BenchError> {
        let reading = Reading {
            sm_mhz: Some(1500),
            throttle: vec!["SW_POWER_CAP".into()],
            ..Reading::default()
        };
        self.0.add_reading(round, &reading)
    }
}

/// A simulated measurement, stored.
fn record(store: &Store, seed: u64) -> Measurement {
    record_with(store, seed, 1)
}

/// The same of runs that take turns with so many copies of K and V.
fn record_with(store: &Store, seed: u64, caches: u32) -> Measurement {
    let options = Options {
        max_rounds: 12,
        caches,
        ..Options::default()
    };
    let run = RunIdentity::now(DeviceIdentity::cpu());
    let run = store.begin_run(&run, &options, Some(0.74)).unwrap();
    let gpu = SimulatedGpu::new(Noise::steady(), seed);
    let mut subjects: Vec<Box<dyn Subject>> = vec![
        Box::new(gpu.subject("torch/flash", 300.0, 0.5, 1)),
        Box::new(gpu.subject("scalar/x", 330.0, 0.5, 4)),
    ];
    let infos: Vec<_> = subjects.iter().map(|subject| (subject.info().clone(), None)).collect();
    let case = &cases("small-set", None).unwrap()[0];
    run.begin_measurement(case, Mode::Hot, 0, &infos).unwrap();
    let mut keep = Keep(&run);
    let measured = measure(
        &options,
        Mode::Hot,
        &mut subjects,
        0,
        &mut gpu.stopwatch(),
        None,
        &mut keep,
    )
    .unwrap();
    run.end_measurement(&measured).unwrap();
    run.finish().unwrap();
    measured
}

#[test]
fn what_is_read_is_what_was_measured() {
    let folder = folder("read");
    let store = Store::at(&folder.join("a"));
    let measured = record(&store, 1);
    let runs = store.runs(&Selector::Latest).unwrap();
    assert_eq!((runs.len(), runs[0].floor_us, runs[0].measurements), (1, Some(0.74), 1));
    let recorded = &store.measurements(&runs[0]).unwrap()[0];
    assert_eq!(recorded.measurement.subjects, measured.subjects);
    assert_eq!(recorded.measurement.stop, measured.stop);
    assert_eq!(recorded.measurement.rounds, measured.rounds);
    assert_eq!(recorded.measurement.readings.len(), measured.rounds as usize);
    assert_eq!(recorded.case.name, "small");
    let revision = runs[0].identity.revision.clone();
    assert_eq!(store.runs(&Selector::Prefix(revision)).unwrap().len(), 1);
    assert!(store.runs(&Selector::Prefix("zzz".into())).unwrap().is_empty());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn runs_with_copies_of_caches_are_compared_with_their_like() {
    let folder = folder("caches");
    let store = |name: &str| Store::at(&folder.join(name));
    let (usual, in_turn, both) = (store("usual"), store("in-turn"), store("both"));
    record(&usual, 1);
    record_with(&in_turn, 1, 8);
    record(&both, 1);
    record_with(&both, 1, 8);
    let compared = |a: &Store, b: &Store| {
        let [a, b] = [a, b].map(|store| Side::of_store(store, &Selector::All, "runs").unwrap());
        compare(&a, &b, &Options::default()).map(|comparison| comparison.standings())
    };
    let error = compared(&usual, &in_turn).unwrap_err().to_string();
    assert!(error.contains("the same turns and --caches"), "{error}");
    // The later run does not replace the other.
    for like in [&usual, &in_turn] {
        assert_eq!(compared(like, &both).unwrap(), compared(like, like).unwrap());
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn another_baseline_turns_ratios_round() {
    let folder = folder("baseline");
    let store = Store::at(&folder);
    record(&store, 1);
    let run = &store.runs(&Selector::Latest).unwrap()[0];
    let recorded = store.measurements(run).unwrap().remove(0);
    let before = recorded.measurement.subjects[1].ratio.unwrap();
    let turned = recorded.clone().with_baseline("scalar", &run.options);
    assert_eq!(turned.measurement.baseline, 1);
    let after = turned.measurement.subjects[0].ratio.unwrap();
    assert!(turned.measurement.subjects[1].ratio.is_none() && after.rounds == before.rounds);
    assert!((after.value * before.value - 1.0).abs() < 2e-3, "{after:?} {before:?}");
    assert_eq!(recorded.clone().with_baseline("fa3", &run.options), recorded);
    // And back again: nothing is lost.
    assert_eq!(turned.with_baseline("torch/flash", &run.options), recorded);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn one_rejected_after_timing_has_samples_and_no_number() {
    let folder = folder("rejected");
    let store = Store::at(&folder);
    record(&store, 1);
    let run = &store.runs(&Selector::Latest).unwrap()[0];
    let mut recorded = store.measurements(run).unwrap();
    recorded[0].inspections[0] = Some(Inspection {
        rejected: Some(Reason::Cached),
        detail: "stale".into(),
        max_abs: 0.0,
        frobenius: 0.0,
        skipped: Vec::new(),
    });
    let report = Report::of_evidence(run, recorded);
    let subjects = &report.results[0].measurement.subjects;
    assert!(subjects[0].summary.is_none() && subjects[1].summary.is_some() && subjects[1].ratio.is_none());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_export_comes_back_the_same_and_only_once() {
    let folder = folder("export");
    let (first, second) = (Store::at(&folder.join("a")), Store::at(&folder.join("b")));
    record(&first, 1);
    record(&first, 2);
    let mut text = Vec::new();
    first.export_jsonl(&Selector::All, &mut text).unwrap();
    let file = folder.join("a.jsonl");
    std::fs::write(&file, &text).unwrap();
    let imported = second.import_jsonl(&file).unwrap();
    assert_eq!((imported.runs, imported.known), (2, 0));
    let again = second.import_jsonl(&file).unwrap();
    assert_eq!((again.runs, again.known, again.samples), (0, 2, 0));
    // An export is read in its place as well.
    let runs = |store: &Store| store.runs(&Selector::All).unwrap();
    let exported = Store::at(&file);
    assert_eq!(runs(&exported).len(), 2);
    for (there, here) in runs(&exported).iter().zip(&runs(&first)) {
        assert_eq!(there.identity, here.identity);
        assert_eq!(exported.measurements(there).unwrap(), first.measurements(here).unwrap());
    }
    let begun = exported.begin_run(&RunIdentity::now(DeviceIdentity::cpu()), &Options::default(), None);
    assert!(begun.unwrap_err().to_string().contains("this is a file"));
    let mut back = Vec::new();
    second.export_jsonl(&Selector::All, &mut back).unwrap();
    assert!(text == back, "an export of an import differs from the export");

    let mut csv = Vec::new();
    first.export_csv(&Selector::Latest, &mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    assert!(
        csv.lines()
            .next()
            .unwrap()
            .ends_with("round,position,runs,total_us,run_us")
    );
    // The name of this machine's CPU may hold a comma; what is in quotes is one field.
    let commas = |line: &str| {
        line.split('"')
            .step_by(2)
            .map(|text| text.matches(',').count())
            .sum::<usize>()
    };
    assert!(csv.lines().all(|line| commas(line) == 17), "{csv}");

    // Other schema versions, and things that are no export, are refused and leave nothing behind.
    let text = String::from_utf8(text).unwrap();
    let third = Store::at(&folder.join("c"));
    let newer = text.replacen("\"schema\":3", "\"schema\":9", 1);
    let evil = text.replacen("\"key\":\"", "\"key\":\"../", 1);
    let torn = format!("{text}{{\"run\":");
    let odd = text.replacen("\"sample\":{\"subject\":1", "\"sample\":{\"subject\":7", 1);
    for (text, found) in [
        (newer.as_str(), "schema 9; this build reads 3"),
        ("{\"a\":1}\n", "is not an evidence file"),
        ("", "no whole line"),
        (&evil, "is no key"),
        (&torn, "no whole line"),
        (&odd, "a sample of a subject that the measurement does not have"),
    ] {
        std::fs::write(&file, text).unwrap();
        let error = third.import_jsonl(&file).unwrap_err();
        assert!(error.to_string().contains(found), "{error}");
    }
    assert!(!folder.join("c").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

/// The only file of a store.
fn file_of(store: &Store) -> PathBuf {
    let mut files = std::fs::read_dir(store.path()).unwrap();
    files.next().unwrap().unwrap().path()
}

#[test]
fn a_run_that_was_killed_is_unfinished_and_its_torn_line_is_dropped() {
    let folder = folder("cut");
    let store = Store::at(&folder.join("a"));
    let whole = record(&store, 1);
    let file = file_of(&store);
    let text = std::fs::read_to_string(&file).unwrap();
    let run = |text: &str| {
        std::fs::write(&file, text).unwrap();
        store.runs(&Selector::Latest).unwrap().remove(0)
    };
    let shown = |run| table::text(&Report::of_evidence(run, store.measurements(run).unwrap()));

    let finished = run(&text);
    assert!(finished.finished && finished.notes().is_empty());
    assert!(!shown(&finished).contains("cut off"));

    // Without the closing line: the measurement itself is whole.
    let at = text.rfind("{\"finished\"").unwrap();
    let unclosed = run(&text[..at]);
    assert!(!unclosed.finished && unclosed.torn_bytes == 0);
    let read = &store.measurements(&unclosed).unwrap()[0].measurement;
    assert_eq!((&read.subjects, read.stop), (&whole.subjects, whole.stop));
    assert!(shown(&unclosed).contains("the run has no closing line"));

    // In the middle of a sample of the last round: that line is dropped, and what is shown is not "time budget spent".
    let last = text.rfind("{\"sample\"").unwrap();
    let torn = run(&text[..last + 20]);
    assert_eq!(
        (torn.samples + 1, torn.torn_bytes, torn.finished),
        (finished.samples, 20, false)
    );
    let measured = &store.measurements(&torn).unwrap()[0].measurement;
    assert_eq!((measured.stop, measured.rounds), (Stop::CutOff, whole.rounds));
    let text = shown(&torn);
    for part in [
        "20 bytes were dropped",
        &format!("{} rounds, cut off before it ended", whole.rounds),
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    // A line in the middle that is no line is an error, with its number.
    let broken = std::fs::read_to_string(&file)
        .unwrap()
        .replacen("{\"sample\"", "{\"simple\"", 1);
    let error = store.measurements(&run(&broken)).unwrap_err().to_string();
    assert!(error.contains("line 3"), "{error}");
    // Nothing but the begin of a header is no run, and no error.
    std::fs::write(&file, "{\"run\":{\"for").unwrap();
    assert!(store.list(&Selector::All).unwrap().0.is_empty());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn reading_writes_nothing() {
    let folder = folder("read-only");
    let store = Store::at(&folder.join("a"));
    record(&store, 1);
    let state = || {
        let entries = std::fs::read_dir(folder.join("a")).unwrap();
        let of = |entry: std::fs::DirEntry| (entry.file_name(), entry.metadata().unwrap().modified().unwrap());
        let mut all: Vec<_> = entries.map(|entry| of(entry.unwrap())).collect();
        all.sort();
        (all, std::fs::metadata(folder.join("a")).unwrap().modified().unwrap())
    };
    let before = state();
    let read = Store::at(store.path());
    let runs = read.runs(&Selector::All).unwrap();
    assert_eq!(read.measurements(&runs[0]).unwrap().len(), 1);
    read.export_csv(&Selector::All, &mut Vec::new()).unwrap();
    assert_eq!(state(), before);
    // Nor is a store made that is only read.
    let none = Store::at(&folder.join("none/at/all"));
    assert!(none.runs(&Selector::All).unwrap().is_empty());
    assert!(!folder.join("none").exists());
    std::fs::remove_dir_all(folder).unwrap();
}

const CHILD: &str = "FLASHCORE_EVIDENCE_CHILD";

/// Not a test of its own: what the process does that is killed.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    let store = Store::at(Path::new(&path));
    let run = store
        .begin_run(&RunIdentity::now(DeviceIdentity::cpu()), &Options::default(), None)
        .unwrap();
    let case = &cases("small-set", None).unwrap()[0];
    let subjects = [(SubjectInfo::new("a", LaunchMode::Plain), None)];
    run.begin_measurement(case, Mode::Hot, 0, &subjects).unwrap();
    for round in 0.. {
        let sample = Sample {
            subject: 0,
            round,
            position: 0,
            runs: 1,
            total_us: f64::from(round),
            at_us: 0.0,
        };
        run.add_sample(&sample).unwrap();
        // Said only once the sample is in the file.
        println!("\ncommitted {round}");
    }
}

#[test]
fn twenty_kills_lose_nothing_but_the_sample_in_flight() {
    let folder = folder("kill");
    let path = folder.join("host");
    let mut rng = Rng::new(9);
    for kill in 0..20 {
        // Killed when it has said so many samples, however long that takes.
        let enough = rng.below(40) as u32;
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "evidence::child_that_writes_until_it_is_killed",
                "--nocapture",
            ])
            .env(CHILD, &path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, told) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .filter_map(|line| line.strip_prefix("committed ")?.parse::<u32>().ok())
                .inspect(|&round| {
                    if round == enough {
                        tell.send(()).unwrap();
                    }
                })
                .last()
        });
        told.recv().expect("the child writes until it is killed");
        child.kill().unwrap();
        child.wait().unwrap();
        let said = reader.join().unwrap().unwrap();

        let store = Store::at(&path);
        let runs = store.runs(&Selector::Latest).unwrap();
        let recorded = &store.measurements(&runs[0]).unwrap()[0];
        let rounds: Vec<u32> = recorded.samples.iter().map(|sample| sample.round).collect();
        let expected: Vec<u32> = (0..rounds.len() as u32).collect();
        assert_eq!(rounds, expected, "kill {kill}: no gap, no repeat");
        // All that was said to be committed is there, and at most the one after it.
        let last = rounds.len() as u32 - 1;
        assert!(
            last == said || last == said + 1,
            "kill {kill}: said {said}, found {last}"
        );
        assert!(said >= enough);
    }
    std::fs::remove_dir_all(folder).unwrap();
}
