//! What parts of ids were called before.

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
