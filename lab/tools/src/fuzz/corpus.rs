//! A GPU's recorded results of some programs, with which a test compares the simulator where there
//! is no GPU.

use serde::{Deserialize, Serialize};

use flashcore_sim::TensorSums;

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

/// Whether a word of a result is recorded itself.
pub fn is_kept(word: &Word) -> bool {
    !word.slot.is_exact() && word.thread % EVERY == word.place % EVERY
}

impl Entry {
    /// Records a result.
    pub fn of(prepared: &Prepared, words: &[Word]) -> Entry {
        let exact = words.iter().filter(|word| word.slot.is_exact());
        let near = words.iter().filter(|word| is_kept(word));
        Entry {
            seed: prepared.program.seed,
            program: digest(format!("{:?}", prepared.program).bytes()),
            exact: digest(exact.flat_map(|word| word.slot.canonical(word.value).to_le_bytes())),
            near: near.map(|word| word.value).collect(),
        }
    }
}

/// FNV-1a, 64 bits: to notice change, not to withstand an attack.
fn digest(bytes: impl IntoIterator<Item = u8>) -> String {
    let hash = bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
