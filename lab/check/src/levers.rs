//! The levers of families for output: which parts of ids say their values.

use flashcore_kernels::Family;
use flashcore_kernels::family::{Lever, Values};
use serde::Serialize;

/// A lever as `flashcore list levers` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeverInfo {
    /// Its name.
    pub name: &'static str,
    /// What it trades.
    pub meaning: &'static str,
    /// Its values.
    pub values: Vec<String>,
    /// For each value, the parts of an id that express it; none if ids omit the value.
    pub in_ids: Vec<Vec<String>>,
}

/// The levers of a family for output: values as they print, and the parts of ids that say so.
pub fn described(family: &Family) -> Vec<LeverInfo> {
    let describe = |(at, lever): (usize, &Lever)| {
        let in_ids = |&value: &u32| {
            // Only in small families do parts depend on other levers.
            let contexts: Vec<Values> = if lever.depends_on_others() {
                family.configs().filter(|context| context[at] == value).collect()
            } else {
                let mut context = family.first();
                context[at] = value;
                vec![context]
            };
            let mut found = Vec::new();
            for part in contexts.iter().flat_map(|context| parts(family, context, at)) {
                if !found.contains(&part) {
                    found.push(part);
                }
            }
            found
        };
        LeverInfo {
            name: lever.name,
            meaning: lever.meaning,
            values: lever.shown().iter().map(|&value| lever.print(value)).collect(),
            in_ids: lever.shown().iter().map(in_ids).collect(),
        }
    };
    family.levers.iter().enumerate().map(describe).collect()
}

/// The parts of a config's id that a lever writes: `m64` and `w4`, or `qreg`.
pub fn parts(family: &Family, values: &Values, at: usize) -> Vec<String> {
    let repeated = family.repeated.filter(|(lever, _)| *lever == at);
    let repeated = repeated.map(|(_, letters)| format!("{letters}{}", values[at]));
    let spelled = [family.levers[at].spell(values, at)].into_iter().chain(repeated);
    spelled
        .flat_map(|text| id_parts(&text).into_iter().map(str::to_string).collect::<Vec<_>>())
        .collect()
}

/// The parts of an id, without the family.
///
/// ```
/// use flashcore_check::levers::id_parts;
/// assert_eq!(id_parts("mma/m128n64-w4x1-s2-qreg"), ["m128", "n64", "w4", "x1", "s2", "qreg"]);
/// ```
pub fn id_parts(id: &str) -> Vec<&str> {
    let levers = id.split_once('/').map_or(id, |(_, levers)| levers);
    let fields = levers.split('-').filter(|field| !field.is_empty());
    fields.flat_map(numbered).collect()
}

/// `m128n64` as `m128` and `n64`: a part ends where a letter follows a digit.
fn numbered(field: &str) -> Vec<&str> {
    let bytes = field.as_bytes();
    let ends = (1..bytes.len()).filter(|&at| bytes[at - 1].is_ascii_digit() && !bytes[at].is_ascii_digit());
    let bounds: Vec<usize> = [0].into_iter().chain(ends).chain([bytes.len()]).collect();
    bounds.windows(2).map(|pair| &field[pair[0]..pair[1]]).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use flashcore_kernels::{FAMILIES, ladder, mma};

    use super::*;

    /// Every part of every id belongs to one lever, at the value that the config has; every part explained occurs.
    #[test]
    fn every_part_of_every_id_is_explained() {
        for family in FAMILIES {
            // The place of a lever, and its values.
            let mut said: BTreeMap<String, (usize, Vec<u32>)> = BTreeMap::new();
            for (at, lever) in described(&family).into_iter().enumerate() {
                for (parts, &value) in lever.in_ids.into_iter().zip(family.levers[at].values) {
                    for part in parts {
                        let (owner, values) = said.entry(part.clone()).or_insert((at, Vec::new()));
                        assert_eq!(*owner, at, "`{part}`");
                        values.push(value);
                    }
                }
            }
            let mut unseen: BTreeSet<&str> = said.keys().map(String::as_str).collect();
            let step = family.configs().count() / 5000 + 1;
            for config in family.configs().step_by(step) {
                let id = family.id(&config);
                for part in id_parts(&id) {
                    unseen.remove(part);
                    let (at, values) = &said[part];
                    assert!(values.contains(&config[*at]), "`{part}` of {id}");
                }
            }
            assert!(unseen.is_empty(), "{unseen:?} are in no id");
        }
    }

    #[test]
    fn parts_belong_to_the_lever_that_changes_them() {
        let levers = described(&mma::FAMILY);
        let of = |name: &str| levers.iter().find(|lever| lever.name == name).unwrap();
        assert_eq!(of("q_in_registers").values, ["false", "true"]);
        assert_eq!(of("q_in_registers").in_ids, [["qsh"], ["qreg"]]);
        assert_eq!(of("pack_heads").in_ids, [vec![], vec!["gqa".to_string()]]);
        // No search proposes it.
        assert_eq!(of("f16_scores").values, ["false", "true"]);
        let ladder = described(&ladder::FAMILY);
        assert_eq!(
            (ladder[1].name, &ladder[1].in_ids[0]),
            ("warps", &vec!["m64".to_string(), "w4".to_string()])
        );
    }
}
