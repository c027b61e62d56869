//! Splits of a given number of keys ([`Problem::batch_invariant`]).

use super::*;

/// Windows past the last key: their tiles have one K block, of which nothing is seen, and leave the other sequences
/// their row tiles and slots.
#[test]
fn windows_past_the_last_key_take_no_splits() {
    let problem = Problem::builder()
        .batch(2)
        .heads(2, 2)
        .head_dim(64)
        .seq_len_q(128)
        .seq_len_kv(64)
        .kv_lengths(KvLengths::Cache)
        .mask(Mask::window(Some(8), Some(0)).top_left())
        .batch_invariant(64)
        .build()
        .unwrap();
    let pieces = Pieces {
        rows: 128,
        cols: 64,
        heads: TileHeads::One,
        least: 1,
    };
    let schedule = Schedule::new("test", &problem, pieces, 4).unwrap();
    let mut lengths = random_lengths(&problem, 0);
    lengths.seqused_k = Some(vec![64, 64]);
    let lists = on_device(&problem, &schedule, &lengths);
    let items = lists.items.iter().flatten();
    let mut tiles: Vec<_> = items
        .map(|item| (item[0] & 0xffff, item[1] & 0xffff, item[7]))
        .collect();
    tiles.sort_unstable();
    assert_eq!(tiles, [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]);
}
