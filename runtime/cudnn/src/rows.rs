//! Operations on rows: softmax and reductions.

use crate::checks::refused;
use crate::handle::Call;
use crate::kernels::{Code, Rows, Types};
use crate::point::{Numbers, Operand};
use crate::tensor::{Space, check_in_place};
use atoll_cuda_library::{Number, Status};

/// Threads of a block for long and short rows.
const LONG: u32 = 256;
const SHORT: u32 = 32;

/// Elements from which a row is long.
const LONG_FROM: u32 = 512;

/// Combines the elements of x along the dimensions for which `is_inner`. The result in y has one
/// element in these dimensions, or is as large as x.
pub(crate) fn launch(
    call: &mut Call<'_>,
    name: &'static str,
    op: Rows,
    (x, y): (Operand, Operand),
    is_inner: impl Fn(usize) -> bool,
    numbers: Numbers,
) -> Result<(), Status> {
    let types = Types { input: x.tensor.number(name)?, output: y.tensor.number(name)? };
    if (types.input == Number::F64) != (types.output == Number::F64) {
        return Err(refused(name, "tensors of f64 with others"));
    }
    if x.at == 0 || y.at == 0 {
        return Err(Status::InvalidValue);
    }
    let x_steps = x.tensor.steps_for(&x.tensor, types.input)?;
    let y_steps = y.tensor.steps_for(&x.tensor, types.output)?;
    check_in_place(&x.tensor.sizes[..x.tensor.rank], (x.at, &x_steps), (y.at, &y_steps))?;
    let space = |wanted: bool| {
        let dimensions: Vec<usize> = (0..x.tensor.rank).filter(|dimension| is_inner(*dimension) == wanted).collect();
        let sizes: Vec<_> = dimensions.iter().map(|dimension| x.tensor.sizes[*dimension]).collect();
        let steps: [Vec<i64>; 2] =
            [&y_steps, &x_steps].map(|all| dimensions.iter().map(|dimension| all[*dimension]).collect());
        Space::of(&sizes, &steps)
    };
    let (outer, inner) = (space(false), space(true));
    let threads = if inner.count() >= LONG_FROM { LONG } else { SHORT };
    let mut values = Vec::new();
    // In the order of the template: the last dimension first.
    for space in [&outer, &inner] {
        for dimension in (0..space.sizes.len()).rev() {
            let [y_step, x_step] = [0, 1].map(|tensor| space.steps[tensor][dimension] as u64);
            values.extend([space.sizes[dimension].into(), x_step, y_step]);
        }
    }
    values.extend([x.at, y.at, numbers.alpha, numbers.beta, numbers.coefficient, inner.count().into()]);
    let code = Code::Rows { types, op, outer: outer.rank(), inner: inner.rank(), threads };
    call.launch((code, code.name()), ([outer.count(), 1, 1], threads), &values)
}
