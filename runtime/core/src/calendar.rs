//! Dates of the Gregorian calendar in UTC, from seconds since 1970. No clock is read.

/// A time of day with its date, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    /// The year, for example 2026.
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    /// 0 to 23.
    pub hour: u64,
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 59.
    pub second: u64,
}

impl Utc {
    /// The time so many seconds after the beginning of 1970, without leap seconds.
    pub fn at(seconds: u64) -> Utc {
        let (days, second) = (seconds / 86_400, seconds % 86_400);
        // Years begin in March here, so that the day that leap years add is the last one.
        let days = days + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        Utc { year, month, day, hour: second / 3600, minute: second / 60 % 60, second: second % 60 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_their_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_798_761_599, "2026-12-31 23:59:59"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            let Utc { year, month, day, hour, minute, second } = Utc::at(seconds);
            assert_eq!(format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}"), text);
        }
    }
}
