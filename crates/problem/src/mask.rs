//! Attention masks.
//!
//! Every mask here is a band around a diagonal. A kernel needs two integers: query row `i` attends
//! to keys `i + lo ..= i + hi`, clipped to `0..seq_len_kv` ([`KeyRange`]).

use serde::{Deserialize, Serialize};

/// Position of a mask's diagonal when `seq_len_q != seq_len_kv`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CausalAlign {
    /// The last query row sees the last key (FlashAttention since 2.1; decoders with a KV cache).
    #[default]
    BottomRight,
    /// The first query row sees only the first key (PyTorch's `is_causal=True`).
    TopLeft,
}

/// A band `[-window_left, +window_right]` of visible keys around the diagonal. `None` means
/// unbounded; causal is `window_right = Some(0)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Mask {
    /// Visible keys before the diagonal; `None`: all.
    pub window_left: Option<u32>,
    /// Visible keys after the diagonal; `None`: all; `Some(0)`: causal.
    pub window_right: Option<u32>,
    /// Position of the diagonal.
    pub align: CausalAlign,
}

impl Mask {
    /// No mask: every query row attends to every key.
    pub const FULL: Mask = Mask::window(None, None);

    /// Causal, bottom-right aligned.
    pub const CAUSAL: Mask = Mask::window(None, Some(0));

    /// `left` keys before and `right` keys after the diagonal, bottom-right aligned.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::Mask;
    /// let sliding_causal = Mask::window(Some(128), Some(0));
    /// assert_eq!(sliding_causal.to_string(), "window(128,0)");
    /// ```
    pub const fn window(left: Option<u32>, right: Option<u32>) -> Mask {
        Mask {
            window_left: left,
            window_right: right,
            align: CausalAlign::BottomRight,
        }
    }

    /// The same mask, top-left aligned.
    pub const fn top_left(mut self) -> Mask {
        self.align = CausalAlign::TopLeft;
        self
    }

    /// Parses the output of `Display`; `None` if `text` is not a mask.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::Mask;
    /// for mask in [Mask::FULL, Mask::CAUSAL.top_left(), Mask::window(Some(128), None)] {
    ///     assert_eq!(Mask::from_name(&mask.to_string()), Some(mask));
    /// }
    /// assert_eq!(Mask::from_name("casual"), None);
    /// ```
    pub fn from_name(text: &str) -> Option<Mask> {
        let top_left = text.strip_suffix(" top-left");
        let band = top_left.unwrap_or(text);
        let side = |side: &str| match side {
            "inf" => Some(None),
            number => number.parse().ok().map(Some),
        };
        let mask = match band {
            "full" => Mask::FULL,
            "causal" => Mask::CAUSAL,
            _ => {
                let (left, right) = band.strip_prefix("window(")?.strip_suffix(')')?.split_once(',')?;
                Mask::window(side(left)?, side(right)?)
            }
        };
        Some(top_left.map_or(mask, |_| mask.top_left()))
    }

    /// Whether the mask hides no key.
    pub const fn is_full(&self) -> bool {
        self.window_left.is_none() && self.window_right.is_none()
    }
}

impl std::fmt::Display for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = |w: Option<u32>| w.map_or("inf".to_string(), |w| w.to_string());
        match (self.window_left, self.window_right) {
            (None, None) => return f.pad("full"),
            (None, Some(0)) => f.write_str("causal")?,
            (left, right) => write!(f, "window({},{})", side(left), side(right))?,
        }
        if self.align == CausalAlign::TopLeft {
            f.write_str(" top-left")?;
        }
        Ok(())
    }
}

/// A mask resolved for given lengths and offsets: query row `i` attends to keys
/// `i + lo ..= i + hi`, clipped to `0..seq_len_kv`. Both fit in an `i32` for every row index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// First visible key relative to the row index.
    pub lo: i32,
    /// Last visible key relative to the row index (inclusive).
    pub hi: i32,
    /// Number of keys.
    pub seq_len_kv: usize,
    /// The key at the position of row 0; that of row `i` is `i` further. It need not exist.
    pub diagonal: i32,
}

impl KeyRange {
    /// `lo` of a band without a left edge.
    pub const UNBOUNDED_LO: i32 = -(1 << 30);
    /// `hi` of a band without a right edge.
    pub const UNBOUNDED_HI: i32 = 1 << 30;

    /// The keys that query row `row` attends to; may be empty.
    ///
    /// ```
    /// # use flashcore_problem as flashcore;
    /// use flashcore::{Mask, Problem};
    /// let problem = Problem::builder().heads(1, 1).seq_len_q(2).seq_len_kv(5).head_dim(64);
    /// let problem = problem.mask(Mask::CAUSAL).build().unwrap();
    /// assert_eq!(problem.key_range().keys(0), 0..4); // bottom-right: row 0 of 2 sees keys 0..=3
    /// assert_eq!(problem.key_range().keys(1), 0..5);
    /// ```
    #[inline]
    pub fn keys(&self, row: usize) -> std::ops::Range<usize> {
        let clamp = |key: i64| key.clamp(0, self.seq_len_kv as i64) as usize;
        let start = clamp(row as i64 + i64::from(self.lo));
        let end = clamp(row as i64 + i64::from(self.hi) + 1);
        start..end.max(start)
    }
}
