//! Emits conversions of narrow floats to f32 and back. They take the same steps as
//! [`atoll_frontend::narrow`] in host memory.

use crate::writer::Writer;
use atoll_frontend::narrow::{NarrowFloat, Special};
use atoll_kgraph::DType;
use atoll_ptx::{Name, Operand, ScalarType};

use ScalarType::{B32, F32, Pred, U32};

/// Bit patterns of f32: infinity, a NaN, the sign bit.
const INFINITY: i32 = 0x7f80_0000;
const NAN: i32 = 0x7fc0_0000;
const SIGN: i32 = i32::MIN;

/// The code of NaN in [`DType::F8e8m0`].
const NO_EXPONENT: i32 = 0xff;

impl Writer {
    /// Decodes a code to f32. Ignores the bits above the code.
    pub(crate) fn narrow_number(&mut self, dtype: DType, code: &Operand) -> Name {
        let mask = (1 << dtype.bits()) - 1;
        let code = self.make(B32, "and.b32", [code.clone(), mask.into()]);
        let Some(format) = NarrowFloat::of(dtype) else { return self.power_of_exponent(&code) };
        let sign_bit = 1 << format.magnitude_bits();
        let magnitude = self.make(B32, "and.b32", [(&code).into(), (sign_bit - 1).into()]);
        let shift = 23 - format.mantissa_bits as i32;
        let scaled = self.make(B32, "shl.b32", [(&magnitude).into(), shift.into()]);
        let scaled = self.make(F32, "mov.b32", [scaled.into()]);
        let scale = 2f32.powi(127 - format.bias);
        let number = self.make(F32, "mul.rn.f32", [scaled.into(), scale.into()]);
        let mut bits = self.make(B32, "mov.b32", [number.into()]);
        let overflow = i32::from(format.overflow_code());
        if format.special == Special::Ieee {
            let is_infinite = self.make(Pred, "setp.eq.u32", [(&magnitude).into(), overflow.into()]);
            bits = self.make(B32, "selp.b32", [INFINITY.into(), bits.into(), is_infinite.into()]);
        }
        if matches!(format.special, Special::Ieee | Special::Ones) {
            let how = if format.special == Special::Ieee { "setp.gt.u32" } else { "setp.eq.u32" };
            let is_nan = self.make(Pred, how, [(&magnitude).into(), overflow.into()]);
            bits = self.make(B32, "selp.b32", [NAN.into(), bits.into(), is_nan.into()]);
        }
        let up = 31 - format.magnitude_bits() as i32;
        let sign = self.make(B32, "shl.b32", [(&code).into(), up.into()]);
        let sign = self.make(B32, "and.b32", [sign.into(), SIGN.into()]);
        bits = self.make(B32, "or.b32", [bits.into(), sign.into()]);
        if format.special == Special::MinusZero {
            let is_nan = self.make(Pred, "setp.eq.u32", [(&code).into(), overflow.into()]);
            bits = self.make(B32, "selp.b32", [NAN.into(), bits.into(), is_nan.into()]);
        }
        self.make(F32, "mov.b32", [bits.into()])
    }

    /// Encodes an f32. Rounds to nearest, ties to even; for [`DType::F8e8m0`] down to a power of
    /// two.
    pub(crate) fn narrow_code(&mut self, dtype: DType, value: &Operand) -> Name {
        let value = self.in_register(value, F32);
        let bits = self.make(B32, "mov.b32", [value]);
        let Some(format) = NarrowFloat::of(dtype) else {
            let exponent = self.make(U32, "shr.u32", [bits.into(), 23.into()]);
            return self.make(B32, "and.b32", [exponent.into(), NO_EXPONENT.into()]);
        };
        let magnitude = self.make(B32, "and.b32", [(&bits).into(), i32::MAX.into()]);
        let subnormal = self.subnormal_code(format, &magnitude);
        let normal = self.normal_code(format, &magnitude);
        let least_normal = format.least_normal_bits() as i32;
        let is_small = self.make(Pred, "setp.lt.u32", [(&magnitude).into(), least_normal.into()]);
        let code = self.make(B32, "selp.b32", [subnormal.into(), normal.into(), is_small.into()]);
        let code = self.make(U32, "min.u32", [code.into(), i32::from(format.overflow_code()).into()]);
        let is_nan = self.make(Pred, "setp.gt.u32", [(&magnitude).into(), INFINITY.into()]);
        let nan = i32::from(format.nan_code());
        let code = self.make(B32, "selp.b32", [nan.into(), code.into(), is_nan.clone().into()]);
        let sign = self.make(U32, "shr.u32", [bits.into(), 31.into()]);
        let mut sign = self.make(B32, "shl.b32", [sign.into(), (format.magnitude_bits() as i32).into()]);
        if format.special == Special::MinusZero {
            let is_zero = self.make(Pred, "setp.eq.u32", [(&code).into(), 0.into()]);
            sign = self.make(B32, "selp.b32", [0.into(), sign.into(), is_zero.into()]);
        }
        let code = self.make(B32, "or.b32", [code.into(), sign.into()]);
        if format.special == Special::None {
            let minus_zero = 1 << format.magnitude_bits();
            return self.make(B32, "selp.b32", [minus_zero.into(), code.into(), is_nan.into()]);
        }
        code
    }

    /// Encodes a magnitude below the smallest normal number: adding the format's magic number
    /// rounds it.
    fn subnormal_code(&mut self, format: NarrowFloat, magnitude: &Name) -> Name {
        let magic = format.subnormal_magic();
        let number = self.make(F32, "mov.b32", [magnitude.into()]);
        let sum = self.make(F32, "add.rn.f32", [number.into(), magic.into()]);
        let sum = self.make(B32, "mov.b32", [sum.into()]);
        self.make(U32, "sub.u32", [sum.into(), (magic.to_bits() as i32).into()])
    }

    /// Encodes a magnitude that is at least the smallest normal number.
    fn normal_code(&mut self, format: NarrowFloat, magnitude: &Name) -> Name {
        let dropped = 23 - format.mantissa_bits as i32;
        let odd = self.make(U32, "shr.u32", [magnitude.into(), dropped.into()]);
        let odd = self.make(B32, "and.b32", [odd.into(), 1.into()]);
        let sum = self.make(U32, "add.u32", [magnitude.into(), odd.into()]);
        let sum = self.make(U32, "add.u32", [sum.into(), ((1 << (dropped - 1)) - 1).into()]);
        let rounded = self.make(U32, "shr.u32", [sum.into(), dropped.into()]);
        self.make(U32, "sub.u32", [rounded.into(), (format.exponent_offset() as i32).into()])
    }

    /// Decodes a code of [`DType::F8e8m0`].
    fn power_of_exponent(&mut self, code: &Name) -> Name {
        let bits = self.make(B32, "shl.b32", [code.into(), 23.into()]);
        let is_least = self.make(Pred, "setp.eq.u32", [code.into(), 0.into()]);
        let bits = self.make(B32, "selp.b32", [(1 << 22).into(), bits.into(), is_least.into()]);
        let is_nan = self.make(Pred, "setp.eq.u32", [code.into(), NO_EXPONENT.into()]);
        let bits = self.make(B32, "selp.b32", [NAN.into(), bits.into(), is_nan.into()]);
        self.make(F32, "mov.b32", [bits.into()])
    }
}
