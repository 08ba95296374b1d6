//! `printf` for kernels: formats packed arguments. All devices that format text use it.
//!
//! Flags, widths, precisions and conversions are those of C: each directive is checked, given its
//! argument, and passed to `snprintf` by itself. As in CUDA, `%n` is not supported. Text that is no
//! valid directive is copied.

use std::ffi::{CString, c_int};

/// Bytes of text that one call may print; the rest is lost.
const CALL_BYTES_MAX: usize = 16 << 10;

/// Longest directive (`%-+ #0123.456lld`) in bytes, and the largest width or precision. Anything
/// beyond is not a valid directive.
const DIRECTIVE_BYTES_MAX: usize = 32;
const WIDTH_MAX: usize = 1024;

/// A source of arguments.
pub trait Arguments {
    /// The next argument of 4 or 8 bytes, naturally aligned; `None` if there are no more.
    fn number(&mut self, bytes: usize) -> Option<u64>;
    /// The string at an address.
    fn string(&mut self, address: u64) -> CString;
}

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Int,
    Long,
    Double,
    Pointer,
    String,
}

/// One directive of a format, with the values of its `*` filled in.
#[derive(Debug, PartialEq, Eq)]
struct Directive {
    /// Length of the directive in the format, in bytes.
    bytes: usize,
    /// Flags, width and precision: everything between the `%` and the length.
    modifiers: String,
    /// The conversion letter.
    conversion: char,
    kind: Kind,
}

/// Returns the text and the number of arguments used; `None` if the format needs more arguments
/// than there are.
pub fn format(format: &[u8], arguments: &mut impl Arguments) -> Option<(String, i32)> {
    let (mut text, mut taken, mut at) = (Vec::new(), 0, 0);
    while at < format.len() && text.len() < CALL_BYTES_MAX {
        let rest = &format[at..];
        if rest.starts_with(b"%%") {
            text.push(b'%');
            at += 2;
        } else if rest[0] == b'%'
            && let Some((directive, widths)) = directive(rest, arguments)?
        {
            text.extend(convert(&directive, arguments)?);
            taken += 1 + widths;
            at += directive.bytes;
        } else {
            text.push(rest[0]);
            at += 1;
        }
    }
    text.truncate(CALL_BYTES_MAX);
    Some((String::from_utf8_lossy(&text).into_owned(), taken))
}

/// Parses the directive at the start of a text; returns it with the number of arguments that its
/// `*` used. The outer `None` means that an argument is missing, the inner `None` that it is not a
/// valid directive.
fn directive(text: &[u8], arguments: &mut impl Arguments) -> Option<Option<(Directive, i32)>> {
    let (mut at, mut modifiers, mut widths) = (1, String::new(), 0);
    let mut long = 0;
    while let Some(&byte) = text.get(at).filter(|_| at < DIRECTIVE_BYTES_MAX) {
        at += 1;
        match byte {
            b'*' => {
                modifiers.push_str(&(arguments.number(4)? as i32).to_string());
                widths += 1;
            }
            b'-' | b'+' | b' ' | b'#' | b'0'..=b'9' | b'.' => modifiers.push(byte.into()),
            b'l' | b'z' | b'j' | b't' => long += 1,
            b'h' => {}
            letter => {
                let is_sane =
                    modifiers.split(|c: char| !c.is_ascii_digit()).all(|n| n.parse().unwrap_or(0) <= WIDTH_MAX);
                let kind = kind(letter, long > 0).filter(|_| is_sane);
                return Some(
                    kind.map(|kind| (Directive { bytes: at, modifiers, conversion: letter.into(), kind }, widths)),
                );
            }
        }
    }
    Some(None)
}

fn kind(letter: u8, is_long: bool) -> Option<Kind> {
    Some(match letter {
        b'd' | b'i' | b'u' | b'x' | b'X' | b'o' if is_long => Kind::Long,
        b'd' | b'i' | b'u' | b'x' | b'X' | b'o' | b'c' => Kind::Int,
        b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => Kind::Double,
        b'p' => Kind::Pointer,
        b's' => Kind::String,
        _ => return None,
    })
}

fn convert(directive: &Directive, arguments: &mut impl Arguments) -> Option<Vec<u8>> {
    let bits = arguments.number(if directive.kind == Kind::Int { 4 } else { 8 })?;
    let length = if directive.kind == Kind::Long { "ll" } else { "" };
    let spec = CString::new(format!("%{}{length}{}", directive.modifiers, directive.conversion)).ok()?;
    let mut buffer = vec![0u8; CALL_BYTES_MAX];
    let (to, bytes, spec) = (buffer.as_mut_ptr().cast(), buffer.len(), spec.as_ptr());
    let string = if directive.kind == Kind::String { arguments.string(bits) } else { CString::default() };
    // SAFETY: the buffer has `bytes` bytes; the format holds exactly one directive, and the
    // argument has its type; the string is NUL-terminated.
    let written = unsafe {
        match directive.kind {
            Kind::Int => libc::snprintf(to, bytes, spec, bits as c_int),
            Kind::Long | Kind::Pointer => libc::snprintf(to, bytes, spec, bits),
            Kind::Double => libc::snprintf(to, bytes, spec, f64::from_bits(bits)),
            Kind::String => libc::snprintf(to, bytes, spec, string.as_ptr()),
        }
    };
    buffer.truncate(usize::try_from(written).unwrap_or(0).min(bytes - 1));
    Some(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Packed(Vec<u64>);

    impl Arguments for Packed {
        fn number(&mut self, _: usize) -> Option<u64> {
            if self.0.is_empty() { None } else { Some(self.0.remove(0)) }
        }

        fn string(&mut self, address: u64) -> CString {
            CString::new(format!("s{address}")).unwrap()
        }
    }

    fn text(of: &str, arguments: &[u64]) -> Option<(String, i32)> {
        format(of.as_bytes(), &mut Packed(arguments.to_vec()))
    }

    #[test]
    fn directives_print_as_in_c() {
        let minus = u64::from(-5i32 as u32);
        for (of, arguments, expected) in [
            ("plain\n", &[][..], "plain\n"),
            ("%d|%5d|%-5d|%05d", &[minus, minus, minus, minus], "-5|   -5|-5   |-0005"),
            ("%u %x %X %#o %c", &[minus, 255, 255, 8, 65], "4294967291 ff FF 010 A"),
            ("%lld %llu %zx", &[u64::MAX, u64::MAX, 1 << 40], "-1 18446744073709551615 10000000000"),
            (
                "%f %.2f %e %g",
                &[1.5f64.to_bits(), 2.345f64.to_bits(), 1e10f64.to_bits(), 0.5f64.to_bits()],
                "1.500000 2.35 1.000000e+10 0.5",
            ),
            ("%s|%5s|%.1s", &[1, 2, 3], "s1|   s2|s"),
            ("%*d|%.*f", &[4, 7, 1, 0.25f64.to_bits()], "   7|0.2"),
            ("100%% %p", &[4096], "100% 0x1000"),
            ("%n %q %", &[], "%n %q %"),
            ("%99999d", &[1], "%99999d"),
        ] {
            assert_eq!(text(of, arguments).map(|t| t.0).as_deref(), Some(expected), "{of}");
        }
        assert_eq!(text("%d %*d", &[1, 2, 3]).map(|t| t.1), Some(3));
    }

    #[test]
    fn a_missing_argument_prints_nothing() {
        assert_eq!(text("%d %d", &[1]), None);
        assert_eq!(text("%*d", &[1]), None);
    }

    #[test]
    fn output_is_bounded() {
        let many = "%1000d".repeat(100);
        assert_eq!(text(&many, &[1; 100]).unwrap().0.len(), CALL_BYTES_MAX);
    }
}
