//! `flashcore::append_kv`: new rows of K and V into a cache, before attention, with the rotary embedding of K and Q.
//!
//! New rows `[batch, seq_new, kv_heads, head_dim]`, or with `cu_seqlens_k_new` packed, go behind the first
//! `cache_seqlens` rows of a cache. `seqused_k` gets the keys of each sequence afterwards; `q_out` q, rotated.

use flashcore::{Append, AppendPlace, AppendValues, Rotary};

use crate::bind::Operands;
use crate::error::Error;
use crate::foreign::{Foreign, Place, check_apart};
use crate::libtorch::Libtorch;
use crate::operators::Results;
use crate::run::{Work, attention_on};
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
pub(crate) struct Call {
    append: Append,
    tensors: Operands,
    values: AppendValues<usize>,
}

impl Call {
    /// `interleaved`: pairs of the rotary embedding; `at_one_position`: all rows of Q have that of the first.
    pub(crate) fn bind(tensors: &Operands, [interleaved, at_one_position]: [bool; 2]) -> Result<Call, Error> {
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
            tensors: *tensors,
            values,
        };
        if tensors[COS].is_given() || tensors[SIN].is_given() {
            call.rotate([interleaved, at_one_position])?;
        } else {
            call.tensors[COS..].fill(Foreign::ABSENT); // of no use without tables
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
        if q.first == q_out.first && q.layout() == q_out.layout() {
            self.tensors[Q] = Foreign::ABSENT; // rotated in its own memory, it is the output alone
        }
        Ok(())
    }

    pub(crate) fn run(&self, torch: &Libtorch) -> Result<(), Error> {
        let place = self.tensors[K_CACHE].place;
        let work = Work {
            task: &self.append,
            names: &APPENDED,
            tensors: &self.tensors,
            kept: None,
        };
        if place == Place::Cpu {
            check_apart(&self.tensors, &[K_CACHE, V_CACHE, SEQUSED, Q_OUT])?;
        }
        work.run(torch, &*attention_on(place, None, 0)?)
    }
}
