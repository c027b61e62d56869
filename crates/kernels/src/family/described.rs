//! The levers of a family for output.

use serde::Serialize;

use super::{Family, Lever, Part, Values, with};

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

impl Family {
    /// Its levers for output: values as they print, and the parts of ids that say so.
    pub fn described(&self) -> Vec<LeverInfo> {
        let describe = |(at, lever): (usize, &Lever)| {
            let in_ids = |&value: &u32| {
                // Only in small families do parts depend on other levers.
                let contexts: Vec<Values> = match lever.part {
                    Part::Scaled(_) => self.configs().filter(|context| context[at] == value).collect(),
                    Part::Number(..) | Part::Words(_) => vec![with(&self.first(), at, value)],
                };
                let mut parts = Vec::new();
                for part in contexts.iter().flat_map(|context| self.parts(context, at)) {
                    if !parts.contains(&part) {
                        parts.push(part);
                    }
                }
                parts
            };
            LeverInfo {
                name: lever.name,
                meaning: lever.meaning,
                values: lever.shown().iter().map(|&value| lever.print(value)).collect(),
                in_ids: lever.shown().iter().map(in_ids).collect(),
            }
        };
        self.levers.iter().enumerate().map(describe).collect()
    }
}
