//! Which devices there are and what they can do.

use std::ffi::c_int;
use std::fmt;

use flashcore_ir::{Chip, Limits, Target, files};

use crate::error::CudaError;
use crate::raw::{Driver, driver, unsigned};
use crate::sys::device_attribute as attribute;

/// A CUDA device as the driver describes it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// Number of the device in this process, from 0, after `CUDA_VISIBLE_DEVICES`.
    pub ordinal: u32,
    /// Marketing name, such as `NVIDIA H200`.
    pub name: String,
    /// Identity of the board (of the instance, under MIG).
    pub uuid: DeviceUuid,
    /// Compute capability, such as `(9, 0)`.
    pub compute_capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Memory in all, bytes.
    pub total_memory: u64,
    /// L2 cache, bytes.
    pub l2_bytes: u32,
    /// Highest SM clock, kHz.
    pub sm_clock_khz: u32,
    /// What a launch may ask for, from the driver or, where it does not say, the architecture.
    pub limits: Limits,
    /// Newest CUDA version the driver supports: 13000 for 13.0.
    pub cuda_version: u32,
    /// The driver's release, such as `580.65.06`, where the system tells it.
    pub driver_release: Option<String>,
}

/// Blocks of a cluster that every device with clusters allows (CUDA C++ Programming Guide, "Thread
/// Block Clusters").
const PORTABLE_CLUSTER: u32 = 8;

impl DeviceInfo {
    /// The architecture's name, such as `sm_90`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.compute_capability;
        format!("sm_{major}{minor}")
    }

    /// The architecture that kernels are made for; `None` of a device without any.
    pub fn target(&self) -> Option<Target> {
        let (major, minor) = self.compute_capability;
        Target::for_capability(major, minor).filter(|target| target.is_supported())
    }

    /// The target and SM count that plans are made for. An architecture newer than every [`Target`]
    /// counts as `sm_80`: drivers compile its PTX for every later architecture.
    pub fn chip(&self) -> Chip {
        Chip {
            target: target_of(self.compute_capability),
            sms: self.multiprocessors,
        }
    }

    pub(crate) fn query(driver: &Driver, ordinal: u32) -> Result<Self, CudaError> {
        let count = unsigned(driver.cuDeviceGetCount()?);
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let device = driver.cuDeviceGet(ordinal as c_int)?;
        let get = |attribute| driver.cuDeviceGetAttribute(attribute, device).map(unsigned);
        let compute_capability = (
            get(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let of_target = target_of(compute_capability).limits();
        let optin = get(attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let without = get(attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?;
        let limits = Limits {
            static_shared_per_block: without,
            shared_per_block: optin.max(without),
            shared_per_sm: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            shared_reserved_per_block: get(attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
            registers_per_sm: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?,
            threads_per_block: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            threads_per_sm: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            blocks_per_sm: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            cluster_blocks: match get(attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? {
                0 => 1,
                _ => of_target.cluster_blocks.max(PORTABLE_CLUSTER),
            },
            grid: [
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ],
            block: [
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ],
            ..of_target
        };
        Ok(Self {
            ordinal,
            name: driver.device_name(device)?,
            uuid: DeviceUuid(
                driver
                    .cuDeviceGetUuid_v2(device)?
                    .bytes
                    .map(|byte| byte.to_ne_bytes()[0]),
            ),
            compute_capability,
            multiprocessors: get(attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            total_memory: driver.cuDeviceTotalMem_v2(device)? as u64,
            l2_bytes: get(attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            sm_clock_khz: get(attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            limits,
            cuda_version: driver.cuda_version,
            driver_release: driver_release(),
        })
    }
}

fn target_of((major, minor): (u32, u32)) -> Target {
    Target::for_capability(major, minor).unwrap_or(Target::Sm80)
}

/// The devices this process may use, in the driver's order (`CUDA_VISIBLE_DEVICES` has been
/// applied). No context is made. A device that does not answer is left out: its
/// [`ordinal`](DeviceInfo::ordinal) is missing, and [`devices_in_trouble`] says why.
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::DriverTooOld`] or [`CudaError::NoDevice`] say what is
/// missing and what to install; nothing panics and nothing is printed. Where no device answers, the
/// error of the first.
pub fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    let driver = driver()?;
    let count = unsigned(driver.cuDeviceGetCount()?);
    if count == 0 {
        return Err(CudaError::NoDevice {
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        });
    }
    those_that_answer((0..count).map(|ordinal| DeviceInfo::query(driver, ordinal)))
}

/// The devices that [`devices`] leaves out, by ordinal, and why each does not answer. Without a driver
/// or a device there is none, and [`devices`] says why.
///
/// ```
/// for (ordinal, why) in flashcore_cuda::devices_in_trouble() {
///     eprintln!("cuda:{ordinal} does not answer: {why}");
/// }
/// ```
pub fn devices_in_trouble() -> Vec<(u32, CudaError)> {
    let Ok(driver) = driver() else { return Vec::new() };
    let count = driver.cuDeviceGetCount().map_or(0, unsigned);
    let why = |ordinal| DeviceInfo::query(driver, ordinal).err();
    (0..count)
        .filter_map(|ordinal| Some((ordinal, why(ordinal)?)))
        .collect()
}

/// All but the errors; the first error if there is nothing else.
fn those_that_answer<T>(answers: impl Iterator<Item = Result<T, CudaError>>) -> Result<Vec<T>, CudaError> {
    let (mut found, mut first_error) = (Vec::new(), None);
    for answer in answers {
        match answer {
            Ok(device) => found.push(device),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    match first_error {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// Identity of a device, printed as `nvidia-smi -L` does:
/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let (first, second, third) = (&hex[..8], &hex[8..12], &hex[12..16]);
        write!(f, "GPU-{first}-{second}-{third}-{}-{}", &hex[16..20], &hex[20..])
    }
}

/// The release of the loaded kernel driver, such as `580.65.06`. The driver API tells only the CUDA
/// version.
pub(crate) fn driver_release() -> Option<String> {
    parse_driver_release(&files::read_text_capped("/proc/driver/nvidia/version".as_ref(), files::SMALL).ok()?)
}

/// Finds the release in the first line of `/proc/driver/nvidia/version`, which reads `NVRM version:
/// NVIDIA UNIX x86_64 Kernel Module 535.104.05 Sat Aug 19 …` or, with open modules, `NVRM version:
/// NVIDIA UNIX Open Kernel Module for x86_64 580.65.06 Release Build …`.
fn parse_driver_release(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        let mut parts = word.split('.');
        let number = |part: Option<&str>| part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
        number(parts.next()) && number(parts.next()) && parts.all(|part| number(Some(part)))
    };
    let mut words = text.lines().next()?.split_whitespace();
    words.find(is_release).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_device_in_trouble_hides_no_other() {
        let lost = |ordinal| CudaError::NoSuchDevice { ordinal, count: 3 };
        let found = those_that_answer([Err(lost(0)), Ok(1), Ok(2)].into_iter());
        assert_eq!(found.unwrap(), [1, 2]);
        let error = those_that_answer::<u32>([0, 1].map(|ordinal| Err(lost(ordinal))).into_iter()).unwrap_err();
        assert_eq!(error.to_string(), lost(0).to_string());
    }

    #[test]
    fn uuids_print_as_nvidia_smi_prints_them() {
        let uuid = DeviceUuid([0x1a, 0x2b, 0x3c, 0x4d, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0xab, 0xff]);
        assert_eq!(uuid.to_string(), "GPU-1a2b3c4d-0001-0203-0405-06070809abff");
    }

    #[test]
    fn driver_releases_are_found_in_both_spellings() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: gcc 12.3.0";
        let open =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U22)";
        assert_eq!(parse_driver_release(closed).as_deref(), Some("535.104.05"));
        assert_eq!(parse_driver_release(open).as_deref(), Some("580.65.06"));
        assert_eq!(parse_driver_release("NVRM version: unknown"), None);
        assert_eq!(parse_driver_release(""), None);
    }
}
