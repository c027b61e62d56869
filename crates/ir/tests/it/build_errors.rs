//! Each mistake is found when the kernel is built, with a message that says what to do and the line
//! that made it.

use flashcore_ir::inst::AtomOp;
use flashcore_ir::{BuildError, BuildErrorKind, Cache, E4M3, Kernel, KernelBuilder, Swizzle, TileShape};
use half::{bf16, f16};

/// The only mistake of a kernel.
#[track_caller]
fn mistake(body: impl FnOnce(&KernelBuilder)) -> BuildError {
    let errors = Kernel::build("k", 128, body).expect_err("does not build").errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].clone()
}

#[track_caller]
fn message(body: impl FnOnce(&KernelBuilder)) -> String {
    let error = mistake(body);
    assert_eq!(error.line.file, file!(), "the line is the kernel's own");
    error.kind.to_string()
}

#[test]
fn a_report_names_the_kernel_and_every_line() {
    let line = line!() + 2;
    let errors = Kernel::build("attention", 128, |k| {
        k.barrier_among(16, 64);
        k.barrier_among(1, 48);
    });
    let file = file!();
    let report = errors.expect_err("does not build").to_string();
    assert_eq!(
        report,
        format!(
            "kernel attention cannot be built:\n  {file}:{line}: barrier 16; a block has barriers 0 to 15\n  {file}:{}: \
             barrier 1 of 48 threads; multiples of 32 (a warp) are possible, from 32 on",
            line + 1
        )
    );
}

#[test]
fn aligned_instructions_under_a_divergent_condition() {
    let line = line!() + 3;
    let error = mistake(|k| {
        let odd = (k.lane() & 1).eq(1);
        k.if_(odd.divergent(), || {
            k.barrier();
        });
    });
    assert_eq!(error.line.line, line + 1);
    let BuildErrorKind::AlignedUnderDivergence { instruction, condition } = &error.kind else {
        panic!("{error}");
    };
    assert_eq!((instruction.as_str(), condition.line), ("bar.sync", line));
    let text = error.to_string();
    assert!(
        text.contains("bar.sync must be executed by all lanes of a warp together"),
        "{text}"
    );
    assert!(
        text.contains(&format!("declared divergent at {}:{line}", file!())),
        "{text}"
    );
}

#[test]
fn aligned_instructions_in_the_other_branch_or_deeper() {
    let error = mistake(|k| {
        k.if_else(k.lane().lt(4u32).divergent(), || (), || k.barrier());
    });
    assert!(matches!(error.kind, BuildErrorKind::AlignedUnderDivergence { .. }));
    // A uniform condition inside a divergent one does not make it right; the outer line is named.
    let line = line!() + 2;
    let error = mistake(|k| {
        k.if_(k.lane().lt(4u32).divergent(), || {
            k.if_(k.block_idx(0).eq(0).uniform(), || k.barrier());
        });
    });
    let BuildErrorKind::AlignedUnderDivergence { condition, .. } = error.kind else {
        panic!("{error}");
    };
    assert_eq!(condition.line, line);
}

#[test]
fn aligned_instructions_in_a_loop_that_some_lanes_have_left() {
    // Before the break as well: in the second round those who left are missing.
    for barrier_first in [true, false] {
        let error = mistake(|k| {
            k.loop_(|l| {
                if barrier_first {
                    k.barrier();
                }
                l.break_if(k.lane().lt(4u32).divergent());
                if !barrier_first {
                    k.barrier();
                }
            });
        });
        assert!(
            matches!(error.kind, BuildErrorKind::AlignedUnderDivergence { .. }),
            "{error}"
        );
    }
    let error = mistake(|k| k.for_divergent(k.lane(), 64u32, 32, |_| k.barrier()));
    assert!(
        matches!(error.kind, BuildErrorKind::AlignedUnderDivergence { .. }),
        "{error}"
    );
}

#[test]
fn aligned_instructions_where_the_warp_is_whole() {
    let kernel = Kernel::build("k", 128, |k| {
        k.if_(k.block_idx(0).eq(0).uniform(), || k.barrier());
        k.if_(k.lane().eq(0).divergent(), || k.sync_warp());
        k.barrier(); // after the structure, lanes are together again
        k.for_uniform(0u32, 4u32, 1, |_| {
            k.loop_(|l| l.break_if(k.lane().ge(0u32).divergent()));
            k.barrier();
        });
    });
    assert!(kernel.is_ok(), "{kernel:?}");
}

#[test]
fn values_do_not_leave_the_block_that_computes_them() {
    let line = line!() + 5;
    let error = mistake(|k| {
        let out = k.param_ptr_mut::<u32>("out");
        let mut leaked = None;
        k.if_(k.lane().eq(0).divergent(), || leaked = Some(k.lane() + 1));
        out.store(leaked.unwrap());
    });
    assert_eq!((error.kind, error.line.line), (BuildErrorKind::OutOfScope, line));

    let error = mistake(|k| {
        let mut leaked = None;
        k.for_uniform(0u32, 4u32, 1, |i| leaked = Some(i));
        k.if_(leaked.unwrap().eq(3).uniform(), || ());
    });
    assert_eq!(error.kind, BuildErrorKind::OutOfScope);

    let error = mistake(|k| {
        let mut leaked = None;
        let out = k.param_ptr_mut::<u32>("out");
        k.if_else(
            k.lane().eq(0).divergent(),
            || leaked = Some(k.lane()),
            || out.store(k.lane()),
        );
        k.if_(k.lane().eq(1).divergent(), || out.store(leaked.unwrap()));
    });
    assert_eq!(error.kind, BuildErrorKind::OutOfScope);
}

#[test]
fn variables_carry_values_out() {
    let kernel = Kernel::build("k", 128, |k| {
        let out = k.param_ptr_mut::<u32>("out");
        let found = k.var(0u32);
        k.for_divergent(0u32, k.lane(), 1, |i| {
            k.if_(i.eq(3).divergent(), || found.set(i));
        });
        out.store(found.get());
        // Shared memory's address is computed at the top, wherever it is first asked for.
        let tile = k.shared_tile::<f32>("tile", TileShape::new(4, 4));
        k.if_(k.lane().eq(0).divergent(), || tile.at(0, 0).store(1.0));
        tile.at(1, 1).store(2.0);
    });
    assert!(kernel.is_ok(), "{kernel:?}");
}

#[test]
fn breaks_stand_in_their_own_loop() {
    let error = mistake(|k| {
        k.loop_(|l| {
            k.if_(k.lane().eq(0).divergent(), || l.break_if(k.lane().eq(0).divergent()));
        });
    });
    assert_eq!(error.kind, BuildErrorKind::BreakNotInLoop);
    let error = mistake(|k| {
        k.loop_(|outer| {
            k.loop_(|_| outer.break_if(k.lane().eq(0).divergent()));
        });
    });
    assert_eq!(error.kind, BuildErrorKind::BreakNotInLoop);
    let text = error.kind.to_string();
    assert!(text.contains("directly in the body of its loop"), "{text}");
}

#[test]
fn kernels_have_names_and_whole_warps() {
    for name in ["", "1st", "with space", "naïve"] {
        let errors = Kernel::build(name, 128, |_| ()).expect_err(name);
        assert!(errors.to_string().contains("is not a kernel name"), "{errors}");
    }
    for threads in [0, 1, 33, 1056] {
        let errors = Kernel::build("k", threads, |_| ()).expect_err("threads");
        let text = errors.to_string();
        assert!(text.contains("allowed are multiples of 32 from 32 to 1024"), "{text}");
    }
    assert!(message(|k| k.min_blocks_per_sm(0)).contains("at least 1 must fit"));
}

#[test]
fn parameters_have_names_of_their_own() {
    for name in ["", "a-b", "q.data"] {
        let text = message(|k| _ = k.param::<u32>(name));
        assert!(text.contains("is no name for a parameter"), "{text}");
    }
    let text = message(|k| {
        k.param::<u32>("n");
        k.param::<f32>("n");
    });
    assert!(text.contains("each name once"), "{text}");
}

#[test]
fn parameters_are_written_only_where_declared_so() {
    let text = message(|k| k.param_ptr::<f32>("q").store(1.0));
    assert_eq!(
        text,
        "a write through parameter `q`, declared read-only; declare it with `param_ptr_mut`"
    );
    assert!(message(|k| k.param_ptr::<f32>("q").reduce_add(1.0)).contains("`q`"));
    assert!(Kernel::build("k", 32, |k| k.param_ptr_mut::<f32>("out").store(1.0)).is_ok());
}

#[test]
fn accesses_that_do_not_exist() {
    let text = message(|k| _ = k.param_ptr::<f32>("q").load_words(3, Cache::Default));
    assert_eq!(text, "an access of 3 words; 1, 2 or 4 are possible");
    let text = message(|k| k.param_ptr_mut::<f32>("q").store_words(&[], Cache::Default));
    assert!(text.starts_with("an access of 0 words"), "{text}");
    let text = message(|k| {
        let tile = k.shared_tile::<f16>("tile", TileShape::new(8, 8));
        k.ldmatrix(tile.at(0, 0), 3, false);
    });
    assert!(text.starts_with("an access of 3 words"), "{text}");
    let text = message(|k| {
        let tile = k.shared_tile::<f32>("tile", TileShape::new(8, 8));
        tile.at(0, 0).load_with(Cache::ReadOnly);
    });
    assert!(text.contains("a cache hint is for global memory"), "{text}");
    let text = message(|k| {
        let out = k.param_ptr_mut::<f32>("out");
        out.store_words(&[k.constant(0.0)], Cache::ReadOnly);
    });
    assert!(text.contains("cannot take the read-only path"), "{text}");
    for bytes in [0, 2, 12, 32] {
        let text = message(|k| {
            let tile = k.shared_tile::<f32>("tile", TileShape::new(8, 8));
            k.cp_async_with(tile.at(0, 0), k.param_ptr::<f32>("q"), bytes, None, Cache::Default);
        });
        assert_eq!(text, format!("cp.async.ca of {bytes} bytes; it copies 4, 8 or 16"));
    }
}

#[test]
fn bulk_copies_and_flags_that_do_not_exist() {
    for bytes in [0, 8, 20] {
        let text = message(|k| {
            let row = k.shared_tile::<f32>("row", TileShape::new(1, 64));
            k.bulk_add(k.param_ptr_mut::<f32>("out"), row.at(0, 0), bytes);
        });
        assert_eq!(
            text,
            format!("a bulk copy of {bytes} bytes; multiples of 16 are possible")
        );
    }
    let text = message(|k| {
        let row = k.shared_tile::<f32>("row", TileShape::new(1, 64));
        k.bulk_store(k.param_ptr::<f32>("in"), row.at(0, 0), 256);
    });
    assert!(text.contains("declare it with `param_ptr_mut`"), "{text}");
    let text = message(|k| k.param_ptr::<u32>("flag").store_release(1));
    assert!(text.contains("declare it with `param_ptr_mut`"), "{text}");
    let text = message(|k| _ = k.param_ptr::<f16>("flag").load_acquire());
    assert_eq!(text, "a flag of type b16; 4 bytes are possible");
}

#[test]
fn atomics_that_do_not_exist() {
    for op in [AtomOp::Max, AtomOp::Min] {
        let text = message(|k| _ = k.param_ptr_mut::<f32>("out").atomic(op, 1.0));
        assert!(text.contains("compare the bits as u32"), "{text}");
    }
    let text = message(|k| k.param_ptr_mut::<u32>("out").reduce(AtomOp::Exch, 1));
    assert!(text.contains("always gives the old value"), "{text}");
    let text = message(|k| {
        let out = k.param_ptr_mut::<f16>("out");
        out.reduce_add(k.constant(1.0f32).to_f16());
    });
    assert_eq!(text, "an atomic on f16; 4 bytes are possible");
}

#[test]
fn elements_of_8_bits_by_themselves() {
    let text = message(|k| _ = k.param_ptr::<E4M3>("x").load_f32s(1, 16, Cache::Default));
    assert_eq!(text, "8-bit elements are loaded as words of four");
    let text = message(|k| {
        let zero = [k.constant(0.0f32)];
        k.param_ptr_mut::<E4M3>("out").store_f32s(&zero, 16, Cache::Default);
    });
    assert_eq!(text, "8-bit elements are stored as words of four");
}

#[test]
fn lanes_barriers_and_dimensions_that_do_not_exist() {
    for (text, wanted) in [
        (
            message(|k| _ = k.lane().to_f32().reduce_max(12)),
            "a reduction over 12 lanes",
        ),
        (
            message(|k| _ = k.lane().to_f32().reduce_sum(64)),
            "a reduction over 64 lanes",
        ),
        (message(|k| _ = k.lane().shfl_bfly(32)), "a lane distance of 32"),
        (message(|k| _ = k.lane().shfl_up(40)), "a lane distance of 40"),
        (message(|k| _ = k.block_idx(3)), "dimension 3"),
        (message(|k| k.barrier_arrive(0, 0)), "barrier 0 of 0 threads"),
        (
            message(|k| k.barrier_among(1, 160)),
            "barrier 1 of 160 threads; the block has 128",
        ),
        (message(|k| k.for_uniform(0u32, 4u32, 0, |_| ())), "a positive step"),
        (message(|k| k.for_uniform(4i32, 0i32, -1, |_| ())), "a positive step"),
        (
            message(|k| {
                let tile = k.shared_tile::<f16>("tile", TileShape::new(8, 8));
                let words = k.ldmatrix(tile.at(0, 0), 4, false);
                let a = k.a_operand::<f16>(&[words[0], words[1], words[2], words[3]]);
                k.mma(k.acc("acc", 2), 2, a, k.b_operand::<f16>(&[words[0], words[1]]));
            }),
            "tile 2 of accumulators that have 2",
        ),
    ] {
        assert!(text.contains(wanted), "{text}");
    }
}

#[test]
fn products_and_caps_that_do_not_exist() {
    let why = message(|k| {
        let word = k.constant(1.0f32).pack_bf16(k.constant(1.0f32));
        let (a, b) = (k.a_operand::<bf16>(&[word; 4]), k.b_operand::<bf16>(&[word; 2]));
        k.mma(k.acc_f16("acc", 1), 0, a, b);
    });
    assert!(why.contains("no fp16 accumulators for bf16"), "{why}");
    for registers in [8, 256] {
        let why = message(|k| k.max_registers(registers));
        assert!(why.contains("16 to 255 are possible"), "{why}");
    }
}

#[test]
fn tiles_that_cannot_be_laid_out() {
    let tile = |shape: TileShape| message(|k| _ = k.shared_tile::<f16>("p", shape).rows());
    assert!(tile(TileShape::new(0, 64)).contains("tile `p` has no elements"));
    assert!(tile(TileShape::new(8, 0).swizzled(Swizzle::B128)).contains("has no elements"));
    assert!(tile(TileShape::new(8, 8).stages(0)).contains("has no elements"));
    assert!(tile(TileShape::new(8, 3)).contains("a row of tile `p` takes 6 bytes"));
    let text = tile(TileShape::new(8, 72).swizzled(Swizzle::B128));
    assert!(
        text.contains("takes 144 bytes; it must divide or be a multiple of 128"),
        "{text}"
    );
    let text = tile(TileShape::new(1 << 20, 1 << 20));
    assert!(text.contains("takes 2199023255552 bytes"), "{text}");

    let text = message(|k| {
        let small = k.shared_tile::<f32>("small", TileShape::new(8, 8));
        k.shared_tile_reusing::<f32, _>("large", TileShape::new(8, 16), small);
    });
    assert_eq!(
        text,
        "tile `large` needs 512 bytes aligned to 16; `small`, which it reuses, has 256 bytes at offset 0"
    );
}
