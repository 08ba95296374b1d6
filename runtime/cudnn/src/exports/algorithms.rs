//! Algorithms of convolutions. There is one for each, which needs no workspace; nothing is measured.

use super::entry_points;
use crate::checks::is_among;
use crate::convolve::Problem;
use crate::descriptors::{Convolution, Filter, Id, get};
use crate::handle::state;
use crate::tensor::Tensor;
use atoll_cuda_library::{At, HandleId, Status};
use std::ffi::c_int;

/// `cudnnConvolutionFwdAlgoPerf_t` and the structs for gradients, which are alike.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Performance {
    algorithm: c_int,
    status: c_int,
    /// Milliseconds; -1 if it was not measured.
    time: f32,
    memory: usize,
    determinism: c_int,
    math_type: c_int,
    reserved: [c_int; 3],
}

const _: () = assert!(size_of::<Performance>() == 48);

/// The algorithms of an operation: the number of the one that there is, and how many the header has.
#[derive(Clone, Copy)]
pub(super) struct Algorithms {
    own: c_int,
    count: c_int,
}

/// Implicit product, and the deterministic algorithms for gradients.
pub(super) const FORWARD: Algorithms = Algorithms { own: 0, count: 8 };
pub(super) const BACKWARD_DATA: Algorithms = Algorithms { own: 1, count: 6 };
pub(super) const BACKWARD_FILTER: Algorithms = Algorithms { own: 1, count: 7 };

impl Algorithms {
    /// Returns an error if the header has no algorithm with this number.
    pub(super) fn have(self, number: c_int) -> Result<(), Status> {
        is_among(number, self.count)
    }
}

/// The descriptors of a convolution: x, w, the convolution, and y.
type Descriptors = (Id<Tensor>, Id<Filter>, Id<Convolution>, Id<Tensor>);

/// The convolution of a call.
pub(super) fn problem(name: &'static str, (x, w, convolution, y): Descriptors) -> Result<Problem, Status> {
    Problem::new(name, get(convolution)?, [get(x)?, get(y)?], get(w)?)
}

/// Gives the one algorithm if the convolution is supported.
fn find(
    handle: HandleId,
    name: &'static str,
    descriptors: Descriptors,
    algorithms: Algorithms,
    (requested, returned, performances): (c_int, At<c_int>, At<Performance>),
) -> Result<(), Status> {
    state(handle, |_| ())?;
    returned.is_wanted()?;
    if requested < 1 {
        return Err(Status::InvalidValue);
    }
    problem(name, descriptors)?;
    let math_type = get(descriptors.2)?.math_type;
    performances.set(Performance {
        algorithm: algorithms.own,
        status: 0,
        time: -1.0,
        memory: 0,
        determinism: 1,
        math_type,
        reserved: [0; 3],
    })?;
    returned.set(1)
}

/// The workspace of a convolution: none.
fn workspace(handle: HandleId, name: &'static str, descriptors: Descriptors, bytes: At<usize>) -> Result<(), Status> {
    state(handle, |_| ())?;
    problem(name, descriptors)?;
    bytes.set(0)
}

/// Declares the functions that say how many algorithms there are.
macro_rules! counts {
    ($($name:ident)+) => {
        entry_points! {
            $(fn $name(handle: HandleId, count: At<c_int>) {
                state(handle, |_| ())?;
                count.set(1)
            })+
        }
    };
}

counts! {
    cudnnGetConvolutionForwardAlgorithmMaxCount
    cudnnGetConvolutionBackwardDataAlgorithmMaxCount
    cudnnGetConvolutionBackwardFilterAlgorithmMaxCount
}

/// Declares the functions of a convolution or a gradient: by heuristics, by measuring, and the
/// workspace. The descriptors are in the order of the call, and again in that of `Descriptors`.
macro_rules! algorithms {
    (
        $algorithms:expr, ($($argument:ident: $type:ty),+) is $descriptors:expr,
        $get:ident $find:ident $bytes:ident
    ) => {
        entry_points! {
            fn $get(
                handle: HandleId, $($argument: Id<$type>),+, requested: c_int, returned: At<c_int>,
                performances: At<Performance>
            ) {
                let results = (requested, returned, performances);
                find(handle, stringify!($get), $descriptors, $algorithms, results)
            }

            fn $find(
                handle: HandleId, $($argument: Id<$type>),+, requested: c_int, returned: At<c_int>,
                performances: At<Performance>
            ) {
                let results = (requested, returned, performances);
                find(handle, stringify!($find), $descriptors, $algorithms, results)
            }

            fn $bytes(handle: HandleId, $($argument: Id<$type>),+, algorithm: c_int, bytes: At<usize>) {
                $algorithms.have(algorithm)?;
                workspace(handle, stringify!($bytes), $descriptors, bytes)
            }
        }
    };
}

algorithms! {
    FORWARD, (x: Tensor, w: Filter, convolution: Convolution, y: Tensor) is (x, w, convolution, y),
    cudnnGetConvolutionForwardAlgorithm_v7 cudnnFindConvolutionForwardAlgorithm
    cudnnGetConvolutionForwardWorkspaceSize
}

algorithms! {
    BACKWARD_DATA, (w: Filter, dy: Tensor, convolution: Convolution, dx: Tensor) is (dx, w, convolution, dy),
    cudnnGetConvolutionBackwardDataAlgorithm_v7 cudnnFindConvolutionBackwardDataAlgorithm
    cudnnGetConvolutionBackwardDataWorkspaceSize
}

algorithms! {
    BACKWARD_FILTER, (x: Tensor, dy: Tensor, convolution: Convolution, dw: Filter) is (x, dw, convolution, dy),
    cudnnGetConvolutionBackwardFilterAlgorithm_v7 cudnnFindConvolutionBackwardFilterAlgorithm
    cudnnGetConvolutionBackwardFilterWorkspaceSize
}

entry_points! {
    fn cudnnFindConvolutionForwardAlgorithmEx(
        handle: HandleId, x: Id<Tensor>, _x_at: u64, w: Id<Filter>, _w_at: u64, convolution: Id<Convolution>,
        y: Id<Tensor>, _y_at: u64, requested: c_int, returned: At<c_int>, performances: At<Performance>,
        _workspace: u64, _bytes: usize
    ) {
        let results = (requested, returned, performances);
        find(handle, "cudnnFindConvolutionForwardAlgorithmEx", (x, w, convolution, y), FORWARD, results)
    }

    fn cudnnFindConvolutionBackwardDataAlgorithmEx(
        handle: HandleId, w: Id<Filter>, _w_at: u64, dy: Id<Tensor>, _dy_at: u64, convolution: Id<Convolution>,
        dx: Id<Tensor>, _dx_at: u64, requested: c_int, returned: At<c_int>, performances: At<Performance>,
        _workspace: u64, _bytes: usize
    ) {
        let results = (requested, returned, performances);
        let name = "cudnnFindConvolutionBackwardDataAlgorithmEx";
        find(handle, name, (dx, w, convolution, dy), BACKWARD_DATA, results)
    }

    fn cudnnFindConvolutionBackwardFilterAlgorithmEx(
        handle: HandleId, x: Id<Tensor>, _x_at: u64, dy: Id<Tensor>, _dy_at: u64, convolution: Id<Convolution>,
        dw: Id<Filter>, _dw_at: u64, requested: c_int, returned: At<c_int>, performances: At<Performance>,
        _workspace: u64, _bytes: usize
    ) {
        let results = (requested, returned, performances);
        let name = "cudnnFindConvolutionBackwardFilterAlgorithmEx";
        find(handle, name, (x, dw, convolution, dy), BACKWARD_FILTER, results)
    }
}
