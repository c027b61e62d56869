//! `S = scale·Q·Kᵀ` by itself: how far a product on tensor cores without an overlapped main loop is from a library's.
//!
//! Ours are [`scores`](flashcore_kernels::ladder::scores), on tensor cores and with plain FMAs; the peer is cuBLAS,
//! which a [`PeerSource`] calls where the tensors it is given are `q`, `k` and `scores`. All read the same Q and K,
//! dense `[batch, heads, seq, head_dim]`, and write the same scores, in the problem's dtype, so all move the same
//! bytes. Every key is multiplied, whatever the problem's mask. Scores are compared with float64 before anything is
//! timed. No attention is computed, so nothing goes to the evidence store.

use flashcore_cuda::{DeviceBuffer, Function, ModuleOptions, Stream};
use flashcore_kernels::ladder::scores::{Levers, plan};
use flashcore_problem::{
    Comparison, InputKind, Inputs, Layout, POISON, Problem, Tensor, Tolerance, compare_tap, reference_scores,
};

use crate::gpu::{ClosureSubject, GpuStopwatch, GpuTools, launch};
use crate::session::Session;
use crate::stand::left_out;
use crate::{
    Absent, BenchError, Case, CaseResult, PeerPlace, PeerSource, PeerTensor, PeerTensors, PeerType, Result, Subject,
    measure,
};

/// Runs in one graph.
const CHAIN: u32 = 64;

impl Session<'_> {
    /// Compares and times the products of a problem, peers included.
    ///
    /// # Errors
    /// A lost device. What is wrong or does not serve the problem is absent, with its reason.
    pub(crate) fn scores(
        &mut self,
        case: &Case,
        (stream, tools): (&Stream, &GpuTools),
        peers: &mut dyn PeerSource,
    ) -> Result<()> {
        let (context, problem) = (stream.context(), &dense(&case.problem)?);
        let case = &Case {
            problem: problem.clone(),
            ..case.clone()
        };
        let inputs = Inputs::generate(problem, InputKind::Normal, 1);
        let want = reference_scores(problem, &inputs.q.view(), &inputs.k.view(), &inputs.v.view())
            .map_err(|error| BenchError::Given(error.to_string()))?;
        let q = DeviceBuffer::from_host(stream, inputs.q.bytes())?;
        let k = DeviceBuffer::from_host(stream, inputs.k.bytes())?;
        let scores = DeviceBuffer::new(context, want.len() * problem.dtype().size_bytes())?;
        let tensors = tensors(stream, problem, [&q, &k, &scores]);

        let mut absent: Vec<Absent> = Vec::new();
        let mut found: Vec<Box<dyn Subject + '_>> = Vec::new();
        // Peers first: the first is the baseline.
        for peer in peers.peers(case, &tensors) {
            match peer {
                Ok(subject) => found.push(subject),
                Err(missing) => absent.push(missing),
            }
        }
        for levers in Levers::all() {
            let label = levers.to_string();
            let step = match plan(problem, levers, context.info().chip().target) {
                Ok(step) => step,
                Err(refusal) => {
                    absent.push((label, refusal.to_string()));
                    continue;
                }
            };
            let function = Function::load(context, &step.kernel, &ModuleOptions::default())?;
            let buffers = [q.as_slice(), k.as_slice(), scores.as_slice()];
            let launch = launch::prepare(&function, &step.launch, &buffers)?;
            let work = move |stream: &Stream| (0..CHAIN).try_for_each(|_| launch::enqueue(&launch, stream));
            match ClosureSubject::new(&label, stream, CHAIN, work) {
                Ok(subject) => found.push(Box::new(subject)),
                Err(error) if error.is_fault() => return Err(error),
                Err(error) => absent.push(left_out(&label, &error)),
            }
        }
        let mut subjects = Vec::new();
        for mut subject in found {
            let label = subject.info().label.clone();
            let compared = compared(stream, problem, subject.as_mut(), &scores, &want)?;
            self.inspected(&label, &compared);
            if compared.passed {
                subjects.push(subject)
            } else {
                let wrong = (label, format!("its scores are wrong: {compared}"));
                self.report.failed.push(wrong.clone());
                absent.push(wrong);
            }
        }
        for &mode in &self.request.modes {
            let mut stopwatch = GpuStopwatch::new(tools, stream);
            let telemetry = self.telemetry.as_ref();
            let options = &self.request.options;
            let measured = measure(options, mode, &mut subjects, 0, &mut stopwatch, telemetry, &mut ())?;
            let inspections = vec![None; measured.subjects.len()];
            let floor_us = self.report.floor_us;
            let mut result = CaseResult::new(case.clone(), measured, inspections, absent.clone(), floor_us);
            result.flops = 2.0 * problem.head_dim() as f64 * want.len() as f64;
            result.bytes = (inputs.q.bytes().len() + inputs.k.bytes().len() + scores.len()) as f64;
            self.add(result);
        }
        Ok(())
    }
}

/// The problem without its mask, in tensors that a batched matrix product takes without copying.
fn dense(problem: &Problem) -> Result<Problem> {
    if problem.has_lengths() {
        let why = "bench scores takes equal lengths; packed sequences and caches have no single product";
        return Err(BenchError::Given(why.to_string()));
    }
    let mut builder = Problem::builder()
        .batch(problem.batch())
        .heads(problem.num_heads(), problem.num_kv_heads())
        .seq_len_q(problem.seq_len_q())
        .seq_len_kv(problem.seq_len_kv())
        .head_dim(problem.head_dim())
        .dtype(problem.dtype())
        .softmax_scale(problem.softmax_scale())
        .layout(Layout::bhsd);
    if let Some(cap) = problem.softcap() {
        builder = builder.softcap(cap);
    }
    builder.build().map_err(|error| BenchError::Given(error.to_string()))
}

/// What peers are given: Q and K, and dense scores `[batch, heads, seq_len_q, seq_len_kv]`.
fn tensors(stream: &Stream, problem: &Problem, [q, k, scores]: [&DeviceBuffer; 3]) -> PeerTensors {
    let [b, h] = [problem.batch(), problem.num_heads()];
    let all = Layout::bshd([b, h, problem.seq_len_q(), problem.seq_len_kv()]);
    let of = |name, buffer: &DeviceBuffer, layout: &Layout| PeerTensor {
        name,
        address: buffer.as_slice().address(),
        bytes: buffer.len(),
        dtype: PeerType::Of(problem.dtype()),
        shape: layout.shape.to_vec(),
        strides: layout.strides.to_vec(),
    };
    PeerTensors {
        place: PeerPlace::Cuda {
            ordinal: stream.context().info().ordinal,
            stream: stream.as_raw(),
        },
        tensors: vec![
            of("q", q, problem.q_layout()),
            of("k", k, problem.k_layout()),
            of("scores", scores, &all),
        ],
    }
}

/// Runs a subject over poison, and compares what it wrote.
fn compared(
    stream: &Stream,
    problem: &Problem,
    subject: &mut dyn Subject,
    scores: &DeviceBuffer,
    want: &[f64],
) -> Result<Comparison> {
    scores.as_slice().fill(stream, POISON)?;
    let label = subject.info().label.clone();
    subject.call().map_err(|trouble| trouble.of(&label))?;
    let mut written = Tensor::poisoned(problem.dtype(), Layout::bshd([1, 1, 1, want.len()]));
    scores.as_slice().copy_to_host(stream, written.bytes_mut())?;
    stream.synchronize()?;
    let got: Vec<f32> = (0..want.len()).map(|i| written.view().get(0, 0, 0, i)).collect();
    compare_tap(problem, &got, want, Tolerance::of(problem.dtype()))
        .map_err(|error| BenchError::Given(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problems;

    #[test]
    fn a_product_has_no_mask_and_one_matrix_a_head() {
        let case = problems::cases("small-set", None).unwrap().remove(1);
        let dense = dense(&case.problem).unwrap();
        assert!(dense.mask().window_right.is_none() && dense.softmax_scale() == case.problem.softmax_scale());
        let [_, seq, heads, head_dim] = dense.q_layout().shape;
        assert_eq!(
            dense.q_layout().strides,
            [
                (heads * seq * head_dim) as i64,
                head_dim as i64,
                (seq * head_dim) as i64,
                1
            ]
        );
        assert!(case.problem.mask().window_right.is_some(), "{}", case.problem);
    }
}
