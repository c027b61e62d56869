//! Tables of launches ([`flashcore_ir::Table`]) on the device: one copy for all launches that read
//! the same numbers.
//!
//! A table is held by what was prepared with it ([`PreparedLaunch`](crate::PreparedLaunch),
//! [`HeldTables`]) and by graphs that captured it. Tables without holders stay, as a shape may come
//! back, up to [`MOST_UNUSED_BYTES`] together: then those used longest ago go, no more than need be,
//! so that the host's memory is used again and no call frees that of hundreds. Tables share slabs,
//! which are freed with the last of their tables, after the work that reads them.
//! A stream that another library captures gives no hold on its graph, so tables that go into it
//! stay as long as the context.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use flashcore_ir::Table;

use crate::allocation::Allocation;
use crate::context::{Context, Home, lock};
use crate::error::{CallError, CudaError};
use crate::heap::Heap;
use crate::raw::Handle;
use crate::sys::{CUdeviceptr, CUstream_st, stream_flag};

/// Bytes of tables without holders that stay. One of 4,096 tiles takes 128 KiB.
const MOST_UNUSED_BYTES: usize = 16 << 20;

/// Bytes that tables are allocated in: a few hundred of them for one call that may take long.
const SLAB_BYTES: usize = 16 << 20;

/// Tables begin at multiples of so many bytes, as allocations do.
const ALIGNMENT: usize = 256;

/// A table on the device. Its memory is freed with the last table of its slab.
pub(crate) struct DeviceTable {
    address: CUdeviceptr,
    /// Device memory of tables, each of which takes bytes that none had before it.
    slab: Arc<Allocation>,
}

impl DeviceTable {
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn memory(&self) -> &Arc<Allocation> {
        &self.slab
    }
}

/// Copies tables to the device, with a stream that waits for no other work.
pub(crate) struct Uploader {
    stream: Handle<CUstream_st>,
    home: Home,
    heap: Arc<Heap>,
    /// The slab that is being filled, and what of it is free.
    slab: Option<(Arc<Allocation>, Range<usize>)>,
}

impl Uploader {
    pub(crate) fn new(home: Home, heap: Arc<Heap>) -> Result<Uploader, CallError> {
        let stream = home.call(|driver| driver.cuStreamCreateWithPriority(stream_flag::CU_STREAM_NON_BLOCKING, 0))?;
        let (stream, slab) = (Handle(stream), None);
        Ok(Uploader {
            stream,
            home,
            heap,
            slab,
        })
    }

    /// Returns when the table is there.
    fn upload(&mut self, table: &Table) -> Result<DeviceTable, CallError> {
        let bytes: &[u8] = bytemuck::cast_slice(table);
        let home = self.home;
        home.call(|driver| {
            let (slab, free) = match &mut self.slab {
                Some((slab, free)) if free.len() >= bytes.len() => (slab, free),
                full => {
                    let most = SLAB_BYTES.max(bytes.len());
                    let (slab, free) = full.insert((Allocation::new(&self.heap, most)?, 0..most));
                    (slab, free)
                }
            };
            let address = slab.address() + free.start as u64;
            driver.copy_to_device(address, bytes, self.stream.0)?;
            free.start = (free.start + bytes.len()).next_multiple_of(ALIGNMENT).min(free.end);
            Ok(DeviceTable {
                address,
                slab: slab.clone(),
            })
        })
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        // A lost context has nothing left to destroy.
        let _ = self.home.call(|driver| driver.cuStreamDestroy_v2(self.stream.0));
    }
}

impl fmt::Debug for DeviceTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTable(at {:#x})", self.address)
    }
}

/// Keeps the tables of launches on the device while it lives, so that later calls find them there,
/// also while a stream is captured. See [`Function::hold_tables`](crate::Function::hold_tables).
#[derive(Debug, Clone)]
pub struct HeldTables {
    // Before the context: freeing needs it.
    _tables: Vec<Arc<DeviceTable>>,
    _context: Context,
}

impl HeldTables {
    pub(crate) fn new(context: &Context, tables: Vec<Arc<DeviceTable>>) -> HeldTables {
        HeldTables {
            _tables: tables,
            _context: context.clone(),
        }
    }
}

pub(crate) type TableCache = Cache<DeviceTable>;

impl TableCache {
    /// A table on the device, copied there if it is not yet.
    pub(crate) fn get(&self, context: &Context, table: &Table) -> Result<Arc<DeviceTable>, CudaError> {
        self.get_or_upload(table, || context.with_uploader(|uploader| uploader.upload(table)))
    }
}

/// Uploaded tables.
pub(crate) struct Cache<T> {
    tables: Mutex<Tables<T>>,
    /// Tables whose addresses another library's graph may hold.
    for_good: Mutex<Vec<Arc<T>>>,
}

/// Tables by what is in them, each with the number of its last use, and how many uses there were.
struct Tables<T> {
    by_table: HashMap<Table, (Arc<T>, u64)>,
    uses: u64,
}

impl<T> Tables<T> {
    /// Those without holders.
    fn unused(&self) -> impl Iterator<Item = (&Table, u64)> {
        let unused = self
            .by_table
            .iter()
            .filter(|(_, (held, _))| Arc::strong_count(held) == 1);
        unused.map(|(table, (_, last_use))| (table, *last_use))
    }
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        let (by_table, uses) = (HashMap::new(), 0);
        Cache {
            tables: Mutex::new(Tables { by_table, uses }),
            for_good: Mutex::default(),
        }
    }
}

impl<T> Cache<T> {
    /// The table on the device, uploaded if it is not yet there. Tables without holders that exceed
    /// the limit are then freed, those used longest ago.
    fn get_or_upload<E>(&self, table: &Table, upload: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let find = |tables: &mut Tables<T>| {
            tables.uses += 1;
            let (found, last_use) = tables.by_table.get_mut(table)?;
            *last_use = tables.uses;
            Some(found.clone())
        };
        if let Some(found) = find(&mut lock(&self.tables)) {
            return Ok(found);
        }
        // Others that look for their tables do not wait for this one.
        let uploaded = Arc::new(upload()?);
        let mut tables = lock(&self.tables);
        if let Some(found) = find(&mut tables) {
            return Ok(found); // another thread was faster
        }
        let this_use = tables.uses;
        tables.by_table.insert(table.clone(), (uploaded.clone(), this_use));
        // Only under this lock can a table without holders get one.
        let mut bytes: usize = tables.unused().map(|(table, _)| size_of_val(&**table)).sum();
        let mut gone = Vec::new();
        while bytes > MOST_UNUSED_BYTES
            && let Some((oldest, _)) = tables.unused().min_by_key(|(_, last_use)| *last_use)
        {
            let oldest = oldest.clone();
            bytes -= size_of_val(&*oldest);
            gone.push(tables.by_table.remove_entry(&oldest));
        }
        drop(tables);
        drop(gone);
        Ok(uploaded)
    }

    /// Keeps tables until [`clear`](Self::clear).
    pub(crate) fn keep_for_good(&self, tables: &[Arc<T>]) {
        let mut for_good = lock(&self.for_good);
        for table in tables {
            if !for_good.iter().any(|kept| Arc::ptr_eq(kept, table)) {
                for_good.push(table.clone());
            }
        }
    }

    /// Drops all tables without other holders.
    pub(crate) fn clear(&self) {
        lock(&self.for_good).clear();
        lock(&self.tables).by_table.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Stands for a table on a device: counts those that are there.
    struct Counted<'a>(&'a AtomicUsize);

    impl Drop for Counted<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The `n`th table of a mebibyte.
    fn table(n: u32) -> Table {
        Table::new(vec![n; (1 << 20) / 4])
    }

    fn get<'a>(cache: &Cache<Counted<'a>>, there: &'a AtomicUsize, n: u32) -> Arc<Counted<'a>> {
        let upload = || {
            there.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Infallible>(Counted(there))
        };
        match cache.get_or_upload(&table(n), upload) {
            Ok(found) => found,
            Err(never) => match never {},
        }
    }

    #[test]
    fn equal_tables_are_there_once() {
        let there = AtomicUsize::new(0);
        let cache = Cache::default();
        let (first, again) = (get(&cache, &there, 1), get(&cache, &there, 1));
        assert!(Arc::ptr_eq(&first, &again));
        get(&cache, &there, 2);
        assert_eq!(there.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_changing_lengths_leave_behind_is_bounded() {
        let there = AtomicUsize::new(0);
        let cache = Cache::default();
        let mut most = 0;
        for n in 0..100 {
            get(&cache, &there, n);
            most = most.max(there.load(Ordering::Relaxed));
        }
        // Sixteen that no launch holds, the one that is too many, and the one that is asked for.
        assert!(most <= 18, "{most}");
        assert!(lock(&cache.tables).by_table.len() <= 17);
    }

    #[test]
    fn those_used_longest_ago_go_one_by_one() {
        let there = AtomicUsize::new(0);
        let cache = Cache::default();
        // The first is used again; the second has to go for the last.
        for n in (0..16).chain([0, 16, 17]) {
            get(&cache, &there, n);
        }
        assert_eq!(there.load(Ordering::Relaxed), 17);
        let is_there = |n| lock(&cache.tables).by_table.contains_key(&table(n));
        let gone: Vec<u32> = (0..18).filter(|&n| !is_there(n)).collect();
        assert_eq!(gone, [1]);
    }

    #[test]
    fn tables_that_are_held_stay() {
        let there = AtomicUsize::new(0);
        let cache = Cache::default();
        let held: Vec<_> = (0..40).map(|n| get(&cache, &there, n)).collect();
        cache.keep_for_good(&held[..2]);
        cache.keep_for_good(&held[..2]);
        assert_eq!(lock(&cache.for_good).len(), 2);
        for n in 1000..1100 {
            get(&cache, &there, n);
        }
        let uploaded = there.load(Ordering::Relaxed);
        for (n, held) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(held, &get(&cache, &there, n as u32)));
        }
        assert_eq!(there.load(Ordering::Relaxed), uploaded, "none was uploaded again");
        drop(held);
        for n in 2000..2100 {
            get(&cache, &there, n);
        }
        assert!(
            there.load(Ordering::Relaxed) <= 2 + 18,
            "let go, they go, but for those kept for good"
        );
        cache.clear();
        assert_eq!(there.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_failed_upload_leaves_nothing() {
        let cache = Cache::<()>::default();
        assert_eq!(
            cache.get_or_upload(&table(1), || Err("no room")).map(drop),
            Err("no room")
        );
        assert!(lock(&cache.tables).by_table.is_empty());
    }
}
