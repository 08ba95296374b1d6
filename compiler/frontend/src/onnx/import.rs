//! The state that files of the importer share.

use super::functions::Functions;
use super::lowering::Lowering;
use super::proto::{GraphProto, ModelProto, TensorProto};
use super::scope::Scopes;
use crate::tensor_graph::ValueId;
use std::collections::HashMap;
use std::path::Path;

/// The state of an import: where names stand for what, and the graph under construction. What
/// happens to nodes is in `nodes`, to inputs and outputs of the model in `mod`.
pub(super) struct Import<'m> {
    pub(super) graph: &'m GraphProto,
    pub(super) folder: Option<&'m Path>,
    pub(super) functions: Functions<'m>,
    pub(super) lowering: Lowering,
    pub(super) scopes: Scopes<'m>,
    /// Value of each initialiser that was decoded.
    pub(super) literals: HashMap<*const TensorProto, ValueId>,
    /// Nodes of the model lowered so far, each as often as it was.
    pub(super) nodes: usize,
}

impl<'m> Import<'m> {
    pub(super) fn new(model: &'m ModelProto, graph: &'m GraphProto, folder: Option<&'m Path>) -> Import<'m> {
        let (functions, scopes) = (Functions::of(model), Scopes::new(&model.opset_import));
        Import { graph, folder, functions, lowering: Lowering::default(), scopes, literals: HashMap::new(), nodes: 0 }
    }
}
