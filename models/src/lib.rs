//! The benchmark models as ONNX files, built with seeded random weights.
//!
//! Benchmarks need the architectures, not the weights. The statistics, scales and biases of batch
//! normalizations are also random, so that a wrong fold is visible; a freshly initialized network,
//! all ones and zeros, would hide it.
//!
//! The crate also has [`functions`] that are not models, and [`mixes`] of requests to compare
//! residency policies.
//!
//! Not here: trained models. `models/fetch.py` downloads some from published packages.
//!
//! Invariant: the same name, seed and options give the same bytes on every machine.
//!
//! Start reading at [`build`].

mod builder;
mod convnext;
mod densenet;
mod distilbert;
pub mod functions;
mod gpt2;
mod inception;
pub mod mixes;
mod mobilenet;
mod random;
mod recurrent;
mod resnet;
mod squeezenet;
mod transformer;
mod unet3d;
mod vgg;
mod vit;

use atoll_frontend::onnx::proto::{DataType, ModelProto};
use builder::{Builder, Size};
use prost::Message;

/// Options of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BuildOptions {
    /// Seed of the weights.
    pub seed: u64,
    /// Factor on every channel count; 1 is the published architecture. Small factors make fast
    /// tests.
    pub width: f64,
    /// Height and width of the image in pixels, or the sequence length; `None` for the published
    /// size.
    pub image: Option<u32>,
    /// Whether batch size and sequence length are the symbols `batch` and `sequence` instead of
    /// numbers.
    pub symbolic: bool,
}

impl Default for BuildOptions {
    fn default() -> BuildOptions {
        BuildOptions { seed: 0, width: 1.0, image: None, symbolic: false }
    }
}

/// A model architecture.
#[derive(Debug)]
pub struct Architecture {
    /// The name on the command line.
    pub name: &'static str,
    /// Published image size in pixels, or sequence length.
    pub image: u32,
    /// Smallest size that its strides allow.
    pub image_min: u32,
    build: fn(&mut Builder, u32),
}

/// Every architecture, in the order of the documentation.
pub const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        name: "resnet18",
        image: 224,
        image_min: 32,
        build: |b, image| resnet::build(b, image, &resnet::RESNET18),
    },
    Architecture {
        name: "resnet50",
        image: 224,
        image_min: 32,
        build: |b, image| resnet::build(b, image, &resnet::RESNET50),
    },
    Architecture {
        name: "resnet152",
        image: 224,
        image_min: 32,
        build: |b, image| resnet::build(b, image, &resnet::RESNET152),
    },
    Architecture {
        name: "densenet121",
        image: 224,
        image_min: 32,
        build: |b, image| densenet::build(b, image, &[6, 12, 24, 16]),
    },
    Architecture {
        name: "densenet201",
        image: 224,
        image_min: 32,
        build: |b, image| densenet::build(b, image, &[6, 12, 48, 32]),
    },
    Architecture { name: "vgg19", image: 224, image_min: 32, build: vgg::build },
    Architecture { name: "inception_v3", image: 299, image_min: 75, build: inception::build },
    Architecture { name: "squeezenet", image: 224, image_min: 32, build: squeezenet::build },
    Architecture { name: "mobilenet_v2", image: 224, image_min: 32, build: mobilenet::build },
    Architecture { name: "null", image: 16, image_min: 1, build: null },
    Architecture { name: "distilbert", image: 128, image_min: 2, build: distilbert::build },
    Architecture { name: "vit_b_16", image: 224, image_min: 32, build: vit::build },
    Architecture { name: "gpt2", image: 64, image_min: 2, build: gpt2::build },
    Architecture { name: "lstm", image: 100, image_min: 1, build: recurrent::lstm },
    Architecture { name: "convnext_tiny", image: 224, image_min: 32, build: convnext::build },
    Architecture {
        name: "resnext50",
        image: 224,
        image_min: 32,
        build: |b, image| resnet::build(b, image, &resnet::RESNEXT50),
    },
    Architecture { name: "rnnt", image: 100, image_min: 2, build: recurrent::rnnt },
    Architecture { name: "gnmt", image: 25, image_min: 1, build: recurrent::gnmt },
    Architecture { name: "unet3d", image: 128, image_min: 32, build: unet3d::build },
];

/// Models for benchmarks of serving. No published architectures.
const OF_SERVING: &[Architecture] = &[Architecture { name: "mlp", image: 1024, image_min: 8, build: mlp }];

/// Eight layers of square matrices: reading the weights takes nearly all the time of a single row.
fn mlp(b: &mut Builder, width: u32) {
    let shape = [Size::Batch, width.into()];
    let mut x = b.input("input", DataType::Float, &shape);
    for layer in 0..8 {
        x = b.gemm(&x, width, width);
        if layer < 7 {
            x = b.relu(&x);
        }
    }
    b.output("output", &x, &shape);
}

/// A model that computes almost nothing: its latency is the overhead of the system.
fn null(b: &mut Builder, elements: u32) {
    let shape = [Size::Batch, elements.into()];
    let x = b.input("input", DataType::Float, &shape);
    let x = b.relu(&x);
    b.output("output", &x, &shape);
}

/// Errors of [`build`].
#[derive(Debug, PartialEq, Eq)]
pub enum BuildError {
    /// There is no architecture with this name.
    Unknown(String),
    /// The image is too small for the architecture's strides.
    ImageTooSmall {
        /// The requested size.
        image: u32,
        /// The smallest allowed size.
        least: u32,
    },
}

impl std::fmt::Display for BuildError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BuildError::Unknown(name) => {
                let names: Vec<_> = ARCHITECTURES.iter().map(|a| a.name).collect();
                write!(f, "there is no model {name}; there are {}", names.join(", "))
            }
            BuildError::ImageTooSmall { image, least } => {
                write!(f, "an input of size {image} is too small for this model, it needs at least {least}")
            }
        }
    }
}

impl std::error::Error for BuildError {}

/// Builds a model.
pub fn build(name: &str, options: &BuildOptions) -> Result<ModelProto, BuildError> {
    let architecture = ARCHITECTURES
        .iter()
        .chain(OF_SERVING)
        .find(|a| a.name == name)
        .ok_or_else(|| BuildError::Unknown(name.into()))?;
    let image = options.image.unwrap_or(architecture.image);
    if image < architecture.image_min {
        return Err(BuildError::ImageTooSmall { image, least: architecture.image_min });
    }
    let mut builder = Builder::new(name, options.seed, options.width, options.symbolic);
    (architecture.build)(&mut builder, image);
    Ok(builder.finish())
}

/// Builds a model and encodes it as an ONNX file.
pub fn build_onnx(name: &str, options: &BuildOptions) -> Result<Vec<u8>, BuildError> {
    build(name, options).map(|model| model.encode_to_vec())
}
