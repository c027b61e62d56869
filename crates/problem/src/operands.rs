//! [`Operands`]: the tensors of a call by their names, and the check of them.

use std::ops::Range;

use crate::view::{Memory, View, ViewMut};
use crate::{ElementType, Layout, Name, ProblemError, TensorSpec};

/// A tensor that was given.
#[derive(Debug)]
enum Given<'a, M: Memory> {
    Read(View<'a, M>),
    Write(ViewMut<'a, M>),
}

impl<M: Memory> Given<'_, M> {
    /// What it holds, how it lies, and where.
    fn parts(&self) -> (ElementType, &Layout, M::Ref<'_>) {
        match self {
            Given::Read(view) => (view.element, &view.layout, M::shorter(&view.memory)),
            Given::Write(view) => (view.element, &view.layout, M::shared(&view.memory)),
        }
    }

    fn set_layout(&mut self, layout: Layout) {
        match self {
            Given::Read(view) => view.layout = layout,
            Given::Write(view) => view.layout = layout,
        }
    }
}

/// The tensors of a call by their names, in host or device memory.
///
/// Constructors take what every such call has. [`with`](Operands::with) and [`with_mut`](Operands::with_mut) add what
/// the task has besides: [`Task::tensors`](crate::Task::tensors) lists all of it. What is written is borrowed mutably,
/// so an output cannot be an input.
///
/// ```
/// # use flashcore_problem as flashcore;
/// use flashcore::{KvLengths, Name, Operands, Problem, Task, Tensor};
/// let rows = |heads| Tensor::from_fn(flashcore::DType::F32, [2, 4, heads, 8].into(), |_, s, _, _| s as f32);
/// let (q, k, v) = (rows(2), rows(1), rows(1));
/// let problem = Problem::of(&q, &k, &v).kv_lengths(KvLengths::Cache).build()?;
/// let (mut out, keys) = (rows(2), [4, 1]);
/// let mut operands = Operands::forward(&q, &k, &v, &mut out).with(Name::SequsedK, &keys);
/// operands.check(&problem.tensors())?;
/// let without = Operands::forward(&q, &k, &v, &mut out).check(&problem.tensors()).unwrap_err();
/// assert!(without.to_string().starts_with("seqused_k was not given"), "{without}");
/// # Ok::<(), flashcore::ProblemError>(())
/// ```
#[derive(Debug)]
pub struct Operands<'a, M: Memory> {
    given: Vec<(Name, Given<'a, M>)>,
    schedule: Option<M::Schedule<'a>>,
}

impl<M: Memory> Default for Operands<'_, M> {
    fn default() -> Self {
        Operands {
            given: Vec::with_capacity(8),
            schedule: None,
        }
    }
}

impl<'a, M: Memory> Operands<'a, M> {
    /// None yet.
    pub fn new() -> Self {
        Operands::default()
    }

    /// Of attention: Q, K, V and O.
    pub fn forward(
        q: impl Into<View<'a, M>>,
        k: impl Into<View<'a, M>>,
        v: impl Into<View<'a, M>>,
        out: impl Into<ViewMut<'a, M>>,
    ) -> Self {
        let inputs = Operands::new().with(Name::Q, q).with(Name::K, k).with(Name::V, v);
        inputs.with_mut(Name::Out, out)
    }

    /// Of gradients: Q, K and V; O and the log-sum-exp of the forward pass; the gradient of O; and where those of Q, K
    /// and V go. The task is the [backward](crate::Problem::backward) problem.
    pub fn backward(
        qkv: [View<'a, M>; 3],
        out_and_lse: [View<'a, M>; 2],
        dout: impl Into<View<'a, M>>,
        gradients: [ViewMut<'a, M>; 3],
    ) -> Self {
        let ([q, k, v], [out, lse], [dq, dk, dv]) = (qkv, out_and_lse, gradients);
        let inputs = Operands::new().with(Name::Q, q).with(Name::K, k).with(Name::V, v);
        let read = inputs.with(Name::Out, out).with(Name::Lse, lse).with(Name::Dout, dout);
        read.with_mut(Name::Dq, dq)
            .with_mut(Name::Dk, dk)
            .with_mut(Name::Dv, dv)
    }

    /// Of new rows into a cache: those of K and V, and the caches of K and V.
    pub fn append(
        k_new: impl Into<View<'a, M>>,
        v_new: impl Into<View<'a, M>>,
        k_cache: impl Into<ViewMut<'a, M>>,
        v_cache: impl Into<ViewMut<'a, M>>,
    ) -> Self {
        let new = Operands::new().with(Name::KNew, k_new).with(Name::VNew, v_new);
        new.with_mut(Name::KCache, k_cache).with_mut(Name::VCache, v_cache)
    }

    /// Of a merge: O and the log-sum-exp of each part, and the merged O.
    pub fn combine(parts: impl IntoIterator<Item = [View<'a, M>; 2]>, out: impl Into<ViewMut<'a, M>>) -> Self {
        let mut operands = Operands::new();
        for (n, [out, lse]) in parts.into_iter().enumerate() {
            // More than there are names for is given twice, which a call refuses.
            let n = u8::try_from(n).unwrap_or(u8::MAX);
            operands = operands.with(Name::PartOut(n), out).with(Name::PartLse(n), lse);
        }
        operands.with_mut(Name::Out, out)
    }

    /// Adds a tensor that the call reads. One that it writes ([`TensorSpec::access`]) is refused here: [`with_mut`]
    /// takes it.
    ///
    /// [`with_mut`]: Operands::with_mut
    #[must_use]
    pub fn with(mut self, name: Name, tensor: impl Into<View<'a, M>>) -> Self {
        self.given.push((name, Given::Read(tensor.into())));
        self
    }

    /// Adds a tensor that the call writes, such as an output, a cache, or [`Name::SequsedK`] of an append: it is
    /// borrowed mutably. One that the call reads may be added so, too.
    #[must_use]
    pub fn with_mut(mut self, name: Name, tensor: impl Into<ViewMut<'a, M>>) -> Self {
        self.given.push((name, Given::Write(tensor.into())));
        self
    }

    /// Uses a schedule that was made before, instead of making it. Only operands on a GPU have one.
    #[must_use]
    pub fn schedule(mut self, schedule: M::Schedule<'a>) -> Self {
        self.schedule = Some(schedule);
        self
    }

    /// The schedule that was given.
    #[doc(hidden)]
    pub fn take_schedule(&mut self) -> Option<M::Schedule<'a>> {
        self.schedule.take()
    }

    /// A tensor that was given, to read.
    pub fn get(&self, name: Name) -> Option<View<'_, M>> {
        let (element, layout, memory) = self.find(name)?.parts();
        Some(View::new(element, *layout, memory))
    }

    /// The memory of a tensor that was given.
    #[doc(hidden)]
    pub fn memory(&self, name: Name) -> Option<M::Ref<'_>> {
        Some(self.find(name)?.parts().2)
    }

    /// The same by its word, which the buffers of launches have: to compare few costs less than to look up the name.
    #[doc(hidden)]
    pub fn memory_of_word(&self, word: &str) -> Option<M::Ref<'_>> {
        let found = self.given.iter().find(|(given, _)| given.as_str() == word);
        found.map(|(_, given)| given.parts().2)
    }

    fn find(&self, name: Name) -> Option<&Given<'a, M>> {
        let found = self.given.iter().find(|(given, _)| *given == name);
        found.map(|(_, given)| given)
    }

    /// The names of all that was given.
    pub fn names(&self) -> impl Iterator<Item = Name> {
        self.given.iter().map(|(name, _)| *name)
    }

    /// A tensor that was given to be written, which these operands have no longer.
    #[doc(hidden)]
    pub fn take_mut(&mut self, name: Name) -> Option<ViewMut<'a, M>> {
        let place = self
            .given
            .iter()
            .position(|(given, tensor)| *given == name && matches!(tensor, Given::Write(_)))?;
        match self.given.swap_remove(place).1 {
            Given::Write(view) => Some(view),
            Given::Read(_) => None,
        }
    }

    /// What the addresses of tensors that kernels read by vectors are multiples of, in bytes, at most 16.
    #[doc(hidden)]
    pub fn alignment(&self) -> u32 {
        let by_vectors = |name: Name| !name.is_values() || matches!(name, Name::RotaryCos | Name::RotarySin);
        let tensors = self.given.iter().filter(|(name, _)| by_vectors(*name));
        let all = tensors.fold(16, |all, (_, given)| all | M::extent(given.parts().2).0);
        1 << all.trailing_zeros()
    }

    /// Checks that exactly the tensors of a call are given, each as the call needs it, and none that is written where
    /// another one is. Each then has the layout of its spec: values that were given in one dimension, and strides along
    /// dimensions of size 1.
    ///
    /// # Errors
    /// [`ProblemError::Operand`] for the first that is not; for one that is none of the call, if there is one.
    pub fn check(&mut self, specs: &[TensorSpec]) -> Result<(), ProblemError> {
        self.check_each(specs).or_else(|error| {
            // What belongs to another call says more than what is missing or wrong for this one.
            self.refuse_one_too_many(specs)?;
            Err(error)
        })
    }

    fn check_each(&mut self, specs: &[TensorSpec]) -> Result<(), ProblemError> {
        let mut placed = Vec::with_capacity(specs.len());
        for spec in specs {
            match self.given.iter_mut().find(|(name, _)| *name == spec.name) {
                Some((_, given)) => {
                    placed.push((spec, check(spec, given)?));
                    given.set_layout(spec.layout);
                }
                None if spec.required => return missing(spec),
                None => {}
            }
        }
        if placed.len() < self.given.len() {
            return self.refuse_one_too_many(specs);
        }
        check_apart(&placed)
    }

    /// The error of a tensor that was given twice, or that is none of the call.
    fn refuse_one_too_many(&self, specs: &[TensorSpec]) -> Result<(), ProblemError> {
        let is_of_backward = |name: &Name| matches!(name, Name::Dout | Name::Dq | Name::Dk | Name::Dv);
        let unknown = self.names().filter(|name| specs.iter().all(|spec| spec.name != *name));
        if let Some(name) = unknown.min_by_key(|name| !is_of_backward(name)) {
            let why = if is_of_backward(&name) {
                "is of a backward pass, and this task is none: give `problem.backward()?` as the task"
            } else {
                "was given, but this call has no use for it: leave it out, or build the task with it"
            };
            return refuse(name, why);
        }
        let mut names = self.names().enumerate();
        match names.find(|(place, name)| self.names().take(*place).any(|before| before == *name)) {
            Some((_, name)) => refuse(name, "was given twice: give it once"),
            None => Ok(()),
        }
    }
}

fn missing(spec: &TensorSpec) -> Result<(), ProblemError> {
    let (name, shape) = (spec.name, shape_text(spec.name, &spec.layout));
    let with = if spec.is_written() { "with_mut" } else { "with" };
    let why = format!(
        "was not given; this call needs {} {shape} (`.{with}(Name::{name:?}, …)`)",
        spec.element
    );
    refuse(name, why)
}

/// Refuses an output that has bytes of another tensor. Views of memory of Rust cannot have; addresses of others can.
/// Elements of two tensors may lie between each other, as those of an interleaved cache.
fn check_apart(placed: &[(&TensorSpec, Range<u64>)]) -> Result<(), ProblemError> {
    for (to, at) in placed.iter().filter(|(spec, _)| spec.is_written()) {
        for (other, from) in placed {
            let apart = at.end <= from.start || from.end <= at.start || at.is_empty() || from.is_empty();
            let in_place = || {
                let is_q = to.name == Name::QOut && other.name == Name::Q;
                is_q && at.start == from.start && to.layout == other.layout
            };
            if apart || to.name == other.name || in_place() {
                continue;
            }
            let why = match share_bytes((to, at.start), (other, from.start)) {
                Some(false) => continue,
                Some(true) => "some bytes are of both",
                None => "their strides are too many to tell that no bytes are of both",
            };
            let why = format!(
                "shares memory with {}: {why}; give {} separate memory",
                other.name, to.name
            );
            return refuse(to.name, why);
        }
    }
    Ok(())
}

/// Steps of the search for an element of both tensors, at most. Those of interleaved caches take a few.
const MOST_STEPS: usize = 10_000;

/// Whether some byte is of both tensors; `None` where that takes too many steps to tell.
fn share_bytes((a, a_at): (&TensorSpec, u64), (b, b_at): (&TensorSpec, u64)) -> Option<bool> {
    // The distance of an element of `a` from one of `b` is a sum of strides times indices. Those of `b` count down.
    let [size, other_size] = [a, b].map(|spec| spec.element.size_bytes() as i128);
    let distance = i128::from(a_at) - i128::from(b_at);
    let mut terms: Vec<Term> = Vec::with_capacity(8);
    for (spec, sign) in [(a, 1), (b, -1)] {
        for (stride, count) in spec.layout.strides.iter().zip(spec.layout.shape) {
            let (step, last) = (
                i128::from(*stride) * spec.element.size_bytes() as i128,
                count as i128 - 1,
            );
            let [least, most] = if sign > 0 { [0, last] } else { [-last, 0] };
            match terms.iter_mut().find(|term| term.step == step) {
                _ if step == 0 || last == 0 => {}
                Some(term) => (term.least, term.most) = (term.least + least, term.most + most),
                None => terms.push(Term { step, least, most }),
            }
        }
    }
    terms.sort_unstable_by_key(|term| std::cmp::Reverse(term.step));
    reaches(&terms, [1 - size - distance, other_size - 1 - distance], &mut 0)
}

/// A stride in bytes, above 0, times an index in a range.
struct Term {
    step: i128,
    least: i128,
    most: i128,
}

/// Whether a sum of terms, which begin with the largest step, lies in a range.
fn reaches(terms: &[Term], [low, high]: [i128; 2], steps: &mut usize) -> Option<bool> {
    let Some((Term { step, least, most }, smaller)) = terms.split_first() else {
        return Some(low <= 0 && 0 <= high);
    };
    let sum = |of: fn(&Term) -> i128| smaller.iter().map(|term| term.step * of(term)).sum::<i128>();
    let first = -(sum(|term| term.most) - low).div_euclid(*step);
    let last = (high - sum(|term| term.least)).div_euclid(*step);
    for index in first.max(*least)..=last.min(*most) {
        *steps += 1;
        if *steps > MOST_STEPS {
            return None;
        }
        let rest = [low - index * step, high - index * step];
        match reaches(smaller, rest, steps) {
            Some(false) => {}
            found => return found,
        }
    }
    Some(false)
}

/// Checks one, and gives the addresses of its bytes.
fn check<M: Memory>(spec: &TensorSpec, given: &Given<'_, M>) -> Result<Range<u64>, ProblemError> {
    let (name, (element, layout, memory)) = (spec.name, given.parts());
    macro_rules! refuse_if {
        ($when:expr, $($why:tt)+) => { if $when { return refuse(name, format!($($why)+)); } };
    }
    refuse_if!(
        spec.is_written() && matches!(given, Given::Read(_)),
        "is written by this call: give it by `.with_mut(Name::{name:?}, …)`"
    );
    refuse_if!(
        element != spec.element,
        "holds {element}; this call needs {}",
        spec.element
    );
    let (differs, shape) = (!is_same(name, layout, &spec.layout), |layout| shape_text(name, layout));
    refuse_if!(
        differs && layout.shape != spec.layout.shape,
        "has shape {}; this call needs {}{}",
        shape(layout),
        shape(&spec.layout),
        order(name)
    );
    refuse_if!(
        differs,
        "has strides {:?} for shape {}; this call needs {:?}: build the task from the layouts of its \
        tensors",
        layout.strides,
        shape(layout),
        spec.layout.strides
    );
    let ((address, bytes), needed) = (M::extent(memory), spec.bytes());
    refuse_if!(
        bytes < needed || (address == 0 && needed > 0),
        "has {bytes} bytes; this call needs {needed}"
    );
    let size = element.size_bytes();
    refuse_if!(
        needed > 0 && !address.is_multiple_of(size as u64),
        "is not aligned to its {element} elements ({size} bytes): copy it to memory that is"
    );
    Ok(address..address + needed)
}

/// Whether a layout is the one that is needed. Values are dense, and may be given in one dimension, or with other
/// dimensions of size 1. Strides along dimensions of size 1 do not matter.
fn is_same(name: Name, given: &Layout, needed: &Layout) -> bool {
    let strides_are = |strides: &[i64; 4]| {
        let mut all = given.shape.iter().zip(given.strides.iter().zip(strides));
        given.shape.contains(&0) || all.all(|(&n, (a, b))| n == 1 || a == b)
    };
    if given.shape == needed.shape {
        return strides_are(&needed.strides);
    }
    let squeezed = |layout: &Layout| -> [usize; 4] {
        let mut sizes = [1; 4];
        let kept = layout.shape.iter().rev().filter(|&&n| n != 1);
        sizes.iter_mut().zip(kept).for_each(|(to, n)| *to = *n);
        sizes
    };
    let is_flat = given.shape[..3] == [1; 3] && given.shape[3] == needed.num_elements();
    name.is_values()
        && strides_are(&Layout::bshd(given.shape).strides)
        && (is_flat || squeezed(given) == squeezed(needed))
}

/// The dimensions that a tensor has: values have fewer than four.
fn shape_text(name: Name, layout: &Layout) -> String {
    let first = if name.is_values() {
        layout.shape.iter().take(3).take_while(|&&n| n == 1).count()
    } else {
        0
    };
    format!("{:?}", &layout.shape[first..])
}

fn order(name: Name) -> &'static str {
    if name.is_values() {
        ""
    } else {
        " as [batch, seq, heads, head_dim]"
    }
}

pub(crate) fn refuse<T>(name: Name, why: impl Into<String>) -> Result<T, ProblemError> {
    let why = why.into();
    Err(ProblemError::Operand { name, why })
}

impl Name {
    /// Whether it names values, which are dense: lengths, tables, slots, scales, sinks, slopes, the log-sum-exp and
    /// rotary tables. They may be given in one dimension.
    pub fn is_values(self) -> bool {
        use Name::{Dk, Dout, Dq, Dv, K, KCache, KNew, Out, PartOut, Q, QOut, V, VCache, VNew};
        let is_tensor = matches!(
            self,
            Q | K | V | Out | Dout | Dq | Dk | Dv | KNew | VNew | KCache | VCache
        );
        !is_tensor && !matches!(self, QOut | PartOut(_))
    }
}
