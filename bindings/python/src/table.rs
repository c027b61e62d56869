//! What PyTorch's operators are given and return, and in which order. Schemas, the order of an operator's stack, fake
//! kernels, autograd (`_operators.py`) and the calls that go round the dispatcher follow it.
//!
//! A tensor that is not given is one of one dimension without elements: optional arguments are not allocated alike in
//! all releases of PyTorch. What is given decides which lengths are equal, packed (`cu_seqlens_*`), or a cache's
//! (`seqused_k` alone, `block_table`).

use flashcore::Name;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::operators::{Compute, compute_backward, compute_forward};
use crate::options::{Kind, NUMBERS, Number};
use crate::{append, schedule};

/// What attention is given, and what it writes. The first are the tensors of a call, in the order in which
/// `_native.call` takes them; fewer stand for the first of them.
#[rustfmt::skip]
pub(crate) const TENSORS: [Name; 19] = [
    Name::Q, Name::K, Name::V, Name::CuSeqlensQ, Name::SequsedQ, Name::CuSeqlensK, Name::SequsedK, Name::BlockTable,
    Name::QScale, Name::KScale, Name::VScale, Name::Sinks, Name::AlibiSlopes, Name::Out, Name::Lse, Name::Dout, Name::Dq,
    Name::Dk, Name::Dv,
];
pub(crate) const Q: usize = 0;
pub(crate) const K: usize = 1;
pub(crate) const V: usize = 2;
/// The first of five arrays of lengths.
pub(crate) const LENGTHS: usize = 3;
pub(crate) const SEQUSED_K: usize = 6;
pub(crate) const BLOCK_TABLE: usize = 7;
/// Those of q, k and v.
pub(crate) const SCALES: usize = 8;
pub(crate) const SINKS: usize = 11;
pub(crate) const SLOPES: usize = 12;
/// How many a forward pass is given.
pub(crate) const GIVEN: usize = 13;
pub(crate) const OUT: usize = 13;
pub(crate) const LSE: usize = 14;
pub(crate) const DOUT: usize = 15;
/// The first of the gradients of q, k and v.
pub(crate) const GRADIENTS: usize = 16;

/// What an append is given. `seqused_k` and `q_out` are written, as the caches are.
#[rustfmt::skip]
pub(crate) const APPENDED: [Name; 15] = [
    Name::KCache, Name::VCache, Name::KNew, Name::VNew, Name::CacheSeqlens, Name::CuSeqlensKNew, Name::CacheBatchIdx,
    Name::BlockTable, Name::SequsedK, Name::RotaryCos, Name::RotarySin, Name::Q, Name::QOut, Name::CuSeqlensQ,
    Name::SeqlensRotary,
];

/// What schemas and errors call a tensor.
pub(crate) fn word(name: Name) -> &'static str {
    match name {
        Name::KNew => "k",
        Name::VNew => "v",
        name => name.as_str(),
    }
}

/// An operator. Its arguments are tensors, then [`NUMBERS`] if it is attention or a schedule, then numbers.
pub(crate) struct Operator {
    pub(crate) name: &'static str,
    /// Its tensors, as its implementation has them.
    pub(crate) names: &'static [Name],
    /// The places of this operator's tensors among those names, in the order of the schema.
    pub(crate) tensors: &'static [usize],
    /// Which of those are written.
    written: &'static [usize],
    is_attention: bool,
    numbers: &'static [Number],
    results: &'static [&'static str],
    pub(crate) compute: Compute,
}

pub(crate) const FWD: Operator = Operator {
    name: "fwd",
    names: &TENSORS,
    tensors: &[Q, K, V, 8, 9, 10, SINKS, SLOPES],
    written: &[],
    is_attention: true,
    numbers: &[],
    results: &["out", "lse"],
    compute: compute_forward,
};

/// As [`FWD`], with lengths: five more arguments take PyTorch's dispatcher a microsecond.
pub(crate) const FWD_LENGTHS: Operator = Operator {
    name: "fwd_lengths",
    tensors: &[Q, K, V, 3, 4, 5, SEQUSED_K, BLOCK_TABLE, 8, 9, 10, SINKS, SLOPES],
    ..FWD
};

pub(crate) const BWD: Operator = Operator {
    name: "bwd",
    tensors: &[DOUT, Q, K, V, OUT, LSE, 3, 4, 5, SEQUSED_K],
    results: &["dq", "dk", "dv"],
    compute: compute_backward,
    ..FWD
};

pub(crate) const APPEND_KV: Operator = Operator {
    name: "append_kv",
    names: &APPENDED,
    tensors: &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14],
    written: &[0, 1, 8, 12],
    is_attention: false,
    numbers: &[
        Number("rotary_interleaved", Kind::Bool, None),
        Number("q_at_one_position", Kind::Bool, None),
    ],
    results: &[],
    compute: append::compute,
};

/// `schedule`: of the one that is made again; 0 for a new one. `page_size` 0: no pages; `total_q` -1: as many rows of
/// each sequence. `dtype`: PyTorch's number. The result, a token, has one element; none if there was a number, and
/// where no schedule is made.
pub(crate) const MAKE_SCHEDULE: Operator = Operator {
    name: "make_schedule",
    tensors: &[SEQUSED_K, LENGTHS],
    numbers: &[
        Number("dtype", Kind::Int, Some(15)),
        Number("heads", Kind::Int, Some(1)),
        Number("kv_heads", Kind::Int, Some(1)),
        Number("head_dim", Kind::Int, Some(64)),
        Number("head_dim_v", Kind::Int, Some(64)),
        Number("page_size", Kind::Int, Some(0)),
        Number("total_q", Kind::Int, Some(u64::MAX)),
    ],
    results: &["token"],
    compute: schedule::make,
    ..FWD
};

impl Operator {
    fn all_numbers(&self) -> impl Iterator<Item = &Number> {
        let attention: &[Number] = if self.is_attention { &NUMBERS } else { &[] };
        attention.iter().chain(self.numbers)
    }

    pub(crate) fn schema(&self) -> String {
        let tensor = |(n, &at): (usize, &usize)| {
            let name = word(self.names[at]);
            match self.written.iter().position(|&place| place == n) {
                Some(place) => format!("Tensor({}!) {name}", char::from(b'a' + place as u8)),
                None => format!("Tensor {name}"),
            }
        };
        let arguments: Vec<String> = self
            .tensors
            .iter()
            .enumerate()
            .map(tensor)
            .chain(self.all_numbers().map(Number::schema))
            .collect();
        let results: Vec<String> = self.results.iter().map(|name| format!("Tensor {name}")).collect();
        let results = match &results[..] {
            [one] => one.split(' ').next().unwrap_or_default().to_string(),
            all => format!("({})", all.join(", ")),
        };
        format!("{}({}) -> {results}", self.name, arguments.join(", "))
    }
}

pub(crate) const OPERATORS: [&Operator; 5] = [&FWD, &FWD_LENGTHS, &BWD, &APPEND_KV, &MAKE_SCHEDULE];

/// Each operator's tensors and numbers by name.
#[pyfunction]
pub(crate) fn operators(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for operator in OPERATORS {
        let tensors = PyTuple::new(py, operator.tensors.iter().map(|&at| word(operator.names[at])))?;
        let numbers: Vec<_> = operator.all_numbers().map(|number| number.0).collect();
        let numbers = PyTuple::new(py, numbers)?;
        all.set_item(operator.name, (tensors, numbers))?;
    }
    Ok(all)
}
