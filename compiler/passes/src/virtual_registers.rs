//! The special registers that `virtualize_block_index` replaces, and the functions that read them.

use crate::preemptible::{callees, visit_statements};
use atoll_ptx::{Body, Function, Initializer, ItemKind, Module, Name, Operand, StatementKind};
use std::collections::{BTreeMap, BTreeSet};

/// The special registers with virtual values.
pub(crate) const VIRTUAL: [&str; 13] = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%nwarpid",
];

/// The entry of [`VIRTUAL`] with a name.
pub(crate) fn virtual_register(name: &str) -> Option<&'static str> {
    VIRTUAL.into_iter().find(|special| *special == name)
}

/// The register that holds the virtual value: `%atoll_tid_x` for `%tid.x`.
pub(crate) fn register_of(special: &str) -> Name {
    Name::from(format!("%atoll_{}", special.trim_start_matches('%').replace('.', "_")))
}

/// For every function with a body: the virtual registers that it, or a function it calls by name,
/// reads. Functions without any are omitted.
pub(crate) fn needs(module: &Module) -> BTreeMap<Name, BTreeSet<&'static str>> {
    let bodies: Vec<(&Function, &Body)> = module.functions().filter_map(|f| Some((f, f.body.as_ref()?))).collect();
    let mut needs: BTreeMap<Name, BTreeSet<&'static str>> =
        bodies.iter().map(|(function, body)| (function.name.clone(), read_in(body))).collect();
    let calls: Vec<(&Name, Vec<Name>)> =
        bodies.iter().map(|(function, body)| (&function.name, called_by_name(body))).collect();
    // The sets only grow, so this ends.
    loop {
        let mut learnt = false;
        for (caller, callees) in &calls {
            let inherited: Vec<&'static str> =
                callees.iter().filter_map(|callee| needs.get(callee)).flatten().copied().collect();
            let own = needs.entry((*caller).clone()).or_default();
            let before = own.len();
            own.extend(inherited);
            learnt |= own.len() > before;
        }
        if !learnt {
            needs.retain(|_, set| !set.is_empty());
            return needs;
        }
    }
}

fn read_in(body: &Body) -> BTreeSet<&'static str> {
    let mut found = BTreeSet::new();
    visit_statements(body, &mut |statement| {
        let names = statement.instruction().map(|i| i.reads()).unwrap_or_default();
        found.extend(names.into_iter().filter_map(|name| virtual_register(name)));
    });
    found
}

/// The functions a body calls. Calls that cannot be followed are rejected elsewhere, for each
/// kernel that reaches them.
fn called_by_name(body: &Body) -> Vec<Name> {
    callees(body).map(|found| found.into_iter().map(|(name, _)| name).collect()).unwrap_or_default()
}

/// Functions whose signature cannot change: their address is taken, or they are called through a
/// table.
pub(crate) fn with_fixed_signature(module: &Module) -> BTreeSet<Name> {
    let functions: BTreeSet<&Name> = module.functions().map(|f| &f.name).collect();
    let mut found = BTreeSet::new();
    let mut note = |name: &Name| {
        if functions.contains(name) {
            found.insert(name.clone());
        }
    };
    for item in &module.items {
        match &item.kind {
            ItemKind::Variable(variable) => variable.initializer.iter().for_each(|i| visit_symbols(i, &mut note)),
            ItemKind::Directive(directive) if directive.name == "alias" => {
                directive.arguments.iter().for_each(&mut note)
            }
            ItemKind::Function(Function { body: Some(body), .. }) => {
                visit_statements(body, &mut |statement| match &statement.kind {
                    StatementKind::CallTargets { targets, .. } => targets.iter().for_each(&mut note),
                    StatementKind::Instruction(i) if i.opcode == "call" => {
                        i.operands
                            .iter()
                            .filter(|o| matches!(o, Operand::List(_)))
                            .for_each(|list| visit_names(list, &mut note));
                    }
                    StatementKind::Instruction(i) => {
                        i.operands.iter().for_each(|operand| visit_names(operand, &mut note))
                    }
                    _ => {}
                })
            }
            _ => {}
        }
    }
    found
}

fn visit_symbols(initializer: &Initializer, visit: &mut dyn FnMut(&Name)) {
    match initializer {
        Initializer::Symbol { name, .. } => visit(name),
        Initializer::List(list) => list.iter().for_each(|inner| visit_symbols(inner, visit)),
        Initializer::Immediate(_) => {}
    }
}

fn visit_names(operand: &Operand, visit: &mut dyn FnMut(&Name)) {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) => visit(name),
        Operand::Vector(inner) | Operand::List(inner) => inner.iter().for_each(|operand| visit_names(operand, visit)),
        _ => {}
    }
}
