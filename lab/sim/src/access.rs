//! Cold steps: scalars that the kernel language has not, exchanges, barriers, and accesses whose object only the
//! address says.

use flashcore_ir::inst::{Object, ShflMode, Space};
use flashcore_ir::types::{Reg, RegClass};
use flashcore_ir::{BufferId, Operand};

use crate::cluster::Cluster;
use crate::exchange;
use crate::finding::FindingKind;
use crate::interpreter::Stop;
use crate::machine::Machine;
use crate::mbarrier::Arrival;
use crate::program::{self, At};
use crate::record::Details;
use crate::registers::lanes;
use crate::resident::changes_the_block;
use crate::text::cold::{Access, CLUSTER_WINDOW, Cold, Join, Mbarrier, Memory, Vote, What};
use crate::warp::Warp;

/// The bits of an operand in each lane.
pub(crate) fn bits(machine: &Machine<'_>, warp: &Warp, operand: Operand) -> [u64; 32] {
    match operand {
        Operand::Imm(bits) => [bits; 32],
        Operand::Reg(reg) => {
            let row = machine.program.rows.row(reg);
            match reg.class {
                RegClass::Pred => std::array::from_fn(|lane| u64::from(warp.registers.pred(row) >> lane & 1)),
                RegClass::B64 => *warp.registers.own(row),
                RegClass::B16 | RegClass::B32 | RegClass::F32 => warp.registers.own::<u32>(row).map(u64::from),
            }
        }
    }
}

/// The lane that one of `shfl.sync` reads from, which is itself where the other does not exist, and whether it does.
pub(crate) fn source_of(mode: ShflMode, lane: usize, by: u64, clamps: u64) -> (usize, bool) {
    let (by, clamp, segment) = (by as i64 & 31, clamps as i64 & 31, clamps as i64 >> 8 & 31);
    let me = lane as i64;
    let most = me & segment | clamp & !segment & 31;
    let (source, is_there) = match mode {
        ShflMode::Up => (me - by, me - by >= most),
        ShflMode::Down => (me + by, me + by <= most),
        ShflMode::Bfly => (me ^ by, me ^ by <= most),
        ShflMode::Idx => {
            let source = me & segment | by & !segment & 31;
            (source, source <= most)
        }
    };
    (if is_there { source as usize } else { lane }, is_there)
}

/// Sets a register in some lanes.
pub(crate) fn set(machine: &Machine<'_>, warp: &mut Warp, reg: Reg, mask: u32, value: &[u64; 32]) {
    let row = machine.program.rows.row(reg);
    match reg.class {
        RegClass::Pred => {
            let bits = (0..32).fold(0, |all, lane| all | ((value[lane] as u32 & 1) << lane));
            warp.registers.set_pred(row, mask, bits);
        }
        RegClass::B64 => warp.registers.set(row, mask, value),
        RegClass::B16 => warp.registers.set(row, mask, &value.map(|bits| bits as u32 & 0xffff)),
        RegClass::B32 | RegClass::F32 => warp.registers.set(row, mask, &value.map(|bits| bits as u32)),
    }
}

/// Notes the largest f32 that lanes take from others.
fn note_exchanged(warp: &mut Warp, sources: u32, values: &[u64; 32]) {
    if std::mem::take(&mut warp.exchanged_before) {
        warp.exchanged = 0.0;
    }
    let numbers = lanes(sources).map(|lane| f32::from_bits(values[lane] as u32).abs());
    let finite = numbers.filter(|number| number.is_finite());
    warp.exchanged = finite.fold(warp.exchanged, f32::max);
}

impl<'m> Cluster<'m> {
    /// Returns why the time slice ends, if it does.
    #[inline(never)]
    pub(crate) fn cold(&mut self, warp: &mut Warp, pc: u32, cold: &Cold) -> Option<Stop> {
        let machine = self.machine;
        let active = warp.active;
        if machine.communicates && changes_the_block(&cold.what) {
            self.global.changes += 1;
        }
        let read = |warp: &Warp, at: usize| bits(machine, warp, cold.reads[at]);
        match &cold.what {
            What::Scalar(compute) => {
                let mut rows = [[0; 32]; 4];
                for (row, operand) in rows.iter_mut().zip(&cold.reads) {
                    *row = bits(machine, warp, *operand);
                }
                let mut value = [0; 32];
                for lane in lanes(active) {
                    value[lane] = compute(&[rows[0][lane], rows[1][lane], rows[2][lane], rows[3][lane]]);
                }
                set(machine, warp, cold.writes[0], active, &value);
            }
            What::Test(compare, join) => {
                let (a, b) = (read(warp, 0), read(warp, 1));
                let c = if *join == Join::None { [0; 32] } else { read(warp, 2) };
                let combine = |holds: bool, c: bool| match join {
                    Join::None => holds,
                    Join::And => holds & c,
                    Join::Or => holds | c,
                    Join::Xor => holds ^ c,
                };
                let holds: [bool; 32] = std::array::from_fn(|lane| compare(a[lane], b[lane]));
                for (i, &reg) in cold.writes.iter().enumerate() {
                    let value = std::array::from_fn(|lane| u64::from(combine(holds[lane] != (i == 1), c[lane] != 0)));
                    set(machine, warp, reg, active, &value);
                }
            }
            What::Shfl(mode) => self.shuffle(warp, pc, *mode, cold),
            What::Vote(vote) => {
                let holds = read(warp, 0);
                for voters in self.groups(warp, pc, cold.reads[1], "vote.sync") {
                    let ballot = lanes(voters).fold(0u32, |all, lane| all | ((holds[lane] as u32 & 1) << lane));
                    let value = match vote {
                        Vote::All => u64::from(ballot == voters),
                        Vote::Any => u64::from(ballot != 0),
                        Vote::Uni => u64::from(ballot == voters || ballot == 0),
                        Vote::Ballot => ballot.into(),
                    };
                    set(machine, warp, cold.writes[0], voters, &[value; 32]);
                }
            }
            What::Redux(op, signed) => {
                let values = read(warp, 0);
                for group in self.groups(warp, pc, cold.reads[1], "redux.sync") {
                    let all = lanes(group).map(|lane| values[lane] as u32);
                    let all = all.reduce(|a, b| exchange::combine(*op, *signed, a, b)).unwrap_or(0);
                    set(machine, warp, cold.writes[0], group, &[all.into(); 32]);
                }
            }
            What::Match(all) => {
                let values = read(warp, 0);
                for voters in self.groups(warp, pc, cold.reads[1], "match.sync") {
                    let is_same = |lane: usize, other: usize| u64::from(values[other] == values[lane]) << other;
                    let same = |lane: usize| lanes(voters).fold(0, |all, other| all | is_same(lane, other));
                    let mut masks: [u64; 32] = std::array::from_fn(same);
                    let is_one = lanes(voters).all(|lane| masks[lane] == u64::from(voters));
                    if *all && !is_one {
                        masks = [0; 32];
                    }
                    set(machine, warp, cold.writes[0], voters, &masks);
                    if let Some(&p) = cold.writes.get(1) {
                        set(machine, warp, p, voters, &[u64::from(is_one); 32]);
                    }
                }
            }
            What::Elect => {
                for group in self.groups(warp, pc, cold.reads[0], "elect.sync") {
                    let leader = self.elected(warp, group);
                    set(machine, warp, cold.writes[0], group, &[leader as u64; 32]);
                    let is_leader = std::array::from_fn(|lane| u64::from(lane == leader));
                    if let Some(&p) = cold.writes.get(1) {
                        set(machine, warp, p, group, &is_leader);
                    }
                }
            }
            What::ActiveMask => set(machine, warp, cold.writes[0], active, &[active.into(); 32]),
            What::Param(at, bytes) => {
                let value = machine.parameter(*at as usize, *bytes as usize);
                set(machine, warp, cold.writes[0], active, &[value; 32]);
            }
            What::Access(access) => return self.access(warp, pc, cold, access),
            What::Atomic(atomic) => return self.atomic(warp, pc, cold, atomic),
            What::Product(product) => self.product_of(warp, pc, cold, product),
            What::Move(movement) => return self.move_matrix(warp, pc, cold, movement),
            What::Mbarrier(Mbarrier::Init, address) => {
                let arrivals = read(warp, 0);
                self.mbarrier_init(warp, pc, address, &arrivals.map(|arrivals| arrivals as u32));
            }
            What::Mbarrier(Mbarrier::Invalidate, address) => self.mbarrier_invalidate(warp, pc, address),
            What::Mbarrier(Mbarrier::State, address) => {
                let states = self.mbarrier_states(warp, pc, address);
                set(machine, warp, cold.writes[0], active, &states);
            }
            What::Mbarrier(
                Mbarrier::Arrive {
                    drops,
                    ends,
                    announces,
                    is_remote,
                    of_cluster,
                    releases,
                },
                address,
            ) => {
                let given = read(warp, 0).map(|count| count as u32);
                let arrival = Arrival {
                    tx: announces.then_some(given),
                    counts: if *announces { [1; 32] } else { given },
                    drops: *drops,
                    ends: *ends,
                    releases: *releases,
                };
                let space = if *is_remote { Space::Cluster } else { Space::Shared };
                self.mbarrier_arrive(warp, pc, (address, space), *of_cluster, &arrival);
            }
            What::Mbarrier(Mbarrier::Bytes { come, is_remote }, address) => {
                let bytes = read(warp, 0).map(|bytes| bytes as u32);
                let space = if *is_remote { Space::Cluster } else { Space::Shared };
                self.mbarrier_bytes(warp, pc, (address, space), &bytes, *come);
            }
            What::Mbarrier(Mbarrier::Test { waits, acquires }, address) => {
                let parities = read(warp, 0).map(|parity| parity as u32);
                let d = machine.program.rows.row(cold.writes[0]);
                if !self.mbarrier_test(warp, pc, d, address, &parities, [*waits, *acquires]) {
                    warp.pc = pc;
                    return Some(Stop::SliceEnd);
                }
            }
            What::Mbarrier(Mbarrier::Copies(counts), address) => self.mbarrier_copies(warp, pc, address, *counts),
            What::Give => {
                let holds = read(warp, 0);
                lanes(active).for_each(|lane| warp.given[usize::from(holds[lane] == 0)] += 1);
            }
            What::Given(vote) => {
                let [yes, no] = warp.gathered;
                let value = match vote {
                    Vote::All => u64::from(no == 0),
                    Vote::Any | Vote::Uni => u64::from(yes != 0),
                    Vote::Ballot => yes.into(),
                };
                set(machine, warp, cold.writes[0], active, &[value; 32]);
            }
            What::Barrier(waits) => {
                let ids = read(warp, 0).map(|id| id as u32);
                let counts = cold.reads.get(1).map(|counts| bits(machine, warp, *counts));
                let threads = counts.map(|counts| self.threads_named(warp, pc, &counts.map(|count| count as u32)));
                return Some(self.arrive(warp, pc, &ids, threads, *waits));
            }
            What::WarpSync => {
                for lanes in self.groups(warp, pc, cold.reads[0], "bar.warp.sync") {
                    self.join_lanes(warp, lanes);
                }
            }
            What::Transpose => self.transpose(warp, pc, cold),
            What::Print => self.print(warp, pc, cold),
            What::Assert => self.assert(warp, pc, cold),
            What::Trap => self.trap(warp, pc, active),
            What::Fast(..) | What::Nothing => {}
        }
        None
    }

    /// The active lanes by their member masks, which must name just them.
    fn groups(&mut self, warp: &mut Warp, pc: u32, members: Operand, name: &'static str) -> Vec<u32> {
        if let Operand::Imm(mask) = members {
            self.check_members(warp, pc, mask as u32, name);
            return vec![warp.active];
        }
        let members = bits(self.machine, warp, members);
        let mut groups: Vec<(u32, u32)> = Vec::new();
        for lane in lanes(warp.active) {
            let mask = members[lane] as u32;
            match groups.iter_mut().find(|(_, known)| *known == mask) {
                Some((lanes, _)) => *lanes |= 1 << lane,
                None => groups.push((1 << lane, mask)),
            }
        }
        let all = warp.active;
        for &(lanes, mask) in &groups {
            warp.active = lanes;
            self.check_members(warp, pc, mask, name);
        }
        warp.active = all;
        groups.into_iter().map(|(lanes, _)| lanes).collect()
    }

    /// `shfl.sync` in segments of a warp (PTX ISA, `shfl`).
    fn shuffle(&mut self, warp: &mut Warp, pc: u32, mode: ShflMode, cold: &Cold) {
        let machine = self.machine;
        let active = warp.active;
        let [values, by, clamps] = [0, 1, 2].map(|at| bits(machine, warp, cold.reads[at]));
        self.groups(warp, pc, cold.reads[3], "shfl.sync");
        let (mut out, mut exists, mut sources) = ([0; 32], [0; 32], 0u32);
        for lane in lanes(active) {
            let (source, is_there) = source_of(mode, lane, by[lane], clamps[lane]);
            sources |= 1 << source;
            (out[lane], exists[lane]) = (values[source], u64::from(is_there));
        }
        if machine.is_foreign {
            note_exchanged(warp, sources, &values);
        }
        set(machine, warp, cold.writes[0], active, &out);
        if let Some(&p) = cold.writes.get(1) {
            set(machine, warp, p, active, &exists);
        }
        // What is tracked in kernels of other compilers is reported where it is used.
        let absent = sources & !active;
        let is_tracked = || machine.is_foreign && machine.program.tracked.contains(&cold.writes[0]);
        if absent != 0 && !is_tracked() {
            self.report(FindingKind::MissingLanes, pc, None, |cluster| {
                let message = format!("`shfl.sync` reads from lanes {absent:#010x}, which are not active");
                Details::new(message, cluster.actor(warp.index, active))
            });
        }
    }

    /// The addresses of an access, and the lanes of each kind of memory.
    pub(crate) fn addresses(&self, warp: &Warp, cold: &Cold, access: &Access) -> ([u64; 32], [(Memory, u32); 3]) {
        let base = bits(self.machine, warp, cold.reads[0]);
        let window = if access.is_remote { CLUSTER_WINDOW } else { 0 };
        let addresses = base.map(|base| base.wrapping_add_signed(access.offset).wrapping_add(window));
        let kinds = [Memory::Global, Memory::Shared, Memory::Local].map(|memory| {
            let is_there = |lane: &usize| match access.memory {
                Memory::Generic => Memory::of(addresses[*lane]) == memory,
                known => known == memory,
            };
            (
                memory,
                lanes(warp.active)
                    .filter(is_there)
                    .fold(0, |all, lane| all | 1u32 << lane),
            )
        });
        (addresses, kinds)
    }

    /// The buffers of addresses in global memory with their lanes. Reports lanes whose address is in none.
    pub(crate) fn buffers(
        &mut self,
        warp: &Warp,
        pc: u32,
        addresses: &[u64; 32],
        mask: u32,
        object: Option<Object>,
    ) -> Vec<(u16, u32)> {
        if let Some(Object::Param(slot)) = object {
            return vec![(slot as u16, mask)];
        }
        let mut found: Vec<(u16, u32)> = Vec::new();
        let mut lost = 0u32;
        for lane in lanes(mask) {
            match self.machine.slot_of(addresses[lane]) {
                None => lost |= 1 << lane,
                Some(slot) => match found.iter_mut().find(|(known, _)| *known == slot) {
                    Some((_, lanes)) => *lanes |= 1 << lane,
                    None => found.push((slot, 1 << lane)),
                },
            }
        }
        if lost != 0 {
            let address = addresses[lost.trailing_zeros() as usize];
            self.report(FindingKind::OutOfBounds, pc, None, |cluster| {
                let message = format!("access to address {address:#x}, which is in no buffer of the launch");
                Details::new(message, cluster.actor(warp.index, lost))
            });
        }
        found
    }

    pub(crate) fn access(&mut self, warp: &mut Warp, pc: u32, cold: &Cold, access: &Access) -> Option<Stop> {
        let machine = self.machine;
        let (addresses, kinds) = self.addresses(warp, cold, access);
        let all = warp.active;
        let regs = cold.values(access);
        let rows: Vec<program::Row> = regs.iter().map(|&reg| machine.program.rows.row(reg)).collect();
        let scratch = access.scratch.map(|regs| regs.map(|reg| machine.program.rows.row(reg)));
        let plain = |base, at| program::Access {
            regs: &rows,
            size: access.size,
            base,
            at,
        };
        for (memory, mask) in kinds.into_iter().filter(|(_, mask)| *mask != 0) {
            match memory {
                Memory::Global => {
                    for (object, mask) in self.buffers(warp, pc, &addresses, mask, access.object) {
                        warp.active = mask;
                        let (at, how) = (At::start(object), (access.size, access.strength));
                        let Some([_, wide]) = scratch else {
                            if access.writes {
                                let values = bits(machine, warp, cold.reads[1]);
                                self.strong_store(warp, pc, how, at, &addresses, &values);
                            } else if !self.strong_load(warp, pc, how, at, &addresses, regs[0]) {
                                warp.active = all;
                                warp.pc = pc;
                                return Some(Stop::SliceEnd);
                            }
                            continue;
                        };
                        warp.registers.set(wide, mask, &addresses);
                        let plain = plain(wide, at);
                        if access.writes {
                            self.store_global(warp, pc, plain);
                        } else {
                            self.load_global(warp, pc, plain, access.cache);
                        }
                    }
                }
                Memory::Shared => {
                    if machine.communicates && access.writes {
                        self.global.changes += 1;
                    }
                    let narrowed = addresses.map(|address| address as u32);
                    let blocks = self.blocks_of(&addresses, mask, access.object);
                    for (at, mask) in blocks.into_iter().filter(|(_, lanes)| *lanes != 0) {
                        warp.active = mask;
                        let Some([narrow, _]) = scratch else {
                            self.strong_shared(warp, pc, (cold, access), at, &narrowed);
                            continue;
                        };
                        warp.registers.set(narrow, mask, &narrowed);
                        let plain = plain(narrow, at);
                        if access.writes {
                            self.store_shared(warp, pc, plain)
                        } else {
                            self.load_shared(warp, pc, plain)
                        }
                    }
                }
                Memory::Local | Memory::Generic => {
                    let offsets = addresses.map(|address| address & (crate::text::cold::LOCAL_WINDOW - 1));
                    self.local(warp, pc, access, &offsets, mask, &regs);
                }
            }
        }
        warp.active = all;
        if !access.writes && access.signed && access.size < 4 {
            for &reg in &regs {
                let from = 8 * access.size;
                let value = bits(machine, warp, Operand::Reg(reg));
                let value = value.map(|bits| ((bits << (64 - from)) as i64 >> (64 - from)) as u64);
                set(machine, warp, reg, all, &value);
            }
        }
        None
    }

    /// The lanes whose shared memory is that of their block, and those where it is of any block of the cluster.
    pub(crate) fn blocks_of(&self, addresses: &[u64; 32], mask: u32, object: Option<Object>) -> [(At, u32); 2] {
        let is_mapped = |lane: &usize| addresses[*lane] & CLUSTER_WINDOW == CLUSTER_WINDOW;
        let mapped = lanes(mask).filter(is_mapped).fold(0u32, |all, lane| all | 1 << lane);
        let at = At::start(self.shared_object(object));
        [(at, mask & !mapped), (At { remote: true, ..at }, mapped)]
    }

    pub(crate) fn shared_object(&self, object: Option<Object>) -> u16 {
        match object {
            Some(Object::Shared(BufferId(id))) => id as u16,
            // The last has all of it.
            _ => (self.machine.kernel.ledger().buffers.len() - 1) as u16,
        }
    }

    /// Local memory: each thread has its own.
    fn local(&mut self, warp: &mut Warp, pc: u32, access: &Access, offsets: &[u64; 32], mask: u32, regs: &[Reg]) {
        let machine = self.machine;
        let (size, bytes) = (access.size as usize, access.size as usize * regs.len());
        let frame = machine.local as usize;
        let is_good = |lane: &usize| {
            offsets[*lane]
                .checked_add(bytes as u64)
                .is_some_and(|end| end <= frame as u64)
        };
        let good = lanes(mask).filter(is_good).fold(0u32, |all, lane| all | 1 << lane);
        if mask & !good != 0 {
            let offset = offsets[(mask & !good).trailing_zeros() as usize] as i64;
            self.report(FindingKind::OutOfBounds, pc, None, |cluster| {
                let end = offset.wrapping_add(bytes as i64);
                let message =
                    format!("access to bytes {offset}..{end} of local memory, of which a thread has {frame} bytes");
                Details::new(message, cluster.actor(warp.index, mask & !good))
                    .object("local memory".to_string())
                    .bytes((offset, end))
            });
        }
        for (i, &reg) in regs.iter().enumerate() {
            let mut value = bits(machine, warp, Operand::Reg(reg));
            for lane in lanes(good) {
                let at = lane * frame + offsets[lane] as usize + i * size;
                let place = &mut warp.local[at..at + size];
                if access.writes {
                    place.copy_from_slice(&value[lane].to_le_bytes()[..size]);
                } else {
                    let mut raw = [0; 8];
                    raw[..size].copy_from_slice(place);
                    value[lane] = u64::from_le_bytes(raw);
                }
            }
            if !access.writes {
                set(machine, warp, reg, good, &value);
            }
        }
    }
}
