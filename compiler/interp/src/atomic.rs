//! Atomic operations. Only one thread runs at a time, so each is a load, a computation and a store.

use crate::alu::{self, Alu};
use crate::op::{Addr, Dst, Src};
use atoll_ptx::{Instruction, ScalarType};

/// `atom` or `red`.
pub(crate) struct Atomic {
    pub(crate) addr: Addr,
    /// Width of an element in bits.
    pub(crate) bits: u32,
    pub(crate) function: AtomicFunction,
    /// One element, or the elements of a vector, which are adjacent and updated one after another.
    pub(crate) elements: Vec<AtomicElement>,
}

pub(crate) struct AtomicElement {
    /// Each value as two words, low first.
    pub(crate) src: Vec<[Src; 2]>,
    pub(crate) dst: Option<Dst>,
}

/// Computes the new content of memory from the old.
pub(crate) enum AtomicFunction {
    Exchange,
    CompareAndSwap,
    /// Wraps to zero above the bound.
    Increment,
    /// Wraps to the bound below zero.
    Decrement,
    /// Every other operation is the arithmetic instruction of the same name.
    Alu(Alu),
    /// An f32 addition, which keeps subnormal numbers in shared memory and flushes them in other
    /// memory.
    AddSingle {
        shared: Alu,
        elsewhere: Alu,
    },
}

impl AtomicFunction {
    /// Number of source values.
    pub(crate) fn sources(&self) -> usize {
        if matches!(self, AtomicFunction::CompareAndSwap) { 2 } else { 1 }
    }

    /// The new content of memory.
    pub(crate) fn apply(&self, old: u128, values: &[u128], in_shared: bool) -> u128 {
        let computed = |alu: &Alu| (alu.function)(&[old as u64, values[0] as u64])[0].into();
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
            AtomicFunction::Alu(alu) => computed(alu),
            AtomicFunction::AddSingle { shared, elsewhere } => computed(if in_shared { shared } else { elsewhere }),
        }
    }
}

const OPERATIONS: [&str; 10] = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];

impl Atomic {
    /// Decodes operation and type; `ordering` are the modifiers that have no effect here.
    pub(crate) fn function(i: &Instruction, ordering: &[&str]) -> Result<(AtomicFunction, ScalarType), String> {
        let known = |m: &str| {
            OPERATIONS.contains(&m)
                || ordering.contains(&m)
                || ScalarType::from_name(m).is_some()
                || matches!(m, "global" | "shared" | "shared::cta" | "v2" | "v4" | "v8")
                || m.starts_with("L2::")
        };
        if let Some(unknown) = i.modifiers.iter().find(|m| !known(m)) {
            return Err(format!("the modifier .{unknown} is not supported"));
        }
        let ty = i.ty().ok_or("its type is not supported")?;
        let name =
            i.modifiers.iter().find(|m| OPERATIONS.contains(&m.as_str())).ok_or("its operation is not supported")?;
        let function = match name.as_str() {
            "exch" => AtomicFunction::Exchange,
            "cas" => AtomicFunction::CompareAndSwap,
            "inc" => AtomicFunction::Increment,
            "dec" => AtomicFunction::Decrement,
            "add" if ty == ScalarType::F32 => {
                AtomicFunction::AddSingle { shared: computing("add.f32")?, elsewhere: computing("add.ftz.f32")? }
            }
            other if ty.bits() <= 64 => AtomicFunction::Alu(computing(&format!("{other}.{ty}"))?),
            _ => return Err("its type is not supported".into()),
        };
        Ok((function, ty))
    }
}

/// Decodes the arithmetic instruction of an operation.
fn computing(form: &str) -> Result<Alu, String> {
    alu::decode(&Instruction::new(form, Vec::new()))?.ok_or_else(|| "its type is not supported".into())
}
