//! The driver's own disk cache of compiled kernels: where it is, how large it may grow, how full it
//! is and whether it can be written. A first launch takes 0.2–0.5 s a kernel without it and 0.2 ms
//! with it, so that a cache which is switched off, full or read-only is worth a sentence.
//!
//! The driver reads `CUDA_CACHE_PATH`, `CUDA_CACHE_MAXSIZE` and `CUDA_CACHE_DISABLE` itself (CUDA
//! programming guide, *CUDA environment variables*) when it is initialised; this module only
//! reports.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

/// The driver's default limit on desktops and servers, bytes.
const DEFAULT_LIMIT: u64 = 1 << 30;
/// The largest limit the driver accepts, bytes.
const LARGEST_LIMIT: u64 = 4 << 30;
/// Files looked at before giving up on an exact size: about as many as a full cache has.
const MOST_FILES: usize = 200_000;

/// State of the driver's disk cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheReport {
    /// Its folder; `None` where there is no home folder to put it in.
    pub(crate) path: Option<PathBuf>,
    /// `CUDA_CACHE_DISABLE` is set.
    pub(crate) disabled: bool,
    /// Bytes it may grow to.
    pub(crate) limit_bytes: u64,
    /// Bytes it holds now.
    pub(crate) used_bytes: u64,
    /// Whether this process can write to it, found by trying.
    pub(crate) writable: bool,
    /// What is wrong, one sentence each, with the remedy; empty when all is well.
    pub(crate) notes: Vec<String>,
}

/// Reports on the driver's disk cache as the environment of this process sets it. Needs no driver.
/// Never fails: what is wrong is among the notes.
pub(crate) fn cache_report() -> CacheReport {
    report(|name| std::env::var_os(name))
}

fn report(env: impl Fn(&str) -> Option<OsString>) -> CacheReport {
    let mut notes = Vec::new();
    let disabled = env("CUDA_CACHE_DISABLE").is_some_and(|value| !value.is_empty() && value != "0");
    let limit_bytes = match env("CUDA_CACHE_MAXSIZE") {
        None => DEFAULT_LIMIT,
        Some(text) => match text.to_str().and_then(|text| text.trim().parse::<u64>().ok()) {
            Some(bytes) => bytes.min(LARGEST_LIMIT),
            None => {
                notes.push(format!(
                    "CUDA_CACHE_MAXSIZE={text:?} is not a number of bytes; the driver ignores it"
                ));
                DEFAULT_LIMIT
            }
        },
    };
    let path = match env("CUDA_CACHE_PATH").filter(|path| !path.is_empty()) {
        Some(path) => Some(PathBuf::from(path)),
        None => default_path(&env),
    };
    let used_bytes = path.as_deref().map_or(0, folder_bytes);
    let writable = path.as_deref().is_some_and(is_writable);

    if disabled {
        notes.push("CUDA_CACHE_DISABLE is set: every process compiles every kernel again; unset it".to_string());
    } else if path.is_none() {
        notes.push("no home folder: the driver cannot cache compiled kernels; set CUDA_CACHE_PATH".to_string());
    } else if !writable {
        let shown = path.as_deref().unwrap_or(Path::new("")).display();
        notes.push(format!(
            "{shown} cannot be written: kernels already there are used, new ones are compiled in every process; set \
             CUDA_CACHE_PATH to a folder that can be written"
        ));
    }
    if !disabled && limit_bytes < 64 << 20 {
        notes.push(format!(
            "CUDA_CACHE_MAXSIZE allows only {limit_bytes} B; 268435456 or more is sensible"
        ));
    } else if !disabled && used_bytes > limit_bytes / 10 * 9 {
        notes.push(format!(
            "the cache holds {used_bytes} of {limit_bytes} B: old kernels will be thrown out; raise CUDA_CACHE_MAXSIZE (up \
             to {LARGEST_LIMIT})"
        ));
    }
    CacheReport {
        path,
        disabled,
        limit_bytes,
        used_bytes,
        writable,
        notes,
    }
}

fn default_path(env: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let of = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if cfg!(windows) {
        of("APPDATA").map(|folder| folder.join("NVIDIA").join("ComputeCache"))
    } else {
        of("HOME").map(|folder| folder.join(".nv").join("ComputeCache"))
    }
}

/// Bytes of all files under a folder; 0 where it does not exist. Links are not followed.
fn folder_bytes(folder: &Path) -> u64 {
    let mut folders = vec![folder.to_path_buf()];
    let (mut bytes, mut files) = (0, 0);
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                folders.push(entry.path());
            } else {
                bytes += metadata.len();
                files += 1;
            }
            if files >= MOST_FILES {
                return bytes;
            }
        }
    }
    bytes
}

/// Whether a file can be made in the folder, or in the nearest folder above that exists. Tried:
/// permission bits say little to root, on network disks, and under read-only mounts.
fn is_writable(folder: &Path) -> bool {
    let Some(existing) = folder.ancestors().find(|folder| folder.is_dir()) else {
        return false;
    };
    let probe = existing.join(format!(".flashcore-probe-{}", std::process::id()));
    let made = std::fs::File::create_new(&probe).is_ok();
    if made {
        let _ = std::fs::remove_file(&probe);
    }
    made
}

impl fmt::Display for CacheReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.path {
            Some(path) => write!(f, "driver's kernel cache: {}", path.display())?,
            None => write!(f, "driver's kernel cache: none")?,
        }
        let [used, limit] = [self.used_bytes, self.limit_bytes].map(|bytes| bytes as f64 / f64::from(1 << 20));
        write!(f, ", {used:.1} of {limit:.0} MiB used")?;
        f.write_str(match (self.disabled, self.writable) {
            (true, _) => ", disabled",
            (false, true) => "",
            (false, false) => ", read-only",
        })?;
        self.notes.iter().try_for_each(|note| write!(f, "\n  {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> CacheReport {
        let pairs: Vec<(String, OsString)> = pairs.iter().map(|(k, v)| (k.to_string(), v.into())).collect();
        report(|name| {
            pairs
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn the_cache_report_needs_no_driver() {
        assert!(cache_report().limit_bytes > 0);
    }

    #[test]
    fn a_writable_folder_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/b/kernel"), [0; 1000]).unwrap();
        std::fs::write(root.join("index"), [0; 24]).unwrap();
        let report = with(&[("CUDA_CACHE_PATH", root.to_str().unwrap())]);
        assert_eq!(report.path.as_deref(), Some(root));
        assert_eq!((report.used_bytes, report.limit_bytes), (1024, 1 << 30));
        assert!(report.writable && !report.disabled);
        assert_eq!(report.notes, Vec::<String>::new());
        assert!(report.to_string().contains("of 1024 MiB used"));
    }

    #[test]
    fn a_folder_that_does_not_exist_yet_is_judged_by_the_one_above() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let report = with(&[("HOME", root.to_str().unwrap())]);
        assert!(report.writable);
        assert!(report.path.unwrap().starts_with(root));
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_note_and_not_a_failure() {
        // Nothing can be created below a file or in /proc, by root either.
        for path in ["/proc/flashcore-cache", "/proc"] {
            let report = with(&[("CUDA_CACHE_PATH", path)]);
            assert!(!report.writable, "{path}");
            assert_eq!(report.notes.len(), 1);
            assert!(report.notes[0].contains("cannot be written") && report.notes[0].contains("CUDA_CACHE_PATH"));
            assert!(report.to_string().contains("read-only"));
        }
    }

    #[test]
    fn odd_settings_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let path = root.to_str().unwrap();
        let note = |pairs: &[(&str, &str)]| {
            let mut pairs = pairs.to_vec();
            pairs.push(("CUDA_CACHE_PATH", path));
            with(&pairs).notes.join(" ")
        };
        assert!(note(&[("CUDA_CACHE_DISABLE", "1")]).contains("CUDA_CACHE_DISABLE is set"));
        assert!(note(&[("CUDA_CACHE_DISABLE", "0")]).is_empty());
        assert!(note(&[("CUDA_CACHE_MAXSIZE", "lots")]).contains("not a number"));
        assert!(note(&[("CUDA_CACHE_MAXSIZE", "1000")]).contains("only 1000 B"));
        assert_eq!(
            with(&[("CUDA_CACHE_MAXSIZE", "99999999999"), ("HOME", path)]).limit_bytes,
            4 << 30
        );
        assert!(with(&[]).notes[0].contains("no home folder"));
    }

    #[cfg(unix)]
    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        std::os::unix::fs::symlink("/usr", root.join("link")).unwrap();
        assert!(folder_bytes(root) < 4096);
    }
}
