//! Which words of a row do not go together.

/// Whether words of a row go together: what the third column of `forms.txt` names.
pub(super) fn named(condition: &str) -> fn(&[&str]) -> bool {
    match condition {
        "" => |_| true,
        "compares" => compares,
        "flushes" => flushes,
        "saturates" => saturates,
        "at_most_16_bytes" => at_most_16_bytes,
        "load" => load,
        "of_global" => of_global,
        other => unreachable!("forms.txt has a condition that is none: {other}"),
    }
}

/// Whether a comparison is one that its type has.
fn compares(words: &[&str]) -> bool {
    let (is_equality, is_unsigned_order) = (
        words.iter().any(|word| ["eq", "ne"].contains(word)),
        words.iter().any(|word| ["lo", "ls", "hi", "hs"].contains(word)),
    );
    match words.last().map_or("", |ty| &ty[..1]) {
        "b" => is_equality,
        "s" => !is_unsigned_order,
        _ => true,
    }
}

/// A conversion flushes f32 alone.
fn flushes(words: &[&str]) -> bool {
    !words.contains(&"ftz") || words.contains(&"f32")
}

/// Integers saturate where the other type has values that theirs has not.
fn saturates(words: &[&str]) -> bool {
    let ["sat", to, from] = words else { return true };
    let bits = |ty: &str| ty[1..].parse::<u32>().unwrap_or(0);
    match (to.starts_with('u'), from.starts_with('u')) {
        (true, false) => true,
        (false, true) => bits(to) <= bits(from),
        _ => bits(to) < bits(from),
    }
}

/// One access has 16 bytes at most: four of 8 are two too many, and two of 16.
fn at_most_16_bytes(words: &[&str]) -> bool {
    let ty = words.last().copied().unwrap_or("");
    let bits = ty[1..].parse().unwrap_or(128);
    let count = [("v2", 2), ("v4", 4)]
        .iter()
        .find(|(vec, _)| words.contains(vec))
        .map_or(1, |(_, count)| *count);
    bits * count <= 128u32
}

/// Caches are chosen for global and shared memory; hints are for global memory, in place of such a choice.
fn load(words: &[&str]) -> bool {
    let has = |some: &[&str]| words.iter().any(|word| some.contains(word));
    let is_hinted = words.iter().any(|word| word.starts_with('L'));
    let is_cached = has(&["ca", "cg", "cs", "lu", "cv", "wb", "wt"]);
    let is_shared = has(&["shared", "shared::cta", "shared::cluster"]);
    let is_own = has(&["param", "param::entry", "param::func", "const", "local"]);
    at_most_16_bytes(words) && !(is_hinted && (is_shared || is_cached)) && !((is_hinted || is_cached) && is_own)
}

/// Vectors are added in global memory.
fn of_global(words: &[&str]) -> bool {
    !words.iter().any(|word| word.starts_with("shared"))
}
