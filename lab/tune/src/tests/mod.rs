//! Values and fakes that several tests use.

#[cfg(unix)]
pub(crate) mod fake;

use std::path::PathBuf;

use flashcore_bench::{DeviceIdentity, Interval};
use flashcore_ir::Profile;
use flashcore_problem::Problem;

use crate::insight::{Advisor, Claim, ClaimKind, Source};
use crate::journal::{Header, SCHEMA};
use crate::space::{CPU, Space};
use crate::trial::{Timed, Trial, Verdict};

/// A trial with a score, or one that failed.
pub(crate) fn trial(number: usize, id: &str, score: Option<f64>) -> Trial {
    Trial {
        number,
        id: id.to_string(),
        origin: "test".to_string(),
        verdict: if score.is_some() {
            Verdict::Slower
        } else {
            Verdict::Wrong
        },
        reason: String::new(),
        timed: score.map(|score| Timed {
            us: score * 10.0,
            interval: Interval::UNKNOWN,
            against: None,
            ratio: None,
            score,
            registers: None,
            module: None,
            error: None,
            tolerance: None,
        }),
        unjudged: Vec::new(),
        fingerprint: None,
        same_as: None,
        seconds: 0.0,
        counters: None,
    }
}

/// A run of random search on the host.
pub(crate) fn header() -> Header {
    Header {
        schema: SCHEMA,
        case: "tiny".to_string(),
        problem: Problem::named("tiny").unwrap(),
        devices: vec![DeviceIdentity::cpu()],
        revision: "abc".to_string(),
        executable: "1111".to_string(),
        space: "0123456789abcdef".to_string(),
        strategy: "elite".to_string(),
        seed: 1,
        computes: true,
        trust: None,
        inputs: Some(7),
        torture: false,
        start: "cpu/m16n16".to_string(),
        default: None,
        rates: Some("profile".to_string()),
        window: 1,
        own: Vec::new(),
        command: Vec::new(),
        started_at: 5,
    }
}

/// A folder that does not exist.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("flashcore-journal-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

/// The host's space, and scores with one minimum, at m128n256.
pub(crate) fn valley() -> (Space, impl Fn(&str) -> Option<f64>) {
    let space = Space::new(vec![CPU], |_| Ok(()));
    let score = |id: &str| {
        let sizes = id.strip_prefix("cpu/m")?.split_once('n')?;
        let (rows, cols): (f64, f64) = (sizes.0.parse().ok()?, sizes.1.parse().ok()?);
        // Very large tiles fail.
        let works = rows * cols < 200_000.0;
        works.then(|| 1.0 + (rows / 128.0).log2().abs() + (cols / 256.0).log2().abs())
    };
    (space, score)
}

/// An advisor for the small shape on an L4, which makes no claims about the host's kernels.
pub(crate) fn advisor() -> Advisor {
    Advisor::new(&Problem::named("small").unwrap(), Profile::named("l4").unwrap())
}

/// A claim about `from` that `to` changes its time by so many per cent; `None`: that it does not
/// build.
pub(crate) fn made_up(from: &str, to: &str, kind: ClaimKind, expected: Option<f64>) -> Claim {
    Claim {
        about: from.to_string(),
        kind,
        source: Source::Model,
        evidence: "made up".to_string(),
        line: None,
        lever: "tile_q".to_string(),
        from: "64".to_string(),
        to: "128".to_string(),
        proposes: to.to_string(),
        expected,
    }
}
