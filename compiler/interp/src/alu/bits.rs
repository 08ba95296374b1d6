//! Bit operations: logic, shifts, fields, counting, permutation, selection.

use super::{Alu, Decoded, int, is_signed, low, only, ty};
use atoll_ptx::{Instruction, ScalarType};

pub(super) fn decode(i: &Instruction) -> Decoded {
    let opcode = i.opcode.as_str();
    let alu = match opcode {
        "and" | "or" | "xor" | "not" | "cnot" | "lop3" => logic(i)?,
        "shl" | "shr" => shift(i)?,
        "shf" => funnel(i)?,
        "popc" | "clz" | "brev" | "bfind" | "fns" => count(i)?,
        "bfe" | "bfi" | "szext" | "bmsk" => field(i)?,
        "prmt" => permute(i)?,
        "selp" => {
            only(i, &[])?;
            Alu::new(3, |s| if s[2] != 0 { s[0] } else { s[1] })
        }
        "slct" => select_by_sign(i)?,
        _ => return Ok(None),
    };
    Ok(Some(alu))
}

fn logic(i: &Instruction) -> Result<Alu, String> {
    if i.opcode == "lop3" {
        return lop3(i);
    }
    only(i, &[])?;
    let bits = ty(i)?.bits();
    Ok(match i.opcode.as_str() {
        "and" => Alu::new(2, |s| s[0] & s[1]),
        "or" => Alu::new(2, |s| s[0] | s[1]),
        "xor" => Alu::new(2, |s| s[0] ^ s[1]),
        "not" => Alu::new(1, move |s| low(bits, !s[0])),
        _ => Alu::new(1, move |s| u64::from(low(bits, s[0]) == 0)),
    })
}

/// `lop3.b32 d, a, b, c, table` and `lop3.{and,or}.b32 d|p, a, b, c, table, q`.
fn lop3(i: &Instruction) -> Result<Alu, String> {
    only(i, &["and", "or"])?;
    let combine = i.modifiers.iter().find(|m| *m == "and" || *m == "or").map(|m| m == "and");
    let table = |s: &[u64]| -> u64 {
        (0..8).filter(|row| s[3] >> row & 1 == 1).fold(0, |bits, row| {
            let term = |value: u64, bit: u64| if row >> bit & 1 == 1 { value } else { !value };
            bits | low(32, term(s[0], 2) & term(s[1], 1) & term(s[2], 0))
        })
    };
    Ok(match combine {
        None => Alu::new(4, table),
        Some(and) => Alu::pair(5, move |s| {
            let value = table(s);
            let set = u64::from(value != 0);
            [value, if and { set & s[4] } else { set | s[4] }]
        }),
    })
}

/// A shift by at least the width shifts out all bits.
fn shift(i: &Instruction) -> Result<Alu, String> {
    only(i, &[])?;
    let t = ty(i)?;
    let left = i.opcode == "shl";
    Ok(Alu::new(2, move |s| {
        let by = low(32, s[1]).min(u64::from(t.bits()));
        if left { low(t.bits(), (u128::from(s[0]) << by) as u64) } else { (int(t, s[0]) >> by) as u64 }
    }))
}

/// `shf`: the upper (`.l`) or lower (`.r`) word of a shifted 64-bit pair; the second source is its
/// high word.
fn funnel(i: &Instruction) -> Result<Alu, String> {
    only(i, &["l", "r", "clamp", "wrap"])?;
    let (left, clamp) = (i.has("l"), i.has("clamp"));
    Ok(Alu::new(3, move |s| {
        let pair = s[1] << 32 | low(32, s[0]);
        let by = if clamp { low(32, s[2]).min(32) } else { s[2] & 31 };
        if left { low(32, ((u128::from(pair) << by) >> 32) as u64) } else { low(32, pair >> by) }
    }))
}

fn count(i: &Instruction) -> Result<Alu, String> {
    only(i, &["shiftamt"])?;
    let t = ty(i)?;
    let bits = t.bits();
    Ok(match i.opcode.as_str() {
        "popc" => Alu::new(1, move |s| low(bits, s[0]).count_ones().into()),
        "clz" => Alu::new(1, move |s| u64::from(low(bits, s[0]).leading_zeros() + bits - 64)),
        "brev" => Alu::new(1, move |s| low(bits, s[0]).reverse_bits() >> (64 - bits)),
        "bfind" => {
            let amount = i.has("shiftamt");
            Alu::new(1, move |s| find_highest(t, s[0], amount))
        }
        _ => Alu::new(3, |s| find_nth_set(s[0] as u32, s[1] as u32, s[2] as i32).into()),
    })
}

/// The position of the highest bit that differs from the sign; all ones if there is none.
fn find_highest(t: ScalarType, value: u64, amount: bool) -> u64 {
    let value = int(t, value);
    let magnitude = (if value < 0 { !value } else { value }) as u128;
    if magnitude == 0 {
        return 0xffff_ffff;
    }
    let place = 127 - magnitude.leading_zeros();
    u64::from(if amount { t.bits() - 1 - place } else { place })
}

/// `fns`: the `|offset|`-th set bit from `base`, upwards or downwards; for offset 0, the bit at
/// `base` if it is set.
fn find_nth_set(mask: u32, base: u32, offset: i32) -> u32 {
    let is_set = |bit: &u32| mask >> bit & 1 == 1;
    let nth = offset.unsigned_abs().saturating_sub(1) as usize;
    let found = match offset {
        _ if base > 31 => None,
        0 => Some(base).filter(is_set),
        1.. => (base..32).filter(is_set).nth(nth),
        _ => (0..=base).rev().filter(is_set).nth(nth),
    };
    found.unwrap_or(u32::MAX)
}

fn field(i: &Instruction) -> Result<Alu, String> {
    only(i, &["clamp", "wrap"])?;
    let t = ty(i)?;
    let (bits, wrap) = (t.bits(), i.has("wrap"));
    Ok(match i.opcode.as_str() {
        "bfe" => Alu::new(3, move |s| extract(t, s[0], s[1] & 0xff, s[2] & 0xff)),
        "bfi" => Alu::new(4, move |s| {
            let (at, length) = (s[2] & 0xff, s[3] & 0xff);
            let inside = |bit: u64| bit >= at && bit - at < length;
            (0..u64::from(bits)).fold(s[1], |out, bit| {
                if inside(bit) { out & !(1 << bit) | (s[0] >> (bit - at) & 1) << bit } else { out }
            })
        }),
        "szext" => Alu::new(2, move |s| {
            let length = if wrap { s[1] & 31 } else { low(32, s[1]).min(32) };
            extract(t, s[0], 0, length)
        }),
        _ => Alu::new(2, move |s| {
            let amount = |v: u64| if wrap { v & 31 } else { low(32, v).min(32) };
            let (at, length) = (amount(s[0]), amount(s[1]));
            low(32, ((1u64 << length) - 1) << at)
        }),
    })
}

/// The field of `length` bits at `at`. A signed field is extended with its highest bit, or with the
/// value's highest bit if the field reaches past the value.
fn extract(t: ScalarType, value: u64, at: u64, length: u64) -> u64 {
    let bits = u64::from(t.bits());
    let bit = |place: u64| value >> place & 1;
    let sign = if !is_signed(t) || length == 0 { 0 } else { bit((at + length - 1).min(bits - 1)) };
    (0..bits).fold(0, |out, place| {
        let source = if place < length && at + place < bits { bit(at + place) } else { sign };
        out | source << place
    })
}

fn permute(i: &Instruction) -> Result<Alu, String> {
    only(i, &["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])?;
    let mode = i.modifiers.iter().find(|m| *m != "b32").map(ToString::to_string);
    Ok(Alu::new(3, move |s| {
        let pair = s[1] << 32 | low(32, s[0]);
        let byte = |index: u64| pair >> (8 * (index & 7)) & 0xff;
        let by = s[2] & 3;
        let pick = |place: u64| -> u64 {
            match mode.as_deref() {
                Some("f4e") => byte(by + place),
                Some("b4e") => byte(by.wrapping_sub(place)),
                Some("rc8") => byte(by),
                Some("ecl") => byte(place.max(by)),
                Some("ecr") => byte(place.min(by)),
                Some("rc16") => byte((by & 1) * 2 + (place & 1)),
                _ => {
                    let selector = s[2] >> (4 * place) & 15;
                    let value = byte(selector);
                    if selector & 8 == 0 { value } else { (value >> 7) * 0xff }
                }
            }
        };
        (0..4).fold(0, |out, place| out | pick(place) << (8 * place))
    }))
}

/// `slct.type.{s32,f32} d, a, b, c`: `a` if `c ≥ 0`, otherwise `b`. For floats, −0 is `≥ 0` and NaN
/// is not.
fn select_by_sign(i: &Instruction) -> Result<Alu, String> {
    only(i, &["ftz"])?;
    let (float, flush) = (ty(i)? == ScalarType::F32, i.has("ftz"));
    Ok(Alu::new(3, move |s| {
        let bits = if flush { crate::format::F32.flush(s[2]) } else { s[2] };
        let takes_first = if float { f32::from_bits(bits as u32) >= 0.0 } else { bits as i32 >= 0 };
        if takes_first { s[0] } else { s[1] }
    }))
}
