//! Registers that never hold a subnormal f32, so that an instruction with `.ftz` need not flush
//! them again.

use crate::fixpoint;
use crate::program::{Inst, Opnd, Program};
use atoll_ptx::{Immediate, ScalarType};

/// One flag per register. The analysis is optimistic: a register counts as flushed unless one of
/// its definitions is not flushed, or depends on a register that is not flushed.
pub fn flushed_registers(program: &Program) -> Vec<bool> {
    let mut flushed = vec![true; program.regs.len()];
    fixpoint::iterate(program, |inst| {
        let mut changed = false;
        if !result_is_flushed(inst, &flushed) {
            inst.defs().into_iter().for_each(|reg| changed |= std::mem::replace(&mut flushed[reg], false));
        }
        changed
    });
    flushed
}

fn result_is_flushed(inst: &Inst, flushed: &[bool]) -> bool {
    let operand = |o: &Opnd| match o {
        Opnd::Reg(reg) => flushed[*reg],
        Opnd::Imm(Immediate::F32(bits)) => !f32::from_bits(*bits).is_subnormal(),
        _ => false,
    };
    let types: Vec<ScalarType> = inst.form.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
    match (inst.form.opcode.as_str(), types.as_slice()) {
        ("add" | "sub" | "mul" | "mad" | "fma" | "div" | "rcp" | "sqrt" | "rsqrt", [ScalarType::F32]) => {
            inst.has("ftz")
        }
        ("ex2" | "lg2" | "sin" | "cos" | "min" | "max" | "abs" | "neg", [ScalarType::F32]) => inst.has("ftz"),
        // Every nonzero value of the other types is a normal f32.
        ("cvt", [ScalarType::F32, from]) => {
            inst.has("ftz") || !matches!(from, ScalarType::F32 | ScalarType::F64 | ScalarType::Bf16)
        }
        ("mov", [_]) => inst.ops.len() == 2 && operand(&inst.ops[1]),
        ("selp", [_]) => inst.ops.len() == 4 && operand(&inst.ops[1]) && operand(&inst.ops[2]),
        _ => false,
    }
}
