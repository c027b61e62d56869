//! The worker's side: reads commands, does them one after the other, answers.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use flashcore_bench::defences::{Output, census};
use flashcore_bench::{BenchError, Trouble, draw, executable, revision};
use flashcore_cuda::Context;
use flashcore_problem::{InputKind, Inputs, Problem, Tensor};
use rayon::prelude::*;

use super::devices::{Bench, Cpu, Device, Replay, failed};
use super::gpu::Gpu;
use super::protocol::{Answer, Ask, Command, Failed, Form, Hello, PROTOCOL, Said, Step, Unwritten, What};
use crate::replay::Measured;
use crate::trial::Verdict;

/// Serves a parent on these streams until the input ends, or until `gone` is called because it did while a command was
/// going on: then nobody waits for the answer any more, and a kernel that never ends would keep the process.
///
/// # Errors
/// What the output says when it cannot be written.
pub fn serve(
    input: impl Read + Send + 'static,
    output: impl Write,
    gone: impl Fn() + Send + 'static,
) -> std::io::Result<()> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(input).lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                return;
            }
        }
        drop(sender);
        gone();
    });
    let mut session = Session {
        lines,
        output,
        inputs: Recent::default(),
    };
    session.run()
}

/// Input sets kept, so that what is loaded again is not drawn again: all that a candidate meets in a run and in the finals.
const RECENT_INPUTS: usize = 16;
/// Bytes of them at most, beside the one that is loaded.
const RECENT_BYTES: usize = 8 << 30;

/// Inputs drawn of late.
#[derive(Default)]
struct Recent {
    drawn: VecDeque<((Problem, InputKind, u64), Inputs)>,
    /// How many were drawn.
    count: usize,
}

impl Recent {
    fn get(&mut self, problem: &Problem, kind: InputKind, seed: u64) -> &Inputs {
        let key = (problem.clone(), kind, seed);
        let found = self.drawn.iter().position(|(known, _)| *known == key);
        let entry = match found.and_then(|at| self.drawn.remove(at)) {
            Some(entry) => entry,
            None => {
                self.count += 1;
                (key, draw(problem, kind, seed))
            }
        };
        self.drawn.truncate(RECENT_INPUTS - 1);
        let bytes = |inputs: &Inputs| [&inputs.q, &inputs.k, &inputs.v].map(|tensor| tensor.bytes().len());
        let mut kept = 0;
        self.drawn.retain(|(_, inputs)| {
            kept += bytes(inputs).iter().sum::<usize>();
            kept <= RECENT_BYTES
        });
        self.drawn.push_front(entry);
        &self.drawn[0].1
    }
}

struct Session<W> {
    lines: Receiver<String>,
    output: W,
    inputs: Recent,
}

impl<W: Write> Session<W> {
    /// The next command; what cannot be read is answered and passed over. `None` at the end.
    fn next(&mut self) -> std::io::Result<Option<Ask>> {
        while let Ok(line) = self.lines.recv() {
            match serde_json::from_str(&line) {
                Ok(ask) => return Ok(Some(ask)),
                Err(error) => {
                    let reason = format!("`{line}` is no command: {error}");
                    self.answer(0, Said::Failed(failed(Verdict::Refused, None, reason)))?;
                }
            }
        }
        Ok(None)
    }

    fn answer(&mut self, id: u64, said: Said) -> std::io::Result<()> {
        let line = serde_json::to_string(&Answer { id, said })?;
        writeln!(self.output, "{line}")?;
        self.output.flush()
    }

    fn run(&mut self) -> std::io::Result<()> {
        let device = loop {
            let Some(ask) = self.next()? else { return Ok(()) };
            let Command::Hello { protocol, device } = &ask.command else {
                let reason = "the first command is `hello`";
                self.answer(ask.id, Said::Failed(failed(Verdict::Refused, None, reason)))?;
                continue;
            };
            match take(*protocol, device) {
                Ok(device) => {
                    let hello = Hello {
                        protocol: PROTOCOL,
                        revision: revision().to_string(),
                        executable: executable().to_string(),
                        device: device.identity(),
                        computes: device.computes(),
                    };
                    self.answer(ask.id, Said::Hello(Box::new(hello)))?;
                    break device;
                }
                Err(reason) => {
                    let refused = Failed {
                        fatal: true,
                        ..failed(Verdict::Refused, None, reason)
                    };
                    self.answer(ask.id, Said::Failed(refused))?;
                }
            }
        };
        let mut pending = None;
        loop {
            let ask = match pending.take() {
                Some(ask) => ask,
                None => match self.next()? {
                    Some(ask) => ask,
                    None => return Ok(()),
                },
            };
            match ask.command {
                Command::Open { problem, kernels } => {
                    let mut outcome = Ok(None);
                    device.open(&problem, &kernels, &mut |bench| {
                        outcome = self.work(ask.id, &*device, &problem, bench);
                    });
                    match outcome? {
                        Some(next) => pending = Some(next),
                        None => return Ok(()),
                    }
                }
                Command::Compile { problem, kernels } => {
                    device.compile(&problem, &kernels);
                    self.answer(ask.id, Said::Done(()))?;
                }
                Command::Rates => self.answer(ask.id, rates(&*device))?,
                Command::Hello { .. } => {
                    let reason = "a device is taken already";
                    self.answer(ask.id, Said::Failed(failed(Verdict::Refused, None, reason)))?;
                }
                _ => {
                    let reason = "nothing is open";
                    self.answer(ask.id, Said::Failed(failed(Verdict::Refused, None, reason)))?;
                }
            }
        }
    }

    /// Works on what is open, until something else is to be opened: that command is returned.
    fn work(
        &mut self,
        id: u64,
        device: &dyn Device,
        problem: &Problem,
        bench: Result<&mut dyn Bench, Failed>,
    ) -> std::io::Result<Option<Ask>> {
        let bench = match bench {
            Ok(bench) => bench,
            Err(failed) => {
                self.answer(id, Said::Failed(failed))?;
                return self.next();
            }
        };
        self.answer(id, Said::Opened(bench.opened()))?;
        while let Some(ask) = self.next()? {
            let said = match ask.command {
                Command::Open { .. } | Command::Hello { .. } => return Ok(Some(ask)),
                Command::Compile { problem, kernels } => {
                    device.compile(&problem, &kernels);
                    Said::Done(())
                }
                Command::Time {
                    baseline,
                    mode,
                    options,
                } => match bench.time(baseline, mode, &options) {
                    Ok(measurement) => Said::Measured(Box::new(measurement)),
                    Err(error) => Said::Failed(Failed {
                        fatal: matches!(error, BenchError::Device { .. }),
                        ..failed(Verdict::LaunchFailed, None, error)
                    }),
                },
                Command::Rates => rates(device),
                Command::Steps { steps } => {
                    let mut steps = steps.into_iter();
                    said(
                        steps
                            .try_for_each(|step| self.step(problem, bench, step))
                            .map(Said::Done),
                    )
                }
                Command::Read { place, what, form } => said(read(bench, place, what, &form)),
                Command::Outside => said(bench.outside().map(Said::Outside)),
            };
            self.answer(ask.id, said)?;
        }
        Ok(None)
    }

    fn step(&mut self, problem: &Problem, bench: &mut dyn Bench, step: Step) -> Result<(), Trouble> {
        match step {
            Step::Load { place, kind, seed } => {
                let kind = InputKind::from_name(&kind)
                    .ok_or_else(|| Trouble::new(format!("`{kind}` is no kind of inputs")))?;
                bench.load(place, self.inputs.get(problem, kind, seed))
            }
            Step::Poison { place } => bench.poison(place),
            Step::Pause => bench.pause(),
            Step::Run { kernel, place } => bench.run(kernel, place),
            Step::Snapshot { place } => bench.snapshot(place),
            Step::Finish => bench.finish(),
        }
    }
}

/// Measures what a device gives.
fn rates(device: &dyn Device) -> Said {
    match device.rates() {
        Ok(()) => Said::Done(()),
        Err(reason) => Said::Failed(failed(Verdict::Refused, None, reason)),
    }
}

/// An answer, or the trouble there was.
fn said(found: Result<Said, Trouble>) -> Said {
    found.unwrap_or_else(|trouble| {
        Said::Failed(Failed {
            fatal: trouble.fatal,
            ..failed(Verdict::LaunchFailed, None, trouble)
        })
    })
}

/// Writes a file, and then there is this to say.
fn written(file: &Path, bytes: &[u8], then: Said) -> Said {
    match std::fs::write(file, bytes) {
        Ok(()) => then,
        Err(error) => Said::Unwritten(Unwritten {
            file: file.to_path_buf(),
            reason: error.to_string(),
        }),
    }
}

/// Gives what was written to a place.
fn read(bench: &mut dyn Bench, place: usize, what: What, form: &Form) -> Result<Said, Trouble> {
    let bytes = |bytes: &[u8]| match form {
        Form::Bytes { file } | Form::Rows { file, .. } => written(file, bytes, Said::Done(())),
        Form::Digest => Said::Digest(digest(bytes)),
    };
    if what == What::Lse {
        let lse = bench.read_lse(place)?;
        let values: Vec<u8> = lse.iter().flatten().flat_map(|value| value.to_ne_bytes()).collect();
        return Ok(bytes(&values));
    }
    let mut found = Err(Trouble::new("nothing was read"));
    let output = match what {
        What::Snapshot => Output::Snapshot,
        _ => Output::Final,
    };
    bench.see(place, output, &mut |out| {
        found = match form {
            Form::Rows { rows, file } => {
                bytes_of_rows(out, rows).map(|bytes| written(file, &bytes, Said::Looked(census(&out.view()))))
            }
            Form::Bytes { .. } | Form::Digest => Ok(bytes(out.bytes())),
        };
    })?;
    found
}

/// The elements of rows, one row after the other.
fn bytes_of_rows(out: &Tensor, rows: &[[usize; 3]]) -> Result<Vec<u8>, Trouble> {
    let (layout, size) = (out.layout(), out.dtype().size_bytes());
    let [batch, queries, heads, columns] = layout.shape;
    let mut bytes = Vec::with_capacity(rows.len() * columns * size);
    for &[b, h, s] in rows {
        if b >= batch || h >= heads || s >= queries {
            return Err(Trouble::new(format!("there is no row {s} of head {h} of sequence {b}")));
        }
        let at = layout.offset(b, s, h, 0) * size;
        bytes.extend_from_slice(&out.bytes()[at..at + columns * size]);
    }
    Ok(bytes)
}

/// Bytes that one core looks at: of fewer, waking another takes longer.
const DIGESTED_BYTES: usize = 1 << 20;

/// A number that is the same for the same bytes, as hexadecimal digits.
fn digest(bytes: &[u8]) -> String {
    let of_part = |part: &[u8]| {
        let mut hasher = DefaultHasher::new();
        hasher.write(part);
        hasher.finish()
    };
    let parts: Vec<u64> = bytes.par_chunks(DIGESTED_BYTES).map(of_part).collect();
    let mut hasher = DefaultHasher::new();
    parts.iter().for_each(|part| hasher.write_u64(*part));
    format!("{:016x}", hasher.finish())
}

fn take(protocol: u32, device: &str) -> Result<Box<dyn Device>, String> {
    if protocol != PROTOCOL {
        return Err(format!("protocol {protocol}; this worker speaks {PROTOCOL}"));
    }
    if device == "cpu" {
        return Ok(Box::new(Cpu));
    }
    if let Some(path) = device.strip_prefix("replay:") {
        let measured = match path {
            "shipped" => Measured::shipped(),
            path => std::fs::read_to_string(path)
                .map_err(|error| format!("{path}: {error}"))
                .map(|text| Measured::read(&text, path))?,
        };
        let measured = measured.map_err(|error| error.to_string())?;
        let mut identity = measured.identity.device;
        identity.device = device.to_string();
        return Ok(Box::new(Replay {
            identity,
            tables: measured.tables,
        }));
    }
    let ordinal = device.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok());
    let ordinal = ordinal.ok_or_else(|| format!("`{device}` is no device; known are cpu, cuda:N, replay:FILE"))?;
    let context = Context::new(ordinal).map_err(|error| error.to_string())?;
    let gpu = Gpu::take(context).map_err(|error| error.to_string())?;
    Ok(Box::new(gpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a worker answers to these lines.
    fn answers(lines: &[String]) -> Vec<Answer> {
        let input = std::io::Cursor::new(lines.join("\n").into_bytes());
        let mut output = Vec::new();
        serve(input, &mut output, || {}).unwrap();
        let text = String::from_utf8(output).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn ask(id: u64, command: Command) -> String {
        serde_json::to_string(&Ask { id, command }).unwrap()
    }

    #[test]
    fn a_session_on_the_host() {
        let problem = Problem::named("tiny").unwrap();
        let file = std::env::temp_dir().join(format!("flashcore-serve-{}", std::process::id()));
        let hello = Command::Hello {
            protocol: PROTOCOL,
            device: "cpu".to_string(),
        };
        let open = |id: &str| Command::Open {
            problem: problem.clone(),
            kernels: vec![id.to_string()],
        };
        let steps = |steps: &[Step]| Command::Steps { steps: steps.to_vec() };
        let run = |kernel| Step::Run { kernel, place: 0 };
        let computed = steps(&[
            Step::Load {
                place: 0,
                kind: "normal".to_string(),
                seed: 5,
            },
            Step::Poison { place: 0 },
            run(0),
            Step::Finish,
        ]);
        let read = |what, form| Command::Read { place: 0, what, form };
        let bytes = |file: &Path| Form::Bytes {
            file: file.to_path_buf(),
        };
        // A folder is no file.
        let unwritable = std::env::temp_dir();
        let rows = Form::Rows {
            rows: vec![[0, 0, 0]],
            file: unwritable.clone(),
        };
        let nowhere = [
            read(What::Output, bytes(&unwritable)),
            read(What::Lse, bytes(&unwritable)),
            read(What::Output, rows),
        ];
        let digest = || read(What::Output, Form::Digest);
        let commands = [
            hello,
            steps(&[Step::Finish]),
            open("mma/x"),
            open("cpu/m16n16"),
            computed,
        ]
        .into_iter()
        .chain([read(What::Output, bytes(&file)), digest(), steps(&[run(0)]), digest()])
        .chain([
            steps(&[Step::Poison { place: 0 }]),
            digest(),
            steps(&[run(3)]),
            Command::Rates,
        ])
        .chain(nowhere);
        let mut lines: Vec<String> = commands
            .enumerate()
            .map(|(id, command)| ask(id as u64, command))
            .collect();
        lines.push("what?".to_string());
        let answers = answers(&lines);
        assert_eq!(answers.len(), 17);
        assert!(matches!(&answers[0].said, Said::Hello(hello) if hello.computes && hello.device.device == "cpu"));
        for (at, reason) in [
            (1, "nothing is open"),
            (2, "no kernel"),
            (11, "kernel 3 of 1"),
            (12, "only GPUs"),
            (16, "what?"),
        ] {
            assert!(
                matches!(&answers[at].said, Said::Failed(failed) if failed.reason.contains(reason)),
                "{answers:?}"
            );
        }
        assert!(matches!(&answers[3].said, Said::Opened(opened) if opened[0].id == "cpu/m16n16"));
        for done in [4, 5, 7, 9] {
            assert_eq!(answers[done].said, Said::Done(()), "{done}");
        }
        // The same answer twice, and another one.
        assert!(matches!(&answers[6].said, Said::Digest(_)), "{answers:?}");
        assert!(answers[6].said == answers[8].said && answers[6].said != answers[10].said);
        let is_unwritten = |said: &Said| matches!(said, Said::Unwritten(unwritten) if unwritten.file == unwritable);
        assert!(
            answers[13..16].iter().all(|answer| is_unwritten(&answer.said)),
            "{answers:?}"
        );
        let mut out = flashcore_problem::Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
        out.bytes_mut().copy_from_slice(&std::fs::read(&file).unwrap());
        std::fs::remove_file(&file).unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 5);
        assert!(
            flashcore_check::gate(&problem, &inputs, &out, None, 0)
                .unwrap()
                .passed()
        );
    }

    #[test]
    fn what_a_run_loads_is_drawn_once() {
        let (small, large) = (Problem::named("tiny").unwrap(), Problem::named("mission").unwrap());
        let mut recent = Recent::default();
        for candidate in 0..8u64 {
            for (at, kind) in InputKind::ALL.into_iter().enumerate().skip(1) {
                recent.get(&small, kind, at as u64);
            }
            for role in 0..4 {
                recent.get(&large, InputKind::Normal, (candidate + role) % 6);
            }
        }
        assert_eq!(recent.count, InputKind::ALL.len() - 1 + 6);
    }

    #[test]
    fn another_protocol_and_no_device_are_refused() {
        for (protocol, device, said) in [(99, "cpu", "speaks 6"), (PROTOCOL, "tpu", "no device")] {
            let device = device.to_string();
            let answers = answers(&[ask(1, Command::Hello { protocol, device })]);
            assert!(matches!(&answers[0].said, Said::Failed(failed) if failed.fatal && failed.reason.contains(said)));
        }
    }
}
