//! Tiles for tensor copies and warpgroup products: what is derived from them, and what does not
//! build.

use flashcore_ir::inst::WgmmaInst;
use flashcore_ir::{E4M3, Inst, Kernel, KernelBuilder, Operand, ParamKind, Role, Swizzle, TileShape};
use half::f16;

/// The messages of a kernel that does not build, a line each.
fn message(threads: u32, body: impl FnOnce(&KernelBuilder)) -> String {
    let errors = Kernel::build("k", threads, body).expect_err("it must not build");
    let messages: Vec<String> = errors.errors.iter().map(|error| error.kind.to_string()).collect();
    messages.join("\n")
}

fn slabs(rows: u32, cols: u32) -> TileShape {
    TileShape::new(rows, cols).swizzled(Swizzle::B128).in_slabs()
}

#[test]
fn every_element_of_a_slabbed_tile_has_a_place_of_its_own() {
    for (swizzle, rows, cols, stages) in [
        (Swizzle::B128, 16, 192, 2),
        (Swizzle::B64, 24, 96, 1),
        (Swizzle::B32, 8, 16, 3),
        (Swizzle::None, 5, 12, 2),
    ] {
        let kernel = Kernel::build("k", 32, |k| {
            let shape = TileShape::new(rows, cols).swizzled(swizzle).stages(stages);
            k.shared_tile::<f16>(
                "tile",
                if swizzle == Swizzle::None {
                    shape
                } else {
                    shape.in_slabs()
                },
            );
        })
        .unwrap();
        let tile = &kernel.ledger().buffers[0];
        let mut seen = vec![false; tile.bytes as usize / 2];
        for stage in 0..stages {
            for row in 0..rows {
                for col in 0..cols {
                    let offset = tile.element_offset(stage, row, col);
                    assert!(!std::mem::replace(&mut seen[offset as usize / 2], true));
                    assert_eq!(tile.element_at(offset), (stage, row, col), "{swizzle:?}");
                }
            }
        }
    }
}

/// Lower and upper words of the descriptors of a product's operands, A then B, step by step, for a
/// tile that begins at byte 1,024 of shared memory; the lower one as what is added to the first
/// step's.
fn descriptors(body: impl FnOnce(&KernelBuilder)) -> Vec<(u64, u64)> {
    let kernel = Kernel::build("k", 128, |k| {
        k.shared_tile::<f32>("before", TileShape::new(1, 4));
        body(k);
    })
    .unwrap();
    let mut adds = std::collections::HashMap::new();
    let mut packs = std::collections::HashMap::new();
    let mut found = Vec::new();
    kernel.for_each_inst(&mut |inst, _| match inst {
        Inst::Bin {
            dst,
            a: Operand::Reg(_),
            b: Operand::Imm(n),
            ..
        } => {
            adds.insert(*dst, *n);
        }
        Inst::Pack {
            dst,
            lo: Operand::Reg(lo),
            hi: Operand::Imm(hi),
        } => {
            packs.insert(Operand::Reg(*dst), (adds[lo], *hi));
        }
        Inst::Wgmma(WgmmaInst::Mma { b, .. }) => found.push(packs[&b.bits]),
        _ => {}
    });
    found
}

/// The numbers of GPU-tested kernels: 128-byte swizzle, groups of 8 rows 1,024 bytes apart, 32
/// bytes a step.
#[test]
fn descriptors_follow_from_tiles() {
    let mode = |mode: u64, stride: u64| (stride / 16) | (mode << 30);
    let k_major = descriptors(|k| {
        let tile = k.shared_tile::<f16>("k", slabs(64, 128));
        k.wgmma_ss(k.acc("s", 8), tile.k_major(), tile.k_major(), false);
    });
    // The first is the leading offset, which has no meaning here; then 32-byte steps, then the next
    // slab.
    let adds: Vec<u64> = k_major.iter().map(|d| d.0).collect();
    assert_eq!(adds, [1 << 16, 2, 4, 6, 512, 514, 516, 518]);
    assert!(k_major.iter().all(|d| d.1 == mode(1, 1024)));

    // Some of the steps are those of the whole: the last three here.
    let some = descriptors(|k| {
        let tile = k.shared_tile::<f16>("k", slabs(64, 128)).k_major().steps_of(5..8);
        k.wgmma_ss(k.acc("s", 8), tile, tile, false);
    });
    let adds: Vec<u64> = some.iter().map(|d| d.0).collect();
    assert_eq!(adds, [514, 516, 518]);

    let mn_major = descriptors(|k| {
        let a = k.shared_tile::<f16>("p", slabs(64, 64));
        let v = k.shared_tile::<f16>("v", slabs(64, 128));
        k.wgmma_ss(k.acc("o", 16), a.k_major(), v.mn_major(), false);
    });
    // Slabs of 64 columns are 64 rows of 128 bytes apart; 16 rows a step.
    let adds: Vec<u64> = mn_major.iter().map(|d| d.0).collect();
    assert_eq!(adds, [(64 * 128 / 16) << 16, 128, 256, 384]);
    assert!(mn_major.iter().all(|d| d.1 == mode(1, 1024)));

    for (swizzle, cols, code) in [(Swizzle::B64, 32, 2), (Swizzle::B32, 16, 3)] {
        let found = descriptors(|k| {
            let tile = k.shared_tile::<f16>("k", TileShape::new(64, cols).swizzled(swizzle));
            k.wgmma_ss(k.acc("s", 8), tile.k_major(), tile.k_major(), false);
        });
        assert!(found.iter().all(|d| d.1 == mode(code, u64::from(16 * cols))));
        assert_eq!(found.len() as u32, cols / 16);
    }
}

#[test]
fn operands_that_no_product_takes_do_not_build() {
    let product = |shape: TileShape| {
        message(128, |k| {
            let tile = k.shared_tile::<f16>("tile", shape);
            k.wgmma_ss(k.acc("s", 8), tile.k_major(), tile.k_major(), false);
        })
    };
    assert!(product(TileShape::new(64, 64)).contains("needs a swizzle"));
    assert!(product(TileShape::new(64, 128).swizzled(Swizzle::B128)).contains("as wide as it"));
    let text = message(128, |k| {
        let tile = k.shared_tile::<f16>("tile", slabs(64, 64));
        let half = k.shared_tile::<f16>("half", slabs(32, 64));
        k.wgmma_ss(k.acc("s", 8), tile.k_major(), half.k_major(), false);
    });
    assert!(text.contains("64 columns for an operand B of 32"), "{text}");
    let text = message(128, |k| {
        let tile = k.shared_tile::<f16>("tile", slabs(64, 64));
        k.wgmma_ss(k.acc("s", 4), tile.k_major(), tile.mn_major().rows(0, 32), false);
    });
    assert!(text.contains("A has 4 steps of k, operand B 2"), "{text}");
    for steps in [2..5, 2..2] {
        let text = message(128, |k| {
            let tile = k.shared_tile::<f16>("tile", slabs(64, 64)).k_major().steps_of(steps);
            k.wgmma_ss(k.acc("s", 8), tile, tile, false);
        });
        assert!(text.contains("of an operand that has 4"), "{text}");
    }
    let text = message(128, |k| {
        let tile = k.shared_tile::<f16>("tile", slabs(64, 64));
        k.wgmma_ss(k.acc("s", 8), tile.k_major().rows(0, 32), tile.k_major(), false);
    });
    assert!(text.contains("takes 64"), "{text}");
    let text = message(128, |k| {
        let tile = k.shared_tile::<E4M3>("tile", slabs(128, 128));
        k.wgmma_ss(k.acc("s", 8), tile.k_major(), tile.mn_major(), false);
    });
    assert!(text.contains("only 16-bit ones"), "{text}");
    let text = message(96, |k| {
        let tile = k.shared_tile::<f16>("tile", slabs(64, 64));
        k.wgmma_ss(k.acc("s", 8), tile.k_major(), tile.k_major(), false);
    });
    assert!(text.contains("96 threads"), "{text}");
    let text = message(128, |k| {
        let tile = k.shared_tile::<f16>("tile", slabs(64, 64));
        k.if_(k.lane().lt(16).divergent(), || k.wgmma_wait(0));
        let _ = tile;
    });
    assert!(text.contains("all lanes"), "{text}");
}

#[test]
fn boxes_must_be_those_of_the_tile() {
    let boxes = |shape: TileShape, outer: &'static [u32]| {
        message(32, move |k| {
            k.shared_tile::<f16>("tile", shape).tensor_box(outer);
        })
    };
    assert!(boxes(slabs(64, 128), &[72]).contains("it has 64"));
    assert!(boxes(slabs(512, 64), &[512]).contains("at most 256"));
    assert!(boxes(TileShape::new(64, 64).padded(8), &[64]).contains("padded"));
    assert!(boxes(TileShape::new(64, 128).swizzled(Swizzle::B128), &[64]).contains("in_slabs"));
    assert!(boxes(TileShape::new(64, 512), &[64]).contains("at most 256 elements"));
    let text = message(32, |k| {
        let q = k.shared_tile::<f16>("q", slabs(64, 64));
        let other = k.shared_tile::<f16>("other", slabs(32, 64));
        let map = k.param_tensor_map("map", other.tensor_box(&[32]));
        q.load_tma(0, map.at(&[k.lane()]), k.mbarriers("bar", 1).at(0));
    });
    assert!(
        text.contains("`q` (64 rows") && text.contains("boxes of [64, 32]"),
        "{text}"
    );
    // A box that a part of the tile has room for.
    let in_parts = |rows: Option<u32>| {
        move |k: &KernelBuilder| {
            let q = k.shared_tile::<f16>("q", slabs(128, 64));
            let map = k.param_tensor_map("map", q.tensor_box(&[5, 12]));
            let map = rows.map_or(map, |rows| map.in_parts_of(rows));
            assert_eq!((map.box_rows(), map.bytes_of(&q)), (60, 60 * 128));
            let at = map.at(&[k.lane(), k.lane()]);
            q.load_tma_part(0, 1, at, k.mbarriers("bar", 1).at(0));
        }
    };
    assert!(message(32, in_parts(None)).contains("in parts of 60 rows"));
    assert!(message(32, in_parts(Some(32))).contains("must have room for a box"));
    let ptx = Kernel::build("k", 32, in_parts(Some(64))).unwrap().to_ptx();
    assert!(ptx.contains("cp.async.bulk.tensor.3d"), "{ptx}");
    let text = message(32, |k| {
        let q = k.shared_tile::<f16>("q", slabs(64, 64));
        let map = k.param_tensor_map("map", q.tensor_box(&[64]));
        q.store_tma(0, map.at(&[k.lane()]));
    });
    assert!(text.contains("param_tensor_map_mut"), "{text}");
    let text = message(32, |k| {
        let q = k.shared_tile::<f16>("q", slabs(64, 64));
        let map = k.param_tensor_map("map", q.tensor_box(&[64]));
        q.load_tma(0, map.at(&[k.lane(), k.lane()]), k.mbarriers("bar", 1).at(0));
    });
    assert!(text.contains("2 coordinates"), "{text}");
}

#[test]
fn a_parameter_carries_the_boxes_of_its_tile() {
    let kernel = Kernel::build("k", 32, |k| {
        let q = k.shared_tile::<f16>("q", slabs(64, 192));
        k.param_tensor_map("q_map", q.tensor_box(&[32, 2, 1]));
    })
    .unwrap();
    let boxes = kernel.tensor_box("q_map").unwrap();
    assert_eq!((boxes.dims(), boxes.bytes()), (&[64, 32, 2, 1][..], 8192));
    assert!(matches!(
        kernel.params()[0].kind,
        ParamKind::TensorMap { writable: false, .. }
    ));
    assert_eq!(kernel.tensor_box("q"), None);
    let recipe = boxes.recipe(2, 64, vec![192, 100, 4, 1], vec![1536, 384, 153_600]);
    assert_eq!((recipe.slot, recipe.box_dims), (2, vec![64, 32, 2, 1]));
}

#[test]
fn registers_come_from_one_pool() {
    let roles = |first: u32, second: u32, bounded: bool| {
        move |k: &KernelBuilder| {
            if bounded {
                k.min_blocks_per_sm(1);
            }
            k.roles(vec![
                Role::new("producer", 4, || ()).registers(first),
                Role::new("consumer", 8, || ()).registers(second),
            ]);
        }
    };
    let kernel = Kernel::build("k", 384, roles(24, 240, true)).unwrap();
    let mut set = Vec::new();
    kernel.for_each_inst(&mut |inst, _| {
        if let Inst::SetMaxRegs { regs, raise } = inst {
            set.push((*regs, *raise));
        }
    });
    assert_eq!(set, [(24, false), (240, true)]);
    let text = message(384, roles(40, 240, true));
    assert!(
        text.contains("66560 registers (128 × 40 for `producer`, 256 × 240 for `consumer`)")
            && text.contains("384 threads × 168 = 64512"),
        "{text}"
    );
    assert!(message(384, roles(24, 240, false)).contains("without `min_blocks_per_sm`"));
    assert!(message(384, roles(24, 236, true)).contains("multiples of 8"));
    let text = message(256, |k| k.roles(vec![Role::new("only", 4, || ())]));
    assert!(text.contains("4 warps together; the block has 8"), "{text}");
    let text = message(192, |k| {
        k.min_blocks_per_sm(1);
        k.roles(vec![Role::new("a", 4, || ()), Role::new("b", 2, || ()).registers(24)]);
    });
    assert!(
        text.contains("does not say") && text.contains("warpgroup of 4"),
        "{text}"
    );
}

#[test]
fn pipelines_and_clusters_say_what_they_can_be() {
    assert!(message(64, |k| _ = k.pipeline("p", 2, 3)).contains("the block has 2"));
    assert!(message(64, |k| _ = k.pipeline("p", 2, 1).across_cluster()).contains("in_clusters_of"));
    assert!(message(64, |k| k.in_clusters_of(9)).contains("1 to 8"));
    assert!(message(64, |k| _ = k.mbarriers("bars", 2).at(2)).contains("mbarrier 2 of 2"));
    assert!(message(64, |k| k.mbarriers("bars", 1).at(0).init(0)).contains("1 to 1048575"));
    let kernel = Kernel::build("k", 128, |k| {
        k.in_clusters_of(2);
        let ring = k.pipeline("ring", 3, 4).across_cluster();
        k.start_pipelines(&[ring]);
        assert_eq!(ring.stages(), 3);
    })
    .unwrap();
    // One arrival fills a stage; four warps of two blocks release it.
    let ptx = kernel.to_ptx();
    assert_eq!(ptx.matches("mbarrier.init.shared::cta.b64").count(), 6);
    assert_eq!(ptx.matches(", 8;").count(), 3, "{ptx}");
    assert!(ptx.contains(".reqnctapercluster 2, 1, 1") && ptx.contains("barrier.cluster.wait"));
}
