//! A step of decoding, for plain tensors of a program that runs as it is written: `flashcore::append_kv` where there
//! are new keys, then `flashcore::fwd_kvcache`, without the dispatcher and with one crossing from Python. As in
//! [`direct`](super::direct), None is for what is unusual: operators are called then, which write the same keys again.

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::direct::{Results, first_numbers, flag, found, objects, whole, without_lock};
use super::schedule::Kept;
use super::{append, lengths};
use crate::call::attention_on;
use crate::exchange::Exchange;
use crate::frameworks::wrote;
use crate::input::Input;
use crate::libtorch::{Error, Libtorch, Tensor};
use crate::tensor::Place;

/// q, k_cache, v_cache, cu_seqlens_q, cache_seqlens, page_table, k, v, rotary_cos, rotary_sin and rotary_seqlens; those
/// that are not given are [`Input::ABSENT`].
struct Inputs([Option<Input>; COUNT]);

const COUNT: usize = 11;
const Q: usize = 0;
const K_CACHE: usize = 1;
const V_CACHE: usize = 2;
const K: usize = 6;
const COS: usize = 8;

// SAFETY: as of `direct::Tensors`.
unsafe impl Send for Inputs {}

/// Aliases of tensors on the CPU (`direct::Held`).
type Held<'py> = [Option<Bound<'py, PyAny>>; COUNT];

impl Inputs {
    /// `None` where one is no plain tensor, has no elements, or perhaps a gradient.
    fn of<'py>(
        torch: &Libtorch,
        exchange: &Exchange,
        given: &[Bound<'py, PyAny>; COUNT],
    ) -> PyResult<Option<(Inputs, Held<'py>)>> {
        let records = torch.records_gradients();
        let (mut inputs, mut held) = ([None; COUNT], [const { None }; COUNT]);
        for (n, object) in given.iter().enumerate().filter(|(_, object)| !object.is_none()) {
            let py = object.py();
            if !exchange.is_plain(object)
                || object.call_method0(intern!(py, "is_neg"))?.is_truthy()?
                || (records && object.getattr(intern!(py, "requires_grad"))?.is_truthy()?)
            {
                return Ok(None);
            }
            let mut input = exchange.input(object);
            if input.is_some_and(|input| input.place == Some(Place::Cpu)) {
                let alias = object.call_method0(intern!(py, "detach"))?;
                input = exchange.input(&alias);
                held[n] = Some(alias);
            }
            match input {
                Some(input) if has_elements(&input) => inputs[n] = Some(input),
                _ => return Ok(None),
            }
        }
        Ok(Some((Inputs(inputs), held)))
    }

    fn get(self) -> [Option<Input>; COUNT] {
        self.0
    }
}

fn has_elements(input: &Input) -> bool {
    (1..=4).contains(&input.dims) && !input.shape[..input.dims].contains(&0) && !input.first.is_null()
}

/// The numbers of the operators: those of `fwd_kvcache`, and those of `append_kv`.
type Numbers = ([u64; 9], [u64; 2]);

/// From softmax_scale, causal, both sides of the window, softcap, max_seqlen_q, sm_margin, split_keys and
/// rotary_interleaved. `None` where one has another type.
fn numbers_of(numbers: &Bound<'_, PyTuple>, head_dim: usize) -> Option<Numbers> {
    if numbers.len() != 9 {
        return None;
    }
    let [scale, causal, left, right, softcap] = first_numbers(numbers, head_dim)?;
    let (max_q, max_k) = (whole(numbers, 5)?, i64::MAX as u64); // as many keys as there is room for
    let (sm_margin, split_keys, interleaved) = (whole(numbers, 6)?, whole(numbers, 7)?, flag(numbers, 8)?);
    let at_one_position = causal == 0 && (left as i64) < 0 && (right as i64) < 0;
    let of_attention = [scale, causal, left, right, softcap, max_q, max_k, sm_margin, split_keys];
    Some((of_attention, [interleaved, at_one_position.into()]))
}

/// The output of a step, and its log-sum-exp if that is asked for. `schedule`: the number of one that was made before.
#[pyfunction]
#[pyo3(signature = (tensors, numbers, schedule, with_lse, /))]
pub(crate) fn direct_step<'py>(
    py: Python<'py>,
    tensors: [Bound<'py, PyAny>; COUNT],
    numbers: &Bound<'py, PyTuple>,
    schedule: Option<i64>,
    with_lse: bool,
) -> PyResult<Option<Results<'py>>> {
    let Some((torch, exchange, wrap)) = found(py) else {
        return Ok(None);
    };
    let Some((inputs, _held)) = Inputs::of(torch, exchange, &tensors)? else {
        return Ok(None);
    };
    let Some(numbers) = inputs.0[Q].and_then(|q| numbers_of(numbers, q.shape[q.dims - 1] as usize)) else {
        return Ok(None);
    };
    let appends = inputs.0[K].is_some();
    let results = without_lock(py, move || {
        let (out, lse) = step(torch, inputs.get(), &numbers, schedule, with_lse)?;
        Ok((out.into_stack(), lse.map(Tensor::into_stack)))
    });
    let counted = match results {
        Ok(None) => Ok(()),
        _ if appends => [K_CACHE, V_CACHE].iter().try_for_each(|&n| wrote(&tensors[n])),
        _ => Ok(()),
    };
    let results = match results? {
        None => None,
        Some((out, Some(lse))) if with_lse => {
            let [out, lse] = objects(py, wrap, [out, lse])?;
            Some((out, Some(lse)))
        }
        Some((out, lse)) => {
            // SAFETY: an owned handle, taken back once.
            drop(lse.map(|lse| unsafe { torch.take(lse) }));
            let [out] = objects(py, wrap, [out])?;
            Some((out, None))
        }
    };
    counted.map(|()| results)
}

/// All is checked before a key is written, and the results are allocated. What is not known then is whether a kernel
/// serves the problem, and what the device says.
fn step<'a>(
    torch: &'a Libtorch,
    inputs: [Option<Input>; COUNT],
    (of_attention, of_append): &Numbers,
    schedule: Option<i64>,
    with_lse: bool,
) -> Result<(Tensor<'a>, Option<Tensor<'a>>), Error> {
    let given = |n: usize| inputs[n].unwrap_or(Input::ABSENT);
    let [q, k_cache, v_cache, starts, lengths, table, k, v, cos, sin, positions] = std::array::from_fn(given);
    if k_cache.shape[..3] != v_cache.shape[..3] || q.strides[q.dims - 1] != 1 {
        return Err(UNUSUAL.into());
    }
    let (mut q_attended, mut lengths_after) = (q, lengths);
    let (rotated, counted);
    let appends = inputs[K..].iter().any(Option::is_some);
    if appends {
        check_new(&inputs)?;
        let place = q.place.ok_or(UNUSUAL)?;
        counted = torch.empty_i32(lengths.shape[0] as usize, place)?;
        lengths_after = counted.input()?;
        if inputs[COS].is_some() {
            rotated = empty_like(torch, &q, place)?;
            q_attended = rotated.input()?;
        }
    }
    let kept = schedule.map(Kept::find).transpose()?;
    let with_lse = with_lse || kept.is_some(); // schedules are of problems that have it
    let attended = [
        q_attended,
        k_cache,
        v_cache,
        starts,
        Input::ABSENT,
        lengths_after,
        table,
    ];
    let attention = lengths::cache(torch, &attended, &[], of_attention, kept, with_lse)?;
    if appends {
        attention.check()?;
        let none = Input::ABSENT;
        let of_q = match inputs[COS] {
            None => [none; 6],
            Some(_) => [cos, sin, q, q_attended, starts, positions],
        };
        let [cos, sin, q, q_out, starts, positions] = of_q;
        let appended = [
            k_cache,
            v_cache,
            k,
            v,
            lengths,
            none,
            none,
            table,
            lengths_after,
            cos,
            sin,
            q,
            q_out,
            starts,
            positions,
        ];
        append::compute(torch, &appended, of_append)?;
    }
    attention.run()
}

const UNUSUAL: &str = "to be looked at closer";

/// What `_append.append` checks before it calls the operator.
fn check_new(inputs: &[Option<Input>; COUNT]) -> Result<(), Error> {
    let [
        Some(q),
        Some(k_cache),
        Some(v_cache),
        _,
        Some(lengths),
        table,
        Some(k),
        Some(v),
        cos,
        sin,
        _,
    ] = inputs
    else {
        return Err(UNUSUAL.into());
    };
    let capacity = k_cache.shape[1] * table.map_or(1, |table| table.shape[1]);
    let fits = |new: &Input, cache: &Input| {
        new.dims == 4
            && (new.shape[0], new.shape[1]) == (lengths.shape[0], k.shape[1])
            && new.shape[2..] == cache.shape[2..]
            && new.strides[3] == 1
    };
    let is_usual = fits(k, k_cache)
        && fits(v, v_cache)
        && match (cos, sin) {
            (None, None) => true,
            (Some(cos), Some(sin)) => {
                cos.dims == 2
                    && cos.shape == sin.shape
                    && 2 * cos.shape[1] <= q.shape[q.dims - 1]
                    && cos.shape[0] >= capacity
            }
            _ => false,
        };
    is_usual.then_some(()).ok_or_else(|| UNUSUAL.into())
}

/// Memory for a tensor as `torch.empty_like` gives it, where its dimensions lie one in another.
fn empty_like<'a>(torch: &'a Libtorch, like: &Input, place: Place) -> Result<Tensor<'a>, Error> {
    let fill = |dense: &mut [i64]| {
        let mut step = 1;
        for n in (0..like.dims).rev() {
            dense[n] = step;
            step *= like.shape[n];
        }
    };
    let in_order = |n: usize| like.shape[n] == 1 || like.strides[n] >= like.strides[n + 1];
    if !(0..like.dims - 1).all(in_order) {
        return Err(UNUSUAL.into());
    }
    match like.dims {
        3 => {
            let of = like.describe::<3>("q")?;
            let mut dense = [0; 3];
            fill(&mut dense);
            torch.empty(of.shape.map(|n| n as usize), dense, Some(of.dtype), place)
        }
        _ => {
            let of = like.describe::<4>("q")?;
            let mut dense = [0; 4];
            fill(&mut dense);
            torch.empty(of.shape.map(|n| n as usize), dense, Some(of.dtype), place)
        }
    }
}

/// Raises for a schedule that was made for another call than that of q, the cache, its lengths and table, and for
/// multiprocessors that are not there to leave: what the call would raise after new keys are written. Of tensors that
/// are not plain it does not know.
#[pyfunction]
#[pyo3(signature = (tensors, numbers, schedule, /))]
pub(crate) fn check_step<'py>(
    py: Python<'py>,
    tensors: [Bound<'py, PyAny>; COUNT],
    numbers: &Bound<'py, PyTuple>,
    schedule: Option<i64>,
) -> PyResult<()> {
    let Some((torch, exchange, _)) = found(py) else {
        return Ok(());
    };
    let [q, k_cache, v_cache, starts, lengths, table, ..] = tensors.each_ref().map(|object| match object.is_none() {
        true => Some(Input::ABSENT),
        false if exchange.is_plain(object) => exchange.input(object),
        false => None,
    });
    let (Some(q), Some(k_cache), Some(v_cache), Some(starts), Some(lengths), Some(table)) =
        (q, k_cache, v_cache, starts, lengths, table)
    else {
        return Ok(());
    };
    let head_dim = q.shape[q.dims.clamp(1, 4) - 1] as usize;
    let Some((numbers, _)) = numbers_of(numbers, head_dim) else {
        return Ok(());
    };
    let inputs = [q, k_cache, v_cache, starts, Input::ABSENT, lengths, table];
    let check = || -> Result<(), Error> {
        let Some(schedule) = schedule else {
            let (place, sm_margin) = (q.place.ok_or(UNUSUAL)?, u32::try_from(numbers[7] as i64)?);
            return Ok(attention_on(place, None, sm_margin).map(drop)?);
        };
        let kept = Some(Kept::find(schedule)?);
        lengths::cache(torch, &inputs, &[], &numbers, kept, true)?.check()
    };
    check().map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
