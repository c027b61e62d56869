//! Where the device memory of a context comes from and goes.

use std::sync::{Mutex, OnceLock};

use crate::allocation::Uses;
use crate::context::{Home, lock};
use crate::raw::{CallResult, Driver, Handle};
use crate::sys::{CUdevice, CUdeviceptr, CUstream, CUstream_st, device_attribute, stream_flag};

#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub address: CUdeviceptr,
    /// Whether it is of a memory pool.
    pooled: bool,
}

/// Where the memory of a context comes from and goes.
pub(crate) struct Heap {
    home: Home,
    device: CUdevice,
    /// Where the device has pools: the stream that allocates, which never waits for long, and the one that frees.
    pools: OnceLock<Option<[Handle<CUstream_st>; 2]>>,
    /// Memory that a stream used which was captured when it was to be freed: nothing can wait for such a stream.
    waiting: Mutex<Vec<(Block, Uses)>>,
}

impl Heap {
    pub(crate) fn new(home: Home, device: CUdevice) -> Heap {
        Heap {
            home,
            device,
            pools: OnceLock::new(),
            waiting: Mutex::default(),
        }
    }

    fn pools(&self, driver: &Driver) -> Option<[CUstream; 2]> {
        let make = || {
            let attribute = device_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
            let stream = || driver.cuStreamCreate(stream_flag::CU_STREAM_NON_BLOCKING);
            match driver.cuDeviceGetAttribute(attribute, self.device) {
                Ok(1..) => Some([Handle(stream().ok()?), Handle(stream().ok()?)]),
                _ => None,
            }
        };
        self.pools
            .get_or_init(make)
            .map(|streams| streams.map(|stream| stream.0))
    }

    /// So many bytes, at a multiple of 256.
    pub(crate) fn allocate(&self, bytes: usize) -> CallResult<Block> {
        self.home.call(|driver| {
            let Some([allocating, freeing]) = self.pools(driver) else {
                let address = driver.cuMemAlloc_v2(bytes)?;
                return Ok(Block { address, pooled: false });
            };
            let allocated = driver.cuMemAllocAsync(bytes, allocating).or_else(|_| {
                // What is still to be freed may be enough.
                driver.cuStreamSynchronize(freeing)?;
                driver.cuMemAllocAsync(bytes, allocating)
            });
            let block = Block {
                address: allocated?,
                pooled: true,
            };
            // Then it is there for all streams.
            driver.cuStreamSynchronize(allocating)?;
            Ok(block)
        })
    }

    /// Frees a block after its uses.
    pub(crate) fn free(&self, block: Block, uses: Uses) {
        // A lost context has freed everything already.
        let freed = self.home.call(|driver| self.try_free(driver, block, &uses));
        if let Ok(false) = freed {
            lock(&self.waiting).push((block, uses));
        }
    }

    /// `false`: a stream that used it is captured now.
    fn try_free(&self, driver: &'static Driver, block: Block, uses: &Uses) -> CallResult<bool> {
        let freeing = match (block.pooled, self.pools(driver)) {
            (true, Some([_, freeing])) => Some(freeing),
            _ => None,
        };
        if !uses.end_before(driver, freeing)? {
            return Ok(false);
        }
        match freeing {
            Some(freeing) => driver.cuMemFreeAsync(block.address, freeing)?,
            None => driver.cuMemFree_v2(block.address)?,
        }
        Ok(true)
    }

    /// Tries again what waited for the end of captures.
    pub(crate) fn free_what_waits(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for (block, uses) in waiting {
            self.free(block, uses);
        }
    }

    /// Frees what is left, before the context goes: no work can be left that its streams have.
    pub(crate) fn close(&self) {
        self.free_what_waits();
        let left = std::mem::take(&mut *lock(&self.waiting));
        let streams = self.pools.get().copied().flatten();
        let _ = self.home.call(|driver| {
            left.iter()
                .try_for_each(|(block, _)| driver.cuMemFree_v2(block.address))?;
            streams
                .iter()
                .flatten()
                .try_for_each(|stream| driver.cuStreamDestroy_v2(stream.0))
        });
    }
}
