//! The kernels of what sm_90 has and older architectures have not.

use flashcore_ir::inst::{AtomOp, L2Hint, Scope};
use flashcore_ir::wgmma::WgmmaElement;
use flashcore_ir::{Cache, E4M3, Kernel, KernelBuilder, Role, Swizzle, TileShape, Val};
use half::{bf16, f16};

fn build(name: &str, threads: u32, body: impl FnOnce(&KernelBuilder)) -> Kernel {
    Kernel::build(name, threads, body).unwrap_or_else(|errors| panic!("{errors}"))
}

pub(crate) fn kernels() -> Vec<Kernel> {
    vec![
        mbarrier_kernel(),
        tensor_copy_kernel(),
        bulk_copy_kernel(),
        vector_sum_kernel(),
        cluster_kernel(),
        wgmma_kernel(),
        every_width_kernel(),
        fp8_kernel(),
        small_things_kernel(),
    ]
}

fn mbarrier_kernel() -> Kernel {
    build("mbarriers", 64, |k| {
        let bars = k.mbarriers("bars", 3);
        let bar = bars.at(1);
        k.if_(k.thread_idx().eq(0).divergent(), || {
            bar.init(64);
            bars.at(k.lane()).init(1);
            k.fence_mbarrier_init();
        });
        k.barrier();
        bar.arrive();
        bar.expect(128);
        bar.arrive_expecting(k.lane() * 16);
        bar.arrive_expecting(1024);
        k.trap_if(bar.test(0));
        k.trap_if(bar.try_wait(k.lane() & 1));
        bar.wait(1);
        bar.wait_cluster(0);
        bar.in_block(0).arrive();
        bar.in_block(k.lane() & 1).arrive_cluster();
    })
}

fn tensor_copy_kernel() -> Kernel {
    build("tensor_copies", 128, |k| {
        k.in_clusters_of(2);
        let shape = TileShape::new(64, 128).swizzled(Swizzle::B128).in_slabs().stages(2);
        let tile = k.shared_tile::<f16>("tile", shape);
        let small = k.shared_tile::<f16>("small", TileShape::new(16, 32).swizzled(Swizzle::B64));
        let plain = k.shared_tile::<f32>("plain", TileShape::new(8, 8));
        let full = k.mbarriers("full", 1).at(0);
        let map = k.param_tensor_map("map", tile.tensor_box(&[64, 1, 1]));
        let half = k.param_tensor_map("half", tile.tensor_box(&[32, 1, 1]));
        let out = k.param_tensor_map_mut("out", tile.tensor_box(&[64, 1, 1]));
        let flat = k.param_tensor_map_mut("flat", small.tensor_box(&[16]));
        let cube = k.param_tensor_map_mut("cube", small.tensor_box(&[8, 2]));
        let most = k.param_tensor_map_mut("most", plain.tensor_box(&[2, 2, 2, 1]));
        map.prefetch();
        let (row, head, zero) = (k.lane() * 64, k.block_idx(0), k.constant(0));
        let stage = k.lane() & 1;
        tile.load_tma(stage, map.at(&[row, head, zero]), full);
        tile.load_tma(1, map.at(&[row, head, zero]).hint(L2Hint::EvictFirst), full);
        let both = half.at(&[row, head, zero]).multicast(k.constant(3u16));
        tile.load_tma_part(stage, k.cluster_rank(), both.hint(L2Hint::EvictLast), full);
        small.load_tma(0, flat.at(&[row]), full);
        small.load_tma(0, cube.at(&[row, head]), full);
        plain.load_tma(0, most.at(&[row, head, zero, zero]), full);
        k.fence_proxy_async();
        k.fence_proxy_async_global();
        tile.store_tma(stage, out.at(&[row, head, zero]));
        small.store_tma(0, flat.at(&[row]));
        small.store_tma(0, cube.at(&[row, head]));
        plain.store_tma(0, most.at(&[row, head, zero, zero]));
        k.bulk_commit();
        k.bulk_wait_read(1);
        k.bulk_wait(0);
    })
}

fn bulk_copy_kernel() -> Kernel {
    build("bulk_copies", 32, |k| {
        let row = k.shared_tile::<f32>("row", TileShape::new(1, 64));
        let from = k.param_ptr::<f32>("from").offset(k.lane() * 64);
        let to = k.param_ptr_mut::<f32>("to").offset(k.lane() * 64);
        let full = k.mbarriers("full", 1).at(0);
        let bytes = k.param::<u32>("bytes");
        k.bulk_load(row.at(0, 0), from, 256, full);
        k.bulk_load(row.at(0, k.lane() * 4), from.plus(4), bytes, full);
        k.fence_proxy_async();
        k.bulk_store(to, row.at(0, 0), bytes);
        k.bulk_store(to.plus(32), row.at(0, 32), 128);
        k.bulk_add(to, row.at(0, 0), bytes);
        k.bulk_add(to.plus(32), row.at(0, 32), 128);
        k.bulk_commit();
        k.bulk_wait(0);
    })
}

fn vector_sum_kernel() -> Kernel {
    build("vector_sums", 32, |k| {
        let sums = k.param_ptr_mut::<f32>("sums").offset(k.lane() * 4);
        let four = [0u32, 1, 2, 3].map(|i| (k.lane() + i).to_f32());
        sums.add_four(&four);
        sums.plus(128).add_four(&four);
    })
}

fn cluster_kernel() -> Kernel {
    build("clusters", 32, |k| {
        k.in_clusters_of(4);
        let out = k.param_ptr_mut::<u32>("out");
        let words = k.shared_tile::<u32>("words", TileShape::new(1, 32));
        let floats = k.shared_tile::<f32>("floats", TileShape::new(32, 4));
        let mine = words.at(0, k.lane());
        mine.store(k.lane());
        k.cluster_arrive_relaxed();
        k.cluster_wait();
        k.cluster_barrier();
        let theirs = mine.in_block(k.cluster_rank() ^ 1);
        out.store(theirs.load() + k.cluster_blocks());
        theirs.store(7);
        theirs.reduce_add(1);
        out.plus(1).store(theirs.atomic(AtomOp::Add, 2));
        let four = floats.at(k.lane(), 0).in_block(2);
        four.plus(0)
            .store_words(&four.load_words(4, Cache::Default), Cache::Default);
        k.fence(Scope::Cluster);
        k.cluster_arrive();
        k.cluster_wait();
        let full = k.mbarriers("full", 1).at(0).in_block(k.cluster_rank() ^ 1);
        k.bulk_send(theirs, words.at(0, 0), 128, full);
        k.bulk_send(four, floats.at(1, 0), k.cluster_blocks() * 16, full);
    })
}

/// A pair of tiles as operands in all ways that 16-bit elements have.
fn products<E: WgmmaElement>(k: &KernelBuilder, name: &str) {
    let shape = TileShape::new(64, 64).swizzled(Swizzle::B128).stages(2);
    let tile = k.shared_tile::<E>(name, shape);
    let out = k.param_ptr_mut::<f32>(&format!("{name}_out")).offset(k.thread_idx());
    let acc = k.acc(&format!("{name}_acc"), 8);
    let (along_cols, along_rows) = (tile.k_major(), tile.mn_major());
    let stage = k.block_idx(0) & 1;
    k.wgmma_fence();
    k.wgmma_ss(acc, along_cols.stage(stage), along_cols.stage(1), false);
    k.wgmma_ss(acc, along_cols, along_rows, true);
    k.wgmma_ss(acc, along_rows, along_cols, stage.eq(0));
    k.wgmma_ss(acc, along_rows.rows(16, 32), along_rows.rows(stage * 16, 32), true);
    k.wgmma_commit();
    k.wgmma_wait(0);
    let word = |i: u32| -> Val<'_, E::Word> { acc.var(i).get().reinterpret() };
    let mut a = Vec::new();
    for step in 0..4 {
        a.push(k.wgmma_a::<E>(&[
            word(4 * step),
            word(4 * step + 1),
            word(4 * step + 2),
            word(4 * step + 3),
        ]));
    }
    let sum = k.acc(&format!("{name}_sum"), 8);
    k.wgmma_fence();
    k.wgmma_rs(sum, &a, along_cols, true);
    k.wgmma_rs(sum, &a, along_rows, true);
    k.wgmma_commit();
    k.wgmma_wait(0);
    for i in 0..32 {
        out.plus(128 * i).store(sum.var(i as u32).get());
    }
}

fn wgmma_kernel() -> Kernel {
    build("wgmma", 128, |k| {
        k.min_blocks_per_sm(1);
        products::<f16>(k, "fp16");
        products::<bf16>(k, "bf16");
    })
}

/// Every width that a product can have.
fn every_width_kernel() -> Kernel {
    build("wgmma_widths", 128, |k| {
        k.min_blocks_per_sm(1);
        let out = k.param_ptr_mut::<f32>("out").offset(k.thread_idx());
        let a = k.shared_tile::<f16>("a", TileShape::new(64, 16).swizzled(Swizzle::B32));
        let b = k.shared_tile::<f16>("b", TileShape::new(256, 16).swizzled(Swizzle::B32));
        let chosen = k.block_idx(0);
        for tiles in 1..=32 {
            // A branch each: side by side, their accumulators do not fit into the registers.
            k.if_(chosen.eq(tiles).uniform(), || {
                let acc = k.acc_unwritten("acc", tiles);
                k.wgmma_fence();
                k.wgmma_ss(acc, a.k_major(), b.k_major(), false);
                k.wgmma_commit();
                k.wgmma_wait(0);
                for i in 0..4 {
                    out.plus(128 * i as i32).store(acc.var(i).get());
                }
            });
        }
    })
}

fn fp8_kernel() -> Kernel {
    build("fp8", 128, |k| {
        k.min_blocks_per_sm(1);
        let out = k.param_ptr_mut::<u32>("out").offset(k.thread_idx());
        let shape = TileShape::new(64, 128).swizzled(Swizzle::B128);
        let tile = k.shared_tile::<E4M3>("tile", shape);
        let narrow = k.shared_tile::<E4M3>("narrow", TileShape::new(64, 64).swizzled(Swizzle::B64));
        let acc = k.acc("acc", 8);
        k.wgmma_fence();
        k.wgmma_ss(acc, tile.k_major(), tile.k_major(), true);
        k.wgmma_commit();
        k.wgmma_wait(0);
        let four = |i: u32| {
            let pair = |i| acc.var(i).get().pack_e4m3(acc.var(i + 1).get());
            pair(i).pair(pair(i + 2))
        };
        let mut a = Vec::new();
        for step in 0..2 {
            a.push(k.wgmma_a::<E4M3>(&[
                four(16 * step),
                four(16 * step + 4),
                four(16 * step + 8),
                four(16 * step + 12),
            ]));
        }
        let sum = k.acc("sum", 8);
        k.wgmma_fence();
        k.wgmma_rs(sum, &a, narrow.k_major().rows(0, 64).stage(0), true);
        k.wgmma_commit();
        k.wgmma_wait(0);
        for i in 0..32 {
            out.plus(128 * i).store(sum.var(i as u32).get().reinterpret());
        }
        let (lo, hi) = four(0).halves();
        let (x, y) = lo.to_f16s().to_f32s();
        out.plus(-128).store((x + y + hi.to_f16s().to_f32s().0).reinterpret());
    })
}

fn small_things_kernel() -> Kernel {
    build("small_things", 384, |k| {
        k.min_blocks_per_sm(1);
        let out = k.param_ptr_mut::<u32>("out");
        let tile = k.shared_tile::<f16>("tile", TileShape::new(32, 16));
        k.dependency_wait();
        let row = tile.at(k.lane(), 0);
        for count in [1, 2, 4] {
            for transposed in [false, true] {
                let words = k.ldmatrix(row, count, transposed);
                k.stmatrix(row, &words, transposed);
            }
        }
        k.roles(vec![
            Role::new("one", 4, || {
                k.if_(k.elect().divergent(), || out.store(1));
            })
            .registers(24),
            Role::new("two", 8, || out.store(2)).registers(240),
        ]);
        k.scheduling_fence();
        k.dependency_trigger();
    })
}
