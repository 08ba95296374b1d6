//! Typed scalars in registers: how each element type is held, loaded, stored and converted.

use crate::error::CodegenError;
use crate::writer::{Writer, mem};
use atoll_frontend::tensor::is_narrow_float;
use atoll_kgraph::DType;
use atoll_ptx::{Immediate, Name, Operand, ScalarType};

/// 2^63
const TWO_63: f64 = 9_223_372_036_854_775_808.0;

/// A value of an element type, in a register of type [`held_as`].
#[derive(Clone, Debug)]
pub(crate) struct Scalar {
    pub(crate) dtype: DType,
    pub(crate) operand: Operand,
}

/// The register type of an element type: floats narrower than f32 are held as f32, integers
/// narrower than 32 bits in 32 bits, booleans as predicates.
pub(crate) fn held_as(dtype: DType) -> ScalarType {
    match dtype {
        DType::Bool => ScalarType::Pred,
        DType::U8 | DType::U16 | DType::U32 | DType::U2 | DType::U4 => ScalarType::U32,
        DType::I8 | DType::I16 | DType::I32 | DType::I2 | DType::I4 | DType::Strings => ScalarType::S32,
        DType::U64 => ScalarType::U64,
        DType::I64 => ScalarType::S64,
        DType::F16 | DType::Bf16 | DType::F32 => ScalarType::F32,
        DType::F4e2m1 | DType::F8e4m3fn | DType::F8e4m3fnuz => ScalarType::F32,
        DType::F8e5m2 | DType::F8e5m2fnuz | DType::F8e8m0 => ScalarType::F32,
        DType::F64 => ScalarType::F64,
    }
}

/// The type that loads and stores use, before conversion.
fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 | DType::U2 | DType::U4 => "u8",
        DType::F4e2m1 | DType::F8e4m3fn | DType::F8e4m3fnuz => "u8",
        DType::F8e5m2 | DType::F8e5m2fnuz | DType::F8e8m0 => "u8",
        DType::I8 | DType::I2 | DType::I4 => "s8",
        DType::U16 | DType::Bf16 => "u16",
        DType::I16 => "s16",
        DType::F16 => "b16",
        DType::U32 => "u32",
        DType::I32 | DType::Strings => "s32",
        DType::U64 => "u64",
        DType::I64 => "s64",
        DType::F32 => "f32",
        DType::F64 => "f64",
    }
}

pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(held_as(dtype), ScalarType::F32 | ScalarType::F64)
}

impl Scalar {
    /// A boolean; it is always held in a predicate.
    pub(crate) fn truth(predicate: Name) -> Scalar {
        Scalar { dtype: DType::Bool, operand: predicate.into() }
    }

    pub(crate) fn f32(operand: Operand) -> Scalar {
        Scalar { dtype: DType::F32, operand }
    }

    /// The predicate of a boolean.
    pub(crate) fn predicate(&self) -> Result<Name, CodegenError> {
        match (&self.operand, self.dtype) {
            (Operand::Name(name), DType::Bool) => Ok(name.clone()),
            _ => Err(CodegenError::inconsistent(format!("a boolean is expected instead of {:?}", self.dtype))),
        }
    }
}

impl Writer {
    /// A constant of a type.
    pub(crate) fn constant(&mut self, dtype: DType, value: f64) -> Scalar {
        let operand = match held_as(dtype) {
            ScalarType::F32 => (value as f32).into(),
            ScalarType::F64 => Operand::Immediate(Immediate::F64(value.to_bits())),
            ScalarType::Pred => {
                let register = self.make(ScalarType::U32, "mov.u32", [u32::from(value != 0.0).into()]);
                self.make(ScalarType::Pred, "setp.ne.u32", [register.into(), 0.into()]).into()
            }
            _ => (value as i64).into(),
        };
        Scalar { dtype, operand }
    }

    /// The value in a register, for instructions that do not accept a constant.
    pub(crate) fn in_register(&mut self, value: &Operand, ty: ScalarType) -> Operand {
        match value {
            Operand::Immediate(_) => self.make(ty, &format!("mov.{ty}"), [value.clone()]).into(),
            _ => value.clone(),
        }
    }

    /// Loads an element from global memory.
    pub(crate) fn load(&mut self, dtype: DType, address: &Name, offset: i64) -> Scalar {
        let dotted = format!("ld.global.{}", memory_type(dtype));
        let from = mem(address, offset);
        let operand = match dtype {
            DType::Bool => {
                let byte = self.make(ScalarType::U32, &dotted, [from]);
                self.make(ScalarType::Pred, "setp.ne.u32", [byte.into(), 0.into()])
            }
            DType::F16 => {
                let bits = self.make(ScalarType::B16, &dotted, [from]);
                self.make(ScalarType::F32, "cvt.f32.f16", [bits.into()])
            }
            DType::Bf16 => {
                let bits = self.make(ScalarType::U32, &dotted, [from]);
                let bits = self.make(ScalarType::B32, "shl.b32", [bits.into(), 16.into()]);
                self.make(ScalarType::F32, "mov.b32", [bits.into()])
            }
            narrow if is_narrow_float(narrow) => {
                let code = self.make(ScalarType::U32, &dotted, [from]);
                self.narrow_number(narrow, &code.into())
            }
            _ => self.make(held_as(dtype), &dotted, [from]),
        };
        let value = Scalar { dtype, operand: operand.into() };
        // Clients may set the unused bits of a byte.
        if dtype.bits() < 8 && !is_float(dtype) { self.wrapped(&value) } else { value }
    }

    /// Stores an element to global memory.
    pub(crate) fn store(&mut self, value: &Scalar, address: &Name, offset: i64) {
        let dotted = format!("st.global.{}", memory_type(value.dtype));
        let held = match value.dtype {
            DType::Bool => self.make(ScalarType::U32, "selp.u32", [1.into(), 0.into(), value.operand.clone()]).into(),
            DType::F16 => self.make(ScalarType::B16, "cvt.rn.f16.f32", [value.operand.clone()]).into(),
            DType::Bf16 => self.bf16_bits(&value.operand).into(),
            narrow if is_narrow_float(narrow) => self.narrow_code(narrow, &value.operand).into(),
            other => self.in_register(&value.operand, held_as(other)),
        };
        self.emit(&dotted, [mem(address, offset), held]);
    }

    /// The upper half of an f32, rounded to nearest even; a NaN stays NaN.
    fn bf16_bits(&mut self, value: &Operand) -> Name {
        let value = self.in_register(value, ScalarType::F32);
        let bits = self.make(ScalarType::B32, "mov.b32", [value.clone()]);
        let upper = self.make(ScalarType::U32, "shr.u32", [(&bits).into(), 16.into()]);
        let is_odd = self.make(ScalarType::B32, "and.b32", [(&upper).into(), 1.into()]);
        let rounded = self.make(ScalarType::S32, "add.s32", [bits.into(), is_odd.into()]);
        let rounded = self.make(ScalarType::S32, "add.s32", [rounded.into(), 0x7fff.into()]);
        let rounded = self.make(ScalarType::U32, "shr.u32", [rounded.into(), 16.into()]);
        let is_nan = self.make(ScalarType::Pred, "setp.nan.f32", [value.clone(), value]);
        self.make(ScalarType::U32, "selp.b32", [0x7fc0.into(), rounded.into(), is_nan.into()])
    }

    /// Conversion by ONNX's rules: to integers by truncation (see
    /// [`PointOp::Cast`](atoll_frontend::tensor_graph::PointOp::Cast)), to booleans by `!= 0`.
    pub(crate) fn cast(&mut self, value: &Scalar, to: DType) -> Scalar {
        let (from_held, to_held) = (held_as(value.dtype), held_as(to));
        let source = self.in_register(&value.operand, from_held);
        let operand: Operand = match (from_held, to_held) {
            (ScalarType::Pred, ScalarType::Pred) => source,
            (_, ScalarType::Pred) => {
                let (how, zero) = match from_held {
                    ScalarType::F32 => ("setp.neu.f32", 0.0f32.into()),
                    ScalarType::F64 => ("setp.neu.f64", Operand::Immediate(Immediate::F64(0))),
                    ScalarType::S64 | ScalarType::U64 => ("setp.ne.s64", 0.into()),
                    _ => ("setp.ne.s32", 0.into()),
                };
                self.make(ScalarType::Pred, how, [source, zero]).into()
            }
            (ScalarType::Pred, _) => {
                let one = self.constant(to, 1.0).operand;
                let zero = self.constant(to, 0.0).operand;
                self.make(to_held, &format!("selp.{to_held}"), [one, zero, source]).into()
            }
            (
                ScalarType::F32 | ScalarType::F64,
                ScalarType::U32 | ScalarType::S32 | ScalarType::U64 | ScalarType::S64,
            ) => self.truncated(&source, from_held, to),
            // Registers of the same width can be reused, independent of their signedness.
            (from, to)
                if from == to
                    || (from.bytes() == to.bytes()
                        && !is_float(value.dtype)
                        && to != ScalarType::F32
                        && to != ScalarType::F64) =>
            {
                source
            }
            (from, to) => {
                let rounding = match (is_float(value.dtype), matches!(to, ScalarType::F32 | ScalarType::F64)) {
                    (false, true) => ".rn",
                    (true, true) if to == ScalarType::F32 => ".rn",
                    _ => "",
                };
                self.make(to, &format!("cvt{rounding}.{to}.{from}"), [source]).into()
            }
        };
        self.wrapped(&Scalar { dtype: to, operand })
    }

    /// Truncates a float to an integer register. If the value does not fit or is NaN, the result is
    /// the smallest 32-bit integer (64-bit for the types that need it).
    fn truncated(&mut self, source: &Operand, from: ScalarType, to: DType) -> Operand {
        let is_wide = matches!(to, DType::U32 | DType::U64 | DType::I64);
        let (ty, limit) = if is_wide { (ScalarType::S64, TWO_63) } else { (ScalarType::S32, 2_147_483_648.0) };
        let mut real = self.real(from);
        let (high, low) = (real.number(limit), real.number(-limit));
        // In f64, a number between -2^31 - 1 and -2^31 truncates to a valid integer.
        let low = if from == ScalarType::F64 && !is_wide { real.number(-limit - 1.0) } else { low };
        let how = if from == ScalarType::F64 && !is_wide { "gt" } else { "ge" };
        let is_above = real.compare("ge", source, &high);
        let reaches = real.compare(how, source, &low);
        let whole = self.make(ty, &format!("cvt.rzi.{ty}.{from}"), [source.clone()]);
        let lowest = if is_wide { i64::MIN } else { i32::MIN.into() };
        // The conversion saturates at the lower end by itself; `reaches` is false for NaN.
        let value = self.make(ty, &format!("selp.{ty}"), [Operand::from(&whole), lowest.into(), reaches.into()]);
        let above: Operand = if to == DType::U64 {
            let below = self.real(from).sub(source, &high);
            let rest = self.make(ty, &format!("cvt.rzi.s64.{from}"), [below.clone()]);
            let beyond = self.real(from).compare("ge", &below, &high);
            let rest = self.make(ty, "selp.s64", [lowest.into(), rest.into(), beyond.into()]);
            self.make(ScalarType::S64, "xor.b64", [rest.into(), i64::MIN.into()]).into()
        } else {
            lowest.into()
        };
        let value = self.make(ty, &format!("selp.{ty}"), [above, value.into(), is_above.into()]);
        if to == DType::U32 { self.make(ScalarType::U32, "cvt.u32.u64", [value.into()]).into() } else { value.into() }
    }

    /// The same bits as another type of the same width.
    pub(crate) fn bit_cast(&mut self, value: &Scalar, to: DType) -> Scalar {
        let source = self.in_register(&value.operand, held_as(value.dtype));
        let bits: Operand = match value.dtype {
            DType::Bool => self.make(ScalarType::U32, "selp.u32", [1.into(), 0.into(), source]).into(),
            DType::F16 => {
                let half = self.make(ScalarType::B16, "cvt.rn.f16.f32", [source]);
                self.make(ScalarType::U32, "cvt.u32.u16", [half.into()]).into()
            }
            DType::Bf16 => self.bf16_bits(&source).into(),
            DType::F32 => self.make(ScalarType::B32, "mov.b32", [source]).into(),
            DType::F64 => self.make(ScalarType::B64, "mov.b64", [source]).into(),
            narrow if is_narrow_float(narrow) => self.narrow_code(narrow, &source).into(),
            _ => source,
        };
        let operand: Operand = match to {
            DType::Bool => self.make(ScalarType::Pred, "setp.ne.u32", [bits, 0.into()]).into(),
            DType::F16 => {
                let half = self.make(ScalarType::B16, "cvt.u16.u32", [bits]);
                self.make(ScalarType::F32, "cvt.f32.f16", [half.into()]).into()
            }
            DType::Bf16 => {
                let bits = self.make(ScalarType::B32, "shl.b32", [bits, 16.into()]);
                self.make(ScalarType::F32, "mov.b32", [bits.into()]).into()
            }
            DType::F32 => self.make(ScalarType::F32, "mov.b32", [bits]).into(),
            DType::F64 => self.make(ScalarType::F64, "mov.b64", [bits]).into(),
            narrow if is_narrow_float(narrow) => self.narrow_number(narrow, &bits).into(),
            _ => bits,
        };
        self.wrapped(&Scalar { dtype: to, operand })
    }

    /// Narrows a computed value to its type. Every operation whose result may exceed its type ends
    /// with this call.
    pub(crate) fn wrapped(&mut self, value: &Scalar) -> Scalar {
        let operand = match (value.dtype, &value.operand) {
            (_, Operand::Immediate(_)) => value.operand.clone(),
            (DType::U8, register) => self.make(ScalarType::U32, "and.b32", [register.clone(), 0xff.into()]).into(),
            (DType::U16, register) => self.make(ScalarType::U32, "and.b32", [register.clone(), 0xffff.into()]).into(),
            (DType::U2, register) => self.make(ScalarType::U32, "and.b32", [register.clone(), 3.into()]).into(),
            (DType::U4, register) => self.make(ScalarType::U32, "and.b32", [register.clone(), 15.into()]).into(),
            (DType::I2 | DType::I4 | DType::I8 | DType::I16, register) => {
                let surplus = 32 - value.dtype.bits();
                let up = self.make(ScalarType::B32, "shl.b32", [register.clone(), surplus.into()]);
                self.make(ScalarType::S32, "shr.s32", [up.into(), surplus.into()]).into()
            }
            (DType::F16, register) => {
                let half = self.make(ScalarType::B16, "cvt.rn.f16.f32", [register.clone()]);
                self.make(ScalarType::F32, "cvt.f32.f16", [half.into()]).into()
            }
            (DType::Bf16, register) => {
                let bits = self.bf16_bits(register);
                let wide = self.make(ScalarType::B32, "shl.b32", [bits.into(), 16.into()]);
                self.make(ScalarType::F32, "mov.b32", [wide.into()]).into()
            }
            (narrow, register) if is_narrow_float(narrow) => {
                let code = self.narrow_code(narrow, register);
                self.narrow_number(narrow, &code.into()).into()
            }
            _ => value.operand.clone(),
        };
        Scalar { dtype: value.dtype, operand }
    }
}
