//! Depthwise convolutions that stage the image: a warp computes some rows of one channel, and keeps
//! the pixels that it needs in shared memory, with padding around them.
//!
//! In shared memory a row of the image is followed by its padding, so a tap has the same offset
//! from every pixel. Loads and sums need no guard, and lanes continue across the ends of rows. The
//! sums between two rows belong to no pixel; they are computed and not stored. For the rows of each
//! warp, a block has three phases: stage, multiply, store.

use super::conv::Shapes;
use crate::error::CodegenError;
use crate::scalar::Scalar;
use crate::schedule::Tensor;
use crate::strides;
use crate::sweep;
use crate::target::TargetDescription;
use crate::writer::{Int, LANES, Writer, Written, mem};
use atoll_frontend::tensor_graph::Conv;
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand};

/// Largest number of floats for the rows of one warp, staged pixels and sums together, so that all
/// warps of a block stay in a first-level cache.
const WARP_FLOATS_MAX: i64 = 1536;
/// Largest number of sums of a thread.
const PARTS_MAX: i64 = 4;

/// How the rows of an image are divided among warps.
#[derive(Clone, Copy, Debug)]
struct Tile {
    height: i64,
    width: i64,
    /// Number of output rows that a warp computes at once, and number of such bands.
    rows: i64,
    bands: i64,
    /// Distance of two staged rows.
    pitch: i64,
    /// Number of taps, and their distances.
    window: [i64; 2],
    dilation: [i64; 2],
    before: [i64; 2],
    /// Number of sums of a thread, and number of rounds.
    parts: i64,
    rounds: i64,
}

impl Tile {
    /// `None` if the kernel does not support the convolution.
    fn new(target: &TargetDescription, shapes: &Shapes) -> Option<Tile> {
        let [down, across] = &shapes.axes[..] else { return None };
        let is_single = shapes.channels == 1 && shapes.filters == 1;
        if !is_single || down.stride != 1 || across.stride != 1 || shapes.taps() < target.staged_taps_min {
            return None;
        }
        let (height, width) = (down.output.as_const()?, across.output.as_const()?);
        down.extent.as_const().and(across.extent.as_const())?;
        let axes = [down, across];
        let [window, dilation, before] =
            [axes.map(|a| a.window.into()), axes.map(|a| a.dilation.into()), axes.map(|a| i64::from(a.before))];
        let reach = [0, 1].map(|axis: usize| (window[axis] - 1) * dilation[axis]);
        let pitch = width + reach[1];
        let floats = |rows: i64| (2 * rows + reach[0]) * pitch;
        let most = (1..=height).rev().find(|&rows| floats(rows) <= WARP_FLOATS_MAX)?;
        let bands = height.div_euclid(most) + i64::from(height % most != 0);
        let rows = (height + bands - 1) / bands;
        let steps = (rows * pitch + i64::from(LANES) - 1) / i64::from(LANES);
        let rounds = (steps + PARTS_MAX - 1) / PARTS_MAX;
        let parts = (steps + rounds - 1) / rounds;
        Some(Tile { height, width, rows, bands, pitch, window, dilation, before, parts, rounds })
    }

    fn staged_rows(&self) -> i64 {
        self.rows + (self.window[0] - 1) * self.dilation[0]
    }

    /// Number of sums of a warp, including those that belong to no pixel.
    fn sums(&self) -> i64 {
        self.rounds * self.parts * i64::from(LANES)
    }

    /// Bytes of a warp's staged rows. The area includes everything that the last sum reads, and is
    /// written by full warps.
    fn staged_bytes(&self) -> i64 {
        let reach = (self.window[0] - 1) * self.dilation[0] * self.pitch + (self.window[1] - 1) * self.dilation[1];
        let stored = self.staged_rows() * self.pitch + i64::from(LANES);
        4 * (self.sums() + reach).max(stored)
    }

    fn warp_bytes(&self) -> i64 {
        self.staged_bytes() + 4 * self.sums()
    }
}

/// Writes the kernel; `None` if it does not support the convolution.
pub(crate) fn depthwise(
    target: &TargetDescription,
    conv: &Conv,
    shapes: &Shapes,
    inputs: &[Tensor],
    output: &Tensor,
) -> Result<Option<Written>, CodegenError> {
    let ([x, weights, extras @ ..], Some(tile)) = (inputs, Tile::new(target, shapes)) else { return Ok(None) };
    let warps = i64::from(target.warps);
    let shared_bytes = warps * tile.warp_bytes();
    if !matches!(x.dtype, DType::F32 | DType::F16 | DType::Bf16)
        || weights.dtype != x.dtype
        || shared_bytes > target.shared_bytes_max.into()
    {
        return Ok(None);
    }
    let mut w = Writer::new("depthwise_staged");
    let shared = w.shared("rows", shared_bytes as u32);
    let (lane, warp) = (w.special("%tid.x"), w.special("%tid.y"));
    let staged = w.mad(&warp, &Int::Known(tile.warp_bytes()), &Int::Reg(shared));
    let staged = w.mad(&lane, &4.into(), &staged);
    let staged = w.variable(&staged);
    let body = Depthwise {
        conv,
        shapes,
        tile,
        x: w.base(x),
        weights: w.base(weights),
        dtype: x.dtype,
        tensors: std::iter::once(output)
            .chain(extras)
            .map(|t| (w.base(t), strides::broadcast(&t.shape, &output.shape), t.dtype))
            .collect(),
        lane,
        staged,
    };
    let products = tile.rows * tile.width * shapes.taps();
    let per_warp = (i64::from(target.products_per_block) / products / warps).max(1);
    let items = shapes.images.clone() * Expr::Const(shapes.groups * tile.bands);
    let block = w.special("%ctaid.x");
    let first = w.mad(&block, &Int::Known(per_warp * warps), &warp);
    let count = w.size(&items);
    let mut outcome = Ok(());
    w.count(&0.into(), &Int::Known(per_warp * warps), &Int::Known(warps), |w, round| {
        let item = w.add(&first, round);
        let item = Int::Reg(w.variable(&item));
        let is_there = w.compare("lt.u32", &item, &count);
        w.when(Some(&is_there), |w| body.stage(w, &item));
        w.barrier();
        w.when(Some(&is_there), |w| body.multiply(w, &item));
        w.barrier();
        w.when(Some(&is_there), |w| outcome = body.store(w, &item));
    });
    outcome?;
    let grid = items.ceil_div(per_warp * warps);
    Ok(Some(w.finish([LANES, target.warps, 1], [grid, Expr::Const(1), Expr::Const(1)])))
}

struct Depthwise<'a> {
    conv: &'a Conv,
    shapes: &'a Shapes,
    tile: Tile,
    x: Name,
    weights: Name,
    dtype: DType,
    /// Address, strides and type of the output, then of the extra inputs.
    tensors: Vec<(Name, Vec<Expr>, DType)>,
    lane: Int,
    /// Shared address of this lane's element in the first staged row.
    staged: Name,
}

impl Depthwise<'_> {
    /// The plane of an item (counted over images and channels), and its first row.
    fn place(&self, w: &mut Writer, item: &Int) -> (Int, Int) {
        let (plane, band) = w.div_rem(item, &Int::Known(self.tile.bands));
        (plane, w.mul(&band, &Int::Known(self.tile.rows)))
    }

    /// The starts of the pieces of 32 elements of a row of `length`, each with the guard for lanes
    /// after its end.
    fn pieces(&self, w: &mut Writer, length: i64) -> Vec<(i64, Option<Name>)> {
        let lanes = i64::from(LANES);
        let starts = (0..length).step_by(LANES as usize);
        starts
            .map(|first| {
                (first, (length - first < lanes).then(|| w.compare("lt.u32", &self.lane, &Int::Known(length - first))))
            })
            .collect()
    }

    /// Copies the image rows that the item's windows cover, with zeros around them.
    fn stage(&self, w: &mut Writer, item: &Int) {
        let Tile { pitch, before: [above, left], .. } = self.tile;
        let bytes = self.dtype.bytes() as u32;
        let [down, across] = [0, 1].map(|axis: usize| w.size(&self.shapes.axes[axis].extent));
        let (plane, row) = self.place(w, item);
        let top = w.sub(&row, &Int::Known(above));
        let lines = w.mad(&plane, &down, &top);
        let start = w.mul(&lines, &across);
        let start = w.sub(&start, &Int::Known(left));
        let line = w.at(&self.x, &start, bytes);
        let line = w.at(&line, &self.lane, bytes);
        let line = w.cursor(&line);
        // Which lanes are inside the image is the same for all rows.
        let pieces: Vec<(i64, Option<Name>)> = (0..pitch)
            .step_by(LANES as usize)
            .map(|first| {
                let column = w.add(&self.lane, &Int::Known(first - left));
                (first, w.inside(&column, &across))
            })
            .collect();
        let place = w.variable(&Int::Reg(self.staged.clone()));
        let y = w.variable(&top);
        w.count(&0.into(), &Int::Known(self.tile.staged_rows()), &1.into(), |w, _| {
            let is_row = w.inside(&Int::Reg(y.clone()), &down);
            for (first, inside) in &pieces {
                let guard = w.both(is_row.as_ref(), inside.as_ref());
                let value = super::gemm::load_guarded(w, self.dtype, guard.as_ref(), &line, first * i64::from(bytes));
                // Elements that a warp writes after the end of a row are overwritten by the next
                // row.
                w.emit("st.shared.f32", [mem(&place, first * 4), value]);
            }
            w.advance(&line, &across, bytes);
            w.emit("add.s32", [(&place).into(), (&place).into(), (pitch * 4).into()]);
            w.emit("add.s32", [(&y).into(), (&y).into(), 1.into()]);
        });
    }

    /// Adds up all windows.
    fn multiply(&self, w: &mut Writer, item: &Int) {
        let Tile { pitch, window, dilation, parts, rounds, .. } = self.tile;
        let bytes = self.dtype.bytes() as u32;
        let (plane, _) = self.place(w, item);
        let (_, channel) = w.div_rem(&plane, &Int::Known(self.shapes.groups));
        let channel = w.mul(&channel, &Int::Known(self.shapes.depth()));
        let weights = w.at(&self.weights, &channel, bytes);
        let first = w.variable(&Int::Reg(self.staged.clone()));
        let result = w.add(&Int::Reg(self.staged.clone()), &Int::Known(self.tile.staged_bytes()));
        let result = w.variable(&result);
        let step = parts * i64::from(LANES) * 4;
        w.count(&0.into(), &Int::Known(rounds), &1.into(), |w, _| {
            let sums: Vec<Name> = (0..parts).map(|_| w.f32_variable(0.0)).collect();
            let (taps, line) = (w.cursor(&weights), w.variable(&Int::Reg(first.clone())));
            w.count(&0.into(), &Int::Known(window[0]), &1.into(), |w, _| {
                for tap in 0..window[1] {
                    let factor = w.load_f32(self.dtype, &taps, tap * i64::from(bytes));
                    for (part, sum) in (0..).zip(&sums) {
                        let at = (tap * dilation[1] + part * i64::from(LANES)) * 4;
                        let x = w.f32("ld.shared.f32", [mem(&line, at)]);
                        w.emit("fma.rn.f32", [sum.into(), x, factor.clone(), sum.into()]);
                    }
                }
                w.advance(&taps, &Int::Known(window[1]), bytes);
                w.emit("add.s32", [(&line).into(), (&line).into(), (dilation[0] * pitch * 4).into()]);
            });
            for (part, sum) in (0..).zip(&sums) {
                w.emit("st.shared.f32", [mem(&result, part * i64::from(LANES) * 4), sum.into()]);
            }
            for place in [&first, &result] {
                w.emit("add.s32", [place.into(), place.into(), step.into()]);
            }
        });
    }

    /// Applies the epilogue to the sums of pixels, and stores them.
    fn store(&self, w: &mut Writer, item: &Int) -> Result<(), CodegenError> {
        let Tile { height, width, rows, pitch, .. } = self.tile;
        let (plane, row) = self.place(w, item);
        let (image, channel) = w.div_rem(&plane, &Int::Known(self.shapes.groups));
        let pieces = self.pieces(w, width);
        let result = w.add(&Int::Reg(self.staged.clone()), &Int::Known(self.tile.staged_bytes()));
        let result = w.variable(&result);
        let mut outcome = Ok(());
        w.count(&0.into(), &Int::Known(rows), &1.into(), |w, down| {
            let y = w.add(&row, down);
            let is_row = (height % rows != 0).then(|| w.compare("lt.u32", &y, &Int::Known(height)));
            w.when(is_row.as_ref(), |w| {
                for (first, guard) in &pieces {
                    let column = w.add(&self.lane, &Int::Known(*first));
                    w.when(guard.as_ref(), |w| {
                        let sum = w.f32("ld.shared.f32", [mem(&result, first * 4)]);
                        let stored = self.finish(w, [&image, &channel, &y, &column], sum);
                        if outcome.is_ok() {
                            outcome = stored;
                        }
                    });
                }
            });
            w.emit("add.s32", [(&result).into(), (&result).into(), (pitch * 4).into()]);
        });
        outcome
    }

    /// Applies the epilogue to one element.
    fn finish(&self, w: &mut Writer, at: [&Int; 4], sum: Operand) -> Result<(), CodegenError> {
        let indices: Vec<Int> = at.into_iter().cloned().collect();
        let address = |w: &mut Writer, (base, strides, dtype): &(Name, Vec<Expr>, DType)| {
            let at = sweep::offset(w, &indices, strides);
            w.at(base, &at, dtype.bytes() as u32)
        };
        let mut values = vec![Scalar::f32(sum)];
        for extra in &self.tensors[1..] {
            let address = address(w, extra);
            values.push(w.load(extra.2, &address, 0));
        }
        let value = w.program(&self.conv.epilogue, &values, self.tensors[0].2)?;
        let address = address(w, &self.tensors[0]);
        w.store(&value, &address, 0);
        Ok(())
    }
}
