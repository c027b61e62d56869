//! Latencies: one warp (or one block) whose every instruction waits for the one before. The chain of fused products
//! is also the clock that all other rates are told in: a link of it takes [`FMA_CLOCKS`] clocks on every architecture
//! served here (Abdelkhalik et al., arXiv 2208.11174), which NVML's clock confirms where it can be read.

use flashcore_ir::{Arg, BuildErrors, Cache, Kernel, KernelBuilder, TileShape, Val};

use super::tensor::{load_operands, mma_operands, mma_sum};
use super::{Micro, Scale, Unit, bytes, held};

/// Clocks from one dependent f32 FMA to the next.
pub(super) const FMA_CLOCKS: f64 = 4.0;
/// Name of the chain that tells the clock.
pub(super) const CLOCK: &str = "fma-chain";

pub(super) fn all(scale: &Scale) -> Result<Vec<Micro>, BuildErrors> {
    Ok(vec![
        fma(scale)?,
        ex2(scale)?,
        shared(scale)?,
        l2(scale)?,
        mma(scale)?,
        barrier(scale)?,
    ])
}

fn chain(name: &'static str, about: &'static str, kernel: Kernel, [rounds, links]: [u32; 2]) -> Micro {
    let links = f64::from(rounds) * f64::from(links);
    Micro::new([name, about], kernel, [1, rounds], (links, Unit::Clocks))
}

fn fma(scale: &Scale) -> Result<Micro, BuildErrors> {
    // A round of the loop costs some nine clocks more than its links, which would tell a clock that is too slow.
    const LINKS: u32 = 1024;
    let kernel = Kernel::build("micro_fma_chain", 32, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let (rounds, a, b) = (k.param::<u32>("rounds"), k.param::<f32>("a"), k.param::<f32>("b"));
        let x = k.var(k.lane().to_f32());
        repeat(k, rounds, LINKS, || x.set(x.get().fma(a, b)));
        out.offset(k.lane()).store(x.get());
    })?;
    let rounds = scale.rounds(110);
    let mut micro = chain(CLOCK, "f32 fused products; tells the clock", kernel, [rounds, LINKS]);
    micro.launch.args.extend([Arg::F32(1.0), Arg::F32(1.0)]);
    Ok(micro.checked(move |index, word| f32::from_bits(word) == (index as u32 + rounds * LINKS) as f32))
}

fn ex2(scale: &Scale) -> Result<Micro, BuildErrors> {
    const LINKS: u32 = 16;
    let kernel = Kernel::build("micro_ex2_chain", 32, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let rounds = k.param::<u32>("rounds");
        let x = k.var(k.lane().to_f32() * (1.0 / 32.0));
        repeat(k, rounds, LINKS, || x.set((-x.get()).exp2()));
        out.offset(k.lane()).store(x.get());
    })?;
    let rounds = scale.rounds(900);
    let micro = chain("ex2-chain", "exponentials", kernel, [rounds, LINKS]);
    Ok(micro.checked(move |index, word| {
        let last = (0..rounds * LINKS).fold(index as f64 / 32.0, |x, _| (-x).exp2());
        (f64::from(f32::from_bits(word)) - last).abs() < 1e-6
    }))
}

/// Words that hold the number of the word to go to next.
const WORDS: u32 = 4096;
/// From a word to the next in shared memory: odd, so that all are visited.
const NEXT_SHARED: u32 = 1365;
/// The same in L2: a new line each time.
const NEXT_L2: u32 = 2053;
/// Words of the set in L2.
const L2_WORDS: u32 = 65536;

fn places(words: u32, next: u32) -> Vec<u8> {
    bytes((0..words).map(|i| (i + next) % words))
}

/// The address is worked out from what was loaded, which is one instruction more.
fn shared(scale: &Scale) -> Result<Micro, BuildErrors> {
    const LINKS: u32 = 16;
    let kernel = Kernel::build("micro_shared_chain", 32, |k| {
        let (from, out) = (k.param_ptr::<u32>("in"), k.param_ptr_mut::<u32>("out"));
        let rounds = k.param::<u32>("rounds");
        let tile = k.shared_tile::<u32>("words", TileShape::new(1, WORDS));
        k.for_uniform(0u32, WORDS, 32, |i| {
            let word = from.offset(k.lane() + i).load();
            tile.at(0u32, k.lane() + i).store(word);
        });
        k.sync_warp();
        let first = tile.at(0u32, 0u32);
        let place = k.var(k.lane());
        repeat(k, rounds, LINKS, || place.set(first.offset(place.get()).load()));
        out.offset(k.lane()).store(place.get());
    })?;
    let rounds = scale.rounds(900);
    let about = "loads from shared memory, with an address each";
    let micro = chain("shared-chain", about, kernel, [rounds, LINKS]);
    let micro = micro.reading([held("in", places(WORDS, NEXT_SHARED))]);
    Ok(micro.checked(move |index, word| word == (index as u32 + rounds * LINKS * NEXT_SHARED) % WORDS))
}

fn l2(scale: &Scale) -> Result<Micro, BuildErrors> {
    const LINKS: u32 = 8;
    let kernel = Kernel::build("micro_l2_chain", 32, |k| {
        let (from, out) = (k.param_ptr::<u32>("in"), k.param_ptr_mut::<u32>("out"));
        let rounds = k.param::<u32>("rounds");
        let place = k.var(0u32);
        repeat(k, rounds, LINKS, || {
            place.set(from.offset(place.get()).load_with(Cache::L2))
        });
        out.offset(k.lane()).store(place.get());
    })?;
    let rounds = scale.rounds(200);
    let about = "loads from L2, with an address each";
    let micro = chain("l2-chain", about, kernel, [rounds, LINKS]);
    let micro = micro.reading([held("in", places(L2_WORDS, NEXT_L2))]);
    Ok(micro.checked(move |_, word| word == (rounds * LINKS * NEXT_L2) % L2_WORDS))
}

fn mma(scale: &Scale) -> Result<Micro, BuildErrors> {
    const LINKS: u32 = 8;
    let kernel = Kernel::build("micro_mma_chain", 32, |k| {
        let (a, b) = load_operands(k);
        let out = k.param_ptr_mut::<f32>("out");
        let rounds = k.param::<u32>("rounds");
        let acc = k.acc("acc", 1);
        repeat(k, rounds, LINKS, || k.mma(acc, 0, a, b));
        let sum = (1..4).fold(acc.var(0).get(), |sum, i| sum + acc.var(i).get());
        out.offset(k.lane()).store(sum);
    })?;
    let rounds = scale.rounds(1600);
    let micro = chain("mma-chain", "mma.sync m16n8k16, f32 sums", kernel, [rounds, LINKS]);
    let micro = micro.reading(mma_operands());
    Ok(micro.checked(move |index, word| {
        let sum = mma_sum(index as u32) * (rounds * LINKS) as i32;
        f32::from_bits(word) == sum as f32
    }))
}

/// Threads of a block that waits for itself.
const WAITING: u32 = 256;

/// There is nothing of a barrier to compare but that everybody got through as often as asked.
fn barrier(scale: &Scale) -> Result<Micro, BuildErrors> {
    const LINKS: u32 = 8;
    let kernel = Kernel::build("micro_barrier", WAITING, |k| {
        let out = k.param_ptr_mut::<u32>("out");
        let rounds = k.param::<u32>("rounds");
        let passed = k.var(k.thread_idx());
        k.for_uniform(0u32, rounds, 1, |_| {
            (0..LINKS).for_each(|_| k.barrier());
            passed.add_assign(1u32);
        });
        out.offset(k.thread_idx()).store(passed.get());
    })?;
    let rounds = scale.rounds(1800);
    let micro = chain("barrier", "barriers of 8 warps", kernel, [rounds, LINKS]);
    Ok(micro.checked(move |index, word| word == rounds + index as u32))
}

fn repeat<'k>(k: &'k KernelBuilder, rounds: Val<'k, u32>, links: u32, link: impl Fn()) {
    k.for_uniform(0u32, rounds, 1, |_| (0..links).for_each(|_| link()));
}
