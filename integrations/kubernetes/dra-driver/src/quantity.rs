//! Quantities of Kubernetes, as in `30`, `2Gi` or `1e3`, as whole numbers.

/// Suffixes with powers of two.
const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// Suffixes with powers of ten.
const DECIMAL: [&str; 6] = ["k", "M", "G", "T", "P", "E"];

/// Most digits of a quantity that is read.
const DIGITS_MAX: usize = 18;

/// Reads a quantity, rounded up to a whole number. `None` if it is not a quantity, is negative or
/// exceeds 64 bits.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || digits.len() > DIGITS_MAX || fraction.contains('.') {
        return None;
    }
    let value: u128 = digits.parse().ok()?;
    let below = u32::try_from(fraction.len()).ok()?;
    let (factor, divisor) = factor(suffix)?;
    let divisor = divisor.checked_mul(10_u128.checked_pow(below)?)?;
    u64::try_from(value.checked_mul(factor)?.div_ceil(divisor)).ok()
}

/// The factor and the divisor of a suffix.
fn factor(suffix: &str) -> Option<(u128, u128)> {
    let place =
        |names: &[&str]| names.iter().position(|name| *name == suffix).and_then(|at| u32::try_from(at + 1).ok());
    if let Some(power) = place(&BINARY) {
        return Some((1 << (10 * power), 1));
    }
    if let Some(power) = place(&DECIMAL) {
        return Some((1000_u128.pow(power), 1));
    }
    match suffix {
        "" => Some((1, 1)),
        "m" => Some((1, 1000)),
        "u" => Some((1, 1_000_000)),
        "n" => Some((1, 1_000_000_000)),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
            Some(if exponent < 0 { (1, power) } else { (power, 1) })
        }
    }
}

/// A number of bytes in the form that the API server stores: with the largest suffix that leaves a
/// whole number.
pub(crate) fn bytes(bytes: u64) -> String {
    let power = if bytes == 0 { 0 } else { (bytes.trailing_zeros() / 10).min(6) };
    match power {
        0 => bytes.to_string(),
        power => format!("{}{}", bytes >> (10 * power), BINARY[power as usize - 1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_become_whole_numbers() {
        for (text, value) in [
            ("0", 0),
            ("30", 30),
            ("2Gi", 2 << 30),
            ("1.5Ki", 1536),
            ("2G", 2_000_000_000),
            ("1e3", 1000),
            ("5E2", 500),
            ("25e-1", 3),
            ("1500m", 2),
            ("0.1", 1),
            ("7Ei", 7 << 60),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for wrong in ["", "-1", "Gi", "1.2.3", "1 Gi", "2GB", "16Ei", "1e99", "e3", "1ei", "1234567890123456789"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn bytes_have_the_form_of_the_api_server() {
        for (value, text) in
            [(0, "0"), (5, "5"), (1 << 10, "1Ki"), (256 << 20, "256Mi"), (1 << 30, "1Gi"), (3 << 29, "1536Mi")]
        {
            assert_eq!(bytes(value), text);
            assert_eq!(parse(text), Some(value));
        }
        assert_eq!(bytes(1 << 63), "8Ei");
    }
}
