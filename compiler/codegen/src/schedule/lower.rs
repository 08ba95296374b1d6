//! Lowering of operators to nodes. Most operators become one kernel node; the exceptions are here.

use super::{Recurrence, Scheduler, Tensor, WorkKind};
use crate::error::CodegenError;
use crate::strides;
use crate::writer::LANES;
use atoll_frontend::tensor_graph::{Conv, Direction, MatMul, Op, PointProgram, TensorNode, ValueId};
use atoll_kgraph::{DType, Expr};
use std::sync::Arc;

/// Largest number of operands of one concatenation kernel: their addresses and sizes fit into the
/// parameter block, and the chain of branches that selects one stays short.
const CONCAT_OPERANDS_MAX: usize = 12;

/// The error for a growing state that its step cannot extend in place: each step would have to move
/// all rows.
const NOT_GROWING: &str = "a growing state must be the first operand of a Concat along its growing axis, and the \
                           result of that Concat must be the state's output";

impl Scheduler<'_> {
    /// Adds the nodes of one operator.
    pub(super) fn node(&mut self, node: &TensorNode) -> Result<(), CodegenError> {
        let grows = |value: &ValueId| self.storage.grown(*value).is_some();
        if !matches!(node.op, Op::Concat { .. }) && node.outputs.iter().any(grows) {
            return Err(CodegenError::unsupported(NOT_GROWING));
        }
        match &node.op {
            Op::Reshape => Ok(()),
            Op::MatMul(product) => self.matmul(node, product),
            Op::Conv(conv) => self.conv(node, conv),
            Op::Concat { axis } => self.concat(node, *axis),
            Op::Recurrent { cell, hidden, direction } => {
                self.recurrence(node, Recurrence { cell: *cell, hidden: *hidden, direction: *direction })
            }
            // These kernels read with any strides.
            op @ (Op::Pointwise(_) | Op::Transpose { .. } | Op::Slice { .. }) => {
                let inputs = node.inputs.iter().map(|&v| self.view(v)).collect::<Result<_, _>>()?;
                let outputs = self.tensors(&node.outputs)?;
                self.push_kernel(&node.name, WorkKind::Op(op.clone()), inputs, outputs);
                Ok(())
            }
            op => {
                let (inputs, outputs) = (self.tensors(&node.inputs)?, self.tensors(&node.outputs)?);
                self.push_kernel(&node.name, WorkKind::Op(op.clone()), inputs, outputs);
                Ok(())
            }
        }
    }

    fn tensors(&mut self, values: &[ValueId]) -> Result<Vec<Tensor>, CodegenError> {
        values.iter().map(|&v| self.tensor(v)).collect()
    }

    /// A constant operand that is stored transposed is transposed at compile time, so that kernels
    /// read rows of `a` along k and rows of `b` along n.
    fn matmul(&mut self, node: &TensorNode, product: &MatMul) -> Result<(), CodegenError> {
        let mut product = product.clone();
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for (index, &value) in node.inputs.iter().enumerate() {
            let transposed = match index {
                0 => Some(&mut product.transpose_a),
                1 => Some(&mut product.transpose_b),
                _ => None,
            };
            let shape = self.graph.value(value).shape.clone();
            // The original constant is stored only if a node reads it.
            let constant =
                if transposed.as_deref() == Some(&true) { self.transposed_constant(value, &shape)? } else { None };
            if let (Some(flag), Some(_)) = (transposed, &constant) {
                *flag = false;
            }
            inputs.push(constant.map_or_else(|| self.view(value), Ok)?);
        }
        let outputs = self.tensors(&node.outputs)?;
        self.push_kernel(&node.name, WorkKind::Op(Op::MatMul(product)), inputs, outputs);
        Ok(())
    }

    /// A convolution whose window is the whole image is a matrix product with one column per
    /// filter. Every other convolution has a kernel of its own.
    fn conv(&mut self, node: &TensorNode, conv: &Conv) -> Result<(), CodegenError> {
        let mut outputs = self.tensors(&node.outputs)?;
        let shapes: Vec<&[Expr]> = node.inputs.iter().map(|&v| &self.graph.value(v).shape[..]).collect();
        let transposed_weights = match (whole_image(conv, &shapes, &outputs), node.inputs.get(1)) {
            (Some([filters, depth]), Some(&weights)) => self.transposed_constant(weights, &[filters, depth])?,
            _ => None,
        };
        let Some(weights) = transposed_weights else {
            let inputs = self.tensors(&node.inputs)?;
            self.push_kernel(&node.name, WorkKind::Op(Op::Conv(conv.clone())), inputs, outputs);
            return Ok(());
        };
        let mut x = self.tensor(node.inputs[0])?;
        x.shape = vec![x.shape[0].clone(), weights.shape[0].clone()];
        let mut extras = self.tensors(&node.inputs[2..])?;
        // The spatial dimensions of the extra inputs and of the output are 1.
        for tensor in extras.iter_mut().chain(&mut outputs) {
            tensor.shape.truncate(tensor.shape.len().saturating_sub(conv.strides.len()));
        }
        let product = MatMul { transpose_a: false, transpose_b: false, epilogue: conv.epilogue.clone() };
        let inputs = [x, weights].into_iter().chain(extras).collect();
        self.push_kernel(&node.name, WorkKind::Op(Op::MatMul(product)), inputs, outputs);
        Ok(())
    }

    /// The constant, viewed with `shape`, with its two innermost axes transposed; `None` if the
    /// value is not constant.
    fn transposed_constant(&mut self, value: ValueId, shape: &[Expr]) -> Result<Option<Tensor>, CodegenError> {
        let Some(content) = self.storage.content(value) else { return Ok(None) };
        let [outer @ .., rows, columns] = shape else { return Ok(None) };
        let (Some(rows), Some(columns)) = (rows.as_const(), columns.as_const()) else { return Ok(None) };
        let shape: Vec<Expr> = outer.iter().cloned().chain([Expr::Const(columns), Expr::Const(rows)]).collect();
        let dtype = self.graph.value(value).dtype;
        let make = || transpose_matrices(&content, rows as usize, columns as usize, dtype.bytes() as usize);
        let buffer = self.storage.derived(value, "transposed", &shape, make)?;
        Ok(Some(Tensor { buffer, offset: Expr::Const(0), dtype, shape, within: None }))
    }

    /// Concatenation: nodes of at most [`CONCAT_OPERANDS_MAX`] operands, each node writing a slice
    /// of the result.
    fn concat(&mut self, node: &TensorNode, axis: usize) -> Result<(), CodegenError> {
        let (output, behind) = match self.growing(node, axis)? {
            Some(output) => (output, 1),
            None => (self.tensors(&node.outputs)?.remove(0), 0),
        };
        let mut first = if behind == 0 { Expr::Const(0) } else { self.graph.value(node.inputs[0]).shape[axis].clone() };
        for (part, operands) in node.inputs[behind..].chunks(CONCAT_OPERANDS_MAX).enumerate() {
            let inputs = self.tensors(operands)?;
            let length = inputs.iter().map(|t| t.shape[axis].clone()).fold(Expr::Const(0), |sum, d| sum + d);
            let name = if part == 0 { node.name.clone() } else { format!("{}/part{part}", node.name) };
            self.push_kernel(&name, WorkKind::ConcatPart { axis, first: first.clone() }, inputs, vec![output.clone()]);
            first = first + length;
        }
        Ok(())
    }

    /// The result of a concatenation that appends to a state. Its first operand is the state
    /// itself, so only the following operands are written.
    fn growing(&mut self, node: &TensorNode, axis: usize) -> Result<Option<Tensor>, CodegenError> {
        let Some(growth) = self.storage.grown(node.outputs[0]).copied() else { return Ok(None) };
        let output = self.view(node.outputs[0])?;
        let before = self.storage.place(node.inputs[0])?;
        let is_whole = self.storage.root(node.inputs[0]) == node.inputs[0];
        if axis == growth.axis && before.buffer == output.buffer && is_whole {
            return Ok(Some(output));
        }
        Err(CodegenError::unsupported(NOT_GROWING))
    }

    /// A recurrent layer: one matrix product computes the input products of all steps and
    /// directions, then the recurrence runs.
    fn recurrence(&mut self, node: &TensorNode, layer: Recurrence) -> Result<(), CodegenError> {
        let [x, w, r, ref others @ ..] = node.inputs[..] else {
            return Err(CodegenError::inconsistent(format!(
                "a recurrent layer needs more than {} operands",
                node.inputs.len()
            )));
        };
        let (hidden, direction) = (layer.hidden, layer.direction);
        let outputs = self.tensors(&node.outputs)?;
        let x = self.tensor(x)?;
        let directions = if direction == Direction::Bidirectional { 2 } else { 1 };

        let (steps, batch, features) = (x.shape[0].clone(), x.shape[1].clone(), x.shape[2].clone());

        // `[D, G H, I]` viewed as one matrix `[D * G H, I]`.
        let rows = Expr::Const(directions * (layer.cell.gates() * hidden) as i64);
        let gates_shape = vec![steps * batch, rows.clone()];
        let gates_name = format!("{}/gates", node.name);
        let gates = Tensor {
            buffer: self.storage.temporary(&gates_name, x.dtype, &gates_shape),
            offset: Expr::Const(0),
            dtype: x.dtype,
            shape: gates_shape.clone(),
            within: None,
        };
        let flat_w = vec![rows, features.clone()];
        let (w, transpose_b) = match self.transposed_constant(w, &flat_w)? {
            Some(transposed_weights) => (transposed_weights, false),
            None => (Tensor { shape: flat_w, ..self.tensor(w)? }, true),
        };
        let product = MatMul { transpose_a: false, transpose_b, epilogue: PointProgram::default() };
        let flat_x = Tensor { shape: vec![gates_shape[0].clone(), features], ..x };
        self.push_kernel(&gates_name, WorkKind::Op(Op::MatMul(product)), vec![flat_x, w], vec![gates.clone()]);

        let r = match self.packed_recurrence(r, layer)? {
            Some(packed) => packed,
            None => {
                let r = self.tensor(r)?;
                self.transpose_node(&format!("{}/r", node.name), &r)
            }
        };
        let inputs = [vec![gates, r], self.tensors(others)?].concat();
        self.push_kernel(&node.name, WorkKind::Recurrence(layer), inputs, outputs);
        Ok(())
    }

    /// Packs the constant weights `[D, G H, H]` of a recurrence in the layout of its kernel,
    /// `[D, H / 32, H, G, 32]`, padded with zeros after the last unit.
    fn packed_recurrence(&mut self, r: ValueId, layer: Recurrence) -> Result<Option<Tensor>, CodegenError> {
        let (hidden, gates) = (layer.hidden, layer.cell.gates());
        let value = self.graph.value(r);
        let (Some(content), Some(&Expr::Const(directions)), DType::F32) =
            (self.storage.content(r), value.shape.first(), value.dtype)
        else {
            return Ok(None);
        };
        let lanes = LANES as usize;
        let groups = hidden.div_ceil(lanes);
        let shape: Vec<Expr> =
            [directions as usize, groups, hidden, gates, lanes].map(|size| Expr::Const(size as i64)).into();
        let make = || pack_recurrence(&content, [directions as usize, hidden, gates]);
        let buffer = self.storage.derived(r, "packed", &shape, make)?;
        Ok(Some(Tensor { buffer, offset: Expr::Const(0), dtype: DType::F32, shape, within: None }))
    }

    /// Adds a node that transposes the two innermost axes of a tensor that is not constant.
    fn transpose_node(&mut self, name: &str, tensor: &Tensor) -> Tensor {
        let rank = tensor.shape.len();
        let mut permutation: Vec<usize> = (0..rank).collect();
        permutation.swap(rank - 2, rank - 1);
        let shape = strides::permuted(&tensor.shape, &permutation);
        let result = Tensor { buffer: self.storage.temporary(name, tensor.dtype, &shape), shape, ..tensor.clone() };
        self.push_kernel(name, WorkKind::Op(Op::Transpose { permutation }), vec![tensor.clone()], vec![result.clone()]);
        result
    }
}

/// The number of filters, and of products per filter, of a convolution whose window is the whole
/// image.
fn whole_image(conv: &Conv, inputs: &[&[Expr]], outputs: &[Tensor]) -> Option<[Expr; 2]> {
    let ([_, channels, image @ ..], [filters, _, window @ ..]) = (*inputs.first()?, *inputs.get(1)?) else {
        return None;
    };
    let is_single = outputs.first()?.shape[2..].iter().all(|d| *d == Expr::Const(1));
    let is_whole = image == window && conv.pads.iter().all(|pad| *pad == 0) && conv.groups == 1;
    (is_single && is_whole).then(|| [filters.clone(), channels.clone() * Expr::product(image)])
}

/// Packs `[D, G H, H]` in f32 as `[D, H / 32, H, G, 32]`.
fn pack_recurrence(content: &[u8], [directions, hidden, gates]: [usize; 3]) -> Arc<[u8]> {
    let lanes = LANES as usize;
    let groups = hidden.div_ceil(lanes);
    let mut packed = vec![0u8; 4 * directions * groups * hidden * gates * lanes];
    for (row, weights) in content.chunks_exact(4 * hidden).enumerate() {
        let (direction, gate, unit) = (row / (gates * hidden), row / hidden % gates, row % hidden);
        let first = (direction * groups + unit / lanes) * hidden;
        for (product, weight) in weights.chunks_exact(4).enumerate() {
            let to = 4 * (((first + product) * gates + gate) * lanes + unit % lanes);
            packed[to..to + 4].copy_from_slice(weight);
        }
    }
    packed.into()
}

/// Transposes every matrix in `content`.
fn transpose_matrices(content: &[u8], rows: usize, columns: usize, bytes: usize) -> Arc<[u8]> {
    let mut transposed = vec![0u8; content.len()];
    let matrix_bytes = rows * columns * bytes;
    if matrix_bytes == 0 {
        return transposed.into();
    }
    for (from, to) in content.chunks_exact(matrix_bytes).zip(transposed.chunks_exact_mut(matrix_bytes)) {
        for (row, line) in from.chunks_exact(columns * bytes).enumerate() {
            for (column, element) in line.chunks_exact(bytes).enumerate() {
                let at = (column * rows + row) * bytes;
                to[at..at + bytes].copy_from_slice(element);
            }
        }
    }
    transposed.into()
}
