//! Convolution and pooling. One spatial dimension becomes two with height 1.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use crate::program::ProgramBuilder;
use crate::tensor_graph::{Conv, Op, PointArg, PointOp, Pool, PoolKind, Reduce, ReduceKind, ValueId};
use atoll_kgraph::Expr;

type Results = LowerResult<Vec<ValueId>>;

/// The attributes that all windows share, always for two spatial dimensions.
struct Window {
    /// 1 or 2: how many the model has.
    spatial: usize,
    size: [u32; 2],
    strides: [u32; 2],
    pads: [u32; 4],
    dilations: [u32; 2],
    /// Whether the output size is rounded up.
    ceil: bool,
}

/// Largest stride, pad or dilation: far beyond any use, and products stay small.
const WINDOW_MAX: i64 = 1 << 16;

fn small(values: &[i64], what: &str, min: i64) -> LowerResult<Vec<u32>> {
    match values.iter().find(|v| !(min..=WINDOW_MAX).contains(*v)) {
        Some(value) if *value < 0 && what == "pads" => unsupported(format!("{what} of {value}")),
        Some(value) => invalid(format!("{what} of {value}")),
        None => Ok(values.iter().map(|v| *v as u32).collect()),
    }
}

impl Window {
    /// Reads `strides`, `pads`, `dilations`, `auto_pad` and `ceil_mode` for an input `x [N, C, spatial…]` and a window of `size`.
    fn read(lowering: &Lowering, call: &Call<'_>, x: ValueId, size: &[i64]) -> LowerResult<Window> {
        let spatial = size.len();
        match spatial {
            1 | 2 => {}
            _ => return unsupported(format!("{spatial} spatial dimensions (1 or 2 are)")),
        }
        if lowering.rank(x) != spatial + 2 {
            return invalid(format!("a window of {spatial} dimensions over a tensor of {}", lowering.rank(x)));
        }
        let list = |name: &str, default: i64, min: i64| {
            let values = call.ints(name)?.unwrap_or_else(|| vec![default; spatial]);
            if values.len() != spatial {
                return invalid(format!("{name} has {} entries for {spatial} dimensions", values.len()));
            }
            small(&values, name, min)
        };
        let (strides, dilations) = (list("strides", 1, 1)?, list("dilations", 1, 1)?);
        let size = small(size, "kernel_shape", 1)?;
        let dims = &lowering.shape(x)[2..];
        let pads = read_pads(call, dims, &size, &strides, &dilations)?;
        let two = |v: &[u32]| if spatial == 2 { [v[0], v[1]] } else { [1, v[0]] };
        let pads = if spatial == 2 { [pads[0], pads[1], pads[2], pads[3]] } else { [0, pads[0], 0, pads[1]] };
        let ceil = call.flag("ceil_mode", false)?;
        Ok(Window { spatial, size: two(&size), strides: two(&strides), pads, dilations: two(&dilations), ceil })
    }

    /// Height and width of the output for those of the input.
    fn output(&self, lowering: &Lowering, height: &Expr, width: &Expr) -> LowerResult<[Expr; 2]> {
        Ok([self.output_dim(lowering, 0, height)?, self.output_dim(lowering, 1, width)?])
    }

    fn output_dim(&self, lowering: &Lowering, axis: usize, dim: &Expr) -> LowerResult<Expr> {
        let stride = i64::from(self.strides[axis]);
        let reach = i64::from(self.dilations[axis]) * (i64::from(self.size[axis]) - 1) + 1;
        let (before, after) = (i64::from(self.pads[axis]), i64::from(self.pads[axis + 2]));
        let span = dim.clone() + (before + after - reach);
        if crate::size::bounds(&span, &lowering.graph.symbols).is_some_and(|(_, high)| high < 0) {
            return invalid(format!("the window of {reach} does not fit the padded input of {}", dim.clone() + (before + after)));
        }
        if !self.ceil {
            return Ok(span.floor_div(stride) + 1);
        }
        let count = span.ceil_div(stride) + 1;
        // A last window that would start in the padding behind is left out.
        Ok(count.min((dim.clone() + (before - 1)).floor_div(stride) + 1))
    }
}

/// Begins first, then ends.
fn read_pads(call: &Call<'_>, dims: &[Expr], size: &[u32], strides: &[u32], dilations: &[u32]) -> LowerResult<Vec<u32>> {
    let spatial = dims.len();
    let auto = call.string("auto_pad", "NOTSET")?;
    match auto.as_str() {
        "NOTSET" => {
            let pads = call.ints("pads")?.unwrap_or_else(|| vec![0; 2 * spatial]);
            if pads.len() != 2 * spatial {
                return invalid(format!("pads has {} entries for {spatial} dimensions", pads.len()));
            }
            small(&pads, "pads", 0)
        }
        "VALID" => Ok(vec![0; 2 * spatial]),
        "SAME_UPPER" | "SAME_LOWER" => {
            let mut pads = vec![0; 2 * spatial];
            for axis in 0..spatial {
                let total = same_padding(&dims[axis], size[axis], strides[axis], dilations[axis])?;
                let (small, large) = (total / 2, total - total / 2);
                let (before, after) = if auto == "SAME_UPPER" { (small, large) } else { (large, small) };
                (pads[axis], pads[axis + spatial]) = (before, after);
            }
            Ok(pads)
        }
        other => invalid(format!("auto_pad = {other:?}")),
    }
}

/// Padding of both sides for an output of `ceil(dim / stride)`.
fn same_padding(dim: &Expr, size: u32, stride: u32, dilation: u32) -> LowerResult<u32> {
    let reach = (i64::from(size) - 1) * i64::from(dilation) + 1;
    let stride = i64::from(stride);
    let total = match dim.as_const() {
        Some(dim) => ((dim + stride - 1) / stride - 1) * stride + reach - dim,
        None if stride == 1 => reach - 1,
        None => return unsupported("auto_pad with a stride on a symbolic dimension"),
    };
    Ok(total.max(0) as u32)
}

/// `[N, C, L]` to `[N, C, 1, L]`; with two spatial dimensions the tensor itself.
fn with_height(lowering: &mut Lowering, name: &str, id: ValueId, spatial: usize) -> LowerResult<ValueId> {
    if spatial == 2 {
        return Ok(id);
    }
    let mut shape = lowering.shape(id).to_vec();
    shape.insert(2, Expr::Const(1));
    lowering.reshape(name, id, shape)
}

fn without_height(lowering: &mut Lowering, name: &str, id: ValueId, spatial: usize) -> LowerResult<ValueId> {
    if spatial == 2 {
        return Ok(id);
    }
    let mut shape = lowering.shape(id).to_vec();
    shape.remove(2);
    lowering.reshape(name, id, shape)
}

pub(super) fn conv(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let (x, w) = (call.input(0)?, call.input(1)?);
    let kernel = lowering.shape(w).get(2..).unwrap_or(&[]).iter().map(Expr::as_const).collect::<Option<Vec<i64>>>();
    let kernel = kernel.ok_or_else(|| LowerError::Unsupported("weights of symbolic size".into()))?;
    if call.ints("kernel_shape")?.is_some_and(|given| given != kernel) {
        return invalid(format!("kernel_shape differs from the weights' {kernel:?}"));
    }
    let window = Window::read(lowering, call, x, &kernel)?;
    let dtype = lowering.dtype(x);
    let x = with_height(lowering, &format!("{}.x", call.name), x, window.spatial)?;
    let w = with_height(lowering, &format!("{}.w", call.name), w, window.spatial)?;
    let groups = conv_groups(lowering, call, x, w)?;
    let [batch, _, height, width] = [0, 1, 2, 3].map(|i| lowering.shape(x)[i].clone());
    let filters = lowering.shape(w)[0].clone();
    let [out_h, out_w] = window.output(lowering, &height, &width)?;
    let mut inputs = vec![x, w];
    let mut epilogue = ProgramBuilder::default();
    if let Some(bias) = call.optional(2) {
        let shape = vec![Expr::Const(1), filters.clone(), Expr::Const(1), Expr::Const(1)];
        inputs.push(lowering.reshape(&format!("{}.bias", call.name), bias, shape)?);
        epilogue.step(PointOp::Add, dtype, &[PointArg::Input(0), PointArg::Input(1)]);
    }
    let op =
        Op::Conv(Conv { strides: window.strides, pads: window.pads, dilations: window.dilations, groups, epilogue: epilogue.finish() });
    let y = lowering.emit_one(&call.name, op, &inputs, dtype, vec![batch, filters, out_h, out_w])?;
    Ok(vec![without_height(lowering, &format!("{}.y", call.name), y, window.spatial)?])
}

fn conv_groups(lowering: &Lowering, call: &Call<'_>, x: ValueId, w: ValueId) -> LowerResult<u32> {
    let groups = call.int("group", 1)?;
    let channels = |id: ValueId, axis: usize| {
        lowering.shape(id)[axis].as_const().ok_or_else(|| LowerError::Unsupported("a symbolic number of channels".into()))
    };
    let (input, per_group, filters) = (channels(x, 1)?, channels(w, 1)?, channels(w, 0)?);
    let fits = groups > 0 && per_group.checked_mul(groups) == Some(input) && filters % groups == 0;
    if !fits {
        return invalid(format!("{input} channels, {filters} filters of {per_group} channels and {groups} groups do not fit each other"));
    }
    Ok(groups as u32)
}

pub(super) fn max_pool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    if call.int("storage_order", 0)? != 0 {
        return unsupported("storage_order = 1");
    }
    pool(lowering, call, PoolKind::Max)
}

pub(super) fn average_pool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let count_include_pad = call.flag("count_include_pad", false)?;
    pool(lowering, call, PoolKind::Average { count_include_pad })
}

fn pool(lowering: &mut Lowering, call: &Call<'_>, kind: PoolKind) -> Results {
    let x = call.input(0)?;
    let dtype = lowering.dtype(x);
    if !crate::tensor::is_float(dtype) {
        return unsupported(format!("pooling of {dtype:?}"));
    }
    let window = Window::read(lowering, call, x, &call.required_ints("kernel_shape")?)?;
    let x = with_height(lowering, &format!("{}.x", call.name), x, window.spatial)?;
    let [batch, channels, height, width] = [0, 1, 2, 3].map(|i| lowering.shape(x)[i].clone());
    let [out_h, out_w] = window.output(lowering, &height, &width)?;
    let op = Op::Pool(Pool { kind, window: window.size, strides: window.strides, pads: window.pads, dilations: window.dilations });
    let y = lowering.emit_one(&call.name, op, &[x], dtype, vec![batch, channels, out_h, out_w])?;
    Ok(vec![without_height(lowering, &format!("{}.y", call.name), y, window.spatial)?])
}

/// Global pooling is a reduction of all spatial axes.
pub(super) fn global_pool(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let rank = lowering.rank(x);
    if rank < 3 {
        return invalid(format!("a tensor of {rank} dimensions has no spatial ones"));
    }
    let kind = if call.node.op_type == "GlobalMaxPool" { ReduceKind::Max } else { ReduceKind::Mean };
    let shape = (0..rank).map(|i| if i < 2 { lowering.shape(x)[i].clone() } else { Expr::Const(1) }).collect();
    let op = Op::Reduce(Reduce { kind, axes: (2..rank).collect(), keep_dims: true });
    Ok(vec![lowering.emit_one(&call.name, op, &[x], lowering.dtype(x), shape)?])
}
