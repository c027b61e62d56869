//! A GPU's recorded results of some programs, with which the simulator is compared where there is
//! no GPU.

use serde::{Deserialize, Serialize};

use flashcore_sim::TensorSums;

use crate::fuzz::program::Program;
use crate::fuzz::run::{Prepared, Word};

/// Results of one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Corpus {
    /// Its name.
    pub device: String,
    /// Its driver's release.
    pub driver: String,
    /// How it sums products.
    pub sums: TensorSums,
    /// Program by program.
    pub entries: Vec<Entry>,
}

/// A GPU's result of one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The program's seed.
    pub seed: u64,
    /// Digest of the program, which says whether the seed still means it.
    pub program: String,
    /// Digest of all words that must be the same.
    pub exact: String,
    /// Words that must be near: of each place those of every 16th thread.
    pub near: Vec<u32>,
}

/// One word of a place is kept for this many threads.
const EVERY: usize = 16;

fn is_kept(word: &Word) -> bool {
    !word.slot.is_exact() && word.thread % EVERY == word.place % EVERY
}

impl Entry {
    /// Records a result.
    pub fn of(prepared: &Prepared, words: &[Word]) -> Entry {
        let near = words.iter().filter(|word| is_kept(word));
        Entry {
            seed: prepared.program.seed,
            program: program_digest(&prepared.program),
            exact: exact_digest(words),
            near: near.map(|word| word.value).collect(),
        }
    }

    /// Compares the simulator with the record.
    pub fn check(&self, sums: TensorSums) -> Result<(), String> {
        let failed = |what: &dyn std::fmt::Display| format!("seed {}: {what}", self.seed);
        let program = Program::random(self.seed);
        if program_digest(&program) != self.program {
            return Err(failed(
                &"it makes another program than when the corpus was recorded; record it anew on a GPU",
            ));
        }
        let prepared = Prepared::new(program, sums).map_err(|error| failed(&error))?;
        let simulated = prepared.simulate(0).map_err(|error| failed(&error))?;
        if exact_digest(&simulated) != self.exact {
            return Err(failed(&"the simulator computes other bits than the GPU"));
        }
        // Words that were not kept count as equal.
        let mut measured = simulated.clone();
        let kept: Vec<&mut Word> = measured.iter_mut().filter(|word| is_kept(word)).collect();
        let (ours, theirs) = (kept.len(), self.near.len());
        if ours != theirs {
            return Err(failed(&format!("{ours} words to compare, {theirs} recorded")));
        }
        kept.into_iter()
            .zip(&self.near)
            .for_each(|(word, &value)| word.value = value);
        match prepared.compare(&simulated, &measured).mismatch {
            Some(mismatch) => Err(failed(&mismatch)),
            None => Ok(()),
        }
    }
}

fn program_digest(program: &Program) -> String {
    digest(format!("{program:?}").bytes())
}

fn exact_digest(words: &[Word]) -> String {
    let exact = words.iter().filter(|word| word.slot.is_exact());
    digest(exact.flat_map(|word| word.slot.canonical(word.value).to_le_bytes()))
}

/// FNV-1a, 64 bits: to notice change, not to withstand an attack.
fn digest(bytes: impl IntoIterator<Item = u8>) -> String {
    let hash = bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_changes_is_noticed() {
        let has_bounds = |seed: &u64| {
            Prepared::new(Program::random(*seed), TensorSums::Exact)
                .unwrap()
                .slots
                .iter()
                .any(|s| !s.is_exact())
        };
        let seed = (0..).find(has_bounds).unwrap();
        let prepared = Prepared::new(Program::random(seed), TensorSums::Exact).unwrap();
        let answer = prepared.simulate(3).unwrap();
        let entry = Entry::of(&prepared, &answer);
        assert_eq!(entry.check(TensorSums::Exact), Ok(()));
        let mut other = entry.clone();
        other.exact = digest([1]);
        assert!(other.check(TensorSums::Exact).unwrap_err().contains("other bits"));
        let mut other = entry.clone();
        other.near[0] ^= 1 << 30;
        assert!(other.check(TensorSums::Exact).unwrap_err().contains("GPU"));
        let mut other = entry;
        other.program = digest([2]);
        assert!(other.check(TensorSums::Exact).unwrap_err().contains("record it anew"));
    }
}
