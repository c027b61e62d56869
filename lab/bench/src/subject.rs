//! What is timed, and the clock it is timed with. Everything that touches a driver is behind these two traits, so that
//! kernels, functions of other libraries and simulations use one protocol.

use flashcore_problem::Tensor;
use thiserror::Error;

use crate::{BenchError, LaunchMode, SubjectInfo};

/// A subject or a clock could not do what it was asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Trouble {
    /// What happened.
    pub message: String,
    /// The device is lost: nothing else will run either.
    pub fatal: bool,
}

impl Trouble {
    /// Trouble of one subject.
    pub fn new(message: impl Into<String>) -> Trouble {
        Trouble {
            message: message.into(),
            fatal: false,
        }
    }

    /// The error of this candidate, or of the device if that is lost.
    pub(crate) fn of(self, label: &str) -> BenchError {
        if self.fatal {
            BenchError::Device(format!("while {label} ran: {self}"))
        } else {
            BenchError::Failed(format!("{label}: {self}"))
        }
    }
}

impl From<flashcore_cuda::CudaError> for Trouble {
    fn from(error: flashcore_cuda::CudaError) -> Trouble {
        Trouble {
            fatal: matches!(error, flashcore_cuda::CudaError::Fault(_)),
            message: error.to_string(),
        }
    }
}

impl From<flashcore::Error> for Trouble {
    fn from(error: flashcore::Error) -> Trouble {
        match error {
            flashcore::Error::Cuda(error) => error.into(),
            error => Trouble::new(error.to_string()),
        }
    }
}

/// Something that can be timed: a kernel, a graph, a function of another library.
///
/// All work goes into one stream, the one that the [`Stopwatch`] records its events on, and has been done when
/// the stream says so. A subject neither synchronises nor reads the clock.
///
/// To time a function of another library, only [`info`](Subject::info) and [`call`](Subject::call) are needed;
/// one that returns its output in its own memory also gives [`own_output`](Subject::own_output), and one that keeps
/// copies of the inputs [`inputs_changed`](Subject::inputs_changed).
pub trait Subject {
    /// Its label and identity.
    fn info(&self) -> &SubjectInfo;

    /// Runs that one [`call`](Subject::call) makes, one after another: the length of the chain for a graph.
    fn runs_per_call(&self) -> u32 {
        match self.info().launch {
            LaunchMode::Graph(runs) => runs,
            LaunchMode::Plain | LaunchMode::Host => 1,
        }
    }

    /// Puts one call into the stream: [`runs_per_call`](Subject::runs_per_call) runs on the first set of inputs.
    ///
    /// # Errors
    /// Why it cannot be run; the subject is left out from then on.
    fn call(&mut self) -> Result<(), Trouble>;

    /// Puts exactly one run into the stream, on set `set` of [`input_sets`](Subject::input_sets) sets of inputs.
    ///
    /// # Errors
    /// As [`call`](Subject::call). The default refuses where a call makes more than one run.
    fn run_once(&mut self, set: usize) -> Result<(), Trouble> {
        let _ = set;
        match self.runs_per_call() {
            1 => self.call(),
            runs => Err(Trouble::new(format!(
                "{} makes {runs} runs a call and cannot make a single one",
                self.info().label
            ))),
        }
    }

    /// Sets of inputs that single runs can rotate through, so that none finds its inputs in a cache.
    fn input_sets(&self) -> usize {
        1
    }

    /// The values of the first set of inputs have changed, at the same addresses: refresh copies of them.
    fn inputs_changed(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    /// Whether it writes the log-sum-exp that all subjects share, if the problem asks for one.
    fn writes_lse(&self) -> bool {
        self.info().is_ours()
    }

    /// The output of the last run in the layouts of [`Problem::outputs`](flashcore_problem::Problem::outputs), after
    /// waiting for it; `None` if it was written to the outputs that all subjects share.
    fn own_output(&mut self) -> Result<Option<Vec<Tensor>>, Trouble> {
        Ok(None)
    }
}

/// A device's clock and queue.
///
/// Laps are numbered; [`begin`](Stopwatch::begin) and [`end`](Stopwatch::end) of a lap are put into the stream
/// like work, and [`elapsed_us`](Stopwatch::elapsed_us) waits for the lap to have ended.
pub trait Stopwatch {
    /// Puts the beginning of a lap into the stream.
    fn begin(&mut self, lap: usize) -> Result<(), Trouble>;

    /// Puts the end of a lap into the stream.
    fn end(&mut self, lap: usize) -> Result<(), Trouble>;

    /// Waits for the end of a lap; its length in µs.
    fn elapsed_us(&mut self, lap: usize) -> Result<f64, Trouble>;

    /// Puts a pause into the stream that is long enough for the host to queue several calls behind it, so that
    /// a single run is not timed at the speed of the host.
    fn hold(&mut self) -> Result<(), Trouble>;

    /// Puts overwriting all of the last-level cache into the stream.
    fn flush(&mut self) -> Result<(), Trouble>;

    /// The host's clock, µs from any origin.
    fn now_us(&mut self) -> f64;
}
