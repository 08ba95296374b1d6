//! The tree of a PTX module.
//!
//! Every node that has a text of its own carries an [`Origin`]. `Origin::text` is the exact source
//! text of a parsed node; whoever changes a node calls [`Statement::edit`] (or sets the text to
//! `None`), and the printer then writes the node in canonical form. White space and comments in
//! front of a node are kept in `Origin::leading` and survive an edit.

use crate::types::{ScalarType, StateSpace};
use smol_str::SmolStr;

/// An identifier as it is spelled in PTX: `%r1`, `%tid.x`, `$L__BB0_2`, `sgemm`.
pub type Name = SmolStr;

/// Where a node came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// White space and comments before the node's first token.
    pub leading: Box<str>,
    /// Exact source text, from the first to the last token; `None` once built or changed.
    pub text: Option<Box<str>>,
    /// Line of the first token, from 1; 0 for a built node.
    pub line: u32,
    /// Column of the first token in bytes, from 1; 0 for a built node.
    pub column: u32,
}

/// A whole module: directives, variables and functions in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Module {
    /// Everything at module scope, in source order.
    pub items: Vec<Item>,
    /// White space and comments after the last item.
    pub trailing: Box<str>,
}

/// One item at module scope.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// Source text; for a function with a body it covers the header up to, not including, `{`, for
    /// all others the `;` is part of it.
    pub origin: Origin,
    /// What the item is.
    pub kind: ItemKind,
}

/// The kinds of module-scope items.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemKind {
    /// `.version 7.0`, `.target sm_80`, `.address_size 64`, `.file …`, `.section …` and whatever is
    /// not known.
    Directive(Directive),
    /// A module-scope variable.
    Variable(Variable),
    /// An `.entry` or `.func`, defined or only declared.
    Function(Function),
}

/// A directive that the tree keeps as words.
#[derive(Clone, Debug, PartialEq)]
pub struct Directive {
    /// Spelling without the dot: `version`, `loc`, `pragma`, `maxntid`.
    pub name: Name,
    /// The tokens after the name. Where the directive is a known one with a list (`.maxntid 256, 1,
    /// 1`, `.target sm_80, debug`) the commas are left out; where its shape is not known,
    /// commas, brackets and `;` are words of their own.
    pub arguments: Vec<Name>,
}

/// `.visible`, `.extern`, `.weak`, `.common`, or nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the ISA's own spellings")]
pub enum Linkage {
    #[default]
    Internal,
    Visible,
    Extern,
    Weak,
    Common,
}

/// A variable or parameter: `.shared .align 16 .b8 tile[4096]`, `.param .u64 .ptr .global .align 16
/// a`.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Linkage of a module-scope variable.
    pub linkage: Linkage,
    /// Where it lives.
    pub space: StateSpace,
    /// `.align`, in bytes.
    pub align: Option<u32>,
    /// `.v2` or `.v4`.
    pub vector: Option<u8>,
    /// Element type; `.b64` for the handle that an opaque parameter is.
    pub ty: ScalarType,
    /// What an opaque parameter refers to: `.param .texref t`, `.param .u64 .ptr .surfref s`.
    pub opaque: Option<OpaqueType>,
    /// `.ptr` attribute of a kernel parameter: space and alignment in bytes of what it points to.
    pub pointer: Option<PointerAttribute>,
    /// Other attributes kept as words (`.attribute(.managed)`).
    pub attributes: Vec<Directive>,
    /// Its name.
    pub name: Name,
    /// `name<8>` declares `name0` to `name7`.
    pub count: Option<u32>,
    /// Array dimensions; `None` is an empty pair of brackets.
    pub dimensions: Vec<Option<u64>>,
    /// What stands after `=`.
    pub initializer: Option<Initializer>,
}

/// The types without contents of their own (ISA chapter 5.3). Module-scope variables of these types
/// are kept as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the variants are the ISA's own spellings")]
pub enum OpaqueType {
    Texref,
    Samplerref,
    Surfref,
}

impl OpaqueType {
    /// The spelling without the dot.
    pub fn as_str(self) -> &'static str {
        match self {
            OpaqueType::Texref => "texref",
            OpaqueType::Samplerref => "samplerref",
            OpaqueType::Surfref => "surfref",
        }
    }

    /// The type of a spelling without the dot.
    pub fn from_name(name: &str) -> Option<OpaqueType> {
        [OpaqueType::Texref, OpaqueType::Samplerref, OpaqueType::Surfref].into_iter().find(|ty| ty.as_str() == name)
    }
}

/// `.ptr .global .align 16` on a kernel parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointerAttribute {
    /// The state space pointed to, generic where absent.
    pub space: Option<StateSpace>,
    /// Alignment of the memory pointed to, in bytes.
    pub align: Option<u32>,
}

/// The value of an initialised variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// A number.
    Immediate(Immediate),
    /// The address of a symbol plus a byte offset; `generic(symbol)` where the flag is set.
    Symbol {
        /// The variable or function.
        name: Name,
        /// Byte offset.
        offset: i64,
        /// Written as `generic(name)`.
        generic: bool,
        /// `0xFF00(name)` keeps these bits of the address, moved down to the lowest: one byte of
        /// it.
        mask: Option<u64>,
    },
    /// `{ … }`.
    List(Vec<Initializer>),
}

/// Whether a function is launched or called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// `.entry`: a kernel.
    Entry,
    /// `.func`: a device function.
    Func,
}

/// A kernel or device function.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Its linkage.
    pub linkage: Linkage,
    /// Kernel or device function.
    pub kind: FunctionKind,
    /// Return parameters of a `.func`.
    pub returns: Vec<Variable>,
    /// Its name.
    pub name: Name,
    /// Parameters in order.
    pub params: Vec<Variable>,
    /// Performance and other directives between the parameter list and the body (`.maxntid 256, 1,
    /// 1`, `.noreturn`).
    pub attributes: Vec<Directive>,
    /// The body, `None` for a declaration.
    pub body: Option<Body>,
}

/// Statements between braces.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// White space and comments before `{`.
    pub before_open: Box<str>,
    /// The statements in order.
    pub statements: Vec<Statement>,
    /// White space and comments before `}`.
    pub before_close: Box<str>,
}

/// One statement of a body.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// Its source text; for a nested block only `leading` is used.
    pub origin: Origin,
    /// What it is.
    pub kind: StatementKind,
}

/// The kinds of statements.
#[derive(Clone, Debug, PartialEq)]
pub enum StatementKind {
    /// `name:`
    Label(Name),
    /// An instruction.
    Instruction(Instruction),
    /// `.reg .f32 %f<10>;`
    Registers(RegisterDeclaration),
    /// A variable of function scope (`.shared`, `.local`, `.param`).
    Variable(Variable),
    /// `.loc`, `.pragma` and whatever is not known.
    Directive(Directive),
    /// `{ … }`
    Block(Body),
    /// `name: .branchtargets a, b;`
    BranchTargets {
        /// The label of the table.
        name: Name,
        /// Basic blocks that may be jumped to, by label.
        targets: Vec<Name>,
    },
    /// `name: .calltargets f, g;`
    CallTargets {
        /// The label of the table.
        name: Name,
        /// Functions that may be called.
        targets: Vec<Name>,
    },
    /// `name: .callprototype (…) _ (…) …;`
    CallPrototype {
        /// The label of the prototype.
        name: Name,
        /// Return parameters.
        returns: Vec<Variable>,
        /// Parameters.
        params: Vec<Variable>,
        /// `.noreturn` and the like.
        attributes: Vec<Directive>,
    },
}

/// `.reg .b32 %r<100>, %x;`
#[derive(Clone, Debug, PartialEq)]
pub struct RegisterDeclaration {
    /// `.v2` or `.v4`.
    pub vector: Option<u8>,
    /// Register type.
    pub ty: ScalarType,
    /// Names; `(%r, Some(100))` declares `%r0` to `%r99`.
    pub names: Vec<(Name, Option<u32>)>,
}

/// `@!%p1`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Predicate register.
    pub predicate: Name,
    /// True for `@!`.
    pub negated: bool,
}

/// One instruction. `ld.global.nc.v4.f32` has opcode `ld` and modifiers `global`, `nc`, `v4`,
/// `f32`; a modifier keeps any `::` it has (`shared::cta`).
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// The guard predicate.
    pub guard: Option<Guard>,
    /// First word.
    pub opcode: Name,
    /// The words after it, without dots, in order.
    pub modifiers: Vec<Name>,
    /// Operands in order. A call is `[returns list, callee, arguments list, prototype]`, see
    /// [`Operand::List`].
    pub operands: Vec<Operand>,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, special register (`%tid.x`), label, variable, parameter or function.
    Name(Name),
    /// `variable+16` outside brackets.
    NameOffset(Name, i64),
    /// `!%p1`
    Not(Name),
    /// `-%r1`, a source of `vmad`.
    Negated(Name),
    /// A number.
    Immediate(Immediate),
    /// `[base+offset]`
    Address(Address),
    /// `{a, b, c, d}`
    Vector(Vec<Operand>),
    /// `%p1|%p2`
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)`, in calls.
    List(Vec<Operand>),
    /// `_`
    Sink,
    /// `[a, {x, y}]` and other bracketed forms the tree does not take apart (textures, tensor
    /// maps).
    Bracket(Vec<Operand>),
}

/// A memory operand.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// What the address starts from.
    pub base: AddressBase,
    /// Byte offset.
    pub offset: i64,
}

/// The start of an address.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressBase {
    /// A register, variable or parameter.
    Name(Name),
    /// An absolute address.
    Absolute(u64),
}

/// A literal number. Spelling is kept for parsed numbers by the statement's text; canonical
/// spelling is decimal for integers and `0f…`/`0d…` for floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Immediate {
    /// Integer, wide enough for s64 and u64.
    Int(i128),
    /// `0f3F800000`: the bits of an f32.
    F32(u32),
    /// `0d…` or a decimal floating literal: the bits of an f64.
    F64(u64),
}

impl Statement {
    /// A statement that was not parsed.
    pub fn built(kind: StatementKind) -> Statement {
        Statement { origin: Origin::default(), kind }
    }

    /// The kind, for changing it: the printer then writes it anew. White space and comments in
    /// front stay.
    pub fn edit(&mut self) -> &mut StatementKind {
        self.origin.text = None;
        &mut self.kind
    }

    /// The variable, where it declares one.
    pub fn variable(&self) -> Option<&Variable> {
        match &self.kind {
            StatementKind::Variable(variable) => Some(variable),
            _ => None,
        }
    }

    /// The instruction, where it is one.
    pub fn instruction(&self) -> Option<&Instruction> {
        match &self.kind {
            StatementKind::Instruction(i) => Some(i),
            _ => None,
        }
    }
}

impl Item {
    /// An item that was not parsed.
    pub fn built(kind: ItemKind) -> Item {
        Item { origin: Origin::default(), kind }
    }

    /// The variable, where it declares one.
    pub fn variable(&self) -> Option<&Variable> {
        match &self.kind {
            ItemKind::Variable(variable) => Some(variable),
            _ => None,
        }
    }

    /// The kind, for changing it: its header is then written anew.
    pub fn edit(&mut self) -> &mut ItemKind {
        self.origin.text = None;
        &mut self.kind
    }
}

impl Module {
    /// Functions in order.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.items.iter().filter_map(|item| match &item.kind {
            ItemKind::Function(f) => Some(f),
            _ => None,
        })
    }

    /// Kernels with a body, in order.
    pub fn kernels(&self) -> impl Iterator<Item = &Function> {
        self.functions().filter(|f| f.kind == FunctionKind::Entry && f.body.is_some())
    }

    /// The function of a name, a definition before a declaration.
    pub fn function(&self, name: &str) -> Option<&Function> {
        self.functions()
            .find(|f| f.name == name && f.body.is_some())
            .or_else(|| self.functions().find(|f| f.name == name))
    }
}

impl Instruction {
    /// An unguarded instruction from its dotted name: `Instruction::new("add.s32", […])`.
    pub fn new(dotted: &str, operands: Vec<Operand>) -> Instruction {
        let mut words = dotted.split('.').map(Name::new);
        let opcode = words.next().unwrap_or_default();
        Instruction { guard: None, opcode, modifiers: words.collect(), operands }
    }

    /// Opcode and modifiers joined by dots.
    pub fn dotted(&self) -> String {
        let mut text = self.opcode.to_string();
        for modifier in &self.modifiers {
            text.push('.');
            text.push_str(modifier);
        }
        text
    }

    /// Whether a modifier is there.
    pub fn has(&self, modifier: &str) -> bool {
        self.modifiers.iter().any(|m| m == modifier)
    }

    /// The last modifier that is a type, which in most instructions is the type of the operation.
    pub fn ty(&self) -> Option<ScalarType> {
        self.modifiers.iter().rev().find_map(|m| ScalarType::from_name(m))
    }

    /// The state space of a memory instruction, `None` for generic. `shared::cta` is `Shared`.
    pub fn space(&self) -> Option<StateSpace> {
        self.modifiers.iter().find_map(|m| StateSpace::from_name(m.split("::").next().unwrap_or(m)))
    }
}

impl Variable {
    /// A plain variable.
    pub fn new(space: StateSpace, ty: ScalarType, name: &str) -> Variable {
        Variable {
            linkage: Linkage::Internal,
            space,
            align: None,
            vector: None,
            ty,
            opaque: None,
            pointer: None,
            attributes: Vec::new(),
            name: Name::new(name),
            count: None,
            dimensions: Vec::new(),
            initializer: None,
        }
    }

    /// Size in bytes; 0 for an unsized array (`tile[]`). `None` where the product overflows.
    pub fn bytes(&self) -> Option<u64> {
        let element = u64::from(self.ty.bytes()) * u64::from(self.vector.unwrap_or(1));
        self.dimensions.iter().try_fold(element, |total, d| total.checked_mul(d.unwrap_or(0)))
    }

    /// Alignment in bytes: the one written, or the natural one.
    pub fn alignment(&self) -> u32 {
        self.align.unwrap_or(self.ty.bytes() * u32::from(self.vector.unwrap_or(1)))
    }
}

impl From<&str> for Operand {
    fn from(name: &str) -> Operand {
        Operand::Name(Name::new(name))
    }
}

impl From<Name> for Operand {
    fn from(name: Name) -> Operand {
        Operand::Name(name)
    }
}

impl From<&Name> for Operand {
    fn from(name: &Name) -> Operand {
        Operand::Name(name.clone())
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Operand {
        Operand::Immediate(Immediate::Int(value.into()))
    }
}

impl From<u32> for Operand {
    fn from(value: u32) -> Operand {
        Operand::Immediate(Immediate::Int(value.into()))
    }
}

impl From<i64> for Operand {
    fn from(value: i64) -> Operand {
        Operand::Immediate(Immediate::Int(value.into()))
    }
}

impl From<f32> for Operand {
    fn from(value: f32) -> Operand {
        Operand::Immediate(Immediate::F32(value.to_bits()))
    }
}
