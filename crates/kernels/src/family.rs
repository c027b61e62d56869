//! A family of configs as data. Each lever is declared once: ids and their parser, the refusal of
//! other values, searches and `flashcore list levers` derive from the declaration.
//!
//! A family holds what the levers by themselves allow. Problems and targets refuse more; that is for
//! [`Plan::new`](crate::Plan::new) to say.

use std::iter::successors;

use flashcore_problem::rng::Rng;
use flashcore_problem::{Direction, Problem};

use crate::Refusal;

mod ids;
mod moves;
mod values;

use ids::with_words_of_today;
pub(crate) use values::{LeverValue, constraint, lever_values, levers};

/// Levers of the family with the most of them, `mma`: one more there is one more here.
const MOST_LEVERS: usize = 13;

/// The values of a family's levers in their order, 0 beyond the last. For a lever of words, the word's place.
pub type Values = [u32; MOST_LEVERS];

/// A family's values, with those beyond the last.
pub const fn padded<const LEVERS: usize>(levers: [u32; LEVERS]) -> Values {
    const {
        assert!(
            LEVERS <= MOST_LEVERS,
            "MOST_LEVERS of family.rs is the number of levers of the family with the most"
        )
    };
    let mut values: Values = [0; MOST_LEVERS];
    values.split_at_mut(LEVERS).0.copy_from_slice(&levers);
    values
}

/// One lever of a family.
#[derive(Clone, Copy, Debug)]
pub struct Lever {
    /// Its name, that of the config's field.
    pub name: &'static str,
    /// What it trades for what, in a line.
    pub meaning: &'static str,
    /// Values that are searched.
    pub values: &'static [u32],
    /// Values from 1 to this one are allowed, too.
    most: u32,
    part: Part,
}

/// How an id says the value of a lever.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// These letters, and the value; nothing for one value.
    Number(&'static str, Option<u32>),
    /// Letters, and a multiple of the value, which depend on the levers before.
    Scaled(fn(&Values) -> (&'static str, u32)),
    /// For each value: how it prints, and what ids have.
    Words(&'static [(&'static str, &'static str)]),
}

/// What values of several levers must fulfil together.
#[derive(Clone, Copy, Debug)]
pub struct Constraint {
    /// The lever that a refusal names.
    pub lever: &'static str,
    /// The rule, which completes "LEVER is VALUE; allowed: ".
    pub rule: &'static str,
    /// Whether values fulfil it. They are read as a family's `Config`, by the names of its fields.
    pub holds: fn(&Values) -> bool,
}

/// A family: its name and its levers, in the order in which ids have them.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Its name, with which its ids begin.
    pub name: &'static str,
    /// Its levers.
    pub levers: &'static [Lever],
    /// The same levers with the values that a backward pass has, deterministic or not, where these are others.
    pub backward: Option<fn(deterministic: bool) -> &'static [Lever]>,
    /// Which values go together.
    pub constraints: &'static [Constraint],
    /// Query rows times keys of a tile of scores; 0 if there is none.
    pub tile: fn(&Values) -> u32,
    /// A lever whose value ids repeat at their end, after these letters.
    pub repeated: Option<(usize, &'static str)>,
}

/// Values of levers of words: places in the list of words.
const PLACES: [u32; 20] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19];

impl Lever {
    const fn new(part: Part, values: &'static [u32]) -> Lever {
        Lever {
            name: "",
            meaning: "",
            values,
            most: 0,
            part,
        }
    }

    /// A number after letters.
    pub const fn number(letters: &'static str, values: &'static [u32]) -> Lever {
        Lever::new(Part::Number(letters, None), values)
    }

    /// A number after letters; ids leave out both for the first value.
    pub(crate) const fn optional(letters: &'static str, values: &'static [u32]) -> Lever {
        Lever::new(Part::Number(letters, Some(values[0])), values)
    }

    /// A multiple of the value after letters, both depending on the levers before.
    pub(crate) const fn scaled(scale: fn(&Values) -> (&'static str, u32), values: &'static [u32]) -> Lever {
        Lever::new(Part::Scaled(scale), values)
    }

    /// At most twenty words: how each value prints, and what ids have for it.
    pub const fn words(words: &'static [(&'static str, &'static str)]) -> Lever {
        Lever::new(Part::Words(words), PLACES.split_at(words.len()).0)
    }

    /// Its name, that of the config's field, and what it trades for what.
    pub const fn named(self, name: &'static str, meaning: &'static str) -> Lever {
        Lever { name, meaning, ..self }
    }

    /// Searches take the first `count` words, and the others are allowed.
    pub(crate) const fn searched(self, count: usize) -> Lever {
        let most = self.values.len() as u32 - 1;
        Lever {
            values: PLACES.split_at(count).0,
            most,
            ..self
        }
    }

    /// Values that lists show: those that are searched, and all words.
    pub fn shown(&self) -> &'static [u32] {
        match self.part {
            Part::Words(words) => PLACES.split_at(words.len()).0,
            Part::Number(..) | Part::Scaled(_) => self.values,
        }
    }

    /// Values from 1 to `most` are allowed, too.
    pub const fn up_to(self, most: u32) -> Lever {
        Lever { most, ..self }
    }

    /// The same lever with these of its values and no others.
    pub(crate) const fn only(self, values: &'static [u32]) -> Lever {
        Lever {
            values,
            most: 0,
            ..self
        }
    }

    /// A value as it prints.
    pub fn print(&self, value: u32) -> String {
        match self.part {
            Part::Words(words) if (value as usize) < words.len() => words[value as usize].0.to_string(),
            Part::Words(_) | Part::Number(..) | Part::Scaled(_) => value.to_string(),
        }
    }

    /// Whether what ids have for it depends on the levers before.
    pub fn depends_on_others(&self) -> bool {
        matches!(self.part, Part::Scaled(_))
    }

    /// What ids have for the value at a place.
    pub fn spell(&self, values: &Values, at: usize) -> String {
        match self.part {
            Part::Number(_, omitted) if omitted == Some(values[at]) => String::new(),
            Part::Number(letters, _) => format!("{letters}{}", values[at]),
            Part::Scaled(scale) => {
                let (letters, factor) = scale(values);
                format!("{letters}{}", factor * values[at])
            }
            Part::Words(words) => words[values[at] as usize].1.to_string(),
        }
    }

    /// The value that the rest of an id begins with, and what follows. `before` are the values of the levers before.
    fn read<'i>(&self, before: &Values, rest: &'i str) -> Option<(u32, &'i str)> {
        let (letters, factor, omitted) = match self.part {
            Part::Number(letters, omitted) => (letters, 1, omitted),
            Part::Scaled(scale) => {
                let (letters, factor) = scale(before);
                (letters, factor, None)
            }
            Part::Words(words) => {
                let found = words.iter().filter(|(_, word)| rest.starts_with(word));
                // The longest: an empty word begins everything.
                let length = found.map(|(_, word)| word.len()).max()?;
                let place = words.iter().position(|(_, word)| *word == &rest[..length])?;
                return Some((place as u32, &rest[length..]));
            }
        };
        let Some(number) = rest.strip_prefix(letters) else {
            return omitted.map(|value| (value, rest));
        };
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        let value: u32 = number[..end].parse().ok()?;
        Some((value / factor, &number[end..]))
    }

    pub(crate) fn allows(&self, value: u32) -> bool {
        self.values.contains(&value) || (1..=self.most).contains(&value)
    }
}

/// The values with `value` at place `at`.
pub(crate) fn with(values: &Values, at: usize, value: u32) -> Values {
    let mut changed = *values;
    changed[at] = value;
    changed
}

impl Family {
    /// The family with the values that its levers have in the backward pass. Ids are the same.
    pub fn of_backward(self, deterministic: bool) -> Family {
        let levers = self.backward.map_or(self.levers, |levers| levers(deterministic));
        Family { levers, ..self }
    }

    /// The family with the values that its levers have for a problem: what a search draws from.
    pub fn of_problem(self, problem: &Problem) -> Family {
        match problem.direction() {
            Direction::Forward => self,
            Direction::Backward => self.of_backward(problem.deterministic()),
        }
    }

    /// The levers' part of an id, such as `m128n64-w4x1-s2-b1-qreg-xor-cond`.
    pub fn levers_id(&self, values: &Values) -> String {
        let levers = self.levers.iter().enumerate();
        let mut id: String = levers.map(|(at, lever)| lever.spell(values, at)).collect();
        if let Some((at, letters)) = self.repeated {
            id += &format!("{letters}{}", values[at]);
        }
        id
    }

    /// The id of a config.
    pub fn id(&self, values: &Values) -> String {
        format!("{}/{}", self.name, self.levers_id(values))
    }

    /// The config of an id without the family's name. Whether its values are allowed is [`Self::check`]'s to say.
    pub fn read_levers(&self, id: &str) -> Option<Values> {
        let id = with_words_of_today(id);
        let values = self.values_of(&id).ok()?;
        (self.levers_id(&values) == id).then_some(values)
    }

    /// The values that an id begins with, or the first lever that it has no value of, those before it, and what it has
    /// there.
    fn values_of<'i>(&self, id: &'i str) -> Result<Values, (&Lever, Values, &'i str)> {
        let (mut values, mut rest) = (Values::default(), id);
        for (at, lever) in self.levers.iter().enumerate() {
            (values[at], rest) = lever.read(&values, rest).ok_or((lever, values, rest))?;
        }
        Ok(values)
    }

    /// At which lever an id of this family cannot be read, and what it may have there.
    pub(crate) fn unread(&self, id: &str) -> Option<String> {
        let id = with_words_of_today(id);
        let (lever, before, rest) = self.values_of(id.strip_prefix(self.name)?.strip_prefix('/')?).err()?;
        let allowed = match lever.part {
            Part::Words(words) => words.iter().map(|(_, word)| *word).collect::<Vec<_>>().join(", "),
            Part::Number(letters, _) => format!("{letters} and a number"),
            Part::Scaled(scale) => format!("{} and a number", scale(&before).0),
        };
        let place = match rest {
            "" => "at its end".to_string(),
            _ => format!("at `{rest}`"),
        };
        Some(format!(": {place} it needs {} ({allowed})", lever.name))
    }

    /// The config of an id of this family.
    pub fn read(&self, id: &str) -> Option<Values> {
        self.read_levers(id.strip_prefix(self.name)?.strip_prefix('/')?)
    }

    /// Whether an id is a config of this family whose levers go together.
    pub fn owns(&self, id: &str) -> bool {
        self.read(id).is_some_and(|values| self.allows(&values))
    }

    /// The name and value of each lever, as they print.
    pub fn print(&self, values: &Values) -> Vec<(&'static str, String)> {
        let levers = self.levers.iter().zip(values);
        levers.map(|(lever, &value)| (lever.name, lever.print(value))).collect()
    }

    /// Refuses values that a lever does not have, or that do not go together.
    ///
    /// # Errors
    /// [`Refusal::Lever`].
    pub fn check(&self, values: &Values) -> Result<(), Refusal> {
        for (lever, &given) in self.levers.iter().zip(values) {
            if !lever.allows(given) {
                let listed: Vec<String> = lever.values.iter().map(|&value| lever.print(value)).collect();
                let allowed = match (lever.part, lever.most) {
                    (Part::Words(_), _) | (_, 0) => listed.join(", "),
                    (_, most) => format!("1 to {most}"),
                };
                return Err(Refusal::lever(lever.name, lever.print(given), allowed));
            }
        }
        match self.constraints.iter().find(|constraint| !(constraint.holds)(values)) {
            Some(Constraint { lever, rule, .. }) => {
                let mut levers = self.levers.iter().zip(values);
                let given = levers.find(|(known, _)| known.name == *lever);
                let given = given.map_or(String::new(), |(known, &given)| known.print(given));
                Err(Refusal::lever(lever, given, *rule))
            }
            None => Ok(()),
        }
    }

    /// Whether [`Self::check`] refuses nothing.
    pub fn allows(&self, values: &Values) -> bool {
        let mut levers = self.levers.iter().zip(values);
        levers.all(|(lever, &value)| lever.allows(value)) && self.go_together(values)
    }

    fn go_together(&self, values: &Values) -> bool {
        self.constraints.iter().all(|constraint| (constraint.holds)(values))
    }

    /// Every lever at its first value.
    pub fn first(&self) -> Values {
        self.combination(0)
    }

    /// Combinations of values, allowed or not.
    fn combinations(&self) -> usize {
        self.levers.iter().map(|lever| lever.values.len()).product()
    }

    /// The combination of the next number.
    fn after(&self, values: &Values) -> Option<Values> {
        let mut next = *values;
        for (value, lever) in next.iter_mut().zip(self.levers) {
            let place = lever.values.iter().position(|other| other == value)?;
            if let Some(&following) = lever.values.get(place + 1) {
                *value = following;
                return Some(next);
            }
            *value = lever.values[0];
        }
        None
    }

    /// The combination of a number, a digit for each lever.
    fn combination(&self, mut number: usize) -> Values {
        let mut values = Values::default();
        for (value, lever) in values.iter_mut().zip(self.levers) {
            *value = lever.values[number % lever.values.len()];
            number /= lever.values.len();
        }
        values
    }

    /// Every config whose levers go together, in a fixed order.
    ///
    /// ```
    /// use flashcore_kernels::{mma, wgmma};
    /// assert!(mma::FAMILY.configs().count() > 10_000);
    /// assert!(wgmma::FAMILY.configs().count() > 500);
    /// ```
    pub fn configs(self) -> impl Iterator<Item = Values> {
        let all = successors(Some(self.first()), move |values| self.after(values));
        all.filter(move |values| self.go_together(values))
    }

    /// Their ids.
    pub fn ids(self) -> impl Iterator<Item = String> {
        self.configs().map(move |values| self.id(&values))
    }

    /// A config drawn evenly from [`configs`](Family::configs).
    ///
    /// ```
    /// use flashcore_kernels::mma;
    /// use flashcore_problem::rng::Rng;
    /// assert_eq!(mma::FAMILY.sample(&mut Rng::new(3)), mma::FAMILY.sample(&mut Rng::new(3)));
    /// ```
    pub fn sample(&self, rng: &mut Rng) -> Values {
        loop {
            let values = self.combination(rng.below(self.combinations()));
            if self.allows(&values) {
                return values;
            }
        }
    }
}

#[cfg(test)]
mod tests;
