//! Inputs from the command line, and summaries of outputs.

mod outputs;

pub use outputs::{Summary, TEXT_CHARACTERS_MAX, is_array, save, saved_as, string_saved_as, summaries_text, summary};

use crate::failure::{OrUserError, user_error};
use crate::npy;
use crate::random::Random;
use anyhow::{Context, Result};
use atoll_protocol::{DataType, Tensor, TensorMetadata};
use std::collections::BTreeMap;
use std::path::Path;

/// Upper bound of random integers: valid as bytes, as tokens of every vocabulary, and as small
/// counts.
const RANDOM_INTEGER_MAX: u64 = 100;

/// Prefix of a text that is the content of an input, as in `text:a text`.
const TEXT: &str = "text:";
/// Prefix of the path of a file whose bytes are the content of an input, as in `file:image.jpg`.
const FILE: &str = "file:";

/// Source of an input's content.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    Random,
    /// Every element is this number.
    Fill(f64),
    /// The content of a file with an array.
    Tensor(Tensor),
    /// Texts or files of any format: the elements of a BYTES input, or the bytes of a UINT8 input.
    Strings(Vec<Vec<u8>>),
}

impl Content {
    /// Parses `random`, a number or `text:TEXT`, or reads a file.
    fn read(text: &str, name: &str) -> Result<Content> {
        if let Some(text) = text.strip_prefix(TEXT) {
            return Ok(Content::Strings(vec![text.into()]));
        }
        if let Some(path) = text.strip_prefix(FILE) {
            let bytes = std::fs::read(path).with_context(|| format!("cannot read {path}")).or_user_error()?;
            return Ok(Content::Strings(vec![bytes]));
        }
        match text.parse() {
            _ if text == "random" => Ok(Content::Random),
            Ok(number) => Ok(Content::Fill(number)),
            Err(_) if !Path::new(text).exists() => Err(user_error(format!(
                "`{name}={text}`: there is no file `{text}`, and it is neither a number nor `random`"
            ))),
            Err(_) => Ok(Content::Tensor(npy::read(Path::new(text), name).or_user_error()?)),
        }
    }
}

/// Flags of commands that generate inputs for a model.
#[derive(Clone, Debug, clap::Args)]
pub struct InputArgs {
    /// Input content: a .npy file, a number or a string for every element, or random (the default
    /// for inputs that are not given); for inputs of type UINT8 or BYTES also the bytes of any file.
    /// For BYTES, repeat the flag to give several strings
    #[arg(long, value_name = "NAME=FILE|NUMBER|random|file:FILE|text:TEXT")]
    input: Vec<String>,

    /// Shape of an input that does not come from a file. A variable size has the same value in all
    /// inputs; it is 1 unless a shape or a file determines it
    #[arg(long, value_name = "NAME=SIZES")]
    shape: Vec<String>,

    /// Seed of random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl InputArgs {
    /// Whether neither contents nor shapes are given.
    pub fn is_empty(&self) -> bool {
        self.input.is_empty() && self.shape.is_empty()
    }

    /// A tensor for every input of the model.
    pub fn tensors(&self, metadata: &[TensorMetadata]) -> Result<Vec<Tensor>> {
        self.tensors_with(metadata, None)
    }

    /// A tensor for every input of the model, with a size for one of its symbols.
    ///
    /// # Errors
    /// Mistakes of the user, for example an argument that gives the symbol another size.
    pub fn tensors_with(&self, metadata: &[TensorMetadata], symbol: Option<(&str, i64)>) -> Result<Vec<Tensor>> {
        let mut specs = InputSpecs::parse(&self.input, &self.shape, metadata)?;
        if let Some((symbol, size)) = symbol {
            let known = specs.symbols.insert(symbol.into(), (size, "--batch".into()));
            if let Some((known, by)) = known.filter(|(known, _)| *known != size) {
                return Err(user_error(format!("{by} sets `{symbol}` to {known}, but --batch sets it to {size}")));
            }
        }
        specs.tensors(metadata, &mut Random::new(self.seed))
    }
}

/// Contents and shapes of inputs from the command line.
#[derive(Clone, Debug, Default)]
pub struct InputSpecs {
    contents: BTreeMap<String, Content>,
    shapes: BTreeMap<String, Vec<i64>>,
    /// Values of the model's symbols, each with the argument that determines it.
    symbols: BTreeMap<String, (i64, String)>,
}

impl InputSpecs {
    /// Parses `NAME=CONTENT` and `NAME=SHAPE`, and reads files. The name is optional for a model
    /// with one input.
    ///
    /// # Errors
    /// Mistakes of the user, for example two arguments that give a symbol different values.
    pub fn parse(inputs: &[String], shapes: &[String], metadata: &[TensorMetadata]) -> Result<InputSpecs> {
        let mut specs = InputSpecs::default();
        for text in shapes {
            let (name, shape) = named(text, metadata)?;
            let sizes: Result<Vec<i64>, _> = shape.split([',', 'x']).map(|size| size.trim().parse()).collect();
            let sizes =
                sizes.map_err(|_| user_error(format!("--shape {text}: expected sizes, as in {name}=1,3,224,224")))?;
            specs.bind(&name, &sizes, &format!("--shape {text}"), metadata)?;
            specs.shapes.insert(name, sizes);
        }
        for text in inputs {
            let (name, content) = named(text, metadata)?;
            let content = Content::read(content, &name)?;
            if let Content::Tensor(tensor) = &content {
                specs.bind(&name, &tensor.shape, &format!("{text} of shape {:?}", tensor.shape), metadata)?;
            }
            // Each argument gives one of the strings.
            let content = match (content, specs.contents.remove(&name)) {
                (Content::Strings(more), Some(Content::Strings(strings))) => {
                    Content::Strings(strings.into_iter().chain(more).collect())
                }
                (content, _) => content,
            };
            specs.contents.insert(name, content);
        }
        for input in metadata {
            if let Some(Content::Strings(strings)) = specs.contents.get(&input.name) {
                if input.datatype == DataType::Bytes && strings.len() == 1 {
                    continue; // One string fits every shape.
                }
                let shape = string_shape(input, specs.shapes.get(&input.name), strings)?;
                specs.bind(&input.name, &shape, &format!("`{}` of shape {shape:?}", input.name), metadata)?;
            }
        }
        Ok(specs)
    }

    /// Takes the values of symbols from the shape of an input. Ignores a shape of a different rank,
    /// since the model will refuse it.
    fn bind(&mut self, name: &str, shape: &[i64], argument: &str, metadata: &[TensorMetadata]) -> Result<()> {
        let symbols = metadata.iter().find(|input| input.name == name).map_or(&[][..], |input| &input.symbols);
        if symbols.len() != shape.len() {
            return Ok(());
        }
        for (symbol, &size) in symbols.iter().zip(shape).filter(|(symbol, _)| !symbol.is_empty()) {
            let (known, by) = self.symbols.entry(symbol.clone()).or_insert_with(|| (size, argument.into()));
            if *known != size {
                return Err(user_error(format!("{by} sets `{symbol}` to {known}, but {argument} sets it to {size}")));
            }
        }
        Ok(())
    }

    /// The shape of a generated input. Symbols without a value are 1.
    fn shape(&self, input: &TensorMetadata) -> Vec<i64> {
        if let Some(shape) = self.shapes.get(&input.name) {
            return shape.clone();
        }
        let bound = |dimension: usize| self.symbols.get(input.symbols.get(dimension)?).map(|(size, _)| *size);
        let sizes = input.shape.iter().enumerate();
        sizes.map(|(dimension, &size)| if size < 0 { bound(dimension).unwrap_or(1) } else { size }).collect()
    }

    /// A tensor for every input of the model.
    pub fn tensors(&self, metadata: &[TensorMetadata], random: &mut Random) -> Result<Vec<Tensor>> {
        metadata.iter().map(|input| self.tensor(input, random)).collect()
    }

    /// A tensor for one input of the model.
    pub fn tensor(&self, input: &TensorMetadata, random: &mut Random) -> Result<Tensor> {
        match self.contents.get(&input.name).unwrap_or(&Content::Random) {
            Content::Tensor(tensor) => Ok(tensor.clone()),
            Content::Strings(strings) => self.of_strings(input, strings),
            Content::Fill(_) if input.datatype == DataType::Bytes => Err(user_error(format!(
                "input `{name}` takes strings; give each as {name}=text:TEXT or {name}=file:FILE",
                name = input.name
            ))),
            Content::Random if input.datatype == DataType::Bytes => {
                let shape = self.shape(input);
                let words: Vec<String> =
                    std::iter::repeat_with(|| random_word(random)).take(count(input, &shape)?).collect();
                of_elements(input, shape, words.iter().map(String::as_bytes))
            }
            Content::Random => generate(input, self.shape(input), || random_element(input.datatype, random)),
            Content::Fill(value) => generate(input, self.shape(input), || *value),
        }
    }

    /// An input from strings. They are the elements of a BYTES input, where a single string is repeated
    /// for every element, or the bytes of a UINT8 input.
    fn of_strings(&self, input: &TensorMetadata, strings: &[Vec<u8>]) -> Result<Tensor> {
        if let ([string], DataType::Bytes) = (strings, input.datatype) {
            let shape = self.shape(input);
            let count = count(input, &shape)?;
            return of_elements(input, shape, std::iter::repeat_n(string.as_slice(), count));
        }
        let shape = string_shape(input, self.shapes.get(&input.name), strings)?;
        match input.datatype {
            DataType::Bytes => of_elements(input, shape, strings.iter().map(Vec::as_slice)),
            datatype => Tensor::new(input.name.clone(), datatype, shape, strings.concat()).or_user_error(),
        }
    }
}

/// Splits `NAME=VALUE` and checks the name.
fn named<'a>(text: &'a str, metadata: &[TensorMetadata]) -> Result<(String, &'a str)> {
    let names = || metadata.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", ");
    match text.split_once('=') {
        Some((name, value)) if metadata.iter().any(|m| m.name == name) => Ok((name.into(), value)),
        Some((name, _)) if !Path::new(text).exists() && !is_unnamed(text) => {
            Err(user_error(format!("the model has no input `{name}`; it has {}", names())))
        }
        _ if metadata.len() == 1 => Ok((metadata[0].name.clone(), text)),
        _ => Err(user_error(format!("`{text}`: the input is missing, as in NAME={text}; the inputs are {}", names()))),
    }
}

/// Whether an argument is a text or a file without the name of its input.
fn is_unnamed(text: &str) -> bool {
    text.starts_with(TEXT) || text.starts_with(FILE)
}

/// The shape of an input that is given as strings: `given`, or the input's own shape with its first
/// variable size chosen so that all elements fit, and 1 for the others.
///
/// # Errors
/// The input takes neither strings nor bytes, or only one string.
fn string_shape(input: &TensorMetadata, given: Option<&Vec<i64>>, strings: &[Vec<u8>]) -> Result<Vec<i64>> {
    let name = &input.name;
    let count = match input.datatype {
        DataType::Bytes => strings.len(),
        DataType::Uint8 if strings.len() == 1 => strings[0].len(),
        DataType::Uint8 => {
            return Err(user_error(format!(
                "input `{name}` is given {} times; it takes one text or file",
                strings.len()
            )));
        }
        other => {
            return Err(user_error(format!(
                "input `{name}` takes {other}; `{TEXT}` and `{FILE}` are for UINT8 and BYTES"
            )));
        }
    };
    if let Some(given) = given {
        return Ok(given.clone());
    }
    let fixed =
        input.shape.iter().filter(|size| **size > 0).try_fold(1_i64, |product, size| product.checked_mul(*size));
    let fixed = fixed.ok_or_else(|| user_error(format!("invalid shape {:?} of `{name}`", input.shape)))?;
    let mut left = Some((count as i64 / fixed.max(1)).max(i64::from(count > 0)));
    let size = |size: &i64| if *size < 0 { left.take().unwrap_or(1) } else { *size };
    Ok(input.shape.iter().map(size).collect())
}

/// A BYTES input from its elements.
fn of_elements<'a>(
    input: &TensorMetadata,
    shape: Vec<i64>,
    elements: impl Iterator<Item = &'a [u8]>,
) -> Result<Tensor> {
    let bytes = Tensor::string_bytes(elements);
    Tensor::new(input.name.clone(), DataType::Bytes, shape, bytes).or_user_error()
}

fn random_element(datatype: DataType, random: &mut Random) -> f64 {
    match datatype {
        DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64 => random.normal(),
        DataType::Bool => (random.next_u64() & 1) as f64,
        _ => (random.next_u64() % RANDOM_INTEGER_MAX) as f64,
    }
}

/// A word of 1 to 8 small letters.
fn random_word(random: &mut Random) -> String {
    let length = 1 + random.next_u64() % 8;
    (0..length).map(|_| char::from(b'a' + (random.next_u64() % 26) as u8)).collect()
}

/// The number of elements of a shape to generate.
fn count(input: &TensorMetadata, shape: &[i64]) -> Result<usize> {
    let count = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
    count
        .filter(|n| *n <= ELEMENTS_MAX)
        .ok_or_else(|| user_error(format!("invalid shape {shape:?} of `{}`", input.name)))
}

fn generate(input: &TensorMetadata, shape: Vec<i64>, mut element: impl FnMut() -> f64) -> Result<Tensor> {
    let count = count(input, &shape)?;
    let values: Vec<f64> = (0..count).map(|_| element()).collect();
    Tensor::from_f64(input.name.clone(), input.datatype, shape, &values).or_user_error()
}

/// Largest number of generated elements: 8 GiB as f64. A larger shape is probably mistyped.
const ELEMENTS_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(name: &str, datatype: DataType, shape: &[i64], symbols: &[&str]) -> TensorMetadata {
        TensorMetadata {
            name: name.into(),
            datatype,
            shape: shape.to_vec(),
            symbols: symbols.iter().map(|s| (*s).into()).collect(),
        }
    }

    fn parse(given: &[&str], shapes: &[&str], inputs: &[TensorMetadata]) -> Result<InputSpecs> {
        let [given, shapes] = [given, shapes].map(|list| list.iter().map(|text| text.to_string()).collect::<Vec<_>>());
        InputSpecs::parse(&given, &shapes, inputs)
    }

    #[test]
    fn inputs_are_generated_as_specified() {
        let inputs = [metadata("x", DataType::Fp32, &[-1, 3], &[]), metadata("rate", DataType::Int64, &[], &[])];
        let specs = parse(&["rate=16000"], &["x=2,3"], &inputs).unwrap();
        let tensors = specs.tensors(&inputs, &mut Random::new(3)).unwrap();
        assert_eq!((tensors[0].shape.as_slice(), tensors[0].bytes.len()), (&[2, 3][..], 24));
        assert_eq!(tensors[1].bytes, 16000_i64.to_le_bytes());
        assert_eq!(
            specs.tensors(&inputs, &mut Random::new(3)).unwrap(),
            tensors,
            "the same seed gives the same inputs"
        );
        assert_eq!(InputSpecs::default().tensors(&inputs, &mut Random::new(3)).unwrap()[0].shape, [1, 3]);
    }

    #[test]
    fn a_shape_binds_its_symbols_for_every_input() {
        let ids = |name: &str| metadata(name, DataType::Int64, &[-1, -1], &["batch", "length"]);
        let inputs =
            [ids("ids"), ids("mask"), metadata("bias", DataType::Fp32, &[-1, 4, -1], &["length", "", "other"])];
        let shapes = |specs: &InputSpecs| -> Vec<Vec<i64>> {
            specs.tensors(&inputs, &mut Random::new(3)).unwrap().into_iter().map(|tensor| tensor.shape).collect()
        };
        assert_eq!(shapes(&parse(&[], &["mask=2,64"], &inputs).unwrap()), [vec![2, 64], vec![2, 64], vec![64, 4, 1]]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ids.npy");
        npy::write(&file, &Tensor::new("ids", DataType::Int64, vec![3, 5], vec![0; 120]).unwrap()).unwrap();
        let from_file = format!("ids={}", file.display());
        assert_eq!(
            shapes(&parse(&[&from_file], &[], &inputs).unwrap()),
            [vec![3, 5], vec![3, 5], vec![5, 4, 1]],
            "and so does a file"
        );

        let message = |given: &[&str], shapes: &[&str]| parse(given, shapes, &inputs).unwrap_err().to_string();
        let both = message(&[], &["ids=1,64", "mask=1,32"]);
        assert_eq!(both, "--shape ids=1,64 sets `length` to 64, but --shape mask=1,32 sets it to 32");
        assert_eq!(
            message(&[], &["ids=1,64", "bias=8,4,1"]),
            "--shape ids=1,64 sets `length` to 64, but --shape bias=8,4,1 sets it to 8"
        );
        let beside_file = message(&[&from_file], &["mask=3,6"]);
        assert!(
            beside_file.starts_with("--shape mask=3,6 sets `length` to 6, but ids=")
                && beside_file.ends_with("sets it to 5"),
            "{beside_file}"
        );
        let within = [metadata("square", DataType::Fp32, &[-1, -1], &["n", "n"])];
        assert!(parse(&[], &["square=2,3"], &within).unwrap_err().to_string().contains("sets `n` to 2"));
    }

    #[test]
    fn mistakes_name_the_inputs() {
        let inputs = [metadata("x", DataType::Fp32, &[1], &[]), metadata("y", DataType::Uint8, &[1], &[])];
        for (given, shapes, expected) in [
            (&["z=1"][..], &[][..], "no input `z`; it has x, y"),
            (&["random"], &[], "NAME=random"),
            (&[], &["x=1,a"], "expected sizes"),
            (&["x=nowhere.npy"], &[], "nowhere.npy"),
        ] {
            let message = parse(given, shapes, &inputs).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        let specs = parse(&["y=300"], &[], &inputs).unwrap();
        assert!(
            specs
                .tensors(&inputs[1..], &mut Random::new(0))
                .unwrap_err()
                .to_string()
                .contains("300 is not a valid UINT8")
        );
    }

    #[test]
    fn strings_are_texts_and_files_of_any_format() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a=b.txt");
        std::fs::write(&file, [0xff, b'a']).unwrap();
        let from_file = format!("x=file:{}", file.display());
        let read = |datatype, shape: &[i64], given: &[&str], shapes: &[&str]| {
            let inputs = [metadata("x", datatype, shape, &[]), metadata("y", DataType::Fp32, &[1], &[])];
            let specs = parse(given, shapes, &inputs).map_err(|error| error.to_string())?;
            let tensor = specs.tensor(&inputs[0], &mut Random::new(0)).map_err(|error| error.to_string())?;
            Ok::<_, String>((tensor.shape, tensor.bytes))
        };
        let bytes = DataType::Bytes;
        assert_eq!(read(bytes, &[1], &["x=text:a=b"], &[]), Ok((vec![1], b"\x03\0\0\0a=b".to_vec())));
        let two = b"\0\0\0\0\x02\0\0\0\xffa".to_vec();
        assert_eq!(read(bytes, &[-1], &["x=text:", &from_file], &[]), Ok((vec![2], two.clone())));
        assert_eq!(read(bytes, &[-1, -1], &["x=text:", &from_file], &["x=1,2"]), Ok((vec![1, 2], two.clone())));
        assert_eq!(read(bytes, &[-1, 2, -1], &["x=text:", &from_file], &[]), Ok((vec![1, 2, 1], two)));
        let repeated = b"\x01\0\0\0a\x01\0\0\0a".to_vec();
        assert_eq!(read(bytes, &[-1, 2], &["x=text:a"], &[]), Ok((vec![1, 2], repeated)));
        assert_eq!(read(bytes, &[1], &[], &[]).map(|(shape, _)| shape), Ok(vec![1]));
        assert_eq!(read(DataType::Uint8, &[-1], &[&from_file], &[]), Ok((vec![2], vec![0xff, b'a'])));
        assert_eq!(read(DataType::Uint8, &[1, -1], &["x=text:"], &[]), Ok((vec![1, 0], Vec::new())));
        for (datatype, shape, given, expected) in [
            (bytes, &[1][..], &["x=text:a", "x=text:b"][..], "2 strings, but its shape needs 1"),
            (bytes, &[-1, 2], &["x=text:a", "x=text:b", "x=text:c"], "3 strings, but its shape needs 2"),
            (bytes, &[-1, i64::MAX, 2], &["x=text:a", "x=text:b"], "invalid shape"),
            (bytes, &[1], &["text:a=b"], "the input is missing, as in NAME=text:a=b"),
            (bytes, &[1], &["x=5"], "give each as x=text:TEXT or x=file:FILE"),
            (bytes, &[1], &["x=file:/nowhere"], "cannot read /nowhere"),
            (DataType::Fp32, &[1], &["x=1,5"], "there is no file `1,5`, and it is neither a number nor `random`"),
            (DataType::Uint8, &[-1], &["x=text:a", "x=text:b"], "given 2 times; it takes one text or file"),
            (DataType::Uint8, &[3], &["x=text:ab"], "has 2 bytes, but shape [3] of UINT8 needs 3"),
            (DataType::Fp32, &[-1], &["x=text:ab"], "takes FP32"),
        ] {
            let message = read(datatype, shape, given, &[]).unwrap_err();
            assert!(message.contains(expected), "{given:?}: {message}");
        }
        // One string sets no size, and needs no name if the model has one input.
        let inputs = [metadata("x", bytes, &[-1], &["n"]), metadata("y", DataType::Fp32, &[-1], &["n"])];
        let tensors = parse(&["x=text:a"], &["y=3"], &inputs).unwrap().tensors(&inputs, &mut Random::new(0)).unwrap();
        assert_eq!(tensors[0].shape, [3]);
        assert!(parse(&["text:a=b"], &[], &inputs[..1]).is_ok());
    }
}
