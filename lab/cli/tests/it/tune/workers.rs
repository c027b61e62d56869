//! Workers that another command starts, as on other machines.

use super::{essence, flashcore, folder, json, said_of, trials, words};

const SEARCH: &str = "tune small --device replay:shipped,replay:shipped --strategy elite --seed 3 --trials 30 --json";

/// Starts a worker, and writes a line. The first one of a run that has a file `mortal` ends after a few lines, and none
/// can be started then: one of two is lost.
const SCRIPT: &str = r#"echo started >> "$0.log"
if [ ! -e "$0.mortal" ]; then exec "$1" worker; fi
if mkdir "$0.lost" 2>/dev/null; then
    for n in 1 2 3 4 5 6 7; do read -r line; printf '%s\n' "$line"; done | "$1" worker
    exit 1
fi
if [ -e "$0.second" ]; then exit 1; fi
touch "$0.second"
exec "$1" worker
"#;

#[test]
#[cfg(unix)]
fn a_command_starts_workers_and_a_lost_one_loses_no_trial() {
    let home = folder("workers");
    let script = home.join("start.sh");
    std::fs::write(&script, SCRIPT).unwrap();
    let workers = format!("sh {} {}", script.display(), env!("CARGO_BIN_EXE_flashcore"));
    let run = |name: &str| {
        let mut command = flashcore(SEARCH, &home);
        command.args(["--workers", &workers, "--folder"]).arg(home.join(name));
        json(&mut command)
    };
    let whole = run("whole");
    assert_eq!(trials(&whole).len(), 30);
    let started = || {
        std::fs::read_to_string(home.join("start.sh.log"))
            .unwrap()
            .lines()
            .count()
    };
    assert_eq!(started(), 2, "each device has a worker of the command");

    std::fs::write(home.join("start.sh.mortal"), "").unwrap();
    let cut = run("cut");
    assert!(
        home.join("start.sh.lost").exists() && started() > 4,
        "one was lost, and not started again"
    );
    assert_eq!(essence(&cut).0, essence(&whole).0);
    assert_eq!(cut["board"]["winner"], whole["board"]["winner"]);
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn only_workers_elsewhere_may_share_a_name() {
    let home = folder("names");
    let refused = flashcore("tune small --device cuda:0,cuda:0 --trials 1", &home)
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
    let (_, said) = said_of(&refused);
    assert!(
        words(&said).contains("must be different GPUs") && words(&said).contains("--workers"),
        "{said}"
    );
    let output = flashcore("tune small --device replay:shipped --trials 1", &home)
        .args(["--workers", "no-such-program here"])
        .output()
        .unwrap();
    let (_, said) = said_of(&output);
    assert!(words(&said).contains("no-such-program: it cannot be started"), "{said}");
    assert_ne!(output.status.code(), Some(0));
    std::fs::remove_dir_all(&home).unwrap();
}
