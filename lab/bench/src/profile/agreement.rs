//! Holds predictions against counters: pipe shares within ten points, bank conflicts equal.

use serde::Serialize;

use super::{ProfileRecord, rows};

/// Shares that pipes and memories are busy; the busiest unit and the warps follow from others.
const PIPES: [&str; 8] = ["tensor", "mufu", "fma", "alu", "issue", "shared", "l2_read", "dram"];
/// Rows count where either value is at least so much, per cent.
pub const COUNTS: f64 = 10.0;
/// Points that a prediction may differ.
pub const WITHIN: f64 = 10.0;

/// One share of one kernel.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShareRow {
    /// The problem's name.
    pub case: String,
    /// The kernel.
    pub kernel: String,
    /// The counter's key.
    pub key: &'static str,
    /// What ncu read, per cent.
    pub measured: f64,
    /// What was predicted, per cent.
    pub predicted: f64,
}

impl ShareRow {
    /// Whether the prediction is near enough.
    pub fn is_within(&self) -> bool {
        (self.measured - self.predicted).abs() <= WITHIN
    }
}

/// Bank conflicts of one kernel, wavefronts of shared memory beyond the fewest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConflictRow {
    /// The problem's name.
    pub case: String,
    /// The kernel.
    pub kernel: String,
    /// What ncu counted.
    pub measured: f64,
    /// What the simulator counts.
    pub predicted: f64,
}

/// Predictions held against counters.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Predictions {
    /// Shares that count.
    pub shares: Vec<ShareRow>,
    /// Bank conflicts of each kernel.
    pub conflicts: Vec<ConflictRow>,
}

impl Predictions {
    /// Of the first launch of each record that has both.
    pub fn of(records: &[ProfileRecord]) -> Predictions {
        let mut all = Predictions::default();
        for record in records {
            let (Some(launch), Some(predicted)) = (record.launches.first(), &record.predicted) else {
                continue;
            };
            let (case, kernel) = (&record.case.name, &record.subject.label);
            for row in rows(Some(launch), Some(predicted)) {
                let (Some(measured), Some(predicted)) = (row.measured, row.predicted) else {
                    continue;
                };
                if PIPES.contains(&row.key) && measured.max(predicted) >= COUNTS {
                    all.shares.push(ShareRow {
                        case: case.clone(),
                        kernel: kernel.clone(),
                        key: row.key,
                        measured,
                        predicted,
                    });
                }
            }
            if let Some(measured) = launch.get("wavefronts_excess") {
                all.conflicts.push(ConflictRow {
                    case: case.clone(),
                    kernel: kernel.clone(),
                    measured,
                    predicted: predicted.wavefronts_excess,
                });
            }
        }
        all
    }

    /// Shares that are near enough.
    pub fn within(&self) -> usize {
        self.shares.iter().filter(|row| row.is_within()).count()
    }

    /// Kernels whose bank conflicts are equal.
    pub fn equal(&self) -> usize {
        let equal = |row: &&ConflictRow| row.measured == row.predicted;
        self.conflicts.iter().filter(equal).count()
    }
}
