//! Convolution: chooses between a matrix product, the depthwise kernel and the direct kernel.

use super::{depthwise, direct_conv, gemm};
use crate::error::CodegenError;
use crate::product::{Matrix, Product, Source, Spread, Windows};
use crate::schedule::Tensor;
use crate::strides;
use crate::target::TargetDescription;
use crate::window::Axis;
use crate::writer::Written;
use atoll_frontend::tensor_graph::Conv;
use atoll_kgraph::Expr;

/// Smallest number of filters of a group for a matrix product. With fewer filters, most rows of a
/// tile would be empty.
const PRODUCT_FILTERS_MIN: i64 = 8;

/// Smallest number of pixels of an image whose columns are tiled separately. Smaller images share
/// tiles, which makes their windows less regular.
const IMAGE_PIXELS_MIN: i64 = 784;

/// The shapes of a convolution.
pub(crate) struct Shapes {
    pub(crate) images: Expr,
    pub(crate) groups: i64,
    /// Filters and input channels of one group.
    pub(crate) filters: i64,
    pub(crate) channels: i64,
    /// Spatial axes, outermost first.
    pub(crate) axes: Vec<Axis>,
}

/// Inputs `x [N, C, spatial…]`, `w [M, C/group, window…]`, then the extra inputs of the epilogue.
/// Output `[N, M, spatial…]`.
pub(crate) fn conv(
    target: &TargetDescription,
    conv: &Conv,
    inputs: &[Tensor],
    output: &Tensor,
) -> Result<Written, CodegenError> {
    let [x, weights, extras @ ..] = inputs else {
        return Err(CodegenError::inconsistent("a convolution has fewer than two operands"));
    };
    let shapes = Shapes::new(conv, x, weights, output)?;
    if let Some(written) = depthwise::depthwise(target, conv, &shapes, inputs, output)? {
        return Ok(written);
    }
    if shapes.filters < PRODUCT_FILTERS_MIN {
        return direct_conv::direct(target, conv, &shapes, inputs, output);
    }
    let product =
        if shapes.is_pointwise() { pointwise(conv, &shapes, x, weights) } else { windows(conv, &shapes, x, weights) };
    let spreads = std::iter::once(output).chain(extras).map(|t| spread(t, output, &shapes)).collect();
    gemm::gemm(target, Product { spreads, ..product })
}

impl Shapes {
    fn new(conv: &Conv, x: &Tensor, weights: &Tensor, output: &Tensor) -> Result<Shapes, CodegenError> {
        let ([images, _, extents @ ..], [m, c, window @ ..], [_, _, outputs @ ..]) =
            (&x.shape[..], &weights.shape[..], &output.shape[..])
        else {
            return Err(CodegenError::inconsistent("a convolution has operands without channels"));
        };
        let known = |e: &Expr| {
            e.as_const()
                .ok_or_else(|| CodegenError::unsupported("the filters of the convolution have a symbolic shape"))
        };
        let groups = i64::from(conv.groups);
        let axis = |axis: usize| {
            Ok(Axis {
                extent: extents[axis].clone(),
                output: outputs[axis].clone(),
                window: known(&window[axis])? as u32,
                stride: conv.strides[axis],
                dilation: conv.dilations[axis],
                before: conv.pads[axis],
            })
        };
        Ok(Shapes {
            images: images.clone(),
            groups,
            filters: known(m)? / groups.max(1),
            channels: known(c)?,
            axes: (0..extents.len()).map(axis).collect::<Result<_, CodegenError>>()?,
        })
    }

    /// Whether there is one tap for every pixel: then the image is the matrix as it is stored.
    fn is_pointwise(&self) -> bool {
        self.axes.iter().all(|a| a.window == 1 && a.stride == 1 && a.before == 0 && a.extent == a.output)
    }

    /// Whether every image is a batch of its own, instead of a range of columns.
    fn is_by_image(&self) -> bool {
        let pixels = Expr::product(self.axes.iter().map(|a| &a.output));
        self.is_pointwise() || self.images == Expr::Const(1) || pixels.as_const().is_some_and(|p| p >= IMAGE_PIXELS_MIN)
    }

    /// Number of products of one output element.
    pub(crate) fn depth(&self) -> i64 {
        self.channels * self.taps()
    }

    /// Number of taps of a window.
    pub(crate) fn taps(&self) -> i64 {
        self.axes.iter().map(|a| i64::from(a.window)).product()
    }

    /// Number of elements of one channel of the input.
    pub(crate) fn input_plane(&self) -> Expr {
        Expr::product(self.axes.iter().map(|a| &a.extent))
    }
}

/// Batches are (image, group) if images are tiled separately, otherwise groups.
fn spread(tensor: &Tensor, output: &Tensor, shapes: &Shapes) -> Spread {
    let strides = strides::broadcast(&tensor.shape, &output.shape);
    let (image, row, pixels) = (strides[0].clone(), strides[1].clone(), &strides[2..]);
    let group = row.clone() * shapes.filters;
    let tensor = tensor.clone();
    if shapes.is_by_image() {
        Spread { tensor, batch: vec![image, group], row, columns: pixels.to_vec() }
    } else {
        Spread {
            tensor,
            batch: vec![group],
            row,
            columns: std::iter::once(image).chain(pixels.iter().cloned()).collect(),
        }
    }
}

fn filters(shapes: &Shapes, weights: &Tensor, batch: Vec<Expr>) -> Matrix {
    Matrix { tensor: weights.clone(), batch, row: Expr::Const(shapes.depth()), column: Expr::Const(1) }
}

/// Stride from one group's filters to the next.
fn group_stride(shapes: &Shapes) -> Expr {
    Expr::Const(shapes.filters * shapes.depth())
}

fn pointwise<'a>(conv: &'a Conv, shapes: &Shapes, x: &Tensor, weights: &Tensor) -> Product<'a> {
    let plane = shapes.input_plane();
    let group = plane.clone() * shapes.channels;
    let image = group.clone() * shapes.groups;
    Product {
        stem: "conv1x1",
        batch: vec![shapes.images.clone(), Expr::Const(shapes.groups)],
        rows: Expr::Const(shapes.filters),
        rows_most: None,
        depth: Expr::Const(shapes.depth()),
        columns: shapes.axes.iter().map(|a| a.output.clone()).collect(),
        a: filters(shapes, weights, vec![Expr::Const(0), group_stride(shapes)]),
        b: Source::Matrix(Matrix { tensor: x.clone(), batch: vec![image, group], row: plane, column: Expr::Const(1) }),
        program: &conv.epilogue,
        spreads: Vec::new(),
    }
}

fn windows<'a>(conv: &'a Conv, shapes: &Shapes, x: &Tensor, weights: &Tensor) -> Product<'a> {
    let group = shapes.input_plane() * shapes.channels;
    let image = group.clone() * shapes.groups;
    let groups = Expr::Const(shapes.groups);
    let pixels = shapes.axes.iter().map(|a| a.output.clone());
    let (batch, images, columns, a_batch, b_batch) = if shapes.is_by_image() {
        let batch = vec![shapes.images.clone(), groups];
        (batch, Expr::Const(1), pixels.collect(), vec![Expr::Const(0), group_stride(shapes)], vec![image, group])
    } else {
        let columns = std::iter::once(shapes.images.clone()).chain(pixels).collect();
        (vec![groups], shapes.images.clone(), columns, vec![group_stride(shapes)], vec![group])
    };
    Product {
        stem: "conv",
        batch,
        rows: Expr::Const(shapes.filters),
        rows_most: None,
        depth: Expr::Const(shapes.depth()),
        columns,
        a: filters(shapes, weights, a_batch),
        b: Source::Windows(Windows { tensor: x.clone(), batch: b_batch, images, axes: shapes.axes.clone() }),
        program: &conv.epilogue,
        spreads: Vec::new(),
    }
}
