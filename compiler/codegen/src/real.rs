//! Scalar steps of floats, in f32 or f64. Arithmetic has one implementation for both types; the
//! functions are in `math` and `math64`.
//!
//! A NaN is propagated: minimum and maximum are a comparison and a selection, because `min` and
//! `max` drop NaN (their `.NaN` forms need newer GPUs).

use crate::error::CodegenError;
use crate::writer::Writer;
use atoll_frontend::tensor_graph::PointOp;
use atoll_ptx::{Immediate, Name, Operand, ScalarType};

/// Largest number of iterations of an exact remainder: each divides the quotient by 2^48.
const REMAINDER_ROUNDS: u32 = 22;

/// Emits instructions of one float type.
pub(crate) struct Real<'w> {
    pub(crate) w: &'w mut Writer,
    pub(crate) ty: ScalarType,
}

impl Writer {
    /// Arithmetic in `ty`, f32 or f64.
    pub(crate) fn real(&mut self, ty: ScalarType) -> Real<'_> {
        Real { w: self, ty }
    }
}

impl Real<'_> {
    // ---- instructions ----

    /// A constant.
    pub(crate) fn number(&self, value: f64) -> Operand {
        if self.ty == ScalarType::F64 {
            Operand::Immediate(Immediate::F64(value.to_bits()))
        } else {
            (value as f32).into()
        }
    }

    fn op<const N: usize>(&mut self, dotted: &str, args: [&Operand; N]) -> Operand {
        // PTX accepts a constant everywhere except as the first operand.
        let ty = self.ty;
        let first = self.w.in_register(args[0], ty);
        let operands = std::iter::once(first).chain(args[1..].iter().map(|a| (*a).clone()));
        self.w.make(ty, &format!("{dotted}.{ty}"), operands).into()
    }

    pub(crate) fn add(&mut self, a: &Operand, b: &Operand) -> Operand {
        self.op("add", [a, b])
    }

    pub(crate) fn sub(&mut self, a: &Operand, b: &Operand) -> Operand {
        self.op("sub", [a, b])
    }

    pub(crate) fn mul(&mut self, a: &Operand, b: &Operand) -> Operand {
        self.op("mul", [a, b])
    }

    pub(crate) fn fma(&mut self, a: &Operand, b: &Operand, c: &Operand) -> Operand {
        self.op("fma.rn", [a, b, c])
    }

    pub(crate) fn div(&mut self, a: &Operand, b: &Operand) -> Operand {
        self.op("div.rn", [a, b])
    }

    pub(crate) fn neg(&mut self, a: &Operand) -> Operand {
        self.op("neg", [a])
    }

    pub(crate) fn abs(&mut self, a: &Operand) -> Operand {
        self.op("abs", [a])
    }

    pub(crate) fn sqrt(&mut self, a: &Operand) -> Operand {
        self.op("sqrt.rn", [a])
    }

    pub(crate) fn reciprocal(&mut self, a: &Operand) -> Operand {
        self.op("rcp.rn", [a])
    }

    /// Rounds to an integral value: `rni`, `rzi`, `rmi` or `rpi`.
    pub(crate) fn rounded(&mut self, how: &str, a: &Operand) -> Operand {
        let ty = self.ty;
        self.op(&format!("cvt.{how}.{ty}"), [a])
    }

    pub(crate) fn compare(&mut self, how: &str, a: &Operand, b: &Operand) -> Name {
        let ty = self.ty;
        let first = self.w.in_register(a, ty);
        self.w.make(ScalarType::Pred, &format!("setp.{how}.{ty}"), [first, b.clone()])
    }

    pub(crate) fn select(&mut self, condition: &Name, then: &Operand, otherwise: &Operand) -> Operand {
        let ty = self.ty;
        self.w.make(ty, &format!("selp.{ty}"), [then.clone(), otherwise.clone(), condition.into()]).into()
    }

    /// `coefficients[0] * x^n + … + coefficients[n]` by Horner's rule.
    pub(crate) fn polynomial(&mut self, x: &Operand, coefficients: &[f64]) -> Operand {
        let ty = self.ty;
        let first = self.number(coefficients[0]);
        let mut sum = Operand::from(self.w.make(ty, &format!("mov.{ty}"), [first]));
        for &coefficient in &coefficients[1..] {
            let coefficient = self.number(coefficient);
            sum = self.fma(&sum, x, &coefficient);
        }
        sum
    }

    /// `magnitude` with the sign of `sign`.
    pub(crate) fn with_sign_of(&mut self, magnitude: &Operand, sign: &Operand) -> Operand {
        let (bits, lowest) =
            if self.ty == ScalarType::F64 { (ScalarType::B64, i64::MIN) } else { (ScalarType::B32, i32::MIN.into()) };
        let width = bits.bits();
        let sign = self.w.make(bits, &format!("mov.b{width}"), [sign.clone()]);
        let sign = self.w.make(bits, &format!("and.b{width}"), [sign.into(), lowest.into()]);
        let magnitude = self.w.make(bits, &format!("mov.b{width}"), [magnitude.clone()]);
        let both = self.w.make(bits, &format!("or.b{width}"), [magnitude.into(), sign.into()]);
        let ty = self.ty;
        self.w.make(ty, &format!("mov.b{width}"), [both.into()]).into()
    }

    // ---- minimum and maximum ----

    /// The minimum; NaN if one operand is.
    pub(crate) fn min(&mut self, x: &Operand, y: &Operand) -> Operand {
        self.extreme("gt", x, y)
    }

    /// The maximum; NaN if one operand is.
    pub(crate) fn max(&mut self, x: &Operand, y: &Operand) -> Operand {
        self.extreme("lt", x, y)
    }

    /// `y` if the comparison of `x` and `y` is true, else `x`. A comparison with NaN is false.
    fn extreme(&mut self, how: &str, x: &Operand, y: &Operand) -> Operand {
        let takes = self.compare(how, x, y);
        let result = self.select(&takes, y, x);
        if matches!(y, Operand::Immediate(_)) {
            return result;
        }
        let is_nan = self.compare("nan", y, y);
        self.select(&is_nan, y, &result)
    }

    // ---- steps ----

    /// Emits one step.
    pub(crate) fn step(&mut self, op: PointOp, args: &[Operand]) -> Result<Operand, CodegenError> {
        let ty = self.ty;
        let x = self.w.in_register(&args[0], ty);
        let zero = self.number(0.0);
        let y = args.get(1).cloned().unwrap_or_else(|| zero.clone());
        Ok(match op {
            PointOp::Add => self.add(&x, &y),
            PointOp::Sub => self.sub(&x, &y),
            PointOp::Mul => self.mul(&x, &y),
            PointOp::Div => self.div(&x, &y),
            PointOp::Pow => self.power(&x, &y),
            PointOp::Min => self.min(&x, &y),
            PointOp::Max => self.max(&x, &y),
            PointOp::Mod => self.in_f64(&[x, y], |real, args| real.remainder(&args[0], &args[1])),
            PointOp::Neg => self.neg(&x),
            PointOp::Abs => self.abs(&x),
            PointOp::Sign => self.sign(&x),
            PointOp::Reciprocal => self.reciprocal(&x),
            PointOp::Sqrt => self.sqrt(&x),
            PointOp::Relu => self.max(&x, &zero),
            PointOp::Floor => self.rounded("rmi", &x),
            PointOp::Ceil => self.rounded("rpi", &x),
            PointOp::Round => self.rounded("rni", &x),
            PointOp::LeakyRelu(alpha) => {
                let scaled = self.scaled(&x, alpha);
                self.unless_negative(&x, &scaled)
            }
            PointOp::Elu(alpha) => {
                let below = if ty == ScalarType::F64 { self.exp_minus_one(&x) } else { self.w.exp_minus_one(&x) };
                let scaled = self.scaled(&below, alpha);
                self.unless_negative(&x, &scaled)
            }
            PointOp::HardSigmoid(alpha, beta) => {
                let (alpha, beta, one) = (self.number(alpha.into()), self.number(beta.into()), self.number(1.0));
                let line = self.fma(&x, &alpha, &beta);
                let line = self.max(&line, &zero);
                self.min(&line, &one)
            }
            PointOp::Clip => {
                let raised = self.max(&x, &y);
                let high =
                    args.get(2).cloned().ok_or_else(|| CodegenError::inconsistent("a clip has no upper bound"))?;
                self.min(&raised, &high)
            }
            _ => return self.function(op, &x),
        })
    }

    /// A function of one number.
    fn function(&mut self, op: PointOp, x: &Operand) -> Result<Operand, CodegenError> {
        if self.ty == ScalarType::F64 {
            return self.function_f64(op, x).ok_or_else(|| CodegenError::unsupported(format!("{op:?} of floats")));
        }
        Ok(match op {
            PointOp::Exp => self.w.exp(x),
            PointOp::Log => self.w.log(x),
            PointOp::Erf => self.w.erf(x),
            PointOp::Sin => self.w.sine(x, 0),
            PointOp::Cos => self.w.sine(x, 1),
            PointOp::Tanh => self.w.tanh(x),
            PointOp::Sigmoid => self.w.sigmoid(x),
            PointOp::Softplus => self.w.softplus(x),
            PointOp::Asin | PointOp::Acos | PointOp::Atan | PointOp::Sinh | PointOp::Cosh => self.by_f64(op, x)?,
            PointOp::Asinh | PointOp::Acosh | PointOp::Atanh => self.by_f64(op, x)?,
            other => return Err(CodegenError::unsupported(format!("{other:?} of floats"))),
        })
    }

    /// A function that few models use: computed in f64 for both types, so that it has one
    /// implementation.
    fn by_f64(&mut self, op: PointOp, x: &Operand) -> Result<Operand, CodegenError> {
        let mut found = None;
        let result = self.in_f64(std::slice::from_ref(x), |real, args| {
            found = real.function_f64(op, &args[0]);
            found.clone().unwrap_or_else(|| args[0].clone())
        });
        found.map(|_| result).ok_or_else(|| CodegenError::unsupported(format!("{op:?} of floats")))
    }

    /// Computes in f64 and rounds to this type.
    fn in_f64(&mut self, args: &[Operand], body: impl FnOnce(&mut Real<'_>, &[Operand]) -> Operand) -> Operand {
        if self.ty == ScalarType::F64 {
            return body(self, args);
        }
        let mut wide = Vec::with_capacity(args.len());
        for arg in args {
            let arg = self.w.in_register(arg, ScalarType::F32);
            wide.push(self.w.make(ScalarType::F64, "cvt.f64.f32", [arg]).into());
        }
        let result = body(&mut self.w.real(ScalarType::F64), &wide);
        self.w.make(ScalarType::F32, "cvt.rn.f32.f64", [result]).into()
    }

    fn scaled(&mut self, x: &Operand, factor: f32) -> Operand {
        let factor = self.number(factor.into());
        self.mul(x, &factor)
    }

    fn unless_negative(&mut self, x: &Operand, otherwise: &Operand) -> Operand {
        let zero = self.number(0.0);
        let positive = self.compare("ge", x, &zero);
        self.select(&positive, x, otherwise)
    }

    /// -1 or 1; the number itself if it is 0 or NaN.
    fn sign(&mut self, x: &Operand) -> Operand {
        let (zero, one, minus) = (self.number(0.0), self.number(1.0), self.number(-1.0));
        let above = self.compare("gt", x, &zero);
        let below = self.compare("lt", x, &zero);
        let rest = self.select(&below, &minus, x);
        self.select(&above, &one, &rest)
    }

    /// A power; common exponents are emitted as products and roots.
    fn power(&mut self, x: &Operand, y: &Operand) -> Operand {
        let known = match y {
            Operand::Immediate(Immediate::F32(bits)) => Some(f64::from(f32::from_bits(*bits))),
            Operand::Immediate(Immediate::F64(bits)) => Some(f64::from_bits(*bits)),
            _ => None,
        };
        match known {
            Some(1.0) => x.clone(),
            Some(2.0) => self.mul(x, x),
            Some(3.0) => {
                let square = self.mul(x, x);
                self.mul(&square, x)
            }
            Some(0.5) => self.sqrt(x),
            Some(-1.0) => self.reciprocal(x),
            Some(-0.5) => {
                let root = self.sqrt(x);
                self.reciprocal(&root)
            }
            _ if self.ty == ScalarType::F64 => self.pow(x, y),
            _ => self.w.pow(x, y),
        }
    }

    /// C's `fmod`, in f64, exact for quotients below 2^1056: subtracts multiples of the divisor by
    /// decreasing powers of 2^48; none of these subtractions rounds.
    fn remainder(&mut self, x: &Operand, y: &Operand) -> Operand {
        let (zero, infinity) = (self.number(0.0), self.number(f64::INFINITY));
        let divisor = self.abs(y);
        let magnitude = self.abs(x);
        let rest = self.w.make(ScalarType::F64, "mov.f64", [magnitude]);
        let factor = self.number(2f64.powi(48 * (REMAINDER_ROUNDS as i32 - 1)));
        let factor = self.w.make(ScalarType::F64, "mov.f64", [factor]);
        let smaller = self.number(2f64.powi(-48));
        let (from, to) = (crate::writer::Int::Known(0), crate::writer::Int::Known(REMAINDER_ROUNDS.into()));
        self.w.count(&from, &to, &1.into(), |w, _| {
            let mut real = w.real(ScalarType::F64);
            let now = Operand::from(&rest);
            let multiple = real.mul(&divisor, &(&factor).into());
            let quotient = real.div(&now, &multiple);
            let whole = real.rounded("rzi", &quotient);
            let negated = real.neg(&whole);
            let less = real.fma(&negated, &multiple, &now);
            // The quotient may have been rounded up to the next integer.
            let raised = real.add(&less, &multiple);
            let is_below = real.compare("lt", &less, &zero);
            let less = real.select(&is_below, &raised, &less);
            let is_finite = real.compare("neu", &multiple, &infinity);
            let less = real.select(&is_finite, &less, &now);
            w.set(&rest, &less, ScalarType::F64);
            w.emit("mul.f64", [(&factor).into(), (&factor).into(), smaller.clone()]);
        });
        // Adds 0 for a finite number, NaN for an infinity.
        let nothing = self.sub(x, x);
        let rest = self.add(&rest.into(), &nothing);
        self.with_sign_of(&rest, x)
    }
}
