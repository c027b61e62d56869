//! Everything in this crate that only a GPU can prove, one line a check.
//!
//! ```text
//! cargo run --release -p flashcore-tools -- selftest --require-gpu
//! ```
//!
//! Exit codes: 0 all passed, or no driver without `--require-gpu`; 1 a check failed; 3 no driver with it.
//! Checks that take the context with them, or need another environment, run in child processes.

#![allow(unsafe_code)]

mod children;
mod graphs;
mod launches;
mod memory;
mod modules;
mod ptx;
mod tables;

use std::process::ExitCode;

use flashcore_cuda::{Context, CudaError, Stream, cache_report, devices};

/// A check passes with a line worth reading, or fails with a reason.
type Outcome = Result<String, Box<dyn std::error::Error>>;

/// Fails the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        let holds: bool = $condition;
        if !holds {
            return Err(format!($($text)*).into());
        }
    };
}
pub(crate) use ensure;

/// What most checks need.
struct Bench {
    context: Context,
    stream: Stream,
}

impl Bench {
    fn new() -> Result<Self, CudaError> {
        let context = Context::new(0)?;
        let stream = Stream::new(&context)?;
        Ok(Self { context, stream })
    }

    fn is_hopper(&self) -> bool {
        self.context.info().compute_capability == (9, 0)
    }
}

/// Asserts that a result is an error whose message has all the parts; returns the message.
fn refused<T>(result: Result<T, CudaError>, parts: &[&str]) -> Outcome {
    let text = match result {
        Ok(_) => return Err(format!("succeeded, but should have failed with {parts:?}").into()),
        Err(error) => error.to_string(),
    };
    for part in parts {
        ensure!(text.contains(part), "the message lacks {part:?}: {text}");
    }
    Ok(text)
}

/// A name for the report, and what to do.
type Check = (&'static str, fn(&Bench) -> Outcome);

const CHECKS: &[Check] = &[
    ("device is described", device_is_described),
    ("memory is copied, filled and bounded", memory::copies),
    ("memory that is not there is refused", memory::too_much),
    ("streams: own, borrowed, default", memory::streams),
    ("streams wait for events", memory::waiting),
    ("vector add at odd sizes", launches::vector_add),
    ("arguments arrive as they were given", launches::arguments),
    ("wrong arguments are refused", launches::wrong_arguments),
    ("shapes past the limits are refused", launches::shapes),
    ("dynamic shared memory to the last byte", launches::dynamic_shared),
    ("clusters", launches::clusters),
    ("dependent launches keep their order", launches::dependent),
    ("tensor map: boxes, swizzle, zero fill", launches::tensor_map),
    ("occupancy", launches::occupancy),
    ("events agree with the clock", launches::timing),
    ("launch overhead", launches::overhead),
    ("eight threads at once", launches::threads),
    ("graph replay equals launches", graphs::replay),
    ("a failed capture leaves the stream usable", graphs::failed_capture),
    ("a kernel of the kernel language", launches::kernel_language),
    ("tables: many take no more than a few", tables::bounded),
    ("tables: graphs keep theirs", tables::of_graphs),
    ("module: identity, caches, log", modules::identity),
    ("module: bad PTX and its log", modules::bad_ptx),
    ("module: static shared overflow", modules::static_overflow),
    ("module: local memory is refused", modules::local_memory),
    ("module: performance warnings are refused", modules::warnings),
    ("warnings outlive the process", children::warnings_are_remembered),
    ("a read-only cache folder is a note", children::read_only_cache),
    ("no visible device is a typed error", children::no_device),
    ("illegal address names the kernel", children::illegal_address),
    ("misaligned address names the kernel", children::misaligned_address),
    ("trap names the kernel", children::trap),
];

pub(crate) fn main() -> ExitCode {
    let arguments: Vec<String> = crate::arguments().collect();
    if let [flag, task] = arguments.as_slice()
        && flag == "--child"
    {
        return children::run(task);
    }
    let required = arguments.iter().any(|argument| argument == "--require-gpu");
    let only: Vec<&String> = arguments
        .iter()
        .filter(|argument| !argument.starts_with("--"))
        .collect();

    println!("{}", cache_report());
    match devices() {
        Ok(found) => {
            for device in found {
                println!("{device:#?}");
            }
        }
        Err(error) => {
            eprintln!("no CUDA driver: skipped ({error})");
            return ExitCode::from(if required { 3 } else { 0 });
        }
    }
    let bench = match Bench::new() {
        Ok(bench) => bench,
        Err(error) => {
            println!("FAIL context and stream: {error}");
            return ExitCode::FAILURE;
        }
    };

    let (mut passed, mut failed) = (0, 0);
    for (name, check) in CHECKS {
        if !only.is_empty() && !only.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        match check(&bench) {
            Ok(line) => {
                passed += 1;
                println!("PASS {name}: {line}");
            }
            Err(error) => {
                failed += 1;
                println!("FAIL {name}: {error}");
            }
        }
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn device_is_described(bench: &Bench) -> Outcome {
    let info = bench.context.info();
    ensure!(!info.name.is_empty() && info.multiprocessors > 0, "{info:?}");
    ensure!(
        info.limits.max_threads_per_block == 1024 && info.limits.warp_size == 32,
        "{:?}",
        info.limits
    );
    ensure!(info.limits.shared_bytes_per_block == 49_152, "{:?}", info.limits);
    if info.name.contains("H200") || info.name.contains("H100") {
        ensure!(
            info.limits.shared_bytes_per_block_optin == 232_448 && info.limits.clusters,
            "{:?}",
            info.limits
        );
    }
    refused(Context::new(4096), &["no CUDA device 4096"])?;
    ensure!(Context::new(0)? == bench.context, "two contexts of one device differ");
    let (free, total) = bench.context.memory()?;
    ensure!(free > 0 && free <= total, "{free} of {total} B free");
    Ok(format!(
        "{} {} {}, CUDA {}, driver {}, {} MiB free",
        info.name,
        info.uuid,
        info.architecture(),
        info.cuda_version,
        info.driver_release.as_deref().unwrap_or("not told"),
        free >> 20
    ))
}
