//! Functions of one kind with different constants, one per client.

use crate::compiler;
use crate::device_name::DeviceName;
use crate::failure::user_error;
use anyhow::{Context, Result};
use atoll_models::functions::{Function, function_by_name};
use atoll_models::{ARCHITECTURES, BuildOptions, build_onnx};
use atoll_pipeline::{CompileOptions, Silent, compile, pack};
use std::path::{Path, PathBuf};

/// The kind of functions.
enum Kind {
    /// Kernels and a manifest.
    Function(&'static Function),
    /// A model, by name.
    Model(String),
}

/// Sizes of the functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Rows and columns of a function's matrices.
    pub(crate) size: u32,
    /// Factor for a model's channels.
    pub(crate) width: f64,
    /// Height and width of a model's image.
    pub(crate) image: u32,
}

/// Bundles of one kind, made on demand.
pub(crate) struct Variants<'a> {
    name: &'a str,
    kind: Kind,
    scale: Scale,
    folder: &'a Path,
    /// For the devices.
    options: CompileOptions,
    made: Vec<PathBuf>,
}

impl<'a> Variants<'a> {
    /// Bundles are made in `folder`, with code for the devices.
    pub(crate) fn new(name: &'a str, scale: Scale, folder: &'a Path, devices: &[DeviceName]) -> Result<Variants<'a>> {
        let kind = match function_by_name(name) {
            Some(function) => Kind::Function(function),
            None if ARCHITECTURES.iter().any(|architecture| architecture.name == name) => Kind::Model(name.into()),
            None => {
                return Err(user_error(format!("unknown function or model {name}; `atoll-models --list` lists them")));
            }
        };
        Ok(Variants { name, kind, scale, folder, options: compiler::options(devices), made: vec![] })
    }

    /// The first `count` bundles.
    pub(crate) fn bundles(&mut self, count: usize) -> Result<&[PathBuf]> {
        while self.made.len() < count {
            let seed = self.made.len() as u64;
            let bundle = self.make(seed).with_context(|| format!("cannot make {} with seed {seed}", self.name))?;
            self.made.push(bundle);
        }
        Ok(&self.made[..count])
    }

    fn make(&self, seed: u64) -> Result<PathBuf> {
        let folder = self.folder.join(format!("{}-{seed}", self.name));
        std::fs::create_dir_all(&folder)?;
        let bundle = folder.with_extension("kg");
        match &self.kind {
            Kind::Function(function) => {
                let manifest = function.write(&folder, self.scale.size, seed)?;
                pack(&manifest, &bundle, &self.options, &Silent)?;
            }
            Kind::Model(name) => {
                let model = folder.join("model.onnx");
                let build = BuildOptions {
                    seed,
                    width: self.scale.width,
                    image: Some(self.scale.image),
                    ..BuildOptions::default()
                };
                std::fs::write(&model, build_onnx(name, &build).map_err(|error| anyhow::anyhow!("{error}"))?)?;
                compile(&model, &bundle, &self.options, &Silent)?;
            }
        }
        // The bundle contains everything that is needed.
        std::fs::remove_dir_all(&folder)?;
        Ok(bundle)
    }
}
