//! Video instructions: `vadd`, `vset`, `vmad` and similar on selected bytes, halves and words, and
//! `vadd2`, `vadd4` and similar on two or four numbers in a register.
//!
//! Integers are exact, except that intermediate results are truncated to 33 or 34 bits where the
//! ISA says so.

use super::{Alu, int, is_signed, low, only, range};
use atoll_ptx::{Instruction, Name, Operand, ScalarType};

/// An operation on two integers.
type Operation = Box<dyn Fn(i128, i128) -> i128 + Send + Sync>;

/// Decodes a video instruction. Also returns its plain form, with whole registers instead of
/// selected parts.
pub(crate) fn decode(i: &Instruction) -> Result<Option<(Alu, Instruction)>, String> {
    let opcode = i.opcode.as_str();
    let alu = match opcode {
        "vadd" | "vsub" | "vabsdiff" | "vmin" | "vmax" | "vshl" | "vshr" | "vset" => scalar(i)?,
        "vmad" => product(i)?,
        _ => match (opcode.strip_suffix('2'), opcode.strip_suffix('4')) {
            (Some("vadd" | "vsub" | "vavrg" | "vabsdiff" | "vmin" | "vmax" | "vset"), _) => several(i, 16)?,
            (_, Some("vadd" | "vsub" | "vavrg" | "vabsdiff" | "vmin" | "vmax" | "vset")) => several(i, 8)?,
            _ => return Ok(None),
        },
    };
    let mut plain = i.clone();
    plain.operands.iter_mut().for_each(|operand| {
        if let Operand::Name(name) | Operand::Negated(name) = operand {
            *operand = Operand::Name(Name::new(name.split('.').next().unwrap_or(name)));
        }
    });
    Ok(Some((alu, plain)))
}

/// The selector after the dot of an operand.
fn selector(i: &Instruction, index: usize) -> Option<&str> {
    match i.operands.get(index)? {
        Operand::Name(name) | Operand::Negated(name) => name.split_once('.').map(|(_, selector)| selector),
        _ => None,
    }
}

/// The types of the result and of both sources; a comparison has an unsigned result.
fn types(i: &Instruction) -> Result<[ScalarType; 3], String> {
    let types: Vec<ScalarType> = i.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
    let known = types.iter().all(|t| matches!(t, ScalarType::U32 | ScalarType::S32));
    match (i.opcode.starts_with("vset"), types.as_slice()) {
        (true, &[a, b]) if known => Ok([ScalarType::U32, a, b]),
        (false, &[d, a, b]) if known => Ok([d, a, b]),
        _ => Err("it needs a type of .u32 or .s32 for each operand".into()),
    }
}

/// The lowest bit and the width of the part that an operand of a scalar instruction selects.
fn part(selector: Option<&str>) -> Result<(u32, u32), String> {
    Ok(match selector {
        None => (0, 32),
        Some("b0") => (0, 8),
        Some("b1") => (8, 8),
        Some("b2") => (16, 8),
        Some("b3") => (24, 8),
        Some("h0") => (0, 16),
        Some("h1") => (16, 16),
        Some(other) => return Err(format!("it selects .{other}")),
    })
}

/// A part of a register, sign-extended or zero-extended.
fn extended(value: u64, (at, bits): (u32, u32), signed: bool) -> i128 {
    let raw = i128::from(low(bits, value >> at));
    if signed && raw >> (bits - 1) == 1 { raw - (1 << bits) } else { raw }
}

/// The low bits of a number, sign-extended.
fn cut(value: i128, bits: u32) -> i128 {
    value << (128 - bits) >> (128 - bits)
}

/// Replaces a part of a register.
fn merged(value: i128, (at, bits): (u32, u32), into: u64) -> u64 {
    let ones = ((1u64 << bits) - 1) << at;
    into & !ones | (value as u64) << at & ones
}

/// The range of a number of `bits` bits.
fn bounds(bits: u32, signed: bool) -> (i128, i128) {
    if signed { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

fn operation(i: &Instruction) -> Result<Operation, String> {
    let name = i.opcode.trim_end_matches(['2', '4']);
    let (clamp, wrap) = (i.has("clamp"), i.has("wrap"));
    Ok(match name {
        "vadd" => Box::new(|a, b| a + b),
        "vsub" => Box::new(|a, b| a - b),
        "vabsdiff" => Box::new(|a, b| (a - b).abs()),
        "vmin" => Box::new(i128::min),
        "vmax" => Box::new(i128::max),
        // Rounds halves away from zero.
        "vavrg" => Box::new(|a, b| if a + b >= 0 { (a + b + 1) >> 1 } else { (a + b) >> 1 }),
        "vset" => {
            let word = i.modifiers.iter().find(|m| ["eq", "ne", "lt", "le", "gt", "ge"].contains(&m.as_str()));
            let word = word.ok_or("it needs a comparison")?.clone();
            Box::new(move |a, b| {
                i128::from(match word.as_str() {
                    "eq" => a == b,
                    "ne" => a != b,
                    "lt" => a < b,
                    "le" => a <= b,
                    "gt" => a > b,
                    _ => a >= b,
                })
            })
        }
        _ if clamp == wrap => return Err("it needs .clamp or .wrap".into()),
        "vshl" => Box::new(move |a, b| cut(a << if clamp { b.min(32) } else { b & 31 }, 34)),
        _ => Box::new(move |a, b| a >> if clamp { b.min(32) } else { b & 31 }),
    })
}

/// A scalar instruction, optionally with a second operation, or merged into the third source.
fn scalar(i: &Instruction) -> Result<Alu, String> {
    only(i, &["sat", "clamp", "wrap", "add", "min", "max", "eq", "ne", "lt", "le", "gt", "ge"])?;
    let [d_type, a_type, b_type] = types(i)?;
    if i.opcode.starts_with("vsh") && b_type != ScalarType::U32 {
        return Err("it shifts by a .u32".into());
    }
    let (place, from_a, from_b) = (part(selector(i, 0))?, part(selector(i, 1))?, part(selector(i, 2))?);
    let merges = selector(i, 0).is_some();
    let second = ["add", "min", "max"].into_iter().find(|word| i.has(word));
    if merges && second.is_some() {
        return Err("it merges its result and has a second operation".into());
    }
    let (operation, saturate) = (operation(i)?, i.has("sat"));
    let (least, most) = bounds(place.1, is_signed(d_type));
    let sources = if merges || second.is_some() { 3 } else { i.operands.len().saturating_sub(1).clamp(2, 3) };
    Ok(Alu::new(sources, move |s| {
        let value = operation(extended(s[0], from_a, is_signed(a_type)), extended(s[1], from_b, is_signed(b_type)));
        let value = if saturate { value.clamp(least, most) } else { cut(value, 33) };
        let c = || int(d_type, s[2]);
        low(
            32,
            match second {
                Some("add") => (value + c()) as u64,
                Some("min") => value.min(c()) as u64,
                Some(_) => value.max(c()) as u64,
                None if merges => merged(value, place, s[2]),
                None => value as u64,
            },
        )
    }))
}

/// `vmad`: a product and a summand, of which one may be negated, plus 1 with `.po`, then shifted
/// and clamped.
fn product(i: &Instruction) -> Result<Alu, String> {
    only(i, &["sat", "po", "shr7", "shr15"])?;
    let [_, a_type, b_type] = types(i)?;
    let negated = |index: usize| matches!(i.operands.get(index), Some(Operand::Negated(_)));
    let (minus_product, minus_summand) = (negated(1) != negated(2), negated(3));
    let plus_one = i.has("po");
    if plus_one && (negated(1) || negated(2) || minus_summand) || minus_product && minus_summand {
        return Err("it negates more than one of product and summand, or negates with .po".into());
    }
    let signed = is_signed(a_type) || is_signed(b_type) || minus_product || minus_summand;
    let (from_a, from_b) = (part(selector(i, 1))?, part(selector(i, 2))?);
    if selector(i, 0).is_some() || selector(i, 3).is_some() {
        return Err("only its factors may be parts of registers".into());
    }
    let shift = if i.has("shr7") { 7 } else { 15 * u32::from(i.has("shr15")) };
    let (saturate, final_type) = (i.has("sat"), if signed { ScalarType::S32 } else { ScalarType::U32 });
    Ok(Alu::new(3, move |s| {
        let product = extended(s[0], from_a, is_signed(a_type)) * extended(s[1], from_b, is_signed(b_type));
        let product = if minus_product { -product } else { product };
        let summand = int(final_type, s[2]);
        let sum = product + if minus_summand { -summand } else { summand } + i128::from(plus_one);
        // The hardware keeps 64 bits of the sum.
        let scaled = if signed { cut(sum >> shift, 64) } else { i128::from((sum >> shift) as u64) };
        let (least, most) = range(final_type);
        low(32, (if saturate { scaled.clamp(least, most) } else { scaled }) as u64)
    }))
}

/// An instruction on two or four numbers. Numbers outside the mask come from the third source; with
/// `.add`, the numbers inside the mask are summed and added to the third source.
fn several(i: &Instruction, bits: u32) -> Result<Alu, String> {
    only(i, &["sat", "add", "eq", "ne", "lt", "le", "gt", "ge"])?;
    let [d_type, a_type, b_type] = types(i)?;
    let (saturate, accumulate) = (i.has("sat"), i.has("add"));
    if saturate && accumulate {
        return Err("it has both .sat and .add".into());
    }
    let count = 32 / bits;
    let mask = numbers(selector(i, 0), count, (0..count).rev().collect())?;
    let chosen_a = numbers(selector(i, 1), 2 * count, (0..count).rev().collect())?;
    let chosen_b = numbers(selector(i, 2), 2 * count, (count..2 * count).rev().collect())?;
    let is_mask = mask.windows(2).all(|pair| pair[0] > pair[1]) && mask.iter().all(|n| *n < count);
    if !is_mask || chosen_a.len() != count as usize || chosen_b.len() != count as usize {
        return Err("its selectors are invalid".into());
    }
    let operation = operation(i)?;
    let (least, most) = bounds(bits, is_signed(d_type));
    Ok(Alu::new(3, move |s| {
        let both = low(32, s[0]) | s[1] << 32;
        // The first digit of a selector is for the highest number.
        let number = |chosen: &[u32], lane: u32, t: ScalarType| {
            extended(both, (chosen[(count - 1 - lane) as usize] * bits, bits), is_signed(t))
        };
        let result = |lane: u32| {
            let value = operation(number(&chosen_a, lane, a_type), number(&chosen_b, lane, b_type));
            if saturate { value.clamp(least, most) } else { value }
        };
        if accumulate {
            return low(32, mask.iter().fold(s[2], |sum, &lane| sum.wrapping_add(result(lane) as u64)));
        }
        mask.iter().fold(low(32, s[2]), |all, &lane| merged(result(lane), (lane * bits, bits), all))
    }))
}

/// The numbers in a selector such as `h10` or `b7654`, in the order written.
fn numbers(selector: Option<&str>, count: u32, otherwise: Vec<u32>) -> Result<Vec<u32>, String> {
    let Some(selector) = selector else { return Ok(otherwise) };
    let letter = if otherwise.len() == 4 { 'b' } else { 'h' };
    let digits = selector.strip_prefix(letter).filter(|digits| !digits.is_empty());
    let found: Option<Vec<u32>> =
        digits.and_then(|digits| digits.chars().map(|c| c.to_digit(10).filter(|n| *n < count)).collect());
    found.ok_or_else(|| format!("it selects .{selector}"))
}
