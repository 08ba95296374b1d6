//! Instructions and calls that may destroy the context of a GPU, besides accesses to memory. The
//! form [`FenceForm::Exit`](crate::FenceForm::Exit) rejects them.

use super::NotFenced;
use crate::preemptible::callees;
use atoll_ptx::{Function, Immediate, Instruction, Module, Name, Operand};

/// Barriers of a block.
const BARRIERS: i128 = 16;

/// Threads of a warp; a barrier waits for a multiple of them.
const WARP: i128 = 32;

/// Most threads of a block.
const THREADS_MAX: i128 = 1024;

/// Why an instruction may destroy the context.
pub(super) fn hazard(instruction: &Instruction) -> Option<&'static str> {
    if instruction.opcode == "brkpt" {
        return Some("it stops the context");
    }
    if instruction.has("L2::cache_hint") {
        return Some("its cache policy may be invalid");
    }
    let is_barrier = matches!(instruction.opcode.as_str(), "bar" | "barrier") && !instruction.has("warp");
    (is_barrier && !is_valid_barrier(instruction)).then_some("its barrier or its number of threads may be invalid")
}

/// Whether the number of a barrier and its number of threads are valid constants.
fn is_valid_barrier(instruction: &Instruction) -> bool {
    let mut operands = &instruction.operands[..];
    if instruction.has("red") {
        // The result, and the predicate of the thread.
        operands = match operands {
            [_, between @ .., _] => between,
            _ => return false,
        };
    }
    let constant = |operand: &Operand| match operand {
        Operand::Immediate(Immediate::Int(value)) => Some(*value),
        _ => None,
    };
    let is_number = |operand| constant(operand).is_some_and(|number| (0..BARRIERS).contains(&number));
    let is_count =
        |operand| constant(operand).is_some_and(|count| count % WARP == 0 && (WARP..=THREADS_MAX).contains(&count));
    match operands {
        [number] => is_number(number),
        [number, count] => is_number(number) && is_count(count),
        _ => false,
    }
}

/// Refuses functions that call themselves: the stack of a thread is as large as the deepest chain of
/// calls, and beyond it is a fault.
pub(super) fn check_calls(module: &Module, kernel: &Function) -> Result<(), NotFenced> {
    // The functions whose calls are being followed, each with the calls that are left.
    let mut chain: Vec<(Name, Vec<Name>)> = vec![(kernel.name.clone(), callees_of(kernel)?)];
    let mut done: Vec<Name> = Vec::new();
    while let Some((_, left)) = chain.last_mut() {
        let Some(next) = left.pop() else {
            done.extend(chain.pop().map(|(name, _)| name));
            continue;
        };
        if chain.iter().any(|(name, _)| *name == next) {
            return Err(NotFenced::Recursion { function: next.to_string() });
        }
        if let Some(function) = module.function(&next).filter(|_| !done.contains(&next)) {
            chain.push((next, callees_of(function)?));
        }
    }
    Ok(())
}

fn callees_of(function: &Function) -> Result<Vec<Name>, NotFenced> {
    let Some(body) = &function.body else { return Ok(Vec::new()) };
    // A call of an unknown function is refused with its name elsewhere.
    Ok(callees(body).unwrap_or_default().into_iter().map(|(name, _)| name).collect())
}
