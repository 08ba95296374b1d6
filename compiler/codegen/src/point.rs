//! Scalar programs: pointwise operators and epilogues, written element by element.

use crate::error::CodegenError;
use crate::scalar::{Scalar, held_as, is_float};
use crate::schedule::DIVISION;
use crate::writer::Writer;
use atoll_frontend::tensor_graph::{PointArg, PointOp, PointProgram, PointStep};
use atoll_kgraph::DType;
use atoll_ptx::{Operand, ScalarType};

/// Largest exponent of an integer power that is written out.
const INTEGER_POWER_MAX: f64 = 64.0;

impl Writer {
    /// Runs a program on its inputs and gives the result as `result` type.
    pub(crate) fn program(&mut self, program: &PointProgram, inputs: &[Scalar], result: DType) -> Result<Scalar, CodegenError> {
        let mut results: Vec<Scalar> = Vec::with_capacity(program.steps.len());
        for step in &program.steps {
            let mut args = Vec::with_capacity(step.args.len());
            for arg in &step.args {
                args.push(match *arg {
                    PointArg::Input(index) => inputs.get(index as usize).cloned(),
                    PointArg::Step(index) => results.get(index as usize).cloned(),
                    PointArg::Const(value) => Some(self.constant(step.ty, value)),
                });
            }
            let args: Option<Vec<Scalar>> = args.into_iter().collect();
            let args = args.ok_or_else(|| CodegenError::inconsistent("a scalar program reads what it does not have"))?;
            if step.may_divide_by_zero() {
                self.check_divisor(step, &args);
            }
            let value = self.step(step, &args)?;
            results.push(value);
        }
        let last = results.pop().or_else(|| inputs.first().cloned());
        let last = last.ok_or_else(|| CodegenError::inconsistent("a scalar program without inputs or steps"))?;
        Ok(if last.dtype == result { last } else { self.cast(&last, result) })
    }

    /// Notes where an integer is divided by zero.
    fn check_divisor(&mut self, step: &PointStep, args: &[Scalar]) {
        let ty = held_as(step.ty);
        let divisor = args.get(1).map_or_else(|| 0.into(), |divisor| divisor.operand.clone());
        let divisor = self.in_register(&divisor, ty);
        let is_zero = self.make(ScalarType::Pred, &format!("setp.eq.{ty}"), [divisor, 0.into()]);
        self.violated(DIVISION, &is_zero);
    }

    /// Runs one step on its operands.
    pub(crate) fn step(&mut self, step: &PointStep, args: &[Scalar]) -> Result<Scalar, CodegenError> {
        let arg = |i: usize| args.get(i).ok_or_else(|| CodegenError::inconsistent(format!("{:?} lacks operand {i}", step.op)));
        match step.op {
            PointOp::Identity => return Ok(arg(0)?.clone()),
            PointOp::Cast => {
                let value = arg(0)?.clone();
                return Ok(self.cast(&value, step.ty));
            }
            PointOp::And => return self.logic("and.pred", arg(0)?, Some(arg(1)?)),
            PointOp::Or => return self.logic("or.pred", arg(0)?, Some(arg(1)?)),
            PointOp::Xor => return self.logic("xor.pred", arg(0)?, Some(arg(1)?)),
            PointOp::Not => return self.logic("not.pred", arg(0)?, None),
            PointOp::Where => return self.choose(arg(0)?, arg(1)?, arg(2)?),
            PointOp::Equal => return self.comparison("eq", step.ty, arg(0)?, arg(1)?),
            PointOp::Less => return self.comparison("lt", step.ty, arg(0)?, arg(1)?),
            PointOp::LessOrEqual => return self.comparison("le", step.ty, arg(0)?, arg(1)?),
            PointOp::Greater => return self.comparison("gt", step.ty, arg(0)?, arg(1)?),
            PointOp::GreaterOrEqual => return self.comparison("ge", step.ty, arg(0)?, arg(1)?),
            _ => {}
        }
        let operands: Vec<Operand> = args.iter().map(|a| a.operand.clone()).collect();
        if operands.is_empty() {
            return Err(CodegenError::inconsistent(format!("{:?} without operands", step.op)));
        }
        let operand = match held_as(step.ty) {
            ScalarType::F32 => self.float_step(step.op, &operands)?,
            ScalarType::F64 => self.double_step(step.op, &operands)?,
            ScalarType::Pred => return Err(unsupported(step)),
            _ => self.integer_step(step, &operands)?,
        };
        Ok(self.wrapped(&Scalar { dtype: step.ty, operand }))
    }

    fn logic(&mut self, dotted: &str, a: &Scalar, b: Option<&Scalar>) -> Result<Scalar, CodegenError> {
        let mut operands = vec![Operand::from(a.predicate()?)];
        if let Some(b) = b {
            operands.push(b.predicate()?.into());
        }
        Ok(Scalar::truth(self.make(ScalarType::Pred, dotted, operands)))
    }

    fn choose(&mut self, condition: &Scalar, then: &Scalar, otherwise: &Scalar) -> Result<Scalar, CodegenError> {
        let predicate = condition.predicate()?;
        let ty = held_as(then.dtype);
        if ty == ScalarType::Pred {
            let taken = self.make(ScalarType::Pred, "and.pred", [(&predicate).into(), then.operand.clone()]);
            let not = self.make(ScalarType::Pred, "not.pred", [predicate.into()]);
            let other = self.make(ScalarType::Pred, "and.pred", [not.into(), otherwise.operand.clone()]);
            return Ok(Scalar::truth(self.make(ScalarType::Pred, "or.pred", [taken.into(), other.into()])));
        }
        let operands = [then.operand.clone(), otherwise.operand.clone(), predicate.into()];
        Ok(Scalar { dtype: then.dtype, operand: self.make(ty, &format!("selp.{ty}"), operands).into() })
    }

    fn comparison(&mut self, how: &str, dtype: DType, a: &Scalar, b: &Scalar) -> Result<Scalar, CodegenError> {
        let ty = held_as(dtype);
        if ty == ScalarType::Pred {
            let differ = self.make(ScalarType::Pred, "xor.pred", [a.operand.clone(), b.operand.clone()]);
            return match how {
                "eq" => Ok(Scalar::truth(self.make(ScalarType::Pred, "not.pred", [differ.into()]))),
                _ => Err(CodegenError::unsupported("booleans have no order")),
            };
        }
        let (a, b) = (self.in_register(&a.operand, ty), b.operand.clone());
        Ok(Scalar::truth(self.make(ScalarType::Pred, &format!("setp.{how}.{ty}"), [a, b])))
    }

    /// One step in f32.
    pub(crate) fn float_step(&mut self, op: PointOp, args: &[Operand]) -> Result<Operand, CodegenError> {
        let x = self.in_register(&args[0], ScalarType::F32);
        let y = args.get(1).cloned().unwrap_or_else(|| 0.0f32.into());
        Ok(match op {
            PointOp::Add => self.fadd(&x, &y),
            PointOp::Sub => self.fsub(&x, &y),
            PointOp::Mul => self.fmul(&x, &y),
            PointOp::Div => self.quotient(&x, &y),
            PointOp::Pow => self.power(&x, &y),
            PointOp::Min => self.f32("min.f32", [x, y]),
            PointOp::Max => self.fmax(&x, &y),
            PointOp::Mod => self.remainder(&x, &y),
            PointOp::Neg => self.f32("neg.f32", [x]),
            PointOp::Abs => self.fabs(&x),
            PointOp::Sign => self.sign(&x),
            PointOp::Reciprocal => self.f32("rcp.rn.f32", [x]),
            PointOp::Sqrt => self.f32("sqrt.rn.f32", [x]),
            PointOp::Exp => self.exp(&x),
            PointOp::Log => self.log(&x),
            PointOp::Erf => self.erf(&x),
            PointOp::Sin => self.sine(&x, 0),
            PointOp::Cos => self.sine(&x, 1),
            PointOp::Tanh => self.tanh(&x),
            PointOp::Sigmoid => self.sigmoid(&x),
            PointOp::Relu => self.fmax(&x, &0.0.into()),
            PointOp::Floor => self.f32("cvt.rmi.f32.f32", [x]),
            PointOp::Ceil => self.f32("cvt.rpi.f32.f32", [x]),
            PointOp::Round => self.f32("cvt.rni.f32.f32", [x]),
            PointOp::LeakyRelu(alpha) => {
                let scaled = self.fmul(&x, &alpha.into());
                self.unless_negative(&x, &scaled)
            }
            PointOp::Elu(alpha) => {
                let below = self.exp_minus_one(&x);
                let scaled = self.fmul(&below, &alpha.into());
                self.unless_negative(&x, &scaled)
            }
            PointOp::HardSigmoid(alpha, beta) => {
                let line = self.fma(&x, &alpha.into(), &beta.into());
                let line = self.fmax(&line, &0.0.into());
                self.f32("min.f32", [line, 1.0.into()])
            }
            PointOp::Softplus => self.softplus(&x),
            PointOp::Clip => {
                let raised = self.fmax(&x, &y);
                let high = args.get(2).cloned().unwrap_or_else(|| f32::INFINITY.into());
                self.f32("min.f32", [raised, high])
            }
            other => return Err(CodegenError::unsupported(format!("{other:?} of floats"))),
        })
    }

    fn unless_negative(&mut self, x: &Operand, otherwise: &Operand) -> Operand {
        let positive = self.fcompare("ge", x, &0.0.into());
        self.fselect(&positive, x, otherwise)
    }

    fn quotient(&mut self, x: &Operand, y: &Operand) -> Operand {
        self.f32("div.rn.f32", [x.clone(), y.clone()])
    }

    /// C's `fmod`, by one division: exact while the quotient is.
    fn remainder(&mut self, x: &Operand, y: &Operand) -> Operand {
        let y = self.in_register(y, ScalarType::F32);
        let quotient = self.quotient(x, &y);
        let whole = self.f32("cvt.rzi.f32.f32", [quotient]);
        let negated = self.f32("neg.f32", [whole]);
        self.fma(&negated, &y, x)
    }

    fn sign(&mut self, x: &Operand) -> Operand {
        let above = self.fcompare("gt", x, &0.0.into());
        let below = self.fcompare("lt", x, &0.0.into());
        let negative = self.fselect(&below, &(-1.0).into(), &0.0.into());
        self.fselect(&above, &1.0.into(), &negative)
    }

    /// A power; the exponents models use most are written as products and roots.
    fn power(&mut self, x: &Operand, y: &Operand) -> Operand {
        let known = match y {
            Operand::Immediate(atoll_ptx::Immediate::F32(bits)) => Some(f32::from_bits(*bits)),
            _ => None,
        };
        match known {
            Some(1.0) => x.clone(),
            Some(2.0) => self.fmul(x, x),
            Some(3.0) => {
                let square = self.fmul(x, x);
                self.fmul(&square, x)
            }
            Some(0.5) => self.f32("sqrt.rn.f32", [x.clone()]),
            Some(-1.0) => self.f32("rcp.rn.f32", [x.clone()]),
            Some(-0.5) => {
                let root = self.f32("sqrt.rn.f32", [x.clone()]);
                self.f32("rcp.rn.f32", [root])
            }
            _ => self.pow(x, y),
        }
    }

    /// One step in f64: arithmetic; functions go through f32.
    fn double_step(&mut self, op: PointOp, args: &[Operand]) -> Result<Operand, CodegenError> {
        let dotted = match op {
            PointOp::Add => "add.f64",
            PointOp::Sub => "sub.f64",
            PointOp::Mul => "mul.f64",
            PointOp::Div => "div.rn.f64",
            PointOp::Min => "min.f64",
            PointOp::Max => "max.f64",
            PointOp::Neg => "neg.f64",
            PointOp::Abs => "abs.f64",
            PointOp::Sqrt => "sqrt.rn.f64",
            PointOp::Floor => "cvt.rmi.f64.f64",
            PointOp::Ceil => "cvt.rpi.f64.f64",
            PointOp::Round => "cvt.rni.f64.f64",
            _ => {
                let narrow: Vec<Operand> =
                    args.iter().map(|a| self.cast(&Scalar { dtype: DType::F64, operand: a.clone() }, DType::F32).operand).collect();
                let result = self.float_step(op, &narrow)?;
                return Ok(self.cast(&Scalar::f32(result), DType::F64).operand);
            }
        };
        let first = self.in_register(&args[0], ScalarType::F64);
        let operands = std::iter::once(first).chain(args[1..].iter().cloned());
        Ok(self.make(ScalarType::F64, dotted, operands).into())
    }

    /// One step in 32-bit or 64-bit integers.
    fn integer_step(&mut self, step: &PointStep, args: &[Operand]) -> Result<Operand, CodegenError> {
        let ty = held_as(step.ty);
        let signed = matches!(ty, ScalarType::S32 | ScalarType::S64);
        let x = self.in_register(&args[0], ty);
        let y = args.get(1).cloned().unwrap_or_else(|| 0.into());
        Ok(match step.op {
            PointOp::Add => self.make(ty, &format!("add.{ty}"), [x, y]),
            PointOp::Sub => self.make(ty, &format!("sub.{ty}"), [x, y]),
            PointOp::Mul => self.make(ty, &format!("mul.lo.{ty}"), [x, y]),
            PointOp::Div => self.make(ty, &format!("div.{ty}"), [x, y]),
            PointOp::Min => self.make(ty, &format!("min.{ty}"), [x, y]),
            PointOp::Max => self.make(ty, &format!("max.{ty}"), [x, y]),
            PointOp::Relu if signed => self.make(ty, &format!("max.{ty}"), [x, 0.into()]),
            PointOp::Neg => self.make(ty, &format!("sub.{ty}"), [0.into(), x]),
            PointOp::Abs if signed => self.make(ty, &format!("abs.{ty}"), [x]),
            PointOp::Abs | PointOp::Relu | PointOp::Floor | PointOp::Ceil | PointOp::Round => return Ok(x),
            PointOp::Sign if signed => {
                let low = self.make(ty, &format!("max.{ty}"), [x, (-1).into()]);
                self.make(ty, &format!("min.{ty}"), [low.into(), 1.into()])
            }
            PointOp::Sign => self.make(ty, &format!("min.{ty}"), [x, 1.into()]),
            PointOp::Clip => {
                let raised = self.make(ty, &format!("max.{ty}"), [x, y]);
                let high = args.get(2).cloned().ok_or_else(|| unsupported(step))?;
                self.make(ty, &format!("min.{ty}"), [raised.into(), high])
            }
            PointOp::Mod => return Ok(self.modulo(ty, signed, &x, &y)),
            PointOp::Pow => return self.integer_power(ty, step, &x, &y),
            _ => return Err(unsupported(step)),
        }
        .into())
    }

    /// Remainder with the sign of the divisor.
    fn modulo(&mut self, ty: ScalarType, signed: bool, x: &Operand, y: &Operand) -> Operand {
        let y = self.in_register(y, ty);
        let rest = self.make(ty, &format!("rem.{ty}"), [x.clone(), y.clone()]);
        if !signed {
            return rest.into();
        }
        let bits = ty.bits();
        let differ = self.make(ty, &format!("xor.b{bits}"), [(&rest).into(), y.clone()]);
        let opposite = self.make(ScalarType::Pred, &format!("setp.lt.{ty}"), [differ.into(), 0.into()]);
        let is_rest = self.make(ScalarType::Pred, &format!("setp.ne.{ty}"), [(&rest).into(), 0.into()]);
        let both = self.make(ScalarType::Pred, "and.pred", [opposite.into(), is_rest.into()]);
        let moved = self.make(ty, &format!("add.{ty}"), [(&rest).into(), y]);
        self.make(ty, &format!("selp.{ty}"), [moved.into(), rest.into(), both.into()]).into()
    }

    /// A power by squaring; with an exponent that is not known, six rounds of it, and 0 for a negative one.
    fn integer_power(&mut self, ty: ScalarType, step: &PointStep, x: &Operand, y: &Operand) -> Result<Operand, CodegenError> {
        let one = self.make(ty, &format!("mov.{ty}"), [1.into()]);
        match step.args.get(1) {
            Some(&PointArg::Const(exponent)) if (0.0..=INTEGER_POWER_MAX).contains(&exponent) && exponent.fract() == 0.0 => {
                Ok(self.known_power(ty, x, exponent as u32, one.into()))
            }
            Some(PointArg::Const(_)) => Err(unsupported(step)),
            _ => Ok(self.unknown_power(ty, x, y, one.into())),
        }
    }

    fn known_power(&mut self, ty: ScalarType, x: &Operand, exponent: u32, one: Operand) -> Operand {
        let (mut rest, mut square, mut result) = (exponent, x.clone(), one);
        while rest > 0 {
            if rest & 1 == 1 {
                result = self.make(ty, &format!("mul.lo.{ty}"), [result, square.clone()]).into();
            }
            rest >>= 1;
            if rest > 0 {
                square = self.make(ty, &format!("mul.lo.{ty}"), [square.clone(), square]).into();
            }
        }
        result
    }

    fn unknown_power(&mut self, ty: ScalarType, x: &Operand, y: &Operand, one: Operand) -> Operand {
        let bits = ty.bits();
        let (mut square, mut result) = (x.clone(), one);
        for bit in 0..6 {
            let set = self.make(ty, &format!("and.b{bits}"), [y.clone(), (1i64 << bit).into()]);
            let is_set = self.make(ScalarType::Pred, &format!("setp.ne.{ty}"), [set.into(), 0.into()]);
            let product = self.make(ty, &format!("mul.lo.{ty}"), [result.clone(), square.clone()]);
            result = self.make(ty, &format!("selp.{ty}"), [product.into(), result, is_set.into()]).into();
            square = self.make(ty, &format!("mul.lo.{ty}"), [square.clone(), square]).into();
        }
        if !matches!(ty, ScalarType::S32 | ScalarType::S64) {
            return result;
        }
        let is_negative = self.make(ScalarType::Pred, &format!("setp.lt.{ty}"), [y.clone(), 0.into()]);
        self.make(ty, &format!("selp.{ty}"), [0.into(), result, is_negative.into()]).into()
    }
}

fn unsupported(step: &PointStep) -> CodegenError {
    let of = if is_float(step.ty) { "floats" } else { "integers" };
    CodegenError::unsupported(format!("{:?} of {of} ({:?})", step.op, step.ty))
}
