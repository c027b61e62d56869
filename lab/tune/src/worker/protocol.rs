//! The protocol between a parent and a worker: one JSON object a line, one answer for each command,
//! in order. `docs/tune-protocols.md` describes its fields.

use std::path::PathBuf;

use flashcore_bench::defences::Run;
use flashcore_bench::{Attributes, DeviceIdentity, Mode, Options};
use flashcore_check::own::Declared;
use flashcore_problem::{InputKind, Problem};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::trial::Verdict;

/// Version of the protocol. Every change that an older program would not understand raises it.
pub(crate) const PROTOCOL: u32 = 12;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ask {
    pub(crate) id: u64,
    #[serde(flatten)]
    pub(crate) command: Command,
}

/// A command for a worker. A place is 0, where candidates are timed, or 1, other addresses. Kernels
/// are config ids in `Compile` and `Open`; later commands refer to their positions in `Open`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum Command {
    /// Take a device. The first command, sent once. Result: [`Hello`].
    Hello { protocol: u32, device: String },
    /// Measure the device's rates with microbenchmarks and store them.
    Rates,
    /// Compile kernels into the driver's cache. Errors are reported when a kernel is opened.
    Compile { problem: Problem, kernels: Vec<String> },
    /// Compile kernels, allocate tensors, and bind the kernels to both places. Closes what was open
    /// before. Those of the user among them come as PTX. Result: a list of [`Opened`].
    Open {
        problem: Problem,
        /// Of the inputs that they are simulated on.
        seed: u64,
        own: Vec<Declared>,
        kernels: Vec<String>,
    },
    /// Simulate a kernel of the user on a problem. Nothing need be open. `WRONG`: what was found; `REFUSED`: it does
    /// not serve the problem.
    Simulate {
        problem: Problem,
        own: Box<Declared>,
        kind: InputKind,
        seed: u64,
        schedules: u32,
        first_schedule: u64,
    },
    /// Run a kernel once, as it is timed. `run.load` is the seed of inputs of this kind.
    Run { kernel: usize, kind: InputKind, run: Run },
    /// Read a tensor at a place. The form determines the result.
    Read { place: usize, what: What, form: Form },
    /// Check the memory around the tensors. Result: what was written there, or null.
    Outside,
    /// Time all open kernels. Result: a [`Measurement`](flashcore_bench::Measurement).
    Time {
        baseline: usize,
        mode: Mode,
        options: Options,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum What {
    /// The outputs: O, or the gradients of Q, K and V one after another.
    Output,
    /// The output as of the end of the stream.
    Snapshot,
    /// The log-sum-exp, f32 `[batch, heads, seq_q]` in native byte order; empty if none is written.
    Lse,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    Bytes {
        file: PathBuf,
    },
    /// Some rows (batch, head, row) of each output in a file, one after another. Result: a
    /// [`Census`](flashcore_bench::defences::Census) of the whole outputs.
    Rows {
        rows: Vec<Vec<[usize; 3]>>,
        file: PathBuf,
    },
    Digest,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) id: u64,
    #[serde(flatten)]
    pub(crate) said: Said,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said {
    /// The command was executed; the value depends on the command.
    Ok(Value),
    Failed(Failed),
    /// A file cannot be written. No kernel is to blame.
    Unwritten {
        file: PathBuf,
        reason: String,
    },
}

impl Said {
    pub(crate) fn ok(value: impl Serialize) -> Said {
        match serde_json::to_value(value) {
            Ok(value) => Said::Ok(value),
            Err(error) => Said::Failed(Failed::new(Verdict::LaunchFailed, None, error)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) protocol: u32,
    pub(crate) revision: String,
    pub(crate) executable: String,
    pub(crate) device: DeviceIdentity,
    /// Whether it computes outputs. A replay does not, so it is not judged.
    pub(crate) computes: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Opened {
    pub(crate) id: String,
    /// Identity of the loaded module; `None` if nothing is compiled.
    pub(crate) module: Option<String>,
    pub(crate) attributes: Option<Attributes>,
    /// Whether all its runs write the same bits, as its plan declares.
    pub(crate) reproducible: bool,
    /// Largest error that the simulator saw, of a kernel of the user.
    pub(crate) error: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failed {
    /// The verdict for the candidate.
    pub(crate) verdict: Verdict,
    pub(crate) kernel: Option<String>,
    pub(crate) reason: String,
    /// Whether the device is lost, so that this worker cannot be used any more.
    pub(crate) fatal: bool,
}

impl Opened {
    pub(crate) fn new(id: &str, module: Option<String>, attributes: Option<Attributes>) -> Opened {
        let id = id.to_string();
        Opened {
            id,
            module,
            attributes,
            reproducible: true,
            error: None,
        }
    }
}

impl Failed {
    pub(crate) fn new(verdict: Verdict, kernel: Option<&str>, reason: impl ToString) -> Failed {
        Failed {
            verdict,
            kernel: kernel.map(str::to_string),
            reason: reason.to_string(),
            fatal: false,
        }
    }

    pub(crate) fn fatal(self, fatal: bool) -> Failed {
        Failed { fatal, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_match_the_document() {
        let (kernel, kind, run) = (1, InputKind::Normal, Run::default());
        let ask = Ask {
            id: 7,
            command: Command::Run { kernel, kind, run },
        };
        let line = serde_json::to_string(&ask).unwrap();
        let run = r#""run":{"place":0,"load":null,"poison":false,"pause":false}"#;
        assert_eq!(
            line,
            format!(r#"{{"id":7,"do":"run","kernel":1,"kind":"normal",{run}}}"#)
        );
        assert_eq!(serde_json::from_str::<Ask>(&line).unwrap(), ask);
        for (said, text) in [
            (Said::ok(()), r#"{"id":7,"ok":null}"#),
            (
                Said::Failed(Failed::new(Verdict::BuildFailed, None, "it spills")),
                r#"{"id":7,"failed":{"verdict":"BUILD_FAILED","kernel":null,"reason":"it spills","fatal":false}}"#,
            ),
            (
                Said::Unwritten {
                    file: "out.bin".into(),
                    reason: "the disk is full".to_string(),
                },
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
