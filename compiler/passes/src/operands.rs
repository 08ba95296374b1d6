//! What an instruction reads, writes and mentions.

use atoll_ptx::{AddressBase, Instruction, Name, Operand};

/// Calls `visit` with every name in an operand, address bases included.
pub(crate) fn visit_names<'a>(operand: &'a Operand, visit: &mut dyn FnMut(&'a Name)) {
    match operand {
        Operand::Name(name) | Operand::NameOffset(name, _) | Operand::Not(name) => visit(name),
        Operand::Address(address) => {
            if let AddressBase::Name(name) = &address.base {
                visit(name);
            }
        }
        Operand::Vector(operands) | Operand::List(operands) | Operand::Bracket(operands) => {
            operands.iter().for_each(|inner| visit_names(inner, visit));
        }
        Operand::Pair(first, second) => {
            visit_names(first, visit);
            visit_names(second, visit);
        }
        Operand::Immediate(_) | Operand::Sink => {}
    }
}

/// The registers an instruction writes. PTX writes its first operand, alone, as a pair or as a vector; an address there is a store and
/// writes none. The few instructions that only read their first operand (`bar.sync %r1`) are taken to write it, which errs on the safe side
/// for every analysis here.
pub(crate) fn written(instruction: &Instruction) -> Vec<&Name> {
    let mut names = Vec::new();
    if let Some(first) = instruction.operands.first().filter(|o| !matches!(o, Operand::Address(_) | Operand::Bracket(_))) {
        visit_names(first, &mut |name| names.push(name));
    }
    names
}

/// Every name an instruction reads: guard, sources and address bases.
pub(crate) fn read(instruction: &Instruction) -> Vec<&Name> {
    let mut names: Vec<&Name> = instruction.guard.iter().map(|g| &g.predicate).collect();
    for (position, operand) in instruction.operands.iter().enumerate() {
        if position > 0 || matches!(operand, Operand::Address(_) | Operand::Bracket(_)) {
            visit_names(operand, &mut |name| names.push(name));
        }
    }
    names
}

/// Every name an instruction mentions.
pub(crate) fn mentioned(instruction: &Instruction) -> Vec<&Name> {
    let mut names: Vec<&Name> = instruction.guard.iter().map(|g| &g.predicate).collect();
    instruction.operands.iter().for_each(|operand| visit_names(operand, &mut |name| names.push(name)));
    names
}

/// Whether the instruction makes its thread wait for, or act together with, other threads that have not exited: block barriers and the
/// warp-wide `.sync` operations.
pub(crate) fn waits_for_threads(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.as_str(), "bar" | "barrier") || instruction.has("sync") || instruction.has("aligned")
}
