//! [`Prediction`]: the time an observed launch takes on a card, and what binds it.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use flashcore_ir::{Inst, Occupancy, Profile, Target};
use serde::Serialize;

use super::calibration::{self, Clockings, Clocks, LAUNCH_MICROS, Trust, together};
use super::measured::{MeasuredCard, replace};
use super::observe::{Observation, SeenStep};
use super::sm::{Resource, Sm};
use super::span;
use super::work::Work;

/// What the time is bound by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// A resource that is busy most of the time.
    Resource(Resource),
    /// No resource: waiting for results, with too few warps to fill the waits.
    Latency,
    /// Getting the kernel started.
    Launch,
}

impl Bound {
    /// As people say it.
    pub fn title(self) -> &'static str {
        match self {
            Bound::Resource(resource) => resource.title(),
            Bound::Latency => "latency",
            Bound::Launch => "launch",
        }
    }
}

/// Time that a resource needs for its part of the work, were everything else free.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Use {
    /// Which.
    pub resource: Resource,
    /// On the SM that has most to do.
    pub micros: f64,
}

/// What is predicted of a launch on a card.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The card.
    pub profile: &'static str,
    /// Where measured rates come from; `None` where all are the profile's.
    pub measured: Option<String>,
    /// Most likely time, microseconds: of a launch among others, caches warm.
    pub micros: f64,
    /// The interval that holds 80 % of what was measured where the model was calibrated, wider elsewhere.
    pub low_micros: f64,
    /// Its upper end.
    pub high_micros: f64,
    /// What the time is bound by.
    pub binds: Bound,
    /// How many times as long as the next the binding one takes.
    pub lead: f64,
    /// Resources by the time they need, longest first.
    pub uses: Vec<Use>,
    /// Time that a block's chain of dependent instructions takes, in as many turns as there are.
    pub latency_micros: f64,
    /// Time to start a kernel that does nothing.
    pub launch_micros: f64,
    /// FLOPs of the tensor cores.
    pub tensor_flops: f64,
    /// Bytes between SMs and L2.
    pub l2_bytes: f64,
    /// Bytes between L2 and device memory.
    pub dram_bytes: f64,
    /// Clocks of the card; the time is that at the highest.
    pub clocks: Clocks,
    /// What the interval rests on.
    pub trust: Trust,
    /// How each step of the plan fits on the card.
    pub steps: Vec<StepFit>,
}

/// How a step of a plan fits on a card.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StepFit {
    /// Registers a thread.
    pub registers: u32,
    /// Whether the compiler said so; otherwise they are estimated.
    pub registers_known: bool,
    /// What fits on an SM.
    pub occupancy: Occupancy,
    /// How often the grid fills the card.
    pub waves: f64,
}

impl Prediction {
    /// What keeps blocks of some step off the card altogether; `None` where every step runs.
    pub fn does_not_fit(&self) -> Option<&'static str> {
        let fits = self.steps.iter().map(|step| &step.occupancy);
        fits.filter(|fit| fit.blocks_per_sm == 0)
            .map(|fit| fit.limited_by)
            .next()
    }
}

impl Observation {
    /// Predicts the time on a card. `registers` is what the compiler gives a thread of each step's kernel, in the order
    /// of the steps; where it is missing or `None`, about what the kernel's values need is taken, and no more than
    /// its launch leaves the compiler.
    ///
    /// A card other than the one the plan was made for is fine as long as the kernel may run there.
    pub fn predict(&self, profile: &Profile, registers: &[Option<u32>]) -> Prediction {
        self.predict_measured(profile, None, registers)
    }

    /// The same with what was measured on the card in place of its profile's rates, as far as it was.
    pub fn predict_measured(
        &self,
        profile: &Profile,
        measured: Option<&MeasuredCard>,
        registers: &[Option<u32>],
    ) -> Prediction {
        let sm = Sm::of(profile, measured);
        let (mut clocks, mut launch) = (calibration::clocks(profile), LAUNCH_MICROS);
        let mut dram_gbps = calibration::DRAM_REACHED * profile.dram_gbps;
        if let Some(measured) = measured {
            replace(&mut clocks.highest, measured.mhz);
            replace(&mut launch, measured.launch_micros);
            replace(&mut dram_gbps, measured.dram_gbps);
        }
        let work = self.total_work();
        let trust = Trust::of(profile, &work);
        let dram_bytes = match self.footprint_bytes <= profile.l2_bytes {
            true => 0.0,
            false => self.footprint_bytes as f64,
        };
        let dram_micros = dram_bytes / (dram_gbps * 1e3);
        let mut total = Terms::default();
        let mut steps = Vec::new();
        for (index, step) in self.steps.iter().enumerate() {
            let known = registers.get(index).copied().flatten();
            let given = known.unwrap_or_else(|| step.likely_registers(profile.target));
            let limits = profile.target.limits();
            let occupancy = limits.occupancy(step.threads, given, step.shared_bytes);
            let resident = f64::from(occupancy.blocks_per_sm.max(1));
            let mut busiest = busiest(step, &sm, profile.sms, resident);
            if index == 0 {
                // The tensors are read and written by the step that does the work.
                busiest.clocks[Resource::Dram as usize] = dram_micros * clocks.highest;
            }
            total.add(&busiest, clocks.highest, launch);
            steps.push(StepFit {
                registers: given,
                registers_known: known.is_some(),
                occupancy,
                waves: step.blocks as f64 / (f64::from(profile.sms) * resident),
            });
        }
        let uses = total.uses();
        let mut terms = vec![(Bound::Latency, total.latency), (Bound::Launch, total.launch)];
        terms.extend(uses.iter().map(|used| (Bound::Resource(used.resource), used.micros)));
        terms.sort_by(|a, b| b.1.total_cmp(&a.1));
        Prediction {
            profile: profile.name,
            measured: measured.map(|measured| measured.source.clone()),
            micros: total.micros,
            low_micros: total.micros * trust.low,
            high_micros: total.micros * trust.high,
            binds: terms[0].0,
            lead: terms[0].1 / terms[1].1,
            uses,
            latency_micros: total.latency,
            launch_micros: total.launch,
            tensor_flops: work.tensor_flops(),
            l2_bytes: work.l2_bytes,
            dram_bytes,
            clocks,
            trust,
            steps,
        }
    }
}

impl Observation {
    /// Registers a thread of the step that does the work: what its values need at a time, in the order they were
    /// written in, and what its launch leaves the compiler. Where the first is more, code is likely to spill. `None` for
    /// kernels that set their registers themselves, whose warps need not all have as many.
    ///
    /// ```
    /// use flashcore_check::cost::Observation;
    /// use flashcore_ir::Target;
    /// use flashcore_kernels::Plan;
    /// use flashcore_problem::Problem;
    /// let plan = Plan::new(&Problem::named("tiny")?, &"mma/m64n64-w4x1-s2-b1-qreg-xor-lazy".parse()?, Target::Sm90a)?;
    /// let (needed, left) = Observation::of(&plan)?.registers(Target::Sm90a).ok_or("registers")?;
    /// assert!(needed > 32 && needed < left && left == 255);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn registers(&self, target: Target) -> Option<(u32, u32)> {
        let step = self.steps.first()?;
        let mut sets = false;
        step.kernel
            .for_each_inst(&mut |inst, _| sets |= matches!(inst, Inst::SetMaxRegs { .. }));
        (!sets).then(|| (step.live_registers, step.most_registers(target)))
    }
}

/// Microseconds of all steps.
#[derive(Default)]
struct Terms {
    micros: f64,
    by_resource: Clockings,
    latency: f64,
    launch: f64,
}

impl Terms {
    /// Adds a step, which runs after the ones before; a clock has `mhz` ticks a microsecond.
    fn add(&mut self, step: &Busiest, mhz: f64, launch: f64) {
        self.micros += launch + together(&step.clocks, step.chain) / mhz;
        for (sum, clocks) in self.by_resource.iter_mut().zip(step.clocks) {
            *sum += clocks / mhz;
        }
        self.latency += step.chain / mhz;
        self.launch += launch;
    }

    fn uses(&self) -> Vec<Use> {
        let all = Resource::ALL.into_iter().zip(self.by_resource);
        let used = all.filter(|(_, micros)| *micros > 0.0);
        let mut uses: Vec<Use> = used.map(|(resource, micros)| Use { resource, micros }).collect();
        uses.sort_by(|a, b| b.micros.total_cmp(&a.micros));
        uses
    }
}

impl SeenStep {
    /// Registers a thread that the compiler is likely to take: what lives at a time, in the units they are given out
    /// in, and no more than there can be.
    fn likely_registers(&self, target: Target) -> u32 {
        self.live_registers
            .next_multiple_of(target.limits().register_unit_per_warp / 32)
            .min(self.most_registers(target))
    }

    /// Registers a thread that the launch's shape and the kernel's own bound leave, in whole units.
    fn most_registers(&self, target: Target) -> u32 {
        let limits = target.limits();
        let blocks = self.kernel.min_blocks_per_sm().unwrap_or(1).max(1);
        let unit = (limits.register_unit_per_warp / 32).max(1);
        let registers = limits.registers_per_sm / (self.threads * blocks).max(1);
        (registers / unit * unit).min(limits.registers_per_thread)
    }
}

/// What the SM with most to do has to do.
#[derive(Default)]
struct Busiest {
    /// Clocks by resource.
    clocks: Clockings,
    /// Clocks of the chains of its blocks, as many at a time as are resident.
    chain: f64,
}

/// An SM and what it has been given, ordered by when it will be free.
#[derive(Clone, Debug, Default)]
struct Load {
    free: f64,
    clocks: Clockings,
    chains: f64,
    longest: f64,
}

impl PartialEq for Load {
    fn eq(&self, other: &Load) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Load {}
impl PartialOrd for Load {
    fn partial_cmp(&self, other: &Load) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Load {
    fn cmp(&self, other: &Load) -> Ordering {
        // The heap gives its greatest, which is to be the one free first.
        other.free.total_cmp(&self.free)
    }
}

/// Gives blocks to SMs in their order, each to the one that is free first, as the hardware does.
fn busiest(step: &SeenStep, sm: &Sm, sms: u32, resident: f64) -> Busiest {
    let works = step.work();
    let cost = |work: &Work| Resource::ALL.map(|resource| step.work_a_block * sm.clocks(work, resource));
    let costs: Vec<_> = works.iter().map(cost).collect();
    let chains: Vec<f64> = step
        .samples
        .iter()
        .map(|sample| step.work_a_block * span::clocks(&step.kernel, &sample.runs, sm))
        .collect();
    let block = |index: u64| {
        let mut clocks = Clockings::default();
        let mut chain = 0.0;
        for (sample, share) in step.mixture(index) {
            for (sum, clock) in clocks.iter_mut().zip(costs[sample]) {
                *sum += share * clock;
            }
            chain += share * chains[sample];
        }
        (clocks, chain)
    };
    let kinds: Vec<_> = (0..step.blocks_a_head).map(block).collect();
    let mut loads: BinaryHeap<Load> = (0..sms.max(1)).map(|_| Load::default()).collect();
    for index in 0..step.turns {
        let (clocks, chain) = &kinds[(index % step.blocks_a_head) as usize];
        if let Some(mut load) = loads.pop() {
            for (sum, clock) in load.clocks.iter_mut().zip(clocks) {
                *sum += clock;
            }
            load.chains += chain;
            load.longest = load.longest.max(*chain);
            load.free += together(clocks, *chain);
            loads.push(load);
        }
    }
    let mut most = (-1.0, Busiest::default());
    for load in loads {
        let chain = (load.chains / resident).max(load.longest);
        let time = together(&load.clocks, chain);
        if time > most.0 {
            let clocks = load.clocks;
            most = (time, Busiest { clocks, chain });
        }
    }
    most.1
}
