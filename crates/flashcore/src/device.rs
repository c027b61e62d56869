//! Where attention is computed.

use std::fmt;
use std::str::FromStr;

#[cfg(feature = "cuda")]
use flashcore_cuda::{Context, CudaError};
use flashcore_ir::Target;

use crate::Error;

/// Where attention is computed. Cheap to clone.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Device {
    /// The host: SIMD on all cores.
    #[cfg(feature = "cpu")]
    Cpu,
    /// A CUDA device.
    #[cfg(feature = "cuda")]
    Cuda(Context),
}

impl Device {
    /// The first CUDA device that kernels are made for, else the CPU.
    ///
    /// Which one it is can be read off the value; [`Device::why_not_cuda`] says why it is not a
    /// GPU.
    #[cfg(feature = "cpu")]
    pub fn best() -> Device {
        Device::first_gpu().unwrap_or(Device::Cpu)
    }

    #[cfg(feature = "cuda")]
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

    #[cfg(not(feature = "cuda"))]
    fn first_gpu() -> Result<Device, Error> {
        Device::cuda(0)
    }

    /// The host.
    #[cfg(feature = "cpu")]
    pub fn cpu() -> Device {
        Device::Cpu
    }

    /// A CUDA device by number, from 0.
    ///
    /// # Errors
    /// Where there is no driver or no such device, kernels are not made for it, or the feature
    /// `cuda` is left out.
    #[cfg(feature = "cuda")]
    pub fn cuda(ordinal: u32) -> Result<Device, Error> {
        let context = Context::new(ordinal)?;
        let info = context.info();
        let (major, minor) = info.compute_capability;
        match info.target() {
            Some(_) => Ok(Device::Cuda(context)),
            None => Err(Error::UnsupportedGpu {
                name: info.name.clone(),
                major,
                minor,
            }),
        }
    }

    /// An error: this build has no CUDA.
    #[cfg(not(feature = "cuda"))]
    pub fn cuda(ordinal: u32) -> Result<Device, Error> {
        Err(Error::without_feature(format!("cuda:{ordinal}"), "cuda"))
    }

    /// Why there is no GPU to use, so that [`Device::best`] is the CPU; `None` where there is one.
    ///
    /// ```
    /// use flashcore::Device;
    /// let is_cpu = Device::best().target().is_none();
    /// assert_eq!(is_cpu, Device::why_not_cuda().is_some());
    /// ```
    pub fn why_not_cuda() -> Option<Error> {
        Device::first_gpu().err()
    }

    /// The CUDA context; `None` on the CPU.
    ///
    /// ```
    /// assert!(flashcore::Device::cpu().context().is_none());
    /// ```
    #[cfg(feature = "cuda")]
    pub fn context(&self) -> Option<&Context> {
        match self {
            #[cfg(feature = "cpu")]
            Device::Cpu => None,
            Device::Cuda(context) => Some(context),
        }
    }

    /// The same, or the error of what takes a GPU.
    #[cfg(feature = "cuda")]
    pub(crate) fn on_cuda(&self) -> Result<&Context, Error> {
        self.context().ok_or(Error::NotOnCuda)
    }

    /// The architecture that kernels are made for here; `None` on the CPU.
    pub fn target(&self) -> Option<Target> {
        match self {
            #[cfg(feature = "cpu")]
            Device::Cpu => None,
            #[cfg(feature = "cuda")]
            Device::Cuda(context) => context.info().target(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            #[cfg(feature = "cpu")]
            Device::Cpu => f.pad("cpu"),
            #[cfg(feature = "cuda")]
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
            #[cfg(feature = "cpu")]
            "best" => Ok(Device::best()),
            #[cfg(feature = "cpu")]
            "cpu" => Ok(Device::Cpu),
            #[cfg(not(feature = "cpu"))]
            "best" | "cpu" => Err(Error::without_feature(name, "cpu")),
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
    #[cfg(not(feature = "cuda"))]
    fn what_is_left_out_is_told() {
        let error = "cuda:1".parse::<Device>().unwrap_err();
        assert!(error.to_string().contains("feature `cuda`"), "{error}");
        assert!(Device::why_not_cuda().is_some());
    }
}
