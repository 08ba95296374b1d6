//! Architectures exported by torch, small and with random weights: compiled to a bundle, run on the
//! host device, and compared with ONNX Runtime.
//!
//! `tests/python/export_architectures.py` writes the files in `tests/fixtures/architectures` and
//! their table. Each architecture runs with two bindings of its dynamic axes. A full run takes all
//! of them, other runs one of each kind, selected by `ATOLL_SEED`. `ATOLL_ARCHITECTURES` is a regular
//! expression that selects architectures by name.

use anyhow::{Context, Result, bail, ensure};
use atoll_engine::EngineConfig;
use atoll_tests::{Loaded, Model, compile, oracle, root, sample};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Largest difference of an element, relative to the largest element of its output.
const TOLERANCE: f64 = 1e-3;

/// Refused architectures, with a part of the reason.
const REFUSED: [(&str, &str); 2] = [("swin_any_size", "known only at run time"), ("ssd", "which may be too few")];

/// The kind of an architecture.
fn kind(name: &str) -> &'static str {
    match name {
        "convnext" | "efficientnet" | "mobilenet_v3" | "regnet" | "resnet" | "resnet_dynamo" => "convolutional",
        "deeplab_v3" | "unet_bilinear" | "unet_transposed" | "unet_3d" | "resnet_3d" => "segments and volumes",
        "faster_rcnn_heads" | "ssd" | "ssd_heads" => "detection",
        "swin" | "swin_any_size" | "vit" | "vit_torchvision" => "transformer of images",
        "gru" | "lstm" | "rnn" | "wav2vec2" | "whisper" => "recurrent or of sounds",
        _ => "transformer of texts",
    }
}

#[derive(Deserialize)]
struct Architecture {
    name: String,
    /// Two bindings of its dynamic axes.
    shapes: [BTreeMap<String, i64>; 2],
}

#[test]
fn exported_architectures_answer_as_onnx_runtime_does() -> Result<()> {
    let folder = root().join("tests/fixtures/architectures");
    let mut all: Vec<Architecture> = serde_json::from_slice(&std::fs::read(folder.join("architectures.json"))?)?;
    ensure!(all.len() >= 25, "only {} architectures are there", all.len());
    match std::env::var("ATOLL_ARCHITECTURES").ok() {
        Some(pattern) => {
            let pattern = regex::Regex::new(&pattern).context("ATOLL_ARCHITECTURES is no regular expression")?;
            all.retain(|architecture| pattern.is_match(&architecture.name));
        }
        None => all = sample("architectures", all, 1, |architecture| kind(&architecture.name)),
    }
    let failures: Vec<String> =
        all.iter().filter_map(|one| Some(format!("{}: {:#}", one.name, check(one, &folder).err()?))).collect();
    ensure!(failures.is_empty(), "{} of {} architectures fail:\n{}", failures.len(), all.len(), failures.join("\n"));
    Ok(())
}

fn check(architecture: &Architecture, fixtures: &Path) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = fixtures.join(format!("{}.onnx", architecture.name));
    let mut model = Model { name: architecture.name.clone(), path, symbols: vec![] };
    if let Some((_, reason)) = REFUSED.iter().find(|(name, _)| *name == architecture.name) {
        let Err(error) = compile(&model, folder.path()) else { bail!("it compiles now; remove it from REFUSED") };
        let error = format!("{error:#}");
        ensure!(error.contains(reason), "it is refused for another reason than `{reason}`: {error}");
        return Ok(());
    }
    let bundle = compile(&model, folder.path())?;
    let loaded = Loaded::start(&bundle, EngineConfig::default())?;
    for (seed, shape) in (0..).zip(&architecture.shapes) {
        model.symbols = shape.iter().map(|(name, value)| (name.clone(), *value)).collect();
        for case in oracle(&model, &[seed], folder.path())? {
            loaded.check_elements(&model, &case, TOLERANCE).with_context(|| format!("with {shape:?}"))?;
        }
    }
    loaded.stop();
    Ok(())
}
