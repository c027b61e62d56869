//! Kernels that cheat, on a real GPU, each to be rejected for its own reason.
//!
//! usage: cheats [PROBLEM | --ptx]
//!
//! The problem is an fp16 one, `mission` where none is named. `--ptx` prints the kernel that keeps lines in L2, for an
//! offline assembler; that needs no GPU.
//!
//! Exits with 1 if any cheat passes, or is rejected for another reason than its own, or honest work is rejected.

use std::error::Error;

use flashcore::{Config, Context, DeviceBuffer, DeviceSlice, Event, Problem, Stream};
use flashcore_bench::defences::{Reason, inspect, judge_cold, time_cold};
use flashcore_bench::gpu::{ClosureSubject, GpuBed, GpuRig, GpuStopwatch, GpuTools, TensorSet};
use flashcore_bench::{HostInputs, LaunchMode, Subject, SubjectInfo, Trouble};
use flashcore_cuda::{CudaError, Function, Module, ModuleOptions, PreparedLaunch};
use flashcore_ir::{Arg, BufferSpec, BuildErrors, Chip, Kernel, Launch, Target};
use flashcore_kernels::Plan;

const THREADS: u32 = 256;

/// Writes one word over the whole output: zeros, or a NaN that is not the poison.
fn fill_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("cheat_fill", THREADS, |k| {
        let out = k.param_ptr_mut::<u32>("out");
        let words = k.param::<u32>("words");
        let value = k.param::<u32>("value");
        let i = k.block_idx(0) * THREADS + k.thread_idx();
        k.if_(i.lt(words).divergent(), || out.offset(i).store(value));
    })
}

/// Copies an answer kept from before.
fn copy_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("cheat_copy", THREADS, |k| {
        let kept = k.param_ptr::<u32>("kept");
        let out = k.param_ptr_mut::<u32>("out");
        let words = k.param::<u32>("words");
        let i = k.block_idx(0) * THREADS + k.thread_idx();
        k.if_(i.lt(words).divergent(), || out.offset(i).store(kept.offset(i).load()));
    })
}

/// Copies it only where nothing but poison is, as a kernel that does nothing on output that looks computed.
fn mend_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("cheat_mend", THREADS, |k| {
        let kept = k.param_ptr::<u32>("kept");
        let out = k.param_ptr_mut::<u32>("out");
        let words = k.param::<u32>("words");
        let i = k.block_idx(0) * THREADS + k.thread_idx();
        k.if_(i.lt(words).divergent(), || {
            let now = out.offset(i).load();
            k.if_(now.eq(u32::MAX).divergent(), || {
                out.offset(i).store(kept.offset(i).load());
            });
        });
    })
}

/// A launch of one of the kernels above over the words of an output.
fn launch(bytes: usize, names: &[&'static str], rest: &[Arg]) -> Launch {
    let words = (bytes / 4) as u32;
    let buffers = names.iter().map(|&name| BufferSpec {
        name,
        bytes: bytes as u64,
        written: name == "out",
        align: 4,
    });
    let pointers = (0..names.len()).map(|slot| Arg::Buffer { slot, byte_offset: 0 });
    Launch {
        grid: [words.div_ceil(THREADS), 1, 1],
        block: [THREADS, 1, 1],
        cluster: [1; 3],
        dynamic_shared_bytes: 0,
        buffers: buffers.collect(),
        args: pointers.chain([Arg::U32(words)]).chain(rest.iter().cloned()).collect(),
    }
}

/// Everything that cheats are made of.
struct Workshop<'a> {
    stream: &'a Stream,
    other: &'a Stream,
    tools: &'a GpuTools,
    bed: &'a GpuBed,
    /// The honest kernel at each place.
    honest: [PreparedLaunch<'a>; 2],
    /// The same with a block fewer.
    short: [PreparedLaunch<'a>; 2],
    kept: &'a DeviceBuffer,
    fill: Function,
    copy: Function,
    mend: Function,
    events: [Event; 2],
}

type Made<'a> = Result<Box<dyn Subject + 'a>, Box<dyn Error>>;

impl<'a> Workshop<'a> {
    fn subject(&'a self, label: &str, work: impl FnMut(&Stream) -> Result<(), CudaError> + 'a) -> Made<'a> {
        let info = SubjectInfo::new(label, LaunchMode::Plain);
        Ok(Box::new(ClosureSubject::new(info, self.stream, 1, false, work)?))
    }

    fn out(&self, place: usize) -> DeviceSlice<'a> {
        self.bed.tensors(place).out
    }

    /// The subject of a name, bound to a place.
    fn make(&'a self, name: &str, place: usize) -> Made<'a> {
        let (honest, out) = (&self.honest[place], self.out(place));
        let bytes = out.len();
        let filled = |value: u32| {
            move |stream: &Stream| {
                let launch = launch(bytes, &["out"], &[Arg::U32(value)]);
                self.fill.run(stream, &launch, &[out])
            }
        };
        match name {
            "honest" => self.subject(name, |stream| honest.enqueue(stream)),
            "unwritten" => self.subject(name, move |stream| self.short[place].enqueue(stream)),
            "zeros" => self.subject(name, filled(0)),
            // Two fp16 NaNs a word.
            "nan" => self.subject(name, filled(0x7e00_7e00)),
            "cached" | "mended" => {
                let by = if name == "cached" { &self.copy } else { &self.mend };
                let mut first = true;
                self.subject(name, move |stream| {
                    if std::mem::take(&mut first) {
                        honest.enqueue(stream)?;
                        return self.kept.as_slice().copy_from(stream, out);
                    }
                    let launch = launch(bytes, &["kept", "out"], &[]);
                    by.run(stream, &launch, &[self.kept.as_slice(), out])
                })
            }
            // Whatever it is given, it works on the first buffers.
            "replay" => self.subject(name, |stream| self.honest[0].enqueue(stream)),
            // Forks properly, works elsewhere for a while, and never comes back.
            "not-joined" => self.subject(name, move |stream| {
                self.events[0].record(stream)?;
                self.other.wait_for(&self.events[0])?;
                self.tools.spin(self.other, 2_000.0)?;
                honest.enqueue(self.other)
            }),
            // Comes back, but never waited for what was ahead of it.
            "not-waiting" => self.subject(name, move |stream| {
                honest.enqueue(self.other)?;
                self.events[1].record(self.other)?;
                stream.wait_for(&self.events[1])
            }),
            other => Err(format!("no cheat is named {other}").into()),
        }
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let argument = crate::arguments().next();
    if argument.as_deref() == Some("--ptx") {
        print!(
            "{}",
            with_hints(&decode_plan(Target::Sm90a.into())?.main.kernel.to_ptx())
        );
        return Ok(());
    }
    let problem = Problem::named(argument.as_deref().unwrap_or("mission"))?;
    let context = match Context::new(0) {
        Ok(context) => context,
        Err(error) => {
            println!("cheats need a GPU: {error}");
            return Ok(());
        }
    };
    let (stream, other) = (Stream::new(&context)?, Stream::new(&context)?);
    let tools = GpuTools::new(&stream)?;
    let chip = context.info().chip();
    let config: Config = "scalar/naive-t128-v16".parse()?;
    let plan = Plan::new(&problem, &config, chip)?;
    let bed = GpuBed::new(&stream, &problem, plan.workspace_bytes())?;
    let load = |kernel: &Kernel| Function::load(&context, kernel, &ModuleOptions::default());
    let function = load(&plan.main.kernel)?;
    let bind = |launch: &Launch, place: usize| {
        let t = bed.tensors(place);
        function.prepare(launch, &[t.q, t.k, t.v, t.out])
    };
    let mut fewer = plan.main.launch.clone();
    fewer.grid[0] -= 1;
    let kept = DeviceBuffer::new(&context, bed.tensors(0).out.len())?;
    let workshop = Workshop {
        stream: &stream,
        other: &other,
        tools: &tools,
        bed: &bed,
        honest: [bind(&plan.main.launch, 0)?, bind(&plan.main.launch, 1)?],
        short: [bind(&fewer, 0)?, bind(&fewer, 1)?],
        kept: &kept,
        fill: load(&fill_kernel()?)?,
        copy: load(&copy_kernel()?)?,
        mend: load(&mend_kernel()?)?,
        events: [Event::new(&context)?, Event::new(&context)?],
    };

    let mut wrong = 0;
    let mut report = |name: &str, expected: Option<Reason>, found: Option<Reason>, detail: &str| {
        let right = found == expected;
        wrong += u32::from(!right);
        let verdict = found.map_or("passes", Reason::name);
        println!(
            "{} {name:<12} {verdict:<17} {detail}",
            if right { "ok   " } else { "WRONG" }
        );
    };
    for (name, expected) in [
        ("honest", None),
        ("unwritten", Some(Reason::Unwritten)),
        ("zeros", Some(Reason::Zeros)),
        ("nan", Some(Reason::NotANumber)),
        ("cached", Some(Reason::Cached)),
        ("mended", Some(Reason::Cached)),
        ("replay", Some(Reason::PointerReplay)),
        ("not-joined", Some(Reason::OtherStream)),
        ("not-waiting", Some(Reason::OtherStream)),
    ] {
        let (mut subject, mut elsewhere) = (workshop.make(name, 0)?, workshop.make(name, 1)?);
        let mut rig = GpuRig {
            bed: &bed,
            stream: &stream,
            tools: &tools,
            subject: &mut *subject,
            elsewhere: Some(&mut *elsewhere),
        };
        let found = inspect(&mut rig)?;
        report(name, expected, found.rejected, &found.detail);
    }
    for (name, hint, expected) in [
        ("cold", false, None),
        ("persisting", true, Some(Reason::PersistingCache)),
    ] {
        let (flushed, rotating) = cold(&stream, &tools, chip, hint)?;
        let found = judge_cold(flushed, rotating).map(|(reason, _)| reason);
        let detail = format!("{flushed:.1} µs after a flush, {rotating:.1} µs on memory never cached");
        report(name, expected, found, &detail);
    }
    if wrong > 0 {
        println!("{wrong} wrong");
        std::process::exit(1);
    }
    Ok(())
}

/// Decode over 8 MB of K and V: small beside L2, and all there is to read.
fn decode_plan(chip: Chip) -> Result<Plan, Box<dyn Error>> {
    let problem = Problem::builder()
        .heads(32, 32)
        .seq_len_q(1)
        .seq_len_kv(1024)
        .head_dim(64)
        .build()?;
    Ok(Plan::new(&problem, &"scalar/naive-t64-v16".parse()?, chip)?)
}

/// Times a decode kernel cold in both ways; with `hint`, its loads ask L2 to keep the lines through anything.
fn cold(stream: &Stream, tools: &GpuTools, chip: Chip, hint: bool) -> Result<(f64, f64), Box<dyn Error>> {
    let plan = decode_plan(chip)?;
    let problem = &plan.problem;
    let ptx = if hint {
        with_hints(&plan.main.kernel.to_ptx())
    } else {
        plan.main.kernel.to_ptx()
    };
    let module = Module::load(stream.context(), &ptx, &ModuleOptions::default())?;
    let function = module.function(plan.main.kernel.name())?;
    let bytes = flashcore_bench::problems::least_bytes(problem);
    let count = (2.5 * f64::from(stream.context().info().l2_bytes) / bytes).ceil() as usize;
    let inputs = HostInputs::draw(problem, 1);
    let sets = (0..count)
        .map(|_| {
            let set = TensorSet::new(stream, problem, 0)?;
            set.upload(stream, &inputs)?;
            Ok(set)
        })
        .collect::<Result<Vec<_>, Box<dyn Error>>>()?;
    let launches = sets
        .iter()
        .map(|set| bound(&function, &plan.main.launch, set))
        .collect::<Result<Vec<_>, CudaError>>()?;
    let subject = |launches| Sets {
        info: SubjectInfo::new("decode", LaunchMode::Plain),
        stream,
        launches,
    };
    let (mut flushed, mut rotating) = (subject(launches[..1].to_vec()), subject(launches));
    let mut stopwatch = GpuStopwatch::new(tools, stream);
    Ok(time_cold(&mut stopwatch, &mut flushed, &mut rotating)?)
}

/// A launch bound to a set of tensors.
fn bound<'a>(function: &Function, launch: &Launch, set: &'a TensorSet) -> Result<PreparedLaunch<'a>, CudaError> {
    let t = set.tensors();
    function.prepare(launch, &[t.q, t.k, t.v, t.out])
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
            // The body of the kernel opens with a brace on a line of its own.
            if text == "{" {
                out.push_str("\t.reg .b64 %keep;\n\tcreatepolicy.fractional.L2::evict_last.b64 %keep, 1.0;\n");
            }
        }
    }
    out
}
