//! Tiles that all cost the same, in equal pieces.

use super::*;

/// Where blocks begin among tiles that are left for the last round, if all of the line cost the same, a block has
/// `round_robin` before, and none would be much longer than `each`.
pub(super) fn cuts(
    left: &[([u32; 3], Tile<i64>)],
    [total, each, least]: [u64; 3],
    grid: usize,
    round_robin: u64,
) -> Option<Vec<u64>> {
    let largest = left.iter().map(|(_, tile)| cost(tile)).max()?;
    let all = left.len() as u64 + round_robin * grid as u64;
    if left.len() > grid || total != largest * all {
        return None;
    }
    let pieces = grid / left.len();
    let piece = (largest - TILE_COST).div_ceil(pieces as u64).max(least);
    let cut = |block: usize| {
        let tile = (block / pieces) as u64 * largest;
        match (block % pieces) as u64 {
            0 => tile,
            number => tile + (number * piece + TILE_COST).min(largest),
        }
    };
    (round_robin * largest + piece <= each + each / u64::from(UNEVEN)).then(|| (0..grid).map(cut).collect())
}

/// The K blocks of the items of each block, for so many sequences of a row and as many keys each.
fn blocks_of_items(batch: usize, keys: usize, grid: u32) -> Vec<Vec<u32>> {
    let problem = Problem::builder()
        .batch(batch)
        .heads(32, 8)
        .head_dim(128)
        .seq_len_q(1)
        .seq_len_kv(keys)
        .kv_lengths(KvLengths::Cache);
    let problem = problem.build().unwrap();
    let pieces = Pieces {
        rows: 16,
        cols: 64,
        heads: TileHeads::Dense,
        least: 2,
    };
    let schedule = Schedule::new("test", &problem, pieces, grid).unwrap();
    let lengths = Lengths {
        seqused_k: Some(vec![keys as i32; batch]),
        ..Lengths::default()
    };
    let made = on_device(&problem, &schedule, &lengths);
    assert_eq!(made, on_host(&problem, &schedule, &lengths));
    let of_block = |items: &Vec<[u32; WORDS]>| items.iter().map(|words| words[7] & 0xffff).collect();
    made.items.iter().map(of_block).collect()
}

#[test]
fn blocks_have_equal_pieces_of_one_tile() {
    for (batch, keys, grid, pieces, blocks) in [
        (1, 32768, 264, 256, 16),
        (1, 32768, 132, 128, 32),
        (1, 4096, 132, 128, 4),
        (8, 4096, 264, 256, 16),
    ] {
        let made = blocks_of_items(batch, keys, grid);
        assert!(made.iter().all(|items| items.is_empty() || items[..] == [blocks]));
        assert_eq!(made.concat().len(), pieces);
    }
    // 24 blocks would have nothing to do, and the others a tenth more.
    assert!(blocks_of_items(5, 4096, 264).iter().any(|items| items.len() == 2));
    // Each block has a whole tile round-robin, and another whole one to most.
    let whole = blocks_of_items(64, 4096, 264);
    assert!(whole.iter().flatten().all(|&blocks| blocks == 64));
}
