//! Packed arithmetic: the scalar instruction on each half of a register.

use super::{Alu, Decoded};
use atoll_ptx::{Instruction, Name};

/// Packed types, with the type of a half and its width in bits.
const PACKED: [(&str, &str, u32); 5] =
    [("f16x2", "f16", 16), ("bf16x2", "bf16", 16), ("u16x2", "u16", 16), ("s16x2", "s16", 16), ("f32x2", "f32", 32)];

pub(super) fn decode(i: &Instruction) -> Decoded {
    if i.opcode == "cvt" {
        return Ok(None);
    }
    let Some(&(packed, half, bits)) = PACKED.iter().find(|(name, ..)| i.modifiers.last().is_some_and(|m| m == name))
    else {
        return Ok(None);
    };
    let mut scalar = i.clone();
    scalar.modifiers.iter_mut().filter(|m| *m == packed).for_each(|m| *m = Name::new(half));
    let Some(alu) = super::decode(&scalar)? else { return Ok(None) };
    if alu.carry_in || alu.carry_out {
        return Err(format!("carry chains of .{packed} are not supported"));
    }
    let (function, sources) = (alu.function, alu.sources);
    let halves = move |s: &[u64]| -> [[u64; 2]; 2] {
        let mask = (1 << bits) - 1;
        let part = |half: u32| -> [u64; 2] {
            let values: Vec<u64> = s.iter().map(|v| v >> (bits * half) & mask).collect();
            function(&values)
        };
        [part(0), part(1)]
    };
    if i.opcode == "setp" {
        if sources > 2 {
            return Err(format!("setp.{packed} with a third predicate is not supported"));
        }
        return Ok(Some(Alu::pair(sources, move |s| halves(s).map(|half| half[0]))));
    }
    if i.opcode == "set" && sources > 2 {
        return Err(format!("set.{packed} with a third predicate is not supported"));
    }
    Ok(Some(Alu::new(sources, move |s| {
        let [[first, _], [second, _]] = halves(s);
        super::low(bits, first) | super::low(bits, second) << bits
    })))
}
