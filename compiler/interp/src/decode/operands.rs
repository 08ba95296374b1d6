//! Resolves operands.

use super::Decoder;
use crate::memory::CODE_WINDOW;
use crate::op::{Addr, Dst, LaneMask, Space, Special, Src};
use crate::symbols::immediate_bits;
use atoll_ptx::analysis::StatementId;
use atoll_ptx::{
    Address, AddressBase, Instruction, Name, Operand, ScalarType, StateSpace, Variable, is_special_register,
};

/// A register operand.
#[derive(Clone, Copy)]
pub(super) struct Register {
    pub(super) slot: u32,
    pub(super) ty: ScalarType,
}

impl Decoder<'_> {
    /// The register of a name, including its component; `None` if the name is not a register.
    pub(super) fn register(&self, id: StatementId, name: &str) -> Result<Option<Register>, String> {
        let Some(register) = self.code.register_at(id, name) else { return Ok(None) };
        let declared = self.code.register(register);
        let words = declared.ty.bytes().div_ceil(8);
        let index = match name.split_once('.').map(|(_, component)| component) {
            None if declared.vector.is_some() => return Err(format!("`{name}` is a vector of registers")),
            None => 0,
            Some(component) if declared.vector.is_none() => {
                return Err(format!("`{name}` has no .{component}: it is not a vector"));
            }
            Some("x" | "r") => 0,
            Some("y" | "g") => 1,
            Some("z" | "b") => 2,
            Some("w" | "a") => 3,
            Some(component) => return Err(format!("component .{component} is not supported")),
        };
        if index >= u32::from(declared.vector.unwrap_or(1)) {
            return Err(format!("`{name}` exceeds the vector of its register"));
        }
        Ok(Some(Register { slot: self.slots[register.index()] + index * words, ty: declared.ty }))
    }

    /// The elements of an operand: those of `{a, b}`, of a vector register or special register, or
    /// the operand itself.
    pub(super) fn parts(&self, id: StatementId, operand: &Operand) -> Vec<Operand> {
        let of_name = |name: &Name| {
            let declared = self.code.register_at(id, name).and_then(|register| self.code.register(register).vector);
            let width = declared.map(usize::from).or_else(|| is_vector_of_axes(name).then_some(4))?;
            let element = |letter: &&str| Operand::Name(Name::new(format!("{name}.{letter}")));
            (!name.contains('.')).then(|| ["x", "y", "z", "w"].iter().take(width).map(element).collect())
        };
        match operand {
            Operand::Vector(parts) => parts.clone(),
            Operand::Name(name) => of_name(name).unwrap_or_else(|| vec![operand.clone()]),
            _ => vec![operand.clone()],
        }
    }

    /// The width of a register or special register in bits.
    pub(super) fn width_of(&self, id: StatementId, operand: &Operand) -> Option<u32> {
        let Operand::Name(name) = operand else { return None };
        let register = self.code.register_at(id, name).map(|register| self.code.register(register).ty.bits());
        register.or_else(|| is_special_register(name).then_some(32))
    }

    /// The slot of a predicate register.
    pub(crate) fn predicate(&self, id: StatementId, name: &str) -> Result<u32, String> {
        let register = self.register(id, name)?.filter(|r| r.ty == ScalarType::Pred);
        register.map(|r| r.slot).ok_or_else(|| format!("`{name}` is not a predicate register"))
    }

    /// The register to write; `None` for `_`.
    pub(super) fn destination(&self, id: StatementId, operand: &Operand) -> Result<Option<Dst>, String> {
        match operand {
            Operand::Sink => Ok(None),
            Operand::Name(name) => {
                let register = self.register(id, name)?.ok_or_else(|| format!("`{name}` is not a register"))?;
                Ok(Some(Dst { slot: register.slot, bits: register.ty.bits() }))
            }
            _ => Err("its destination is not supported".into()),
        }
    }

    /// The source of a value; literals have the type `ty`.
    pub(super) fn source(&self, id: StatementId, operand: &Operand, ty: ScalarType) -> Result<Src, String> {
        match operand {
            Operand::Immediate(immediate) => {
                Ok(Src::Imm(crate::alu::low(ty.bits().min(64), immediate_bits(*immediate, ty))))
            }
            Operand::Not(name) => Ok(Src::Not(self.predicate(id, name)?)),
            Operand::Name(name) => self.named(id, name, 0),
            Operand::NameOffset(name, offset) => self.named(id, name, *offset),
            _ => Err("one of its sources is not supported".into()),
        }
    }

    fn named(&self, id: StatementId, name: &str, offset: i64) -> Result<Src, String> {
        if let Some(register) = self.register(id, name)? {
            return if offset == 0 {
                Ok(Src::Reg(register.slot))
            } else {
                Err("a register with an offset is not a value".into())
            };
        }
        if is_special_register(name) {
            return special(name);
        }
        if let Some(variable) = self.variable(id, name) {
            return self.variable_address(variable, offset);
        }
        let function = self.symbols.function(name).ok_or_else(|| match self.symbols.is_texture(name) {
            true => format!("`{name}` is a texture, sampler or surface, which are not supported"),
            false => format!("unknown name `{name}`"),
        })?;
        Ok(Src::Imm(CODE_WINDOW + function as u64))
    }

    pub(super) fn variable(&self, id: StatementId, name: &str) -> Option<&Variable> {
        self.code.variable_at(id, name).or_else(|| self.symbols.variable(name))
    }

    fn variable_address(&self, variable: &Variable, offset: i64) -> Result<Src, String> {
        let at = |base: u64| base.wrapping_add_signed(offset);
        match variable.space {
            StateSpace::Local | StateSpace::Param => {
                let place = self.frame.place(variable).ok_or_else(|| format!("`{}` has no address", variable.name))?;
                Ok(if variable.space == StateSpace::Local {
                    Src::Local(at(place.into()))
                } else {
                    Src::Imm(at(place.into()))
                })
            }
            _ => {
                let address =
                    self.symbols.address(variable).ok_or_else(|| format!("`{}` has no address", variable.name))?;
                Ok(Src::Imm(at(address)))
            }
        }
    }

    /// The memory operand of an instruction.
    pub(super) fn address(&self, id: StatementId, i: &Instruction, operand: &Operand) -> Result<Addr, String> {
        self.address_in(id, space_of(i.space())?, operand)
    }

    pub(super) fn address_in(&self, id: StatementId, space: Space, operand: &Operand) -> Result<Addr, String> {
        let Operand::Address(Address { base, offset }) = operand else {
            return Err("its address is not supported".into());
        };
        let (base, short) = match base {
            AddressBase::Absolute(address) => (Src::Imm(*address), false),
            AddressBase::Name(name) => {
                let short = self.register(id, name)?.is_some_and(|r| r.ty.bits() == 32);
                (self.named(id, name, 0)?, short)
            }
        };
        Ok(Addr { space, base, offset: *offset, short })
    }
}

/// The state space of an access; none means generic.
pub(super) fn space_of(space: Option<StateSpace>) -> Result<Space, String> {
    Ok(match space {
        None => Space::Generic,
        Some(StateSpace::Global) => Space::Global,
        Some(StateSpace::Shared) => Space::Shared,
        Some(StateSpace::Local) => Space::Local,
        Some(StateSpace::Const) => Space::Const,
        Some(StateSpace::Param) => Space::Param,
        Some(other) => return Err(format!("space .{other} is not supported")),
    })
}

/// Whether a special register is a vector with one element per axis.
fn is_vector_of_axes(name: &str) -> bool {
    matches!(name, "%tid" | "%ntid" | "%ctaid" | "%nctaid")
}

fn special(name: &str) -> Result<Src, String> {
    if is_vector_of_axes(name) {
        return Err(format!("`{name}` is a vector"));
    }
    let (base, component) = name.split_once('.').unwrap_or((name, "x"));
    let axis = match component {
        "x" => 0,
        "y" => 1,
        "z" => 2,
        "w" if is_vector_of_axes(base) => return Ok(Src::Imm(0)),
        _ => return Err(format!("`{name}` is not supported")),
    };
    let special = match base {
        "%tid" => Special::Tid(axis),
        "%ntid" => Special::Ntid(axis),
        "%ctaid" => Special::Ctaid(axis),
        "%nctaid" => Special::Nctaid(axis),
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%nwarpid" => Special::WarpCount,
        "%lanemask_eq" => Special::LaneMask(LaneMask::Equal),
        "%lanemask_lt" => Special::LaneMask(LaneMask::Less),
        "%lanemask_le" => Special::LaneMask(LaneMask::LessOrEqual),
        "%lanemask_gt" => Special::LaneMask(LaneMask::Greater),
        "%lanemask_ge" => Special::LaneMask(LaneMask::GreaterOrEqual),
        "%clock" | "%clock64" | "%globaltimer" | "%globaltimer_lo" => Special::Clock,
        "%clock_hi" | "%globaltimer_hi" => Special::ClockHigh,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        // There is one multiprocessor and one grid, and there are no clusters.
        "%smid" | "%gridid" | "%is_explicit_cluster" => return Ok(Src::Imm(0)),
        "%nsmid" => return Ok(Src::Imm(1)),
        _ => return Err(format!("`{name}` is not supported")),
    };
    Ok(Src::Special(special))
}
