//! Sizes and durations as they are typed: `4k` keys, `90s`.

use std::time::Duration;

/// A number of sequences, heads, rows, columns or bytes; `4k` is 4,096. What takes it says which numbers are allowed.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return Err("write a whole number, e.g. 64 or 4k (4,096)".to_string());
    }
    let value: Option<usize> = digits.parse().ok();
    let value = value.and_then(|value| value.checked_mul(unit));
    value.ok_or_else(|| format!("{text} is too large; at most {} can be written", usize::MAX))
}

/// The same where a number of 32 bits is taken.
pub(crate) fn size32(text: &str) -> Result<u32, String> {
    let value = size(text)?;
    u32::try_from(value).map_err(|_| format!("{text} is too large; at most {} is allowed", u32::MAX))
}

/// A duration with its unit: `90s`, `5m`, `1h`, `7d`. `None` without a unit, or of one that is not above 0.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    const UNITS: [(&str, f64); 5] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];
    let text = text.trim();
    let timed = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)));
    let (number, unit) = timed?;
    let value: f64 = number.trim().parse().ok().filter(|value| *value > 0.0)?;
    Duration::try_from_secs_f64(value * unit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_are_read_as_they_are_written() {
        assert_eq!([size("64"), size(" 4k "), size("1K")], [Ok(64), Ok(4096), Ok(1024)]);
        for wrong in ["", "k", "-1", "+1", "4.5k", "4kk", "x", "4 k"] {
            assert!(size(wrong).unwrap_err().contains("4k (4,096)"), "{wrong}");
        }
        assert!(size("99999999999999999k").unwrap_err().contains("too large"));
        assert!(size32("8388608k").unwrap_err().contains("too large"));
        let seconds = |text| duration(text).map(|time| time.as_secs_f64());
        assert_eq!(
            ["90s", "1.5m", "1h", "7d", "500ms"].map(seconds),
            [90.0, 90.0, 3600.0, 604_800.0, 0.5].map(Some)
        );
        for wrong in ["90", "s", "-1h", "0s", "infs", "1e400s", "1e300h", "fast"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
    }
}
