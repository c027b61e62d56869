//! Probes for a profiler or a sanitizer to watch, with the simulator's findings.
//! `git show 1b152dbd:scripts/agree_with_tools.py` runs the test program under ncu and compute-sanitizer.

use std::error::Error;

use flashcore_cuda::Context;
use flashcore_ir::Target;
use flashcore_kernels::Plan;
use flashcore_problem::{InputKind, Inputs, POISON, Problem};
use flashcore_sim::{Case, SimOptions};

use super::probe::Probe;
use super::{banks, blocks, races};
use crate::words;

/// Configs whose shared memory is looked at; the one without a swizzle has conflicts.
const ATTENTION: [&str; 6] = [
    "scalar/tiled-m32n32-w4-v16",
    "scalar/tiled-m64n32-w4-v4",
    "mma/m32n128-w2x2-s4-b1-qreg-xor-cond",
    "mma/m32n128-w2x2-s4-b1-qreg-lin-cond",
    "mma/m64n64-w4x1-s2-b1-qsh-xor-cond",
    "wgmma/m128n128-s2-pingpong-spec",
];

/// Every probe with the simulator's counts and findings, as JSON: written to the file that
/// `FLASHCORE_PROBE_LIST` names, or printed.
#[test]
#[ignore = "lists probes for ncu and compute-sanitizer"]
fn list() -> Result<(), Box<dyn Error>> {
    let mut counted = Vec::new();
    for probe in banks::all().into_iter().chain(attention()?) {
        counted.push(serde_json::json!({
            "name": probe.name, "kernel": probe.case.kernel.name(), "about": probe.about, "lines": probe.counts()?,
        }));
    }
    let mut judged = Vec::new();
    for race in races::all() {
        for (probe, is_racy) in [(race.racy(), true), (race.clean(), false)] {
            // A few schedules, in the order in which kinds first come up.
            let mut kinds: Vec<&str> = Vec::new();
            for schedule in 0..5 {
                for finding in probe.simulate(schedule)?.findings {
                    if !kinds.contains(&finding.kind.name()) {
                        kinds.push(finding.kind.name());
                    }
                }
            }
            judged.push(serde_json::json!({
                "name": probe.name, "about": probe.about, "racy": is_racy, "simulator": kinds,
            }));
        }
    }
    let all = format!("{:#}", serde_json::json!({ "banks": counted, "races": judged }));
    match std::env::var_os("FLASHCORE_PROBE_LIST") {
        Some(file) => std::fs::write(file, all)?,
        None => println!("{all}"),
    }
    Ok(())
}

/// Launches the probes that `FLASHCORE_PROBES` names, each once: `banks` are all probes of banks,
/// `attention` some attention kernels on the small shape.
#[test]
#[ignore = "launches probes for ncu and compute-sanitizer"]
fn launch() {
    on_a_gpu(|context| {
        for name in words("FLASHCORE_PROBES", "banks attention") {
            for probe in probes(&name)? {
                probe.launch(context)?;
                println!("{} ran", probe.name);
            }
        }
        Ok(())
    });
}

#[test]
fn blocks_that_communicate_agree_with_a_gpu() {
    on_a_gpu(|context| {
        for race in blocks::all() {
            let (probe, mut case) = (race.clean(), race.clean().case);
            case.simulate(&SimOptions::default())?;
            for time in 1..=100 {
                let same = probe.launch(context)? == case.buffers;
                assert!(
                    same,
                    "{}: launch {time} differs from the simulator's result",
                    probe.name
                );
            }
        }
        Ok(())
    });
}

/// Runs a check on device 0; skips it where there is no driver or device.
fn on_a_gpu(check: fn(&Context) -> Result<(), Box<dyn Error>>) {
    match Context::new(0) {
        Ok(context) => check(&context).unwrap_or_else(|error| panic!("{error}")),
        Err(error) => {
            assert!(std::env::var_os("FLASHCORE_REQUIRE_GPU").is_none(), "{error}");
            eprintln!("skipped: {error}");
        }
    }
}

fn probes(name: &str) -> Result<Vec<Probe>, Box<dyn Error>> {
    match name {
        "banks" => return Ok(banks::all()),
        "attention" => return attention(),
        _ => {}
    }
    let races = races::all().into_iter().flat_map(|race| [race.racy(), race.clean()]);
    let mut all = races.chain(banks::all());
    let named = all.find(|probe| probe.name == name);
    Ok(vec![named.ok_or_else(|| {
        format!("there is no probe `{name}`; the test `list` prints them")
    })?])
}

fn attention() -> Result<Vec<Probe>, Box<dyn Error>> {
    let problem = Problem::named("small")?;
    let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
    let mut probes = Vec::new();
    for id in ATTENTION {
        let plan = Plan::new(&problem, &id.parse()?, Target::Sm90a)?;
        let buffers = plan.main.launch.buffers.iter().map(|buffer| match buffer.name {
            "q" => inputs.q.bytes().to_vec(),
            "k" => inputs.k.bytes().to_vec(),
            "v" => inputs.v.bytes().to_vec(),
            _ => vec![POISON; buffer.bytes as usize],
        });
        probes.push(Probe {
            name: id.to_string(),
            about: format!("attention, {problem}"),
            case: Case {
                buffers: buffers.collect(),
                kernel: plan.main.kernel.as_ref().clone(),
                launch: plan.main.launch.clone(),
            },
        });
    }
    Ok(probes)
}
