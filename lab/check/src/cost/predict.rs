//! [`Prediction`]: the predicted time of a plan on a card, and what binds it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use flashcore_ir::{Clocks, MeasuredCard, Profile, Target};
use flashcore_sim::{Occupancy, occupancy};
use serde::Serialize;

use super::calibration::{self, Clockings, LAUNCH_MICROS, Trust, together};
use super::observe::{Observation, Sample, SeenStep};
use super::rates::replace;
use super::sm::{Resource, Sm};
use super::work::{Unit, Work};

/// What binds the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A resource that is busy most of the time.
    Resource(Resource),
    /// Latency: waiting for results, with too few warps to fill the waits.
    Latency,
    /// The launch.
    Launch,
}

impl Bound {
    /// The name in text.
    pub fn title(self) -> &'static str {
        match self {
            Bound::Resource(resource) => resource.title(),
            Bound::Latency => "latency",
            Bound::Launch => "launch",
        }
    }
}

/// Time that a resource needs for its part of the work if everything else were free.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Use {
    /// The resource.
    pub resource: Resource,
    /// Time on the busiest SM, microseconds.
    pub micros: f64,
}

/// The prediction for a plan on a card.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The card.
    pub profile: &'static str,
    /// Source of the measured rates; `None` if all rates are those of the profile.
    pub measured: Option<String>,
    /// Predicted time, microseconds, for a launch among others with warm caches.
    pub micros: f64,
    /// Lower end of the interval, which contains 80 % of the measurements where the model was
    /// calibrated and is wider elsewhere.
    pub low_micros: f64,
    /// Upper end of the interval.
    pub high_micros: f64,
    /// What binds the time.
    pub binds: Bound,
    /// Ratio of the binding term to the next one.
    pub lead: f64,
    /// Resources by the time they need, longest first.
    pub uses: Vec<Use>,
    /// Time of the chains of dependent instructions of all blocks of an SM.
    pub latency_micros: f64,
    /// Time to launch empty kernels.
    pub launch_micros: f64,
    /// FLOPs of the tensor cores.
    pub tensor_flops: f64,
    /// Bytes between SMs and L2.
    pub l2_bytes: f64,
    /// Bytes between L2 and device memory.
    pub dram_bytes: f64,
    /// Clocks of the card; the prediction is for the highest.
    pub clocks: Clocks,
    /// What the interval is based on.
    pub trust: Trust,
    /// Occupancy of each step of the plan.
    pub steps: Vec<StepFit>,
}

/// Occupancy of a step of a plan on a card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepFit {
    /// Registers per thread.
    pub registers: u32,
    /// Whether the registers are the compiler's; otherwise they are estimated.
    pub registers_known: bool,
    /// Blocks and warps that fit on an SM.
    pub occupancy: Occupancy,
    /// Number of waves of blocks.
    pub waves: f64,
}

impl Prediction {
    /// The time of each possible bound, microseconds, longest first.
    pub fn terms(&self) -> Vec<(Bound, f64)> {
        terms(&self.uses, self.latency_micros, self.launch_micros)
    }

    /// The limit that prevents a step from running on the card; `None` if every step runs.
    pub fn does_not_fit(&self) -> Option<&'static str> {
        let mut fits = self.steps.iter().map(|step| &step.occupancy);
        fits.find(|fit| fit.blocks_per_sm == 0).map(|fit| fit.limited_by)
    }
}

fn terms(uses: &[Use], latency: f64, launches: f64) -> Vec<(Bound, f64)> {
    let mut terms = vec![(Bound::Latency, latency), (Bound::Launch, launches)];
    terms.extend(uses.iter().map(|used| (Bound::Resource(used.resource), used.micros)));
    terms.sort_by(|a, b| b.1.total_cmp(&a.1));
    terms
}

impl Observation {
    /// Predicts the time on a card, which may be another one than the plan was made for if the
    /// kernel runs there. `registers` are the compiler's registers per thread of each step; a
    /// missing one is estimated from the kernel's live values.
    pub fn predict(&self, profile: &Profile, registers: &[Option<u32>]) -> Prediction {
        self.predict_measured(profile, None, registers)
    }

    /// As [`Self::predict`] with measured rates in place of those of the profile, or of its calibration.
    pub fn predict_measured(
        &self,
        profile: &Profile,
        measured: Option<&MeasuredCard>,
        registers: &[Option<u32>],
    ) -> Prediction {
        let measured = measured.or(profile.rates());
        let work = self.total_work();
        let mut sm = Sm::of(profile, measured);
        if self.is_foreign && work[Unit::L2Bytes] > calibration::OFTEN * self.footprint_bytes as f64 {
            sm.reads_together();
        }
        let mut clocks = profile.clocks;
        let mut dram_gbps = calibration::DRAM_REACHED * profile.dram_gbps;
        if let Some(measured) = measured {
            replace(&mut clocks.highest, measured.mhz);
            replace(&mut dram_gbps, measured.dram_gbps);
        }
        let trust = Trust::of(profile, &work, self.is_foreign);
        let dram_bytes = if self.footprint_bytes <= profile.l2_bytes {
            0.0
        } else {
            self.footprint_bytes as f64
        };
        let dram_micros = dram_bytes / (dram_gbps * 1e3);
        let limits = profile.target.limits();
        let (mut micros, mut latency, mut by_resource) = (0.0, 0.0, Clockings::default());
        let mut steps = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let known = registers.get(index).copied().flatten();
            // Estimated: those live at once, in allocation units, up to the limit.
            let live = step.seen.registers.next_multiple_of(limits.register_unit_per_warp / 32);
            let given = known.unwrap_or_else(|| live.min(step.most_registers(profile.target)));
            let occupancy = occupancy(&limits, step.threads, given, step.shared_bytes);
            let resident = f64::from(occupancy.blocks_per_sm.max(1));
            let (mut busy, chain) = busiest(step, &sm, profile.sms, resident);
            if index == 0 {
                // The main step reads and writes the tensors.
                busy[Resource::Dram as usize] = dram_micros * clocks.highest;
            }
            // Steps run one after another.
            micros += LAUNCH_MICROS + together(&busy, chain) / clocks.highest;
            latency += chain / clocks.highest;
            for (sum, clock) in by_resource.iter_mut().zip(busy) {
                *sum += clock / clocks.highest;
            }
            steps.push(StepFit {
                registers: given,
                registers_known: known.is_some(),
                occupancy,
                waves: step.blocks as f64 / (f64::from(profile.sms) * resident),
            });
        }
        let all = Resource::ALL.into_iter().zip(by_resource);
        let used = all.filter(|(_, micros)| *micros > 0.0);
        let mut uses: Vec<Use> = used.map(|(resource, micros)| Use { resource, micros }).collect();
        uses.sort_by(|a, b| b.micros.total_cmp(&a.micros));
        let launches = LAUNCH_MICROS * steps.len() as f64;
        let terms = terms(&uses, latency, launches);
        Prediction {
            profile: profile.name,
            measured: measured.map(|measured| measured.source.clone()),
            micros,
            low_micros: micros * trust.low,
            high_micros: micros * trust.high,
            binds: terms[0].0,
            lead: terms[0].1 / terms[1].1,
            uses,
            latency_micros: latency,
            launch_micros: launches,
            tensor_flops: work.tensor_flops(),
            l2_bytes: work[Unit::L2Bytes],
            dram_bytes,
            clocks,
            trust,
            steps,
        }
    }

    /// Registers per thread of the main step: those that its values need at once in program order,
    /// and those available to the compiler. If the first is larger, code is likely to spill. `None`
    /// for kernels that set register counts, since their warps may differ.
    pub fn registers(&self, target: Target) -> Option<(u32, u32)> {
        let step = self.steps.first()?;
        (!step.code.sets_registers).then(|| (step.seen.registers, step.most_registers(target)))
    }
}

impl SeenStep {
    /// Registers per thread that launch and kernel allow, in allocation units.
    fn most_registers(&self, target: Target) -> u32 {
        let limits = target.limits();
        let blocks = self.kernel.min_blocks_per_sm().unwrap_or(1).max(1);
        let most = limits
            .registers_per_thread
            .min(self.kernel.max_registers().unwrap_or(u32::MAX));
        limits.launch_registers(self.threads * blocks).min(most)
    }
}

/// The blocks assigned to an SM.
#[derive(Clone, Debug, Default)]
struct Load {
    /// When the SM is free.
    free: f64,
    clocks: Clockings,
    /// Of all blocks, and of the longest.
    chains: f64,
    longest: f64,
}

/// Assigns blocks in order to the SM that is free first, as the hardware does. Returns the clocks
/// of the busiest one by resource, and those of the chains of its blocks, of which `resident`
/// overlap.
fn busiest(step: &SeenStep, sm: &Sm, sms: u32, resident: f64) -> (Clockings, f64) {
    let works = step.work();
    let cost = |work: &Work| Resource::ALL.map(|resource| step.work_a_block * sm.clocks(work, resource));
    let costs: Vec<_> = works.iter().map(cost).collect();
    let chain = |sample: &Sample| step.work_a_block * sample.chain(&step.code, sm);
    let chains: Vec<f64> = step.seen.samples.iter().map(chain).collect();
    let block = |index: u64| {
        let mut clocks = Clockings::default();
        let mut chain = 0.0;
        for (sample, share) in step.mixture(index) {
            for (sum, clock) in clocks.iter_mut().zip(costs[sample]) {
                *sum += share * clock;
            }
            chain += share * chains[sample];
        }
        // Shares below 0 may be more than what they are taken from.
        (clocks.map(|clocks| clocks.max(0.0)), chain.max(0.0))
    };
    let (apart, each) = step.representatives();
    let kinds: Vec<_> = (0..step.blocks_a_head).step_by(apart as usize).map(block).collect();
    let mut loads = vec![Load::default(); sms.max(1) as usize];
    // The SMs by the bits of `free`, which order positive numbers.
    let mut next: BinaryHeap<Reverse<(u64, usize)>> = (0..loads.len()).map(|sm| Reverse((0, sm))).collect();
    for index in (0..step.work_items).step_by(apart as usize) {
        let (clocks, chain) = &kinds[(index % step.blocks_a_head / apart) as usize];
        let Some(Reverse((_, sm))) = next.pop() else { break };
        let load = &mut loads[sm];
        for (sum, clock) in load.clocks.iter_mut().zip(clocks) {
            *sum += each * clock;
        }
        load.chains += each * chain;
        load.longest = load.longest.max(*chain);
        load.free += each * together(clocks, *chain);
        next.push(Reverse((load.free.to_bits(), sm)));
    }
    let ends = loads
        .into_iter()
        .map(|load| (load.clocks, (load.chains / resident).max(load.longest)));
    let later = |a: &(Clockings, f64), b: &(Clockings, f64)| together(&a.0, a.1).total_cmp(&together(&b.0, b.1));
    ends.max_by(later).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Kernel;

    use super::*;
    use crate::cost::code::Code;
    use crate::cost::observe::Simulated;

    /// Warps that do not divide evenly among the partitions of an SM, too.
    #[test]
    fn as_many_registers_as_are_allowed_fit() {
        for threads in (32..=1024).step_by(32) {
            let kernel = Kernel::build("test", threads, |_| ()).unwrap();
            let step = SeenStep {
                code: Code::default().into(),
                kernel: kernel.into(),
                blocks: 1,
                threads,
                cluster: 1,
                shared_bytes: 0,
                seen: Simulated::default(),
                blocks_a_head: 1,
                work_items: 1,
                has_list: false,
                work_a_block: 1.0,
            };
            for target in Target::ALL {
                let most = step.most_registers(target);
                let blocks = occupancy(&target.limits(), threads, most, 0).blocks_per_sm;
                assert!(
                    most >= 64 && blocks > 0,
                    "{threads} threads of {most} registers on {target}"
                );
            }
        }
    }
}
