//! What runs under ncu: a process that calls one kernel or peer on random inputs, and says what it is. Sequences are as
//! long as bounds and tensors allow.

use flashcore::unstable::testing::{InputKind, Inputs};
use flashcore::{Device, KernelId};
use flashcore_check::own::Declared;
use flashcore_cuda::Stream;
use flashcore_ir::Target;
use flashcore_kernels::Plan;
use flashcore_problem::{DType, Layout, Problem};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::gpu::{ForwardPass, KernelSubject, Launching, TensorSet};
use crate::own::{Code, Own};
use crate::{BenchError, Result, Subject, SubjectInfo, sequences};

/// Calls before the one that is profiled: the first loads code, the others warm caches.
pub(super) const WARM_UP: usize = 3;

const SEED: u64 = 1;

/// A kernel to be called under ncu and nothing else: the argument of `flashcore worker --launch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// The problem.
    pub problem: Problem,
    /// The config's id.
    pub kernel: String,
    /// `cuda:0`.
    pub device: String,
    /// The word of a kernel of the user in place of a config, and the SHA-256 of its content.
    pub own: Option<(String, String)>,
}

impl Launch {
    /// Calls the kernel as often as ncu passes over, and once more. Returns its identity, which is that of the module
    /// without line information.
    ///
    /// # Errors
    /// A kernel that does not run on GPUs, a device that is none, a refusal, and what the driver says.
    pub fn run(&self) -> Result<SubjectInfo> {
        let device = self.device.parse::<Device>()?;
        let no_gpu = || {
            let (kernel, device) = (&self.kernel, &self.device);
            BenchError::Given(format!(
                "{kernel} on {device}: ncu profiles GPU kernels on a CUDA device"
            ))
        };
        let context = device.context().ok_or_else(no_gpu)?;
        let (plan, declared) = match (&self.own, self.kernel.parse()) {
            (Some((word, sha256)), _) => (None, Some(allowed(word, sha256, context.info().chip().target)?)),
            (None, Ok(KernelId::Gpu(config))) => {
                let refused = |why| BenchError::Given(format!("{config} cannot serve {}: {why}", self.problem));
                let plan = Plan::new(&self.problem, &config, context.info().chip());
                (Some(plan.map_err(refused)?), None)
            }
            (None, Ok(_)) => return Err(no_gpu()),
            (None, Err(error)) => return Err(error.into()),
        };
        let stream = Stream::new(context)?;
        let workspace = plan.as_ref().map_or(0, Plan::workspace_bytes);
        let tensors = TensorSet::new(&stream, &self.problem, workspace)?;
        let lengths = sequences::lengths(&self.problem, &[])?;
        let inputs = Inputs::with_lengths_before_forward(&self.problem, lengths, InputKind::Normal, SEED)?;
        tensors.upload(&stream, &inputs)?;
        if let Some(forward) = ForwardPass::new(&stream, &self.problem)? {
            forward.run(&stream, &tensors.tensors())?;
        }
        let sets = [tensors.tensors()];
        // Bound and not yet launched.
        let mut kernel = match (&plan, &declared) {
            (Some(plan), _) => KernelSubject::with_lines(&stream, plan, &sets)?,
            (None, Some(declared)) => {
                KernelSubject::declared(&stream, declared, &self.problem, &sets, Launching::Plain)?
            }
            (None, None) => return Err(no_gpu()),
        };
        for _ in 0..=WARM_UP {
            kernel.call().map_err(|trouble| trouble.of(&self.kernel))?;
        }
        stream.synchronize()?;
        Ok(kernel.info().clone())
    }
}

/// The user's kernel that a word names, if that is still what was allowed to run.
fn allowed(word: &str, sha256: &str, target: Target) -> Result<Box<Declared>> {
    let own = Own::read(word, target)?;
    let why = match own.code {
        Code::Ptx(declared) if own.sha256 == sha256 => return Ok(declared),
        Code::Ptx(_) => "has changed since it was allowed to run",
        Code::Python(_) => "is not the declaration of a kernel",
    };
    Err(BenchError::Given(format!("{word} {why}")))
}

/// The argument of `python -m flashcore_attn._profile`, which calls a peer, or a function of the user: that writes an
/// output of ours.
pub(super) fn of_python(problem: &Problem, label: &str, own: Option<&Own>, device: &str) -> Value {
    let tensor = |dtype: DType, layout: &Layout| json!({ "dtype": dtype.name(), "shape": layout.shape, "strides": layout.strides });
    let layouts = [problem.q_layout(), problem.k_layout(), problem.v_layout()];
    let [q, k, v] = layouts.map(|layout| tensor(problem.dtype(), layout));
    let mut job = json!({
        "problem": problem,
        "peer": label,
        "device": device,
        "warm_up": WARM_UP,
        "tensors": { "q": q, "k": k, "v": v },
    });
    if let Some(own) = own {
        job["tensors"]["out"] = tensor(problem.out_dtype(), problem.o_layout());
        job["own"] = json!(own);
    }
    job
}

/// What the process says of itself: a line of its output.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Said {
    /// What was called.
    Subject(Box<SubjectInfo>),
    /// Why nothing was called.
    Failed(String),
}

impl Said {
    /// The last such line in what ncu passed on.
    pub(super) fn in_text(text: &str) -> Option<Said> {
        let said = text.lines().rev().filter(|line| line.starts_with('{'));
        said.filter_map(|line| serde_json::from_str(line).ok()).next()
    }
}
