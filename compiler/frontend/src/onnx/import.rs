//! The state of an import, shared by the files of the importer.

use super::functions::Functions;
use super::lowering::Lowering;
use super::proto::{GraphProto, ModelProto, TensorProto};
use super::scope::Scopes;
use crate::tensor_graph::ValueId;
use std::collections::HashMap;
use std::path::Path;

/// The state of an import: scopes of names, and the graph under construction. `nodes` lowers nodes;
/// `mod` binds inputs and outputs of the model.
pub(super) struct Import<'m> {
    pub(super) graph: &'m GraphProto,
    pub(super) folder: Option<&'m Path>,
    pub(super) functions: Functions<'m>,
    pub(super) lowering: Lowering,
    pub(super) scopes: Scopes<'m>,
    /// The value of each decoded initialiser.
    pub(super) literals: HashMap<*const TensorProto, ValueId>,
    /// Number of nodes lowered so far, counting a node of a function or a loop body each time.
    pub(super) nodes: usize,
}

impl<'m> Import<'m> {
    pub(super) fn new(model: &'m ModelProto, graph: &'m GraphProto, folder: Option<&'m Path>) -> Import<'m> {
        let (functions, scopes) = (Functions::of(model), Scopes::new(&model.opset_import));
        Import { graph, folder, functions, lowering: Lowering::default(), scopes, literals: HashMap::new(), nodes: 0 }
    }
}
