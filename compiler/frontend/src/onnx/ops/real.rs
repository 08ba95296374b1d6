//! Arithmetic on real numbers in a nest, in one floating-point type.

use super::super::error::LowerResult;
use super::super::lowering::Lowering;
use crate::nest::{NestArg, NestBuilder};
use crate::tensor_graph::{PointOp, ValueId};
use atoll_kgraph::DType;

/// The type in which a nest computes: f64 for f64, f32 for all narrower types.
#[derive(Clone, Copy)]
pub(super) struct Real(pub(super) DType);

/// A constant.
pub(super) fn number(value: f64) -> NestArg {
    NestArg::Const(value)
}

impl Real {
    pub(super) fn of(dtype: DType) -> Real {
        Real(if dtype == DType::F64 { DType::F64 } else { DType::F32 })
    }

    /// The operand, cast to this type.
    pub(super) fn wide(self, lowering: &mut Lowering, name: &str, id: ValueId) -> LowerResult<ValueId> {
        lowering.cast(&format!("{name}.wide"), id, self.0)
    }

    pub(super) fn step(self, nest: &mut NestBuilder, op: PointOp, args: &[&NestArg]) -> NestArg {
        let args: Vec<NestArg> = args.iter().map(|arg| (*arg).clone()).collect();
        nest.step(op, self.0, &args)
    }

    pub(super) fn add(self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        self.step(nest, PointOp::Add, &[a, b])
    }

    pub(super) fn sub(self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        self.step(nest, PointOp::Sub, &[a, b])
    }

    pub(super) fn mul(self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        self.step(nest, PointOp::Mul, &[a, b])
    }

    pub(super) fn div(self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        self.step(nest, PointOp::Div, &[a, b])
    }

    pub(super) fn min(self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        self.step(nest, PointOp::Min, &[a, b])
    }

    pub(super) fn max(self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        self.step(nest, PointOp::Max, &[a, b])
    }

    pub(super) fn clamp(self, nest: &mut NestBuilder, x: &NestArg, low: &NestArg, high: &NestArg) -> NestArg {
        let x = self.max(nest, x, low);
        self.min(nest, &x, high)
    }

    pub(super) fn floor(self, nest: &mut NestBuilder, x: &NestArg) -> NestArg {
        self.step(nest, PointOp::Floor, &[x])
    }

    pub(super) fn less(self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
        nest.compare(PointOp::Less, self.0, a, b)
    }

    pub(super) fn select(
        self,
        nest: &mut NestBuilder,
        condition: &NestArg,
        then: &NestArg,
        otherwise: &NestArg,
    ) -> NestArg {
        nest.select(self.0, condition, then, otherwise)
    }

    /// `a + (b - a) * part`, computed as `a * (1 - part) + b * part`.
    pub(super) fn mix(self, nest: &mut NestBuilder, a: &NestArg, b: &NestArg, part: &NestArg) -> NestArg {
        let rest = self.sub(nest, &number(1.0), part);
        let (a, b) = (self.mul(nest, a, &rest), self.mul(nest, b, part));
        self.add(nest, &a, &b)
    }

    /// An index or a size, converted to this type.
    pub(super) fn of_index(self, nest: &mut NestBuilder, index: &NestArg) -> NestArg {
        match index {
            NestArg::Const(_) => index.clone(),
            _ => nest.cast(index, self.0),
        }
    }

    /// An integral value, converted to an index.
    pub(super) fn to_index(self, nest: &mut NestBuilder, x: &NestArg) -> NestArg {
        nest.cast(x, DType::I32)
    }
}

/// The smaller of two indices.
pub(super) fn index_min(nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
    nest.step(PointOp::Min, DType::I32, &[a.clone(), b.clone()])
}

/// The larger of two indices.
pub(super) fn index_max(nest: &mut NestBuilder, a: &NestArg, b: &NestArg) -> NestArg {
    nest.step(PointOp::Max, DType::I32, &[a.clone(), b.clone()])
}

/// The index clamped to `0..extent`.
pub(super) fn index_clamp(nest: &mut NestBuilder, index: &NestArg, extent: &NestArg) -> NestArg {
    let last = nest.sub(extent, &1.into());
    let below = index_min(nest, index, &last);
    index_max(nest, &below, &0.into())
}
