//! [`Name`]: which tensor of a call an operand is.

use std::fmt;

/// Parts that are merged at once, at most. The result can be a part of the next call.
pub const MOST_PARTS: usize = 8;

/// Declares the names of operands, each with the word that messages and the buffers of launches have for it.
macro_rules! operand_names {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Which tensor of a call an operand is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Name {
            $($(#[$doc])* $name,)*
            /// The output of a part that is merged, counted from 0: as `Out`.
            PartOut(u8),
            /// The log-sum-exp of a part that is merged, counted from 0: as `Lse`.
            PartLse(u8),
        }

        impl Name {
            /// Its word, as Python has it: `cu_seqlens_q`. Those of parts are `out0` and `lse0` to `out7` and `lse7`;
            /// no call has a part of a larger number.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Name::$name => $text,)*
                    Name::PartOut(part) => part_word(&OUTS, part, "out of a part past out7"),
                    Name::PartLse(part) => part_word(&LSES, part, "lse of a part past lse7"),
                }
            }

            /// The name of a word.
            ///
            /// ```
            /// # use flashcore_problem as flashcore;
            /// use flashcore::Name;
            /// assert_eq!(Name::from_word("block_table"), Some(Name::BlockTable));
            /// assert_eq!(Name::from_word("lse3").map(Name::as_str), Some("lse3"));
            /// ```
            pub fn from_word(word: &str) -> Option<Name> {
                let part = |words: [&str; MOST_PARTS]| Some(words.iter().position(|known| *known == word)? as u8);
                match word {
                    $($text => Some(Name::$name),)*
                    _ => part(OUTS).map(Name::PartOut).or_else(|| part(LSES).map(Name::PartLse)),
                }
            }
        }
    };
}

/// The word of a part, or what one is that no call has.
const fn part_word(words: &[&'static str; MOST_PARTS], part: u8, of_none: &'static str) -> &'static str {
    if (part as usize) < MOST_PARTS {
        words[part as usize]
    } else {
        of_none
    }
}

/// The buffers of the parts that a call merges.
pub const OUTS: [&str; MOST_PARTS] = ["out0", "out1", "out2", "out3", "out4", "out5", "out6", "out7"];
/// Their log-sum-exps.
pub const LSES: [&str; MOST_PARTS] = ["lse0", "lse1", "lse2", "lse3", "lse4", "lse5", "lse6", "lse7"];

operand_names! {
    /// `[batch, seq_len_q, num_heads, head_dim]`; packed `[1, total, num_heads, head_dim]`. Of an append: what its
    /// rotary embedding rotates, left out to rotate `QOut` in place.
    Q = "q",
    /// `[batch, seq_len_kv, num_kv_heads, head_dim]`; packed `[1, total, num_kv_heads, head_dim]`; in pages `[pages,
    /// page_size, num_kv_heads, head_dim]`.
    K = "k",
    /// As K, with `head_dim_v`.
    V = "v",
    /// Written, and read by the backward pass: as Q with `head_dim_v`, of [`Problem::out_dtype`](crate::Problem).
    Out = "out",
    /// f32 `[batch, num_heads, seq_len_q]`, of packed rows `[num_heads, total]`, natural logarithm. Written where the
    /// problem asks for it, and read by the backward pass.
    Lse = "lse",
    /// Scales of Q where it is e4m3: f32 `[batch, num_kv_heads]`, finite and above 0.
    QScale = "q_scale",
    /// Scales of K where it is e4m3, as those of Q.
    KScale = "k_scale",
    /// Scales of V where it is e4m3, as those of Q.
    VScale = "v_scale",
    /// Sinks where the problem has them: `[num_heads]` of [`Problem::sinks`](crate::Problem::sinks); −∞ for none.
    Sinks = "sinks",
    /// ALiBi slopes where the problem has them: f32 `[num_heads]` or `[batch, num_heads]`, not negative.
    AlibiSlopes = "alibi_slopes",
    /// First row of each sequence in Q and O, and the end of the last: i32 `[batch + 1]`, from 0.
    CuSeqlensQ = "cu_seqlens_q",
    /// Rows that each sequence uses of its rows in Q: i32 `[batch]`.
    SequsedQ = "seqused_q",
    /// First row of each sequence in K and V, and the end of the last: i32 `[batch + 1]`, from 0.
    CuSeqlensK = "cu_seqlens_k",
    /// Keys of each sequence: i32 `[batch]`. An append writes them.
    SequsedK = "seqused_k",
    /// The pages of each sequence: i32 `[batch, max_pages]`; −1 is no page.
    BlockTable = "block_table",
    /// The gradient of O, of its dtype.
    Dout = "dout",
    /// Written: the gradient of Q, in the layout of [`Problem::gradient_layouts`](crate::Problem::gradient_layouts).
    Dq = "dq",
    /// Written: the gradient of K.
    Dk = "dk",
    /// Written: the gradient of V.
    Dv = "dv",
    /// New rows of K, `[batch, seq_new, num_kv_heads, head_dim]` or packed `[1, total, num_kv_heads, head_dim]`.
    KNew = "k_new",
    /// New rows of V, the same with its `head_dim`.
    VNew = "v_new",
    /// Written: the cache of K, `[cache_batch, capacity, num_kv_heads, head_dim]`, or in pages `[pages, page_size,
    /// num_kv_heads, head_dim]`.
    KCache = "k_cache",
    /// Written: the cache of V.
    VCache = "v_cache",
    /// A slot for each new row, i64 or i32 `[rows]`; −1 skips a row.
    SlotMapping = "slot_mapping",
    /// Rows that each sequence has before an append, its padding included: i32 `[batch]`.
    CacheSeqlens = "cache_seqlens",
    /// First new row of each sequence, and the end of the last: i32 `[batch + 1]`, from 0.
    CuSeqlensKNew = "cu_seqlens_k_new",
    /// Which part of the cache, or row of the block table, each sequence has: i32 `[batch]`.
    CacheBatchIdx = "cache_batch_idx",
    /// Rows of padding that each sequence begins with: i32 `[batch]`.
    LeftpadK = "leftpad_k",
    /// The position of the first new row of each sequence: i32 `[batch]`.
    SeqlensRotary = "seqlens_rotary",
    /// Cosines of a rotary embedding, `[positions, rotary_dim / 2]`, dense.
    RotaryCos = "rotary_cos",
    /// Sines, the same.
    RotarySin = "rotary_sin",
    /// Written: Q, rotated.
    QOut = "q_out",
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
