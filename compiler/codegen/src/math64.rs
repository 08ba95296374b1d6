//! Scalar functions in f64, with an error of a few units in the last place, one file per family.
//! The coefficients of `log`, `sin`, `cos`, `atan` and `erf` are those of FreeBSD's libm (Sun
//! Microsystems, 1993).
#![expect(clippy::excessive_precision, clippy::approx_constant, reason = "coefficients as they were fitted")]

use crate::real::Real;
use atoll_frontend::tensor_graph::PointOp;
use atoll_ptx::{Operand, ScalarType};

mod circular;
mod error_function;
mod exponential;
mod logarithm;
mod power;

/// ln 2 as a sum of two numbers; products of the first with exponents are exact.
const LN2_HIGH: f64 = 6.931_471_803_691_238_164_90e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_700_02e-10;
const LN2: f64 = std::f64::consts::LN_2;

impl Real<'_> {
    /// A function of one number in f64.
    pub(crate) fn function_f64(&mut self, op: PointOp, x: &Operand) -> Option<Operand> {
        Some(match op {
            PointOp::Exp => self.exp(x),
            PointOp::Log => self.log(x),
            PointOp::Erf => self.erf(x),
            PointOp::Sin => self.sine(x, 0),
            PointOp::Cos => self.sine(x, 1),
            PointOp::Tanh => self.tanh(x),
            PointOp::Sigmoid => self.sigmoid(x),
            PointOp::Softplus => self.softplus(x),
            PointOp::Asin => self.asin(x),
            PointOp::Acos => self.acos(x),
            PointOp::Atan => self.atan(x),
            PointOp::Sinh => self.sinh(x),
            PointOp::Cosh => self.cosh(x),
            PointOp::Asinh => self.asinh(x),
            PointOp::Acosh => self.acosh(x),
            PointOp::Atanh => self.atanh(x),
            _ => return None,
        })
    }

    fn bits(&mut self, x: &Operand) -> Operand {
        self.w.make(ScalarType::B64, "mov.b64", [x.clone()]).into()
    }

    fn bound(&mut self, x: &Operand, low: f64, high: f64) -> Operand {
        let (low, high) = (self.number(low), self.number(high));
        let raised = self.max(x, &low);
        self.min(&raised, &high)
    }

    fn in_own_register(&mut self, value: f64) -> Operand {
        let value = self.number(value);
        self.w.in_register(&value, ScalarType::F64)
    }
}
