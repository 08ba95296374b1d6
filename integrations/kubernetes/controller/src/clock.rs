//! The time of day, for statuses and events. No decision depends on it.

use atoll_core::calendar::Utc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time as RFC 3339 has it, in UTC: `2026-01-31T12:00:00.000000Z` with `has_micros`, otherwise
/// without the fraction.
pub(crate) fn stamp(now: SystemTime, has_micros: bool) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let Utc { year, month, day, hour, minute, second } = Utc::at(since.as_secs());
    let fraction = if has_micros { format!(".{:06}", since.subsec_micros()) } else { String::new() };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stamps_have_the_form_of_the_api_server() {
        assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(951_782_400), false), "2000-02-29T00:00:00Z");
        let now = UNIX_EPOCH + Duration::from_micros(1_500_007);
        assert_eq!(stamp(now, true), "1970-01-01T00:00:01.500007Z");
    }
}
