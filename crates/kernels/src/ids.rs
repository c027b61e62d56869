//! What levers write into ids: which part of an id such as `m128n64-w4x1-s2-b1-qreg-xor-bold` says what.
//!
//! It is found by changing one lever at a time and comparing ids, so that no list of parts can differ from the ids.

use std::collections::{BTreeMap, BTreeSet};

use crate::space::Space;

/// What a lever writes into ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeverParts {
    /// The lever's name.
    pub lever: &'static str,
    /// Each of its values, as it prints, and the parts that say so: none where ids leave the value out.
    pub values: Vec<(String, Vec<String>)>,
}

/// The parts of an id, without the family.
///
/// ```
/// use flashcore_kernels::ids::id_parts;
/// assert_eq!(id_parts("mma/m128n64-w4x1-s2-qreg"), ["m128", "n64", "w4", "x1", "s2", "qreg"]);
/// ```
pub fn id_parts(id: &str) -> Vec<&str> {
    let levers = id.split_once('/').map_or(id, |(_, levers)| levers);
    levers.split('-').flat_map(numbered).collect()
}

/// `m128n64` as `m128` and `n64`: a part ends where a letter follows a digit.
fn numbered(field: &str) -> Vec<&str> {
    let bytes = field.as_bytes();
    let ends = (1..bytes.len()).filter(|&at| bytes[at - 1].is_ascii_digit() && !bytes[at].is_ascii_digit());
    let bounds: Vec<usize> = [0].into_iter().chain(ends).chain([bytes.len()]).collect();
    bounds.windows(2).map(|pair| &field[pair[0]..pair[1]]).collect()
}

/// Reads the parts of an id in their order.
pub(crate) struct Parts<'i>(std::iter::Peekable<std::vec::IntoIter<&'i str>>);

impl<'i> Parts<'i> {
    pub(crate) fn new(levers: &'i str) -> Self {
        Parts(id_parts(levers).into_iter().peekable())
    }

    /// The number after these letters, if the next part has it.
    pub(crate) fn number(&mut self, wanted: &str) -> Option<u32> {
        let number = self.0.peek()?.strip_prefix(wanted)?.parse().ok()?;
        self.0.next();
        Some(number)
    }

    /// Which of some words the next part is, if it is any.
    pub(crate) fn word<const N: usize>(&mut self, words: [&str; N]) -> Option<usize> {
        let found = words.iter().position(|word| self.0.peek() == Some(word))?;
        self.0.next();
        Some(found)
    }
}

/// The letters that a part begins with.
pub fn letters(part: &str) -> &str {
    part.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// What each lever of a space writes into the ids that `print` makes.
///
/// A lever owns the letters whose number it changes (`m64`, `m128`); letters without such a lever (`qreg`, `gqa`) belong
/// to the lever that they come and go with.
pub fn lever_parts<C: Copy + PartialEq>(space: &Space<C>, print: fn(&C) -> String) -> Vec<LeverParts> {
    let one_changed = space.levers.iter().flat_map(|lever| (lever.settings)(space.first));
    let bases: Vec<C> = [space.first].into_iter().chain(one_changed).collect();
    let (mut counted, mut flagged) = (BTreeMap::new(), BTreeMap::new());
    for base in &bases {
        for (index, lever) in space.levers.iter().enumerate() {
            let mut seen: BTreeMap<String, BTreeSet<Option<String>>> = BTreeMap::new();
            let settings = (lever.settings)(*base);
            let ids: Vec<String> = settings.iter().map(print).collect();
            for part in ids.iter().flat_map(|id| id_parts(id)) {
                let values = seen.entry(letters(part).to_string()).or_default();
                values.extend(ids.iter().map(|id| number_of(id, letters(part))));
            }
            for (letters, values) in seen {
                let numbers = values.iter().flatten().count();
                if numbers > 1 {
                    counted.entry(letters).or_insert_with(BTreeSet::new).insert(index);
                } else if values.contains(&None) {
                    flagged.entry(letters).or_insert_with(BTreeSet::new).insert(index);
                }
            }
        }
    }
    let owns = |index: usize, part: &str| {
        let owners = counted.get(letters(part)).or_else(|| flagged.get(letters(part)));
        owners.is_some_and(|owners| owners.contains(&index))
    };
    let levers = space.levers.iter().enumerate();
    levers
        .map(|(index, lever)| {
            let mut values: Vec<(String, Vec<String>)> = Vec::new();
            for setting in bases.iter().flat_map(|base| (lever.settings)(*base)) {
                let value = (lever.value)(&setting);
                let at = values
                    .iter()
                    .position(|(known, _)| *known == value)
                    .unwrap_or(values.len());
                if at == values.len() {
                    values.push((value, Vec::new()));
                }
                for part in id_parts(&print(&setting)) {
                    let is_new = !values[at].1.iter().any(|known| known == part);
                    if is_new && owns(index, part) && occurs(space, print, setting, part) {
                        values[at].1.push(part.to_string());
                    }
                }
            }
            LeverParts {
                lever: lever.name,
                values,
            }
        })
        .collect()
}

/// Whether an allowed config near this one, at most two levers away, has a part in its id: not all values go together.
fn occurs<C: Copy + PartialEq>(space: &Space<C>, print: fn(&C) -> String, config: C, part: &str) -> bool {
    let settings = |config: C| space.levers.iter().flat_map(move |lever| (lever.settings)(config));
    let has = |config: &C| (space.allowed)(config) && id_parts(&print(config)).contains(&part);
    has(&config) || settings(config).any(|one| has(&one) || settings(one).any(|two| has(&two)))
}

/// The number that follows letters in an id: empty where there is none, `None` where the letters are not in it.
fn number_of(id: &str, wanted: &str) -> Option<String> {
    let part = id_parts(id).into_iter().find(|part| letters(part) == wanted)?;
    Some(part[wanted.len()..].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, ladder, mma, scalar, wgmma};

    /// Every part of every id belongs to one lever, at the value that the config has; every part explained occurs.
    fn explains_all<C: Copy + PartialEq>(space: &Space<C>, print: fn(&C) -> String) {
        let levers = lever_parts(space, print);
        let mut unseen: BTreeSet<&str> = levers
            .iter()
            .flat_map(|lever| {
                lever
                    .values
                    .iter()
                    .flat_map(|(_, parts)| parts.iter().map(String::as_str))
            })
            .collect();
        for config in space.configs() {
            let id = print(&config);
            for part in id_parts(&id) {
                unseen.remove(part);
                let says: Vec<(&str, &str)> = levers
                    .iter()
                    .flat_map(|lever| lever.values.iter().map(move |value| (lever.lever, value)))
                    .filter(|(_, (_, parts))| parts.iter().any(|known| known == part))
                    .map(|(lever, (value, _))| (lever, value.as_str()))
                    .collect();
                let owners: BTreeSet<&str> = says.iter().map(|(lever, _)| *lever).collect();
                assert_eq!(owners.len(), 1, "`{part}` of {id} is said by {says:?}");
                let lever = space.levers.iter().find(|known| known.name == says[0].0).unwrap();
                let value = (lever.value)(&config);
                assert!(
                    says.iter().any(|(_, says)| *says == value),
                    "`{part}` of {id}: {says:?}"
                );
            }
        }
        assert!(unseen.is_empty(), "{unseen:?} are in no id");
    }

    #[test]
    fn every_part_of_every_id_is_explained() {
        explains_all(&ladder::SPACE, |config| Config::Ladder(*config).to_string());
        explains_all(&mma::SPACE, |config| Config::Mma(*config).to_string());
        explains_all(&scalar::SPACE, |config| Config::Scalar(*config).to_string());
        explains_all(&wgmma::SPACE, |config| Config::Wgmma(*config).to_string());
    }

    #[test]
    fn parts_belong_to_the_lever_that_changes_them() {
        let parts = lever_parts(&mma::SPACE, |config| Config::Mma(*config).to_string());
        let of = |lever: &str| parts.iter().find(|parts| parts.lever == lever).unwrap();
        let said = |value: &str, part: &str| (value.to_string(), vec![part.to_string()]);
        assert_eq!(
            of("q_in_registers").values,
            [said("false", "qsh"), said("true", "qreg")]
        );
        assert_eq!(
            of("pack_heads").values,
            [("false".to_string(), vec![]), said("true", "gqa")]
        );
        assert!(of("rows").values.contains(&said("128", "m128")));
    }
}
