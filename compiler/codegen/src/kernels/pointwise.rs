//! Scalar programs over strided operands: pointwise operators, and operators that only move
//! elements (transpose, slice, parts of a concatenation).

use crate::error::CodegenError;
use crate::scalar::Scalar;
use crate::schedule::Tensor;
use crate::strides::{self, Walk};
use crate::sweep::{self, Body};
use crate::target::TargetDescription;
use crate::writer::{Int, LANES, Writer, Written};
use atoll_frontend::tensor_graph::PointProgram;
use atoll_kgraph::{DType, Expr};
use atoll_ptx::Name;

/// A pointwise operator with NumPy's broadcasting.
pub(crate) fn pointwise(
    target: &TargetDescription,
    program: &PointProgram,
    inputs: &[Tensor],
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let operands: Vec<Strided> =
        inputs.iter().map(|t| Strided { tensor: t.clone(), strides: t.spread(&output.shape) }).collect();
    let result = Strided { tensor: output.clone(), strides: output.strides() };
    strided("point", target, program, &operands, &result, &output.shape)
}

/// Output dimension `i` is input dimension `permutation[i]`.
pub(crate) fn transpose(
    target: &TargetDescription,
    permutation: &[usize],
    input: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let operand = Strided { tensor: input.clone(), strides: strides::permuted(&input.strides(), permutation) };
    let result = Strided { tensor: output.clone(), strides: output.strides() };
    strided("transpose", target, &PointProgram::default(), &[operand], &result, &output.shape)
}

/// `output[i] = input[start + i * step]` on every axis: the start is part of the address, the steps
/// are part of the strides.
pub(crate) fn slice(
    target: &TargetDescription,
    starts: &[Expr],
    steps: &[i64],
    input: &Tensor,
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let own = input.strides();
    let start =
        starts.iter().zip(&own).fold(Expr::Const(0), |sum, (start, stride)| sum + start.clone() * stride.clone());
    let tensor = Tensor { offset: input.offset.clone() + start * i64::from(input.element_bytes()), ..input.clone() };
    let strides = own.into_iter().zip(steps).map(|(stride, &step)| stride * step).collect();
    let result = Strided { tensor: output.clone(), strides: output.strides() };
    strided("slice", target, &PointProgram::default(), &[Strided { tensor, strides }], &result, &output.shape)
}

/// An operand with a stride per dimension of the output.
pub(crate) struct Strided {
    pub(crate) tensor: Tensor,
    pub(crate) strides: Vec<Expr>,
}

fn strided(
    stem: &str,
    target: &TargetDescription,
    program: &PointProgram,
    inputs: &[Strided],
    output: &Strided,
    dims: &[Expr],
) -> Result<Written, CodegenError> {
    let all: Vec<Vec<Expr>> = inputs.iter().chain([output]).map(|s| s.strides.clone()).collect();
    let walk = Walk::collapsed(dims, &all);
    let mut w = Writer::new(stem);
    let bases = inputs.iter().chain([output]).map(|s| w.base(&s.tensor)).collect();
    let dtypes = inputs.iter().chain([output]).map(|s| s.tensor.dtype).collect();
    let mut body = Pointwise { program, walk: &walk, bases, dtypes };
    sweep::sweep(w, target, &walk.dims, target.elements_per_block, &mut body)
}

struct Pointwise<'a> {
    program: &'a PointProgram,
    walk: &'a Walk,
    /// Addresses and types of the inputs, then the output.
    bases: Vec<Name>,
    dtypes: Vec<DType>,
}

/// An operand within a row.
enum Operand {
    /// The same element for the whole row.
    Fixed(Scalar),
    /// The address of this thread's next element.
    Moving(Name, Int),
}

impl Body for Pointwise<'_> {
    type Row = Vec<Operand>;

    fn row(&mut self, w: &mut Writer, outer: &[Int], first: &Int) -> Result<Self::Row, CodegenError> {
        let count = self.bases.len();
        let mut operands = Vec::with_capacity(count);
        for index in 0..count {
            let dtype = self.dtypes[index];
            let bytes = dtype.bytes() as u32;
            let (inner, outer_strides) =
                self.walk.strides[index].split_last().map_or((Expr::Const(0), &[][..]), |(i, o)| (i.clone(), o));
            let start = sweep::offset(w, outer, outer_strides);
            let line = w.at(&self.bases[index], &start, bytes);
            if inner == Expr::Const(0) && index + 1 < count {
                operands.push(Operand::Fixed(w.load(dtype, &line, 0)));
                continue;
            }
            let stride = w.size(&inner);
            let along = w.mul(first, &stride);
            let address = w.at(&line, &along, bytes);
            operands.push(Operand::Moving(w.cursor(&address), stride));
        }
        Ok(operands)
    }

    fn element(&mut self, w: &mut Writer, row: &Self::Row, _at: &Int) -> Result<(), CodegenError> {
        let (output, inputs) =
            row.split_last().ok_or_else(|| CodegenError::inconsistent("a pointwise operator has no output"))?;
        let values: Vec<Scalar> = inputs
            .iter()
            .zip(&self.dtypes)
            .map(|(operand, &dtype)| match operand {
                Operand::Fixed(value) => value.clone(),
                Operand::Moving(address, _) => w.load(dtype, address, 0),
            })
            .collect();
        let dtype = self.dtypes[self.dtypes.len() - 1];
        let value = w.program(self.program, &values, dtype)?;
        if let Operand::Moving(address, _) = output {
            w.store(&value, address, 0);
        }
        Ok(())
    }

    fn advance(&mut self, w: &mut Writer, row: &Self::Row) {
        for (operand, dtype) in row.iter().zip(&self.dtypes) {
            if let Operand::Moving(address, stride) = operand {
                let step = w.mul(stride, &LANES.into());
                w.advance(address, &step, dtype.bytes() as u32);
            }
        }
    }
}
