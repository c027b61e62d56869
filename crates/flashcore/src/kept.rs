//! [`Kept`]: what was made for keys, found by many threads at a time.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use flashcore_problem::AnyTask;
use flashcore_problem::task::sealed::Kind;

use crate::prepared::OwnedTask;

/// A value, or that it is being made.
#[derive(Debug)]
struct Entry<V> {
    value: OnceLock<V>,
    /// Who makes it has this.
    making: Mutex<()>,
    /// When it was used last, in uses of all values.
    used: AtomicU64,
}

/// The values used last, at most a fixed number of them.
///
/// A value that is there is found under a lock for reading alone. One that is not is made once, while threads that need
/// the same one wait for it and all others go on.
#[derive(Debug)]
pub(crate) struct Kept<K, V> {
    most: usize,
    entries: RwLock<HashMap<K, Arc<Entry<V>>>>,
    uses: AtomicU64,
}

impl<K: Hash + Eq, V: Clone> Kept<K, V> {
    /// None yet, and at most so many, at least 1.
    pub(crate) fn new(most: usize) -> Kept<K, V> {
        Kept {
            most: most.max(1),
            entries: RwLock::default(),
            uses: AtomicU64::new(0),
        }
    }

    /// The value of a key, if it is there.
    pub(crate) fn get<Q>(&self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(key)?;
        entry
            .used
            .store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        entry.value.get().cloned()
    }

    /// The value of a key, made if there is none. An error is not kept.
    pub(crate) fn get_or_make<Q, E>(
        &self,
        key: &Q,
        owned: impl FnOnce() -> K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<V, E>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let found = self
            .entries
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned();
        let entry = found.unwrap_or_else(|| self.insert(owned()));
        entry
            .used
            .store(self.uses.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(value) = entry.value.get() {
            return Ok(value.clone());
        }
        let _making = entry.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = entry.value.get() {
            return Ok(value.clone());
        }
        let value = make().inspect_err(|_| self.forget(key, &entry))?;
        Ok(entry.value.get_or_init(|| value).clone())
    }

    /// Takes out an entry that has no value: what is refused takes no plan's place.
    fn forget<Q>(&self, key: &Q, entry: &Arc<Entry<V>>)
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.get(key).is_some_and(|kept| Arc::ptr_eq(kept, entry)) {
            entries.remove(key);
        }
    }

    /// An entry for a key, in the place of the one used least recently where there are too many.
    fn insert(&self, key: K) -> Arc<Entry<V>> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            Arc::new(Entry {
                value: OnceLock::new(),
                making: Mutex::new(()),
                used: AtomicU64::new(self.uses.load(Ordering::Relaxed)),
            })
        };
        let entry = entries.entry(key).or_insert_with(new).clone();
        let mut forgotten = None;
        if entries.len() > self.most {
            let used = |entry: &Entry<V>| entry.used.load(Ordering::Relaxed);
            // Not the new one, of whose key no copy is had.
            let others = entries.values().filter(|other| !Arc::ptr_eq(other, &entry));
            let oldest = others.min_by_key(|other| used(other)).cloned();
            entries.retain(|_, other| !oldest.as_ref().is_some_and(|oldest| Arc::ptr_eq(oldest, other)));
            forgotten = oldest;
        }
        drop(entries);
        drop(forgotten); // which may take long
        entry
    }
}

/// What plans are kept by: a task, and what its tensors are aligned to, in bytes.
#[derive(Debug)]
pub(crate) struct Key(pub(crate) OwnedTask, pub(crate) u32);

/// A key, owned or not.
pub(crate) trait AnyKey {
    fn parts(&self) -> (AnyTask<'_>, u32);
}

impl AnyKey for Key {
    fn parts(&self) -> (AnyTask<'_>, u32) {
        (self.0.kind(), self.1)
    }
}

impl AnyKey for (AnyTask<'_>, u32) {
    fn parts(&self) -> (AnyTask<'_>, u32) {
        *self
    }
}

impl PartialEq for dyn AnyKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn AnyKey + '_ {}

impl Hash for dyn AnyKey + '_ {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl<'a> Borrow<dyn AnyKey + 'a> for Key {
    fn borrow(&self) -> &(dyn AnyKey + 'a) {
        self
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    #[test]
    fn the_least_recently_used_goes() {
        let (kept, mut made) = (Kept::new(2), Vec::new());
        for key in [1, 2, 1, 3, 1, 2] {
            let make = || {
                made.push(key);
                Ok::<i32, ()>(key * key)
            };
            assert_eq!(kept.get_or_make(&key, || key, make), Ok(key * key));
        }
        assert_eq!(made, [1, 2, 3, 2]);
    }

    #[test]
    fn errors_are_not_kept() {
        let kept = Kept::new(4);
        assert_eq!(kept.get_or_make(&1, || 1, || Err("no")), Err::<i32, _>("no"));
        assert_eq!(kept.entries.read().unwrap().len(), 0);
        assert_eq!(kept.get_or_make(&1, || 1, || Ok::<_, &str>(5)), Ok(5));
    }

    /// The maker of a new value waits until other threads have theirs: it would wait for good if they waited for it.
    #[test]
    fn a_new_value_stalls_only_those_that_need_it() {
        let kept = Kept::new(8);
        let fixed = |n: i32| kept.get_or_make(&n, || n, || Ok::<i32, ()>(n)).unwrap();
        fixed(1);
        let (begun, wait_for_begin) = channel();
        let (others_done, wait_for_others) = channel();
        thread::scope(|scope| {
            let kept = &kept;
            scope.spawn(move || {
                let make = || {
                    begun.send(()).unwrap();
                    wait_for_others.recv().unwrap();
                    Ok::<i32, ()>(20)
                };
                assert_eq!(kept.get_or_make(&2, || 2, make), Ok(20));
            });
            wait_for_begin.recv().unwrap();
            // A value that is there, and one that is new.
            assert_eq!((fixed(1), fixed(3)), (1, 3));
            let same = scope.spawn(|| fixed(2)); // made by the other thread alone
            others_done.send(()).unwrap();
            assert_eq!(same.join().unwrap(), 20);
        });
    }
}
