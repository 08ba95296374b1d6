//! Convolution. A 1-D convolution becomes a 2-D one with height 1.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::taps;
use super::window::Window;
use crate::program::ProgramBuilder;
use crate::tensor_graph::{Conv, Op, PointArg, PointOp, ValueId};
use atoll_kgraph::{DType, Expr};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of spatial dimensions.
const SPATIAL_MAX: usize = 3;

/// Operands of a convolution with at least two spatial dimensions.
pub(super) struct Convolution {
    pub(super) x: ValueId,
    /// `[M, C/group, window…]`
    pub(super) weights: ValueId,
    /// `[M]`
    pub(super) bias: Option<ValueId>,
    pub(super) strides: Vec<u32>,
    /// Padding before each dimension, then after each.
    pub(super) pads: Vec<u32>,
    pub(super) dilations: Vec<u32>,
    pub(super) groups: u32,
    /// Spatial dimensions of the output.
    pub(super) output: Vec<Expr>,
}

/// Emits the convolution.
pub(super) fn emit(lowering: &mut Lowering, name: &str, convolution: Convolution) -> LowerResult<ValueId> {
    let dtype = lowering.dtype(convolution.x);
    let filters = lowering.shape(convolution.weights)[0].clone();
    let mut bias = None;
    if let Some(list) = convolution.bias {
        let mut shape = vec![Expr::Const(1); convolution.output.len() + 2];
        shape[1] = filters.clone();
        bias = Some(lowering.reshape(&format!("{name}.bias"), list, shape)?);
    }
    if !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16) {
        // The convolution kernels compute in f32, so f64 and integers use a nest.
        let y = taps::convolve(lowering, &format!("{name}.sums"), &convolution)?;
        return match bias {
            Some(bias) => lowering.pointwise(name, &[y, bias], dtype, |p, x| {
                p.step(PointOp::Add, dtype, x);
            }),
            None => Ok(y),
        };
    }
    let Convolution { x, weights, strides, pads, dilations, groups, output, .. } = convolution;
    let mut inputs = vec![x, weights];
    let mut epilogue = ProgramBuilder::default();
    if let Some(bias) = bias {
        inputs.push(bias);
        epilogue.step(PointOp::Add, dtype, &[PointArg::Input(0), PointArg::Input(1)]);
    }
    let shape = [lowering.shape(x)[0].clone(), filters].into_iter().chain(output).collect();
    let op = Op::Conv(Conv { strides, pads, dilations, groups, epilogue: epilogue.finish() });
    lowering.emit_one(name, op, &inputs, dtype, shape)
}

pub(super) fn conv(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, w) = (call.input(0)?, call.input(1)?);
    Ok(vec![convolved(lowering, call, x, w, call.optional(2))?])
}

/// Convolves `x` with the weights `w`, with the attributes of a node.
pub(super) fn convolved(
    lowering: &mut Lowering,
    call: &Call<'_>,
    x: ValueId,
    w: ValueId,
    bias: Option<ValueId>,
) -> LowerResult<ValueId> {
    let kernel = kernel_shape(lowering, call, w)?;
    let window = Window::read(lowering, call, x, &kernel)?;
    let groups = conv_groups(lowering, call, x, w)?;
    let x = window.padded(lowering, &call.name, x, 0.0)?;
    let (x, w, window) = match kernel.len() {
        1 => {
            let x = with_height(lowering, &format!("{}.x", call.name), x)?;
            (x, with_height(lowering, &format!("{}.w", call.name), w)?, window.with_height())
        }
        2..=SPATIAL_MAX => (x, w, window),
        spatial => {
            return unsupported(format!("it has {spatial} spatial dimensions; at most {SPATIAL_MAX} are supported"));
        }
    };
    let output = window.output(lowering, &lowering.shape(x)[2..])?;
    let Window { strides, pads, dilations, .. } = window;
    let convolution = Convolution { x, weights: w, bias, strides, pads, dilations, groups, output };
    let y = emit(lowering, &call.name, convolution)?;
    if kernel.len() == 1 { without_height(lowering, &format!("{}.y", call.name), y) } else { Ok(y) }
}

/// The size of the window, from the weights.
pub(super) fn kernel_shape(lowering: &Lowering, call: &Call<'_>, w: ValueId) -> LowerResult<Vec<i64>> {
    let kernel = lowering.shape(w).get(2..).unwrap_or(&[]).iter().map(Expr::as_const).collect::<Option<Vec<i64>>>();
    let kernel = kernel.ok_or_else(|| {
        LowerError::Unsupported(format!(
            "its weights have the symbolic shape {}",
            lowering.shape_text(lowering.shape(w))
        ))
    })?;
    if call.ints("kernel_shape")?.is_some_and(|given| given != kernel) {
        return invalid(format!("its kernel_shape differs from that of its weights, {kernel:?}"));
    }
    Ok(kernel)
}

/// `[N, C, L]` to `[N, C, 1, L]`.
pub(super) fn with_height(lowering: &mut Lowering, name: &str, id: ValueId) -> LowerResult<ValueId> {
    let mut shape = lowering.shape(id).to_vec();
    shape.insert(2, Expr::Const(1));
    lowering.reshape(name, id, shape)
}

/// `[N, C, 1, L]` to `[N, C, L]`.
pub(super) fn without_height(lowering: &mut Lowering, name: &str, id: ValueId) -> LowerResult<ValueId> {
    let mut shape = lowering.shape(id).to_vec();
    shape.remove(2);
    lowering.reshape(name, id, shape)
}

fn conv_groups(lowering: &Lowering, call: &Call<'_>, x: ValueId, w: ValueId) -> LowerResult<u32> {
    let groups = call.int("group", 1)?;
    let (per_group, filters) = (channels(lowering, w, 1)?, channels(lowering, w, 0)?);
    if let (Some(dim), Some(wanted)) =
        (lowering.shape(x).get(1).filter(|dim| dim.as_const().is_none()), per_group.checked_mul(groups))
    {
        // The weights determine a symbolic number of channels.
        lowering.equal_dims(dim.clone(), wanted.into())?;
    }
    let input = channels(lowering, x, 1)?;
    let fits = groups > 0 && per_group.checked_mul(groups) == Some(input) && filters % groups == 0;
    if !fits {
        return invalid(format!(
            "its input has {input} channels, its weights have {filters} filters of {per_group} channels, and it has \
             {groups} groups: channels must be {per_group} times the groups, and filters a multiple of the groups"
        ));
    }
    Ok(groups as u32)
}

/// The number of channels or filters: a dimension that must be a number.
pub(super) fn channels(lowering: &Lowering, id: ValueId, axis: usize) -> LowerResult<i64> {
    match lowering.shape(id).get(axis) {
        Some(dim) => dim.as_const().ok_or_else(|| lowering.open_size("its number of channels", dim)),
        None => invalid(format!("its operand has {} dimensions, so it has no channels", lowering.rank(id))),
    }
}
