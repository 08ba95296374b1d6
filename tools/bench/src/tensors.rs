//! Inputs from the command line, and summaries of outputs.

use crate::failure::{OrUserError, user_error};
use crate::npy;
use crate::random::Random;
use anyhow::{Context, Result};
use atoll_protocol::{DataType, Tensor, TensorMetadata, strings, to_f64};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Upper bound of random integers: valid as bytes, as tokens of every vocabulary, and as small
/// counts.
const RANDOM_INTEGER_MAX: u64 = 100;

/// What precedes a string for every element of an input.
const TEXT_PREFIX: &str = "text:";

/// Source of an input's content.
#[derive(Clone, Debug, PartialEq)]
enum Content {
    Random,
    /// Every element is this number.
    Fill(f64),
    /// Every element is this string.
    Text(String),
    /// The content of a file.
    Tensor(Tensor),
}

impl Content {
    /// Parses `random`, `text:` and a string, or a number, or reads a file.
    fn read(text: &str, name: &str) -> Result<Content> {
        if let Some(text) = text.strip_prefix(TEXT_PREFIX) {
            return Ok(Content::Text(text.into()));
        }
        match text.parse() {
            _ if text == "random" => Ok(Content::Random),
            Ok(number) => Ok(Content::Fill(number)),
            Err(_) => Ok(Content::Tensor(npy::read(Path::new(text), name).or_user_error()?)),
        }
    }
}

/// Flags of commands that generate inputs for a model.
#[derive(Clone, Debug, clap::Args)]
pub struct InputArgs {
    /// Input content: a .npy file, a number or a string for every element, or random (the default
    /// for inputs that are not given)
    #[arg(long, value_name = "NAME=FILE|NUMBER|text:STRING|random")]
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
            specs.contents.insert(name, content);
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
            Content::Random if input.datatype == DataType::Bytes => {
                generate_strings(input, self.shape(input), || random_word(random))
            }
            Content::Random => generate(input, self.shape(input), || random_element(input.datatype, random)),
            Content::Fill(_) if input.datatype == DataType::Bytes => Err(user_error(format!(
                "`{0}` has strings; give it one for every element, as in {0}={TEXT_PREFIX}word",
                input.name
            ))),
            Content::Fill(value) => generate(input, self.shape(input), || *value),
            Content::Text(text) if input.datatype == DataType::Bytes => {
                generate_strings(input, self.shape(input), || text.clone())
            }
            Content::Text(_) => {
                Err(user_error(format!("`{}` has elements of type {}, not strings", input.name, input.datatype)))
            }
        }
    }
}

/// Splits `NAME=VALUE` and checks the name.
fn named<'a>(text: &'a str, metadata: &[TensorMetadata]) -> Result<(String, &'a str)> {
    let names = || metadata.iter().map(|m| m.name.as_str()).collect::<Vec<_>>().join(", ");
    match text.split_once('=') {
        Some((name, value)) if metadata.iter().any(|m| m.name == name) => Ok((name.into(), value)),
        Some((name, _)) if !Path::new(text).exists() => {
            Err(user_error(format!("the model has no input `{name}`; it has {}", names())))
        }
        _ if metadata.len() == 1 => Ok((metadata[0].name.clone(), text)),
        _ => Err(user_error(format!("`{text}`: the input is missing, as in NAME={text}; the inputs are {}", names()))),
    }
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

fn generate_strings(input: &TensorMetadata, shape: Vec<i64>, element: impl FnMut() -> String) -> Result<Tensor> {
    let count = count(input, &shape)?;
    let texts: Vec<String> = std::iter::repeat_with(element).take(count).collect();
    let bytes = Tensor::string_bytes(texts.iter().map(String::as_bytes));
    Tensor::new(input.name.clone(), DataType::Bytes, shape, bytes).or_user_error()
}

fn generate(input: &TensorMetadata, shape: Vec<i64>, mut element: impl FnMut() -> f64) -> Result<Tensor> {
    let count = count(input, &shape)?;
    let values: Vec<f64> = (0..count).map(|_| element()).collect();
    Tensor::from_f64(input.name.clone(), input.datatype, shape, &values).or_user_error()
}

/// Largest number of generated elements: 8 GiB as f64. A larger shape is probably mistyped.
const ELEMENTS_MAX: usize = 1 << 30;

/// Writes tensors into a folder, as NAME.npy.
pub fn save(folder: &Path, outputs: &[Tensor]) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for output in outputs {
        npy::write(&saved_as(folder, output), output).or_user_error()?;
    }
    Ok(())
}

/// The file of a tensor in a folder.
pub fn saved_as(folder: &Path, tensor: &Tensor) -> PathBuf {
    // Tensor names may contain characters that are not allowed in file names.
    let name: String =
        tensor.name.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
    folder.join(format!("{name}.npy"))
}

/// Summaries of outputs as text.
pub fn summaries_text(summaries: &[Summary]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for output in summaries {
        let shape: Vec<String> = output.shape.iter().map(i64::to_string).collect();
        let (name, datatype, shape) = (&output.name, output.datatype, shape.join(", "));
        if datatype == DataType::Bytes {
            let _ = writeln!(text, "{name}: {datatype}[{shape}]  {}", output.strings.join(", "));
            continue;
        }
        let _ = writeln!(
            text,
            "{name}: {datatype}[{shape}]  min {:.6}  max {:.6}  mean {:.6}",
            output.min, output.max, output.mean
        );
        if output.not_finite > 0 {
            let _ = writeln!(text, "  {} elements are NaN or infinite", output.not_finite);
        }
        for row in &output.top {
            let cells: Vec<String> = row.iter().map(|(index, value)| format!("{index}: {value:.6}")).collect();
            let _ = writeln!(text, "  top  {}", cells.join("   "));
        }
    }
    text
}

/// Summary of an output.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Name of the output.
    pub name: String,
    /// Type of its elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// Smallest finite element.
    pub min: f64,
    /// Largest finite element.
    pub max: f64,
    /// Mean of the finite elements.
    pub mean: f64,
    /// Number of elements that are NaN or infinite.
    pub not_finite: usize,
    /// The highest elements of each row (last dimension), as (index, value), for the first rows.
    pub top: Vec<Vec<(usize, f64)>>,
    /// The first strings of an output with strings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strings: Vec<String>,
}

/// Number of strings that are shown.
const STRINGS_MAX: usize = 16;

/// Number of rows whose highest elements are shown.
const TOP_ROWS_MAX: usize = 4;

/// Summarizes an output; `top` is the number of highest elements per row.
pub fn summary(tensor: &Tensor, top: usize) -> Summary {
    let values = to_f64(tensor.datatype, &tensor.bytes);
    let finite: Vec<f64> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let row = usize::try_from(tensor.shape.last().copied().unwrap_or(1)).unwrap_or(0).max(1);
    let rows = if top == 0 { &[][..] } else { &values };
    Summary {
        name: tensor.name.clone(),
        datatype: tensor.datatype,
        shape: tensor.shape.clone(),
        min: finite.iter().copied().fold(f64::NAN, f64::min),
        max: finite.iter().copied().fold(f64::NAN, f64::max),
        mean: finite.iter().sum::<f64>() / finite.len() as f64,
        not_finite: values.len() - finite.len(),
        top: rows.chunks(row).take(TOP_ROWS_MAX).map(|row| highest(row, top)).collect(),
        strings: match tensor.datatype {
            DataType::Bytes => strings(&tensor.bytes).flatten().take(STRINGS_MAX).map(lossy).collect(),
            _ => Vec::new(),
        },
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn highest(row: &[f64], count: usize) -> Vec<(usize, f64)> {
    let mut indexed: Vec<(usize, f64)> = row.iter().copied().enumerate().collect();
    indexed.sort_by(|a, b| b.1.total_cmp(&a.1));
    indexed.truncate(count);
    indexed
}

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
    fn strings_are_generated_and_summarized() {
        let inputs = [metadata("x", DataType::Bytes, &[-1], &[]), metadata("y", DataType::Fp32, &[1], &[])];
        let specs = parse(&["x=text:red"], &["x=2"], &inputs).unwrap();
        let tensors = specs.tensors(&inputs, &mut Random::new(3)).unwrap();
        assert_eq!(tensors[0].bytes, b"\x03\0\0\0red\x03\0\0\0red");
        let found = summary(&tensors[0], 1);
        assert_eq!(found.strings, ["red", "red"]);
        assert_eq!(summaries_text(&[found]), "x: BYTES[2]  red, red\n");
        let random = InputSpecs::default().tensor(&inputs[0], &mut Random::new(3)).unwrap();
        assert_eq!(summary(&random, 1).strings.len(), 1);
        for (given, expected) in [("x=1", "`x` has strings"), ("y=text:red", "`y` has elements of type FP32")] {
            let specs = parse(&[given], &[], &inputs).unwrap();
            let message = specs.tensors(&inputs, &mut Random::new(3)).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_summary_contains_the_highest_elements() {
        let bytes = [0.5_f32, 2.0, f32::NAN, -1.0].map(f32::to_le_bytes).concat();
        let found = summary(&Tensor::new("t", DataType::Fp32, vec![2, 2], bytes).unwrap(), 1);
        assert_eq!((found.min, found.max, found.mean, found.not_finite), (-1.0, 2.0, 0.5, 1));
        assert_eq!(found.top[0], [(1, 2.0)]);
    }
}
