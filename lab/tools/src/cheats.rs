//! Kernels that cheat, on a GPU: the bench must reject each for the right reason.

use std::error::Error;

use flashcore::Problem;
use flashcore::cuda::{Context, Stream};
use flashcore::plans::Config;
use flashcore::testing::InputKind;
use flashcore_bench::bed::{Drawn, Moment, Workbench};
use flashcore_bench::defences::{Reason, judge_cold, time_cold};
use flashcore_bench::gpu::{GpuBed, GpuStopwatch, GpuTools, KernelSubject, Launching, TensorSet};
use flashcore_bench::planted::{Conduct, Elsewhere, InFinals, Planted};
use flashcore_bench::{LaunchMode, Subject, SubjectInfo, Trouble, draw};
use flashcore_cuda::{Module, ModuleOptions, PreparedLaunch};
use flashcore_ir::{Chip, Target};
use flashcore_kernels::Plan;

/// Runs kernels that cheat; fails if one passes, is rejected for a wrong reason, or an honest one
/// is rejected.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// An fp16 problem.
    #[arg(default_value = "mission")]
    problem: String,
    /// Print the kernel that keeps lines in L2, for an offline assembler; needs no GPU.
    #[arg(long)]
    ptx: bool,
}

pub(crate) fn main(options: &Options) -> crate::Ran {
    if options.ptx {
        let plan = decode_plan(Target::Sm90a.into())?;
        print!("{}", with_hints(&plan.main.kernel.to_ptx()));
        return crate::verdict(true);
    }
    let problem = Problem::named(&options.problem)?;
    let context = Context::new(0)?;
    let (stream, other) = (Stream::new(&context)?, Stream::new(&context)?);
    let tools = GpuTools::new(&stream)?;
    let chip = context.info().chip();
    let config: Config = "scalar/naive-t128-v16".parse()?;
    let plan = Plan::new(&problem, &config, chip)?;
    let bed = GpuBed::new(&stream, &tools, &problem, plan.workspace_bytes())?;
    let drawn = Drawn::new(&problem)?;
    let elsewhere = Elsewhere {
        given: &stream,
        other: &other,
        tools: &tools,
    };

    let mut wrong = 0;
    let mut report = |name: &str, expected: Option<Reason>, found: Option<Reason>, detail: &str| {
        wrong += u32::from(found != expected);
        let verdict = found.map_or("passes", Reason::name);
        let right = if found == expected { "ok   " } else { "WRONG" };
        println!("{right} {name:<20} {verdict:<17} {detail}");
    };
    for conduct in Conduct::ALL {
        let expected = conduct.reason();
        let is_of_lse = matches!(conduct, Conduct::WrongLse | Conduct::UnwrittenLse);
        if (expected.is_none() && conduct != Conduct::Honest) || (is_of_lse && !problem.return_lse()) {
            continue;
        }
        let planted = |place: usize| -> Result<Planted<'_>, Box<dyn Error>> {
            let (bound_to, place) = match conduct {
                Conduct::NotJoined | Conduct::NotWaiting => (&other, place),
                Conduct::PointerReplay => (&stream, 0),
                _ => (&stream, place),
            };
            let honest = KernelSubject::new(bound_to, &plan, &[bed.tensors(place)], Launching::Plain)?;
            Ok(Planted::new(conduct, honest, &bed, place, InFinals::default()).with(elsewhere))
        };
        let (subject, at_other) = (planted(0)?, planted(1)?);
        let mut bench = Workbench::new(&bed, GpuStopwatch::new(&tools, &stream));
        bench.add(Box::new(subject), Some(Box::new(at_other)));
        let found = bench.inspect(0, &drawn, Moment::Before)?;
        report(conduct.name(), expected, found.rejected, &found.detail);
    }
    let persisting = Some(Reason::PersistingCache);
    for (name, hint, expected) in [("cold", false, None), ("persisting", true, persisting)] {
        let (flushed, rotating) = cold(&stream, &tools, chip, hint)?;
        let found = judge_cold(flushed, rotating).map(|(reason, _)| reason);
        let detail = format!("{flushed:.1} µs after a flush, {rotating:.1} µs on memory never cached");
        report(name, expected, found, &detail);
    }
    if wrong > 0 {
        println!("{wrong} wrong");
    }
    crate::verdict(wrong == 0)
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
    let module = Module::load(stream.context(), &ptx, &ModuleOptions::default())?;
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
        let t = set.tensors();
        function.prepare(&plan.main.launch, &[t.q, t.k, t.v, t.out])
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
        Ok(self.launches[set].enqueue(self.stream)?)
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
