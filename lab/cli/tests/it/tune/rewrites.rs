//! A proposer that writes code: a script, whose answers are prepared. Nothing is launched: times are predicted.

use std::path::{Path, PathBuf};
use std::process::Command;

use flashcore_check::sandbox;
use flashcore_tune::{Trial, Verdict};
use serde_json::{Value, json};

use super::{essence, flashcore, folder, json as json_of, said_of, trials, words};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/own-kernel");
/// Instructions that the declared kernel waits for in its loop, in vain.
const IDLE: usize = 400;

fn fast() -> String {
    std::fs::read_to_string(Path::new(EXAMPLES).join("attention.ptx")).unwrap()
}

/// The example, made slow, with its declaration.
fn slow(home: &Path) -> PathBuf {
    let idle = "    fma.rn.f32 %f30, %f30, %f30, %f30;\n".repeat(IDLE);
    let text = fast().replace("LOOP:\n", &format!("LOOP:\n{idle}"));
    assert_ne!(text, fast());
    std::fs::write(home.join("attention.ptx"), text).unwrap();
    let toml = std::fs::read_to_string(Path::new(EXAMPLES).join("attention.toml")).unwrap();
    std::fs::write(home.join("mine.toml"), toml).unwrap();
    home.join("mine.toml")
}

fn code(language: &str, text: &str) -> Value {
    json!({"kernel": "own/mine", "language": language, "text": text})
}

/// A search whose proposer gives these answers, and keeps what it was told in `told`.
fn tune(home: &Path, answers: &[Value], to: &str, more: &str) -> Command {
    let kernel = slow(home);
    let mut script = String::new();
    for (number, answer) in answers.iter().enumerate() {
        let file = home.join(format!("{number}.json"));
        std::fs::write(&file, format!("{answer}\n")).unwrap();
        script += &format!(
            "read -r a; printf '%s\\n' \"$a\" >> {}; cat {}\n",
            home.join("told").display(),
            file.display()
        );
    }
    std::fs::write(home.join("proposer.sh"), script).unwrap();
    let typed = format!(
        "tune {} --heads 2 --seq 128 --device predict:l4 --kernel own/mine --trials 40 --seed 3 --json --folder {} {more}",
        kernel.display(),
        home.join(to).display(),
    );
    let mut command = flashcore(&typed, home);
    command.args(["--proposer", &format!("sh {}", home.join("proposer.sh").display())]);
    command
}

fn told(home: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(home.join("told")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_origin<'t>(trials: &'t [Trial], verdict: Verdict, said: &str) -> &'t Trial {
    let found = |trial: &&Trial| trial.verdict == verdict && trial.reason.contains(said);
    trials
        .iter()
        .find(found)
        .unwrap_or_else(|| panic!("{verdict}, {said}: {trials:#?}"))
}

#[test]
fn a_faster_rewrite_is_found_and_kept_and_faster_wrong_ones_are_refused() {
    let home = folder("rewrites");
    let changed = |from: &str, to: &str| {
        let text = fast().replace(from, to);
        assert_ne!(text, fast());
        code("ptx", &text)
    };
    let bad = [
        // The sum so far is not rescaled.
        changed("mul.f32 %f6, %f6, %f13;", ""),
        changed("    ret;", "FOREVER:\n    bra FOREVER;"),
        code("ptx", ".visible .entry what ever"),
        changed(
            "    .reg .pred %p<4>;",
            "    .shared .align 4 .b8 large[50000];\n    .reg .pred %p<4>;",
        ),
        code("ptx", &format!("{}// {}", fast(), "x".repeat(300_000))),
    ];
    let answers = [
        json!({"source": bad, "why": "less arithmetic"}),
        json!({"source": [code("ptx", &fast())], "why": "no waiting"}),
        json!({}),
    ];
    let run = json_of(&mut tune(&home, &answers, "run", ""));
    let tried = trials(&run);
    assert_eq!(tried.len(), 6, "{tried:#?}");
    let refused = [
        (Verdict::Wrong, "FAIL"),
        (Verdict::Hung, "livelock"),
        (Verdict::BuildFailed, "line 1"),
        (Verdict::Refused, "50000 B of static shared memory"),
    ];
    for (verdict, said) in refused {
        let trial = of_origin(&tried, verdict, said);
        assert!(
            trial.id.starts_with("own/mine@") && trial.origin == "less arithmetic",
            "{trial:?}"
        );
    }
    let winner = tried.last().unwrap();
    assert_eq!(
        (winner.verdict, run["board"]["winner"].as_str()),
        (Verdict::Faster, Some(winner.id.as_str())),
        "{run:#}"
    );
    assert!(winner.score().unwrap() < 0.5, "{winner:?}");
    assert!(
        run["plan"]["none"].is_string() && run["plan"]["row"].is_null(),
        "{run:#}"
    );
    // Its proposer was told what was found of the others, and what is best now.
    let told = told(&home);
    assert_eq!(
        told[0]["incumbent"]["source"],
        std::fs::read_to_string(home.join("attention.ptx")).unwrap()
    );
    let failures = told[1]["failures"].as_array().unwrap();
    assert_eq!(failures.len(), refused.len(), "{failures:#?}");
    let turned = &told[1]["turned_down"][0];
    assert!(turned[1].as_str().unwrap().contains("allowed: 262144"), "{turned}");
    assert_eq!(told[2]["incumbent"]["source"], fast());

    // What it wrote is a declared kernel of other commands.
    let hash = &winner.id["own/mine@".len()..];
    let kept = home.join("run/rewrites").join(format!("{hash}.toml"));
    let checked = flashcore("check --seq 64 --causal --kernel", &home)
        .arg(&kept)
        .output()
        .unwrap();
    assert!(checked.status.success(), "{:?}", said_of(&checked));
    let page = |typed: &str| words(&said_of(&flashcore(typed, &home).arg(home.join("run")).output().unwrap()).0);
    let word = format!("written by the proposer: {}", kept.display());
    assert!(page("tune show").contains(&word), "{}", page("tune show"));
    let report = page("report");
    assert!(
        report.contains(&format!("written by the proposer ({})", kept.display())),
        "{report}"
    );

    // Continued, it is the best from the start, and a rewrite of it is one of the declared kernel.
    std::fs::remove_file(home.join("told")).unwrap();
    let better = fast().replace("    ret;", "    // As good.\n    ret;");
    let again = [
        json!({"source": [{"kernel": winner.id, "language": "ptx", "text": better}]}),
        json!({"source": [code("ptx", &better)]}),
        json!({}),
    ];
    let resumed = json_of(&mut tune(&home, &again, "run", "--resume"));
    let told = self::told(&home);
    assert_eq!(
        (told[0]["best"].as_str(), told[0]["incumbent"]["source"].as_str()),
        (Some(winner.id.as_str()), Some(fast().as_str()))
    );
    assert_eq!(told[2]["turned_down"][0][1], "it was tried before");
    let tried = trials(&resumed);
    assert_eq!((tried.len(), tried[6].verdict), (7, Verdict::Ambiguous), "{tried:#?}");
    // A text that was changed is another one.
    std::fs::write(kept.with_extension("ptx"), better).unwrap();
    let changed = tune(&home, &[], "run", "--resume").output().unwrap();
    assert!(
        words(&said_of(&changed).1).contains("it was changed"),
        "{:?}",
        said_of(&changed)
    );
    std::fs::remove_dir_all(&home).unwrap();
}

/// A killed search is continued without its proposer's first answers.
#[test]
fn a_search_that_ended_early_goes_on_as_if_it_had_not() {
    let home = folder("rewrites-resumed");
    let first = json!({"source": [code("ptx", &fast())]});
    let whole = json_of(&mut tune(&home, &[first.clone(), json!({})], "whole", ""));
    let cut = json_of(&mut tune(&home, &[first], "cut", ""));
    assert!(cut["proposer_gone"].is_string(), "{cut:#}");
    let resumed = json_of(&mut tune(&home, &[json!({})], "cut", "--resume"));
    assert_eq!(essence(&resumed), essence(&whole));
    std::fs::remove_dir_all(&home).unwrap();
}

/// A compiler that copies, complains or never ends.
#[cfg(unix)]
#[test]
fn source_is_compiled_in_a_sandbox_with_a_deadline() {
    use std::os::unix::fs::PermissionsExt;

    if let Err(error) = sandbox::available() {
        println!("NOT CHECKED: code that a proposer writes: {error}");
        return;
    }
    let home = folder("rewrites-compiled");
    let compiler = home.join("bin/nvcc");
    std::fs::create_dir(home.join("bin")).unwrap();
    let stolen = home.join("stolen");
    let script = format!(
        "#!/bin/sh\nwhile [ \"$1\" != -o ]; do file=$1; shift; done\n\
         if grep -q ENDLESS \"$file\"; then while :; do :; done; fi\n\
         if grep -q FAULTY \"$file\"; then echo \"$file(3): error: nonsense\" >&2; exit 1; fi\n\
         if grep -q HOSTILE \"$file\"; then echo mine > {}; fi\n\
         sed -n 's@^//@@p' \"$file\" > \"$2\"\n",
        stolen.display()
    );
    std::fs::write(&compiler, script).unwrap();
    std::fs::set_permissions(&compiler, std::fs::Permissions::from_mode(0o755)).unwrap();
    let commented: String = fast().lines().map(|line| format!("//{line}\n")).collect();
    let source = |what: &str| code("cuda", &format!("__global__ void {what}() {{}}\n{commented}"));
    let tried = |to: &str, what: &[&str], more: &str| {
        let sources: Vec<Value> = what.iter().map(|what| source(what)).collect();
        let mut command = tune(&home, &[json!({"source": sources}), json!({})], to, more);
        command.env("FLASHCORE_NVCC", &compiler).env_remove("FLASHCORE_PYTHON");
        trials(&json_of(&mut command))
    };
    let found = tried("some", &["honest", "FAULTY", "HOSTILE"], "");
    assert!(found[1].verdict == Verdict::Faster, "{:?}", found[1]);
    let faulty = of_origin(&found, Verdict::BuildFailed, "(3): error: nonsense");
    let named = format!("{}.cu(3)", &faulty.id["own/mine@".len()..]);
    assert!(faulty.reason.contains(&named), "{faulty:?}");
    assert!(found[3].verdict.is_timed() && !stolen.exists(), "{:?}", found[3]);
    let endless = tried("endless", &["ENDLESS"], "--deadline 1");
    of_origin(&endless, Verdict::Hung, "did not end within 10 s");
    std::fs::remove_dir_all(&home).unwrap();
}
