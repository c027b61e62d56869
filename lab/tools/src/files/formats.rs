//! The formats of files that the command and the library read, each with whole files to damage and its reader.

use std::path::{Path, PathBuf};

use flashcore::unstable::plans::{PlanClass, Plans, read_table};
use flashcore::{Device, KernelId, Problem};
use flashcore_bench::chart::Speed;
use flashcore_bench::compare::Side;
use flashcore_bench::gate::Baseline;
use flashcore_bench::gather::Gathered;
use flashcore_bench::micro::DeviceRates;
use flashcore_bench::profile::csv;
use flashcore_bench::store::Selector;
use flashcore_bench::{Case, Mode, Options, Report, Request, Store, problem_file, problems, table};
use flashcore_check::cost::{self, CARD_SCHEMA, CardFile};
use flashcore_check::foreign;
use flashcore_check::own::Declared;
use flashcore_ir::{Calibration, PROFILES, Seen, Target, files};
use flashcore_tune::journal::{board_of, read_claims, read_header, read_seconds, read_trials};
use flashcore_tune::plans::of_report;
use flashcore_tune::replay::Measured;

use super::ptx;

/// Why an input was refused.
pub type Refused = Box<dyn std::error::Error>;

/// How far an input came that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It was read; of PTX, no kernel of it is one that the simulator executes.
    Read,
    /// A kernel of it is, with another launch.
    Kernel,
    /// And was simulated.
    Simulated,
}

/// A format.
pub struct Format {
    /// Its name.
    pub name: &'static str,
    /// The name of a file of it, in the folder of the bench.
    pub file: &'static str,
    /// Whole files.
    pub seeds: Vec<Vec<u8>>,
    /// Reads a file, and uses what it says.
    pub read: fn(&Bench, &Path) -> Result<Fate, Refused>,
}

/// What readers need: a folder, and a problem that is looked up.
pub struct Bench {
    _temporary: Option<tempfile::TempDir>,
    folder: PathBuf,
    problem: Problem,
}

const RUN: &str = include_str!("seeds/run.json");
const TRIALS: &str = include_str!("seeds/trials.jsonl");
const BOARD: &str = include_str!("seeds/board.json");
const PTX: &str = include_str!("../../../../docs/own-kernel/attention.ptx");
const OWN: &str = include_str!("../../../../docs/own-kernel/attention.toml");
const WRONG: &str = include_str!("../../../../docs/own-kernel/wrong.toml");
const PLANS: &str = include_str!("../../../../crates/flashcore/data/plans/h200.json");
const COUNTERS: &str = include_str!("../../../bench/tests/data/ncu-h200.csv");
const RATES: &str = include_str!("../../../check/data/h200-rates.json");
const CUBIN: &[u8] = include_bytes!("../../../check/src/foreign/fixtures/two_buffers-13.0-sm_89.cubin");
const BASELINE: &str = include_str!("../../../../.ci/gate.json");
const PROBLEM: &str = include_str!("seeds/problem.toml");
const LENGTHS: &str = include_str!("seeds/lengths.toml");
const DRAWN: &str = include_str!("seeds/drawn.toml");
const PROBLEM_JSON: &str = include_str!("seeds/problem.json");
const SOURCE_PAGE: &str = include_str!("seeds/source.csv");
const IDS: &str = include_str!("seeds/ids.txt");

impl Bench {
    /// A bench in the given folder, or else in a temporary one.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn new(folder: Option<&Path>) -> Result<Bench, Refused> {
        let (temporary, folder) = match folder {
            Some(folder) => (None, folder.to_path_buf()),
            None => {
                let temporary = tempfile::tempdir()?;
                let folder = temporary.path().to_path_buf();
                (Some(temporary), folder)
            }
        };
        std::fs::create_dir_all(folder.join("run"))?;
        let others = [
            ("attention.ptx", PTX),
            ("run/run.json", RUN),
            ("run/trials.jsonl", TRIALS),
        ];
        for (name, text) in others.into_iter().chain([("run/board.json", BOARD)]) {
            std::fs::write(folder.join(name), text)?;
        }
        let problem = Problem::builder().heads(4, 2).seq_len(24).head_dim(64).build()?;
        Ok(Bench {
            _temporary: temporary,
            folder,
            problem,
        })
    }

    /// Where inputs are written.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Every format. Evidence and reports are made by a bench of a small problem, now.
    ///
    /// # Errors
    /// A bench that fails.
    pub fn formats(&self) -> Result<Vec<Format>, Refused> {
        let (evidence, bundle, report) = self.measured()?;
        let report_text = serde_json::to_string(&serde_json::json!({ "report": report }))?;
        let mut space: serde_json::Value = serde_json::from_str(include_str!("../../../tune/data/h200-space.json"))?;
        if let Some(tables) = space["tables"].as_array_mut() {
            tables.truncate(1);
            for key in ["timed", "failed"] {
                let rows = tables[0][key].as_array_mut();
                rows.into_iter().for_each(|rows| rows.truncate(3));
            }
        }
        let seen = Seen {
            kernels: 9,
            low: 0.9,
            high: 1.2,
        };
        let card = serde_json::to_string(&CardFile {
            schema: CARD_SCHEMA,
            profile: PROFILES[0],
            calibration: Calibration {
                rates: serde_json::from_str::<DeviceRates>(RATES)?.card(),
                tensor: seen,
                scalar: seen,
            },
        })?;
        let of = |name, file, seeds: &[&str], read| Format {
            name,
            file,
            seeds: seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect(),
            read,
        };
        Ok(vec![
            of("problem.toml", "problem.toml", &[PROBLEM, LENGTHS, DRAWN], problem),
            of("problem.json", "problem.json", &[PROBLEM_JSON], problem),
            of("plans", "plans.json", &[PLANS], plans),
            of("evidence", "evidence.jsonl", &[&evidence], stored),
            of("bundle", "bundle.jsonl", &[&bundle, &evidence], gathered),
            of("report", "report.json", &[&report_text], report_of),
            of("baseline", "baseline.json", &[BASELINE], baseline),
            of("counters", "counters.csv", &[COUNTERS], counters),
            of("source page", "source.csv", &[SOURCE_PAGE], source_page),
            of("own", "own.toml", &[OWN, &WRONG.replace("../", "")], own),
            of("rates", "rates.json", &[RATES], rates),
            of("card", "card.json", &[&card], card_of),
            of("space", "space.json", &[&space.to_string()], measured_space),
            of("kernel ids", "ids.txt", &[IDS], ids),
            Format {
                name: "cubin",
                file: "kernels.cubin",
                seeds: vec![CUBIN.to_vec()],
                read: cubin,
            },
            Format {
                name: "ptx",
                file: "kernel.ptx",
                seeds: ptx::texts().into_iter().map(String::into_bytes).collect(),
                read: |_, path| ptx::fate(&text(path)?),
            },
            of("run", "run/run.json", &[RUN], run),
            of("trials", "run/trials.jsonl", &[TRIALS], run),
            of("board", "run/board.json", &[BOARD], run),
        ])
    }

    /// A store of one run of a small problem on the host, and its report.
    fn measured(&self) -> Result<(String, String, Report), Refused> {
        let request = Request {
            cases: problems::cases("tiny", None)?,
            kernels: vec!["cpu/m16n16".to_string(), "cpu/m32n16".to_string()],
            options: Options {
                budget_ms: 1.0,
                ..Options::for_cpu()
            },
            ..Request::default()
        };
        let folder = self.folder.join("store");
        let store = Store::at(&folder);
        let report = flashcore_bench::run(&Device::cpu(), &request, &mut (), Some(&store), &mut ())?;
        let runs = store.runs(&Selector::All)?;
        let run = runs.first().ok_or("the bench left no run")?;
        let bundle = store.bundled(run, &|revision| Ok(revision.to_string()))?;
        let bundle = String::from_utf8(bundle)?;
        Ok((files::read_text_capped(run.path(), files::SMALL)?, bundle, report))
    }
}

fn text(path: &Path) -> Result<String, Refused> {
    Ok(files::read_text_capped(path, files::SMALL)?)
}

fn problem(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    let cases: Vec<Case> = problem_file::read(&path.display().to_string(), None)?;
    cases.iter().for_each(|case| drop(case.problem.to_string()));
    Ok(Fate::Read)
}

fn plans(bench: &Bench, path: &Path) -> Result<Fate, Refused> {
    let named = read_table(path)?;
    let class = PlanClass::of(&bench.problem).ok_or("the problem has no class")?;
    named.table.row_for(&class);
    Plans::of_tables(vec![named]).suggestions(&bench.problem);
    Ok(Fate::Read)
}

fn stored(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    let store = Store::at(path);
    for run in store.runs(&Selector::All)? {
        store.measurements(&run)?;
        store.profiles(&run)?;
        run.notes();
    }
    store.export_csv(&Selector::All, &mut std::io::sink())?;
    drop(Side::named(&path.display().to_string(), path)?);
    Ok(Fate::Read)
}

fn gathered(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    let mut gathered = Gathered::default();
    gathered.add_files(&[path.to_path_buf()])?;
    gathered.find("0");
    Ok(Fate::Read)
}

fn report_of(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    let mut printed: serde_json::Value = serde_json::from_str(&text(path)?)?;
    let report = printed
        .get_mut("report")
        .map(serde_json::Value::take)
        .ok_or("no report")?;
    let report: Report = serde_json::from_value(report)?;
    table::text(&report);
    of_report(&report);
    Speed::of_report(&report, Mode::Hot)?;
    Ok(Fate::Read)
}

fn baseline(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    Baseline::read(path)?;
    Ok(Fate::Read)
}

fn counters(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    let bytes = files::read_capped(path, files::SMALL)?;
    csv::read(&String::from_utf8_lossy(&bytes))?;
    Ok(Fate::Read)
}

fn source_page(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    csv::lines(&text(path)?);
    Ok(Fate::Read)
}

fn own(bench: &Bench, path: &Path) -> Result<Fate, Refused> {
    let (declared, _) = Declared::read(&path.display().to_string(), Target::Sm80)?;
    declared.launch(&bench.problem)?;
    Ok(Fate::Read)
}

fn rates(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    DeviceRates::read(path)?.card();
    Ok(Fate::Read)
}

fn card_of(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    cost::card(&path.display().to_string()).ok_or("it is no card")??;
    Ok(Fate::Read)
}

fn measured_space(bench: &Bench, path: &Path) -> Result<Fate, Refused> {
    let measured = Measured::read(&text(path)?, "space.json")?;
    for table in &measured.tables {
        table.best();
        table.worst();
        table.by_id();
        table.space();
    }
    measured.advisor(&bench.problem);
    Ok(Fate::Read)
}

fn ids(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    let text = text(path)?;
    let id = |line: &str| line.split(['#', '=']).next().unwrap_or_default().trim().to_string();
    for id in text.lines().map(id).filter(|id| !id.is_empty()) {
        id.parse::<KernelId>()?;
    }
    Ok(Fate::Read)
}

fn cubin(_: &Bench, path: &Path) -> Result<Fate, Refused> {
    let bytes = files::read_capped(path, files::SMALL)?;
    foreign::binary_kind(&bytes);
    foreign::read(&bytes)?;
    Ok(Fate::Read)
}

fn run(bench: &Bench, _: &Path) -> Result<Fate, Refused> {
    let folder = bench.folder.join("run");
    read_claims(&folder);
    read_seconds(&folder);
    let header = read_header(&folder);
    let trials = read_trials(&folder);
    let board = board_of(&folder)?;
    if let (Ok(header), Some(board)) = (&header, board) {
        flashcore_tune::plans::judge_board(header, &board);
    }
    header?;
    trials?;
    Ok(Fate::Read)
}
