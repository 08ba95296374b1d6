//! Conversions between numbers of different types, lane by lane.

use crate::mode::Mode;
use crate::op::{LaneFn, Op, Row};
use crate::operand::Ty;
use crate::operand::Ty::{B16, B32, F16 as H, F32 as S, F64 as D};
use crate::soft::{BF16, Exact, F16, F32, F64, Format, Round, Value};
use crate::valu_float::nearest_integer;

const fn op(dst: Ty, src: &'static [Ty], f: LaneFn) -> Op {
    Op::Lane { dst, src, f }
}

/// Converts a number to an integer in `[low, high]`; NaN gives zero.
fn to_integer(m: Mode, format: Format, bits: u64, round: Round, low: i64, high: i64) -> u64 {
    match format.unpack(m.input(format, bits)) {
        Value::Nan => 0,
        Value::Infinite { negative } => (if negative { low } else { high }) as u64,
        Value::Finite(exact) => {
            let magnitude = if exact.exponent <= 0 {
                nearest_integer(exact, round)
            } else if exact.exponent > 64 && exact.mantissa != 0 {
                u128::MAX >> 1
            } else {
                exact.mantissa << exact.exponent.min(64)
            };
            let value = i128::try_from(magnitude).unwrap_or(i128::MAX);
            let signed = if exact.negative { -value } else { value };
            signed.clamp(low.into(), high.into()) as i64 as u64
        }
    }
}

const I32: (i64, i64) = (i32::MIN as i64, i32::MAX as i64);
const U32: (i64, i64) = (0, u32::MAX as i64);

fn truncate(m: Mode, format: Format, bits: u64, (low, high): (i64, i64)) -> u64 {
    to_integer(m, format, bits, Round::Zero, low, high)
}

fn from_integer(m: Mode, format: Format, value: i64) -> u64 {
    m.rounded(format, Exact::integer(value.into()))
}

fn signed(bits: u64) -> i64 {
    (bits as u32 as i32).into()
}

fn unsigned(bits: u64) -> i64 {
    (bits as u32).into()
}

fn byte(m: Mode, bits: u64, index: u32) -> u64 {
    from_integer(m, F32, (bits >> (8 * index) & 0xff) as i64)
}

/// Converts f32 to f16, rounded towards zero whatever the mode.
fn half_to_zero(m: Mode, bits: u64) -> u64 {
    Mode(m.0 & !0xc | 0xc).convert(F32, F16, bits)
}

fn normalized(m: Mode, format: Format, bits: u64, scale: i64) -> u64 {
    let wide = Mode(0xf0);
    let value = f64::from_bits(wide.convert(format, F64, m.input(format, bits)));
    let low = if scale == 65535 { 0.0 } else { -1.0 };
    if value.is_nan() { 0 } else { (value.clamp(low, 1.0) * scale as f64).round_ties_even() as i64 as u64 & 0xffff }
}

fn pair(low: u64, high: u64) -> u64 {
    low & 0xffff | high << 16
}

/// Replaces one byte of a word, for `v_cvt_pk_u8_f32`.
fn pack_byte(m: Mode, [value, index, old]: [u64; 3]) -> u64 {
    let byte = to_integer(m, F32, value, m.round(F32), 0, 255);
    let shift = 8 * (index & 3);
    old & !(0xff << shift) | byte << shift
}

/// The table.
pub(crate) const TABLE: &[Row] = &[
    ("v_cvt_i32_f32", op(B32, &[S], |m, [a, ..]| truncate(m, F32, a, I32))),
    ("v_cvt_u32_f32", op(B32, &[S], |m, [a, ..]| truncate(m, F32, a, U32))),
    ("v_cvt_i32_f64", op(B32, &[D], |m, [a, ..]| truncate(m, F64, a, I32))),
    ("v_cvt_u32_f64", op(B32, &[D], |m, [a, ..]| truncate(m, F64, a, U32))),
    ("v_cvt_i16_f16", op(B16, &[H], |m, [a, ..]| truncate(m, F16, a, (-32768, 32767)))),
    ("v_cvt_u16_f16", op(B16, &[H], |m, [a, ..]| truncate(m, F16, a, (0, 65535)))),
    ("v_cvt_flr_i32_f32", op(B32, &[S], |m, [a, ..]| to_integer(m, F32, a, Round::Down, I32.0, I32.1))),
    (
        "v_cvt_rpi_i32_f32",
        op(B32, &[S], |m, [a, ..]| to_integer(m, F32, m.add(F32, [a, 0x3f00_0000]), Round::Down, I32.0, I32.1)),
    ),
    ("v_cvt_f32_i32", op(S, &[B32], |m, [a, ..]| from_integer(m, F32, signed(a)))),
    ("v_cvt_f32_u32", op(S, &[B32], |m, [a, ..]| from_integer(m, F32, unsigned(a)))),
    ("v_cvt_f64_i32", op(D, &[B32], |m, [a, ..]| from_integer(m, F64, signed(a)))),
    ("v_cvt_f64_u32", op(D, &[B32], |m, [a, ..]| from_integer(m, F64, unsigned(a)))),
    ("v_cvt_f16_i16", op(H, &[B16], |m, [a, ..]| from_integer(m, F16, (a as i16).into()))),
    ("v_cvt_f16_u16", op(H, &[B16], |m, [a, ..]| from_integer(m, F16, (a as u16).into()))),
    ("v_cvt_f16_f32", op(H, &[S], |m, [a, ..]| m.convert(F32, F16, a))),
    ("v_cvt_f32_f16", op(S, &[H], |m, [a, ..]| m.convert(F16, F32, a))),
    ("v_cvt_f64_f32", op(D, &[S], |m, [a, ..]| m.convert(F32, F64, a))),
    ("v_cvt_f32_f64", op(S, &[D], |m, [a, ..]| m.convert(F64, F32, a))),
    ("v_cvt_f32_bf16", op(S, &[B16], |_, [a, ..]| a << 16)),
    ("v_cvt_f32_ubyte0", op(S, &[B32], |m, [a, ..]| byte(m, a, 0))),
    ("v_cvt_f32_ubyte1", op(S, &[B32], |m, [a, ..]| byte(m, a, 1))),
    ("v_cvt_f32_ubyte2", op(S, &[B32], |m, [a, ..]| byte(m, a, 2))),
    ("v_cvt_f32_ubyte3", op(S, &[B32], |m, [a, ..]| byte(m, a, 3))),
    ("v_cvt_pkrtz_f16_f32", op(B32, &[S, S], |m, [a, b, _]| pair(half_to_zero(m, a), half_to_zero(m, b)))),
    ("v_cvt_pk_bf16_f32", op(B32, &[S, S], |m, [a, b, _]| pair(m.convert(F32, BF16, a), m.convert(F32, BF16, b)))),
    ("v_cvt_pk_f16_f32", op(B32, &[S, S], |m, [a, b, _]| pair(m.convert(F32, F16, a), m.convert(F32, F16, b)))),
    (
        "v_cvt_pknorm_i16_f32",
        op(B32, &[S, S], |m, [a, b, _]| pair(normalized(m, F32, a, 32767), normalized(m, F32, b, 32767))),
    ),
    (
        "v_cvt_pknorm_u16_f32",
        op(B32, &[S, S], |m, [a, b, _]| pair(normalized(m, F32, a, 65535), normalized(m, F32, b, 65535))),
    ),
    ("v_cvt_norm_i16_f16", op(B16, &[H], |m, [a, ..]| normalized(m, F16, a, 32767))),
    ("v_cvt_norm_u16_f16", op(B16, &[H], |m, [a, ..]| normalized(m, F16, a, 65535))),
    ("v_cvt_pk_u8_f32", op(B32, &[S, B32, B32], pack_byte)),
];
