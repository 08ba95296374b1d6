//! Tensors in host memory, for constant folding and for the reference interpreter.

use crate::narrow;
use atoll_kgraph::DType;
use std::sync::Arc;

/// A dense tensor, row-major.
///
/// Floating-point elements are stored as `f64`, integers and booleans as `i64`, for every element
/// type. [`round_float`] and [`wrap_int`] are applied to each result, so every element is exactly
/// representable in its type. U64 values beyond `i64::MAX` are stored as the `i64` with the same
/// bits.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Elements.
    pub data: Data,
}

/// Elements of a [`Tensor`].
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// F16, Bf16, F32, F64, narrow floats.
    Float(Vec<f64>),
    /// Bool (0 or 1) and all integers.
    Int(Vec<i64>),
}

/// Whether `dtype` is a floating-point type.
pub fn is_float(dtype: DType) -> bool {
    dtype.is_float()
}

/// Whether `dtype` is a floating-point type of 8 bits or fewer.
pub fn is_narrow_float(dtype: DType) -> bool {
    dtype.is_narrow() && dtype.is_float()
}

/// Rounds `value` to the nearest value of the type.
pub fn round_float(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::F16 => half::f16::from_f64(value).to_f64(),
        DType::Bf16 => half::bf16::from_f64(value).to_f64(),
        DType::F32 => f64::from(value as f32),
        _ => narrow::round(dtype, value as f32).map_or(value, f64::from),
    }
}

/// Wraps `value` to the type: keeps its low bits; for Bool, 1 where `value` is not 0.
pub fn wrap_int(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::Bool => i64::from(value != 0),
        DType::U8 => i64::from(value as u8),
        DType::I8 => i64::from(value as i8),
        DType::U16 => i64::from(value as u16),
        DType::I16 => i64::from(value as i16),
        DType::U32 => i64::from(value as u32),
        DType::I32 | DType::Strings => i64::from(value as i32),
        DType::U2 => value & 3,
        DType::U4 => value & 15,
        DType::I2 | DType::I4 => (value << (64 - dtype.bits())) >> (64 - dtype.bits()),
        _ => value,
    }
}

/// The smallest and the largest value of an integer type or Bool. For U64 the largest is
/// `i64::MAX`.
pub fn int_bounds(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::Bool => (0, 1),
        DType::U8 => (0, u8::MAX.into()),
        DType::I8 => (i8::MIN.into(), i8::MAX.into()),
        DType::U16 => (0, u16::MAX.into()),
        DType::I16 => (i16::MIN.into(), i16::MAX.into()),
        DType::U32 => (0, u32::MAX.into()),
        DType::I32 | DType::Strings => (i32::MIN.into(), i32::MAX.into()),
        DType::U64 => (0, i64::MAX),
        DType::U2 => (0, 3),
        DType::I2 => (-2, 1),
        DType::U4 => (0, 15),
        DType::I4 => (-8, 7),
        _ => (i64::MIN, i64::MAX),
    }
}

impl Tensor {
    /// A float tensor; the elements are rounded to the type.
    pub fn floats(dtype: DType, shape: Vec<usize>, values: impl IntoIterator<Item = f64>) -> Tensor {
        let data = Data::Float(values.into_iter().map(|v| round_float(dtype, v)).collect());
        Tensor::checked(dtype, shape, data)
    }

    /// An integer or boolean tensor; the elements are wrapped to the type.
    pub fn ints(dtype: DType, shape: Vec<usize>, values: impl IntoIterator<Item = i64>) -> Tensor {
        let data = Data::Int(values.into_iter().map(|v| wrap_int(dtype, v)).collect());
        Tensor::checked(dtype, shape, data)
    }

    fn checked(dtype: DType, shape: Vec<usize>, data: Data) -> Tensor {
        let tensor = Tensor { dtype, shape, data };
        assert_eq!(
            tensor.len(),
            tensor.shape.iter().product::<usize>(),
            "the number of elements is the product of the shape"
        );
        tensor
    }

    /// Reads little-endian elements; `None` if the number of bytes does not match the shape.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Tensor> {
        let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
        if count.checked_mul(dtype.bytes() as usize)? != bytes.len() {
            return None;
        }
        let data = match dtype {
            DType::F16 => Data::Float(read(bytes, |b| half::f16::from_le_bytes(b).to_f64())),
            DType::Bf16 => Data::Float(read(bytes, |b| half::bf16::from_le_bytes(b).to_f64())),
            DType::F32 => Data::Float(read(bytes, |b| f64::from(f32::from_le_bytes(b)))),
            DType::F64 => Data::Float(read(bytes, f64::from_le_bytes)),
            DType::Bool => Data::Int(read(bytes, |[b]: [u8; 1]| i64::from(b != 0))),
            DType::U8 => Data::Int(read(bytes, |[b]: [u8; 1]| i64::from(b))),
            DType::I8 => Data::Int(read(bytes, |b| i64::from(i8::from_le_bytes(b)))),
            DType::U16 => Data::Int(read(bytes, |b| i64::from(u16::from_le_bytes(b)))),
            DType::I16 => Data::Int(read(bytes, |b| i64::from(i16::from_le_bytes(b)))),
            DType::U32 => Data::Int(read(bytes, |b| i64::from(u32::from_le_bytes(b)))),
            DType::I32 | DType::Strings => Data::Int(read(bytes, |b| i64::from(i32::from_le_bytes(b)))),
            DType::U64 | DType::I64 => Data::Int(read(bytes, i64::from_le_bytes)),
            DType::U2 | DType::I2 | DType::U4 | DType::I4 => {
                Data::Int(bytes.iter().map(|b| wrap_int(dtype, i64::from(*b))).collect())
            }
            DType::F4e2m1 | DType::F8e4m3fn | DType::F8e4m3fnuz | DType::F8e5m2 | DType::F8e5m2fnuz | DType::F8e8m0 => {
                Data::Float(bytes.iter().map(|b| narrow::decode(dtype, *b).map_or(f64::NAN, f64::from)).collect())
            }
        };
        Some(Tensor { dtype, shape: shape.to_vec(), data })
    }

    /// The elements as little-endian bytes.
    pub fn to_bytes(&self) -> Arc<[u8]> {
        match &self.data {
            Data::Float(values) => match self.dtype {
                DType::F16 => write(values, |v| half::f16::from_f64(v).to_le_bytes()),
                DType::Bf16 => write(values, |v| half::bf16::from_f64(v).to_le_bytes()),
                DType::F32 => write(values, |v| (v as f32).to_le_bytes()),
                dtype if dtype.is_narrow() => values.iter().filter_map(|v| narrow::encode(dtype, *v as f32)).collect(),
                _ => write(values, f64::to_le_bytes),
            },
            Data::Int(values) => match self.dtype.bytes() {
                1 => write(values, |v| (v as u8).to_le_bytes()),
                2 => write(values, |v| (v as u16).to_le_bytes()),
                4 => write(values, |v| (v as u32).to_le_bytes()),
                _ => write(values, i64::to_le_bytes),
            },
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.data {
            Data::Float(values) => values.len(),
            Data::Int(values) => values.len(),
        }
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as `f64`, for every element type.
    pub fn to_f64(&self) -> Vec<f64> {
        match &self.data {
            Data::Float(values) => values.clone(),
            Data::Int(values) => values.iter().map(|v| *v as f64).collect(),
        }
    }

    /// The same elements with another shape of as many elements.
    pub fn reshaped(&self, shape: Vec<usize>) -> Tensor {
        Tensor::checked(self.dtype, shape, self.data.clone())
    }

    /// The elements at `indices`, in that order, as a tensor of `shape`. An index `None` gives
    /// `fill`.
    pub(crate) fn pick(&self, shape: Vec<usize>, fill: f64, indices: impl Iterator<Item = Option<usize>>) -> Tensor {
        let data = match &self.data {
            Data::Float(values) => {
                Data::Float(indices.map(|i| i.map_or(round_float(self.dtype, fill), |i| values[i])).collect())
            }
            Data::Int(values) => {
                Data::Int(indices.map(|i| i.map_or(wrap_int(self.dtype, fill as i64), |i| values[i])).collect())
            }
        };
        Tensor::checked(self.dtype, shape, data)
    }
}

fn read<const N: usize, T>(bytes: &[u8], element: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|chunk| element(*chunk)).collect()
}

fn write<const N: usize, T: Copy>(values: &[T], element: impl Fn(T) -> [u8; N]) -> Arc<[u8]> {
    values.iter().flat_map(|v| element(*v)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_a_round_trip() {
        for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64] {
            let tensor = Tensor::floats(dtype, vec![2, 2], [0.1, -2.5, 1e3, f64::INFINITY]);
            assert_eq!(Tensor::from_bytes(dtype, &[2, 2], &tensor.to_bytes()), Some(tensor));
        }
        for dtype in
            [DType::Bool, DType::U8, DType::I8, DType::U16, DType::I16, DType::U32, DType::I32, DType::U64, DType::I64]
        {
            let tensor = Tensor::ints(dtype, vec![3], [0, 1, -7]);
            assert_eq!(Tensor::from_bytes(dtype, &[3], &tensor.to_bytes()), Some(tensor));
        }
        for dtype in DType::NARROW {
            let tensor = match is_float(dtype) {
                true => Tensor::floats(dtype, vec![3], [0.5, 2.0, 4.0]),
                false => Tensor::ints(dtype, vec![3], [0, 1, -7]),
            };
            assert_eq!(Tensor::from_bytes(dtype, &[3], &tensor.to_bytes()), Some(tensor));
        }
        assert_eq!(Tensor::from_bytes(DType::F32, &[2], &[0; 7]), None);
    }
}
