//! What runs under ncu: a process that calls one kernel or peer on random inputs, and says what it is. Sequences are as
//! long as bounds and tensors allow.

use std::path::{Path, PathBuf};

use flashcore::unstable::testing::{InputKind, Inputs};
use flashcore::{Device, KernelId};
use flashcore_cuda::{Function, ModuleOptions, Stream};
use flashcore_kernels::{Plan, Step};
use flashcore_problem::{Layout, Problem};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::gpu::{ForwardPass, KernelSubject, Launching, PreparedPlan, TensorSet, info_of};
use crate::own::{Code, Own};
use crate::{BenchError, LaunchMode, Result, Subject, SubjectInfo, sequences};

/// Calls before the one that is profiled: the first loads code, the others warm caches.
pub(super) const WARM_UP: usize = 3;

const SEED: u64 = 1;

/// A kernel to be called under ncu and nothing else: the argument of `flashcore profile --launch`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// The problem.
    pub problem: Problem,
    /// The config's id.
    pub kernel: String,
    /// `cuda:0`.
    pub device: String,
    /// The declaration of a kernel of the user in place of a config, and the SHA-256 of its content.
    #[serde(default)]
    pub own: Option<(PathBuf, String)>,
}

impl Launch {
    /// Calls the kernel as often as ncu passes over, and once more. Returns its identity, which is that of the module
    /// without line information.
    ///
    /// # Errors
    /// A kernel that does not run on GPUs, a device that is none, a refusal, and what the driver says.
    pub fn run(&self) -> Result<SubjectInfo> {
        if let Some((file, sha256)) = &self.own {
            return self.run_own(file, sha256);
        }
        let (device, kernel) = (self.device.parse::<Device>()?, self.kernel.parse()?);
        let (Device::Cuda(context), KernelId::Gpu(config)) = (&device, &kernel) else {
            let why = format!(
                "{} on {}: ncu profiles GPU kernels on a CUDA device",
                self.kernel, self.device
            );
            return Err(BenchError::Given(why));
        };
        let stream = Stream::new(context)?;
        let refused = |why| BenchError::Given(format!("{config} cannot serve {}: {why}", self.problem));
        let plan = Plan::new(&self.problem, config, context.info().chip()).map_err(refused)?;
        let tensors = TensorSet::new(&stream, &self.problem, plan.workspace_bytes())?;
        let lengths = sequences::lengths(&self.problem, &[])?;
        let inputs = Inputs::with_lengths_before_forward(&self.problem, lengths, InputKind::Normal, SEED)?;
        tensors.upload(&stream, &inputs)?;
        if let Some(forward) = ForwardPass::new(&stream, &self.problem)? {
            forward.run(&stream, &tensors.tensors())?;
        }
        let options = ModuleOptions {
            line_info: true,
            ..ModuleOptions::default()
        };
        let load = |step: &Step| Function::load(context, &step.kernel, &options);
        let functions = plan.steps().map(load).collect::<std::result::Result<Vec<_>, _>>()?;
        let prepared = PreparedPlan::new(&plan, &functions, &tensors.tensors())?;
        for _ in 0..=WARM_UP {
            prepared.enqueue(&stream)?;
        }
        stream.synchronize()?;
        Ok(info_of(&plan, &functions, &options, LaunchMode::Plain))
    }

    fn run_own(&self, file: &Path, sha256: &str) -> Result<SubjectInfo> {
        let own = Own::read(&file.display().to_string())?;
        let Code::Ptx(declared) = own.code else {
            return Err(BenchError::Given(format!(
                "{} is not the declaration of a kernel",
                file.display()
            )));
        };
        if own.sha256 != sha256 {
            let why = format!("{} has changed since it was allowed to run", file.display());
            return Err(BenchError::Given(why));
        }
        let device = self.device.parse::<Device>()?;
        let Some(context) = device.context() else {
            return Err(BenchError::Given(format!(
                "{}: ncu profiles GPU kernels on a CUDA device",
                self.device
            )));
        };
        let stream = Stream::new(context)?;
        let tensors = TensorSet::new(&stream, &self.problem, 0)?;
        let lengths = sequences::lengths(&self.problem, &[])?;
        tensors.upload(
            &stream,
            &Inputs::with_lengths(&self.problem, lengths, InputKind::Normal, SEED)?,
        )?;
        let sets = [tensors.tensors()];
        // Bound and not yet launched.
        let mut kernel = KernelSubject::declared(&stream, &declared, &self.problem, &sets, Launching::Plain)?;
        for _ in 0..=WARM_UP {
            kernel.call().map_err(|trouble| trouble.of(&self.kernel))?;
        }
        stream.synchronize()?;
        Ok(kernel.info().clone())
    }
}

/// The argument of `python -m flashcore_attn._profile`, which calls a function of the user.
pub(super) fn of_own(problem: &Problem, own: &Own, device: &str) -> Value {
    let mut job = of_peer(problem, &own.label, device);
    let layout = problem.o_layout();
    let dtype = problem.out_dtype().name();
    job["tensors"]["out"] = json!({ "dtype": dtype, "shape": layout.shape, "strides": layout.strides });
    job["own"] = json!(own);
    job
}

/// The argument of `python -m flashcore_attn._profile`, which calls a peer.
pub(super) fn of_peer(problem: &Problem, peer: &str, device: &str) -> Value {
    let tensor = |layout: &Layout| {
        let (shape, strides) = (&layout.shape, &layout.strides);
        json!({ "dtype": problem.dtype().name(), "shape": shape, "strides": strides })
    };
    let (q, k, v) = (problem.q_layout(), problem.k_layout(), problem.v_layout());
    json!({
        "problem": problem,
        "peer": peer,
        "device": device,
        "warm_up": WARM_UP,
        "tensors": { "q": tensor(q), "k": tensor(k), "v": tensor(v) },
    })
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
