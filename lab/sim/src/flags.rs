//! Flags: words of global memory by which threads order their accesses, at gpu scope.
//!
//! A release stores the releasing thread's clock with the word, and an acquire joins it. A sum keeps
//! the clocks of earlier releases of the word, as a release sequence does.

use flashcore_ir::inst::{Address, AtomOp, FlagInst, Space};

use crate::clock::WriterKind;
use crate::cluster::Cluster;
use crate::program::At;
use crate::registers::lanes;
use crate::shared_memory::POISON;
use crate::warp::{Lane, Warp};

impl Cluster<'_> {
    pub(crate) fn flag(&mut self, warp: &mut Warp, pc: u32, inst: &FlagInst) {
        match *inst {
            FlagInst::LoadAcquire { dst, ref addr } => {
                let (slot, offsets, mask) = self.flag_places(warp, pc, addr);
                let mut loaded = [POISON; 32];
                for lane in lanes(mask) {
                    loaded[lane] = self.read_flag(warp.lane(pc, lane), addr, offsets[lane]);
                    if let Some(released) = self.flags.get(&(slot, offsets[lane])) {
                        warp.learn_each(1 << lane, |clock| clock.join(released));
                    }
                }
                warp.registers
                    .set(self.machine.program.rows.row(dst), warp.active, &loaded);
            }
            FlagInst::StoreRelease { ref addr, value, .. } => {
                let (slot, offsets, mask) = self.flag_places(warp, pc, addr);
                let value: [u32; 32] = warp.value(self.machine, value);
                let region = self.region(At::of(addr, Space::Global).object);
                for lane in lanes(mask) {
                    self.flags.remove(&(slot, offsets[lane]));
                    self.set_flag(warp, lane, (slot, offsets[lane]));
                    let (by, bytes) = (warp.lane(pc, lane), value[lane].to_le_bytes());
                    self.write_lane(by, region, offsets[lane], &bytes, (WriterKind::Atomic, by.thread()));
                }
                warp.epoch = self.next_epoch();
            }
            FlagInst::Add {
                release,
                ty,
                ref addr,
                value,
            } => {
                if release {
                    let (slot, offsets, mask) = self.flag_places(warp, pc, addr);
                    for lane in lanes(mask) {
                        self.set_flag(warp, lane, (slot, offsets[lane]));
                    }
                }
                let base = warp.value(self.machine, addr.base);
                let value = warp.value(self.machine, value);
                let (op, at) = ((AtomOp::Add, ty), At::of(addr, Space::Global));
                self.change_global(warp, pc, op, at, (&base, &value));
                if release {
                    warp.epoch = self.next_epoch();
                }
            }
        }
    }

    fn read_flag(&mut self, by: Lane<'_>, addr: &Address, offset: u64) -> u32 {
        let region = self.region(At::of(addr, Space::Global).object);
        let mut bytes = [0; 4];
        if region.overlaid {
            self.read_lane(by, region, offset, &mut bytes, true);
        } else {
            let first = offset as usize;
            bytes.copy_from_slice(&self.overlay.base[region.slot][first..first + 4]);
        }
        u32::from_le_bytes(bytes)
    }

    /// The buffer that a flag is in, its byte offsets there, and the lanes with a valid one.
    fn flag_places(&mut self, warp: &Warp, pc: u32, addr: &Address) -> (usize, [u64; 32], u32) {
        let at = At::of(addr, Space::Global);
        let base = warp.value(self.machine, addr.base);
        let (offsets, mask) = self.global_offsets(warp, pc, &base, at, 4);
        (self.region(at.object).slot, offsets, mask)
    }

    /// Joins a lane's clock, with its own accesses, to that of a flag.
    fn set_flag(&mut self, warp: &Warp, lane: usize, place: (usize, u64)) {
        let mut clock = warp.joined(1 << lane);
        self.publish(&mut clock, warp, 1 << lane);
        let flag = self.flags.entry(place);
        flag.and_modify(|released| released.join(&clock)).or_insert(clock);
    }
}
