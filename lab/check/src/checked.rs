//! What a check simulates.

use flashcore_ir::proof::{CodeForm, LaunchRefusal, prove_code, prove_launch};
use flashcore_ir::{BufferSpec, Kernel, Launch, Target};
use flashcore_kernels::{Plan, Step, Tap};
use flashcore_problem::Problem;
use flashcore_sim::{PtxKernel, SimError, SimOptions, SimReport, simulate};

/// What is simulated: the kernels of a plan, or of a user.
pub(crate) struct Checked<'s> {
    pub(crate) problem: &'s Problem,
    /// Its id or label.
    pub(crate) kernel: String,
    pub(crate) target: Target,
    pub(crate) tap: Option<Tap>,
    pub(crate) steps: Vec<Work<'s>>,
    pub(crate) workspace_bytes: u64,
    pub(crate) reproducible: bool,
    /// How many times the default tolerance an error may be.
    pub(crate) tolerance: f64,
}

/// A kernel and its launch: a step of a plan, or of a user's PTX.
#[derive(Clone, Copy)]
pub(crate) enum Work<'s> {
    Own(&'s Step),
    Ptx(&'s PtxKernel),
}

impl<'s> Work<'s> {
    pub(crate) fn kernel(self) -> &'s Kernel {
        match self {
            Work::Own(step) => &step.kernel,
            Work::Ptx(kernel) => kernel.kernel(),
        }
    }

    pub(crate) fn launch(self) -> &'s Launch {
        match self {
            Work::Own(step) => &step.launch,
            Work::Ptx(kernel) => kernel.launch(),
        }
    }

    pub(crate) fn buffers(self) -> &'s [BufferSpec] {
        match self {
            Work::Own(step) => &step.launch.buffers,
            Work::Ptx(kernel) => kernel.buffers(),
        }
    }

    pub(crate) fn refusals(self, target: Target) -> Vec<LaunchRefusal> {
        let mut refusals = prove_launch(self.kernel(), self.launch(), target, None);
        if let Work::Ptx(kernel) = self {
            refusals.extend(prove_code(kernel.target(), CodeForm::Ptx, target));
        }
        refusals
    }

    pub(crate) fn simulate(self, buffers: &mut [Vec<u8>], options: &SimOptions) -> Result<SimReport, SimError> {
        match self {
            Work::Own(step) => simulate(&step.kernel, &step.launch, buffers, options),
            Work::Ptx(kernel) => kernel.simulate(buffers, options),
        }
    }
}

impl<'s> Checked<'s> {
    pub(crate) fn of(plan: &'s Plan) -> Checked<'s> {
        Checked {
            problem: &plan.problem,
            kernel: plan.config.to_string(),
            target: plan.target,
            tap: plan.tap,
            steps: plan.steps().map(Work::Own).collect(),
            workspace_bytes: plan.workspace_bytes(),
            reproducible: plan.reproducible,
            tolerance: 1.0,
        }
    }

    pub(crate) fn steps(&self) -> impl Iterator<Item = Work<'s>> {
        self.steps.iter().copied()
    }
}
