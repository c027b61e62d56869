//! What is written is what runs: the machine code that ptxas makes of it.

use crate::support;

#[allow(dead_code)]
#[path = "../../examples/hopper_attention.rs"]
mod hopper_attention;

use flashcore_ir::{Cache, F16x2, Kernel, KernelBuilder, Target, TileShape, Val};
use half::{bf16, f16};
use support::machine_code;

const TARGETS: [Target; 2] = [Target::Sm80, Target::Sm90a];

fn build(body: impl FnOnce(&KernelBuilder)) -> Kernel {
    Kernel::build("k", 32, body).unwrap_or_else(|errors| panic!("{errors}"))
}

/// Asserts how many instructions of the machine code begin with each mnemonic, on each target.
#[track_caller]
fn assert_counts(kernel: &Kernel, expected: &[(&str, usize)]) {
    for target in TARGETS {
        let Some(code) = machine_code(&kernel.to_ptx(), target) else {
            return;
        };
        for &(mnemonic, count) in expected {
            let found = code
                .iter()
                .filter(|line| line.split_whitespace().any(|w| w.starts_with(mnemonic)))
                .count();
            assert_eq!(found, count, "{mnemonic} on {target}:\n{}", code.join("\n"));
        }
    }
}

#[test]
fn products_and_sums_are_not_contracted() {
    let kernel = build(|k| {
        let data = k.param_ptr_mut::<f32>("data").offset(k.lane());
        let (a, b, c) = (data.load(), data.plus(32).load(), data.plus(64).load());
        data.store(a * b + c);
        data.plus(64).store(b * c - a);
    });
    assert_counts(&kernel, &[("FFMA", 0), ("FMUL", 2), ("FADD", 2)]);
}

#[test]
fn packed_products_and_sums_are_not_contracted() {
    let kernel = build(|k| {
        let data = k.param_ptr_mut::<f16>("data").offset(k.lane() * 2);
        let word = |i: i32| -> Val<'_, F16x2> { data.plus(64 * i).load_words(1, Cache::Default)[0] };
        data.store_words(&[word(0) * word(1) + word(2)], Cache::Default);
    });
    for target in TARGETS {
        let Some(code) = machine_code(&kernel.to_ptx(), target) else {
            return;
        };
        // A sum may be spelled as an FMA with 1; one instruction for both would round once.
        let packed = code
            .iter()
            .filter(|line| line.contains("HFMA2") || line.contains("HADD2") || line.contains("HMUL2"));
        assert_eq!(packed.count(), 2, "{target}:\n{}", code.join("\n"));
    }
}

#[test]
fn fma_is_one_instruction() {
    let kernel = build(|k| {
        let data = k.param_ptr_mut::<f32>("data").offset(k.lane());
        data.store(data.load().fma(data.plus(32).load(), data.plus(64).load()));
    });
    assert_counts(&kernel, &[("FFMA", 1), ("FMUL", 0), ("FADD", 0)]);
}

#[test]
fn approximations_are_one_instruction() {
    let kernel = build(|k| {
        let data = k.param_ptr_mut::<f32>("data").offset(k.lane());
        data.store(data.load().exp2());
        data.plus(32).store(data.plus(32).load().recip());
        data.plus(64).store(data.plus(64).load().log2());
    });
    // Without `.ftz` each is wrapped in two multiplications and a comparison.
    let expected = [
        ("MUFU.EX2", 1),
        ("MUFU.RCP", 1),
        ("MUFU.LG2", 1),
        ("FMUL", 0),
        ("FSETP", 0),
    ];
    assert_counts(&kernel, &expected);
}

#[test]
fn words_travel_in_wide_accesses() {
    let kernel = build(|k| {
        let from = k.param_ptr::<f16>("from").offset(k.lane() * 8);
        let to = k.param_ptr_mut::<f16>("to").offset(k.lane() * 8);
        let tile = k.shared_tile::<f16>("tile", TileShape::new(32, 8));
        let mine = tile.at(k.lane(), 0);
        mine.store_words(&from.load_words(4, Cache::ReadOnly), Cache::Default);
        k.barrier();
        let theirs = tile.at(k.lane() ^ 1, 0);
        to.store_words(&theirs.load_words(4, Cache::Default), Cache::Streaming);
    });
    let expected = [
        ("LDG.E.128.CONSTANT", 1),
        ("STS.128", 1),
        ("BAR.SYNC", 1),
        ("LDS.128", 1),
        ("STG.E.EF.128", 1),
    ];
    assert_counts(&kernel, &expected);
}

#[test]
fn copies_bypass_registers_and_l1() {
    let kernel = build(|k| {
        let from = k.param_ptr::<f16>("from").offset(k.lane() * 8);
        let to = k.shared_tile::<f16>("tile", TileShape::new(32, 8)).at(k.lane(), 0);
        k.cp_async(to, from, None);
        k.cp_async(to, from, Some(k.lane() & 15));
        k.cp_async_commit();
        k.cp_async_wait(0);
    });
    let expected = [
        ("LDGSTS.E.BYPASS.128", 2),
        ("LDGSTS.E.BYPASS.128.ZFILL", 1),
        ("LDGDEPBAR", 1),
    ];
    assert_counts(&kernel, &expected);
}

#[test]
fn matrices_go_to_the_tensor_cores() {
    let kernel = build(|k| {
        let out = k.param_ptr_mut::<f32>("out").offset(k.lane());
        let (x, y) = (
            k.shared_tile::<f16>("x", TileShape::new(16, 16)).at(k.lane(), 0),
            k.shared_tile::<bf16>("y", TileShape::new(16, 16)).at(k.lane(), 0),
        );
        let (a, b) = (k.ldmatrix(x, 4, false), k.ldmatrix(x, 2, true));
        let (a, b) = (
            k.a_operand::<f16>(&[a[0], a[1], a[2], a[3]]),
            k.b_operand::<f16>(&[b[0], b[1]]),
        );
        let acc = k.acc("acc", 2);
        k.mma(acc, 0, a, b);
        let half_acc = k.acc_f16("half_acc", 1);
        k.mma(half_acc, 0, a, b);
        let brain = k.ldmatrix(y, 2, true);
        k.mma(
            acc,
            0,
            acc.to_a::<bf16>()[0],
            k.b_operand::<bf16>(&[brain[0], brain[1]]),
        );
        out.store(acc.var(0).get() + half_acc.var(0).get().to_f32s().0);
    });
    let expected = [
        ("LDSM.16.M88.4", 1),
        ("LDSM.16.MT88.2", 2),
        ("HMMA.16816.F16", 1),
        ("HMMA.16816.F32.BF16", 1),
        ("HMMA.16816.F32", 2), // the one with bf16 among them
    ];
    assert_counts(&kernel, &expected);
}

#[test]
fn debug_lines_do_not_change_the_code() {
    let kernel = build(|k| {
        let data = k.param_ptr_mut::<f32>("data").offset(k.thread_idx());
        let sum = k.var(0.0f32);
        k.for_uniform(0u32, 100u32, 1, |i| sum.add_assign(data.offset(i).load().exp2()));
        data.store(sum.get());
    });
    for target in TARGETS {
        assert_eq!(
            machine_code(&kernel.to_ptx(), target),
            machine_code(&kernel.to_ptx_with_lines(), target)
        );
    }
}

/// No spills and no notes on products that ptxas would run one after another: either fails to
/// assemble here.
#[test]
fn the_hopper_example_assembles_without_a_remark() {
    let kernel = hopper_attention::attention().unwrap_or_else(|errors| panic!("{errors}"));
    support::assemble_everywhere(&kernel);
    let Some(code) = machine_code(&kernel.to_ptx(), Target::Sm90a) else {
        return;
    };
    let count = |mnemonic: &str| code.iter().filter(|line| line.contains(mnemonic)).count();
    // Four steps of each product; a copy each of Q, K and V; a store of O.
    assert_eq!(
        [count("HGMMA"), count("UTMALDG"), count("UTMASTG"), count("USETMAXREG")],
        [8, 3, 1, 2]
    );
}
