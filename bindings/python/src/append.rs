//! `flashcore::append_kv`: new rows of K and V into a cache, before attention, with the rotary embedding of K and Q.
//!
//! New rows `[batch, seq_new, kv_heads, head_dim]`, or with `cu_seqlens_k_new` packed, go behind the first
//! `cache_seqlens` rows of a cache. `seqused_k` gets the keys of each sequence afterwards; `q_out` q, rotated.

use flashcore::cuda::Stream;
use flashcore::{Append, AppendPlace, AppendValues, Cuda, Device, Host, Memory, Name, Rotary, Task, View, ViewMut};

use crate::bind::Operands;
use crate::error::Error;
use crate::foreign::{Foreign, Place};
use crate::libtorch::Libtorch;
use crate::operators::Results;
use crate::run::{attention_on, device_slice, device_slice_mut, host_bytes, host_bytes_mut};
use crate::table::APPENDED;

// Places in the table.
pub(crate) const K_CACHE: usize = 0;
pub(crate) const V_CACHE: usize = 1;
pub(crate) const K_NEW: usize = 2;
pub(crate) const V_NEW: usize = 3;
pub(crate) const CACHE_SEQLENS: usize = 4;
pub(crate) const TABLE: usize = 7;
pub(crate) const SEQUSED: usize = 8;
pub(crate) const COS: usize = 9;
pub(crate) const SIN: usize = 10;
pub(crate) const Q: usize = 11;
pub(crate) const Q_OUT: usize = 12;
pub(crate) const CU_Q: usize = 13;
pub(crate) const POSITIONS: usize = 14;

pub(crate) fn compute<'a>(torch: &'a Libtorch, operands: &mut Operands, numbers: &[u64]) -> Result<Results<'a>, Error> {
    if operands[CACHE_SEQLENS].is_given() {
        Call::bind(operands, [numbers[0] as u8 != 0, numbers[1] as u8 != 0])?.run(torch)?;
    } // else there is no sequence
    Ok([const { None }; 3])
}

/// An append with its tensors, which were all found on one device.
pub(crate) struct Call<'a> {
    append: Append,
    tensors: &'a Operands,
    values: AppendValues<usize>,
}

impl<'a> Call<'a> {
    /// `interleaved`: pairs of the rotary embedding; `at_one_position`: all rows of Q have that of the first.
    pub(crate) fn bind(tensors: &'a Operands, [interleaved, at_one_position]: [bool; 2]) -> Result<Call<'a>, Error> {
        let of = |n: usize| {
            let tensor = &tensors[n];
            tensor
                .check_rank(if tensor.rank == 3 && n >= K_NEW { 3 } else { 4 })
                .map(|()| tensor.layout())
        };
        let cache = [of(K_CACHE)?, of(V_CACHE)?];
        let new = [of(K_NEW)?, of(V_NEW)?];
        let dtype = tensors[K_CACHE].dtype()?;
        let numbers = |n: usize, rank| tensors[n].numbers(rank, &tensors[K_CACHE]);
        let table = numbers(TABLE, 2)?;
        let values = AppendValues {
            cache_seqlens: numbers(CACHE_SEQLENS, 1)?,
            cu_seqlens_k_new: numbers(5, 1)?,
            cache_batch_idx: numbers(6, 1)?,
            block_table: table,
            ..AppendValues::default()
        };
        let seqused_k = numbers(SEQUSED, 1)?;
        let max_pages = tensors[TABLE].shape[1] as usize;
        let append = match &table {
            None => Append::to_cache(dtype, new, cache),
            Some(_) => Append::to_pages(dtype, new, cache, max_pages),
        };
        let mut append = Append {
            batch: values.cache_seqlens.unwrap_or(0),
            packed: values.cu_seqlens_k_new.is_some(),
            batch_idx: values.cache_batch_idx.is_some(),
            seqused_k: seqused_k.is_some(),
            ..append
        };
        if let AppendPlace::Paged { tables, .. } = &mut append.place {
            *tables = tensors[TABLE].shape[0] as usize;
        }
        let mut call = Call {
            append,
            tensors,
            values,
        };
        if tensors[COS].is_given() || tensors[SIN].is_given() {
            call.rotate([interleaved, at_one_position])?;
        }
        for other in [V_CACHE, K_NEW, V_NEW] {
            tensors[other].agree(&tensors[K_CACHE], dtype)?;
        }
        call.append.check()?;
        call.append.check_given(&call.values, |count| *count, None)?;
        let batch = call.append.batch;
        if let Some(count) = seqused_k.filter(|count| *count != batch) {
            return Err(format!("seqused_k has {count} entries; this append needs {batch}").into());
        }
        Ok(call)
    }

    fn rotate(&mut self, [interleaved, q_at_one_position]: [bool; 2]) -> Result<(), Error> {
        let tensors = self.tensors;
        let [cos, sin, q, q_out] = [COS, SIN, Q, Q_OUT].map(|n| &tensors[n]);
        for (table, name) in [(cos, "rotary_cos"), (sin, "rotary_sin")] {
            if !table.is_given() {
                return Err(format!("{name} is not given; give rotary_cos and rotary_sin, or neither").into());
            }
            table.check_rank(2)?;
        }
        let dtype = q.dtype()?;
        for other in [&tensors[K_CACHE], cos, sin, q_out] {
            other.agree(q, dtype)?;
        }
        let [positions, half] = [0, 1].map(|n| cos.shape[n] as usize); // sizes are not negative
        for table in [cos, sin] {
            table.check_floats(&[dtype], &[positions, half], q)?;
        }
        self.values.cu_seqlens_q = tensors[CU_Q].numbers(1, q)?;
        self.values.seqlens_rotary = tensors[POSITIONS].numbers(1, q)?;
        for x in [q, q_out] {
            x.check_rank(if self.values.cu_seqlens_q.is_some() { 3 } else { 4 })?;
        }
        self.append.rotary = Some(Rotary {
            q: q.layout(),
            q_out: q_out.layout(),
            packed_q: self.values.cu_seqlens_q.is_some(),
            positions,
            dim: 2 * half,
            interleaved,
            q_at_one_position,
            seqlens: self.values.seqlens_rotary.is_some(),
        });
        Ok(())
    }

    pub(crate) fn run(&self, torch: &Libtorch) -> Result<(), Error> {
        let place = self.tensors[K_CACHE].place;
        let attention = attention_on(place, None, 0)?;
        let (Device::Cuda(context), Place::Cuda(ordinal)) = (attention.device(), place) else {
            return self.run_on_host(&attention);
        };
        let slice = |tensor: &Foreign| device_slice(&context, tensor);
        let operands = self.operands::<Cuda>(slice, |tensor| device_slice_mut(&context, tensor));
        // SAFETY: PyTorch's current stream lives as long as PyTorch, which frees tensors in its order. Appends need no
        // workspace.
        unsafe {
            let stream = Stream::from_raw(&context, torch.current_stream(ordinal)?)?;
            attention.run_foreign(&stream, &self.append, operands, |_| None)?;
        }
        Ok(())
    }

    /// The tensors of the append by their names. Q that is rotated in its own memory is the output alone.
    fn operands<'o, M: Memory>(
        &self,
        read: impl Fn(&Foreign) -> M::Ref<'o>,
        write: impl Fn(&Foreign) -> M::Mut<'o>,
    ) -> flashcore::Operands<'o, M> {
        let place = |name: Name| match name {
            Name::KNew => Some(K_NEW),
            Name::VNew => Some(V_NEW),
            Name::Q if self.is_in_place() => None,
            name => APPENDED.iter().position(|word| *word == name.as_str()),
        };
        let mut operands = flashcore::Operands::new();
        for spec in self.append.tensors() {
            let Some(n) = place(spec.name) else { continue };
            let tensor = &self.tensors[n];
            operands = if spec.is_written() {
                operands.with_mut(spec.name, ViewMut::new(spec.element, spec.layout, write(tensor)))
            } else {
                operands.with(spec.name, View::new(spec.element, spec.layout, read(tensor)))
            };
        }
        operands
    }

    /// Whether Q is rotated in its own memory.
    fn is_in_place(&self) -> bool {
        let rotary = self.append.rotary.as_ref();
        rotary.is_some_and(|rotary| self.tensors[Q].first == self.tensors[Q_OUT].first && rotary.q == rotary.q_out)
    }

    /// Refuses tensors that are written and have bytes between the addresses of others: the CPU takes each as one
    /// slice.
    fn check_apart(&self) -> Result<(), Error> {
        let written = [K_CACHE, V_CACHE, SEQUSED, Q_OUT];
        let rotates = self.append.rotary.is_some();
        let takes_part = |n: usize| match n {
            COS | SIN | CU_Q | POSITIONS | Q_OUT => rotates,
            Q => rotates && !self.is_in_place(),
            _ => true,
        };
        for (n, &a) in written.iter().enumerate().filter(|(_, a)| takes_part(**a)) {
            for b in (0..=POSITIONS).filter(|b| takes_part(*b) && !written[..=n].contains(b)) {
                let [one, other] = [&self.tensors[a], &self.tensors[b]];
                let is_empty = |tensor: &Foreign| !tensor.is_given() || tensor.span_bytes() == 0;
                if !is_empty(one) && !is_empty(other) && one.overlaps(other) {
                    return Err(format!(
                        "{name} and {} have bytes between the same addresses, as interleaved views of one tensor have; on \
                         the CPU, {name} is written and must be apart: make them contiguous",
                        other.name,
                        name = one.name
                    )
                    .into());
                }
            }
        }
        Ok(())
    }

    fn run_on_host(&self, attention: &flashcore::Attention) -> Result<(), Error> {
        self.check_apart()?;
        let operands = self.operands::<Host>(host_bytes, host_bytes_mut);
        Ok(attention.run(&self.append, operands)?)
    }
}
