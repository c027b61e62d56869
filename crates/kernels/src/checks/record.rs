//! What the kernel leaves: a record of the first violation that it found, as words of memory, and the error it means.

use flashcore_problem::ProblemError;

/// Words of a record. All are 0 before anything was found.
///
/// | word | what it holds |
/// |---|---|
/// | 0 | violations found |
/// | 1 | 1 once the other words are complete |
/// | 2 | the `Rule`, and from bit 8 on the place of the argument in `ARGUMENTS` |
/// | 3, 4 | the sequence, or the new row of a slot; the entry of the array |
/// | 5, 6 | the value, its low word first |
/// | 7, 8, 9 | the least and the most that is allowed; rows that the rule speaks of |
pub const RECORD_WORDS: usize = 16;

/// Arguments that are checked, as errors and the buffers of launches have them.
pub(super) const ARGUMENTS: [&str; 12] = [
    "cu_seqlens_q",
    "seqused_q",
    "cu_seqlens_k",
    "seqused_k",
    "block_table",
    "cache_seqlens",
    "cu_seqlens_k_new",
    "cache_batch_idx",
    "leftpad_k",
    "seqlens_rotary",
    "rotary_cos",
    "slot_mapping",
];

/// What a value broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Rule {
    /// An offset: at least the one before, at most the rows of the tensors.
    Offset,
    /// The rows between two offsets: at most the bound.
    Bound,
    /// A number of a sequence, between two others.
    Number,
    /// Rows of a sequence before an append, which needs room.
    Room,
    /// A page that the sequence needs.
    Page,
    /// The first position of a sequence: 0 or more.
    First,
    /// The last position of a sequence: in the rotary tables.
    Last,
    /// The slot of a new row.
    Slot,
}

const RULES: [Rule; 8] = [
    Rule::Offset,
    Rule::Bound,
    Rule::Number,
    Rule::Room,
    Rule::Page,
    Rule::First,
    Rule::Last,
    Rule::Slot,
];

/// The word of a rule and an argument, one of `ARGUMENTS`.
pub(super) fn site(rule: Rule, argument: &'static str) -> u32 {
    let place = ARGUMENTS.iter().position(|known| *known == argument).unwrap_or(0);
    rule as u32 | (place as u32) << 8
}

/// The error that a record means; `None` while nothing was found, or not all of it is there yet.
///
/// The words are those of a launch of [`of_problem`](super::of_problem) or [`of_append`](super::of_append). Of several
/// violations the record has the one that a block told first.
pub fn violation(record: &[u32; RECORD_WORDS]) -> Option<ProblemError> {
    let [found, complete, site, index, entry, low, high, least, most, rows, ..] = *record;
    if complete == 0 {
        return None;
    }
    let argument = *ARGUMENTS.get((site >> 8) as usize)?;
    let rule = *RULES.get((site & 255) as usize)?;
    let value = (u64::from(high) << 32 | u64::from(low)).cast_signed();
    let (least, most, rows) = (least.cast_signed(), most.cast_signed(), rows.cast_signed());
    let why = match rule {
        Rule::Offset => format!(
            "has {value} in entry {entry}, of sequence {index}; allowed are {least} to {most}: offsets start at 0 or \
             more, do not fall, and end within their tensors"
        ),
        Rule::Bound => {
            let bound = match argument {
                "cu_seqlens_q" => "max_seqlen_q (seq_len_q of a Problem)",
                _ => "max_seqlen_k (seq_len_kv of a Problem)",
            };
            format!("gives sequence {index} {value} rows; the bound {bound} is {most}: raise it")
        }
        Rule::Number => format!("has {value} for sequence {index}; allowed are {least} to {most}"),
        Rule::Room => {
            format!(
                "has {value} for sequence {index}, which appends {rows} rows; there is room for 0 to {most} in all: append \
                 fewer, or to a cache with room for more"
            )
        }
        Rule::Page => format!(
            "has {value} in entry {entry} of sequence {index}, which needs that page; the cache has pages 0 to {most}"
        ),
        Rule::First => format!("has {value} for sequence {index}; it is 0 or more"),
        Rule::Last => {
            let last = value + i64::from(rows) - 1;
            format!("has {most} positions; sequence {index} has rows up to position {last}")
        }
        Rule::Slot => format!("has {value} for row {index}; allowed are -1 (skip) and 0 to {most}"),
    };
    let others = match found {
        0 | 1 => String::new(),
        2 => " (another value is wrong, too)".to_string(),
        found => format!(" ({} other values are wrong, too)", found - 1),
    };
    Some(ProblemError::Lengths {
        argument,
        why: why + &others,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_and_arguments_are_read_as_they_are_written() {
        for (place, rule) in RULES.into_iter().enumerate() {
            assert_eq!(rule as usize, place);
            for argument in ARGUMENTS {
                let mut record = [0; RECORD_WORDS];
                (record[0], record[2], record[3], record[5], record[8]) = (3, site(rule, argument), 7, 5, 4);
                assert!(violation(&record).is_none(), "it is not complete");
                record[1] = 1;
                let error = violation(&record).unwrap().to_string();
                assert!(error.starts_with(argument) && error.contains(" 7"), "{error}");
                assert!(error.ends_with("(2 other values are wrong, too)"), "{error}");
            }
        }
    }

    #[test]
    fn values_have_64_bits() {
        let mut record = [0; RECORD_WORDS];
        (record[0], record[1], record[2]) = (1, 1, site(Rule::Slot, "slot_mapping"));
        (record[5], record[6], record[8]) = (1, u32::MAX, 15);
        let error = violation(&record).unwrap().to_string();
        assert_eq!(
            error,
            "slot_mapping has -4294967295 for row 0; allowed are -1 (skip) and 0 to 15"
        );
    }
}
