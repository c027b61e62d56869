//! A problem as text: what is printed of it, such as `B4 H32/8 Sq3000 Skv3000 D96 bf16 causal`, in any case, and the
//! same with commas and shorter words, such as `b4,h32/8,s3000,d96,bf16,causal`. The text may begin with a problem's
//! name, whose fields the others change.

use std::str::FromStr;

use flashcore_problem::{
    Alibi, DType, Direction, KvLengths, Layout, Mask, Problem, ProblemBuilder, ProblemError, QLengths,
};

use crate::{BenchError, Result};

/// The problem of a text; `None` if it is none, such as a name.
///
/// # Errors
/// [`BenchError::Given`]: a word that is no field, or a field that is missing or wrong.
pub fn read(text: &str) -> Option<Result<Problem>> {
    let words = words(text);
    let [first, rest @ ..] = words.as_slice() else {
        return None;
    };
    let named = Problem::named(first).ok();
    let begins_so = named.is_some() || is_field(first);
    (begins_so && !rest.is_empty()).then(|| {
        let wrong = |why: String| BenchError::Given(format!("`{text}`: {why}"));
        let rest = if named.is_some() { rest } else { words.as_slice() };
        built(named.as_ref(), rest).map_err(wrong)
    })
}

/// Whether a word is a field of such a text.
pub fn is_field(word: &str) -> bool {
    Fields::of(None).with(word).is_ok()
}

/// Words that spaces or commas part, but those in parentheses.
fn words(text: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = text.split(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth == 0 && (c == ',' || c.is_whitespace())
    });
    parts.filter(|word| !word.is_empty()).collect()
}

struct Fields {
    builder: ProblemBuilder,
    /// K/V heads of the problem that the text begins with, where query heads share them: other query heads do, too.
    shared: Option<usize>,
    mask: Mask,
    top_left: bool,
    /// Keys of a page, and pages.
    pages: Option<[usize; 2]>,
}

fn built(named: Option<&Problem>, words: &[&str]) -> Result<Problem, String> {
    let mut fields = Fields::of(named);
    let mut given = Vec::new();
    for word in words {
        fields = fields.with(word)?;
        let field = field_of(word);
        if given.contains(&field) {
            return Err(format!("`{word}` sets what a word before it has set"));
        }
        given.push(field);
    }
    if fields.top_left {
        if fields.mask.is_full() {
            return Err("`top-left` moves a mask, and this problem has none: add causal or windowL/R".to_string());
        }
        fields.mask = fields.mask.top_left();
    }
    let mut builder = fields.builder.mask(fields.mask);
    if let Some([page_size, pages]) = fields.pages {
        // The text does not say how long a row of the block table is: as short as it can be.
        let keys = builder.clone().build().map_err(said)?.seq_len_kv();
        let max_pages = keys.div_ceil(page_size.max(1));
        builder = builder.kv_lengths(KvLengths::Paged {
            page_size,
            pages,
            max_pages,
        });
    }
    let problem = builder.build().map_err(said)?;
    if given.iter().any(|field| field == "deterministic") && problem.direction() == Direction::Forward {
        return Err("`deterministic` is for backward passes: every forward pass is".to_string());
    }
    Ok(problem)
}

/// What a word sets: the letters before its numbers, or what its kind of words sets.
fn field_of(word: &str) -> String {
    let word = word.to_ascii_lowercase();
    let letters: String = word
        .chars()
        .take_while(|c| c.is_ascii_alphabetic() || *c == '-')
        .collect();
    match letters.trim_end_matches('-') {
        "full" | "causal" | "window" => "mask",
        "cache" | "paged" | "page" | "packed-kv" => "keys",
        "bshd" | "bhsd" => "layout",
        _ if DType::from_name(&word).is_some() => "dtype",
        _ if word.starts_with("sinks-") => "sinks",
        letters => letters,
    }
    .to_string()
}

fn said(error: ProblemError) -> String {
    match error {
        ProblemError::Missing { field: "heads", .. } => "heads are missing: `h8`, or `h32/8`".to_string(),
        ProblemError::Missing { field: "head_dim", .. } => "head_dim is missing: `d128`".to_string(),
        ProblemError::Missing { .. } => "a length is missing: `s4k`, or `q1,k8k`".to_string(),
        error => error.to_string(),
    }
}

impl Fields {
    fn of(named: Option<&Problem>) -> Fields {
        Fields {
            builder: named.map_or_else(Problem::builder, ProblemBuilder::from),
            shared: named
                .filter(|problem| problem.num_kv_heads() != problem.num_heads())
                .map(Problem::num_kv_heads),
            mask: named.map_or(Mask::FULL, Problem::mask),
            top_left: false,
            pages: None,
        }
    }

    fn with(mut self, word: &str) -> Result<Fields, String> {
        let lower = word.to_ascii_lowercase();
        let word = lower.as_str();
        match word {
            "full" => self.mask = Mask::FULL,
            "causal" => self.mask = Mask::CAUSAL,
            "top-left" => self.top_left = true,
            "strided" => return Err("strides are not in a text: write bhsd, or a FILE.toml".to_string()),
            _ => {
                if let Some([left, right]) = two(word, "window", side) {
                    self.mask = Mask::window(left, right);
                } else if let Some(found) = two(word, "paged", size).or_else(|| two(word, "page", size)) {
                    self.pages = Some(found);
                } else if let (Some(kv_heads), Some(heads)) = (self.shared, word.strip_prefix('h').and_then(size)) {
                    self.builder = self.builder.heads(heads, kv_heads);
                } else {
                    let known = with_word(self.builder.clone(), word).or_else(|| with_number(self.builder, word));
                    self.builder = known.ok_or_else(|| {
                        format!("`{word}` is no field; fields are as in b4,h32/8,s3000,d96,bf16,causal (docs/cli.md)")
                    })?;
                }
            }
        }
        Ok(self)
    }
}

/// With a field that is one word.
fn with_word(builder: ProblemBuilder, word: &str) -> Option<ProblemBuilder> {
    Some(match word {
        "lse" => builder.return_lse(true),
        "cache" => builder.kv_lengths(KvLengths::Cache),
        "backward" => builder.direction(Direction::Backward),
        "deterministic" => builder.deterministic(true),
        "bshd" => builder.layout(Layout::bshd),
        "bhsd" => builder.layout(Layout::bhsd),
        _ => {
            let mut slopes = [Alibi::Heads, Alibi::BatchHeads].into_iter();
            return match (DType::from_name(word), slopes.find(|one| one.name() == word)) {
                (Some(dtype), _) => Some(builder.dtype(dtype)),
                (None, Some(slopes)) => Some(builder.alibi(slopes)),
                (None, None) => Some(builder.sinks(DType::from_name(word.strip_prefix("sinks-")?)?)),
            };
        }
    })
}

type Setter = fn(ProblemBuilder, usize) -> ProblemBuilder;

/// With a field that is a word and numbers.
fn with_number(builder: ProblemBuilder, word: &str) -> Option<ProblemBuilder> {
    let one = |keys: [&str; 2]| keys.iter().find_map(|key| size(word.strip_prefix(key)?));
    let real = |key: &str| word.strip_prefix(key)?.parse::<f32>().ok();
    let packed = |key: &str| {
        let total = word.strip_prefix(key)?;
        let used = total.strip_suffix("-used");
        Some((size(used.unwrap_or(total))?, used.is_some()))
    };
    if let Some([q, kv]) = two(word, "offset", number).or_else(|| two(word, "off", number)) {
        return Some(builder.offsets(q, kv));
    }
    if let Some((total, used)) = packed("packed-q") {
        return Some(builder.q_lengths(QLengths::Packed { total, used }));
    }
    if let Some((total, used)) = packed("packed-kv") {
        return Some(builder.kv_lengths(KvLengths::Packed { total, used }));
    }
    if let Some([heads, kv_heads]) = two(word, "h", size) {
        return Some(builder.heads(heads, kv_heads));
    }
    if let Some([head_dim, head_dim_v]) = two(word, "d", size) {
        return Some(builder.head_dim(head_dim).head_dim_v(head_dim_v));
    }
    let set: [(Option<usize>, Setter); 8] = [
        (one(["batch-invariant", "splits"]), ProblemBuilder::batch_invariant),
        (one(["b", "b"]), ProblemBuilder::batch),
        (one(["h", "h"]), |builder, heads| builder.heads(heads, heads)),
        (one(["sq", "q"]), ProblemBuilder::seq_len_q),
        (one(["skv", "k"]), ProblemBuilder::seq_len_kv),
        (one(["s", "s"]), ProblemBuilder::seq_len),
        (one(["dv", "dv"]), ProblemBuilder::head_dim_v),
        (one(["d", "d"]), ProblemBuilder::head_dim),
    ];
    if let Some((value, field)) = set.into_iter().find_map(|(value, field)| Some((value?, field))) {
        return Some(field(builder, value));
    }
    match (real("scale"), real("cap")) {
        (Some(scale), _) => Some(builder.softmax_scale(scale)),
        (_, Some(cap)) => Some(builder.softcap(cap)),
        _ => None,
    }
}

/// The two values of `key(8,16)` or `key8/16`; pages are apart by an `x`, too.
fn two<T>(word: &str, key: &str, value: fn(&str) -> Option<T>) -> Option<[T; 2]> {
    let rest = word.strip_prefix(key)?;
    let rest = rest
        .strip_prefix('(')
        .and_then(|rest| rest.strip_suffix(')'))
        .unwrap_or(rest);
    let (first, second) = rest.split_once([',', '/', 'x'])?;
    Some([value(first)?, value(second)?])
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

/// `4k` is 4,096.
fn size(text: &str) -> Option<usize> {
    match text.strip_suffix('k') {
        Some(thousands) => number::<usize>(thousands)?.checked_mul(1024),
        None => number(text),
    }
}

/// A side of a window.
fn side(text: &str) -> Option<Option<u32>> {
    match text {
        "inf" => Some(None),
        keys => number(keys).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use flashcore_testkit::{RandomLimits, random_backward, random_problem};

    use super::*;

    fn line(text: &str) -> String {
        read(text).unwrap().unwrap().to_string()
    }

    #[test]
    fn what_is_printed_is_read() {
        let limits = RandomLimits::default();
        let problems = (0..500).map(|seed| match seed % 4 {
            0 => random_backward(seed, &limits),
            _ => random_problem(seed, &limits),
        });
        let mut all = 0;
        for problem in problems.map(Result::unwrap) {
            let printed = problem.to_string();
            if printed.contains("strided") {
                assert!(
                    read(&printed).unwrap().unwrap_err().to_string().contains("bhsd"),
                    "{printed}"
                );
                continue;
            }
            all += 1;
            assert_eq!(line(&printed), printed);
            assert_eq!(line(&printed.to_lowercase()), printed);
            // Commas in parentheses stay.
            assert_eq!(line(&printed.replace(' ', ",")), printed);
        }
        assert!(all > 50, "{all}");
    }

    #[test]
    fn short_words_are_read() {
        for (text, printed) in [
            (
                "b4,h32/8,s3000,d96,bf16,causal",
                "B4 H32/8 Sq3000 Skv3000 D96 bf16 causal",
            ),
            ("h8,q1,k8k,d192/128", "B1 H8/8 Sq1 Skv8192 D192 fp16 full Dv128"),
            (
                "h8,s64,d64,window127/0,offset-5/0",
                "B1 H8/8 Sq64 Skv64 D64 fp16 window(127,0) off(-5,0)",
            ),
            ("llama8b-prefill-8k,h16", "B1 H16/8 Sq8192 Skv8192 D128 bf16 causal"),
            (
                "h8,q64,k128,d64,top-left,causal",
                &line("h8,q64,k128,d64,causal,top-left"),
            ),
            (
                "llama8b-prefill-8k,s4k,fp16",
                "B1 H32/8 Sq4096 Skv4096 D128 fp16 causal",
            ),
            (
                "h2,q1,k100,d64,page16/40",
                "B1 H2/2 Sq1 Skv100 D64 fp16 full paged16x40",
            ),
        ] {
            assert_eq!(line(text), printed);
        }
        for (text, why) in [
            ("h32,d64", "a length is missing: `s4k`, or `q1,k8k`"),
            ("b4,s64,d64", "heads are missing"),
            ("h8,s64", "head_dim is missing"),
            ("h8,s64,d64,fp17", "`fp17` is no field"),
            ("b4,b8,h8,s64,d64", "`b8` sets what a word before it has set"),
            ("h8,s64,d64,causal,full", "`full` sets what"),
            ("h8,s64,d64,fp16,bf16", "`bf16` sets what"),
            ("h8,s64,d64,top-left", "this problem has none"),
            ("h8,s64,d64,deterministic", "for backward passes"),
        ] {
            let said = read(text).unwrap().unwrap_err().to_string();
            assert!(said.contains(why), "{said}");
        }
        for other in ["small", "backward", "a,b", "smoll causal", "decode", "b4"] {
            assert!(read(other).is_none(), "{other}");
        }
    }
}
