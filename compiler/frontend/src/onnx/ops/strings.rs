//! Operators on strings: which operators accept strings, and those that the host computes.
//!
//! New strings, and numbers from strings, are computed by the host before the kernels run
//! ([`StringStep`]), so the operands of these operators are inputs of the model, constants, or
//! results of such operators.

use super::super::call::Call;
use super::super::error::{LowerError, LowerResult, invalid, unsupported};
use super::super::lowering::Lowering;
use super::super::options::is_default_domain;
use crate::tensor::{Data, Tensor};
use crate::tensor_graph::{Op, Value, ValueId};
use atoll_kgraph::limits::STRING_STEPS_MAX;
use atoll_kgraph::strings::{self, Case, Cut, StringOp, StringOperand, StringStep};
use atoll_kgraph::{DType, Expr, SymbolId, SymbolSpec};

type Results = LowerResult<Vec<ValueId>>;

/// Largest number of strings that an operator makes of one, or of a list.
const PARTS_MAX: i64 = 65_536;

/// Operators of the default domain that accept strings: they move elements, compare them for
/// equality, read only their shape, or are computed by the host. Sorted.
const ACCEPTING: [&str; 42] = [
    "Cast",
    "CastLike",
    "Compress",
    "Concat",
    "ConcatFromSequence",
    "DepthToSpace",
    "Equal",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "GatherND",
    "Identity",
    "Loop",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "RegexFullMatch",
    "Reshape",
    "ReverseSequence",
    "Scan",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "Shape",
    "Size",
    "Slice",
    "SpaceToDepth",
    "Split",
    "SplitToSequence",
    "Squeeze",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "TfIdfVectorizer",
    "Tile",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// Operators of `ai.onnx.ml` that accept strings, sorted.
const ACCEPTING_ML: [&str; 4] = ["ArrayFeatureExtractor", "CategoryMapper", "LabelEncoder", "OneHotEncoder"];

/// Returns an error if an operand has strings that the operator does not accept.
pub(in super::super) fn check_operands(lowering: &Lowering, call: &Call<'_>) -> LowerResult<()> {
    let node = call.node;
    let is_in = |table: &[&str]| table.binary_search(&&*node.op_type).is_ok();
    let accepts = match &*node.domain {
        "ai.onnx.ml" => is_in(&ACCEPTING_ML),
        "com.microsoft" => node.op_type == "Tokenizer",
        domain => is_default_domain(domain) && is_in(&ACCEPTING),
    };
    let mut with_strings =
        call.inputs.iter().enumerate().filter(|(_, id)| id.is_some_and(|id| lowering.has_strings(id)));
    if with_strings.any(|(index, _)| !accepts || !is_data(&node.op_type, index)) {
        return unsupported(
            "an operand with strings; kernels only move strings and compare them for equality; encode them in the \
             model, for example with LabelEncoder",
        );
    }
    Ok(())
}

/// Whether an operand of an accepting operator is data, and not a size, an index or a condition.
fn is_data(operator: &str, index: usize) -> bool {
    match operator {
        "CastLike" | "Concat" | "Equal" | "Scan" | "SequenceConstruct" | "SequenceMap" | "StringConcat" => true,
        "Loop" => index >= 2,
        "SequenceInsert" => index < 2,
        "Where" => index >= 1,
        _ => index == 0,
    }
}

/// The strings of two operands, one after the other.
pub(super) fn string_concat(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let operands = [call.input(0)?, call.input(1)?];
    let shape = lowering.broadcast(&operands)?;
    step(lowering, call, StringOp::Concat, &operands, vec![shape])
}

/// Whether each string matches a regular expression as a whole.
pub(super) fn regex_full_match(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let op = StringOp::FullMatch { pattern: call.string("pattern", "")? };
    op.check().map_err(LowerError::Unsupported)?;
    let shape = lowering.shape(x).to_vec();
    step(lowering, call, op, &[x], vec![shape])
}

/// The parts of each string on a new last axis, and their number.
pub(super) fn string_split(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let cuts_max = match call.has("maxsplit") {
        true => Some(u64::try_from(call.int("maxsplit", 0)?).map_err(|_| negative("maxsplit"))?),
        false => None,
    };
    let op = StringOp::Split { delimiter: call.string("delimiter", "")?, cuts_max };
    let counts = lowering.shape(x).to_vec();
    let mut parts = counts.clone();
    parts.push(new_size(lowering, call, "parts", 0));
    step(lowering, call, op, &[x], vec![parts, counts])
}

fn negative(what: &str) -> LowerError {
    LowerError::Invalid(format!("its attribute {what} is negative"))
}

/// The numbers that strings name.
pub(super) fn parse(lowering: &mut Lowering, call: &Call<'_>, to: DType) -> Results {
    let x = call.input(0)?;
    // Kernels convert to the types of 16 bits, as ONNX Runtime does.
    let read = if matches!(to, DType::F16 | DType::Bf16) { DType::F32 } else { to };
    let op = StringOp::Parse { to: read };
    op.check().map_err(LowerError::Unsupported)?;
    let numbers = match lowering.tensor(x) {
        Some(texts) => {
            let numbers = numbers_of(lowering, &texts, read)?;
            lowering.constant(&call.name, &numbers)
        }
        None => {
            let shape = lowering.shape(x).to_vec();
            step(lowering, call, op, &[x], vec![shape])?[0]
        }
    };
    Ok(vec![lowering.cast(&call.name, numbers, to)?])
}

/// The numbers that strings of the model name.
fn numbers_of(lowering: &Lowering, texts: &Tensor, to: DType) -> LowerResult<Tensor> {
    let Data::Int(codes) = &texts.data else { return invalid("its operand has no strings") };
    let mut bytes = Vec::new();
    for code in codes {
        let text = lowering.graph.strings.table.get(*code as usize).map_or("", String::as_str);
        let number = strings::number(text, to)
            .ok_or_else(|| LowerError::Invalid(format!("its operand has {text:?}, which is no number of type {to}")))?;
        bytes.extend(number);
    }
    Tensor::from_bytes(to, &texts.shape, &bytes)
        .ok_or_else(|| LowerError::Invalid("its operand has another number of elements than its shape".into()))
}

/// The texts of numbers.
pub(super) fn write(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let from = lowering.dtype(x);
    let op = StringOp::Write { from };
    op.check().map_err(LowerError::Unsupported)?;
    if let Some(numbers) = lowering.tensor(x) {
        let texts = strings::texts(&numbers.to_bytes(), from).unwrap_or_default();
        let codes = lowering.strings(&texts)?;
        return Ok(vec![lowering.constant(&call.name, &codes.reshaped(numbers.shape))]);
    }
    let shape = lowering.shape(x).to_vec();
    step(lowering, call, op, &[x], vec![shape])
}

/// `com.microsoft.Tokenizer`: the tokens of each string on a new last axis.
pub(super) fn tokenizer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let separators = call.strings("separators")?.unwrap_or_default();
    let expression = call.string("tokenexp", "")?;
    let by = match (&separators[..], expression.is_empty()) {
        ([], false) => Cut::Matches(expression),
        ([only], true) if only.is_empty() => Cut::Characters,
        ([_, ..], true) => Cut::Separators(separators),
        _ => return invalid("it needs either tokenexp or separators"),
    };
    let characters_min = u64::try_from(call.int("mincharnum", 1)?).map_err(|_| negative("mincharnum"))?;
    let marks = call.flag("mark", false)?;
    let op = StringOp::Tokenize { by, characters_min, fill: call.string("pad_value", "")?, marks };
    op.check().map_err(LowerError::Unsupported)?;
    let mut shape = lowering.shape(x).to_vec();
    shape.push(new_size(lowering, call, "tokens", if marks { 2 } else { 0 }));
    step(lowering, call, op, &[x], vec![shape])
}

/// Removes stopwords from a list of strings, and changes the case of the others.
pub(super) fn string_normalizer(lowering: &mut Lowering, call: &Call<'_>) -> Results {
    let x = call.input(0)?;
    let case = match call.string("case_change_action", "NONE")?.as_str() {
        "NONE" => Case::Keep,
        "LOWER" => Case::Lower,
        "UPPER" => Case::Upper,
        other => {
            return invalid(format!("its attribute case_change_action is {other:?}, which ONNX does not define"));
        }
    };
    let stopwords = call.strings("stopwords")?.unwrap_or_default();
    let case_sensitive = call.flag("is_case_sensitive", false)?;
    let mut shape = lowering.shape(x).to_vec();
    if !(shape.len() == 1 || (shape.len() == 2 && shape[0].as_const() == Some(1))) {
        return invalid(format!("its operand has the shape {}; it needs [C] or [1, C]", lowering.shape_text(&shape)));
    }
    let is_empty = shape.last().and_then(Expr::as_const) == Some(0);
    if is_empty || !stopwords.is_empty() {
        shape.pop();
        let size = new_size(lowering, call, "words", 1);
        shape.push(size);
    }
    step(lowering, call, StringOp::Normalize { case, stopwords, case_sensitive }, &[x], vec![shape])
}

/// A size that the strings of a request determine.
fn new_size(lowering: &mut Lowering, call: &Call<'_>, what: &str, least: i64) -> Expr {
    let symbols = &mut lowering.graph.symbols;
    symbols.push(SymbolSpec::new(format!("{}.{what}", call.name), least, PARTS_MAX));
    SymbolId(symbols.len() as u32 - 1).into()
}

/// Adds a step on the host. Its results become inputs of the graph after all others.
fn step(
    lowering: &mut Lowering,
    call: &Call<'_>,
    op: StringOp,
    operands: &[ValueId],
    shapes: Vec<Vec<Expr>>,
) -> Results {
    if lowering.graph.strings.steps.len() >= STRING_STEPS_MAX {
        return Err(LowerError::TooLarge {
            what: "the number of operators on strings, up to the one".into(),
            found: (STRING_STEPS_MAX + 1).to_string(),
            limit: STRING_STEPS_MAX.to_string(),
        });
    }
    let ty = op.operand_type();
    let operands = operands.iter().map(|id| operand(lowering, *id, ty)).collect::<LowerResult<Vec<StringOperand>>>()?;
    lowering.use_strings();
    let name = lowering.unique_name(&format!("{}.computed", call.name));
    let mut results = Vec::with_capacity(shapes.len());
    for (index, (dtype, shape)) in op.results().iter().zip(shapes).enumerate() {
        let (dtype, shape) = lowering.check_type(*dtype, shape)?;
        let name = if index == 0 { name.clone() } else { format!("{name}:{index}") };
        let id = lowering.graph.add_value(Value { name, dtype, shape, constant: None });
        lowering.graph.inputs.push(id);
        results.push(id);
    }
    lowering.graph.strings.steps.push(StringStep { name: call.name.clone(), op, operands });
    Ok(results)
}

/// A value as an operand of a step on the host.
fn operand(lowering: &Lowering, id: ValueId, ty: DType) -> LowerResult<StringOperand> {
    if lowering.dtype(id) != ty {
        return invalid(format!("its operand has type {}; it needs strings", lowering.dtype(id)));
    }
    let input_of = |id: ValueId| lowering.graph.inputs.iter().position(|input| *input == id);
    if let Some(input) = input_of(id) {
        return Ok(StringOperand::Input(input as u32));
    }
    // Exporters flatten a column of texts before they use it.
    let reshaped = lowering.graph.nodes.iter().find(|node| node.op == Op::Reshape && node.outputs.contains(&id));
    if let Some(input) = reshaped.filter(|_| lowering.rank(id) == 1).and_then(|node| input_of(node.inputs[0])) {
        return Ok(StringOperand::Flat(input as u32));
    }
    match lowering.tensor(id) {
        Some(tensor) => {
            let Data::Int(codes) = &tensor.data else { return invalid("its operand has no strings") };
            let shape = tensor.shape.iter().map(|size| *size as i64).collect();
            Ok(StringOperand::Constant { shape, codes: codes.iter().map(|code| *code as u32).collect() })
        }
        None => unsupported(
            "its operand is computed by kernels; the host computes with the text of strings before the kernels run, \
             from inputs of the model, constants, and results of such operators",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_sorted_and_their_operators_exist() {
        assert!(ACCEPTING.is_sorted_by(|a, b| a < b) && ACCEPTING_ML.is_sorted_by(|a, b| a < b));
        assert!(ACCEPTING.iter().all(|operator| super::super::find("", operator).is_some()));
        assert!(ACCEPTING_ML.iter().all(|operator| super::super::find("ai.onnx.ml", operator).is_some()));
    }
}
