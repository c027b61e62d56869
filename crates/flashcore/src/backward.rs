//! [`Attention::backward`]: the gradients of Q, K and V.

#[cfg(feature = "cuda")]
use flashcore_problem::Direction;
use flashcore_problem::{
    BackwardTensors, Gradients, Lengths, Problem, ProblemError, Tensor, TensorView, TensorViewMut,
};

use crate::attention::Backend;
use crate::{Attention, Error, Output};
#[cfg(feature = "cuda")]
use crate::{DeviceTensors, Queue};

impl Attention {
    /// The gradients of Q, K and V from that of O, on tensors in host memory of equal lengths (for
    /// others: [`Attention::backward_lengths`]).
    ///
    /// `problem` and `output` are those of the forward pass, which returned the log-sum-exp
    /// ([`ProblemBuilder::return_lse`](crate::ProblemBuilder::return_lse)). Gradients have the dtype of
    /// Q, K and V, and their layouts unless [`Problem::gradient_layouts`] has others. Those of K and V
    /// are summed over the query heads that share a K/V head. The last bits of gradients may differ
    /// from run to run, unless the problem is
    /// [`deterministic`](crate::ProblemBuilder::deterministic).
    ///
    /// ```
    /// use flashcore::{Attention, DType, Device, Problem, Tensor};
    ///
    /// let problem = Problem::builder().heads(2, 1).seq_len(16).head_dim(64).dtype(DType::F32);
    /// let problem = problem.return_lse(true).build()?;
    /// let ones = |heads| Tensor::from_slice([1, 16, heads, 64], &vec![1f32; 16 * heads * 64]);
    /// let (q, k, dout) = (ones(2)?, ones(1)?, ones(2)?);
    /// let attention = Attention::new(Device::cpu())?;
    /// let output = attention.forward(&problem, &q, &k, &k)?;
    /// let gradients = attention.backward(&problem, &q, &k, &k, &output, &dout)?;
    /// // Each of 16 keys has a sixteenth of 16 rows of two heads.
    /// assert!(gradients.dv.as_slice::<f32>()?.iter().all(|x| (x - 2.0).abs() < 1e-5));
    /// # Ok::<(), flashcore::Error>(())
    /// ```
    ///
    /// # Errors
    /// An output without log-sum-exp, tensors that are not the problem's, a problem that has no
    /// backward pass ([`Problem::backward`]) or that no kernel serves, or a failure of the device.
    pub fn backward<'a>(
        &self,
        problem: &Problem,
        q: impl Into<TensorView<'a>>,
        k: impl Into<TensorView<'a>>,
        v: impl Into<TensorView<'a>>,
        output: &Output,
        dout: impl Into<TensorView<'a>>,
    ) -> Result<Gradients<Tensor>, Error> {
        let problem = problem.backward()?;
        let Some(layouts) = problem.gradient_layouts() else {
            unreachable!("a backward problem has them");
        };
        let Some(lse) = output.lse.as_deref() else {
            let call = ".return_lse(true)";
            return Err(ProblemError::Missing { field: "lse", call }.into());
        };
        let tensors = BackwardTensors {
            q: q.into(),
            k: k.into(),
            v: v.into(),
            out: output.out.view(),
            lse,
            dout: dout.into(),
        };
        let zeros = |layout| Tensor::filled(problem.dtype(), layout, 0);
        let [mut dq, mut dk, mut dv] = [layouts.dq, layouts.dk, layouts.dv].map(zeros);
        let gradients = Gradients {
            dq: dq.view_mut(),
            dk: dk.view_mut(),
            dv: dv.view_mut(),
        };
        self.backward_lengths(&problem, &tensors, &Lengths::default(), gradients)?;
        Ok(Gradients { dq, dk, dv })
    }

    /// As [`Attention::backward`], with the values of lengths, into the caller's memory: packed
    /// sequences ([`QLengths`](crate::QLengths), [`KvLengths`](crate::KvLengths)). `problem` is a
    /// [backward problem](Problem::backward). Rows of gradients that are of no sequence keep their
    /// bytes, and so do gaps.
    ///
    /// # Errors
    /// As [`Attention::backward`], a forward problem, and values that are missing or contradict the
    /// problem ([`Problem::sequences`]).
    pub fn backward_lengths(
        &self,
        problem: &Problem,
        tensors: &BackwardTensors<'_>,
        lengths: &Lengths<&[i32]>,
        mut gradients: Gradients<TensorViewMut<'_>>,
    ) -> Result<(), Error> {
        problem.check_backward(tensors, &gradients)?;
        match &self.backend {
            #[cfg(feature = "cpu")]
            Backend::Cpu(config) => {
                let options = self.cpu_options(problem, *config)?;
                Ok(flashcore_cpu::backward(
                    &options,
                    problem,
                    tensors,
                    lengths,
                    &mut gradients,
                )?)
            }
            #[cfg(feature = "cuda")]
            Backend::Cuda(cuda) => cuda.backward_host(problem, tensors, lengths, &mut gradients, &self.plans),
        }
    }

    /// Puts a backward pass on tensors in device memory into a queue, and returns at once;
    /// [`DeviceTensors::gradients`] and [`DeviceTensors::lse`] are given.
    ///
    /// `problem` is a [backward problem](Problem::backward), and so is that of [`warmup`](Attention::warmup). All else
    /// is as for [`Attention::forward_on`].
    ///
    /// # Errors
    /// As [`Attention::forward_on`], and a forward problem.
    #[cfg(feature = "cuda")]
    pub fn backward_on(&self, queue: &mut Queue, problem: &Problem, tensors: &DeviceTensors<'_>) -> Result<(), Error> {
        problem.check_direction(Direction::Backward)?;
        self.run_on(queue, problem, tensors)
    }
}
