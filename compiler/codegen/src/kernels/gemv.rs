//! Products with few rows: every thread computes whole columns; the warps of a block divide k among
//! them, and add their partial sums through shared memory.

use crate::error::CodegenError;
use crate::product::{Epilogue, Matrix, Product, Source};
use crate::sweep;
use crate::target::TargetDescription;
use crate::writer::{Int, LANES, Writer, Written, mem};
use atoll_kgraph::{DType, Expr};
use atoll_ptx::{Name, Operand, ScalarType};

/// Largest number of rows for which this kernel is faster.
pub(crate) const ROWS_MAX: i64 = 8;
/// Products per iteration of the inner loop.
const UNROLL: u32 = 4;

/// Writes the kernel for at most `rows` rows; `b` must be a matrix with contiguous rows.
pub(crate) fn gemv(target: &TargetDescription, mut product: Product<'_>, rows: u32) -> Result<Written, CodegenError> {
    product.check()?;
    product.collapse();
    let Source::Matrix(b) = product.b.clone() else {
        return Err(CodegenError::inconsistent("a matrix-vector product has windows as its second operand"));
    };
    let parts = (target.gemv_accumulators / rows).clamp(1, 4);
    let warps = target.gemm.warps;
    let mut w = Writer::new("gemv");
    let (lane, warp) = (w.special("%tid.x"), w.special("%tid.y"));
    let (x, y) = (w.special("%ctaid.x"), w.special("%ctaid.y"));
    let batch = sweep::unravel(&mut w, &y, &product.batch);
    let first_column = w.mul(&x, &(parts * LANES).into());
    let column_count = w.size(&product.column_count());
    let ragged = product.column_count().as_const().is_none_or(|n| n % i64::from(parts * LANES) != 0);

    // The range of k of this warp.
    let share = w.size(&product.depth.clone().ceil_div(i64::from(warps)));
    let depth = w.size(&product.depth);
    let from = w.mul(&warp, &share);
    let from = w.min(&from, &depth);
    let to = w.add(&from, &share);
    let to = w.min(&to, &depth);

    let mut sums: Vec<Vec<Name>> = Vec::new();
    for _ in 0..rows {
        sums.push((0..parts).map(|_| w.f32_variable(0.0)).collect());
    }
    let columns: Vec<Int> = (0..parts)
        .map(|part| {
            let first = w.add(&first_column, &(part * LANES).into());
            w.add(&first, &lane)
        })
        .collect();
    let guards: Vec<Option<Name>> =
        columns.iter().map(|column| ragged.then(|| w.compare("lt.u32", column, &column_count))).collect();
    let operands = Operands::new(&mut w, &product, &b, &batch, &from, &first_column, rows);
    let count = w.sub(&to, &from);
    let (rounds, rest) = w.div_rem(&count, &UNROLL.into());
    w.count(&Int::Known(0), &rounds, &Int::Known(1), |w, _| operands.round(w, &sums, &guards, UNROLL));
    w.count(&Int::Known(0), &rest, &Int::Known(1), |w, _| operands.round(w, &sums, &guards, 1));

    add_partial_sums(&mut w, &product, &batch, &sums, &columns, &guards, warps)?;
    let grid_x = product.column_count().ceil_div(i64::from(parts * LANES));
    Ok(w.finish([LANES, warps, 1], [grid_x, product.batch_count(), Expr::Const(1)]))
}

/// The addresses that a warp reads.
struct Operands {
    a: Vec<Name>,
    a_step: Int,
    a_dtype: DType,
    b: Name,
    b_step: Int,
    b_dtype: DType,
}

impl Operands {
    fn new(
        w: &mut Writer,
        product: &Product<'_>,
        b: &Matrix,
        batch: &[Int],
        k: &Int,
        first_column: &Int,
        rows: u32,
    ) -> Operands {
        let a = &product.a;
        let (row, a_step, b_step) = (w.size(&a.row), w.size(&a.column), w.size(&b.row));
        let start = sweep::offset(w, batch, &a.batch);
        let start = w.mad(k, &a_step, &start);
        let base = w.base(&a.tensor);
        let first = w.at(&base, &start, a.tensor.element_bytes());
        let lines = (0..rows)
            .map(|i| {
                let index = row_index(w, product, i);
                let down = w.mul(&row, &index);
                let line = w.at(&first, &down, a.tensor.element_bytes());
                w.cursor(&line)
            })
            .collect();
        let start = sweep::offset(w, batch, &b.batch);
        let start = w.mad(k, &b_step, &start);
        let start = w.add(&start, first_column);
        let base = w.base(&b.tensor);
        let line = w.at(&base, &start, b.tensor.element_bytes());
        let lane = w.special("%tid.x");
        let address = w.at(&line, &lane, b.tensor.element_bytes());
        Operands { a: lines, a_step, a_dtype: a.tensor.dtype, b: w.cursor(&address), b_step, b_dtype: b.tensor.dtype }
    }

    /// Adds `count` products to every accumulator.
    fn round(&self, w: &mut Writer, sums: &[Vec<Name>], guards: &[Option<Name>], count: u32) {
        let (a_bytes, b_bytes) = (self.a_dtype.bytes() as u32, self.b_dtype.bytes() as u32);
        for k in 0..count {
            let down = w.mul(&self.b_step, &k.into());
            let line = w.at(&self.b, &down, b_bytes);
            let columns: Vec<Operand> = guards
                .iter()
                .enumerate()
                .map(|(part, guard)| {
                    let offset = part as i64 * i64::from(LANES * b_bytes);
                    super::gemm::load_guarded(w, self.b_dtype, guard.as_ref(), &line, offset)
                })
                .collect();
            for (row, sums) in self.a.iter().zip(sums) {
                let along = w.mul(&self.a_step, &k.into());
                let (address, offset) = match along.known() {
                    Some(along) => (row.clone(), along * i64::from(a_bytes)),
                    None => (w.at(row, &along, a_bytes), 0),
                };
                let factor = w.load_f32(self.a_dtype, &address, offset);
                for (sum, column) in sums.iter().zip(&columns) {
                    w.emit("fma.rn.f32", [sum.into(), factor.clone(), column.clone(), sum.into()]);
                }
            }
        }
        let down = w.mul(&self.b_step, &count.into());
        w.advance(&self.b, &down, b_bytes);
        let along = w.mul(&self.a_step, &count.into());
        for row in &self.a {
            w.advance(row, &along, a_bytes);
        }
    }
}

/// The row of accumulators `i`. If there are fewer rows, the surplus accumulators compute the last
/// row again; their sums are not stored.
fn row_index(w: &mut Writer, product: &Product<'_>, i: u32) -> Int {
    if i == 0 || product.rows.as_const().is_some() {
        return i.into();
    }
    let count = w.size(&product.rows);
    let last = w.sub(&count, &1.into());
    w.min(&last, &i.into())
}

/// Adds the warps' partial sums and stores them; the results are divided among the warps.
fn add_partial_sums(
    w: &mut Writer,
    product: &Product<'_>,
    batch: &[Int],
    sums: &[Vec<Name>],
    columns: &[Int],
    guards: &[Option<Name>],
    warps: u32,
) -> Result<(), CodegenError> {
    let (rows, parts) = (sums.len() as u32, columns.len() as u32);
    let line_bytes = LANES * 4;
    let warp_bytes = rows * parts * line_bytes;
    let shared = w.shared("partial", warps * warp_bytes);
    let (lane, warp) = (w.special("%tid.x"), w.special("%tid.y"));
    let mine = w.mad(&lane, &4.into(), &Int::Reg(shared));
    let own = w.mad(&warp, &warp_bytes.into(), &mine);
    let (mine, own) = (w.variable(&mine), w.variable(&own));
    for (row, sums) in sums.iter().enumerate() {
        for (part, sum) in sums.iter().enumerate() {
            let at = (row as u32 * parts + part as u32) * line_bytes;
            w.emit("st.shared.f32", [mem(&own, at.into()), sum.into()]);
        }
    }
    w.barrier();
    let mut outcome = Ok(());
    for line in 0..rows * parts {
        let (row, part) = (line / parts, line % parts);
        let is_mine = w.compare("eq.u32", &warp, &(line % warps).into());
        let guard = w.both(Some(&is_mine), guards[part as usize].as_ref());
        let is_there = (row > 0 && product.rows.as_const().is_none()).then(|| {
            let count = w.size(&product.rows);
            w.compare("gt.u32", &count, &row.into())
        });
        let guard = w.both(guard.as_ref(), is_there.as_ref());
        w.when(guard.as_ref(), |w| {
            let mut sum = w.f32("ld.shared.f32", [mem(&mine, (line * line_bytes).into())]);
            for other in 1..warps {
                let term = w.f32("ld.shared.f32", [mem(&mine, (line * line_bytes + other * warp_bytes).into())]);
                sum = w.make(ScalarType::F32, "add.f32", [sum, term]).into();
            }
            let epilogue = Epilogue::new(w, product, batch, &row.into(), &columns[part as usize]);
            if outcome.is_ok() {
                outcome = epilogue.store(w, 0, &sum);
            }
        });
    }
    outcome
}
