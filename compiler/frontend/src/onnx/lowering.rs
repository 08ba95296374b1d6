//! The graph under construction: emits operators and folds what is known.
//!
//! There are three kinds of values. *Constants* have bytes. *Sizes* are small integer tensors whose
//! elements are expressions over symbols (the result of `Shape`, and of arithmetic on it); they
//! exist only at compile time. All other values are computed at run time by a node.
//! [`Lowering::emit`] folds: an operator on constants gives constants, one on sizes gives sizes,
//! and every other operator becomes a node.

use super::error::{LowerError, LowerResult, invalid};
use super::read::{Literal, RANK_MAX, SIZE_TERMS_MAX, TENSOR_BYTES_MAX};
use super::sizes;
use super::strings::StringCodes;
use crate::nest::{Nest, NestArg, NestBuilder};
use crate::program::ProgramBuilder;
use crate::reference;
use crate::size::{Facts, bounds, elements, simplified, static_shape};
use crate::tensor::{Data, Tensor};
use crate::tensor_graph::{Op, PointArg, PointOp, PointProgram, RunTimeSize, TensorGraph, TensorNode, Value, ValueId};
use atoll_kgraph::{Condition, DType, Expr, SymbolId, SymbolSpec};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Element type and shape.
pub(crate) type Type = (DType, Vec<Expr>);

/// Largest folded constant in bytes, unless an operand is larger: an `Expand` folded at compile
/// time must not make the bundle huge.
const FOLDED_BYTES_MAX: u64 = 64 << 20;
/// Largest number of bytes that folding reads and writes in one import. Beyond it, operators are
/// computed at run time: a hostile file must not keep the importer busy.
const FOLDED_TOTAL_MAX: u64 = 1 << 33;
/// Largest number of elements of a tensor; kernels index with 31 bits.
const ELEMENTS_MAX: i64 = i32::MAX as i64;
/// Largest number of elements of a tensor of sizes; a shape has about a dozen.
pub(super) const SIZES_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Lowering {
    pub(crate) graph: TensorGraph,
    /// The current node, for messages.
    pub(crate) place: String,
    /// Conditions on sizes found so far.
    pub(super) conditions: RefCell<Vec<Condition>>,
    pub(super) sizes: HashMap<ValueId, Vec<Expr>>,
    /// The run-time copy of a tensor of sizes, if a node needs one.
    pub(super) stored: HashMap<ValueId, ValueId>,
    /// The nonzero elements of a tensor, for tensors for which [`Lowering::selection`] was called.
    pub(super) selections: HashMap<ValueId, Selection>,
    /// Names of nodes, with the last number used to make a unique name from each.
    node_names: HashMap<String, u32>,
    /// Bytes that folding has read and written so far.
    folded_bytes: u64,
    /// Codes of the strings of the model.
    pub(super) string_codes: StringCodes,
    /// Whether the results of the current nodes may be discarded at run time.
    pub(super) speculative: bool,
}

/// The nonzero elements of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// Their row-major indices, I32, ascending. There is one entry for each element of the tensor;
    /// entries from `count` on are 0.
    pub(crate) positions: ValueId,
    /// Number of nonzero elements.
    pub(crate) count: Expr,
}

impl Lowering {
    /// The value of an integer scalar as a size, with the upper bound `most`: a constant if it is
    /// known, otherwise a symbol whose value is computed while the model runs.
    pub(crate) fn run_time_size(&mut self, name: &str, value: ValueId, most: Expr) -> LowerResult<Expr> {
        if let Some([known]) = self.known(value).as_deref() {
            return Ok(known.clone());
        }
        let largest = bounds(&most, &self.graph.symbols).map_or(ELEMENTS_MAX, |(_, high)| high.clamp(0, ELEMENTS_MAX));
        let symbol = SymbolId(self.graph.symbols.len() as u32);
        self.graph.symbols.push(SymbolSpec::new(name, 0, largest));
        self.graph.run_time_sizes.push(RunTimeSize { symbol, value, most });
        Ok(symbol.into())
    }

    /// The nonzero elements of a tensor; computed once per tensor.
    pub(crate) fn selection(&mut self, name: &str, of: ValueId) -> LowerResult<Selection> {
        if let Some(known) = self.selections.get(&of) {
            return Ok(known.clone());
        }
        let all = elements(self.shape(of));
        let nest = select(self.dtype(of), &all);
        let outputs = vec![(DType::I32, vec![all.clone()]), (DType::I32, Vec::new())];
        let results = self.emit(&format!("{name}/select"), Op::Nest(nest), &[of], outputs)?;
        let count = self.run_time_size(&format!("{name}/count"), results[1], all)?;
        let selection = Selection { positions: results[0], count };
        self.selections.insert(of, selection.clone());
        Ok(selection)
    }

    pub(crate) fn shape(&self, id: ValueId) -> &[Expr] {
        &self.graph.value(id).shape
    }

    pub(crate) fn dtype(&self, id: ValueId) -> DType {
        self.graph.value(id).dtype
    }

    pub(crate) fn rank(&self, id: ValueId) -> usize {
        self.shape(id).len()
    }

    /// Calls `ask` with everything that is known about sizes.
    pub(super) fn with_facts<T>(&self, ask: impl FnOnce(Facts<'_>) -> T) -> T {
        ask(Facts { symbols: &self.graph.symbols, conditions: &self.conditions.borrow() })
    }

    /// Records that the elements of an input are these sizes.
    pub(super) fn name_elements(&mut self, id: ValueId, symbols: Vec<Expr>) {
        self.sizes.insert(id, symbols);
    }

    pub(super) fn is_constant(&self, id: ValueId) -> bool {
        self.graph.value(id).constant.is_some()
    }

    /// A unique node name made from `wanted`.
    pub(crate) fn unique_name(&mut self, wanted: &str) -> String {
        let Some(count) = self.node_names.get(wanted) else {
            self.node_names.insert(wanted.to_owned(), 1);
            return wanted.to_owned();
        };
        let (mut name, mut count) = (wanted.to_owned(), *count);
        while self.node_names.contains_key(&name) {
            count += 1;
            name = format!("{wanted}.{count}");
        }
        self.node_names.insert(name.clone(), 1);
        self.node_names.insert(wanted.to_owned(), count);
        name
    }

    /// Adds a constant from the model.
    pub(crate) fn literal(&mut self, name: &str, literal: Literal) -> ValueId {
        let shape = literal.shape.iter().map(|d| Expr::Const(*d as i64)).collect();
        self.graph.add_value(Value { name: name.into(), dtype: literal.dtype, shape, constant: Some(literal.bytes) })
    }

    /// Adds a computed constant.
    pub(crate) fn constant(&mut self, name: &str, tensor: &Tensor) -> ValueId {
        self.literal(name, Literal { dtype: tensor.dtype, shape: tensor.shape.clone(), bytes: tensor.to_bytes() })
    }

    /// Adds a tensor of sizes: a constant if all of them are numbers.
    pub(crate) fn add_sizes(&mut self, name: &str, dtype: DType, shape: Vec<usize>, values: Vec<Expr>) -> ValueId {
        let values: Vec<Expr> = values.iter().map(|value| simplified(value, &self.graph.symbols)).collect();
        let numbers: Option<Vec<i64>> = values.iter().map(Expr::as_const).collect();
        if let Some(numbers) = numbers {
            let tensor = match crate::tensor::is_float(dtype) {
                true => Tensor::floats(dtype, shape, numbers.into_iter().map(|v| v as f64)),
                false => Tensor::ints(dtype, shape, numbers),
            };
            return self.constant(name, &tensor);
        }
        let shape = shape.iter().map(|d| Expr::Const(*d as i64)).collect();
        let id = self.graph.add_value(Value { name: name.into(), dtype, shape, constant: None });
        self.sizes.insert(id, values);
        id
    }

    /// Whether a constant of `bytes` may be generated; counts towards the limit of folding.
    pub(crate) fn reserve_generated(&mut self, bytes: u64) -> bool {
        self.folded_bytes = self.folded_bytes.saturating_add(bytes);
        self.folded_bytes <= FOLDED_TOTAL_MAX
    }

    /// The content of a constant.
    pub(crate) fn tensor(&self, id: ValueId) -> Option<Tensor> {
        reference::constant(&self.graph, id)
    }

    /// Applies an operator: folds it if all operands are known, otherwise adds a node.
    pub(crate) fn emit(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[ValueId],
        outputs: Vec<Type>,
    ) -> LowerResult<Vec<ValueId>> {
        let outputs = outputs
            .into_iter()
            .map(|(dtype, shape)| self.check_type(dtype, shape))
            .collect::<LowerResult<Vec<Type>>>()?;
        if let Some(folded) = self.fold(name, &op, inputs, &outputs)? {
            return Ok(folded);
        }
        let mut inputs = inputs.to_vec();
        if inputs.iter().any(|id| self.sizes.contains_key(id)) {
            if let Some(sizes) = self.emit_sizes(name, &op, &inputs, &outputs) {
                return Ok(vec![sizes]);
            }
            inputs = inputs.into_iter().map(|id| self.computed(id)).collect::<LowerResult<Vec<ValueId>>>()?;
        }
        let (op, inputs) = if self.speculative { self.without_refusals(name, op, inputs)? } else { (op, inputs) };
        let name = self.unique_name(name);
        let results: Vec<ValueId> = outputs
            .into_iter()
            .enumerate()
            .map(|(i, (dtype, shape))| {
                let value_name = if i == 0 { name.clone() } else { format!("{name}:{i}") };
                self.graph.add_value(Value { name: value_name, dtype, shape, constant: None })
            })
            .collect();
        self.graph.nodes.push(TensorNode { name, op, inputs, outputs: results.clone() });
        Ok(results)
    }

    /// As [`Lowering::emit`], for one result.
    pub(crate) fn emit_one(
        &mut self,
        name: &str,
        op: Op,
        inputs: &[ValueId],
        dtype: DType,
        shape: Vec<Expr>,
    ) -> LowerResult<ValueId> {
        Ok(self.emit(name, op, inputs, vec![(dtype, shape)])?[0])
    }

    /// The normal form of a result's type, checked against the limits.
    pub(super) fn check_type(&self, dtype: DType, shape: Vec<Expr>) -> LowerResult<Type> {
        if let Some(terms) = shape.iter().map(Expr::terms).find(|terms| *terms > SIZE_TERMS_MAX) {
            return Err(LowerError::TooLarge {
                what: "a dimension of a result".into(),
                found: format!("an expression of {terms} terms over symbolic sizes"),
                limit: format!("{SIZE_TERMS_MAX}; fix symbols with `--fix NAME=SIZE`"),
            });
        }
        let shape: Vec<Expr> = shape.iter().map(|dim| simplified(dim, &self.graph.symbols)).collect();
        if shape.len() > RANK_MAX {
            return Err(LowerError::TooLarge {
                what: "a result".into(),
                found: format!("{} dimensions", shape.len()),
                limit: format!("{RANK_MAX}"),
            });
        }
        let mut bytes = dtype.bytes();
        for dim in &shape {
            // Only the smallest valid size is checked here; larger ones are checked in the
            // invocation.
            self.require_at_least(dim, &Expr::Const(0))?;
            let low = match bounds(dim, &self.graph.symbols) {
                Some((_, high)) if high < 0 => {
                    return invalid(format!(
                        "a dimension of its result would be {}, which is negative",
                        dim.named(&self.graph.symbols)
                    ));
                }
                Some((low, _)) => low.max(0) as u64,
                None => 0,
            };
            bytes = bytes.checked_mul(low).filter(|b| *b <= TENSOR_BYTES_MAX).ok_or_else(|| LowerError::TooLarge {
                what: "a result".into(),
                found: format!("of shape {}", self.shape_text(&shape)),
                limit: format!("{TENSOR_BYTES_MAX} bytes"),
            })?;
        }
        Ok((dtype, shape))
    }

    /// Evaluates an operator whose operands are all constants.
    fn fold(&mut self, name: &str, op: &Op, inputs: &[ValueId], outputs: &[Type]) -> LowerResult<Option<Vec<ValueId>>> {
        if !inputs.iter().all(|id| self.is_constant(*id)) {
            return Ok(None);
        }
        let types: Option<Vec<_>> = outputs.iter().map(|(dtype, shape)| Some((*dtype, static_shape(shape)?))).collect();
        let Some(types) = types else { return Ok(None) };
        let bytes = |dtype: DType, shape: &[usize]| shape.iter().product::<usize>() as u64 * dtype.bytes();
        let given: u64 =
            inputs.iter().map(|id| self.graph.value(*id).constant.as_ref().map_or(0, |c| c.len() as u64)).sum();
        if types.iter().any(|(dtype, shape)| bytes(*dtype, shape) > FOLDED_BYTES_MAX.max(given)) {
            return Ok(None);
        }
        let made: u64 = types.iter().map(|(dtype, shape)| bytes(*dtype, shape)).sum();
        self.folded_bytes += given + made;
        if self.folded_bytes > FOLDED_TOTAL_MAX {
            return Ok(None);
        }
        if let (Op::Reshape, Some(bytes)) = (op, inputs.first().and_then(|id| self.graph.value(*id).constant.as_ref()))
        {
            let literal = Literal { dtype: types[0].0, shape: types[0].1.clone(), bytes: Arc::clone(bytes) };
            return Ok(Some(vec![self.literal(name, literal)]));
        }
        let tensors: Vec<Tensor> = inputs.iter().filter_map(|id| self.tensor(*id)).collect();
        let numbers_known = match op {
            Op::Slice { starts: numbers, .. } | Op::Pad { before: numbers, .. } => {
                numbers.iter().all(|n| n.as_const().is_some())
            }
            Op::Nest(nest) => nest.sizes().iter().all(|s| s.as_const().is_some()),
            _ => true,
        };
        if tensors.len() != inputs.len() || !numbers_known {
            return Ok(None);
        }
        let results = reference::evaluate(op, &tensors.iter().collect::<Vec<_>>(), &types, &[])
            .map_err(|error| LowerError::Invalid(error.to_string()))?;
        Ok(Some(results.iter().map(|tensor| self.constant(name, tensor)).collect()))
    }

    /// Evaluates an operator on sizes; `None` if the result cannot be expressed.
    fn emit_sizes(&mut self, name: &str, op: &Op, inputs: &[ValueId], outputs: &[Type]) -> Option<ValueId> {
        if outputs.iter().any(|(dtype, _)| dtype.is_narrow()) {
            // Expressions neither wrap nor round.
            return None;
        }
        let operands: Option<Vec<sizes::Operand>> = inputs
            .iter()
            .map(|id| Some(sizes::Operand { shape: static_shape(self.shape(*id))?, values: self.known(*id)? }))
            .collect();
        let shape = outputs
            .first()
            .and_then(|(_, shape)| static_shape(shape))
            .filter(|s| s.iter().product::<usize>() <= SIZES_MAX);
        let folded = operands
            .zip(shape)
            .and_then(|(operands, shape)| Some((sizes::evaluate(op, &operands, &shape, &self.graph.symbols)?, shape)))
            .filter(|(values, _)| values.iter().all(|value| value.terms() <= SIZE_TERMS_MAX));
        folded.map(|(values, shape)| self.add_sizes(name, outputs[0].0, shape, values))
    }

    /// Applies a scalar program to operands that broadcast to each other. One-element constants
    /// become literals of the program.
    pub(crate) fn pointwise(
        &mut self,
        name: &str,
        inputs: &[ValueId],
        dtype: DType,
        build: impl FnOnce(&mut ProgramBuilder, &[PointArg]),
    ) -> LowerResult<ValueId> {
        let shape = self.broadcast(inputs)?;
        self.pointwise_to(name, inputs, dtype, shape, build)
    }

    /// As [`Lowering::pointwise`], with the result's shape given.
    pub(crate) fn pointwise_to(
        &mut self,
        name: &str,
        inputs: &[ValueId],
        dtype: DType,
        shape: Vec<Expr>,
        build: impl FnOnce(&mut ProgramBuilder, &[PointArg]),
    ) -> LowerResult<ValueId> {
        let inputs = inputs.iter().map(|id| self.fit(name, *id, &shape)).collect::<LowerResult<Vec<ValueId>>>()?;
        let fold_all = inputs.iter().all(|id| self.is_constant(*id));
        let mut operands: Vec<ValueId> = Vec::new();
        let args: Vec<PointArg> = inputs
            .iter()
            .map(|id| match self.scalar(*id) {
                Some(number) if !fold_all => PointArg::Const(number),
                _ => {
                    let known = operands.iter().position(|o| o == id);
                    PointArg::Input(known.unwrap_or_else(|| {
                        operands.push(*id);
                        operands.len() - 1
                    }) as u32)
                }
            })
            .collect();
        let mut builder = ProgramBuilder::default();
        build(&mut builder, &args);
        self.emit_one(name, Op::Pointwise(builder.finish()), &operands, dtype, shape)
    }

    /// The value of a one-element constant, if `f64` represents it exactly.
    fn scalar(&self, id: ValueId) -> Option<f64> {
        if !self.shape(id).iter().all(|d| d.as_const() == Some(1)) {
            return None;
        }
        match self.tensor(id)?.data {
            Data::Float(values) => values.first().copied(),
            Data::Int(values) => values.first().filter(|v| v.unsigned_abs() < 1 << 53).map(|v| *v as f64),
        }
    }

    /// Casts, unless the value already has the type.
    pub(crate) fn cast(&mut self, name: &str, id: ValueId, dtype: DType) -> LowerResult<ValueId> {
        if self.dtype(id) == dtype {
            return Ok(id);
        }
        self.pointwise_of_inputs(name, &[id], dtype, PointProgram::cast(dtype))
    }

    /// A pointwise operator whose operands are all inputs of the program.
    fn pointwise_of_inputs(
        &mut self,
        name: &str,
        inputs: &[ValueId],
        dtype: DType,
        program: PointProgram,
    ) -> LowerResult<ValueId> {
        let shape = self.broadcast(inputs)?;
        self.emit_one(name, Op::Pointwise(program), inputs, dtype, shape)
    }

    /// A tensor filled with one number.
    pub(crate) fn fill(&mut self, name: &str, dtype: DType, shape: Vec<Expr>, number: f64) -> LowerResult<ValueId> {
        self.pointwise_to(name, &[], dtype, shape, |p, _| {
            p.step(crate::tensor_graph::PointOp::Identity, dtype, &[PointArg::Const(number)]);
        })
    }

    pub(crate) fn transpose(&mut self, name: &str, id: ValueId, permutation: Vec<usize>) -> LowerResult<ValueId> {
        if permutation.iter().enumerate().all(|(i, p)| i == *p) {
            return Ok(id);
        }
        let shape = permutation.iter().map(|from| self.shape(id)[*from].clone()).collect();
        self.emit_one(name, Op::Transpose { permutation }, &[id], self.dtype(id), shape)
    }

    /// A copy as a new value, so that two outputs of a model are never one buffer.
    pub(crate) fn copy(&mut self, name: &str, id: ValueId) -> ValueId {
        let Value { dtype, shape, .. } = self.graph.value(id).clone();
        let node_name = self.unique_name(name);
        let copy = self.graph.add_value(Value { name: name.into(), dtype, shape, constant: None });
        self.graph.nodes.push(TensorNode {
            name: node_name,
            op: Op::Pointwise(PointProgram::default()),
            inputs: vec![id],
            outputs: vec![copy],
        });
        copy
    }

    /// The value as a run-time value: sizes are stored by a node.
    pub(crate) fn computed(&mut self, id: ValueId) -> LowerResult<ValueId> {
        let Some(sizes) = self.sizes.get(&id).filter(|_| !self.graph.inputs.contains(&id)).cloned() else {
            return Ok(id);
        };
        if let Some(stored) = self.stored.get(&id) {
            return Ok(*stored);
        }
        let Value { name, dtype, shape, .. } = self.graph.value(id).clone();
        let mut nest = NestBuilder::new("sizes", Vec::new());
        for (index, size) in sizes.iter().enumerate() {
            let value = nest.cast(&NestArg::from(size), dtype);
            nest.store(0, &NestArg::from(index as i64), &value);
        }
        let stored = self.emit_one(&format!("{name}.stored"), Op::Nest(nest.finish()), &[], dtype, shape)?;
        self.stored.insert(id, stored);
        Ok(stored)
    }
}

/// A nest in which one thread visits `all` elements of a tensor and stores the indices of the
/// nonzero ones.
fn select(dtype: DType, all: &Expr) -> Nest {
    let mut nest = NestBuilder::new("select", Vec::new());
    let (none, all) = (NestArg::from(0), NestArg::from(all));
    let count = nest.variable(DType::I32, &none);
    nest.count(&none, &all, |nest, at| {
        let element = nest.load(0, dtype, at);
        let chosen = nest.cast(&element, DType::Bool);
        nest.when(&chosen, |nest| {
            nest.store(0, &count, at);
            nest.accumulate(&count, PointOp::Add, &NestArg::from(1));
        });
    });
    nest.count(&count, &all, |nest, at| nest.store(0, at, &NestArg::from(0)));
    nest.store(1, &none, &count);
    nest.finish()
}
