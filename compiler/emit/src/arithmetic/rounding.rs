//! Correctly rounded operations in the four rounding modes of PTX.
//!
//! LLVM's own instructions round to nearest; the other modes are the target's
//! ([`Emit::directed`]).

use super::*;

/// A rounding mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest number, halfway cases to the even one.
    Nearest,
    /// Towards zero.
    Zero,
    /// Towards −∞.
    Down,
    /// Towards +∞.
    Up,
}

impl Rounding {
    /// The rounding mode of an instruction; to nearest by default.
    pub(super) fn of(inst: &Inst) -> Rounding {
        match () {
            () if inst.has("rz") => Rounding::Zero,
            () if inst.has("rm") => Rounding::Down,
            () if inst.has("rp") => Rounding::Up,
            () => Rounding::Nearest,
        }
    }
}

/// An operation that is exact except for one rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounded {
    /// `a + b`
    Add,
    /// `a − b`
    Sub,
    /// `a · b`
    Mul,
    /// `a / b`
    Div,
    /// `√a`
    Sqrt,
    /// `a · b + c`
    Fma,
    /// f64 to f32.
    Narrow,
}

impl<E: Emit> Arithmetic<'_, E> {
    /// An operation in a rounding mode.
    pub(super) fn rounded(&mut self, op: Rounded, rounding: Rounding, arguments: &[&Val]) -> Val {
        let (ty, w) = (arguments[0].ty, self.w());
        if rounding != Rounding::Nearest {
            return self.directed(op, rounding, arguments);
        }
        match op {
            Rounded::Add => w.bin("fadd", arguments[0], arguments[1]),
            Rounded::Sub => w.bin("fsub", arguments[0], arguments[1]),
            Rounded::Mul => w.bin("fmul", arguments[0], arguments[1]),
            Rounded::Div => w.bin("fdiv", arguments[0], arguments[1]),
            Rounded::Sqrt => w.call("llvm.sqrt", ty, arguments),
            Rounded::Fma => w.call("llvm.fma", ty, arguments),
            Rounded::Narrow => w.cast("fptrunc", arguments[0], Elem::F32),
        }
    }

    /// The exact error of the rounded sum `a + b`, unless it overflowed (then NaN).
    pub fn sum_error(&mut self, a: &Val, b: &Val, sum: &Val) -> Val {
        let b_part = self.w().bin("fsub", sum, a);
        let a_part = self.w().bin("fsub", sum, &b_part);
        let a_rest = self.w().bin("fsub", a, &a_part);
        let b_rest = self.w().bin("fsub", b, &b_part);
        self.w().bin("fadd", &a_rest, &b_rest)
    }

    /// Converts a number that was rounded to nearest to the number rounded to odd, given the sign
    /// of the rounding error. Rounding to odd truncates and sets the last bit if the result is
    /// inexact. Rounding it later to fewer bits gives the result of a single rounding.
    pub fn make_odd(&mut self, nearest: &Val, error: &Val) -> Val {
        let int = Elem::int(nearest.ty.elem.bits());
        let (bits, error_bits) = (self.w().cast("bitcast", nearest, int), self.w().cast("bitcast", error, int));
        let differ = self.w().bin("xor", &bits, &error_bits);
        // 1 if rounding went away from zero.
        let step = self.w().bin_const("lshr", &differ, i128::from(int.bits()) - 1);
        let cut = self.w().bin("sub", &bits, &step);
        let odd = self.w().bin_const("or", &cut, 1);
        let inexact = self.w().compare("fcmp one", error, &constant(error.ty, 0));
        let chosen = self.w().select(&inexact, &odd, &bits);
        self.w().cast("bitcast", &chosen, nearest.ty.elem)
    }

    /// A double as a float rounded to odd.
    pub fn narrow_to_odd(&mut self, value: &Val) -> Val {
        let single = self.w().cast("fptrunc", value, Elem::F32);
        let back = self.w().cast("fpext", &single, Elem::F64);
        // Too large for a float: an infinity, to which a narrower type rounds as well.
        let lost = self.w().bin("fsub", value, &back);
        let sign = self.w().call("llvm.copysign", lost.ty, &[&constant(lost.ty, 1f64.to_bits().into()), &lost]);
        let is_exact = self.w().compare("fcmp ueq", value, &back);
        let infinite = self.w().call("llvm.fabs", lost.ty, &[&lost]);
        let infinite = self.w().compare("fcmp oeq", &infinite, &constant(lost.ty, f64::INFINITY.to_bits().into()));
        let keep = self.w().bin("or", &is_exact, &infinite);
        let sign = self.w().select(&keep, &constant(lost.ty, 0), &sign);
        let sign = self.w().cast("fptrunc", &sign, Elem::F32);
        self.make_odd(&single, &sign)
    }
}
