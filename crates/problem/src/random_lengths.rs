//! Random values of lengths for fuzz tests.

use crate::rng::Rng;
use crate::{KvLengths, Lengths, Problem, QLengths, Sequence};

/// Draws of which none has a row that sees two keys, until one is taken as it is.
const TRIES: usize = 8;

/// Values of the lengths of a problem, drawn from a seed: 0, 1 and the bound occur often, packed
/// sequences leave rows at the end, pages lie in any order and are shared if they are few, and pages
/// that no row sees are sometimes missing. Entries of the block table past the last key are −1 or
/// lie outside the cache. In most problems some row sees two keys or more, if the mask lets it.
///
/// ```
/// use flashcore_problem::{KvLengths, Problem, random_lengths};
/// let problem = Problem::builder().batch(4).heads(1, 1).seq_len(100).head_dim(64);
/// let problem = problem.kv_lengths(KvLengths::Cache).build()?;
/// let lengths = random_lengths(&problem, 1);
/// assert_eq!(problem.sequences(&lengths.as_slices())?.len(), 4);
/// assert!(lengths.seqused_k.is_some() && lengths.block_table.is_none());
/// # Ok::<(), flashcore_problem::ProblemError>(())
/// ```
pub fn random_lengths(problem: &Problem, seed: u64) -> Lengths<Vec<i32>> {
    let mut rng = Rng::stream(seed, 7);
    let mixes_keys = |lengths: &Lengths<Vec<i32>>| {
        let sequences = problem.sequences(&lengths.as_slices());
        sequences.is_ok_and(|all| all.iter().any(Sequence::mixes_keys))
    };
    for _ in 1..TRIES {
        let lengths = draw(problem, &mut rng);
        if mixes_keys(&lengths) || rng.below(8) == 0 {
            return lengths;
        }
    }
    draw(problem, &mut rng)
}

fn draw(problem: &Problem, rng: &mut Rng) -> Lengths<Vec<i32>> {
    let (batch, most_q, most_kv) = (problem.batch(), problem.seq_len_q(), problem.seq_len_kv());
    let mut lengths = Lengths::default();
    if let QLengths::Packed { total, used } = problem.q_lengths() {
        let (starts, rows) = draw_packed(rng, batch, total, most_q, used);
        (lengths.cu_seqlens_q, lengths.seqused_q) = (Some(starts), used.then_some(rows));
    }
    match problem.kv_lengths() {
        KvLengths::Equal => {}
        KvLengths::Packed { total, used } => {
            let (starts, rows) = draw_packed(rng, batch, total, most_kv, used);
            (lengths.cu_seqlens_k, lengths.seqused_k) = (Some(starts), used.then_some(rows));
        }
        KvLengths::Cache => lengths.seqused_k = Some((0..batch).map(|_| rng.up_to(most_kv) as i32).collect()),
        KvLengths::Paged {
            page_size,
            pages,
            max_pages,
        } => {
            let used: Vec<i32> = (0..batch).map(|_| rng.up_to(most_kv) as i32).collect();
            let filled = |b: usize| (used[b] as usize).div_ceil(page_size);
            let needed: usize = (0..batch).map(filled).sum();
            let mut free: Vec<usize> = if needed <= pages {
                (0..pages).collect()
            } else {
                Vec::new()
            };
            let mut entry = |i: usize, filled: usize| match free.len() {
                _ if i >= filled => [-1, pages as i32, i32::MAX][rng.below(3)],
                0 => rng.below(pages) as i32,
                left => free.swap_remove(rng.below(left)) as i32,
            };
            let table = (0..batch * max_pages).map(|at| entry(at % max_pages, filled(at / max_pages)));
            (lengths.block_table, lengths.seqused_k) = (Some(table.collect()), Some(used.clone()));
            remove_unseen(problem, &mut lengths, page_size, max_pages);
        }
    }
    lengths
}

/// Takes away every page that no row of its sequence sees.
fn remove_unseen(problem: &Problem, lengths: &mut Lengths<Vec<i32>>, page_size: usize, max_pages: usize) {
    let seen = problem.sequences(&lengths.as_slices()).unwrap_or_default();
    let seen: Vec<_> = seen.iter().map(|sequence| sequence.seen()).collect();
    let table = lengths
        .block_table
        .iter_mut()
        .flat_map(|table| table.chunks_mut(max_pages));
    for (table, seen) in table.zip(seen) {
        for (i, page) in table.iter_mut().enumerate().skip(seen.end.div_ceil(page_size)) {
            *page = if i % 2 == 0 { -1 } else { *page };
        }
        table[..seen.start / page_size].fill(-1);
    }
}

/// Starts of packed sequences in `total` rows, and how many rows each uses.
fn draw_packed(rng: &mut Rng, batch: usize, total: usize, most: usize, used: bool) -> (Vec<i32>, Vec<i32>) {
    let (mut starts, mut rows) = (vec![0], Vec::new());
    for b in 0..batch {
        let room = rng.up_to(most.min(total - starts[b] as usize));
        starts.push(starts[b] + room as i32);
        rows.push(if used { rng.up_to(room) } else { room } as i32);
    }
    (starts, rows)
}
