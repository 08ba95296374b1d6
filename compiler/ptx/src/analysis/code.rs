//! The flattened statements of a function, and name resolution.
//!
//! A nested block `{ … }` has its own scope: nvcc opens one around every call and declares the same
//! names in each. A name resolves to the innermost enclosing scope that declares it, wherever in
//! that scope the declaration is.

use super::entity::entity;
use crate::ast::*;
use crate::limits::MAX_NUMBER_DIGITS;
use crate::roles::Role;
use crate::types::{ScalarType, StateSpace};
use std::collections::HashMap;

entity! {
    /// Index of a statement in a flattened body: nested blocks are walked in order and have no id.
    StatementId
}
entity! {
    /// A register that occurs in the function.
    RegisterId
}
entity! {
    /// A block with its own declarations; the body has id 0.
    ScopeId
}

/// A register that an instruction uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its name without component: `%v` for `%v.x`.
    pub name: Name,
    /// Declared type.
    pub ty: ScalarType,
    /// Declared `.v2`, `.v4` or `.v8`.
    pub vector: Option<u8>,
    /// The scope that declares it: two scopes may declare registers of the same name.
    pub scope: ScopeId,
}

/// One use of a register by an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The register.
    pub register: RegisterId,
    /// How the instruction uses it.
    pub role: Role,
}

/// The declarations of a scope.
#[derive(Debug, Default)]
struct Scope<'a> {
    parent: Option<ScopeId>,
    /// `.reg .b32 %x;`
    registers: HashMap<Name, Declared>,
    /// `.reg .b32 %r<100>;`, keyed by the prefix.
    ranges: HashMap<Name, Declared>,
    variables: HashMap<Name, &'a Variable>,
    labels: HashMap<Name, StatementId>,
}

/// A declaration of one register or a range of registers.
#[derive(Clone, Copy, Debug)]
struct Declared {
    ty: ScalarType,
    vector: Option<u8>,
    count: Option<u32>,
}

/// The flattened code of one function.
#[derive(Debug)]
pub struct Code<'a> {
    function: &'a Function,
    statements: Vec<(&'a Statement, ScopeId)>,
    scopes: Vec<Scope<'a>>,
    registers: Vec<Register>,
    ids: HashMap<(ScopeId, Name), RegisterId>,
    /// The accesses of statement `i` are `accesses[first_access[i]..first_access[i + 1]]`.
    accesses: Vec<Access>,
    first_access: Vec<u32>,
    duplicates: Vec<(Option<StatementId>, Name)>,
}

impl<'a> Code<'a> {
    /// Flattens a function. A declaration without a body has no statements.
    pub fn of(function: &'a Function) -> Code<'a> {
        let mut code = Code {
            function,
            statements: Vec::new(),
            scopes: vec![Scope::default()],
            registers: Vec::new(),
            ids: HashMap::new(),
            accesses: Vec::new(),
            first_access: vec![0],
            duplicates: Vec::new(),
        };
        for parameter in function.returns.iter().chain(&function.params) {
            code.declare_variable(parameter, ScopeId::new(0), None);
        }
        if let Some(body) = &function.body {
            code.collect(body, ScopeId::new(0));
        }
        code.resolve();
        code
    }

    /// The function.
    pub fn function(&self) -> &'a Function {
        self.function
    }

    /// Every statement with its id, in order.
    pub fn statements(&self) -> impl ExactSizeIterator<Item = (StatementId, &'a Statement)> + '_ {
        self.statements.iter().enumerate().map(|(index, (statement, _))| (StatementId::new(index), *statement))
    }

    /// The number of statements.
    pub fn len(&self) -> usize {
        self.statements.len()
    }

    /// Whether there are no statements.
    pub fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// A statement.
    pub fn statement(&self, id: StatementId) -> &'a Statement {
        self.statements[id.index()].0
    }

    /// The instruction at `id`, or `None` if the statement is not an instruction.
    pub fn instruction(&self, id: StatementId) -> Option<&'a Instruction> {
        self.statement(id).instruction()
    }

    /// The scope of a statement.
    pub fn scope(&self, id: StatementId) -> ScopeId {
        self.statements[id.index()].1
    }

    /// The registers that instructions use.
    pub fn registers(&self) -> &[Register] {
        &self.registers
    }

    /// A register.
    pub fn register(&self, id: RegisterId) -> &Register {
        &self.registers[id.index()]
    }

    /// The registers that a statement uses: the guard first, then in operand order. A register used
    /// twice is listed twice.
    pub fn accesses(&self, id: StatementId) -> &[Access] {
        let range = self.first_access[id.index()] as usize..self.first_access[id.index() + 1] as usize;
        &self.accesses[range]
    }

    /// The register that `name` refers to at a statement. `None` if it is not a used register: a
    /// variable, a special register or an undeclared name. A component (`.x`) is ignored.
    pub fn register_at(&self, id: StatementId, name: &str) -> Option<RegisterId> {
        let (scope, _, base) = self.find_register(self.scope(id), name)?;
        self.ids.get(&(scope, base)).copied()
    }

    /// The registers that hold the return values of a `.func` with `.reg` returns.
    pub fn return_registers(&self) -> impl Iterator<Item = RegisterId> + '_ {
        let registers = self.function.returns.iter().filter(|v| v.space == StateSpace::Reg);
        registers.filter_map(|v| self.ids.get(&(ScopeId::new(0), v.name.clone())).copied())
    }

    /// The variable or parameter of this function that `name` refers to at a statement. Variables
    /// at module scope are not included.
    pub fn variable_at(&self, id: StatementId, name: &str) -> Option<&'a Variable> {
        self.enclosing(self.scope(id)).find_map(|scope| self.scopes[scope.index()].variables.get(name).copied())
    }

    /// The statement of the label, table or prototype that `name` refers to at a statement.
    pub fn label_at(&self, id: StatementId, name: &str) -> Option<StatementId> {
        self.enclosing(self.scope(id)).find_map(|scope| self.scopes[scope.index()].labels.get(name).copied())
    }

    /// Names that a scope declares more than once, with the statement of the second declaration;
    /// `None` for a parameter.
    pub fn duplicates(&self) -> &[(Option<StatementId>, Name)] {
        &self.duplicates
    }

    /// Whether `name` is declared as a register, used or not.
    pub fn declares_register(&self, id: StatementId, name: &str) -> bool {
        self.find_register(self.scope(id), name).is_some()
    }

    /// A scope and its ancestors, innermost first.
    fn enclosing(&self, scope: ScopeId) -> impl Iterator<Item = ScopeId> + '_ {
        std::iter::successors(Some(scope), |s| self.scopes[s.index()].parent)
    }

    fn collect(&mut self, body: &'a Body, scope: ScopeId) {
        for statement in &body.statements {
            let id = StatementId::new(self.statements.len());
            match &statement.kind {
                StatementKind::Block(inner) => {
                    self.scopes.push(Scope { parent: Some(scope), ..Scope::default() });
                    self.collect(inner, ScopeId::new(self.scopes.len() - 1));
                    continue;
                }
                StatementKind::Registers(declaration) => {
                    for (name, count) in &declaration.names {
                        let declared = Declared { ty: declaration.ty, vector: declaration.vector, count: *count };
                        self.declare_register(name, declared, scope, Some(id));
                    }
                }
                StatementKind::Variable(variable) => self.declare_variable(variable, scope, Some(id)),
                StatementKind::Label(name)
                | StatementKind::BranchTargets { name, .. }
                | StatementKind::CallTargets { name, .. }
                | StatementKind::CallPrototype { name, .. } => {
                    let again = self.scopes[scope.index()].labels.insert(name.clone(), id).is_some();
                    self.note_duplicate(again, Some(id), name);
                }
                StatementKind::Instruction(_) | StatementKind::Directive(_) => {}
            }
            self.statements.push((statement, scope));
        }
    }

    fn declare_register(&mut self, name: &Name, declared: Declared, scope: ScopeId, statement: Option<StatementId>) {
        let scope = &mut self.scopes[scope.index()];
        let known = if declared.count.is_some() { &mut scope.ranges } else { &mut scope.registers };
        let again = known.insert(name.clone(), declared).is_some();
        self.note_duplicate(again, statement, name);
    }

    fn declare_variable(&mut self, variable: &'a Variable, scope: ScopeId, statement: Option<StatementId>) {
        if variable.space == StateSpace::Reg {
            let declared = Declared { ty: variable.ty, vector: variable.vector, count: variable.count };
            self.declare_register(&variable.name, declared, scope, statement);
            return;
        }
        let again = self.scopes[scope.index()].variables.insert(variable.name.clone(), variable).is_some();
        self.note_duplicate(again, statement, &variable.name);
    }

    fn note_duplicate(&mut self, again: bool, statement: Option<StatementId>, name: &Name) {
        if again {
            self.duplicates.push((statement, name.clone()));
        }
    }

    /// The scope that declares a register, its declaration, and its name without component.
    fn find_register(&self, scope: ScopeId, name: &str) -> Option<(ScopeId, Declared, Name)> {
        let base = name.split('.').next().unwrap_or(name);
        self.enclosing(scope).find_map(|scope| {
            let Scope { registers, ranges, .. } = &self.scopes[scope.index()];
            let declared = registers.get(base).or_else(|| find_in_range(ranges, base))?;
            Some((scope, *declared, Name::new(base)))
        })
    }

    /// Resolves the registers of every instruction.
    fn resolve(&mut self) {
        // A return register is always used: the caller reads it.
        for variable in self.function.returns.iter().filter(|v| v.space == StateSpace::Reg) {
            self.intern(ScopeId::new(0), &variable.name);
        }
        for index in 0..self.statements.len() {
            let (statement, scope) = self.statements[index];
            if let Some(instruction) = statement.instruction() {
                instruction.visit_names(&mut |role, name| {
                    if !matches!(role, Role::Label | Role::Table) {
                        let found = self.intern(scope, name);
                        self.accesses.extend(found.map(|register| Access { register, role }));
                    }
                });
            }
            self.first_access.push(self.accesses.len() as u32);
        }
    }

    fn intern(&mut self, scope: ScopeId, name: &Name) -> Option<RegisterId> {
        let (scope, declared, name) = self.find_register(scope, name)?;
        let next = RegisterId::new(self.registers.len());
        let id = *self.ids.entry((scope, name.clone())).or_insert(next);
        if id == next {
            self.registers.push(Register { name, ty: declared.ty, vector: declared.vector, scope });
        }
        Some(id)
    }
}

/// The range that declares `name`: `%r<100>` for `%r42`. The prefix may itself end in digits, so
/// every split is tried.
fn find_in_range<'m>(ranges: &'m HashMap<Name, Declared>, name: &str) -> Option<&'m Declared> {
    let digits = name.bytes().rev().take(MAX_NUMBER_DIGITS).take_while(u8::is_ascii_digit).count();
    (name.len() - digits..name.len()).find_map(|split| {
        let (prefix, number) = name.split_at(split);
        let is_canonical = number == "0" || !number.starts_with('0');
        let entry = ranges.get(prefix)?;
        let number: u32 = number.parse().ok().filter(|_| is_canonical)?;
        entry.count.is_some_and(|count| number < count).then_some(entry)
    })
}
