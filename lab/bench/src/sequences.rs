//! Lengths of the sequences that a bench times: a short description, and the values that it stands for.

use flashcore_problem::rng::Rng;
use flashcore_problem::{KvLengths, Lengths, Problem, ProblemError, QLengths, Sequence};
use serde::{Deserialize, Serialize};

use crate::{BenchError, Result};

/// Seed of the order of pages.
const PAGES_SEED: u64 = 20;

/// Some sequences of a batch, and how long they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sequences {
    /// How many.
    pub count: usize,
    /// Query rows of each. Without it, as many as bound and tensors allow if all sequences have as many.
    pub rows: Option<Span>,
    /// Keys of each. Without it, as many as bound and tensors allow if all sequences have as many.
    pub keys: Option<Span>,
}

/// A length: one number, or `[least, most]`. Those of a group of sequences fill the range evenly, in an order that
/// looks random: length `i` is `least` plus the fraction of `i` times the golden ratio of the range. Spans that are
/// equal give equal lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Span {
    /// The same for all.
    Equal(usize),
    /// From the first to the second.
    Between([usize; 2]),
}

impl Span {
    /// Length `i` of a group.
    pub fn of(self, i: usize) -> usize {
        /// 2³² divided by the golden ratio.
        const STEP: u64 = 2_654_435_769;
        match self {
            Span::Equal(len) => len,
            Span::Between([least, most]) => {
                let range = (most as u128 + 1).saturating_sub(least as u128);
                let fraction = (i as u64).wrapping_mul(STEP) % (1 << 32);
                least + ((u128::from(fraction) * range) >> 32) as usize
            }
        }
    }
}

/// The arrays of lengths as a problem file gives them: [`Lengths`], where a block table has a list for each sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Values {
    cu_seqlens_q: Option<Vec<i32>>,
    seqused_q: Option<Vec<i32>>,
    cu_seqlens_k: Option<Vec<i32>>,
    seqused_k: Option<Vec<i32>>,
    block_table: Option<Vec<Vec<i32>>>,
}

impl Values {
    /// The arrays that a problem needs. What is in them may contradict it: [`Problem::length_findings`].
    ///
    /// # Errors
    /// [`ProblemError::Lengths`]: an array is missing, of no use or of another length.
    pub fn lengths(&self, problem: &Problem) -> Result<Lengths<Vec<i32>>, ProblemError> {
        let table = self.block_table.as_ref();
        if let (Some(table), KvLengths::Paged { max_pages, .. }) = (table, problem.kv_lengths())
            && let Some(b) = table.iter().position(|pages| pages.len() != max_pages)
        {
            let why = format!(
                "has {} pages for sequence {b}; max_pages is {max_pages}",
                table[b].len()
            );
            return Err(ProblemError::Lengths {
                argument: "block_table",
                why,
            });
        }
        let lengths = Lengths {
            cu_seqlens_q: self.cu_seqlens_q.clone(),
            seqused_q: self.seqused_q.clone(),
            cu_seqlens_k: self.cu_seqlens_k.clone(),
            seqused_k: self.seqused_k.clone(),
            block_table: table.map(|table| table.concat()),
        };
        problem.check_given(&lengths, Vec::len)?;
        Ok(lengths)
    }
}

/// Rows and keys of each sequence of some groups, `None` where a group does not say.
fn each(groups: &[Sequences]) -> impl Iterator<Item = [Option<usize>; 2]> {
    groups.iter().flat_map(|group| {
        let of = |i| [group.rows, group.keys].map(|span| span.map(|span| span.of(i)));
        (0..group.count).map(of)
    })
}

/// The values of a problem's lengths that groups of sequences stand for; without groups, all sequences are as long as
/// bound and tensors allow if all have the same length. Packed sequences follow each other, pages have a random order.
///
/// ```
/// use flashcore_bench::sequences::{Sequences, Span, lengths};
/// use flashcore_problem::{KvLengths, Problem};
/// let problem = Problem::builder().batch(3).heads(8, 2).head_dim(64).seq_len_q(1).seq_len_kv(900);
/// let problem = problem.kv_lengths(KvLengths::Cache).build()?;
/// let long = Sequences { count: 1, rows: None, keys: Some(Span::Equal(900)) };
/// let short = Sequences { count: 2, rows: None, keys: Some(Span::Between([10, 20])) };
/// assert_eq!(lengths(&problem, &[long, short])?.seqused_k, Some(vec![900, 10, 16]));
/// assert_eq!(lengths(&problem, &[])?.seqused_k, Some(vec![900; 3]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Groups that contradict the problem: of another batch, rows or keys where all sequences have the bound, lengths above
/// the bounds, or more of them than the tensors hold.
pub fn lengths(problem: &Problem, groups: &[Sequences]) -> Result<Lengths<Vec<i32>>> {
    let given = |why: String| BenchError::Given(format!("sequences: {why}"));
    let batch = problem.batch();
    let count = groups.iter().fold(0usize, |sum, group| sum.saturating_add(group.count));
    if !groups.is_empty() && count != batch {
        return Err(given(format!("there are {count}; the problem has a batch of {batch}")));
    }
    let (q, kv) = (problem.q_lengths(), problem.kv_lengths());
    let axes = [
        ("rows", q == QLengths::Equal, problem.seq_len_q()),
        ("keys", kv == KvLengths::Equal, problem.seq_len_kv()),
    ];
    for (axis, (name, is_equal, bound)) in axes.into_iter().enumerate() {
        for span in groups.iter().filter_map(|group| [group.rows, group.keys][axis]) {
            if is_equal && span != Span::Equal(bound) {
                return Err(given(format!(
                    "{name} are given, but all sequences of this problem have {bound}; leave them out, or let the problem \
                     have lengths"
                )));
            }
        }
    }
    let equal = [
        match q {
            QLengths::Equal => problem.seq_len_q(),
            QLengths::Packed { total, .. } => problem.seq_len_q().min(total / batch),
        },
        match kv {
            KvLengths::Equal | KvLengths::Cache => problem.seq_len_kv(),
            KvLengths::Packed { total, .. } => problem.seq_len_kv().min(total / batch),
            KvLengths::Paged { page_size, pages, .. } => problem.seq_len_kv().min(pages / batch * page_size),
        },
    ];
    let mut all: Vec<[usize; 2]> = each(groups)
        .map(|[rows, keys]| [rows.unwrap_or(equal[0]), keys.unwrap_or(equal[1])])
        .collect();
    all.resize(batch, equal);
    let values = |axis: usize| all.iter().map(move |lens| lens[axis]);
    let used = |axis: usize| {
        values(axis)
            .map(|len| i32::try_from(len).unwrap_or(i32::MAX))
            .collect::<Vec<_>>()
    };
    let starts = |axis: usize| {
        let ends = values(axis).scan(0usize, |end, len| {
            *end = end.saturating_add(len);
            Some(i32::try_from(*end).unwrap_or(i32::MAX))
        });
        std::iter::once(0).chain(ends).collect::<Vec<_>>()
    };
    let mut lengths = Lengths::default();
    if let QLengths::Packed { used: is_used, .. } = q {
        (lengths.cu_seqlens_q, lengths.seqused_q) = (Some(starts(0)), is_used.then(|| used(0)));
    }
    match kv {
        KvLengths::Equal => {}
        KvLengths::Packed { used: is_used, .. } => {
            (lengths.cu_seqlens_k, lengths.seqused_k) = (Some(starts(1)), is_used.then(|| used(1)));
        }
        KvLengths::Cache => lengths.seqused_k = Some(used(1)),
        KvLengths::Paged {
            page_size,
            pages,
            max_pages,
        } => {
            let pages_of = values(1).map(|keys| keys.div_ceil(page_size));
            let needed = pages_of.fold(0usize, usize::saturating_add);
            if needed > pages {
                return Err(given(format!("they need {needed} pages; the cache has {pages}")));
            }
            let mut rng = Rng::new(PAGES_SEED);
            let mut order: Vec<i32> = (0..pages as i32).collect();
            rng.shuffle(&mut order);
            let mut table = vec![-1; batch * max_pages];
            for (table, keys) in table.chunks_mut(max_pages).zip(values(1)) {
                let from = order.len() - keys.div_ceil(page_size);
                table
                    .iter_mut()
                    .zip(order.drain(from..))
                    .for_each(|(entry, page)| *entry = page);
            }
            (lengths.block_table, lengths.seqused_k) = (Some(table), Some(used(1)));
        }
    }
    match problem.sequences(&lengths.as_slices()) {
        Ok(_) => Ok(lengths),
        Err(error) => Err(given(error.to_string())),
    }
}

/// How many sequences there are, and how long: `2 sequences of 9 rows and 17 to 32 keys`.
pub fn in_words(sequences: &[Sequence<'_>]) -> String {
    let span = |what: &str, len: fn(&Sequence<'_>) -> usize| {
        let lens = || sequences.iter().map(len);
        match (lens().min().unwrap_or(0), lens().max().unwrap_or(0)) {
            (1, 1) => format!("1 {what}"),
            (least, most) if least == most => format!("{most} {what}s"),
            (least, most) => format!("{least} to {most} {what}s"),
        }
    };
    let count = match sequences.len() {
        1 => "1 sequence".to_string(),
        count => format!("{count} sequences"),
    };
    let (rows, keys) = (span("row", |one| one.len_q), span("key", |one| one.len_kv));
    format!("{count} of {rows} and {keys}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::defences::{Rows, census_of};
    use flashcore_problem::{Mask, Tensor};

    fn group(count: usize, rows: Option<Span>, keys: Option<Span>) -> Sequences {
        Sequences { count, rows, keys }
    }

    #[test]
    fn spans_fill_their_range() {
        let mut lens: Vec<usize> = (0..64).map(|i| Span::Between([100, 4000]).of(i)).collect();
        lens.sort_unstable();
        assert!(lens[0] < 160 && lens[63] > 3940, "{lens:?}");
        assert!(lens.windows(2).all(|pair| pair[1] - pair[0] < 160), "{lens:?}");
        assert_eq!(Span::Between([7, 7]).of(12), 7);
        assert!(Span::Between([300, usize::MAX]).of(3) > 300);
        assert_eq!(Span::Between([usize::MAX, 7]).of(3), usize::MAX);
        let problem = Problem::builder().heads(1, 1).seq_len(9).head_dim(16).build().unwrap();
        let many = [group(usize::MAX, None, None), group(usize::MAX, None, None)];
        assert!(lengths(&problem, &many).is_err());
        // More keys than the memory has, in caches and packed.
        let two = Problem::builder().batch(2).heads(1, 1).seq_len(9).head_dim(16);
        let paged = KvLengths::Paged {
            page_size: 4,
            pages: 8,
            max_pages: 3,
        };
        for kinds in [paged, KvLengths::Packed { total: 9, used: true }, KvLengths::Cache] {
            let problem = two.clone().kv_lengths(kinds).build().unwrap();
            let many = [group(2, None, Some(Span::Equal(usize::MAX)))];
            assert!(lengths(&problem, &many).is_err(), "{kinds:?}");
        }
        let read: Sequences = serde_json::from_str(r#"{"count": 2, "rows": 3, "keys": [4, 9]}"#).unwrap();
        assert_eq!(read, group(2, Some(Span::Equal(3)), Some(Span::Between([4, 9]))));
        assert!(serde_json::from_str::<Sequences>(r#"{"count": 2, "row": 3}"#).is_err());
    }

    #[test]
    fn values_are_those_of_the_problem() {
        let build = || {
            Problem::builder()
                .batch(4)
                .heads(4, 2)
                .head_dim(64)
                .seq_len_q(9)
                .seq_len_kv(100)
        };
        let packed = QLengths::Packed { total: 20, used: true };
        let paged = KvLengths::Paged {
            page_size: 16,
            pages: 12,
            max_pages: 7,
        };
        let problem = build()
            .mask(Mask::CAUSAL)
            .q_lengths(packed)
            .kv_lengths(paged)
            .build()
            .unwrap();
        let equal = lengths(&problem, &[]).unwrap();
        assert_eq!(equal.cu_seqlens_q.as_deref(), Some(&[0, 5, 10, 15, 20][..]));
        assert_eq!(equal.seqused_k, Some(vec![48; 4]));
        let mixed = [
            group(1, Some(Span::Equal(9)), Some(Span::Equal(90))),
            group(3, Some(Span::Equal(1)), Some(Span::Between([17, 32]))),
        ];
        let mixed = lengths(&problem, &mixed).unwrap();
        let sequences = problem.sequences(&mixed.as_slices()).unwrap();
        assert_eq!(in_words(&sequences), "4 sequences of 1 to 9 rows and 17 to 90 keys");
        assert_eq!(in_words(&sequences[1..2]), "1 sequence of 1 row and 17 keys");
        assert_eq!(mixed.seqused_q, Some(vec![9, 1, 1, 1]));
        let mut used: Vec<i32> = mixed
            .block_table
            .unwrap()
            .into_iter()
            .filter(|page| *page >= 0)
            .collect();
        used.sort_unstable();
        assert_eq!(used.len(), 12);
        used.dedup();
        assert_eq!(used.len(), 12, "a page was given twice");
        for (groups, why) in [
            (vec![group(3, None, None)], "there are 3; the problem has a batch of 4"),
            (
                vec![group(4, Some(Span::Equal(10)), None)],
                "gives sequence 0 10 rows; the problem's bound is 9: raise it",
            ),
            (vec![group(4, Some(Span::Equal(9)), None)], "its tensors have 20 rows"),
            (
                vec![group(4, None, Some(Span::Equal(64)))],
                "they need 16 pages; the cache has 12",
            ),
        ] {
            let error = lengths(&problem, &groups).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let equal = build().build().unwrap();
        let error = lengths(&equal, &[group(4, Some(Span::Equal(3)), None)])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("rows are given, but all sequences of this problem have 9"),
            "{error}"
        );
        assert!(lengths(&equal, &[group(4, Some(Span::Equal(9)), None)]).is_ok());
    }

    #[test]
    fn rows_of_gradients_are_those_of_their_own_axis() {
        let problem = Problem::builder()
            .batch(2)
            .heads(1, 1)
            .head_dim(16)
            .seq_len_q(4)
            .seq_len_kv(6);
        let problem = problem
            .q_lengths(QLengths::Packed { total: 6, used: false })
            .kv_lengths(KvLengths::Packed { total: 9, used: true });
        let problem = problem.build().unwrap().backward().unwrap();
        let groups = [
            group(1, Some(Span::Equal(4)), Some(Span::Equal(6))),
            group(1, Some(Span::Equal(1)), Some(Span::Equal(2))),
        ];
        let rows = Rows::of(&problem, &lengths(&problem, &groups).unwrap().as_slices()).unwrap();
        let written = |output, count: usize| (0..count).filter(|&row| rows.has(output, row)).count();
        assert_eq!([written(0, 6), written(1, 9), written(2, 9)], [5, 8, 8]);
        // A kernel that writes a key row of no sequence is told from one that does not.
        let mut outs: Vec<Tensor> = problem
            .outputs()
            .into_iter()
            .map(|(_, dtype, layout)| Tensor::poisoned(dtype, layout))
            .collect();
        assert_eq!(
            census_of(&outs, &rows)[1].elements,
            census_of(&outs, &rows)[1].unwritten
        );
        outs[2].set(0, 8, 0, 3, 1.0);
        let [inside, outside] = census_of(&outs, &rows);
        assert_eq!(
            (inside.unwritten, outside.elements - outside.unwritten),
            (inside.elements, 1)
        );
    }
}
