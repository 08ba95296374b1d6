//! Scalar programs: emits pointwise operators and epilogues, element by element.

use crate::error::CodegenError;
use crate::scalar::{Scalar, held_as, is_float};
use crate::schedule::DIVISION;
use crate::writer::Writer;
use atoll_frontend::tensor_graph::{PointArg, PointOp, PointProgram, PointStep};
use atoll_kgraph::DType;
use atoll_ptx::{Name, Operand, ScalarType};

/// Largest exponent of an integer power that is expanded into products.
const INTEGER_POWER_MAX: f64 = 64.0;

impl Writer {
    /// Emits a program on its inputs; returns the result converted to `result`.
    pub(crate) fn program(
        &mut self,
        program: &PointProgram,
        inputs: &[Scalar],
        result: DType,
    ) -> Result<Scalar, CodegenError> {
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
            let args = args.ok_or_else(|| {
                CodegenError::inconsistent("a scalar program reads an input or step that does not exist")
            })?;
            if step.may_divide_by_zero() {
                self.check_divisor(step, &args);
            }
            let value = self.step(step, &args)?;
            results.push(value);
        }
        let last = results.pop().or_else(|| inputs.first().cloned());
        let last = last.ok_or_else(|| CodegenError::inconsistent("a scalar program has no inputs and no steps"))?;
        Ok(if last.dtype == result { last } else { self.cast(&last, result) })
    }

    /// Emits the check that an integer is not divided by zero.
    fn check_divisor(&mut self, step: &PointStep, args: &[Scalar]) {
        let ty = held_as(step.ty);
        let divisor = args.get(1).map_or_else(|| 0.into(), |divisor| divisor.operand.clone());
        let divisor = self.in_register(&divisor, ty);
        let is_zero = self.make(ScalarType::Pred, &format!("setp.eq.{ty}"), [divisor, 0.into()]);
        self.violated(DIVISION, &is_zero);
    }

    /// Emits one step on its operands.
    pub(crate) fn step(&mut self, step: &PointStep, args: &[Scalar]) -> Result<Scalar, CodegenError> {
        let arg = |i: usize| {
            args.get(i).ok_or_else(|| CodegenError::inconsistent(format!("{:?} lacks operand {i}", step.op)))
        };
        match step.op {
            PointOp::Identity => return Ok(arg(0)?.clone()),
            PointOp::Cast => {
                let value = arg(0)?.clone();
                return Ok(self.cast(&value, step.ty));
            }
            PointOp::BitCast => {
                let value = arg(0)?.clone();
                return Ok(self.bit_cast(&value, step.ty));
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
            ty @ (ScalarType::F32 | ScalarType::F64) => self.real(ty).step(step.op, &operands)?,
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
                _ => Err(CodegenError::unsupported("an ordered comparison of booleans")),
            };
        }
        let (a, b) = (self.in_register(&a.operand, ty), b.operand.clone());
        Ok(Scalar::truth(self.make(ScalarType::Pred, &format!("setp.{how}.{ty}"), [a, b])))
    }

    /// Emits one step in 32-bit or 64-bit integers.
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
            PointOp::BitAnd => self.make(ty, &format!("and.b{}", ty.bits()), [x, y]),
            PointOp::BitOr => self.make(ty, &format!("or.b{}", ty.bits()), [x, y]),
            PointOp::BitXor => self.make(ty, &format!("xor.b{}", ty.bits()), [x, y]),
            PointOp::BitNot => self.make(ty, &format!("not.b{}", ty.bits()), [x]),
            PointOp::ShiftLeft if !signed => self.shift(&format!("shl.b{}", ty.bits()), ty, &x, &y),
            PointOp::ShiftRight if !signed => self.shift(&format!("shr.{ty}"), ty, &x, &y),
            _ => return Err(unsupported(step)),
        }
        .into())
    }

    /// A shift of an unsigned integer. In PTX, a shift by the width or more gives 0.
    fn shift(&mut self, dotted: &str, ty: ScalarType, x: &Operand, y: &Operand) -> Name {
        let by = if ty == ScalarType::U64 {
            let y = self.in_register(y, ty);
            let bounded = self.make(ty, "min.u64", [y, 64.into()]);
            self.make(ScalarType::U32, "cvt.u32.u64", [bounded.into()]).into()
        } else {
            y.clone()
        };
        self.make(ty, dotted, [x.clone(), by])
    }

    /// The remainder, with the sign of the divisor.
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

    /// A power by squaring.
    fn integer_power(
        &mut self,
        ty: ScalarType,
        step: &PointStep,
        x: &Operand,
        y: &Operand,
    ) -> Result<Operand, CodegenError> {
        let one = self.make(ty, &format!("mov.{ty}"), [1.into()]);
        match step.args.get(1) {
            Some(&PointArg::Const(exponent))
                if (0.0..=INTEGER_POWER_MAX).contains(&exponent) && exponent.fract() == 0.0 =>
            {
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

    /// A power whose exponent is in a register: one step of squaring per bit of the exponent. A
    /// negative exponent gives 0, except for the bases 1 and -1.
    fn unknown_power(&mut self, ty: ScalarType, x: &Operand, y: &Operand, one: Operand) -> Operand {
        let bits = ty.bits();
        let y = self.in_register(y, ty);
        let mov = format!("mov.{ty}");
        let [square, rest, result] = [x.clone(), y.clone(), one].map(|first| self.make(ty, &mov, [first]));
        let (mul, shr) = (format!("mul.lo.{ty}"), format!("shr.{}", unsigned(ty)));
        self.count(&0.into(), &bits.into(), &1.into(), |w, _| {
            let odd = w.make(ty, &format!("and.b{bits}"), [(&rest).into(), 1.into()]);
            let is_odd = w.make(ScalarType::Pred, &format!("setp.ne.{ty}"), [odd.into(), 0.into()]);
            let product = w.make(ty, &mul, [(&result).into(), (&square).into()]);
            w.emit(&format!("selp.{ty}"), [(&result).into(), product.into(), (&result).into(), is_odd.into()]);
            w.emit(&mul, [(&square).into(), (&square).into(), (&square).into()]);
            w.emit(&shr, [(&rest).into(), (&rest).into(), 1.into()]);
        });
        let result = Operand::from(result);
        if !matches!(ty, ScalarType::S32 | ScalarType::S64) {
            return result;
        }
        let is_negative = self.make(ScalarType::Pred, &format!("setp.lt.{ty}"), [y.clone(), 0.into()]);
        // Handles a base of 1 or -1 (its square is 1): an odd power has its sign.
        let odd = self.make(ty, &format!("and.b{bits}"), [y, 1.into()]);
        let is_odd = self.make(ScalarType::Pred, &format!("setp.ne.{ty}"), [odd.into(), 0.into()]);
        let squared = self.make(ty, &format!("mul.lo.{ty}"), [x.clone(), x.clone()]);
        let lowered = self.make(ty, &format!("add.{ty}"), [x.clone(), 1.into()]);
        let is_unit = self.make(ScalarType::Pred, &format!("setp.le.{}", unsigned(ty)), [lowered.into(), 2.into()]);
        let is_zero = self.make(ScalarType::Pred, &format!("setp.eq.{ty}"), [x.clone(), 0.into()]);
        let unit = self.make(ty, &format!("selp.{ty}"), [x.clone(), squared.into(), is_odd.into()]);
        let unit = self.make(ty, &format!("selp.{ty}"), [0.into(), unit.into(), is_zero.into()]);
        let inverse = self.make(ty, &format!("selp.{ty}"), [unit.into(), 0.into(), is_unit.into()]);
        self.make(ty, &format!("selp.{ty}"), [inverse.into(), result, is_negative.into()]).into()
    }
}

fn unsigned(ty: ScalarType) -> ScalarType {
    if ty.bits() == 64 { ScalarType::U64 } else { ScalarType::U32 }
}

fn unsupported(step: &PointStep) -> CodegenError {
    let of = if is_float(step.ty) { "floats" } else { "integers" };
    CodegenError::unsupported(format!("{:?} of {of} ({:?})", step.op, step.ty))
}
