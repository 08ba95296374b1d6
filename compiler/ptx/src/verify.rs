//! The verifier: checks a module for consistency.
//!
//! It runs on modules from outside and between passes, and reports all faults with their positions.
//! It checks that
//!
//! - the module starts with `.version` and `.target`;
//! - each name is declared once: functions and variables at module scope; registers, variables and
//!   labels in each block;
//! - the declarations and the definition of a function agree in kind and in number of parameters;
//! - a kernel has no return values, and its parameters are in `.param` space;
//! - a variable has a size within the limits, an alignment that is a power of two, and an initial
//!   value only where one is allowed, no longer than the variable, which names only declared
//!   symbols;
//! - every name in an instruction is declared as what its position requires (register, variable,
//!   function, label or table), and special registers are not written;
//! - a guard is a predicate register;
//! - a memory operand that names a variable is in the state space of the instruction, and inside
//!   the variable if it is a parameter;
//! - a branch has a target in scope; a call has as many arguments and return values as its
//!   function;
//! - operands have the number, size and class that the instruction's type requires, for the
//!   instructions in the table of `signature.rs`;
//! - control does not run off the end of a kernel.
//!
//! Not checked: modifiers and their combinations, restrictions of targets and ISA versions,
//! instructions outside the table, values. `ptxas` checks these.

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

/// A fault of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The function that contains it.
    pub function: Option<Name>,
    /// The statement that contains it, in canonical form and truncated; empty outside function
    /// bodies.
    pub statement: String,
    /// Line from 1; 0 if the statement was built.
    pub line: u32,
    /// Column from 1; 0 if the statement was built.
    pub column: u32,
    /// The kind of fault.
    pub kind: FaultKind,
}

/// The kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The module does not start with `.version` and `.target`.
    #[error("the module must start with `.version` and `.target`")]
    NoHeader,
    /// A name is declared twice in one scope.
    #[error("`{0}` is declared twice")]
    Redeclared(Name),
    /// Two declarations of a function differ.
    #[error("`{0}` differs from its earlier declaration in kind, or in the number of parameters or return values")]
    OtherDeclaration(Name),
    /// A name is not declared.
    #[error("`{0}` is not declared")]
    Undeclared(Name),
    /// An instruction writes something other than a register.
    #[error("`{0}` cannot be written: it is not a register of this function")]
    NotWritable(Name),
    /// A guard is not a predicate register.
    #[error("the guard `{0}` is not a predicate register")]
    GuardType(Name),
    /// A branch does not name a label.
    #[error("the branch has no target")]
    NoTarget,
    /// A branch goes to a label that is not in scope.
    #[error("there is no label `{0}` in scope")]
    UnknownLabel(Name),
    /// An indirect branch or call names a table that is not in scope.
    #[error("there is no table or prototype `{0}` in scope")]
    UnknownTable(Name),
    /// The callee is not a function.
    #[error("`{0}` is neither a function nor a register")]
    NotCallable(Name),
    /// A call does not match its function.
    #[error("`{callee}` takes {expected} {what}, not {found}")]
    CallMismatch {
        /// The function.
        callee: Name,
        /// Arguments or return values.
        what: &'static str,
        /// How many the function declares.
        expected: usize,
        /// How many the call has.
        found: usize,
    },
    /// An instruction has the wrong number of operands.
    #[error("the instruction takes {expected} operands, not {found}")]
    OperandCount {
        /// How many it takes.
        expected: String,
        /// How many there are.
        found: usize,
    },
    /// An operand does not match the type of the instruction.
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
    /// The instruction has no type, although its operands depend on one.
    #[error("the instruction has no type")]
    NoType,
    /// A memory instruction names a variable in another state space.
    #[error("`{name}` is in .{declared} space")]
    OtherSpace {
        /// The variable.
        name: Name,
        /// The state space of the variable.
        declared: StateSpace,
    },
    /// An access to a parameter exceeds it.
    #[error("the access to bytes {start} to {end} is outside of `{name}`, which has {bytes} bytes")]
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
    /// A variable, or all variables in one state space together, exceed the limit.
    #[error("{bytes} bytes in .{space} space exceed the limit of {limit}")]
    TooLarge {
        /// The space.
        space: StateSpace,
        /// The size in bytes, saturated.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// An alignment is not a power of two.
    #[error("the alignment {0} is not a power of two")]
    Alignment(u32),
    /// An array without a required length.
    #[error("the array `{0}` needs a length")]
    Unsized(Name),
    /// An initial value that is not allowed or does not fit.
    #[error("the initial value of `{name}` {why}")]
    Initializer {
        /// The variable.
        name: Name,
        /// The rest of the sentence `the initial value of … `.
        why: &'static str,
    },
    /// A kernel has return values.
    #[error("a kernel cannot have return values")]
    KernelReturns,
    /// A kernel parameter is not in `.param` space.
    #[error("the kernel parameter `{0}` is not in .param space")]
    KernelParameter(Name),
    /// Control runs off the end of a kernel.
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

/// All faults of a module; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// The faults, in source order.
    pub list: Vec<Fault>,
    /// Whether there were more faults than listed.
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

/// The symbol behind a name at module scope.
#[derive(Clone, Copy)]
enum Symbol<'m> {
    Variable(&'m Variable),
    Function(&'m Function),
    /// Declared in words that the tree does not parse.
    Opaque,
}

/// The current position of the verifier.
#[derive(Clone, Default)]
struct Place {
    function: Option<Name>,
    line: u32,
    column: u32,
}

struct Verifier<'m> {
    symbols: HashMap<&'m str, Symbol<'m>>,
    /// Names that the current function may declare in words that the tree does not parse.
    locals: HashSet<&'m str>,
    faults: Vec<Fault>,
    place: Place,
}

/// Longest statement quoted in a fault, in characters; an `mma` with its registers fits.
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
        let is = |position: usize, name: &str| {
            let kind = module.items.get(position).map(|item| &item.kind);
            matches!(kind, Some(ItemKind::Directive(d)) if d.name == name)
        };
        if !(is(0, "version") && is(1, "target")) {
            self.fault(FaultKind::NoHeader);
        }
    }

    /// The symbol of a name at module scope; `x<4>` declares `x0` to `x3`.
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
            // A variable may have any number of `.extern` declarations beside its definition.
            (Some(Symbol::Variable(first)), Symbol::Variable(second))
                if [first, second].iter().any(|v| v.linkage == Linkage::Extern) => {}
            _ => self.fault(FaultKind::Redeclared(name.clone())),
        }
    }

    /// Checks a function that was declared before.
    fn redeclare(&mut self, first: &'m Function, second: &'m Function) {
        let shape = |f: &Function| (f.kind, f.params.len(), f.returns.len());
        if first.body.is_some() && second.body.is_some() {
            self.fault(FaultKind::Redeclared(second.name.clone()));
        } else if shape(first) != shape(second) {
            self.fault(FaultKind::OtherDeclaration(second.name.clone()));
        }
    }
}

/// The names that a directive may declare: any word of a declaration of unknown form, or of
/// `.alias`.
fn possible_names(directive: &Directive) -> impl Iterator<Item = &str> {
    let words: &[Name] = if directive.name == "section" { &[] } else { &directive.arguments };
    words
        .iter()
        .map(Name::as_str)
        .filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic() || "_$%".contains(c)))
}

/// A register of a type, for a message.
fn described(ty: ScalarType) -> String {
    format!("a .{ty} register")
}

/// Truncates a statement for a message.
fn quoted(text: &str) -> String {
    let mut quoted: String = text.chars().take(MAX_QUOTED).map(|c| if c.is_whitespace() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_QUOTED).is_some() {
        quoted.push('…');
    }
    quoted
}
