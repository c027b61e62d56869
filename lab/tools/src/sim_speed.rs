//! Measures the simulator's speed in lane-instructions per second on one core.
//!
//! `cargo run --release -p flashcore-tools -- sim-speed`

#[allow(dead_code)] // its own `main`
#[path = "../../../crates/ir/examples/hopper_attention.rs"]
mod hopper_attention;

use std::time::Instant;

use flashcore_ir::{Arg, BufferSpec, Cache, Kernel, Launch, TileShape};
use flashcore_sim::{Class, SimOptions, simulate};

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("M lane-instructions a second: by the clock, and by CPU time (the one to read on a busy machine)");
    println!(
        "{:<44} {:>12} {:>9} {:>9} {:>9}",
        "kernel", "lane-instr.", "seconds", "clock", "CPU"
    );
    for (name, kernel) in [
        ("fma: 16 chains of f32 fma", fma()?),
        ("tiled: S = Q·Kᵀ, softmax, O += P·V (f32)", tiled(false)?),
        ("tiled, tile rows staged by cp.async", tiled(true)?),
        ("mma: 16×8×16 products from registers", mma()?),
    ] {
        measure(name, &kernel, &plain_launch(&kernel))?;
    }
    let kernel = hopper_attention::attention()?;
    let launch = attention_launch(&kernel).ok_or("the example has four tensor maps")?;
    measure("Hopper attention, B1 H8 S512 D64, wgmma", &kernel, &launch)?;
    Ok(())
}

/// Four blocks with 1 MB to read and 1 MB to write.
fn plain_launch(kernel: &Kernel) -> Launch {
    let buffer = |slot| Arg::Buffer { slot, byte_offset: 0 };
    Launch {
        grid: [4, 1, 1],
        block: [kernel.threads(), 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: kernel.ledger().total_bytes(),
        buffers: ["input", "output"].map(|name| spec(name, 1 << 20)).to_vec(),
        args: vec![buffer(0), buffer(1)],
    }
}

fn spec(name: &'static str, bytes: u64) -> BufferSpec {
    BufferSpec {
        name,
        bytes,
        written: name == "output",
        align: 16,
    }
}

/// The mission problem: 8 heads of 512 rows, contiguous.
fn attention_launch(kernel: &Kernel) -> Option<Launch> {
    let (seq, heads, dim) = (512, 8, u64::from(hopper_attention::HEAD_DIM));
    let names = ["q", "k", "v", "output"];
    let mut args = Vec::new();
    for (slot, name) in ["q", "k", "v", "out"].into_iter().enumerate() {
        let strides = vec![heads * dim * 2, dim * 2];
        let recipe = kernel.tensor_box(name)?.recipe(slot, 0, vec![dim, seq, heads], strides);
        args.push(Arg::TensorMap(recipe));
    }
    args.extend([Arg::U32(seq as u32), Arg::F32(0.18)]);
    Some(Launch {
        grid: [seq as u32 / hopper_attention::ROWS, heads as u32, 1],
        block: [kernel.threads(), 1, 1],
        cluster: [1, 1, 1],
        dynamic_shared_bytes: kernel.ledger().total_bytes(),
        buffers: names.map(|name| spec(name, seq * heads * dim * 2)).to_vec(),
        args,
    })
}

/// Runs on one host thread until one second has passed.
fn measure(name: &str, kernel: &Kernel, launch: &Launch) -> Result<(), Box<dyn std::error::Error>> {
    let options = SimOptions {
        host_threads: 1,
        ..SimOptions::default()
    };
    let mut buffers: Vec<Vec<u8>> = launch.buffers.iter().map(|b| vec![0u8; b.bytes as usize]).collect();
    let (mut lanes, mut runs) = (0, 0);
    let (start, cpu) = (Instant::now(), cpu_seconds());
    while runs < 2 || start.elapsed().as_secs_f64() < 1.0 {
        let report = simulate(kernel, launch, &mut buffers, &options)?;
        if let Some(finding) = report.findings.first() {
            return Err(finding.to_string().into());
        }
        lanes += report.counts.total().lanes;
        runs += 1;
        if crate::arguments().any(|arg| arg == "--mix") && runs == 1 {
            for class in Class::ALL {
                println!("  {class:?}: {}", report.counts.get(class).lanes);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = |seconds: f64| format!("{:.0}", lanes as f64 / seconds / 1e6);
    let cpu = match (cpu, cpu_seconds()) {
        (Some(before), Some(after)) => rate(after - before),
        _ => "-".to_string(),
    };
    println!(
        "{name:<44} {lanes:>12} {seconds:>9.2} {:>9} {cpu:>9}   ({runs} runs)",
        rate(seconds)
    );
    Ok(())
}

/// User and system time of this process, if available (Linux, 100 ticks per second).
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok());
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

fn fma() -> Result<Kernel, flashcore_ir::BuildErrors> {
    Kernel::build("fma", 128, |k| {
        let _input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let x = k.lane().to_f32();
        let sums: Vec<_> = (0..16).map(|i| k.var(i as f32)).collect();
        k.for_uniform(0u32, 2000, 1, |_| {
            for sum in &sums {
                sum.fma_assign(x, 0.5);
            }
        });
        let total = sums.iter().skip(1).fold(sums[0].get(), |a, b| a + *b);
        output.offset(k.block_idx(0) * 128 + k.thread_idx()).store(total);
    })
}

/// One query row per warp, 32 keys per step, head_dim 64: the inner loops of tiled attention.
fn tiled(asynchronous: bool) -> Result<Kernel, flashcore_ir::BuildErrors> {
    const D: u32 = 64;
    const KEYS: u32 = 32;
    Kernel::build("tiled", 256, |k| {
        let input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let q = k.shared_tile::<f32>("q", TileShape::new(8, D));
        let keys = k.shared_tile::<f32>("keys", TileShape::new(KEYS, D).padded(4));
        let values = k.shared_tile::<f32>("values", TileShape::new(KEYS, D));
        let p = k.shared_tile::<f32>("p", TileShape::new(8, KEYS));
        let (t, lane) = (k.thread_idx(), k.lane());
        let warp = t / 32;
        for i in 0..2 {
            q.at(warp, lane + 32 * i)
                .store(input.offset(t).plus(256 * i as i32).load());
        }
        let acc = [k.var(0.0f32), k.var(0.0f32)];
        let (max, sum) = (k.var(-1e30f32), k.var(0.0f32));
        k.for_uniform(0u32, 1024, KEYS, |start| {
            k.barrier();
            // 2,048 elements per tile, 16 bytes per thread, twice.
            for i in 0..2 {
                let e = t * 4 + 1024 * i;
                let (row, col) = (e / D, e % D);
                for tile in [keys, values] {
                    let from = input.offset(start * D + e);
                    if asynchronous {
                        k.cp_async(tile.at(row, col), from, None);
                    } else {
                        tile.at(row, col)
                            .store_words(&from.load_words(4, Cache::Default), Cache::Default);
                    }
                }
            }
            if asynchronous {
                k.cp_async_commit();
                k.cp_async_wait(0);
            }
            k.barrier();
            // Lane = key: its row times the warp's query.
            let s = k.var(0.0f32);
            let (mine, query) = (keys.at(lane, 0), q.at(warp, 0));
            for d in (0..D as i32).step_by(4) {
                let a = query.plus(d).load_words(4, Cache::Default);
                let b = mine.plus(d).load_words(4, Cache::Default);
                for (a, b) in a.into_iter().zip(b) {
                    s.fma_assign(a, b);
                }
            }
            let new_max = s.get().reduce_max(32).max(max.get());
            let e = (s.get() - new_max).exp2();
            let scale = (max.get() - new_max).exp2();
            max.set(new_max);
            sum.set(sum.get().fma(scale, e.reduce_sum(32)));
            p.at(warp, lane).store(e);
            k.sync_warp();
            // Lane = column: two columns of V.
            acc.iter().for_each(|acc| acc.mul_assign(scale));
            let (weights, column) = (p.at(warp, 0), values.at(0, lane));
            for key in (0..KEYS as i32).step_by(4) {
                let w = weights.plus(key).load_words(4, Cache::Default);
                for (i, w) in w.into_iter().enumerate() {
                    let row = column.plus((key + i as i32) * D as i32);
                    acc[0].fma_assign(w, row.load());
                    acc[1].fma_assign(w, row.plus(32).load());
                }
            }
            k.sync_warp();
        });
        let out = output.offset((k.block_idx(0) * 8 + warp) * D + lane);
        out.store(acc[0].get() * sum.get().recip());
        out.plus(32).store(acc[1].get() * sum.get().recip());
    })
}

fn mma() -> Result<Kernel, flashcore_ir::BuildErrors> {
    Kernel::build("mma", 128, |k| {
        let _input = k.param_ptr::<f32>("input");
        let output = k.param_ptr_mut::<f32>("output");
        let acc = k.acc("acc", 2);
        let one = k.constant(1.0f32).pack_f16(1.0);
        let a = k.a_operand::<half::f16>(&[one; 4]);
        let b = k.b_operand::<half::f16>(&[one; 2]);
        k.for_uniform(0u32, 200, 1, |_| {
            for tile in 0..2 {
                k.mma(acc, tile, a, b);
            }
        });
        output
            .offset(k.block_idx(0) * 128 + k.thread_idx())
            .store(acc.var(0).get());
    })
}
