//! Kernels for a profiler or a sanitizer to watch, with the simulator's findings.

use std::error::Error;
use std::process::ExitCode;

use crate::fuzz::probe::{Probe, banks, blocks, races};
use flashcore_cuda::Context;
use flashcore_ir::Target;
use flashcore_kernels::Plan;
use flashcore_problem::{InputKind, Inputs, POISON, Problem};
use flashcore_sim::{Case, SimOptions};

/// Configs whose shared memory is looked at; the one without a swizzle has conflicts.
const ATTENTION: [&str; 6] = [
    "scalar/tiled-m32n32-w4-v16",
    "scalar/tiled-m64n32-w4-v4",
    "mma/m32n128-w2x2-s4-b1-qreg-xor-cond",
    "mma/m32n128-w2x2-s4-b1-qreg-lin-cond",
    "mma/m64n64-w4x1-s2-b1-qsh-xor-cond",
    "wgmma/m128n128-s2-pingpong-spec",
];

/// Kernels to be watched by a profiler or a sanitizer. `scripts/agree_with_tools.py` runs them
/// under ncu and compute-sanitizer.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Print every probe with the simulator's counts and findings, as JSON.
    List,
    /// Launch probes, each once. Exits with 3 where there is no GPU.
    Run {
        /// `banks` are all probes of banks, `attention` some attention kernels on the mission
        /// problem, `blocks` kernels whose blocks communicate, a hundred times each; their results
        /// are compared with the simulator's.
        #[arg(required = true)]
        names: Vec<String>,
    },
}

pub(crate) fn main(command: &Command) -> crate::Ran {
    match command {
        Command::List => list(),
        Command::Run { names } => run(names),
    }
}

fn list() -> crate::Ran {
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
    println!("{:#}", serde_json::json!({ "banks": counted, "races": judged }));
    Ok(ExitCode::SUCCESS)
}

fn run(names: &[String]) -> crate::Ran {
    let context = match Context::new(0) {
        Ok(context) => context,
        Err(error) => {
            eprintln!("error: {error}");
            return Ok(ExitCode::from(3));
        }
    };
    for name in names {
        if name == "blocks" {
            compare_blocks(&context)?;
            continue;
        }
        for probe in probes(name)? {
            probe.launch(&context)?;
            println!("{} ran", probe.name);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn compare_blocks(context: &Context) -> Result<(), Box<dyn Error>> {
    for race in blocks::all() {
        let (probe, mut case) = (race.clean(), race.clean().case);
        case.simulate(&SimOptions::default())?;
        for time in 1..=100 {
            if probe.launch(context)? != case.buffers {
                return Err(format!("{}: launch {time} differs from the simulator's result", probe.name).into());
            }
        }
        println!("{} agrees with the simulator", probe.name);
    }
    Ok(())
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
        format!("there is no probe `{name}`; `probe list` lists them")
    })?])
}

fn attention() -> Result<Vec<Probe>, Box<dyn Error>> {
    let problem = Problem::named("mission")?;
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
