use super::*;
use crate::expr::{Expr, SymbolId};
use crate::graph::{BufferKind, BufferSpec, DType, FORMAT_VERSION, KernelGraph};
use crate::limits::{
    INVOCATION_MATCHED_BYTES_MAX, INVOCATION_STRING_WORK_MAX, STRING_ELEMENT_WORK, TOKENIZED_BYTES_MAX,
};
use std::sync::Arc;

/// A graph with an input of strings and an output of strings. `steps` read the input.
fn graph(steps: Vec<StringStep>) -> KernelGraph {
    let buffer = |name: &str, kind, dtype| BufferSpec {
        name: name.into(),
        kind,
        dtype,
        shape: vec![Expr::from(SymbolId(0))],
        weights_offset: None,
    };
    let mut buffers =
        vec![buffer("x", BufferKind::Input, DType::Strings), buffer("y", BufferKind::Output, DType::Strings)];
    for step in &steps {
        let results = step.op.results().iter().enumerate();
        buffers.extend(results.map(|(at, dtype)| buffer(&format!("{}:{at}", step.name), BufferKind::Input, *dtype)));
    }
    let table = ["", "red", "-"].map(String::from).to_vec();
    KernelGraph { format: FORMAT_VERSION, buffers, strings: Strings { table, steps }, ..KernelGraph::default() }
}

fn step(op: StringOp, operands: &[StringOperand]) -> StringStep {
    StringStep { name: "step".into(), op, operands: operands.to_vec() }
}

fn interned(graph: &KernelGraph) -> Interned {
    assert_eq!(check(graph), Ok(()));
    Interned::new(Arc::new(Vocabulary::of(graph).expect("it has strings")))
}

/// Strings as clients send and receive them.
fn bytes(texts: &[&str]) -> Vec<u8> {
    let one = |text: &&str| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    texts.iter().flat_map(one).collect()
}

fn codes(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|code| u32::from_le_bytes(*code)).collect()
}

/// Shape and bytes.
type Form = (Vec<i64>, Vec<u8>);

/// The results of one step on these strings: the shape of each, and its strings if it has strings.
fn computed(op: StringOp, shape: &[i64], texts: &[&str]) -> Result<Vec<Form>, StringError> {
    let mut interned = interned(&graph(vec![step(op, &[StringOperand::Input(0)])]));
    let given = interned.encode(0, &bytes(texts))?;
    let results = interned.compute(&[Some((shape, &given))])?;
    let one = |result: ComputedInput| match result.dtype {
        DType::Strings => Ok((result.shape, interned.decode(&result.bytes)?)),
        _ => Ok((result.shape, result.bytes)),
    };
    results.into_iter().map(one).collect()
}

#[test]
fn equal_strings_have_equal_codes() {
    let graph = graph(Vec::new());
    let mut interned = interned(&graph);
    let texts = bytes(&["new", "red", "", "new", "other"]);
    let encoded = interned.encode(0, &texts).unwrap();
    assert_eq!(codes(&encoded), [3, 1, 0, 3, 4]);
    assert_eq!(interned.decode(&encoded), Ok(texts));
    assert_eq!(interned.decode(&7_u32.to_le_bytes()), Err(StringError::UnknownCode));
    let error = interned.encode(0, &[5, 0, 0, 0, b'a']).unwrap_err().to_string();
    assert_eq!(error, "the bytes of input `x` are not strings, each preceded by its length as 4 bytes");
    assert!(interned.vocabulary().is_input(0) && interned.vocabulary().is_output(0));
    let numbers = KernelGraph { buffers: Vec::new(), ..graph };
    assert!(Vocabulary::of(&numbers).is_none());
}

#[test]
fn new_strings_are_computed() {
    let split = StringOp::Split { delimiter: ",".into(), cuts_max: None };
    let counts = [2_i64, 0].map(i64::to_le_bytes).concat();
    let expected = vec![(vec![2, 2], bytes(&["a", "b", "", ""])), (vec![2], counts)];
    assert_eq!(computed(split, &[2], &["a,b", ""]), Ok(expected));
    let stopwords = vec!["RED".to_owned()];
    let normalize =
        |case_sensitive| StringOp::Normalize { case: Case::Upper, stopwords: stopwords.clone(), case_sensitive };
    assert_eq!(computed(normalize(false), &[1, 2], &["red", "b"]), Ok(vec![(vec![1, 1], bytes(&["B"]))]));
    assert_eq!(computed(normalize(true), &[2], &["red", "b"]), Ok(vec![(vec![2], bytes(&["RED", "B"]))]));
    assert_eq!(computed(normalize(false), &[1], &["red"]), Ok(vec![(vec![1], bytes(&[""]))]));
    assert!(computed(normalize(false), &[2, 1], &["a", "b"]).is_err());
    let full_match = StringOp::FullMatch { pattern: r"\d+".into() };
    assert_eq!(computed(full_match, &[2], &["12", "1a"]), Ok(vec![(vec![2], vec![1, 0])]));
    let tokens =
        StringOp::Tokenize { by: Cut::Matches(r"\w+".into()), characters_min: 1, fill: "#".into(), marks: false };
    let expected = vec![(vec![2, 2], bytes(&["a", "b", "c", "#"]))];
    assert_eq!(computed(tokens.clone(), &[2], &["a b", "c"]), Ok(expected));
    let long = "a".repeat(TOKENIZED_BYTES_MAX + 1);
    let error = computed(tokens, &[1], &[&long]).unwrap_err();
    assert!(matches!(error, StringError::TooLarge { most: TOKENIZED_BYTES_MAX, .. }), "{error}");
}

#[test]
fn strings_name_numbers() {
    let floats = [2.5_f32, -1.0].map(f32::to_le_bytes).concat();
    assert_eq!(computed(StringOp::Parse { to: DType::F32 }, &[2, 1], &["2.5", "-1"]), Ok(vec![(vec![2, 1], floats)]));
    let error = computed(StringOp::Parse { to: DType::U8 }, &[3], &["1", "2", "256"]).unwrap_err().to_string();
    assert_eq!(error, "node step: element 2 of its operand is \"256\", which is no number of type u8");
    let long = "9".repeat(100);
    let error = computed(StringOp::Parse { to: DType::I64 }, &[1], &[&long]).unwrap_err().to_string();
    assert!(error.contains(&format!("is \"{}\", which", "9".repeat(40))), "{error}");
}

#[test]
fn numbers_are_written_as_strings() {
    let write = |from, operand| {
        let mut graph = graph(vec![step(StringOp::Write { from }, &[operand])]);
        graph.buffers[0].dtype = DType::I16;
        graph
    };
    let numbers = [7_i16, -8].map(i16::to_le_bytes).concat();
    for (operand, shape) in [(StringOperand::Input(0), &[2, 1][..]), (StringOperand::Flat(0), &[2])] {
        let mut interned = interned(&write(DType::I16, operand));
        let texts = interned.compute(&[Some((&[2, 1], &numbers))]).unwrap().remove(0);
        assert_eq!((&texts.shape[..], interned.decode(&texts.bytes)), (shape, Ok(bytes(&["7", "-8"]))));
    }
    let mut interned = interned(&write(DType::I16, StringOperand::Input(0)));
    let error = interned.compute(&[Some((&[2], &numbers[..3]))]).unwrap_err().to_string();
    assert!(error.contains("has 3 bytes, and its type is i16"), "{error}");
    assert!(matches!(interned.compute(&[None]), Err(StringError::OnDevice(_))));
    let constant = StringOperand::Constant { shape: vec![1], codes: vec![1] };
    let cases = [
        (DType::I32, StringOperand::Input(0), "an operand has another type, or comes later"),
        (DType::I16, constant, "a constant has strings, and the step reads numbers"),
    ];
    for (from, operand, expected) in cases {
        assert_eq!(check(&write(from, operand)).unwrap_err().1, expected);
    }
    let refused = |op: StringOp| op.check().unwrap_err();
    assert!(refused(StringOp::Parse { to: DType::F16 }).contains("strings do not name numbers of type f16"));
    assert!(refused(StringOp::Write { from: DType::Strings }).contains("are not written as strings"));
}

#[test]
fn strings_are_joined_with_those_of_other_shapes() {
    let constant = StringOperand::Constant { shape: vec![2, 1], codes: vec![1, 2] };
    let graph = graph(vec![step(StringOp::Concat, &[constant, StringOperand::Input(0)])]);
    let mut interned = interned(&graph);
    let given = interned.encode(0, &bytes(&["a", "b"])).unwrap();
    let joined = interned.compute(&[Some((&[2], &given))]).unwrap().remove(0);
    assert_eq!(joined.shape, [2, 2]);
    assert_eq!(interned.decode(&joined.bytes), Ok(bytes(&["reda", "redb", "-a", "-b"])));
    let three = interned.encode(0, &bytes(&["a", "b", "c"])).unwrap();
    assert!(interned.compute(&[Some((&[3, 1, 1], &three))]).is_ok());
    assert!(interned.compute(&[Some((&[2], &three))]).unwrap_err().to_string().contains("has 3 strings"));
    assert!(interned.compute(&[Some((&[-3], &three))]).is_err());
    assert!(matches!(interned.compute(&[None]), Err(StringError::OnDevice(_))));
}

#[test]
fn the_work_of_a_request_is_bounded() {
    // Few strings, but many pairs of them.
    let long = "a".repeat(1 << 16);
    let flat = [StringOperand::Input(0), StringOperand::Flat(0)];
    let mut interned = interned(&graph(vec![step(StringOp::Concat, &flat)]));
    let texts: Vec<&str> = std::iter::repeat_n(long.as_str(), 100).collect();
    let given = interned.encode(0, &bytes(&texts)).unwrap();
    let error = interned.compute(&[Some((&[100, 1], &given))]).unwrap_err();
    assert!(matches!(error, StringError::TooLarge { .. }), "{error}");
}

#[test]
fn the_number_of_elements_is_bounded_even_if_they_are_empty() {
    let flat = [StringOperand::Input(0), StringOperand::Flat(0)];
    let pairs = |count: usize| {
        let mut interned = interned(&graph(vec![step(StringOp::Concat, &flat)]));
        let given = interned.encode(0, &bytes(&vec![""; count])).unwrap();
        interned.compute(&[Some((&[count as i64, 1], &given))])
    };
    assert_eq!(pairs(64).unwrap()[0].shape, [64, 64]);
    // Their codes would not exceed the limit of elements.
    let error = pairs(4096).unwrap_err();
    assert!(matches!(error, StringError::TooLarge { most: INVOCATION_STRING_WORK_MAX, .. }), "{error}");
    // Neither would the pairs of one step, but all steps together have a limit.
    let mut interned = interned(&graph(Vec::new()));
    let half = INVOCATION_STRING_WORK_MAX / STRING_ELEMENT_WORK / 2;
    assert_eq!((interned.note_work(half, 0), interned.note_work(half, 0)), (Ok(()), Ok(())));
    assert!(interned.note_work(1, 0).is_err());
}

#[test]
fn expressions_that_read_a_string_again_and_again_are_stopped() {
    let tokens = |by: Cut| StringOp::Tokenize { by, characters_min: 1, fill: String::new(), marks: false };
    let text = "a".repeat(TOKENIZED_BYTES_MAX);
    // After each token, the expression looks for a `b` up to the end.
    let pattern = "a(a*b)?".to_owned();
    for by in [Cut::Matches(pattern.clone()), Cut::Separators(vec![pattern])] {
        let error = computed(tokens(by), &[1], &[&text]).unwrap_err();
        assert!(matches!(error, StringError::TooLarge { most: INVOCATION_MATCHED_BYTES_MAX, .. }), "{error}");
    }
    let text = "a ".repeat(TOKENIZED_BYTES_MAX / 2);
    let found = computed(tokens(Cut::Matches(r"\w+".into())), &[1], &[&text]).unwrap();
    assert_eq!(found[0].0, [1, TOKENIZED_BYTES_MAX as i64 / 2]);
}

#[test]
fn inconsistent_strings_are_refused() {
    let refusal = |change: fn(&mut KernelGraph)| {
        let mut graph = graph(vec![step(StringOp::Concat, &[StringOperand::Input(0), StringOperand::Input(0)])]);
        change(&mut graph);
        check(&graph).unwrap_err().1
    };
    type Change = fn(&mut KernelGraph);
    let cases: [(Change, &str); 7] = [
        (|graph| graph.strings.table.clear(), "the first string of the table is the empty one"),
        (|graph| graph.strings.table.push("red".into()), "twice"),
        (|graph| graph.strings.steps[0].operands[0] = StringOperand::Input(1), "comes later"),
        (|graph| graph.strings.steps[0].operands.truncate(1), "another number of operands"),
        (|graph| graph.buffers[2].dtype = DType::Bool, "types of its results differ"),
        (|graph| graph.buffers.truncate(0), "fewer inputs"),
        (
            |graph| {
                let operand = StringOperand::Constant { shape: vec![2], codes: vec![1, 3] };
                graph.strings.steps[0].operands[0] = operand;
            },
            "has no strings",
        ),
    ];
    for (change, expected) in cases {
        let reason = refusal(change);
        assert!(reason.contains(expected), "{reason}");
    }
    let mut invalid = graph(vec![step(StringOp::FullMatch { pattern: "(".into() }, &[StringOperand::Input(0)])]);
    assert!(check(&invalid).unwrap_err().1.contains("cannot be compiled"));
    invalid.strings.steps.clear();
    assert_eq!(check(&invalid), Ok(()));
}
