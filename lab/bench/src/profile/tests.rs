use flashcore_ir::Target;
use flashcore_kernels::Plan;

use super::ncu::{Range, arguments};
use super::*;

/// Launches profiled on an H200 (driver 580.159, ncu 2025.3.1, 2026-11-22) with `--set full`, of
/// which the columns that are read were kept: D64 full 8k, the small shape, and the two kernels of a
/// split decode.
const H200: &str = include_str!("../../tests/data/ncu-h200.csv");

#[test]
fn a_raw_page_reads_as_profiles() {
    let profiles = csv::read(H200).expect("a table");
    let kernels: Vec<&str> = profiles.iter().map(|profile| profile.kernel.as_str()).collect();
    assert_eq!(
        kernels,
        [
            "wgmma_m192n128_s2_pingpong_spec_fp16_d64",
            "mma_m32n128_w2x2_s5_b1_qreg_xor_cond_fp16_d64",
            "mma_m16n64_w1x4_s3_b2_qreg_xor_cond_gqa_fp16_d128_split",
            "combine_g1_fp16_d128"
        ]
    );
    let long = &profiles[0];
    assert_eq!(long.get("tensor"), Some(70.48));
    assert_eq!(long.get("time_ns"), Some(1_722_240.0));
    assert_eq!(long.get("registers"), Some(128.0));
    assert_eq!(
        (long.grid.as_str(), long.block.as_str()),
        ("(132, 1, 1)", "(512, 1, 1)")
    );
    let all: f64 = long.stalls.values().sum();
    assert!((all - 100.0).abs() < 1e-9, "{all}");
    assert_eq!(long.waits()[0].0, "wait");
    assert!(long.waits().iter().all(|(reason, _)| *reason != "selected"));
    // Every counter is in the file but those that were added later: a metric that ncu renames is noticed here.
    for (key, _) in counters().filter(|(key, _)| !["l2", "bank_conflicts"].contains(key)) {
        assert!(profiles.iter().all(|profile| profile.get(key).is_some()), "{key}");
    }
}

#[test]
fn units_are_brought_to_base_and_quotes_are_undone() {
    let text = "\"ID\",\"Kernel Name\",\"Grid Size\",\"Block Size\",\"gpu__time_duration.sum\",\"dram__bytes_read.sum\"\n\
                \"\",\"\",\"\",\"\",\"us\",\"Mbyte\"\n\
                \"0\",\"f<\"\"x\"\", 1>\",\"(1, 1, 1)\",\"(32, 1, 1)\",\"1,234.5\",\"2\"\n";
    let profiles = csv::read(text).expect("a table");
    assert_eq!(profiles[0].kernel, "f<\"x\", 1>");
    assert_eq!(profiles[0].get("time_ns"), Some(1_234_500.0));
    assert_eq!(profiles[0].get("dram_bytes"), Some(2e6));
    assert_eq!(profiles[0].get("tensor"), None);
    // A unit that begins with a letter of two bytes has no factor.
    let profiles = csv::read(&text.replace("Mbyte", "\u{b5}byte")).expect("a table");
    assert_eq!(profiles[0].get("dram_bytes"), Some(2.0));
}

#[test]
fn a_text_without_a_table_and_a_torn_row_are_refused() {
    assert!(csv::read("hello\n").unwrap_err().contains("--page raw"));
    let torn = "\"ID\",\"Kernel Name\"\n\"\",\"\"\n\"0\"\n";
    assert!(csv::read(torn).unwrap_err().contains("row 1 has 1 columns"));
}

#[test]
fn goals_apply_to_what_binds() {
    let profiles = csv::read(H200).expect("a table");
    let reached = |profile: &KernelProfile| -> Vec<(&str, Option<bool>)> {
        let rows = verdicts(profile, &Goals::default());
        rows.iter().map(|row| (row.key, row.reached)).collect()
    };
    assert_eq!(
        reached(&profiles[0]),
        [("sm_busy", Some(true)), ("tensor", Some(true)), ("dram", None)]
    );
    assert_eq!(reached(&profiles[1])[0], ("sm_busy", Some(false)));
    // Decoding reads K and V once: device memory is what binds.
    assert_eq!(
        reached(&profiles[2]),
        [("sm_busy", None), ("tensor", None), ("dram", Some(true))]
    );
    let strict = Goals {
        sm: 71.0,
        ..Goals::default()
    };
    assert_eq!(verdicts(&profiles[0], &strict)[0].reached, Some(false));
}

#[test]
fn the_command_line_leaves_clocks_and_caches_alone() {
    let arguments = arguments(
        std::path::Path::new("/tmp/p"),
        &Range::Launches {
            names: vec!["a".into(), "b".into()],
            skip: 3,
            count: 1,
        },
        &[],
    );
    assert!(arguments.contains(&"--kernel-name=regex:^(a|b)$".to_string()));
    assert!(arguments.contains(&"--clock-control=none".to_string()));
    assert!(arguments.contains(&"--cache-control=none".to_string()));
    assert!(arguments.contains(&"--launch-skip=3".to_string()));
    assert!(
        arguments
            .iter()
            .any(|argument| argument.starts_with("--metrics=") && argument.contains("sm__pipe_tensor"))
    );
}

#[test]
fn a_source_page_reads_as_lines_most_sampled_first() {
    let text = "\"File Path\",\"crates/kernels/src/mma/warp.rs\"\n\"Function Name\",\"f\"\n\
        \"Line No\",\"Source\",\"Address\",\"Source\",\"# Samples\",\"Instructions Executed\",\"L1 Wavefronts Shared Excessive\",\"L1 Wavefronts Shared\",\"stall_wait\",\"stall_wait_not_issued\",\"stall_long_sb\",\"stall_selected\"\n\
        \"10\",\"let a = b(\"\"c\"\");\",\"-\",\"-\",\"3\",\"1,024\",\"0\",\"2048\",\"1\",\"9\",\"2\",\"7\"\n\
        \"\",\"\",\"0x10\",\"LDS R1, [R2]\",\"3\",\"1024\",\"0\",\"2048\",\"1\",\"9\",\"2\",\"7\"\n\
        \"11\",\"<Unable to open source file>\",\"-\",\"-\",\"7\",\"512\",\"64\",\"576\",\"0\",\"0\",\"0\",\"7\"\n";
    let lines = csv::lines(text);
    assert_eq!(lines.len(), 2);
    assert_eq!(
        (lines[0].line, lines[0].samples, lines[0].wavefronts_excess),
        (11, 7.0, 64.0)
    );
    assert_eq!(lines[1].source, "let a = b(\"c\");");
    assert_eq!(lines[0].source, "", "a file that is not there");
    assert_eq!(
        (lines[1].file.as_str(), lines[1].instructions),
        ("crates/kernels/src/mma/warp.rs", 1024.0)
    );
    assert_eq!(
        (lines[1].waits_for.as_deref(), lines[0].waits_for.as_deref()),
        (Some("long_sb"), None)
    );
    assert!(csv::lines("no table").is_empty());
}

#[test]
fn counters_are_evidence_with_identity_and_come_back_trimmed() {
    use crate::store::{Selector, Store};
    use crate::{DeviceIdentity, LaunchMode, Options, RunIdentity, SubjectInfo};

    let mut launches = csv::read(H200).expect("a table");
    launches.truncate(1);
    let line = |line: u32, samples: f64, wavefronts_excess: f64| LineProfile {
        file: "crates/kernels/src/wgmma/kernel.rs".into(),
        line,
        source: "x".repeat(300),
        samples,
        instructions: 64.0,
        wavefronts: 128.0,
        wavefronts_excess,
        waits_for: None,
    };
    launches[0].lines = (0..100).map(|at| line(at, f64::from(99 - at), 0.0)).collect();
    launches[0].lines.push(line(500, 0.0, 7.0));
    let record = ProfileRecord {
        case: crate::problems::cases("small-set", None).expect("a set")[0].clone(),
        subject: SubjectInfo::new("wgmma/m192n128-s2-pingpong-spec", LaunchMode::Plain),
        tool: "ncu 2025.3.1.0".into(),
        launches,
        predicted: Some(Predicted {
            card: "h200".into(),
            ..Predicted::default()
        }),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let store = Store::at(folder.path());
    let identity = RunIdentity::now(DeviceIdentity::cpu());
    let run = store.begin_run(&identity, &Options::default(), None).expect("a run");
    run.add_profile(&record).expect("written");
    run.finish().expect("finished");
    let runs = store.runs(&Selector::Latest).expect("runs");
    assert_eq!((runs[0].profiles, runs[0].measurements, runs[0].finished), (1, 0, true));
    assert_eq!(runs[0].identity, identity);
    assert!(store.measurements(&runs[0]).expect("none").is_empty());
    let back = store.profiles(&runs[0]).expect("profiles").remove(0);
    assert_eq!(
        (&back.case, &back.subject, &back.predicted),
        (&record.case, &record.subject, &record.predicted)
    );
    assert_eq!(back.launches[0].counters, record.launches[0].counters);
    // The most sampled lines, and the one with conflicts; their text is cut.
    let kept = &back.launches[0].lines;
    assert_eq!((kept.len(), kept[0].line, kept[24].line), (25, 0, 500));
    assert_eq!(kept[0].source.len(), 80);
    // A line is small enough for a committed file, and an export can be imported again.
    assert!(
        std::fs::metadata(folder.path().join(format!("{}.jsonl", runs[0].key)))
            .expect("a file")
            .len()
            < 20_000
    );
    let mut text = Vec::new();
    store.export_jsonl(&Selector::All, &mut text).expect("an export");
    let file = folder.path().join("all.txt");
    std::fs::write(&file, text).expect("a file");
    let other = Store::at(&folder.path().join("other"));
    assert_eq!(other.import_jsonl(&file).expect("an import").runs, 1);
    // One that was damaged is refused with its line.
    let damaged = std::fs::read_to_string(&file)
        .expect("text")
        .replace("\"tool\"", "\"fool\"");
    std::fs::write(&file, damaged).expect("a file");
    let error = other.import_jsonl(&file).expect_err("a mistake").to_string();
    assert!(error.contains("line 2"), "{error}");
}

/// A stand-in for ncu in a new folder: a script that prints recorded pages, and what the program said.
#[cfg(unix)]
fn fake_ncu(folder: &std::path::Path, on_export: &str) -> Ncu {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(folder.join("raw.csv"), H200).expect("a file");
    let script = folder.join("ncu");
    let text = format!(
        "#!/bin/sh\ncd {}\necho \"$@\" >> calls\ncase \"$*\" in\n--version) echo 'Version 2025.3.1.0 (build 1)';;\n\
         *--page=raw*) cat raw.csv;;\n*--page=source*) echo none;;\n*) {on_export};;\nesac\n",
        folder.display()
    );
    std::fs::write(&script, text).expect("a script");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("executable");
    // A process that another test has just forked holds the script open for writing until it runs its own program.
    let attempt = |_| {
        let ncu = Ncu::at(&script);
        if ncu.is_none() {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        ncu
    };
    (0..100).find_map(attempt).expect("a version")
}

#[cfg(unix)]
#[test]
fn kernels_are_profiled_by_the_process_that_calls_them() {
    let case = crate::problems::cases("small-set", None).expect("a set").remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |ncu: Ncu| Profiler {
        ncu,
        program: "/nowhere/flashcore".into(),
    };
    let subject = crate::SubjectInfo {
        module: Some("abc".into()),
        ..crate::SubjectInfo::new("mma/x", crate::LaunchMode::Plain)
    };
    let said = serde_json::to_string(&Said::Subject(Box::new(subject.clone()))).expect("json");
    let profiler = at(fake_ncu(folder.path(), &format!("echo '{said}'")));
    let backward = case.problem.backward().expect("a backward pass");
    let id = "mma/m64n128-w1x8-s2-b1-qsh-xor".parse().expect("an id");
    let plan = Plan::new(&backward, &id, Target::Sm80).expect("a plan");
    let record = profiler.kernel(&case, &plan, "cuda:0").expect("counters");
    assert_eq!(
        (&record.subject, &*record.tool, record.launches.len()),
        (&subject, "ncu 2025.3.1.0", 4)
    );
    let calls = std::fs::read_to_string(folder.path().join("calls")).expect("calls");
    // Three calls of three launches warm up; those of other names do not count.
    let steps = [&plan.main, &plan.before[0], &plan.then[0]];
    let names = steps.map(|step| step.kernel.name()).join("|");
    let range = "--launch-skip=9 --launch-count=3 /nowhere/flashcore worker --launch {";
    assert!(
        calls.contains(&format!("--kernel-name=regex:^({names})$ {range}")),
        "{calls}"
    );
    // The main kernel comes first, in whatever order they were launched.
    let id = "mma/m32n128-w2x2-s5-b1-qreg-xor-cond".parse().expect("an id");
    let plan = Plan::new(&case.problem, &id, Target::Sm90a).expect("a plan");
    let record = profiler.kernel(&case, &plan, "cuda:0").expect("counters");
    assert_eq!(record.launches[0].kernel, plan.main.kernel.name());

    // A metric that this ncu does not have is left out.
    let folder = tempfile::tempdir().expect("a folder");
    let metric = "lts__throughput.avg.pct_of_peak_sustained_elapsed";
    let fails = format!("case \"$*\" in *{metric}*) echo '==ERROR== Failed to find metric {metric}'; exit 1;; esac");
    let profiler = at(fake_ncu(folder.path(), &fails));
    let record = profiler.kernel(&case, &plan, "cuda:0").expect("counters");
    assert_eq!(
        (record.subject.kernel.as_deref(), record.launches.len()),
        (Some(&*plan.config.to_string()), 4)
    );

    // The reason of a program that fails, and counters that are not permitted.
    let folder = tempfile::tempdir().expect("a folder");
    let profiler = at(fake_ncu(
        folder.path(),
        "echo '{\"failed\": \"no such config\"}'; exit 9",
    ));
    let error = profiler
        .kernel(&case, &plan, "cuda:0")
        .expect_err("a failure")
        .to_string();
    assert_eq!(error, "ncu failed: no such config");
    let folder = tempfile::tempdir().expect("a folder");
    let profiler = at(fake_ncu(
        folder.path(),
        "echo '==ERROR== ERR_NVGPUCTRPERM - no'; exit 1",
    ));
    assert_eq!(profiler.kernel(&case, &plan, "cuda:0"), Err(NcuError::Permission));
}

#[cfg(unix)]
#[test]
fn peers_are_profiled_in_their_process_between_marks() {
    use std::os::unix::fs::PermissionsExt;
    let case = crate::problems::cases("small-set", None).expect("a set").remove(0);
    let folder = tempfile::tempdir().expect("a folder");
    let ncu = fake_ncu(folder.path(), "echo '==PROF== Connected'");
    let profiler = Profiler {
        ncu,
        program: "flashcore".into(),
    };
    let python = folder.path().join("python");
    let list = r#"{"found": ["torch/cudnn", "fa3"], "absent": [["fa4", "not installed"]]}"#;
    std::fs::write(&python, format!("#!/bin/sh\necho 'a warning'\necho '{list}'\n")).expect("a script");
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let python = crate::python::Python::named(python).expect("a program");
    let peers = Peers::of(&python).expect("peers");
    let (there, notes) = peers.wanted(&["all".to_string()]);
    assert_eq!(
        (there, notes),
        (
            vec!["torch/cudnn".to_string(), "fa3".to_string()],
            vec!["fa4: not installed".into()]
        )
    );
    let (there, notes) = peers.wanted(&["fa3".to_string(), "fa9".to_string()]);
    assert_eq!(there, ["fa3"]);
    assert!(
        notes[0].contains("fa9: no peer has this name; there are torch/cudnn, fa3, fa4"),
        "{notes:?}"
    );
    let record = profiler.peer(&python, &case, "fa3", "cuda:0").expect("counters");
    assert_eq!(
        (&*record.subject.label, record.subject.is_ours(), record.launches.len()),
        ("fa3", false, 4)
    );
    let calls = std::fs::read_to_string(folder.path().join("calls")).expect("calls");
    assert!(
        calls.contains("--profile-from-start=off")
            && calls.contains("run_module(\"flashcore_attn._profile\", ")
            && calls.contains(") {\""),
        "{calls}"
    );
    // No source page is asked for: the lines are not ours.
    assert!(!calls.contains("--page=source"), "{calls}");
    // A peer that does not serve the problem launches nothing in the range.
    let folder = tempfile::tempdir().expect("a folder");
    let said = "echo '{\"failed\": \"SDPA has no soft cap\"}'; echo '==WARNING== No kernels were profiled.'";
    let profiler = Profiler {
        ncu: fake_ncu(folder.path(), said),
        program: "flashcore".into(),
    };
    let error = profiler
        .peer(&python, &case, "fa3", "cuda:0")
        .expect_err("a reason")
        .to_string();
    assert_eq!(error, "ncu failed: SDPA has no soft cap");
}

#[test]
fn lines_join_what_was_sampled_and_what_was_predicted() {
    let measured = |file: &str, line: u32, samples: f64| LineProfile {
        file: file.into(),
        line,
        source: "x".into(),
        samples,
        instructions: 1.0,
        wavefronts: 8.0,
        wavefronts_excess: 4.0,
        waits_for: Some("wait".into()),
    };
    let launch = KernelProfile {
        lines: vec![
            measured("/build/crates/kernels/src/mma/warp.rs", 7, 30.0),
            measured("other.rs", 7, 10.0),
        ],
        ..KernelProfile::default()
    };
    let of = |line: u32, share: f64| PredictedLine {
        file: "crates/kernels/src/mma/warp.rs".into(),
        line,
        share,
        wavefronts: 8.0,
        wavefronts_excess: 4.0,
    };
    let predicted = Predicted {
        lines: vec![of(9, 80.0), of(7, 20.0)],
        ..Predicted::default()
    };
    let rows = super::lines(Some(&launch), Some(&predicted));
    let found: Vec<(u32, Option<f64>, Option<f64>)> = rows
        .iter()
        .map(|row| (row.line, row.samples, row.predicted.as_ref().map(|of| of.share)))
        .collect();
    assert_eq!(
        found,
        [
            (7, Some(75.0), Some(20.0)),
            (7, Some(25.0), None),
            (9, None, Some(80.0))
        ]
    );
    assert_eq!(rows[0].file, "crates/kernels/src/mma/warp.rs");
}
