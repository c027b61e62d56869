//! What planted candidates need of a GPU: kernels that hang and that write out of bounds.

use flashcore_cuda::{Function, ModuleOptions};
use flashcore_ir::{BuildErrors, Kernel};
use flashcore_problem::{Problem, Tensor};

use super::{Spoil, Spoiler};
use crate::bed::poisoned_outputs;
use crate::gpu::{GpuBed, launch, one_warp_on};
use crate::{Bed, Trouble};

const WARP: u32 = 32;

fn hang_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_hang", WARP, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let x = k.var(1.0f32);
        k.loop_(|turn| {
            x.set(x.get().fma(0.5f32, 0.25f32));
            // Always false, which the compiler cannot know.
            turn.break_if(x.get().lt(0.0f32).divergent());
        });
        out.store(x.get());
    })
}

/// Writes a word `far` words from the beginning of the output, which may be outside it.
fn wild_kernel() -> Result<Kernel, BuildErrors> {
    Kernel::build("planted_wild", WARP, |k| {
        let out = k.param_ptr_mut::<u32>("out");
        let far = k.param::<u32>("far");
        k.if_(k.thread_idx().eq(0u32).divergent(), || out.offset(far).store(0u32));
    })
}

impl GpuBed<'_> {
    /// Runs a kernel that takes the output of a place and a number, and waits for it: its module is unloaded then.
    fn run_on_output(
        &self,
        kernel: Result<Kernel, BuildErrors>,
        place: usize,
        rest: Option<u32>,
    ) -> Result<(), Trouble> {
        let kernel = kernel.map_err(|errors| Trouble::new(format!("a planted kernel does not build: {errors}")))?;
        let out = self.outputs(place)[0];
        let function = Function::load(self.stream.context(), &kernel, &ModuleOptions::default())?;
        launch::run(&function, self.stream, &one_warp_on(("out", out.len()), rest), &[out])?;
        Ok(self.stream.synchronize()?)
    }
}

impl Spoil for GpuBed<'_> {
    fn spoil(&self, place: usize, act: &mut Spoiler<'_>) -> Result<(), Trouble> {
        let (tensors, problem): (_, &Problem) = (self.tensors(place), self.problem());
        let mut q = Tensor::poisoned(problem.dtype(), *problem.q_layout());
        tensors.get("q", 0)?.copy_to_host(self.stream, q.bytes_mut())?;
        if let Some(scales) = tensors.named("q_scale") {
            let mut values = vec![0.0f32; problem.num_scales()];
            scales.copy_to_host(self.stream, bytemuck::cast_slice_mut(&mut values))?;
            q = q
                .with_scales_of("q", problem.batch(), values)
                .map_err(|error| Trouble::new(error.to_string()))?;
        }
        let mut outs = poisoned_outputs(problem);
        for (from, out) in self.outputs(place).into_iter().zip(&mut outs) {
            from.copy_to_host(self.stream, out.bytes_mut())?;
        }
        let mut lse = self.read_lse(place)?.unwrap_or_default();
        act(&q, &mut outs, &mut lse);
        for (to, out) in self.outputs(place).into_iter().zip(&outs) {
            to.copy_from_host(self.stream, out.bytes())?;
        }
        if let Some(to) = tensors.named("lse").filter(|_| !lse.is_empty()) {
            to.copy_from_host(self.stream, bytemuck::cast_slice(&lse))?;
        }
        Ok(())
    }

    fn hang(&self) -> Result<(), Trouble> {
        self.run_on_output(hang_kernel(), 0, None)
    }

    fn write_outside(&self, place: usize, words: u32) -> Result<(), Trouble> {
        let end = (self.outputs(place)[0].len() / size_of::<u32>()) as u32;
        self.run_on_output(wild_kernel(), place, Some(end.saturating_add(words)))
    }
}
