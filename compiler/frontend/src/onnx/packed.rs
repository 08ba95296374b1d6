//! Narrow element types in ONNX files. Files pack elements of 4 and 2 bits into bytes, the first
//! element in a byte's low bits. Everywhere else an element takes one byte, so the import unpacks
//! them.

use super::proto::{DataType, TensorProto};
use atoll_kgraph::DType;

/// The narrow type with ONNX's number `data_type`; `None` for all other types.
pub(super) fn narrow(data_type: i32) -> Option<DType> {
    Some(match DataType::try_from(data_type).ok()? {
        DataType::Uint2 => DType::U2,
        DataType::Int2 => DType::I2,
        DataType::Uint4 => DType::U4,
        DataType::Int4 => DType::I4,
        DataType::Float4e2m1 => DType::F4e2m1,
        DataType::Float8e4m3fn => DType::F8e4m3fn,
        DataType::Float8e4m3fnuz => DType::F8e4m3fnuz,
        DataType::Float8e5m2 => DType::F8e5m2,
        DataType::Float8e5m2fnuz => DType::F8e5m2fnuz,
        DataType::Float8e8m0 => DType::F8e8m0,
        _ => return None,
    })
}

/// Number of bytes in which a file stores `count` elements.
pub(super) fn stored_bytes(dtype: DType, count: u64) -> u64 {
    if dtype.is_narrow() { count.div_ceil(u64::from(8 / dtype.bits())) } else { count * dtype.bytes() }
}

/// The stored bytes of a tensor of a narrow type that uses the typed field.
pub(super) fn typed_data(tensor: &TensorProto) -> Vec<u8> {
    tensor.int32_data.iter().map(|v| *v as u8).collect()
}

/// The elements of a narrow type, one to a byte.
pub(super) fn unpack(dtype: DType, bytes: &[u8], count: usize) -> Vec<u8> {
    let bits = dtype.bits() as usize;
    let per_byte = 8 / bits;
    let unused = 8 - bits;
    let shifted = (0..count).map(|i| (bytes[i / per_byte] >> (bits * (i % per_byte))) << unused);
    match dtype {
        DType::I2 | DType::I4 => shifted.map(|e| ((e as i8) >> unused) as u8).collect(),
        _ => shifted.map(|e| e >> unused).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_elements_share_a_byte() {
        assert_eq!(unpack(DType::F4e2m1, &[0x21, 0xf7], 4), [1, 2, 7, 15]);
        assert_eq!(unpack(DType::I4, &[0x8f, 0x07], 3), [0xff, 0xf8, 7]);
        assert_eq!(unpack(DType::U4, &[0x8f, 0x07], 3), [15, 8, 7]);
        assert_eq!(unpack(DType::U2, &[0b1110_0100], 4), [0, 1, 2, 3]);
        assert_eq!(unpack(DType::I2, &[0b1110_0100], 4), [0, 1, 0xfe, 0xff]);
        assert_eq!(unpack(DType::F8e5m2, &[0x8f, 0x07], 2), [0x8f, 0x07]);
        assert_eq!([DType::I4, DType::U2, DType::F8e8m0, DType::F32].map(|t| stored_bytes(t, 5)), [3, 2, 5, 20]);
    }
}
