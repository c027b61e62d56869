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

/// `8`, `8x4` or `8x4x2`; axes that are left out are `rest`.
pub(crate) fn axes(text: &str, rest: u32) -> Result<[u32; 3], String> {
    let parts = text.split(['x', ',']).map(|part| part.trim().parse().ok());
    match parts.collect::<Option<Vec<u32>>>().as_deref() {
        Some([x]) => Ok([*x, rest, rest]),
        Some([x, y]) => Ok([*x, *y, rest]),
        Some([x, y, z]) => Ok([*x, *y, *z]),
        _ => Err(format!("write XxYxZ, e.g. 8x{rest}x{rest}")),
    }
}

/// The fields of a value such as `grid=8x4,opted-in,entry=copy<float, 4>`: a comma that no field follows is of the
/// value before it.
pub(crate) fn fields<'a>(text: &str, known: &[&'a str]) -> Result<Vec<(&'a str, String)>, String> {
    let mut all: Vec<(&str, String)> = Vec::new();
    for part in text.split(',') {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let known_key = known.iter().find(|known| **known == key.trim());
        if known_key.is_some_and(|key| all.iter().any(|(before, _)| before == key)) {
            return Err(format!("`{}` is given twice", key.trim()));
        }
        match (known_key, all.last_mut()) {
            (Some(key), _) => all.push((key, value.trim().to_string())),
            (None, Some((_, before))) if !part.contains('=') => before.push_str(&format!(",{part}")),
            _ => return Err(format!("`{}` is no field; allowed: {}", key.trim(), known.join(", "))),
        }
    }
    Ok(all)
}

/// A duration with its unit: `90s`, `5m`, `1h`, `7d`, `1w`. `None` without a unit, or of one that is not above 0.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    const DAY: f64 = 86_400.0;
    const UNITS: [(&str, f64); 6] = [
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
        ("d", DAY),
        ("w", 7.0 * DAY),
    ];
    let text = text.trim();
    let timed = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)));
    let (number, unit) = timed?;
    let value: f64 = number.trim().parse().ok().filter(|value| *value > 0.0)?;
    Duration::try_from_secs_f64(value * unit).ok()
}

/// A budget or a deadline: a duration, or a bare number of seconds.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let bare = || duration(&format!("{}s", text.trim()));
    let time = duration(text).or_else(bare);
    time.ok_or_else(|| "write a time above 0 as 90s, 5m or 500ms; a bare number is seconds".to_string())
}

/// The same, of whole seconds up to so many hours.
pub(crate) fn deadline(text: &str) -> Result<Duration, String> {
    const MOST: Duration = Duration::from_secs(24 * 3600);
    let time = time(text)?;
    if (Duration::from_secs(1)..=MOST).contains(&time) {
        Ok(time)
    } else {
        Err("write a time from 1s to 24h; a bare number is seconds".to_string())
    }
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
        for wrong in ["0", "-1", "nan", "inf", "2x", "0s", ""] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            ["0.5", "90", "2m"].map(|text| time(text).unwrap().as_secs_f64()),
            [0.5, 90.0, 120.0]
        );
        for wrong in ["0", "999ms", "25h"] {
            assert!(deadline(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_have_fields() {
        assert_eq!(
            fields(
                "grid=8x4,opted-in,entry=copy<float, 4>(int)",
                &["grid", "opted-in", "entry"]
            )
            .unwrap(),
            [
                ("grid", "8x4".to_string()),
                ("opted-in", String::new()),
                ("entry", "copy<float, 4>(int)".to_string())
            ]
        );
        assert!(
            fields("gird=8", &["grid"])
                .unwrap_err()
                .contains("`gird` is no field; allowed: grid")
        );
        assert_eq!(
            [axes("8", 1), axes("8x4", 1), axes("1,0,0", 0)],
            [Ok([8, 1, 1]), Ok([8, 4, 1]), Ok([1, 0, 0])]
        );
        assert!(axes("8x", 1).is_err());
    }
}
