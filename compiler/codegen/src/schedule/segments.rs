//! Schedules control flow: segments, and the copies at their borders.

use super::flow::Item;
use super::{Scheduler, Tensor, WorkKind};
use crate::error::CodegenError;
use atoll_frontend::nest::{NestArg, NestBuilder};
use atoll_frontend::size::elements;
use atoll_frontend::tensor_graph::{Op, PointProgram, ValueId};
use atoll_kgraph::{BufferKind, DType, Expr, NodeId, Scalar, Segment};

impl Scheduler<'_> {
    /// Schedules items. Returns the segments of their nodes.
    pub(super) fn items(&mut self, items: &[Item]) -> Result<Vec<Segment>, CodegenError> {
        let mut segments = Vec::new();
        let mut first = self.nodes.len();
        for item in items {
            match item {
                Item::Node(index) => {
                    let node = &self.graph.nodes[*index];
                    self.node(node).map_err(|e| e.at(&node.name))?;
                }
                Item::Copy { name, from, to } => self.copy_value(name, *from, *to).map_err(|e| e.at(name))?,
                Item::Row { name, row, number, to } => self.row(name, *row, *number, *to).map_err(|e| e.at(name))?,
                Item::If { name, condition, then, otherwise } => {
                    let condition = self.scalar(name, *condition).map_err(|e| e.at(name))?;
                    self.close(&mut segments, first);
                    let (then, otherwise) = (self.inner(then)?, self.inner(otherwise)?);
                    segments.push(Segment::If { condition, then, otherwise });
                    first = self.nodes.len();
                }
                Item::Loop { name, trips, count, condition, trips_max, body } => {
                    let scalar = |this: &mut Self, id: &Option<ValueId>| {
                        id.map(|id| this.scalar(name, id).map_err(|e| e.at(name))).transpose()
                    };
                    let (count, condition) = (scalar(self, count)?, scalar(self, condition)?);
                    self.close(&mut segments, first);
                    let body = self.inner(body)?;
                    let (trips, trips_max) = (trips.clone(), *trips_max);
                    segments.push(Segment::Loop { trips, count, condition, trips_max, body });
                    first = self.nodes.len();
                }
            }
        }
        self.close(&mut segments, first);
        Ok(segments)
    }

    /// Schedules items that run conditionally or repeatedly. Later items do not use the dense
    /// copies that they make.
    fn inner(&mut self, items: &[Item]) -> Result<Vec<Segment>, CodegenError> {
        let copies = self.storage.copies().clone();
        let segments = self.items(items);
        *self.storage.copies() = copies;
        segments
    }

    /// Appends the segment of the nodes from `first` on, if there are any.
    pub(super) fn close(&self, segments: &mut Vec<Segment>, first: usize) {
        if first < self.nodes.len() {
            segments.push(Segment::Nodes { first: NodeId(first as u32), end: NodeId(self.nodes.len() as u32) });
        }
    }

    /// The place of a scalar that the host reads. It is copied if it is not in the invocation's
    /// memory.
    fn scalar(&mut self, name: &str, value: ValueId) -> Result<Scalar, CodegenError> {
        let tensor = self.tensor(value)?;
        let dtype = tensor.dtype;
        let is_here =
            matches!(self.storage.kind(tensor.buffer), BufferKind::Input | BufferKind::Output | BufferKind::Temp);
        if let Some(offset) = tensor.offset.as_const().filter(|_| is_here) {
            return Ok(Scalar { buffer: tensor.buffer, offset: offset as u64, dtype });
        }
        let name = format!("{name}/read{}", self.nodes.len());
        let copy = Tensor {
            buffer: self.storage.temporary(&name, dtype, &[]),
            offset: Expr::Const(0),
            dtype,
            shape: vec![],
            within: None,
        };
        let scalar = Scalar { buffer: copy.buffer, offset: 0, dtype };
        self.push_kernel(&name, WorkKind::Op(Op::Pointwise(PointProgram::default())), vec![tensor], vec![copy]);
        Ok(scalar)
    }

    /// Copies a value to the place of another value.
    fn copy_value(&mut self, name: &str, from: ValueId, to: ValueId) -> Result<(), CodegenError> {
        let (from, to) = (self.view(from)?, self.place_to_write(to)?);
        self.push_kernel(name, WorkKind::Op(Op::Pointwise(PointProgram::default())), vec![from], vec![to]);
        Ok(())
    }

    /// Copies a value to the row of `to` whose index is the value of `number`.
    fn row(&mut self, name: &str, row: ValueId, number: ValueId, to: ValueId) -> Result<(), CodegenError> {
        let inputs = vec![self.tensor(row)?, self.tensor(number)?];
        let to = self.place_to_write(to)?;
        let count = elements(&inputs[0].shape);
        let mut nest = NestBuilder::new("row", vec![count.clone()]);
        let at = nest.point()[0].clone();
        let number = nest.load(1, DType::I64, &NestArg::from(0));
        let number = nest.cast(&number, DType::I32);
        let first = nest.mul(&number, &NestArg::from(&count));
        let place = nest.add(&first, &at);
        let element = nest.load(0, inputs[0].dtype, &at);
        nest.store(0, &place, &element);
        self.push_kernel(name, WorkKind::Op(Op::Nest(nest.finish())), inputs, vec![to]);
        Ok(())
    }

    fn place_to_write(&mut self, value: ValueId) -> Result<Tensor, CodegenError> {
        match self.view(value)? {
            dense @ Tensor { within: None, .. } => Ok(dense),
            Tensor { .. } => {
                let reason = "a state that grows is the result of a branch or a loop; only a Concat outside of them \
                              can extend it";
                Err(CodegenError::unsupported(reason))
            }
        }
    }
}
