//! The options of programs.

use crate::limits::{FUEL_DEFAULT, WASM_BYTES_DEFAULT};
use crate::tensor::Form;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The options of [`crate::Program::DecodeImage`]: none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeOptions {}

/// The options of [`crate::Program::ResizeImage`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeOptions {
    /// Height and width of the output in pixels.
    pub size: [u32; 2],
    /// If given, the image is resized so that its shorter side has this many pixels, and its centre
    /// is cut out. Otherwise the whole image is resized to `size`, and its proportions may change.
    pub shorter: Option<u32>,
    /// How pixels are computed.
    #[serde(default)]
    pub filter: Filter,
    /// Subtracted from each channel, whose values are 0 to 1.
    #[serde(default = "imagenet_mean")]
    pub mean: [f32; 3],
    /// Divides each channel.
    #[serde(default = "imagenet_std")]
    pub std: [f32; 3],
}

/// How the pixels of a resized image are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// The mean of the neighbours, weighted by a triangle that covers all source pixels of a target
    /// pixel, as in Pillow.
    #[default]
    Bilinear,
    /// The nearest source pixel.
    Nearest,
}

/// The options of [`crate::Program::Tokenize`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizeOptions {
    /// Name of the `tokenizer.json`.
    pub tokenizer: String,
    /// If given, the number of tokens: longer texts are cut, and shorter ones are padded with
    /// `pad`.
    pub length: Option<u32>,
    /// The id of the padding token.
    #[serde(default)]
    pub pad: u32,
}

/// The options of [`crate::Program::Wasm`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WasmOptions {
    /// Most instructions of a call.
    #[serde(default = "fuel_default")]
    pub fuel: u64,
    /// Most linear memory in bytes.
    #[serde(default = "wasm_bytes_default")]
    pub memory_bytes: u64,
    /// The outputs by name. A manifest states them beside the options.
    #[serde(default)]
    pub outputs: BTreeMap<String, Form>,
}

fn imagenet_mean() -> [f32; 3] {
    [0.485, 0.456, 0.406]
}

fn imagenet_std() -> [f32; 3] {
    [0.229, 0.224, 0.225]
}

fn fuel_default() -> u64 {
    FUEL_DEFAULT
}

fn wasm_bytes_default() -> u64 {
    WASM_BYTES_DEFAULT
}
