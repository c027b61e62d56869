//! PyTorch's SDPA as a second witness: it computes in float64, in a Python process, what the float64 reference
//! computes. Kernels are compared with the reference, so that a mistake in it would hide.

use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flashcore::Problem;
use flashcore::unstable::testing::Inputs;
use flashcore_problem::{DType, ReferenceRow, TensorView};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::process::{Process, Silence};
use crate::python::{PYTHON_VARIABLE, Python, Runs};

/// The program that the process runs.
const PROGRAM: &str = include_str!("sdpa.py");
/// What float64 may differ by, relative to the output's largest element: both sum in other orders.
const MOST: f64 = 1e-9;
/// How long it may take to start, and for a problem.
const PATIENCE: Duration = Duration::from_secs(600);
/// Bytes of an answer at most: two digits for each byte of the output.
const LONGEST: u64 = 1 << 30;

/// A Python process that computes SDPA in float64.
#[derive(Debug)]
pub struct Sdpa {
    version: String,
    /// `None` after the process failed, with why.
    process: Mutex<Result<Process, String>>,
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
    Out(String),
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
        let failed = |why: String| format!("no SDPA as a second witness: {why}");
        let mut process = Process::start(command.stderr(Stdio::null()), LONGEST).map_err(failed)?;
        match answer(process.next(Some(PATIENCE))).map_err(failed)? {
            Answer::Version(version) => Ok(Sdpa {
                version: format!("PyTorch {version}"),
                process: Mutex::new(Ok(process)),
            }),
            _ => Err(failed("the process does not say its version".to_string())),
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
            Ok(process) => ask(process, problem, inputs),
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

/// The output; what PyTorch refuses; or why the process cannot be asked any more.
fn ask(process: &mut Process, problem: &Problem, inputs: &Inputs) -> Result<Result<Vec<f64>, String>, String> {
    let mask = problem.mask();
    let data = [&inputs.q, &inputs.k, &inputs.v].map(|tensor| dense(&tensor.view()));
    let asked = json!({
        "q": problem.q_layout().shape, "k": problem.k_layout().shape, "v": problem.v_layout().shape,
        "scale": f64::from(problem.softmax_scale()),
        "window_left": mask.window_left, "window_right": mask.window_right,
        "align": mask.align,
        "q_offset": problem.q_offset(), "kv_offset": problem.kv_offset(),
        "data": data,
    });
    let expected = problem.o_layout().shape.iter().product::<usize>();
    match answer(process.ask(asked.to_string(), PATIENCE))? {
        Answer::Out(digits) => match numbers(&digits) {
            Some(out) if out.len() == expected => Ok(Ok(out)),
            _ => Err("the process that computes SDPA gave another answer than was asked for".to_string()),
        },
        Answer::Error(why) => Ok(Err(format!("SDPA refuses it: {why}"))),
        Answer::Version(_) => Err("the process that computes SDPA gave another answer than was asked for".to_string()),
    }
}

fn answer(said: Result<String, Silence>) -> Result<Answer, String> {
    let line = said.map_err(|silence| format!("the process that computes SDPA: {silence}"))?;
    serde_json::from_str(&line).map_err(|error| format!("the process that computes SDPA said: {error}"))
}

/// Numbers of 16 hexadecimal digits each, the bytes of a float64 as they lie in memory.
fn numbers(digits: &str) -> Option<Vec<f64>> {
    let (all, []) = digits.as_bytes().as_chunks::<16>() else {
        return None;
    };
    let number = |digits: &[u8; 16]| u64::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
    let number = |digits| Some(f64::from_bits(number(digits)?.swap_bytes()));
    all.iter().map(number).collect()
}

/// The elements of a tensor as f32, dense, in hexadecimal digits.
fn dense(view: &TensorView<'_>) -> String {
    let [batch, rows, heads, columns] = view.layout().shape;
    let places = (0..batch * rows * heads).map(|at| [at / heads / rows, at / heads % rows, at % heads]);
    let values = places.flat_map(|[b, s, h]| (0..columns).map(move |d| view.get(b, s, h, d)));
    values
        .map(|value| format!("{:08x}", value.to_bits().swap_bytes()))
        .collect()
}

#[cfg(unix)]
#[cfg(test)]
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

    /// A stand-in: says a version, reads what it is asked, then answers this.
    fn stand_in(answer: &str) -> Sdpa {
        let script = format!("echo '{{\"version\": \"2.11.0\"}}'; read -r line; echo '{answer}'; cat >/dev/null");
        Sdpa::of(Command::new("sh").args(["-c", &script])).unwrap()
    }

    fn out(out: &[f64]) -> String {
        let digits: String = out
            .iter()
            .map(|x| format!("{:016x}", x.to_bits().swap_bytes()))
            .collect();
        json!({ "out": digits }).to_string()
    }

    #[test]
    fn a_reference_that_is_off_is_seen() {
        let (problem, inputs, want) = tiny();
        let right: Vec<f64> = want.iter().flat_map(|row| row.out.clone()).collect();
        let sdpa = stand_in(&out(&right));
        assert_eq!(sdpa.version(), "PyTorch 2.11.0");
        assert_eq!(sdpa.look(&problem, &inputs, &want), Seen::Agrees(0.0));
        for wrong in [right[9] + 1e-6, f64::NAN] {
            let mut off = right.clone();
            off[9] = wrong;
            let sdpa = stand_in(&out(&off));
            assert!(matches!(sdpa.look(&problem, &inputs, &want), Seen::Differs(_)));
        }
    }

    #[test]
    fn a_process_that_fails_is_no_witness_and_no_mismatch() {
        let (problem, inputs, want) = tiny();
        let sdpa = stand_in(r#"{"error": "no memory"}"#);
        assert_eq!(
            sdpa.look(&problem, &inputs, &want),
            Seen::Not("SDPA refuses it: no memory".to_string())
        );
        let sdpa = stand_in(r#"{"out": "abc"}"#);
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
