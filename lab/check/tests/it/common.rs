//! What tests of several subjects share.

/// The number in an environment variable: `FLASHCORE_SEED` draws other problems, `FLASHCORE_PROBLEMS` more or fewer.
pub(crate) fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is {text}; write a whole number")),
        Err(_) => default,
    }
}
