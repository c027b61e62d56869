//! Blocks that communicate through global memory. Each kernel has the same result in whatever order
//! its blocks run, on a GPU as in the simulator, and comes with a mistake that a GPU seldom shows.

use flashcore_ir::inst::{AtomOp, Scope};
use flashcore_ir::{GlobalPtr, KernelBuilder, TileShape, Val};

use super::races::{Output, Race, race, when};

const BLOCKS: u32 = 96;

fn wait_for<'k>(k: &'k KernelBuilder, condition: impl Fn() -> Val<'k, bool>) {
    k.loop_(|l| l.break_if(condition().divergent()));
}

/// One lane does something between two warp barriers.
fn one_lane(k: &KernelBuilder, body: impl FnOnce()) {
    k.sync_warp();
    k.if_(k.lane().eq(0).divergent(), body);
    k.sync_warp();
}

/// Counts the blocks that have come here; in the last one the count is BLOCKS - 1.
fn ticket<'k>(k: &'k KernelBuilder, count: GlobalPtr<'k, u32>, is_released: bool) -> Val<'k, u32> {
    let ticket = k.var(0u32);
    one_lane(k, || {
        when(is_released, || k.fence(Scope::Device));
        ticket.set(count.atomic(AtomOp::Add, 1u32));
        k.fence(Scope::Device);
    });
    ticket.get().shfl_idx(0u32)
}

/// The thread's number of a block's row.
fn row<'k>(rows: GlobalPtr<'k, f32>, block: Val<'k, u32>, k: &'k KernelBuilder) -> GlobalPtr<'k, f32> {
    rows.offset(block * 32 + k.lane())
}

/// Every kernel.
pub(super) fn all() -> Vec<Race> {
    vec![
        race("handed_over", "block-race")
            .about("a block reads what another one has written, after a flag that it does not acquire")
            .blocks(BLOCKS)
            .kernel(
                32,
                &[Output(BLOCKS * 16), Output(BLOCKS / 2), Output(BLOCKS * 16)],
                |k, clean| {
                    let data = k.param_ptr_mut::<u32>("data");
                    let (flags, out) = (k.param_ptr_mut::<u32>("flags"), k.param_ptr_mut::<u32>("out"));
                    let pair = k.block_idx(0) / 2;
                    let (flag, mine) = (flags.offset(pair), pair * 32 + k.lane());
                    k.if_else(
                        (k.block_idx(0) % 2u32).eq(0).uniform(),
                        || {
                            data.offset(mine).store(mine * 7 + 1);
                            one_lane(k, || flag.store_release(1));
                        },
                        || {
                            wait_for(k, || {
                                if clean {
                                    flag.load_acquire().eq(1)
                                } else {
                                    flag.atomic(AtomOp::Max, 0u32).eq(1)
                                }
                            });
                            out.offset(mine).store(data.offset(mine).load() * 3);
                        },
                    );
                },
            ),
        race("in_turn", "block-race")
            .about("blocks add to a sum in the order of the grid, and pass their turn on without a release")
            .blocks(BLOCKS)
            .kernel(32, &[Output(1), Output(32)], |k, clean| {
                let turn = k.param_ptr_mut::<u32>("turn");
                let (sum, block) = (k.param_ptr_mut::<f32>("sum").offset(k.lane()), k.block_idx(0));
                wait_for(k, || turn.load_acquire().eq(block));
                sum.store(sum.load() + (block * 32 + k.lane() + 1).to_f32() * 0.1f32);
                one_lane(k, || {
                    if clean {
                        turn.store_release(block + 1)
                    } else {
                        turn.add_relaxed(1)
                    }
                });
            }),
        race("last_combines", "block-race")
            .about("the last block adds up what all have stored, some of them without a fence before they count")
            .blocks(BLOCKS)
            .kernel(32, &[Output(BLOCKS * 32), Output(1), Output(32)], |k, clean| {
                let (rows, count) = (k.param_ptr_mut::<f32>("rows"), k.param_ptr_mut::<u32>("count"));
                let out = k.param_ptr_mut::<f32>("out").offset(k.lane());
                row(rows, k.block_idx(0), k).store((k.block_idx(0) * 32 + k.lane() + 1).to_f32() * 0.1f32);
                k.if_(ticket(k, count, clean).eq(BLOCKS - 1).uniform(), || {
                    let sum = k.var(0f32);
                    k.for_uniform(0u32, BLOCKS, 1, |block| sum.add_assign(row(rows, block, k).load()));
                    out.store(sum.get());
                });
            }),
        race("next_tile", "block-race")
            .about("blocks take tiles from a counter, which they read and write")
            .blocks(BLOCKS)
            .kernel(32, &[Output(1), Output(32 * 500)], |k, clean| {
                let (next, out) = (k.param_ptr_mut::<u32>("next"), k.param_ptr_mut::<u32>("out"));
                k.loop_(|l| {
                    let taken = k.var(0u32);
                    one_lane(k, || {
                        if clean {
                            taken.set(next.atomic(AtomOp::Add, 1u32))
                        } else {
                            taken.set(next.load());
                            next.store(taken.get() + 1u32);
                        }
                    });
                    let tile = taken.get().shfl_idx(0u32);
                    l.break_if(tile.ge(500).uniform());
                    out.offset(tile * 32 + k.lane()).store(tile * tile + k.lane());
                });
                // All blocks take one tile too many.
                one_lane(k, || next.reduce_add(u32::MAX));
            }),
        race("locked", "block-race")
            .about("blocks change words under a lock, without a fence after they have taken it")
            .blocks(BLOCKS)
            .kernel(32, &[Output(1), Output(32)], |k, clean| {
                let (lock, words) = (k.param_ptr_mut::<u32>("lock"), k.param_ptr_mut::<u32>("words"));
                let word = words.offset(k.lane());
                one_lane(k, || {
                    wait_for(k, || lock.atomic(AtomOp::Exch, 1u32).eq(0));
                    when(clean, || k.fence(Scope::Device));
                });
                word.store(word.load() + k.block_idx(0) + k.lane());
                one_lane(k, || {
                    k.fence(Scope::Device);
                    lock.reduce_add(u32::MAX);
                });
            }),
        race("bulk_sums", "block-race")
            .about("the last block reads what all have added in bulk, and others have waited for only to be read")
            .blocks(BLOCKS)
            .kernel(32, &[Output(32), Output(1), Output(32)], |k, clean| {
                let (sum, count) = (k.param_ptr_mut::<f32>("sum"), k.param_ptr_mut::<u32>("count"));
                let out = k.param_ptr_mut::<f32>("out").offset(k.lane());
                let tile = k.shared_tile::<f32>("row", TileShape::new(1, 32));
                tile.at(0, k.lane()).store((k.block_idx(0) + k.lane()).to_f32());
                k.fence_proxy_async();
                one_lane(k, || {
                    k.bulk_add(sum, tile.at(0, 0), 128u32);
                    k.bulk_commit();
                    if clean { k.bulk_wait(0) } else { k.bulk_wait_read(0) }
                });
                k.if_(ticket(k, count, true).eq(BLOCKS - 1).uniform(), || {
                    when(!clean, || one_lane(k, || k.bulk_wait(0)));
                    out.store(sum.offset(k.lane()).load())
                });
            }),
    ]
}
