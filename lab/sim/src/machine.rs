//! [`Machine`]: a kernel and its launch, validated and decoded.

use std::sync::atomic::Ordering;

use flashcore_ir::proof::{LaunchRefusal, prove_buffers, prove_launch};
use flashcore_ir::{Arg, Kernel, Launch, ParamKind, Target, TensorMapRecipe};

use crate::clock::{ActorId, ActorKind, Actors};
use crate::error::SimError;
use crate::finding::Actor;
use crate::occupancy::occupancy;
use crate::program::Program;
use crate::registers::Constants;
use crate::report::SimOptions;
use crate::text::{self, Code};

/// Address of the first byte of shared memory. Not zero, so that a zero address is out of bounds.
pub(crate) const SHARED_BASE: u32 = 1024;

/// log2 of the address distance between the shared memories of a cluster's blocks.
pub(crate) const RANK_SHIFT: u32 = 24;

/// log2 of the address distance between two buffers.
const REGION_SHIFT: u32 = 40;

/// The memory behind a pointer parameter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Region {
    pub(crate) slot: usize,
    /// Address of the buffer's first byte.
    pub(crate) base: u64,
    pub(crate) bytes: u64,
    pub(crate) writable: bool,
    /// Whether the kernel may write the buffer through any parameter, and whether an instruction is there to do so.
    pub(crate) written: bool,
    pub(crate) surely_written: bool,
    /// Whether accesses go through shadow cells: the buffer is written or uninitialised.
    pub(crate) overlaid: bool,
    pub(crate) element: u32,
    pub(crate) name: String,
}

impl Region {
    /// Sets the region to a buffer of the launch, of elements of so many bytes. `check_launch` saw that there is one.
    fn bind_buffer(&mut self, launch: &Launch, slot: usize, element: u32, writable: bool) {
        let spec = &launch.buffers[slot];
        (self.slot, self.writable, self.bytes) = (slot, writable, spec.bytes);
        (self.base, self.element) = (base_of(slot, spec.align), element);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TensorMap {
    pub(crate) recipe: TensorMapRecipe,
    /// As the hardware reads it.
    pub(crate) encoded: TensorMapRecipe,
    pub(crate) bytes: u32,
}

pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) launch: &'a Launch,
    pub(crate) options: &'a SimOptions,
    pub(crate) program: Program<'a>,
    pub(crate) constants: Constants,
    pub(crate) args: Vec<u64>,
    /// By parameter; numbers have an empty region.
    pub(crate) regions: Vec<Region>,
    /// By slot: whether the initial contents count as uninitialised.
    pub(crate) uninitialized: Vec<bool>,
    /// Blocks per cluster.
    pub(crate) blocks: usize,
    /// Warps per cluster.
    pub(crate) warps: usize,
    pub(crate) actors: Actors,
    /// Threads of a block along x, y, z.
    pub(crate) block: [u32; 3],
    /// Whether the kernel is of another compiler.
    pub(crate) is_foreign: bool,
    /// Whether lanes that parted meet only where an instruction needs them together.
    pub(crate) is_late: bool,
    /// Bytes of local memory of a thread.
    pub(crate) local: u32,
    /// The bytes of the parameters of a kernel of another compiler.
    parameters: Vec<u8>,
    /// Registers per thread at launch, for kernels with `setmaxnreg`.
    pub(crate) launch_registers: u32,
    /// Shared memory per block.
    pub(crate) shared_bytes: u32,
    /// By ledger buffer: the number of its first mbarrier within the block.
    pub(crate) mbarriers: Vec<Option<u32>>,
    pub(crate) mbarriers_per_block: usize,
    /// By parameter.
    pub(crate) maps: Vec<Option<TensorMap>>,
    /// Whether clusters may communicate through global memory, and so run under one schedule.
    pub(crate) communicates: bool,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        kernel: &'a Kernel,
        code: &'a Code,
        launch: &'a Launch,
        buffer_bytes: &[u64],
        options: &'a SimOptions,
    ) -> Result<Machine<'a>, SimError> {
        let given: Vec<(u64, u64)> = buffer_bytes.iter().map(|&bytes| (0, bytes)).collect();
        check_launch(kernel, launch, &given)?;
        let extra = code.extra.as_ref();
        // Our kernels have whole warps; those of other compilers need not.
        if extra.is_none() && !kernel.threads().is_multiple_of(32) {
            let threads = kernel.threads();
            return Err(SimError::PartOfAWarp { threads });
        }
        // A schedule in four, and the second of two.
        let is_late = extra.is_some() && options.seed % 4 == 1;
        let program = text::lower(kernel, code, is_late)?;
        let (args, mut regions) = bind(kernel, launch);
        let written: Vec<usize> = regions.iter().filter(|r| r.writable).map(|r| r.slot).collect();
        let mut uninitialized: Vec<bool> = (0..launch.buffers.len())
            .map(|slot| launch.buffers[slot].name == "workspace" || options.uninitialized.contains(&slot))
            .collect();
        uninitialized.resize(launch.buffers.len() + launch.tables().count(), false);
        for region in &mut regions {
            region.written = written.contains(&region.slot);
            region.surely_written = extra.map_or(region.written, |extra| extra.written.get(region.slot) == Some(&true));
            region.overlaid = region.written || uninitialized.get(region.slot) == Some(&true);
        }
        // Reductions into memory that no block reads are deferred until all blocks have finished.
        let used = || regions.iter().zip(&program.used);
        let is_accessed =
            |slot: usize| used().any(|(region, used)| region.slot == slot && (used.loaded || used.stored));
        let communicates = program.uses_flags || used().any(|(region, used)| used.atomic && is_accessed(region.slot));
        let blocks = launch.cluster.iter().product::<u32>() as usize;
        let warps = blocks * kernel.threads().div_ceil(32) as usize;
        let mut count = 0;
        let mbarriers = kernel.ledger().buffers.iter().map(|buffer| {
            let first = count;
            count += if buffer.holds_barriers() { buffer.cols } else { 0 };
            buffer.holds_barriers().then_some(first)
        });
        let mbarriers: Vec<Option<u32>> = mbarriers.collect();
        let threads = 32 * warps as u32;
        let there = |used: bool, count: u32| if used { count } else { 0 };
        let actors = Actors {
            threads,
            copies: there(program.uses_cp_async, threads),
            stores: there(program.uses_bulk_stores, threads),
            // Those of a block that is no whole number of them never end their products.
            warpgroups: there(program.uses_products, threads.div_ceil(128)),
            mbarriers: count * blocks as u32,
            upstream: there(launch.programmatic, 1),
        };
        Ok(Machine {
            block: extra.map_or(launch.block, |extra| extra.block),
            is_foreign: extra.is_some(),
            is_late,
            local: extra.map_or(0, |extra| extra.local),
            parameters: extra.map_or(Vec::new(), |extra| extra.placed(|slot| regions[slot].base)),
            maps: bind_maps(kernel, launch)?,
            blocks,
            actors,
            mbarriers,
            mbarriers_per_block: count as usize,
            constants: Constants::constants(&program),
            kernel,
            launch,
            options,
            program,
            args,
            regions,
            uninitialized,
            warps,
            // Swizzles permute address bits, so each block's memory is aligned to the largest
            // swizzle span.
            shared_bytes: kernel.ledger().total_bytes().next_multiple_of(1024),
            launch_registers: {
                let blocks = kernel.min_blocks_per_sm().unwrap_or(1);
                Target::Sm90a
                    .limits()
                    .launch_registers(blocks.saturating_mul(kernel.threads()))
            },
            communicates,
        })
    }

    /// A number in the bytes of the parameters.
    pub(crate) fn parameter(&self, at: usize, bytes: usize) -> u64 {
        let mut raw = [0; 8];
        if let Some(there) = self.parameters.get(at..at + bytes) {
            raw[..bytes].copy_from_slice(there);
        }
        u64::from_le_bytes(raw)
    }

    /// The buffer that an address may be meant for.
    pub(crate) fn slot_of(&self, address: u64) -> Option<u16> {
        let slot = (address >> REGION_SHIFT).checked_sub(1)?;
        (slot < self.regions.len() as u64).then_some(slot as u16)
    }

    /// Bytes of a cell of global memory: the narrowest access, 2 at most.
    pub(crate) fn unit(&self) -> usize {
        if self.program.bytewise { 1 } else { 2 }
    }

    pub(crate) fn warps_per_block(&self) -> usize {
        self.warps / self.blocks
    }

    pub(crate) fn clusters(&self) -> u64 {
        self.launch.blocks() / self.blocks as u64
    }

    /// Clusters that the chip holds at once, with registers as [`SimReport::registers`] counts them.
    ///
    /// [`SimReport::registers`]: crate::SimReport::registers
    pub(crate) fn resident_clusters(&self) -> u64 {
        let (chip, kernel) = (self.options.chip, self.kernel);
        let limits = chip.target.limits();
        let most = limits
            .registers_per_thread
            .min(kernel.max_registers().unwrap_or(u32::MAX));
        let registers = self.program.registers().min(most);
        let shared = self.launch.dynamic_shared_bytes.max(kernel.ledger().total_bytes());
        let fit = occupancy(&limits, kernel.threads(), registers, shared).blocks_per_sm;
        // The compiler leaves registers for as many blocks as the kernel asks for.
        let fit = u64::from(fit.max(kernel.min_blocks_per_sm().unwrap_or(1)));
        (u64::from(chip.sms) * fit / self.blocks as u64).max(1)
    }

    /// Counts a cluster that has ended.
    pub(crate) fn note_progress(&self) {
        if let Some(progress) = &self.options.progress {
            progress.blocks.fetch_add(self.blocks as u64, Ordering::Relaxed);
        }
    }

    /// The cluster of a block, both linear; one past the last for a block outside the grid.
    pub(crate) fn cluster_of(&self, block: u64) -> u64 {
        if block >= self.launch.blocks() {
            return self.clusters();
        }
        let [grid, size] = [self.launch.grid, self.launch.cluster].map(|dims| dims.map(u64::from));
        let index = [block % grid[0], block / grid[0] % grid[1], block / (grid[0] * grid[1])];
        let [x, y, z] = std::array::from_fn(|i| index[i] / size[i]);
        (z * (grid[1] / size[1]) + y) * (grid[0] / size[0]) + x
    }

    /// Grid index of the block with a rank in a cluster.
    pub(crate) fn block_index(&self, cluster: u64, rank: usize) -> [u32; 3] {
        let size = self.launch.cluster;
        let at = |linear: u64, [x, y]: [u32; 2]| {
            let (x, y) = (u64::from(x), u64::from(y));
            [linear % x, linear / x % y, linear / (x * y)]
        };
        let grid = self.launch.grid;
        let clusters = at(cluster, [grid[0] / size[0], grid[1] / size[1]]);
        let within = at(rank as u64, [size[0], size[1]]);
        std::array::from_fn(|i| (clusters[i] * u64::from(size[i]) + within[i]) as u32)
    }

    /// An actor for findings.
    pub(crate) fn actor(&self, cluster: u64, warp: usize, lanes: u32) -> Actor {
        Actor {
            block: self.block_index(cluster, warp / self.warps_per_block()),
            warp: (warp % self.warps_per_block()) as u32,
            lanes,
        }
    }

    /// The thread behind an actor of global memory: a bulk store is its thread's.
    pub(crate) fn actor_of(&self, cluster: u64, actor: ActorId) -> Actor {
        let thread = match self.actors.who(actor) {
            ActorKind::Thread(thread) | ActorKind::Copy(thread) | ActorKind::Store(thread) => thread,
            ActorKind::Warpgroup(_) | ActorKind::Mbarrier(_) | ActorKind::Upstream => 0,
        };
        self.actor(cluster, thread as usize / 32, 1 << (thread % 32))
    }

    /// The name of a buffer in messages; tables follow the buffers.
    pub(crate) fn buffer_name(&self, slot: usize) -> &'static str {
        self.launch.buffers.get(slot).map_or("a table", |buffer| buffer.name)
    }

    /// The name of a block's mbarrier in messages.
    pub(crate) fn mbarrier_name(&self, number: usize) -> String {
        let mut buffers = self.kernel.ledger().buffers.iter().zip(&self.mbarriers);
        let name = buffers.find_map(|(buffer, first)| {
            let index = (number as u32).checked_sub((*first)?)?;
            (index < buffer.cols).then(|| format!("`{}`[{index}]", buffer.name))
        });
        name.unwrap_or_default()
    }

    /// Readers in the shadow: warps, the bulk stores of warps, the products of warpgroups, and the copies from one
    /// block to another, if there are any, together. Of several copies of the same bytes it knows the last.
    pub(crate) fn readers(&self) -> usize {
        self.send_reader() + usize::from(self.program.sends)
    }
    pub(crate) fn send_reader(&self) -> usize {
        self.product_reader(0) + self.actors.warpgroups as usize
    }
    /// The kind of a reader, with the number of its warp or warpgroup; of an mbarrier, those at which copies complete.
    pub(crate) fn reader(&self, reader: usize) -> ActorKind {
        let products = self.product_reader(0);
        match reader {
            _ if reader < self.warps => ActorKind::Thread(reader as u32),
            _ if reader < products => ActorKind::Store((reader - self.warps) as u32),
            _ if reader == self.send_reader() => ActorKind::Mbarrier(0),
            _ => ActorKind::Warpgroup((reader - products) as u32),
        }
    }
    pub(crate) fn store_reader(&self, warp: usize) -> usize {
        self.warps + warp
    }
    pub(crate) fn product_reader(&self, warpgroup: usize) -> usize {
        let stores = if self.actors.stores > 0 { self.warps } else { 0 };
        self.warps + stores + warpgroup
    }
}

/// Holds a launch against the limits of Hopper, the largest of all targets.
fn check_launch(kernel: &Kernel, launch: &Launch, buffers: &[(u64, u64)]) -> Result<(), LaunchRefusal> {
    // Whether more than 48 KB may be declared statically depends on the compiler.
    let matters = |refusal: &LaunchRefusal| match refusal {
        LaunchRefusal::StaticShared { total, opt_in, .. } => *total > u64::from(*opt_in),
        _ => true,
    };
    let mut refusals = prove_launch(kernel, launch, Target::Sm90a, None).into_iter();
    let refusal = refusals.find(matters);
    refusal
        .or_else(|| prove_buffers(&launch.buffers, buffers))
        .map_or(Ok(()), Err)
}

/// Address of a buffer. Aligned as declared and no better, so that wider accesses are found.
pub(crate) fn base_of(slot: usize, align: u32) -> u64 {
    ((slot as u64 + 1) << REGION_SHIFT) + u64::from(align.max(1))
}

/// Address of the tensor map in parameter `index`; only bulk copies may use it.
pub(crate) fn map_address(index: usize) -> u64 {
    (u64::MAX << 32) + (index as u64) * TENSOR_MAP_BYTES
}

/// Bytes of a tensor map.
pub(crate) const TENSOR_MAP_BYTES: u64 = 128;

/// The tensor maps, checked against the launch's buffers.
fn bind_maps(kernel: &Kernel, launch: &Launch) -> Result<Vec<Option<TensorMap>>, SimError> {
    let mut maps = Vec::new();
    for (param, arg) in kernel.params().iter().zip(&launch.args) {
        let (ParamKind::TensorMap { boxes, .. }, Arg::TensorMap(recipe)) = (param.kind, arg) else {
            maps.push(None);
            continue;
        };
        let name = || param.name.clone();
        recipe
            .check(&launch.buffers[recipe.slot])
            .map_err(|problem| SimError::TensorMap { name: name(), problem })?;
        maps.push(Some(TensorMap {
            recipe: recipe.clone(),
            encoded: recipe.encoded(),
            bytes: boxes.bytes(),
        }));
    }
    Ok(maps)
}

/// Argument bits, and the memory behind each pointer and tensor map, of a launch whose arguments are of the kinds of
/// the parameters.
fn bind(kernel: &Kernel, launch: &Launch) -> (Vec<u64>, Vec<Region>) {
    let (mut args, mut regions) = (Vec::new(), Vec::new());
    // Tables follow the buffers, in the order of the arguments.
    let mut table_slots = launch.buffers.len()..;
    for (index, (param, arg)) in kernel.params().iter().zip(&launch.args).enumerate() {
        let mut region = Region {
            slot: usize::MAX,
            element: 4,
            name: param.name.clone(),
            ..Region::default()
        };
        let (element, writable) = match param.kind {
            ParamKind::Pointer { element, writable } => (element.bytes(), writable),
            ParamKind::TensorMap { boxes, writable } => (boxes.element.bytes(), writable),
            ParamKind::Value(_) => (4, false),
        };
        let bits = match arg {
            Arg::Buffer { slot, byte_offset } => {
                region.bind_buffer(launch, *slot, element, writable);
                region.base.wrapping_add(*byte_offset)
            }
            Arg::Table(table) => {
                region.slot = table_slots.next().unwrap_or(usize::MAX);
                region.base = base_of(region.slot, 16);
                region.bytes = 4 * table.len() as u64;
                region.element = element;
                region.base
            }
            Arg::TensorMap(recipe) => {
                region.bind_buffer(launch, recipe.slot, element, writable);
                map_address(index)
            }
            Arg::U32(v) => u64::from(*v),
            Arg::I32(v) => u64::from(*v as u32),
            Arg::U64(v) => *v,
            Arg::F32(v) => u64::from(v.to_bits()),
        };
        args.push(bits);
        regions.push(region);
    }
    (args, regions)
}
