//! Loop nests: one thread per point of the domain runs the body.

use crate::error::CodegenError;
use crate::scalar::{Scalar, held_as};
use crate::schedule::{FIRST_OWN, Tensor};
use crate::sweep;
use crate::target::TargetDescription;
use crate::writer::{Int, Writer, Written};
use atoll_frontend::nest::{Nest, NestArg, NestTensor, Slot, Statement};
use atoll_frontend::tensor_graph::{PointArg, PointOp, PointStep};
use atoll_kgraph::DType;
use atoll_ptx::{Name, Operand, ScalarType};

/// Writes a nest. Operands and results are addressed as dense tensors.
pub(crate) fn nest(
    target: &TargetDescription,
    nest: &Nest,
    inputs: &[Tensor],
    outputs: &[Tensor],
) -> Result<Written, CodegenError> {
    let mut w = Writer::new(&nest.stem);
    let bases = |w: &mut Writer, tensors: &[Tensor]| tensors.iter().map(|t| (w.base(t), t.dtype)).collect();
    let operands = bases(&mut w, inputs);
    let results = bases(&mut w, outputs);
    let single = nest.assignments().into_iter().map(|count| count == 1).collect();
    let mut body = Body { nest, operands, results, single, slots: vec![None; nest.slots.len()], refusals: 0 };
    // A point with a loop is enough work for one thread.
    let elements = if nest.has_loop() { 1 } else { target.elements_per_block };
    sweep::points(w, target, &nest.domain, elements, |w, point| {
        for (axis, at) in point.iter().enumerate() {
            body.slots[axis] = Some(at.operand());
        }
        body.block(w, &nest.body)
    })
}

struct Body<'a> {
    nest: &'a Nest,
    operands: Vec<(Name, DType)>,
    results: Vec<(Name, DType)>,
    /// Whether each slot is assigned only once: then it is just a name for the computed operand.
    single: Vec<bool>,
    /// The operand of each slot. A slot with several assignments has a register from its first
    /// assignment on.
    slots: Vec<Option<Operand>>,
    /// Number of refusals written so far.
    refusals: u32,
}

impl Body<'_> {
    fn block(&mut self, w: &mut Writer, body: &[Statement]) -> Result<(), CodegenError> {
        body.iter().try_for_each(|statement| self.statement(w, statement))
    }

    fn statement(&mut self, w: &mut Writer, statement: &Statement) -> Result<(), CodegenError> {
        match statement {
            Statement::Step { to, op, ty, args } => {
                self.step(w, *to, &PointStep { op: *op, ty: *ty, args: Vec::new() }, args)
            }
            Statement::Load { to, from, at } => {
                let (address, dtype) = self.address(w, *from, at)?;
                let value = w.load(dtype, &address, 0);
                self.assign(w, *to, value.operand)
            }
            Statement::Store { result, at, value } => {
                let (address, dtype) = self.address(w, NestTensor::Result(*result), at)?;
                let operand = self.operand(w, value, dtype)?;
                w.store(&Scalar { dtype, operand }, &address, 0);
                Ok(())
            }
            Statement::Loop { counter, from, to, while_true, body } => {
                self.count(w, *counter, [from, to], *while_true, body)
            }
            Statement::If { condition, then, otherwise } => self.choose(w, condition, then, otherwise),
            Statement::Refuse { condition, .. } => {
                let predicate =
                    Scalar { dtype: DType::Bool, operand: self.operand(w, condition, DType::Bool)? }.predicate()?;
                w.violated(FIRST_OWN + self.refusals, &predicate);
                self.refusals += 1;
                Ok(())
            }
        }
    }

    fn step(&mut self, w: &mut Writer, to: Slot, step: &PointStep, args: &[NestArg]) -> Result<(), CodegenError> {
        let mut scalars = Vec::with_capacity(args.len());
        for (position, arg) in args.iter().enumerate() {
            let dtype = match (step.op, arg) {
                (PointOp::Cast | PointOp::BitCast, NestArg::Slot(Slot(index))) => self.nest.slots[*index as usize],
                (PointOp::Cast | PointOp::BitCast, NestArg::Size(_)) => DType::I32,
                (PointOp::Where, _) if position == 0 => DType::Bool,
                _ => step.ty,
            };
            scalars.push(Scalar { dtype, operand: self.operand(w, arg, dtype)? });
        }
        // A power with a constant exponent is expanded; the step's argument tells whether the
        // exponent is constant.
        let shown = args.iter().enumerate().map(|(i, arg)| as_point_arg(arg, i)).collect();
        let result = w.step(&PointStep { args: shown, ..step.clone() }, &scalars)?;
        // The result may be an operand that changes later; the slot then needs a register of its
        // own.
        let is_operand = scalars.iter().any(|scalar| scalar.operand == result.operand);
        let value = if is_operand && self.single[to.0 as usize] {
            let ty = held_as(self.nest.slots[to.0 as usize]);
            w.make(ty, &format!("mov.{ty}"), [result.operand]).into()
        } else {
            result.operand
        };
        self.assign(w, to, value)
    }

    fn assign(&mut self, w: &mut Writer, to: Slot, value: Operand) -> Result<(), CodegenError> {
        let index = to.0 as usize;
        if self.single[index] {
            self.slots[index] = Some(value);
            return Ok(());
        }
        let ty = held_as(self.nest.slots[index]);
        let register = self.register(w, to);
        w.emit(&format!("mov.{ty}"), [register, value]);
        Ok(())
    }

    /// The register of a slot with several assignments.
    fn register(&mut self, w: &mut Writer, slot: Slot) -> Operand {
        let ty = held_as(self.nest.slots[slot.0 as usize]);
        self.slots[slot.0 as usize].get_or_insert_with(|| Operand::from(&w.reg(ty))).clone()
    }

    fn operand(&mut self, w: &mut Writer, arg: &NestArg, dtype: DType) -> Result<Operand, CodegenError> {
        match arg {
            NestArg::Slot(Slot(index)) => self.slots[*index as usize].clone().ok_or_else(|| {
                CodegenError::inconsistent(format!("{}: slot {index} is read before it is assigned", self.nest.stem))
            }),
            NestArg::Const(value) => Ok(w.constant(dtype, *value).operand),
            NestArg::Size(size) => Ok(w.size(size).operand()),
        }
    }

    fn address(&mut self, w: &mut Writer, tensor: NestTensor, at: &NestArg) -> Result<(Name, DType), CodegenError> {
        let (base, dtype) = match tensor {
            NestTensor::Operand(index) => self.operands.get(index as usize),
            NestTensor::Result(index) => self.results.get(index as usize),
        }
        .cloned()
        .ok_or_else(|| CodegenError::inconsistent(format!("{}: {tensor} does not exist", self.nest.stem)))?;
        let at = self.int(w, at)?;
        Ok((w.at(&base, &at, dtype.bytes() as u32), dtype))
    }

    fn int(&mut self, w: &mut Writer, arg: &NestArg) -> Result<Int, CodegenError> {
        match arg {
            NestArg::Const(value) => Ok(Int::Known(*value as i64)),
            NestArg::Size(size) => Ok(w.size(size)),
            NestArg::Slot(_) => match self.operand(w, arg, DType::I32)? {
                Operand::Name(name) => Ok(Int::Reg(name)),
                other => Ok(Int::Reg(w.make(ScalarType::S32, "mov.s32", [other]))),
            },
        }
    }

    fn count(
        &mut self,
        w: &mut Writer,
        counter: Slot,
        [from, to]: [&NestArg; 2],
        while_true: Option<Slot>,
        body: &[Statement],
    ) -> Result<(), CodegenError> {
        let (from, to) = (self.int(w, from)?, self.int(w, to)?);
        // The end of the loop must not change during the loop.
        let to = Int::Reg(w.variable(&to));
        let at = Int::Reg(w.variable(&from));
        self.slots[counter.0 as usize] = Some(at.operand());
        let (head, end) = (w.label("loop"), w.label("done"));
        let leave_unless_more = |body: &mut Self, w: &mut Writer| -> Result<Name, CodegenError> {
            let more = w.compare("lt.s32", &at, &to);
            match while_true {
                None => Ok(more),
                Some(slot) => {
                    let holds = body.operand(w, &NestArg::Slot(slot), DType::Bool)?;
                    Ok(w.make(ScalarType::Pred, "and.pred", [more.into(), holds]))
                }
            }
        };
        let any = leave_unless_more(self, w)?;
        w.branch_unless(&any, &end);
        w.place(&head);
        self.block(w, body)?;
        w.emit("add.s32", [at.operand(), at.operand(), 1.into()]);
        let more = leave_unless_more(self, w)?;
        w.branch_if(&more, &head);
        w.place(&end);
        Ok(())
    }

    fn choose(
        &mut self,
        w: &mut Writer,
        condition: &NestArg,
        then: &[Statement],
        otherwise: &[Statement],
    ) -> Result<(), CodegenError> {
        let guard = Scalar { dtype: DType::Bool, operand: self.operand(w, condition, DType::Bool)? }.predicate()?;
        let end = w.label("end");
        if otherwise.is_empty() {
            w.branch_unless(&guard, &end);
            self.block(w, then)?;
        } else {
            let other = w.label("else");
            w.branch_unless(&guard, &other);
            self.block(w, then)?;
            w.emit("bra", [Operand::from(&end)]);
            w.place(&other);
            self.block(w, otherwise)?;
        }
        w.place(&end);
        Ok(())
    }
}

/// The argument as one of a scalar program, which distinguishes constants from other operands.
fn as_point_arg(arg: &NestArg, position: usize) -> PointArg {
    match arg {
        NestArg::Const(value) => PointArg::Const(*value),
        NestArg::Slot(_) | NestArg::Size(_) => PointArg::Input(position as u32),
    }
}
