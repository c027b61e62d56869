//! The simulator's speed in lane-instructions per second on one core.

#[allow(dead_code)] // its own `main`
#[path = "../../../crates/ir/examples/hopper_attention.rs"]
mod hopper_attention;

use std::time::Instant;

use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, Target, files};
use flashcore_kernels::Plan;
use flashcore_problem::{DType, Problem};
use flashcore_ptx::Module;
use flashcore_sim::{PtxKernel, PtxLaunch, SimError, SimOptions, SimReport, simulate};

/// A kernel of each family, with the dtype of its problem.
const KERNELS: [(&str, DType); 4] = [
    ("scalar/tiled-m32n32-w8-v16", DType::F32),
    ("scalar/naive-t128-v16", DType::F16),
    ("mma/m128n64-w4x1-s2-b1-qreg-xor-spec", DType::F16),
    ("wgmma/m128n128-s2-pingpong-spec", DType::F16),
];

pub(crate) fn main() -> crate::Ran {
    println!("M lane- and warp-instructions per second of CPU time, and lane-instructions by the clock");
    println!(
        "{:<44} {:>12} {:>9} {:>9} {:>9} {:>9}",
        "kernel", "lane-instr.", "seconds", "clock", "lanes", "warps"
    );
    for (id, dtype) in KERNELS {
        let mission = Problem::builder().heads(8, 8).seq_len(512).head_dim(64);
        let problem = mission.dtype(dtype).build()?;
        let plan = Plan::new(&problem, &id.parse()?, Target::Sm90a)?;
        measure_own(id, &plan.main.kernel, &plan.main.launch)?;
        if dtype == DType::F32 {
            measure_text(id, &plan.main.kernel, &plan.main.launch)?;
        }
    }
    let example = hopper_attention::attention()?;
    let launch = example_launch(&example).ok_or("the example has four tensor maps")?;
    measure_own("ir/examples/hopper_attention", &example, &launch)?;
    crate::verdict(reads_ifs()?)
}

fn measure_own(name: &str, kernel: &Kernel, launch: &Launch) -> Result<(), Box<dyn std::error::Error>> {
    measure(name, launch, |buffers, options| {
        simulate(kernel, launch, buffers, options)
    })
}

/// As the text of another compiler, under an early and a late schedule.
fn measure_text(name: &str, kernel: &Kernel, launch: &Launch) -> Result<(), Box<dyn std::error::Error>> {
    let module = Module::read(&kernel.to_ptx())?;
    let text = PtxKernel::read(&module, kernel.name(), &PtxLaunch::of(launch, name.to_string()))?;
    for (seed, policy) in [(0, "as text"), (1, "as text, late")] {
        measure(&format!("{name} {policy}"), launch, |buffers, options| {
            let options = SimOptions {
                seed,
                ..options.clone()
            };
            text.simulate(buffers, &options)
        })?;
    }
    Ok(())
}

/// Reads a text of so many `if`s one after another.
fn reads_ifs() -> Result<bool, Box<dyn std::error::Error>> {
    for count in [10_000, 20_000] {
        let ifs: String = (0..count)
            .map(|i| format!("@%p bra L{i}; add.u32 %r, %r, 1; L{i}:\n"))
            .collect();
        let text = format!(
            ".version 8.0 .target sm_80 .entry k() {{ .reg .pred %p; .reg .b32 %r; mov.u32 %r, %tid.x; setp.lt.u32 %p, %r, 3;\n\
             {ifs} setp.eq.u32 %p, %r, 0; @%p trap; ret; }}"
        );
        let launch = PtxLaunch {
            grid: [1, 1, 1],
            block: [32, 1, 1],
            ..PtxLaunch::default()
        };
        let start = cpu_seconds().unwrap_or(0.0);
        let read = PtxKernel::read(&Module::read(&text)?, "k", &launch)?;
        let done = cpu_seconds().unwrap_or(0.0) - start;
        println!("reading {count} ifs: {done:.2} s of CPU time");
        let options = SimOptions::default();
        let start = cpu_seconds().unwrap_or(0.0);
        read.simulate::<Vec<u8>>(&mut [], &options)?;
        println!("running them: {:.2} s", cpu_seconds().unwrap_or(0.0) - start);
    }
    Ok(true)
}

/// The example on the mission problem: 8 heads of 512 rows, contiguous.
fn example_launch(kernel: &Kernel) -> Option<Launch> {
    let (seq, heads, dim) = (512, 8, u64::from(hopper_attention::HEAD_DIM));
    let row_bytes = 2 * dim;
    let (mut args, mut buffers) = (Vec::new(), Vec::new());
    for (slot, name) in ["q", "k", "v", "out"].into_iter().enumerate() {
        let strides = vec![heads * row_bytes, row_bytes];
        let recipe = kernel.tensor_box(name)?.recipe(slot, 0, vec![dim, seq, heads], strides);
        args.push(Arg::TensorMap(recipe));
        buffers.push(BufferSpec {
            name,
            bytes: seq * heads * row_bytes,
            written: name == "out",
            align: 16,
        });
    }
    args.extend([Arg::U32(seq as u32), Arg::F32(0.18)]);
    Some(Launch {
        buffers,
        args,
        ..Launch::of(kernel, [seq as u32 / hopper_attention::ROWS, heads as u32, 1])
    })
}

/// Runs a kernel until one second has passed, at least twice.
fn measure(
    name: &str,
    launch: &Launch,
    run: impl Fn(&mut [Vec<u8>], &SimOptions) -> Result<SimReport, SimError>,
) -> Result<(), Box<dyn std::error::Error>> {
    let options = SimOptions {
        host_threads: 1,
        ..SimOptions::default()
    };
    let buffers = launch.buffers.iter();
    let mut buffers: Vec<Vec<u8>> = buffers.map(|buffer| vec![0; buffer.bytes as usize]).collect();
    let (mut lanes, mut warps, mut runs) = (0, 0, 0);
    let (start, cpu) = (Instant::now(), cpu_seconds());
    while runs < 2 || start.elapsed().as_secs_f64() < 1.0 {
        let report = run(&mut buffers, &options)?;
        if let Some(finding) = report.findings.first() {
            return Err(finding.to_string().into());
        }
        let total = report.counts.total();
        (lanes, warps) = (lanes + total.lanes, warps + total.warps);
        runs += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = |count: u64, seconds: f64| format!("{:.1}", count as f64 / seconds / 1e6);
    let cpu = match (cpu, cpu_seconds()) {
        (Some(before), Some(after)) => [lanes, warps].map(|count| rate(count, after - before)),
        _ => ["-", "-"].map(str::to_string),
    };
    println!(
        "{name:<44} {lanes:>12} {seconds:>9.2} {:>9} {:>9} {:>9}   ({runs} runs)",
        rate(lanes, seconds),
        cpu[0],
        cpu[1]
    );
    Ok(())
}

/// User and system time of this process, if available (Linux, 100 ticks per second).
fn cpu_seconds() -> Option<f64> {
    let stat = files::read_text_capped("/proc/self/stat".as_ref(), files::SMALL).ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok());
    Some((ticks(11)? + ticks(12)?) / 100.0)
}
