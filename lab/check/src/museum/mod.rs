//! The museum: failures of real kernels, each rebuilt as a small kernel or file, with its finding.
//!
//! `docs/museum.md` describes the [`PIECES`]. [`Piece::show`] runs one; the mistake is on the line
//! marked `MISTAKE` in its source, and the second access of a finding on the line marked `AND`.
//!
//! ```
//! let piece = flashcore_check::museum::piece("missing-wait").ok_or("no such piece")?;
//! let shown = piece.show(0, false)?;
//! assert_eq!(shown.findings[0].finding.kind.name(), piece.kind);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accumulator_map;
mod missing_wait;
mod reused_buffer;
mod shuffle_as_fence;
mod transposed_stride;

use std::sync::LazyLock;

use crate::Found;
use crate::foreign::{self, Asked, ForeignError, Problem};
use flashcore_ir::{BuildErrors, Target};
use flashcore_sim::{Case, SimError, SimOptions};
use serde::Serialize;
use thiserror::Error;

/// Why a piece cannot be run.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum MuseumError {
    /// Its kernel does not build.
    #[error(transparent)]
    Build(#[from] BuildErrors),
    /// The simulator cannot run it.
    #[error(transparent)]
    Simulator(#[from] SimError),
    /// Its file cannot be read.
    #[error(transparent)]
    File(#[from] ForeignError),
}

enum Exhibit {
    /// A kernel; `true` builds the corrected version.
    Kernel(fn(bool) -> Result<Case, BuildErrors>),
    /// A file and its launch, and the corrected text and launch.
    File {
        text: &'static str,
        asked: fn() -> Asked,
        mended: fn(&str) -> (String, Asked),
    },
}

/// A rebuilt failure.
#[derive(Serialize)]
pub struct Piece {
    /// Its name on the command line, after `museum/`.
    pub name: &'static str,
    /// A description in one line.
    pub title: &'static str,
    /// The original symptom.
    pub symptom: &'static str,
    /// The kind of finding or problem that FlashCore reports.
    pub kind: &'static str,
    /// Its source, relative to the workspace.
    pub file: &'static str,
}

/// The architecture for which files are judged: that of the original failures.
pub const CARD: Target = Target::Sm89;

/// The result of running a piece.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shown {
    /// For a kernel: the findings of the simulator.
    pub findings: Vec<Found>,
    /// For a file: the problems of its launch.
    pub problems: Vec<Problem>,
}

/// All pieces, in historical order.
pub static PIECES: LazyLock<Vec<Piece>> = LazyLock::new(|| {
    let lines: Vec<&str> = include_str!("../../museum/pieces.txt").lines().collect();
    let piece = |lines: &[&'static str]| match *lines {
        [name, title, symptom, kind, file] => Piece {
            name,
            title,
            symptom,
            kind,
            file,
        },
        // Tests read them all.
        _ => panic!("pieces.txt: five lines a piece, and an empty one: {lines:?}"),
    };
    lines.split(|line| line.is_empty()).skip(1).map(piece).collect()
});

/// The piece with a name, with or without the prefix `museum/`.
pub fn piece(name: &str) -> Option<&'static Piece> {
    let name = name.strip_prefix("museum/").unwrap_or(name);
    PIECES.iter().find(|piece| piece.name == name)
}

impl Piece {
    fn exhibit(&self) -> Exhibit {
        match self.name {
            "static-m64" => Exhibit::File {
                text: include_str!("../../museum/static-m64.ptx"),
                asked: Asked::default,
                mended: |text| {
                    let text = text.replace("scores[64][64]", "scores[32][64]");
                    (text.replace("partials[64][64]", "partials[32][64]"), Asked::default())
                },
            },
            "partials" => Exhibit::File {
                text: include_str!("../../museum/partials.ptx"),
                asked: || claim("partials", 8_192),
                mended: |text| (text.to_string(), claim("partials", 16_384)),
            },
            "gemm-default-tile" => Exhibit::File {
                text: include_str!("../../museum/gemm-128x256x64.ptx"),
                asked: || dynamic(147_456, true),
                mended: |text| (text.to_string(), dynamic(98_304, true)),
            },
            "no-opt-in" => Exhibit::File {
                text: include_str!("../../museum/no-opt-in.ptx"),
                asked: || dynamic(76_800, false),
                mended: |text| (text.to_string(), dynamic(76_800, true)),
            },
            "accumulator-map" => Exhibit::Kernel(accumulator_map::case),
            "reused-buffer" => Exhibit::Kernel(reused_buffer::case),
            "transposed-stride" => Exhibit::Kernel(transposed_stride::case),
            "missing-wait" => Exhibit::Kernel(missing_wait::case),
            "eight-byte-cg" => Exhibit::File {
                text: include_str!("../../museum/eight-byte-cg.ptx"),
                asked: Asked::default,
                mended: |text| (text.replace("cp.async.cg", "cp.async.ca"), Asked::default()),
            },
            "shuffle-as-fence" => Exhibit::Kernel(shuffle_as_fence::case),
            other => unreachable!("pieces.txt has {other}, which is no exhibit"),
        }
    }

    /// Runs the piece under a schedule, or its corrected version, which has no findings.
    pub fn show(&self, schedule: u64, is_mended: bool) -> Result<Shown, MuseumError> {
        let mut shown = Shown::default();
        match self.exhibit() {
            Exhibit::Kernel(case) => {
                let options = SimOptions {
                    seed: schedule,
                    ..SimOptions::default()
                };
                let findings = case(is_mended)?.simulate(&options)?.findings;
                Found::add(&mut shown.findings, findings, schedule);
            }
            Exhibit::File { text, asked, mended } => {
                let (text, asked) = if is_mended {
                    mended(text)
                } else {
                    (text.to_string(), asked())
                };
                for kernel in foreign::read(text.as_bytes())? {
                    shown.problems.extend(foreign::judge(&kernel, &asked, CARD));
                }
            }
        }
        Ok(shown)
    }
}

fn claim(symbol: &str, bytes: u64) -> Asked {
    Asked {
        claims: vec![(symbol.to_string(), bytes)],
        ..Asked::default()
    }
}

fn dynamic(bytes: u32, opted_in: bool) -> Asked {
    Asked {
        dynamic_shared: bytes,
        opted_in,
        ..Asked::default()
    }
}
