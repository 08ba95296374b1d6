//! Names and what they stand for: the scopes of the graph, of subgraphs inside of it, and of
//! functions.

use super::error::ImportError;
use super::options::{NODES_MAX, is_default_domain};
use super::order;
use super::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto, OperatorSetIdProto, TensorProto};
use super::read;
use crate::tensor_graph::ValueId;
use std::collections::{HashMap, HashSet};

/// Most scopes inside of each other.
const SCOPES_MAX: usize = 64;

/// What a name stands for while nodes are lowered.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// A tensor.
    Tensor(ValueId),
    /// A list of tensors whose length is known at compile time; it leaves no trace in the tensor
    /// graph.
    Sequence(Vec<ValueId>),
    /// An optional without an element, or an operand that is left out. An optional with an element
    /// is that element.
    Nothing,
}

/// The nodes of a graph or function that its outputs need.
pub(super) struct Body<'m> {
    pub(super) nodes: &'m [NodeProto],
    /// Indices of the needed nodes, in an order that respects dependencies.
    pub(super) order: Vec<usize>,
    pub(super) inputs: Vec<&'m str>,
    pub(super) outputs: Vec<&'m str>,
    /// Names that a needed node or an output reads.
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
    /// Its attributes as the calling node gives them, or their defaults.
    pub(super) attributes: HashMap<&'m str, &'m AttributeProto>,
}

/// Names of one graph or function.
#[derive(Default)]
pub(super) struct Scope<'m> {
    pub(super) values: HashMap<&'m str, Item>,
    pub(super) initializers: HashMap<&'m str, &'m TensorProto>,
    /// Stands before the names of its nodes.
    pub(super) prefix: String,
    /// Where it is the body of a function. A function sees nothing of the graph around the node
    /// that calls it.
    pub(super) frame: Option<Frame<'m>>,
}

/// What a name was found to be.
pub(super) enum Found<'m> {
    Item(Item),
    Initializer(&'m TensorProto),
}

/// The scopes that the node being lowered lies in, innermost last.
pub(super) struct Scopes<'m> {
    stack: Vec<Scope<'m>>,
    opsets: &'m [OperatorSetIdProto],
}

impl<'m> Scopes<'m> {
    /// No scope yet; `opsets` are those of the model.
    pub(super) fn new(opsets: &'m [OperatorSetIdProto]) -> Scopes<'m> {
        Scopes { stack: Vec::new(), opsets }
    }

    pub(super) fn enter(&mut self, scope: Scope<'m>) -> Result<(), ImportError> {
        if self.stack.len() >= SCOPES_MAX {
            let found = format!("more than {SCOPES_MAX}");
            return Err(read::too_large(
                "the number of subgraphs and functions inside of each other",
                found,
                SCOPES_MAX.to_string(),
            ));
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

    /// Whether a function is being inlined already.
    pub(super) fn is_inside(&self, function: &FunctionProto) -> bool {
        self.frames().any(|frame| std::ptr::eq(frame.function, function))
    }

    /// A node's attributes by name. In a function, an attribute may stand for one of the calling
    /// node, which may have left it out.
    pub(super) fn attributes(&self, node: &'m NodeProto) -> Vec<(&'m str, &'m AttributeProto)> {
        let resolve = |attribute: &'m AttributeProto| match attribute.ref_attr_name.as_str() {
            "" => Some(attribute),
            name => self.frames().next().and_then(|frame| frame.attributes.get(name).copied()),
        };
        node.attribute.iter().filter_map(|a| Some((a.name.as_str(), resolve(a)?))).collect()
    }

    /// The version of a domain's operators here; a function has its own, and the model's for
    /// domains that it does not name.
    pub(super) fn opset(&self, domain: &str) -> Option<i64> {
        let is_it = |other: &str| other == domain || (is_default_domain(other) && is_default_domain(domain));
        let of = |opsets: &[OperatorSetIdProto]| opsets.iter().filter(|o| is_it(&o.domain)).map(|o| o.version).max();
        self.frames().next().and_then(|frame| of(&frame.function.opset_import)).or_else(|| of(self.opsets))
    }
}
