//! PyTorch's SDPA as a second witness: it computes in float64, in a Python process, what the float64 reference
//! computes. Kernels are compared with the reference, so that a mistake in it would hide.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use flashcore::Problem;
use flashcore::unstable::testing::Inputs;
use flashcore_problem::{DType, ReferenceRow, TensorView};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::python::{PYTHON_VARIABLE, Python, Runs};

/// The program that the process runs.
const PROGRAM: &str = include_str!("sdpa.py");
/// What float64 may differ by, relative to the output's largest element: both sum in other orders.
const MOST: f64 = 1e-9;

/// A Python process that computes SDPA in float64.
#[derive(Debug)]
pub struct Sdpa {
    version: String,
    /// `None` after the process failed, with why.
    process: Mutex<Result<Process, String>>,
}

#[derive(Debug)]
struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It ends when its input does; one that hangs is not waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What SDPA says of one problem.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Seen {
    /// It agrees with the reference to so much.
    Agrees(f64),
    /// It does not.
    Differs(f64),
    /// It does not compute this, or the process failed.
    Not(String),
}

/// What SDPA said of the problems of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Witnessed {
    /// Which: `PyTorch 2.11.0`; `None` where there is none.
    pub by: Option<String>,
    /// Why there is none.
    pub absent: Option<String>,
    /// Problems on which it agrees with the float64 reference.
    pub agreed: usize,
    /// The largest difference, relative to the output's largest element.
    pub most: f64,
    /// Problems that it does not compute.
    pub not_served: usize,
    /// Why not, of one of them.
    pub why_not: Option<String>,
}

impl Witnessed {
    pub(super) fn add(&mut self, seen: Option<&Seen>) {
        match seen {
            Some(Seen::Agrees(by) | Seen::Differs(by)) => {
                self.agreed += 1;
                self.most = self.most.max(*by);
            }
            Some(Seen::Not(why)) => {
                self.not_served += 1;
                self.why_not.get_or_insert_with(|| why.clone());
            }
            None => {}
        }
    }
}

/// A line that comes back.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Version(String),
    Bytes(usize),
    Error(String),
}

impl Sdpa {
    /// Starts the process, in the Python that benches use, if PyTorch can be imported there.
    ///
    /// # Errors
    /// One sentence that says what is missing.
    pub fn start() -> Result<Sdpa, String> {
        let python = Python::importing("import torch").map_err(|why| {
            let needs = "it needs a Python with PyTorch";
            format!("no SDPA as a second witness: {needs} ({why}); {PYTHON_VARIABLE} names one; pip install torch")
        })?;
        Sdpa::of(&mut python.child(Runs::Code(PROGRAM), [""; 0]).command())
    }

    fn of(command: &mut Command) -> Result<Sdpa, String> {
        let failed = |error: std::io::Error| format!("no SDPA as a second witness: {error}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("no SDPA as a second witness: its pipes are missing".to_string());
        };
        let mut process = Process {
            child,
            to,
            from: BufReader::new(from),
        };
        match process.answer() {
            Ok(Answer::Version(version)) => Ok(Sdpa {
                version: format!("PyTorch {version}"),
                process: Mutex::new(Ok(process)),
            }),
            Ok(_) => Err("no SDPA as a second witness: the process does not say its version".to_string()),
            Err(why) => Err(format!("no SDPA as a second witness: {why}")),
        }
    }

    /// PyTorch and its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Compares the reference's rows, which are all of the output, with SDPA's.
    pub(super) fn look(&self, problem: &Problem, inputs: &Inputs, want: &[ReferenceRow]) -> Seen {
        let refused = [
            (problem.has_lengths(), "packed sequences and caches"),
            (problem.softcap().is_some(), "soft caps"),
            (problem.sinks().is_some(), "sinks"),
            (problem.alibi().is_some(), "ALiBi"),
            (problem.dtype() == DType::E4M3, "e4m3 with scales"),
        ];
        if let Some((_, what)) = refused.iter().find(|(is, _)| *is) {
            return Seen::Not(format!("SDPA has no {what}"));
        }
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = match process.as_mut() {
            Ok(process) => process.ask(problem, inputs),
            Err(why) => return Seen::Not(why.clone()),
        };
        let out = match answer {
            Ok(Ok(out)) => out,
            Ok(Err(why)) => return Seen::Not(why),
            Err(why) => {
                *process = Err(why.clone());
                return Seen::Not(why);
            }
        };
        let [_, rows, heads, columns] = problem.o_layout().shape;
        let (mut most, mut largest) = (0.0f64, f64::MIN_POSITIVE);
        for row in want {
            let [b, h, s] = row.index;
            let start = ((b * rows + s) * heads + h) * columns;
            for (want, got) in row.out.iter().zip(&out[start..start + columns]) {
                largest = largest.max(want.abs());
                // A NaN differs from everything.
                most = if got.is_nan() {
                    f64::INFINITY
                } else {
                    most.max((want - got).abs())
                };
            }
        }
        match most / largest {
            by if by <= MOST => Seen::Agrees(by),
            by => Seen::Differs(by),
        }
    }
}

impl Process {
    /// The output; what PyTorch refuses; or why the process cannot be asked any more.
    fn ask(&mut self, problem: &Problem, inputs: &Inputs) -> Result<Result<Vec<f64>, String>, String> {
        let mask = problem.mask();
        let asked = json!({
            "q": problem.q_layout().shape, "k": problem.k_layout().shape, "v": problem.v_layout().shape,
            "scale": f64::from(problem.softmax_scale()),
            "window_left": mask.window_left, "window_right": mask.window_right,
            "align": mask.align,
            "q_offset": problem.q_offset(), "kv_offset": problem.kv_offset(),
        });
        let mut bytes = asked.to_string().into_bytes();
        bytes.push(b'\n');
        for view in [inputs.q.view(), inputs.k.view(), inputs.v.view()] {
            dense(&view, &mut bytes);
        }
        let ended = |error: std::io::Error| format!("the process that computes SDPA ended: {error}");
        self.to
            .write_all(&bytes)
            .and_then(|()| self.to.flush())
            .map_err(ended)?;
        let expected = problem.o_layout().shape.iter().product::<usize>() * size_of::<f64>();
        match self.answer()? {
            Answer::Bytes(count) if count == expected => {
                let mut answer = vec![0; count];
                self.from.read_exact(&mut answer).map_err(ended)?;
                let words = answer.chunks_exact(size_of::<f64>());
                let number = |word: &[u8]| f64::from_le_bytes(word.try_into().unwrap_or([0; 8]));
                Ok(Ok(words.map(number).collect()))
            }
            Answer::Error(why) => Ok(Err(format!("SDPA refuses it: {why}"))),
            _ => Err("the process that computes SDPA gave another answer than was asked for".to_string()),
        }
    }

    fn answer(&mut self) -> Result<Answer, String> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(0) => Err("the process that computes SDPA ended".to_string()),
            Ok(_) => {
                serde_json::from_str(&line).map_err(|error| format!("the process that computes SDPA said: {error}"))
            }
            Err(error) => Err(format!("the process that computes SDPA cannot be read: {error}")),
        }
    }
}

/// Appends the elements of a tensor as f32, dense.
fn dense(view: &TensorView<'_>, bytes: &mut Vec<u8>) {
    let [batch, rows, heads, columns] = view.layout().shape;
    for b in 0..batch {
        for s in 0..rows {
            for h in 0..heads {
                for d in 0..columns {
                    bytes.extend(view.get(b, s, h, d).to_le_bytes());
                }
            }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use flashcore::unstable::testing::{InputKind, reference_rows};
    use flashcore_problem::Lengths;

    fn tiny() -> (Problem, Inputs, Vec<ReferenceRow>) {
        let problem = Problem::builder().heads(1, 1).seq_len(2).head_dim(8).build().unwrap();
        let inputs = Inputs::generate(&problem, InputKind::Normal, 1);
        let views = [inputs.q.view(), inputs.k.view(), inputs.v.view()];
        let rows = problem.query_rows(&Lengths::default()).unwrap();
        let want = reference_rows(&problem, &views[0], &views[1], &views[2], &Lengths::default(), &rows).unwrap();
        (problem, inputs, want)
    }

    /// A stand-in: says a version, reads what it is asked, then answers this file.
    fn stand_in(answer: &[u8]) -> (Sdpa, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("answer");
        std::fs::write(&path, answer).unwrap();
        let script = format!(
            "echo '{{\"version\": \"2.11.0\"}}'; IFS= read -r line; head -c 192 >/dev/null; cat '{}'; cat >/dev/null",
            path.display()
        );
        (Sdpa::of(Command::new("sh").args(["-c", &script])).unwrap(), folder)
    }

    fn answer(out: impl IntoIterator<Item = f64>) -> Vec<u8> {
        let mut bytes = b"{\"bytes\": 128}\n".to_vec();
        bytes.extend(out.into_iter().flat_map(f64::to_le_bytes));
        bytes
    }

    #[test]
    fn a_reference_that_is_off_is_seen() {
        let (problem, inputs, want) = tiny();
        let right: Vec<f64> = want.iter().flat_map(|row| row.out.clone()).collect();
        let (sdpa, _folder) = stand_in(&answer(right.clone()));
        assert_eq!(sdpa.version(), "PyTorch 2.11.0");
        assert_eq!(sdpa.look(&problem, &inputs, &want), Seen::Agrees(0.0));
        for wrong in [right[9] + 1e-6, f64::NAN] {
            let mut off = right.clone();
            off[9] = wrong;
            let (sdpa, _folder) = stand_in(&answer(off));
            assert!(matches!(sdpa.look(&problem, &inputs, &want), Seen::Differs(_)));
        }
    }

    #[test]
    fn a_process_that_fails_is_no_witness_and_no_mismatch() {
        let (problem, inputs, want) = tiny();
        let (sdpa, _folder) = stand_in(b"{\"error\": \"no memory\"}\n");
        assert_eq!(
            sdpa.look(&problem, &inputs, &want),
            Seen::Not("SDPA refuses it: no memory".to_string())
        );
        let (sdpa, _folder) = stand_in(b"{\"bytes\": 3}\nabc");
        let look = || sdpa.look(&problem, &inputs, &want);
        assert!(matches!(look(), Seen::Not(why) if why.contains("another answer")));
        // From then on it is not asked.
        assert!(matches!(look(), Seen::Not(why) if why.contains("another answer")));
        let ended = Sdpa::of(Command::new("sh").args(["-c", "exit 3"])).unwrap_err();
        assert!(ended.contains("ended"), "{ended}");
        let capped = Problem::builder().heads(1, 1).seq_len(2).head_dim(8).softcap(3.0);
        let capped = capped.build().unwrap();
        assert!(matches!(sdpa.look(&capped, &inputs, &want), Seen::Not(why) if why.contains("soft cap")));
    }

    /// What CI runs with a Python that has PyTorch, by the name of this module.
    mod with_torch {
        use super::*;

        /// Masks, grouped heads, offsets, odd strides.
        #[test]
        #[ignore = "needs a Python with PyTorch: FLASHCORE_PYTHON"]
        fn pytorch_agrees_with_the_reference() {
            let sdpa = Sdpa::start().unwrap();
            let engine = crate::parity::Engine::Device(flashcore::Device::Cpu);
            let options = crate::parity::Options {
                problems: 60,
                ..Default::default()
            };
            let report = crate::parity::run(&engine, &options, Some(&sdpa), &|_, _| ());
            assert!(report.mismatches.is_empty(), "{:?}", report.mismatches);
            assert!(report.sdpa.agreed > 20, "{:?}", report.sdpa);
        }
    }
}
