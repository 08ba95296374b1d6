//! The steps on the host: computes inputs from strings.

use super::codes::{CODE_BYTES, Interned};
use super::format::{Case, Cut, StringError, StringOp, StringOperand};
use super::pattern::Pattern;
use super::words::{in_case, parts, tokens};
use crate::graph::DType;
use crate::limits::{INVOCATION_STRINGS_MAX, RANK_MAX, TOKENIZED_BYTES_MAX};
use std::collections::HashSet;
use std::sync::Arc;

/// An operand or a result has too many elements.
const TOO_MANY: StringError =
    StringError::TooLarge { what: "elements of an operand or a result", most: INVOCATION_STRINGS_MAX };

/// An input that a step has computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputedInput {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// The elements, little-endian; codes of strings.
    pub bytes: Vec<u8>,
}

/// An input of the client: its shape, and its elements, which are codes if it has strings. `None`
/// if it is not in host memory.
pub type GivenCodes<'a> = Option<(&'a [i64], &'a [u8])>;

/// An operand: its shape and the codes of its elements.
pub(super) struct Operand {
    pub(super) shape: Vec<i64>,
    pub(super) codes: Vec<u32>,
}

impl Interned {
    /// Computes the inputs that follow those of the client. `given` has an entry for each input of
    /// the client; an input without strings is read only by a step that writes its numbers.
    ///
    /// # Errors
    /// Shapes do not fit, a string names no number, or the results are too large.
    pub fn compute(&mut self, given: &[GivenCodes<'_>]) -> Result<Vec<ComputedInput>, StringError> {
        let vocabulary = Arc::clone(&self.vocabulary);
        let mut computed = Vec::new();
        for (step, patterns) in vocabulary.strings.steps.iter().zip(&vocabulary.patterns) {
            if let (StringOp::Write { from }, [operand]) = (&step.op, &step.operands[..]) {
                let numbers = numbers(operand, *from, &step.name, given, &computed)?;
                let texts = self.write(numbers, *from, &step.name)?;
                computed.push(texts);
                continue;
            }
            let operands: Result<Vec<Operand>, StringError> =
                step.operands.iter().map(|operand| read(operand, &step.name, given, &computed)).collect();
            let operands = operands?;
            for operand in &operands {
                self.note_operand(&operand.codes)?;
            }
            let misfit = |reason: String| StringError::Shape { node: step.name.clone(), reason };
            match (&step.op, &operands[..]) {
                (StringOp::Concat, [a, b]) => computed.push(self.concat(a, b, misfit)?),
                (StringOp::FullMatch { .. }, [x]) => {
                    computed.push(self.full_match(x, patterns)?);
                }
                (StringOp::Split { delimiter, cuts_max }, [x]) => {
                    computed.extend(self.split(x, delimiter.as_bytes(), *cuts_max)?);
                }
                (StringOp::Tokenize { by, characters_min, fill, marks }, [x]) => {
                    let marks = marks.then_some(["\u{2}", "\u{3}"]);
                    computed.push(self.tokenize(x, by, patterns, *characters_min, fill, marks)?);
                }
                (StringOp::Normalize { case, stopwords, case_sensitive }, [x]) => {
                    computed.push(self.normalize(x, *case, stopwords, *case_sensitive, misfit)?);
                }
                (StringOp::Parse { to }, [x]) => computed.push(self.parse(x, *to, &step.name)?),
                _ => return Err(misfit("it has another number of operands".into())),
            }
        }
        Ok(computed)
    }

    fn concat(
        &mut self,
        a: &Operand,
        b: &Operand,
        misfit: impl Fn(String) -> StringError,
    ) -> Result<ComputedInput, StringError> {
        let shape = broadcast(&a.shape, &b.shape)
            .ok_or_else(|| misfit(format!("shapes {:?} and {:?} do not broadcast", a.shape, b.shape)))?;
        let count = element_count(&shape)?;
        // Before the work: few strings may have many pairs.
        self.note_work(count, 0)?;
        let (of_a, of_b) = (Spread::new(&a.shape, &shape), Spread::new(&b.shape, &shape));
        let mut codes = Vec::with_capacity(count);
        let mut text = Vec::new();
        for index in 0..count {
            text.clear();
            text.extend_from_slice(self.text(a.codes[of_a.at(index)])?);
            text.extend_from_slice(self.text(b.codes[of_b.at(index)])?);
            codes.push(self.code(&text)?);
        }
        Ok(strings(shape, &codes))
    }

    fn full_match(&mut self, x: &Operand, patterns: &[Pattern]) -> Result<ComputedInput, StringError> {
        let mut bytes = vec![0; x.codes.len()];
        for pattern in patterns {
            let mut cache = pattern.cache();
            for (code, matches) in x.codes.iter().zip(&mut bytes) {
                let (end, read) = pattern.match_at(&mut cache, self.text(*code)?, 0);
                self.note_matched(read)?;
                *matches = u8::from(end.is_some());
            }
        }
        Ok(ComputedInput { dtype: DType::Bool, shape: x.shape.clone(), bytes })
    }

    fn split(
        &mut self,
        x: &Operand,
        delimiter: &[u8],
        cuts_max: Option<u64>,
    ) -> Result<[ComputedInput; 2], StringError> {
        let mut rows = Rows::default();
        for code in &x.codes {
            // Copied, because new codes are given to its parts.
            let text = self.text(*code)?.to_vec();
            for part in parts(&text, delimiter, cuts_max) {
                rows.push(self.code(part)?)?;
            }
            rows.end_row();
        }
        let counts = rows.lengths().flat_map(|count| (count as i64).to_le_bytes()).collect();
        let counts = ComputedInput { dtype: DType::I64, shape: x.shape.clone(), bytes: counts };
        // The code of the empty string is 0.
        Ok([self.filled(&x.shape, &rows, 0)?, counts])
    }

    fn tokenize(
        &mut self,
        x: &Operand,
        by: &Cut,
        patterns: &[Pattern],
        characters_min: u64,
        fill: &str,
        marks: Option<[&str; 2]>,
    ) -> Result<ComputedInput, StringError> {
        let mut patterns: Vec<_> = patterns.iter().map(|pattern| (pattern, pattern.cache())).collect();
        let mut rows = Rows::default();
        for code in &x.codes {
            let text = self.text(*code)?.to_vec();
            if text.len() > TOKENIZED_BYTES_MAX && !patterns.is_empty() {
                let what = "bytes of a string that an expression cuts into tokens";
                return Err(StringError::TooLarge { what, most: TOKENIZED_BYTES_MAX });
            }
            let tokens = tokens(&text, by, &mut patterns, characters_min, |read| self.note_matched(read))?;
            let before = marks.iter().map(|[first, _]| first.as_bytes());
            let behind = marks.iter().map(|[_, last]| last.as_bytes());
            for token in before.chain(tokens).chain(behind) {
                rows.push(self.code(token)?)?;
            }
            rows.end_row();
        }
        let fill = self.code(fill.as_bytes())?;
        self.filled(&x.shape, &rows, fill)
    }

    /// Strings on a new last axis; rows that are shorter than others are filled up with a code.
    fn filled(&mut self, shape: &[i64], rows: &Rows, fill: u32) -> Result<ComputedInput, StringError> {
        let most = rows.lengths().max().unwrap_or(0);
        let shape = [shape, &[most as i64]].concat();
        let count = element_count(&shape)?;
        self.note_work(count - rows.codes.len(), 0)?;
        let mut codes = Vec::with_capacity(count);
        let mut begin = 0;
        for end in &rows.ends {
            codes.extend_from_slice(&rows.codes[begin..*end]);
            codes.resize(codes.len() + most - (end - begin), fill);
            begin = *end;
        }
        Ok(strings(shape, &codes))
    }

    fn normalize(
        &mut self,
        x: &Operand,
        case: Case,
        stopwords: &[String],
        case_sensitive: bool,
        misfit: impl Fn(String) -> StringError,
    ) -> Result<ComputedInput, StringError> {
        if !matches!(x.shape[..], [_] | [1, _]) {
            return Err(misfit(format!("its operand has the shape {:?}; it needs [C] or [1, C]", x.shape)));
        }
        let compared = if case_sensitive { Case::Keep } else { Case::Lower };
        let stopwords: HashSet<Vec<u8>> =
            stopwords.iter().map(|word| in_case(word.as_bytes(), compared).into_owned()).collect();
        let mut codes = Vec::with_capacity(x.codes.len());
        for code in &x.codes {
            let text = self.text(*code)?;
            if stopwords.contains(&*in_case(text, compared)) {
                continue;
            }
            let changed = in_case(text, case).into_owned();
            codes.push(self.code(&changed)?);
        }
        if codes.is_empty() {
            codes.push(0);
        }
        let mut shape = x.shape.clone();
        shape.pop();
        shape.push(codes.len() as i64);
        Ok(strings(shape, &codes))
    }
}

/// Lists of codes with different lengths.
#[derive(Default)]
struct Rows {
    /// The codes of all rows.
    codes: Vec<u32>,
    /// The end of each row in `codes`.
    ends: Vec<usize>,
}

impl Rows {
    /// Adds a code to the last row.
    fn push(&mut self, code: u32) -> Result<(), StringError> {
        if self.codes.len() >= INVOCATION_STRINGS_MAX {
            return Err(TOO_MANY);
        }
        self.codes.push(code);
        Ok(())
    }

    fn end_row(&mut self) {
        self.ends.push(self.codes.len());
    }

    fn lengths(&self) -> impl Iterator<Item = usize> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        self.ends.iter().zip(begins).map(|(end, begin)| end - begin)
    }
}

pub(super) fn strings(shape: Vec<i64>, codes: &[u32]) -> ComputedInput {
    let bytes = codes.iter().flat_map(|code| code.to_le_bytes()).collect();
    ComputedInput { dtype: DType::Strings, shape, bytes }
}

/// The shape and the elements of an input.
fn source<'a>(
    index: u32,
    node: &str,
    given: &[GivenCodes<'a>],
    computed: &'a [ComputedInput],
) -> Result<(&'a [i64], &'a [u8]), StringError> {
    let on_device = || StringError::OnDevice(node.into());
    match given.get(index as usize) {
        Some(given) => given.ok_or_else(on_device),
        None => {
            let input = computed.get(index as usize - given.len()).ok_or_else(on_device)?;
            Ok((&input.shape, &input.bytes))
        }
    }
}

/// The shape and the elements of an operand with numbers.
fn numbers<'a>(
    operand: &StringOperand,
    from: DType,
    node: &str,
    given: &[GivenCodes<'a>],
    computed: &'a [ComputedInput],
) -> Result<(Vec<i64>, &'a [u8]), StringError> {
    match operand {
        StringOperand::Input(index) => {
            let (shape, elements) = source(*index, node, given, computed)?;
            Ok((shape.to_vec(), elements))
        }
        StringOperand::Flat(index) => {
            let (_, elements) = source(*index, node, given, computed)?;
            Ok((vec![elements.len() as i64 / from.bytes() as i64], elements))
        }
        // A bundle with such an operand is refused when it is opened.
        StringOperand::Constant { .. } => Err(StringError::OnDevice(node.into())),
    }
}

fn read(
    operand: &StringOperand,
    node: &str,
    given: &[GivenCodes<'_>],
    computed: &[ComputedInput],
) -> Result<Operand, StringError> {
    let (shape, bytes) = match operand {
        StringOperand::Constant { shape, codes } => {
            return Ok(Operand { shape: shape.clone(), codes: codes.clone() });
        }
        StringOperand::Input(index) | StringOperand::Flat(index) => source(*index, node, given, computed)?,
    };
    let codes: Vec<u32> = bytes.as_chunks::<CODE_BYTES>().0.iter().map(|code| u32::from_le_bytes(*code)).collect();
    if shape.len() > RANK_MAX || element_count(shape) != Ok(codes.len()) {
        let place = format!("an operand of node {node}");
        return Err(StringError::Count { place, found: codes.len(), shape: shape.to_vec() });
    }
    let shape = match operand {
        StringOperand::Flat(_) => vec![codes.len() as i64],
        _ => shape.to_vec(),
    };
    Ok(Operand { shape, codes })
}

/// The number of elements of a shape.
pub(super) fn element_count(shape: &[i64]) -> Result<usize, StringError> {
    let count = shape.iter().try_fold(1_usize, |count, size| count.checked_mul(usize::try_from(*size).ok()?));
    count.filter(|count| *count <= INVOCATION_STRINGS_MAX).ok_or(TOO_MANY)
}

/// The shape of two operands that broadcast; `None` if they do not.
fn broadcast(a: &[i64], b: &[i64]) -> Option<Vec<i64>> {
    let rank = a.len().max(b.len());
    let size = |shape: &[i64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
    let both = |axis: usize| match (size(a, axis), size(b, axis)) {
        (a, b) if a == b || b == 1 => Some(a),
        (1, b) => Some(b),
        _ => None,
    };
    (0..rank).map(both).collect()
}

/// Reads an operand at an index of a larger shape to which it broadcasts.
struct Spread {
    /// For each axis of the result, innermost first: its size, and the operand's stride.
    axes: Vec<(usize, usize)>,
}

impl Spread {
    fn new(operand: &[i64], result: &[i64]) -> Spread {
        let mut stride = 1;
        let mut sizes = operand.iter().rev();
        let axis = |size: &i64| {
            let own = sizes.next().map_or(1, |own| *own as usize);
            let step = if own == 1 { 0 } else { stride };
            stride *= own;
            (*size as usize, step)
        };
        Spread { axes: result.iter().rev().map(axis).collect() }
    }

    fn at(&self, index: usize) -> usize {
        let (mut rest, mut at) = (index, 0);
        for (size, step) in &self.axes {
            at += rest % size * step;
            rest /= size;
        }
        at
    }
}
