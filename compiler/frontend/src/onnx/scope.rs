//! Scopes: what names refer to in the graph, in its subgraphs, and in functions.

use super::error::ImportError;
use super::options::{NODES_MAX, is_default_domain};
use super::order;
use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto};
use super::read;
use crate::tensor_graph::ValueId;
use std::collections::{HashMap, HashSet};

/// Largest nesting depth of scopes.
const SCOPES_MAX: usize = 64;

/// The value that a name refers to during lowering.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// A tensor.
    Tensor(ValueId),
    /// A list of tensors whose length is known at compile time. It is not represented in the tensor
    /// graph.
    Sequence(Vec<ValueId>),
    /// An empty optional, or an omitted operand. An optional with an element is represented by that
    /// element.
    Nothing,
}

/// The nodes of a graph or function that its outputs need.
pub(super) struct Body<'m> {
    pub(super) nodes: &'m [NodeProto],
    /// Indices of the needed nodes, in topological order.
    pub(super) order: Vec<usize>,
    pub(super) inputs: Vec<&'m str>,
    pub(super) outputs: Vec<&'m str>,
    /// Names that are read by a needed node or an output.
    pub(super) consumed: HashSet<&'m str>,
    pub(super) initializers: HashMap<&'m str, &'m TensorProto>,
}

impl<'m> Body<'m> {
    pub(super) fn of_graph(graph: &'m GraphProto) -> Result<Body<'m>, ImportError> {
        if let Some(sparse) = graph.sparse_initializer.first() {
            let what = sparse.values.as_ref().map_or_else(String::new, |t| t.name.clone());
            return Err(ImportError::DType { what: format!("initializer {what}"), dtype: "sparse".into() });
        }
        let inputs = graph.input.iter().map(|i| i.name.as_str()).collect();
        let outputs = graph.output.iter().map(|o| o.name.as_str()).collect();
        Body::new(&graph.node, inputs, outputs, graph.initializer.iter().map(|t| (t.name.as_str(), t)).collect())
    }

    pub(super) fn of_function(function: &'m FunctionProto) -> Result<Body<'m>, ImportError> {
        let inputs = function.input.iter().map(String::as_str).collect();
        Body::new(&function.node, inputs, function.output.iter().map(String::as_str).collect(), HashMap::new())
    }

    fn new(
        nodes: &'m [NodeProto],
        inputs: Vec<&'m str>,
        outputs: Vec<&'m str>,
        initializers: HashMap<&'m str, &'m TensorProto>,
    ) -> Result<Body<'m>, ImportError> {
        if nodes.len() > NODES_MAX {
            return Err(read::too_large("the number of nodes", nodes.len().to_string(), NODES_MAX.to_string()));
        }
        let outer = initializers.keys().chain(&inputs).copied().collect();
        let order = order::needed_nodes(nodes, &outputs, &outer)?;
        let consumed =
            order.iter().flat_map(|index| order::reads(&nodes[*index])).chain(outputs.iter().copied()).collect();
        Ok(Body { nodes, order, inputs, outputs, consumed, initializers })
    }
}

/// A function that is being inlined.
pub(super) struct Frame<'m> {
    pub(super) function: &'m FunctionProto,
    /// Its attributes, as the calling node gives them, or their defaults.
    pub(super) attributes: HashMap<&'m str, &'m AttributeProto>,
}

/// The names of one graph or function.
#[derive(Default)]
pub(super) struct Scope<'m> {
    pub(super) values: HashMap<&'m str, Item>,
    pub(super) initializers: HashMap<&'m str, &'m TensorProto>,
    /// Prefix of the names of its nodes.
    pub(super) prefix: String,
    /// Set if this is the body of a function. A function does not see the names of the graph that
    /// calls it.
    pub(super) frame: Option<Frame<'m>>,
}

/// The result of looking up a name.
pub(super) enum Found<'m> {
    Item(Item),
    Initializer(&'m TensorProto),
}

/// The scopes around the current node, innermost last.
pub(super) struct Scopes<'m> {
    stack: Vec<Scope<'m>>,
    opsets: &'m [OperatorSetIdProto],
}

impl<'m> Scopes<'m> {
    /// No scopes; `opsets` are the operator sets of the model.
    pub(super) fn new(opsets: &'m [OperatorSetIdProto]) -> Scopes<'m> {
        Scopes { stack: Vec::new(), opsets }
    }

    pub(super) fn enter(&mut self, scope: Scope<'m>) -> Result<(), ImportError> {
        if self.stack.len() >= SCOPES_MAX {
            let found = format!("more than {SCOPES_MAX}");
            return Err(read::too_large("the nesting depth of subgraphs and functions", found, SCOPES_MAX.to_string()));
        }
        self.stack.push(scope);
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.stack.pop();
    }

    pub(super) fn define(&mut self, name: &'m str, item: Item) -> Option<Item> {
        self.stack.last_mut().and_then(|scope| scope.values.insert(name, item))
    }

    pub(super) fn prefix(&self) -> &str {
        self.stack.last().map_or("", |scope| &scope.prefix)
    }

    pub(super) fn find(&self, name: &str) -> Option<Found<'m>> {
        for scope in self.stack.iter().rev() {
            if let Some(item) = scope.values.get(name) {
                return Some(Found::Item(item.clone()));
            }
            if let Some(tensor) = scope.initializers.get(name) {
                return Some(Found::Initializer(tensor));
            }
            if scope.frame.is_some() {
                break;
            }
        }
        None
    }

    fn frames(&self) -> impl Iterator<Item = &Frame<'m>> {
        self.stack.iter().rev().filter_map(|scope| scope.frame.as_ref())
    }

    /// Whether the function is already being inlined: it calls itself.
    pub(super) fn is_inside(&self, function: &FunctionProto) -> bool {
        self.frames().any(|frame| std::ptr::eq(frame.function, function))
    }

    /// A node's attributes by name. In a function, an attribute may refer to one of the calling
    /// node, which may omit it.
    pub(super) fn attributes(&self, node: &'m NodeProto) -> Vec<(&'m str, &'m AttributeProto)> {
        let resolve = |attribute: &'m AttributeProto| match attribute.ref_attr_name.as_str() {
            "" => Some(attribute),
            name => self.frames().next().and_then(|frame| frame.attributes.get(name).copied()),
        };
        node.attribute.iter().filter_map(|a| Some((a.name.as_str(), resolve(a)?))).collect()
    }

    /// The version of a domain's operators in the current scope. A function has its own operator
    /// sets; the model's apply to domains that it does not name.
    pub(super) fn opset(&self, domain: &str) -> Option<i64> {
        let is_it = |other: &str| other == domain || (is_default_domain(other) && is_default_domain(domain));
        let of = |opsets: &[OperatorSetIdProto]| opsets.iter().filter(|o| is_it(&o.domain)).map(|o| o.version).max();
        self.frames().next().and_then(|frame| of(&frame.function.opset_import)).or_else(|| of(self.opsets))
    }
}
