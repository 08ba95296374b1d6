//! Helpers to insert statements into an existing body.

use crate::error::PassError;
use atoll_ptx::analysis::StatementId;
use atoll_ptx::{
    Body, Function, FunctionKind, Guard, Instruction, ItemKind, Module, Name, Operand, RegisterDeclaration, ScalarType,
    Statement, StatementKind, Variable,
};

/// Statements to be inserted.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// Statements in order.
    pub(crate) statements: Vec<Statement>,
}

impl Code {
    /// Appends an instruction.
    pub(crate) fn emit<const N: usize>(&mut self, dotted: &str, operands: [Operand; N]) {
        self.emit_guarded(None, dotted, operands);
    }

    /// Appends an instruction that runs only where `predicate` holds.
    pub(crate) fn emit_if<const N: usize>(&mut self, predicate: &str, dotted: &str, operands: [Operand; N]) {
        self.emit_guarded(Some(&Guard { predicate: Name::new(predicate), negated: false }), dotted, operands);
    }

    /// Appends an instruction that runs only where `predicate` does not hold.
    pub(crate) fn emit_unless<const N: usize>(&mut self, predicate: &str, dotted: &str, operands: [Operand; N]) {
        self.emit_guarded(Some(&Guard { predicate: Name::new(predicate), negated: true }), dotted, operands);
    }

    /// Appends an instruction with the guard of another one.
    pub(crate) fn emit_guarded<const N: usize>(&mut self, guard: Option<&Guard>, dotted: &str, operands: [Operand; N]) {
        let mut instruction = Instruction::new(dotted, operands.into());
        instruction.guard = guard.cloned();
        self.push(StatementKind::Instruction(instruction));
    }

    /// Appends a label.
    pub(crate) fn label(&mut self, name: &str) {
        self.push(StatementKind::Label(Name::new(name)));
    }

    /// Appends a declaration of registers.
    pub(crate) fn registers(&mut self, ty: ScalarType, names: &[&str]) {
        let names = names.iter().map(|name| (Name::new(name), None)).collect();
        self.push(StatementKind::Registers(RegisterDeclaration { vector: None, ty, names }));
    }

    /// Appends a declaration of a variable.
    pub(crate) fn variable(&mut self, variable: Variable) {
        self.push(StatementKind::Variable(variable));
    }

    /// Appends a statement on a line of its own; labels start at the left margin.
    fn push(&mut self, kind: StatementKind) {
        let mut statement = Statement::built(kind);
        statement.origin.leading = if matches!(statement.kind, StatementKind::Label(_)) { "\n" } else { "\n\t" }.into();
        self.statements.push(statement);
    }
}

/// Rebuilds a body. `replace` receives every statement except nested blocks, with its position as
/// in [`atoll_ptx::analysis::Code`], and appends its replacement to the code. Nested blocks are
/// kept and rebuilt in turn.
pub(crate) fn rebuild(body: &mut Body, replace: &mut dyn FnMut(StatementId, Statement, &mut Code)) {
    rebuild_from(body, &mut 0, replace);
}

fn rebuild_from(body: &mut Body, next: &mut usize, replace: &mut dyn FnMut(StatementId, Statement, &mut Code)) {
    let mut code = Code::default();
    for mut statement in std::mem::take(&mut body.statements) {
        if let StatementKind::Block(inner) = &mut statement.kind {
            rebuild_from(inner, next, replace);
            code.statements.push(statement);
        } else {
            let id = StatementId::new(*next);
            *next += 1;
            replace(id, statement, &mut code);
        }
    }
    body.statements = code.statements;
}

/// Inserts code before the first executable statement of a body, after its leading declarations.
pub(crate) fn prepend(body: &mut Body, code: Code) {
    let first = body.statements.iter().position(is_executable).unwrap_or(body.statements.len());
    body.statements.splice(first..first, code.statements);
}

/// Whether a statement is executed or is a jump target.
fn is_executable(statement: &Statement) -> bool {
    matches!(statement.kind, StatementKind::Instruction(_) | StatementKind::Label(_) | StatementKind::Block(_))
}

/// The memory operand `[name]`.
pub(crate) fn at(name: &str) -> Operand {
    atoll_ptx::build::address(&Name::new(name), 0)
}

/// Calls `clean` with every function that has a body; returns the counts of the kernels, in order.
pub(crate) fn clean_functions(
    module: &mut Module,
    clean: impl Fn(&mut Function) -> Result<usize, PassError>,
) -> Result<Vec<u32>, PassError> {
    let mut counts = Vec::new();
    for item in &mut module.items {
        let ItemKind::Function(function) = &mut item.kind else { continue };
        if function.body.is_none() {
            continue;
        }
        let count = clean(function)?;
        if function.kind == FunctionKind::Entry {
            counts.push(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }
    Ok(counts)
}
