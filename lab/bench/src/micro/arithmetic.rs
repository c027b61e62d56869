//! Instructions: exponentials.

use flashcore_ir::{BuildErrors, Kernel};

use super::{Micro, Scale, Unit};

const THREADS: u32 = 256;
/// Blocks an SM: with [`CHAINS`] chains a thread, enough to hide every latency.
const BLOCKS_PER_SM: u32 = 4;
const CHAINS: u32 = 8;

/// `x = 2^-x`, which comes to rest at 0.6412; the sum of all x counts the steps.
pub(super) fn ex2(scale: &Scale) -> Result<Micro, BuildErrors> {
    const STEPS: u32 = 4;
    let kernel = Kernel::build("micro_ex2", THREADS, |k| {
        let out = k.param_ptr_mut::<f32>("out");
        let rounds = k.param::<u32>("rounds");
        let lane = k.lane().to_f32() * (1.0 / 32.0);
        let chains: Vec<_> = (0..CHAINS)
            .map(|i| (k.var(lane + i as f32 * 0.01), k.var(0.0f32)))
            .collect();
        k.for_uniform(0u32, rounds, 1, |_| {
            for _ in 0..STEPS {
                for (x, sum) in &chains {
                    x.set((-x.get()).exp2());
                    sum.add_assign(x.get());
                }
            }
        });
        let sum = chains[1..]
            .iter()
            .fold(chains[0].1.get(), |all, (_, sum)| all + sum.get());
        out.offset(k.block_idx(0) * THREADS + k.thread_idx()).store(sum);
    })?;
    let (blocks, rounds) = (BLOCKS_PER_SM * scale.sms, scale.rounds(240));
    let steps = rounds * STEPS;
    let chain = |lane: u32, i: u32| {
        let mut x = f64::from(lane as f32 * (1.0 / 32.0) + i as f32 * 0.01);
        let mut sum = 0.0;
        for _ in 0..steps {
            x = (-x).exp2();
            sum += x;
        }
        sum
    };
    let sums: Vec<f64> = (0..32).map(|lane| (0..CHAINS).map(|i| chain(lane, i)).sum()).collect();
    // A step too few in one chain is off by twice as much.
    let right = move |index: usize, word: u32| (f64::from(f32::from_bits(word)) - sums[index % 32]).abs() < 0.3;
    let work = (STEPS * CHAINS, Unit::LanesPerClock);
    Ok(Micro::of_threads(["ex2", "exponentials"], kernel, [blocks, rounds], work).checked(right))
}
