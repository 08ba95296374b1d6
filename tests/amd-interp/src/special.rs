//! Steps of division, and dot products with signs as modifiers.

use crate::fault::FaultKind;
use crate::op::{Inst, Machine, Op, Row};
use crate::operand::{Ty, VCC};
use crate::soft::{Exact, F16, F32, F64, Format, Round, Value};
use crate::valu_int::dot4;
use crate::wave::Bits;

fn scaled(format: Format, bits: u64, power: i32) -> u64 {
    match format.unpack(bits) {
        Value::Finite(e) => format.round(Exact { exponent: e.exponent + power, ..e }, Round::NearestEven),
        _ => bits,
    }
}

/// The rounded quotient, which shows whether it is subnormal.
fn quotient(format: Format, a: u64, b: u64) -> u64 {
    if format == F64 {
        return (f64::from_bits(a) / f64::from_bits(b)).to_bits();
    }
    (f32::from_bits(a as u32) / f32::from_bits(b as u32)).to_bits().into()
}

/// Scales the numerator or the denominator so that Newton's method does not overflow or lose bits.
/// Returns whether `div_fmas` has to scale its result back.
fn div_scale(format: Format, [source, denominator, numerator]: [u64; 3]) -> (u64, bool) {
    let (near_largest, power, tiny) = if format == F64 { (768, 128, 53) } else { (96, 64, 23) };
    if format.is_zero(denominator) || format.is_zero(numerator) {
        return (format.nan(), false);
    }
    let one = format.round(Exact::integer(1), Round::NearestEven);
    let reciprocal_subnormal = format.is_subnormal(quotient(format, one, denominator));
    let quotient_subnormal = format.is_subnormal(quotient(format, numerator, denominator));
    let (is_denominator, is_numerator) = (source == denominator, source == numerator);
    let scale = |when: bool, power: i32| if when { scaled(format, source, power) } else { source };
    let exponent = |bits| format.exponent_field(bits);
    if exponent(numerator) - exponent(denominator) >= near_largest {
        (scale(is_denominator, power), true)
    } else if format.is_subnormal(denominator) {
        (scaled(format, source, power), false)
    } else if reciprocal_subnormal && quotient_subnormal {
        (scale(is_denominator, -power), true)
    } else if reciprocal_subnormal {
        (scaled(format, source, -power), false)
    } else if quotient_subnormal {
        (scale(is_numerator, power), true)
    } else if exponent(numerator) <= tiny {
        (scaled(format, source, power), false)
    } else {
        (source, false)
    }
}

fn div_scales(machine: &mut Machine, inst: &Inst, ty: Ty, format: Format) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let mut values = [[0; 64]; 3];
    for (at, value) in values.iter_mut().enumerate() {
        *value = wave.source(inst.operand(2 + at)?, ty, false)?;
    }
    let (exec, mut flags, mut lanes) = (wave.exec(), 0, [0; 64]);
    for lane in Bits(exec) {
        let (value, flag) = div_scale(format, values.map(|v| v[lane as usize]));
        lanes[lane as usize] = value;
        flags |= u64::from(flag) << lane;
    }
    wave.write(inst.operand(0)?, ty, exec, &lanes)?;
    let mask = wave.mask_type();
    wave.set_uniform(inst.operand(1)?, flags, mask)
}

/// `a * b + c`, scaled back if `div_scale` says so, and rounded once.
fn div_fmas(machine: &mut Machine, inst: &Inst, ty: Ty, format: Format) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let mut values = [[0; 64]; 3];
    for (at, value) in values.iter_mut().enumerate() {
        *value = wave.source(inst.operand(1 + at)?, ty, false)?;
    }
    let (exec, flags, mode, mut lanes) = (wave.exec(), wave.mask(VCC), wave.mode, [0; 64]);
    let (power, bias) = if format == F64 { (128, 1023) } else { (64, 127) };
    for lane in Bits(exec) {
        let sources = values.map(|v| v[lane as usize]);
        let large = format.exponent_field(sources[2]) > bias;
        let scale = match (flags >> lane & 1 == 1, large) {
            (false, _) => 0,
            (true, true) => power,
            (true, false) => -power,
        };
        lanes[lane as usize] = mode.fma_scaled(format, sources, scale);
    }
    wave.write(inst.operand(0)?, ty, exec, &lanes)
}

/// The sum of four products of bytes. Bits of `neg_lo` say which operands are signed.
fn dot4_signs(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let mut values = [[0; 64]; 3];
    for (at, value) in values.iter_mut().enumerate() {
        *value = wave.source(inst.operand(1 + at)?, Ty::B32, false)?;
    }
    let signed = [inst.mods.neg_lo & 1 == 1, inst.mods.neg_lo & 2 == 2];
    let (exec, clamp) = (wave.exec(), inst.mods.clamp);
    let lanes = std::array::from_fn(|lane| {
        let [a, b, c] = values.map(|v| v[lane]);
        let sum = dot4(a, b, i64::from(c as u32 as i32) as u64, signed);
        (if clamp { sum.clamp(i32::MIN.into(), i32::MAX.into()) } else { sum }) as u64
    });
    wave.write(inst.operand(0)?, Ty::B32, exec, &lanes)
}

/// Converts the upper half of a scalar register from f16 to f32.
fn convert_upper(machine: &mut Machine, inst: &Inst) -> Result<(), FaultKind> {
    let wave = &mut *machine.wave;
    let upper = wave.uniform(inst.operand(1)?, Ty::B32)? >> 16;
    let value = wave.mode.convert(F16, F32, upper);
    wave.set_uniform(inst.operand(0)?, value, Ty::B32)
}

/// The table.
pub(crate) const TABLE: &[Row] = &[
    ("v_div_scale_f32", Op::Whole(|m, i| div_scales(m, i, Ty::F32, F32))),
    ("v_div_scale_f64", Op::Whole(|m, i| div_scales(m, i, Ty::F64, F64))),
    ("v_div_fmas_f32", Op::Whole(|m, i| div_fmas(m, i, Ty::F32, F32))),
    ("v_div_fmas_f64", Op::Whole(|m, i| div_fmas(m, i, Ty::F64, F64))),
    ("v_dot4_i32_iu8", Op::Whole(dot4_signs)),
    ("s_cvt_hi_f32_f16", Op::Whole(convert_upper)),
];
