//! Loads, stores, asynchronous copies and atomics.

use crate::builder::{KernelBuilder, instructions, invalid_if};
use crate::inst::{AtomOp, Cache, FlagInst, Inst, Operand, StoreSource};
use crate::pointer::{AddressSpace, GlobalPtr, Ptr, SharedPtr};
use crate::types::{BF16x2, E4M3, E4M3x2, E4M3x4, Element, F16x2, Reg, RegClass, Scalar, ScalarType};
use crate::value::{Source, Val};

/// Elements that computation widens to f32 after loading and rounds back before storing.
pub trait Widen: Element {
    /// The elements of a 32-bit word as f32, in memory order.
    fn widen<'k>(word: Val<'k, Self::Word>) -> Vec<Val<'k, f32>>;
    /// [`Element::PER_WORD`] values rounded into a 32-bit word.
    fn narrow<'k>(values: &[Val<'k, f32>]) -> Val<'k, Self::Word>;
    /// One element as f32.
    fn widen_one<'k>(value: Val<'k, Self>) -> Val<'k, f32>;
    /// One value rounded to the element.
    fn narrow_one<'k>(value: Val<'k, f32>) -> Val<'k, Self>;
}

impl Widen for f32 {
    fn widen<'k>(word: Val<'k, f32>) -> Vec<Val<'k, f32>> {
        vec![word]
    }
    fn narrow<'k>(values: &[Val<'k, f32>]) -> Val<'k, f32> {
        values[0]
    }
    fn widen_one<'k>(value: Val<'k, f32>) -> Val<'k, f32> {
        value
    }
    fn narrow_one<'k>(value: Val<'k, f32>) -> Val<'k, f32> {
        value
    }
}
macro_rules! widen_halves {
    ($($half:ty: $word:ty, $pack:ident, $round:ident;)*) => {$(
        impl Widen for $half {
            #[track_caller]
            fn widen<'k>(word: Val<'k, $word>) -> Vec<Val<'k, f32>> {
                let (lo, hi) = word.to_f32s();
                vec![lo, hi]
            }
            #[track_caller]
            fn narrow<'k>(values: &[Val<'k, f32>]) -> Val<'k, $word> {
                values[0].$pack(values[1])
            }
            #[track_caller]
            fn widen_one<'k>(value: Val<'k, $half>) -> Val<'k, f32> {
                value.to_f32()
            }
            #[track_caller]
            fn narrow_one<'k>(value: Val<'k, f32>) -> Val<'k, $half> {
                value.$round()
            }
        }
    )*};
}
widen_halves! {
    half::f16: F16x2, pack_f16, to_f16;
    half::bf16: BF16x2, pack_bf16, to_bf16;
}

/// Rounding saturates at 448.
impl Widen for E4M3 {
    #[track_caller]
    fn widen<'k>(word: Val<'k, E4M3x4>) -> Vec<Val<'k, f32>> {
        let (lo, hi) = word.halves();
        let ((a, b), (c, d)) = (lo.to_f16s().to_f32s(), hi.to_f16s().to_f32s());
        vec![a, b, c, d]
    }
    #[track_caller]
    fn narrow<'k>(values: &[Val<'k, f32>]) -> Val<'k, E4M3x4> {
        values[0].pack_e4m3(values[1]).pair(values[2].pack_e4m3(values[3]))
    }
    // One element is the low byte of a 16-bit register. No kernel has one, since loads and stores of one are errors.
    #[track_caller]
    fn widen_one<'k>(value: Val<'k, E4M3>) -> Val<'k, f32> {
        let pair: Val<'k, E4M3x2> = Val::from_operand(value.builder(), value.operand());
        pair.to_f16s().to_f32s().0
    }
    #[track_caller]
    fn narrow_one<'k>(value: Val<'k, f32>) -> Val<'k, E4M3> {
        Val::from_operand(value.builder(), value.pack_e4m3(0.0).operand())
    }
}

impl<'k, S: AddressSpace, E: Element> Ptr<'k, S, E> {
    /// Loads one element.
    #[track_caller]
    pub fn load(self) -> Val<'k, E> {
        self.load_with(Cache::Default)
    }

    /// Loads one element with a cache hint (global memory only).
    #[track_caller]
    pub fn load_with(self, cache: Cache) -> Val<'k, E> {
        let k = self.addr.builder();
        invalid_if!(k, E::BYTES < 2 => "8-bit elements are loaded as words of four");
        Val::from_reg(k, self.load_regs(E::TYPE.class(), 1, cache))
    }

    /// Stores one element.
    #[track_caller]
    pub fn store(self, value: impl Source<'k, E>) {
        self.store_with(value, Cache::Default);
    }

    /// Stores one element with a cache hint (global memory only).
    #[track_caller]
    pub fn store_with(self, value: impl Source<'k, E>, cache: Cache) {
        invalid_if!(self.addr.builder(), E::BYTES < 2 => "8-bit elements are stored as words of four");
        self.store_operands(E::TYPE, &[value.operand()], cache);
    }

    /// Loads 1, 2 or 4 consecutive 32-bit words in one access; the address is aligned to its size.
    #[track_caller]
    pub fn load_words(self, count: u32, cache: Cache) -> Vec<Val<'k, E::Word>> {
        let first = self.load_regs(<E::Word as Scalar>::TYPE.class(), count, cache);
        values(self.addr.builder(), first, count)
    }

    /// Stores 1, 2 or 4 consecutive 32-bit words in one access; the address is aligned to its size.
    #[track_caller]
    pub fn store_words(self, words: &[Val<'k, E::Word>], cache: Cache) {
        let operands: Vec<Operand> = words.iter().map(|w| w.operand()).collect();
        self.store_operands(<E::Word as Scalar>::TYPE, &operands, cache);
    }

    #[track_caller]
    fn load_regs(self, class: RegClass, count: u32, cache: Cache) -> Reg {
        let (space, addr, k) = (S::SPACE, self.address(), self.addr.builder());
        let dst = k.regs(class, count);
        k.emit(Inst::Ld {
            space,
            dst,
            count,
            addr,
            cache,
        });
        dst
    }

    #[track_caller]
    fn store_operands(self, ty: ScalarType, values: &[Operand], cache: Cache) {
        let (space, addr, k) = (S::SPACE, self.address(), self.addr.builder());
        let src = match values {
            [] => StoreSource::Imm(ty, 0), // of no words: does not build
            [Operand::Reg(reg)] => StoreSource::Regs(*reg),
            [Operand::Imm(bits), rest @ ..] if rest.iter().all(|v| *v == Operand::Imm(*bits)) => {
                StoreSource::Imm(ty, *bits)
            }
            _ => StoreSource::Regs(k.contiguous(ty.class(), values)),
        };
        k.emit(Inst::St {
            space,
            src,
            count: values.len() as u32,
            addr,
            cache,
        });
    }
}

impl<'k, S: AddressSpace, E: Widen> Ptr<'k, S, E> {
    /// Loads `count` consecutive elements as f32, in accesses of at most `vector_bytes`, to which
    /// the address must be aligned (or to the element, where that is larger).
    #[track_caller]
    pub fn load_f32s(self, count: u32, vector_bytes: u32, cache: Cache) -> Vec<Val<'k, f32>> {
        // Loops rather than iterators: a closure would hide the caller's line.
        let mut values = Vec::new();
        for (words, _) in accesses(count, E::PER_WORD, vector_bytes) {
            let at = self.plus(values.len() as i32);
            if words == 0 {
                values.push(E::widen_one(at.load_with(cache)));
                continue;
            }
            for word in at.load_words(words, cache) {
                values.extend(E::widen(word));
            }
        }
        values
    }

    /// Stores f32 values as consecutive elements, rounded to nearest even, in accesses of at most
    /// `vector_bytes`, to which the address must be aligned (or to a larger element).
    #[track_caller]
    pub fn store_f32s(self, values: &[Val<'k, f32>], vector_bytes: u32, cache: Cache) {
        let mut done = 0;
        for (words, elements) in accesses(values.len() as u32, E::PER_WORD, vector_bytes) {
            let at = self.plus(done as i32);
            let now = &values[done..done + elements as usize];
            done += elements as usize;
            if words == 0 {
                at.store_with(E::narrow_one(now[0]), cache);
                continue;
            }
            let mut packed = Vec::new();
            for word in now.chunks(E::PER_WORD as usize) {
                packed.push(E::narrow(word));
            }
            at.store_words(&packed, cache);
        }
    }
}

impl<'k, S: AddressSpace, E: Element> Ptr<'k, S, E> {
    /// Atomically adds to one element, without asking for the old value (`red`).
    #[track_caller]
    pub fn reduce_add(self, value: impl Source<'k, E>) {
        self.reduce(AtomOp::Add, value);
    }

    /// Atomically replaces one element by `op` of it and `value`, and gives nothing back (`red`).
    #[track_caller]
    pub fn reduce(self, op: AtomOp, value: impl Source<'k, E>) {
        self.atom(op, value, None);
    }

    /// Atomically replaces one element by `op` of it and `value`, and returns the old one (`atom`).
    #[track_caller]
    pub fn atomic(self, op: AtomOp, value: impl Source<'k, E>) -> Val<'k, E> {
        let k = self.addr.builder();
        let dst = k.reg(E::TYPE.class());
        self.atom(op, value, Some(dst));
        Val::from_reg(k, dst)
    }

    #[track_caller]
    fn atom(self, op: AtomOp, value: impl Source<'k, E>, dst: Option<Reg>) {
        let (space, addr, value) = (S::SPACE, self.address(), value.operand());
        self.addr.builder().emit(Inst::Atom {
            op,
            ty: E::TYPE,
            space,
            dst,
            addr,
            value,
        });
    }
}

impl<'k, E: Element> GlobalPtr<'k, E> {
    /// Loads a 32-bit element with acquire semantics at gpu scope: if it reads the value of a
    /// release, what that thread did before its release is ordered before what follows.
    #[track_caller]
    pub fn load_acquire(self) -> Val<'k, E> {
        let k = self.addr.builder();
        let addr = self.address();
        k.result(|dst| Inst::Flag(FlagInst::LoadAcquire { dst, addr }))
    }

    /// Stores a 32-bit element with release semantics at gpu scope: after all that this thread did,
    /// and all that is ordered before it by barriers.
    #[track_caller]
    pub fn store_release(self, value: impl Source<'k, E>) {
        let (ty, addr, value) = (E::TYPE, self.address(), value.operand());
        let flag = FlagInst::StoreRelease { ty, addr, value };
        self.addr.builder().emit(Inst::Flag(flag));
    }

    /// Adds to a 32-bit element atomically, with release semantics at gpu scope as
    /// [`store_release`](Self::store_release).
    #[track_caller]
    pub fn add_release(self, value: impl Source<'k, E>) {
        self.add_flag(value, true);
    }

    /// Adds to a 32-bit element atomically, without order (`red.relaxed`).
    #[track_caller]
    pub fn add_relaxed(self, value: impl Source<'k, E>) {
        self.add_flag(value, false);
    }

    #[track_caller]
    fn add_flag(self, value: impl Source<'k, E>, release: bool) {
        let (ty, addr, value) = (E::TYPE, self.address(), value.operand());
        let flag = FlagInst::Add {
            release,
            ty,
            addr,
            value,
        };
        self.addr.builder().emit(Inst::Flag(flag));
    }
}

impl<'k> GlobalPtr<'k, f32> {
    /// Adds four values to as many elements, each atomically, in one access (`red`, sm_90, PTX 8.1). The address is a
    /// multiple of 16.
    #[track_caller]
    pub fn add_four(self, values: &[Val<'k, f32>; 4]) {
        let (addr, k) = (self.address(), self.addr.builder());
        let operands: Vec<Operand> = values.iter().map(|value| value.operand()).collect();
        let src = k.contiguous(RegClass::F32, &operands);
        k.emit(Inst::AddFour { addr, src });
    }
}

/// How `count` elements are accessed, in order: as (words, elements), or (0, 1) for a single
/// element that fills no word.
fn accesses(count: u32, per_word: u32, vector_bytes: u32) -> Vec<(u32, u32)> {
    let mut rest = count;
    let mut accesses = Vec::new();
    while rest > 0 {
        let words = rest / per_word;
        let access = if words == 0 || vector_bytes < 4 && per_word > 1 {
            (0, 1)
        } else {
            // Widest first: what follows an access is then aligned for any that is not wider.
            let fits = |n: &u32| 4 * n <= vector_bytes && *n <= words;
            let words = [4, 2].into_iter().find(fits).unwrap_or(1);
            (words, words * per_word)
        };
        rest -= access.1;
        accesses.push(access);
    }
    accesses
}

fn values<T: Scalar>(k: &KernelBuilder, first: Reg, count: u32) -> Vec<Val<'_, T>> {
    (0..count).map(|i| Val::from_reg(k, first.plus(i))).collect()
}

impl KernelBuilder {
    /// Starts an asynchronous copy of 16 bytes from global to shared memory, past L1.
    ///
    /// With `src_bytes` (0..=16) only the first `src_bytes` are read and the rest is zero-filled,
    /// which is how tails are handled without a branch. Both addresses are 16-byte aligned. The copy belongs
    /// to the group that the next [`cp_async_commit`](Self::cp_async_commit) closes.
    #[track_caller]
    pub fn cp_async<'k, E: Element>(
        &'k self,
        dst: SharedPtr<'k, E>,
        src: GlobalPtr<'k, E>,
        src_bytes: Option<Val<'k, u32>>,
    ) {
        self.cp_async_with(dst, src, 16, src_bytes, Cache::L2);
    }

    /// Starts an asynchronous copy of `bytes` from global to shared memory: 4, 8 or 16 through L1 ([`Cache::Default`]),
    /// or 16 past it ([`Cache::L2`]). Both addresses are aligned to as many. Otherwise like
    /// [`cp_async`](Self::cp_async).
    #[track_caller]
    pub fn cp_async_with<'k, E: Element>(
        &'k self,
        dst: SharedPtr<'k, E>,
        src: GlobalPtr<'k, E>,
        bytes: u32,
        src_bytes: Option<Val<'k, u32>>,
        cache: Cache,
    ) {
        let (dst, src, src_bytes) = (dst.address(), src.address(), src_bytes.map(|v| v.operand()));
        self.emit(Inst::CpAsync {
            dst,
            src,
            bytes,
            src_bytes,
            cache,
        });
    }

    /// Loads `count` (1, 2 or 4) 8×8 matrices of 16-bit elements from shared memory; lane `8·i + r`
    /// brings the address of row `r` of matrix `i`. Each lane receives elements
    /// `(lane/4, 2·(lane%4))` and the next, or their transposes ([`crate::fragment::LDMATRIX`]).
    #[track_caller]
    pub fn ldmatrix<'k, E: Element>(
        &'k self,
        row: SharedPtr<'k, E>,
        count: u32,
        transposed: bool,
    ) -> Vec<Val<'k, E::Word>> {
        const { assert!(E::BYTES == 2, "ldmatrix moves 16-bit elements") };
        let (dst, addr) = (self.regs(RegClass::B32, count), row.address());
        self.emit(Inst::LdMatrix {
            dst,
            count,
            transposed,
            addr,
        });
        values(self, dst, count)
    }

    /// Stores 1, 2 or 4 8×8 matrices of 16-bit elements to shared memory: the inverse of
    /// [`ldmatrix`](Self::ldmatrix), with the same addresses and the same layout.
    #[track_caller]
    pub fn stmatrix<'k, E: Element>(&'k self, row: SharedPtr<'k, E>, words: &[Val<'k, E::Word>], transposed: bool) {
        const { assert!(E::BYTES == 2, "stmatrix moves 16-bit elements") };
        let Some(_) = words.first() else {
            self.invalid("stmatrix of no matrices; 1, 2 or 4 are possible");
            return;
        };
        self.emit(Inst::StMatrix {
            src: self.gather(words),
            count: words.len() as u32,
            transposed,
            addr: row.address(),
        });
    }
}

instructions! {
    /// Closes the group of copies this thread has started since the last commit.
    cp_async_commit() = Inst::CpAsyncCommit;
    /// Waits until at most `pending` of this thread's newest groups are unfinished. Other threads
    /// see the copied bytes only after a barrier that follows.
    cp_async_wait(pending: u32) = Inst::CpAsyncWait { pending };
}

#[cfg(test)]
mod tests {
    use super::accesses;

    #[test]
    fn accesses_are_as_wide_as_alignment_allows() {
        assert_eq!(accesses(16, 2, 16), [(4, 8), (4, 8)]);
        assert_eq!(accesses(12, 2, 16), [(4, 8), (2, 4)]);
        assert_eq!(accesses(6, 1, 8), [(2, 2), (2, 2), (2, 2)]);
        assert_eq!(accesses(7, 1, 16), [(4, 4), (2, 2), (1, 1)]);
        assert_eq!(accesses(5, 2, 16), [(2, 4), (0, 1)]);
        assert_eq!(accesses(3, 2, 2), [(0, 1); 3]);
        assert_eq!(accesses(2, 1, 2), [(1, 1); 2]);
        assert_eq!(accesses(0, 2, 16), []);
    }
}
