//! How an instruction uses each of its operands.
//!
//! The default rule of PTX: the first operand is written, the others are read; an address or
//! bracket is always read, which covers stores, reductions, prefetches and bulk copies. The table
//! below lists the exceptions, so an unknown instruction follows the default rule.

use crate::ast::*;

/// How an instruction uses a name in an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Written as a whole; only conditionally if the instruction is guarded. Includes the return
    /// parameter of a `call`.
    Def,
    /// Read. Includes special registers and variables whose address is taken.
    Use,
    /// Read and written, or partially written: the accumulator of `wgmma`, `%v.x` as destination.
    Update,
    /// The target label of a branch.
    Label,
    /// The table of an indirect branch, or the prototype or table of an indirect call.
    Table,
    /// The callee of a `call`: a function, or a register that holds one.
    Callee,
}

impl Role {
    /// Whether a register in this role is read.
    pub fn reads(self) -> bool {
        matches!(self, Role::Use | Role::Update | Role::Callee)
    }

    /// Whether a register in this role is written.
    pub fn writes(self) -> bool {
        matches!(self, Role::Def | Role::Update)
    }
}

/// The operand layout of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// The first operand is written, the others are read.
    Destination,
    /// The first operand is read and written, the others are read.
    Accumulator,
    /// All operands are read.
    Sources,
    /// `bra label`
    Branch,
    /// `brx.idx index, table`
    TableBranch,
    /// `[returns, callee, arguments, prototype]`
    Call,
}

/// The exceptions: opcode, required modifier (or none), shape. The first matching row applies.
const SHAPES: &[(&str, Option<&str>, Shape)] = &[
    ("bra", None, Shape::Branch),
    ("brx", None, Shape::TableBranch),
    ("call", None, Shape::Call),
    ("bar", Some("red"), Shape::Destination),
    ("bar", None, Shape::Sources),
    ("barrier", Some("red"), Shape::Destination),
    ("barrier", None, Shape::Sources),
    ("cp", None, Shape::Sources),
    ("nanosleep", None, Shape::Sources),
    ("pmevent", None, Shape::Sources),
    ("setmaxnreg", None, Shape::Sources),
    ("stackrestore", None, Shape::Sources),
    ("tcgen05", Some("ld"), Shape::Destination),
    ("tcgen05", None, Shape::Sources),
    ("wgmma", Some("mma_async"), Shape::Accumulator),
    ("wgmma", None, Shape::Sources),
];

fn shape(instruction: &Instruction) -> Shape {
    let fits = |(opcode, modifier, _): &&(&str, Option<&str>, Shape)| {
        instruction.opcode == *opcode && modifier.is_none_or(|m| instruction.has(m))
    };
    SHAPES.iter().find(fits).map_or(Shape::Destination, |row| row.2)
}

fn role(shape: Shape, position: usize) -> Role {
    match (shape, position) {
        (Shape::Destination, 0) | (Shape::Call, 0) => Role::Def,
        (Shape::Accumulator, 0) => Role::Update,
        (Shape::Branch, _) => Role::Label,
        (Shape::TableBranch, 1) | (Shape::Call, 3) => Role::Table,
        (Shape::Call, 1) => Role::Callee,
        _ => Role::Use,
    }
}

/// The role of a name in an operand that has `role`: writing a component is an update.
fn name_role(role: Role, name: &str) -> Role {
    let is_component = name.contains('.');
    if role == Role::Def && is_component { Role::Update } else { role }
}

impl Instruction {
    /// Calls `visit` with the role of every name that the instruction uses: the guard first, then
    /// the operands in order.
    pub fn visit_names<'a>(&'a self, visit: &mut dyn FnMut(Role, &'a Name)) {
        if let Some(guard) = &self.guard {
            visit(Role::Use, &guard.predicate);
        }
        let shape = shape(self);
        for (position, operand) in self.operands.iter().enumerate() {
            visit_operand(operand, role(shape, position), visit);
        }
    }

    /// Like [`Instruction::visit_names`], but the names can be changed. The caller marks the
    /// statement as changed with [`Statement::edit`].
    pub fn visit_names_mut(&mut self, visit: &mut dyn FnMut(Role, &mut Name)) {
        let shape = shape(self);
        if let Some(guard) = &mut self.guard {
            visit(Role::Use, &mut guard.predicate);
        }
        for (position, operand) in self.operands.iter_mut().enumerate() {
            visit_operand_mut(operand, role(shape, position), visit);
        }
    }

    /// The names that are written, see [`Role::writes`].
    pub fn writes(&self) -> Vec<&Name> {
        let mut names = Vec::new();
        self.visit_names(&mut |role, name| names.extend(role.writes().then_some(name)));
        names
    }

    /// The names that are read, see [`Role::reads`].
    pub fn reads(&self) -> Vec<&Name> {
        let mut names = Vec::new();
        self.visit_names(&mut |role, name| names.extend(role.reads().then_some(name)));
        names
    }

    /// Whether the instruction reads the carry flag `CC.CF`.
    pub fn reads_carry(&self) -> bool {
        matches!(self.opcode.as_str(), "addc" | "subc" | "madc")
    }

    /// Whether the instruction writes the carry flag `CC.CF`.
    pub fn writes_carry(&self) -> bool {
        self.has("cc")
    }
}

fn visit_operand<'a>(operand: &'a Operand, role: Role, visit: &mut dyn FnMut(Role, &'a Name)) {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) | Operand::Not(name) | Operand::Negated(name) => {
            visit(name_role(role, name), name)
        }
        Operand::Address(Address { base: AddressBase::Name(name), .. }) => visit(Role::Use, name),
        Operand::Vector(parts) | Operand::List(parts) => parts.iter().for_each(|part| visit_operand(part, role, visit)),
        Operand::Bracket(parts) => parts.iter().for_each(|part| visit_operand(part, Role::Use, visit)),
        Operand::Pair(first, second) => {
            visit_operand(first, role, visit);
            visit_operand(second, role, visit);
        }
        Operand::Address(_) | Operand::Immediate(_) | Operand::Sink => {}
    }
}

fn visit_operand_mut(operand: &mut Operand, role: Role, visit: &mut dyn FnMut(Role, &mut Name)) {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) | Operand::Not(name) | Operand::Negated(name) => {
            visit(name_role(role, name), name)
        }
        Operand::Address(Address { base: AddressBase::Name(name), .. }) => visit(Role::Use, name),
        Operand::Vector(parts) | Operand::List(parts) => {
            parts.iter_mut().for_each(|part| visit_operand_mut(part, role, visit))
        }
        Operand::Bracket(parts) => parts.iter_mut().for_each(|part| visit_operand_mut(part, Role::Use, visit)),
        Operand::Pair(first, second) => {
            visit_operand_mut(first, role, visit);
            visit_operand_mut(second, role, visit);
        }
        Operand::Address(_) | Operand::Immediate(_) | Operand::Sink => {}
    }
}
