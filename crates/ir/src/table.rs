//! [`Table`]: numbers that come with a launch.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Numbers worked out on the host that a kernel reads, such as which block computes which tiles.
/// Cheap to clone; it is hashed once, when it is made, so that it can be looked up at every launch.
///
/// ```
/// use flashcore_ir::Table;
/// let table = Table::new(vec![3, 1, 2]);
/// assert_eq!((table.len(), table[0]), (3, 3));
/// assert_eq!(table, Table::new(vec![3, 1, 2]));
/// ```
#[derive(Clone)]
pub struct Table {
    words: Arc<[u32]>,
    hash: u64,
}

impl Table {
    /// A table of these numbers.
    pub fn new(words: impl Into<Arc<[u32]>>) -> Table {
        let words = words.into();
        // FxHash, of two words at a time, in eight that do not wait for each other: a caller waits, and equal hashes
        // are not taken for equal numbers.
        let mix = |hash: u64, bits: u64| (hash.rotate_left(5) ^ bits).wrapping_mul(0x517c_c1b7_2722_0a95);
        let mut hashes = [words.len() as u64; 8];
        let mut rows = words.chunks_exact(16);
        for row in &mut rows {
            for (at, hash) in hashes.iter_mut().enumerate() {
                *hash = mix(*hash, u64::from(row[2 * at]) << 32 | u64::from(row[2 * at + 1]));
            }
        }
        for (hash, pair) in hashes.iter_mut().zip(rows.remainder().chunks(2)) {
            let bits = pair.iter().fold(0, |bits, &word| bits << 32 | u64::from(word));
            *hash = mix(*hash, bits);
        }
        let hash = hashes.into_iter().fold(0, mix);
        Table { words, hash }
    }
}

impl Deref for Table {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.words
    }
}

impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        Arc::ptr_eq(&self.words, &other.words) || self.hash == other.hash && self.words == other.words
    }
}

impl Eq for Table {}

impl Hash for Table {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// The numbers: what a launch is told apart by where it is written down.
impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.words.fmt(f)
    }
}

/// Tables are long and made by rule: how long says enough.
impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{} numbers", self.words.len()))
    }
}
