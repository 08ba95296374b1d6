//! Model-local functions: a node that calls one is replaced by the nodes of its body.
//!
//! A function has its own names, attributes and operator sets. A model-local function takes
//! precedence over an operator of the same name.

use super::call::Call;
use super::error::LowerError;
use super::failure::Failure;
use super::import::Import;
use super::options::{check_opset, is_default_domain};
use super::proto::{FunctionProto, ModelProto, NodeProto};
use super::scope::{Body, Frame, Item};
use std::collections::HashMap;

/// Domain, name and overload.
type Key<'m> = (&'m str, &'m str, &'m str);

/// The functions of a model.
pub(super) struct Functions<'m> {
    by_name: HashMap<Key<'m>, &'m FunctionProto>,
}

impl<'m> Functions<'m> {
    pub(super) fn of(model: &'m ModelProto) -> Functions<'m> {
        let key = |f: &'m FunctionProto| (domain(&f.domain), f.name.as_str(), f.overload.as_str());
        Functions { by_name: model.functions.iter().map(|f| (key(f), f)).collect() }
    }

    /// The function that a node calls, if it calls one.
    pub(super) fn find(&self, node: &NodeProto) -> Option<&'m FunctionProto> {
        self.by_name.get(&(domain(&node.domain), node.op_type.as_str(), node.overload.as_str())).copied()
    }
}

fn domain(name: &str) -> &str {
    if is_default_domain(name) { "" } else { name }
}

/// Lowers the body of a function in place of the node that calls it.
pub(super) fn inline<'m>(
    import: &mut Import<'m>,
    function: &'m FunctionProto,
    call: &Call<'m>,
) -> Result<Vec<Item>, Failure> {
    if import.scopes.is_inside(function) {
        return Err(LowerError::Invalid(format!("function {} calls itself", function.name)).into());
    }
    let defaults = function.attribute_proto.iter().map(|a| (a.name.as_str(), a));
    let frame = Frame { function, attributes: defaults.chain(call.attributes.iter().copied()).collect() };
    if let Some(opset) = function.opset_import.iter().find(|o| is_default_domain(&o.domain)) {
        check_opset(opset.version, &function.node)?;
    }
    if call.items.len() > function.input.len() {
        let reason = format!("it passes {} operands to a function of {}", call.items.len(), function.input.len());
        return Err(LowerError::Invalid(reason).into());
    }
    let mut items = call.items.clone();
    items.resize(function.input.len(), Item::Nothing);
    import.lower_body(&Body::of_function(function)?, &call.name, items, Some(frame))
}
