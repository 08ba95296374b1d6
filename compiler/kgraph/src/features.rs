//! The features of a graph and its code that format 1 does not have.

use crate::graph::{BufferKind, DType, KernelGraph, NodeKind};
use crate::segment::Segment;
use crate::target::{Argument, TargetImage};
use std::collections::BTreeSet;
use std::fmt;

/// A feature that format 2 introduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Feature {
    /// [`crate::BatchAxis`]
    BatchAxis,
    /// [`NodeKind::Fill`]
    Fill,
    /// A copy with a nonzero offset.
    CopyOffset,
    /// A fill or copy by a kernel, in the device queue.
    QueuedTransfer,
    /// [`BufferKind::State`]
    State,
    /// [`crate::ReadBack`]
    ReadBack,
    /// [`Segment::If`]
    If,
    /// [`Segment::Loop`]
    Loop,
    /// [`crate::LaunchVariant`]
    Variants,
    /// [`Argument::Bytes`]
    BytesArgument,
    /// [`crate::PackedConstant`]
    PackedConstants,
    /// [`crate::InputElement`]
    InputElements,
    /// [`crate::Condition`]
    Conditions,
    /// [`crate::Check`]
    Checks,
    /// [`crate::strings`]
    Strings,
}

impl Feature {
    /// The name in messages and listings.
    pub fn name(self) -> &'static str {
        match self {
            Feature::BatchAxis => "batch axis",
            Feature::Fill => "fill nodes",
            Feature::CopyOffset => "copies with offsets",
            Feature::QueuedTransfer => "copies and fills by kernels",
            Feature::State => "state buffers",
            Feature::ReadBack => "sizes read back from the device",
            Feature::If => "if segments",
            Feature::Loop => "loop segments",
            Feature::Variants => "kernel variants",
            Feature::BytesArgument => "arguments that are bytes",
            Feature::PackedConstants => "constants packed for the target",
            Feature::InputElements => "sizes that are elements of an input",
            Feature::Conditions => "conditions on sizes",
            Feature::Checks => "errors raised by kernels",
            Feature::Strings => "strings",
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The features of a graph, independent of targets.
pub fn of_graph(graph: &KernelGraph) -> BTreeSet<Feature> {
    let mut found = BTreeSet::new();
    found.extend(graph.batch.is_some().then_some(Feature::BatchAxis));
    found.extend((!graph.read_backs.is_empty()).then_some(Feature::ReadBack));
    found.extend((!graph.elements.is_empty()).then_some(Feature::InputElements));
    found.extend((!graph.conditions.is_empty()).then_some(Feature::Conditions));
    let has_state = graph.buffers_of(BufferKind::State).next().is_some()
        || !graph.plan.states.is_empty()
        || graph.plan.state_bytes.is_some()
        || !graph.session.is_empty();
    found.extend(has_state.then_some(Feature::State));
    found.extend((!graph.checks.is_empty()).then_some(Feature::Checks));
    let has_strings = !graph.strings.is_empty() || graph.buffers.iter().any(|buffer| buffer.dtype == DType::Strings);
    found.extend(has_strings.then_some(Feature::Strings));
    for node in &graph.nodes {
        match &node.kind {
            NodeKind::Fill { .. } => found.extend([Feature::Fill]),
            NodeKind::Copy { from_offset, to_offset, .. }
                if [from_offset, to_offset].iter().any(|offset| offset.as_const() != Some(0)) =>
            {
                found.extend([Feature::CopyOffset]);
            }
            NodeKind::Kernel | NodeKind::Copy { .. } => {}
        }
    }
    of_segments(&graph.segments, &mut found);
    found
}

fn of_segments(segments: &[Segment], found: &mut BTreeSet<Feature>) {
    for segment in segments {
        match segment {
            Segment::Nodes { .. } => {}
            Segment::If { then, otherwise, .. } => {
                found.insert(Feature::If);
                of_segments(then, found);
                of_segments(otherwise, found);
            }
            Segment::Loop { body, .. } => {
                found.insert(Feature::Loop);
                of_segments(body, found);
            }
        }
    }
}

/// The features of a valid target.
pub fn of_target(graph: &KernelGraph, target: &TargetImage) -> BTreeSet<Feature> {
    let mut found = BTreeSet::new();
    found.extend((!target.packed.is_empty()).then_some(Feature::PackedConstants));
    for (node, spec) in graph.nodes.iter().zip(&target.launches) {
        let Some(spec) = spec else { continue };
        found.extend((!matches!(node.kind, NodeKind::Kernel)).then_some(Feature::QueuedTransfer));
        found.extend((!spec.variants.is_empty()).then_some(Feature::Variants));
        let has_bytes =
            spec.all().any(|launch| launch.args.iter().any(|argument| matches!(argument, Argument::Bytes { .. })));
        found.extend(has_bytes.then_some(Feature::BytesArgument));
    }
    found
}
