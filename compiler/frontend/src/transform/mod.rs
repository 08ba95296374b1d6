//! Passes over the tensor graph, one file and one verb each. Their order is [`PASSES`].
//!
//! A pass may leave dead nodes: [`transform`] removes them and verifies the graph after each pass.
//! No pass keeps state, and none changes the graph's inputs, outputs or symbols.

mod eliminate_dead;
mod fold_affine;
mod fold_into_table;
mod fuse_epilogue;
mod fuse_layer_norm;
mod fuse_pointwise;
mod fuse_square;
mod gather_one_hot;
mod hoist_pointwise;
mod merge_equal;
mod merge_moves;
mod uses;

pub use eliminate_dead::eliminate_dead;
pub use fold_affine::fold_affine;
pub use fold_into_table::fold_into_table;
pub use fuse_epilogue::fuse_epilogue;
pub use fuse_layer_norm::fuse_layer_norm;
pub use fuse_pointwise::fuse_pointwise;
pub use fuse_square::fuse_square;
pub use gather_one_hot::gather_one_hot;
pub use hoist_pointwise::hoist_pointwise;
pub use merge_equal::merge_equal;
pub use merge_moves::merge_moves;

use crate::control::Body;
use crate::tensor_graph::{Op, TensorGraph};
use crate::verify::VerifyErrors;

/// A named pass.
pub struct Pass {
    /// Its verb.
    pub name: &'static str,
    /// Runs the pass.
    pub run: fn(&mut TensorGraph),
}

/// All passes in order.
pub static PASSES: &[Pass] = &[
    Pass { name: "merge_equal", run: merge_equal },
    Pass { name: "merge_moves", run: merge_moves },
    // Before the passes that look for a pointwise node directly after a convolution: 1-D
    // convolutions have a reshape there.
    Pass { name: "hoist_pointwise", run: hoist_pointwise },
    // These three passes match single steps, so they run before steps are fused.
    Pass { name: "fold_affine", run: fold_affine },
    Pass { name: "fuse_layer_norm", run: fuse_layer_norm },
    Pass { name: "fuse_square", run: fuse_square },
    // Fuses chains first: a product read by two pointwise nodes (`x * sigmoid(x)`) is then read by
    // one, and that one fits into an epilogue.
    Pass { name: "fuse_pointwise", run: fuse_pointwise },
    Pass { name: "gather_one_hot", run: gather_one_hot },
    Pass { name: "fold_into_table", run: fold_into_table },
    Pass { name: "hoist_pointwise", run: hoist_pointwise },
    Pass { name: "fuse_epilogue", run: fuse_epilogue },
    // Between two 1-D convolutions there are now two reshapes that cancel each other.
    Pass { name: "merge_moves", run: merge_moves },
];

/// A pass made the graph invalid: a bug in Atoll.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error, please report: after pass {pass} the graph is not valid: {faults}")]
pub struct TransformError {
    /// The pass.
    pub pass: &'static str,
    /// The violations found.
    pub faults: VerifyErrors,
}

/// Runs all passes.
pub fn transform(graph: TensorGraph) -> Result<TensorGraph, TransformError> {
    transform_with(graph, |_, _| {})
}

/// As [`transform`]; calls `after` with the graph after each pass, for `--emit graph`.
pub fn transform_with(
    mut graph: TensorGraph,
    mut after: impl FnMut(&'static str, &TensorGraph),
) -> Result<TensorGraph, TransformError> {
    transform_bodies(&mut graph)?;
    for pass in PASSES {
        (pass.run)(&mut graph);
        eliminate_dead(&mut graph);
        graph.verify().map_err(|faults| TransformError { pass: pass.name, faults })?;
        after(pass.name, &graph);
    }
    Ok(graph)
}

/// Runs all passes on the bodies of all nodes. Passes on the graph itself do not change bodies.
fn transform_bodies(graph: &mut TensorGraph) -> Result<(), TransformError> {
    let transformed = |body: &mut Body<TensorGraph>| -> Result<(), TransformError> {
        *body = Body::new(transform(TensorGraph::clone(body))?);
        Ok(())
    };
    for node in &mut graph.nodes {
        match &mut node.op {
            Op::If { then, otherwise } => {
                transformed(then)?;
                transformed(otherwise)?;
            }
            Op::Loop { body, .. } => transformed(body)?,
            _ => {}
        }
    }
    Ok(())
}
