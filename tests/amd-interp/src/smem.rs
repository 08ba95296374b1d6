//! Loads through the scalar cache.

use crate::access::ScalarLoad as Load;
use crate::fault::FaultKind;
use crate::op::{Inst, Machine};
use crate::operand::{Kind, Operand, Ty};
use crate::wave::unsupported;

/// The load that a mnemonic names.
pub(crate) fn find(mnemonic: &str) -> Option<Load> {
    let (name, buffer) = match mnemonic.strip_prefix("s_buffer_load_") {
        Some(name) => (name, true),
        None => (mnemonic.strip_prefix("s_load_")?, false),
    };
    let (bytes, signed) = match name {
        "dword" | "b32" => (4, false),
        "dwordx2" | "b64" => (8, false),
        "b96" => (12, false),
        "dwordx4" | "b128" => (16, false),
        "dwordx8" | "b256" => (32, false),
        "dwordx16" | "b512" => (64, false),
        "u8" => (1, false),
        "i8" => (1, true),
        "u16" => (2, false),
        "i16" => (2, true),
        _ => return None,
    };
    Some(Load { bytes, signed, buffer })
}

fn first(operand: &Operand) -> Result<u8, FaultKind> {
    match operand.kind {
        Kind::Scalar { first, .. } => Ok(first),
        _ => unsupported("this operand of a scalar load"),
    }
}

/// Executes a scalar load.
pub(crate) fn execute(machine: &mut Machine, inst: &Inst, load: Load) -> Result<(), FaultKind> {
    let base = inst.operand(1)?;
    let (base, limit) = if load.buffer {
        let first = first(base)?;
        let word = |at| machine.wave.scalar_word(first + at).map(u64::from);
        (word(0)? | (word(1)? & 0xffff) << 32, Some(word(2)?))
    } else {
        (machine.wave.uniform(base, Ty::B64)?, None)
    };
    let scalar = match inst.operand(2)?.kind {
        Kind::Scalar { .. } | Kind::Null => machine.wave.uniform(inst.operand(2)?, Ty::B32)?,
        // A constant offset may be negative; LLVM prints it with its sign.
        Kind::Int(value) => value as u64,
        Kind::Literal(value) => value,
        _ => return unsupported("this offset of a scalar load"),
    };
    let offset = scalar.wrapping_add(inst.mods.offset as u64);
    let align = if load.bytes < 4 { !0 } else { !3 };
    let address = base.wrapping_add(offset) & align;
    let mut bytes = [0u8; 64];
    let bytes = &mut bytes[..load.bytes as usize];
    if limit.is_none_or(|l| offset.saturating_add(load.bytes.into()) <= l) {
        machine.memory.read(address, bytes)?;
    }
    let register = first(inst.operand(0)?)?;
    if load.bytes < 4 {
        let value = match (load.bytes, load.signed) {
            (1, true) => bytes[0] as i8 as u32,
            (1, false) => bytes[0].into(),
            (_, true) => i16::from_le_bytes([bytes[0], bytes[1]]) as u32,
            (_, false) => u16::from_le_bytes([bytes[0], bytes[1]]).into(),
        };
        return machine.wave.set_uniform(inst.operand(0)?, value.into(), Ty::B32);
    }
    for (at, chunk) in bytes.chunks_exact(4).enumerate() {
        let value = u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        let operand = Operand::plain(Kind::Scalar { first: register + at as u8, count: 1 });
        machine.wave.set_uniform(&operand, value.into(), Ty::B32)?;
    }
    Ok(())
}
