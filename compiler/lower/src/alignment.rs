//! Low bits of registers that are known to be zero: most accesses then need no alignment check at
//! run time.
//!
//! An address is usually a parameter plus multiples of the element size. A register is therefore
//! described as *an optional parameter plus a multiple of a power of two*. Whether an access
//! through it is aligned then depends only on the parameter, which is constant during a launch, or
//! is known at compile time.

use crate::fixpoint;
use crate::program::{Inst, LOCAL_ZEROS, Opnd, Program, Reg, Special, Symbol, elem_of};
use crate::shape::BlockShape;
use atoll_ptx::{Immediate, StateSpace};

/// Larger powers of two are not tracked: no access is larger than 64 bytes.
const ZEROS_MAX: u32 = 6;

/// A value is `root + n · 2^zeros` for some `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Offset of the parameter; `None` if there is none (0).
    pub root: Option<u32>,
    /// Exponent of the power of two that divides the rest.
    pub zeros: u32,
}

impl Alignment {
    const NOTHING: Alignment = Alignment { root: None, zeros: 0 };

    fn multiple_of(value: i128) -> Alignment {
        Alignment { root: None, zeros: value.trailing_zeros().min(ZEROS_MAX) }
    }

    /// Number of low bits that are certainly zero.
    fn known_zeros(self) -> u32 {
        if self.root.is_none() { self.zeros } else { 0 }
    }

    fn plus(self, other: Alignment) -> Alignment {
        match (self.root, other.root) {
            (Some(_), Some(_)) => Alignment::NOTHING,
            (root, other_root) => Alignment { root: root.or(other_root), zeros: self.zeros.min(other.zeros) },
        }
    }

    fn times(self, other: Alignment) -> Alignment {
        Alignment { root: None, zeros: (self.known_zeros() + other.known_zeros()).min(ZEROS_MAX) }
    }

    fn or_else(self, other: Alignment) -> Alignment {
        let zeros = self.zeros.min(other.zeros);
        if self.root == other.root { Alignment { root: self.root, zeros } } else { Alignment::NOTHING }
    }
}

/// The alignment of every register.
#[derive(Debug)]
pub struct Alignments {
    registers: Vec<Option<Alignment>>,
    block: BlockShape,
}

impl Alignments {
    /// Iterates over all registers to a fixpoint; the information about a register only ever
    /// shrinks.
    pub fn of(program: &Program, block: BlockShape) -> Alignments {
        let mut found = Alignments { registers: vec![None; program.regs.len()], block };
        fixpoint::iterate(program, |inst| found.update(inst));
        found
    }

    /// The alignment of an operand.
    pub fn of_operand(&self, operand: &Opnd) -> Alignment {
        self.operand(operand).unwrap_or(Alignment::NOTHING)
    }

    fn update(&mut self, inst: &Inst) -> bool {
        let defs = inst.defs();
        let result = match defs[..] {
            [] => return false,
            [_] => self.result(inst),
            _ => Some(Alignment::NOTHING),
        };
        let Some(result) = result else { return false };
        let mut changed = false;
        for reg in defs {
            changed |= self.lower(reg, result);
        }
        changed
    }

    fn lower(&mut self, reg: Reg, result: Alignment) -> bool {
        let new = self.registers[reg].map_or(result, |old| old.or_else(result));
        self.registers[reg].replace(new) != Some(new)
    }

    /// `None` while the operand has not been reached yet.
    fn operand(&self, operand: &Opnd) -> Option<Alignment> {
        Some(match operand {
            Opnd::Reg(reg) => return self.registers[*reg],
            Opnd::Imm(Immediate::Int(value)) => Alignment::multiple_of(*value),
            Opnd::Symbol(Symbol::Shared(at) | Symbol::Dynamic(at) | Symbol::Local(at) | Symbol::Param(at)) => {
                Alignment::multiple_of(i128::from(*at) | 16)
            }
            Opnd::Symbol(Symbol::Global(_, at)) => Alignment::multiple_of(i128::from(*at) | 16),
            Opnd::Special(Special::Ntid(axis)) => Alignment::multiple_of(self.block.dims[*axis].into()),
            _ => Alignment::NOTHING,
        })
    }

    fn result(&self, inst: &Inst) -> Option<Alignment> {
        let source = |index: usize| inst.ops.get(index).map_or(Some(Alignment::NOTHING), |o| self.operand(o));
        let is_integer = inst
            .form
            .ty()
            .is_some_and(|ty| !elem_of(ty).is_float() && !inst.form.modifiers.iter().any(|m| m.contains('x')));
        if inst.form.opcode == "ld" {
            return Some(parameter(inst).unwrap_or(Alignment::NOTHING));
        }
        if !is_integer || inst.has("sat") || inst.has("hi") {
            return Some(Alignment::NOTHING);
        }
        Some(match inst.form.opcode.as_str() {
            "mov" => source(1)?,
            "cvta" => {
                let value = source(1)?;
                let is_local = inst.form.space() == Some(StateSpace::Local);
                if is_local { Alignment { zeros: value.zeros.min(LOCAL_ZEROS), ..value } } else { value }
            }
            "cvt" if integers_only(inst) => source(1)?,
            "add" | "or" | "xor" => source(1)?.plus(source(2)?),
            "sub" => match (source(1)?, source(2)?) {
                (a, b) if b.root.is_none() => a.plus(b),
                _ => Alignment::NOTHING,
            },
            "mul" => source(1)?.times(source(2)?),
            "mad" => source(1)?.times(source(2)?).plus(source(3)?),
            "shl" => shifted(source(1)?, inst.ops.get(2)),
            "and" => Alignment { root: None, zeros: source(1)?.known_zeros().max(source(2)?.known_zeros()) },
            "selp" => source(1)?.or_else(source(2)?),
            "min" | "max" => source(1)?.or_else(source(2)?),
            _ => Alignment::NOTHING,
        })
    }
}

/// A load of a whole parameter.
fn parameter(inst: &Inst) -> Option<Alignment> {
    let Some(Opnd::Addr(base, offset)) = inst.ops.get(1) else { return None };
    let Opnd::Symbol(Symbol::Param(at)) = **base else { return None };
    let root = u32::try_from(i64::from(at) + offset).ok()?;
    Some(Alignment { root: Some(root), zeros: ZEROS_MAX })
}

/// Whether a `cvt` converts integers to integers and therefore keeps the low bits.
fn integers_only(inst: &Inst) -> bool {
    inst.form
        .modifiers
        .iter()
        .filter_map(|m| atoll_ptx::ScalarType::from_name(m))
        .all(|ty| !elem_of(ty).is_float() && ty.bits() >= 8)
}

fn shifted(value: Alignment, by: Option<&Opnd>) -> Alignment {
    let by = match by {
        Some(Opnd::Imm(Immediate::Int(by))) => u32::try_from(*by).unwrap_or(ZEROS_MAX).min(ZEROS_MAX),
        _ => 0,
    };
    Alignment { root: None, zeros: (value.known_zeros() + by).min(ZEROS_MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, address: &str) -> Alignment {
        let text = format!(
            ".version 7.0\n.target sm_80\n.address_size 64\n\
             .visible .entry k(.param .u64 p, .param .u64 q, .param .u32 n) {{\n\
             .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<3>;\n\
             ld.param.u64 %d0, [p]; ld.param.u64 %d1, [q]; ld.param.u32 %r0, [n];\n\
             mov.u32 %r1, %tid.x;\n{text}\nret;\n}}"
        );
        let module = atoll_ptx::parse(&text).unwrap();
        let program = crate::read::read_kernel(&module, module.kernels().next().unwrap(), true, "test").unwrap();
        let reg = program.regs.iter().position(|r| r.name == address).unwrap();
        Alignments::of(&program, BlockShape { dims: [48, 1, 1] }).of_operand(&Opnd::Reg(reg))
    }

    #[test]
    fn addresses_are_a_parameter_plus_multiples() {
        let rooted = |zeros| Alignment { root: Some(0), zeros };
        let plain = |zeros| Alignment { root: None, zeros };
        for (text, expected) in [
            ("mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d0, %d2;", rooted(2)),
            ("cvta.to.global.u64 %d2, %d0; mad.wide.s32 %d3, %r1, 16, %d2;", rooted(4)),
            ("shl.b32 %r2, %r1, 3; cvt.u64.u32 %d2, %r2; add.s64 %d3, %d2, %d0;", rooted(3)),
            ("mul.lo.u32 %r2, %r0, %r1; mul.wide.u32 %d2, %r2, 8; sub.s64 %d3, %d0, %d2;", rooted(3)),
            ("add.s64 %d3, %d0, %d1;", plain(0)),
            ("mov.u32 %r2, %ntid.x; mul.wide.u32 %d3, %r2, %r1;", plain(4)),
            ("and.b64 %d3, %d0, -16;", plain(4)),
            ("ld.global.u64 %d3, [%d0];", plain(0)),
            ("setp.eq.u32 %p1, %r0, 0; add.s64 %d2, %d0, 12; selp.b64 %d3, %d0, %d2, %p1;", rooted(2)),
            ("mov.u64 %d3, %d0; $L: add.s64 %d3, %d3, 8; setp.ne.u32 %p1, %r0, %r1; @%p1 bra $L;", rooted(3)),
            ("mul.hi.u64 %d3, %d0, 16;", plain(0)),
        ] {
            assert_eq!(of(text, "%d3"), expected, "{text}");
        }
    }
}
