//! The identity of a number: the subject, the device, the build.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use flashcore_check::cost::PREDICT;
use flashcore_ir::{Profile, files};
use serde::{Deserialize, Serialize};

use crate::Interval;
use crate::own::{is_own, sha256};

/// Version of the measuring protocol. Raised when a change makes old and new numbers incomparable.
///
/// - 1: turns of the hot mode are short, whatever is timed.
/// - 2: turns of the hot mode are steady where every subject is long ([`Turns`](crate::Turns)).
pub const PROTOCOL_VERSION: u32 = 2;

/// How one call of a subject puts its runs into the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind", content = "runs")]
pub enum LaunchMode {
    /// One launch or call at a time. Short kernels wait for the host: the time is then the host's.
    Plain,
    /// Replays of a graph that is a chain of this many runs, each waiting for the one before.
    Graph(u32),
    /// A function call on the host.
    Host,
}

/// What the driver says of a loaded kernel: of the first, where a plan has several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Registers a thread.
    pub registers: u32,
    /// Local memory a thread, bytes.
    pub local_bytes: u32,
    /// Static shared memory a block, bytes.
    pub static_shared_bytes: u32,
    /// Dynamic shared memory a block, bytes, as launched.
    pub dynamic_shared_bytes: u32,
    /// Threads a block, as launched.
    pub threads: u32,
    /// Blocks, as launched.
    pub blocks: u64,
    /// Architecture of the machine code, 90 for sm_90.
    pub binary_version: u32,
}

/// What is timed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectInfo {
    /// Its name in tables; unique within a measurement: `mma/m128n64-w4-s2-xor`, `torch/cudnn`.
    pub label: String,
    /// The config id, for kernels of this project.
    pub kernel: Option<String>,
    /// SHA-256 of the module, 64 hexadecimal digits, with `+` between those of several; `None` for peers and the
    /// host.
    pub module: Option<String>,
    /// How it is launched.
    pub launch: LaunchMode,
    /// Whatever else was chosen, such as compiler options or a peer's backend.
    pub options: String,
    /// What the driver says of the loaded kernel.
    pub attributes: Option<Attributes>,
    /// Versions of what it is made of, such as `torch` and `cudnn`.
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// Its time, where it is predicted and not measured.
    pub predicted: Option<Predicted>,
}

/// A predicted time, µs: 80 % of measured times lie in its interval where the model was compared with such.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    /// The time.
    pub us: f64,
    /// Its interval.
    pub interval: Interval,
}

impl SubjectInfo {
    /// A subject of which only a label and the way of launching are known; fill in the rest.
    pub fn new(label: impl Into<String>, launch: LaunchMode) -> SubjectInfo {
        SubjectInfo {
            label: label.into(),
            kernel: None,
            module: None,
            launch,
            options: String::new(),
            attributes: None,
            versions: BTreeMap::new(),
            predicted: None,
        }
    }

    /// The same of a kernel of this project, whose label is its id.
    pub fn ours(id: impl Into<String>, launch: LaunchMode) -> SubjectInfo {
        let info = SubjectInfo::new(id, launch);
        SubjectInfo {
            kernel: Some(info.label.clone()),
            ..info
        }
    }

    /// Whether it is this project's, rather than a peer or a kernel of the user.
    pub fn is_ours(&self) -> bool {
        self.kernel.is_some()
    }

    /// Whether it is of another library, rather than this project's or the user's.
    pub fn is_peer(&self) -> bool {
        !self.is_ours() && !is_own(&self.label)
    }
}

/// The beginning of a revision, which names it.
pub(crate) fn short(revision: &str) -> &str {
    revision.get(..12).unwrap_or(revision)
}

/// The device that numbers were taken on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceIdentity {
    /// `cuda:0`, `cpu`.
    pub device: String,
    /// Marketing name.
    pub name: String,
    /// Identity of the board; for a host its name.
    pub uuid: String,
    /// The driver's release and CUDA version, `580.65.06/13000`; empty for a host.
    pub driver: String,
    /// Architecture: `sm_90`, `x86_64/avx512`.
    pub architecture: String,
    /// Streaming multiprocessors, or threads of a host.
    pub units: u32,
    /// L2 cache, bytes; 0 where it is not known.
    pub l2_bytes: u64,
}

/// What the name of a predicted card has after its title if the card was calibrated.
pub(crate) const CALIBRATED: &str = ", calibrated";

impl DeviceIdentity {
    /// A CUDA device.
    pub fn cuda(info: &flashcore_cuda::DeviceInfo) -> DeviceIdentity {
        let release = info.driver_release.as_deref().unwrap_or("unknown");
        DeviceIdentity {
            device: format!("cuda:{}", info.ordinal),
            name: info.name.clone(),
            uuid: info.uuid.to_string(),
            driver: format!("{release}/{}", info.cuda_version),
            architecture: info.architecture(),
            units: info.multiprocessors,
            l2_bytes: u64::from(info.l2_bytes),
        }
    }

    /// A card whose times are predicted.
    pub fn predicted(profile: &Profile) -> DeviceIdentity {
        let how = profile.calibration.map_or("", |_| CALIBRATED);
        DeviceIdentity {
            device: format!("{PREDICT}{}", profile.name),
            name: format!("{}{how} (PREDICTED)", profile.title),
            uuid: String::new(),
            driver: String::new(),
            architecture: profile.target.name().to_string(),
            units: profile.sms,
            l2_bytes: profile.l2_bytes,
        }
    }

    /// Whether its times are predicted.
    pub fn is_predicted(&self) -> bool {
        self.device.starts_with(PREDICT)
    }

    /// This host.
    pub fn cpu() -> DeviceIdentity {
        DeviceIdentity {
            device: "cpu".to_string(),
            name: flashcore::unstable::plans::cpu_name().to_string(),
            uuid: host_name(),
            driver: crate::host_clock::driver().to_string(),
            architecture: format!("{}/{}", std::env::consts::ARCH, flashcore_cpu::SimdLevel::best().name()),
            units: rayon::current_num_threads() as u32,
            l2_bytes: 0,
        }
    }
}

/// What all numbers of one invocation share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunIdentity {
    /// Where.
    pub device: DeviceIdentity,
    /// Git revision of the build: `1a2b3c4d5e6f`, or `1a2b3c4d5e6f-modified-9f8e7d6c` with a hash of the sources that
    /// differed from it (older builds: no hash), or `unknown`.
    pub revision: String,
    /// Version of this crate.
    pub version: String,
    /// [`PROTOCOL_VERSION`] of the build.
    pub protocol: u32,
    /// The machine's name.
    pub host: String,
    /// Seconds since 1970 (UTC) when it began.
    pub started_at: u64,
    /// The words of the command that asked for it; none where it was no command.
    #[serde(default)]
    pub command: Vec<String>,
}

impl RunIdentity {
    /// A run that begins now on this device.
    pub fn now(device: DeviceIdentity) -> RunIdentity {
        RunIdentity {
            device,
            revision: revision().to_string(),
            version: VERSION.to_string(),
            protocol: PROTOCOL_VERSION,
            host: host_name(),
            started_at: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            command: Vec::new(),
        }
    }

    /// The build that made it.
    pub fn build(&self) -> Build {
        Build {
            revision: self.revision.clone(),
            version: self.version.clone(),
        }
    }
}

/// The source that a program was built from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// As in [`RunIdentity`].
    pub revision: String,
    /// As in [`RunIdentity`].
    pub version: String,
}

impl Build {
    /// That of this program.
    pub fn of_this_program() -> Build {
        Build {
            revision: revision().to_string(),
            version: VERSION.to_string(),
        }
    }
}

impl std::fmt::Display for Build {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "revision {} (version {})", self.revision, self.version)
    }
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The revision of a build without a repository.
pub(crate) const UNKNOWN: &str = "unknown";

static REVISION: OnceLock<String> = OnceLock::new();

/// Says which git revision this program was built from: a program does so when it starts, so that a commit compiles no
/// library again. Later calls change nothing.
pub fn set_revision(revision: &str) {
    REVISION.get_or_init(|| revision.to_string());
}

/// Git revision of this program: what [`set_revision`] said, else the environment's `FLASHCORE_REVISION`, else
/// `unknown`.
pub fn revision() -> &'static str {
    REVISION.get_or_init(|| {
        let given = std::env::var("FLASHCORE_REVISION").ok();
        let given = given.filter(|text| !text.trim().is_empty());
        given.map_or(UNKNOWN.to_string(), |text| text.trim().to_string())
    })
}

/// SHA-256 of the program that runs, or `unknown`: 64 hexadecimal digits. It tells builds of one revision by different
/// compilers or options apart. Read once.
///
/// ```
/// assert_eq!(flashcore_bench::executable().len(), 64);
/// ```
pub fn executable() -> &'static str {
    static DIGITS: OnceLock<String> = OnceLock::new();
    DIGITS.get_or_init(|| {
        // On Linux that is the file that runs, whatever has taken its place meanwhile.
        let bytes = files::read_capped(Path::new("/proc/self/exe"), files::LARGE);
        let bytes = bytes.or_else(|_| files::read_capped(&std::env::current_exe()?, files::LARGE));
        bytes.map_or("unknown".to_string(), sha256)
    })
}

/// The machine's name, or `unknown-host`.
pub fn host_name() -> String {
    let read = |path: &str| files::read_text_capped(Path::new(path), files::SMALL).ok();
    read("/proc/sys/kernel/hostname")
        .or_else(|| read("/etc/hostname"))
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .map(|name| name.trim().to_string())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "unknown-host".to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_knows_where_and_what_it_is() {
        let run = RunIdentity::now(DeviceIdentity::cpu());
        assert!(!run.revision.is_empty() && !run.host.is_empty());
        assert!(run.started_at > 1_700_000_000);
        let text = serde_json::to_string(&run).unwrap();
        assert_eq!(serde_json::from_str::<RunIdentity>(&text).unwrap(), run);
    }
}
