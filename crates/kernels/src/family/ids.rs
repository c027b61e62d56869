//! Parts of ids, and what they were called before.

/// Parts of ids until November 2026, which evidence and plan tables still have, and what they are called now.
const OLD_WORDS: [(&str, &str); 4] = [
    ("-turns", "-pingpong"),
    ("-eager", "-always"),
    ("-lazy", "-cond"),
    ("-bold", "-spec"),
];

pub(super) fn with_words_of_today(id: &str) -> String {
    let replaced = |id: String, (old, new): &(&str, &str)| id.replace(old, new);
    OLD_WORDS.iter().fold(id.to_string(), replaced)
}

/// The parts of an id, without the family.
///
/// ```
/// use flashcore_kernels::family::id_parts;
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
