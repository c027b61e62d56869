//! [`Written`]: which bytes of a buffer somebody has written.

use std::collections::BTreeMap;

use crate::global::{CELLS, PAGE_SHIFT};

/// Which bytes of a buffer somebody has written: what a launch leaves to those that follow it.
///
/// Known by pairs of bytes, the narrowest access there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// By page, a bit for each pair of bytes.
    pages: BTreeMap<u64, [u64; CELLS / 64]>,
}

impl Written {
    /// Whether the pair of bytes that byte `offset` is one of has been written.
    pub fn contains(&self, offset: u64) -> bool {
        let cell = offset as usize / 2 % CELLS;
        self.pages
            .get(&(offset >> PAGE_SHIFT))
            .is_some_and(|page| page[cell / 64] >> (cell % 64) & 1 != 0)
    }

    /// Adds what another launch has written.
    pub fn add(&mut self, other: &Written) {
        for (&page, bits) in &other.pages {
            let mine = self.pages.entry(page).or_insert([0; CELLS / 64]);
            mine.iter_mut().zip(bits).for_each(|(mine, bits)| *mine |= bits);
        }
    }

    pub(crate) fn set(&mut self, page: u64, cell: usize) {
        self.pages.entry(page).or_insert([0; CELLS / 64])[cell / 64] |= 1 << (cell % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_known_in_pairs_across_pages() {
        let (mut one, mut two) = (Written::default(), Written::default());
        one.set(0, 70);
        two.set(3, 0);
        one.add(&two);
        let known: Vec<u64> = (0..10_000).filter(|&offset| one.contains(offset)).collect();
        assert_eq!(known, [140, 141, 3 << PAGE_SHIFT, (3 << PAGE_SHIFT) + 1]);
    }
}
