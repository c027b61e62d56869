//! A rig whose buffers and kernels are in a worker, and whose right answers are here: so that nothing a candidate does to
//! its process reaches them.

use std::path::Path;

use flashcore_bench::Trouble;
use flashcore_bench::defences::{Expected, Output, Rig, Run, Seen};
use flashcore_problem::{InputKind, Problem, Tensor};

use crate::error::TuneError;
use crate::examine::Stop;
use crate::judge::Judge;
use crate::worker::Worker;
use crate::worker::protocol::{Command, Form, Said, Step, What};

/// The rig of [`flashcore_bench::defences`], whose buffers and kernels are in a worker and whose answers are here.
pub(crate) struct RemoteRig<'r> {
    pub(crate) judge: &'r Judge,
    pub(crate) worker: &'r mut Worker,
    pub(crate) scratch: &'r Path,
    /// Which of the inputs drawn for the run it gets.
    pub(crate) number: usize,
    /// Its place among the kernels that are open.
    pub(crate) kernel: usize,
    /// Rows of outputs that were looked at are put here, to be compared.
    pub(crate) canvas: &'r mut Option<Tensor>,
    /// Why the worker has no answer, which says more than the trouble does.
    pub(crate) stop: Option<Stop>,
}

impl RemoteRig<'_> {
    fn ask(&mut self, command: &Command) -> Result<Said, Trouble> {
        let stop = match self.worker.ask(command) {
            Ok(Ok(said)) => return Ok(said),
            Ok(Err(loss)) => Stop::from(loss),
            Err(error) => Stop::Broken(error),
        };
        self.stop = Some(stop);
        Err(Trouble::new("the worker is lost"))
    }

    /// What the worker has written. Where that cannot be read no kernel is to blame.
    fn fetched(&mut self) -> Result<Vec<u8>, Trouble> {
        std::fs::read(self.scratch).map_err(|error| {
            self.stop = Some(Stop::Broken(TuneError::file(self.scratch, error)));
            Trouble::new("the worker's file cannot be read")
        })
    }
}

impl Rig for RemoteRig<'_> {
    fn problem(&self) -> &Problem {
        self.judge.problem()
    }

    fn expected(&self, seed: u64) -> &Expected {
        self.judge.expected(self.judge.seed(seed, self.number))
    }

    fn run(&mut self, run: &Run) -> Result<bool, Trouble> {
        let Run { place, load, .. } = *run;
        let mut steps = Vec::new();
        if let Some(seed) = load {
            steps.push(Step::Load {
                place,
                kind: InputKind::Normal.name().to_string(),
                seed: self.judge.seed(seed, self.number),
            });
        }
        if run.pause {
            steps.push(Step::Pause);
        }
        if run.poison {
            steps.extend([Step::Poison { place: 0 }, Step::Poison { place: 1 }]);
        }
        if run.poison && !run.pause {
            steps.push(Step::Finish);
        }
        let kernel = self.kernel;
        steps.extend([Step::Run { kernel, place }, Step::Snapshot { place }, Step::Finish]);
        self.ask(&Command::Steps { steps })?;
        Ok(true)
    }

    /// Of an answer that is known in some rows only those rows come from the worker: a whole output of a large problem takes
    /// longer to bring here than everything else that is done about a candidate.
    fn look(&mut self, place: usize, what: Output, seed: u64) -> Result<Seen, Trouble> {
        let judge = self.judge;
        let expected = judge.expected(judge.seed(seed, self.number));
        let problem = judge.problem();
        let what = match what {
            Output::Final => What::Output,
            Output::Snapshot => What::Snapshot,
        };
        let file = self.scratch.to_path_buf();
        let Expected::Rows(rows) = expected else {
            let form = Form::Bytes { file };
            self.ask(&Command::Read { place, what, form })?;
            let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
            let bytes = self.fetched()?;
            if bytes.len() != out.bytes().len() {
                return Err(Trouble::new(format!("the output has {} bytes", bytes.len())));
            }
            out.bytes_mut().copy_from_slice(&bytes);
            return Seen::of(problem, expected, &out);
        };
        let rows: Vec<[usize; 3]> = rows.iter().map(|row| row.index).collect();
        let form = Form::Rows {
            rows: rows.clone(),
            file,
        };
        let said = self.ask(&Command::Read { place, what, form })?;
        let Said::Looked(census) = said else {
            return Err(Trouble::new(format!("asked what an output is like, it said {said:?}")));
        };
        let bytes = self.fetched()?;
        let canvas = self
            .canvas
            .get_or_insert_with(|| Tensor::poisoned(problem.out_dtype(), *problem.o_layout()));
        put_rows(canvas, &rows, &bytes)?;
        Ok(Seen {
            census,
            comparison: expected.compare(problem, &canvas.view())?,
        })
    }

    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        if !self.judge.problem().return_lse() {
            return Ok(None);
        }
        let file = self.scratch.to_path_buf();
        let (what, form) = (What::Lse, Form::Bytes { file });
        self.ask(&Command::Read { place, what, form })?;
        let bytes = self.fetched()?;
        Ok(Some(floats(&bytes)))
    }

    fn outside(&mut self) -> Result<Option<String>, Trouble> {
        match self.ask(&Command::Outside)? {
            Said::Outside(outside) => Ok(outside),
            other => Err(Trouble::new(format!(
                "asked what was written outside, it said {other:?}"
            ))),
        }
    }
}

/// Puts rows that lie one after the other where they belong.
fn put_rows(canvas: &mut Tensor, rows: &[[usize; 3]], bytes: &[u8]) -> Result<(), Trouble> {
    let layout = *canvas.layout();
    let of_row = layout.shape[3] * canvas.dtype().size_bytes();
    if bytes.len() != rows.len() * of_row {
        return Err(Trouble::new(format!("{} rows have {} bytes", rows.len(), bytes.len())));
    }
    let size = canvas.dtype().size_bytes();
    for (&[b, h, s], row) in rows.iter().zip(bytes.chunks_exact(of_row)) {
        let at = layout.offset(b, s, h, 0) * size;
        canvas.bytes_mut()[at..at + of_row].copy_from_slice(row);
    }
    Ok(())
}

/// What a kernel wrote, as bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Written {
    /// The output, in the problem's layout.
    pub(crate) out: Vec<u8>,
    /// The log-sum-exp, f32; no bytes where none is asked for.
    pub(crate) lse: Vec<u8>,
}

/// The values of a log-sum-exp's bytes.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    let (whole, _) = bytes.as_chunks::<4>();
    whole.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}
