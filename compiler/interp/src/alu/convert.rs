//! `cvt` between all types, including packed and eight-bit floats.

use super::float::{relu, saturate};
use super::{Alu, Decoded, format_of, int, low, only, range, rounding};
use crate::format::{self, Format, Rounding};
use atoll_ptx::{Instruction, ScalarType};

/// Modifiers that are not types.
const MODIFIERS: [&str; 13] =
    ["rn", "rna", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "ftz", "sat", "satfinite", "relu"];

pub(super) fn decode(i: &Instruction) -> Decoded {
    if i.opcode != "cvt" {
        return Ok(None);
    }
    if i.has("pack") {
        return pack(i).map(Some);
    }
    let types: Vec<&str> = i.modifiers.iter().map(|m| m.as_str()).filter(|m| !MODIFIERS.contains(m)).collect();
    let &[to, from] = types.as_slice() else {
        return Err(format!("conversion {} is not supported", types.join(" to ")));
    };
    if let Some(half) = half_of(to) {
        return packed(i, half, from).map(Some);
    }
    let kind = |name: &str| Kind::of(name).ok_or_else(|| format!("type .{name} is not supported"));
    scalar(i, kind(to)?, kind(from)?).map(Some)
}

/// The source or destination type of a conversion.
#[derive(Clone, Copy)]
enum Kind {
    Int(ScalarType),
    Float(Format),
}

impl Kind {
    fn of(name: &str) -> Option<Kind> {
        let ty = ScalarType::from_name(name)?;
        match format_of(ty) {
            Some(format) => Some(Kind::Float(format)),
            None => matches!(ty.class(), atoll_ptx::types::TypeClass::Signed | atoll_ptx::types::TypeClass::Unsigned)
                .then_some(Kind::Int(ty)),
        }
    }
}

/// The format of one half of a packed type.
fn half_of(name: &str) -> Option<Format> {
    match name {
        "f16x2" => Some(format::F16),
        "bf16x2" => Some(format::BF16),
        "e4m3x2" => Some(format::E4M3),
        "e5m2x2" => Some(format::E5M2),
        _ => None,
    }
}

/// A conversion from float to float with its modifiers.
#[derive(Clone, Copy)]
struct FloatToFloat {
    from: Format,
    to: Format,
    rounding: Rounding,
    to_integer: bool,
    flush: bool,
    saturate: bool,
    finite: bool,
    relu: bool,
}

impl FloatToFloat {
    fn of(i: &Instruction, from: Format, to: Format) -> FloatToFloat {
        FloatToFloat {
            from,
            to,
            rounding: rounding(i).unwrap_or(Rounding::Nearest),
            to_integer: ["rni", "rzi", "rmi", "rpi"].iter().any(|m| i.has(m)),
            flush: i.has("ftz"),
            saturate: i.has("sat"),
            finite: i.has("satfinite"),
            relu: i.has("relu"),
        }
    }

    fn convert(self, bits: u64) -> u64 {
        let flushes = |format: Format| self.flush && format == format::F32;
        let source = if flushes(self.from) { self.from.flush(bits) } else { bits };
        let mut number = self.from.unpack(source);
        if self.to_integer {
            number = number.round_to_integer(self.rounding);
        }
        let mut result =
            if self.finite { self.to.pack_finite(number, self.rounding) } else { self.to.pack(number, self.rounding) };
        if flushes(self.to) {
            result = self.to.flush(result);
        }
        if self.saturate {
            result = saturate(self.to, result);
        }
        if self.relu { relu(self.to, result) } else { result }
    }
}

fn scalar(i: &Instruction, to: Kind, from: Kind) -> Result<Alu, String> {
    let clamp = i.has("sat");
    let flush = i.has("ftz");
    let mode = rounding(i);
    Ok(match (to, from) {
        (Kind::Int(to), Kind::Int(from)) => {
            let (least, most) = range(to);
            Alu::new(1, move |s| {
                let value = int(from, s[0]);
                if clamp { value.clamp(least, most) as u64 } else { int(to, value as u64) as u64 }
            })
        }
        (Kind::Int(to), Kind::Float(from)) => {
            let mode = mode.ok_or("it needs a rounding")?;
            let (least, most) = range(to);
            Alu::new(1, move |s| {
                let source = if flush { from.flush(s[0]) } else { s[0] };
                from.unpack(source).to_int(mode, least, most) as u64
            })
        }
        (Kind::Float(to), Kind::Int(from)) => {
            let mode = mode.ok_or("it needs a rounding")?;
            Alu::new(1, move |s| {
                let value = to.pack(format::Number::from_int(int(from, s[0])), mode);
                if clamp { saturate(to, value) } else { value }
            })
        }
        (Kind::Float(to), Kind::Float(from)) => {
            let conversion = FloatToFloat::of(i, from, to);
            Alu::new(1, move |s| conversion.convert(s[0]))
        }
    })
}

/// `cvt.rn.f16x2.f32 d, a, b` puts `a` in the upper half. A conversion between packed types
/// converts each half.
fn packed(i: &Instruction, to: Format, from: &str) -> Result<Alu, String> {
    if from == "f32" {
        let conversion = FloatToFloat::of(i, format::F32, to);
        return Ok(Alu::new(2, move |s| conversion.convert(s[1]) | conversion.convert(s[0]) << to.bits()));
    }
    let half = half_of(from).ok_or_else(|| format!("conversion from .{from} is not supported"))?;
    let conversion = FloatToFloat::of(i, half, to);
    Ok(Alu::new(1, move |s| {
        let part =
            |index: u32| conversion.convert(low(half.bits(), s[0] >> (half.bits() * index))) << (to.bits() * index);
        part(0) | part(1)
    }))
}

/// `cvt.pack.sat.u16.s32 d, a, b`, or `cvt.pack.sat.u8.s32.b32 d, a, b, c`, which shifts `c` up and
/// puts `a`, `b` below it.
fn pack(i: &Instruction) -> Result<Alu, String> {
    only(i, &["pack", "sat"])?;
    let types: Vec<ScalarType> = i.modifiers.iter().filter_map(|m| ScalarType::from_name(m)).collect();
    let (to, third) = match *types.as_slice() {
        [to, ScalarType::S32] if to.bits() == 16 => (to, false),
        [to, ScalarType::S32, ScalarType::B32] if to.bits() == 8 => (to, true),
        _ => return Err("its types are not supported".into()),
    };
    let (least, most) = range(to);
    Ok(Alu::new(if third { 3 } else { 2 }, move |s| {
        let part = |v: u64| low(to.bits(), int(ScalarType::S32, v).clamp(least, most) as u64);
        let pair = part(s[0]) << to.bits() | part(s[1]);
        if third { low(32, s[2] << 16) | pair } else { pair }
    }))
}
