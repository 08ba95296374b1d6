//! The invariants of a nest, and the check for them.

use super::{Nest, NestArg, NestTensor, STATEMENTS_MAX, Slot, Statement, visit};
use crate::tensor_graph::{PointOp, PointStep, Value};
use atoll_kgraph::DType;

type Check = Result<(), String>;

fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(reason()) }
}

impl Nest {
    /// Checks the nest against the operands and results of its node; returns the first violation.
    pub fn check(&self, operands: &[&Value], results: &[&Value]) -> Result<(), String> {
        let mut statements = 0;
        visit(&self.body, &mut |_| statements += 1);
        ensure(statements <= STATEMENTS_MAX, || {
            format!("it has {statements} statements, more than the limit of {STATEMENTS_MAX}")
        })?;
        let points = self.domain.len();
        ensure(self.slots.len() >= points && self.slots[..points].iter().all(|ty| *ty == DType::I32), || {
            "the slots of the coordinates are not I32".into()
        })?;
        let mut assigned = vec![false; self.slots.len()];
        assigned[..points].fill(true);
        let mut fixed = vec![false; self.slots.len()];
        fixed[..points].fill(true);
        let tensors = Tensors { operands, results };
        Checker { nest: self, tensors, assigned, fixed }.block(&self.body)
    }
}

struct Tensors<'a> {
    operands: &'a [&'a Value],
    results: &'a [&'a Value],
}

struct Checker<'a> {
    nest: &'a Nest,
    tensors: Tensors<'a>,
    /// Slots that are assigned on every path to this statement.
    assigned: Vec<bool>,
    /// Coordinates, and counters of the enclosing loops: no statement may assign them.
    fixed: Vec<bool>,
}

impl Checker<'_> {
    fn block(&mut self, body: &[Statement]) -> Check {
        body.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Statement) -> Check {
        match statement {
            Statement::Step { to, op, ty, args } => {
                ensure(args.len() == op.arity(), || {
                    format!("{op:?} takes {} operands, not {}", op.arity(), args.len())
                })?;
                for (position, arg) in args.iter().enumerate() {
                    let found = self.read(arg)?;
                    let wanted = match op {
                        PointOp::Cast | PointOp::BitCast => None,
                        PointOp::Where if position == 0 => Some(DType::Bool),
                        _ => Some(*ty),
                    };
                    fits(found, wanted, &format!("{op:?}"))?;
                }
                self.assign(*to, PointStep { op: *op, ty: *ty, args: Vec::new() }.result_type())
            }
            Statement::Load { to, from, at } => {
                self.index(at)?;
                let value = self.tensors.find(*from)?;
                self.assign(*to, value.dtype)
            }
            Statement::Store { result, at, value } => {
                self.index(at)?;
                let dtype = self.tensors.find(NestTensor::Result(*result))?.dtype;
                fits(self.read(value)?, Some(dtype), "a store")
            }
            Statement::Loop { counter, from, to, while_true, body } => {
                self.index(from)?;
                self.index(to)?;
                if let Some(slot) = while_true {
                    fits(self.read(&NestArg::Slot(*slot))?, Some(DType::Bool), "the condition of a loop")?;
                }
                self.assign(*counter, DType::I32)?;
                // The body may run zero times, so its assignments do not count after the loop.
                let (assigned, fixed) = (self.assigned.clone(), self.fixed.clone());
                self.fixed[counter.0 as usize] = true;
                self.block(body)?;
                (self.assigned, self.fixed) = (assigned, fixed);
                // The counter must not be read after its loop.
                self.assigned[counter.0 as usize] = false;
                Ok(())
            }
            Statement::Refuse { condition, text, values } => {
                let holes = text.matches("{}").count();
                ensure(holes == values.len(), || {
                    format!("the text of a refusal has {holes} placeholders and {} values", values.len())
                })?;
                fits(self.read(condition)?, Some(DType::Bool), "a refusal")
            }
            Statement::If { condition, then, otherwise } => {
                fits(self.read(condition)?, Some(DType::Bool), "a condition")?;
                let before = self.assigned.clone();
                self.block(then)?;
                let after_then = std::mem::replace(&mut self.assigned, before);
                self.block(otherwise)?;
                self.assigned.iter_mut().zip(after_then).for_each(|(here, there)| *here &= there);
                Ok(())
            }
        }
    }

    /// The type of an argument; `None` for a constant, which takes the type of its use.
    fn read(&self, arg: &NestArg) -> Result<Option<DType>, String> {
        match arg {
            NestArg::Const(_) => Ok(None),
            NestArg::Size(_) => Ok(Some(DType::I32)),
            NestArg::Slot(Slot(index)) => {
                ensure(self.assigned.get(*index as usize) == Some(&true), || {
                    format!("slot {index} is read before it is assigned")
                })?;
                Ok(Some(self.nest.slots[*index as usize]))
            }
        }
    }

    fn index(&self, arg: &NestArg) -> Check {
        fits(self.read(arg)?, Some(DType::I32), "an index")
    }

    fn assign(&mut self, Slot(index): Slot, dtype: DType) -> Check {
        let slot = index as usize;
        ensure(self.nest.slots.get(slot) == Some(&dtype), || format!("slot {index} does not hold a {dtype}"))?;
        ensure(!self.fixed[slot], || format!("slot {index} is a coordinate or the counter of a loop around"))?;
        self.assigned[slot] = true;
        Ok(())
    }
}

impl Tensors<'_> {
    fn find(&self, tensor: NestTensor) -> Result<&Value, String> {
        let found = match tensor {
            NestTensor::Operand(index) => self.operands.get(index as usize),
            NestTensor::Result(index) => self.results.get(index as usize),
        };
        found.copied().ok_or_else(|| format!("{tensor:?} does not exist"))
    }
}

fn fits(found: Option<DType>, wanted: Option<DType>, place: &str) -> Check {
    match (found, wanted) {
        (Some(found), Some(wanted)) => ensure(found == wanted, || format!("{place} reads {found} as {wanted}")),
        _ => Ok(()),
    }
}
