//! The strings of a graph in the format of its file: a table, and steps on the host.

use super::pattern::Pattern;
use crate::dtype::DType;
use crate::limits::STRING_SEPARATORS_MAX;
use serde::{Deserialize, Serialize};

/// The strings of a graph, and the steps that compute inputs from strings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Strings {
    /// Strings that the model names. The code of a string is its index. The first one is empty; a
    /// graph without strings has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub table: Vec<String>,
    /// Steps on the host, in order. Their results are the last inputs of the graph, in the same
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StringStep>,
}

impl Strings {
    /// Whether the graph has no strings.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty() && self.steps.is_empty()
    }

    /// Number of inputs that steps compute.
    pub fn computed_inputs(&self) -> usize {
        self.steps.iter().map(|step| step.op.result_count()).sum()
    }
}

/// An operator on strings that the host computes before the kernels run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StringStep {
    /// The node of the model, for messages.
    pub name: String,
    /// The operator.
    pub op: StringOp,
    /// Its operands.
    pub operands: Vec<StringOperand>,
}

/// The operators on strings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StringOp {
    /// The strings of two operands one after the other; the operands broadcast by NumPy's rule.
    Concat,
    /// Whether a whole string matches a regular expression in the syntax of RE2.
    FullMatch {
        /// The expression.
        pattern: String,
    },
    /// The parts of each string on a new last axis, filled up with empty strings, and the number of
    /// parts of each string.
    Split {
        /// What separates the parts. Empty: any whitespace, and none at the ends counts.
        delimiter: String,
        /// Largest number of cuts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cuts_max: Option<u64>,
    },
    /// The tokens of each string on a new last axis, filled up.
    Tokenize {
        /// How a string is cut.
        by: Cut,
        /// Least number of characters of a token; shorter ones are left out.
        characters_min: u64,
        /// Text that fills up the tokens of strings with fewer tokens than the longest.
        fill: String,
        /// Whether the tokens of each string are enclosed by the texts `\u{2}` and `\u{3}`.
        marks: bool,
    },
    /// Removes words from a list of strings, `[C]` or `[1, C]`, and changes the case of the others.
    /// The result has at least one string: an empty one if no other is left.
    Normalize {
        /// The case of the result.
        case: Case,
        /// Strings that are removed.
        stopwords: Vec<String>,
        /// Whether a string has to have the case of a stopword to be removed.
        case_sensitive: bool,
    },
    /// The numbers that strings name. A string that names none is an error of the request.
    Parse {
        /// The type of the numbers.
        to: DType,
    },
    /// The texts of numbers.
    Write {
        /// The type of the numbers.
        from: DType,
    },
}

/// How a string is cut into tokens. Regular expressions have the syntax of RE2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Cut {
    /// Each match of an expression is a token.
    Matches(String),
    /// Tokens are what is left between matches of the first expression, cut by the next one, and so
    /// on.
    Separators(Vec<String>),
    /// Each character is a token.
    Characters,
}

impl Cut {
    /// The expressions.
    pub fn patterns(&self) -> &[String] {
        match self {
            Cut::Matches(pattern) => std::slice::from_ref(pattern),
            Cut::Separators(patterns) => patterns,
            Cut::Characters => &[],
        }
    }
}

/// The case of letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Case {
    /// Unchanged.
    #[default]
    Keep,
    /// Lower case.
    Lower,
    /// Upper case.
    Upper,
}

/// An operand of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StringOperand {
    /// An input of the graph, by its index among the inputs: one of the client, or the result of an
    /// earlier step.
    Input(u32),
    /// Like `Input`, with all elements on one axis.
    Flat(u32),
    /// Strings of the table.
    Constant {
        /// Dimensions, outermost first.
        shape: Vec<i64>,
        /// The code of each element.
        codes: Vec<u32>,
    },
}

impl StringOp {
    /// Number of results.
    pub fn result_count(&self) -> usize {
        match self {
            StringOp::Split { .. } => 2,
            StringOp::Concat
            | StringOp::FullMatch { .. }
            | StringOp::Tokenize { .. }
            | StringOp::Normalize { .. }
            | StringOp::Parse { .. }
            | StringOp::Write { .. } => 1,
        }
    }

    /// Number of operands.
    pub fn operands(&self) -> usize {
        match self {
            StringOp::Concat => 2,
            StringOp::FullMatch { .. }
            | StringOp::Split { .. }
            | StringOp::Tokenize { .. }
            | StringOp::Normalize { .. }
            | StringOp::Parse { .. }
            | StringOp::Write { .. } => 1,
        }
    }

    /// The element type of its operands.
    pub fn operand_type(&self) -> DType {
        match self {
            StringOp::Write { from } => *from,
            _ => DType::Strings,
        }
    }

    /// Its regular expressions, compiled.
    ///
    /// # Errors
    /// An expression is not valid, or there are too many.
    pub(super) fn patterns(&self) -> Result<Vec<Pattern>, String> {
        match self {
            StringOp::FullMatch { pattern } => Ok(vec![Pattern::new(pattern, true)?]),
            StringOp::Tokenize { by, .. } if by.patterns().len() > STRING_SEPARATORS_MAX => {
                Err(format!("{} separators, at most {STRING_SEPARATORS_MAX} are allowed", by.patterns().len()))
            }
            StringOp::Tokenize { by, .. } => by.patterns().iter().map(|pattern| Pattern::new(pattern, false)).collect(),
            StringOp::Concat
            | StringOp::Split { .. }
            | StringOp::Normalize { .. }
            | StringOp::Parse { .. }
            | StringOp::Write { .. } => Ok(Vec::new()),
        }
    }

    /// Checks its regular expressions and its type of numbers.
    ///
    /// # Errors
    /// An expression is not valid, or there are too many; or strings do not name numbers of the
    /// type.
    pub fn check(&self) -> Result<(), String> {
        match self {
            StringOp::Parse { to } if !to.has_texts() => Err(format!("strings do not name numbers of type {to}")),
            StringOp::Write { from } if !from.has_texts() => {
                Err(format!("numbers of type {from} are not written as strings"))
            }
            _ => self.patterns().map(drop),
        }
    }
}

/// Why strings cannot be translated. The messages address the author of the request, or of the
/// model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StringError {
    /// The bytes of an input are not a sequence of strings.
    #[error("the bytes of {0} are not strings, each preceded by its length as 4 bytes")]
    Malformed(String),
    /// An input has another number of strings than its shape.
    #[error("{place} has {found} strings, but its shape {shape:?} has another number of elements")]
    Count {
        /// The input.
        place: String,
        /// Number of its strings.
        found: usize,
        /// Its shape.
        shape: Vec<i64>,
    },
    /// A shape does not fit an operator on strings.
    #[error("node {node}: {reason}")]
    Shape {
        /// The node of the model.
        node: String,
        /// What does not fit.
        reason: String,
    },
    /// A string names no number.
    #[error("node {node}: element {index} of its operand is {text:?}, which is no number of type {to}")]
    NotANumber {
        /// The node of the model.
        node: String,
        /// The element, in row-major order.
        index: usize,
        /// Its beginning.
        text: String,
        /// The type.
        to: DType,
    },
    /// An operand of an operator on strings is in device memory.
    #[error("node {0} computes with strings on the host; give them from the client, not from another function")]
    OnDevice(String),
    /// An output has a code that is not the code of a string.
    #[error("an output has a code that no string of the invocation has")]
    UnknownCode,
    /// The strings are too large, or there are too many.
    #[error("{what}: at most {most} are allowed, and the strings of this invocation need more")]
    TooLarge {
        /// What is limited.
        what: &'static str,
        /// The limit.
        most: usize,
    },
}
