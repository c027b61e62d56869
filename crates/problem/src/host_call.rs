//! Operands in host memory as the tensors and arrays that the CPU and the checks of values take.

use crate::task::sealed::Kind;
use crate::tensor::read_element;
use crate::{
    AnyTask, Append, AppendTensors, AppendValues, DType, Direction, ElementType, Host, Inputs, Lengths, Name, Operands,
    Problem, ProblemError, RotaryTensors, Saved, SlotMapping, Tensor, TensorView,
};

impl Operands<'_, Host> {
    /// A tensor that a checked call has.
    fn tensor(&self, name: Name) -> Result<TensorView<'_>, ProblemError> {
        let given = self.get(name).ok_or_else(|| absent(name))?;
        given.tensor(name.as_str())
    }

    fn values<T: crate::Scalar>(&self, name: Name) -> Result<Option<&[T]>, ProblemError> {
        self.get(name).map(|view| view.values()).transpose()
    }

    /// The arrays of lengths.
    ///
    /// # Errors
    /// They do not hold i32.
    pub fn lengths(&self) -> Result<Lengths<&[i32]>, ProblemError> {
        let [a, b, c, d, e] = Lengths::<()>::NAMES.map(|word| self.array(word));
        Ok(Lengths::from([a?, b?, c?, d?, e?]))
    }

    fn array(&self, word: &str) -> Result<Option<&[i32]>, ProblemError> {
        Name::from_word(word).map_or(Ok(None), |name| self.values(name))
    }

    /// The arrays of an append, and its slots.
    fn append_values(&self) -> Result<(AppendValues<&[i32]>, Option<SlotMapping<'_>>), ProblemError> {
        let [a, b, c, d, e, f, g] = AppendValues::<()>::NAMES.map(|word| self.array(word));
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
        let dtype = match sinks.element() {
            ElementType::Float(dtype) => dtype,
            ElementType::I32 | ElementType::I64 => DType::F32, // no checked call has these
        };
        let count = sinks.layout().num_elements();
        (0..count)
            .map(|head| read_element(dtype, sinks.memory(), head))
            .collect()
    }

    /// Q, K and V of a checked call with their scales, sinks and slopes.
    ///
    /// # Errors
    /// Scales that are not finite and above 0.
    pub fn inputs<'m>(&'m self, problem: &Problem, sinks: &'m [f32]) -> Result<[TensorView<'m>; 3], ProblemError> {
        let [q, k, v] = [
            (Name::Q, Name::QScale),
            (Name::K, Name::KScale),
            (Name::V, Name::VScale),
        ]
        .map(|(name, scale)| {
            let tensor = self.tensor(name)?;
            match self.values(scale)? {
                Some(scales) => tensor.with_scales_of(name.as_str(), problem.batch(), scales),
                None => Ok(tensor),
            }
        });
        let mut q = q?;
        if problem.sinks().is_some() {
            q = q.with_sinks(sinks);
        }
        if let Some(slopes) = self.values(Name::AlibiSlopes)? {
            q = q.with_alibi_slopes(slopes);
        }
        Ok([q, k?, v?])
    }

    /// The tensors of a checked append.
    ///
    /// # Errors
    /// Tensors that the host cannot hold.
    pub fn append_tensors<'m>(&'m mut self, append: &Append) -> Result<AppendTensors<'m>, ProblemError> {
        let mut written =
            [Name::KCache, Name::VCache, Name::SequsedK, Name::QOut].map(|name| (name, self.take_mut(name)));
        let this: &'m Operands<'_, Host> = self;
        let mut take = |place: usize| {
            let (name, view) = &mut written[place];
            view.take().ok_or_else(|| absent(*name))
        };
        let cache = [take(0)?.into_tensor("k_cache")?, take(1)?.into_tensor("v_cache")?];
        let mut tensors = AppendTensors::new([this.tensor(Name::KNew)?, this.tensor(Name::VNew)?], cache);
        (tensors.values, tensors.slot_mapping) = this.append_values()?;
        if append.seqused_k {
            tensors.seqused_k = Some(take(2)?.into_values()?);
        }
        if append.rotary.is_some() {
            tensors.rotary = Some(RotaryTensors {
                cos: this.table(append, Name::RotaryCos)?,
                sin: this.table(append, Name::RotarySin)?,
                q: this.get(Name::Q).map(|q| q.tensor("q")).transpose()?,
                q_out: take(3)?.into_tensor("q_out")?,
            });
        }
        Ok(tensors)
    }

    /// A rotary table, whatever dimensions it was given in.
    fn table(&self, append: &Append, name: Name) -> Result<TensorView<'_>, ProblemError> {
        let given = self.tensor(name)?;
        let layout = append.rotary.map_or(*given.layout(), |rotary| rotary.table());
        TensorView::new(name.as_str(), given.dtype(), layout, given.bytes())
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
        let names = [
            (Name::Q, Name::QScale),
            (Name::K, Name::KScale),
            (Name::V, Name::VScale),
        ];
        for ((name, scale), tensor) in names.into_iter().zip(&self.tensors) {
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
        for (word, values) in Lengths::<()>::NAMES.into_iter().zip(lengths.arrays()) {
            if let (Some(name), Some(values)) = (Name::from_word(word), values) {
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
                if problem.direction() == Direction::Backward {
                    return Ok(());
                }
                let sinks = operands.sinks();
                let [q, k, v] = operands.inputs(problem, &sinks)?;
                problem.check_inputs(&q, &k, &v)
            }
            AnyTask::Append(append) => {
                let (values, slots) = operands.append_values()?;
                append.rows(&values, slots).map(drop)
            }
            AnyTask::Combine(_) => Ok(()),
        }
    }
}
