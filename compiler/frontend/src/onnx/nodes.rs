//! Lowers the nodes of the graph, of subgraphs and of functions, one after the other.

use super::call::Call;
use super::error::{ImportError, LowerError};
use super::failure::Failure;
use super::import::Import;
use super::ops::{self, Operator};
use super::options::{NODES_MAX, is_default_domain, node_name};
use super::proto::NodeProto;
use super::scope::{Body, Found, Frame, Item, Scope};
use super::{functions, read};

/// Domain of the operators that compute gradients and update weights.
const TRAINING_DOMAIN: &str = "ai.onnx.preview.training";

impl<'m> Import<'m> {
    /// Lowers a subgraph or function in a scope of its own. `items` are the values of its inputs;
    /// returns the values of its outputs.
    pub(super) fn lower_body(
        &mut self,
        body: &Body<'m>,
        prefix: &str,
        items: Vec<Item>,
        frame: Option<Frame<'m>>,
    ) -> Result<Vec<Item>, Failure> {
        let values = body.inputs.iter().copied().zip(items).collect();
        self.scopes.enter(Scope {
            values,
            initializers: body.initializers.clone(),
            prefix: format!("{prefix}/"),
            frame,
        })?;
        let results = self
            .lower_nodes(body)
            .and_then(|()| body.outputs.iter().map(|name| self.item(name, &format!("result of {prefix}"))).collect());
        self.scopes.leave();
        results
    }

    /// Lowers nodes in the current scope.
    pub(super) fn lower_nodes(&mut self, body: &Body<'m>) -> Result<(), Failure> {
        for index in &body.order {
            let node = &body.nodes[*index];
            let name = format!("{}{}", self.scopes.prefix(), node_name(node, *index));
            self.count_nodes(1)?;
            self.lowering.place = place(&name, node);
            self.lower_node(node, &name, body).map_err(|failure| match failure {
                Failure::Lower(LowerError::Restart(fact)) => Failure::Restart { place: place(&name, node), fact },
                Failure::Lower(error) => Failure::Import(error.at(&name, &node.op_type)),
                failure => failure,
            })?;
        }
        Ok(())
    }

    /// Counts nodes, including those from inlining and unrolling: a small file must not expand to
    /// an unbounded graph.
    pub(super) fn count_nodes(&mut self, more: usize) -> Result<(), ImportError> {
        self.nodes += more;
        if self.nodes > NODES_MAX {
            let what = "the number of nodes, with functions inlined and loops unrolled,";
            return Err(read::too_large(what, format!("more than {NODES_MAX}"), NODES_MAX.to_string()));
        }
        Ok(())
    }

    fn lower_node(&mut self, node: &'m NodeProto, name: &str, body: &Body<'m>) -> Result<(), Failure> {
        let items = node
            .input
            .iter()
            .map(|input| self.item(input, &format!("node {name}")))
            .collect::<Result<Vec<Item>, Failure>>()?;
        let opset = self.scopes.opset(&node.domain).ok_or_else(|| {
            let domain = if is_default_domain(&node.domain) { "ai.onnx" } else { &node.domain };
            LowerError::Invalid(format!("the model's opset_import does not list domain {domain}"))
        })?;
        let call = Call::new(node, name.into(), opset, items, self.scopes.attributes(node));
        let results = match self.functions.find(node) {
            Some(function) => functions::inline(self, function, &call)?,
            None => match self.operator(&call)? {
                Operator::Tensors(lower) => {
                    call.refuse_lists()?;
                    lower(&mut self.lowering, &call)?.into_iter().map(Item::Tensor).collect()
                }
                Operator::Items(lower) => lower(self, &call)?,
            },
        };
        for (index, output) in node.output.iter().enumerate().filter(|(_, output)| !output.is_empty()) {
            match results.get(index) {
                Some(item) => {
                    self.scopes.define(output, item.clone());
                }
                None if body.consumed.contains(output.as_str()) => {
                    return Err(LowerError::Unsupported(format!(
                        "its result {index} ({output}) is not computed, and a later node reads it"
                    ))
                    .into());
                }
                None => {}
            }
        }
        Ok(())
    }

    fn operator(&self, call: &Call<'m>) -> Result<Operator, Failure> {
        let node = call.node;
        if node.domain == TRAINING_DOMAIN {
            return Err(LowerError::Unsupported(format!(
                "operators of domain {TRAINING_DOMAIN}; export the model for inference"
            ))
            .into());
        }
        if is_default_domain(&node.domain) && node.op_type == "ImageDecoder" {
            return Err(LowerError::Unsupported(
                "a decoder of images, which is not run inside the daemon; a graph can begin with the CPU stage \
                 `builtin = \"decode_image\"`, which decodes images in a jailed process"
                    .into(),
            )
            .into());
        }
        let operator = ops::find(&node.domain, &node.op_type).ok_or_else(|| {
            Failure::Import(ImportError::UnsupportedOperator {
                node: call.name.clone(),
                operator: node.op_type.clone(),
                domain: if is_default_domain(&node.domain) { "ai.onnx".into() } else { node.domain.clone() },
                opset: call.opset,
                nearest: ops::nearest(&node.op_type),
            })
        })?;
        ops::narrow::check_operands(&self.lowering, call)?;
        ops::strings::check_operands(&self.lowering, call)?;
        Ok(operator)
    }

    /// The item that a name refers to; an initialiser is decoded when it is first used.
    pub(super) fn item(&mut self, name: &'m str, reader: &str) -> Result<Item, Failure> {
        if name.is_empty() {
            return Ok(Item::Nothing);
        }
        match self.scopes.find(name) {
            Some(Found::Item(item)) => Ok(item),
            Some(Found::Initializer(tensor)) => {
                if let Some(id) = self.literals.get(&std::ptr::from_ref(tensor)) {
                    return Ok(Item::Tensor(*id));
                }
                let literal = self.lowering.stored_tensor(tensor, name, self.folder)?;
                let id = self.lowering.literal(name, literal);
                self.literals.insert(tensor, id);
                Ok(Item::Tensor(id))
            }
            None => {
                let reason = format!("it reads {name}, which nothing defines");
                Err(ImportError::Invalid { place: reader.into(), reason }.into())
            }
        }
    }
}

/// The node's name and operator, for messages about sizes.
fn place(name: &str, node: &NodeProto) -> String {
    format!("node {name} ({})", node.op_type)
}
