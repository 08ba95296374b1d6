//! Moves, loads, stores, atomics, copies and address conversion.

use super::Decoder;
use super::operands::space_of;
use crate::alu::Alu;
use crate::atomic::{Atomic, AtomicElement};
use crate::memory;
use crate::op::{Dst, Op, Space, Src};
use crate::symbols::window_of;
use atoll_ptx::analysis::StatementId;
use atoll_ptx::types::TypeClass;
use atoll_ptx::{Instruction, Operand, ScalarType, StateSpace};

/// Modifiers of loads and stores for memory ordering and caching, which have no effect here.
const ORDERING: &[&str] = &[
    "volatile", "relaxed", "acquire", "release", "acq_rel", "weak", "mmio", "cta", "gpu", "sys", "cluster", "nc", "ca",
    "cg", "cs", "lu", "cv", "wb", "wt", "noftz", "unified",
];

/// Prefixes of such modifiers that contain `::`.
const ORDERING_PREFIXES: &[&str] = &["L1::", "L2::", "level::"];

impl Decoder<'_> {
    pub(super) fn moves(&self, id: StatementId, i: &Instruction) -> Result<Option<Op>, String> {
        Ok(Some(match i.opcode.as_str() {
            "mov" => self.mov(id, i)?,
            "ld" | "ldu" => self.load(id, i)?,
            "st" => self.store(id, i)?,
            "cvta" => self.convert_address(id, i)?,
            "isspacep" => self.is_space(id, i)?,
            "atom" | "red" => Op::Atomic(Box::new(self.atomic(id, i)?)),
            "cp" => self.copy(id, i)?,
            "createpolicy" => self.policy(id, i)?,
            "fence" | "membar" | "prefetch" | "prefetchu" | "discard" | "applypriority" => Op::Nop,
            _ => return Ok(None),
        }))
    }

    fn mov(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let [to, from] = i.operands.as_slice() else { return Err("it needs two operands".into()) };
        let ty = i.ty().ok_or("its type is not supported")?;
        let (to_parts, from_parts) = (self.parts(id, to), self.parts(id, from));
        // `mov.v2.u32 {a, b}, {c, d}`: the type is the type of an element.
        let by_element = i.modifiers.iter().any(|m| m.starts_with('v'));
        if by_element && to_parts.len() != from_parts.len() || !by_element && to_parts.len() > 1 && from_parts.len() > 1
        {
            return Err("it moves vectors of different lengths, or needs .v2 or .v4".into());
        }
        let whole = if by_element { ty.bits() * to_parts.len() as u32 } else { ty.bits() };
        for parts in [&to_parts, &from_parts].into_iter().filter(|parts| parts.len() > 1) {
            let width = whole / parts.len() as u32;
            if parts.iter().filter_map(|part| self.width_of(id, part)).any(|bits| bits != width) {
                return Err("the width of a vector does not match the type".into());
            }
        }
        let mut dst = Vec::new();
        for part in &to_parts {
            let bits = whole / to_parts.len() as u32;
            dst.extend(words(bits).map(|(word, bits)| (part, word, bits)));
        }
        let dst = dst
            .into_iter()
            .map(|(part, word, bits)| Ok((self.destination(id, part)?.map(|d| at_word(d, word, bits)), bits)));
        let mut src = Vec::new();
        for part in &from_parts {
            let bits = whole / from_parts.len() as u32;
            let value = self.source(id, part, if from_parts.len() == 1 { ty } else { bits_type(bits) })?;
            src.extend(words(bits).map(|(word, bits)| (source_word(value, word), bits)));
        }
        Ok(Op::Move { src: src.into(), dst: dst.collect::<Result<Vec<_>, String>>()?.into() })
    }

    fn access(i: &Instruction) -> Result<ScalarType, String> {
        let known = |m: &str| {
            ScalarType::from_name(m).is_some()
                || ORDERING.contains(&m)
                || ORDERING_PREFIXES.iter().any(|p| m.starts_with(p))
                || matches!(m, "v2" | "v4" | "v8")
                || matches!(
                    m,
                    "global" | "shared" | "shared::cta" | "local" | "const" | "param" | "param::entry" | "param::func"
                )
        };
        if let Some(unknown) = i.modifiers.iter().find(|m| !known(m)) {
            return Err(format!("the modifier .{unknown} is not supported"));
        }
        i.ty().ok_or_else(|| "its type is not supported".into())
    }

    fn elements(&self, id: StatementId, i: &Instruction, operand: &Operand) -> Result<Vec<Operand>, String> {
        let count = i.modifiers.iter().find_map(|m| m.strip_prefix('v')?.parse().ok()).unwrap_or(1usize);
        let parts = self.parts(id, operand);
        if parts.len() == count {
            Ok(parts)
        } else {
            Err(format!("it needs {count} elements, {} are given", parts.len()))
        }
    }

    fn load(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let ty = Self::access(i)?;
        let [to, address, ..] = i.operands.as_slice() else { return Err("it needs two operands".into()) };
        let mut dst = Vec::new();
        for part in self.elements(id, i, to)? {
            let register = self.destination(id, &part)?;
            dst.extend(words(ty.bits()).map(|(word, bits)| register.map(|d| at_word(d, word, bits))));
        }
        let signed = ty.class() == TypeClass::Signed;
        Ok(Op::Load { addr: self.address(id, i, address)?, bits: ty.bits().min(64), signed, dst: dst.into() })
    }

    fn store(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let ty = Self::access(i)?;
        let [address, from, ..] = i.operands.as_slice() else { return Err("it needs two operands".into()) };
        let mut src = Vec::new();
        for part in self.elements(id, i, from)? {
            let value = self.source(id, &part, ty)?;
            src.extend(words(ty.bits()).map(|(word, _)| source_word(value, word)));
        }
        Ok(Op::Store { addr: self.address(id, i, address)?, bits: ty.bits().min(64), src: src.into() })
    }

    /// `cvta.space` makes an address generic; `cvta.to.space` does the opposite.
    fn convert_address(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let space = i.space().ok_or("it needs a space")?;
        let window = window_of(space);
        let window = if i.has("to") { window.wrapping_neg() } else { window };
        let [to, from] = i.operands.as_slice() else { return Err("it needs two operands".into()) };
        let src = [self.source(id, from, ScalarType::U64)?];
        let alu = Alu {
            function: Box::new(move |s| [s[0].wrapping_add(window), 0]),
            sources: 1,
            carry_in: false,
            carry_out: false,
        };
        Ok(Op::Alu { alu, src: src.into(), dst: [self.destination(id, to)?, None] })
    }

    fn is_space(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let space = i.space().ok_or("it needs a space")?;
        let [to, from] = i.operands.as_slice() else { return Err("it needs two operands".into()) };
        let wanted = window_of(space);
        // Kernel parameters count as global memory.
        let others = [StateSpace::Shared, StateSpace::Local, StateSpace::Const].map(window_of);
        let test = move |address: u64| {
            let window = memory::window(address);
            if wanted != 0 { window == wanted } else { !others.contains(&window) }
        };
        let src = [self.source(id, from, ScalarType::U64)?];
        let alu =
            Alu { function: Box::new(move |s| [test(s[0]).into(), 0]), sources: 1, carry_in: false, carry_out: false };
        Ok(Op::Alu { alu, src: src.into(), dst: [self.destination(id, to)?, None] })
    }

    fn atomic(&self, id: StatementId, i: &Instruction) -> Result<Atomic, String> {
        let (returns, rest) = match i.opcode.as_str() {
            "atom" => i.operands.split_first().map(|(d, rest)| (Some(d), rest)).ok_or("it needs operands")?,
            _ => (None, i.operands.as_slice()),
        };
        let [address, sources @ ..] = rest else { return Err("it needs an address".into()) };
        let (function, ty) = Atomic::function(i, ORDERING)?;
        // Operands after the values are cache policies.
        let sources =
            sources.get(..function.sources()).ok_or_else(|| format!("it needs {} values", function.sources()))?;
        let sources = sources.iter().map(|s| self.elements(id, i, s)).collect::<Result<Vec<_>, _>>()?;
        let targets = returns.map(|r| self.elements(id, i, r)).transpose()?;
        let mut elements = Vec::new();
        for at in 0..sources[0].len() {
            let mut src = Vec::new();
            for values in &sources {
                let value = self.source(id, &values[at], ty)?;
                src.push([value, if ty.bits() > 64 { source_word(value, 1) } else { Src::Imm(0) }]);
            }
            let dst = targets.as_ref().map_or(Ok(None), |targets| self.destination(id, &targets[at]))?;
            elements.push(AtomicElement { src, dst });
        }
        Ok(Atomic { addr: self.address(id, i, address)?, bits: ty.bits(), function, elements })
    }

    /// `createpolicy`: a cache hint without effect here; the value is arbitrary.
    fn policy(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        let to = i.operands.first().ok_or("it needs an operand")?;
        Ok(Op::Move { src: [(Src::Imm(0), 64)].into(), dst: [(self.destination(id, to)?, 64)].into() })
    }

    /// `cp.async`, which completes at once.
    fn copy(&self, id: StatementId, i: &Instruction) -> Result<Op, String> {
        if !i.has("async") || i.modifiers.iter().any(|m| matches!(m.as_str(), "bulk" | "mbarrier" | "reduce")) {
            return Err("cp.async with bulk or mbarriers is not supported".into());
        }
        if i.has("commit_group") || i.has("wait_group") || i.has("wait_all") {
            return Ok(Op::Nop);
        }
        let [to, from, Operand::Immediate(atoll_ptx::Immediate::Int(bytes)), rest @ ..] = i.operands.as_slice() else {
            return Err("it needs two addresses and a size".into());
        };
        let bytes =
            u32::try_from(*bytes).ok().filter(|b| matches!(b, 4 | 8 | 16)).ok_or("it must copy 4, 8 or 16 bytes")?;
        let (mut source_bytes, mut ignore) = (None, None);
        if let [extra, ..] = rest {
            let is_predicate = match extra {
                Operand::Name(name) => self.predicate(id, name).is_ok(),
                other => matches!(other, Operand::Not(_)),
            };
            let value = self.source(id, extra, ScalarType::U32)?;
            if is_predicate {
                ignore = Some(value);
            } else if !i.has("L2::cache_hint") || rest.len() > 1 {
                source_bytes = Some(value);
            }
        }
        let (to, from) =
            (self.address_in(id, Space::Shared, to)?, self.address_in(id, space_of(Some(StateSpace::Global))?, from)?);
        Ok(Op::Copy { to, from, bytes, source_bytes, ignore })
    }
}

/// The index and width of each 64-bit word of a value.
fn words(bits: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..bits.div_ceil(64)).map(move |word| (word, bits.min(64)))
}

/// One 64-bit word of a wider register.
fn at_word(register: Dst, word: u32, bits: u32) -> Dst {
    if register.bits > 64 { Dst { slot: register.slot + word, bits } } else { register }
}

fn source_word(value: Src, word: u32) -> Src {
    match value {
        Src::Reg(slot) => Src::Reg(slot + word),
        // A literal or an address has 64 bits.
        other if word == 0 => other,
        _ => Src::Imm(0),
    }
}

fn bits_type(bits: u32) -> ScalarType {
    match bits {
        8 => ScalarType::B8,
        16 => ScalarType::B16,
        32 => ScalarType::B32,
        _ => ScalarType::B64,
    }
}
