//! The verifier: is a module one that makes sense?
//!
//! It runs on what came from outside and between passes, and reports everything it finds, each with
//! its place. It checks that
//!
//! - the module opens with `.version` and `.target`;
//! - names are declared once: functions and variables at module scope, registers, variables and
//!   labels in each block;
//! - a function's declarations and its definition agree in kind and in number of parameters;
//! - a kernel returns nothing and has its parameters in `.param` space;
//! - variables have a size that is no nonsense, an alignment that is a power of two, and an initial
//!   value only where there can be one, no longer than the variable, naming symbols that exist;
//! - every name in an instruction is declared: as register, variable, function, label or table, as
//!   its place asks; special registers are not written;
//! - a guard is a predicate register;
//! - a memory operand that names a variable is in the space the instruction says, and inside the
//!   variable where that is a parameter;
//! - a branch has a target in sight; a call has as many arguments and return values as its
//!   function;
//! - the operands of the instructions in its table have the number, size and kind that the
//!   instruction's type asks for;
//! - control does not run off the end of a kernel.
//!
//! What it does not check: modifiers and their combinations, what a target or a `.version` allows,
//! instructions outside of the table, values. `ptxas` does.

mod function;
mod signature;
mod variable;

use crate::ast::*;
use crate::limits::{MAX_FAULTS, MAX_NUMBER_DIGITS};
use crate::types::{ScalarType, StateSpace};
use std::collections::{HashMap, HashSet};
use std::fmt;

/// Checks a module.
///
/// # Errors
/// All faults, up to [`MAX_FAULTS`].
pub fn verify(module: &Module) -> Result<(), Faults> {
    let mut verifier =
        Verifier { symbols: HashMap::new(), locals: HashSet::new(), faults: Vec::new(), place: Place::default() };
    verifier.module(module);
    if verifier.faults.is_empty() {
        return Ok(());
    }
    let truncated = verifier.faults.len() > MAX_FAULTS;
    verifier.faults.truncate(MAX_FAULTS);
    Err(Faults { list: verifier.faults, truncated })
}

/// Something that is wrong in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The function it is in.
    pub function: Option<Name>,
    /// The statement it is in, in canonical form and cut where it is long; empty outside of
    /// function bodies.
    pub statement: String,
    /// Line from 1, or 0 where the statement was built.
    pub line: u32,
    /// Column from 1, or 0 where the statement was built.
    pub column: u32,
    /// What is wrong.
    pub kind: FaultKind,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The module does not open with this directive.
    #[error("the module has to open with `.version` and `.target`")]
    NoHeader,
    /// A name is declared again where it may be declared once.
    #[error("`{0}` is declared twice")]
    Redeclared(Name),
    /// Declarations of one function differ.
    #[error("`{0}` was declared with another kind, or other numbers of parameters or return values")]
    OtherDeclaration(Name),
    /// A name means nothing here.
    #[error("`{0}` is not declared")]
    Undeclared(Name),
    /// What is written is no register.
    #[error("`{0}` cannot be written: it is no register of this function")]
    NotWritable(Name),
    /// A guard is no predicate.
    #[error("the guard `{0}` is not a predicate register")]
    GuardType(Name),
    /// A branch does not name a label.
    #[error("the branch has no target")]
    NoTarget,
    /// A branch goes to a label that is not declared in sight.
    #[error("there is no label `{0}` in sight")]
    UnknownLabel(Name),
    /// An indirect branch or call names no table in sight.
    #[error("there is no table or prototype `{0}` in sight")]
    UnknownTable(Name),
    /// What is called is no function.
    #[error("`{0}` is no function and no register")]
    NotCallable(Name),
    /// A call does not fit its function.
    #[error("`{callee}` takes {expected} {what}, not {found}")]
    CallMismatch {
        /// The function.
        callee: Name,
        /// Arguments or return values.
        what: &'static str,
        /// How many it declares.
        expected: usize,
        /// How many the call has.
        found: usize,
    },
    /// An instruction has too few or too many operands.
    #[error("the instruction takes {expected} operands, not {found}")]
    OperandCount {
        /// How many it takes.
        expected: String,
        /// How many there are.
        found: usize,
    },
    /// An operand does not fit the type of the instruction.
    #[error("operand {position} (`{operand}`) is {found} where the instruction asks for {expected}")]
    OperandType {
        /// From 1.
        position: usize,
        /// The operand.
        operand: String,
        /// What it is.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// An instruction whose operands depend on its type has none.
    #[error("the instruction has no type")]
    NoType,
    /// A memory instruction names a variable of another space.
    #[error("`{name}` is in .{declared} space")]
    OtherSpace {
        /// The variable.
        name: Name,
        /// Where it is.
        declared: StateSpace,
    },
    /// An access to a parameter reaches beyond it.
    #[error("the access at bytes {start} to {end} is outside of `{name}`, which has {bytes}")]
    BeyondParameter {
        /// The parameter.
        name: Name,
        /// The first byte accessed.
        start: i64,
        /// One past the last byte accessed.
        end: i64,
        /// Its size.
        bytes: u64,
    },
    /// A variable, or all of one space, is larger than it can be.
    #[error("{bytes} bytes in .{space} space, of at most {limit}")]
    TooLarge {
        /// The space.
        space: StateSpace,
        /// The size, saturated.
        bytes: u64,
        /// The bound.
        limit: u64,
    },
    /// An alignment is no power of two.
    #[error("the alignment {0} is not a power of two")]
    Alignment(u32),
    /// An array has no length where it needs one.
    #[error("the array `{0}` needs a length")]
    Unsized(Name),
    /// An initial value where there can be none, or one that does not fit.
    #[error("the initial value of `{name}` {why}")]
    Initializer {
        /// The variable.
        name: Name,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A kernel with return values.
    #[error("a kernel returns nothing")]
    KernelReturns,
    /// A kernel parameter outside of `.param` space.
    #[error("the kernel parameter `{0}` is not in .param space")]
    KernelParameter(Name),
    /// Control runs off the end.
    #[error("control runs off the end of the kernel: `ret` or `exit` is missing")]
    NoEnd,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "{}:{}: ", self.line, self.column)?;
        }
        if let Some(function) = &self.function {
            write!(f, "in `{function}`: ")?;
        }
        if !self.statement.is_empty() {
            write!(f, "`{}`: ", self.statement)?;
        }
        self.kind.fmt(f)
    }
}

/// Every fault of a module; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The faults, in order.
    pub list: Vec<Fault>,
    /// Whether there were more than are listed.
    pub truncated: bool,
}

impl std::error::Error for Faults {}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.list.iter().enumerate() {
            write!(f, "{}{fault}", if index > 0 { "\n" } else { "" })?;
        }
        if self.truncated { f.write_str("\n… and more") } else { Ok(()) }
    }
}

/// What a name at module scope is.
#[derive(Clone, Copy)]
enum Symbol<'m> {
    Variable(&'m Variable),
    Function(&'m Function),
    /// Declared in words the tree does not take apart.
    Opaque,
}

/// Where the verifier is.
#[derive(Clone, Default)]
struct Place {
    function: Option<Name>,
    line: u32,
    column: u32,
}

struct Verifier<'m> {
    symbols: HashMap<&'m str, Symbol<'m>>,
    /// What the function at hand may declare in words the tree does not take apart.
    locals: HashSet<&'m str>,
    faults: Vec<Fault>,
    place: Place,
}

/// Longest statement quoted in a fault, in characters: `mma` with its registers fits.
const MAX_QUOTED: usize = 120;

impl<'m> Verifier<'m> {
    fn fault(&mut self, kind: FaultKind) {
        if self.faults.len() <= MAX_FAULTS {
            let Place { function, line, column } = self.place.clone();
            self.faults.push(Fault { function, statement: String::new(), line, column, kind });
        }
    }

    fn at(&mut self, origin: &Origin) {
        (self.place.line, self.place.column) = (origin.line, origin.column);
    }

    fn module(&mut self, module: &'m Module) {
        self.header(module);
        for item in &module.items {
            self.at(&item.origin);
            self.declare(&item.kind);
        }
        for item in &module.items {
            self.at(&item.origin);
            match &item.kind {
                ItemKind::Directive(_) => {}
                ItemKind::Variable(variable) => self.variable(variable),
                ItemKind::Function(function) => {
                    self.place.function = Some(function.name.clone());
                    self.function(function);
                    self.place = Place::default();
                }
            }
        }
    }

    fn header(&mut self, module: &Module) {
        let is = |position: usize, name: &str| matches!(module.items.get(position).map(|i| &i.kind), Some(ItemKind::Directive(d)) if d.name == name);
        if !(is(0, "version") && is(1, "target")) {
            self.fault(FaultKind::NoHeader);
        }
    }

    /// What a name at module scope is; `x<4>` declares `x0` to `x3`.
    fn symbol(&self, name: &str) -> Option<Symbol<'m>> {
        let numbered = || {
            let digits = name.bytes().rev().take(MAX_NUMBER_DIGITS).take_while(u8::is_ascii_digit).count();
            (name.len() - digits..name.len()).find_map(|split| {
                let (stem, number) = name.split_at(split);
                let symbol = *self.symbols.get(stem)?;
                let Symbol::Variable(Variable { count: Some(count), .. }) = symbol else { return None };
                number.parse::<u32>().is_ok_and(|number| number < *count).then_some(symbol)
            })
        };
        self.symbols.get(name).copied().or_else(numbered)
    }

    fn declare(&mut self, kind: &'m ItemKind) {
        let (name, symbol) = match kind {
            ItemKind::Variable(variable) => (&variable.name, Symbol::Variable(variable)),
            ItemKind::Function(function) => (&function.name, Symbol::Function(function)),
            ItemKind::Directive(directive) => {
                for word in possible_names(directive) {
                    self.symbols.entry(word).or_insert(Symbol::Opaque);
                }
                return;
            }
        };
        let before = self.symbols.insert(name, symbol);
        match (before, symbol) {
            (None | Some(Symbol::Opaque), _) => {}
            (Some(Symbol::Function(first)), Symbol::Function(second)) => self.redeclare(first, second),
            // A variable may be declared `.extern` any number of times beside its definition.
            (Some(Symbol::Variable(first)), Symbol::Variable(second))
                if [first, second].iter().any(|v| v.linkage == Linkage::Extern) => {}
            _ => self.fault(FaultKind::Redeclared(name.clone())),
        }
    }

    /// A function that was declared before.
    fn redeclare(&mut self, first: &'m Function, second: &'m Function) {
        let shape = |f: &Function| (f.kind, f.params.len(), f.returns.len());
        if first.body.is_some() && second.body.is_some() {
            self.fault(FaultKind::Redeclared(second.name.clone()));
        } else if shape(first) != shape(second) {
            self.fault(FaultKind::OtherDeclaration(second.name.clone()));
        }
    }
}

/// What a directive may declare: any word of a declaration whose shape is not known, or of
/// `.alias`.
fn possible_names(directive: &Directive) -> impl Iterator<Item = &str> {
    let words: &[Name] = if directive.name == "section" { &[] } else { &directive.arguments };
    words
        .iter()
        .map(Name::as_str)
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || "_$%".contains(c)))
}

/// A register type for a message.
fn described(ty: ScalarType) -> String {
    format!("a .{ty} register")
}

/// Cuts a statement for a message.
fn quoted(text: &str) -> String {
    let mut quoted: String = text.chars().take(MAX_QUOTED).map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_QUOTED).is_some() {
        quoted.push('…');
    }
    quoted
}
