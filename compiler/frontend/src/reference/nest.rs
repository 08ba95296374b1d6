//! Evaluates loop nests, point by point.

use super::pointwise::{Scalar, collect, number, run_step};
use super::{OutputType, ReferenceError, for_each_index};
use crate::nest::{Nest, NestArg, NestTensor, Slot, Statement};
use crate::tensor::{Data, Tensor};
use crate::tensor_graph::PointStep;
use atoll_kgraph::DType;

pub(super) fn run(
    nest: &Nest,
    inputs: &[&Tensor],
    outputs: &[OutputType],
    symbols: &[i64],
) -> Result<Vec<Tensor>, ReferenceError> {
    let domain: Vec<usize> = super::sizes(&nest.domain, symbols, &nest.stem)?
        .into_iter()
        .map(|extent| usize::try_from(extent).unwrap_or(0))
        .collect();
    let results = outputs.iter().map(|(_, shape)| vec![None; shape.iter().product()]).collect();
    let mut thread = Thread { nest, inputs, symbols, slots: vec![None; nest.slots.len()], results };
    let mut outcome = Ok(());
    for_each_index(&domain, |point| {
        if outcome.is_ok() {
            thread.slots.fill(None);
            point.iter().zip(&mut thread.slots).for_each(|(at, slot)| *slot = Some(Scalar::Int(*at as i64)));
            outcome = thread.block(&nest.body);
        }
    });
    outcome?;
    let finished = outputs.iter().zip(thread.results).enumerate();
    finished
        .map(|(index, ((dtype, shape), elements))| {
            let elements: Option<Vec<Scalar>> = elements.into_iter().collect();
            let elements =
                elements.ok_or_else(|| fault(nest, format!("result {index} has elements that no point stored")))?;
            Ok(collect(*dtype, shape, elements.into_iter()))
        })
        .collect()
}

fn fault(nest: &Nest, reason: String) -> ReferenceError {
    ReferenceError::Invalid(format!("{}: {reason}", nest.stem))
}

/// Runs the body of the nest at one point.
struct Thread<'a> {
    nest: &'a Nest,
    inputs: &'a [&'a Tensor],
    symbols: &'a [i64],
    slots: Vec<Option<Scalar>>,
    results: Vec<Vec<Option<Scalar>>>,
}

impl Thread<'_> {
    fn block(&mut self, body: &[Statement]) -> Result<(), ReferenceError> {
        body.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Statement) -> Result<(), ReferenceError> {
        match statement {
            Statement::Step { to, op, ty, args } => {
                let from = match args.first() {
                    Some(NestArg::Const(_)) | None => *ty,
                    Some(arg) => self.type_of(arg),
                };
                let args = args.iter().map(|arg| self.read(arg, *ty)).collect::<Result<Vec<Scalar>, _>>()?;
                self.assign(*to, run_step(&PointStep { op: *op, ty: *ty, args: Vec::new() }, from, &args));
            }
            Statement::Load { to, from, at } => {
                let at = self.index(at)?;
                let element = self.element(*from, at)?;
                self.assign(*to, element);
            }
            Statement::Store { result, at, value } => {
                let at = self.index(at)?;
                let stem =
                    || fault(self.nest, format!("it stores to element {at} of result {result}, which does not exist"));
                let results = self.results.get(*result as usize).ok_or_else(stem)?;
                let place = usize::try_from(at).ok().filter(|at| *at < results.len()).ok_or_else(stem)?;
                let ty = self.type_of(value);
                let value = self.read(value, ty)?;
                self.results[*result as usize][place] = Some(value);
            }
            Statement::Loop { counter, from, to, while_true, body } => {
                let (from, to) = (self.index(from)?, self.index(to)?);
                for round in from..to {
                    if let Some(slot) = while_true
                        && self.read(&NestArg::Slot(*slot), DType::Bool)? == Scalar::Int(0)
                    {
                        break;
                    }
                    self.assign(*counter, Scalar::Int(round));
                    self.block(body)?;
                }
            }
            Statement::Refuse { condition, text, values } => {
                if self.read(condition, DType::Bool)? != Scalar::Int(0) {
                    let numbers = super::sizes(values, self.symbols, &self.nest.stem)?;
                    return Err(ReferenceError::Refused { text: text.clone(), numbers });
                }
            }
            Statement::If { condition, then, otherwise } => {
                let holds = self.read(condition, DType::Bool)? != Scalar::Int(0);
                self.block(if holds { then } else { otherwise })?;
            }
        }
        Ok(())
    }

    fn assign(&mut self, Slot(index): Slot, value: Scalar) {
        self.slots[index as usize] = Some(value);
    }

    /// The type of an argument: the declared type of a slot, F64 for a constant (a store rounds
    /// it), I32 for a size.
    fn type_of(&self, arg: &NestArg) -> DType {
        match arg {
            NestArg::Slot(Slot(index)) => self.nest.slots[*index as usize],
            NestArg::Const(_) => DType::F64,
            NestArg::Size(_) => DType::I32,
        }
    }

    fn read(&self, arg: &NestArg, ty: DType) -> Result<Scalar, ReferenceError> {
        match arg {
            NestArg::Slot(Slot(index)) => self.slots[*index as usize]
                .ok_or_else(|| fault(self.nest, format!("slot {index} is read before it is assigned"))),
            NestArg::Const(value) => Ok(number(ty, *value)),
            NestArg::Size(size) => {
                Ok(Scalar::Int(super::sizes(std::slice::from_ref(size), self.symbols, &self.nest.stem)?[0]))
            }
        }
    }

    fn index(&self, arg: &NestArg) -> Result<i64, ReferenceError> {
        match self.read(arg, DType::I32)? {
            Scalar::Int(index) => Ok(index),
            Scalar::Float(_) => Err(fault(self.nest, "an index is not an integer".into())),
        }
    }

    fn element(&self, from: NestTensor, at: i64) -> Result<Scalar, ReferenceError> {
        let outside =
            || fault(self.nest, format!("it loads element {at} of {from}, which does not exist or is not stored yet"));
        let place = usize::try_from(at).map_err(|_| outside())?;
        match from {
            NestTensor::Operand(index) => match &self.inputs.get(index as usize).ok_or_else(outside)?.data {
                Data::Float(values) => values.get(place).map(|value| Scalar::Float(*value)),
                Data::Int(values) => values.get(place).map(|value| Scalar::Int(*value)),
            },
            NestTensor::Result(index) => self.results.get(index as usize).and_then(|r| r.get(place)).copied().flatten(),
        }
        .ok_or_else(outside)
    }
}
