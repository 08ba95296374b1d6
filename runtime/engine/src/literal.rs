//! Integer arguments of kernels.

use atoll_kgraph::DType;

/// The little-endian bytes of a value in the width of its type; `None` if the type cannot hold it.
pub(crate) fn literal(value: i64, dtype: DType) -> Option<[u8; 8]> {
    let fits = match dtype {
        DType::U32 => u32::try_from(value).is_ok(),
        DType::I32 => i32::try_from(value).is_ok(),
        DType::U64 => value >= 0,
        DType::I64 => true,
        _ => false,
    };
    fits.then(|| value.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_keep_their_value_or_are_refused() {
        assert_eq!(literal(-2, DType::I32).map(|b| b[..4].to_vec()), Some(vec![0xFE, 0xFF, 0xFF, 0xFF]));
        assert_eq!(literal(1 << 40, DType::I64), Some((1_i64 << 40).to_le_bytes()));
        for (dtype, least, most) in [
            (DType::U32, 0, u32::MAX.into()),
            (DType::I32, i32::MIN.into(), i32::MAX.into()),
            (DType::U64, 0, i64::MAX),
            (DType::I64, i64::MIN, i64::MAX),
        ] {
            assert_eq!([least, most].map(|value| literal(value, dtype)), [least, most].map(|v| Some(v.to_le_bytes())));
            for beyond in [least.checked_sub(1), most.checked_add(1)].into_iter().flatten() {
                assert_eq!(literal(beyond, dtype), None, "{beyond} as {dtype:?}");
            }
        }
        for (value, dtype) in
            [(-1, DType::U32), (1 << 32, DType::U32), (1 << 31, DType::I32), (-1, DType::U64), (0, DType::F32)]
        {
            assert_eq!(literal(value, dtype), None, "{value} as {dtype:?}");
        }
    }
}
