//! What a server does in a step: which sequences get how many rows, and in which pages they lie.

use flashcore::{DType, Tensor};
use flashcore_problem::rng::Rng;

use super::{BATCH, HEAD_DIM, HEADS, KV_HEADS, LONGEST, MAX_PAGES, PAGE_SIZE, PAGES, ROWS};

/// Sequences in a paged cache.
pub(super) struct Server {
    lengths: [usize; BATCH],
    table: Vec<i32>,
    free: Vec<i32>,
    rng: Rng,
}

/// The values of a step.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// First row of each sequence, and the end of the last.
    pub(super) starts: Vec<i32>,
    /// Keys of each before the step.
    pub(super) before: Vec<i32>,
    /// Keys of each afterwards.
    pub(super) after: Vec<i32>,
    /// `[batch, max_pages]`; what is past the end is no page, or none of the cache.
    pub(super) table: Vec<i32>,
}

impl Step {
    pub(super) fn rows(&self) -> usize {
        self.starts[BATCH] as usize
    }
}

impl Server {
    pub(super) fn new(seed: u64) -> Server {
        Server {
            lengths: [0; BATCH],
            table: vec![-1; BATCH * MAX_PAGES],
            free: (0..PAGES as i32).collect(),
            rng: Rng::new(seed),
        }
    }

    /// The next step. A sequence that is full ends, and so does one where no page is free; another one begins there.
    pub(super) fn step(&mut self) -> Step {
        let (mut starts, mut before) = (vec![0], Vec::new());
        for b in 0..BATCH {
            let rows = match self.rng.below(16) {
                0 => 0,
                1 => self.rng.between(4, LONGEST),
                2..=4 => self.rng.between(2, 4),
                _ => 1,
            };
            let rows = rows.min(ROWS - starts[b] as usize);
            if !self.grow(b, rows) {
                self.end(b);
                self.grow(b, rows);
            }
            before.push(self.lengths[b] as i32);
            self.lengths[b] += rows;
            starts.push(starts[b] + rows as i32);
        }
        Step {
            starts,
            before,
            after: self.lengths.map(|length| length as i32).to_vec(),
            table: self.table.clone(),
        }
    }

    /// Gives a sequence the pages for `rows` more, in an order that is not that of the cache; `false` if there are
    /// none.
    fn grow(&mut self, b: usize, rows: usize) -> bool {
        let (has, needs) = (
            self.lengths[b].div_ceil(PAGE_SIZE),
            (self.lengths[b] + rows).div_ceil(PAGE_SIZE),
        );
        if needs > MAX_PAGES || needs - has > self.free.len() {
            return false;
        }
        for entry in has..needs {
            let page = self.free.swap_remove(self.rng.below(self.free.len()));
            self.table[b * MAX_PAGES + entry] = page;
        }
        true
    }

    /// Gives all pages of a sequence back.
    fn end(&mut self, b: usize) {
        let filled = self.lengths[b].div_ceil(PAGE_SIZE);
        let table = &mut self.table[b * MAX_PAGES..][..MAX_PAGES];
        self.free.extend(&table[..filled]);
        let nothing = [-1, PAGES as i32, i32::MAX, i32::MIN];
        table.fill_with(|| *self.rng.pick(&nothing).unwrap_or(&-1));
        self.lengths[b] = 0;
    }

    /// Rows of Q, and new rows of K and V. Those of no sequence are NaN.
    pub(super) fn tensors(&mut self, step: &Step) -> [Tensor; 3] {
        let used = step.rows();
        [HEADS, KV_HEADS, KV_HEADS].map(|heads| {
            Tensor::from_fn(DType::BF16, [1, ROWS, heads, HEAD_DIM].into(), |_, row, _, _| {
                if row < used { self.rng.normal() } else { f32::NAN }
            })
        })
    }
}
