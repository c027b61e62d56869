//! Runs on a replay of kernels that are taken up again: claims and rankings stay what they were.

use flashcore_problem::Problem;
use flashcore_tune::Trial;
use flashcore_tune::replay::{Measured, Row};
use serde_json::Value;

use super::{essence, flashcore, folder, json, table, trials};

/// Kernels for an H200 whose times are made up.
fn table_of_kernels() -> Measured {
    let levers = ["lin", "xor"]
        .into_iter()
        .flat_map(|place| ["always", "cond", "spec"].map(|rescale| (place, rescale)));
    let ids = levers.flat_map(|(place, rescale)| {
        let id = move |stages| format!("mma/m64n64-w4x1-s{stages}-b1-qsh-{place}-{rescale}");
        [2, 3, 4].map(id)
    });
    let us = |id: &str| if id.contains("-lin") { 40.0 } else { 10.0 } + 0.1 * id.len() as f64;
    let timed = ids.map(|id| {
        let us = us(&id);
        Row(id, us, us * 0.995, us * 1.005)
    });
    let mut measured = table();
    measured.tables[0].timed = timed.collect();
    measured.tables[0].failed = Vec::new();
    measured.tables[0].case.name = "small".to_string();
    measured.tables[0].case.problem = Problem::named("small").unwrap();
    let device = &mut measured.identity.device;
    (device.name, device.units) = ("NVIDIA H200".to_string(), 132);
    measured
}

#[test]
fn a_run_that_is_taken_up_again_claims_what_it_claimed() {
    let home = folder("claims");
    let file = home.join("space.json");
    std::fs::write(&file, serde_json::to_string(&table_of_kernels()).unwrap()).unwrap();
    let (device, kept) = (file.display(), home.join("run"));
    let words = format!(
        "tune small --device replay:{device} --strategy elite+insights --trials 12 --json --folder {}",
        kept.display()
    );
    let whole = json(&mut flashcore(&words, &home));
    let claims = &whole["claims"]["claims"];
    let came_true = claims
        .as_array()
        .unwrap()
        .iter()
        .find(|claim| claim["score"] == "came-true");
    assert_eq!(
        came_true.map(|claim| &claim["kind"]),
        Some(&"bank-conflicts".into()),
        "{whole:#}"
    );
    let read = || std::fs::read_to_string(kept.join("claims.json")).unwrap();
    let in_folder: Value = serde_json::from_str(&read()).unwrap();
    assert_eq!(in_folder, whole["claims"]);
    let shown = json(&mut flashcore(&format!("tune show {} --json", kept.display()), &home));
    assert_eq!(shown["claims"], whole["claims"]);
    let table = flashcore(&format!("tune show {}", kept.display()), &home)
        .output()
        .unwrap();
    let table = super::words(&String::from_utf8(table.stdout).unwrap());
    assert!(
        table.contains("bank-conflicts") && table.contains("swizzled false to true"),
        "{table}"
    );

    // What is printed to go on has a budget that leaves something to do; with the one that was spent all stays as it
    // was.
    let text = std::fs::read_to_string(kept.join("trials.jsonl")).unwrap();
    let board = || std::fs::metadata(kept.join("board.json")).unwrap().modified().unwrap();
    let (kept_board, plain) = (board(), words.replace(" --json", ""));
    let again = flashcore(&format!("{plain} --resume"), &home).output().unwrap();
    let (out, err) = (
        String::from_utf8(again.stdout).unwrap(),
        String::from_utf8(again.stderr).unwrap(),
    );
    let said = err.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("nothing was left to do: 12 trials had been made before, and `--trials 12` leaves no other"),
        "{said}"
    );
    let go_on = out.lines().find(|line| line.trim().starts_with("go on")).unwrap();
    assert!(go_on.contains("--trials 24 --resume --folder"), "{go_on}");
    assert_eq!(board(), kept_board);
    let shown = json(&mut flashcore(&format!("tune show {} --json", kept.display()), &home));
    assert_eq!(shown["seconds"], whole["seconds"]);

    // Cut off after five trials, and taken up again.
    let begun: String = text.split_inclusive('\n').take(5).collect();
    std::fs::write(kept.join("trials.jsonl"), begun).unwrap();
    for name in ["board.json", "claims.json"] {
        std::fs::remove_file(kept.join(name)).unwrap();
    }
    let resumed = json(&mut flashcore(&format!("{words} --resume"), &home));
    assert_eq!(essence(&resumed), essence(&whole));
    assert_eq!(resumed["claims"], whole["claims"]);

    // On the host nothing speaks of any kernel, and that is said.
    let host = flashcore("tune tiny --device cpu --strategy elite+insights", &home)
        .output()
        .unwrap();
    let said = String::from_utf8(host.stderr).unwrap();
    assert!(
        !host.status.success() && super::words(&said).contains("nothing here models"),
        "{said}"
    );
    std::fs::remove_dir_all(&home).unwrap();
}

#[test]
fn a_ranked_run_that_is_taken_up_again_ranks_as_it_did() {
    let home = folder("ranked");
    let file = home.join("space.json");
    std::fs::write(&file, serde_json::to_string(&table_of_kernels()).unwrap()).unwrap();
    let (device, kept) = (file.display(), home.join("run"));
    let words = format!(
        "tune small --device replay:{device} --strategy ranked --trials 12 --json --folder {}",
        kept.display()
    );
    let whole = json(&mut flashcore(&words, &home));
    let predicted = |trial: &Trial| -> Option<f64> {
        let (number, unit) = trial.origin.strip_prefix("predicted ")?.split_once(' ')?;
        let size = ["µs", "ms", "s"].iter().position(|name| unit == *name)?;
        Some(number.parse::<f64>().ok()? * 1e3_f64.powi(size as i32))
    };
    let first: Vec<f64> = trials(&whole).iter().filter_map(predicted).collect();
    assert!(first.len() > 2 && first.len() <= 8, "{whole:#}");
    assert!(first.windows(2).all(|pair| pair[0] <= pair[1]), "{first:?}");
    assert!(predicted(&trials(&whole)[1]).is_some(), "{whole:#}");

    // Cut off among those that were ranked, and taken up again.
    let text = std::fs::read_to_string(kept.join("trials.jsonl")).unwrap();
    let begun: String = text.split_inclusive('\n').take(3).collect();
    std::fs::write(kept.join("trials.jsonl"), begun).unwrap();
    std::fs::remove_file(kept.join("board.json")).unwrap();
    let resumed = json(&mut flashcore(&format!("{words} --resume"), &home));
    assert_eq!(essence(&resumed), essence(&whole));
    std::fs::remove_dir_all(&home).unwrap();
}

/// A stand-in for ncu that prints the counters of a kernel with bank conflicts, of any program.
#[cfg(unix)]
fn fake_ncu(home: &std::path::Path, on_profile: &str) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let raw = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"derived__memory_l1_wavefronts_shared_excessive\",\
               \"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum\",\
               \"l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed\"\n\
               \"\",\"\",\"\",\"\",\"\",\"\",\"%\"\n\
               \"0\",\"mma_x\",\"(128, 1, 1)\",\"(8, 8, 1)\",\"2,000,000\",\"2,400,000\",\"80\"\n";
    std::fs::write(home.join("raw.csv"), raw).unwrap();
    let path = home.join("ncu");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in\n--version) echo 'Version 2025.3.1.0 (build 1)';;\n*--page=raw*) cat {}/raw.csv;;\n\
         *--page=source*) echo none;;\n*) echo x >> {}/profiled; {on_profile};;\nesac\n",
        home.display(),
        home.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[cfg(unix)]
#[test]
fn counters_of_each_new_best_make_claims_that_a_resumed_run_makes_again() {
    let home = folder("counters");
    let file = home.join("space.json");
    std::fs::write(&file, serde_json::to_string(&table_of_kernels()).unwrap()).unwrap();
    let (device, kept) = (file.display(), home.join("run"));
    let words = format!(
        "tune small --device replay:{device} --strategy elite+insights --trials 8 --counters --json --folder {}",
        kept.display()
    );
    let ncu = fake_ncu(&home, "true");
    let whole = json(flashcore(&words, &home).env("FLASHCORE_NCU", &ncu));
    // The first, and those that were faster than the best: no other was profiled.
    let trials = trials(&whole);
    let counted = |trial: &&Trial| trial.counters.is_some();
    let best = |trial: &&Trial| trial.number == 0 || trial.verdict == flashcore_tune::Verdict::Faster;
    assert_eq!(
        trials.iter().filter(counted).count(),
        trials.iter().filter(best).count()
    );
    let profiled = || std::fs::read_to_string(home.join("profiled")).unwrap().lines().count();
    assert_eq!(profiled(), trials.iter().filter(counted).count());
    let claims = whole["claims"]["claims"].as_array().unwrap();
    let of_counters = claims
        .iter()
        .find(|claim| claim["source"] == "counters")
        .expect("a claim");
    assert_eq!(
        (&of_counters["kind"], &of_counters["lever"]),
        (&"bank-conflicts".into(), &"swizzled".into())
    );
    assert!(
        of_counters["evidence"]
            .as_str()
            .unwrap()
            .starts_with("ncu: 2,000,000 of 2,400,000")
    );
    let confirmed = claims
        .iter()
        .filter(|claim| claim["source"] == "counters" && claim["score"] == "came-true");
    assert!(confirmed.count() > 0, "{whole:#}");
    let shown = flashcore(&format!("tune show {}", kept.display()), &home)
        .output()
        .unwrap();
    let shown = super::words(&String::from_utf8(shown.stdout).unwrap());
    assert!(shown.contains("bank-conflicts (ncu)"), "{shown}");
    // Taken up again without ncu: the same claims, from what the trials kept.
    let plain = words.replace(" --counters", "");
    let again = json(&mut flashcore(&format!("{plain} --resume"), &home));
    assert_eq!(again["claims"], whole["claims"]);
    assert_eq!(profiled(), trials.iter().filter(counted).count());

    // A machine without permission says so once, and the search goes on.
    let ncu = fake_ncu(&home, "echo '==ERROR== ERR_NVGPUCTRPERM'; exit 1");
    let words = words.replace("/run", "/other").replace(" --json", "");
    let ran = flashcore(&words, &home).env("FLASHCORE_NCU", &ncu).output().unwrap();
    let said = super::words(&String::from_utf8(ran.stderr).unwrap());
    assert!(
        ran.status.success() && said.matches("NVreg_RestrictProfilingToAdminUsers=0").count() == 1,
        "{said}"
    );
}
