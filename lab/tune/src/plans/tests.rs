//! Rows of plan tables from measurements, and the files they are in.

use flashcore::unstable::plans::{PlanSetting, PlanTarget, Plans};
use flashcore::{Attention, Device};
use flashcore_bench::{Case, Interval, LaunchMode, Measured, Measurement, Options, Stop, SubjectInfo, Summary, Turns};

use std::path::PathBuf;

use flashcore::unstable::plans::{PlanTable, read_table};

use super::*;
use crate::board::BoardRow;
use crate::default::DefaultKernel;
use crate::trial::Verdict;

fn problem(length: usize) -> Problem {
    Problem::builder()
        .head_dim(64)
        .heads(4, 4)
        .seq_len(length)
        .build()
        .unwrap()
}

fn host() -> DeviceIdentity {
    DeviceIdentity::cpu()
}

fn ratio(lo: f64, hi: f64) -> Ratio {
    Ratio {
        value: (lo + hi) / 2.0,
        interval: Interval { lo, hi },
        of_medians: 1.0,
        rounds: 12,
    }
}

fn of(length: usize, kernel: &str) -> PlanRow {
    let when = ("1a2b3c4d5e6f", 1_795_219_200);
    row(
        &problem(length),
        kernel,
        "cpu/m16n128",
        &ratio(0.9, 0.94),
        &host(),
        when,
    )
    .unwrap()
}

/// A board on this host, as if `tune` had found `winner`.
fn found(start: &str, winner: &str) -> (Header, Board) {
    let header = Header {
        problem: problem(100),
        revision: "1a2b3c4d5e6f".to_string(),
        start: start.to_string(),
        default: Some(DefaultKernel::of(&problem(100), &device_of(&host()), &Plans::none()).unwrap()),
        started_at: 1_795_219_200,
        ..crate::tests::header()
    };
    let row = |id: &str, ratio| BoardRow {
        id: id.to_string(),
        us: 10.0,
        interval: Interval::UNKNOWN,
        ratio,
        first_ratio: None,
        verdict: Some(Verdict::Faster),
        simulated: None,
        error: None,
        tolerance: None,
    };
    let mut board = Board::new(start, None, false, 0.03);
    board.rows = vec![row(winner, Some(ratio(0.9, 0.94))), row(start, None)];
    board.winner = Some(winner.to_string());
    (header, board)
}

#[test]
fn what_a_search_found_is_what_the_library_uses() {
    let folder = folder("used");
    let start = heuristics(&problem(100), &host()).unwrap().to_string();
    let (header, board) = found(&start, "cpu/m48n36");
    let row = of_board(&header, &board).unwrap();
    assert_eq!(
        (row.gain, row.interval, row.date.as_str()),
        (0.08, [0.06, 0.1], "2026-11-21")
    );
    let device = device_of(&host());
    assert_eq!(device, PlanDevice::of(&Device::Cpu));
    let kept = keep(&folder, &header, row.clone()).unwrap();
    assert_eq!((kept.place.number, kept.used.kernel.as_str()), (1, "cpu/m48n36"));
    assert!(kept.used.by().starts_with("row 1 of "), "{kept:?}");

    let here = PlanTarget::from(&Device::Cpu);
    let kernel = |setting| {
        let plans = Plans::find(&setting, Some(&folder), &here).unwrap();
        let attention = Attention::with(Device::cpu(), plans).unwrap();
        attention.plan(&problem(100)).unwrap().kernel().to_string()
    };
    assert_eq!(kernel(PlanSetting::Usual), "cpu/m48n36");
    assert_eq!(kernel(PlanSetting::Shipped), start);
    // Put again, as by a run that is resumed, it is the same row.
    let text = std::fs::read_to_string(&kept.place.file).unwrap();
    assert_eq!(keep(&folder, &header, row).unwrap(), kept);
    assert_eq!(std::fs::read_to_string(&kept.place.file).unwrap(), text);
    // Another search's winner replaces it, be it what heuristics choose.
    let (mut header, board) = found("cpu/m48n36", &start);
    let default = header.default.as_mut().unwrap();
    (default.kernel, default.row) = ("cpu/m48n36".to_string(), Some("row 1 of a table".to_string()));
    let row = of_board(&header, &board).unwrap();
    let replaced = keep(&folder, &header, row).unwrap();
    assert_eq!(
        (replaced.place.number, replaced.used.kernel.as_str()),
        (1, start.as_str())
    );
    assert_eq!(kernel(PlanSetting::Usual), start);
    assert!(
        judge_board(&header, &board).row.is_none(),
        "a table that says what heuristics say"
    );
    let file = file_of(&folder, &device);
    drop_row(&file, 1, None).unwrap();
    assert!(drop_row(&file, 1, None).is_err());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_winner_of_a_backward_search_is_used_for_backward_passes_alone() {
    let folder = folder("backward");
    let backward = problem(100).backward().unwrap();
    let start = heuristics(&backward, &host()).unwrap().to_string();
    let (mut header, mut board) = found(&start, "cpu/m48n36");
    header.problem = backward.clone();
    header.default = Some(DefaultKernel::of(&backward, &device_of(&host()), &Plans::none()).unwrap());
    let row = of_board(&header, &board).unwrap();
    let kept = keep(&folder, &header, row).unwrap();
    assert_eq!((kept.place.number, kept.used.kernel.as_str()), (1, "cpu/m48n36"));
    let plans = Plans::find(&PlanSetting::User, Some(&folder), &PlanTarget::from(&Device::Cpu)).unwrap();
    let attention = Attention::with(Device::cpu(), plans).unwrap();
    assert_eq!(attention.plan(&backward).unwrap().row(), Some(0));
    assert_eq!(attention.plan(&problem(100)).unwrap().row(), None);
    // A row of the forward pass stands next to it.
    let place = put(&folder, &device_of(&host()), of(100, "cpu/m48n48")).unwrap();
    assert_eq!(read_table(&place.file).unwrap().table.rows().count(), 2);
    // The margin is that of forward passes.
    board.rows[0].ratio = Some(ratio(0.637, 0.998));
    assert!(of_board(&header, &board).unwrap_err().contains("too uncertain"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_gain_that_noise_can_make_is_no_row() {
    let start = heuristics(&problem(100), &host()).unwrap().to_string();
    let (header, mut board) = found(&start, "cpu/m48n36");
    board.rows[0].ratio = Some(ratio(0.637, 0.998));
    let why = of_board(&header, &board).unwrap_err();
    assert!(
        why.contains("18.2 % less time, with an interval of [0.2, 36.3] %"),
        "{why}"
    );
    assert!(judge_board(&header, &board).row.is_none());
    board.rows[0].ratio = Some(ratio(0.95, 0.96));
    assert!(of_board(&header, &board).is_ok());
}

#[test]
fn a_row_that_is_read_earlier_is_named_and_nothing_is_claimed() {
    const OLD: &str = "cpu/m48n48";
    let folder = folder("shadowed");
    std::fs::create_dir_all(&folder).unwrap();
    let earlier = folder.join("0.json");
    let mut table = PlanTable::new(device_of(&host()));
    table.put(of(64, OLD));
    table.put(of(100, OLD));
    write(&earlier, &table).unwrap();
    let start = heuristics(&problem(100), &host()).unwrap().to_string();
    let (header, board) = found(&start, "cpu/m48n36");
    let kept = || keep(&folder, &header, of_board(&header, &board).unwrap()).unwrap();
    let used = kept().used;
    assert_eq!(used.kernel, OLD);
    assert!(
        used.by().starts_with(&format!("row 2 of {}", earlier.display())),
        "{used}"
    );
    // What it says to do helps.
    drop_row(&earlier, 2, Some(OLD)).unwrap();
    assert_eq!(kept().used.kernel, "cpu/m48n36");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_was_not_measured_against_the_default_makes_no_row() {
    let start = heuristics(&problem(100), &host()).unwrap().to_string();
    let (header, board) = found("cpu/m256n256", "cpu/m48n36");
    assert!(
        of_board(&header, &board)
            .unwrap_err()
            .contains("leave the id of --kernel out")
    );
    let (header, board) = found(&start, &start);
    assert!(of_board(&header, &board).unwrap_err().contains("nothing was faster"));
    // From a row the next one goes on, and says what it was measured against.
    let (mut header, board) = found("cpu/m48n48", "cpu/m48n36");
    let default = DefaultKernel {
        kernel: "cpu/m48n48".to_string(),
        row: Some("row 3 of a table".to_string()),
        heuristics: start.clone(),
    };
    header.default = Some(default);
    assert_eq!(of_board(&header, &board).unwrap().against, "cpu/m48n48");
    let stands = found("cpu/m48n48", "cpu/m48n48").1;
    assert!(of_board(&header, &stands).unwrap_err().contains("row 3 of a table"));
    let (header, mut board) = found(&start, "cpu/m48n36");
    board.head_to_head = Err("the worker died".to_string()).into();
    assert!(of_board(&header, &board).unwrap_err().contains("the worker died"));
    let (header, mut board) = found(&start, "cpu/m48n36");
    board.start_failed = Some("WRONG".to_string());
    assert!(of_board(&header, &board).unwrap_err().contains("failed"));
    let (mut header, board) = found(&start, "cpu/m48n36");
    header.problem = Problem::builder()
        .head_dim(64)
        .heads(4, 4)
        .seq_len(100)
        .offsets(1, 0)
        .build()
        .unwrap();
    assert!(of_board(&header, &board).unwrap_err().contains("without offsets"));
}

#[test]
fn what_was_made_up_makes_no_row() {
    let start = heuristics(&problem(100), &host()).unwrap().to_string();
    let (mut header, board) = found(&start, "cpu/m48n36");
    assert!(of_board(&header, &board).is_ok());
    header.computes = false;
    assert!(judge_board(&header, &board).why.contains("replay"));
    header.computes = true;
    header.torture = true;
    assert!(judge_board(&header, &board).why.contains("planted"));
}

/// A report on this host of kernels with ratios to the first of them.
fn report(base: &str, others: &[(&str, Option<Ratio>)]) -> Report {
    let subject = |label: &str, ratio: Option<Ratio>| Measured {
        info: SubjectInfo {
            kernel: Some(label.to_string()),
            ..SubjectInfo::new(label, LaunchMode::Host)
        },
        summary: Summary::of(&[10.0; 12], 0.99),
        ratio,
        verdict: None,
        settled: true,
        trouble: None,
    };
    let mut subjects = vec![subject(base, None)];
    subjects.extend(others.iter().map(|(label, ratio)| subject(label, *ratio)));
    let inspections = vec![None; subjects.len()];
    let measurement = Measurement {
        mode: Mode::Hot,
        turns: Some(Turns::Short),
        baseline: 0,
        subjects,
        stop: Stop::Narrow,
        rounds: 12,
        readings: Vec::new(),
    };
    let case = Case::new("four heads", problem(100));
    let mut report = Report::new(RunIdentity::now(host()), Options::default(), None);
    report
        .results
        .push(CaseResult::new(case, measurement, inspections, Vec::new(), None));
    report
}

#[test]
fn a_report_makes_rows_of_what_is_faster_beyond_doubt() {
    let base = heuristics(&problem(100), &host()).unwrap().to_string();
    let only = |base: &str, others: &[(&str, Option<Ratio>)]| of_report(&report(base, others)).remove(0);
    let (far, near, unsure) = (ratio(0.90, 0.92), ratio(0.992, 0.994), ratio(0.95, 1.01));
    let judged = only(&base, &[("cpu/m64n64", Some(near)), ("cpu/m48n36", Some(far))]);
    let row = judged.row.unwrap();
    assert_eq!(
        (row.kernel.to_string().as_str(), row.against.as_str()),
        ("cpu/m48n36", base.as_str())
    );
    assert_eq!((row.gain, row.interval), (0.09, [0.08, 0.1]));
    for (what, judged) in [
        ("under 1 %", only(&base, &[("cpu/m64n64", Some(near))])),
        ("not clear of none", only(&base, &[("cpu/m64n64", Some(unsure))])),
        (
            "not against what heuristics choose",
            only("cpu/m256n256", &[("cpu/m64n64", Some(far))]),
        ),
        ("alone", only(&base, &[])),
        ("rejected afterwards", only(&base, &[("cpu/m64n64", None)])),
    ] {
        assert!(judged.row.is_none() && !judged.why.is_empty(), "{what}");
    }
    // A screening is not a measurement to keep.
    let mut screened = report(&base, &[("cpu/m48n36", Some(far))]);
    screened.results[0].measurement.mode = Mode::Screen;
    assert!(of_report(&screened).is_empty());
}

/// A folder of tables that is not there yet.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("flashcore-plan-rows-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

#[test]
fn a_table_has_a_file_for_each_device() {
    let device = PlanDevice {
        name: "NVIDIA H200".to_string(),
        target: "sm_90a".to_string(),
        units: 132,
    };
    assert_eq!(
        file_of(Path::new("plans"), &device),
        Path::new("plans/nvidia-h200-132.json")
    );
}

#[test]
fn two_that_write_at_once_lose_no_row() {
    let folder = folder("two");
    let device = device_of(&host());
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (folder, device) = (&folder, &device);
            scope.spawn(move || {
                for turn in 0..10 {
                    put(folder, device, of(64 * (1 + writer * 10 + turn), "cpu/m64n64")).unwrap();
                    // Whole at any moment.
                    read_table(&file_of(folder, device)).unwrap();
                }
            });
        }
    });
    let table = read_table(&file_of(&folder, &device)).unwrap().table;
    assert_eq!(table.rows().count(), 40);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_row_that_is_another_by_now_is_not_dropped() {
    let folder = folder("drop");
    let device = device_of(&host());
    let path = put(&folder, &device, of(128, "cpu/m48n48")).unwrap().file;
    // It becomes the second one.
    put(&folder, &device, of(64, "cpu/m64n64")).unwrap();
    let error = drop_row(&path, 1, Some("cpu/m48n48")).unwrap_err().to_string();
    assert!(error.contains("cpu/m64n64, which row 1 has now"), "{error}");
    assert_eq!(read_table(&path).unwrap().table.rows().count(), 2);
    let gone = drop_row(&path, 2, Some("cpu/m48n48")).unwrap();
    assert_eq!((gone.number, gone.kernel.as_str()), (2, "cpu/m48n48"));
    drop_row(&path, 1, None).unwrap();
    assert!(drop_row(&path, 1, None).unwrap_err().to_string().contains("1 to 0"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_keeps_a_row_out_is_known_before_there_is_one() {
    let folder = folder("beforehand");
    let device = device_of(&host());
    let path = file_of(&folder, &device);
    let why = |folder: &Path| can_put(folder, &device).unwrap_err().to_string();
    can_put(&folder, &device).unwrap();
    assert!(!path.exists() && !path.with_extension("new").exists());
    // No new file can be written.
    std::fs::create_dir(path.with_extension("new")).unwrap();
    assert!(why(&folder).contains(".new: "), "{}", why(&folder));
    std::fs::remove_dir(path.with_extension("new")).unwrap();
    std::fs::write(&path, "not a table").unwrap();
    assert!(why(&folder).contains("it is no plan table"), "{}", why(&folder));
    assert!(why(&path).contains("exists"), "{}", why(&path));
    std::fs::remove_file(&path).unwrap();
    put(&folder, &device, of(64, "cpu/m64n64")).unwrap();
    can_put(&folder, &device).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// What lies next to a table may be of others: nothing is waited for, and nothing is written through a link.
#[cfg(unix)]
#[test]
fn what_others_left_next_to_a_table_is_no_lock() {
    let folder = folder("strange");
    let device = device_of(&host());
    put(&folder, &device, of(64, "cpu/m64n64")).unwrap();
    let path = file_of(&folder, &device);
    let theirs = folder.join("theirs");
    std::fs::write(&theirs, "kept").unwrap();
    std::os::unix::fs::symlink(&theirs, path.with_extension("new")).unwrap();
    can_put(&folder, &device).unwrap();
    assert_eq!(std::fs::read_to_string(&theirs).unwrap(), "kept");
    let lock = path.with_extension("lock");
    std::fs::remove_file(&lock).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&lock).status().unwrap();
    assert!(made.success());
    let (sender, done) = std::sync::mpsc::channel();
    let of_thread = folder.clone();
    std::thread::spawn(move || sender.send(put(&of_thread, &device, of(64, "cpu/m64n64")).map_err(|e| e.to_string())));
    let error = done
        .recv_timeout(std::time::Duration::from_secs(120))
        .expect("it does not wait");
    let error = error.unwrap_err();
    assert!(error.contains(".lock: it is a pipe (FIFO)"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_is_no_table_is_left_alone() {
    let folder = folder("alone");
    std::fs::create_dir_all(&folder).unwrap();
    let device = device_of(&host());
    let path = file_of(&folder, &device);
    for text in ["not a table", r#"{"format": 7, "device": {}, "rows": []}"#] {
        std::fs::write(&path, text).unwrap();
        let error = put(&folder, &device, of(64, "cpu/m64n64")).unwrap_err().to_string();
        assert!(error.contains("move it away"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    let other = PlanTable::new(PlanDevice {
        target: "x86_64/none".to_string(),
        ..device.clone()
    });
    write(&path, &other).unwrap();
    let error = put(&folder, &device, of(64, "cpu/m64n64")).unwrap_err().to_string();
    assert!(error.contains("it is a table of"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}
