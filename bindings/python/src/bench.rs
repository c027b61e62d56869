//! The measuring protocol of `flashcore-bench` for functions that live in Python: peers of other libraries and
//! our own calls go through one protocol, in one process, on the same tensors.

use std::time::Instant;

use flashcore_bench::{
    Mode, NvmlTelemetry, Observer, Options, Reading, Sample, Stopwatch, Subject, SubjectInfo, Telemetry, Trouble,
};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::value;

/// Times subjects against each other; `flashcore._bench.measure` documents it. Everything but callables travels as
/// JSON: the types of `flashcore-bench` are its description.
#[pyfunction]
#[pyo3(signature = (subjects, stopwatch, *, mode, baseline, options, uuid=None, observer=None))]
pub(crate) fn measure(
    subjects: Vec<Bound<'_, PyAny>>,
    stopwatch: &Bound<'_, PyAny>,
    mode: &str,
    baseline: usize,
    options: &str,
    uuid: Option<&str>,
    observer: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let invalid =
        |what: &str, error: serde_json::Error| value(format!("{what} is not what flashcore-bench reads: {error}"));
    let options: Options = serde_json::from_str(options).map_err(|error| invalid("options", error))?;
    let mode: Mode = mode
        .parse()
        .map_err(|error: flashcore_bench::BenchError| value(error.to_string()))?;
    let mut boxed: Vec<Box<dyn Subject + '_>> = Vec::new();
    for subject in &subjects {
        let info: String = subject.getattr("info")?.extract()?;
        boxed.push(Box::new(PySubject {
            info: serde_json::from_str(&info).map_err(|error| invalid("a subject's info", error))?,
            runs_per_call: subject.getattr("runs_per_call")?.extract()?,
            call: subject.getattr("call")?,
        }));
    }
    if baseline >= boxed.len() {
        return Err(value(format!(
            "baseline is {baseline}; there are {} subjects, from 0",
            boxed.len()
        )));
    }
    // Its absence has been said by whoever asked for the device's identity.
    let mut nvml = uuid.and_then(|uuid| NvmlTelemetry::open(uuid).ok());
    let telemetry: &mut dyn Telemetry = match &mut nvml {
        Some(nvml) => nvml,
        None => &mut (),
    };
    let mut clock = PyStopwatch {
        object: stopwatch.clone(),
        began: Instant::now(),
    };
    let mut observer = PyObserver { callable: observer };
    let measured = flashcore_bench::measure(
        &options,
        mode,
        &mut boxed,
        baseline,
        &mut clock,
        telemetry,
        &mut observer,
    )
    .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    serde_json::to_string(&measured).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

struct PySubject<'py> {
    info: SubjectInfo,
    runs_per_call: u32,
    call: Bound<'py, PyAny>,
}

impl Subject for PySubject<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn runs_per_call(&self) -> u32 {
        self.runs_per_call
    }

    fn call(&mut self) -> Result<(), Trouble> {
        self.call
            .call0()
            .map(drop)
            .map_err(|error| trouble(self.call.py(), error))
    }
}

/// A clock of Python's: `begin(lap)`, `end(lap)`, `elapsed_us(lap)`, `hold()`, `flush()`.
struct PyStopwatch<'py> {
    object: Bound<'py, PyAny>,
    began: Instant,
}

impl PyStopwatch<'_> {
    fn tell(&self, name: &str, lap: Option<usize>) -> Result<(), Trouble> {
        let name = PyString::intern(self.object.py(), name);
        let result = match lap {
            Some(lap) => self.object.call_method1(name, (lap,)),
            None => self.object.call_method0(name),
        };
        result.map(drop).map_err(|error| trouble(self.object.py(), error))
    }
}

impl Stopwatch for PyStopwatch<'_> {
    fn begin(&mut self, lap: usize) -> Result<(), Trouble> {
        self.tell("begin", Some(lap))
    }

    fn end(&mut self, lap: usize) -> Result<(), Trouble> {
        self.tell("end", Some(lap))
    }

    fn elapsed_us(&mut self, lap: usize) -> Result<f64, Trouble> {
        let elapsed = self.object.call_method1("elapsed_us", (lap,));
        elapsed
            .and_then(|us| us.extract())
            .map_err(|error| trouble(self.object.py(), error))
    }

    fn hold(&mut self) -> Result<(), Trouble> {
        self.tell("hold", None)
    }

    fn flush(&mut self) -> Result<(), Trouble> {
        self.tell("flush", None)
    }

    fn now_us(&mut self) -> f64 {
        self.began.elapsed().as_secs_f64() * 1e6
    }
}

/// Tells a Python function of samples and rounds, as JSON.
struct PyObserver<'py> {
    callable: Option<Bound<'py, PyAny>>,
}

impl PyObserver<'_> {
    fn tell(&self, kind: &str, what: serde_json::Result<String>) -> Result<(), flashcore_bench::BenchError> {
        let Some(callable) = &self.callable else { return Ok(()) };
        let told = what.map_err(|error| error.to_string()).and_then(|what| {
            let told = callable.call1((kind, what));
            told.map(drop).map_err(|error| error.to_string())
        });
        told.map_err(|reason| flashcore_bench::BenchError::Device {
            reason: format!("the observer failed: {reason}"),
        })
    }
}

impl Observer for PyObserver<'_> {
    fn sample(&mut self, sample: &Sample) -> Result<(), flashcore_bench::BenchError> {
        self.tell("sample", serde_json::to_string(sample))
    }

    fn round(&mut self, round: u32, reading: Option<&Reading>) -> Result<(), flashcore_bench::BenchError> {
        self.tell("round", serde_json::to_string(&(round, reading)))
    }
}

/// A Python exception as trouble of one subject; a lost CUDA context is everybody's, and so is Ctrl-C.
fn trouble(py: Python<'_>, error: PyErr) -> Trouble {
    let message = error.to_string();
    let lost = [
        "illegal memory access",
        "unspecified launch failure",
        "misaligned address",
        "device-side assert",
    ];
    Trouble {
        fatal: lost.iter().any(|sign| message.contains(sign)) || error.is_instance_of::<PyKeyboardInterrupt>(py),
        message,
    }
}
