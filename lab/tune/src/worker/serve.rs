//! The worker's side: reads commands, executes them in order, and answers each.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use flashcore_bench::defences::{Output, Rows, census_of};
use flashcore_bench::{BenchError, Trouble, Workbench, draw, executable, revision};
use flashcore_check::CheckOptions;
use flashcore_problem::{InputKind, Inputs, Problem, Tensor};
use rayon::prelude::*;

use super::devices::{Device, Open, Real};
use super::predicted::Card;
use super::protocol::{Answer, Ask, Command, Failed, Form, Hello, PROTOCOL, Said, What};
use super::replayed::Replay;
use crate::setup::{card, read_measured};
use crate::trial::Verdict;

/// Serves a parent on these streams until the input ends or the output cannot be written. `gone` is
/// called at the input's end, so that the caller can exit even while a kernel never ends.
pub fn serve(
    input: impl Read + Send + 'static,
    output: impl Write,
    gone: impl Fn() + Send + 'static,
) -> std::io::Result<()> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(input).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        drop(sender);
        gone();
    });
    let inputs = Recent::default();
    Session { lines, output, inputs }.run()
}

/// Sets of inputs to keep: all that a candidate gets in a run and in its finals.
const RECENT_INPUTS: usize = 16;
/// Most bytes of them, in addition to the loaded one.
const RECENT_BYTES: usize = 8 << 30;

#[derive(Default)]
struct Recent {
    drawn: VecDeque<((Problem, InputKind, u64), Inputs)>,
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
    /// `None` at the end of the input. A line that is no command is answered and skipped.
    fn next(&mut self) -> std::io::Result<Option<Ask>> {
        while let Ok(line) = self.lines.recv() {
            match serde_json::from_str(&line) {
                Ok(ask) => return Ok(Some(ask)),
                Err(error) => self.answer(0, refused(format!("`{line}` is no command: {error}")))?,
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
        let Some(device) = self.take()? else { return Ok(()) };
        let mut next = self.next()?;
        while let Some(Ask { id, command }) = next {
            next = match command {
                Command::Open {
                    problem,
                    seed,
                    own,
                    kernels,
                } => {
                    let mut after = Ok(None);
                    let work = &mut |open: Open<'_>| after = self.work(id, &*device, &problem, open);
                    match device.open(&problem, &kernels, (&own, seed), work) {
                        Ok(()) => after?,
                        Err(failed) => {
                            self.answer(id, Said::Failed(failed))?;
                            self.next()?
                        }
                    }
                }
                command => {
                    self.answer(id, of_device(&*device, &command))?;
                    self.next()?
                }
            };
        }
        Ok(())
    }

    /// Waits for the first command and takes the device; `None` at the end of the input.
    fn take(&mut self) -> std::io::Result<Option<Box<dyn Device>>> {
        while let Some(ask) = self.next()? {
            let Command::Hello { protocol, device } = &ask.command else {
                self.answer(ask.id, refused("the first command is `hello`"))?;
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
                    self.answer(ask.id, Said::ok(hello))?;
                    return Ok(Some(device));
                }
                Err(reason) => {
                    let failed = Failed::new(Verdict::Refused, None, reason).fatal(true);
                    self.answer(ask.id, Said::Failed(failed))?;
                }
            }
        }
        Ok(None)
    }

    fn work(
        &mut self,
        id: u64,
        device: &dyn Device,
        problem: &Problem,
        mut open: Open<'_>,
    ) -> std::io::Result<Option<Ask>> {
        self.answer(id, Said::ok(open.opened()))?;
        while let Some(ask) = self.next()? {
            let said = match &ask.command {
                Command::Open { .. } => return Ok(Some(ask)),
                Command::Time {
                    baseline,
                    mode,
                    options,
                } => match open.time(*baseline, *mode, options) {
                    Ok(measurement) => Said::ok(measurement),
                    Err(error) => {
                        let fatal = matches!(error, BenchError::Device(_));
                        Said::Failed(Failed::new(Verdict::LaunchFailed, None, error).fatal(fatal))
                    }
                },
                Command::Run { .. } | Command::Read { .. } | Command::Outside => {
                    let bench = open.bench();
                    let said = bench.and_then(|bench| self.on_bench(problem, bench, &ask.command));
                    said.unwrap_or_else(|trouble| {
                        let fatal = trouble.fatal;
                        Said::Failed(Failed::new(Verdict::LaunchFailed, None, trouble).fatal(fatal))
                    })
                }
                command => of_device(device, command),
            };
            self.answer(ask.id, said)?;
        }
        Ok(None)
    }

    fn on_bench(&mut self, problem: &Problem, bench: &mut Workbench<'_>, command: &Command) -> Result<Said, Trouble> {
        Ok(match command {
            Command::Run { kernel, kind, run } => {
                let inputs = run.load.map(|seed| self.inputs.get(problem, *kind, seed));
                bench.run(*kernel, run, inputs)?;
                Said::ok(())
            }
            Command::Read { place, what, form } => read(bench, *place, *what, form)?,
            Command::Outside => Said::ok(bench.bed.outside()?),
            _ => refused("it needs no kernel"),
        })
    }
}

fn refused(reason: impl ToString) -> Said {
    Said::Failed(Failed::new(Verdict::Refused, None, reason))
}

fn of_device(device: &dyn Device, command: &Command) -> Said {
    match command {
        Command::Compile { problem, kernels } => {
            device.compile(problem, kernels);
            Said::ok(())
        }
        Command::Simulate {
            problem,
            own,
            kind,
            seed,
            schedules,
            first_schedule,
        } => {
            let Some(own_of) = device.own() else {
                return refused("nothing simulates it here");
            };
            let options = CheckOptions {
                inputs: *kind,
                seed: *seed,
                schedules: *schedules,
                first_schedule: *first_schedule,
                ..CheckOptions::default()
            };
            let found = own_of.simulate(own, problem, &options);
            found.map_or_else(Said::Failed, Said::ok)
        }
        Command::Rates => device.rates().map_or_else(refused, Said::ok),
        Command::Hello { .. } => refused("a device is already taken"),
        _ => refused("nothing is open"),
    }
}

fn written(file: &Path, bytes: &[u8], then: Said) -> Said {
    match std::fs::write(file, bytes) {
        Ok(()) => then,
        Err(error) => Said::Unwritten {
            file: file.to_path_buf(),
            reason: error.to_string(),
        },
    }
}

fn read(bench: &Workbench<'_>, place: usize, what: What, form: &Form) -> Result<Said, Trouble> {
    let bytes = |bytes: &[u8]| match form {
        Form::Bytes { file } | Form::Rows { file, .. } => written(file, bytes, Said::ok(())),
        Form::Digest => Said::ok(digest(bytes)),
    };
    if what == What::Lse {
        let lse = bench.bed.read_lse(place)?;
        let values: Vec<u8> = lse.iter().flatten().flat_map(|value| value.to_ne_bytes()).collect();
        return Ok(bytes(&values));
    }
    let mut found = Err(Trouble::new("nothing was read"));
    let output = match what {
        What::Snapshot => Output::Snapshot,
        What::Output | What::Lse => Output::Final,
    };
    bench.bed.see(place, output, &mut |outs| {
        found = match form {
            Form::Rows { rows, file } => {
                let each = outs.iter().zip(rows).map(|(out, rows)| bytes_of_rows(out, rows));
                let all = each.collect::<Result<Vec<_>, _>>();
                all.map(|all| written(file, &all.concat(), Said::ok(census_of(outs, &Rows::All)[0])))
            }
            Form::Bytes { .. } | Form::Digest => Ok(match outs {
                [out] => bytes(out.bytes()),
                outs => bytes(&outs.iter().map(Tensor::bytes).collect::<Vec<_>>().concat()),
            }),
        };
    })?;
    found
}

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

/// Bytes per task of a digest. With fewer, starting a task takes longer than hashing.
const DIGESTED_BYTES: usize = 1 << 20;

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
    if let Some(file) = device.strip_prefix("replay:") {
        let measured = read_measured(file).map_err(|error| error.to_string())?;
        let mut identity = measured.identity.device;
        identity.device = device.to_string();
        return Ok(Box::new(Replay {
            identity,
            tables: measured.tables,
        }));
    }
    if let Some(profile) = card(device).map_err(|error| error.to_string())? {
        return Ok(Box::new(Card::new(profile)));
    }
    let taken = match device.strip_prefix("cuda:").map(str::parse) {
        None if device == "cpu" => flashcore::Device::cpu(),
        Some(Ok(ordinal)) => flashcore::Device::cuda(ordinal).map_err(|error| error.to_string())?,
        _ => {
            return Err(format!(
                "`{device}` is no device; known are cpu, cuda:N, replay:FILE, predict:CARD"
            ));
        }
    };
    let real = Real::take(&taken).map_err(|error| error.to_string())?;
    Ok(Box::new(real))
}

#[cfg(test)]
mod tests;
