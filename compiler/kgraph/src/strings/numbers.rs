//! Strings that name numbers, as ONNX's `Cast` reads and writes them.

use super::codes::Interned;
use super::compute::{ComputedInput, Operand, element_count, strings};
use super::format::StringError;
use crate::dtype::DType;

/// Longest part of a string in a message, in characters.
const SHOWN_CHARACTERS_MAX: usize = 40;

/// Digits of a floating-point number in a string, as in ONNX Runtime.
const DIGITS: i32 = 8;

/// Appends the number that a text names to `bytes`, as an element of a type. `None` if the text is
/// no number, or one that is out of the range of the type.
///
/// Spaces around the number do not count. Integers lose their fraction.
fn read(text: &[u8], to: DType, bytes: &mut Vec<u8>) -> Option<()> {
    let text = std::str::from_utf8(text).ok()?.trim_ascii();
    match to {
        DType::Bool => bytes.push(u8::from(real(text)? != 0.0)),
        DType::U8 => bytes.extend(u8::try_from(whole(text)?).ok()?.to_le_bytes()),
        DType::I8 => bytes.extend(i8::try_from(whole(text)?).ok()?.to_le_bytes()),
        DType::U16 => bytes.extend(u16::try_from(whole(text)?).ok()?.to_le_bytes()),
        DType::I16 => bytes.extend(i16::try_from(whole(text)?).ok()?.to_le_bytes()),
        DType::U32 => bytes.extend(u32::try_from(whole(text)?).ok()?.to_le_bytes()),
        DType::I32 => bytes.extend(i32::try_from(whole(text)?).ok()?.to_le_bytes()),
        DType::U64 => bytes.extend(u64::try_from(whole(text)?).ok()?.to_le_bytes()),
        DType::I64 => bytes.extend(i64::try_from(whole(text)?).ok()?.to_le_bytes()),
        // ONNX Runtime rounds to F64 first.
        DType::F32 => bytes.extend((real(text)? as f32).to_le_bytes()),
        DType::F64 => bytes.extend(real(text)?.to_le_bytes()),
        _ => return None,
    }
    Some(())
}

/// A number in decimal or scientific notation, or the name of an infinity or NaN, in any case.
fn real(text: &str) -> Option<f64> {
    let value: f64 = text.parse().ok()?;
    // Infinity has a name, which ends in a letter. Digits are a number that is too large.
    let is_too_large = value.is_infinite() && text.ends_with(|last: char| last.is_ascii_digit() || last == '.');
    (!is_too_large).then_some(value)
}

/// A number without its fraction.
fn whole(text: &str) -> Option<i128> {
    text.parse().ok().or_else(|| real(text).filter(|value| value.is_finite()).map(|value| value as i128))
}

/// The text of an element of a type; `None` if the bytes are no element.
fn write(element: &[u8], from: DType) -> Option<String> {
    macro_rules! number {
        ($type:ty) => {
            <$type>::from_le_bytes(element.try_into().ok()?)
        };
    }
    Some(match from {
        DType::Bool => u8::from(number!(u8) != 0).to_string(),
        DType::U8 => number!(u8).to_string(),
        DType::I8 => number!(i8).to_string(),
        DType::U16 => number!(u16).to_string(),
        DType::I16 => number!(i16).to_string(),
        DType::U32 => number!(u32).to_string(),
        DType::I32 => number!(i32).to_string(),
        DType::U64 => number!(u64).to_string(),
        DType::I64 => number!(i64).to_string(),
        DType::F32 => of_real(number!(f32).into()),
        DType::F64 => of_real(number!(f64)),
        _ => return None,
    })
}

/// A number with [`DIGITS`] digits at most, as C's `%.8g` writes it.
fn of_real(value: f64) -> String {
    if value.is_nan() {
        return "NaN".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "INF" } else { "-INF" }.into();
    }
    let scientific = format!("{value:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..DIGITS).contains(&exponent) {
        return without_zeros(&format!("{value:.*}", (DIGITS - 1 - exponent) as usize)).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
}

/// A decimal number without zeros at the end of its fraction.
fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// The number that a text names, as a little-endian element of a type. `None` if it names none, or
/// if the host reads no numbers of this type.
pub fn number(text: &str, to: DType) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    read(text.as_bytes(), to, &mut bytes).map(|()| bytes)
}

/// The texts of little-endian elements of a type. `None` if the host writes no numbers of this
/// type.
pub fn texts(elements: &[u8], from: DType) -> Option<Vec<String>> {
    if !from.has_texts() {
        return None;
    }
    elements.chunks(from.bytes() as usize).map(|element| write(element, from)).collect()
}

impl Interned {
    /// The numbers that strings name.
    pub(super) fn parse(&self, x: &Operand, to: DType, node: &str) -> Result<ComputedInput, StringError> {
        let mut bytes = Vec::with_capacity(x.codes.len() * to.bytes() as usize);
        for (index, code) in x.codes.iter().enumerate() {
            let text = self.text(*code)?;
            read(text, to, &mut bytes).ok_or_else(|| StringError::NotANumber {
                node: node.into(),
                index,
                text: String::from_utf8_lossy(text).chars().take(SHOWN_CHARACTERS_MAX).collect(),
                to,
            })?;
        }
        Ok(ComputedInput { dtype: to, shape: x.shape.clone(), bytes })
    }

    /// The texts of numbers.
    pub(super) fn write(
        &mut self,
        (shape, elements): (Vec<i64>, &[u8]),
        from: DType,
        node: &str,
    ) -> Result<ComputedInput, StringError> {
        let count = element_count(&shape)?;
        let misfit = || StringError::Shape {
            node: node.into(),
            reason: format!("its operand of shape {shape:?} has {} bytes, and its type is {from}", elements.len()),
        };
        if count.checked_mul(from.bytes() as usize) != Some(elements.len()) {
            return Err(misfit());
        }
        // Before the work.
        self.note_work(count, 0)?;
        let mut codes = Vec::with_capacity(count);
        for element in elements.chunks(from.bytes() as usize) {
            let text = write(element, from).ok_or_else(misfit)?;
            codes.push(self.code(text.as_bytes())?);
        }
        Ok(strings(shape, &codes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real_of(text: &str, to: DType) -> Option<f64> {
        let bytes = number(text, to)?;
        Some(match to {
            DType::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).into(),
            _ => f64::from_le_bytes(bytes.try_into().unwrap()),
        })
    }

    #[test]
    fn numbers_are_read_from_all_notations() {
        for (text, expected) in [
            ("2.75", 2.75),
            (" 7\n", 7.0),
            ("1e-5", 1e-5),
            ("1E8", 1e8),
            ("+5", 5.0),
            (".5", 0.5),
            ("5.", 5.0),
            ("INF", f64::INFINITY),
            ("+inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
        ] {
            assert_eq!(real_of(text, DType::F64), Some(expected), "{text}");
            assert_eq!(real_of(text, DType::F32), Some(f64::from(expected as f32)), "{text}");
        }
        assert!(real_of("nan", DType::F32).unwrap().is_nan());
        assert_eq!(real_of("1e40", DType::F32), Some(f64::INFINITY), "as a cast of the number");
        for text in ["", " ", "abc", "3abc", "0x10", "1e400", "-9e999", "1_0", "--1", "True"] {
            assert_eq!(number(text, DType::F64), None, "{text}");
        }
    }

    #[test]
    fn integers_lose_their_fraction_and_keep_their_range() {
        assert_eq!(number("100.7", DType::I32), Some(100_i32.to_le_bytes().to_vec()));
        assert_eq!(number("-100.7", DType::I16), Some((-100_i16).to_le_bytes().to_vec()));
        assert_eq!(number("18446744073709551615", DType::U64), Some(vec![255; 8]));
        assert_eq!(number("-9223372036854775808", DType::I64), Some(i64::MIN.to_le_bytes().to_vec()));
        assert_eq!(number("1e3", DType::I64), Some(1000_i64.to_le_bytes().to_vec()));
        for (text, to) in [
            ("300", DType::U8),
            ("-1", DType::U16),
            ("-129", DType::I8),
            ("4294967296", DType::U32),
            ("inf", DType::I64),
            ("nan", DType::I32),
            ("1e30", DType::I64),
            ("1e400", DType::U64),
            ("7", DType::F16),
        ] {
            assert_eq!(number(text, to), None, "{text} as {to}");
        }
        assert_eq!([number("0.5", DType::Bool), number("-0", DType::Bool)], [Some(vec![1]), Some(vec![0])]);
    }

    #[test]
    fn numbers_are_written_as_onnx_runtime_writes_them() {
        let of = |value: f32| texts(&value.to_le_bytes(), DType::F32).unwrap().remove(0);
        for (value, expected) in [
            (0.1, "0.1"),
            (1e-5, "9.9999997e-06"),
            (1e8, "1e+08"),
            (123_456_792.0, "1.2345679e+08"),
            (-0.0, "-0"),
            (0.0, "0"),
            (f32::INFINITY, "INF"),
            (f32::NEG_INFINITY, "-INF"),
            (f32::NAN, "NaN"),
            (1.0 / 3.0, "0.33333334"),
            (100_000.0, "100000"),
            (1_234_567.0, "1234567"),
            (0.0001, "9.9999997e-05"),
            (1e-40, "9.9999461e-41"),
        ] {
            assert_eq!(of(value), expected);
        }
        let of = |value: f64| texts(&value.to_le_bytes(), DType::F64).unwrap().remove(0);
        assert_eq!([of(0.0001), of(12_345_678.5), of(99_999_999.9)], ["0.0001", "12345678", "1e+08"]);
        assert_eq!(texts(&[251, 5], DType::I8), Some(vec!["-5".into(), "5".into()]));
        assert_eq!(texts(&[0, 1], DType::Bool), Some(vec!["0".into(), "1".into()]));
        assert_eq!(texts(&u64::MAX.to_le_bytes(), DType::U64), Some(vec![u64::MAX.to_string()]));
        assert_eq!(texts(&[0; 2], DType::F16), None);
    }
}
