//! A node as the lowering functions see it: operands resolved, attributes checked.

use super::error::{LowerError, LowerResult, invalid, unsupported};
use super::proto::{AttributeProto, AttributeType, GraphProto, NodeProto, TensorProto};
use super::scope::Item;
use crate::tensor_graph::ValueId;

/// A node with resolved operands.
pub(crate) struct Call<'m> {
    pub(crate) node: &'m NodeProto,
    /// Unique and readable; the prefix of all names made from this node.
    pub(crate) name: String,
    /// Version of the operator set that the node belongs to.
    pub(crate) opset: i64,
    /// Operands that are tensors; `None` if an optional one is omitted.
    pub(crate) inputs: Vec<Option<ValueId>>,
    /// All operands, including sequences and optionals.
    pub(super) items: Vec<Item>,
    /// Attributes by name.
    pub(super) attributes: Vec<(&'m str, &'m AttributeProto)>,
}

impl<'m> Call<'m> {
    pub(super) fn new(
        node: &'m NodeProto,
        name: String,
        opset: i64,
        items: Vec<Item>,
        attributes: Vec<(&'m str, &'m AttributeProto)>,
    ) -> Call<'m> {
        let tensor = |item: &Item| if let Item::Tensor(id) = item { Some(*id) } else { None };
        Call { node, name, opset, inputs: items.iter().map(tensor).collect(), items, attributes }
    }

    /// Returns an error if an operand is a sequence; for operators that take only tensors.
    pub(super) fn refuse_lists(&self) -> LowerResult<()> {
        match self.items.iter().position(|item| matches!(item, Item::Sequence(_))) {
            Some(index) => unsupported(format!("operand {index} is a sequence; only a tensor is supported here")),
            None => Ok(()),
        }
    }

    /// A required operand.
    pub(crate) fn input(&self, index: usize) -> LowerResult<ValueId> {
        self.optional(index).ok_or_else(|| LowerError::Invalid(format!("operand {index} is missing")))
    }

    /// An optional operand.
    pub(crate) fn optional(&self, index: usize) -> Option<ValueId> {
        self.inputs.get(index).copied().flatten()
    }

    /// All operands of a variadic operator.
    pub(crate) fn all_inputs(&self) -> LowerResult<Vec<ValueId>> {
        let all: Vec<ValueId> = self.inputs.iter().flatten().copied().collect();
        if all.is_empty() || all.len() != self.inputs.len() {
            invalid("a required operand is missing")
        } else {
            Ok(all)
        }
    }

    fn attribute(&self, name: &str, wanted: AttributeType) -> LowerResult<Option<&'m AttributeProto>> {
        let Some((_, attribute)) = self.attributes.iter().find(|(known, _)| *known == name) else { return Ok(None) };
        // Files of IR version 1 omit the type.
        if attribute.r#type != wanted as i32 && attribute.r#type != AttributeType::Undefined as i32 {
            let found = AttributeType::try_from(attribute.r#type)
                .map_or_else(|_| attribute.r#type.to_string(), |t| format!("{t:?}"));
            return invalid(format!("attribute {name} has type {found}, but must have type {wanted:?}"));
        }
        Ok(Some(attribute))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.attributes.iter().any(|(known, _)| *known == name)
    }

    pub(crate) fn int(&self, name: &str, default: i64) -> LowerResult<i64> {
        Ok(self.attribute(name, AttributeType::Int)?.map_or(default, |a| a.i))
    }

    /// An attribute that is 0 or 1; any value but 0 counts as 1.
    pub(crate) fn flag(&self, name: &str, default: bool) -> LowerResult<bool> {
        Ok(self.int(name, i64::from(default))? != 0)
    }

    pub(crate) fn float(&self, name: &str, default: f32) -> LowerResult<f32> {
        Ok(self.attribute(name, AttributeType::Float)?.map_or(default, |a| a.f))
    }

    pub(crate) fn ints(&self, name: &str) -> LowerResult<Option<Vec<i64>>> {
        Ok(self.attribute(name, AttributeType::Ints)?.map(|a| a.ints.clone()))
    }

    pub(crate) fn floats(&self, name: &str) -> LowerResult<Option<Vec<f32>>> {
        Ok(self.attribute(name, AttributeType::Floats)?.map(|a| a.floats.clone()))
    }

    pub(crate) fn string(&self, name: &str, default: &str) -> LowerResult<String> {
        Ok(self
            .attribute(name, AttributeType::String)?
            .map_or_else(|| default.into(), |a| String::from_utf8_lossy(&a.s).into_owned()))
    }

    pub(crate) fn strings(&self, name: &str) -> LowerResult<Option<Vec<String>>> {
        let attribute = self.attribute(name, AttributeType::Strings)?;
        Ok(attribute.map(|a| a.strings.iter().map(|s| String::from_utf8_lossy(s).into_owned()).collect()))
    }

    pub(crate) fn tensor(&self, name: &str) -> LowerResult<Option<&'m TensorProto>> {
        let Some(attribute) = self.attribute(name, AttributeType::Tensor)? else { return Ok(None) };
        attribute.t.as_ref().map(Some).ok_or_else(|| LowerError::Invalid(format!("attribute {name} has no tensor")))
    }

    /// A required subgraph.
    pub(super) fn graph(&self, name: &str) -> LowerResult<&'m GraphProto> {
        let attribute = self.attribute(name, AttributeType::Graph)?;
        attribute
            .and_then(|a| a.g.as_ref())
            .ok_or_else(|| LowerError::Invalid(format!("attribute {name} has no graph")))
    }

    /// A required attribute that is a list of integers.
    pub(crate) fn required_ints(&self, name: &str) -> LowerResult<Vec<i64>> {
        self.ints(name)?.ok_or_else(|| LowerError::Invalid(format!("attribute {name} is missing")))
    }
}

/// Resolves an axis to `0..rank`; a negative one counts from the end.
pub(crate) fn axis_of(axis: i64, rank: usize) -> LowerResult<usize> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(from_start) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => invalid(format!("axis {axis} is out of range for a tensor with {rank} dimensions")),
    }
}

/// Resolves axes to `0..rank`, sorted; an error if one repeats.
pub(crate) fn axes_of(axes: &[i64], rank: usize) -> LowerResult<Vec<usize>> {
    let mut resolved = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<LowerResult<Vec<usize>>>()?;
    resolved.sort_unstable();
    if resolved.windows(2).any(|pair| pair[0] == pair[1]) {
        return invalid(format!("axes {axes:?} contain an axis twice"));
    }
    Ok(resolved)
}
