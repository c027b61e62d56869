//! An examiner's kernels and tensors, which are in a worker. The reference outputs are in this
//! process, where no candidate can reach them.

use flashcore_bench::bed::poisoned_outputs;
use flashcore_bench::defences::{Census, Output, Rig, Rows, Run, Seen};
use flashcore_bench::{Expected, Measurement, Mode, Options, Trouble};
use flashcore_check::within;
use flashcore_ir::files;
use flashcore_problem::{InputKind, Problem, Tensor};

use crate::error::TuneError;
use crate::examine::Examiner;
use crate::worker::Stop;
use crate::worker::protocol::{Command, Form, Opened, What};

/// Bytes of outputs: no GPU has more memory.
const MOST_OUTPUT: u64 = 256 * files::LARGE;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    /// The outputs one after another, in the problem's layouts.
    pub(crate) out: Vec<u8>,
    /// The log-sum-exp, f32; empty if none is written.
    pub(crate) lse: Vec<u8>,
}

impl Written {
    /// The outputs; missing bytes are poison.
    pub(crate) fn tensors(&self, problem: &Problem) -> Vec<Tensor> {
        let (mut tensors, mut bytes) = (poisoned_outputs(problem), &self.out[..]);
        for tensor in &mut tensors {
            let given = bytes
                .split_off(..tensor.bytes().len().min(bytes.len()))
                .unwrap_or_default();
            tensor.bytes_mut()[..given.len()].copy_from_slice(given);
        }
        tensors
    }
}

/// Bytes of all outputs.
pub(crate) fn size_of_outputs(problem: &Problem) -> usize {
    let outputs = problem.outputs().into_iter();
    outputs
        .map(|(_, dtype, layout)| layout.span() * dtype.size_bytes())
        .sum()
}

impl Examiner<'_> {
    pub(crate) fn computes(&mut self) -> Result<bool, TuneError> {
        Ok(self.worker.hello()?.computes)
    }

    pub(crate) fn open_for(&mut self, problem: &Problem, kernels: &[String]) -> Result<Vec<Opened>, Stop> {
        let judge = self.judge;
        self.tolerances = kernels.iter().map(|id| judge.own.tolerance(id)).collect();
        let built = kernels.iter().filter_map(|id| judge.built(id));
        let own = built.map(|built| built.map(|declared| (*declared).clone()));
        let own = own.collect::<Result<Vec<_>, _>>().map_err(Stop::of)?;
        let (problem, kernels, seed) = (problem.clone(), kernels.to_vec(), judge.seed_of_simulation());
        let open = Command::Open {
            problem,
            seed,
            own,
            kernels,
        };
        self.worker.ask(&open)
    }

    pub(crate) fn run(&mut self, kernel: usize, kind: InputKind, run: Run) -> Result<(), Stop> {
        self.worker.ask(&Command::Run { kernel, kind, run })
    }

    /// The whole outputs of an open kernel, which must write nothing outside of them.
    pub(crate) fn output(&mut self, kernel: usize, kind: InputKind, seed: u64) -> Result<Written, Stop> {
        self.run(kernel, kind, Run::over_poison(Some(seed)))?;
        self.written()
    }

    /// What the last run wrote, which must be nothing outside of the outputs.
    pub(crate) fn written(&mut self) -> Result<Written, Stop> {
        let (out, lse) = (self.bytes(0, What::Output)?, self.bytes(0, What::Lse)?);
        self.nothing_outside("")?;
        Ok(Written { out, lse })
    }

    fn bytes(&mut self, place: usize, what: What) -> Result<Vec<u8>, Stop> {
        let file = self.scratch.clone();
        let form = Form::Bytes { file };
        let () = self.worker.ask(&Command::Read { place, what, form })?;
        self.fetch()
    }

    fn rows(&mut self, place: usize, what: What, rows: Vec<Vec<[usize; 3]>>) -> Result<(Census, Vec<u8>), Stop> {
        let file = self.scratch.clone();
        let form = Form::Rows { rows, file };
        let census = self.worker.ask(&Command::Read { place, what, form })?;
        Ok((census, self.fetch()?))
    }

    fn fetch(&self) -> Result<Vec<u8>, Stop> {
        Ok(files::read_capped(&self.scratch, MOST_OUTPUT).map_err(|error| TuneError::file(&self.scratch, error))?)
    }

    pub(crate) fn digest(&mut self, what: What) -> Result<String, Stop> {
        let (place, form) = (0, Form::Digest);
        self.worker.ask(&Command::Read { place, what, form })
    }

    pub(crate) fn outside(&mut self) -> Result<Option<String>, Stop> {
        self.worker.ask(&Command::Outside)
    }

    pub(crate) fn time(&mut self, baseline: usize, mode: Mode, options: &Options) -> Result<Measurement, Stop> {
        let options = options.clone();
        self.worker.ask(&Command::Time {
            baseline,
            mode,
            options,
        })
    }
}

impl Drop for Examiner<'_> {
    fn drop(&mut self) {
        // It does not exist if no output was read.
        let _ = std::fs::remove_file(&self.scratch);
    }
}

/// The rig of [`flashcore_bench::defences`] for an open kernel of a worker.
pub(crate) struct RemoteRig<'r, 'j> {
    pub(crate) examiner: &'r mut Examiner<'j>,
    pub(crate) number: usize,
    pub(crate) kernel: usize,
    /// Why the worker has no result, which says more than the trouble that the rig returns.
    pub(crate) stop: Option<Stop>,
}

impl RemoteRig<'_, '_> {
    fn kept<T>(&mut self, result: Result<T, Stop>) -> Result<T, Trouble> {
        result.map_err(|stop| {
            self.stop = Some(stop);
            Trouble::new("the worker has no result")
        })
    }
}

impl RemoteRig<'_, '_> {
    /// What was seen, judged by the tolerance of its kernel.
    fn tolerant(&self, mut seen: Seen) -> Seen {
        let factor = self.examiner.tolerances.get(self.kernel).copied().unwrap_or(1.0);
        seen.comparisons
            .iter_mut()
            .for_each(|(_, found)| *found = within(*found, factor));
        seen
    }
}

impl Rig for RemoteRig<'_, '_> {
    fn problem(&self) -> &Problem {
        &self.examiner.judge.problem
    }

    fn expected(&self, seed: u64) -> &Expected {
        let judge = self.examiner.judge;
        judge.expected(judge.seed(seed, self.number))
    }

    fn run(&mut self, run: &Run) -> Result<bool, Trouble> {
        let load = run.load.map(|seed| self.examiner.judge.seed(seed, self.number));
        let ran = self.examiner.run(self.kernel, InputKind::Normal, Run { load, ..*run });
        self.kept(ran).map(|()| true)
    }

    /// If the reference has only some rows, only those come from the worker: copying a whole output
    /// of a large problem takes longer than everything else in a trial.
    fn look(&mut self, place: usize, what: Output, seed: u64) -> Result<Seen, Trouble> {
        let judge = self.examiner.judge;
        let expected = judge.expected(judge.seed(seed, self.number));
        let problem = &judge.problem;
        let what = match what {
            Output::Final => What::Output,
            Output::Snapshot => What::Snapshot,
        };
        if expected.is_whole(problem) {
            let bytes = self.examiner.bytes(place, what);
            let (out, lse) = (self.kept(bytes)?, Vec::new());
            if out.len() != size_of_outputs(problem) {
                return Err(Trouble::new(format!("the output has {} bytes", out.len())));
            }
            let seen = Seen::of(problem, expected, &Rows::All, &Written { out, lse }.tensors(problem))?;
            return Ok(self.tolerant(seen));
        }
        let rows = expected.indices();
        let found = self.examiner.rows(place, what, rows.clone());
        let (census, bytes) = self.kept(found)?;
        let mut canvas = self.examiner.canvas.take().unwrap_or_else(|| poisoned_outputs(problem));
        put_rows(&mut canvas, &rows, &bytes)?;
        let compared = expected.compare(problem, &canvas);
        self.examiner.canvas = Some(canvas);
        Ok(self.tolerant(Seen {
            census,
            beyond: 0,
            comparisons: compared.map_err(|error| Trouble::new(error.to_string()))?,
        }))
    }

    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        if !self.examiner.judge.problem.writes_lse() {
            return Ok(None);
        }
        let bytes = self.examiner.bytes(place, What::Lse);
        Ok(Some(floats(&self.kept(bytes)?)))
    }

    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        let outside = self.examiner.outside();
        self.kept(outside)
    }
}

/// Places rows of each output, which follow each other.
fn put_rows(canvas: &mut [Tensor], rows: &[Vec<[usize; 3]>], mut bytes: &[u8]) -> Result<(), Trouble> {
    for (tensor, rows) in canvas.iter_mut().zip(rows) {
        let (layout, size) = (*tensor.layout(), tensor.dtype().size_bytes());
        let of_row = layout.shape[3] * size;
        let Some(given) = bytes.split_off(..rows.len() * of_row) else {
            let missing = rows.len() * of_row - bytes.len();
            return Err(Trouble::new(format!(
                "{missing} bytes of {} rows are missing",
                rows.len()
            )));
        };
        for (&[b, h, s], row) in rows.iter().zip(given.chunks_exact(of_row)) {
            let at = layout.offset(b, s, h, 0) * size;
            tensor.bytes_mut()[at..at + of_row].copy_from_slice(row);
        }
    }
    match bytes.len() {
        0 => Ok(()),
        more => Err(Trouble::new(format!("{more} bytes more than the rows have"))),
    }
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (whole, _) = bytes.as_chunks::<4>();
    whole.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}
