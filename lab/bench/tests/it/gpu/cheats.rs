//! Kernels that cheat: the bench must reject each for the right reason.

use std::error::Error;

use flashcore::Problem;
use flashcore::unstable::cuda::Stream;
use flashcore::unstable::plans::Config;
use flashcore::unstable::testing::InputKind;
use flashcore_bench::bed::{Drawn, Workbench};
use flashcore_bench::defences::inspect;
use flashcore_bench::gpu::{GpuBed, GpuStopwatch, GpuTools, KernelSubject, Launching, TensorSet, launch};
use flashcore_bench::planted::{Conduct, InFinals, Planted};
use flashcore_bench::{Case, LaunchMode, Subject, SubjectInfo, Trouble, draw};
use flashcore_check::registers::{Assembler, Unknown, assemble};
use flashcore_cuda::{CudaError, Event, ModuleOptions, PreparedLaunch};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;

use crate::cold::{persists, time_cold};

/// How long the other stream is busy before it works, µs.
const BUSY_US: f64 = 2_000.0;

/// An honest kernel bound to another stream than the one that is given, which it does not wait for, or which does not
/// wait for it.
struct OtherStream<'a> {
    conduct: Conduct,
    honest: KernelSubject<'a>,
    given: &'a Stream,
    other: &'a Stream,
    tools: &'a GpuTools,
}

/// Work put into `stream` from now on waits for what is in `for_stream`.
fn wait(stream: &Stream, for_stream: &Stream) -> Result<(), CudaError> {
    let event = Event::new(stream.context())?;
    event.record(for_stream)?;
    stream.wait_for(&event)
}

impl Subject for OtherStream<'_> {
    fn info(&self) -> &SubjectInfo {
        self.honest.info()
    }

    fn call(&mut self) -> Result<(), Trouble> {
        if self.conduct == Conduct::NotJoined {
            wait(self.other, self.given)?;
            self.tools.spin(self.other, BUSY_US)?;
            return self.honest.call();
        }
        self.honest.call()?;
        Ok(wait(self.given, self.other)?)
    }
}

#[test]
fn each_cheat_is_rejected_for_its_reason() {
    super::run(|context| {
        let problem = Problem::builder().heads(8, 8).seq_len(512).head_dim(64);
        let problem = problem.return_lse(true).build()?;
        let (stream, other) = (Stream::new(context)?, Stream::new(context)?);
        let tools = GpuTools::new(&stream)?;
        let config: Config = "scalar/naive-t128-v16".parse()?;
        let plan = Plan::new(&problem, &config, context.info().chip())?;
        let bed = GpuBed::new(&stream, &tools, &problem, plan.workspace_bytes())?;
        let drawn = Drawn::new(&Case::new("", problem.clone()))?;
        for conduct in Conduct::ALL {
            let expected = conduct.reason();
            if expected.is_none() && conduct != Conduct::Honest {
                continue;
            }
            let planted = |place: usize| -> Result<Box<dyn Subject + '_>, Box<dyn Error>> {
                let bound =
                    |stream, place| KernelSubject::new(stream, &plan, &[bed.tensors(place)], &[], Launching::Plain);
                if matches!(conduct, Conduct::NotJoined | Conduct::NotWaiting) {
                    return Ok(Box::new(OtherStream {
                        conduct,
                        honest: bound(&other, place)?,
                        given: &stream,
                        other: &other,
                        tools: &tools,
                    }));
                }
                let bound_to = if conduct == Conduct::PointerReplay { 0 } else { place };
                let honest = bound(&stream, bound_to)?;
                Ok(Box::new(Planted::new(
                    conduct,
                    honest,
                    &bed,
                    place,
                    InFinals::default(),
                )))
            };
            let (subject, at_other) = (planted(0)?, planted(1)?);
            let mut bench = Workbench::new(&bed, GpuStopwatch::new(&tools, &stream));
            bench.add(subject, Some(at_other));
            let found = bench.inspect(0, &drawn, inspect)?;
            println!("{conduct}: {found}");
            assert_eq!(found.rejected, expected, "{conduct}: {found}");
        }
        Ok(())
    });
}

#[test]
fn lines_that_survive_a_flush_show_in_the_times() {
    super::run(|context| {
        let stream = Stream::new(context)?;
        let tools = GpuTools::new(&stream)?;
        for hint in [false, true] {
            let (flushed, rotating) = cold(&stream, &tools, context.info().chip(), hint)?;
            let times = format!("{flushed:.1} µs after a flush, {rotating:.1} µs on memory never cached");
            println!("{times}");
            assert_eq!(persists(flushed, rotating), hint, "{times}");
        }
        Ok(())
    });
}

#[test]
fn the_kernel_that_keeps_its_lines_assembles() {
    let kernel = &decode_plan(Target::Sm90a.into()).unwrap().main.kernel;
    match assemble(
        &with_hints(&kernel.to_ptx()),
        kernel.name(),
        Target::Sm90a,
        &Assembler::default(),
    ) {
        Ok(_) => {}
        Err(Unknown::NoAssembler) => eprintln!("skipped: there is no ptxas"),
        Err(refused) => panic!("{refused}"),
    }
}

/// Decode over 8 MB of K and V: all that the kernel reads, and much less than L2 holds.
fn decode_plan(chip: Chip) -> Result<Plan, Box<dyn Error>> {
    let builder = Problem::builder().heads(32, 32).head_dim(64);
    let problem = builder.seq_len_q(1).seq_len_kv(1024).build()?;
    Ok(Plan::new(&problem, &"scalar/naive-t64-v16".parse()?, chip)?)
}

/// Times a decode kernel cold in both ways; with `hint`, its loads ask L2 to keep the lines through
/// anything.
fn cold(stream: &Stream, tools: &GpuTools, chip: Chip, hint: bool) -> Result<(f64, f64), Box<dyn Error>> {
    let plan = decode_plan(chip)?;
    let problem = &plan.problem;
    let mut ptx = plan.main.kernel.to_ptx();
    if hint {
        ptx = with_hints(&ptx);
    }
    let module = launch::load(stream.context(), &ptx, &ModuleOptions::default())?;
    let function = module.function(plan.main.kernel.name())?;
    let bytes = flashcore_bench::problems::least_bytes(problem);
    let count = (2.5 * f64::from(stream.context().info().l2_bytes) / bytes).ceil() as usize;
    let inputs = draw(problem, InputKind::Normal, 1);
    let sets = (0..count)
        .map(|_| {
            let set = TensorSet::new(stream, problem, 0)?;
            set.upload(stream, &inputs)?;
            Ok(set)
        })
        .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let launches = sets.iter().map(|set| {
        let tensors = set.tensors();
        let buffers = ["q", "k", "v", "out"].map(|name| tensors.named(name).unwrap());
        launch::prepare(&function, &plan.main.launch, &buffers)
    });
    let launches = launches.collect::<Result<Vec<_>, _>>()?;
    let subject = |launches| Sets {
        info: SubjectInfo::new("decode", LaunchMode::Plain),
        stream,
        launches,
    };
    let (mut flushed, mut rotating) = (subject(launches[..1].to_vec()), subject(launches));
    let mut stopwatch = GpuStopwatch::new(tools, stream);
    Ok(time_cold(&mut stopwatch, &mut flushed, &mut rotating)?)
}

/// A kernel on many sets of inputs.
struct Sets<'a> {
    info: SubjectInfo,
    stream: &'a Stream,
    launches: Vec<PreparedLaunch<'a>>,
}

impl Subject for Sets<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }
    fn call(&mut self) -> Result<(), Trouble> {
        self.run_once(0)
    }
    fn run_once(&mut self, set: usize) -> Result<(), Trouble> {
        Ok(launch::enqueue(&self.launches[set], self.stream)?)
    }
    fn input_sets(&self) -> usize {
        self.launches.len()
    }
}

/// The same PTX, every global load with an L2 policy of `evict_last`.
fn with_hints(ptx: &str) -> String {
    let mut out = String::new();
    for line in ptx.lines() {
        let text = line.trim_start();
        if text.starts_with(".version") {
            // The policy is of PTX 7.4.
            out.push_str(".version 8.0\n");
        } else if let Some(rest) = text.strip_prefix("ld.global") {
            let (nc, rest) = rest.strip_prefix(".nc").map_or(("", rest), |rest| (".nc", rest));
            let rest = rest.trim_end().trim_end_matches(';');
            out.push_str(&format!("\tld.global{nc}.L2::cache_hint{rest}, %keep;\n"));
        } else {
            out.push_str(line);
            out.push('\n');
            // The body of the kernel begins with a line that is an opening brace.
            if text == "{" {
                out.push_str("\t.reg .b64 %keep;\n\tcreatepolicy.fractional.L2::evict_last.b64 %keep, 1.0;\n");
            }
        }
    }
    out
}
