//! Measures the microbenchmarks on a CUDA device, in a few seconds. Every output is checked before and after timing; a
//! wrong one is an error.

use std::time::Instant;

use flashcore_cuda::{Context, DeviceBuffer, DeviceSlice, Function, ModuleOptions, PreparedLaunch, Stream};

use super::chains::{CLOCK, FMA_CLOCKS};
use super::rates::{DeviceRates, MeasuredRate, RATES_SCHEMA};
use super::{Content, Micro, Scale, all, pattern, revision};
use crate::gpu::{ClosureSubject, GpuStopwatch, GpuTools, launch};
use crate::{
    BenchError, DeviceIdentity, Measured, Mode, Options, Reading, Result, RunIdentity, Subject, Telemetry, measure,
};

const RUNS: u32 = 4;
/// Byte that outputs are filled with before a run that is looked at.
const POISON: u8 = 0xa5;

/// Short turns, a dozen rounds: some milliseconds each are enough for kernels whose time hardly varies.
fn options() -> Options {
    Options {
        precision: 1e-3,
        min_rounds: 12,
        max_rounds: 12,
        sample_us: 500.0,
        lead_us: 500.0,
        steady_from_us: None,
        warm_up_min_us: 10_000.0,
        warm_up_max_us: 40_000.0,
        ..Options::default()
    }
}

/// Measures all that run on the device, or those of these names. The chain that tells the clock is always among them.
///
/// # Errors
/// A name that is none, a device that cannot be used, [`BenchError::Failed`] for a result that is wrong.
pub fn measured(context: &Context, only: &[String]) -> Result<DeviceRates> {
    let began = Instant::now();
    let stream = Stream::new(context)?;
    let info = context.info();
    let device = DeviceIdentity::cuda(info);
    let target = info.chip().target;
    let scale = Scale::device(info.multiprocessors, u64::from(info.l2_bytes));
    let built = |errors| BenchError::Device(format!("a microbenchmark does not build: {errors}"));
    let mut micros = all(target, &scale).map_err(built)?;
    refuse_unknown(&micros, only)?;
    micros.retain(|micro| only.is_empty() || micro.name == CLOCK || only.iter().any(|name| name == micro.name));
    let places = micros.iter().map(|micro| Place::new(context, &stream, micro));
    let places = places.collect::<Result<Vec<Place>, _>>()?;
    places.iter().try_for_each(|place| place.look(&stream))?;

    let tools = GpuTools::new(&stream)?;
    let mut subjects: Vec<Box<dyn Subject + '_>> = Vec::new();
    for place in &places {
        let prepared = place.prepared()?;
        let work = move |stream: &Stream| (0..RUNS).try_for_each(|_| launch::enqueue(&prepared, stream));
        subjects.push(Box::new(ClosureSubject::new(place.micro.name, &stream, RUNS, work)?));
    }
    let mut stopwatch = GpuStopwatch::new(&tools, &stream);
    let telemetry = Telemetry::open(&device.uuid).ok();
    let (telemetry, options) = (telemetry.as_ref(), options());
    let watch = &mut stopwatch;
    let measurement = measure(&options, Mode::Hot, &mut subjects, 0, watch, telemetry, &mut ())?;
    drop(subjects);
    places.iter().try_for_each(|place| place.look(&stream))?;

    let clock = places.iter().position(|place| place.micro.name == CLOCK).unwrap_or(0);
    let clock_micros = summary(&measurement.subjects[clock])?.p50;
    let mhz = FMA_CLOCKS * places[clock].micro.amount / clock_micros;
    let pairs = places.iter().zip(&measurement.subjects);
    let rates = pairs.map(|(place, measured)| place.rate(measured, mhz, info.multiprocessors));
    let of_readings = |of: fn(&Reading) -> Option<u32>| measurement.readings.iter().filter_map(of);
    let clocks = (of_readings(|r| r.sm_mhz).min(), of_readings(|r| r.sm_mhz).max());
    let mut throttle: Vec<String> = measurement.readings.iter().flat_map(|r| r.throttle.clone()).collect();
    throttle.sort();
    throttle.dedup();
    Ok(DeviceRates {
        schema: RATES_SCHEMA,
        micro: revision(target, &scale).map_err(built)?,
        run: RunIdentity::now(device),
        mhz,
        nvml_mhz: clocks.0.zip(clocks.1).map(|(low, high)| [low, high]),
        power_w: measurement.readings.iter().filter_map(|r| r.power_w).reduce(f64::max),
        throttle,
        rates: rates.collect::<Result<_, _>>()?,
        seconds: began.elapsed().as_secs_f64(),
    })
}

fn refuse_unknown(micros: &[Micro], only: &[String]) -> Result<()> {
    let known: Vec<&str> = micros.iter().map(|micro| micro.name).collect();
    match only.iter().find(|name| !known.contains(&name.as_str())) {
        None => Ok(()),
        Some(unknown) => Err(BenchError::bad_option("only", unknown, known.join(", "))),
    }
}

fn summary(measured: &Measured) -> Result<&crate::stats::Summary> {
    measured.summary.as_ref().ok_or_else(|| {
        let why = measured.trouble.as_deref().unwrap_or("it was not timed");
        BenchError::Failed(format!("{}: {why}", measured.info.label))
    })
}

/// A microbenchmark on the device, with its buffers.
struct Place<'m> {
    micro: &'m Micro,
    function: Function,
    buffers: Vec<DeviceBuffer>,
}

impl<'m> Place<'m> {
    fn new(context: &Context, stream: &Stream, micro: &'m Micro) -> Result<Place<'m>> {
        let function = Function::load(context, &micro.kernel, &ModuleOptions::default())?;
        let spilled = function.attributes().local_bytes;
        if spilled != 0 {
            let name = micro.name;
            let why = format!("microbenchmark {name}: it has {spilled} B of local memory: it spills");
            return Err(BenchError::Failed(why));
        }
        let mut buffers = Vec::new();
        for (spec, content) in micro.launch.buffers.iter().zip(&micro.contents) {
            let buffer = DeviceBuffer::new(context, spec.bytes as usize)?;
            match content {
                Content::Bytes(held) => buffer.as_slice().copy_from_host(stream, held)?,
                Content::Pattern => {
                    let words: Vec<u32> = (0..spec.bytes as usize / 4).map(pattern).collect();
                    buffer.as_slice().copy_from_host(stream, bytemuck::cast_slice(&words))?;
                }
                Content::Output => {}
            }
            buffers.push(buffer);
        }
        Ok(Place {
            micro,
            function,
            buffers,
        })
    }

    fn prepared(&self) -> Result<PreparedLaunch<'_>> {
        let slices: Vec<DeviceSlice<'_>> = self.buffers.iter().map(DeviceBuffer::as_slice).collect();
        Ok(launch::prepare(&self.function, &self.micro.launch, &slices)?)
    }

    fn look(&self, stream: &Stream) -> Result<()> {
        let out = self.buffers[self.micro.output()].as_slice();
        out.fill(stream, POISON)?;
        launch::enqueue(&self.prepared()?, stream)?;
        let mut held = vec![0; out.len()];
        out.copy_to_host(stream, &mut held)?;
        self.micro.check(&held)?;
        Ok(stream.synchronize()?)
    }

    fn rate(&self, measured: &Measured, mhz: f64, sms: u32) -> Result<MeasuredRate> {
        let summary = summary(measured)?;
        let value = |micros: f64| self.micro.unit.value(self.micro.amount, micros, mhz, sms);
        let ordered = |a: f64, b: f64| [value(a).min(value(b)), value(a).max(value(b))];
        Ok(MeasuredRate {
            name: self.micro.name.to_string(),
            about: self.micro.about.to_string(),
            value: value(summary.p50),
            unit: self.micro.unit,
            interval: ordered(summary.interval.lo, summary.interval.hi),
            spread: ordered(summary.p10, summary.p90),
            micros: summary.p50,
            samples: summary.count,
            registers: self.function.attributes().registers,
            module: self.function.module().identity().hex(),
        })
    }
}
