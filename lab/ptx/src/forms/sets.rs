//! The sets of words that modifiers are of, and special registers.

use std::collections::HashMap;
use std::sync::LazyLock;

/// The names of the sets with their words, in the order of the file.
fn sets() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("sets.txt").lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" = "))
}

static SETS: LazyLock<HashMap<&str, Vec<&str>>> =
    LazyLock::new(|| sets().map(|(name, words)| (name, words.split(' ').collect())).collect());

/// Whether a word is one of a set.
pub(crate) fn is_one_of(set: &str, word: &str) -> bool {
    SETS.get(set).is_some_and(|words| words.contains(&word))
}

/// The words of a set, or a word that is itself.
pub(super) fn words(name: &'static str) -> Vec<&'static str> {
    // `N16`: the shapes of wgmma with that k; `P8`: those of products of bytes, which have fewer widths.
    if let Some(k) = name.strip_prefix('N').and_then(|k| k.parse::<u32>().ok()) {
        return (8..=256).step_by(8).map(|n| &*format!("m64n{n}k{k}").leak()).collect();
    }
    if name == "P32" {
        let widths = (8..=256).step_by(8).filter(|n| *n <= 24 || n % 16 == 0);
        return widths.map(|n| &*format!("m64n{n}k32").leak()).collect();
    }
    SETS.get(name).cloned().unwrap_or_else(|| vec![name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_declared_once_and_without_repetition() {
        let names: Vec<&str> = sets().map(|(name, _)| name).collect();
        assert_eq!(names.len(), SETS.len());
        assert!(names.len() > 60, "{names:?}");
        for name in names {
            let mut words = words(name);
            let count = words.len();
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), count, "{name}");
        }
    }
}
