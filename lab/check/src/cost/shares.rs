//! Busy shares as hardware counters count them: in clocks of the launch, averaged over the SMs. The
//! times of [`Prediction::uses`] are those of the busiest SM at the highest clock instead.

use flashcore_ir::{MeasuredCard, Profile};

use super::observe::{Observation, Runs, Sample, SeenStep};
use super::predict::Prediction;
use super::sm::{Resource, Sm};
use super::work::Unit;

/// Share of the tensor cores' rate at which a card is taken to run at the sustained clock. The clock
/// falls linearly with this share, as power grows with it.
const SUSTAINED_AT: f64 = 0.5;
/// The share beyond which the clock falls no further.
const HOTTEST: f64 = 0.7;

/// Schedulers of an SM, each with its own pipes.
const QUARTERS: f64 = 4.0;

/// Bytes a clock that Nsight Compute takes for the peak of `l1tex__m_xbar2l1tex_read_bytes`: four
/// recorded launches that read a known number of bytes give 125 to 130.
const L2_COUNTER_BYTES: f64 = 128.0;

/// The clock at which a launch is expected to run, MHz. Three kernels whose counters had been read
/// give 1,560, 1,400 and 1,390 at shares of 0.56, 0.64 and 0.66; this gives 1,500, 1,430 and 1,410.
fn expected_mhz(prediction: &Prediction, profile: &Profile) -> f64 {
    let clocks = &prediction.clocks;
    let flops_a_clock = profile.tensor_f16_f32acc_tflops * 1e6 / f64::from(profile.boost_mhz);
    let share = prediction.tensor_flops / (prediction.micros * clocks.highest * flops_a_clock);
    clocks.highest - (clocks.highest - clocks.sustained) * share.min(HOTTEST) / SUSTAINED_AT
}

impl Observation {
    /// Busy share of each resource over the predicted time, per cent, as Nsight Compute counts it: the ALU pipe by its
    /// instructions, shared memory by its wavefronts in the main step, L2 by the bytes that arrive at SMs (those of a
    /// multicast at each), device memory by the datasheet's bandwidth.
    pub fn busy(
        &self,
        profile: &Profile,
        measured: Option<&MeasuredCard>,
        prediction: &Prediction,
    ) -> Vec<(Resource, f64)> {
        let sm = Sm::of(profile, measured);
        let work = self.total_work();
        let clocks = f64::from(profile.sms) * prediction.micros * expected_mhz(prediction, profile);
        let share = |resource: Resource| match resource {
            Resource::Shared => {
                // The counter leaves out where asynchronous copies land.
                let shared = self.accesses().into_iter();
                let shared = shared.filter(|accesses| accesses.is_shared() && !accesses.lands);
                shared.map(|accesses| accesses.transactions).sum::<f64>() / clocks
            }
            Resource::L2 => self.steps.iter().map(arriving_bytes).sum::<f64>() / L2_COUNTER_BYTES / clocks,
            // A cycle of one of the four quarters for an instruction, whatever its rate.
            Resource::Alu => (work[Unit::Alu] + work[Unit::Convert]) / QUARTERS / clocks,
            Resource::Dram => prediction.dram_bytes / (profile.dram_gbps * 1e3) / prediction.micros,
            resource => sm.clocks(&work, resource) / clocks,
        };
        Resource::ALL
            .into_iter()
            .map(|resource| (resource, 100.0 * share(resource) + 0.0))
            .collect()
    }
}

fn is_shared(word: &str) -> bool {
    word.starts_with("shared")
}

/// Bytes that the loads of all blocks of a step bring to SMs.
fn arriving_bytes(step: &SeenStep) -> f64 {
    let of_sample = |sample: &Sample| {
        let runs = sample.runs.iter().enumerate();
        let arrives = |(at, ran): (usize, &Runs)| {
            let form = step.code.form(at);
            let has = |some: &str| form.modifiers().any(|word| word.split("::").next() == Some(some));
            let reads = match form.name() {
                "ld" | "atom" => !has("shared") && !has("param"),
                "cp" => form.modifiers().position(|word| word == "global") > form.modifiers().position(is_shared),
                _ => false,
            };
            let copies = if form.has("multicast::cluster") {
                step.cluster
            } else {
                1
            };
            // A transaction is a sector of 32 bytes.
            if reads {
                f64::from(32 * copies) * ran.transactions
            } else {
                0.0
            }
        };
        runs.map(arrives).sum()
    };
    let bytes: Vec<f64> = step.seen.samples.iter().map(of_sample).collect();
    step.blocks_of_samples()
        .into_iter()
        .map(|(sample, blocks)| blocks * bytes[sample])
        .sum()
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Target;
    use flashcore_kernels::Plan;
    use flashcore_problem::{Problem, ProblemBuilder};

    use super::*;

    fn busy(problem: &ProblemBuilder, id: &str) -> Vec<(Resource, f64)> {
        let plan = Plan::new(&problem.clone().build().unwrap(), &id.parse().unwrap(), Target::Sm90a).unwrap();
        let observed = Observation::of(&plan).unwrap();
        let h200 = Profile::named("h200").unwrap();
        observed.busy(h200, None, &observed.predict(h200, &[]))
    }

    /// Shares that Nsight Compute read on an H200 (runs `profile-d64`, `profile-d256` of
    /// `evidence/h200/pipes.jsonl`), within 10 points.
    #[test]
    fn shares_are_those_of_the_counters() {
        use Resource::{Alu, Fma, Issue, L2, Mufu, Shared, Tensor};
        let d64 = Problem::builder().batch(2).heads(32, 32).seq_len(8192).head_dim(64);
        let d256 = Problem::builder().batch(2).heads(8, 8).seq_len(8192).head_dim(256);
        let of = |shares: &[(Resource, f64)], wanted: Resource| {
            shares.iter().find(|(resource, _)| *resource == wanted).unwrap().1
        };
        let rows = [
            (Tensor, 70.5),
            (Mufu, 70.5),
            (Fma, 18.3),
            (Alu, 11.4),
            (Issue, 44.8),
            (Shared, 44.7),
            (L2, 12.0),
        ];
        let shares = busy(&d64, "wgmma/m192n128-s2-pingpong-spec");
        for (resource, read) in rows {
            assert!((of(&shares, resource) - read).abs() < 10.0, "{resource:?}: {shares:?}");
        }
        // Multicast: the bytes arrive at both blocks of a cluster.
        let shares = busy(&d256, "wgmma/m128n64-s2-c2-pingpong-spec-qreg");
        for (resource, read) in [
            (Tensor, 93.8),
            (Mufu, 23.5),
            (Alu, 6.6),
            (Issue, 24.3),
            (Shared, 60.6),
            (L2, 23.6),
        ] {
            assert!((of(&shares, resource) - read).abs() < 10.0, "{resource:?}: {shares:?}");
        }
    }

    /// Wavefronts that Nsight Compute counted (`lab/bench/tests/data/ncu-h200.csv`): within 5 %, since
    /// barriers in shared memory count too.
    #[test]
    fn wavefronts_are_those_of_the_counters() {
        let small = Problem::builder().heads(8, 8).seq_len(512).head_dim(64);
        let d64 = Problem::builder().batch(2).heads(32, 32).seq_len(8192).head_dim(64);
        for (problem, id, read) in [
            (small, "mma/m32n128-w2x2-s5-b1-qreg-xor-cond", 325_133.0),
            (d64, "wgmma/m192n128-s2-pingpong-spec", 170_101_591.0),
        ] {
            let plan = Plan::new(&problem.build().unwrap(), &id.parse().unwrap(), Target::Sm90a).unwrap();
            let accesses = Observation::of(&plan).unwrap().accesses();
            let shared = accesses.iter().filter(|of| of.is_shared() && !of.lands);
            let (all, ideal) = shared.fold((0.0, 0.0), |sum, of| (sum.0 + of.transactions, sum.1 + of.ideal));
            assert!((all / read - 1.0_f64).abs() < 0.05, "{id}: {all} of {read}");
            assert_eq!(all, ideal, "{id}");
        }
    }

    /// Bank conflicts of a kernel without a swizzle, and its wavefronts with those of its copies: what
    /// Nsight Compute counted on an H200 (run `ncu-shared` of `evidence/h200/pipes.jsonl`).
    #[test]
    fn bank_conflicts_are_those_of_the_counters() {
        let id = "mma/m64n64-w4x1-s2-b1-qreg-lin-cond";
        let small = Problem::named("small").unwrap();
        let plan = Plan::new(&small, &id.parse().unwrap(), Target::Sm90a).unwrap();
        let accesses = Observation::of(&plan).unwrap().accesses();
        let shared = accesses.iter().filter(|of| of.is_shared());
        let sum = shared.fold((0.0, 0.0), |sum, of| (sum.0 + of.transactions, sum.1 + of.ideal));
        // Shares of blocks add up to whole numbers but for rounding.
        assert_eq!((sum.0.round(), (sum.0 - sum.1).round()), (2_236_416.0, 1_892_352.0));
    }
}
