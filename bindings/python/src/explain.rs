//! How a call would be computed, without computing it. The package's `explain` puts it in words.

use flashcore::Problem;
use flashcore::plans::{PlanSummary, Step};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::call::Call;
use crate::error::raise;
use crate::options::Options;

/// How `attention` would compute this call, as a dict; nothing is computed or compiled.
///
/// It has problem, device, kernel, why, row (of a plan table that chose the kernel: the table's
/// name and a number; None where heuristics did), notes (on plan tables that cannot be used) and
/// flops (of the two products, over visible keys only), and on a GPU also target, grid, block,
/// cluster, shared_bytes (a block), workspace_bytes, before and then (the names of kernels that run
/// before and after the one described) and considered: pairs of a kernel and why it was refused
/// (None: chosen). Takes the arguments of `attention` and raises what it would raise; `out` is not written.
#[pyfunction]
#[pyo3(signature = (
    q, k, v, *, causal=false, window=None, softcap=None, scale=None, out=None, return_lse=false, kernel=None,
    layout="bshd", stream=None, q_scale=None, k_scale=None, v_scale=None, sinks=None, alibi_slopes=None,
))]
#[allow(clippy::too_many_arguments)] // Python's keyword arguments
pub(crate) fn plan<'py>(
    py: Python<'py>,
    q: &Bound<'py, PyAny>,
    k: &Bound<'py, PyAny>,
    v: &Bound<'py, PyAny>,
    causal: bool,
    window: Option<&Bound<'py, PyAny>>,
    softcap: Option<f32>,
    scale: Option<f32>,
    out: Option<&Bound<'py, PyAny>>,
    return_lse: bool,
    kernel: Option<&str>,
    layout: &str,
    stream: Option<&Bound<'py, PyAny>>,
    q_scale: Option<&Bound<'py, PyAny>>,
    k_scale: Option<&Bound<'py, PyAny>>,
    v_scale: Option<&Bound<'py, PyAny>>,
    sinks: Option<&Bound<'py, PyAny>>,
    alibi_slopes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let mut options = Options::parse(causal, window, softcap, scale, return_lse, kernel, layout)?;
    let (mut call, out) = Call::gather([q, k, v], [q_scale, k_scale, v_scale], out, stream, &options)?;
    call.gather_head_values(sinks, alibi_slopes, &mut options)?;
    let problem = call.problem(&options, out.as_ref())?;
    if let Some(out) = &out {
        call.check_out(out)?;
    }
    let attention = &*call.attention;
    let alignment = call.alignment(out.as_ref());
    let summary = py
        .detach(|| attention.plan_aligned(&problem, alignment))
        .map_err(raise)?;
    let plan = describe(py, &problem, &call.place.to_string(), &summary)?;
    let plans = attention.plans();
    let rows = plans.rows(&problem);
    let row = summary.row().and_then(|place| rows.get(place));
    plan.set_item("row", row.map(|row| (row.table.to_string(), row.number)))?;
    let notes: Vec<String> = plans.notes().iter().map(ToString::to_string).collect();
    plan.set_item("notes", notes)?;
    Ok(plan)
}

fn describe<'py>(
    py: Python<'py>,
    problem: &Problem,
    device: &str,
    summary: &PlanSummary,
) -> PyResult<Bound<'py, PyDict>> {
    let plan = PyDict::new(py);
    plan.set_item("problem", problem.to_string())?;
    plan.set_item("device", device)?;
    plan.set_item("kernel", summary.kernel().to_string())?;
    plan.set_item("flops", problem.flops())?;
    plan.set_item("why", summary.why())?;
    let PlanSummary::Gpu(choice) = summary else {
        return Ok(plan);
    };
    let launch = &choice.plan.main.launch;
    plan.set_item("target", choice.plan.target.to_string())?;
    plan.set_item("grid", launch.grid)?;
    plan.set_item("block", launch.block)?;
    plan.set_item("cluster", launch.cluster)?;
    plan.set_item("shared_bytes", choice.plan.main.kernel.ledger().total_bytes())?;
    plan.set_item("workspace_bytes", choice.plan.workspace_bytes())?;
    let name = |step: &Step| step.kernel.name().to_string();
    let names = |steps: &[Step]| steps.iter().map(name).collect::<Vec<_>>();
    plan.set_item("before", names(&choice.plan.before))?;
    plan.set_item("then", names(&choice.plan.then))?;
    let considered = PyList::empty(py);
    for candidate in &choice.considered {
        let refusal = candidate.refusal.as_ref().map(ToString::to_string);
        considered.append((candidate.config.to_string(), refusal))?;
    }
    plan.set_item("considered", considered)?;
    Ok(plan)
}
