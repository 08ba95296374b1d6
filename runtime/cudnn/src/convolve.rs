//! Convolutions and their gradients.

use crate::checks::{DIMENSIONS_MAX, computes_in, refused};
use crate::descriptors::{Convolution, Filter};
use crate::handle::Call;
use crate::kernels::{Activation, Code, THREADS, Types};
use crate::point::{Numbers, Operand};
use crate::tensor::Tensor;
use crate::window::extent;
use atoll_cuda_library::{Number, Status};
use std::ffi::c_int;

/// Dimensions of space in a kernel.
const SPACE: usize = 3;

/// The sizes of a convolution's output: batch, output channels, space. Coordinates in a padded input fit
/// the kernel's integers of 32 bits.
pub(crate) fn output_sizes(
    convolution: &Convolution,
    x: &Tensor,
    filter: &Tensor,
) -> Result<[c_int; DIMENSIONS_MAX], Status> {
    let is_set = convolution.rank != 0 && x.rank == convolution.rank + 2 && filter.rank == x.rank;
    let groups = convolution.groups;
    if !is_set || x.sizes[1] != filter.sizes[1].wrapping_mul(groups) || filter.sizes[0] % groups != 0 {
        return Err(Status::InvalidValue);
    }
    let mut sizes = x.sizes;
    sizes[1] = filter.sizes[0];
    for dimension in 0..convolution.rank {
        let [padding, stride, dilation] =
            [convolution.padding, convolution.stride, convolution.dilation].map(|of| i64::from(of[dimension]));
        let reach = (i64::from(filter.sizes[dimension + 2]) - 1) * dilation + 1;
        let padded = i64::from(x.sizes[dimension + 2]) + 2 * padding;
        let left = padded - reach;
        if left < 0 {
            return Err(Status::InvalidValue);
        }
        if padded > i64::from(c_int::MAX) {
            return Err(Status::NotSupported);
        }
        sizes[dimension + 2] = c_int::try_from(1 + left / stride).map_err(|_| Status::InvalidValue)?;
    }
    Ok(sizes)
}

/// A convolution with its tensors: y = x * w.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Problem {
    number: Number,
    convolution: Convolution,
    x: Tensor,
    w: Tensor,
    y: Tensor,
}

/// What is added to a sum, and the function of the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue {
    /// The tensor that is multiplied by beta.
    pub(crate) old: Operand,
    /// One number for each output channel.
    pub(crate) bias: Option<Operand>,
    pub(crate) activation: Activation,
}

/// One of the three tensors in a kernel: strides in bytes along p, q in the group, groups, r, and
/// space; and where it begins.
#[derive(Clone, Copy, Debug)]
struct Walk {
    at: u64,
    p: i64,
    q: i64,
    group: i64,
    r: i64,
    space: [i64; SPACE],
}

/// How a loop along a dimension of space moves through the first factor: its coordinate is
/// `(scale * coordinate of the result + step * loop + start) / divide`.
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// Size of the result.
    size: u32,
    loops: u32,
    scale: i32,
    step: i32,
    start: i32,
    divide: u32,
    /// Size of the first factor.
    limit: u32,
}

impl Problem {
    /// Checks that the tensors fit each other.
    pub(crate) fn new(
        name: &'static str,
        convolution: Convolution,
        [x, y]: [Tensor; 2],
        filter: Filter,
    ) -> Result<Problem, Status> {
        let number = x.number(name)?;
        if filter.tensor.number(name)? != number || y.number(name)? != number {
            return Err(refused(name, "tensors of different types"));
        }
        computes_in(name, number, convolution.compute_type)?;
        let sizes = output_sizes(&convolution, &x, &filter.tensor)?;
        if y.rank != x.rank || y.sizes[..y.rank] != sizes[..y.rank] {
            return Err(Status::InvalidValue);
        }
        if !matches!(convolution.rank, 2 | 3) {
            return Err(refused(name, "other than two or three dimensions of space"));
        }
        Ok(Problem { number, convolution, x, w: filter.tensor, y })
    }

    /// The type in which sums are computed.
    pub(crate) fn sum(&self) -> Number {
        self.types().sum()
    }

    fn types(&self) -> Types {
        Types { input: self.number, output: self.number }
    }

    /// A setting of the convolution along a dimension of space of the kernel.
    fn setting(&self, of: &[c_int; DIMENSIONS_MAX], dimension: usize, otherwise: i32) -> i32 {
        let missing = SPACE - self.convolution.rank;
        if dimension < missing { otherwise } else { of[dimension - missing] }
    }

    fn stride(&self, dimension: usize) -> i32 {
        self.setting(&self.convolution.stride, dimension, 1)
    }

    fn dilation(&self, dimension: usize) -> i32 {
        self.setting(&self.convolution.dilation, dimension, 1)
    }

    fn padding(&self, dimension: usize) -> i32 {
        self.setting(&self.convolution.padding, dimension, 0)
    }

    fn size(&self, tensor: &Tensor, dimension: usize) -> u32 {
        extent(tensor, self.number, dimension).0
    }

    fn step(&self, tensor: &Tensor, dimension: usize) -> i64 {
        extent(tensor, self.number, dimension).1
    }

    fn space(&self, tensor: &Tensor) -> [i64; SPACE] {
        [2, 3, 4].map(|dimension| self.step(tensor, dimension))
    }

    /// The strides of the filter, which a convolution that is not a correlation turns around: it
    /// begins at the last element.
    fn filter_space(&self, at: u64) -> (u64, [i64; SPACE]) {
        let steps = self.space(&self.w);
        if self.convolution.mode != 0 {
            return (at, steps);
        }
        let last = |dimension: usize| steps[dimension] * i64::from(self.size(&self.w, dimension + 2) - 1);
        (at.wrapping_add_signed((0..SPACE).map(last).sum()), steps.map(|step| -step))
    }

    /// Output channels of a group, and input channels.
    fn channels(&self) -> (u32, u32) {
        (self.size(&self.w, 0) / self.groups(), self.size(&self.w, 1))
    }

    fn groups(&self) -> u32 {
        self.convolution.groups.unsigned_abs()
    }

    /// y = activation(alpha * (x * w) + beta * old + bias).
    pub(crate) fn forward(
        &self,
        call: &mut Call<'_>,
        [x, w, y]: [u64; 3],
        epilogue: Option<Epilogue>,
        numbers: Numbers,
    ) -> Result<(), Status> {
        are_given([x, w, y])?;
        let (outputs, inputs) = self.channels();
        let of_y = |tensor: &Tensor, at: u64| Walk {
            at,
            p: self.step(tensor, 0),
            q: self.step(tensor, 1),
            group: self.step(tensor, 1) * i64::from(outputs),
            r: 0,
            space: self.space(tensor),
        };
        let x_channel = self.step(&self.x, 1);
        let one = Walk {
            at: x,
            p: self.step(&self.x, 0),
            q: 0,
            group: x_channel * i64::from(inputs),
            r: x_channel,
            space: self.space(&self.x),
        };
        let (w_at, w_space) = self.filter_space(w);
        let w_output = self.step(&self.w, 0);
        let two = Walk {
            at: w_at,
            p: 0,
            q: w_output,
            group: w_output * i64::from(outputs),
            r: self.step(&self.w, 1),
            space: w_space,
        };
        let axes = [0, 1, 2].map(|dimension| Axis {
            size: self.size(&self.y, dimension + 2),
            loops: self.size(&self.w, dimension + 2),
            scale: self.stride(dimension),
            step: self.dilation(dimension),
            start: -self.padding(dimension),
            divide: 1,
            limit: self.size(&self.x, dimension + 2),
        });
        let result = of_y(&self.y, y);
        let old = epilogue.map_or(result, |epilogue| of_y(&epilogue.old.tensor, epilogue.old.at));
        let bias = epilogue.and_then(|epilogue| epilogue.bias).map(|bias| {
            let step = self.step(&bias.tensor, 1);
            [step as u64 * u64::from(outputs), step as u64, bias.at]
        });
        let code = Code::Convolve {
            types: self.types(),
            divides: false,
            has_bias: bias.is_some(),
            activation: epilogue.map_or(Activation::Identity, |epilogue| epilogue.activation),
        };
        let counts = [self.size(&self.y, 0), self.groups(), outputs, inputs];
        launch(call, code, counts, axes, [result, old, one, two], bias.unwrap_or_default(), numbers)
    }

    /// The gradient with respect to x.
    pub(crate) fn backward_data(
        &self,
        call: &mut Call<'_>,
        [dx, w, dy]: [u64; 3],
        numbers: Numbers,
    ) -> Result<(), Status> {
        are_given([dx, w, dy])?;
        let (outputs, inputs) = self.channels();
        let (x_channel, y_channel) = (self.step(&self.x, 1), self.step(&self.y, 1));
        let result = Walk {
            at: dx,
            p: self.step(&self.x, 0),
            q: x_channel,
            group: x_channel * i64::from(inputs),
            r: 0,
            space: self.space(&self.x),
        };
        let one = Walk {
            at: dy,
            p: self.step(&self.y, 0),
            q: 0,
            group: y_channel * i64::from(outputs),
            r: y_channel,
            space: self.space(&self.y),
        };
        let (w_at, w_space) = self.filter_space(w);
        let w_output = self.step(&self.w, 0);
        let two = Walk {
            at: w_at,
            p: 0,
            q: self.step(&self.w, 1),
            group: w_output * i64::from(outputs),
            r: w_output,
            space: w_space,
        };
        let axes = [0, 1, 2].map(|dimension| Axis {
            size: self.size(&self.x, dimension + 2),
            loops: self.size(&self.w, dimension + 2),
            scale: 1,
            step: -self.dilation(dimension),
            start: self.padding(dimension),
            divide: self.stride(dimension).unsigned_abs(),
            limit: self.size(&self.y, dimension + 2),
        });
        let divides = axes.iter().any(|axis| axis.divide != 1);
        let code = Code::Convolve { types: self.types(), divides, has_bias: false, activation: Activation::Identity };
        let counts = [self.size(&self.x, 0), self.groups(), inputs, outputs];
        launch(call, code, counts, axes, [result, result, one, two], [0; 3], numbers)
    }

    /// The gradient with respect to w.
    pub(crate) fn backward_filter(
        &self,
        call: &mut Call<'_>,
        [x, dw, dy]: [u64; 3],
        numbers: Numbers,
    ) -> Result<(), Status> {
        are_given([x, dw, dy])?;
        let (outputs, inputs) = self.channels();
        let (x_channel, y_channel) = (self.step(&self.x, 1), self.step(&self.y, 1));
        let w_output = self.step(&self.w, 0);
        let (w_at, w_space) = self.filter_space(dw);
        let result = Walk {
            at: w_at,
            p: self.step(&self.w, 1),
            q: w_output,
            group: w_output * i64::from(outputs),
            r: 0,
            space: w_space,
        };
        let one = Walk {
            at: x,
            p: x_channel,
            q: 0,
            group: x_channel * i64::from(inputs),
            r: self.step(&self.x, 0),
            space: self.space(&self.x),
        };
        let two = Walk {
            at: dy,
            p: 0,
            q: y_channel,
            group: y_channel * i64::from(outputs),
            r: self.step(&self.y, 0),
            space: self.space(&self.y),
        };
        let axes = [0, 1, 2].map(|dimension| Axis {
            size: self.size(&self.w, dimension + 2),
            loops: self.size(&self.y, dimension + 2),
            scale: self.dilation(dimension),
            step: self.stride(dimension),
            start: -self.padding(dimension),
            divide: 1,
            limit: self.size(&self.x, dimension + 2),
        });
        let code =
            Code::Convolve { types: self.types(), divides: false, has_bias: false, activation: Activation::Identity };
        let counts = [inputs, self.groups(), outputs, self.size(&self.x, 0)];
        launch(call, code, counts, axes, [result, result, one, two], [0; 3], numbers)
    }
}

/// Returns an error if an address is null. It is the program's: a filter that is turned around begins
/// elsewhere.
fn are_given<const N: usize>(addresses: [u64; N]) -> Result<(), Status> {
    if addresses.contains(&0) { Err(Status::InvalidValue) } else { Ok(()) }
}

/// Launches the kernel. `counts` are those of p, groups, q in a group, and r; the tensors are result,
/// old, one and two; the bias is its strides along groups and q, and its address.
fn launch(
    call: &mut Call<'_>,
    code: Code,
    [p, groups, q, r]: [u32; 4],
    axes: [Axis; SPACE],
    [result, old, one, two]: [Walk; 4],
    [bias_group, bias_q, bias]: [u64; 3],
    numbers: Numbers,
) -> Result<(), Status> {
    are_given([old.at])?;
    let sizes = [p, groups, q, axes[0].size, axes[1].size, axes[2].size];
    let along = |walk: &Walk| [walk.p, walk.group, walk.q, walk.space[0], walk.space[1], walk.space[2]];
    let mut values: Vec<u64> = Vec::new();
    for (index, size) in sizes.iter().enumerate() {
        values.extend([u64::from(*size), along(&result)[index] as u64, along(&old)[index] as u64]);
    }
    let factor = |walk: &Walk| [walk.p, walk.group, walk.q, walk.r, walk.space[0], walk.space[1], walk.space[2]];
    for (one, two) in factor(&one).iter().zip(factor(&two)) {
        values.extend([*one as u64, two as u64]);
    }
    for axis in &axes {
        let moves = [axis.scale, axis.step, axis.start].map(|value| i64::from(value) as u64);
        values.push(axis.loops.into());
        values.extend(moves);
        values.extend([axis.divide, axis.limit].map(u64::from));
    }
    values.extend([r.into(), bias_group, bias_q, result.at, old.at, one.at, two.at, bias]);
    let count: u32 = sizes.iter().product();
    values.extend([numbers.alpha, numbers.beta, numbers.coefficient, count.into()]);
    call.launch((code, code.name()), ([count.div_ceil(THREADS), 1, 1], THREADS), &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Format;

    /// A convolution of one image with one channel and a filter of one element.
    fn problem(data_type: c_int, convolution: Convolution, x: [c_int; 2], y: [c_int; 2]) -> Result<Problem, Status> {
        let tensor = |[h, w]: [c_int; 2]| Tensor::packed(data_type, Format::Nchw, 4, [1, 1, h, w, 1, 1, 1, 1]);
        let filter = Filter { tensor: tensor([1, 1])?, format: Format::Nchw };
        Problem::new("a test", convolution, [tensor(x)?, tensor(y)?], filter)
    }

    #[test]
    fn a_type_of_computation_that_the_kernel_does_not_have_is_refused() {
        // f32, f64, f16 and bf16 by their numbers in the header.
        for (data_type, compute_type, is_served) in [
            (0, 0, true),
            (0, 1, false),
            (0, 2, false),
            (1, 1, true),
            (1, 0, false),
            (2, 0, true),
            (2, 2, true),
            (2, 1, false),
            (9, 0, true),
            (9, 9, false),
            (0, 4, false),
        ] {
            let convolution = Convolution { rank: 2, compute_type, ..Convolution::default() };
            let found = problem(data_type, convolution, [3, 3], [3, 3]).map(drop);
            let wanted = if is_served { Ok(()) } else { Err(Status::NotSupported) };
            assert_eq!(found, wanted, "{data_type} in {compute_type}");
        }
    }

    #[test]
    fn a_padded_input_that_the_kernel_cannot_count_is_refused() {
        let padded = |padding: c_int, stride: c_int| {
            let mut convolution = Convolution { rank: 2, ..Convolution::default() };
            (convolution.padding[0], convolution.stride[0]) = (padding, stride);
            convolution
        };
        let (most, stride) = ((c_int::MAX - 3) / 2, 1 << 30);
        assert!(problem(0, padded(most, stride), [3, 3], [2, 3]).is_ok());
        assert_eq!(problem(0, padded(most + 1, stride), [3, 3], [2, 3]).map(drop), Err(Status::NotSupported));
    }
}
