//! Speculative computation: results that may be discarded at run time.
//!
//! If the condition of an `If` is known only at run time, both branches are computed. If the
//! condition of a `Loop` is known only at run time, the iterations after its end are computed too.
//! An invalid value in a discarded result (an index outside its axis, an integer divided by zero)
//! is not an error of the request, because the condition guards against it. So operators that may
//! fail an invocation are replaced by versions that continue with a valid value.

use super::error::LowerResult;
use super::lowering::Lowering;
use crate::nest::NestBuilder;
use crate::program::ProgramBuilder;
use crate::size::elements;
use crate::tensor_graph::{Op, PointArg, PointOp, PointProgram, ValueId};
use atoll_kgraph::DType;

impl Lowering {
    /// From here on, operators are lowered speculatively. Returns the argument for
    /// [`Lowering::end_speculation`].
    pub(super) fn begin_speculation(&mut self) -> bool {
        std::mem::replace(&mut self.speculative, true)
    }

    /// Ends the speculation; `outer` is the value that [`Lowering::begin_speculation`] returned.
    pub(super) fn end_speculation(&mut self, outer: bool) {
        self.speculative = outer;
    }

    /// The same operator, in a version that never fails the invocation.
    pub(super) fn without_refusals(
        &mut self,
        name: &str,
        op: Op,
        mut inputs: Vec<ValueId>,
    ) -> LowerResult<(Op, Vec<ValueId>)> {
        let op = match op {
            Op::Nest(mut nest) => {
                nest.drop_refusals();
                Op::Nest(nest)
            }
            Op::Pointwise(program) if program.may_divide_by_zero() => Op::Pointwise(with_nonzero_divisors(&program)),
            Op::Gather { axis } if !self.is_constant(inputs[1]) => {
                inputs[1] = self.indices_inside(name, inputs[0], axis, inputs[1])?;
                Op::Gather { axis }
            }
            other => other,
        };
        Ok((op, inputs))
    }

    /// Replaces indices outside an axis by 0.
    fn indices_inside(&mut self, name: &str, data: ValueId, axis: usize, indices: ValueId) -> LowerResult<ValueId> {
        let (dtype, shape, extent) =
            (self.dtype(indices), self.shape(indices).to_vec(), self.shape(data)[axis].clone());
        let mut nest = NestBuilder::new("indices_inside", vec![elements(&shape)]);
        let at = nest.point()[0].clone();
        let index = nest.load(0, dtype, &at);
        let inside = nest.checked_index(&index, dtype, &extent);
        nest.store(0, &at, &inside);
        self.emit_one(&format!("{name}.inside"), Op::Nest(nest.finish()), &[indices], DType::I32, shape)
    }
}

/// The program with each divisor of zero replaced by 1.
fn with_nonzero_divisors(program: &PointProgram) -> PointProgram {
    let mut built = ProgramBuilder::default();
    let mut moved: Vec<PointArg> = Vec::with_capacity(program.steps.len());
    for step in &program.steps {
        let place = |arg: &PointArg| match arg {
            PointArg::Step(index) => moved[*index as usize],
            other => *other,
        };
        let mut args: Vec<PointArg> = step.args.iter().map(place).collect();
        if step.may_divide_by_zero() {
            let is_zero = built.step(PointOp::Equal, step.ty, &[args[1], PointArg::Const(0.0)]);
            args[1] = built.step(PointOp::Where, step.ty, &[is_zero, PointArg::Const(1.0), args[1]]);
        }
        moved.push(built.step(step.op, step.ty, &args));
    }
    built.finish()
}
