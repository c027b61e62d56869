//! Devices of the machine: the GPUs that the driver reports, and the CPU.

use std::sync::Once;

use flashcore::unstable::cuda::{Context, DeviceInfo};
use flashcore::{Device, Error};
use flashcore_check::cost::{PREDICT, predicted_card};
use flashcore_check::registers::Registers;
use flashcore_cpu::SimdLevel;
use flashcore_cuda::{CudaError, Function, ModuleOptions};
use flashcore_ir::{Kernel, Profile, Target};
use serde_json::{Value, json};

use crate::{Card, Failure, style};

/// Threads that `RAYON_NUM_THREADS` may ask for, or one a core if there are more: starting millions never ends.
const MOST_THREADS: usize = 1024;

/// Refuses a number of threads that cannot be started, and one that would be ignored.
pub(crate) fn check_threads() -> Result<(), Failure> {
    // The second is the older name, which Rayon still reads.
    let names = ["RAYON_NUM_THREADS", "RAYON_RS_NUM_CPUS"];
    names.into_iter().try_for_each(check_threads_of)
}

fn check_threads_of(name: &str) -> Result<(), Failure> {
    let Some(given) = std::env::var_os(name).filter(|given| !given.is_empty()) else {
        return Ok(());
    };
    let most = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .max(MOST_THREADS);
    match given.to_str().and_then(|given| given.parse().ok()) {
        Some(threads) if (0..=most).contains(&threads) => Ok(()),
        _ => Err(Failure::usage(format!(
            "{name} is {}; allowed: 1 to {}, or 0 for one a core",
            given.to_string_lossy(),
            style::whole(most as u64)
        ))),
    }
}

pub(crate) fn cpu_line() -> String {
    let threads = style::count(rayon::current_num_threads(), "thread");
    format!(
        "{} · {threads} · {}",
        flashcore::unstable::plans::cpu_name(),
        SimdLevel::best()
    )
}

pub(crate) fn cpu_json() -> Value {
    json!({
        "model": flashcore::unstable::plans::cpu_name(),
        "threads": rayon::current_num_threads(),
        "simd": SimdLevel::best().name(),
    })
}

/// The GPUs, for a command that needs none. A driver that fails is reported in a note.
pub(crate) fn gpus_or_none() -> Vec<DeviceInfo> {
    flashcore_cuda::devices().unwrap_or_else(|why| {
        note_why_none(&why.into());
        Vec::new()
    })
}

pub(crate) fn is_supported(info: &DeviceInfo) -> bool {
    let (major, minor) = info.compute_capability;
    Target::for_capability(major, minor).is_some_and(Target::is_supported)
}

/// The devices that a command takes besides GPUs, which its errors name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Besides {
    /// The command has the simulator as `sim`, too.
    CpuAndSim,
    /// It predicts for cards, too.
    CpuAndCards,
    CpuSimAndCards,
    Cpu,
    Nothing,
}

/// Where a command computes.
pub(crate) enum Place {
    Here(Device),
    /// For a card, if one is named.
    Simulator(Option<Card>),
    /// Nowhere: times are predicted for this card.
    Card(&'static Profile),
}

/// A place by the name of a device.
pub(crate) fn place(name: &str, besides: Besides) -> Result<Place, Failure> {
    let simulates = matches!(besides, Besides::CpuAndSim | Besides::CpuSimAndCards);
    let predicts = matches!(besides, Besides::CpuAndCards | Besides::CpuSimAndCards);
    if let Some(card) = predicted_card(name).filter(|_| predicts) {
        return card.map(Place::Card).map_err(Failure::usage);
    }
    match name.split_once(':').unwrap_or((name, "")) {
        ("sim", "") if simulates => Ok(Place::Simulator(None)),
        ("sim", card) if simulates => {
            let wrong = |why| Failure::usage(format!("--device {name}: no card is named `{card}`; {why}"));
            Card::parse(card)
                .map(|card| Place::Simulator(Some(card)))
                .map_err(wrong)
        }
        _ => device(name, besides).map(Place::Here),
    }
}

/// A device by name. A note says why `best` is the CPU, unless there simply is no driver.
pub(crate) fn device(name: &str, besides: Besides) -> Result<Device, Failure> {
    let (allowed, help) = match besides {
        Besides::CpuAndSim => (
            "best, cpu, cuda, cuda:N, and sim or sim:CARD (the simulator)",
            Some("`--device cpu` and `--device sim` need no GPU"),
        ),
        Besides::CpuAndCards => (
            "best, cpu, cuda, cuda:N, predict:CARD",
            Some("`--device cpu` and `--device predict:CARD` need no GPU"),
        ),
        Besides::CpuSimAndCards => (
            "best, cpu, cuda, cuda:N, sim or sim:CARD (the simulator), predict:CARD",
            Some("`--device cpu`, `--device sim` and `--device predict:CARD` need no GPU"),
        ),
        Besides::Cpu => ("best, cpu, cuda, cuda:N", Some("`--device cpu` needs no GPU")),
        Besides::Nothing => ("best, cuda, cuda:N", None),
    };
    let device: Device = name.parse().map_err(|error| match error {
        Error::UnknownDevice { given } => {
            let failure = Failure::usage(format!("no device is named `{given}`; allowed: {allowed}"));
            match Profile::named(&given) {
                Some(card) if allowed.contains("predict:") => failure.help(format!(
                    "write `--device {PREDICT}{}` to predict for that card",
                    card.name
                )),
                _ => failure,
            }
        }
        Error::Cuda(CudaError::NoSuchDevice { .. }) => Failure::environment(error),
        error => match (Failure::from(error), help) {
            (failure, Some(help)) if failure.is_environment() => failure.help(help),
            (failure, _) => failure,
        },
    })?;
    if name == "best"
        && matches!(device, Device::Cpu)
        && let Some(why) = Device::why_not_cuda()
    {
        note_why_none(&why);
    }
    Ok(device)
}

/// A GPU by name.
pub(crate) fn gpu(name: &str) -> Result<Context, Failure> {
    match device(name, Besides::Nothing)? {
        Device::Cuda(context) => Ok(context),
        _ => Err(Failure::usage(format!("--device is {name}; allowed: cuda, cuda:N"))),
    }
}

static NOTED: Once = Once::new();

fn note_why_none(why: &Error) {
    if !matches!(why, Error::Cuda(why) if why.is_absence()) {
        NOTED.call_once(|| style::note(format_args!("no GPU is used: {why}")));
    }
}

/// Suppresses the note: the output says why there are no GPUs.
pub(crate) fn why_none_is_printed() {
    NOTED.call_once(|| {});
}

pub(crate) fn gpu_line(info: &DeviceInfo) -> String {
    let driver = info.driver_release.as_deref().unwrap_or("version unknown");
    format!(
        "{} · {} · {} SMs · {} GB · driver {driver} (CUDA {}.{})",
        info.name,
        info.architecture(),
        info.multiprocessors,
        style::digits3(info.total_memory as f64 / 1e9),
        info.cuda_version / 1000,
        info.cuda_version % 1000 / 10,
    )
}

pub(crate) fn line_of(device: &str) -> String {
    if device == "cpu" {
        return cpu_line();
    }
    let gpus = flashcore_cuda::devices().unwrap_or_default();
    let gpu = gpus.iter().find(|gpu| device == format!("cuda:{}", gpu.ordinal));
    gpu.map_or(device.to_string(), gpu_line)
}

pub(crate) fn gpu_json(info: &DeviceInfo) -> Value {
    json!({
        "ordinal": info.ordinal,
        "name": info.name,
        "uuid": info.uuid.to_string(),
        "architecture": info.architecture(),
        "multiprocessors": info.multiprocessors,
        "memory_bytes": info.total_memory,
        "driver": info.driver_release,
        "cuda_version": info.cuda_version,
    })
}

/// The registers of a kernel by the driver, if the machine has a GPU of this architecture.
pub(crate) fn compiled_here(kernel: &Kernel, target: Target) -> Option<Registers> {
    let devices = flashcore_cuda::devices().ok()?.into_iter();
    let device = devices
        .filter_map(|device| Device::cuda(device.ordinal).ok())
        .find(|device| device.target() == Some(target))?;
    let Device::Cuda(context) = &device else { return None };
    let function = Function::load(context, kernel, &ModuleOptions::default()).ok()?;
    let release = context.info().driver_release.as_deref().unwrap_or("of unknown version");
    Some(Registers {
        per_thread: function.attributes().registers,
        spilled_bytes: function.attributes().local_bytes,
        compiler: format!("driver {release} for {target}"),
    })
}
