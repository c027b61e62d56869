//! The measuring protocol of `flashcore-bench` for functions that live in Python: peers of other libraries are
//! timed in one process with our kernels, on the same tensors.

use std::path::PathBuf;
use std::time::Instant;

use flashcore::{DType, Device, Layout, Problem, Tensor};
use flashcore_bench::child::Doing;
use flashcore_bench::{
    Absent, BenchError, Build, Case, CaseResult, Mode, Observer, Options, PeerPlace, PeerSource, PeerTensors, PeerType,
    Reading, Request, Sample, Stopwatch, Store, Subject, SubjectInfo, Telemetry, Trouble, Watcher,
};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use serde::Serialize;

use crate::dlpack::Request as TensorRequest;
use crate::error::{raise, value};
use crate::foreign::{Place, element_of, name_of};
use crate::run::host_bytes;

/// Benches kernels and peers on a device, as `flashcore bench` does; `flashcore_attn._bench.run` documents it.
/// Everything but functions travels as JSON: the types of `flashcore-bench` are its description.
#[pyfunction]
#[pyo3(signature = (device, request, peers, *, store=None, watcher=None))]
pub(crate) fn run_bench(
    device: &str,
    request: &str,
    peers: Bound<'_, PyAny>,
    store: Option<PathBuf>,
    watcher: Option<Bound<'_, PyAny>>,
) -> PyResult<String> {
    let device: Device = device.parse().map_err(raise)?;
    let request: Request = serde_json::from_str(request).map_err(|error| invalid("the request", &error))?;
    let store = store.map(|path| Store::open(&path)).transpose().map_err(failed)?;
    let mut source = PySource { object: peers };
    let mut watcher = PyObserver { callable: watcher };
    let report = flashcore_bench::run(&device, &request, &mut source, store.as_ref(), &mut watcher).map_err(failed)?;
    serde_json::to_string(&report).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Refuses a command of another build, which would time other kernels than its own here. The build is JSON. Returns
/// what is not known, to be said.
#[pyfunction]
pub(crate) fn check_build(command: &str) -> PyResult<Option<String>> {
    let command: Build = serde_json::from_str(command).map_err(|error| invalid("the build", &error))?;
    flashcore_bench::python::check_package(&command, &Build::of_this_program()).map_err(value)
}

/// Ends this process when its standard input ends, even while a kernel hangs: whoever started it is gone.
#[pyfunction]
pub(crate) fn abort_at_end_of_input() {
    flashcore_bench::child::abort_at_end_of(std::io::stdin());
}

fn invalid(what: &str, error: &serde_json::Error) -> PyErr {
    value(format!("{what} is not what flashcore-bench reads: {error}"))
}

fn failed(error: BenchError) -> PyErr {
    match error {
        BenchError::Given(_) | BenchError::Nothing(_) => value(error.to_string()),
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

/// Peers that Python makes: an object with `absences()` and `peers(case, place, tensors)`.
struct PySource<'py> {
    object: Bound<'py, PyAny>,
}

impl<'py> PySource<'py> {
    fn ask(&self, case: &Case, tensors: &PeerTensors) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = self.object.py();
        let case_json = serde_json::to_string(case).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let place = match tensors.place {
            PeerPlace::Cpu => None,
            PeerPlace::Cuda { ordinal, stream } => Some((ordinal, stream)),
        };
        let dict = PyDict::new(py);
        for tensor in &tensors.tensors {
            let described = PyDict::new(py);
            described.set_item("address", tensor.address)?;
            described.set_item("bytes", tensor.bytes)?;
            let dtype = match tensor.dtype {
                PeerType::Of(dtype) => name_of(element_of(dtype)),
                PeerType::I32 => "int32".to_string(),
            };
            described.set_item("dtype", dtype)?;
            described.set_item("shape", &tensor.shape)?;
            described.set_item("strides", &tensor.strides)?;
            dict.set_item(tensor.name, described)?;
        }
        self.object.call_method1("peers", (case_json, place, dict))?.extract()
    }
}

impl PeerSource for PySource<'_> {
    fn absences(&self) -> Vec<String> {
        let said = self.object.call_method0("absences").and_then(|list| list.extract());
        said.unwrap_or_else(|error| vec![format!("no peers: {error}")])
    }

    fn peers<'a>(&'a mut self, case: &Case, tensors: &PeerTensors) -> Vec<Result<Box<dyn Subject + 'a>, Absent>> {
        let absent = |label: &str, reason: String| Err((label.to_string(), reason));
        let peers = match self.ask(case, tensors) {
            Ok(peers) => peers,
            Err(error) => return vec![absent("peers", error.to_string())],
        };
        let subject = |peer: Bound<'a, PyAny>| -> Result<Box<dyn Subject + 'a>, Absent> {
            if let Ok(missing) = peer.extract::<Absent>() {
                return Err(missing);
            }
            match PySubject::new(&peer, Some(&case.problem)) {
                Ok(subject) => Ok(Box::new(subject)),
                Err(error) => absent("a peer", error.to_string()),
            }
        };
        peers.into_iter().map(subject).collect()
    }
}

/// Times subjects against each other; `flashcore_attn._bench.measure` documents it. Everything but callables travels as
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
    let options: Options = serde_json::from_str(options).map_err(|error| invalid("options", &error))?;
    let mode: Mode = mode.parse().map_err(|error: BenchError| value(error.to_string()))?;
    let boxed = |subject| Ok(Box::new(PySubject::new(subject, None)?) as Box<dyn Subject + '_>);
    let mut boxed = subjects.iter().map(boxed).collect::<PyResult<Vec<_>>>()?;
    if baseline >= boxed.len() {
        return Err(value(format!(
            "baseline is {baseline}; there are {} subjects, from 0",
            boxed.len()
        )));
    }
    // Its absence has been said by whoever asked for the device's identity.
    let telemetry = uuid.and_then(|uuid| Telemetry::open(uuid).ok());
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
        telemetry.as_ref(),
        &mut observer,
    )
    .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    serde_json::to_string(&measured).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// A function of Python's: an object with `info`, `runs_per_call`, `call()`; `run_once()` where a call is a chain of
/// runs and one alone can be made; for peers, `own_output()`, and `refresh()` where new inputs need work ahead of runs.
struct PySubject<'py> {
    info: SubjectInfo,
    runs_per_call: u32,
    call: Bound<'py, PyAny>,
    run_once: Option<Bound<'py, PyAny>>,
    object: Bound<'py, PyAny>,
    /// The problem whose output can be asked for.
    problem: Option<Problem>,
}

impl<'py> PySubject<'py> {
    fn new(object: &Bound<'py, PyAny>, problem: Option<&Problem>) -> PyResult<PySubject<'py>> {
        let info: String = object.getattr("info")?.extract()?;
        Ok(PySubject {
            info: serde_json::from_str(&info).map_err(|error| invalid("a subject's info", &error))?,
            runs_per_call: object.getattr("runs_per_call")?.extract()?,
            call: object.getattr("call")?,
            run_once: object.getattr_opt("run_once")?,
            object: object.clone(),
            problem: problem.cloned(),
        })
    }

    /// Calls `refresh()`, where there is one, which may replace the functions.
    fn refresh(&mut self) -> PyResult<()> {
        if let Some(refresh) = self.object.getattr_opt("refresh")? {
            refresh.call0()?;
            self.call = self.object.getattr("call")?;
            self.run_once = self.object.getattr_opt("run_once")?;
        }
        Ok(())
    }

    /// A copy of what `own_output()` gives: a tensor on the CPU in the layout of the problem's output, or a tuple of
    /// one for each output. `None` if it gives none: it wrote to the outputs that all subjects share.
    fn copy_own_output(&self, problem: &Problem) -> PyResult<Option<Vec<Tensor>>> {
        let given = self.object.call_method0("own_output")?;
        if given.is_none() {
            return Ok(None);
        }
        let outputs = problem.outputs();
        let tensors: Vec<Bound<'py, PyAny>> = match given.cast::<PyTuple>() {
            Ok(several) => several.iter().collect(),
            Err(_) => vec![given],
        };
        if tensors.len() != outputs.len() {
            let (given, expected) = (tensors.len(), outputs.len());
            return Err(value(format!(
                "own_output has {given} tensors; the problem has {expected} outputs"
            )));
        }
        let copies = tensors
            .iter()
            .zip(outputs)
            .map(|(tensor, output)| copy_of(tensor, output));
        copies.collect::<PyResult<Vec<Tensor>>>().map(Some)
    }
}

/// A copy of a tensor on the CPU that is an output of this name, type and layout.
fn copy_of(given: &Bound<'_, PyAny>, (name, dtype, layout): (&str, DType, Layout)) -> PyResult<Tensor> {
    let held = TensorRequest::new("own_output", given)?.import(None)?;
    let given = &held.foreign;
    if given.rank != 4 || given.layout() != layout || given.element != element_of(dtype) {
        let is = format!("own_output is {} {:?}", name_of(given.element), given.layout());
        return Err(value(format!(
            "{is}; the problem's output {name} is {dtype} {layout:?}"
        )));
    }
    if given.place != Place::Cpu {
        return Err(value(format!(
            "own_output is on {}; it must be on the CPU",
            given.place
        )));
    }
    let mut output = Tensor::poisoned(dtype, layout);
    output.bytes_mut().copy_from_slice(host_bytes(given));
    Ok(output)
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

    fn run_once(&mut self, _set: usize) -> Result<(), Trouble> {
        let once = match &self.run_once {
            Some(once) => once,
            None if self.runs_per_call == 1 => &self.call,
            None => {
                return Err(Trouble::new(format!(
                    "{} makes {} runs a call and has no `run_once`",
                    self.info.label, self.runs_per_call
                )));
            }
        };
        once.call0().map(drop).map_err(|error| trouble(once.py(), error))
    }

    fn inputs_changed(&mut self) -> Result<(), Trouble> {
        self.refresh().map_err(|error| trouble(self.object.py(), error))
    }

    fn own_output(&mut self) -> Result<Option<Vec<Tensor>>, Trouble> {
        let Some(problem) = &self.problem else { return Ok(None) };
        self.copy_own_output(problem)
            .map_err(|error| trouble(self.object.py(), error))
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

/// Tells a Python function of what happens: `(kind, json)`.
struct PyObserver<'py> {
    callable: Option<Bound<'py, PyAny>>,
}

impl PyObserver<'_> {
    fn tell(&self, kind: &str, what: &impl Serialize) -> Result<(), BenchError> {
        let Some(callable) = &self.callable else { return Ok(()) };
        let told = serde_json::to_string(what)
            .map_err(|error| error.to_string())
            .and_then(|what| {
                let told = callable.call1((kind, what));
                told.map(drop).map_err(|error| error.to_string())
            });
        told.map_err(|reason| BenchError::Device(format!("the observer failed: {reason}")))
    }

    /// Where failing is not provided for: watching must not end a bench.
    fn mention(&self, kind: &str, what: &impl Serialize) {
        let _ = self.tell(kind, what);
    }
}

impl Observer for PyObserver<'_> {
    fn sample(&mut self, sample: &Sample) -> Result<(), BenchError> {
        self.tell("sample", sample)
    }

    fn round(&mut self, round: u32, reading: Option<&Reading>) -> Result<(), BenchError> {
        self.tell("round", &(round, reading))
    }
}

impl Watcher for PyObserver<'_> {
    fn note(&mut self, note: &str) {
        self.mention("note", &note);
    }

    fn case(&mut self, case: &Case, index: usize, count: usize) {
        self.mention("case", &(case, index, count));
    }

    fn running(&mut self, own: Option<(&str, Doing)>) {
        self.mention("running", &own);
    }

    fn inspected(&mut self, label: &str, outcome: &str) {
        self.mention("inspected", &(label, outcome));
    }

    fn sample(&mut self, mode: Mode, label: &str, sample: &Sample) {
        self.mention("sample", &(mode, label, sample));
    }

    fn result(&mut self, result: &CaseResult) {
        self.mention("result", result);
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
