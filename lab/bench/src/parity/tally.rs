//! What came of a run: counts, and the worst errors by family.

use std::collections::{BTreeMap, BTreeSet};

use flashcore::KernelId;
use serde::{Serialize, Serializer};

use super::engine::Outcome;
use super::{Engine, Mismatch, Options, Witnessed};

/// Rows from which on a problem counts as long.
const LONG: usize = 256;

/// What came of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Where kernels computed: `cuda:0`, `the simulator for l4`.
    pub device: String,
    /// What problems were drawn by.
    pub seed: u64,
    /// Problems that are right.
    pub passed: usize,
    /// Those that are not, by number.
    pub mismatches: Vec<Mismatch>,
    /// Those of the right ones that test little: no row sees two keys, or zeros would pass.
    pub trivial: usize,
    /// More problems were drawn that no kernel serves.
    pub redrawn: usize,
    /// Why problems were given up for which none was drawn that is served.
    pub not_drawn: Vec<String>,
    /// By family.
    pub families: BTreeMap<&'static str, OfFamily>,
    /// Problems by mask, dtype, inputs and length.
    pub counts: BTreeMap<String, usize>,
    /// What PyTorch's SDPA said of the float64 reference.
    pub sdpa: Witnessed,
}

/// What came of a family.
#[derive(Clone, Debug, Default, Serialize)]
pub struct OfFamily {
    /// Problems.
    pub problems: usize,
    /// Ids of its kernels; in JSON how many.
    #[serde(serialize_with = "count")]
    pub kernels: BTreeSet<String>,
    /// More kernels were drawn that the device's compiler spilled.
    pub spilled: usize,
    /// Problems by the values of each lever.
    pub levers: BTreeMap<&'static str, BTreeMap<String, usize>>,
    /// Largest errors by dtype and inputs.
    pub worst: BTreeMap<String, Worst>,
}

/// Largest errors.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Worst {
    /// `|got − want|`.
    pub max_abs: f64,
    /// `‖got − want‖ / ‖want‖`.
    pub frobenius: f64,
    /// Share of the allowed error.
    pub of_allowed: f64,
}

fn count<S: Serializer>(kernels: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(kernels.len() as u64)
}

impl Report {
    pub(super) fn new(engine: &Engine, options: &Options) -> Report {
        Report {
            device: engine.to_string(),
            seed: options.seed,
            ..Report::default()
        }
    }

    /// Problems that were run or given up.
    pub fn done(&self) -> u64 {
        (self.passed + self.mismatches.len() + self.not_drawn.len()) as u64
    }

    pub(super) fn add(&mut self, outcome: &Outcome) {
        let Outcome { problem, found, .. } = outcome;
        self.passed += 1;
        self.trivial += usize::from(found.is_trivial);
        self.redrawn += outcome.redrawn;
        self.sdpa.add(found.seen.as_ref());
        let (name, levers) = match &outcome.kernel {
            KernelId::Gpu(config) => {
                let (family, values) = config.levers();
                (family.name, family.print(&values))
            }
            _ => ("cpu", Vec::new()),
        };
        let family = self.families.entry(name).or_default();
        family.problems += 1;
        family.spilled += outcome.spilled;
        family.kernels.insert(outcome.kernel.to_string());
        for (lever, value) in levers {
            *family.levers.entry(lever).or_default().entry(value).or_default() += 1;
        }
        let of = format!("{} {}", problem.dtype(), outcome.inputs);
        let worst = family.worst.entry(of).or_default();
        worst.max_abs = worst.max_abs.max(found.out.max_abs);
        worst.frobenius = worst.frobenius.max(found.out.frobenius);
        worst.of_allowed = worst.of_allowed.max(found.out.of_allowed);

        let mask = problem.mask().to_string();
        let long = problem.seq_len_q().min(problem.seq_len_kv()) >= LONG;
        let groups = [
            mask.split('(').next().unwrap_or_default(),
            &problem.dtype().to_string(),
            outcome.inputs.name(),
            if long { "S >= 256" } else { "S < 256" },
            ["no fully masked row", "fully masked rows"][usize::from(found.masked_rows)],
        ];
        for group in groups {
            *self.counts.entry(group.to_string()).or_default() += 1;
        }
    }
}
