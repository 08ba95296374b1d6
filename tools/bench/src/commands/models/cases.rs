//! The models to measure, and their shapes.

use crate::failure::{user_error, users};
use anyhow::{Context, Result};
use atoll_kgraph::{Bundle, SizeRange, SizeRanges};
use atoll_models::{ARCHITECTURES, Architecture, BuildOptions, build_onnx};
use atoll_pipeline::{CompileOptions, Silent, Target, compile};
use clap::ValueEnum;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The models measured by default.
pub(super) const DEFAULTS: [&str; 10] = [
    "resnet50",
    "mobilenet_v2",
    "squeezenet",
    "densenet121",
    "distilbert",
    "vit_b_16",
    "magika",
    "gpt2",
    "lstm",
    "convnext_tiny",
];

/// Models that `make setup` downloads.
const TRAINED: [&str; 3] = ["magika", "common_det", "silero_vad"];

/// How the open sizes of a model are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Variant {
    /// Every size is a constant
    Static,
    /// Batch and sequence are symbols
    Symbolic,
}

/// Values of symbols by name.
pub(super) type Sizes = BTreeMap<String, i64>;

/// Source of a model.
pub(super) enum Source {
    Built(&'static Architecture),
    File(PathBuf),
}

/// A model, ready to be measured.
pub(super) struct Prepared {
    pub(super) variant: Variant,
    /// The ONNX file for the peer.
    pub(super) file: PathBuf,
    pub(super) bundle: Arc<Bundle>,
    /// Compile time, without the kernel cache.
    pub(super) compile: Duration,
}

impl Source {
    /// An `.onnx` file, a downloaded model, or a model built here.
    pub(super) fn find(name: &str) -> Result<Source> {
        if name.ends_with(".onnx") {
            return if Path::new(name).exists() {
                Ok(Source::File(name.into()))
            } else {
                Err(user_error(format!("file {name} does not exist")))
            };
        }
        if let Some(architecture) = ARCHITECTURES.iter().find(|architecture| architecture.name == name) {
            return Ok(Source::Built(architecture));
        }
        if !TRAINED.contains(&name) {
            let names: Vec<&str> = ARCHITECTURES.iter().map(|a| a.name).chain(TRAINED).collect();
            return Err(user_error(format!("unknown model {name}; use {}, or an .onnx file", names.join(", "))));
        }
        let folder = std::env::var_os("ATOLL_MODELS_DIR")
            .map(PathBuf::from)
            .or_else(|| Some(std::env::home_dir()?.join(".cache/atoll/models")));
        let file =
            folder.context("neither ATOLL_MODELS_DIR nor HOME is set").map_err(users)?.join(format!("{name}.onnx"));
        if file.exists() {
            Ok(Source::File(file))
        } else {
            Err(user_error(format!("{} is missing; run `make setup`", file.display())))
        }
    }

    /// The value of a symbol if the command line gives none.
    fn size(&self, symbol: &str, sizes: &Sizes) -> i64 {
        let published = match self {
            Source::Built(architecture) if symbol == "sequence" => architecture.image.into(),
            _ => 1,
        };
        sizes.get(symbol).copied().unwrap_or(published)
    }

    /// Values of a bundle's symbols.
    pub(super) fn sizes(&self, bundle: &Bundle, sizes: &Sizes) -> Sizes {
        bundle.graph().symbols.iter().map(|symbol| (symbol.name.clone(), self.size(&symbol.name, sizes))).collect()
    }

    /// The model in one variant; `None` if that does not exist.
    pub(super) fn prepare(&self, variant: Variant, sizes: &Sizes, folder: &Path) -> Result<Option<Prepared>> {
        let file = match self {
            Source::File(file) => file.clone(),
            Source::Built(architecture) => {
                let file = folder.join("model.onnx");
                // A batch larger than one needs a symbolic model, with the symbol fixed.
                let symbolic = variant == Variant::Symbolic || self.size("batch", sizes) > 1;
                let image = sizes.get("sequence").and_then(|sequence| u32::try_from(*sequence).ok());
                let build = BuildOptions { symbolic, image, ..BuildOptions::default() };
                let bytes = build_onnx(architecture.name, &build).map_err(|error| users(anyhow::Error::new(error)))?;
                std::fs::write(&file, bytes).with_context(|| file.display().to_string())?;
                file
            }
        };
        let (bundle, compile) = compiled(&file, &folder.join("model.kg"), &SizeRanges::new())?;
        let symbols = &bundle.graph().symbols;
        if symbols.is_empty() || variant == Variant::Symbolic {
            let is_there = symbols.is_empty() == (variant == Variant::Static);
            return Ok(is_there.then_some(Prepared { variant, file, bundle, compile }));
        }
        let fixed = symbols.iter().map(|symbol| self.fixed(&symbol.name, sizes)).collect();
        let (bundle, compile) = compiled(&file, &folder.join("static.kg"), &fixed)?;
        Ok(Some(Prepared { variant, file, bundle, compile }))
    }

    fn fixed(&self, symbol: &str, sizes: &Sizes) -> (String, SizeRange) {
        let size = self.size(symbol, sizes);
        (symbol.to_owned(), SizeRange { min: size, max: size })
    }
}

/// Compiles for this machine, without the kernel cache.
fn compiled(model: &Path, bundle: &Path, symbols: &SizeRanges) -> Result<(Arc<Bundle>, Duration)> {
    let options = CompileOptions {
        targets: vec![Target::this_host()],
        symbols: symbols.clone(),
        kernel_cache: None,
        ..CompileOptions::default()
    };
    let start = Instant::now();
    compile(model, bundle, &options, &Silent)
        .with_context(|| format!("cannot compile {}", model.display()))
        .map_err(users)?;
    let took = start.elapsed();
    Ok((Bundle::open(bundle)?, took))
}
