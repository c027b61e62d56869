//! Tables of launches ([`flashcore_ir::Table`]) on the device: one copy for all launches that read
//! the same numbers.
//!
//! A table is held by what was prepared with it ([`PreparedLaunch`](crate::PreparedLaunch),
//! [`HeldTables`]) and by graphs that captured it, and goes with the last of them. Tables share slabs,
//! which are freed with the last of their tables, after the work that reads them.
//! A stream that another library captures gives no hold on its graph, so tables that go into it
//! stay as long as the context.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use flashcore_ir::Table;

use crate::allocation::Allocation;
use crate::context::{Context, Home, lock};
use crate::error::{CallError, CudaError};
use crate::heap::Heap;
use crate::stream::StreamHandle;
use crate::sys::CUdeviceptr;

/// Bytes that tables are allocated in: a few hundred of them for one call that may take long.
const SLAB_BYTES: usize = 16 << 20;

/// Tables begin at multiples of so many bytes, as allocations do.
const ALIGNMENT: usize = 256;

/// A table on the device. Its memory is freed with the last table of its slab.
#[derive(Debug)]
pub(crate) struct DeviceTable {
    pub(crate) address: CUdeviceptr,
    /// Device memory of tables, each of which takes bytes that none had before it.
    pub(crate) slab: Arc<Allocation>,
}

/// Copies tables to the device, with a stream that waits for no other work.
pub(crate) struct Uploader {
    stream: StreamHandle,
    heap: Arc<Heap>,
    /// The slab that is being filled, and what of it is free.
    slab: Option<(Arc<Allocation>, Range<usize>)>,
}

impl Uploader {
    pub(crate) fn new(home: Home, heap: Arc<Heap>) -> Result<Uploader, CallError> {
        let stream = home.call(|driver| StreamHandle::new(driver, home))?;
        let slab = None;
        Ok(Uploader { stream, heap, slab })
    }

    /// Returns when the table is there.
    fn upload(&mut self, table: &Table) -> Result<DeviceTable, CallError> {
        let bytes: &[u8] = bytemuck::cast_slice(table);
        let home = self.stream.home;
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
            driver.copy_to_device(address, bytes, self.stream.raw())?;
            free.start = (free.start + bytes.len()).next_multiple_of(ALIGNMENT).min(free.end);
            Ok(DeviceTable {
                address,
                slab: slab.clone(),
            })
        })
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

/// Tables that are on the device.
#[derive(Default)]
pub(crate) struct TableCache {
    held: Mutex<HashMap<Table, Weak<DeviceTable>>>,
    /// Tables whose addresses another library's graph may hold.
    for_good: Mutex<Vec<Arc<DeviceTable>>>,
}

impl TableCache {
    /// A table on the device, copied there if nothing holds it yet.
    pub(crate) fn get(&self, context: &Context, table: &Table) -> Result<Arc<DeviceTable>, CudaError> {
        let find = |held: &HashMap<Table, Weak<DeviceTable>>| held.get(table).and_then(Weak::upgrade);
        if let Some(found) = find(&lock(&self.held)) {
            return Ok(found);
        }
        // Others that look for their tables do not wait for this one.
        let uploaded = Arc::new(context.with_uploader(|uploader| uploader.upload(table))?);
        let mut held = lock(&self.held);
        if let Some(found) = find(&held) {
            return Ok(found); // another thread was faster
        }
        // So that the host's memory of those that are gone is used again.
        held.retain(|_, table| table.strong_count() > 0);
        held.insert(table.clone(), Arc::downgrade(&uploaded));
        Ok(uploaded)
    }

    /// Keeps tables as long as the context.
    pub(crate) fn keep_for_good(&self, tables: &[Arc<DeviceTable>]) {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The `n`th table of a mebibyte.
    fn table(n: u32) -> Table {
        Table::new(vec![n; (1 << 20) / 4])
    }

    #[test]
    fn a_table_is_there_once_while_it_is_held() {
        let context = Context::recording();
        let get = |n| context.tables().get(&context, &table(n)).unwrap();
        let (first, again, other) = (get(1), get(1), get(2));
        assert!(Arc::ptr_eq(&first, &again) && first.address != other.address);
        let gone = Arc::downgrade(&other);
        drop(other);
        assert!(gone.upgrade().is_none());
        for n in 3..50 {
            get(n);
        }
        let numbers = lock(&context.tables().held).len();
        assert_eq!(numbers, 2, "the one that is held, and the last");
    }

    #[test]
    fn the_memory_of_tables_goes_with_them() {
        let context = Context::recording();
        let in_slab = SLAB_BYTES as u32 / (1 << 20);
        let slab = |n| Arc::downgrade(&context.tables().get(&context, &table(n)).unwrap().slab);
        let slabs: Vec<_> = (0..3 * in_slab).map(slab).collect();
        let there = slabs.iter().filter(|slab| slab.strong_count() > 0).count();
        assert_eq!(there, in_slab as usize, "those of the slab that is being filled");
    }

    #[test]
    fn what_another_librarys_graph_may_hold_stays() {
        let context = Context::recording();
        let kept = context.tables().get(&context, &table(1)).unwrap();
        let (address, tables) = (kept.address, [kept.clone(), kept]);
        context.tables().keep_for_good(&tables);
        drop(tables);
        assert_eq!(lock(&context.tables().for_good).len(), 1);
        assert_eq!(context.tables().get(&context, &table(1)).unwrap().address, address);
        context.tables().clear();
        assert!(lock(&context.tables().held)[&table(1)].upgrade().is_none());
    }
}
