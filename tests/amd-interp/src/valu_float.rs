//! Vector arithmetic of floating-point numbers, for one lane each.

use crate::mode::{Mode, first_nan, order_key, signed_infinity};
use crate::op::{LaneFn, Op, Row};
use crate::operand::Ty;
use crate::operand::Ty::{B16, B32, F16 as H, F32 as S, F64 as D, PF16};
use crate::soft::{Exact, F16, F32, F64, Format, Round, Value};

const fn op(dst: Ty, src: &'static [Ty], f: LaneFn) -> Op {
    Op::Lane { dst, src, f }
}

const fn acc(dst: Ty, src: &'static [Ty], f: LaneFn) -> Op {
    Op::Accumulate { dst, src, f }
}

const fn packed(half: Ty, sources: usize, f: LaneFn) -> Op {
    Op::Packed { half, sources, f }
}

fn sub(m: Mode, format: Format, a: u64, b: u64) -> u64 {
    let b = if format.is_nan(b) { b } else { b ^ format.sign() };
    m.add(format, [a, b])
}

/// A product and a sum, each rounded. For f32 the hardware sets subnormal values to zero.
fn mad(m: Mode, format: Format, [a, b, c]: [u64; 3]) -> u64 {
    let m = if format == F32 { Mode(m.0 & !0x30) } else { m };
    m.add(format, [m.mul(format, [a, b]), c])
}

/// A product in which zero times any value is zero.
fn mul_legacy(m: Mode, a: u64, b: u64) -> u64 {
    let [x, y] = [a, b].map(|v| m.input(F32, v));
    if F32.is_zero(x) || F32.is_zero(y) { 0 } else { m.mul(F32, [a, b]) }
}

fn extreme3(m: Mode, format: Format, [a, b, c]: [u64; 3], larger: bool) -> u64 {
    m.extreme(format, [m.extreme(format, [a, b], larger), c], larger)
}

fn med3(m: Mode, format: Format, [a, b, c]: [u64; 3]) -> u64 {
    if [a, b, c].iter().any(|&v| format.is_nan(v)) {
        return extreme3(m, format, [a, b, c], false);
    }
    let mut sorted = [a, b, c].map(|v| m.input(format, v));
    sorted.sort_by_key(|&v| order_key(format, v));
    m.output(format, sorted[1])
}

/// The minimum or maximum; NaN if a source is NaN.
fn ieee_extreme(m: Mode, format: Format, [a, b]: [u64; 2], larger: bool) -> u64 {
    first_nan(format, &[a, b]).unwrap_or_else(|| m.extreme(format, [a, b], larger))
}

/// Rounds to an integer value in the same format.
fn integral(m: Mode, format: Format, bits: u64, round: Round) -> u64 {
    let bits = m.input(format, bits);
    match format.unpack(bits) {
        Value::Nan => bits | format.quiet(),
        Value::Infinite { .. } => bits,
        Value::Finite(exact) if exact.exponent >= 0 => bits,
        Value::Finite(exact) => {
            let integer = nearest_integer(exact, round);
            format.round(Exact { negative: exact.negative, mantissa: integer, exponent: 0 }, Round::NearestEven)
        }
    }
}

/// The magnitude of a number rounded to an integer. The exponent must not be positive.
pub(crate) fn nearest_integer(exact: Exact, round: Round) -> u128 {
    let shift = (-exact.exponent) as u32;
    let (whole, rest) = match shift {
        0..=127 => (exact.mantissa >> shift, exact.mantissa & ((1u128 << shift) - 1)),
        _ => (0, exact.mantissa),
    };
    let half = if shift == 0 || shift > 127 { u128::MAX } else { 1u128 << (shift - 1) };
    let up = match round {
        Round::NearestEven => rest > half || rest == half && whole & 1 == 1,
        Round::Up => rest != 0 && !exact.negative,
        Round::Down => rest != 0 && exact.negative,
        Round::Zero => false,
    };
    whole + u128::from(up)
}

/// `x - floor(x)`, below 1.
fn fract(m: Mode, format: Format, bits: u64) -> u64 {
    let floor = integral(m, format, bits, Round::Down);
    let below_one = format.round(Exact { negative: false, mantissa: 1, exponent: 0 }, Round::Zero) - 1;
    match format.unpack(bits) {
        Value::Finite(_) => m.extreme(format, [sub(m, format, bits, floor), below_one], false),
        _ => format.nan(),
    }
}

fn ldexp(m: Mode, format: Format, bits: u64, exponent: i32) -> u64 {
    let bits = m.input(format, bits);
    match format.unpack(bits) {
        Value::Nan => bits | format.quiet(),
        Value::Infinite { .. } => bits,
        Value::Finite(e) => m.rounded(format, Exact { exponent: e.exponent + exponent.clamp(-5000, 5000), ..e }),
    }
}

/// The exponent `e` such that the number is in [0.5, 1) times `2^e`.
fn frexp_exponent(format: Format, bits: u64) -> u64 {
    match format.unpack(bits) {
        Value::Finite(e) if e.mantissa != 0 => (e.exponent + 128 - e.mantissa.leading_zeros() as i32) as u64,
        _ => 0,
    }
}

fn frexp_mantissa(m: Mode, format: Format, bits: u64) -> u64 {
    match format.unpack(bits) {
        Value::Finite(e) if e.mantissa != 0 => ldexp(m, format, bits, -(frexp_exponent(format, bits) as i32)),
        Value::Nan => bits | format.quiet(),
        _ => bits,
    }
}

/// A function that the hardware approximates: computed in f64 and rounded once. Subnormal f32
/// sources and results become zero, as on hardware.
fn approximate(m: Mode, format: Format, bits: u64, f: fn(f64) -> f64) -> u64 {
    let flush = |bits| if format == F32 && format.is_subnormal(bits) { bits & format.sign() } else { bits };
    let bits = flush(m.input(format, bits));
    if format.is_nan(bits) {
        return bits | format.quiet();
    }
    let wide = Mode(0xf0);
    let result = f(f64::from_bits(wide.convert(format, F64, bits))).to_bits();
    if F64.is_nan(result) {
        return format.nan();
    }
    flush(m.output(format, wide.convert(F64, format, result)))
}

fn turns(f: fn(f64) -> f64) -> impl Fn(f64) -> f64 {
    move |x| if x.is_infinite() { f64::NAN } else { f((x - x.floor()) * std::f64::consts::TAU) }
}

fn sin(x: f64) -> f64 {
    if x == 0.0 { x } else { turns(f64::sin)(x) }
}

fn cos(x: f64) -> f64 {
    turns(f64::cos)(x)
}

fn reciprocal(m: Mode, format: Format, bits: u64) -> u64 {
    approximate(m, format, bits, |x| 1.0 / x)
}

fn rsqrt(x: f64) -> f64 {
    1.0 / x.sqrt()
}

/// A sum of products of f16 pairs, in f32, rounded once.
fn dot2_f16(m: Mode, a: u64, b: u64, c: u64) -> u64 {
    let wide = |v: u64| Mode(0xf0).convert(F16, F32, v & 0xffff);
    let first = m.fma(F32, [wide(a), wide(b), c]);
    m.fma(F32, [wide(a >> 16), wide(b >> 16), first])
}

fn dot2_bf16(m: Mode, a: u64, b: u64, c: u64) -> u64 {
    let first = m.fma(F32, [a << 16 & 0xffff_0000, b << 16 & 0xffff_0000, c]);
    m.fma(F32, [a & 0xffff_0000, b & 0xffff_0000, first])
}

macro_rules! family {
    ($name:ident, $ty:ident, $format:ident, $suffix:literal) => {
        /// Operations that exist for every format.
        pub(crate) const $name: &[Row] = &[
            (concat!("v_add_", $suffix), op($ty, &[$ty, $ty], |m, [a, b, _]| m.add($format, [a, b]))),
            (concat!("v_sub_", $suffix), op($ty, &[$ty, $ty], |m, [a, b, _]| sub(m, $format, a, b))),
            (concat!("v_subrev_", $suffix), op($ty, &[$ty, $ty], |m, [a, b, _]| sub(m, $format, b, a))),
            (concat!("v_mul_", $suffix), op($ty, &[$ty, $ty], |m, [a, b, _]| m.mul($format, [a, b]))),
            (concat!("v_fma_", $suffix), op($ty, &[$ty, $ty, $ty], |m, v| m.fma($format, v))),
            (concat!("v_fmac_", $suffix), acc($ty, &[$ty, $ty], |m, v| m.fma($format, v))),
            (concat!("v_fmamk_", $suffix), op($ty, &[$ty, $ty, $ty], |m, v| m.fma($format, v))),
            (concat!("v_fmaak_", $suffix), op($ty, &[$ty, $ty, $ty], |m, v| m.fma($format, v))),
            (concat!("v_mad_", $suffix), op($ty, &[$ty, $ty, $ty], |m, v| mad(m, $format, v))),
            (concat!("v_madmk_", $suffix), op($ty, &[$ty, $ty, $ty], |m, v| mad(m, $format, v))),
            (concat!("v_madak_", $suffix), op($ty, &[$ty, $ty, $ty], |m, v| mad(m, $format, v))),
            (concat!("v_mac_", $suffix), acc($ty, &[$ty, $ty], |m, v| mad(m, $format, v))),
            (concat!("v_min_", $suffix), op($ty, &[$ty, $ty], |m, [a, b, _]| m.extreme($format, [a, b], false))),
            (concat!("v_max_", $suffix), op($ty, &[$ty, $ty], |m, [a, b, _]| m.extreme($format, [a, b], true))),
            (
                concat!("v_minimum_", $suffix),
                op($ty, &[$ty, $ty], |m, [a, b, _]| ieee_extreme(m, $format, [a, b], false)),
            ),
            (
                concat!("v_maximum_", $suffix),
                op($ty, &[$ty, $ty], |m, [a, b, _]| ieee_extreme(m, $format, [a, b], true)),
            ),
            (concat!("v_trunc_", $suffix), op($ty, &[$ty], |m, [a, ..]| integral(m, $format, a, Round::Zero))),
            (concat!("v_ceil_", $suffix), op($ty, &[$ty], |m, [a, ..]| integral(m, $format, a, Round::Up))),
            (concat!("v_floor_", $suffix), op($ty, &[$ty], |m, [a, ..]| integral(m, $format, a, Round::Down))),
            (concat!("v_rndne_", $suffix), op($ty, &[$ty], |m, [a, ..]| integral(m, $format, a, Round::NearestEven))),
            (concat!("v_fract_", $suffix), op($ty, &[$ty], |m, [a, ..]| fract(m, $format, a))),
            (concat!("v_rcp_", $suffix), op($ty, &[$ty], |m, [a, ..]| reciprocal(m, $format, a))),
            (concat!("v_rsq_", $suffix), op($ty, &[$ty], |m, [a, ..]| approximate(m, $format, a, rsqrt))),
            (concat!("v_sqrt_", $suffix), op($ty, &[$ty], |m, [a, ..]| approximate(m, $format, a, f64::sqrt))),
            (concat!("v_frexp_mant_", $suffix), op($ty, &[$ty], |m, [a, ..]| frexp_mantissa(m, $format, a))),
        ];
    };
}

family!(HALF, H, F16, "f16");
family!(SINGLE, S, F32, "f32");
family!(DOUBLE, D, F64, "f64");

/// Operations that exist for one format only.
pub(crate) const TABLE: &[Row] = &[
    ("v_mul_legacy_f32", op(S, &[S, S], |m, [a, b, _]| mul_legacy(m, a, b))),
    (
        "v_fma_legacy_f32",
        op(S, &[S, S, S], |m, [a, b, c]| {
            if F32.is_zero(m.input(F32, a)) || F32.is_zero(m.input(F32, b)) {
                m.add(F32, [0, c])
            } else {
                m.fma(F32, [a, b, c])
            }
        }),
    ),
    ("v_min3_f32", op(S, &[S, S, S], |m, v| extreme3(m, F32, v, false))),
    ("v_max3_f32", op(S, &[S, S, S], |m, v| extreme3(m, F32, v, true))),
    ("v_med3_f32", op(S, &[S, S, S], |m, v| med3(m, F32, v))),
    ("v_maxmin_f32", op(S, &[S, S, S], |m, [a, b, c]| m.extreme(F32, [m.extreme(F32, [a, b], true), c], false))),
    ("v_minmax_f32", op(S, &[S, S, S], |m, [a, b, c]| m.extreme(F32, [m.extreme(F32, [a, b], false), c], true))),
    ("v_min3_f16", op(H, &[H, H, H], |m, v| extreme3(m, F16, v, false))),
    ("v_max3_f16", op(H, &[H, H, H], |m, v| extreme3(m, F16, v, true))),
    ("v_med3_f16", op(H, &[H, H, H], |m, v| med3(m, F16, v))),
    ("v_maxmin_f16", op(H, &[H, H, H], |m, [a, b, c]| m.extreme(F16, [m.extreme(F16, [a, b], true), c], false))),
    ("v_minmax_f16", op(H, &[H, H, H], |m, [a, b, c]| m.extreme(F16, [m.extreme(F16, [a, b], false), c], true))),
    ("v_exp_f32", op(S, &[S], |m, [a, ..]| approximate(m, F32, a, f64::exp2))),
    ("v_log_f32", op(S, &[S], |m, [a, ..]| approximate(m, F32, a, f64::log2))),
    ("v_sin_f32", op(S, &[S], |m, [a, ..]| approximate(m, F32, a, sin))),
    ("v_cos_f32", op(S, &[S], |m, [a, ..]| approximate(m, F32, a, cos))),
    ("v_exp_f16", op(H, &[H], |m, [a, ..]| approximate(m, F16, a, f64::exp2))),
    ("v_log_f16", op(H, &[H], |m, [a, ..]| approximate(m, F16, a, f64::log2))),
    ("v_sin_f16", op(H, &[H], |m, [a, ..]| approximate(m, F16, a, sin))),
    ("v_cos_f16", op(H, &[H], |m, [a, ..]| approximate(m, F16, a, cos))),
    ("v_rcp_iflag_f32", op(S, &[S], |m, [a, ..]| reciprocal(m, F32, a))),
    ("v_ldexp_f16", op(H, &[H, B16], |m, [a, b, _]| ldexp(m, F16, a, (b as i16).into()))),
    ("v_ldexp_f32", op(S, &[S, B32], |m, [a, b, _]| ldexp(m, F32, a, b as i32))),
    ("v_ldexp_f64", op(D, &[D, B32], |m, [a, b, _]| ldexp(m, F64, a, b as i32))),
    ("v_frexp_exp_i16_f16", op(B16, &[H], |_, [a, ..]| frexp_exponent(F16, a))),
    ("v_frexp_exp_i32_f32", op(B32, &[S], |_, [a, ..]| frexp_exponent(F32, a))),
    ("v_frexp_exp_i32_f64", op(B32, &[D], |_, [a, ..]| frexp_exponent(F64, a))),
    ("v_pk_add_f16", packed(H, 2, |m, [a, b, _]| m.add(F16, [a, b]))),
    ("v_pk_mul_f16", packed(H, 2, |m, [a, b, _]| m.mul(F16, [a, b]))),
    ("v_pk_fma_f16", packed(H, 3, |m, v| m.fma(F16, v))),
    ("v_pk_min_f16", packed(H, 2, |m, [a, b, _]| m.extreme(F16, [a, b], false))),
    ("v_pk_max_f16", packed(H, 2, |m, [a, b, _]| m.extreme(F16, [a, b], true))),
    ("v_pk_minimum_f16", packed(H, 2, |m, [a, b, _]| ieee_extreme(m, F16, [a, b], false))),
    ("v_pk_maximum_f16", packed(H, 2, |m, [a, b, _]| ieee_extreme(m, F16, [a, b], true))),
    ("v_pk_add_f32", packed(S, 2, |m, [a, b, _]| m.add(F32, [a, b]))),
    ("v_pk_mul_f32", packed(S, 2, |m, [a, b, _]| m.mul(F32, [a, b]))),
    ("v_pk_fma_f32", packed(S, 3, |m, v| m.fma(F32, v))),
    ("v_fma_mix_f32", Op::Mix { dst: S, high: false, f: |m, v| m.fma(F32, v) }),
    ("v_fma_mixlo_f16", Op::Mix { dst: H, high: false, f: |m, v| m.convert(F32, F16, m.fma(F32, v)) }),
    ("v_fma_mixhi_f16", Op::Mix { dst: H, high: true, f: |m, v| m.convert(F32, F16, m.fma(F32, v)) }),
    ("v_dot2_f32_f16", op(S, &[PF16, PF16, S], |m, [a, b, c]| dot2_f16(m, a, b, c))),
    ("v_dot2c_f32_f16", acc(S, &[PF16, PF16], |m, [a, b, c]| dot2_f16(m, a, b, c))),
    ("v_dot2_f32_bf16", op(S, &[B32, B32, S], |m, [a, b, c]| dot2_bf16(m, a, b, c))),
    ("v_div_fixup_f16", op(H, &[H, H, H], |_, v| div_fixup(F16, v))),
    ("v_div_fixup_legacy_f16", op(H, &[H, H, H], |_, v| div_fixup(F16, v))),
    ("v_div_fixup_f32", op(S, &[S, S, S], |_, v| div_fixup(F32, v))),
    ("v_div_fixup_f64", op(D, &[D, D, D], |_, v| div_fixup(F64, v))),
];

/// The result of a division with all special cases. `quotient` is the result of Newton's method.
fn div_fixup(format: Format, [quotient, denominator, numerator]: [u64; 3]) -> u64 {
    let negative = format.is_negative(denominator) != format.is_negative(numerator);
    let sign = if negative { format.sign() } else { 0 };
    let lowest = -(format.fraction as i32) - (1 << (format.exponent - 1)) + 1;
    if let Some(nan) = first_nan(format, &[numerator, denominator]) {
        return nan;
    }
    let zero = |v| format.is_zero(v);
    let infinite = |v| format.is_infinite(v);
    if zero(denominator) && zero(numerator) || infinite(denominator) && infinite(numerator) {
        return format.nan() | format.sign();
    }
    if zero(denominator) || infinite(numerator) {
        return signed_infinity(format, negative);
    }
    if infinite(denominator) || zero(numerator) {
        return sign;
    }
    let difference = format.exponent_field(numerator) - format.exponent_field(denominator);
    if difference < lowest {
        return sign;
    }
    // Intermediate steps overflow if the quotient does.
    if format.is_nan(quotient) {
        return signed_infinity(format, negative);
    }
    sign | format.magnitude(quotient)
}
