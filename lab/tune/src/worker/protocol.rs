//! What a parent and a worker say to each other: a JSON object a line, one answer for each command, in order. Described
//! for other programs in `docs/tune-protocols.md`.

use std::path::PathBuf;

use flashcore_bench::defences::Census;
use flashcore_bench::{Attributes, DeviceIdentity, Measurement, Mode, Options};
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use crate::trial::Verdict;

/// Version of the protocol. Raised with every change that an older program would not understand.
pub const PROTOCOL: u32 = 6;

/// A command and its number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// Counted up by the parent; the answer has the same.
    pub id: u64,
    /// The command.
    #[serde(flatten)]
    pub command: Command,
}

/// What a worker can be told to do. Places are 0, where candidates are timed, and 1, another set of addresses.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Command {
    /// Take a device. The first command, and given once. Answer: `hello`.
    Hello {
        /// [`PROTOCOL`] of the parent.
        protocol: u32,
        /// `cpu`, `cuda:N`, or `replay:FILE`.
        device: String,
    },
    /// Measure what the device gives, by microbenchmarks, and keep that for it. Answer: `done`.
    Rates,
    /// Compile these into the driver's cache, and open nothing. Answer: `done`; what does not compile says so when it is
    /// opened.
    Compile {
        /// The problem.
        problem: Problem,
        /// Config ids.
        kernels: Vec<String>,
    },
    /// Compile kernels, allocate tensors, bind the kernels to both places. What was open before is closed.
    /// Answer: `opened`.
    Open {
        /// The problem.
        problem: Problem,
        /// Config ids; the commands below go by their places here.
        kernels: Vec<String>,
    },
    /// Do these, one after the other. Answer: `done`.
    Steps {
        /// The steps.
        steps: Vec<Step>,
    },
    /// Give what was written to a place. Answer: by the form.
    Read {
        /// The place.
        place: usize,
        /// Which of what was written.
        what: What,
        /// In which form.
        form: Form,
    },
    /// Look whether anything was written outside of the tensors. Answer: `outside`.
    Outside,
    /// Time all open kernels against each other. Answer: `measured`.
    Time {
        /// The kernel that others are compared with.
        baseline: usize,
        /// How.
        mode: Mode,
        /// The settings.
        options: Options,
    },
}

/// What is done with kernels and tensors that are open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Put inputs into a place.
    Load {
        /// The place.
        place: usize,
        /// [`InputKind`](flashcore_problem::InputKind) by name.
        kind: String,
        /// Seed of the inputs.
        seed: u64,
    },
    /// Fill the output of a place, and its log-sum-exp, with poison.
    Poison {
        /// The place.
        place: usize,
    },
    /// Put a pause of some milliseconds into the stream.
    Pause,
    /// Enqueue one call of a kernel, as it is timed.
    Run {
        /// The kernel.
        kernel: usize,
        /// The place.
        place: usize,
    },
    /// Copy the output of a place, in the stream.
    Snapshot {
        /// The place.
        place: usize,
    },
    /// Wait until the device has nothing left to do.
    Finish,
}

/// Which of what a kernel wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// The output, in the problem's layout.
    Output,
    /// The output as the last snapshot has it.
    Snapshot,
    /// The log-sum-exp, f32 `[batch, heads, seq_q]` as the machine has them; nothing where the problem asks for none.
    Lse,
}

/// In which form it is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// All its bytes, in a file. Answer: `done`.
    Bytes {
        /// The file.
        file: PathBuf,
    },
    /// Counts over the whole output, and some of its rows in a file, one after the other: of a large output no more is
    /// judged. Answer: `looked`.
    Rows {
        /// Rows, as batch, head, query.
        rows: Vec<[usize; 3]>,
        /// The file.
        file: PathBuf,
    },
    /// A number that is the same for the same bytes. Answer: `digest`.
    Digest,
}

impl Command {
    /// What is done, for messages.
    pub const fn stage(&self) -> Stage {
        match self {
            Command::Hello { .. } | Command::Rates => Stage::Start,
            Command::Compile { .. } | Command::Open { .. } => Stage::Compile,
            Command::Steps { .. } | Command::Read { .. } | Command::Outside => Stage::Run,
            Command::Time { .. } => Stage::Time,
        }
    }
}

/// Part of a candidate's way, each with a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Taking the device.
    Start,
    /// Compiling and binding.
    Compile,
    /// Running for its answer.
    Run,
    /// Timing.
    Time,
}

impl Stage {
    /// `starting`, `compiling`, `running`, `timing`.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Start => "starting",
            Stage::Compile => "compiling",
            Stage::Run => "running",
            Stage::Time => "timing",
        }
    }
}

/// An answer, with the number of its command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The command's.
    pub id: u64,
    /// What came of it.
    #[serde(flatten)]
    pub said: Said,
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// It is done.
    Done(()),
    /// The device is taken.
    Hello(Box<Hello>),
    /// Kernels are ready: what is known of each, in order.
    Opened(Vec<Opened>),
    /// What was written outside of the tensors: nothing, or what.
    Outside(Option<String>),
    /// What an output is like.
    Looked(Census),
    /// A number for what was written, as hexadecimal digits.
    Digest(String),
    /// What was measured.
    Measured(Box<Measurement>),
    /// It cannot be done.
    Failed(Failed),
    /// A file cannot be written, for which no kernel is to blame.
    Unwritten(Unwritten),
}

/// A file that a worker cannot write.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unwritten {
    /// The file.
    pub file: PathBuf,
    /// What the system says.
    pub reason: String,
}

/// Who the worker is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the worker.
    pub protocol: u32,
    /// Git revision of its build.
    pub revision: String,
    /// SHA-256 of its program.
    #[serde(default)]
    pub executable: String,
    /// The device.
    pub device: DeviceIdentity,
    /// Whether it computes answers. A replay does not: there is nothing to judge.
    pub computes: bool,
}

/// A kernel that is ready.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// The config.
    pub id: String,
    /// Identity of the loaded module; `None` where nothing is compiled.
    pub module: Option<String>,
    /// What the driver says of it.
    pub attributes: Option<Attributes>,
}

/// Why a command cannot be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// What that makes of the candidate.
    pub verdict: Verdict,
    /// The kernel it is about, where it is about one.
    pub kernel: Option<String>,
    /// One sentence.
    pub reason: String,
    /// The device is lost: this worker is of no more use.
    pub fatal: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_the_document_says() {
        let ask = Ask {
            id: 7,
            command: Command::Steps {
                steps: vec![Step::Run { kernel: 1, place: 0 }, Step::Finish],
            },
        };
        let line = serde_json::to_string(&ask).unwrap();
        assert_eq!(
            line,
            r#"{"id":7,"do":"steps","steps":[{"run":{"kernel":1,"place":0}},"finish"]}"#
        );
        assert_eq!(serde_json::from_str::<Ask>(&line).unwrap(), ask);
        for (said, text) in [
            (Said::Done(()), r#"{"id":7,"done":null}"#),
            (
                Said::Failed(Failed {
                    verdict: Verdict::BuildFailed,
                    kernel: None,
                    reason: "it spills".to_string(),
                    fatal: false,
                }),
                r#"{"id":7,"failed":{"verdict":"BUILD_FAILED","kernel":null,"reason":"it spills","fatal":false}}"#,
            ),
            (
                Said::Unwritten(Unwritten {
                    file: "out.bin".into(),
                    reason: "the disk is full".to_string(),
                }),
                r#"{"id":7,"unwritten":{"file":"out.bin","reason":"the disk is full"}}"#,
            ),
        ] {
            let answer = Answer { id: 7, said };
            assert_eq!(serde_json::to_string(&answer).unwrap(), text);
            assert_eq!(serde_json::from_str::<Answer>(text).unwrap(), answer);
        }
        let read = r#"{"id":1,"do":"read","place":0,"what":"lse","form":"digest"}"#;
        let (place, what, form) = (0, What::Lse, Form::Digest);
        let command = Command::Read { place, what, form };
        assert_eq!(serde_json::from_str::<Ask>(read).unwrap().command, command);
    }
}
