//! Atomic operations: one thread at a time runs, so they are a load, a computation and a store.

use crate::alu::{self, Alu};
use crate::op::{Addr, Dst, Src};
use atoll_ptx::{Instruction, ScalarType};

/// `atom` or `red`.
pub(crate) struct Atomic {
    pub(crate) addr: Addr,
    pub(crate) bits: u32,
    pub(crate) function: AtomicFunction,
    /// Each value as two words, low first.
    pub(crate) src: Vec<[Src; 2]>,
    pub(crate) dst: Option<Dst>,
}

/// From what memory holds to what it shall hold.
pub(crate) enum AtomicFunction {
    Exchange,
    CompareAndSwap,
    /// Wraps to zero behind the bound.
    Increment,
    /// Wraps to the bound below zero.
    Decrement,
    /// Any other operation is the arithmetic instruction of its name.
    Alu(Alu),
}

impl AtomicFunction {
    /// How many values it takes.
    pub(crate) fn sources(&self) -> usize {
        if matches!(self, AtomicFunction::CompareAndSwap) { 2 } else { 1 }
    }

    /// The new content of the memory.
    pub(crate) fn apply(&self, old: u128, values: &[u128]) -> u128 {
        match self {
            AtomicFunction::Exchange => values[0],
            AtomicFunction::CompareAndSwap => {
                if old == values[0] {
                    values[1]
                } else {
                    old
                }
            }
            AtomicFunction::Increment => {
                if old >= values[0] {
                    0
                } else {
                    old + 1
                }
            }
            AtomicFunction::Decrement => {
                if old == 0 || old > values[0] {
                    values[0]
                } else {
                    old - 1
                }
            }
            AtomicFunction::Alu(alu) => (alu.function)(&[old as u64, values[0] as u64])[0].into(),
        }
    }
}

const OPERATIONS: [&str; 10] = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];

impl Atomic {
    /// The operation and its type; `ordering` are the modifiers that make no difference.
    pub(crate) fn function(i: &Instruction, ordering: &[&str]) -> Result<(AtomicFunction, ScalarType), String> {
        let known = |m: &str| {
            OPERATIONS.contains(&m)
                || ordering.contains(&m)
                || ScalarType::from_name(m).is_some()
                || matches!(m, "global" | "shared" | "shared::cta")
        };
        if let Some(stranger) = i.modifiers.iter().find(|m| !known(m)) {
            return Err(format!("the modifier .{stranger} is not covered"));
        }
        let ty = i.ty().ok_or("its type is not covered")?;
        let name = i.modifiers.iter().find(|m| OPERATIONS.contains(&m.as_str())).ok_or("its operation is not covered")?;
        let function = match name.as_str() {
            "exch" => AtomicFunction::Exchange,
            "cas" => AtomicFunction::CompareAndSwap,
            "inc" => AtomicFunction::Increment,
            "dec" => AtomicFunction::Decrement,
            other if ty.bits() <= 64 => {
                let computing = alu::decode(&Instruction::new(&format!("{other}.{ty}"), Vec::new()))?;
                AtomicFunction::Alu(computing.ok_or("its type is not covered")?)
            }
            _ => return Err("its type is not covered".into()),
        };
        Ok((function, ty))
    }
}
