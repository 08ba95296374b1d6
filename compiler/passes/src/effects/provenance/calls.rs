//! Calls: arguments and results.

use super::*;

impl<'m> Provenance<'m> {
    /// Passes arguments to callees, and results back.
    pub(super) fn pass_arguments(&mut self) {
        for site in 0..self.calls.len() {
            let CallSite { function, statement, ref callees } = self.calls[site];
            let callees = callees.clone();
            let Some(instruction) = self.instruction(function, statement) else { continue };
            let list = |at: usize| match instruction.operands.get(at) {
                Some(Operand::List(parts)) => parts.as_slice(),
                _ => &[],
            };
            for callee in callees {
                let target = self.functions[callee].code.function();
                for (argument, param) in list(2).iter().zip(&target.params) {
                    self.pass(function, statement, argument, callee, param);
                }
                for (result, returned) in list(0).iter().zip(&target.returns) {
                    self.pass_back(function, statement, result, callee, returned);
                }
            }
        }
    }

    fn pass(
        &mut self,
        function: usize,
        statement: StatementId,
        argument: &Operand,
        callee: usize,
        param: &'m Variable,
    ) {
        if param.space == StateSpace::Reg {
            let value = self.operand_value(function, statement, argument, param.ty.bits());
            let code = &self.functions[callee].code;
            let register = if code.is_empty() { None } else { code.register_at(StatementId::new(0), &param.name) };
            if let (Some(value), Some(register)) = (value, register) {
                self.define_register(callee, register, None, &value);
            }
        } else if let Some(from) = self.variable_operand(function, statement, argument) {
            self.copy_variable(from, key(param));
        } else if let Some(value) = self.operand_value(function, statement, argument, param.ty.bits()) {
            let roots = self.points_into(&value);
            self.changed |= self.cells.store((key(param), 0, value.width()), &value, roots);
        }
    }

    fn pass_back(
        &mut self,
        function: usize,
        statement: StatementId,
        result: &Operand,
        callee: usize,
        returned: &'m Variable,
    ) {
        if returned.space == StateSpace::Reg {
            let code = &self.functions[callee].code;
            let register = if code.is_empty() { None } else { code.register_at(StatementId::new(0), &returned.name) };
            let value = register.and_then(|r| self.values[callee][r.index()].clone());
            if let (Some(value), Operand::Name(name)) = (value, result) {
                self.define(function, statement, name, &value);
            }
        } else if let Some(to) = self.variable_operand(function, statement, result) {
            self.copy_variable(key(returned), to);
        } else if let (Contents::Value(value), Operand::Name(name)) =
            (self.cells.load((key(returned), 0, returned.ty.bits())), result)
        {
            self.define(function, statement, name, &value);
        }
    }

    pub(super) fn variable_operand(
        &self,
        function: usize,
        statement: StatementId,
        operand: &Operand,
    ) -> Option<VariableKey> {
        match operand {
            Operand::Name(name) => self.functions[function].code.variable_at(statement, name).map(key),
            _ => None,
        }
    }

    fn copy_variable(&mut self, from: VariableKey, to: VariableKey) {
        for (offset, width, cell) in self.cells.of_variable(from) {
            let value = match cell.value {
                Some(value) => value,
                None => {
                    let atom = self.atoms.intern(AtomKey::Cell(cell.number), || (Class::Changing, None));
                    self.changed |= self.atoms.add_roots(atom, cell.roots);
                    Linear::atom(width, atom)
                }
            };
            self.changed |= self.cells.store((to, offset, width), &value, cell.roots);
        }
        if self.cells.is_inconsistent(from) {
            let roots = self.cells.anything_in(from);
            self.changed |= self.cells.mark_inconsistent(to, roots);
        }
    }
}

/// Every call defines the registers that are parameters of its callees, and defines its results
/// once per callee.
pub(super) fn count_arguments(functions: &mut [FunctionCode<'_>], calls: &[CallSite]) {
    for call in calls {
        for &callee in &call.callees {
            let FunctionCode { code, definitions } = &mut functions[callee];
            let params = code.function().params.iter().filter(|p| p.space == StateSpace::Reg && !code.is_empty());
            for register in params.filter_map(|param| code.register_at(StatementId::new(0), &param.name)) {
                definitions[register.index()] += 1;
            }
        }
        let others = call.callees.len().saturating_sub(1) as u32;
        let FunctionCode { code, definitions } = &mut functions[call.function];
        for written in code.accesses(call.statement).iter().filter(|access| access.role.writes()) {
            definitions[written.register.index()] += others;
        }
    }
}

/// The functions that a call may reach, by name.
pub(super) fn callees(code: &Code<'_>, statement: StatementId, call: &Instruction) -> Vec<Name> {
    match (call.operands.get(1), call.operands.get(3)) {
        (Some(Operand::Name(callee)), _) if !callee.starts_with('%') => vec![callee.clone()],
        (_, Some(Operand::Name(table))) => match code.label_at(statement, table).map(|id| &code.statement(id).kind) {
            Some(StatementKind::CallTargets { targets, .. }) => targets.clone(),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}
