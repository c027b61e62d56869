//! A simulated GPU with the noise of real ones, to test the protocol and its statistics.
//!
//! The noise is that of measurements on cards at their power cap: the clock rises over the first tens of milliseconds,
//! then hops between a few speeds a few percent apart and drifts; a hot chip slows the next subject for milliseconds, a
//! cool one speeds it up; single samples have heavy tails; events resolve half a microsecond; and two allocations of
//! the same kernel differ by a tenth of a percent.

use std::cell::RefCell;
use std::rc::Rc;

use flashcore_bench::{
    BenchError, LaunchMode, Measurement, Mode, Options, Stopwatch, Subject, SubjectInfo, Trouble, Verdict, measure,
    stats,
};
use flashcore_problem::rng::Rng;

/// How unsteady the simulated device is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Noise {
    /// Times relative to the quickest that the clock hops between.
    pub(crate) clock_steps: Vec<f64>,
    /// Mean time between hops, µs.
    pub(crate) step_us: f64,
    /// Size of a slow drift, relative.
    pub(crate) drift: f64,
    /// Size of independent noise on each batch, relative.
    pub(crate) jitter: f64,
    /// Probability that a batch is hit by something else, and the mean size of that, relative.
    pub(crate) tail: (f64, f64),
    /// How much slower a run is right after one at full power than after one at none, relative.
    pub(crate) heat: f64,
    /// How much slower runs at full power are than runs at none once that power has been drawn for tens of
    /// milliseconds, relative: a power controller that lowers the clock.
    pub(crate) throttle: f64,
    /// Spread between two instances of the same kernel, relative.
    pub(crate) placement: f64,
    /// What events resolve, µs.
    pub(crate) resolution_us: f64,
}

impl Noise {
    /// None at all.
    pub(crate) fn quiet() -> Noise {
        Noise {
            clock_steps: vec![1.0],
            step_us: f64::INFINITY,
            drift: 0.0,
            jitter: 0.0,
            tail: (0.0, 0.0),
            heat: 0.0,
            throttle: 0.0,
            placement: 0.0,
            resolution_us: 0.0,
        }
    }

    /// A card with room below its power cap.
    pub(crate) fn steady() -> Noise {
        Noise {
            clock_steps: vec![1.0, 1.008],
            step_us: 200_000.0,
            drift: 0.003,
            jitter: 0.002,
            tail: (0.01, 0.03),
            heat: 0.01,
            throttle: 0.0,
            placement: 0.001,
            resolution_us: 0.5,
        }
    }

    /// A card at its power cap: single timings wander by 7 %.
    pub(crate) fn power_capped() -> Noise {
        Noise {
            clock_steps: vec![1.0, 1.02, 1.05],
            step_us: 25_000.0,
            drift: 0.01,
            jitter: 0.005,
            tail: (0.03, 0.06),
            heat: 0.08,
            throttle: 0.15,
            placement: 0.0015,
            resolution_us: 0.5,
        }
    }

    /// A machine that others use too: every tenth batch is hit.
    pub(crate) fn shared() -> Noise {
        Noise {
            tail: (0.10, 0.15),
            jitter: 0.008,
            ..Noise::steady()
        }
    }
}

/// Time in which the heat of earlier runs fades, µs.
const HEAT_FADES_US: f64 = 1_500.0;
/// Time in which the power controller forgets what was drawn, µs.
const THROTTLE_US: f64 = 20_000.0;
/// Time in which the clock rises after a start, µs.
const RISE_US: f64 = 15_000.0;
/// Time in which the drift forgets, µs.
const DRIFT_US: f64 = 400_000.0;

#[derive(Debug)]
struct World {
    noise: Noise,
    rng: Rng,
    now_us: f64,
    step: usize,
    next_step_us: f64,
    drift: f64,
    heat: f64,
    /// Power drawn of late, as the controller sees it.
    drawn: f64,
    laps: Vec<(f64, f64)>,
    flushed: bool,
}

impl World {
    fn advance(&mut self, us: f64, power: f64) {
        self.now_us += us;
        let keep = (-us / HEAT_FADES_US).exp();
        self.heat = keep * self.heat + (1.0 - keep) * power;
        let keep = (-us / THROTTLE_US).exp();
        self.drawn = keep * self.drawn + (1.0 - keep) * power;
        let keep = (-us / DRIFT_US).exp();
        let kick = self.noise.drift * (1.0 - keep * keep).sqrt();
        self.drift = keep * self.drift + kick * f64::from(self.rng.normal());
        while self.now_us >= self.next_step_us {
            self.step = self.rng.below(self.noise.clock_steps.len());
            self.next_step_us += exponential(&mut self.rng) * self.noise.step_us;
        }
    }

    fn slowdown(&self, power: f64) -> f64 {
        let rise = 1.0 + 0.4 * (-self.now_us / RISE_US).exp();
        let heat = 1.0 + self.noise.heat * (self.heat - power);
        let throttle = 1.0 + self.noise.throttle * self.drawn;
        self.noise.clock_steps[self.step] * (1.0 + self.drift) * heat * throttle * rise
    }
}

fn exponential(rng: &mut Rng) -> f64 {
    -(1.0 - f64::from(rng.unit())).ln()
}

/// The simulated device: makes subjects and a stopwatch that share its time.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedGpu(Rc<RefCell<World>>);

impl SimulatedGpu {
    /// A device that has just been switched on.
    pub(crate) fn new(noise: Noise, seed: u64) -> SimulatedGpu {
        let mut rng = Rng::new(seed);
        let next_step_us = exponential(&mut rng) * noise.step_us;
        SimulatedGpu(Rc::new(RefCell::new(World {
            noise,
            rng,
            now_us: 0.0,
            step: 0,
            next_step_us,
            drift: 0.0,
            heat: 0.0,
            drawn: 0.0,
            laps: Vec::new(),
            flushed: false,
        })))
    }

    /// A kernel whose runs take `run_us` at the highest clock, drawing `power` (0 to 1), launched in graphs of
    /// `chain` runs.
    pub(crate) fn subject(&self, label: &str, run_us: f64, power: f64, chain: u32) -> SimulatedSubject {
        let mut world = self.0.borrow_mut();
        let luck = 1.0 + world.noise.placement * f64::from(world.rng.normal());
        SimulatedSubject {
            world: self.0.clone(),
            info: SubjectInfo::new(label, LaunchMode::Graph(chain)),
            run_us: run_us * luck,
            power,
            chain,
        }
    }

    /// The device's clock.
    pub(crate) fn stopwatch(&self) -> SimulatedStopwatch {
        SimulatedStopwatch(self.0.clone())
    }

    /// Measures subjects on it, the first being the baseline.
    pub(crate) fn measure(
        &self,
        options: &Options,
        mode: Mode,
        subjects: Vec<SimulatedSubject>,
    ) -> Result<Measurement, BenchError> {
        let mut subjects: Vec<Box<dyn Subject>> = subjects
            .into_iter()
            .map(|subject| Box::new(subject) as Box<dyn Subject>)
            .collect();
        measure(options, mode, &mut subjects, 0, &mut self.stopwatch(), None, &mut ())
    }
}

/// A kernel on a [`SimulatedGpu`].
#[derive(Debug)]
pub(crate) struct SimulatedSubject {
    world: Rc<RefCell<World>>,
    info: SubjectInfo,
    run_us: f64,
    power: f64,
    chain: u32,
}

impl SimulatedSubject {
    fn run(&self, runs: u32) {
        let mut world = self.world.borrow_mut();
        let cold = if std::mem::take(&mut world.flushed) { 1.3 } else { 1.0 };
        let us = self.run_us * f64::from(runs) * world.slowdown(self.power) * cold;
        world.advance(us, self.power);
    }
}

impl Subject for SimulatedSubject {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn runs_per_call(&self) -> u32 {
        self.chain
    }

    fn call(&mut self) -> Result<(), Trouble> {
        self.run(self.chain);
        Ok(())
    }

    fn run_once(&mut self, _set: usize) -> Result<(), Trouble> {
        self.run(1);
        Ok(())
    }
}

/// The clock of a [`SimulatedGpu`].
#[derive(Debug)]
pub(crate) struct SimulatedStopwatch(Rc<RefCell<World>>);

impl Stopwatch for SimulatedStopwatch {
    fn begin(&mut self, lap: usize) -> Result<(), Trouble> {
        let mut world = self.0.borrow_mut();
        let now = world.now_us;
        if world.laps.len() <= lap {
            world.laps.resize(lap + 1, (0.0, 0.0));
        }
        world.laps[lap].0 = now;
        Ok(())
    }

    fn end(&mut self, lap: usize) -> Result<(), Trouble> {
        let mut world = self.0.borrow_mut();
        // What disturbs a batch disturbs all of it alike, so it is added here rather than to each run.
        let elapsed = world.now_us - world.laps[lap].0;
        let (tail, size) = world.noise.tail;
        let jitter = world.noise.jitter * f64::from(world.rng.normal());
        let hit = if f64::from(world.rng.unit()) < tail {
            size * exponential(&mut world.rng)
        } else {
            0.0
        };
        world.now_us += (elapsed * (jitter + hit)).max(-0.9 * elapsed);
        world.laps[lap].1 = world.now_us;
        Ok(())
    }

    fn elapsed_us(&mut self, lap: usize) -> Result<f64, Trouble> {
        let world = self.0.borrow();
        let (begin, end) = world.laps[lap];
        let resolution = world.noise.resolution_us;
        let exact = end - begin;
        Ok(if resolution > 0.0 {
            (exact / resolution).round() * resolution
        } else {
            exact
        })
    }

    fn hold(&mut self) -> Result<(), Trouble> {
        self.0.borrow_mut().advance(50.0, 0.1);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Trouble> {
        let mut world = self.0.borrow_mut();
        world.advance(40.0, 0.5);
        world.flushed = true;
        Ok(())
    }

    fn now_us(&mut self) -> f64 {
        // The host and its driver take time as well.
        self.0.borrow_mut().advance(20.0, 0.0);
        self.0.borrow().now_us
    }
}

#[test]
fn on_a_quiet_device_times_are_exact() {
    let gpu = SimulatedGpu::new(Noise::quiet(), 1);
    let subjects = vec![gpu.subject("a", 50.0, 0.5, 4), gpu.subject("b", 25.0, 0.5, 1)];
    let options = Options {
        warm_up_min_us: 400_000.0,
        ..Options::default()
    };
    let measured = gpu.measure(&options, Mode::Hot, subjects).unwrap();
    let [a, b] = &measured.subjects[..] else { panic!() };
    assert!((a.summary.unwrap().p50 - 50.0).abs() < 1e-3);
    assert!((b.ratio.unwrap().value - 0.5).abs() < 1e-5);
    assert_eq!(b.verdict, Some(Verdict::Faster));
    assert!(a.ratio.is_none() && a.verdict.is_none());
}

#[test]
fn a_single_timing_on_a_capped_card_wanders_by_several_percent() {
    let gpu = SimulatedGpu::new(Noise::power_capped(), 2);
    let (mut subject, mut watch) = (gpu.subject("a", 100.0, 0.9, 1), gpu.stopwatch());
    let mut times = Vec::new();
    for _ in 0..2000 {
        watch.begin(0).unwrap();
        for _ in 0..5 {
            subject.call().unwrap();
        }
        watch.end(0).unwrap();
        times.push(watch.elapsed_us(0).unwrap());
    }
    let times = stats::sorted(&times[200..]);
    let spread = stats::quantile(&times, 0.95) / stats::quantile(&times, 0.05) - 1.0;
    assert!((0.05..0.15).contains(&spread), "{spread}");
}

/// Ratio of a quick kernel that draws full power to a slow one that draws little, by mode, on a card that does
/// nothing but lower its clock with the power drawn of late.
fn throttled_ratio(mode: Mode, options: &Options) -> f64 {
    let noise = Noise {
        throttle: 0.3,
        ..Noise::quiet()
    };
    let gpu = SimulatedGpu::new(noise, 4);
    let subjects = vec![
        gpu.subject("slow and cool", 1_900.0, 0.3, 1),
        gpu.subject("quick and hungry", 770.0, 1.0, 1),
        gpu.subject("between", 1_000.0, 0.6, 1),
    ];
    let measured = gpu.measure(options, mode, subjects).unwrap();
    measured.subjects[1].ratio.unwrap().value
}

#[test]
fn hot_ratios_of_long_kernels_are_those_of_a_card_in_their_own_steady_state() {
    let options = Options::default();
    let sustained = throttled_ratio(Mode::Sustained, &options);
    assert!(
        (sustained / (770.0 * 1.3 / (1_900.0 * 1.09)) - 1.0).abs() < 0.002,
        "{sustained}"
    );
    let hot = throttled_ratio(Mode::Hot, &options);
    assert!((hot / sustained - 1.0).abs() < 0.01, "{hot} hot, {sustained} sustained");
    // Planted: turns as short as a long kernel's once were.
    let short = Options {
        steady_from_us: None,
        ..Options::default()
    };
    for (what, ratio) in [
        ("no steady turns", throttled_ratio(Mode::Hot, &short)),
        ("screen", throttled_ratio(Mode::Screen, &options)),
    ] {
        assert!(ratio / sustained < 0.90, "{what}: {ratio}, {sustained} sustained");
    }
}

#[test]
fn cold_runs_take_longer() {
    let gpu = SimulatedGpu::new(Noise::quiet(), 3);
    let subjects = vec![gpu.subject("a", 50.0, 0.5, 8)];
    let options = Options {
        warm_up_min_us: 400_000.0,
        ..Options::default()
    };
    let cold = gpu.measure(&options, Mode::Cold, subjects).unwrap();
    assert!((cold.subjects[0].summary.unwrap().p50 - 65.0).abs() < 0.1);
}
