//! Moves static shared memory to one dynamic array.
//!
//! If kernels are combined into one launch, the sizes of their static shared arrays add up. Dynamic
//! shared memory needs only the largest size. The pass therefore turns every static array of the
//! module into an offset into [`DYNAMIC_SHARED`]. Arrays that were already dynamic start after the
//! static ones.
//!
//! # Layout
//! A variable is *private* to a kernel if only that kernel can reach it and no device function uses
//! it; otherwise it is *common*. Common variables have one offset for the whole module, from 0 up.
//! A kernel's private variables start after the last common one it can reach, and dynamic arrays
//! after those. Dynamic arrays used by device functions must start at the same offset in every
//! kernel that can reach such a function.
//!
//! # Variables that stay
//! A variable stays static if its address occurs where an offset is not possible: in a vector, in
//! the arguments of a call, or in the initial value of a table. A variable that another module
//! defines also stays. If a dynamic array has such an address, it must keep its start, so no
//! variable is moved before it.

use crate::module_facts::align_up;
use crate::preemptible::reachable_functions;
use crate::shared_error::SharedError;
use crate::shared_survey::{Key, Scopes, Size, Survey, declared_names, module_scope};
use atoll_ptx::{
    Address, AddressBase, Body, FunctionKind, Item, ItemKind, Linkage, Module, Name, Operand, ScalarType, StateSpace,
    StatementKind, Variable,
};
use std::collections::{BTreeMap, BTreeSet};

/// The one dynamic shared array of a transformed module.
pub const DYNAMIC_SHARED: &str = "atoll_dynamic_shared";

/// Smallest alignment of [`DYNAMIC_SHARED`]: the alignment of dynamic shared memory on every
/// device.
const ALIGNMENT_MIN: u64 = 16;

/// Shared memory of one kernel after the pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedUse {
    /// Bytes that the launch must provide for variables that were static.
    pub(crate) bytes: u32,
    /// Whether the kernel used dynamic shared memory before: the launch then adds those bytes to
    /// [`SharedUse::bytes`].
    pub(crate) has_dynamic: bool,
    /// Why variables that the kernel can reach were not moved.
    pub(crate) kept: Vec<SharedError>,
}

/// The offsets of the variables.
#[derive(Debug, Default)]
struct Layout {
    /// By the function that uses the variable, because a dynamic array starts at another offset in
    /// each kernel.
    offsets: BTreeMap<(usize, Key), u64>,
    /// The largest alignment of all.
    alignment: u64,
}

/// Rewrites a module. Returns the shared memory of each kernel with a body, in order.
pub(crate) fn shared_to_dynamic(module: &mut Module) -> Result<Vec<SharedUse>, SharedError> {
    let mut survey = Survey::of(module);
    let kernels: Vec<usize> =
        module.items.iter().enumerate().filter(|(_, item)| is_kernel(item)).map(|(index, _)| index).collect();
    if survey.statics.is_empty() && survey.dynamics.is_empty() {
        return Ok(vec![SharedUse::default(); kernels.len()]);
    }
    let reach = reach(module, &survey, &kernels);
    keep_in_front_of_kept(&mut survey, &reach);
    let (layout, uses) = lay_out(&survey, &kernels, &reach)?;
    let globals = module_scope(module);
    for (index, item) in module.items.iter_mut().enumerate() {
        let ItemKind::Function(function) = &mut item.kind else { continue };
        let mut scopes = Scopes::of(&globals, index, function);
        if let Some(body) = &mut function.body {
            Rewrite { index, layout: &layout }.body(body, &mut scopes);
        }
    }
    replace_declarations(module, &survey, &layout);
    Ok(uses)
}

fn is_kernel(item: &Item) -> bool {
    matches!(&item.kind, ItemKind::Function(f) if f.kind == FunctionKind::Entry && f.body.is_some())
}

/// Keeps the static variables of kernels that use a dynamic array which cannot be moved: the array
/// would have to start after them. Other dynamic arrays share its memory, and stay too.
fn keep_in_front_of_kept(survey: &mut Survey, reach: &BTreeMap<usize, BTreeSet<usize>>) {
    loop {
        let mut kept: Vec<(Key, SharedError)> = Vec::new();
        for array in survey.dynamics.keys().filter(|key| survey.kept.contains_key(key)) {
            let users: BTreeSet<usize> = survey.users(array).collect();
            let reached = reach.values().filter(|items| !items.is_disjoint(&users)).flatten();
            let variables: BTreeSet<&Key> = reached.filter_map(|item| survey.uses.get(item)).flatten().collect();
            for key in variables.into_iter().filter(|key| !survey.kept.contains_key(key)) {
                kept.push((
                    key.clone(),
                    SharedError::InFrontOf { variable: key.name.clone(), array: array.name.clone() },
                ));
            }
        }
        if kept.is_empty() {
            return;
        }
        survey.kept.extend(kept);
    }
}

/// For each kernel the items it can execute: itself and the device functions it can reach. A kernel
/// with calls that cannot be followed reaches all functions.
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

/// Assigns every variable its offset.
fn lay_out(
    survey: &Survey,
    kernels: &[usize],
    reach: &BTreeMap<usize, BTreeSet<usize>>,
) -> Result<(Layout, Vec<SharedUse>), SharedError> {
    let mut layout = Layout::default();
    let common_ends = place_common(survey, kernels, &mut layout);
    let mut static_ends = BTreeMap::new();
    for &kernel in kernels {
        let reached = |key: &Key| survey.users(key).any(|user| reach[&kernel].contains(&user));
        let mut end = common_ends.iter().filter(|(key, _)| reached(key)).map(|&(_, end)| end).max().unwrap_or(0);
        for (key, size) in survey.moved_statics().filter(|(key, _)| survey.private_to(key, kernels) == Some(kernel)) {
            end = layout.place(key, *size, end, [kernel]);
        }
        static_ends.insert(kernel, end);
    }
    let uses = place_dynamic(survey, reach, &static_ends, &mut layout)?;
    Ok((layout, uses))
}

/// Places the common variables one after another and returns the end of each.
fn place_common<'s>(survey: &'s Survey, kernels: &[usize], layout: &mut Layout) -> Vec<(&'s Key, u64)> {
    let mut end = 0;
    let common = survey
        .moved_statics()
        .filter(|(key, _)| survey.private_to(key, kernels).is_none() && survey.users(key).next().is_some());
    common
        .map(|(key, size)| {
            end = layout.place(key, *size, end, survey.users(key));
            (key, end)
        })
        .collect()
}

/// Places the dynamic arrays after the static ones, and computes the needs of each kernel.
fn place_dynamic(
    survey: &Survey,
    reach: &BTreeMap<usize, BTreeSet<usize>>,
    static_ends: &BTreeMap<usize, u64>,
    layout: &mut Layout,
) -> Result<Vec<SharedUse>, SharedError> {
    let alignment = survey.dynamics.values().copied().fold(ALIGNMENT_MIN, u64::max);
    let is_moved = |key: &Key| survey.dynamics.contains_key(key) && !survey.kept.contains_key(key);
    let moves_dynamic = |function: usize| survey.uses[&function].iter().any(is_moved);
    let through_callee = |kernel: usize| reach[&kernel].iter().any(|&f| f != kernel && moves_dynamic(f));
    let common_end =
        static_ends.iter().filter(|(kernel, _)| through_callee(**kernel)).map(|(_, &end)| end).max().unwrap_or(0);
    let mut uses = Vec::new();
    for (&kernel, &static_end) in static_ends {
        let has_moved = reach[&kernel].iter().any(|&f| moves_dynamic(f));
        let end = match has_moved {
            false => static_end,
            true => align_up(if through_callee(kernel) { common_end } else { static_end }, alignment),
        };
        for &function in reach[&kernel].iter().filter(|_| has_moved) {
            for key in survey.uses[&function].iter().filter(|key| is_moved(key)) {
                layout.offsets.insert((function, key.clone()), end);
                layout.alignment = layout.alignment.max(alignment);
            }
        }
        let reached: BTreeSet<&Key> = reach[&kernel].iter().flat_map(|f| &survey.uses[f]).collect();
        uses.push(SharedUse {
            bytes: u32::try_from(end).map_err(|_| SharedError::Size(Name::new(DYNAMIC_SHARED)))?,
            has_dynamic: reached.iter().any(|key| survey.dynamics.contains_key(key)),
            kept: reached.iter().filter_map(|key| survey.kept.get(key).cloned()).collect(),
        });
    }
    Ok(uses)
}

impl Layout {
    /// Places a variable at or after `from` for all its users, and returns its end.
    fn place(&mut self, key: &Key, size: Size, from: u64, users: impl IntoIterator<Item = usize>) -> u64 {
        let offset = align_up(from, size.alignment);
        for user in users {
            self.offsets.insert((user, key.clone()), offset);
        }
        self.alignment = self.alignment.max(size.alignment);
        offset.saturating_add(size.bytes)
    }
}

/// Removes the old declarations, except of variables that stay, and inserts the new one at the
/// first of them or at the first function.
fn replace_declarations(module: &mut Module, survey: &Survey, layout: &Layout) {
    let stays = |key: &Key| survey.kept.contains_key(key);
    let globals = module_scope(module);
    for (index, item) in module.items.iter_mut().enumerate() {
        let ItemKind::Function(function) = &mut item.kind else { continue };
        let mut scopes = Scopes::of(&globals, index, function);
        if let Some(body) = &mut function.body {
            remove_moved(body, &mut scopes, &stays);
        }
    }
    let is_shared = |item: &Item| matches!(&item.kind, ItemKind::Variable(v) if v.space == StateSpace::Shared);
    let is_place = |item: &Item| is_shared(item) || matches!(item.kind, ItemKind::Function(_));
    let place = module.items.iter().position(is_place).unwrap_or(module.items.len());
    module.items.retain(|item| match &item.kind {
        ItemKind::Variable(v) if v.space == StateSpace::Shared => {
            declared_names(v).into_iter().any(|name| stays(&Key::global(name)))
        }
        _ => true,
    });
    if layout.offsets.is_empty() {
        return;
    }
    let array = Variable {
        linkage: Linkage::Extern,
        // Alignments have 32 bits, on devices and in the tree.
        align: Some(u32::try_from(layout.alignment.max(ALIGNMENT_MIN)).unwrap_or(u32::MAX)),
        dimensions: vec![None],
        ..Variable::new(StateSpace::Shared, ScalarType::B8, DYNAMIC_SHARED)
    };
    module.items.insert(place, Item::built(ItemKind::Variable(array)));
}

fn remove_moved(body: &mut Body, scopes: &mut Scopes, stays: &dyn Fn(&Key) -> bool) {
    scopes.enter(body);
    body.statements.retain(|statement| match &statement.kind {
        StatementKind::Variable(v) if v.space == StateSpace::Shared => {
            declared_names(v).iter().any(|name| scopes.resolve(name).is_some_and(stays))
        }
        _ => true,
    });
    for statement in &mut body.statements {
        if let StatementKind::Block(inner) = &mut statement.kind {
            remove_moved(inner, scopes, stays);
        }
    }
    scopes.leave();
}

/// Replaces uses of shared variables in one function.
struct Rewrite<'l> {
    /// Index of the function's item.
    index: usize,
    layout: &'l Layout,
}

impl Rewrite<'_> {
    fn body(&self, body: &mut Body, scopes: &mut Scopes) {
        scopes.enter(body);
        for statement in &mut body.statements {
            if let StatementKind::Block(inner) = &mut statement.kind {
                self.body(inner, scopes);
            }
            if !statement
                .instruction()
                .is_some_and(|i| i.reads().into_iter().any(|name| self.offset(name, scopes).is_some()))
            {
                continue;
            }
            if let StatementKind::Instruction(instruction) = statement.edit() {
                instruction.operands.iter_mut().for_each(|operand| self.operand(operand, scopes));
            }
        }
        scopes.leave();
    }

    /// The offset of the variable with a name, if it is moved.
    fn offset(&self, name: &Name, scopes: &Scopes) -> Option<u64> {
        self.layout.offsets.get(&(self.index, scopes.resolve(name)?.clone())).copied()
    }

    /// Changes one operand. Lists and vectors cannot contain an offset, so their elements stay.
    fn operand(&self, operand: &mut Operand, scopes: &Scopes) {
        match operand {
            Operand::Name(name) => {
                if let Some(offset) = self.offset(name, scopes) {
                    *operand = moved(offset);
                }
            }
            Operand::NameOffset(name, inner) => {
                if let Some(offset) = self.offset(name, scopes) {
                    *operand = moved(offset.wrapping_add_signed(*inner));
                }
            }
            Operand::Address(Address { base: AddressBase::Name(name), offset: inner }) => {
                if let Some(offset) = self.offset(name, scopes) {
                    *name = Name::new(DYNAMIC_SHARED);
                    *inner = inner.wrapping_add_unsigned(offset);
                }
            }
            // `[a, b]` holds addresses of asynchronous copies, which may contain an offset.
            Operand::Bracket(inner) => inner.iter_mut().for_each(|operand| self.operand(operand, scopes)),
            _ => {}
        }
    }
}

/// The address `offset` bytes into the dynamic array.
fn moved(offset: u64) -> Operand {
    match offset.cast_signed() {
        0 => Operand::from(DYNAMIC_SHARED),
        offset => Operand::NameOffset(Name::new(DYNAMIC_SHARED), offset),
    }
}
