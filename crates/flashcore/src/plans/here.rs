//! What tables are looked up by on this machine: its devices, and the user's folder.

use std::io::Read;
use std::path::PathBuf;
use std::sync::OnceLock;

use flashcore_cpu::SimdLevel;

use super::{PlanDevice, PlanTarget};
use crate::Device;

/// Where the user's plan tables lie: `flashcore/plans` in `$XDG_DATA_HOME`, or in `~/.local/share`; `None` where there
/// is neither.
pub fn user_plans_folder() -> Option<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let data = set("XDG_DATA_HOME").or_else(|| Some(set("HOME")?.join(".local/share")))?;
    Some(data.join("flashcore/plans"))
}

/// The model of the CPU as Linux has it; the architecture where it is not known. Asked once.
///
/// ```
/// assert!(!flashcore::cpu_name().is_empty());
/// ```
pub fn cpu_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        // The first processor's lines are enough; the whole file takes the longer the more there are.
        let mut start = String::new();
        let read = std::fs::File::open("/proc/cpuinfo").map(|file| file.take(4096).read_to_string(&mut start));
        drop(read);
        model_name(&start)
    })
}

/// The model in the text of `/proc/cpuinfo`, or the architecture.
fn model_name(text: &str) -> String {
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let words = model.map(|(_, name)| name.split_whitespace().collect::<Vec<_>>().join(" "));
    words
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

impl PlanDevice {
    /// This host, with the threads that rayon has here.
    pub fn cpu() -> PlanDevice {
        PlanDevice {
            name: cpu_name().to_string(),
            target: format!("{}/{}", std::env::consts::ARCH, SimdLevel::best().name()),
            units: rayon::current_num_threads() as u32,
        }
    }

    /// A device.
    pub fn of(device: &Device) -> PlanDevice {
        match device {
            Device::Cpu => PlanDevice::cpu(),
            Device::Cuda(context) => PlanDevice::cuda(context.info()),
        }
    }

    /// A GPU as the driver describes it.
    pub fn cuda(info: &crate::DeviceInfo) -> PlanDevice {
        let (major, minor) = info.compute_capability;
        let target = flashcore_ir::Target::for_capability(major, minor);
        PlanDevice {
            name: info.name.clone(),
            target: target.map_or_else(|| info.architecture(), |target| target.name().to_string()),
            units: info.multiprocessors,
        }
    }
}

impl From<&Device> for PlanTarget {
    fn from(device: &Device) -> PlanTarget {
        PlanTarget::Device(PlanDevice::of(device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_or_the_architecture_named() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC 9654   96-Core Processor\n";
        assert_eq!(model_name(text), "AMD EPYC 9654 96-Core Processor");
        assert_eq!(model_name("processor : 0"), std::env::consts::ARCH);
    }
}
