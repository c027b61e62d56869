//! The parent's side of a worker: starts it, asks with a deadline, ends it when it hangs, dies or has lost its device,
//! and starts another.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command as Process, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use flashcore_problem::Problem;

use super::protocol::{Answer, Ask, Command, Failed, Hello, PROTOCOL, Said, Stage, Step, Unwritten};
use crate::error::TuneError;
use crate::trial::Verdict;

/// How a worker is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Added to its environment.
    pub env: Vec<(OsString, OsString)>,
}

/// How long each stage may take, beside what the size of the problem needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Taking the device.
    pub start: Duration,
    /// Compiling.
    pub compile: Duration,
    /// One command while an answer is computed.
    pub run: Duration,
    /// Timing, beside the time that it is given.
    pub time: Duration,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines {
            start: Duration::from_secs(60),
            compile: Duration::from_secs(120),
            run: Duration::from_secs(10),
            time: Duration::from_secs(20),
        }
    }
}

/// Operations a second that the slowest candidates worth waiting for make: on a core of the host, on a GPU.
const SLOW_CORE: f64 = 1e9;
const SLOW_GPU: f64 = 1e11;
/// Bytes a second that are drawn, copied, read or written at least.
const SLOW_BYTES: f64 = 50e6;
/// Runs that timing a kernel makes at least, warming up and looking whether it has settled among them.
const LEAST_RUNS: f64 = 16.0;
/// Longest that a size is taken to need.
const LONGEST: Duration = Duration::from_secs(3600);

/// What the problem that is open needs by its size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Needs {
    /// A run.
    run: Duration,
    /// Drawing inputs, or moving an output.
    bytes: Duration,
    /// Timing all that is open.
    time: Duration,
}

impl Needs {
    fn of(problem: &Problem, kernels: usize, device: &str) -> Needs {
        let rate = match device.starts_with("cuda:") {
            true => SLOW_GPU,
            false => SLOW_CORE * thread::available_parallelism().map_or(1, usize::from) as f64,
        };
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).map_or(LONGEST, |needed| needed.min(LONGEST));
        let elements: usize = [
            problem.q_layout(),
            problem.k_layout(),
            problem.v_layout(),
            problem.o_layout(),
        ]
        .iter()
        .map(|layout| layout.span())
        .sum();
        let run = problem.flops() / rate;
        Needs {
            run: seconds(run),
            bytes: seconds(elements as f64 * 4.0 / SLOW_BYTES),
            time: seconds(run * LEAST_RUNS * kernels as f64),
        }
    }
}

impl Needs {
    fn of_step(&self, step: &Step) -> Duration {
        match step {
            Step::Run { .. } | Step::Finish => self.run,
            Step::Load { .. } | Step::Poison { .. } | Step::Snapshot { .. } => self.bytes,
            Step::Pause => Duration::ZERO,
        }
    }
}

impl Deadlines {
    /// Those for a run that may take so long, as a user names it. The others are longer in proportion where it is longer
    /// than usual, and never shorter: a machine is not faster at compiling because its kernels are.
    ///
    /// ```
    /// use std::time::Duration;
    /// use flashcore_tune::worker::Deadlines;
    /// let [short, long] = [2, 20].map(|seconds| Deadlines::of_run(Duration::from_secs(seconds)));
    /// assert_eq!((short.run.as_secs(), short.compile), (2, Deadlines::default().compile));
    /// assert_eq!((long.run.as_secs(), long.compile), (20, 2 * Deadlines::default().compile));
    /// ```
    pub fn of_run(run: Duration) -> Deadlines {
        let usual = Deadlines::default();
        let times = (run.as_secs_f64() / usual.run.as_secs_f64()).max(1.0);
        Deadlines {
            start: usual.start.mul_f64(times),
            compile: usual.compile.mul_f64(times),
            run,
            time: usual.time.mul_f64(times),
        }
    }

    fn of(&self, command: &Command, needs: &Needs) -> Duration {
        match command.stage() {
            Stage::Start => self.start,
            Stage::Compile => self.compile,
            // Kernels are enqueued and waited for later, but on the host.
            Stage::Run => {
                self.run
                    + match command {
                        Command::Steps { steps } => steps.iter().map(|step| needs.of_step(step)).sum(),
                        _ => needs.bytes,
                    }
            }
            Stage::Time => {
                let budget = match command {
                    // Warming up comes on top of the rounds; so does the round that goes over the budget.
                    Command::Time { options, .. } => options.budget_ms / 1e3 + options.warm_up_max_us * 4.0 / 1e6,
                    _ => 0.0,
                };
                self.time + needs.time + Duration::from_secs_f64(budget.clamp(0.0, 3600.0))
            }
        }
    }
}

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The worker says why.
    Failed(Failed),
    /// No answer in time; the worker was ended.
    Hung {
        /// What it was doing.
        stage: Stage,
        /// How long it was given.
        allowed: Duration,
    },
    /// The worker died.
    Died {
        /// What it was doing.
        stage: Stage,
        /// How, and its last words.
        how: String,
    },
}

impl Loss {
    /// What it makes of the candidate, and why.
    pub fn verdict(&self) -> (Verdict, String) {
        match self {
            Loss::Failed(failed) => (failed.verdict, failed.reason.clone()),
            Loss::Hung { stage, allowed } => (
                Verdict::Hung,
                format!(
                    "no answer while {} within {:.1} s; its worker was ended",
                    stage.name(),
                    allowed.as_secs_f64()
                ),
            ),
            Loss::Died { stage, how } => (
                Verdict::LaunchFailed,
                format!("its worker died while {}: {how}", stage.name()),
            ),
        }
    }
}

/// Lines of a worker's standard error that are kept.
const LAST_WORDS: usize = 8;
/// How long they are waited for once it has ended.
const LAST_WORDS_PATIENCE: Duration = Duration::from_secs(2);

/// A worker, started when it is first asked and again after it was lost.
#[derive(Debug)]
pub struct Worker {
    program: Program,
    device: String,
    deadlines: Deadlines,
    live: Option<Live>,
    /// Who answered when it was first started.
    first: Option<Hello>,
    next: u64,
    started: usize,
    needs: Needs,
}

#[derive(Debug)]
struct Live {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
    last_words: Arc<Mutex<VecDeque<String>>>,
    /// Disconnected once its standard error is closed and read.
    all_said: Receiver<()>,
    hello: Hello,
}

impl Worker {
    /// A worker for a device: `cpu`, `cuda:N`, `replay:FILE`. Nothing is started yet.
    pub fn new(program: Program, device: &str, deadlines: Deadlines) -> Worker {
        Worker {
            program,
            device: device.to_string(),
            deadlines,
            live: None,
            first: None,
            next: 0,
            started: 0,
            needs: Needs::default(),
        }
    }

    /// The device it was asked to take.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// How often it was started.
    pub fn started(&self) -> usize {
        self.started
    }

    /// Its process, while there is one.
    pub fn process(&self) -> Option<u32> {
        self.live.as_ref().map(|live| live.child.id())
    }

    /// Who it is. Starts it where it is not running.
    ///
    /// # Errors
    /// [`TuneError::Worker`] where it cannot be started, cannot take the device, or is another program or on another device
    /// than at first: no candidate's fault.
    pub fn hello(&mut self) -> Result<Hello, TuneError> {
        if let Some(live) = &self.live {
            return Ok(live.hello.clone());
        }
        // Somebody may have ended it while it started.
        self.start().or_else(|_| self.start())
    }

    fn start(&mut self) -> Result<Hello, TuneError> {
        let failed = |reason: String| TuneError::Worker {
            device: self.device.clone(),
            reason,
        };
        let mut command = Process::new(of_this_program(&self.program.path));
        command
            .args(&self.program.args)
            .env("RUST_BACKTRACE", "0")
            .envs(self.program.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Ctrl-C is for the parent: it finishes the candidate at hand, and this one ends with its input.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command
            .spawn()
            .map_err(|error| failed(format!("{} cannot be started: {error}", self.program.path.display())))?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("it has no standard streams".to_string()));
        };
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let last_words: Arc<Mutex<VecDeque<String>>> = Arc::default();
        let words = last_words.clone();
        let (saying, all_said) = channel();
        thread::spawn(move || {
            let _saying: Sender<()> = saying;
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
                words.push_back(line);
                if words.len() > LAST_WORDS {
                    words.pop_front();
                }
            }
        });
        self.started += 1;
        let nobody = Hello {
            protocol: PROTOCOL,
            revision: String::new(),
            executable: String::new(),
            device: flashcore_bench::DeviceIdentity {
                device: self.device.clone(),
                name: String::new(),
                uuid: String::new(),
                driver: String::new(),
                architecture: String::new(),
                units: 0,
                l2_bytes: 0,
            },
            computes: false,
        };
        self.live = Some(Live {
            child,
            stdin,
            answers,
            last_words,
            all_said,
            hello: nobody,
        });
        let command = Command::Hello {
            protocol: PROTOCOL,
            device: self.device.clone(),
        };
        let said = self.exchange(&command);
        match said {
            Ok(Said::Hello(hello)) => {
                let first = self.first.get_or_insert_with(|| (*hello).clone());
                if let Some(changed) = changed(first, &hello) {
                    self.end();
                    return Err(self.failed(changed));
                }
                if let Some(live) = &mut self.live {
                    live.hello = (*hello).clone();
                }
                Ok(*hello)
            }
            Ok(_) => {
                self.end();
                Err(self.failed("it does not answer `hello` with `hello`"))
            }
            Err(loss) => {
                self.end();
                Err(self.failed(loss.verdict().1))
            }
        }
    }

    fn failed(&self, reason: impl ToString) -> TuneError {
        TuneError::Worker {
            device: self.device.clone(),
            reason: reason.to_string(),
        }
    }

    /// Asks, and waits as long as the stage may take. A worker that is lost is ended; the next call starts another.
    ///
    /// # Errors
    /// The outer one is as for [`hello`](Worker::hello), or a file that the worker cannot write; the inner one is what became
    /// of the candidate.
    pub fn ask(&mut self, command: &Command) -> Result<Result<Said, Loss>, TuneError> {
        self.hello()?;
        let outcome = self.exchange(command);
        let lost = match &outcome {
            Ok(_) => false,
            Err(Loss::Failed(failed)) => failed.fatal,
            Err(_) => true,
        };
        if lost {
            self.end();
        }
        match outcome {
            Ok(Said::Unwritten(Unwritten { file, reason })) => Err(TuneError::file(&file, reason)),
            outcome => Ok(outcome),
        }
    }

    fn exchange(&mut self, command: &Command) -> Result<Said, Loss> {
        if let Command::Open { problem, kernels } = command {
            self.needs = Needs::of(problem, kernels.len(), &self.device);
        }
        let (stage, allowed) = (command.stage(), self.deadlines.of(command, &self.needs));
        self.next += 1;
        let id = self.next;
        let died = |live: &mut Live| Loss::Died {
            stage,
            how: obituary(live),
        };
        let Some(live) = &mut self.live else {
            return Err(Loss::Died {
                stage,
                how: "it was not running".to_string(),
            });
        };
        let line = serde_json::to_string(&Ask {
            id,
            command: command.clone(),
        });
        let line = line.map_err(|error| Loss::Died {
            stage,
            how: error.to_string(),
        })?;
        if writeln!(live.stdin, "{line}")
            .and_then(|()| live.stdin.flush())
            .is_err()
        {
            return Err(died(live));
        }
        let line = match live.answers.recv_timeout(allowed) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => return Err(Loss::Hung { stage, allowed }),
            Err(RecvTimeoutError::Disconnected) => return Err(died(live)),
        };
        match serde_json::from_str::<Answer>(&line) {
            Ok(Answer {
                said: Said::Failed(failed),
                ..
            }) => Err(Loss::Failed(failed)),
            Ok(answer) if answer.id == id => Ok(answer.said),
            _ => Err(Loss::Died {
                stage,
                how: format!(
                    "it said `{}`, which is no answer",
                    line.chars().take(200).collect::<String>()
                ),
            }),
        }
    }

    /// Ends the process, if there is one. It is this parent's own child.
    pub fn end(&mut self) {
        if let Some(mut live) = self.live.take() {
            let _ = live.child.kill();
            let _ = live.child.wait();
        }
    }
}

/// The program at a path; where that was this one and another has taken its place since, by a build say, the one that runs,
/// which Linux still has.
fn of_this_program(path: &Path) -> PathBuf {
    let own = PathBuf::from("/proc/self/exe");
    let mut replaced = path.as_os_str().to_os_string();
    replaced.push(" (deleted)");
    match std::fs::read_link(&own) {
        Ok(target) if target.as_os_str() == replaced => own,
        _ => path.to_path_buf(),
    }
}

/// What is not as it was when the worker was first started: then what it finds does not belong beside what was found before.
fn changed(then: &Hello, now: &Hello) -> Option<String> {
    if then == now {
        return None;
    }
    let what = |hello: &Hello| {
        let Hello {
            revision,
            executable,
            device,
            ..
        } = hello;
        let program = executable.get(..12).unwrap_or(executable);
        let flashcore_bench::DeviceIdentity { name, uuid, driver, .. } = device;
        format!("program {program} of revision {revision} on {name} ({uuid}, driver {driver})")
    };
    Some(format!(
        "it was started anew and is not what it was: {} then, {} now; take the run up again with the program that began it",
        what(then),
        what(now)
    ))
}

/// How a worker ended, and what it said last.
fn obituary(live: &mut Live) -> String {
    // Its output is closed: it is about to end, if it has not yet.
    let mut status = None;
    for _ in 0..50 {
        if let Ok(Some(ended)) = live.child.try_wait() {
            status = Some(ended);
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
    // A process that it left behind may have its standard error, too.
    let _ = live.all_said.recv_timeout(LAST_WORDS_PATIENCE);
    let how = status.map_or("it closed its output".to_string(), |status| status.to_string());
    let words = live.last_words.lock().unwrap_or_else(PoisonError::into_inner);
    let words = words.iter().map(String::as_str).collect::<Vec<_>>().join(" ");
    if words.is_empty() {
        how
    } else {
        format!("{how}; {words}")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, unix))]
mod tests;
