//! `vprintf`: a C format string, and arguments in memory, each at its natural alignment.

use crate::fault::FaultKind;

/// Longest format or string, and widest field: bounds the memory that a faulty kernel can use.
const TEXT_MAX: usize = 1 << 16;
const WIDTH_MAX: usize = 4096;

/// Reads bytes at a generic address.
type Read<'r> = dyn FnMut(u64, u32) -> Result<Vec<u8>, FaultKind> + 'r;

/// A NUL-terminated string.
pub(crate) fn text(address: u64, read: &mut Read<'_>) -> Result<Vec<u8>, FaultKind> {
    let mut out = Vec::new();
    while out.len() < TEXT_MAX {
        match read(address.wrapping_add(out.len() as u64), 1)?.first() {
            Some(&byte) if byte != 0 => out.push(byte),
            _ => return Ok(out),
        }
    }
    Err(FaultKind::Print(format!("a string of more than {TEXT_MAX} bytes")))
}

/// The flags, width, precision and length of a conversion.
#[derive(Default)]
struct Spec {
    minus: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    long: bool,
    /// `h` counts once, `hh` twice.
    short: u32,
}

/// Reads the arguments one after another.
struct Arguments<'a, 'r> {
    at: u64,
    base: u64,
    read: &'a mut Read<'r>,
}

impl Arguments<'_, '_> {
    fn take(&mut self, bytes: u64) -> Result<u64, FaultKind> {
        self.at = self.at.next_multiple_of(bytes);
        let data = (self.read)(self.base.wrapping_add(self.at), bytes as u32)?;
        self.at += bytes;
        let mut all = [0; 8];
        all[..data.len().min(8)].copy_from_slice(&data[..data.len().min(8)]);
        Ok(u64::from_le_bytes(all))
    }
}

/// Appends the formatted text. Returns the number of arguments, as the device's `printf` does.
pub(crate) fn format(format: u64, arguments: u64, out: &mut Vec<u8>, read: &mut Read<'_>) -> Result<u32, FaultKind> {
    let format = text(format, read)?;
    let mut rest = format.as_slice();
    let mut arguments = Arguments { at: 0, base: arguments, read };
    let mut count = 0;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let (spec, conversion) = spec(&mut rest, &mut arguments)?;
        if conversion == b'%' {
            out.push(b'%');
            continue;
        }
        count += 1;
        convert(&spec, conversion, &mut arguments, out)?;
    }
    Ok(count)
}

fn spec(rest: &mut &[u8], arguments: &mut Arguments<'_, '_>) -> Result<(Spec, u8), FaultKind> {
    let mut spec = Spec::default();
    let mut next = || -> Result<u8, FaultKind> {
        let (&byte, after) =
            rest.split_first().ok_or_else(|| FaultKind::Print("the format ends within a conversion".into()))?;
        *rest = after;
        Ok(byte)
    };
    let mut byte = next()?;
    loop {
        match byte {
            b'-' => spec.minus = true,
            b'+' => spec.plus = true,
            b' ' => spec.space = true,
            b'#' => spec.alternate = true,
            b'0' => spec.zero = true,
            _ => break,
        }
        byte = next()?;
    }
    let mut number = |byte: &mut u8, next: &mut dyn FnMut() -> Result<u8, FaultKind>| -> Result<i64, FaultKind> {
        let mut value = 0i64;
        if *byte == b'*' {
            value = i64::from(arguments.take(4)? as i32);
            *byte = next()?;
        }
        while byte.is_ascii_digit() {
            value = (value * 10 + i64::from(*byte - b'0')).min(WIDTH_MAX as i64);
            *byte = next()?;
        }
        Ok(value)
    };
    let width = number(&mut byte, &mut next)?;
    spec.minus |= width < 0;
    spec.width = (width.unsigned_abs() as usize).min(WIDTH_MAX);
    if byte == b'.' {
        byte = next()?;
        let precision = number(&mut byte, &mut next)?;
        spec.precision = usize::try_from(precision).ok().map(|p| p.min(WIDTH_MAX));
    }
    while matches!(byte, b'l' | b'h' | b'z' | b'j' | b't') {
        spec.long |= byte != b'h';
        spec.short += u32::from(byte == b'h');
        byte = next()?;
    }
    Ok((spec, byte))
}

fn convert(spec: &Spec, conversion: u8, arguments: &mut Arguments<'_, '_>, out: &mut Vec<u8>) -> Result<(), FaultKind> {
    let bytes = if spec.long { 8 } else { 4 };
    let unused = match (spec.long, spec.short) {
        (true, _) => 0,
        (_, 0) => 32,
        (_, 1) => 48,
        _ => 56,
    };
    let text = match conversion {
        b'd' | b'i' => {
            let value = (arguments.take(bytes)? << unused) as i64 >> unused;
            let digits = digits(value.unsigned_abs().to_string(), spec);
            number(sign(value < 0, spec), digits, spec.precision.is_some(), spec)
        }
        b'u' | b'x' | b'X' | b'o' => {
            let value = arguments.take(bytes)? << unused >> unused;
            let (prefix, plain) = match conversion {
                b'u' => ("", value.to_string()),
                b'x' => ("0x", format!("{value:x}")),
                b'X' => ("0X", format!("{value:X}")),
                _ => ("0", format!("{value:o}")),
            };
            let prefix = if spec.alternate && value != 0 { prefix } else { "" };
            number(prefix.to_owned(), digits(plain, spec), spec.precision.is_some(), spec)
        }
        b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
            let value = f64::from_bits(arguments.take(8)?);
            let digits = if value.is_finite() { float(value.abs(), conversion, spec)? } else { special(value) };
            let digits = if conversion.is_ascii_uppercase() { digits.to_uppercase() } else { digits };
            number(sign(value.is_sign_negative() && !value.is_nan(), spec), digits, !value.is_finite(), spec)
        }
        b'c' => String::from(char::from(arguments.take(4)? as u8)),
        b'p' => format!("{:#x}", arguments.take(8)?),
        b's' => {
            let address = arguments.take(8)?;
            let mut string = self::text(address, arguments.read)?;
            string.truncate(spec.precision.unwrap_or(usize::MAX));
            String::from_utf8_lossy(&string).into_owned()
        }
        other => return Err(FaultKind::Print(format!("conversion %{} is not supported", char::from(other)))),
    };
    let length = text.chars().count();
    out.extend_from_slice(pad(text, spec, length).as_bytes());
    Ok(())
}

fn pad(text: String, spec: &Spec, length: usize) -> String {
    let fill = " ".repeat(spec.width.saturating_sub(length));
    if spec.minus { text + &fill } else { fill + &text }
}

fn sign(negative: bool, spec: &Spec) -> String {
    let sign = match (negative, spec.plus, spec.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    };
    sign.to_owned()
}

/// Pads to the precision with zeros; empty for a zero with precision zero.
fn digits(plain: String, spec: &Spec) -> String {
    match spec.precision {
        Some(0) if plain == "0" => String::new(),
        Some(least) => "0".repeat(least.saturating_sub(plain.len())) + &plain,
        None => plain,
    }
}

/// Sign or prefix, zeros up to the width if requested, digits.
fn number(prefix: String, digits: String, no_zeroes: bool, spec: &Spec) -> String {
    let zeroes =
        if spec.zero && !spec.minus && !no_zeroes { spec.width.saturating_sub(prefix.len() + digits.len()) } else { 0 };
    prefix + &"0".repeat(zeroes) + &digits
}

fn special(value: f64) -> String {
    if value.is_nan() { "nan".into() } else { "inf".into() }
}

fn float(value: f64, conversion: u8, spec: &Spec) -> Result<String, FaultKind> {
    let precision = spec.precision.unwrap_or(6);
    Ok(match conversion.to_ascii_lowercase() {
        b'f' => format!("{value:.precision$}"),
        b'e' => exponential(value, precision),
        b'g' => general(value, precision.max(1), spec.alternate),
        _ => return Err(FaultKind::Print("conversion %a is not supported".into())),
    })
}

/// `1.5e+03`: an exponent with sign and at least two digits.
fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// The shorter of `%e` and `%f`, without trailing zeros.
fn general(value: f64, precision: usize, keep_zeroes: bool) -> String {
    let text = exponential(value, precision - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |digits: &str| -> String {
        if keep_zeroes || !digits.contains('.') {
            digits.to_owned()
        } else {
            digits.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    };
    if power < -4 || power >= precision as i32 {
        return format!("{}e{exponent}", trimmed(mantissa));
    }
    let decimals = (precision as i32 - 1 - power).max(0) as usize;
    trimmed(&format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn formatted(text: &str, arguments: &[u8]) -> String {
        let mut memory = text.as_bytes().to_vec();
        memory.push(0);
        let base = memory.len().next_multiple_of(8);
        memory.resize(base, 0);
        memory.extend_from_slice(arguments);
        let mut out = Vec::new();
        let read = &mut |at: u64, bytes: u32| {
            let range = at as usize..at as usize + bytes as usize;
            memory.get(range).map(<[u8]>::to_vec).ok_or(FaultKind::OutOfBounds { address: at, bytes, near: None })
        };
        format(0, base as u64, &mut out, read).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn formats_match_c() {
        assert_eq!(
            formatted("%d|%5u|%-5d|%05d", &[7i32, 42, -3, -12].map(i32::to_le_bytes).concat()),
            "7|   42|-3   |-0012"
        );
        assert_eq!(formatted("%x %#X %o %c%%", &[255u32, 255, 8, 65].map(u32::to_le_bytes).concat()), "ff 0XFF 10 A%");
        assert_eq!(
            formatted("%f %.2e %g %g %g", &[1.5, 12345.678, 0.0001, 1e10, 100.0].map(f64::to_le_bytes).concat()),
            "1.500000 1.23e+04 0.0001 1e+10 100"
        );
        let mixed = [1i64.to_le_bytes(), (-1i64).to_le_bytes()].concat();
        assert_eq!(formatted("%lld %llu", &mixed), "1 18446744073709551615");
        assert_eq!(
            formatted("%+.3d|%8.3f", &[5u64.to_le_bytes(), 1234.5678f64.to_le_bytes()].concat()),
            "+005|1234.568"
        );
    }
}
