//! Programs: what a CPU stage runs, with its options.

use crate::image::decode;
use crate::limits::{FUEL_MAX, PROGRAM_FILE_BYTES_MAX, RESIZED_PIXELS_MAX, WASM_BYTES_MAX};
use crate::options::{DecodeOptions, ResizeOptions, TokenizeOptions, WasmOptions};
use crate::resize::resize;
use crate::tensor::{Form, Tensor};
use crate::tokenizer::Tokenizer;
use crate::wasm::Module;
use atoll_protocol::DataType;
use serde::{Deserialize, Serialize};

/// What a CPU stage runs. A `tokenizer.json` and a WASM module come beside it, as a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// `x`: a JPEG or PNG file, as UINT8 or as one string. `y`: UINT8 [height, width, 3], red, green and blue.
    DecodeImage(DecodeOptions),
    /// `x`: UINT8 [height, width, 3]. `y`: FP32 [1, 3, height, width], normalised.
    ResizeImage(ResizeOptions),
    /// `x`: a UTF-8 text, as UINT8 or as one string. `ids`, `mask` and `types`: INT64 [1, tokens].
    Tokenize(TokenizeOptions),
    /// Tensors as the manifest declares them.
    Wasm(WasmOptions),
}

/// The inputs and outputs of a program, in the order of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The inputs.
    pub inputs: Vec<(String, Form)>,
    /// The outputs.
    pub outputs: Vec<(String, Form)>,
}

impl Program {
    /// Checks the options, without the file.
    ///
    /// # Errors
    /// The option that is not valid.
    pub fn check_options(&self) -> Result<(), String> {
        match self {
            Program::DecodeImage(DecodeOptions {}) => Ok(()),
            Program::ResizeImage(options) => {
                let [height, width] = options.size.map(u64::from);
                if height * width == 0 || height * width > RESIZED_PIXELS_MAX {
                    return Err(format!("`size` has to be 1 to {RESIZED_PIXELS_MAX} pixels"));
                }
                if options.shorter.is_some_and(|shorter| u64::from(shorter) < height.max(width)) {
                    return Err("`shorter` has to be at least as large as both numbers of `size`".into());
                }
                let is_bad = |std: &f32| !std.is_finite() || *std == 0.0;
                if options.std.iter().any(is_bad) || options.mean.iter().any(|mean| !mean.is_finite()) {
                    return Err("`mean` and `std` have to be finite, and `std` not 0".into());
                }
                Ok(())
            }
            Program::Tokenize(options) => match options.length {
                Some(length) if length == 0 || length > 1 << 16 => Err("`length` has to be 1 to 65536".into()),
                _ => Ok(()),
            },
            Program::Wasm(options) => {
                if options.fuel == 0 || options.fuel > FUEL_MAX {
                    return Err(format!("`fuel` has to be 1 to {FUEL_MAX}"));
                }
                if options.memory_bytes > WASM_BYTES_MAX {
                    return Err(format!("`memory_bytes` has to be at most {WASM_BYTES_MAX}"));
                }
                if options.outputs.is_empty() {
                    return Err("it needs `outputs`".into());
                }
                let bad = |(_, form): &(&String, &Form)| form.shape.iter().any(|size| *size < -1);
                match options.outputs.iter().find(bad) {
                    Some((name, form)) => Err(format!("output `{name}` cannot be {form}")),
                    None => Ok(()),
                }
            }
        }
    }

    /// The inputs and outputs. Inputs of a WASM module are the given ones, in the order of their
    /// names. A file or text is one string if strings are given.
    pub fn signature(&self, given: &[(String, Form)]) -> Signature {
        let tensor = |name: &str, datatype, shape: &[i64]| (name.to_owned(), Form { datatype, shape: shape.to_vec() });
        let bytes = || match given.first() {
            Some((_, form)) if form.datatype == DataType::Bytes => {
                vec![tensor("x", DataType::Bytes, &vec![1; form.shape.len()])]
            }
            _ => vec![tensor("x", DataType::Uint8, &[-1])],
        };
        match self {
            Program::DecodeImage(_) => {
                Signature { inputs: bytes(), outputs: vec![tensor("y", DataType::Uint8, &[-1, -1, 3])] }
            }
            Program::ResizeImage(options) => {
                let [height, width] = options.size.map(i64::from);
                Signature {
                    inputs: vec![tensor("x", DataType::Uint8, &[-1, -1, 3])],
                    outputs: vec![tensor("y", DataType::Fp32, &[1, 3, height, width])],
                }
            }
            Program::Tokenize(options) => {
                let length = options.length.map_or(-1, i64::from);
                let output = |name| tensor(name, DataType::Int64, &[1, length]);
                Signature { inputs: bytes(), outputs: ["ids", "mask", "types"].map(output).into() }
            }
            Program::Wasm(options) => {
                let mut inputs = given.to_vec();
                inputs.sort_by(|a, b| a.0.cmp(&b.0));
                let outputs = options.outputs.iter().map(|(name, form)| (name.clone(), form.clone())).collect();
                Signature { inputs, outputs }
            }
        }
    }
}

/// A program that is ready to run.
pub struct Prepared(Ready);

enum Ready {
    Decode,
    Resize(ResizeOptions),
    Tokenize(Box<Tokenizer>, TokenizeOptions),
    Wasm(Module),
}

impl Prepared {
    /// Reads and checks the file of a program. `file` is empty for a program without one.
    ///
    /// # Errors
    /// The cause, for the owner of the program.
    pub fn new(program: Program, file: &[u8]) -> Result<Prepared, String> {
        program.check_options()?;
        if file.len() > PROGRAM_FILE_BYTES_MAX {
            return Err(format!("its file has {} bytes; the limit is {PROGRAM_FILE_BYTES_MAX}", file.len()));
        }
        Ok(Prepared(match program {
            Program::DecodeImage(_) => Ready::Decode,
            Program::ResizeImage(options) => Ready::Resize(options),
            Program::Tokenize(options) => Ready::Tokenize(Box::new(Tokenizer::parse(file)?), options),
            Program::Wasm(options) => Ready::Wasm(Module::new(file, options)?),
        }))
    }

    /// Runs the program on inputs of its signature.
    ///
    /// # Errors
    /// The cause, for the sender of the inputs.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let only = || match inputs {
            [x] => Ok(x),
            _ => Err(format!("it has one input, and got {}", inputs.len())),
        };
        match &self.0 {
            Ready::Decode => decode(only()?.content()?).map(|image| vec![image]),
            Ready::Resize(options) => resize(only()?, options).map(|image| vec![image]),
            Ready::Tokenize(tokenizer, options) => tokenizer.run(only()?.content()?, options),
            Ready::Wasm(module) => module.run(inputs),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Filter;

    fn options(json: &str) -> Result<ResizeOptions, String> {
        let options: ResizeOptions = serde_json::from_str(json).map_err(|error| error.to_string())?;
        Program::ResizeImage(options.clone()).check_options().map(|()| options)
    }

    #[test]
    fn options_are_checked() {
        let usual = options(r#"{"size": [224, 224], "shorter": 256}"#).unwrap();
        assert_eq!((usual.filter, usual.mean[0], usual.std[2]), (Filter::Bilinear, 0.485, 0.225));
        for (json, expected) in [
            (r#"{"size": [0, 4]}"#, "1 to 4194304 pixels"),
            (r#"{"size": [4000000000, 4000000000]}"#, "1 to 4194304 pixels"),
            (r#"{"size": [4, 8], "shorter": 6}"#, "at least as large as both"),
            (r#"{"size": [4, 4], "std": [1.0, 0.0, 1.0]}"#, "`std` not 0"),
            (r#"{"size": [4, 4], "filter": "cubic"}"#, "unknown variant"),
            (r#"{"size": [4, 4], "sice": 1}"#, "unknown field"),
        ] {
            let error = options(json).unwrap_err();
            assert!(error.contains(expected), "{json}: {error}");
        }
        let wasm = |json: &str| {
            let mut options: WasmOptions = serde_json::from_str(json).unwrap();
            options.outputs.insert("y".into(), Form { datatype: DataType::Fp32, shape: vec![-1] });
            Program::Wasm(options).check_options()
        };
        assert_eq!(wasm("{}"), Ok(()));
        assert!(wasm(r#"{"fuel": 100000000000}"#).unwrap_err().contains("`fuel`"));
        assert!(wasm(r#"{"memory_bytes": 1000000000}"#).unwrap_err().contains("`memory_bytes`"));
    }
}
