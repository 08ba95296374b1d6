//! Integer arithmetic including carry chains, computed in 128 bits and truncated.

use super::{Alu, Decoded, int, is_signed, only, range, ty};
use atoll_ptx::types::TypeClass;
use atoll_ptx::{Instruction, ScalarType};

pub(super) fn decode(i: &Instruction) -> Decoded {
    let integers = i.ty().is_some_and(|t| matches!(t.class(), TypeClass::Signed | TypeClass::Unsigned));
    if !integers {
        return Ok(None);
    }
    let t = ty(i)?;
    let alu = match i.opcode.as_str() {
        "add" | "addc" | "sub" | "subc" => sum(i, t)?,
        "mul" | "mad" | "madc" => product(i, t)?,
        "mul24" | "mad24" => product24(i, t)?,
        "div" | "rem" => {
            only(i, &[])?;
            let remainder = i.opcode == "rem";
            Alu::new(2, move |s| divide(t, int(t, s[0]), int(t, s[1]), remainder))
        }
        "sad" => {
            only(i, &[])?;
            Alu::new(3, move |s| {
                int(t, ((int(t, s[0]) - int(t, s[1])).unsigned_abs() as u64).wrapping_add(s[2])) as u64
            })
        }
        "abs" => unary(i, t, i128::abs)?,
        "neg" => unary(i, t, |a| -a)?,
        "min" => extreme(i, t, i128::min)?,
        "max" => extreme(i, t, i128::max)?,
        "dp4a" | "dp2a" => dot(i)?,
        _ => return Ok(None),
    };
    Ok(Some(alu))
}

fn unary(i: &Instruction, t: ScalarType, f: fn(i128) -> i128) -> Result<Alu, String> {
    only(i, &[])?;
    Ok(Alu::new(1, move |s| f(int(t, s[0])) as u64))
}

fn extreme(i: &Instruction, t: ScalarType, f: fn(i128, i128) -> i128) -> Result<Alu, String> {
    only(i, &["relu"])?;
    let relu = i.has("relu");
    Ok(Alu::new(2, move |s| {
        let value = f(int(t, s[0]), int(t, s[1]));
        (if relu { value.max(0) } else { value }) as u64
    }))
}

/// `add`, `addc`, `sub`, `subc`. A subtraction adds the complement and 1; its carry is the carry of
/// that sum, so it is 0 on a borrow, as in hardware.
fn sum(i: &Instruction, t: ScalarType) -> Result<Alu, String> {
    only(i, &["sat", "cc"])?;
    let (subtract, carry_in) = (i.opcode.starts_with("sub"), i.opcode.ends_with('c'));
    let saturate = i.has("sat");
    let (least, most) = range(t);
    let bits = t.bits();
    let mut alu = Alu::pair(2, move |s| {
        // The carry in, or the 1 of a subtraction.
        let step = if carry_in { i128::from(s[2]) } else { i128::from(subtract) };
        if saturate {
            let (a, b) = (int(t, s[0]), int(t, s[1]));
            return [(if subtract { a - b } else { a + b }).clamp(least, most) as u64, 0];
        }
        // Computed unsigned, so that the carry is the bit above the highest.
        let mask = (1i128 << bits) - 1;
        let (a, b) = (i128::from(s[0]) & mask, i128::from(s[1]) & mask);
        let total = a + (if subtract { !b & mask } else { b }) + step;
        [int(t, total as u64) as u64, (total >> bits & 1) as u64]
    });
    (alu.carry_in, alu.carry_out) = (carry_in, i.has("cc"));
    Ok(alu)
}

/// `mul`, `mad`, `madc` with `.lo`, `.hi`, `.wide`.
fn product(i: &Instruction, t: ScalarType) -> Result<Alu, String> {
    only(i, &["lo", "hi", "wide", "sat", "cc"])?;
    let bits = t.bits();
    let shift = if i.has("hi") { bits } else { 0 };
    let out_bits = if i.has("wide") { 2 * bits } else { bits };
    if !(i.has("lo") || i.has("hi") || i.has("wide")) {
        return Err("it needs .lo, .hi or .wide".into());
    }
    let signed = is_signed(t);
    // The product of two unsigned 64-bit numbers needs all 128 bits, so it is computed unsigned.
    let part = move |s: &[u64]| -> u128 {
        let (a, b) = (int(t, s[0]), int(t, s[1]));
        let product = if signed { (a * b) as u128 } else { (a as u128) * (b as u128) };
        let mask = if out_bits >= 128 { u128::MAX } else { (1 << out_bits) - 1 };
        product >> shift & mask
    };
    let narrow = move |value: u128| -> u64 {
        let unused = 128 - out_bits;
        (if signed { (((value << unused) as i128) >> unused) as u128 } else { value }) as u64
    };
    if i.opcode == "mul" {
        return Ok(Alu::new(2, move |s| narrow(part(s))));
    }
    let carry_in = i.opcode == "madc";
    let (saturate, (least, most)) = (i.has("sat"), range(t));
    let mut alu = Alu::pair(3, move |s| {
        let mask = (1u128 << out_bits) - 1;
        let carry = if carry_in { u128::from(s[3]) } else { 0 };
        if saturate {
            let (a, b) = (int(t, narrow(part(s))), int(t, s[2]));
            return [(a + b).clamp(least, most) as u64, 0];
        }
        let total = part(s) + (u128::from(s[2]) & mask) + carry;
        [narrow(total & mask), (total >> out_bits & 1) as u64]
    });
    (alu.carry_in, alu.carry_out) = (carry_in, i.has("cc"));
    Ok(alu)
}

/// Products of the low 24 bits; `.hi` takes bits 16 to 47 of the product.
fn product24(i: &Instruction, t: ScalarType) -> Result<Alu, String> {
    only(i, &["lo", "hi", "sat"])?;
    let shift = if i.has("hi") { 16 } else { 0 };
    let signed = is_signed(t);
    let cut = move |v: u64| if signed { i128::from((v as i64) << 40 >> 40) } else { i128::from(v & 0xff_ffff) };
    let part = move |s: &[u64]| int(t, ((cut(s[0]) * cut(s[1])) >> shift) as u64);
    if i.opcode == "mul24" {
        return Ok(Alu::new(2, move |s| part(s) as u64));
    }
    let (saturate, (least, most)) = (i.has("sat"), range(t));
    Ok(Alu::new(3, move |s| {
        let total = part(s) + int(t, s[2]);
        (if saturate { total.clamp(least, most) } else { int(t, total as u64) }) as u64
    }))
}

/// Division as in NVIDIA's code: by zero, quotient and remainder are all ones; the smallest number
/// divided by −1 is itself, with remainder 0.
fn divide(t: ScalarType, a: i128, b: i128, remainder: bool) -> u64 {
    if b == 0 {
        return u64::MAX;
    }
    int(t, (if remainder { a % b } else { a / b }) as u64) as u64
}

/// `dp4a` and `dp2a`: a sum of products of bytes, or of halves and bytes. The modifiers are the
/// types of both factors.
fn dot(i: &Instruction) -> Result<Alu, String> {
    only(i, &["lo", "hi"])?;
    let types: Vec<ScalarType> = i.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
    let &[a_type, b_type] = types.as_slice() else { return Err("it needs two types".into()) };
    let field = |t: ScalarType, value: u64, bits: u32, index: u32| -> i128 {
        let raw = i128::from(value >> (bits * index) & ((1 << bits) - 1));
        if is_signed(t) && raw >> (bits - 1) == 1 { raw - (1 << bits) } else { raw }
    };
    let four = i.opcode == "dp4a";
    let first = if i.has("hi") { 2 } else { 0 };
    Ok(Alu::new(3, move |s| {
        let products: i128 = if four {
            (0..4).map(|n| field(a_type, s[0], 8, n) * field(b_type, s[1], 8, n)).sum()
        } else {
            (0..2).map(|n| field(a_type, s[0], 16, n) * field(b_type, s[1], 8, first + n)).sum()
        };
        (products + i128::from(s[2])) as u64
    }))
}
