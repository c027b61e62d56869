//! What tables are looked up by on this machine: its devices, and the user's folder.

use std::io::Read;
use std::path::PathBuf;
use std::sync::OnceLock;

#[cfg(feature = "cpu")]
use flashcore_cpu::SimdLevel;

use flashcore_ir::files;

use super::{PlanDevice, PlanTarget};
use crate::Device;

/// Where the user's plan tables lie: `flashcore/plans` in `$XDG_DATA_HOME`, or in `~/.local/share`;
/// `None` where there is neither.
pub fn user_plans_folder() -> Option<PathBuf> {
    Some(crate::files::data_folder()?.join("plans"))
}

/// Environment variable that names the CPU, for machines whose system does not, and for tests that
/// must not depend on the machine.
pub const CPU_NAME_VARIABLE: &str = "FLASHCORE_CPU_NAME";

/// The model of the CPU: [`CPU_NAME_VARIABLE`] if it is set, else as Linux has it, else the
/// architecture. Read once.
///
/// ```
/// assert!(!flashcore::unstable::plans::cpu_name().is_empty());
/// ```
pub fn cpu_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let given = std::env::var(CPU_NAME_VARIABLE).unwrap_or_default();
        if let Some(given) = one_line(&given) {
            return given;
        }
        // The first processor's lines are enough: the file grows with their number.
        let mut start = Vec::new();
        let read =
            files::open_regular("/proc/cpuinfo".as_ref()).map(|(file, _)| file.take(4096).read_to_end(&mut start));
        drop(read);
        model_name(&String::from_utf8_lossy(&start))
    })
}

/// The model in the text of `/proc/cpuinfo`, or the architecture.
fn model_name(text: &str) -> String {
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model
        .and_then(|(_, name)| one_line(name))
        .unwrap_or_else(|| std::env::consts::ARCH.to_string())
}

/// The words with one space between them; `None` where there are none.
fn one_line(text: &str) -> Option<String> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    (!words.is_empty()).then_some(words)
}

impl PlanDevice {
    /// This host, with the threads that rayon has here.
    #[cfg(feature = "cpu")]
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
            #[cfg(feature = "cpu")]
            Device::Cpu => PlanDevice::cpu(),
            #[cfg(feature = "cuda")]
            Device::Cuda(context) => PlanDevice::cuda(context.info()),
        }
    }

    /// A GPU as the driver describes it.
    #[cfg(feature = "cuda")]
    pub fn cuda(info: &flashcore_cuda::DeviceInfo) -> PlanDevice {
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
        assert_eq!(model_name("model name : \n"), std::env::consts::ARCH);
    }
}
