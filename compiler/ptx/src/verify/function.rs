//! Checks of function bodies.

use super::variable::limit;
use super::{FaultKind, Symbol, Verifier, possible_names, quoted};
use crate::analysis::{BlockId, Cfg, Code, StatementId};
use crate::ast::*;
use crate::roles::Role;
use crate::special::is_special_register;
use crate::types::{ScalarType, StateSpace};

impl<'m> Verifier<'m> {
    pub(super) fn function(&mut self, function: &'m Function) {
        self.parameters(function);
        let code = Code::of(function);
        self.locals.clear();
        for (_, statement) in code.statements() {
            if let StatementKind::Directive(directive) = &statement.kind {
                self.locals.extend(possible_names(directive));
            }
        }
        for (statement, name) in code.duplicates() {
            if let Some(id) = statement {
                self.at(&code.statement(*id).origin);
            }
            self.fault(FaultKind::Redeclared(name.clone()));
        }
        for (id, statement) in code.statements() {
            let before = self.faults.len();
            self.at(&statement.origin);
            self.statement(&code, id, statement);
            if self.faults.len() > before {
                let text = quoted(&statement.kind.to_string());
                self.faults[before..].iter_mut().for_each(|fault| fault.statement.clone_from(&text));
            }
        }
        self.memory_of(&code, StateSpace::Shared);
        self.memory_of(&code, StateSpace::Local);
        if function.kind == FunctionKind::Entry && function.body.is_some() {
            self.end(&code);
        }
    }

    fn parameters(&mut self, function: &Function) {
        for parameter in function.returns.iter().chain(&function.params) {
            self.layout(parameter);
        }
        if function.kind == FunctionKind::Func {
            return;
        }
        if !function.returns.is_empty() {
            self.fault(FaultKind::KernelReturns);
        }
        for parameter in function.params.iter().filter(|p| p.space != StateSpace::Param) {
            self.fault(FaultKind::KernelParameter(parameter.name.clone()));
        }
        self.total(StateSpace::Param, &function.params.iter().collect::<Vec<_>>());
    }

    fn statement(&mut self, code: &Code<'_>, id: StatementId, statement: &Statement) {
        match &statement.kind {
            StatementKind::Variable(variable) => self.variable(variable),
            StatementKind::Instruction(instruction) => self.instruction(code, id, instruction),
            StatementKind::BranchTargets { targets, .. } => {
                for target in targets.iter().filter(|t| !is_label(code, id, t)) {
                    self.fault(FaultKind::UnknownLabel(target.clone()));
                }
            }
            StatementKind::CallTargets { targets, .. } => {
                for target in targets {
                    if !matches!(self.symbol(target), Some(Symbol::Function(_) | Symbol::Opaque)) {
                        self.fault(FaultKind::NotCallable(target.clone()));
                    }
                }
            }
            _ => {}
        }
    }

    fn instruction(&mut self, code: &Code<'_>, id: StatementId, instruction: &Instruction) {
        if let Some(guard) = &instruction.guard {
            let ty = code.register_at(id, &guard.predicate).map(|r| code.register(r).ty);
            if ty.is_some_and(|ty| ty != ScalarType::Pred) {
                self.fault(FaultKind::GuardType(guard.predicate.clone()));
            }
        }
        instruction.visit_names(&mut |role, name| self.name(code, id, instruction, role, name));
        match instruction.opcode.as_str() {
            "bra" if !matches!(instruction.operands.as_slice(), [Operand::Name(_)]) => self.fault(FaultKind::NoTarget),
            "brx" if !matches!(instruction.operands.as_slice(), [_, Operand::Name(_)]) => {
                self.fault(FaultKind::NoTarget)
            }
            "call" => self.call(instruction),
            _ => {
                self.operands(code, id, instruction);
                self.memory_operands(code, id, instruction);
            }
        }
    }

    /// Checks a name in its role.
    fn name(&mut self, code: &Code<'_>, id: StatementId, instruction: &Instruction, role: Role, name: &Name) {
        let is_register = || code.declares_register(id, name);
        let local = self.locals.contains(name.as_str()).then_some(Symbol::Opaque);
        let symbol = local.or_else(|| self.symbol(name));
        let fault = match role {
            Role::Label => (!is_label(code, id, name)).then(|| FaultKind::UnknownLabel(name.clone())),
            Role::Table => (!is_table(code, id, instruction, name) && symbol.is_none())
                .then(|| FaultKind::UnknownTable(name.clone())),
            Role::Callee => {
                let is_function = matches!(symbol, Some(Symbol::Function(_) | Symbol::Opaque));
                (!is_function && !is_register()).then(|| FaultKind::NotCallable(name.clone()))
            }
            Role::Def | Role::Update => {
                // The return value of a call may be a parameter variable.
                let is_written = is_register() || instruction.opcode == "call" && code.variable_at(id, name).is_some();
                (!is_written).then(|| {
                    match symbol.is_some() || is_special_register(name) || code.variable_at(id, name).is_some() {
                        true => FaultKind::NotWritable(name.clone()),
                        false => FaultKind::Undeclared(name.clone()),
                    }
                })
            }
            Role::Use => {
                let is_known = is_register()
                    || symbol.is_some()
                    || is_special_register(name)
                    || code.variable_at(id, name).is_some()
                    || instruction.opcode == "mov" && is_label(code, id, name)
                    || self.is_component(name);
                (!is_known).then(|| FaultKind::Undeclared(name.clone()))
            }
        };
        if let Some(fault) = fault {
            self.fault(fault);
        }
    }

    /// Whether a name is `symbol.x` for a known symbol.
    fn is_component(&self, name: &str) -> bool {
        name.split_once('.').is_some_and(|(base, _)| self.symbol(base).is_some())
    }

    /// Checks the numbers of arguments and return values of a direct call.
    fn call(&mut self, instruction: &Instruction) {
        let [Operand::List(returns), Operand::Name(callee), Operand::List(arguments), ..] =
            instruction.operands.as_slice()
        else {
            let found = instruction.operands.len();
            return self.fault(FaultKind::OperandCount { expected: "(returns), function, (arguments)".into(), found });
        };
        let Some(Symbol::Function(function)) = self.symbol(callee) else { return };
        // A last parameter without a length accepts any number of arguments.
        let is_variadic = function.params.last().is_some_and(|p| p.dimensions == [None]);
        let counts = [
            ("return values", function.returns.len(), returns.len()),
            ("arguments", function.params.len(), arguments.len()),
        ];
        for (what, expected, found) in counts {
            if expected != found && !(is_variadic && what == "arguments") {
                self.fault(FaultKind::CallMismatch { callee: callee.clone(), what, expected, found });
            }
        }
    }

    /// Checks memory operands that name a variable.
    fn memory_operands(&mut self, code: &Code<'_>, id: StatementId, instruction: &Instruction) {
        if !matches!(instruction.opcode.as_str(), "ld" | "st" | "atom" | "red") {
            return;
        }
        let Some(Operand::Address(Address { base: AddressBase::Name(name), offset })) =
            instruction.operands.iter().find(|o| matches!(o, Operand::Address(_)))
        else {
            return;
        };
        let global = self.symbol(name).and_then(|symbol| match symbol {
            Symbol::Variable(variable) => Some(variable),
            _ => None,
        });
        if code.declares_register(id, name) {
            return;
        }
        let Some(variable) = code.variable_at(id, name).or(global) else { return };
        // An instruction without a state space makes a generic access, which accepts a variable in
        // any space.
        if instruction.space().is_some_and(|space| space != variable.space) {
            return self.fault(FaultKind::OtherSpace { name: name.clone(), declared: variable.space });
        }
        if variable.space == StateSpace::Param {
            self.parameter_access(instruction, variable, *offset);
        }
    }

    fn parameter_access(&mut self, instruction: &Instruction, variable: &Variable, offset: i64) {
        let (Some(ty), Some(bytes)) = (instruction.ty(), variable.bytes()) else { return };
        let vector = [("v2", 2), ("v4", 4), ("v8", 8)]
            .into_iter()
            .find(|(word, _)| instruction.has(word))
            .map_or(1, |(_, width)| width);
        let end = offset.saturating_add(i64::from(ty.bytes()) * vector);
        let is_sized = variable.dimensions.iter().all(Option::is_some);
        if is_sized && (offset < 0 || u64::try_from(end).is_ok_and(|end| end > bytes)) {
            self.fault(FaultKind::BeyondParameter { name: variable.name.clone(), start: offset, end, bytes });
        }
    }

    /// Checks the total size of a function's variables in one state space.
    fn memory_of(&mut self, code: &Code<'_>, space: StateSpace) {
        let variables = code.statements().filter_map(|(_, s)| match &s.kind {
            StatementKind::Variable(variable) if variable.space == space => Some(variable),
            _ => None,
        });
        self.total(space, &variables.collect::<Vec<_>>());
    }

    /// Reports variables that are within the limit each, but exceed it together.
    fn total(&mut self, space: StateSpace, variables: &[&Variable]) {
        let limit = limit(space);
        let sizes = || variables.iter().map(|v| v.bytes().unwrap_or(u64::MAX));
        let bytes = sizes().fold(0u64, u64::saturating_add);
        if bytes > limit && sizes().all(|size| size <= limit) {
            self.fault(FaultKind::TooLarge { space, bytes, limit });
        }
    }

    /// Checks that control does not run off the end of the body. Only the last block can do so.
    /// Branches without a target were already reported.
    fn end(&mut self, code: &Code<'_>) {
        let Ok(cfg) = Cfg::of(code) else { return };
        let last_block = BlockId::new(cfg.exit().index() - 1);
        let last = cfg.block(last_block).last();
        let stops = last.and_then(|id| code.instruction(id)).is_some_and(is_final);
        if !stops && cfg.reverse_postorder().contains(&last_block) {
            if let Some(id) = last {
                self.at(&code.statement(id).origin);
            }
            self.fault(FaultKind::NoEnd);
        }
    }
}

/// Whether control never continues after an instruction. A call at the end of a kernel is assumed
/// not to return.
fn is_final(instruction: &Instruction) -> bool {
    instruction.guard.is_none() && (instruction.is_terminator() || instruction.opcode == "call")
}

fn is_label(code: &Code<'_>, id: StatementId, name: &str) -> bool {
    code.label_at(id, name).is_some_and(|label| matches!(code.statement(label).kind, StatementKind::Label(_)))
}

/// Whether a name is a table that matches the instruction, a branch or a call.
fn is_table(code: &Code<'_>, id: StatementId, instruction: &Instruction, name: &str) -> bool {
    let kind = code.label_at(id, name).map(|table| &code.statement(table).kind);
    match kind {
        Some(StatementKind::BranchTargets { .. }) => instruction.opcode == "brx",
        Some(StatementKind::CallTargets { .. } | StatementKind::CallPrototype { .. }) => instruction.opcode == "call",
        _ => false,
    }
}
