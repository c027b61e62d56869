//! [`Task`]: what a call is asked, and the tensors that it has.

use crate::{
    Alibi, Append, AppendPlace, AppendValues, DType, Direction, ElementType, Layout, Lengths, MOST_PARTS, Name,
    Problem, ProblemError,
};

/// What a call does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read.
    Read,
    /// It is written. Gaps, and rows of no sequence, keep their bytes.
    Write,
    /// It is read and written.
    ReadWrite,
}

/// A tensor of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorSpec {
    /// Which it is.
    pub name: Name,
    /// What the call does with it.
    pub access: Access,
    /// What it holds.
    pub element: ElementType,
    /// Shape and strides.
    pub layout: Layout,
    /// Whether the call cannot do without it.
    pub required: bool,
}

impl TensorSpec {
    fn new(name: Name, access: Access, element: impl Into<ElementType>, layout: impl Into<Layout>) -> TensorSpec {
        TensorSpec {
            name,
            access,
            element: element.into(),
            layout: layout.into(),
            required: true,
        }
    }

    fn i32(name: Name, layout: impl Into<Layout>) -> TensorSpec {
        TensorSpec::new(name, Access::Read, ElementType::I32, layout)
    }

    /// Bytes from its first element to the end of its last.
    pub fn bytes(&self) -> u64 {
        self.layout.span() as u64 * self.element.size_bytes() as u64
    }

    /// Whether it is written.
    pub fn is_written(&self) -> bool {
        self.access != Access::Read
    }
}

/// What a call is asked: attention or its gradients ([`Problem`]), new rows into a cache ([`Append`]), or one result
/// from attention over parts of the keys ([`Combine`]).
///
/// ```
/// # use flashcore_problem as flashcore;
/// use flashcore::{Name, Problem, Task};
/// let problem = Problem::builder().heads(8, 2).seq_len(128).head_dim(64).return_lse(true).build()?;
/// let names: Vec<Name> = problem.tensors().iter().map(|tensor| tensor.name).collect();
/// assert_eq!(names, [Name::Q, Name::K, Name::V, Name::Out, Name::Lse]);
/// assert_eq!(problem.tensors()[4].layout.shape, [1, 1, 8, 128]);
/// # Ok::<(), flashcore::ProblemError>(())
/// ```
pub trait Task: sealed::Kind {
    /// All tensors that a call has. Nothing else describes it: operands are checked against these.
    fn tensors(&self) -> Vec<TensorSpec> {
        self.kind().tensors()
    }
}

impl<T: sealed::Kind> Task for T {}

/// A task of any kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnyTask<'t> {
    /// Attention, or its gradients.
    Problem(&'t Problem),
    /// New rows into a cache.
    Append(&'t Append),
    /// One result from several.
    Combine(&'t Combine),
}

#[doc(hidden)]
pub mod sealed {
    use std::any::Any;

    use super::AnyTask;

    /// Only this project's crates implement it.
    pub trait Kind {
        /// Which task it is.
        fn kind(&self) -> AnyTask<'_>;
        /// What was prepared for it.
        fn prepared(&self) -> Option<&dyn Any> {
            None
        }
    }
}

impl sealed::Kind for Problem {
    fn kind(&self) -> AnyTask<'_> {
        AnyTask::Problem(self)
    }
}

impl sealed::Kind for Append {
    fn kind(&self) -> AnyTask<'_> {
        AnyTask::Append(self)
    }
}

impl sealed::Kind for Combine {
    fn kind(&self) -> AnyTask<'_> {
        AnyTask::Combine(self)
    }
}

impl sealed::Kind for AnyTask<'_> {
    fn kind(&self) -> AnyTask<'_> {
        *self
    }
}

impl AnyTask<'_> {
    /// As [`Task::tensors`].
    fn tensors(&self) -> Vec<TensorSpec> {
        match self {
            AnyTask::Problem(problem) => of_problem(problem),
            AnyTask::Append(append) => of_append(append),
            AnyTask::Combine(combine) => combine.specs(),
        }
    }

    /// Refuses tasks that are no valid ones. Problems and merges are checked when they are made.
    ///
    /// # Errors
    /// As [`Append::check`].
    pub fn check(&self) -> Result<(), ProblemError> {
        match self {
            AnyTask::Append(append) => append.check(),
            AnyTask::Problem(_) | AnyTask::Combine(_) => Ok(()),
        }
    }
}

/// Merging attention over parts of the keys, such as those of several devices or of a prefix that many sequences share,
/// into attention over all of them: `lse = ln Σ exp(lse_i)` and `out = Σ exp(lse_i − lse)·out_i`, in f32, rounded once.
///
/// Parts are the results of 1 to 8 calls that return the log-sum-exp. Sinks, which the log-sum-exp includes, must be
/// given to one of the calls only. A row without keys in any part has output 0 and log-sum-exp −∞. Rows of packed
/// tensors that are of no sequence are merged like others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Combine {
    problem: Problem,
    parts: usize,
}

impl Combine {
    /// The merge of so many parts. `problem` is that of any of them: it gives shape, layout and dtype of the outputs,
    /// and whether the result has a log-sum-exp. Its keys and mask do not matter.
    ///
    /// # Errors
    /// Another number of parts than 1 to 8, or a backward problem.
    pub fn of(problem: &Problem, parts: usize) -> Result<Combine, ProblemError> {
        problem.check_part_count(parts)?;
        let problem = problem.clone();
        Ok(Combine { problem, parts })
    }

    /// The problem of its parts.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// How many parts there are.
    pub fn parts(&self) -> usize {
        self.parts
    }

    fn specs(&self) -> Vec<TensorSpec> {
        let [out, lse] = results(&self.problem, Access::Write);
        let part = |spec: TensorSpec, name| TensorSpec {
            name,
            access: Access::Read,
            ..spec
        };
        let parts = (0..self.parts as u8).flat_map(|n| [part(out, Name::PartOut(n)), part(lse, Name::PartLse(n))]);
        let merged = [out].into_iter().chain(self.problem.return_lse().then_some(lse));
        parts.chain(merged).collect()
    }
}

impl Problem {
    /// Refuses another number of parts than a merge takes.
    #[doc(hidden)]
    pub fn check_part_count(&self, parts: usize) -> Result<(), ProblemError> {
        self.check_direction(Direction::Forward)?;
        if (1..=MOST_PARTS).contains(&parts) {
            return Ok(());
        }
        let allowed = "allowed are 1 to 8 (merge some of them first, and give the result as a part)";
        ProblemError::value("the number of parts", parts, allowed)
    }
}

/// Adds arrays of so many entries; a block table has two dimensions.
fn add_arrays<const N: usize>(
    specs: &mut Vec<TensorSpec>,
    names: [Name; N],
    entries: [Option<&usize>; N],
    table: [usize; 2],
) {
    for (name, entries) in names.into_iter().zip(entries) {
        specs.extend(entries.map(|&entries| match name {
            Name::BlockTable => TensorSpec::i32(name, table),
            _ => TensorSpec::i32(name, [entries]),
        }));
    }
}

/// O and the log-sum-exp.
fn results(problem: &Problem, access: Access) -> [TensorSpec; 2] {
    [
        TensorSpec::new(Name::Out, access, problem.out_dtype(), *problem.o_layout()),
        TensorSpec::new(Name::Lse, access, DType::F32, problem.lse_layout()),
    ]
}

fn of_problem(problem: &Problem) -> Vec<TensorSpec> {
    let (batch, heads) = (problem.batch(), problem.num_heads());
    let read = |name, element: DType, layout: Layout| TensorSpec::new(name, Access::Read, element, layout);
    let dtype = problem.dtype();
    let mut specs = Vec::with_capacity(8);
    specs.extend([
        read(Name::Q, dtype, *problem.q_layout()),
        read(Name::K, dtype, *problem.k_layout()),
        read(Name::V, dtype, *problem.v_layout()),
    ]);
    match (problem.direction(), problem.gradient_layouts()) {
        (Direction::Backward, Some(layouts)) => {
            specs.extend(results(problem, Access::Read));
            specs.push(read(Name::Dout, problem.out_dtype(), layouts.dout));
            let written = [(Name::Dq, layouts.dq), (Name::Dk, layouts.dk), (Name::Dv, layouts.dv)];
            specs.extend(written.map(|(name, layout)| TensorSpec::new(name, Access::Write, dtype, layout)));
        }
        _ => {
            let written = if problem.return_lse() { 2 } else { 1 };
            specs.extend(results(problem, Access::Write).into_iter().take(written));
        }
    }
    if problem.num_scales() > 0 {
        let layout = Layout::from([batch, problem.num_kv_heads()]);
        specs.extend([Name::QScale, Name::KScale, Name::VScale].map(|name| read(name, DType::F32, layout)));
    }
    if let Some(dtype) = problem.sinks() {
        specs.push(read(Name::Sinks, dtype, Layout::from([heads])));
    }
    if let Some(slopes) = problem.alibi() {
        let layout = match slopes {
            Alibi::Heads => Layout::from([heads]),
            Alibi::BatchHeads => Layout::from([batch, heads]),
        };
        specs.push(read(Name::AlibiSlopes, DType::F32, layout));
    }
    let (entries, table) = (problem.length_entries(), [batch, problem.max_pages()]);
    add_arrays(&mut specs, Lengths::<()>::OPERANDS, entries.arrays(), table);
    specs
}

fn of_append(append: &Append) -> Vec<TensorSpec> {
    let of = |name, access, layout: Layout| TensorSpec::new(name, access, append.dtype, layout);
    let mut specs = vec![
        of(Name::KNew, Access::Read, append.k_new),
        of(Name::VNew, Access::Read, append.v_new),
        of(Name::KCache, Access::Write, append.k_cache),
        of(Name::VCache, Access::Write, append.v_cache),
    ];
    let entries = append.entries();
    add_arrays(
        &mut specs,
        AppendValues::<()>::OPERANDS,
        entries.arrays(),
        append.tables(),
    );
    if let AppendPlace::Slots { wide } = append.place {
        let element = if wide { ElementType::I64 } else { ElementType::I32 };
        specs.push(TensorSpec::new(
            Name::SlotMapping,
            Access::Read,
            element,
            [append.new_rows()],
        ));
    }
    if append.seqused_k {
        specs.push(TensorSpec {
            access: Access::Write,
            ..TensorSpec::i32(Name::SequsedK, [append.batch])
        });
    }
    if let Some(rotary) = &append.rotary {
        let in_place = rotary.q == rotary.q_out;
        let written = if in_place { Access::ReadWrite } else { Access::Write };
        specs.extend([
            of(Name::RotaryCos, Access::Read, rotary.table()),
            of(Name::RotarySin, Access::Read, rotary.table()),
            TensorSpec {
                required: !in_place,
                ..of(Name::Q, Access::Read, rotary.q)
            },
            of(Name::QOut, written, rotary.q_out),
        ]);
    }
    specs
}

impl Problem {
    /// Layout of the log-sum-exp: dense `[batch, num_heads, seq_len_q]`, of packed query rows `[num_heads, total]`, as
    /// the last dimensions of four.
    pub fn lse_layout(&self) -> Layout {
        let [batch, rows, heads, _] = self.o_layout().shape;
        Layout::from([batch, heads, rows])
    }

    /// The spec of a tensor of this problem; `None` if it has no such tensor.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{Name, Problem};
    /// let problem = Problem::builder().heads(8, 2).seq_len(128).head_dim(64).build()?;
    /// assert_eq!(problem.tensor(Name::Out).map(|out| out.layout), Some(*problem.o_layout()));
    /// assert_eq!(problem.tensor(Name::Lse), None);
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    pub fn tensor(&self, name: Name) -> Option<TensorSpec> {
        self.tensors().into_iter().find(|spec| spec.name == name)
    }
}
