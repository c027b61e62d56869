//! What was measured on a card, from which the defaults of a problem are chosen: a file of `cards` for each card.

use std::sync::LazyLock;

use flashcore_ir::{Chip, Target};
use flashcore_problem::Problem;
use serde::{Deserialize, Serialize};

use crate::attention::params::query_blocks;
use crate::size::{self, Size};
use crate::{mma, wgmma};

/// The files, each with its name (`src/build.rs`).
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/cards.rs"));

static CARDS: LazyLock<Vec<Card>> = LazyLock::new(|| {
    // Tests read them all.
    let read = |(name, text)| Card::read(name, text).unwrap_or_else(|error| panic!("{error}"));
    FILES.iter().copied().map(read).collect()
});

/// A card, and what was measured on it. In each table, the first row that nothing refuses is the best, but where rows
/// have costs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "'de: 'static"))]
pub(crate) struct Card {
    pub card: String,
    pub target: Target,
    /// The SMs that rows were measured on. Others count tiles in proportion.
    pub sms: u32,
    /// Of the rows for the smallest head_dim that is enough, the one whose busiest SM is done first
    /// ([`Row::cost_per_key`]); then those for larger ones, where nothing of that is served.
    pub wgmma: Vec<Row<wgmma::Config>>,
    /// No other family serves e4m3, so that problems with few tiles have rows, too.
    pub wgmma_e4m3: Vec<Row<wgmma::Config>>,
    pub wgmma_backward: Vec<Row<wgmma::Config>>,
    pub times: Vec<wgmma::Times>,
    pub mma: Vec<Row<mma::Config>>,
    pub mma_backward: Vec<mma::BackwardRow>,
}

/// A config, and the problems that it is for.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row<C> {
    /// Targets that it is for; none means all.
    #[serde(default = "Vec::new")]
    pub targets: Vec<Target>,
    /// Largest head_dim and head_dim_v.
    pub head_dim: usize,
    /// Largest head_dim_v, if that is limited further.
    pub head_dim_v: Option<usize>,
    /// Sizes; none means all.
    #[serde(default = "Vec::new")]
    pub sizes: Vec<Size>,
    /// Whether for masks that end at the row (causal), for others, or for both.
    pub causal: Option<bool>,
    /// Most keys, if that is limited.
    pub most_keys: Option<usize>,
    /// Most tiles of 128 query rows, of all heads, on [`Card::sms`], if that is limited.
    pub most_tiles: Option<usize>,
    /// Whether for scores with a soft cap alone.
    #[serde(default)]
    pub softcap: bool,
    pub only: Option<Only>,
    /// Time of a tile, of all its query rows together, per key, relative to other rows for the same head_dim: of these
    /// the one with the smallest makespan is taken, because a number of tiles may fit the SMs well with one tiling and
    /// badly with another. `None`: the row is taken where it matches. Fitted to times of 161 problems, most of lengths
    /// that are no power of two (`wgmma/defaults/measured`); head sizes and masks in between are taken to behave alike.
    pub cost_per_key: Option<u64>,
    /// Its id is without the family's name.
    pub config: C,
    pub why: &'static str,
    /// Its [`Proposal::row`].
    #[serde(skip)]
    pub place: &'static str,
}

/// What a config is placed by among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// The time by the model whose numbers were fitted to measured times.
    Picoseconds(u64),
    /// Work of the busiest SM, or of all where lengths are on the device: keys, of which those of each row cost what
    /// was measured. It compares rows for the same head_dim.
    Work(u64),
    /// The order of rows: the first that serves a problem was the fastest on such problems.
    Order,
}

/// A config to try, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposal<C> {
    /// The config.
    pub config: C,
    /// Why, in a phrase.
    pub why: &'static str,
    /// The row that it is of, such as `h200.json:141, table mma`: file and line in `crates/kernels/cards`. `None` for
    /// those of a family without rows.
    pub row: Option<&'static str>,
    /// What it is placed by.
    pub score: Score,
}

impl<C> Proposal<C> {
    pub(crate) fn new(config: C, why: &'static str, row: Option<&'static str>, score: Score) -> Self {
        Proposal {
            config,
            why,
            row,
            score,
        }
    }

    /// The same of another kind of config.
    pub fn map<D>(self, change: impl FnOnce(C) -> D) -> Proposal<D> {
        Proposal::new(change(self.config), self.why, self.row, self.score)
    }
}

/// A kind of problems that a [`Row`] may be for alone.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Only {
    ShortCache,
    FewRows,
    ShortChunk,
}

/// The card whose measurements choices for a chip are estimated from, if it is another one. One of the same
/// architecture with as many multiprocessors is not: an H100 SXM counts as an H200.
pub fn estimated_from(chip: Chip) -> Option<&'static str> {
    let card = Card::nearest(chip);
    ((card.target, card.sms) != (chip.target, chip.sms)).then_some(&card.card)
}

impl Card {
    /// # Errors
    /// What is wrong in the file, and in which line: a row is a line.
    fn read(name: &'static str, text: &'static str) -> Result<Card, String> {
        let mut card: Card = serde_json::from_str(text).map_err(|error| format!("cards/{name}: {error}"))?;
        let file = (name, text);
        tell(&mut card.wgmma, "wgmma", file, |row| &mut row.place);
        tell(&mut card.wgmma_e4m3, "wgmma_e4m3", file, |row| &mut row.place);
        tell(&mut card.wgmma_backward, "wgmma_backward", file, |row| &mut row.place);
        tell(&mut card.times, "times", file, |row| &mut row.place);
        tell(&mut card.mma, "mma", file, |row| &mut row.place);
        tell(&mut card.mma_backward, "mma_backward", file, |row| &mut row.place);
        Ok(card)
    }

    pub(crate) fn all() -> &'static [Card] {
        &CARDS
    }

    /// The card with the SMs nearest to a chip's, of its architecture if there is one.
    pub(crate) fn nearest(chip: Chip) -> &'static Card {
        let distance = |card: &&Card| (card.target != chip.target, card.sms.abs_diff(chip.sms));
        CARDS.iter().min_by_key(distance).expect("a card has a file")
    }

    /// Tiles of a chip's problem, as if it had the card's SMs, are at most so many.
    pub(crate) fn has_few(&self, tiles: usize, most: usize, chip: Chip) -> bool {
        tiles * self.sms as usize <= most * chip.sms as usize
    }
}

/// Tells rows where they are; of a file as long as the program.
fn tell<R>(rows: &mut [R], table: &str, (file, text): (&str, &str), place: impl Fn(&mut R) -> &mut &'static str) {
    let head = format!("\"{table}\": [");
    // Lines are counted from 1, and the first row is below the head.
    let first = 2 + text.lines().position(|line| line.trim() == head).unwrap_or(0);
    for (row, line) in rows.iter_mut().zip(first..) {
        *place(row) = format!("{file}:{line}, table {table}").leak();
    }
}

impl<C: Copy> Row<C> {
    /// Its config, in the order of the table.
    pub(crate) fn proposal(&self) -> Proposal<C> {
        Proposal::new(self.config, self.why, Some(self.place), Score::Order)
    }

    /// Whether heads of a problem fit.
    pub(crate) fn fits(&self, problem: &Problem) -> bool {
        problem.head_dim().max(problem.head_dim_v()) <= self.head_dim
            && self.head_dim_v.is_none_or(|most| problem.head_dim_v() <= most)
    }

    /// Whether it is for problems with such masks.
    pub(crate) fn has_mask(&self, problem: &Problem) -> bool {
        self.causal
            .is_none_or(|wanted| wanted == problem.mask().window_right.is_some())
    }

    /// Whether it is for a problem on a chip.
    pub(crate) fn serves(&self, problem: &Problem, chip: Chip, card: &Card) -> bool {
        self.fits(problem)
            && self.has_mask(problem)
            && (self.targets.is_empty() || self.targets.contains(&chip.target))
            && (self.sizes.is_empty() || self.sizes.contains(&Size::of(problem, chip)))
            && self.most_keys.is_none_or(|most| problem.seq_len_kv() <= most)
            && self
                .most_tiles
                .is_none_or(|most| card.has_few(query_blocks(problem, 128), most, chip))
            && (!self.softcap || problem.softcap().is_some())
            && match self.only {
                None => true,
                Some(Only::ShortCache) => size::is_short_cache(problem, chip),
                Some(Only::FewRows) => size::has_few_rows(problem, chip),
                Some(Only::ShortChunk) => size::is_short_chunk(problem, chip),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_malformed_file_is_refused_with_its_row() {
        let &(name, text) = FILES.iter().find(|(name, _)| *name == "h200.json").unwrap();
        for (good, bad, told) in [
            (
                "\"sms\": 132",
                "\"sms\": \"132\"",
                "invalid type: string \"132\", expected u32 at line 4",
            ),
            (
                "m192n128-s2-pingpong-spec",
                "m192n1-s2",
                "`m192n1-s2` is no config of family wgmma at line 6",
            ),
            (
                "\"most_keys\": 3072",
                "\"keys\": 3072",
                "unknown field `keys`, expected",
            ),
            (
                "\"short_cache\"",
                "\"short\"",
                "unknown variant `short`, expected one of",
            ),
        ] {
            let text = text.replacen(good, bad, 1).leak();
            let error = Card::read(name, text).err().unwrap();
            assert!(
                error.starts_with("cards/h200.json: ") && error.contains(told),
                "{error}"
            );
        }
        assert!(Card::read(name, text).is_ok());
    }

    #[test]
    fn rows_know_their_lines() {
        for (name, text) in FILES {
            let card = Card::read(name, text).unwrap();
            let wgmma = [&card.wgmma, &card.wgmma_e4m3, &card.wgmma_backward];
            let wgmma = wgmma.into_iter().flatten();
            let wgmma = wgmma.map(|row| (row.place, row.config.to_string(), row.why));
            let mma = card.mma.iter().map(|row| (row.place, row.config.to_string(), row.why));
            for (place, config, why) in wgmma.chain(mma) {
                let (file, number) = place.split(',').next().unwrap().split_once(':').unwrap();
                let line = text.lines().nth(number.parse::<usize>().unwrap() - 1).unwrap();
                assert!(
                    file == *name && line.contains(&format!("\"{config}\"")) && line.contains(why),
                    "{place}: {line}"
                );
            }
        }
    }

    /// A chip has no other mark: of two such files one would never be read.
    #[test]
    fn no_two_cards_have_one_architecture_and_as_many_sms() {
        let mut kinds: Vec<_> = Card::all()
            .iter()
            .map(|card| (card.target.to_string(), card.sms))
            .collect();
        kinds.sort();
        assert!(
            kinds.windows(2).all(|two| two[0] != two[1]),
            "{kinds:?}: tell such cards apart in `Card::nearest`"
        );
    }

    #[test]
    fn a_chip_without_a_file_has_the_nearest_card() {
        let has_file = |target: &Target| Card::all().iter().any(|card| card.target == *target);
        for target in Target::ALL.iter().filter(|target| !has_file(target)) {
            let nearest = estimated_from((*target).into()).expect("measurements of another");
            assert!(
                Card::all().iter().any(|card| card.card == nearest),
                "{target}: {nearest}"
            );
        }
        for card in Card::all() {
            let chip = |sms| Chip {
                target: card.target,
                sms,
            };
            assert_eq!(estimated_from(chip(card.sms)), None);
            // One multiprocessor more: nearest to itself.
            assert_eq!(estimated_from(chip(card.sms + 1)), Some(card.card.as_str()));
        }
    }
}
