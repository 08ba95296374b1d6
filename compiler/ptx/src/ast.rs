//! The syntax tree of a PTX module.
//!
//! Every node with its own text has an [`Origin`]. For a parsed node, `Origin::text` is the exact
//! source text. To change a node, call [`Statement::edit`] or set the text to `None`; the printer
//! then writes the node in canonical form. `Origin::leading` keeps the white space and comments
//! before a node and survives an edit.

mod methods;

use crate::types::{ScalarType, StateSpace};
use smol_str::SmolStr;

/// An identifier as it is spelled in PTX: `%r1`, `%tid.x`, `$L__BB0_2`, `sgemm`.
pub type Name = SmolStr;

/// The source position and text of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// White space and comments before the first token.
    pub leading: Box<str>,
    /// Exact source text, first to last token; `None` if the node was built or changed.
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
    /// Source text. For a function with a body: the header, without `{`. For other items, the `;`
    /// is included.
    pub origin: Origin,
    /// What the item is.
    pub kind: ItemKind,
}

/// The kinds of module-scope items.
#[derive(Clone, Debug, PartialEq)]
pub enum ItemKind {
    /// `.version 7.0`, `.target sm_80`, `.address_size 64`, `.file …`, `.section …` and every
    /// unknown directive.
    Directive(Directive),
    /// A module-scope variable.
    Variable(Variable),
    /// An `.entry` or `.func`, defined or only declared.
    Function(Function),
}

/// A directive, kept as words.
#[derive(Clone, Debug, PartialEq)]
pub struct Directive {
    /// Spelling without the dot: `version`, `loc`, `pragma`, `maxntid`.
    pub name: Name,
    /// The tokens after the name. A known directive with a list (`.maxntid 256, 1, 1`) has no
    /// commas here. For an unknown directive, commas, brackets and `;` are separate words.
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

/// A variable or parameter: `.shared .align 16 .b8 tile[4096]` or `.param .u64 .ptr .global .align
/// 16 a`.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Linkage of a module-scope variable.
    pub linkage: Linkage,
    /// State space.
    pub space: StateSpace,
    /// `.align`, in bytes.
    pub align: Option<u32>,
    /// `.v2` or `.v4`.
    pub vector: Option<u8>,
    /// Element type; `.b64` for an opaque parameter, which is a handle.
    pub ty: ScalarType,
    /// The type of an opaque parameter: `.param .texref t`, `.param .u64 .ptr .surfref s`.
    pub opaque: Option<OpaqueType>,
    /// `.ptr` attribute of a kernel parameter: space and alignment of the memory it points to.
    pub pointer: Option<PointerAttribute>,
    /// Other attributes kept as words (`.attribute(.managed)`).
    pub attributes: Vec<Directive>,
    /// Its name.
    pub name: Name,
    /// `name<8>` declares `name0` to `name7`.
    pub count: Option<u32>,
    /// Array dimensions; `None` for an empty pair of brackets.
    pub dimensions: Vec<Option<u64>>,
    /// The initializer after `=`.
    pub initializer: Option<Initializer>,
}

/// Opaque types (ISA chapter 5.3). Module-scope variables of these types are kept as words.
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

    /// The type with this name, which has no dot.
    pub fn from_name(name: &str) -> Option<OpaqueType> {
        [OpaqueType::Texref, OpaqueType::Samplerref, OpaqueType::Surfref].into_iter().find(|ty| ty.as_str() == name)
    }
}

/// `.ptr .global .align 16` on a kernel parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointerAttribute {
    /// The state space pointed to; generic if absent.
    pub space: Option<StateSpace>,
    /// Alignment of the memory pointed to, in bytes.
    pub align: Option<u32>,
}

/// The value of an initialized variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// A number.
    Immediate(Immediate),
    /// The address of a symbol plus a byte offset; `generic(symbol)` if `generic` is set.
    Symbol {
        /// The variable or function.
        name: Name,
        /// Byte offset.
        offset: i64,
        /// Written as `generic(name)`.
        generic: bool,
        /// `0xFF00(name)` selects these bits of the address, shifted down to bit 0.
        mask: Option<u64>,
    },
    /// `{ … }`.
    List(Vec<Initializer>),
}

/// Kernel or device function.
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
    /// Directives between the parameter list and the body (`.maxntid 256, 1, 1`, `.noreturn`).
    pub attributes: Vec<Directive>,
    /// The body; `None` for a declaration.
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
    /// Source text; a nested block uses only `leading`.
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
    /// `.loc`, `.pragma` and every unknown directive.
    Directive(Directive),
    /// `{ … }`
    Block(Body),
    /// `name: .branchtargets a, b;`
    BranchTargets {
        /// The label of the table.
        name: Name,
        /// Labels of the basic blocks that may be jumped to.
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
        /// `.noreturn` and similar directives.
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
/// `f32`; a modifier keeps its `::` (`shared::cta`).
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// The guard predicate.
    pub guard: Option<Guard>,
    /// The first word.
    pub opcode: Name,
    /// The following words, without dots, in order.
    pub modifiers: Vec<Name>,
    /// Operands in order. A call has `[returns list, callee, arguments list, prototype]`, see
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
    /// `-%r1`, a source operand of `vmad`.
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
    /// `[a, {x, y}]` and other bracketed forms that the tree does not parse further (textures,
    /// tensor maps).
    Bracket(Vec<Operand>),
}

/// A memory operand.
#[derive(Clone, Debug, PartialEq)]
pub struct Address {
    /// The base of the address.
    pub base: AddressBase,
    /// Byte offset.
    pub offset: i64,
}

/// The base of an address.
#[derive(Clone, Debug, PartialEq)]
pub enum AddressBase {
    /// A register, variable or parameter.
    Name(Name),
    /// An absolute address.
    Absolute(u64),
}

/// A literal number. The statement's text keeps the original spelling; canonical spelling is
/// decimal for integers and `0f…`/`0d…` for floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Immediate {
    /// Integer, wide enough for s64 and u64.
    Int(i128),
    /// `0f3F800000`: the bits of an f32.
    F32(u32),
    /// `0d…` or a decimal floating literal: the bits of an f64.
    F64(u64),
}
