//! Checks in child processes: faults take the context with them, and the driver reads its
//! environment once.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use flashcore_cuda::{CudaError, DeviceBuffer, LaunchShape, ModuleOptions, devices};

use super::{Bench, KernelArg, Outcome, Own, ensure, launches, load_ptx, ptx};

/// Names the task of a child process.
const TASK: &str = "FLASHCORE_CUDA_TEST_CHILD";
/// A child that is not done by then hangs.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn illegal_address(_: &Bench) -> Outcome {
    faulting("illegal", "stray_store", "ILLEGAL_ADDRESS")
}

pub(crate) fn misaligned_address(_: &Bench) -> Outcome {
    faulting("misaligned", "stray_store", "MISALIGNED_ADDRESS")
}

pub(crate) fn trap(_: &Bench) -> Outcome {
    faulting("trap", "stop_here", "CUDA_ERROR_")
}

fn faulting(task: &str, kernel: &str, status: &str) -> Outcome {
    let text = child(task, &[])?;
    for part in [
        kernel,
        status,
        "unusable from now on",
        "flashcore check",
        "--device sim",
        "second report names it too",
    ] {
        ensure!(text.contains(part), "the report lacks {part:?}: {text}");
    }
    Ok(text.trim_end().to_string())
}

pub(crate) fn warnings_are_remembered(bench: &Bench) -> Outcome {
    if !bench.is_hopper() {
        return Ok("not Hopper: nothing to warn of".to_string());
    }
    let folder = tempfile::tempdir()?;
    std::fs::create_dir_all(folder.path().join("driver"))?;
    let environment = [
        ("CUDA_CACHE_PATH", folder.path().join("driver")),
        ("FLASHCORE_CACHE_DIR", folder.path().join("flashcore")),
    ];
    let first = child("warned", &environment)?;
    let second = child("warned", &environment)?;
    ensure!(
        first.contains("refused") && first.contains("compiled: true"),
        "first process: {first}"
    );
    ensure!(second.contains("refused"), "second process: {second}");
    ensure!(
        second.contains("compiled: false"),
        "the driver's cache was not used the second time: {second}"
    );
    Ok("refused when compiled, and refused from the driver's cache".to_string())
}

pub(crate) fn read_only_cache(_: &Bench) -> Outcome {
    let path = PathBuf::from("/proc/flashcore-no-such-cache");
    ensure!(
        std::fs::create_dir_all(&path).is_err(),
        "{} can be written",
        path.display()
    );
    let text = child(
        "add",
        &[("CUDA_CACHE_PATH", path.clone()), ("FLASHCORE_CACHE_DIR", path)],
    )?;
    ensure!(text.contains("sums are right"), "{text}");
    Ok(text.trim_end().to_string())
}

pub(crate) fn no_device(_: &Bench) -> Outcome {
    let text = child("devices", &[("CUDA_VISIBLE_DEVICES", PathBuf::new())])?;
    ensure!(
        text.contains("sees no device") && text.contains("CUDA_VISIBLE_DEVICES"),
        "{text}"
    );
    Ok(text.trim_end().to_string())
}

/// The child's side: does nothing unless a test below started this process.
#[test]
fn child_process() {
    let Ok(task) = std::env::var(TASK) else { return };
    let done: Outcome = match task.as_str() {
        "illegal" => fault(ptx::STRAY_STORE, "stray_store", &[KernelArg::U64(0x10)]),
        "misaligned" => misaligned(),
        "trap" => fault(ptx::STRAY_STORE, "stop_here", &[]),
        "warned" => warned(),
        "add" => Bench::new().map_err(Into::into).and_then(|bench| {
            launches::vector_add(&bench)?;
            Ok("sums are right".to_string())
        }),
        "devices" => match devices() {
            Ok(found) => Err(format!("{} devices found", found.len()).into()),
            Err(error) => Ok(error.to_string()),
        },
        other => Err(format!("no child task {other:?}").into()),
    };
    match done {
        Ok(text) => println!("{text}"),
        Err(error) => panic!("{error}"),
    }
}

fn misaligned() -> Outcome {
    let bench = Bench::new()?;
    let buffer = DeviceBuffer::new(&bench.context, 64)?;
    let address = buffer.as_slice().address() + 1;
    fault_on(&bench, ptx::STRAY_STORE, "stray_store", &[KernelArg::U64(address)])
}

fn fault(ptx: &str, kernel: &str, arguments: &[KernelArg<'_>]) -> Outcome {
    fault_on(&Bench::new()?, ptx, kernel, arguments)
}

fn fault_on(bench: &Bench, ptx: &str, kernel: &str, arguments: &[KernelArg<'_>]) -> Outcome {
    let function = load_ptx(&bench.context, ptx, &ModuleOptions::default())?.function(kernel)?;
    // SAFETY: none: the kernel is meant to fault, and this process ends afterwards.
    unsafe { function.launch(&bench.stream, &LaunchShape::linear(1, 32), arguments)? };
    let Err(error) = bench.stream.synchronize() else {
        return Err("the kernel did not fault".into());
    };
    let first = error.to_string();
    let CudaError::Fault(fault) = error else {
        return Err(format!("not a fault: {first}").into());
    };
    ensure!(fault.kernels == [kernel], "under suspicion: {:?}", fault.kernels);
    let Err(second) = DeviceBuffer::new(&bench.context, 1 << 20) else {
        return Err("the context still works".into());
    };
    ensure!(
        second.to_string().contains(kernel),
        "the second report names another: {second}"
    );
    Ok(format!("{first}\nsecond report names it too"))
}

fn warned() -> Outcome {
    let bench = Bench::new()?;
    let allow = ModuleOptions {
        allow_performance_warnings: true,
        ..ModuleOptions::default()
    };
    let compiled = load_ptx(&bench.context, ptx::UNWAITED_WGMMA, &allow)?.report().compiled;
    match load_ptx(&bench.context, ptx::UNWAITED_WGMMA, &ModuleOptions::default()) {
        Ok(_) => Ok(format!("accepted, compiled: {compiled}")),
        Err(error) => Ok(format!("refused, compiled: {compiled}; {error}")),
    }
}

/// Runs this program as a child with one task; returns what it printed.
fn child(task: &str, environment: &[(&str, PathBuf)]) -> Outcome {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--exact", "gpu::children::child_process", "--nocapture"])
        .env(TASK, task)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit());
    for (name, value) in environment {
        command.env(name, value);
    }
    let mut child = command.spawn()?;
    // A few lines fit in the pipe, so reading can wait for the end.
    let status = wait(&mut child)?;
    let mut text = String::new();
    if let Some(mut output) = child.stdout.take() {
        output.read_to_string(&mut text)?;
    }
    ensure!(status, "child {task} failed: {text}");
    Ok(text)
}

fn wait(child: &mut Child) -> Result<bool, Box<dyn std::error::Error>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if started.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            return Err(format!("no answer within {PATIENCE:?}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
