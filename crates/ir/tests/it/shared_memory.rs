//! The ledger: where buffers lie, what padding costs, what reuse saves.

use flashcore_ir::inst::Object;
use flashcore_ir::{BufferId, Inst, Kernel, KernelBuilder, Swizzle, TileShape};
use half::{bf16, f16};

fn build(body: impl FnOnce(&KernelBuilder)) -> Kernel {
    Kernel::build("k", 128, body).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The tiles of a pipelined kernel: staged, swizzled, padded, reused.
fn attention_tiles() -> Kernel {
    build(|k| {
        let bias = k.shared_tile::<f32>("bias", TileShape::new(1, 3));
        let q = k.shared_tile::<f16>("q", TileShape::new(64, 64).swizzled(Swizzle::B128));
        k.shared_tile::<f16>("k", TileShape::new(64, 64).swizzled(Swizzle::B128).stages(2));
        k.shared_tile::<bf16>("v", TileShape::new(64, 64).padded(8).stages(2));
        k.shared_tile_reusing::<f32, _>("partial_sums_of_all_warps", TileShape::new(16, 64), q);
        assert_eq!((bias.rows(), bias.cols(), bias.stages()), (1, 3, 1));
        assert_eq!(bias.row_stride(), 3);
    })
}

#[test]
fn buffers_lie_where_alignment_puts_them() {
    let kernel = attention_tiles();
    let ledger = kernel.ledger();
    let places: Vec<_> = ledger
        .buffers
        .iter()
        .map(|b| (b.name.as_str(), b.offset, b.bytes, b.gap_before, b.padding_bytes()))
        .collect();
    assert_eq!(
        places,
        [
            ("bias", 0, 16, 0, 4),
            ("q", 1024, 8192, 1008, 0),
            ("k", 9216, 16_384, 0, 0),
            ("v", 25_600, 18_432, 0, 2048),
            ("partial_sums_of_all_warps", 1024, 4096, 0, 0),
        ]
    );
    assert_eq!((ledger.total_bytes(), ledger.align()), (44_032, 1024));
    assert_eq!(ledger.get(BufferId(2)).stage_bytes(), 8192);
    let at = |byte| ledger.at(byte).map(|b| b.name.as_str()).collect::<Vec<_>>();
    assert_eq!(at(1024), ["q", "partial_sums_of_all_warps"]);
    assert_eq!(at(8000), ["q"]);
    assert_eq!(at(500), [""; 0]);
}

/// The case that cost a month elsewhere: 57,376 bytes of static shared memory, counted to the byte.
#[test]
fn static_memory_is_declared_with_its_size() {
    let kernel = build(|k| {
        k.static_shared_memory();
        k.shared_tile::<f16>("q", TileShape::new(64, 64));
        k.shared_tile::<f16>("k", TileShape::new(64, 64).stages(2));
        k.shared_tile::<f32>("scores", TileShape::new(32, 64).stages(2).stages(4));
        k.shared_tile::<f32>("row_max", TileShape::new(1, 8));
    });
    assert_eq!(kernel.ledger().total_bytes(), 57_376);
    let ptx = kernel.to_ptx();
    assert!(ptx.contains(".shared .align 16 .b8 shared_memory[57376];"), "{ptx}");
    assert!(
        attention_tiles()
            .to_ptx()
            .contains(".extern .shared .align 1024 .b8 shared_memory[];")
    );
    assert!(!build(|_| ()).to_ptx().contains(".shared"));
}

#[test]
fn swizzles_permute_each_span_and_undo_themselves() {
    for swizzle in [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128] {
        let span = swizzle.alignment();
        let mut seen = vec![false; span as usize];
        for offset in 0..16 * span {
            let moved = swizzle.apply(offset);
            assert_eq!(swizzle.apply(moved), offset, "{swizzle:?}");
            assert_eq!(
                moved / span,
                offset / span,
                "{swizzle:?} stays within what it is aligned to"
            );
            assert_eq!(moved % 16, offset % 16, "{swizzle:?} moves whole 16-byte chunks");
            seen[(moved % span) as usize] = true;
        }
        assert!(seen.into_iter().all(|hit| hit));
    }
}

/// A column of 16-byte chunks, 8 rows of 128 bytes: the access of ldmatrix.
#[test]
fn the_128_byte_swizzle_spreads_a_column_over_all_banks() {
    let kernel = attention_tiles();
    let banks = |buffer: u32, col: u32| {
        let tile = kernel.ledger().get(BufferId(buffer));
        let mut banks: Vec<u32> = (0..8).map(|row| tile.element_offset(1, row, col) / 16 % 8).collect();
        banks.sort_unstable();
        banks
    };
    for col in (0..64).step_by(8) {
        assert_eq!(banks(2, col), [0, 1, 2, 3, 4, 5, 6, 7], "swizzled");
        assert_eq!(banks(3, col), [0, 1, 2, 3, 4, 5, 6, 7], "padded by 16 bytes");
    }
}

#[test]
fn accesses_say_which_buffer_they_mean() {
    let kernel = build(|k| {
        let first = k.shared_tile::<f32>("first", TileShape::new(4, 4));
        let second = k.shared_tile::<f32>("second", TileShape::new(4, 4).stages(3));
        first.at(1, 2).store(0.0);
        second.at_stage(2, 3, 1).store(0.0);
        assert_eq!(second.stage_bytes(), 64);
    });
    let mut stores = Vec::new();
    kernel.for_each_inst(&mut |inst, _| {
        if let Inst::St { addr, .. } = inst {
            stores.push((addr.object, addr.offset));
        }
    });
    // What is constant within a tile is added to the base; its place in the ledger is the offset.
    assert_eq!(
        stores,
        [(Object::Shared(BufferId(0)), 0), (Object::Shared(BufferId(1)), 64)]
    );
}
