//! The time of day, for statuses and events. No decision depends on it.

use std::time::{SystemTime, UNIX_EPOCH};

/// The time as RFC 3339 has it, in UTC: `2026-01-31T12:00:00.000000Z` with `has_micros`, otherwise
/// without the fraction.
pub(crate) fn stamp(now: SystemTime, has_micros: bool) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let fraction = if has_micros { format!(".{:06}", since.subsec_micros()) } else { String::new() };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Year, month and day of a number of days since 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the day that leap years add is the last one.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn days_have_their_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(seconds), false), text);
        }
        let now = UNIX_EPOCH + Duration::from_micros(1_500_007);
        assert_eq!(stamp(now, true), "1970-01-01T00:00:01.500007Z");
    }
}
