//! Floating-point arithmetic: exact, then rounded once. Approximate functions are computed in f64,
//! then rounded.

use super::compare::order;
use super::{Alu, Decoded, format_of, only, rounding};
use crate::format::{F32, F64, Format, Number, Rounding};
use atoll_ptx::{Instruction, ScalarType};

pub(super) fn decode(i: &Instruction) -> Decoded {
    let Some(format) = i.ty().and_then(format_of).filter(|_| i.ty() != Some(ScalarType::Tf32)) else { return Ok(None) };
    let approximate = i.has("approx") || i.has("full");
    let alu = match i.opcode.as_str() {
        "add" | "sub" | "mul" | "fma" | "mad" => exact(i, format)?,
        "div" | "rcp" | "sqrt" if !approximate => exact(i, format)?,
        "div" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => approximation(i, format)?,
        "min" | "max" => extreme(i, format)?,
        "abs" | "neg" => sign(i, format)?,
        _ => return Ok(None),
    };
    Ok(Some(alu))
}

/// The modifiers applied to sources and to the rounded result.
#[derive(Clone, Copy)]
struct Finish {
    format: Format,
    flush: bool,
    saturate: bool,
    relu: bool,
}

impl Finish {
    fn of(i: &Instruction, format: Format) -> Finish {
        Finish { format, flush: i.has("ftz"), saturate: i.has("sat"), relu: i.has("relu") }
    }

    fn source(self, bits: u64) -> u64 {
        if self.flush { self.format.flush(bits) } else { bits }
    }

    fn result(self, bits: u64) -> u64 {
        let bits = self.source(bits);
        if self.saturate {
            saturate(self.format, bits)
        } else if self.relu {
            relu(self.format, bits)
        } else {
            bits
        }
    }
}

/// `.sat`: clamps to 0 and 1; NaN becomes 0.
pub(super) fn saturate(format: Format, bits: u64) -> u64 {
    let value = format.to_f64(bits);
    if value > 1.0 {
        format.round_f64(1.0)
    } else if value > 0.0 {
        bits
    } else {
        0
    }
}

/// `.relu`: negative numbers become 0.
pub(super) fn relu(format: Format, bits: u64) -> u64 {
    match format.unpack(bits) {
        Number::Nan => format.nan(),
        number if number.is_negative() => 0,
        _ => bits,
    }
}

/// `add`, `sub`, `mul`, `fma`, and `div`, `rcp`, `sqrt` with a rounding mode.
fn exact(i: &Instruction, format: Format) -> Result<Alu, String> {
    only(i, &["rn", "rz", "rm", "rp", "ftz", "sat", "relu"])?;
    let finish = Finish::of(i, format);
    let mode = rounding(i).unwrap_or(Rounding::Nearest);
    let opcode = i.opcode.clone();
    let sources = match opcode.as_str() {
        "rcp" | "sqrt" => 1,
        "fma" | "mad" => 3,
        _ => 2,
    };
    if let Some(native) = native(&opcode, format).filter(|_| mode == Rounding::Nearest) {
        return Ok(Alu::new(sources, move |s| {
            let source = |n: usize| s.get(n).map_or(0, |v| finish.source(*v));
            finish.result(native([source(0), source(1), source(2)]))
        }));
    }
    Ok(Alu::new(sources, move |s| {
        let source = |n: usize| format.unpack(finish.source(s[n]));
        let number = match opcode.as_str() {
            "add" => source(0).add(source(1), mode),
            "sub" => source(0).add(source(1).negate(), mode),
            "mul" => source(0).mul(source(1)),
            "div" => source(0).div(source(1)),
            "rcp" => Number::from_int(1).div(source(0)),
            "sqrt" => source(0).sqrt(),
            _ => source(0).mul(source(1)).add(source(2), mode),
        };
        finish.result(format.pack(number, mode))
    }))
}

/// The arithmetic of the host processor. It is much faster, and equal for round-to-nearest (a test
/// in [`crate::format`] checks this).
fn native(opcode: &str, format: Format) -> Option<fn([u64; 3]) -> u64> {
    let single: fn([u64; 3]) -> u64 = match opcode {
        "add" => |s| f32_of(s, |a, b, _| a + b),
        "sub" => |s| f32_of(s, |a, b, _| a - b),
        "mul" => |s| f32_of(s, |a, b, _| a * b),
        "div" => |s| f32_of(s, |a, b, _| a / b),
        "fma" | "mad" => |s| f32_of(s, f32::mul_add),
        _ => return None,
    };
    let double: fn([u64; 3]) -> u64 = match opcode {
        "add" => |s| f64_of(s, |a, b, _| a + b),
        "sub" => |s| f64_of(s, |a, b, _| a - b),
        "mul" => |s| f64_of(s, |a, b, _| a * b),
        "div" => |s| f64_of(s, |a, b, _| a / b),
        _ => |s| f64_of(s, f64::mul_add),
    };
    match format {
        F32 => Some(single),
        F64 => Some(double),
        _ => None,
    }
}

fn f32_of(s: [u64; 3], f: impl Fn(f32, f32, f32) -> f32) -> u64 {
    let [a, b, c] = s.map(|v| f32::from_bits(v as u32));
    let result = f(a, b, c);
    if result.is_nan() { F32.nan() } else { result.to_bits().into() }
}

fn f64_of(s: [u64; 3], f: impl Fn(f64, f64, f64) -> f64) -> u64 {
    let [a, b, c] = s.map(f64::from_bits);
    let result = f(a, b, c);
    if result.is_nan() { F64.nan() } else { result.to_bits() }
}

/// The approximate functions. NVIDIA documents error bounds; these are computed in f64 and rounded
/// once.
fn approximation(i: &Instruction, format: Format) -> Result<Alu, String> {
    only(i, &["approx", "full", "ftz"])?;
    if !(i.has("approx") || i.has("full")) {
        return Err("it needs .approx or .full".into());
    }
    let exists = match i.opcode.as_str() {
        _ if format == F32 => true,
        "rsqrt" => format == F64,
        "rcp" => format == F64 && i.has("ftz"),
        "ex2" | "tanh" => format != F64,
        _ => false,
    };
    if !exists {
        return Err("PTX has no approximation of this type, or only with .ftz".into());
    }
    let finish = Finish::of(i, format);
    let opcode = i.opcode.clone();
    let sources = if opcode == "div" { 2 } else { 1 };
    // The `.ftz` forms of f64 use and produce only the upper 32 bits.
    let mask = if format == F64 && i.has("ftz") { !0xffff_ffff } else { u64::MAX };
    Ok(Alu::new(sources, move |s| {
        let a = format.to_f64(finish.source(s[0] & mask));
        let value = match opcode.as_str() {
            "div" => a / format.to_f64(finish.source(s[1])),
            "rcp" => 1.0 / a,
            "sqrt" => a.sqrt(),
            // 1/√−0 is −∞.
            "rsqrt" => (1.0 / a.abs().sqrt()).copysign(a) + if a < 0.0 { f64::NAN } else { 0.0 },
            "sin" => libm::sin(a),
            "cos" => libm::cos(a),
            "lg2" => libm::log2(a),
            "ex2" => libm::exp2(a),
            _ => libm::tanh(a),
        };
        finish.result(format.round_f64(value) & mask)
    }))
}

/// `min` and `max` of two or three values. A number is preferred to a NaN, unless `.NaN` is set; −0
/// is less than +0.
fn extreme(i: &Instruction, format: Format) -> Result<Alu, String> {
    only(i, &["ftz", "NaN", "xorsign", "abs"])?;
    let finish = Finish::of(i, format);
    let (least, propagate, by_magnitude) = (i.opcode == "min", i.has("NaN"), i.has("abs"));
    let exclusive = i.has("xorsign");
    let sign = 1u64 << (format.bits() - 1);
    let two = move |a: u64, b: u64| -> u64 {
        let signs = (a ^ b) & sign;
        let (a, b) = if by_magnitude { (a & !sign, b & !sign) } else { (a, b) };
        let picked = match order(format, a, b) {
            None if propagate || format.is_nan(a) && format.is_nan(b) => return format.nan(),
            None => {
                if format.is_nan(a) {
                    b
                } else {
                    a
                }
            }
            // Equal, or zeros of different sign.
            Some(o) if o.is_eq() => {
                if least == (a & sign != 0) {
                    a
                } else {
                    b
                }
            }
            Some(o) => {
                if o.is_lt() == least {
                    a
                } else {
                    b
                }
            }
        };
        if exclusive { picked & !sign | signs } else { picked }
    };
    let sources = i.operands.len().saturating_sub(1).clamp(2, 3);
    Ok(Alu::new(sources, move |s| {
        let first = two(finish.source(s[0]), finish.source(s[1]));
        if sources == 3 { two(first, finish.source(s[2])) } else { first }
    }))
}

fn sign(i: &Instruction, format: Format) -> Result<Alu, String> {
    only(i, &["ftz"])?;
    let finish = Finish::of(i, format);
    let sign = 1u64 << (format.bits() - 1);
    let negate = i.opcode == "neg";
    Ok(Alu::new(1, move |s| {
        let bits = finish.source(s[0]);
        if negate { bits ^ sign } else { bits & !sign }
    }))
}
