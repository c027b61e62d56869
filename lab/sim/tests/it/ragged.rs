//! Ragged tensor maps: copies end with their sequence, whatever follows it, in packed tensors, caches and pages.

use crate::common;

use common::{Case, found};
use flashcore_ir::launch::TensorMapProblem;
use flashcore_ir::{Arg, BufferSpec, Kernel, Swizzle, TensorBox, TensorMapRecipe, TileShape};
use flashcore_sim::FindingKind;
use half::f16;

const HEADS: u64 = 2;
const DIM: u64 = 64;
/// Rows of a box, and of all boxes of a sequence.
const BOX: u32 = 8;
const COVERED: u32 = 24;

/// Rows of a tensor, and their strides in elements: of rows and of heads.
#[derive(Clone, Copy)]
struct Rows {
    count: u64,
    stride: u64,
    head_stride: u64,
}

impl Rows {
    fn elements(self) -> usize {
        ((self.count - 1) * self.stride + (HEADS - 1) * self.head_stride + DIM) as usize
    }

    fn place(self, row: u64, head: u64) -> usize {
        (row * self.stride + head * self.head_stride) as usize
    }
}

/// A block for each (first row, rows) of `sequences` and head: copies all rows of the sequence to `copy`, box by box,
/// and the boxes as they are to `boxes`.
fn copies(rows: Rows, sequences: &[[u32; 2]]) -> Case {
    let values: Vec<f16> = (0..rows.elements()).map(|i| f16::from_bits(1 + i as u16)).collect();
    let untouched = vec![f16::NAN; rows.elements()];
    let dims = || vec![DIM, rows.count, HEADS];
    let strides = || vec![2 * rows.stride, 2 * rows.head_stride];
    let table: Vec<u32> = sequences.iter().flatten().copied().collect();
    Case::new(32, |k| {
        let tile = k.shared_tile::<f16>("tile", TileShape::new(BOX, 64).swizzled(Swizzle::B128));
        let ragged = tile.tensor_box(&[BOX, 1]).ragged(1);
        let (from, to) = (k.param_tensor_map("from", ragged), k.param_tensor_map_mut("to", ragged));
        let (table, boxes) = (k.param_ptr::<u32>("table"), k.param_ptr_mut::<f16>("boxes"));
        let bar = k.mbarriers("bar", 1).at(0);
        let (sequence, head) = (k.block_idx(0) / HEADS as u32, k.block_idx(0) % HEADS as u32);
        let [first, len] = [0, 1].map(|word| table.offset(sequence * 2).plus(word).load());
        let leader = k.lane().eq(0);
        k.if_(leader.divergent(), || {
            bar.init(1);
            k.fence_mbarrier_init();
        });
        k.sync_warp();
        for index in 0..COVERED / BOX {
            let row = k.constant(index * BOX);
            k.if_(leader.divergent(), || {
                bar.arrive_expecting(tile.stage_bytes());
                tile.load_tma(0, from.rows(first, len).at(&[row, head]), bar);
            });
            k.sync_warp();
            bar.wait(index & 1);
            let of_block = boxes.offset(k.block_idx(0) * (COVERED * 64) + row * 64);
            k.for_divergent(k.lane(), BOX * 64, 32, |i| {
                of_block.offset(i).store(tile.at(i / 64, i % 64u32).load());
            });
            k.fence_proxy_async();
            k.sync_warp();
            k.if_(leader.divergent(), || {
                tile.store_tma(0, to.rows(first, len).at(&[row, head]));
                k.bulk_commit();
                k.bulk_wait_read(0);
            });
            k.sync_warp();
        }
    })
    .grid(sequences.len() as u32 * HEADS as u32)
    .tensor_of("from", &values, dims(), strides(), false)
    .tensor_of("to", &untouched, dims(), strides(), true)
    .input("table", &table)
    .output("boxes", sequences.len() * (HEADS as u32 * COVERED * 64 * 2) as usize)
}

fn bits(bytes: &[u8]) -> Vec<u16> {
    let words = bytes.chunks_exact(2);
    words.map(|w| u16::from_le_bytes([w[0], w[1]])).collect()
}

/// What must be in `to` and in `boxes` if the sequences are these.
fn expected(rows: Rows, sequences: &[[u32; 2]]) -> (Vec<u16>, Vec<u16>) {
    let (mut to, mut boxes) = (vec![f16::NAN.to_bits(); rows.elements()], Vec::new());
    for &[first, len] in sequences {
        for head in 0..HEADS {
            for row in 0..COVERED {
                let place = rows.place(u64::from(first + row), head);
                let of_row = (place..place + DIM as usize).map(|at| if row < len { 1 + at as u16 } else { 0 });
                boxes.extend(of_row.clone());
                if row < len {
                    to[place..][..DIM as usize].copy_from_slice(&of_row.collect::<Vec<_>>());
                }
            }
        }
    }
    (to, boxes)
}

const PACKED: Rows = Rows {
    count: 45,
    stride: HEADS * DIM,
    head_stride: DIM,
};
const SEQUENCES: [[u32; 2]; 6] = [[0, 5], [5, 0], [5, 1], [6, 16], [22, 17], [39, 6]];

#[test]
fn copies_end_with_their_sequence() {
    // A cache [batch 3, heads 2, seq 11, head_dim]: batches are 22 rows apart. Pages of 8 rows with padding between
    // them.
    let cache = Rows {
        count: 2 * 22 + 11,
        stride: DIM,
        head_stride: 11 * DIM,
    };
    let pages = Rows {
        count: 3 * 9,
        stride: HEADS * 72,
        head_stride: 72,
    };
    for (rows, sequences) in [
        (PACKED, &SEQUENCES[..]),
        (cache, &[[44, 11], [0, 7], [22, 1]]),
        (pages, &[[18, 3], [0, 8]]),
    ] {
        let mut case = copies(rows, sequences);
        case.run_clean();
        let (to, boxes) = expected(rows, sequences);
        assert!(bits(&case.buffers[1]) == to && bits(&case.buffers[3]) == boxes);
    }
}

#[test]
fn a_wrong_length_reads_and_writes_the_neighbour() {
    for (sequence, wrong) in [(0, [0, 6]), (0, [0, 4]), (3, [6, 17]), (3, [7, 16])] {
        let mut sequences = SEQUENCES;
        sequences[sequence] = wrong;
        let mut case = copies(PACKED, &sequences);
        case.run();
        let (_, boxes) = expected(PACKED, &SEQUENCES);
        assert!(bits(&case.buffers[3]) != boxes, "{wrong:?}");
    }
}

#[test]
fn rows_outside_the_buffer_are_found() {
    for outside in [[39, 7], [45, 1], [1 << 29, 8], [u32::MAX, 3]] {
        let finding = found(copies(PACKED, &[outside]), &[FindingKind::OutOfBounds], 1);
        let line = finding.line().map(|line| line.file.to_string());
        assert!(line.is_some_and(|file| file.ends_with("ragged.rs")), "{finding}");
        assert!(finding.to_string().contains("`from`"), "{finding}");
    }
}

#[test]
fn maps_that_cannot_be_ragged_are_refused() {
    let boxes = TensorBox {
        element: flashcore_ir::ScalarType::F16,
        rank: 3,
        dims: [64, 8, 1, 1, 1],
        swizzle: Swizzle::B128,
        ragged: Some(1),
    };
    let buffer = BufferSpec {
        name: "k",
        bytes: 1 << 40,
        written: false,
        align: 16,
    };
    let check = |change: fn(&mut TensorMapRecipe)| {
        let mut recipe = boxes.recipe(0, 0, vec![64, 1000, 2], vec![256, 128]);
        change(&mut recipe);
        recipe.check(&buffer)
    };
    assert_eq!(check(|_| ()), Ok(()));
    let rank = Err(TensorMapProblem::RaggedRank { dim: 3, rank: 3 });
    assert_eq!(check(|recipe| recipe.ragged = Some(3)), rank);
    let rows = |rows, stride| Err(TensorMapProblem::RaggedRows { rows, stride });
    assert_eq!(check(|recipe| recipe.dims[1] = (1 << 30) + 1), rows((1 << 30) + 1, 256));
    assert_eq!(check(|recipe| recipe.byte_strides[0] = 1 << 34), rows(1000, 1 << 34));
    let reach = check(|recipe| recipe.byte_strides[0] = 1 << 33);
    assert!(matches!(reach, Err(TensorMapProblem::Reach { .. })), "{reach:?}");

    let errors = Kernel::build("plain", 32, |k| {
        let tile = k.shared_tile::<f16>("tile", TileShape::new(8, 64));
        let (plain, zero) = (tile.tensor_box(&[8, 1]), k.constant(0u32));
        k.param_tensor_map("plain", plain).rows(zero, zero);
        k.param_tensor_map("ragged", plain.ragged(2)).at(&[zero, zero]);
        k.param_tensor_map("outside", plain.ragged(3));
        k.param_tensor_map("rank", tile.tensor_box(&[8, 1, 1]).ragged(1));
    });
    let text = errors.unwrap_err().to_string();
    for part in [
        "that is not ragged",
        "of which sequence",
        "of 3 dimensions with rows along dimension 3",
        "of 4 dimensions",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_launch_whose_map_is_not_ragged_is_refused() {
    let mut case = copies(PACKED, &SEQUENCES);
    if let Arg::TensorMap(recipe) = &mut case.args[0] {
        recipe.ragged = None;
    }
    let launch = case.launch();
    let error = flashcore_sim::simulate(&case.kernel, &launch, &mut case.buffers, &case.options).unwrap_err();
    assert!(error.to_string().contains("`from`"), "{error}");
}
