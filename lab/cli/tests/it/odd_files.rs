//! Files that are none: a FIFO without a writer, a link to a device without an end, a folder, a terabyte. Each command
//! that reads a file refuses them, and neither waits nor fills the memory.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Ran, command, words};

/// A command that takes so long waits for something that never comes.
const NEVER: Duration = Duration::from_secs(240);

/// Runs a command that may want all memory, and ends it if it never ends.
fn run(home: &Path, arguments: &str) -> Ran {
    let mut limited = Command::new("/bin/sh");
    let given = command(arguments);
    limited
        .args(["-c", "ulimit -v 16000000; exec \"$0\" \"$@\""])
        .arg(given.get_program())
        .args(given.get_args())
        .envs(given.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("HOME", home)
        .env("XDG_DATA_HOME", home.join("data"))
        .env("RAYON_NUM_THREADS", "2")
        .env_remove("FLASHCORE_PLANS")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = limited.spawn().expect("the command starts");
    let began = Instant::now();
    while child.try_wait().expect("a status").is_none() {
        if began.elapsed() > NEVER {
            child.kill().expect("it is ended");
            panic!("flashcore {arguments} waits for ever");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output().expect("its output");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        code: output.status.code().unwrap_or(-1),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Puts something that is no file to read at a path.
fn put(kind: &str, path: &Path) {
    let _ = std::fs::remove_file(path);
    match kind {
        "fifo" => assert!(Command::new("mkfifo").arg(path).status().expect("mkfifo").success()),
        "zero" => std::os::unix::fs::symlink("/dev/zero", path).expect("a link"),
        "sparse" => {
            let file = std::fs::File::create(path).expect("a file");
            file.set_len(1 << 40).expect("a sparse file");
        }
        _ => {
            std::fs::create_dir(path).expect("a folder");
        }
    }
}

const KINDS: [&str; 4] = ["fifo", "zero", "sparse", "folder"];

#[test]
fn commands_refuse_files_that_are_none() {
    let home = tempfile::tempdir().expect("a folder");
    for kind in KINDS {
        let folder = home.path().join(kind);
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(
            folder.join("own.toml"),
            "ptx = \"x.ptx\"\nargs = []\ngrid = [\"1\"]\nblock = [\"1\"]\n",
        )
        .expect("a file");
        std::fs::create_dir(folder.join("run")).expect("a folder");
        for name in [
            "x.toml",
            "x.json",
            "x.ptx",
            "x.cubin",
            "x.csv",
            "x.jsonl",
            "x.py",
            "run/run.json",
            "ids",
        ] {
            put(kind, &folder.join(name));
        }
        for words in [
            "run F/x.toml",
            "run F/x.json",
            "bench F/x.toml --device cpu --store none",
            "check F/x.ptx",
            "explain F/x.ptx",
            "explain F/x.cubin",
            "check tiny --kernel F/own.toml",
            "check tiny --kernel F/x.toml",
            "bench tiny --device cpu --store none --trust --kernel F/x.py:attention",
            "bench tiny --device cpu --store none --kernel F/ids",
            "gate --against F/x.json",
            "evidence chart ladder latest --kernel F/x.csv -o F/out.svg",
            "device F/x.json",
            "plans make F/x.json -o F/out.json",
            "profile --from F/x.csv",
            "evidence chart lines F/x.csv -o F/out.svg",
            "evidence chart lines F/x.json -o F/out.svg",
            "report F/x.jsonl -o F/out.html",
            "evidence compare F/x.jsonl F/x.jsonl",
            "evidence import F/x.jsonl",
            "tune tiny --device replay:F/x.json --trials 1",
            "tune show F/run",
        ] {
            let arguments = words.replace('F', &folder.display().to_string());
            let ran = run(home.path(), &arguments);
            assert!(
                (1..=3).contains(&ran.code) && !ran.stderr.contains("panicked"),
                "{kind}: flashcore {arguments}: {}\n{}",
                ran.code,
                ran.words()
            );
            assert!(
                !ran.stderr.trim().is_empty() || !ran.stdout.trim().is_empty(),
                "{arguments}"
            );
        }
    }
}

#[test]
fn a_folder_of_plan_tables_has_only_files() {
    let home = tempfile::tempdir().expect("a folder");
    let plans = home.path().join("data/flashcore/plans");
    std::fs::create_dir_all(&plans).expect("a folder");
    for kind in KINDS {
        put(kind, &plans.join(format!("{kind}.json")));
    }
    let ran = run(home.path(), "run tiny --device cpu");
    assert_eq!(ran.code, 0, "{}", ran.words());
    let shown = run(home.path(), "plans");
    let said = words(&format!("{}{}", ran.stdout + &ran.stderr, shown.stdout + &shown.stderr));
    for (kind, why) in KINDS.iter().zip([
        "it is a pipe (FIFO), not a regular file",
        "it is a device, not a regular file",
        "it has 1099511627776 bytes; such a file has at most",
        "it is a folder, not a file",
    ]) {
        let place = said
            .find(&format!("{kind}.json"))
            .unwrap_or_else(|| panic!("{kind}: {said}"));
        assert!(said[place..].contains(why), "{kind}: {said}");
    }
}

#[test]
fn what_the_user_pipes_in_is_read() {
    let mut piped = command("profile --from /dev/stdin --json");
    let text = include_str!("../../../bench/tests/data/ncu-h200.csv");
    let mut child = piped
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("a pipe"), text.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"kernels\""));
}
