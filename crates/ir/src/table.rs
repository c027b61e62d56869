//! [`Table`]: numbers that come with a launch.

use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use rustc_hash::FxHasher;
use serde::{Serialize, Serializer};

/// About how many numbers of a long table are hashed.
const HASHED: usize = 256;

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
        // A caller waits, and tables with equal hashes are still compared. The step is odd, so that it takes each of
        // the eight words of a work item in turn.
        let step = (words.len() / HASHED) | 1;
        let mut hasher = FxHasher::default();
        hasher.write_usize(words.len());
        words.iter().step_by(step).for_each(|&word| hasher.write_u32(word));
        let hash = hasher.finish();
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

// The numbers: what a launch is told apart by where it is written down.
impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.words.fmt(f)
    }
}

/// Tables are long and made by rule: how long says enough.
impl Serialize for Table {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{} numbers", self.words.len()))
    }
}
