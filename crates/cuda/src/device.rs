//! Which devices there are and what they can do.

use std::fmt;

use flashcore_ir::{Chip, Limits, Target};

use crate::error::CudaError;
use crate::raw::{Driver, driver};
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
    /// Highest memory clock, kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// What a launch may ask for.
    pub limits: DeviceLimits,
    /// Newest CUDA version the driver supports: 13000 for 13.0.
    pub cuda_version: u32,
    /// The driver's release, such as `580.65.06`, where the system tells it.
    pub driver_release: Option<String>,
}

/// Limits of a device that a launch must respect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLimits {
    /// Compute capability, such as `(9, 0)`.
    pub compute_capability: (u32, u32),
    /// Threads a block.
    pub max_threads_per_block: u32,
    /// Threads a block along x, y, z.
    pub max_block: [u32; 3],
    /// Blocks along x, y, z.
    pub max_grid: [u32; 3],
    /// Threads a warp.
    pub warp_size: u32,
    /// Threads resident on a multiprocessor.
    pub max_threads_per_multiprocessor: u32,
    /// Blocks resident on a multiprocessor.
    pub max_blocks_per_multiprocessor: u32,
    /// Shared memory a block may have without opting in, bytes.
    pub shared_bytes_per_block: u32,
    /// Shared memory a block may have after opting in, bytes.
    pub shared_bytes_per_block_optin: u32,
    /// Shared memory of a multiprocessor, bytes.
    pub shared_bytes_per_multiprocessor: u32,
    /// Shared memory that the system takes from each block, bytes.
    pub shared_bytes_reserved_per_block: u32,
    /// 32-bit registers a block.
    pub registers_per_block: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers_per_multiprocessor: u32,
    /// Whether clusters can be launched.
    pub clusters: bool,
}

impl DeviceLimits {
    /// What a launch is proved against: what the driver reports, and of the architecture what it does not.
    pub(crate) fn for_proof(&self) -> Limits {
        let (major, minor) = self.compute_capability;
        let of_target = Target::for_capability(major, minor).unwrap_or(Target::Sm80).limits();
        Limits {
            static_shared_per_block: self.shared_bytes_per_block,
            shared_per_block: self.shared_bytes_per_block_optin.max(self.shared_bytes_per_block),
            shared_per_sm: self.shared_bytes_per_multiprocessor,
            shared_reserved_per_block: self.shared_bytes_reserved_per_block,
            registers_per_sm: self.registers_per_block,
            threads_per_block: self.max_threads_per_block,
            threads_per_sm: self.max_threads_per_multiprocessor,
            blocks_per_sm: self.max_blocks_per_multiprocessor,
            cluster_blocks: match self.clusters {
                true => of_target.cluster_blocks.max(PORTABLE_CLUSTER),
                false => 1,
            },
            grid: self.max_grid,
            block: self.max_block,
            ..of_target
        }
    }
}

/// Blocks of a cluster that every device with clusters allows (CUDA C++ Programming Guide, "Thread Block
/// Clusters").
const PORTABLE_CLUSTER: u32 = 8;

impl DeviceInfo {
    /// The architecture's name, such as `sm_90`.
    pub fn architecture(&self) -> String {
        let (major, minor) = self.compute_capability;
        format!("sm_{major}{minor}")
    }

    /// What kernels are chosen for here. An architecture newer than those that kernels know counts as `sm_80`, whose PTX
    /// a driver compiles for every later one.
    pub fn chip(&self) -> Chip {
        let (major, minor) = self.compute_capability;
        Chip {
            target: Target::for_capability(major, minor).unwrap_or(Target::Sm80),
            sms: self.multiprocessors,
        }
    }

    pub(crate) fn query(driver: &Driver, ordinal: u32) -> Result<Self, CudaError> {
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoSuchDevice { ordinal, count });
        }
        let device = driver.device(ordinal)?;
        let get = |attribute| driver.device_attribute(device, attribute);
        let compute_capability = (
            get(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let limits = DeviceLimits {
            compute_capability,
            max_threads_per_block: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            max_block: [
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
            ],
            max_grid: [
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
                get(attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
            ],
            warp_size: get(attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
            max_threads_per_multiprocessor: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
            max_blocks_per_multiprocessor: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
            shared_bytes_per_block: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
            shared_bytes_per_block_optin: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            shared_bytes_per_multiprocessor: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?,
            shared_bytes_reserved_per_block: get(attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?,
            registers_per_block: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK)?,
            registers_per_multiprocessor: get(attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
            clusters: get(attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH)? != 0,
        };
        Ok(Self {
            ordinal,
            name: driver.device_name(device)?,
            uuid: DeviceUuid(driver.device_uuid(device)?),
            compute_capability,
            multiprocessors: get(attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            total_memory: driver.device_total_memory(device)?,
            l2_bytes: get(attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
            sm_clock_khz: get(attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
            memory_clock_khz: get(attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            memory_bus_bits: get(attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
            limits,
            cuda_version: driver.cuda_version,
            driver_release: driver_release(),
        })
    }
}

/// The devices this process may use, in the driver's order (`CUDA_VISIBLE_DEVICES` has been applied).
///
/// # Errors
/// [`CudaError::NoDriver`], [`CudaError::DriverTooOld`] or [`CudaError::NoDevice`] say what is missing and
/// what to install; nothing panics and nothing is printed.
pub fn devices() -> Result<Vec<DeviceInfo>, CudaError> {
    let driver = driver()?;
    let count = driver.device_count()?;
    if count == 0 {
        return Err(CudaError::NoDevice {
            visible: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        });
    }
    (0..count).map(|ordinal| DeviceInfo::query(driver, ordinal)).collect()
}

/// Identity of a device, printed as `nvidia-smi -L` does: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceUuid(pub [u8; 16]);

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            if [0, 4, 6, 8, 10].contains(&index) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The release of the loaded kernel driver, such as `580.65.06`. The driver API tells only the CUDA version.
pub(crate) fn driver_release() -> Option<String> {
    parse_driver_release(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// Finds the release in the first line of `/proc/driver/nvidia/version`, which reads
/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 …` or, with open modules,
/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  …`.
fn parse_driver_release(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        let mut parts = word.split('.');
        let number = |part: Option<&str>| part.is_some_and(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
        number(parts.next()) && number(parts.next()) && parts.all(|part| number(Some(part)))
    };
    text.lines()
        .next()?
        .split_whitespace()
        .find(is_release)
        .map(str::to_string)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn h200() -> DeviceLimits {
        DeviceLimits {
            compute_capability: (9, 0),
            max_threads_per_block: 1024,
            max_block: [1024, 1024, 64],
            max_grid: [2_147_483_647, 65_535, 65_535],
            warp_size: 32,
            max_threads_per_multiprocessor: 2048,
            max_blocks_per_multiprocessor: 32,
            shared_bytes_per_block: 49_152,
            shared_bytes_per_block_optin: 232_448,
            shared_bytes_per_multiprocessor: 233_472,
            shared_bytes_reserved_per_block: 1024,
            registers_per_block: 65_536,
            registers_per_multiprocessor: 65_536,
            clusters: true,
        }
    }

    /// A launch gets one answer, whether it is proved for a card or for the device itself.
    #[test]
    fn a_device_has_the_limits_of_its_architecture() {
        assert_eq!(h200().for_proof(), Target::Sm90a.limits());
        let l4 = DeviceLimits {
            compute_capability: (8, 9),
            max_threads_per_multiprocessor: 1536,
            max_blocks_per_multiprocessor: 24,
            shared_bytes_per_block_optin: 101_376,
            shared_bytes_per_multiprocessor: 102_400,
            clusters: false,
            ..h200()
        };
        assert_eq!(l4.for_proof(), Target::Sm89.limits());
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
