//! [`Written`]: the bytes of a buffer that were written.

use std::collections::BTreeMap;

use crate::global::{CELLS, PAGE_SHIFT};
use crate::registers::lanes;

/// The bytes of a buffer that were written, passed from one launch to the next. Resolution: 2
/// bytes, the narrowest access.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// By page, one bit per 2 bytes.
    pages: BTreeMap<u64, [u64; CELLS / 64]>,
}

impl Written {
    /// Whether the 2 bytes that contain byte `offset` were written.
    pub fn contains(&self, offset: u64) -> bool {
        let cell = offset as usize / 2 % CELLS;
        self.pages
            .get(&(offset >> PAGE_SHIFT))
            .is_some_and(|page| page[cell / 64] >> (cell % 64) & 1 != 0)
    }

    /// The first of some pieces of 2 bytes, a bit each from byte `offset` on and within one page, that was not written.
    pub(crate) fn first_missing(&self, offset: u64, pieces: u32) -> Option<u64> {
        let page = self.pages.get(&(offset >> PAGE_SHIFT));
        let is_written = |piece: usize| {
            let cell = offset as usize / 2 % CELLS + piece;
            page.is_some_and(|page| page[cell / 64] >> (cell % 64) & 1 != 0)
        };
        let missing = lanes(pieces).find(|&piece| !is_written(piece));
        missing.map(|piece| offset + 2 * piece as u64)
    }

    /// Adds the writes of another launch.
    pub fn add(&mut self, other: &Written) {
        for (&page, bits) in &other.pages {
            let mine = self.pages.entry(page).or_insert([0; CELLS / 64]);
            mine.iter_mut().zip(bits).for_each(|(mine, bits)| *mine |= bits);
        }
    }

    /// Adds cells of a page.
    pub(crate) fn set(&mut self, page: u64, cells: impl Iterator<Item = usize>) {
        let mut cells = cells.peekable();
        if cells.peek().is_some() {
            let mine = self.pages.entry(page).or_insert([0; CELLS / 64]);
            cells.for_each(|cell| mine[cell / 64] |= 1 << (cell % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolution_is_two_bytes_across_pages() {
        let (mut one, mut two) = (Written::default(), Written::default());
        one.set(0, [70].into_iter());
        two.set(3, [0].into_iter());
        one.add(&two);
        let known: Vec<u64> = (0..10_000).filter(|&offset| one.contains(offset)).collect();
        assert_eq!(known, [140, 141, 3 << PAGE_SHIFT, (3 << PAGE_SHIFT) + 1]);
        assert_eq!(one.first_missing(140, 0b11), Some(142));
        assert_eq!(one.first_missing(140, 0b1), None);
        assert_eq!(one.first_missing(1 << PAGE_SHIFT, 0b10), Some((1 << PAGE_SHIFT) + 2));
    }
}
