//! Operations on windows: pooling, and normalization across channels.

use crate::checks::{DIMENSIONS_MAX, refused};
use crate::descriptors::{Pooling, Response};
use crate::factors::bits;
use crate::handle::Call;
use crate::kernels::{Code, THREADS, Types, Window};
use crate::point::{Numbers, Operand};
use crate::tensor::Tensor;
use atoll_cuda_library::{Number, Status};
use std::ffi::c_int;

/// Dimensions of a kernel's tensors: batch, channels, and three of space.
const RANK: usize = 5;

/// Where a tensor's dimension is among those of the kernel: a tensor with two dimensions of space has
/// one element in the first.
fn place(tensor: &Tensor, kernel_dimension: usize) -> Option<usize> {
    match (tensor.rank, kernel_dimension) {
        (5, _) | (_, 0 | 1) => Some(kernel_dimension),
        (_, 2) => None,
        _ => Some(kernel_dimension - 1),
    }
}

/// The size in a dimension of the kernel, and the stride in bytes.
pub(crate) fn extent(tensor: &Tensor, number: Number, kernel_dimension: usize) -> (u32, i64) {
    place(tensor, kernel_dimension)
        .map_or((1, 0), |dimension| (tensor.sizes[dimension].unsigned_abs(), tensor.step(dimension, number)))
}

/// Pooling's sizes of the output; windows that would be empty are an error.
pub(crate) fn pooled(pooling: &Pooling, x: &Tensor) -> Result<[c_int; DIMENSIONS_MAX], Status> {
    if pooling.rank == 0 || x.rank != pooling.rank + 2 {
        return Err(Status::InvalidValue);
    }
    let mut sizes = x.sizes;
    for dimension in 0..pooling.rank {
        let [window, padding, stride] =
            [pooling.window, pooling.padding, pooling.stride].map(|of| i64::from(of[dimension]));
        let left = i64::from(x.sizes[dimension + 2]) + 2 * padding - window;
        if left < 0 {
            return Err(Status::InvalidValue);
        }
        sizes[dimension + 2] = c_int::try_from(1 + left / stride).map_err(|_| Status::InvalidValue)?;
    }
    Ok(sizes)
}

/// Pooling.
pub(crate) fn pool(
    call: &mut Call<'_>,
    name: &'static str,
    pooling: &Pooling,
    (x, y): (Operand, Operand),
    numbers: Numbers,
) -> Result<(), Status> {
    let keeps_nan = pooling.nan != 0;
    let op = match pooling.mode {
        0 | 3 => Window::Max { keeps_nan },
        1 => Window::AverageAll,
        _ => Window::AverageInside,
    };
    if !matches!(x.tensor.rank, 4 | 5) {
        return Err(refused(name, "other than two or three dimensions of space"));
    }
    // The output may have fewer or more windows than fit.
    let is_set = pooling.rank != 0 && x.tensor.rank == pooling.rank + 2;
    if !is_set || y.tensor.rank != x.tensor.rank || y.tensor.sizes[..2] != x.tensor.sizes[..2] {
        return Err(Status::InvalidValue);
    }
    let mut windows = [[1u32, 1, 0]; 3];
    if !are_counted(pooling, &y.tensor) {
        return Err(refused(name, "windows beyond 2147483647 elements"));
    }
    for dimension in 0..pooling.rank {
        windows[3 - pooling.rank + dimension] =
            [pooling.window, pooling.stride, pooling.padding].map(|of| of[dimension].unsigned_abs());
    }
    launch(call, name, op, (x, y), windows, numbers, [0; 2])
}

/// Whether the kernel's integers of 32 bits hold the elements of a window, and the end of the last one.
fn are_counted(pooling: &Pooling, y: &Tensor) -> bool {
    let elements = pooling.window[..pooling.rank].iter().map(|size| u64::from(size.unsigned_abs()));
    let ends = (0..pooling.rank).map(|dimension| {
        let [window, stride] = [pooling.window, pooling.stride].map(|of| u64::from(of[dimension].unsigned_abs()));
        u64::from((y.sizes[dimension + 2] - 1).unsigned_abs()) * stride + window
    });
    let most = ends.chain([elements.fold(1, u64::saturating_mul)]).max();
    most.is_none_or(|most| most <= u64::from(c_int::MAX.unsigned_abs()))
}

/// Normalization across channels.
pub(crate) fn respond(
    call: &mut Call<'_>,
    name: &'static str,
    response: &Response,
    (x, y): (Operand, Operand),
    numbers: Numbers,
) -> Result<(), Status> {
    if !matches!(x.tensor.rank, 4 | 5) {
        return Err(refused(name, "other than four or five dimensions"));
    }
    if !y.tensor.has_sizes_of(&x.tensor) {
        return Err(Status::InvalidValue);
    }
    let sum = Types { input: x.tensor.number(name)?, output: y.tensor.number(name)? }.sum();
    let window = response.window;
    let numbers = Numbers { coefficient: bits(sum, response.alpha / f64::from(window)), ..numbers };
    // The template has the window across channels in place of that along the last dimension.
    let windows = [[1, 1, 0], [1, 1, 0], [window, 1, (window - 1) / 2]];
    let constants = [bits(sum, response.beta), bits(sum, response.k)];
    launch(call, name, Window::Response, (x, y), windows, numbers, constants)
}

/// Launches the kernel. `windows` are size, stride and padding along each dimension of space.
fn launch(
    call: &mut Call<'_>,
    name: &'static str,
    op: Window,
    (x, y): (Operand, Operand),
    windows: [[u32; 3]; 3],
    numbers: Numbers,
    constants: [u64; 2],
) -> Result<(), Status> {
    let types = Types { input: x.tensor.number(name)?, output: y.tensor.number(name)? };
    if types.input != types.output {
        return Err(refused(name, "tensors of different types"));
    }
    if x.at == 0 || y.at == 0 {
        return Err(Status::InvalidValue);
    }
    // A window would be read after a part of it was overwritten.
    if x.at == y.at {
        return Err(refused(name, "outputs in place of the input"));
    }
    let mut values = Vec::new();
    for dimension in 0..RANK {
        let (_, x_step) = extent(&x.tensor, types.input, dimension);
        let (size, y_step) = extent(&y.tensor, types.output, dimension);
        values.extend([x_step as u64, y_step as u64, size.into()]);
    }
    for (index, window) in windows.iter().enumerate() {
        let (limit, _) = extent(&x.tensor, types.input, index + 2);
        values.extend([limit, window[0], window[1], window[2]].map(u64::from));
    }
    let count = y.tensor.count() as u32;
    let [power, base] = constants;
    values.extend([x.at, y.at, numbers.alpha, numbers.beta, numbers.coefficient, power, base, count.into()]);
    let code = Code::Window { types, op };
    call.launch((code, code.name()), ([count.div_ceil(THREADS), 1, 1], THREADS), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Format;

    #[test]
    fn windows_that_the_kernel_cannot_count_are_found() {
        let y = Tensor::packed(0, Format::Nchw, 4, [1, 1, 3, 3, 1, 1, 1, 1]).expect("a tensor");
        let along = |window: [c_int; 2], stride: c_int| {
            let mut pooling = Pooling { rank: 2, ..Pooling::default() };
            pooling.window[..2].copy_from_slice(&window);
            pooling.stride[..2].copy_from_slice(&[stride, 1]);
            pooling
        };
        assert!(are_counted(&along([3, 2], 2), &y));
        assert!(are_counted(&along([7, 1], (c_int::MAX - 7) / 2), &y));
        assert!(!are_counted(&along([9, 1], (c_int::MAX - 7) / 2), &y), "the end of the last window");
        assert!(!are_counted(&along([65_536, 65_536], 1), &y), "the elements of a window");
    }
}
