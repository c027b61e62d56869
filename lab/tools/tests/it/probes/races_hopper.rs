//! Mistakes with Hopper's instructions: mbarriers, tensor copies, products of a warpgroup.

use flashcore_ir::{Cache, KernelBuilder, MBarrier, MBarriers, SharedTile, Swizzle, TensorMap, TileShape, Val};
use half::f16;

use super::races::{Matrix, Output, Race, hand_over, race, row, when};

/// Rows and columns of boxes and of products' operands.
pub(super) const SIDE: u32 = 64;

/// Two mbarriers that expect `arrivals` each, visible to the whole block.
fn mbarriers(k: &KernelBuilder, arrivals: u32) -> MBarriers<'_> {
    let bars = k.mbarriers("bars", 2);
    k.if_(k.thread_idx().eq(0).divergent(), || {
        bars.at(0).init(arrivals);
        bars.at(1).init(arrivals);
        k.fence_mbarrier_init();
    });
    k.barrier();
    bars
}

fn square<'k>(k: &'k KernelBuilder, name: &str) -> SharedTile<'k, f16> {
    k.shared_tile(name, TileShape::new(SIDE, SIDE).swizzled(Swizzle::B128))
}

/// A word of the tile's that another thread than the one of the same number might have written.
fn word_of<'k>(tile: SharedTile<'k, f16>, t: Val<'k, u32>) -> Val<'k, u32> {
    tile.at(t % SIDE, 0).load_words(1, Cache::Default)[0].reinterpret()
}

/// Writes a row, or with 128 threads half of one, of the tile.
fn write_row<'k>(k: &'k KernelBuilder, tile: SharedTile<'k, f16>, value: u32) {
    let (t, word) = (k.thread_idx(), k.constant(value).reinterpret());
    for chunk in 0..SIDE / 16 {
        tile.at(t / 2, t % 2 * (SIDE / 2) + 8 * chunk)
            .store_words(&[word; 4], Cache::Default);
    }
}

fn load_box<'k>(k: &'k KernelBuilder, tile: SharedTile<'k, f16>, from: TensorMap<'k>, row: u32, bar: MBarrier<'k>) {
    k.if_(k.thread_idx().eq(0).divergent(), || {
        bar.arrive_expecting(tile.stage_bytes());
        tile.load_tma(0u32, from.at(&[k.constant(row)]), bar);
    });
}

/// Writes a tile and stores it to rows of a tensor, with a proxy fence between or not; the thread
/// that stores does `wait` afterwards.
fn store_box<'k>(
    k: &'k KernelBuilder,
    tile: SharedTile<'k, f16>,
    to: TensorMap<'k>,
    row: u32,
    fenced: bool,
    wait: impl Fn(),
) {
    write_row(k, tile, 1 + row);
    when(fenced, || k.fence_proxy_async());
    k.barrier();
    k.if_(k.thread_idx().eq(0).divergent(), || {
        tile.store_tma(0u32, to.at(&[k.constant(row)]));
        k.bulk_commit();
        wait();
    });
}

/// A product of two tiles that threads write, with a proxy fence before it or not; `after` stands
/// between it and its wait.
fn product<'k>(k: &'k KernelBuilder, fenced: bool, after: impl Fn(SharedTile<'k, f16>)) {
    let (out, t) = (k.param_ptr_mut::<f32>("out"), k.thread_idx());
    let (left, right) = (square(k, "left"), square(k, "right"));
    write_row(k, left, 0x3c00_3c00);
    write_row(k, right, 0x3c00_3c00);
    when(fenced, || k.fence_proxy_async());
    k.barrier();
    let sums = k.acc_unwritten("sums", SIDE / 8);
    k.wgmma_fence();
    k.wgmma_ss(sums, left.k_major(), right.k_major(), false);
    k.wgmma_commit();
    after(right);
    let sum = k.var(0.0f32);
    for i in 0..SIDE / 2 {
        sum.add_assign(sums.var(i).get());
    }
    out.offset(t).store(sum);
}

pub(super) fn all() -> Vec<Race> {
    vec![
        race("mbarrier_not_waited", "race")
            .about("a word is read before the mbarrier that announces it")
            .kernel(64, &[Output(64)], |k, clean| {
                let bar = mbarriers(k, 32).at(0);
                let wait = || bar.wait(0);
                hand_over(k, || bar.arrive(), || when(clean, wait), || when(!clean, wait));
            }),
        race("mbarrier_parity", "race")
            .about("an mbarrier is waited for by the parity of the phase before")
            .kernel(64, &[Output(64)], |k, clean| {
                let bar = mbarriers(k, 64).at(0);
                let wait = || {
                    if clean {
                        bar.arrive();
                        bar.wait(0);
                    } else {
                        // The phase before the first counts as ended, and the first lacks this
                        // warp: it passes at once.
                        bar.wait(1);
                        bar.arrive();
                    }
                };
                hand_over(k, || bar.arrive(), wait, || ());
            }),
        race("mbarrier_count", "race")
            .about("an mbarrier is made for two warps of the three that arrive")
            .kernel(96, &[Output(96)], |k, clean| {
                let (out, words, t) = (k.param_ptr_mut::<u32>("out"), row(k, "words", 96), k.thread_idx());
                // With too few arrivals expected the phase ends when two warps have come; the third
                // one's do not end another.
                let bars = mbarriers(k, if clean { 96 } else { 64 });
                words.at(0, t).store(t);
                bars.at(0).arrive();
                bars.at(0).wait(0);
                out.offset(t).store(words.at(0, (t + 32u32) % 96u32).load());
            }),
        race("tensor_copy_not_waited", "missing-wait")
            .about("a box is read before its copy has been waited for")
            .kernel(128, &[Matrix("from", SIDE, false), Output(128)], |k, clean| {
                let tile = square(k, "tile");
                let from = k.param_tensor_map("from", tile.tensor_box(&[SIDE]));
                let (out, t) = (k.param_ptr_mut::<u32>("out"), k.thread_idx());
                let bars = mbarriers(k, 1);
                load_box(k, tile, from, 0, bars.at(0));
                when(clean, || bars.at(0).wait(0));
                let word = word_of(tile, t);
                when(!clean, || bars.at(0).wait(0));
                out.offset(t).store(word);
            }),
        race("tensor_copy_early", "race")
            .about("the next box is copied over one that warps still read")
            .kernel(128, &[Matrix("from", 2 * SIDE, false), Output(128)], |k, clean| {
                let tile = square(k, "tile");
                let from = k.param_tensor_map("from", tile.tensor_box(&[SIDE]));
                let (out, t) = (k.param_ptr_mut::<u32>("out"), k.thread_idx());
                let bars = mbarriers(k, 1);
                load_box(k, tile, from, 0, bars.at(0));
                bars.at(0).wait(0);
                let first = word_of(tile, t);
                k.fence_proxy_async();
                when(clean, || k.barrier());
                load_box(k, tile, from, SIDE, bars.at(1));
                bars.at(1).wait(0);
                out.offset(t).store(first + word_of(tile, t));
            }),
        race("tensor_store_reused", "race")
            .about("a tile is written anew while its store still reads it")
            .kernel(128, &[Matrix("to", 2 * SIDE, true)], |k, clean| {
                let tile = square(k, "tile");
                let to = k.param_tensor_map_mut("to", tile.tensor_box(&[SIDE]));
                store_box(k, tile, to, 0, true, || when(clean, || k.bulk_wait_read(0)));
                k.barrier();
                store_box(k, tile, to, SIDE, true, || k.bulk_wait(0));
            }),
        race("tensor_store_unfenced", "missing-fence")
            .about("a tile is stored without a proxy fence since it was written")
            .kernel(128, &[Matrix("to", SIDE, true)], |k, clean| {
                let tile = square(k, "tile");
                let to = k.param_tensor_map_mut("to", tile.tensor_box(&[SIDE]));
                store_box(k, tile, to, 0, clean, || k.bulk_wait(0));
            }),
        race("product_released_early", "race")
            .about("an operand is written anew while the product still reads it")
            .kernel(128, &[Output(128)], |k, clean| {
                product(k, true, |right| {
                    if clean {
                        k.wgmma_wait(0);
                        k.barrier();
                    }
                    write_row(k, right, 0);
                    k.wgmma_wait(0);
                })
            }),
        race("product_unfenced", "missing-fence")
            .about("an operand is multiplied without a proxy fence since it was written")
            .kernel(128, &[Output(128)], |k, clean| product(k, clean, |_| k.wgmma_wait(0))),
    ]
}
