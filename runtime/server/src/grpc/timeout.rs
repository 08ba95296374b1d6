//! The header `grpc-timeout`: how long the client waits for its answer.

use crate::requests::error::RequestError;
use axum::http::HeaderMap;
use std::time::Duration;

/// Digits of a timeout, by gRPC's specification.
const DIGITS_MAX: usize = 8;

/// The timeout of a request; `None` without one.
pub(super) fn of(headers: &HeaderMap) -> Result<Option<Duration>, RequestError> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let read = value.to_str().ok().and_then(read);
    let refused = || RequestError::bad_request(format!("invalid grpc-timeout {value:?}; send for example 500m"));
    read.map(Some).ok_or_else(refused)
}

fn read(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=DIGITS_MAX).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    let count: u64 = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_up_to_eight_digits_and_a_unit() {
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("99999999M"), Some(Duration::from_secs(99_999_999 * 60)));
        assert_eq!(read("0S"), Some(Duration::ZERO));
        assert_eq!(read("20m"), Some(Duration::from_millis(20)));
        assert_eq!(read("7u"), Some(Duration::from_micros(7)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "S", "1", "-1S", "+1S", "1.5S", "123456789S", "1s", "1ü", "ü"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
