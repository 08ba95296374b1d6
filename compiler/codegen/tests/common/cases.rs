//! Small graphs, one for each property of the kernels that is tested.
#![expect(clippy::type_complexity, reason = "tables of cases read best as plain tuples")]

mod convolutions;
mod functions;
mod integers;
mod movement;
mod narrow;
mod products;
mod reductions;
mod symbolic;
mod windows;

pub use convolutions::{convolutions, volumes};
pub use functions::functions;
pub use integers::integers;
pub use movement::{broadcasting, movement};
pub use narrow::narrow;
pub use products::products;
pub use reductions::reductions;
pub use symbolic::{buffers, symbolic};
pub use windows::{recurrence, windows};

use super::{Model, dims};
use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use PointArg::{Const, Input, Step};
use atoll_frontend::nest::{NestArg, NestBuilder};
use atoll_frontend::program::ProgramBuilder;
use atoll_frontend::tensor::Tensor;
use atoll_frontend::tensor_graph::*;
use atoll_kgraph::{Condition, DType, Expr, Relation};

/// A program of steps in one type.
fn steps(ty: DType, steps: &[(PointOp, &[PointArg])]) -> PointProgram {
    let mut builder = ProgramBuilder::default();
    for (op, args) in steps {
        builder.step(*op, ty, args);
    }
    builder.finish()
}

fn unary(op: PointOp) -> Op {
    Op::Pointwise(steps(F32, &[(op, &[Input(0)])]))
}

fn binary(op: PointOp, ty: DType) -> Op {
    Op::Pointwise(steps(ty, &[(op, &[Input(0), Input(1)])]))
}

/// `relu(x + bias)`
fn bias_relu() -> PointProgram {
    steps(F32, &[(PointOp::Add, &[Input(0), Input(1)]), (PointOp::Relu, &[Step(0)])])
}

fn is_float(dtype: DType) -> bool {
    atoll_frontend::tensor::is_float(dtype)
}

/// The element types.
const TYPES: [DType; 13] = [Bool, U8, I8, U16, I16, U32, I32, U64, I64, F16, Bf16, F32, F64];

/// Every case, by family.
pub fn all() -> Vec<Model> {
    [
        functions(),
        integers(),
        broadcasting(),
        movement(),
        narrow(),
        reductions(),
        products(),
        convolutions(),
        volumes(),
        windows(),
        recurrence(),
        buffers(),
        symbolic(),
        super::nests::nests(),
    ]
    .concat()
}
