//! Named problems, and the one-line form of a problem.

use std::borrow::Cow;
use std::fmt;

use crate::{Alibi, DType, Direction, KvLengths, Layout, Mask, Problem, ProblemBuilder, ProblemError, QLengths};

/// A problem with a name.
#[derive(Clone, Copy, Debug)]
pub struct NamedProblem {
    /// The name, for example `small`.
    pub name: &'static str,
    /// One-line description.
    pub about: &'static str,
    build: fn(ProblemBuilder) -> ProblemBuilder,
}

impl NamedProblem {
    /// A builder with this problem's fields, so that some can be changed.
    pub fn builder(&self) -> ProblemBuilder {
        (self.build)(Problem::builder())
    }
}

fn shape(b: ProblemBuilder, batch: usize, heads: (usize, usize), seq_len: usize, head_dim: usize) -> ProblemBuilder {
    let b = b.batch(batch).heads(heads.0, heads.1);
    b.seq_len(seq_len).head_dim(head_dim)
}

macro_rules! named {
    ($($name:literal, $about:literal, $build:expr;)*) => {
        &[$(NamedProblem { name: $name, about: $about, build: $build }),*]
    };
}

/// All named problems. The dtype is fp16 unless stated otherwise.
pub const NAMED_PROBLEMS: &[NamedProblem] = named! {
    "small", "the shape this project began with: B1 H8 S512 D64",
        |b| shape(b, 1, (8, 8), 512, 64);
    "small-causal", "the same, causal",
        |b| shape(b, 1, (8, 8), 512, 64).mask(Mask::CAUSAL);
    "small-b2", "the same with two sequences",
        |b| shape(b, 2, (8, 8), 512, 64);
    "small-b2-causal", "the same with two sequences, causal",
        |b| shape(b, 2, (8, 8), 512, 64).mask(Mask::CAUSAL);
    "small-bf16", "the same in bf16",
        |b| shape(b, 1, (8, 8), 512, 64).dtype(DType::BF16);
    "small-f32", "the same in f32",
        |b| shape(b, 1, (8, 8), 512, 64).dtype(DType::F32);
    "tiny", "small enough to trace by hand: B1 H1 S32 D16",
        |b| shape(b, 1, (1, 1), 32, 16);
    "cpu-2k-f32", "the CPU's first target: B1 H8 S2048 D64 in f32",
        |b| shape(b, 1, (8, 8), 2048, 64).dtype(DType::F32);
    "cpu-4k-f32", "the CPU's second target: B1 H16 S4096 D128 in f32",
        |b| shape(b, 1, (16, 16), 4096, 128).dtype(DType::F32);
    "bert-base", "encoder of BERT base: B8 H12 S512 D64",
        |b| shape(b, 8, (12, 12), 512, 64);
    "gpt2", "GPT-2 small in training: B4 H12 S1024 D64 causal",
        |b| shape(b, 4, (12, 12), 1024, 64).mask(Mask::CAUSAL);
    "vit-l16", "ViT-L/16 at 384 px, an odd length: B8 H16 S577 D64",
        |b| shape(b, 8, (16, 16), 577, 64);
    "sd-cross", "Stable Diffusion 1.5's cross attention: 4096 pixels to 77 words, H8 D40",
        |b| shape(b, 2, (8, 8), 77, 40).seq_len_q(4096);
    "llama8b-prefill-2k", "Llama 3 8B prefill: 32/8 heads, D128, S2048 causal, bf16",
        |b| shape(b, 1, (32, 8), 2048, 128).dtype(DType::BF16).mask(Mask::CAUSAL);
    "llama8b-prefill-8k", "Llama 3 8B prefill: 32/8 heads, D128, S8192 causal, bf16",
        |b| shape(b, 1, (32, 8), 8192, 128).dtype(DType::BF16).mask(Mask::CAUSAL);
    "llama8b-chunk-8k", "Llama 3 8B chunked prefill: the last 512 of 8192 rows, causal, bf16",
        |b| shape(b, 1, (32, 8), 8192, 128).seq_len_q(512).dtype(DType::BF16).mask(Mask::CAUSAL);
    "llama8b-decode-8k", "Llama 3 8B decode: one row a sequence against 8192 keys, B16, bf16",
        |b| shape(b, 16, (32, 8), 8192, 128).seq_len_q(1).dtype(DType::BF16).mask(Mask::CAUSAL);
    "llama70b-prefill-4k", "Llama 3 70B prefill: 64/8 heads, D128, S4096 causal, bf16",
        |b| shape(b, 1, (64, 8), 4096, 128).dtype(DType::BF16).mask(Mask::CAUSAL);
    "mistral7b-window-8k", "Mistral 7B v0.1: 32/8 heads, D128, S8192, sliding window of 4096, bf16",
        |b| shape(b, 1, (32, 8), 8192, 128).dtype(DType::BF16).mask(Mask::window(Some(4095), Some(0)));
    "gemma2-9b-4k", "Gemma 2 9B, global layer: 16/8 heads, D256, S4096 causal, soft cap 50, bf16",
        |b| shape(b, 1, (16, 8), 4096, 256).dtype(DType::BF16).mask(Mask::CAUSAL).softcap(50.0);
    "gpt-oss-window-4k", "gpt-oss 20B, sliding layer: 64/8 heads, D64, S4096, window of 128, sinks, bf16",
        |b| shape(b, 1, (64, 8), 4096, 64).dtype(DType::BF16).mask(Mask::window(Some(127), Some(0))).sinks(DType::BF16);
    "mpt7b-alibi-2k", "MPT 7B: 32 heads, D128, S2048 causal, ALiBi, bf16",
        |b| shape(b, 1, (32, 32), 2048, 128).dtype(DType::BF16).mask(Mask::CAUSAL).alibi(Alibi::Heads);
    "falcon7b-mqa-2k", "Falcon 7B: 71 query heads on one K/V head, D64, S2048 causal, bf16",
        |b| shape(b, 1, (71, 1), 2048, 64).dtype(DType::BF16).mask(Mask::CAUSAL);
    "fa-d64-16k", "FlashAttention papers' longest: B1 H32 S16384 D64",
        |b| shape(b, 1, (32, 32), 16384, 64);
    "fa-d128-16k", "FlashAttention papers' longest: B1 H16 S16384 D128",
        |b| shape(b, 1, (16, 16), 16384, 128);
    "fa-d128-16k-causal", "FlashAttention papers' longest: B1 H16 S16384 D128 causal",
        |b| shape(b, 1, (16, 16), 16384, 128).mask(Mask::CAUSAL);
};

/// What the names of backward problems end in.
pub const BACKWARD: &str = "-backward";

/// What the names of `small` and its kin began with before: old commands and stored runs have them.
const OLD: &str = "mission";

/// The name that a problem has now: `small-b2` for `mission-b2`. Names that were not replaced stay as they are.
#[doc(hidden)]
pub fn current_name(name: &str) -> Cow<'_, str> {
    let Some(rest) = name.strip_prefix(OLD) else {
        return Cow::Borrowed(name);
    };
    let now = format!("small{rest}");
    let of = now.strip_suffix(BACKWARD).unwrap_or(&now);
    if NAMED_PROBLEMS.iter().any(|named| named.name == of) {
        Cow::Owned(now)
    } else {
        Cow::Borrowed(name)
    }
}

impl Problem {
    /// Looks up one of the named problems, which `flashcore list problems` lists; `NAME-backward` is its backward pass.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::Problem;
    /// assert_eq!(Problem::named("small")?.to_string(), "B1 H8/8 Sq512 Skv512 D64 fp16 full");
    /// assert_eq!(Problem::named("small-backward")?, Problem::named("small")?.backward()?);
    /// # Ok::<(), flashcore::ProblemError>(())
    /// ```
    pub fn named(name: &str) -> Result<Problem, ProblemError> {
        let now = current_name(name);
        let (of, direction) = match now.strip_suffix(BACKWARD) {
            Some(of) => (of, Direction::Backward),
            None => (now.as_ref(), Direction::Forward),
        };
        match NAMED_PROBLEMS.iter().find(|named| named.name == of) {
            Some(named) => named.builder().direction(direction).build(),
            None => Err(ProblemError::UnknownName {
                given: name.to_string(),
                known: NAMED_PROBLEMS.iter().map(|n| n.name).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

/// One line such as `B1 H8/8 Sq512 Skv512 D64 fp16 full`, followed by non-default fields: `Dv32`, `off(q,kv)`,
/// `scale0.1`, `cap30`, `sinks-bf16`, `alibi` (`alibi-batch`: slopes of each batch), `lse`, `strided` (not dense bshd),
/// and the kinds of lengths: `packed-q300` (total), `packed-kv900`, each perhaps `-used`, `cache`, `paged16x40` (page
/// size, pages), and `backward`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = format!(
            "B{} H{}/{} Sq{} Skv{} D{} {} {}",
            self.batch,
            self.num_heads,
            self.num_kv_heads,
            self.seq_len_q,
            self.seq_len_kv,
            self.head_dim,
            self.dtype,
            self.mask
        );
        let offsets = (self.q_offset, self.kv_offset);
        let scale = match self.softmax_scale {
            // Debug switches to an exponent where a decimal fraction would be long.
            scale if scale < 1e-4 => format!("scale{scale:?}"),
            scale => format!("scale{scale}"),
        };
        let packed = |what, total, used| format!("packed-{what}{total}{}", if used { "-used" } else { "" });
        let unusual = [
            (self.head_dim_v != self.head_dim).then(|| format!("Dv{}", self.head_dim_v)),
            (offsets != (0, 0)).then(|| format!("off({},{})", offsets.0, offsets.1)),
            (self.softmax_scale != Problem::default_scale(self.head_dim)).then_some(scale),
            self.softcap.map(|cap| format!("cap{cap}")),
            self.sinks.map(|dtype| format!("sinks-{dtype}")),
            self.alibi.map(|slopes| slopes.name().to_string()),
            (self.return_lse && self.direction.is_forward()).then(|| "lse".to_string()),
            self.layouts()
                .any(|layout| *layout != Layout::bshd(layout.shape))
                .then(|| "strided".to_string()),
            match self.q_lengths {
                QLengths::Equal => None,
                QLengths::Packed { total, used } => Some(packed("q", total, used)),
            },
            match self.kv_lengths {
                KvLengths::Equal => None,
                KvLengths::Packed { total, used } => Some(packed("kv", total, used)),
                KvLengths::Cache => Some("cache".to_string()),
                KvLengths::Paged { page_size, pages, .. } => Some(format!("paged{page_size}x{pages}")),
            },
            self.batch_invariant.map(|keys| format!("batch-invariant{keys}")),
        ];
        for what in unusual.into_iter().flatten() {
            line += " ";
            line += &what;
        }
        if !self.direction.is_forward() {
            let deterministic = if self.deterministic { " deterministic" } else { "" };
            line.push_str(&format!("{deterministic} {}", self.direction));
        }
        f.pad(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_problem_builds_and_is_found() {
        for named in NAMED_PROBLEMS {
            let problem = Problem::named(named.name).unwrap();
            assert_eq!(problem, named.builder().build().unwrap());
            assert!(!named.about.contains('\n'));
            assert_eq!(NAMED_PROBLEMS.iter().filter(|n| n.name == named.name).count(), 1);
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = Problem::named("smoll").unwrap_err().to_string();
        assert!(
            message.starts_with("no problem is named `smoll`; known names: small, small-causal, "),
            "{message}"
        );
    }

    #[test]
    fn names_of_before_are_those_of_now() {
        for (old, now) in [
            ("mission", "small"),
            ("mission-b2-causal", "small-b2-causal"),
            ("mission-f32-backward", "small-f32-backward"),
        ] {
            assert_eq!(current_name(old), now);
            assert_eq!(Problem::named(old).unwrap(), Problem::named(now).unwrap());
        }
        for other in ["small", "missions", "mission-b3", "my-mission", "gpt2", ""] {
            assert_eq!(current_name(other), other);
        }
        let message = Problem::named("mission-b3").unwrap_err().to_string();
        assert_eq!(message.matches("mission").count(), 1, "{message}");
    }

    #[test]
    fn display_lists_non_default_fields() {
        let problem = Problem::builder()
            .head_dim(64)
            .heads(8, 2)
            .seq_len_q(1)
            .seq_len_kv(300)
            .head_dim_v(32)
            .mask(Mask::window(Some(16), Some(0)).top_left())
            .offsets(-3, 7)
            .softmax_scale(0.5)
            .softcap(30.0)
            .sinks(DType::BF16)
            .alibi(Alibi::BatchHeads)
            .return_lse(true)
            .layout(Layout::bhsd)
            .build()
            .unwrap();
        assert_eq!(
            problem.to_string(),
            "B1 H8/2 Sq1 Skv300 D64 fp16 window(16,0) top-left Dv32 off(-3,7) scale0.5 cap30 \
             sinks-bf16 alibi-batch lse strided"
        );
        let small = Problem::named("small").unwrap();
        assert_eq!(format!("{small:>36}|"), "  B1 H8/8 Sq512 Skv512 D64 fp16 full|");
    }
}
