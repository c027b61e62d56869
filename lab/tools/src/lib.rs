//! Tools for those who work on FlashCore: random programs and self-tests on a GPU, and what leaves evidence. One program,
//! `flashcore-tools TOOL [ARGUMENT...]`, so that one link serves them all.

use std::error::Error;
use std::process::ExitCode;

mod agreement;
mod cheats;
mod cost_error;
mod cpu_bench;
mod dump_ptx;
mod error;
pub mod fuzz;
mod jit;
mod measured_space;
mod mutation;
mod parity;
mod plan_rows;
mod probe;
mod proposed;
mod ranking;
mod repeat;
mod schedules;
mod scores;
mod selfcheck;
mod selftest;
mod sim_speed;
mod strategies;

type Ran = Result<ExitCode, Box<dyn Error>>;

/// A tool: its name, what it does, and its entry point.
type Tool = (&'static str, &'static str, fn() -> Ran);

fn done(ran: Result<(), Box<dyn Error>>) -> Ran {
    ran.map(|()| ExitCode::SUCCESS)
}

const TOOLS: [Tool; 20] = [
    (
        "agreement",
        "kernels on a GPU and under the simulator, bit by bit",
        || done(agreement::main()),
    ),
    ("cheats", "kernels that cheat, and the defences of the bench", || {
        done(cheats::main())
    }),
    ("cost-error", "the cost model against measured times", || {
        done(cost_error::main())
    }),
    ("cpu-bench", "times attention on the CPU", || done(cpu_bench::main())),
    (
        "dump-ptx",
        "writes the PTX of the kernels that a release is assembled with",
        || done(dump_ptx::main()),
    ),
    ("error", "errors of kernels and of PyTorch against float64", || {
        done(error::main())
    }),
    ("fuzz", "random programs, by the simulator and on a GPU", || {
        Ok(fuzz::command::main())
    }),
    ("jit", "how long the driver compiles the kernels, and its cache", || {
        done(jit::main())
    }),
    (
        "measured-space",
        "the configs of a space to be measured, and the space of its reports",
        || done(measured_space::main()),
    ),
    (
        "mutation",
        "plants mistakes in kernels and counts how many are found",
        || done(mutation::main()),
    ),
    ("parity", "kernels on a GPU against float64 on random problems", || {
        done(parity::main())
    }),
    (
        "probe",
        "kernels to be watched by a profiler or a sanitizer",
        probe::main,
    ),
    ("ranking", "how well predictions rank a measured space", || {
        done(ranking::main())
    }),
    ("repeat", "one launch many times: the bits must be the same", || {
        done(repeat::main())
    }),
    ("schedules", "every shipped kernel under many schedules", || {
        done(schedules::main())
    }),
    ("scores", "times Q·Kᵀ by itself", || done(scores::main())),
    ("selfcheck", "the bench against differences that are known", || {
        done(selfcheck::main())
    }),
    ("selftest", "the driver layer on a GPU", || Ok(selftest::main())),
    ("sim-speed", "how fast the simulator is", || done(sim_speed::main())),
    ("strategies", "strategies of the search over 50 seeds", || {
        done(strategies::main())
    }),
];

/// Arguments of the tool: those after its name.
pub(crate) fn arguments() -> impl Iterator<Item = String> {
    std::env::args().skip(2)
}

/// Runs the tool that the first argument of this process names.
pub fn run() -> ExitCode {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, _, tool)) = TOOLS.iter().find(|(known, ..)| *known == name) else {
        eprintln!("usage: flashcore-tools TOOL [ARGUMENT...]\n");
        for (name, what, _) in TOOLS {
            eprintln!("  {name:16}{what}");
        }
        return ExitCode::from(2);
    };
    tool().unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
