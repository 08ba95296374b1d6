//! Activation functions: small scalar programs over one operand.

use super::super::call::Call;
use super::super::error::{LowerResult, invalid};
use super::super::lowering::Lowering;
use super::pointwise::map;
use crate::tensor::is_float;
use crate::tensor_graph::{PointArg, PointOp, ValueId};
use atoll_kgraph::DType;

type Results = LowerResult<Vec<ValueId>>;

pub(super) fn leaky_relu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let alpha = call.float("alpha", 0.01)?;
    map(lowering, call, |p, ty, x| {
        p.step(PointOp::LeakyRelu(alpha), ty, &[x]);
    })
}

pub(super) fn elu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let alpha = call.float("alpha", 1.0)?;
    map(lowering, call, |p, ty, x| {
        p.step(PointOp::Elu(alpha), ty, &[x]);
    })
}

pub(super) fn selu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let alpha = call.float("alpha", 1.673_263_2)?;
    let gamma = call.float("gamma", 1.050_701)?;
    map(lowering, call, |p, ty, x| {
        let elu = p.step(PointOp::Elu(alpha), ty, &[x]);
        p.step(PointOp::Mul, ty, &[elu, PointArg::Const(gamma.into())]);
    })
}

/// `max(0, x) + min(0, alpha * (exp(x / alpha) - 1))`
pub(super) fn celu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let alpha = call.float("alpha", 1.0)?;
    map(lowering, call, |p, ty, x| {
        let scaled = p.step(PointOp::Div, ty, &[x, PointArg::Const(alpha.into())]);
        let elu = p.step(PointOp::Elu(1.0), ty, &[scaled]);
        p.step(PointOp::Mul, ty, &[elu, PointArg::Const(alpha.into())]);
    })
}

pub(super) fn hard_sigmoid(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (alpha, beta) = (call.float("alpha", 0.2)?, call.float("beta", 0.5)?);
    map(lowering, call, |p, ty, x| {
        p.step(PointOp::HardSigmoid(alpha, beta), ty, &[x]);
    })
}

pub(super) fn hard_swish(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    map(lowering, call, |p, ty, x| {
        let gate = p.step(PointOp::HardSigmoid(1.0 / 6.0, 0.5), ty, &[x]);
        p.step(PointOp::Mul, ty, &[x, gate]);
    })
}

/// `x * tanh(softplus(x))`
pub(super) fn mish(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    map(lowering, call, |p, ty, x| {
        let softplus = p.step(PointOp::Softplus, ty, &[x]);
        let tanh = p.step(PointOp::Tanh, ty, &[softplus]);
        p.step(PointOp::Mul, ty, &[x, tanh]);
    })
}

/// `x / (1 + |x|)`
pub(super) fn softsign(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    map(lowering, call, |p, ty, x| {
        let magnitude = p.step(PointOp::Abs, ty, &[x]);
        let divisor = p.step(PointOp::Add, ty, &[magnitude, PointArg::Const(1.0)]);
        p.step(PointOp::Div, ty, &[x, divisor]);
    })
}

pub(super) fn tan(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    map(lowering, call, |p, ty, x| {
        let sin = p.step(PointOp::Sin, ty, &[x]);
        let cos = p.step(PointOp::Cos, ty, &[x]);
        p.step(PointOp::Div, ty, &[sin, cos]);
    })
}

pub(super) fn thresholded_relu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let alpha = call.float("alpha", 1.0)?;
    map(lowering, call, |p, ty, x| {
        let passes = p.step(PointOp::Greater, ty, &[x, PointArg::Const(alpha.into())]);
        p.step(PointOp::Where, ty, &[passes, x, PointArg::Const(0.0)]);
    })
}

/// Exact, with the error function, or the `tanh` approximation.
pub(super) fn gelu(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let approximate = call.string("approximate", "none")?;
    if approximate != "none" && approximate != "tanh" {
        return invalid(format!("its attribute approximate is {approximate:?}; ONNX defines none and tanh"));
    }
    map(lowering, call, |p, ty, x| {
        let number = PointArg::Const;
        let bell = if approximate == "none" {
            let scaled = p.step(PointOp::Mul, ty, &[x, number(std::f64::consts::FRAC_1_SQRT_2)]);
            p.step(PointOp::Erf, ty, &[scaled])
        } else {
            let square = p.step(PointOp::Mul, ty, &[x, x]);
            let cube = p.step(PointOp::Mul, ty, &[square, x]);
            let bent = p.step(PointOp::Mul, ty, &[cube, number(0.044_715)]);
            let sum = p.step(PointOp::Add, ty, &[x, bent]);
            let scaled = p.step(PointOp::Mul, ty, &[sum, number((2.0 / std::f64::consts::PI).sqrt())]);
            p.step(PointOp::Tanh, ty, &[scaled])
        };
        let raised = p.step(PointOp::Add, ty, &[bell, number(1.0)]);
        let half = p.step(PointOp::Mul, ty, &[x, number(0.5)]);
        p.step(PointOp::Mul, ty, &[half, raised]);
    })
}

/// `x * sigmoid(alpha * x)`
pub(super) fn swish(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let alpha = call.float("alpha", 1.0)?;
    map(lowering, call, |p, ty, x| {
        let scaled = if alpha == 1.0 { x } else { p.step(PointOp::Mul, ty, &[x, PointArg::Const(alpha.into())]) };
        let gate = p.step(PointOp::Sigmoid, ty, &[scaled]);
        p.step(PointOp::Mul, ty, &[x, gate]);
    })
}

/// `x + bias` below `-lambd`, `x - bias` above `lambd`, 0 between. Integers are computed in f32.
pub(super) fn shrink(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (bias, limit) = (f64::from(call.float("bias", 0.0)?), f64::from(call.float("lambd", 0.5)?));
    map(lowering, call, |p, ty, x| {
        let compute = if is_float(ty) { ty } else { DType::F32 };
        let value = if compute == ty { x } else { p.step(PointOp::Cast, compute, &[x]) };
        let (raised, lowered) = (
            p.step(PointOp::Add, compute, &[value, PointArg::Const(bias)]),
            p.step(PointOp::Sub, compute, &[value, PointArg::Const(bias)]),
        );
        let is_below = p.step(PointOp::Less, compute, &[value, PointArg::Const(-limit)]);
        let is_above = p.step(PointOp::Greater, compute, &[value, PointArg::Const(limit)]);
        let rest = p.step(PointOp::Where, compute, &[is_above, lowered, PointArg::Const(0.0)]);
        let result = p.step(PointOp::Where, compute, &[is_below, raised, rest]);
        if compute != ty {
            p.step(PointOp::Cast, ty, &[result]);
        }
    })
}
