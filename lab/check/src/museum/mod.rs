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
    #[serde(skip)]
    exhibit: Exhibit,
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
pub const PIECES: [Piece; 10] = [
    Piece {
        name: "static-m64",
        title: "64 rows a block: 57,376 B of static shared memory",
        symptom: "\"M=64 hangs\", \"is 35 % slower because shared memory spills\": the build had failed and the old \
                  module was timed",
        kind: "static-shared",
        file: "lab/check/museum/static-m64.ptx",
        exhibit: Exhibit::File {
            text: include_str!("../../museum/static-m64.ptx"),
            asked: Asked::default,
            mended: |text| {
                let text = text.replace("scores[64][64]", "scores[32][64]");
                (text.replace("partials[64][64]", "partials[32][64]"), Asked::default())
            },
        },
    },
    Piece {
        name: "partials",
        title: "a buffer of 16,384 B counted as 8,192",
        symptom: "\"52.5 KB measured, 43.25 KB expected: the compiler pads\"",
        kind: "miscounted",
        file: "lab/check/museum/partials.ptx",
        exhibit: Exhibit::File {
            text: include_str!("../../museum/partials.ptx"),
            asked: || claim("partials", 8_192),
            mended: |text| (text.to_string(), claim("partials", 16_384)),
        },
    },
    Piece {
        name: "gemm-default-tile",
        title: "a library's default tile: 147,456 B on a card with 101,376",
        symptom: "CUTLASS: \"Error Internal\" at launch; the driver's own error was swallowed",
        kind: "shared",
        file: "lab/check/museum/gemm-128x256x64.ptx",
        exhibit: Exhibit::File {
            text: include_str!("../../museum/gemm-128x256x64.ptx"),
            asked: || dynamic(147_456, true),
            mended: |text| (text.to_string(), dynamic(98_304, true)),
        },
    },
    Piece {
        name: "no-opt-in",
        title: "76,800 B of dynamic shared memory without opting in",
        symptom: "\"invalid argument\", then NaN: the launch failed and the output was not written",
        kind: "opt-in",
        file: "lab/check/museum/no-opt-in.ptx",
        exhibit: Exhibit::File {
            text: include_str!("../../museum/no-opt-in.ptx"),
            asked: || dynamic(76_800, false),
            mended: |text| (text.to_string(), dynamic(76_800, true)),
        },
    },
    Piece {
        name: "accumulator-map",
        title: "accumulators stored by a map that ignores the lane",
        symptom: "NaN and garbage: 32 lanes wrote the same four elements, and 124 were never written",
        kind: "race",
        file: "lab/check/src/museum/accumulator_map.rs",
        exhibit: Exhibit::Kernel(accumulator_map::case),
    },
    Piece {
        name: "reused-buffer",
        title: "probabilities written where other warps still read scores",
        symptom: "sometimes wrong; right under the debugger, which runs warps one after another",
        kind: "race",
        file: "lab/check/src/museum/reused_buffer.rs",
        exhibit: Exhibit::Kernel(reused_buffer::case),
    },
    Piece {
        name: "transposed-stride",
        title: "a transposed tile with its stride off by one",
        symptom: "\"unspecified launch failure\", or wrong numbers if other buffers follow",
        kind: "out-of-bounds",
        file: "lab/check/src/museum/transposed_stride.rs",
        exhibit: Exhibit::Kernel(transposed_stride::case),
    },
    Piece {
        name: "missing-wait",
        title: "an asynchronous copy read before it was waited for",
        symptom: "right on small inputs, wrong on large ones: the copy may or may not have landed",
        kind: "missing-wait",
        file: "lab/check/src/museum/missing_wait.rs",
        exhibit: Exhibit::Kernel(missing_wait::case),
    },
    Piece {
        name: "eight-byte-cg",
        title: "cp.async.cg of 8 bytes",
        symptom: "\"8-byte cp.async.cg is unsupported on Ada\": no card has it",
        kind: "no-such-instruction",
        file: "lab/check/museum/eight-byte-cg.ptx",
        exhibit: Exhibit::File {
            text: include_str!("../../museum/eight-byte-cg.ptx"),
            asked: Asked::default,
            mended: |text| (text.replace("cp.async.cg", "cp.async.ca"), Asked::default()),
        },
    },
    Piece {
        name: "shuffle-as-fence",
        title: "a shuffle used as a fence",
        symptom: "right for years, wrong with the next compiler, which moved loads across a shuffle",
        kind: "race",
        file: "lab/check/src/museum/shuffle_as_fence.rs",
        exhibit: Exhibit::Kernel(shuffle_as_fence::case),
    },
];

/// The piece with a name, with or without the prefix `museum/`.
pub fn piece(name: &str) -> Option<&'static Piece> {
    let name = name.strip_prefix("museum/").unwrap_or(name);
    PIECES.iter().find(|piece| piece.name == name)
}

impl Piece {
    /// Runs the piece under a schedule, or its corrected version, which has no findings.
    pub fn show(&self, schedule: u64, is_mended: bool) -> Result<Shown, MuseumError> {
        let mut shown = Shown::default();
        match &self.exhibit {
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
