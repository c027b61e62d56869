//! How a call would be computed, without computing it. The package's `explain` puts it in words.

use flashcore::plans::{PlanSummary, Step};
use flashcore::{Attention, Problem};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::error::raise;
use crate::foreign::Place;

pub(crate) fn describe<'py>(
    py: Python<'py>,
    problem: &Problem,
    place: Place,
    attention: &Attention,
    alignment: u32,
) -> PyResult<Bound<'py, PyDict>> {
    let summary = py
        .detach(|| attention.prepare_aligned(problem, alignment))
        .map_err(raise)?;
    let summary = match summary.plan() {
        Some(summary) => summary,
        None => attention.plan(problem).map_err(raise)?,
    };
    let plan = PyDict::new(py);
    let plans = attention.plans();
    let rows = plans.rows(problem);
    let row = summary.row().and_then(|place| rows.get(place));
    plan.set_item("row", row.map(|row| (row.table.to_string(), row.number)))?;
    let notes: Vec<String> = plans.notes().iter().map(ToString::to_string).collect();
    plan.set_item("notes", notes)?;
    plan.set_item("problem", problem.to_string())?;
    plan.set_item("device", place.to_string())?;
    plan.set_item("kernel", summary.kernel().to_string())?;
    plan.set_item("flops", problem.flops())?;
    plan.set_item("why", summary.why())?;
    let PlanSummary::Gpu(choice) = &summary else {
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
