//! [`Recent`]: a bounded cache that forgets what was used least recently.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The values used last, at most a fixed number of them. A search compares keys one by one: for tens of values that are
/// worth keeping.
#[derive(Debug)]
pub struct Recent<K, V> {
    most: usize,
    /// The entries from the least to the most recently used.
    entries: Mutex<Vec<(K, V)>>,
}

impl<K, V: Clone> Recent<K, V> {
    /// An empty cache of at most `most` values, at least 1.
    pub fn new(most: usize) -> Recent<K, V> {
        let entries = Mutex::default();
        Recent { most, entries }
    }

    /// The value whose key `is` the wanted one. If there is none it is made, and takes the place of the one that was
    /// used least recently. No lock is held meanwhile: threads that miss the same value at a time make one each.
    ///
    /// ```
    /// use flashcore_kernels::Recent;
    /// let squares = Recent::new(2);
    /// let mut made = Vec::new();
    /// for n in [1, 2, 1, 3, 1, 2] {
    ///     let make = || Ok::<_, ()>((n, { made.push(n); n * n }));
    ///     assert_eq!(squares.get_or_make(|key| *key == n, make), Ok(n * n));
    /// }
    /// assert_eq!(made, [1, 2, 3, 2]);
    /// ```
    ///
    /// # Errors
    /// The error of `make`, which is not kept.
    pub fn get_or_make<E>(&self, is: impl Fn(&K) -> bool, make: impl FnOnce() -> Result<(K, V), E>) -> Result<V, E> {
        let search = |entries: &mut [(K, V)]| {
            let at = entries.iter().rposition(|(key, _)| is(key))?;
            entries[at..].rotate_left(1);
            entries.last().map(|(_, value)| value.clone())
        };
        if let Some(found) = search(&mut self.lock()) {
            return Ok(found);
        }
        let (key, value) = make()?;
        let mut entries = self.lock();
        let forgotten = (entries.len() >= self.most.max(1)).then(|| entries.remove(0));
        entries.push((key, value.clone()));
        // Dropping it may take long.
        drop(entries);
        drop(forgotten);
        Ok(value)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(K, V)>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
