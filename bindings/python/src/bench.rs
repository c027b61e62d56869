//! The measuring protocol of `flashcore-bench` for functions that live in Python: peers of other libraries are
//! timed in one process with our kernels, on the same tensors.

use std::path::PathBuf;

use flashcore::{DType, Device, Host, Layout, Problem, Tensor, View};
use flashcore_bench::{
    Absent, BenchError, Build, Case, Event, PeerPlace, PeerSource, PeerTensors, Request, Store, Subject, SubjectInfo,
    Trouble, Watcher,
};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::prelude::*;
use serde::Serialize;
use serde_json::Value;

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
    let store = store.map(|path| Store::at(&path));
    let mut source = PySource { object: peers };
    let mut watcher = PyWatcher { callable: watcher };
    let report = flashcore_bench::run(&device, &request, &mut source, store.as_ref(), &mut watcher).map_err(failed)?;
    json(&report)
}

fn json(what: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(what).map_err(|error| PyRuntimeError::new_err(error.to_string()))
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
        let place = match tensors.place {
            PeerPlace::Cpu => None,
            PeerPlace::Cuda { ordinal, stream } => Some((ordinal, stream)),
        };
        let asked = (json(case)?, place, json(&tensors.tensors)?);
        self.object.call_method1("peers", asked)?.extract()
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
            match PySubject::new(&peer, &case.problem) {
                Ok(subject) => Ok(Box::new(subject)),
                Err(error) => absent("a peer", error.to_string()),
            }
        };
        peers.into_iter().map(subject).collect()
    }
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
    problem: Problem,
}

impl<'py> PySubject<'py> {
    fn new(object: &Bound<'py, PyAny>, problem: &Problem) -> PyResult<PySubject<'py>> {
        let info: String = object.getattr("info")?.extract()?;
        Ok(PySubject {
            info: serde_json::from_str(&info).map_err(|error| invalid("a subject's info", &error))?,
            runs_per_call: object.getattr("runs_per_call")?.extract()?,
            call: object.getattr("call")?,
            run_once: object.getattr_opt("run_once")?,
            object: object.clone(),
            problem: problem.clone(),
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

    /// Copies of what `own_output()` gives: a tensor on the CPU for each output. `None` if it gives none: it wrote to
    /// the outputs that all subjects share.
    fn copy_own_output(&self) -> PyResult<Option<Vec<Tensor>>> {
        let Some(tensors) = self.object.call_method0("own_output")?.extract::<Option<Vec<_>>>()? else {
            return Ok(None);
        };
        let outputs = self.problem.outputs();
        if tensors.len() != outputs.len() {
            let (given, expected) = (tensors.len(), outputs.len());
            return Err(value(format!(
                "own_output has {given} tensors; the problem has {expected} outputs"
            )));
        }
        let copies = tensors.iter().zip(outputs);
        copies
            .map(|(tensor, output)| copy_of(tensor, output))
            .collect::<PyResult<_>>()
            .map(Some)
    }
}

/// A copy of a tensor on the CPU, of any strides, as an output of this name, type and layout.
fn copy_of(given: &Bound<'_, PyAny>, (name, dtype, layout): (&str, DType, Layout)) -> PyResult<Tensor> {
    let held = TensorRequest::new("own_output", given, false)?.import(None)?;
    let (given, of_given) = (&held.foreign, held.foreign.layout());
    let is_one = given.rank == 4 && of_given.shape == layout.shape && given.element == element_of(dtype);
    if !is_one || of_given.strides.iter().any(|&stride| stride < 0) {
        let is = format!("own_output is {} {of_given:?}", name_of(given.element));
        let output = format!("the problem's output {name} is {dtype} {layout:?}");
        return Err(value(format!("{is}; {output}")));
    }
    if given.place != Place::Cpu {
        let place = given.place;
        return Err(value(format!("own_output is on {place}; it must be on the CPU")));
    }
    let view = View::<Host>::new(dtype, of_given, host_bytes(given)).tensor("own_output");
    let view = view.map_err(|error| value(error.to_string()))?;
    Ok(Tensor::from_fn(dtype, layout, |b, s, h, d| view.get(b, s, h, d)))
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
        self.copy_own_output().map_err(|error| trouble(self.object.py(), error))
    }
}

/// Tells a Python function of what happens: `(kind, json)`.
struct PyWatcher<'py> {
    callable: Option<Bound<'py, PyAny>>,
}

impl Watcher for PyWatcher<'_> {
    /// Watching must not end a bench: what fails is left.
    fn see(&mut self, event: Event) {
        if let (Some(callable), Ok(Value::Object(said))) = (&self.callable, serde_json::to_value(event)) {
            for (kind, what) in said {
                let _ = callable.call1((kind, what.to_string()));
            }
        }
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
