//! Loads and stores: the memory they access, and the values they move through it.

use super::*;

impl<'m> Provenance<'m> {
    pub(super) fn evaluate_access(
        &mut self,
        function: usize,
        statement: StatementId,
        instruction: &'m Instruction,
        access: &MemoryAct,
    ) {
        let address = self.address(function, statement, access);
        let width = element(instruction).bits();
        let touches = self.touched(access, address.as_ref());
        if access.writes && !matches!(touches, Touched::Outside) {
            let stored: Vec<(usize, Linear)> = self.stored(function, statement, instruction, access);
            for (lane, value) in stored {
                self.store(&touches, lane, width, &value);
            }
        }
        if instruction.opcode == "cp" {
            self.changed |= self.cells.store_shared(RootSet::UNKNOWN);
        } else if access.reads && (!access.writes || access.atomic) {
            self.load(function, statement, instruction, &touches, width);
        }
        if let Some(address) = address.as_ref().filter(|_| matches!(touches, Touched::Outside)) {
            self.mark_plain_parameter(address);
        }
    }

    /// Marks a parameter that is used directly as an address as a pointer.
    fn mark_plain_parameter(&mut self, address: &Linear) {
        if let [(atom, 1)] = address.terms()
            && matches!(self.atoms.get(*atom).key, AtomKey::Param(_, _, 64))
        {
            let roots = self.atoms.get(*atom).roots;
            self.mark_pointer(roots);
        }
    }

    /// The kind of memory that an access touches.
    fn touched(&self, access: &MemoryAct, address: Option<&Linear>) -> Touched {
        let into = address.map_or(RootSet::NONE, |a| self.points_into(a));
        match access.space {
            Some(StateSpace::Shared) => Touched::Shared,
            Some(StateSpace::Local | StateSpace::Param) => self.place(address, Touched::SomeVariable),
            Some(StateSpace::Const | StateSpace::Global) => Touched::Outside,
            _ if self.roots.is_private(into) => self.place(address, Touched::Anything),
            _ if self.roots.may_be_private(into) => Touched::Anything,
            _ => Touched::Outside,
        }
    }

    fn place(&self, address: Option<&Linear>, otherwise: Touched) -> Touched {
        let variable = address.and_then(|a| variable_atom(a, |atom| self.variable_of.contains_key(&atom)));
        match variable {
            Some((atom, offset)) => Touched::Variable(self.variable_of[&atom], offset),
            None => otherwise,
        }
    }

    /// The values that an access stores, with their positions.
    pub(super) fn stored(
        &mut self,
        function: usize,
        statement: StatementId,
        instruction: &'m Instruction,
        access: &MemoryAct,
    ) -> Vec<(usize, Linear)> {
        let width = element(instruction).bits();
        let mut values = Vec::new();
        for operand in instruction.operands.iter().skip(access.address + 1) {
            let parts = match operand {
                Operand::Vector(parts) => parts.as_slice(),
                one => std::slice::from_ref(one),
            };
            for (lane, part) in parts.iter().enumerate() {
                values.extend(self.operand_value(function, statement, part, width).map(|value| (lane, value)));
            }
        }
        values
    }

    fn store(&mut self, touched: &Touched, lane: usize, width: u32, value: &Linear) {
        let roots = self.points_into(value);
        self.changed |= match *touched {
            Touched::Outside => false,
            Touched::Shared => self.cells.store_shared(roots),
            Touched::Variable(variable, Some(offset)) => {
                let offset = offset.saturating_add(lane as i64 * i64::from(width / 8));
                self.cells.store((variable, offset, width), value, roots)
            }
            Touched::Variable(variable, None) => self.cells.mark_inconsistent(variable, roots),
            Touched::SomeVariable => self.cells.store_anywhere(roots),
            Touched::Anything => self.cells.store_anywhere(roots) | self.cells.store_shared(roots),
        };
    }

    fn load(
        &mut self,
        function: usize,
        statement: StatementId,
        instruction: &'m Instruction,
        touched: &Touched,
        width: u32,
    ) {
        let parts = match instruction.operands.first() {
            Some(Operand::Vector(parts)) => parts.as_slice(),
            Some(one) => std::slice::from_ref(one),
            None => &[],
        };
        for (lane, part) in parts.iter().enumerate() {
            let Operand::Name(name) = part else { continue };
            let register = self.functions[function].code.register_at(statement, name);
            let Some(register_width) = register.map(|r| self.functions[function].code.register(r).ty.bits()) else {
                continue;
            };
            // A value that was not a pointer when it was stored is not a pointer when it is loaded.
            // Memory outside the block may hold any pointer.
            let foreign = if width >= 64 { RootSet::UNKNOWN } else { RootSet::NONE };
            let roots = match *touched {
                Touched::Outside => foreign,
                Touched::Shared if width < 64 => self.cells.shared().without_unknown(),
                Touched::Shared => self.cells.shared(),
                // The kernel's own parameters are not among the cells, and a device function cannot
                // access them.
                Touched::SomeVariable if function == 0 => self.cells.anything().union(foreign),
                Touched::SomeVariable => self.cells.anything(),
                Touched::Anything => self.cells.anything().union(self.cells.shared()).union(foreign),
                Touched::Variable(variable, offset) => {
                    let at = offset.map(|o| o.saturating_add(lane as i64 * i64::from(width / 8)));
                    match self.contents(variable, at, width) {
                        Contents::Nothing => continue,
                        Contents::Value(value) if register_width == width => {
                            self.define(function, statement, name, &value);
                            continue;
                        }
                        Contents::Value(_) => RootSet::NONE,
                        Contents::Several(_, roots) if register_width != width => roots,
                        Contents::Several(number, roots) => {
                            let atom = self.atoms.intern(AtomKey::Cell(number), || (Class::Changing, None));
                            self.changed |= self.atoms.add_roots(atom, roots);
                            self.define(function, statement, name, &Linear::atom(width, atom));
                            continue;
                        }
                        Contents::Mixture(roots) => roots,
                    }
                }
            };
            let value = self.result(function, statement, lane, register_width, roots, loaded_range(instruction.ty()));
            self.define(function, statement, name, &value);
        }
    }

    /// The contents of a place of a variable; a kernel parameter contains itself.
    fn contents(&mut self, variable: VariableKey, offset: Option<i64>, width: u32) -> Contents {
        let foreign = if width >= 64 { RootSet::UNKNOWN } else { RootSet::NONE };
        match (self.kernel_params.get(&variable).copied(), offset) {
            (Some(index), Some(offset)) if !self.cells.is_written(variable) => {
                Contents::Value(self.parameter(index, offset, width))
            }
            (Some(_), _) => Contents::Mixture(self.cells.anything_in(variable).union(foreign)),
            (None, Some(offset)) => self.cells.load((variable, offset, width)),
            (None, None) => Contents::Mixture(self.cells.anything_in(variable)),
        }
    }

    /// Bytes of a kernel parameter.
    fn parameter(&mut self, index: usize, offset: i64, width: u32) -> Linear {
        let atom = self.atoms.intern(AtomKey::Param(index, offset, width), || (Class::Stable, None));
        if let (64, Ok(offset)) = (width, u32::try_from(offset)) {
            let name = self.functions[0].code.function().params[index].name.clone();
            let roots = self.roots.intern(Root::Param { index, offset, name });
            self.changed |= self.atoms.add_roots(atom, roots);
        }
        Linear::atom(width, atom)
    }
}

/// The kind of memory that an access touches.
enum Touched {
    /// Memory that outlives the block.
    Outside,
    Shared,
    /// A local variable or parameter, with the offset if it is known.
    Variable(VariableKey, Option<i64>),
    /// Some local variable or parameter.
    SomeVariable,
    /// Any variable of the thread, or shared memory.
    Anything,
}

fn loaded_range(ty: Option<ScalarType>) -> Option<(i64, i64)> {
    match ty? {
        ScalarType::U8 => Some((0, 255)),
        ScalarType::U16 => Some((0, 65535)),
        _ => None,
    }
}
