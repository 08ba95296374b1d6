//! The shared variables of a module, the functions that use them, and the variables that cannot be
//! moved.
//!
//! A name belongs to the innermost block around it that declares it, anywhere in that block.
//! Variables of the same name in two blocks are two variables.

use crate::shared_error::SharedError;
use atoll_ptx::{
    Address, AddressBase, Body, Function, Initializer, Instruction, ItemKind, Linkage, Module, Name, Operand,
    StateSpace, StatementKind, Variable,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A shared variable, distinguished from others of its name by the block that declares it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Index of the item that declares it; `None` at module scope.
    function: Option<usize>,
    /// Number of the block within the function, in order; the body is 0.
    block: usize,
    /// Its name.
    pub(crate) name: Name,
}

impl Key {
    /// A variable at module scope.
    pub(crate) fn global(name: Name) -> Key {
        Key { function: None, block: 0, name }
    }
}

/// Size and alignment in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub(crate) bytes: u64,
    pub(crate) alignment: u64,
}

/// The shared variables and their users.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Static variables in source order.
    pub(crate) statics: Vec<(Key, Size)>,
    /// Dynamic arrays with their alignment.
    pub(crate) dynamics: BTreeMap<Key, u64>,
    /// For each item that is a function with a body: the shared variables it uses.
    pub(crate) uses: BTreeMap<usize, BTreeSet<Key>>,
    /// Variables that are not moved, with the reason.
    pub(crate) kept: BTreeMap<Key, SharedError>,
}

/// The shared variable that each name refers to at a place in a function, innermost scope last. A
/// declaration in an inner block hides an outer variable of the same name.
pub(crate) struct Scopes {
    function: usize,
    /// Blocks entered so far.
    blocks: usize,
    open: Vec<HashMap<Name, Option<Key>>>,
}

impl Scopes {
    /// The scopes around the body of a function.
    pub(crate) fn of(module_scope: &BTreeSet<Name>, index: usize, function: &Function) -> Scopes {
        let global = |name: &Name| (name.clone(), Some(Key::global(name.clone())));
        let hidden = function.params.iter().chain(&function.returns).map(|p| (p.name.clone(), None));
        let open = vec![module_scope.iter().map(global).collect(), hidden.collect()];
        Scopes { function: index, blocks: 0, open }
    }

    /// Enters a block. Must be called for every block, in order.
    pub(crate) fn enter(&mut self, body: &Body) {
        let block = self.blocks;
        self.blocks += 1;
        let mut names = HashMap::new();
        for statement in &body.statements {
            let StatementKind::Variable(variable) = &statement.kind else { continue };
            for name in declared_names(variable) {
                let key = (variable.space == StateSpace::Shared).then(|| Key {
                    function: Some(self.function),
                    block,
                    name: name.clone(),
                });
                names.insert(name, key);
            }
        }
        self.open.push(names);
    }

    /// Leaves the innermost block.
    pub(crate) fn leave(&mut self) {
        self.open.pop();
    }

    /// The shared variable with a name that is visible here.
    pub(crate) fn resolve(&self, name: &Name) -> Option<&Key> {
        self.open.iter().rev().find_map(|scope| scope.get(name))?.as_ref()
    }
}

/// The names that a declaration declares: `x<3>` declares `x0`, `x1` and `x2`.
pub(crate) fn declared_names(variable: &Variable) -> Vec<Name> {
    match variable.count {
        None => vec![variable.name.clone()],
        Some(count) => (0..count).map(|i| Name::from(format!("{}{i}", variable.name))).collect(),
    }
}

/// Names of the shared variables at module scope.
pub(crate) fn module_scope(module: &Module) -> BTreeSet<Name> {
    let variables = module.items.iter().filter_map(|item| match &item.kind {
        ItemKind::Variable(v) if v.space == StateSpace::Shared => Some(declared_names(v)),
        _ => None,
    });
    variables.flatten().collect()
}

impl Survey {
    /// Finds every shared variable and every use of one.
    pub(crate) fn of(module: &Module) -> Survey {
        let mut survey = Survey::default();
        let globals = module_scope(module);
        for item in &module.items {
            match &item.kind {
                ItemKind::Variable(v) if v.space == StateSpace::Shared => {
                    survey.declare(v, &Key::global);
                }
                _ => {}
            }
        }
        for (index, item) in module.items.iter().enumerate() {
            if let ItemKind::Function(function) = &item.kind
                && let Some(body) = &function.body
            {
                survey.uses.insert(index, BTreeSet::new());
                survey.body(index, body, &mut Scopes::of(&globals, index, function));
            }
        }
        survey.keep_what_others_name(module, &globals);
        survey
    }

    fn body(&mut self, index: usize, body: &Body, scopes: &mut Scopes) {
        let block = scopes.blocks;
        scopes.enter(body);
        for statement in &body.statements {
            match &statement.kind {
                StatementKind::Variable(v) if v.space == StateSpace::Shared => {
                    self.declare(v, &|name| Key { function: Some(index), block, name });
                }
                StatementKind::Block(inner) => self.body(index, inner, scopes),
                StatementKind::Instruction(instruction) => {
                    self.mentions(index, instruction, statement.origin.line, scopes)
                }
                _ => {}
            }
        }
        scopes.leave();
    }

    fn mentions(&mut self, index: usize, instruction: &Instruction, line: u32, scopes: &Scopes) {
        for name in instruction.reads() {
            if let Some(key) = scopes.resolve(name) {
                self.uses.entry(index).or_default().insert(key.clone());
            }
        }
        for name in instruction.operands.iter().flat_map(names_without_place) {
            if let Some(key) = scopes.resolve(name) {
                self.keep(key.clone(), SharedError::Operand { variable: name.clone(), line });
            }
        }
    }

    fn declare(&mut self, variable: &Variable, key: &dyn Fn(Name) -> Key) {
        let is_unsized = variable.dimensions.iter().any(Option::is_none);
        if is_unsized {
            self.dynamics.insert(key(variable.name.clone()), variable.alignment().into());
            return;
        }
        let bytes = variable.bytes().filter(|&b| b <= u64::from(u32::MAX));
        for name in declared_names(variable) {
            let key = key(name.clone());
            self.statics
                .push((key.clone(), Size { bytes: bytes.unwrap_or(0), alignment: variable.alignment().into() }));
            if variable.linkage == Linkage::Extern {
                self.keep(key, SharedError::External(name));
            } else if bytes.is_none() {
                self.keep(key, SharedError::Size(name));
            }
        }
    }

    fn keep(&mut self, key: Key, reason: SharedError) {
        self.kept.entry(key).or_insert(reason);
    }

    /// Keeps variables whose names occur in initialisers or in debug sections.
    fn keep_what_others_name(&mut self, module: &Module, globals: &BTreeSet<Name>) {
        for item in &module.items {
            let mut named = Vec::new();
            let reason: &dyn Fn(&Name) -> SharedError = match &item.kind {
                ItemKind::Variable(variable) => {
                    variable.initializer.iter().for_each(|i| visit_symbols(i, &mut |name| named.push(name.clone())));
                    &|_| SharedError::Initializer(variable.name.clone())
                }
                ItemKind::Directive(directive) => {
                    named.extend(directive.arguments.iter().cloned());
                    &|name| SharedError::Section(name.clone())
                }
                ItemKind::Function(_) => continue,
            };
            for name in named.iter().filter(|name| globals.contains(*name)) {
                self.keep(Key::global(name.clone()), reason(name));
            }
        }
    }

    /// The functions that use a variable.
    pub(crate) fn users<'s>(&'s self, key: &'s Key) -> impl Iterator<Item = usize> + 's {
        self.uses.iter().filter(move |(_, keys)| keys.contains(key)).map(|(&index, _)| index)
    }

    /// The kernel that alone uses a variable, if no device function does.
    pub(crate) fn private_to(&self, key: &Key, kernels: &[usize]) -> Option<usize> {
        let mut users = self.users(key);
        let first = users.next()?;
        (users.next().is_none() && kernels.contains(&first)).then_some(first)
    }

    /// Static variables that can be moved.
    pub(crate) fn moved_statics(&self) -> impl Iterator<Item = &(Key, Size)> {
        self.statics.iter().filter(|(key, _)| !self.kept.contains_key(key))
    }
}

/// Names in operands that cannot contain an offset: in vectors and argument lists.
fn names_without_place(operand: &Operand) -> Vec<&Name> {
    match operand {
        Operand::Vector(inner) | Operand::List(inner) => inner.iter().flat_map(all_names).collect(),
        Operand::Bracket(inner) => inner.iter().flat_map(names_without_place).collect(),
        _ => Vec::new(),
    }
}

fn all_names(operand: &Operand) -> Vec<&Name> {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) => vec![name],
        Operand::Address(Address { base: AddressBase::Name(name), .. }) => vec![name],
        Operand::Vector(inner) | Operand::List(inner) | Operand::Bracket(inner) => {
            inner.iter().flat_map(all_names).collect()
        }
        _ => Vec::new(),
    }
}

fn visit_symbols(initializer: &Initializer, visit: &mut dyn FnMut(&Name)) {
    match initializer {
        Initializer::Symbol { name, .. } => visit(name),
        Initializer::List(list) => list.iter().for_each(|inner| visit_symbols(inner, visit)),
        Initializer::Immediate(_) => {}
    }
}
