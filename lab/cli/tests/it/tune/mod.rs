//! `flashcore tune` as a whole: candidates that are known to be bad, and processes that are killed.

mod continued;
#[cfg(unix)]
mod errors;
mod evolve;
#[cfg(unix)]
mod interrupt;
#[cfg(target_os = "linux")]
mod kills;
mod overview;
mod own;
#[cfg(unix)]
mod peers;
mod plan_files;
mod plan_rows;
mod proposer;
mod resumed;
mod rewrites;
mod tour;
mod workers;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flashcore_bench::{Case, DeviceIdentity, RunIdentity};
use flashcore_problem::Problem;
use flashcore_tune::board::Struck;
use flashcore_tune::replay::{Failed, Measured, Row, Table};
use flashcore_tune::space::{CPU, Space};
use flashcore_tune::worker::planted::Conduct;
use flashcore_tune::{Trial, Verdict};
use serde_json::Value;

use crate::common::{self, words};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("flashcore-tune-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    made_up(&folder, &serde_json::json!({}));
    folder
}

/// Has every kernel on the host take so many µs by its id, and 1,000 without one, whatever machine this is and whatever
/// else it does: the kernels compute, and the clock is made up.
fn made_up(home: &Path, times: &Value) {
    std::fs::write(home.join("times.json"), times.to_string()).unwrap();
}

fn flashcore(words: &str, home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flashcore"));
    command.args(words.split_whitespace());
    environment(&mut command, home);
    command
}

/// Has a command keep what it keeps in this folder, take the times in it, and not wait for any PyTorch of this machine.
fn environment<'c>(command: &'c mut Command, home: &Path) -> &'c mut Command {
    command
        .env("XDG_DATA_HOME", home)
        .env_remove("FLASHCORE_PLANS")
        .env("FLASHCORE_HOST_TIMES", home.join("times.json"))
        .env("FLASHCORE_PYTHON", "no-python-here")
}

/// What a command printed, and what it said beside that.
fn said_of(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).to_string();
    (text(&output.stdout), text(&output.stderr))
}

/// What a command prints as JSON.
fn json(command: &mut Command) -> Value {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn trials(run: &Value) -> Vec<Trial> {
    serde_json::from_value(run["trials"].clone()).unwrap()
}

/// Seconds after which a candidate that hangs is given up. All others answer in milliseconds, however busy a machine
/// is.
const DEADLINE: u64 = 4;

/// The verdict that a planted candidate must get on the host, on a small problem with a log-sum-exp, where
/// every element is compared; `None` for those that are timed: the honest one, and those that the finals
/// must strike. A write outside a tensor ends the process.
fn deserved(conduct: Conduct) -> Option<Verdict> {
    match conduct {
        Conduct::Honest | Conduct::ChangesInFinals | Conduct::CrashesInFinals | Conduct::WrongFarOut => None,
        Conduct::DoesNotBuild => Some(Verdict::BuildFailed),
        Conduct::Hangs => Some(Verdict::Hung),
        Conduct::Crashes | Conduct::OutOfBounds | Conduct::OneOutside => Some(Verdict::LaunchFailed),
        Conduct::Unstable => Some(Verdict::Unstable),
        Conduct::WrongSometimes
        | Conduct::WrongOnLargeScores
        | Conduct::Unwritten
        | Conduct::Zeros
        | Conduct::Cached
        | Conduct::LazyLater
        | Conduct::WrongLse
        | Conduct::Wrong
        | Conduct::Nan
        | Conduct::LeavesOutputsAlone
        | Conduct::PointerReplay
        | Conduct::UnwrittenLse
        | Conduct::NotJoined
        | Conduct::NotWaiting => Some(Verdict::Wrong),
    }
}

/// Searches among planted candidates, and holds each to its verdict.
fn torture(problem: &str, home: &Path) -> Value {
    let words = format!(
        "tune {problem} --device cpu --torture --family planted --strategy exhaustive --trials 50 --deadline {DEADLINE} \
         --seed 1 --json"
    );
    let run = json(&mut flashcore(&words, home));
    let trials = trials(&run);
    for conduct in Conduct::SEARCHED {
        let trial = trials.iter().find(|trial| trial.id == conduct.to_string()).unwrap();
        match deserved(conduct) {
            Some(verdict) => assert_eq!(trial.verdict, verdict, "{problem}, {conduct}: {}", trial.reason),
            None => assert!(trial.verdict.is_timed(), "{problem}, {conduct}: {}", trial.reason),
        }
        assert!(!trial.reason.is_empty());
    }
    // Hung once; died twice each in a crash and twice outside of bounds; in the finals twice among all and once more
    // where it is found out who it was; and the first.
    assert_eq!(run["workers_started"], 11, "{run:#}");
    assert_eq!(run["board"]["winner"], run["run"]["start"]);
    assert!(run["plan"]["none"].as_str().unwrap().contains("planted"));
    // Those that are honest until the finals, in the order in which they are found out.
    let mut struck: Vec<Struck> = serde_json::from_value(run["board"]["struck"].clone()).unwrap();
    struck.sort_by(|a, b| a.id.cmp(&b.id));
    let struck: Vec<_> = struck.iter().map(|one| (one.id.as_str(), one.verdict)).collect();
    assert_eq!(
        struck,
        [
            ("planted/changes-in-finals", Verdict::Wrong),
            ("planted/crashes-in-finals", Verdict::LaunchFailed)
        ]
    );
    assert_eq!(run["board"]["head_to_head"]["ok"], true, "{run:#}");
    // On the host every kernel is of one family, so that none can witness for another.
    assert!(run["board"]["witness"].is_null(), "{run:#}");
    run
}

#[test]
fn every_planted_candidate_gets_what_it_deserves() {
    let home = folder("torture");
    let run = torture("tiny --lse", &home);
    // The same from the files, and the overview.
    let again = json(flashcore("tune show --json", &home).arg(run["run"]["case"].as_str().unwrap()));
    assert_eq!(again["board"], run["board"]);
    assert_eq!(again["seconds"], run["seconds"]);
    assert_eq!(trials(&again), trials(&run));
    // To people what failed is named with its reason, and on request every candidate.
    let case = run["run"]["case"].as_str().unwrap();
    let shown = |more: &str| {
        let output = flashcore(&format!("tune show {more}"), &home).arg(case).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let said = words(&shown(""));
    assert!(said.contains(" failed HUNG planted/hangs: no answer"), "{said}");
    assert!(said.contains("more reasons: --all shows every candidate"), "{said}");
    let said = shown("--all").split_once("Candidates ·").unwrap().1.to_string();
    for trial in trials(&run) {
        let line = said
            .lines()
            .find(|line| line.split_whitespace().next() == Some(&trial.number.to_string()));
        assert!(
            line.is_some_and(|line| line.contains(&trial.id)),
            "{}: {said}",
            trial.id
        );
    }
    let listed = json(&mut flashcore("tune show --json", &home));
    assert_eq!(listed["runs"][0]["run"]["torture"], true, "{listed:#}");
    let overview = flashcore("tune show", &home).output().unwrap();
    let overview = words(&said_of(&overview).0);
    assert!(overview.contains("with planted candidates"), "{overview}");
    assert!(overview.contains("Replays, predictions and torture"), "{overview}");
    // Of fp8 elements the scales are part of what is right.
    torture("tiny --lse --dtype e4m3", &home);
    std::fs::remove_dir_all(&home).unwrap();
}

/// A budget that is spent on the default says nothing of others.
#[test]
fn where_only_the_default_was_tried_that_is_said() {
    let home = folder("only");
    let shown = flashcore("tune tiny --device cpu --trials 1", &home).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let told = words(&shown);
    // How much more depends on the machine.
    let advice = told
        .split_once("only it was tried; a candidate takes ")
        .map(|(_, advice)| advice);
    assert!(
        advice.is_some_and(|advice| advice.contains(" s here: give --budget ") && advice.contains(" or more")),
        "{shown}"
    );
    assert!(!told.contains("no candidate is faster"), "{shown}");
    // So says the leaderboard, and as many seconds.
    let again = flashcore("tune show tiny", &home).output().unwrap();
    let again = String::from_utf8(again.stdout).unwrap();
    for label in ["  result", "  tried"] {
        let line = |text: &str| text.lines().find(|line| line.starts_with(label)).map(str::to_string);
        assert_eq!(line(&again), line(&shown), "{again}");
    }
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_first_candidate_that_fails_is_no_winner() {
    let home = folder("first");
    for (start, why) in [
        ("nonsense", "no kernel is named"),
        ("planted/zeros", "--torture"),
        ("mma/m64n64-w4x1-s2-b1-qreg-xor-cond", "the device is the host"),
    ] {
        let typed = format!("tune tiny --device cpu --kernel {start} --trials 2");
        let output = flashcore(&typed, &home).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{start}: {said}");
        assert!(words(&said).contains(why), "{start}: {said}");
    }
    let words = "tune tiny --device cpu --torture --family planted --strategy exhaustive --kernel planted/zeros \
        --seed 1";
    let output = flashcore(&format!("{words} --trials 2 --json"), &home)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let board = &run["board"];
    assert!(board["start_failed"].as_str().unwrap().starts_with("WRONG"), "{board}");
    // The rest met without it.
    assert_eq!(board["winner"], "planted/honest");
    assert_eq!(board["against"], "planted/honest");
    assert_eq!(
        board["head_to_head"],
        serde_json::json!({ "ok": true, "why": null }),
        "{board}"
    );
    let shown = flashcore("tune show tiny", &home).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("FAILED") && !shown.contains("stands"), "{shown}");
    // Nothing at all came through.
    let alone = flashcore(&format!("{words} --trials 1"), &home).output().unwrap();
    assert_eq!(alone.status.code(), Some(1));
    std::fs::remove_dir_all(&home).unwrap();
}

/// Of a large output only some rows leave the worker, and counts over all of it: what is judged by them is caught as it
/// is on small ones.
#[test]
fn planted_candidates_are_caught_on_a_large_problem() {
    let home = folder("far");
    let script = home.join("propose.sh");
    // (Not one that is honest for some calls: on a busy host a large problem is not run often enough for it to change.)
    let others = [
        Conduct::Unwritten,
        Conduct::Zeros,
        Conduct::Cached,
        Conduct::Unstable,
        Conduct::WrongSometimes,
    ];
    let ids: Vec<String> = others.iter().map(Conduct::to_string).collect();
    let answer = serde_json::json!({ "propose": ids, "why": "planted" });
    std::fs::write(&script, format!("while read line; do echo '{answer}'; done\n")).unwrap();
    let mut command = flashcore(
        "tune tiny --seq 2048 --heads 2 --head-dim 64 --device cpu --torture --family planted --trials 6 --seed 2 --json",
        &home,
    );
    let proposer = format!("sh {}", script.display());
    let run = json(command.args(["--proposer", &proposer]));
    assert!(run["proposer_gone"].is_null());
    for (conduct, trial) in others.iter().zip(&trials(&run)[1..]) {
        assert_eq!(trial.id, conduct.to_string());
        assert_eq!(Some(trial.verdict), deserved(*conduct), "{conduct}: {}", trial.reason);
    }
    assert_eq!(run["board"]["winner"], run["run"]["start"]);
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn inputs_are_fresh_for_each_run_unless_they_are_pinned() {
    let home = folder("inputs");
    let seed = |more: &str| {
        let words = format!("tune tiny --device cpu --trials 1 --json {more}");
        json(&mut flashcore(&words, &home))["run"]["inputs"].as_u64().unwrap()
    };
    let kept = format!("--folder {}", home.join("one").display());
    let first = seed(&kept);
    assert_ne!(first, seed(""));
    // Another run in its folder is a question asked wrongly.
    let twice = flashcore(&format!("tune tiny --device cpu --trials 1 {kept}"), &home)
        .output()
        .unwrap();
    let said = String::from_utf8(twice.stderr).unwrap();
    assert!(twice.status.code() == Some(2) && said.contains("--resume"), "{said}");
    assert_eq!(seed(&format!("{kept} --resume")), first);
    assert_eq!(seed("--seed 5"), 5);
    std::fs::remove_dir_all(&home).unwrap();
}

/// Two runs on one device take it in turns: the one that must wait says so, and goes on when the other lets go.
#[test]
fn a_search_waits_for_another_one_on_its_device() {
    let home = folder("at-once");
    // As another search has it.
    let lock = home.join("flashcore/tune-devices");
    std::fs::create_dir_all(&lock).unwrap();
    let lock = std::fs::File::create(lock.join(format!("{}.lock", DeviceIdentity::cpu().uuid))).unwrap();
    lock.lock().unwrap();
    let run = home.join("run");
    let words_of_run = format!("tune tiny --device cpu --trials 2 --json --folder {}", run.display());
    let mut waits = flashcore(&words_of_run, &home);
    let mut waits = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It says that it waits, and tries nothing meanwhile.
    let mut told = BufReader::new(waits.stderr.take().unwrap()).lines();
    let first = told.next().unwrap().unwrap();
    assert!(first.contains("another `flashcore tune`"), "{first}");
    assert_eq!(kept(&run), 0);
    lock.unlock().unwrap();
    let told: Vec<String> = told.map_while(Result::ok).collect();
    let output = waits.wait_with_output().unwrap();
    assert!(output.status.success(), "{told:?}");
    assert_eq!(kept(&run), 2);
    // Alone it is told nothing, and its folder is another.
    let alone = flashcore("tune tiny --device cpu --trials 1", &home).output().unwrap();
    let (_, alone) = said_of(&alone);
    assert!(!alone.contains("another"), "{alone}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// The sorted names of an object's members.
fn keys(value: &Value) -> Vec<&str> {
    common::json::keys(value).into_iter().collect()
}

#[test]
fn json_keeps_its_keys() {
    let home = folder("keys");
    let run = json(&mut flashcore(
        "tune tiny --device cpu --strategy random --trials 2 --json",
        &home,
    ));
    let of_run = "board claims folder interrupted peers plan proposer_gone resume run seconds trials workers_started";
    assert_eq!(keys(&run).join(" "), of_run);
    let of_header = "case command computes default devices executable inputs own problem rates revision schema seed space \
                     start started_at strategy torture trust window";
    assert_eq!(keys(&run["run"]).join(" "), of_header);
    let of_trial = "counters fingerprint id number origin reason same_as seconds timed unjudged verdict";
    assert_eq!(keys(&run["trials"][0]).join(" "), of_trial);
    let of_timed = "against error interval module ratio registers score tolerance us";
    assert_eq!(keys(&run["trials"][0]["timed"]).join(" "), of_timed);
    let of_board = "against gain head_to_head rows simulates start start_failed struck winner witness";
    assert_eq!(keys(&run["board"]).join(" "), of_board);
    let of_row = "error first_ratio id interval ratio simulated tolerance us verdict";
    for row in run["board"]["rows"].as_array().unwrap() {
        assert_eq!(keys(row).join(" "), of_row);
    }
    assert_eq!(keys(&run["board"]["head_to_head"]).join(" "), "ok why");
    assert_eq!(keys(&run["plan"]).join(" "), "error file none number row used");
    let kept = run["folder"].as_str().unwrap();
    let shown = json(&mut flashcore(&format!("tune show --json {kept}"), &home));
    assert_eq!(keys(&shown).join(" "), "board claims peers run seconds trials");
    let overview = json(&mut flashcore("tune show --json", &home));
    assert_eq!(keys(&overview).join(" "), "runs unfinished unreadable");
    assert_eq!(keys(&overview["runs"][0]).join(" "), "board folder run");
    let listed = json(&mut flashcore("plans --json", &home));
    assert_eq!(keys(&listed).join(" "), "devices folder setting tables");
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_replay_is_called_one_and_makes_no_row() {
    let home = folder("replay");
    let problem = Problem::named("tiny").unwrap();
    let default = flashcore_tune::plans::heuristics(&problem, &DeviceIdentity::cpu()).unwrap();
    let mut made_up = table();
    let row = |id: &str, us: f64| Row(id.to_string(), us, us * 0.995, us * 1.005);
    let other = ["cpu/m128n256", "cpu/m64n64"]
        .into_iter()
        .find(|id| *id != default.to_string());
    made_up.tables[0].timed = vec![row(&default.to_string(), 10.0), row(other.unwrap(), 5.0)];
    made_up.tables[0].failed = Vec::new();
    let (file, kept) = (home.join("space.json"), home.join("flashcore/tune/run"));
    std::fs::write(&file, serde_json::to_string(&made_up).unwrap()).unwrap();
    let (device, kept) = (file.display(), kept.display());
    let typed = format!("tune tiny --device replay:{device} --kernel {default} --trials 9 --folder {kept} --json");
    let run = json(&mut flashcore(&typed, &home));
    assert_eq!(run["board"]["winner"], other.unwrap());
    assert!(run["plan"]["none"].as_str().unwrap().contains("replay"), "{run:#}");

    let out = home.join("rows.json");
    let made = format!("plans make {kept} -o {} --json", out.display());
    let made = json(&mut flashcore(&made, &home));
    assert!(made["problems"][0]["row"].is_null(), "{made:#}");
    assert!(
        made["problems"][0]["why"].as_str().unwrap().contains("replay"),
        "{made:#}"
    );
    let overview = flashcore("tune show", &home).output().unwrap();
    let overview = words(&String::from_utf8(overview.stdout).unwrap());
    assert!(overview.contains("tiny, a replay of"), "{overview}");
    assert!(!overview.contains("tiny on"), "{overview}");
    std::fs::remove_dir_all(&home).unwrap();
}

/// A space on the host with times that are made up.
pub(crate) fn table() -> Measured {
    let space = Space::new(vec![CPU], |_| Ok(()));
    let mut timed = Vec::new();
    let mut broken = Vec::new();
    for id in space.configs() {
        let (rows, cols) = id.strip_prefix("cpu/m").unwrap().split_once('n').unwrap();
        let (rows, cols): (f64, f64) = (rows.parse().unwrap(), cols.parse().unwrap());
        if rows * cols > 200_000.0 {
            broken.push(id);
            continue;
        }
        let us = 10.0 * (1.0 + (rows / 128.0).log2().abs() + (cols / 256.0).log2().abs());
        timed.push(Row(id, us, us * 0.995, us * 1.005));
    }
    let case = Case::new("tiny", Problem::named("tiny").unwrap());
    let failed = vec![Failed {
        verdict: Verdict::BuildFailed,
        reason: "too large".to_string(),
        ids: broken,
    }];
    Measured {
        schema: 1,
        identity: RunIdentity::now(DeviceIdentity::cpu()),
        tables: vec![Table { case, timed, failed }],
    }
}

/// The processes that a process has started, whichever of its threads did; not every kernel lists them.
#[cfg(target_os = "linux")]
fn children(id: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |child: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        // The name, which may have any letter in it, stands in brackets; then the state, then the parent.
        let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
        let mut fields = after.split(' ');
        fields.next() != Some("Z") && fields.next() == Some(id.to_string().as_str())
    };
    all.filter(is_child).collect()
}

fn kept(folder: &Path) -> usize {
    let text = std::fs::read_to_string(folder.join("trials.jsonl")).unwrap_or_default();
    text.lines().count()
}

/// What two runs of the same must have in common: everything but how long it took.
fn essence(run: &Value) -> (Vec<Trial>, Value) {
    let mut trials = trials(run);
    trials.iter_mut().for_each(|trial| trial.seconds = 0.0);
    (trials, run["board"].clone())
}
