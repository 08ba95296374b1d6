//! Comparisons: `v_cmp_CONDITION_TYPE` and `v_cmpx_…`, read from the name.

use crate::mode::{Mode, order_key};
use crate::op::Op;
use crate::operand::Ty;
use crate::soft::{F16, F32, F64, Format};

type Test = fn(Mode, [u64; 2]) -> bool;

fn unordered(format: Format, [a, b]: [u64; 2]) -> bool {
    format.is_nan(a) || format.is_nan(b)
}

/// A key by which numbers compare; both zeros have the same key.
fn key(m: Mode, format: Format, bits: u64) -> i64 {
    let bits = m.input(format, bits);
    if format.is_zero(bits) { 0 } else { order_key(format, bits) }
}

macro_rules! floats {
    ($name:ident, $format:ident) => {
        fn $name(condition: &str) -> Option<Test> {
            fn pair(m: Mode, v: [u64; 2]) -> Option<[i64; 2]> {
                (!unordered($format, v)).then(|| v.map(|x| key(m, $format, x)))
            }
            Some(match condition {
                "f" => |_, _| false,
                "lt" => |m, v| pair(m, v).is_some_and(|[a, b]| a < b),
                "eq" => |m, v| pair(m, v).is_some_and(|[a, b]| a == b),
                "le" => |m, v| pair(m, v).is_some_and(|[a, b]| a <= b),
                "gt" => |m, v| pair(m, v).is_some_and(|[a, b]| a > b),
                "lg" => |m, v| pair(m, v).is_some_and(|[a, b]| a != b),
                "ge" => |m, v| pair(m, v).is_some_and(|[a, b]| a >= b),
                "o" => |_, v| !unordered($format, v),
                "u" => |_, v| unordered($format, v),
                "nge" => |m, v| !pair(m, v).is_some_and(|[a, b]| a >= b),
                "nlg" => |m, v| !pair(m, v).is_some_and(|[a, b]| a != b),
                "ngt" => |m, v| !pair(m, v).is_some_and(|[a, b]| a > b),
                "nle" => |m, v| !pair(m, v).is_some_and(|[a, b]| a <= b),
                "neq" => |m, v| !pair(m, v).is_some_and(|[a, b]| a == b),
                "nlt" => |m, v| !pair(m, v).is_some_and(|[a, b]| a < b),
                "tru" | "t" => |_, _| true,
                "class" => |_, v| class($format, v),
                _ => return None,
            })
        }
    };
}

floats!(half, F16);
floats!(single, F32);
floats!(double, F64);

macro_rules! integers {
    ($name:ident, $type:ty) => {
        fn $name(condition: &str) -> Option<Test> {
            Some(match condition {
                "f" => |_, _| false,
                "lt" => |_, [a, b]| (a as $type) < (b as $type),
                "eq" => |_, [a, b]| (a as $type) == (b as $type),
                "le" => |_, [a, b]| (a as $type) <= (b as $type),
                "gt" => |_, [a, b]| (a as $type) > (b as $type),
                "ne" | "lg" => |_, [a, b]| (a as $type) != (b as $type),
                "ge" => |_, [a, b]| (a as $type) >= (b as $type),
                "t" => |_, _| true,
                _ => return None,
            })
        }
    };
}

integers!(i16s, i16);
integers!(u16s, u16);
integers!(i32s, i32);
integers!(u32s, u32);
integers!(i64s, i64);
integers!(u64s, u64);

/// Whether a number belongs to one of the classes whose bits are set.
fn class(format: Format, [value, classes]: [u64; 2]) -> bool {
    let negative = format.is_negative(value);
    let bit = if format.is_nan(value) {
        u32::from(!format.is_signaling(value))
    } else if format.is_infinite(value) {
        if negative { 2 } else { 9 }
    } else if format.is_zero(value) {
        if negative { 5 } else { 6 }
    } else if format.is_subnormal(value) {
        if negative { 4 } else { 7 }
    } else if negative {
        3
    } else {
        8
    };
    classes >> bit & 1 == 1
}

/// The comparison that a mnemonic names.
pub(crate) fn find(mnemonic: &str) -> Option<Op> {
    let (exec, rest) = match mnemonic.strip_prefix("v_cmpx_") {
        Some(rest) => (true, rest),
        None => (false, mnemonic.strip_prefix("v_cmp_")?),
    };
    let (condition, ty) = rest.split_once('_')?;
    let (ty, f) = match ty {
        "f16" => (Ty::F16, half(condition)),
        "f32" => (Ty::F32, single(condition)),
        "f64" => (Ty::F64, double(condition)),
        "i16" => (Ty::B16, i16s(condition)),
        "u16" => (Ty::B16, u16s(condition)),
        "i32" => (Ty::B32, i32s(condition)),
        "u32" => (Ty::B32, u32s(condition)),
        "i64" => (Ty::I64, i64s(condition)),
        "u64" => (Ty::B64, u64s(condition)),
        _ => return None,
    };
    let second = match (condition, ty) {
        ("class", Ty::F16) => Ty::B16,
        ("class", _) => Ty::B32,
        _ => ty,
    };
    Some(Op::Compare { src: [ty, second], f: f?, exec })
}
