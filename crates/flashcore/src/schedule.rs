//! Schedules that are made once and used by several calls, such as those of a model's layers.

use std::sync::Arc;

use flashcore_cuda::{DeviceBuffer, DeviceSlice, Stream};
use flashcore_ir::{Arg, BufferSpec, Launch};
use flashcore_kernels::Step;
use flashcore_problem::{Name, Operands, TensorSpec};

use crate::cuda::{Ready, Steps};
use crate::{Attention, Cuda, Error, Prepared, Queue};

/// Parameters that the kernel of a schedule has and does not read: where pages are, and the scale of scores.
const NOT_READ: [&str; 5] = ["block_table", "page_size", "pages", "max_pages", "exponent_scale"];

/// The work lists of a task for lengths on the device, made once for several calls: those of a model's layers.
///
/// [`Queue::schedule`] makes it, and [`Operands::schedule`] uses it. Kernels trust it, so it belongs to its queue, and
/// serves calls whose plan would make the same one: they may differ in strides, scales and pages.
///
/// **Warning.** If lengths have changed since it was made, results are wrong, though no kernel leaves its tensors
/// (`stale_schedules.rs` of `lab/check`).
#[derive(Debug)]
pub struct Schedule {
    ready: Arc<Ready>,
    place: Place,
}

/// Where a schedule is.
#[derive(Debug)]
enum Place {
    /// In memory that nothing else uses; work in the queue of this number wrote it.
    Queue(u64, DeviceBuffer),
    /// In memory of another library.
    Foreign(DeviceSlice<'static>),
}

impl Schedule {
    /// Refuses another queue, and a call that would make another schedule.
    pub(crate) fn memory(&self, queue: &Queue, ready: &Arc<Ready>) -> Result<DeviceSlice<'_>, Error> {
        match &self.place {
            Place::Queue(number, memory) if *number == queue.number => {
                self.check(ready)?;
                Ok(memory.as_slice())
            }
            _ => refuse("was made in another queue: make it in this one"),
        }
    }

    /// The memory of another library, for a call in a stream that may be its own.
    pub(crate) fn foreign(&self, ready: &Arc<Ready>) -> Result<DeviceSlice<'static>, Error> {
        match &self.place {
            Place::Foreign(memory) => {
                self.check(ready)?;
                Ok(*memory)
            }
            Place::Queue(..) => refuse("belongs to a queue: call run_on with that one"),
        }
    }

    /// The schedule of a task in memory of another library, [made](Attention::schedule_foreign) or to be made.
    ///
    /// # Safety
    /// `memory` is [`Prepared::workspace_bytes`] long, of the device, and stays allocated while work uses this.
    /// When work that uses it runs, it holds a whole schedule that [`Attention::schedule_foreign`] made for a task that
    /// would make the same, and nothing but work that made or used it has written there since.
    #[allow(unsafe_code)] // kernels trust it
    pub unsafe fn from_raw(task: &Prepared, memory: DeviceSlice<'static>) -> Option<Schedule> {
        let ready = task.ready().filter(|ready| ready.schedule_steps() > 0)?;
        Some(Schedule {
            ready: ready.clone(),
            place: Place::Foreign(memory),
        })
    }

    /// Whether calls of a task would make the same one.
    pub fn serves(&self, task: &Prepared) -> bool {
        task.ready().is_some_and(|ready| self.check(ready).is_ok())
    }

    fn check(&self, ready: &Arc<Ready>) -> Result<(), Error> {
        if ready.schedule_steps() == 0 {
            return refuse("is of no use, as this call has none: leave it out");
        }
        if !is_same(&self.ready, ready) {
            return refuse(
                "was made for another call, or by another kernel, as for tensors of another alignment: make one for this \
                call",
            );
        }
        Ok(())
    }
}

fn refuse<T>(why: &str) -> Result<T, Error> {
    let why = why.to_string();
    Err(Error::Schedule { why })
}

impl Queue {
    /// Makes the schedule of a task whose lengths are values on the device. Of the operands it reads those alone:
    /// `cu_seqlens_q`, `seqused_q`, `cu_seqlens_k` and `seqused_k`. Others may be left out. `None` for tasks whose plan
    /// has no schedule.
    ///
    /// ```no_run
    /// use flashcore::{Attention, CudaTensor, Error, Name, Operands, Problem, Queue};
    ///
    /// /// The layers of a step: all have the same lengths.
    /// fn step(attention: &Attention, queue: &mut Queue, problem: &Problem, x: &CudaTensor, keys: &CudaTensor,
    ///     out: &mut CudaTensor) -> Result<(), Error>
    /// {
    ///     let prepared = attention.prepare(problem)?;
    ///     let mut schedule = queue.schedule(&prepared, &Operands::new().with(Name::SequsedK, keys))?;
    ///     for _layer in 0..32 {
    ///         let mut operands = Operands::forward(x, x, x, &mut *out).with(Name::SequsedK, keys);
    ///         if let Some(schedule) = &mut schedule {
    ///             operands = operands.schedule(schedule);
    ///         }
    ///         attention.run_on(queue, &prepared, operands)?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// A task that was prepared on the CPU, lengths that are missing or not those of the task, or what the driver says.
    pub fn schedule(&mut self, task: &Prepared, lengths: &Operands<'_, Cuda>) -> Result<Option<Schedule>, Error> {
        let ready = task.ready().ok_or(Error::NotOnCuda)?;
        if ready.schedule_steps() == 0 {
            return Ok(None);
        }
        let given = lengths_alone(ready, lengths)?;
        self.check(&ready.context, &given)?;
        let bytes = usize::try_from(ready.workspace_bytes()).unwrap_or(usize::MAX);
        let memory = DeviceBuffer::new(self.stream().context(), bytes)?;
        ready.enqueue_operands(self.stream(), Steps::Schedule, &given, Some(memory.as_slice()))?;
        Ok(Some(Schedule {
            ready: ready.clone(),
            place: Place::Queue(self.number, memory),
        }))
    }
}

impl Attention {
    /// Enqueues the work that makes a schedule in memory of another library, from lengths that may be, too.
    ///
    /// # Errors
    /// As [`Queue::schedule`], and a schedule of a queue.
    ///
    /// # Safety
    /// As [`Attention::run_foreign`]. Work that uses the schedule is ordered after this work and before what makes it
    /// anew.
    #[allow(unsafe_code)] // the promise is the caller's
    pub unsafe fn schedule_foreign(
        &self,
        stream: &Stream,
        schedule: &Schedule,
        lengths: &Operands<'_, Cuda>,
    ) -> Result<(), Error> {
        let given = lengths_alone(&schedule.ready, lengths)?;
        let memory = schedule.foreign(&schedule.ready)?;
        schedule
            .ready
            .enqueue_operands(stream, Steps::Schedule, &given, Some(memory))
    }
}

/// The lengths among operands, checked.
fn lengths_alone<'o>(ready: &Ready, lengths: &'o Operands<'_, Cuda>) -> Result<Operands<'o, Cuda>, Error> {
    let needed: Vec<TensorSpec> = ready
        .tensors
        .iter()
        .filter(|spec| is_length(spec.name))
        .copied()
        .collect();
    let mut given = Operands::new();
    for name in lengths.names().filter(|name| is_length(*name)) {
        if let Some(view) = lengths.get(name) {
            given = given.with(name, view);
        }
    }
    given.check(&needed)?;
    Ok(given)
}

/// Whether a schedule depends on it.
fn is_length(name: Name) -> bool {
    matches!(
        name,
        Name::CuSeqlensQ | Name::SequsedQ | Name::CuSeqlensK | Name::SequsedK
    )
}

fn steps(ready: &Ready) -> impl Iterator<Item = &Step> {
    ready.steps().take(ready.schedule_steps())
}

/// Whether two plans leave the same work lists in the same places if lengths are the same.
fn is_same(a: &Arc<Ready>, b: &Arc<Ready>) -> bool {
    Arc::ptr_eq(a, b)
        || a.workspace_bytes() == b.workspace_bytes()
            && a.schedule_steps() == b.schedule_steps()
            && steps(a).zip(steps(b)).all(|(a, b)| makes_the_same(a, b))
}

/// Whether two steps write the same, from the same lengths.
fn makes_the_same(a: &Step, b: &Step) -> bool {
    let of_shape = |launch: &Launch| (launch.grid, launch.block, launch.cluster, launch.dynamic_shared_bytes);
    let buffers = |(a, b): (&BufferSpec, &BufferSpec)| NOT_READ.contains(&a.name) && a.name == b.name || a == b;
    let params = a.kernel.params().iter().zip(a.launch.args.iter().zip(&b.launch.args));
    let mut args = params.filter(|(param, _)| !NOT_READ.contains(&param.name.as_str()));
    // A kernel's name says what it computes.
    a.kernel.name() == b.kernel.name()
        && of_shape(&a.launch) == of_shape(&b.launch)
        && a.launch.buffers.len() == b.launch.buffers.len()
        && a.launch.buffers.iter().zip(&b.launch.buffers).all(buffers)
        && a.launch.args.len() == b.launch.args.len()
        && args.all(|(_, (a, b)): (_, (&Arg, &Arg))| a == b)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use flashcore_ir::{Chip, Profile, Target};
    use flashcore_kernels::{KernelCache, Plan, select_with};
    use flashcore_problem::{DType, KvLengths, Layout, Mask, Problem, ProblemBuilder, QLengths};

    use super::*;
    use crate::plans::{PlanSetting, PlanTarget, Plans};

    fn problem() -> ProblemBuilder {
        let paged = KvLengths::Paged {
            page_size: 16,
            pages: 200,
            max_pages: 32,
        };
        let problem = Problem::builder().batch(5).heads(8, 2).head_dim(64).dtype(DType::BF16);
        let problem = problem.seq_len_q(1).seq_len_kv(512).kv_lengths(paged);
        problem.mask(Mask::CAUSAL).return_lse(true)
    }

    fn step(problem: ProblemBuilder, sms: u32) -> Step {
        step_of("mma/m16n64-w1x4-s2-b1-qreg-xor-cond-gqa", problem, sms)
    }

    fn step_of(kernel: &str, problem: ProblemBuilder, sms: u32) -> Step {
        let chip = Chip {
            target: Target::Sm90a,
            sms,
        };
        let plan = Plan::new(&problem.build().unwrap(), &kernel.parse().unwrap(), chip).unwrap();
        assert_eq!(plan.schedule_steps(), 1);
        plan.steps().next().unwrap().clone()
    }

    /// How many lines of a kernel use a parameter's register, conversions of addresses apart; `None` if there is no
    /// such parameter.
    fn uses(ptx: &str, name: &str) -> Option<usize> {
        let load = ptx.lines().find(|line| line.contains(&format!("[param_{name}]")))?;
        let register = load.split([' ', ',']).find(|word| word.starts_with('%')).unwrap();
        let words = |line: &str| line.split([' ', ',', ';', '[', ']', '+']).any(|word| word == register);
        Some(ptx.lines().filter(|line| words(line) && !line.contains("cvta")).count() - 1)
    }

    /// Kernels of schedules differ by family, heads in a tile, kinds of lengths, splits, and how many blocks they have.
    #[test]
    fn no_schedule_reads_pages_or_the_scale() {
        let packed = |total, used| QLengths::Packed { total, used };
        let problems = [
            problem(),
            problem().mask(Mask::FULL),
            problem().mask(Mask::window(Some(100), Some(3))),
            problem().batch_invariant(128),
            problem().batch(300),
            problem().seq_len_q(70).q_lengths(packed(200, false)),
            problem().seq_len_q(70).q_lengths(packed(200, true)),
            problem().kv_lengths(KvLengths::Cache),
            problem()
                .seq_len_q(70)
                .q_lengths(packed(200, true))
                .kv_lengths(KvLengths::Packed { total: 900, used: true }),
        ];
        let kernels = [
            "mma/m16n64-w1x4-s2-b1-qreg-xor-cond-gqa",
            "mma/m32n64-w2x1-s3-b2-qsh-xor-always-gqa",
            "wgmma/m128n32-s2-free-cond",
            "wgmma/m64n32-s2-free-spec-gqa",
            "wgmma/m128n64-s2-pingpong-spec-gqa",
        ];
        let (mut names, mut found) = (BTreeSet::new(), BTreeSet::new());
        for kernel in kernels {
            for problem in &problems {
                let step = step_of(kernel, problem.clone(), 132);
                let ptx = step.kernel.to_ptx();
                for name in NOT_READ {
                    let uses = uses(&ptx, name);
                    assert!(uses.is_none_or(|uses| uses == 0), "{}: {name}", step.kernel.name());
                    found.extend(uses.map(|_| name));
                }
                assert!(uses(&ptx, "seq_len_kv").is_some_and(|uses| uses > 0));
                names.insert(step.kernel.name().to_string());
            }
        }
        assert!(
            found.len() == NOT_READ.len() && names.len() > 10,
            "{found:?}, {names:?}"
        );
    }

    #[test]
    fn what_schedules_do_not_depend_on_is_not_compared() {
        let own = step(problem(), 132);
        assert!(uses(&own.kernel.to_ptx(), "key_hi").is_some_and(|uses| uses > 0));
        let pages = |page_size, pages, max_pages| KvLengths::Paged {
            page_size,
            pages,
            max_pages,
        };
        for same in [
            problem(),
            problem().softmax_scale(0.5).softcap(20.0),
            problem().kv_lengths(pages(16, 4_000, 32)),
            problem().kv_lengths(pages(32, 80, 16)),
            problem().return_lse(false),
        ] {
            assert!(makes_the_same(&own, &step(same, 132)));
        }
        for other in [
            problem().batch(4),
            problem().heads(16, 4),
            problem().heads(8, 4),
            problem().seq_len_q(2),
            problem().seq_len_kv(511),
            problem().head_dim(128),
            problem().mask(Mask::FULL),
            problem().mask(Mask::window(Some(100), Some(0))),
            problem().batch_invariant(128),
        ] {
            assert!(!makes_the_same(&own, &step(other, 132)));
        }
        assert!(!makes_the_same(&own, &step(problem(), 130)));
    }

    /// What `get_scheduler_metadata` of the Python package plans for, dense tensors, and what calls have.
    #[test]
    fn a_schedule_for_dense_tensors_is_that_of_a_call() {
        let card = PlanTarget::Card(Profile::named("h200").unwrap());
        let plans = Plans::find(&PlanSetting::Shipped, None, &card).unwrap();
        let (kernels, mut scheduled) = (KernelCache::default(), 0);
        let chip = Chip {
            target: Target::Sm90a,
            sms: 132,
        };
        let plan = |problem: &Problem| {
            let judge = |_: &Plan| Ok::<_, Error>(Ok(()));
            let rows = plans.suggestions(problem);
            let (choice, ()) = select_with(problem, chip, 16, &rows, &kernels, judge).unwrap().unwrap();
            choice.plan
        };
        for (batch, rows, capacity, page_size) in [
            (5, None, 640, 16),
            (5, Some(3), 640, 16),
            (5, None, 640, 1),
            (9, Some(150), 4096, 16),
            (4, None, 4096, 16),
            (64, None, 4096, 16),
            (16, Some(4), 4096, 16),
            (7, None, 2048, 128),
            (5, None, 512, 16),
            (3, Some(70), 512, 64),
        ] {
            for [heads, kv_heads, dim] in [[8, 2, 64], [32, 8, 128], [8, 8, 128], [16, 1, 256]] {
                let [cache, pages] = [0, 1].map(|paged| {
                    let max_pages = capacity / page_size;
                    move |extra: usize| match paged {
                        0 => ([batch, capacity], KvLengths::Cache),
                        _ => {
                            let pages = batch * max_pages + extra;
                            let kv = KvLengths::Paged {
                                page_size,
                                pages,
                                max_pages,
                            };
                            ([pages, page_size], kv)
                        }
                    }
                });
                for kind in [&cache as &dyn Fn(usize) -> _, &pages] {
                    let problem = |extra: usize, heads_first: bool, scale: f32| {
                        let ([outer, inner], kv): ([usize; 2], KvLengths) = kind(extra);
                        let of_k = [outer, inner, kv_heads, dim];
                        let k = if heads_first {
                            Layout::bhsd(of_k)
                        } else {
                            Layout::bshd(of_k)
                        };
                        let (q_rows, q) = match rows {
                            None => ([batch, 1], QLengths::Equal),
                            Some(rows) => (
                                [1, batch * rows],
                                QLengths::Packed {
                                    total: batch * rows,
                                    used: false,
                                },
                            ),
                        };
                        let q_layout = Layout::bshd([q_rows[0], q_rows[1], heads, dim]);
                        let problem = Problem::builder().batch(batch).heads(heads, kv_heads).head_dim(dim);
                        let problem = problem
                            .seq_len_q(rows.unwrap_or(1))
                            .seq_len_kv(capacity)
                            .dtype(DType::BF16);
                        let problem = problem.mask(Mask::CAUSAL).return_lse(true).softmax_scale(scale);
                        let problem = problem.layouts(q_layout, k, k, q_layout).q_lengths(q).kv_lengths(kv);
                        problem.build().unwrap()
                    };
                    let made = plan(&problem(0, false, 1.0));
                    for call in [problem(0, false, 0.1), problem(300, false, 0.1), problem(0, true, 0.1)] {
                        let own = plan(&call);
                        assert_eq!(
                            (own.config, own.schedule_steps()),
                            (made.config, made.schedule_steps()),
                            "{call}"
                        );
                        assert_eq!(own.workspace_bytes(), made.workspace_bytes(), "{call}");
                        let steps = made.steps().zip(own.steps()).take(made.schedule_steps());
                        steps.for_each(|(made, own)| assert!(makes_the_same(made, own), "{call}"));
                        scheduled += made.schedule_steps();
                    }
                }
            }
        }
        assert!(scheduled > 100, "{scheduled}");
    }
}
