//! `.param` variables of functions: arguments and results of calls.
//!
//! A variable becomes registers, one per *piece*: bytes that the surrounding code accesses as a
//! whole. A uniform pointer therefore stays uniform across a call. A variable is placed in local
//! memory only if its address is taken.

use super::*;
use atoll_ptx::Role;

/// A `.param` variable.
#[derive(Clone, Debug)]
pub(super) struct Formal {
    pub(super) bytes: u32,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Pieces(Vec<Piece>),
    /// Offset in the thread's local memory.
    Local(u32),
}

/// Some bytes of a variable, held in a register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) at: u32,
    pub(super) bytes: u32,
    reg: Reg,
}

/// How a body accesses variables: offset and size of each access by name; `None` if the address is
/// used in any other way.
#[derive(Debug, Default)]
pub(super) struct Accesses(HashMap<Name, Option<Vec<(u32, u32)>>>);

impl Accesses {
    /// The accesses to the `.param` variables that a body itself declares.
    pub(super) fn of_declared(body: &Body) -> Accesses {
        let is_formal =
            |s: &atoll_ptx::Statement| matches!(&s.kind, StatementKind::Variable(v) if v.space == StateSpace::Param);
        if body.statements.iter().any(is_formal) { Accesses::of(body) } else { Accesses::default() }
    }

    /// All accesses of a body.
    pub(super) fn of(body: &Body) -> Accesses {
        let mut accesses = Accesses::default();
        accesses.walk(body);
        accesses
    }

    fn walk(&mut self, body: &Body) {
        for statement in &body.statements {
            match &statement.kind {
                StatementKind::Block(inner) => self.walk(inner),
                StatementKind::Instruction(instruction) => self.instruction(instruction),
                _ => {}
            }
        }
    }

    fn instruction(&mut self, instruction: &Instruction) {
        if instruction.opcode == "call" {
            return;
        }
        if let (Some((name, offset)), Some((bytes, count))) = (named_address(instruction), access_size(instruction)) {
            let known = self.0.entry(name.clone()).or_insert_with(|| Some(Vec::new()));
            match (known.as_mut(), u32::try_from(offset)) {
                (Some(list), Ok(offset)) if offset % bytes == 0 => {
                    list.extend((0..count).map(|i| (offset.saturating_add(i * bytes), bytes)))
                }
                _ => *known = None,
            }
            return;
        }
        instruction.visit_names(&mut |role, name| {
            if role == Role::Use && !name.starts_with('%') {
                self.0.insert(name.clone(), None);
            }
        });
    }
}

/// The variable that `ld.param` or `st.param` names, and the offset in it.
fn named_address(instruction: &Instruction) -> Option<(&Name, i64)> {
    let position = match instruction.opcode.as_str() {
        "ld" => 1,
        "st" => 0,
        _ => return None,
    };
    match instruction.operands.get(position) {
        Some(Operand::Address(address)) if instruction.space() == Some(StateSpace::Param) => match &address.base {
            AddressBase::Name(name) => Some((name, address.offset)),
            AddressBase::Absolute(_) => None,
        },
        _ => None,
    }
}

/// Bytes per element of a load or store, and the number of elements.
fn access_size(instruction: &Instruction) -> Option<(u32, u32)> {
    let bytes = instruction.ty()?.bytes();
    let count = instruction.modifiers.iter().find_map(|m| m.strip_prefix('v')?.parse().ok()).unwrap_or(1);
    (bytes > 0 && count <= 8).then_some((bytes, count))
}

/// Pieces that no access crosses: the accesses themselves, halved where a smaller one lies inside.
fn pieces_of(accesses: &[(u32, u32)], bytes: u32) -> Vec<(u32, u32)> {
    fn split(at: u32, bytes: u32, accesses: &[(u32, u32)], into: &mut Vec<(u32, u32)>) {
        let is_cut = accesses.iter().any(|a| a.1 < bytes && a.0 >= at && a.0 < at + bytes);
        if is_cut {
            split(at, bytes / 2, accesses, into);
            split(at + bytes / 2, bytes / 2, accesses, into);
        } else {
            into.push((at, bytes));
        }
    }
    let mut pieces = Vec::new();
    for &(at, size) in accesses.iter().filter(|a| a.0.checked_add(a.1).is_some_and(|end| end <= bytes)) {
        split(at, size, accesses, &mut pieces);
    }
    pieces.sort_unstable();
    pieces.dedup();
    pieces
}

impl<'m> Reader<'m> {
    /// The `.param` variable with a name.
    pub(super) fn formal(&self, name: &Name) -> Option<usize> {
        self.scopes.iter().rev().find_map(|s| s.formals.get(name)).copied()
    }

    /// Declares a `.param` variable in the innermost scope.
    pub(super) fn declare_formal(
        &mut self,
        variable: &Variable,
        accesses: &Accesses,
        line: u32,
    ) -> Result<(), LowerError> {
        let bytes = variable.bytes().and_then(|b| u32::try_from(b).ok());
        let bytes = bytes.ok_or_else(|| self.malformed(line, format!("variable `{}` is too large", variable.name)))?;
        if variable.dimensions.contains(&None) {
            return Err(self.unsupported(line, format!("parameters without a size (`{}`)", variable.name)));
        }
        let none = Some(Vec::new());
        let place = match accesses.0.get(&variable.name).unwrap_or(&none) {
            Some(list) => {
                let mut list = list.clone();
                // A scalar is passed as a whole, even if this body does not read it.
                if variable.dimensions.is_empty() && variable.vector.is_none() {
                    list.push((0, bytes));
                }
                let name = &variable.name;
                let mut piece =
                    |(at, bytes): (u32, u32)| Piece { at, bytes, reg: self.new_register(name, Elem::int(8 * bytes)) };
                Place::Pieces(pieces_of(&list, bytes).into_iter().map(&mut piece).collect())
            }
            None => Place::Local(self.reserve_local(bytes, variable.alignment().max(1))),
        };
        self.formals.push(Formal { bytes, place });
        let number = self.formals.len() - 1;
        self.innermost().formals.insert(variable.name.clone(), number);
        Ok(())
    }

    /// Whether an instruction loads from or stores to a `.param` variable of a function.
    pub(super) fn accesses_formal(&self, instruction: &Instruction) -> bool {
        named_address(instruction).is_some_and(|(name, _)| self.formal(name).is_some())
    }

    /// `ld.param` and `st.param` of a function's `.param` variable.
    pub(super) fn access_formal(
        &mut self,
        instruction: &Instruction,
        guard: Option<(Reg, bool)>,
        line: u32,
    ) -> Result<(), LowerError> {
        let (Some((name, offset)), Some((bytes, _)), Some(ty)) =
            (named_address(instruction), access_size(instruction), instruction.ty())
        else {
            return Err(self.malformed(line, format!("`{}` has no type", instruction.dotted())));
        };
        let Some(formal) = self.formal(name) else { return Ok(()) };
        let is_load = instruction.opcode == "ld";
        let outside = || format!("`{name}{offset:+}` lies outside the parameter");
        let offset = u32::try_from(offset).map_err(|_| self.malformed(line, outside()))?;
        let registers = instruction.operands.get(usize::from(!is_load));
        let registers = match registers.map(|o| self.operand(o, line)).transpose()? {
            Some(Opnd::Vec(parts)) => parts,
            Some(single) => vec![single],
            None => return Err(self.malformed(line, "an access needs a register")),
        };
        for (index, register) in (0u32..).zip(&registers) {
            let at = offset.saturating_add(index * bytes);
            if is_load {
                let value = self.read_formal(formal, at, bytes, line)?;
                self.assign(register, value, bytes, is_signed(ty), guard, line);
            } else {
                self.write_formal(formal, at, bytes, register, guard, line)?;
            }
        }
        Ok(())
    }

    /// Assigns a value of `bytes` to a register; extends it if the register is wider.
    fn assign(&mut self, to: &Opnd, value: Opnd, bytes: u32, signed: bool, guard: Option<(Reg, bool)>, line: u32) {
        let wide = match to {
            Opnd::Reg(reg) => self.program.regs[*reg].elem.bits(),
            _ => 8 * bytes,
        };
        let form = match signed {
            _ if wide <= 8 * bytes => format!("mov.b{}", 8 * bytes),
            true => format!("cvt.s{wide}.s{}", 8 * bytes),
            false => format!("cvt.u{wide}.u{}", 8 * bytes),
        };
        self.emit(&form, guard, vec![to.clone(), value], line);
    }

    /// The local address of a variable whose address is taken.
    pub(super) fn local_formal(&self, formal: usize, offset: i64, line: u32) -> Result<u32, LowerError> {
        match self.formals[formal].place {
            Place::Local(at) => u32::try_from(i64::from(at) + offset)
                .map_err(|_| self.malformed(line, "an address lies outside its state space")),
            Place::Pieces(_) => Err(self.unsupported(line, "this use of a parameter")),
        }
    }

    /// The pieces in which a variable is passed: its own, or aligned words of its memory.
    pub(super) fn pieces(&self, formal: usize) -> Vec<(u32, u32)> {
        let bytes = self.formals[formal].bytes;
        match &self.formals[formal].place {
            Place::Pieces(pieces) => pieces.iter().map(|p| (p.at, p.bytes)).collect(),
            Place::Local(_) => {
                let (words, rest) = (bytes / 8, bytes % 8);
                (0..words).map(|i| (8 * i, 8)).chain((0..rest).map(|i| (8 * words + i, 1))).collect()
            }
        }
    }

    /// Some bytes of a variable as one value.
    pub(super) fn read_formal(&mut self, formal: usize, at: u32, bytes: u32, line: u32) -> Result<Opnd, LowerError> {
        match &self.formals[formal].place {
            Place::Local(base) => {
                let from = Opnd::Addr(Box::new(Opnd::Symbol(Symbol::Local(base + at))), 0);
                let value = Opnd::Reg(self.new_register("%param", Elem::int(8 * bytes)));
                self.emit(&format!("ld.local.b{}", 8 * bytes), None, vec![value.clone(), from], line);
                Ok(value)
            }
            Place::Pieces(pieces) => {
                let inside = |p: &&Piece| p.at >= at && p.at + p.bytes <= at + bytes;
                match pieces.iter().find(inside) {
                    Some(piece) if piece.bytes == bytes => Ok(Opnd::Reg(piece.reg)),
                    // Never written on this side, so any value is correct.
                    None if !pieces.iter().any(|p| p.at < at + bytes && at < p.at + p.bytes) => {
                        Ok(Opnd::Imm(Immediate::Int(0)))
                    }
                    None => self.read_part(formal, at, bytes, line),
                    Some(_) => {
                        let halves = [at, at + bytes / 2].map(|at| self.read_formal(formal, at, bytes / 2, line));
                        let [low, high] = halves;
                        let whole = Opnd::Reg(self.new_register("%param", Elem::int(8 * bytes)));
                        self.emit(
                            &format!("mov.b{}", 8 * bytes),
                            None,
                            vec![whole.clone(), Opnd::Vec(vec![low?, high?])],
                            line,
                        );
                        Ok(whole)
                    }
                }
            }
        }
    }

    /// Reads some bytes of one larger piece.
    fn read_part(&mut self, formal: usize, at: u32, bytes: u32, line: u32) -> Result<Opnd, LowerError> {
        let whole = match &self.formals[formal].place {
            Place::Pieces(pieces) => pieces.iter().find(|p| p.at <= at && at + bytes <= p.at + p.bytes).copied(),
            Place::Local(_) => None,
        };
        let whole = whole.ok_or_else(|| self.unsupported(line, "accesses of a parameter that overlap partially"))?;
        let parts: Vec<Opnd> =
            (0..whole.bytes / bytes).map(|_| Opnd::Reg(self.new_register("%param", Elem::int(8 * bytes)))).collect();
        let wanted = parts[((at - whole.at) / bytes) as usize].clone();
        self.emit(&format!("mov.b{}", 8 * whole.bytes), None, vec![Opnd::Vec(parts), Opnd::Reg(whole.reg)], line);
        Ok(wanted)
    }

    /// Writes some bytes of a variable.
    pub(super) fn write_formal(
        &mut self,
        formal: usize,
        at: u32,
        bytes: u32,
        value: &Opnd,
        guard: Option<(Reg, bool)>,
        line: u32,
    ) -> Result<(), LowerError> {
        if at.checked_add(bytes).is_none_or(|end| end > self.formals[formal].bytes) {
            return Err(self.malformed(line, "an access lies outside its parameter"));
        }
        let pieces = match &self.formals[formal].place {
            Place::Local(base) => {
                let to = Opnd::Addr(Box::new(Opnd::Symbol(Symbol::Local(base + at))), 0);
                self.emit(&format!("st.local.b{}", 8 * bytes), guard, vec![to, value.clone()], line);
                return Ok(());
            }
            Place::Pieces(pieces) => pieces.clone(),
        };
        match pieces.iter().find(|p| p.at >= at && p.at + p.bytes <= at + bytes) {
            Some(piece) if piece.bytes == bytes => {
                self.emit(&format!("mov.b{}", 8 * bytes), guard, vec![Opnd::Reg(piece.reg), value.clone()], line);
                Ok(())
            }
            // Never read on this side.
            None if !pieces.iter().any(|p| p.at < at + bytes && at < p.at + p.bytes) => Ok(()),
            None => self.write_part(&pieces, at, bytes, value, guard, line),
            Some(_) => {
                let [low, high] = [0; 2].map(|_| Opnd::Reg(self.new_register("%param", Elem::int(4 * bytes))));
                self.emit(
                    &format!("mov.b{}", 8 * bytes),
                    None,
                    vec![Opnd::Vec(vec![low.clone(), high.clone()]), value.clone()],
                    line,
                );
                self.write_formal(formal, at, bytes / 2, &low, guard, line)?;
                self.write_formal(formal, at + bytes / 2, bytes / 2, &high, guard, line)
            }
        }
    }

    /// Writes some bytes of one larger piece; its other bytes keep their values.
    fn write_part(
        &mut self,
        pieces: &[Piece],
        at: u32,
        bytes: u32,
        value: &Opnd,
        guard: Option<(Reg, bool)>,
        line: u32,
    ) -> Result<(), LowerError> {
        let whole = pieces.iter().find(|p| p.at <= at && at + bytes <= p.at + p.bytes).copied();
        let whole = whole.ok_or_else(|| self.unsupported(line, "accesses of a parameter that overlap partially"))?;
        let mut parts: Vec<Opnd> =
            (0..whole.bytes / bytes).map(|_| Opnd::Reg(self.new_register("%param", Elem::int(8 * bytes)))).collect();
        let form = format!("mov.b{}", 8 * whole.bytes);
        self.emit(&form, None, vec![Opnd::Vec(parts.clone()), Opnd::Reg(whole.reg)], line);
        parts[((at - whole.at) / bytes) as usize] = value.clone();
        self.emit(&form, guard, vec![Opnd::Reg(whole.reg), Opnd::Vec(parts)], line);
        Ok(())
    }
}
