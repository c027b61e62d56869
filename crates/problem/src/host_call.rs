//! Operands in host memory as the tensors and arrays that the CPU and the checks of values take.

use crate::task::sealed::Kind;
use crate::tensor::read_element;
use crate::{
    AnyTask, AppendValues, DType, ElementType, Host, Inputs, Lengths, Name, Operands, Problem, ProblemError, Saved,
    Scalar, SlotMapping, Tensor, TensorView,
};

/// Tensors that have scales where they are e4m3, and those.
const SCALED: [(Name, Name); 3] = [
    (Name::Q, Name::QScale),
    (Name::K, Name::KScale),
    (Name::V, Name::VScale),
];

/// Of operands that are [checked](Operands::check).
#[doc(hidden)]
impl<'a> Operands<'a, Host> {
    /// A tensor that is read.
    pub fn tensor(&self, name: Name) -> Result<TensorView<'_>, ProblemError> {
        let given = self.get(name).ok_or_else(|| absent(name))?;
        given.tensor(name.as_str())
    }

    /// Values that are read, if the call has them.
    pub fn values<T: Scalar>(&self, name: Name) -> Result<Option<&[T]>, ProblemError> {
        self.get(name).map(|view| view.values()).transpose()
    }

    /// The bytes of a tensor that is written, which these operands have no longer.
    pub fn take_bytes(&mut self, name: Name) -> Result<&'a mut [u8], ProblemError> {
        let given = self.take_mut(name).ok_or_else(|| absent(name))?;
        Ok(given.into_memory())
    }

    /// Values that are written, if the call has them, which these operands have no longer.
    pub fn take_values<T: Scalar>(&mut self, name: Name) -> Result<Option<&'a mut [T]>, ProblemError> {
        self.take_mut(name).map(|view| view.into_values()).transpose()
    }

    /// The arrays of lengths.
    pub fn lengths(&self) -> Result<Lengths<&[i32]>, ProblemError> {
        let [a, b, c, d, e] = Lengths::<()>::OPERANDS.map(|name| self.values(name));
        Ok(Lengths::from([a?, b?, c?, d?, e?]))
    }

    /// The arrays of an append, and its slots.
    pub fn append_values(&self) -> Result<(AppendValues<&[i32]>, Option<SlotMapping<'_>>), ProblemError> {
        let [a, b, c, d, e, f, g] = AppendValues::<()>::OPERANDS.map(|name| self.values(name));
        let slots = match self.get(Name::SlotMapping) {
            None => None,
            Some(slots) if slots.element() == ElementType::I64 => Some(SlotMapping::I64(slots.values()?)),
            Some(slots) => Some(SlotMapping::I32(slots.values()?)),
        };
        Ok((AppendValues::from([a?, b?, c?, d?, e?, f?, g?]), slots))
    }

    /// Sinks as f32, which [`Operands::inputs`] attaches.
    pub fn sinks(&self) -> Vec<f32> {
        let Some(sinks) = self.get(Name::Sinks) else {
            return Vec::new();
        };
        let dtype = sinks.element().float().unwrap_or(DType::F32); // no checked call has integers
        let count = sinks.layout().num_elements();
        (0..count)
            .map(|head| read_element(dtype, sinks.memory(), head))
            .collect()
    }

    /// Q, K and V with their scales, sinks and slopes, of values that the problem allows.
    pub fn inputs<'m>(&'m self, problem: &Problem, sinks: &'m [f32]) -> Result<[TensorView<'m>; 3], ProblemError> {
        let mut tensors = [self.tensor(Name::Q)?, self.tensor(Name::K)?, self.tensor(Name::V)?];
        for (tensor, (name, scale)) in tensors.iter_mut().zip(SCALED) {
            if let Some(scales) = self.values(scale)? {
                *tensor = tensor.with_scales_of(name.as_str(), problem.batch(), scales)?;
            }
        }
        let [q, k, v] = &mut tensors;
        if problem.sinks().is_some() {
            *q = q.with_sinks(sinks);
        }
        if let Some(slopes) = self.values(Name::AlibiSlopes)? {
            *q = q.with_alibi_slopes(slopes);
        }
        problem.check_inputs(q, k, v)?;
        Ok(tensors)
    }
}

/// Q, K and V of a problem with what they carry: scales, sinks and slopes are operands by their own names.
#[derive(Debug)]
pub struct Carried<'a> {
    tensors: [TensorView<'a>; 3],
    /// In the problem's dtype of them; a tensor carries f32.
    sinks: Option<Tensor>,
    lengths: Lengths<&'a [i32]>,
    saved: Option<&'a Saved>,
}

impl<'a> Carried<'a> {
    /// Of these tensors.
    ///
    /// # Errors
    /// Sinks or slopes that are not the problem's.
    pub fn of(problem: &Problem, tensors: [impl Into<TensorView<'a>>; 3]) -> Result<Carried<'a>, ProblemError> {
        let tensors = tensors.map(Into::into);
        problem.check_head_values(&tensors[0])?;
        let sinks = problem.sinks().zip(tensors[0].sinks()).map(|(dtype, sinks)| {
            let layout = [sinks.len()].into();
            Tensor::from_fn(dtype, layout, |_, _, _, head| sinks[head])
        });
        Ok(Carried {
            tensors,
            sinks,
            lengths: Lengths::default(),
            saved: None,
        })
    }

    /// The operands.
    pub fn operands(&self) -> Operands<'_, Host> {
        let mut operands = Operands::new();
        for ((name, scale), tensor) in SCALED.into_iter().zip(&self.tensors) {
            operands = operands.with(name, *tensor);
            if let Some(scales) = tensor.scales() {
                operands = operands.with(scale, scales);
            }
        }
        if let Some(sinks) = &self.sinks {
            operands = operands.with(Name::Sinks, sinks);
        }
        if let Some(slopes) = self.tensors[0].alibi_slopes() {
            operands = operands.with(Name::AlibiSlopes, slopes);
        }
        if let Some(Saved { out, lse, dout }) = self.saved {
            operands = operands
                .with(Name::Out, out)
                .with(Name::Lse, lse)
                .with(Name::Dout, dout);
        }
        operands.with_lengths(&self.lengths)
    }
}

impl Inputs {
    /// All that a call of their problem reads, by name.
    ///
    /// # Errors
    /// As [`Carried::of`]: of another problem's inputs.
    pub fn carried(&self, problem: &Problem) -> Result<Carried<'_>, ProblemError> {
        Ok(Carried {
            lengths: self.lengths.as_slices(),
            saved: self.saved.as_ref(),
            ..Carried::of(problem, [&self.q, &self.k, &self.v])?
        })
    }
}

impl<'a> Operands<'a, Host> {
    /// Adds the values of lengths that there are.
    #[must_use]
    pub fn with_lengths(mut self, lengths: &Lengths<&'a [i32]>) -> Self {
        for (name, values) in Lengths::<()>::OPERANDS.into_iter().zip(lengths.arrays()) {
            if let Some(values) = values {
                self = self.with(name, *values);
            }
        }
        self
    }
}

fn absent(name: Name) -> ProblemError {
    let why = "was not given".to_string();
    ProblemError::Operand { name, why }
}

impl AnyTask<'_> {
    /// Checks values that kernels trust: lengths, pages, slots, scales, sinks and slopes of a checked call.
    ///
    /// # Errors
    /// The first that contradicts the task, by its name.
    pub fn check_values(&self, operands: &Operands<'_, Host>) -> Result<(), ProblemError> {
        match self.kind() {
            AnyTask::Problem(problem) => {
                problem.sequences(&operands.lengths()?)?;
                operands.inputs(problem, &operands.sinks()).map(drop)
            }
            AnyTask::Append(append) => {
                let (values, slots) = operands.append_values()?;
                append.rows(&values, slots).map(drop)
            }
            AnyTask::Combine(_) => Ok(()),
        }
    }
}
