//! Element types of 8 bits and less in which no kernel computes: integers of 2 and 4 bits, floats
//! of 4 and 8 bits. A constant of such a type is unpacked at import to the narrowest supported type
//! that holds its values exactly. Operators whose result depends on the packed type itself are not
//! supported.

use super::proto::{DataType, TensorProto};
use atoll_kgraph::DType;

/// An element type that is unpacked at import.
#[derive(Clone, Copy)]
pub(super) struct Packed {
    /// Width of an element in bits. A byte holds `8 / bits` elements, the first in its low bits.
    bits: u32,
    /// The type to which it is unpacked.
    pub(super) dtype: DType,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Unsigned,
    Signed,
    Float(Format),
    /// 2^(bits - 127); 255 is NaN.
    Exponent,
}

/// The format of a narrow float.
#[derive(Clone, Copy)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

/// Which bit patterns are infinities or NaN.
#[derive(Clone, Copy)]
enum Special {
    None,
    /// Those with the largest exponent: infinities and NaN.
    Ieee,
    /// All bits set except the sign: NaN.
    Ones,
    /// Only the sign bit set: NaN.
    MinusZero,
}

/// The packed type with ONNX's number `data_type`; `None` if the type is not packed.
pub(super) fn packed(data_type: i32) -> Option<Packed> {
    let integer = |bits, dtype, kind| Packed { bits, dtype, kind };
    let float = |bits, exponent_bits, mantissa_bits, bias, special| Packed {
        bits,
        dtype: DType::F16,
        kind: Kind::Float(Format { exponent_bits, mantissa_bits, bias, special }),
    };
    Some(match DataType::try_from(data_type).ok()? {
        DataType::Uint4 => integer(4, DType::U8, Kind::Unsigned),
        DataType::Int4 => integer(4, DType::I8, Kind::Signed),
        DataType::Uint2 => integer(2, DType::U8, Kind::Unsigned),
        DataType::Int2 => integer(2, DType::I8, Kind::Signed),
        DataType::Float8e4m3fn => float(8, 4, 3, 7, Special::Ones),
        DataType::Float8e4m3fnuz => float(8, 4, 3, 8, Special::MinusZero),
        DataType::Float8e5m2 => float(8, 5, 2, 15, Special::Ieee),
        DataType::Float8e5m2fnuz => float(8, 5, 2, 16, Special::MinusZero),
        DataType::Float4e2m1 => float(4, 2, 1, 1, Special::None),
        DataType::Float8e8m0 => Packed { bits: 8, dtype: DType::F32, kind: Kind::Exponent },
        _ => return None,
    })
}

impl Packed {
    /// Number of bytes in which `count` elements are stored.
    pub(super) fn stored_bytes(self, count: u64) -> u64 {
        count.div_ceil(u64::from(8 / self.bits))
    }

    /// The stored bytes of a tensor that uses the typed field.
    pub(super) fn typed_data(tensor: &TensorProto) -> Vec<u8> {
        tensor.int32_data.iter().map(|v| *v as u8).collect()
    }

    /// Unpacks elements to little-endian values of `dtype`.
    pub(super) fn unpack(self, bytes: &[u8], count: usize) -> Vec<u8> {
        let per_byte = (8 / self.bits) as usize;
        let mask = u8::MAX >> (8 - self.bits);
        let elements = (0..count).map(|i| (bytes[i / per_byte] >> (self.bits as usize * (i % per_byte))) & mask);
        match self.kind {
            Kind::Unsigned => elements.collect(),
            Kind::Signed => elements.map(|e| (((e << (8 - self.bits)) as i8) >> (8 - self.bits)) as u8).collect(),
            Kind::Float(format) => elements.flat_map(|e| half::f16::from_f32(format.value(e)).to_le_bytes()).collect(),
            Kind::Exponent => elements.flat_map(|e| power_of_two(e).to_le_bytes()).collect(),
        }
    }
}

fn power_of_two(bits: u8) -> f32 {
    if bits == u8::MAX { f32::NAN } else { 2f32.powi(i32::from(bits) - 127) }
}

impl Format {
    fn value(self, bits: u8) -> f32 {
        let Format { exponent_bits, mantissa_bits, bias, special } = self;
        let sign = bits >> (exponent_bits + mantissa_bits);
        let magnitude = bits & !(1u8.checked_shl(exponent_bits + mantissa_bits).unwrap_or(0));
        let mantissa = f32::from(magnitude & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits) as f32;
        let exponent = i32::from(magnitude >> mantissa_bits);
        let largest = (1 << exponent_bits) - 1;
        let value = match special {
            Special::Ieee if exponent == largest => {
                if mantissa == 0.0 {
                    f32::INFINITY
                } else {
                    f32::NAN
                }
            }
            Special::Ones if magnitude == u8::MAX >> 1 => f32::NAN,
            Special::MinusZero if sign == 1 && magnitude == 0 => f32::NAN,
            _ if exponent == 0 => mantissa * 2f32.powi(1 - bias),
            _ => (1.0 + mantissa) * 2f32.powi(exponent - bias),
        };
        if sign == 1 { -value } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(data_type: DataType, bytes: &[u8]) -> Vec<f32> {
        let packed = packed(data_type as i32).unwrap();
        let bytes = packed.unpack(bytes, bytes.len() * (8 / packed.bits) as usize);
        bytes.as_chunks::<2>().0.iter().map(|b| half::f16::from_le_bytes(*b).to_f32()).collect()
    }

    #[test]
    fn eight_bit_floats_decode_by_their_format() {
        assert_eq!(floats(DataType::Float8e4m3fn, &[0x38, 0x7e, 0x01, 0xc0]), [1.0, 448.0, 2f32.powi(-9), -2.0]);
        assert!(floats(DataType::Float8e4m3fn, &[0x7f, 0xff]).iter().all(|v| v.is_nan()));
        assert_eq!(floats(DataType::Float8e4m3fnuz, &[0x40, 0x7f]), [1.0, 240.0]);
        assert_eq!(
            floats(DataType::Float8e5m2, &[0x3c, 0x7b, 0x7c, 0x01]),
            [1.0, 57_344.0, f32::INFINITY, 2f32.powi(-16)]
        );
        assert_eq!(floats(DataType::Float8e5m2fnuz, &[0x40, 0x7f]), [1.0, 57_344.0]);
        assert!(floats(DataType::Float8e5m2fnuz, &[0x80]).iter().all(|v| v.is_nan()));
    }

    #[test]
    fn several_elements_share_a_byte() {
        assert_eq!(floats(DataType::Float4e2m1, &[0x21, 0xf7]), [0.5, 1.0, 6.0, -6.0]);
        assert_eq!(packed(DataType::Int4 as i32).unwrap().unpack(&[0x8f, 0x07], 3), [0xff, 0xf8, 7]);
        assert_eq!(packed(DataType::Uint2 as i32).unwrap().unpack(&[0b1110_0100], 4), [0, 1, 2, 3]);
        assert_eq!(packed(DataType::Int4 as i32).unwrap().stored_bytes(3), 2);
    }
}
