//! Builds kernels statement by statement, for code generation and passes.

use crate::ast::*;
use crate::types::{ScalarType, StateSpace};
use std::collections::BTreeMap;

/// Builds one kernel. Registers are numbered per type with the prefixes of nvcc (`%r` b32, `%rd`
/// b64, `%f` f32, `%p` pred, …); [`KernelBuilder::finish`] declares them.
///
/// ```
/// use atoll_ptx::{build::KernelBuilder, ScalarType};
/// let mut k = KernelBuilder::new("twice");
/// let data = k.param(ScalarType::U64, "data");
/// let address = k.reg(ScalarType::U64);
/// k.emit("ld.param.u64", [address.clone().into(), data]);
/// k.emit("ret", []);
/// let function = k.finish();
/// assert_eq!(function.params.len(), 1);
/// ```
#[derive(Debug)]
pub struct KernelBuilder {
    name: Name,
    params: Vec<Variable>,
    attributes: Vec<Directive>,
    variables: Vec<Statement>,
    prologue: Vec<Statement>,
    statements: Vec<Statement>,
    registers: BTreeMap<ScalarType, u32>,
    labels: u32,
}

impl KernelBuilder {
    /// Starts a kernel.
    pub fn new(name: &str) -> KernelBuilder {
        KernelBuilder {
            name: Name::new(name),
            params: Vec::new(),
            attributes: Vec::new(),
            variables: Vec::new(),
            prologue: Vec::new(),
            statements: Vec::new(),
            registers: BTreeMap::new(),
            labels: 0,
        }
    }

    /// Appends a parameter `<kernel>_param_<n>` and returns the operand `[<name>]` that loads it.
    /// `_purpose` only documents the call.
    pub fn param(&mut self, ty: ScalarType, _purpose: &str) -> Operand {
        let name = Name::from(format!("{}_param_{}", self.name, self.params.len()));
        self.params.push(Variable::new(StateSpace::Param, ty, &name));
        Operand::Address(Address { base: AddressBase::Name(name), offset: 0 })
    }

    /// Appends a parameter and loads it at the top of the kernel, before everything emitted so far,
    /// so that the register is defined on every path.
    pub fn load_param(&mut self, ty: ScalarType, purpose: &str) -> Name {
        let from = self.param(ty, purpose);
        self.hoisted(ty, &format!("ld.param.{ty}"), [from])
    }

    /// Inserts `dotted result, operands` at the top of the kernel, after earlier hoisted
    /// instructions, and returns the result register. The operands must be constants, special
    /// registers or hoisted results.
    pub fn hoisted(&mut self, ty: ScalarType, dotted: &str, operands: impl IntoIterator<Item = Operand>) -> Name {
        let result = self.reg(ty);
        let operands = std::iter::once(Operand::from(&result)).chain(operands).collect();
        self.prologue.push(Statement::built(StatementKind::Instruction(Instruction::new(dotted, operands))));
        result
    }

    /// Adds a performance directive such as `.maxntid 256, 1, 1`.
    pub fn attribute(&mut self, name: &str, arguments: &[&str]) {
        self.attributes
            .push(Directive { name: Name::new(name), arguments: arguments.iter().copied().map(Name::new).collect() });
    }

    /// Declares a static array of bytes in a space (`.shared`, `.local`) and returns its name.
    pub fn array(&mut self, space: StateSpace, name: &str, align: u32, bytes: u64) -> Name {
        let mut variable = Variable::new(space, ScalarType::B8, name);
        variable.align = Some(align);
        variable.dimensions = vec![Some(bytes)];
        self.variables.push(Statement::built(StatementKind::Variable(variable)));
        Name::new(name)
    }

    /// A new register of a type.
    pub fn reg(&mut self, ty: ScalarType) -> Name {
        let class = register_class(ty);
        let count = self.registers.entry(class).or_insert(0);
        *count += 1;
        Name::from(format!("{}{}", register_prefix(class), count))
    }

    /// Appends an instruction from its dotted name.
    pub fn emit(&mut self, dotted: &str, operands: impl IntoIterator<Item = Operand>) {
        let instruction = Instruction::new(dotted, operands.into_iter().collect());
        self.statements.push(Statement::built(StatementKind::Instruction(instruction)));
    }

    /// Appends a guarded instruction; `negated` is `@!`.
    pub fn emit_if(
        &mut self,
        predicate: &Name,
        negated: bool,
        dotted: &str,
        operands: impl IntoIterator<Item = Operand>,
    ) {
        let mut instruction = Instruction::new(dotted, operands.into_iter().collect());
        instruction.guard = Some(Guard { predicate: predicate.clone(), negated });
        self.statements.push(Statement::built(StatementKind::Instruction(instruction)));
    }

    /// Creates a label name that starts with `stem`; [`KernelBuilder::place`] emits it.
    pub fn label(&mut self, stem: &str) -> Name {
        self.labels += 1;
        Name::from(format!("$L_{stem}_{}", self.labels))
    }

    /// Appends a statement of any kind.
    pub fn statement(&mut self, kind: StatementKind) {
        self.statements.push(Statement::built(kind));
    }

    /// Emits a label at the current position.
    pub fn place(&mut self, label: &Name) {
        self.statements.push(Statement::built(StatementKind::Label(label.clone())));
    }

    /// Finishes the kernel and declares its registers.
    pub fn finish(self) -> Function {
        let mut statements: Vec<Statement> = self
            .registers
            .iter()
            .map(|(&ty, &count)| {
                let names = vec![(Name::new(register_prefix(ty)), Some(count + 1))];
                Statement::built(StatementKind::Registers(RegisterDeclaration { vector: None, ty, names }))
            })
            .collect();
        statements.extend(self.variables);
        statements.extend(self.prologue);
        statements.extend(self.statements);
        Function {
            linkage: Linkage::Visible,
            kind: FunctionKind::Entry,
            returns: Vec::new(),
            name: self.name,
            params: self.params,
            attributes: self.attributes,
            body: Some(Body { statements, ..Body::default() }),
        }
    }
}

/// A memory operand `[base+offset]`.
pub fn address(base: &Name, offset: i64) -> Operand {
    Operand::Address(Address { base: AddressBase::Name(base.clone()), offset })
}

/// An empty module with `.version`, `.target` and 64-bit addresses.
pub fn module(version: &str, target: &str) -> Module {
    let directive = |name: &str, argument: &str| {
        Item::built(ItemKind::Directive(Directive { name: Name::new(name), arguments: vec![Name::new(argument)] }))
    };
    Module {
        items: vec![directive("version", version), directive("target", target), directive("address_size", "64")],
        trailing: "\n".into(),
    }
}

/// The type with which registers of type `ty` are declared.
fn register_class(ty: ScalarType) -> ScalarType {
    use ScalarType::*;
    match ty {
        B8 | U8 | S8 | B16 | U16 | S16 | F16 | Bf16 => B16,
        B32 | U32 | S32 | F16x2 | Bf16x2 | Tf32 => B32,
        B64 | U64 | S64 => B64,
        other => other,
    }
}

/// The register prefix of a declared type.
fn register_prefix(class: ScalarType) -> &'static str {
    match class {
        ScalarType::B16 => "%rs",
        ScalarType::B32 => "%r",
        ScalarType::B64 => "%rd",
        ScalarType::B128 => "%rq",
        ScalarType::F32 => "%f",
        ScalarType::F64 => "%fd",
        ScalarType::Pred => "%p",
        _ => "%x",
    }
}
