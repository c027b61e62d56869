//! `flashcore kbench`: tasks are written, and kernels judged.

use std::path::Path;

use serde_json::Value;

use crate::common::{Ran, command, flashcore, run, shown};

fn toy() -> String {
    format!("{}/../bench/tests/data/kbench/toy", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_task_is_written_and_files_of_others_are_kept() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("tiny");
    let export = format!("kbench export tiny {} --profile h200", folder.display());
    let said: Value = serde_json::from_str(&shown(&format!("{export} --json"))).unwrap();
    let files = ["func_forward.py", "config_forward.json", "forward.cu"];
    assert_eq!(said["files"], serde_json::json!(files));
    assert_eq!(said["card"], "h200");
    assert!(files.iter().all(|name| folder.join(name).is_file()));
    let text = std::fs::read_to_string(folder.join("forward.cu")).unwrap();
    assert!(text.contains(said["kernel"].as_str().unwrap()) && text.contains("PYBIND11_MODULE(TORCH_EXTENSION_NAME"));
    // Our own files are written anew; edited ones with --force alone, others not.
    assert_eq!(flashcore(&export).code, 0);
    let config = folder.join("config_forward.json");
    std::fs::write(&config, "{}\n").unwrap();
    let ran = flashcore(&export);
    assert!(
        ran.code == 2 && ran.words().contains("it was edited") && ran.words().contains("--force overwrites it"),
        "{}",
        ran.stderr
    );
    assert_eq!(std::fs::read_to_string(&config).unwrap(), "{}\n");
    assert_eq!(flashcore(&format!("{export} --force")).code, 0);
    assert_ne!(std::fs::read_to_string(&config).unwrap(), "{}\n");
    let help = shown("kbench export --help");
    let (_, arguments) = help.split_once("Arguments:").unwrap();
    assert!(arguments.split_once("Options:").unwrap().0.contains("[DIR]"), "{help}");
    std::fs::write(folder.join("forward.cu"), "// mine\n").unwrap();
    let ran = flashcore(&export);
    assert!(
        ran.code == 2 && ran.words().contains("was not written by this command"),
        "{}",
        ran.stderr
    );
    assert_eq!(std::fs::read_to_string(folder.join("forward.cu")).unwrap(), "// mine\n");
    let alone = home.path().join("alone");
    let said = shown(&format!("kbench export tiny {} --kernel none --json", alone.display()));
    let said: Value = serde_json::from_str(&said).unwrap();
    assert!(said["kernel"].is_null() && said["card"].is_null() && !alone.join("forward.cu").exists());
}

#[test]
fn a_backward_pass_is_written_with_its_kernel() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("tiny_backward");
    let export = format!(
        "kbench export tiny {} --backward --profile h200 --json",
        folder.display()
    );
    let said: Value = serde_json::from_str(&shown(&export)).unwrap();
    let files = ["func_backward.py", "config_backward.json", "backward.cu"];
    assert_eq!(said["files"], serde_json::json!(files));
    let text = std::fs::read_to_string(folder.join("backward.cu")).unwrap();
    assert!(text.contains(said["kernel"].as_str().unwrap()) && text.contains("m.def(\"backward\""));
    // Our own files are written anew.
    assert_eq!(flashcore(&export).code, 0);
}

/// Verifies with a Python, which tests of commands do not find by themselves, and what is trusted in `home`.
fn verify_in(home: &Path, task: &str, kernel: &str, flags: &str) -> Ran {
    let mut command = command(&format!("kbench verify {task} --kernel {}/{kernel} {flags}", toy()));
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    run(command.env_remove("FLASHCORE_PYTHON").env("FLASHCORE_CACHE_DIR", home))
}

fn verify(kernel: &str, flags: &str) -> Ran {
    let home = tempfile::tempdir().unwrap();
    verify_in(home.path(), &toy(), kernel, flags)
}

#[test]
fn kernels_are_judged_only_when_they_are_trusted() {
    let home = tempfile::tempdir().unwrap();
    let quick = "--device cpu --rounds 1x1 --seed 3";
    let ran = verify_in(home.path(), &toy(), "cached.py", quick);
    let said = ran.words();
    assert!(
        ran.code == 2 && said.contains("func_forward.py is not trusted: this command runs it"),
        "{said}"
    );
    // Once for this content, the task's and the kernel's.
    assert_eq!(
        verify_in(home.path(), &toy(), "cached.py", &format!("{quick} --trust")).code,
        1
    );
    let again = verify_in(home.path(), &toy(), "cached.py", quick);
    assert!(
        again.code == 1 && again.words().contains("protocol and fails: "),
        "{}",
        again.stderr
    );
    let ran = verify_in(home.path(), &toy(), "honest.py", quick);
    assert!(
        ran.code == 2 && ran.words().contains("honest.py is not trusted"),
        "{}",
        ran.stderr
    );

    let markdown = home.path().join("report.md");
    let flags = "--trust --device cpu --rounds 1x1 --seed 3";
    let ran = verify("cached.py", &format!("{flags} --json -o {}", markdown.display()));
    let said: Value = serde_json::from_str(&ran.stdout).expect(&ran.stderr);
    assert_eq!(ran.code, 1);
    assert_eq!(
        (&said["passes_protocol"], &said["passes"]),
        (&true.into(), &false.into())
    );
    // Timed calls may show it, too.
    let verdict = said["verdict"].as_str().unwrap();
    assert!(
        verdict.starts_with("passes the benchmark's protocol and fails: ") && verdict.ends_with("stale"),
        "{verdict}"
    );
    assert!(said["report"]["times"]["enqueued_us"].is_null() && said["job"]["atol"].is_null());
    let report = std::fs::read_to_string(&markdown).unwrap();
    assert!(report.contains("| stale | computes anew | **fail** |"), "{report}");
    let ran = verify("honest.py", flags);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(
        ran.words()
            .contains("it passes the benchmark's protocol and every check"),
        "{}",
        ran.stdout
    );
}

#[test]
fn what_cannot_be_judged_has_its_exit_code() {
    let ran = verify("func_forward.py", "--trust --device cpu");
    assert!(
        ran.code == 1 && ran.words().contains("has no function `forward`"),
        "{}",
        ran.stderr
    );
    let ran = verify("honest.py", "--trust");
    assert!(
        ran.code == 3 && ran.words().contains("runs on the CPU only"),
        "{}",
        ran.stderr
    );
    let ran = verify("config_forward.json", "--trust");
    assert!(
        ran.code == 2 && ran.words().contains("is no kernel: allowed are .cu"),
        "{}",
        ran.stderr
    );
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("func_forward.py"), "import no_such_module\n").unwrap();
    std::fs::write(folder.path().join("config_forward.json"), "{}").unwrap();
    let task = folder.path().display().to_string();
    let ran = verify_in(folder.path(), &task, "honest.py", "--trust");
    assert!(
        ran.code == 3 && ran.words().contains("no_such_module"),
        "{}",
        ran.stderr
    );
}
