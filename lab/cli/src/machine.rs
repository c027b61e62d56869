//! What the machine has: GPUs as the driver tells, and the CPU.

use std::sync::Once;

use flashcore::{Device, DeviceInfo, Error};
use flashcore_check::registers::Registers;
use flashcore_cpu::SimdLevel;
use flashcore_cuda::{CudaError, Function, ModuleOptions};
use flashcore_ir::{Kernel, Target};
use serde_json::{Value, json};

use crate::style;

/// The CPU.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) model: String,
    pub(crate) threads: usize,
    pub(crate) simd: SimdLevel,
}

impl Cpu {
    pub(crate) fn here() -> Cpu {
        Cpu {
            model: flashcore::cpu_name().to_string(),
            threads: rayon::current_num_threads(),
            simd: SimdLevel::best(),
        }
    }

    /// One line on it.
    pub(crate) fn line(&self) -> String {
        let threads = style::count(self.threads as u64, "thread");
        format!("{} · {threads} · {}", self.model, self.simd)
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "model": self.model, "threads": self.threads, "simd": self.simd.name() })
    }
}

/// The GPUs, or why there are none.
pub(crate) fn gpus() -> Result<Vec<DeviceInfo>, CudaError> {
    flashcore_cuda::devices()
}

/// The GPUs, for a command that does without them where there are none. Where a driver is there and fails, that is said.
pub(crate) fn gpus_or_none() -> Vec<DeviceInfo> {
    gpus().unwrap_or_else(|why| {
        say_why_none(&why.into());
        Vec::new()
    })
}

/// A device by name. Where `best` is the host for another reason than that there is no GPU, that is said.
pub(crate) fn device(name: &str) -> Result<Device, Error> {
    let device: Device = name.parse()?;
    if name == "best"
        && matches!(device, Device::Cpu)
        && let Some(why) = Device::why_not_cuda()
    {
        say_why_none(&why);
    }
    Ok(device)
}

/// It is said once, whoever comes to it first.
static SAID: Once = Once::new();

fn say_why_none(why: &Error) {
    if matches!(why, Error::Cuda(why) if why.is_absence()) {
        return;
    }
    SAID.call_once(|| {
        let note = format!("note: no GPU is used, and not for want of a driver: {why}");
        style::eprint(&style::wrap(&note, 2));
    });
}

/// The output says why there are no GPUs, and no note is to say it again.
pub(crate) fn why_none_is_said() {
    SAID.call_once(|| {});
}

/// One line on a GPU.
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

/// One line on a device of this machine, by name.
pub(crate) fn line_of(device: &str) -> String {
    if device == "cpu" {
        return Cpu::here().line();
    }
    let gpus = gpus().unwrap_or_default();
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

/// What the driver makes of a kernel, where the machine has a GPU of this architecture.
pub(crate) fn compiled_here(kernel: &Kernel, target: Target) -> Option<Registers> {
    let count = gpus().ok()?.len() as u32;
    let device = (0..count)
        .filter_map(|ordinal| Device::cuda(ordinal).ok())
        .find(|device| device.target() == Some(target))?;
    let Device::Cuda(context) = &device else { return None };
    let function = Function::load(context, kernel, &ModuleOptions::default()).ok()?;
    let release = context
        .info()
        .driver_release
        .as_deref()
        .unwrap_or("of unknown version")
        .to_string();
    Some(Registers {
        per_thread: function.attributes().registers,
        spilled_bytes: function.attributes().local_bytes,
        compiler: format!("driver {release} for {target}"),
    })
}
