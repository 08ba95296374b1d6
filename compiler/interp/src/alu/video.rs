//! The older instructions on two or four numbers in a register: `vadd2`, `vadd4` and their like, without selections.

use super::{Alu, Decoded, int, is_signed, low, only};
use atoll_ptx::{Instruction, ScalarType};

pub(super) fn decode(i: &Instruction) -> Decoded {
    let (name, bits) = match (i.opcode.strip_suffix('2'), i.opcode.strip_suffix('4')) {
        (Some(name), _) => (name, 16),
        (_, Some(name)) => (name, 8),
        _ => return Ok(None),
    };
    let operation: fn(i128, i128) -> i128 = match name {
        "vadd" => |a, b| a + b,
        "vsub" => |a, b| a - b,
        "vabsdiff" => |a, b| (a - b).abs(),
        "vmin" => i128::min,
        "vmax" => i128::max,
        _ => return Ok(None),
    };
    only(i, &["sat", "add"])?;
    let types: Vec<ScalarType> = i.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
    let &[to, a_type, b_type] = types.as_slice() else { return Err("it needs three types".into()) };
    let (saturate, accumulate) = (i.has("sat"), i.has("add"));
    let (least, most) = if is_signed(to) { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) };
    let part = move |t: ScalarType, value: u64, at: u32| -> i128 {
        let raw = low(bits, value >> at);
        // Sign-extended from its own highest bit.
        if is_signed(t) { int(ScalarType::S64, raw << (64 - bits)) >> (64 - bits) } else { raw.into() }
    };
    Ok(Some(Alu::new(3, move |s| {
        let result = |at: u32| {
            let value = operation(part(a_type, s[0], at), part(b_type, s[1], at));
            if saturate { value.clamp(least, most) } else { value }
        };
        let places = (0..32).step_by(bits as usize);
        if accumulate {
            return low(32, places.fold(s[2], |sum, at| sum.wrapping_add(result(at) as u64)));
        }
        places.fold(0, |all, at| all | low(bits, result(at) as u64) << at)
    })))
}
