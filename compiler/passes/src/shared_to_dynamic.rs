//! Moves static shared memory into one dynamic array.
//!
//! Static shared arrays of kernels that are put into one launch add up, dynamic ones do not: the launch gives the largest size that any of them needs. So every
//! static array of the module becomes an offset into [`DYNAMIC_SHARED`], and arrays that were dynamic before start behind them.
//!
//! # Layout
//! A variable is *private* to a kernel when that kernel alone can reach it and no device function mentions it; else it is *common*. Common variables have one place
//! for the whole module, from 0 up. A kernel's private variables start behind the last common one it can reach, and dynamic arrays behind those. Where device
//! functions use dynamic arrays these must start at the same place for every kernel that can reach such a function.

use crate::cuttable::{reachable_functions, visit_statements};
use crate::module_facts::align_up;
use atoll_ptx::{
    Address, AddressBase, Body, Function, FunctionKind, Instruction, Item, ItemKind, Linkage, Module, Name, Operand, ScalarType,
    StateSpace, StatementKind, Variable,
};
use std::collections::{BTreeMap, BTreeSet};

/// The one dynamic shared array of a transformed module.
pub const DYNAMIC_SHARED: &str = "atoll_dynamic_shared";

/// Least alignment of [`DYNAMIC_SHARED`]: what every device gives dynamic shared memory.
const ALIGNMENT_MIN: u64 = 16;

/// Shared memory of one kernel after the pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedUse {
    /// Bytes the launch must give for what was static.
    pub(crate) bytes: u32,
    /// Whether the kernel used dynamic shared memory before: the launch then adds those bytes to [`SharedUse::bytes`].
    pub(crate) has_dynamic: bool,
}

/// A use of shared memory that cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedError {
    /// The array is defined in another module.
    #[error("the shared variable `{0}` is external and has a size: link the modules first")]
    External(Name),
    /// The size is not known or beyond 4 GiB.
    #[error("the size of the shared variable `{0}` is not known")]
    Size(Name),
    /// Two variables of one name in nested scopes of one function.
    #[error("the shared variable `{0}` is declared twice in one function")]
    Twice(Name),
    /// An operand that has no place for an offset.
    #[error(
        "line {line}: the address of the shared variable `{variable}` stands in a vector or an argument list; move it to a register first"
    )]
    Operand {
        /// The variable.
        variable: Name,
        /// Where.
        line: u32,
    },
    /// An initialiser cannot hold an offset into dynamic memory.
    #[error("the variable `{0}` is initialised with the address of a shared variable")]
    Initializer(Name),
}

/// A shared variable, told apart from others of its name by the function that declares it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    /// Index of the item that declares it; `None` at module scope.
    function: Option<usize>,
    name: Name,
}

/// Size and alignment in bytes.
#[derive(Clone, Copy, Debug)]
struct Size {
    bytes: u64,
    alignment: u64,
}

/// Where the variables are and who uses them.
#[derive(Debug, Default)]
struct Survey {
    /// Static variables in source order.
    statics: Vec<(Key, Size)>,
    /// Dynamic arrays with their alignment.
    dynamics: BTreeMap<Key, u64>,
    /// For each item that is a function with a body: the shared variables it mentions.
    uses: BTreeMap<usize, BTreeSet<Key>>,
}

/// Where the variables go.
#[derive(Debug, Default)]
struct Layout {
    /// By the function that uses the variable: a dynamic array starts elsewhere in each kernel.
    offsets: BTreeMap<(usize, Key), u64>,
    /// The largest alignment of all.
    alignment: u64,
}

/// Rewrites a module. Says for each kernel with a body, in order, what shared memory it needs.
pub(crate) fn shared_to_dynamic(module: &mut Module) -> Result<Vec<SharedUse>, SharedError> {
    let survey = survey(module)?;
    let kernels: Vec<usize> = module.items.iter().enumerate().filter(|(_, item)| is_kernel(item)).map(|(index, _)| index).collect();
    if survey.statics.is_empty() && survey.dynamics.is_empty() {
        return Ok(vec![SharedUse::default(); kernels.len()]);
    }
    let reach = reach(module, &survey, &kernels);
    let (layout, uses) = lay_out(&survey, &kernels, &reach)?;
    for (index, item) in module.items.iter_mut().enumerate() {
        let Some(mentions) = survey.uses.get(&index) else { continue };
        let ItemKind::Function(function) = &mut item.kind else { continue };
        if let Some(body) = &mut function.body {
            let offset_of = |key: &Key| layout.offsets.get(&(index, key.clone())).copied();
            let offsets = mentions.iter().filter_map(|key| Some((&key.name, offset_of(key)?))).collect();
            Rewrite { offsets }.body(body)?;
        }
    }
    replace_declarations(module, &layout);
    Ok(uses)
}

fn is_kernel(item: &Item) -> bool {
    matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry && f.body.is_some())
}

fn as_shared(kind: &StatementKind) -> Option<&Variable> {
    match kind {
        StatementKind::Variable(v) if v.space == StateSpace::Shared => Some(v),
        _ => None,
    }
}

/// Finds every shared variable and every mention of one.
fn survey(module: &Module) -> Result<Survey, SharedError> {
    let mut survey = Survey::default();
    for item in &module.items {
        match &item.kind {
            ItemKind::Variable(v) if v.space == StateSpace::Shared => survey.declare(None, v)?,
            _ => {}
        }
    }
    for (index, item) in module.items.iter().enumerate() {
        let ItemKind::Function(Function { body: Some(body), .. }) = &item.kind else { continue };
        let mut variables = Vec::new();
        visit_statements(body, &mut |statement| variables.extend(as_shared(&statement.kind)));
        variables.into_iter().try_for_each(|v| survey.declare(Some(index), v))?;
        let mut names = BTreeSet::new();
        visit_statements(body, &mut |statement| names.extend(statement.instruction().into_iter().flat_map(Instruction::reads).cloned()));
        let keys = names.into_iter().filter_map(|name| survey.resolve(index, &name)).collect();
        survey.uses.insert(index, keys);
    }
    forbid_initializers(module, &survey)?;
    Ok(survey)
}

impl Survey {
    fn declare(&mut self, function: Option<usize>, variable: &Variable) -> Result<(), SharedError> {
        let key = |name: Name| Key { function, name };
        let is_unsized = variable.dimensions.iter().any(Option::is_none);
        if is_unsized {
            self.dynamics.insert(key(variable.name.clone()), variable.alignment().into());
            return Ok(());
        }
        if variable.linkage == Linkage::Extern {
            return Err(SharedError::External(variable.name.clone()));
        }
        let bytes = variable.bytes().filter(|&b| b <= u64::from(u32::MAX)).ok_or_else(|| SharedError::Size(variable.name.clone()))?;
        let names: Vec<Name> = match variable.count {
            None => vec![variable.name.clone()],
            Some(count) => (0..count).map(|i| Name::from(format!("{}{i}", variable.name))).collect(),
        };
        for name in names {
            let key = key(name);
            if self.statics.iter().any(|(other, _)| *other == key) {
                return Err(SharedError::Twice(key.name));
            }
            self.statics.push((key, Size { bytes, alignment: variable.alignment().into() }));
        }
        Ok(())
    }

    /// The functions that mention a variable.
    fn users<'s>(&'s self, key: &'s Key) -> impl Iterator<Item = usize> + 's {
        self.uses.iter().filter(move |(_, keys)| keys.contains(key)).map(|(&index, _)| index)
    }

    /// The kernel that alone mentions a variable, where no device function does.
    fn private_to(&self, key: &Key, kernels: &[usize]) -> Option<usize> {
        let mut users = self.users(key);
        let first = users.next()?;
        (users.next().is_none() && kernels.contains(&first)).then_some(first)
    }

    /// The shared variable a name stands for in a function: its own before the module's.
    fn resolve(&self, function: usize, name: &Name) -> Option<Key> {
        [Some(function), None]
            .into_iter()
            .map(|function| Key { function, name: name.clone() })
            .find(|key| self.dynamics.contains_key(key) || self.statics.iter().any(|(k, _)| k == key))
    }
}

fn forbid_initializers(module: &Module, survey: &Survey) -> Result<(), SharedError> {
    fn names_shared(initializer: &atoll_ptx::Initializer, survey: &Survey) -> bool {
        match initializer {
            atoll_ptx::Initializer::Symbol { name, .. } => survey.resolve(usize::MAX, name).is_some(),
            atoll_ptx::Initializer::List(list) => list.iter().any(|i| names_shared(i, survey)),
            atoll_ptx::Initializer::Immediate(_) => false,
        }
    }
    let guilty = module.items.iter().find_map(|item| match &item.kind {
        ItemKind::Variable(v) if v.initializer.as_ref().is_some_and(|i| names_shared(i, survey)) => Some(v.name.clone()),
        _ => None,
    });
    guilty.map_or(Ok(()), |name| Err(SharedError::Initializer(name)))
}

/// For each kernel the items it can run: itself and the device functions it reaches. A kernel with calls that cannot be followed reaches all.
fn reach(module: &Module, survey: &Survey, kernels: &[usize]) -> BTreeMap<usize, BTreeSet<usize>> {
    let function = |index: usize| match &module.items[index].kind {
        ItemKind::Function(f) => Some(f),
        _ => None,
    };
    let device_functions: Vec<usize> = survey.uses.keys().copied().filter(|i| !kernels.contains(i)).collect();
    let reach_of = |&kernel: &usize| {
        let reached = function(kernel).map(|f| reachable_functions(module, f));
        let mut items: BTreeSet<usize> = match reached {
            Some(Ok(found)) => device_functions
                .iter()
                .copied()
                .filter(|&i| function(i).is_some_and(|f| found.iter().any(|g| std::ptr::eq(*g, f))))
                .collect(),
            _ => device_functions.iter().copied().collect(),
        };
        items.insert(kernel);
        (kernel, items)
    };
    kernels.iter().map(reach_of).collect()
}

/// Gives every variable its offset.
fn lay_out(survey: &Survey, kernels: &[usize], reach: &BTreeMap<usize, BTreeSet<usize>>) -> Result<(Layout, Vec<SharedUse>), SharedError> {
    let mut layout = Layout::default();
    let common_ends = place_common(survey, kernels, &mut layout);
    let mut static_ends = BTreeMap::new();
    for &kernel in kernels {
        let reached = |key: &Key| survey.users(key).any(|user| reach[&kernel].contains(&user));
        let mut end = common_ends.iter().filter(|(key, _)| reached(key)).map(|&(_, end)| end).max().unwrap_or(0);
        for (key, size) in survey.statics.iter().filter(|(key, _)| survey.private_to(key, kernels) == Some(kernel)) {
            end = layout.place(key, *size, end, [kernel]);
        }
        static_ends.insert(kernel, end);
    }
    let uses = place_dynamic(survey, reach, &static_ends, &mut layout)?;
    Ok((layout, uses))
}

/// Places the common variables one behind the other and says where each ends.
fn place_common<'s>(survey: &'s Survey, kernels: &[usize], layout: &mut Layout) -> Vec<(&'s Key, u64)> {
    let mut end = 0;
    let common = survey.statics.iter().filter(|(key, _)| survey.private_to(key, kernels).is_none() && survey.users(key).next().is_some());
    common
        .map(|(key, size)| {
            end = layout.place(key, *size, end, survey.users(key));
            (key, end)
        })
        .collect()
}

/// Places the dynamic arrays behind the static ones, and says what each kernel needs.
fn place_dynamic(
    survey: &Survey,
    reach: &BTreeMap<usize, BTreeSet<usize>>,
    static_ends: &BTreeMap<usize, u64>,
    layout: &mut Layout,
) -> Result<Vec<SharedUse>, SharedError> {
    let alignment = survey.dynamics.values().copied().fold(ALIGNMENT_MIN, u64::max);
    let uses_dynamic = |function: usize| survey.uses[&function].iter().any(|key| survey.dynamics.contains_key(key));
    let through_callee = |kernel: usize| reach[&kernel].iter().any(|&f| f != kernel && uses_dynamic(f));
    let common_end = static_ends.iter().filter(|(kernel, _)| through_callee(**kernel)).map(|(_, &end)| end).max().unwrap_or(0);
    let mut uses = Vec::new();
    for (&kernel, &static_end) in static_ends {
        let has_dynamic = reach[&kernel].iter().any(|&f| uses_dynamic(f));
        let end = match has_dynamic {
            false => static_end,
            true => align_up(if through_callee(kernel) { common_end } else { static_end }, alignment),
        };
        for &function in reach[&kernel].iter().filter(|_| has_dynamic) {
            for key in survey.uses[&function].iter().filter(|key| survey.dynamics.contains_key(key)) {
                layout.offsets.insert((function, key.clone()), end);
                layout.alignment = layout.alignment.max(alignment);
            }
        }
        let bytes = u32::try_from(end).map_err(|_| SharedError::Size(Name::new(DYNAMIC_SHARED)))?;
        uses.push(SharedUse { bytes, has_dynamic });
    }
    Ok(uses)
}

impl Layout {
    /// Puts a variable at or behind `from` for all its users, and says where it ends.
    fn place(&mut self, key: &Key, size: Size, from: u64, users: impl IntoIterator<Item = usize>) -> u64 {
        let offset = align_up(from, size.alignment);
        for user in users {
            self.offsets.insert((user, key.clone()), offset);
        }
        self.alignment = self.alignment.max(size.alignment);
        offset.saturating_add(size.bytes)
    }
}

/// Takes the old declarations away and puts the new one where the first of them, or the first function, stood.
fn replace_declarations(module: &mut Module, layout: &Layout) {
    let is_old = |item: &Item| matches!(&item.kind, ItemKind::Variable(v) if v.space == StateSpace::Shared);
    let is_place = |item: &Item| is_old(item) || matches!(item.kind, ItemKind::Function(_));
    let place = module.items.iter().position(is_place).unwrap_or(module.items.len());
    module.items.retain(|item| !is_old(item));
    for item in &mut module.items {
        if let ItemKind::Function(Function { body: Some(body), .. }) = &mut item.kind {
            remove_shared(body);
        }
    }
    if layout.offsets.is_empty() {
        return;
    }
    let array = Variable {
        linkage: Linkage::Extern,
        // No device has alignments beyond 32 bits, and neither has the tree.
        align: Some(u32::try_from(layout.alignment.max(ALIGNMENT_MIN)).unwrap_or(u32::MAX)),
        dimensions: vec![None],
        ..Variable::new(StateSpace::Shared, ScalarType::B8, DYNAMIC_SHARED)
    };
    module.items.insert(place, Item::built(ItemKind::Variable(array)));
}

fn remove_shared(body: &mut Body) {
    body.statements.retain(|statement| as_shared(&statement.kind).is_none());
    for statement in &mut body.statements {
        if let StatementKind::Block(inner) = &mut statement.kind {
            remove_shared(inner);
        }
    }
}

/// Replaces mentions of shared variables in one function.
struct Rewrite<'l> {
    /// New places by old names.
    offsets: BTreeMap<&'l Name, u64>,
}

impl Rewrite<'_> {
    fn body(&self, body: &mut Body) -> Result<(), SharedError> {
        for statement in &mut body.statements {
            let line = statement.origin.line;
            if let StatementKind::Block(inner) = &mut statement.kind {
                self.body(inner)?;
            }
            if !statement.instruction().is_some_and(|i| i.reads().into_iter().any(|name| self.offsets.contains_key(name))) {
                continue;
            }
            if let StatementKind::Instruction(instruction) = statement.edit() {
                instruction.operands.iter_mut().try_for_each(|operand| self.operand(operand, line))?;
            }
        }
        Ok(())
    }

    /// Changes one operand. In a list or vector there is no place for an offset: that is refused.
    fn operand(&self, operand: &mut Operand, line: u32) -> Result<(), SharedError> {
        match operand {
            Operand::Name(name) => {
                if let Some(&offset) = self.offsets.get(name) {
                    *operand = moved(offset);
                }
            }
            Operand::NameOffset(name, inner) => {
                if let Some(&offset) = self.offsets.get(name) {
                    *operand = moved(offset.wrapping_add_signed(*inner));
                }
            }
            Operand::Address(Address { base, offset: inner }) => {
                if let AddressBase::Name(name) = base
                    && let Some(&offset) = self.offsets.get(name)
                {
                    *name = Name::new(DYNAMIC_SHARED);
                    *inner = inner.wrapping_add_unsigned(offset);
                }
            }
            // `[a, b]` holds addresses of asynchronous copies; an offset may stand there as behind any base.
            Operand::Bracket(inner) => inner.iter_mut().try_for_each(|operand| self.operand(operand, line))?,
            Operand::Vector(inner) | Operand::List(inner) => {
                let names = inner.iter().filter_map(|operand| match operand {
                    Operand::Name(name) | Operand::NameOffset(name, _) => Some(name),
                    _ => None,
                });
                if let Some(variable) = names.into_iter().find(|name| self.offsets.contains_key(name)) {
                    return Err(SharedError::Operand { variable: variable.clone(), line });
                }
            }
            Operand::Pair(..) | Operand::Not(_) | Operand::Immediate(_) | Operand::Sink => {}
        }
        Ok(())
    }
}

/// The address `offset` bytes into the dynamic array.
fn moved(offset: u64) -> Operand {
    match offset.cast_signed() {
        0 => Operand::from(DYNAMIC_SHARED),
        offset => Operand::NameOffset(Name::new(DYNAMIC_SHARED), offset),
    }
}
