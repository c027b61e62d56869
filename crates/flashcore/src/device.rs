//! Where attention is computed.

use std::fmt;
use std::str::FromStr;

use flashcore_cuda::{Context, CudaError};
use flashcore_ir::Target;

use crate::Error;

/// Where attention is computed. Cheap to clone.
#[derive(Clone, Debug)]
pub enum Device {
    /// The host: SIMD on all cores.
    Cpu,
    /// A CUDA device.
    Cuda(Context),
}

impl Device {
    /// The first CUDA device that kernels are made for, else the CPU.
    ///
    /// Which one it is can be read off the value; [`Device::why_not_cuda`] says why it is not a
    /// GPU.
    pub fn best() -> Device {
        Device::first_gpu().unwrap_or(Device::Cpu)
    }

    fn first_gpu() -> Result<Device, Error> {
        let mut why = Error::from(CudaError::NoDevice { visible: None });
        for device in flashcore_cuda::devices()? {
            match Device::cuda(device.ordinal) {
                Ok(device) => return Ok(device),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// The host.
    pub fn cpu() -> Device {
        Device::Cpu
    }

    /// A CUDA device by number, from 0.
    ///
    /// # Errors
    /// Where there is no driver or no such device, or kernels are not made for it.
    pub fn cuda(ordinal: u32) -> Result<Device, Error> {
        let context = Context::new(ordinal)?;
        let (major, minor) = context.info().compute_capability;
        match Target::for_capability(major, minor) {
            Some(target) if target.is_supported() => Ok(Device::Cuda(context)),
            _ => Err(Error::UnsupportedGpu {
                name: context.info().name.clone(),
                major,
                minor,
            }),
        }
    }

    /// Why [`Device::best`] is the CPU; `None` where a GPU can be used.
    ///
    /// ```
    /// use flashcore::Device;
    /// match Device::best() {
    ///     Device::Cpu => assert!(Device::why_not_cuda().is_some()),
    ///     Device::Cuda(_) => assert!(Device::why_not_cuda().is_none()),
    /// }
    /// ```
    pub fn why_not_cuda() -> Option<Error> {
        Device::first_gpu().err()
    }

    /// The architecture that kernels are made for here; `None` on the CPU.
    pub fn target(&self) -> Option<Target> {
        match self {
            Device::Cpu => None,
            Device::Cuda(context) => {
                let (major, minor) = context.info().compute_capability;
                Target::for_capability(major, minor)
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.pad("cpu"),
            Device::Cuda(context) => f.pad(&format!("cuda:{}", context.ordinal())),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Device, Error> {
        let unknown = || Error::UnknownDevice {
            given: name.to_string(),
        };
        match name {
            "best" => Ok(Device::best()),
            "cpu" => Ok(Device::Cpu),
            "cuda" => Device::cuda(0),
            _ => {
                let ordinal = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                Device::cuda(ordinal.parse().map_err(|_| unknown())?)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_none_are_refused() {
        for name in ["gpu", "cuda:", "cuda:x", "CPU", ""] {
            let error = name.parse::<Device>().unwrap_err();
            assert!(error.to_string().contains("cuda:N"), "{error}");
        }
    }

    #[test]
    fn best_never_panics() {
        let device = Device::best();
        assert_eq!(device.target().is_none(), matches!(device, Device::Cpu));
    }
}
