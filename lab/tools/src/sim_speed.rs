//! The simulator's speed in lane-instructions per second on one core.

#[allow(dead_code)] // its own `main`
#[path = "../../../crates/ir/examples/hopper_attention.rs"]
mod hopper_attention;

use std::time::Instant;

use flashcore_ir::{Arg, BufferSpec, Kernel, Launch, Target, files};
use flashcore_kernels::Plan;
use flashcore_problem::{DType, Problem};
use flashcore_sim::{SimOptions, simulate};

/// A kernel of each family, with the dtype of its problem.
const KERNELS: [(&str, DType); 4] = [
    ("scalar/tiled-m32n32-w8-v16", DType::F32),
    ("scalar/naive-t128-v16", DType::F16),
    ("mma/m128n64-w4x1-s2-b1-qreg-xor-spec", DType::F16),
    ("wgmma/m128n128-s2-pingpong-spec", DType::F16),
];

pub(crate) fn main() -> crate::Ran {
    println!("M lane-instructions per second: by the clock, and by CPU time (the one to read on a busy machine)");
    println!(
        "{:<44} {:>12} {:>9} {:>9} {:>9}",
        "kernel", "lane-instr.", "seconds", "clock", "CPU"
    );
    for (id, dtype) in KERNELS {
        let mission = Problem::builder().heads(8, 8).seq_len(512).head_dim(64);
        let problem = mission.dtype(dtype).build()?;
        let plan = Plan::new(&problem, &id.parse()?, Target::Sm90a)?;
        measure(id, &plan.main.kernel, &plan.main.launch)?;
    }
    let example = hopper_attention::attention()?;
    let launch = example_launch(&example).ok_or("the example has four tensor maps")?;
    measure("ir/examples/hopper_attention", &example, &launch)?;
    crate::verdict(true)
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
fn measure(name: &str, kernel: &Kernel, launch: &Launch) -> Result<(), Box<dyn std::error::Error>> {
    let options = SimOptions {
        host_threads: 1,
        ..SimOptions::default()
    };
    let buffers = launch.buffers.iter();
    let mut buffers: Vec<Vec<u8>> = buffers.map(|buffer| vec![0; buffer.bytes as usize]).collect();
    let (mut lanes, mut runs) = (0, 0);
    let (start, cpu) = (Instant::now(), cpu_seconds());
    while runs < 2 || start.elapsed().as_secs_f64() < 1.0 {
        let report = simulate(kernel, launch, &mut buffers, &options)?;
        if let Some(finding) = report.findings.first() {
            return Err(finding.to_string().into());
        }
        lanes += report.counts.total().lanes;
        runs += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = |seconds: f64| format!("{:.0}", lanes as f64 / seconds / 1e6);
    let cpu = match (cpu, cpu_seconds()) {
        (Some(before), Some(after)) => rate(after - before),
        _ => "-".to_string(),
    };
    println!(
        "{name:<44} {lanes:>12} {seconds:>9.2} {:>9} {cpu:>9}   ({runs} runs)",
        rate(seconds)
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
