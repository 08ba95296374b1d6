//! The ensemble and cascade of `atoll bench graphs`: its manifest, and the same by a client.

use super::{Args, pipeline};
use crate::compiler::compile_for;
use crate::invoker::{Invoker, Terms};
use crate::random::Random;
use anyhow::{Context, Result};
use atoll_kgraph::ModelOptions;
use atoll_models::{BuildOptions, build_onnx};
use atoll_protocol::{DataType, Tensor};
use std::path::Path;

/// The name of the graph.
pub(super) const GRAPH: &str = "vision";

/// The models: two that run for each image, and one for images of which they are not confident.
pub(super) const MODELS: [&str; 3] = ["squeezenet", "mobilenet_v2", "resnet18"];

/// The mean of the first two models' scores, or, if they are not confident, its mean with the
/// scores of the third model.
const MANIFEST: &str = r#"
name = "vision"

[inputs]
input = { datatype = "FP32", shape = [1, 3, SIZE, SIZE] }

[[stage]]
name = "a"
function = "squeezenet"
inputs = { input = "input" }

[[stage]]
name = "a_scores"
builtin = "softmax"
inputs = { x = "a.output" }

[[stage]]
name = "b"
function = "mobilenet_v2"
inputs = { input = "input" }

[[stage]]
name = "b_scores"
builtin = "softmax"
inputs = { x = "b.output" }

[[stage]]
name = "both"
builtin = "average"
inputs = { a = "a_scores.y", b = "b_scores.y" }

[[stage]]
name = "confidence"
builtin = "max"
inputs = { x = "both.y" }

[[stage]]
name = "c"
function = "resnet18"
inputs = { input = "input" }
when = "confidence.y < THRESHOLD"
otherwise = { output = "both.y" }

[[stage]]
name = "c_scores"
builtin = "softmax"
inputs = { x = "c.output" }
when = "confidence.y < THRESHOLD"
otherwise = { y = "both.y" }

[[stage]]
name = "all"
builtin = "average"
inputs = { both = "both.y", c = "c_scores.y" }

[outputs]
scores = "all.y"
"#;

/// The manifest for images of a size and a threshold of the confidence.
pub(super) fn manifest(size: u32, threshold: f32) -> String {
    MANIFEST.replace("SIZE", &size.to_string()).replace("THRESHOLD", &format!("{threshold:?}"))
}

/// Compiles the models into a repository.
pub(super) fn build(args: &Args, repository: &Path) -> Result<()> {
    let names = args.fleet.device_names();
    let device = *names.first().context("there is a device")?;
    let models = MODELS.map(|model| (model, args.image)).into_iter().chain([(pipeline::MODEL, pipeline::ELEMENTS)]);
    for (seed, (model, size)) in (7..).zip(models) {
        let options = BuildOptions { seed, width: args.width, image: Some(size), ..BuildOptions::default() };
        let path = repository.join(model).with_extension("onnx");
        std::fs::write(&path, build_onnx(model, &options).map_err(|error| anyhow::anyhow!("{error}"))?)?;
        compile_for(device, &path, &ModelOptions::default(), &path.with_extension("kg"))?;
        // The repository has the bundle only.
        std::fs::remove_file(&path)?;
    }
    Ok(())
}

/// A random image.
pub(super) fn image(size: u32, random: &mut Random) -> Result<Tensor> {
    let shape: [i64; 4] = [1, 3, size.into(), size.into()];
    let elements = shape.iter().product::<i64>();
    let mut bytes = Vec::with_capacity(elements as usize * 4);
    // Images differ in contrast, so that the models are more or less confident.
    let contrast = random.unit() as f32 * 4.0;
    (0..elements).for_each(|_| bytes.extend((random.unit() as f32 * contrast).to_le_bytes()));
    Ok(Tensor::new("input", DataType::Fp32, shape.to_vec(), bytes)?)
}

/// The elements of an FP32 tensor.
pub(super) fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A client that calls the models itself.
pub(super) struct Vision {
    pub(super) a: Invoker,
    pub(super) b: Invoker,
    pub(super) c: Invoker,
}

impl Vision {
    fn scores(model: &Invoker, image: &Tensor) -> Result<Vec<f32>> {
        let answer = model.invoke(std::slice::from_ref(image), Terms::default())?;
        Ok(softmax(&floats(answer.outputs.first().context("a model has an output")?)))
    }

    /// What the graph computes, by calls one after the other.
    pub(super) fn ask(&self, image: &Tensor, threshold: f32) -> Result<Vec<f32>> {
        let both = self.both(image)?;
        if confidence(&both) >= threshold {
            return Ok(both);
        }
        Ok(mean(&both, &Vision::scores(&self.c, image)?))
    }

    fn both(&self, image: &Tensor) -> Result<Vec<f32>> {
        Ok(mean(&Vision::scores(&self.a, image)?, &Vision::scores(&self.b, image)?))
    }

    fn confidences(&self, images: &[Tensor]) -> Result<Vec<f32>> {
        images.iter().map(|image| Ok(confidence(&self.both(image)?))).collect()
    }

    /// The threshold for which half of the images need the third model.
    pub(super) fn median_confidence(&self, images: &[Tensor]) -> Result<f32> {
        let mut all = self.confidences(images)?;
        all.sort_by(f32::total_cmp);
        // Between two images, so that rounding does not matter.
        let middle = all.len() / 2;
        Ok(f32::midpoint(all[middle - 1], all[middle]))
    }

    /// Part of the images that need the third model.
    pub(super) fn cascade(&self, images: &[Tensor], threshold: f32) -> Result<f64> {
        let below = self.confidences(images)?.iter().filter(|confidence| **confidence < threshold).count();
        Ok(below as f64 / images.len() as f64)
    }
}

fn confidence(scores: &[f32]) -> f32 {
    scores.iter().copied().fold(f32::MIN, f32::max)
}

fn mean(first: &[f32], second: &[f32]) -> Vec<f32> {
    first.iter().zip(second).map(|(first, second)| (first + second) / 2.0).collect()
}

fn softmax(values: &[f32]) -> Vec<f32> {
    let most = confidence(values);
    let exponentials: Vec<f32> = values.iter().map(|value| (value - most).exp()).collect();
    let sum: f32 = exponentials.iter().sum();
    exponentials.into_iter().map(|value| value / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_add_up_to_one_and_keep_their_order() {
        let scores = softmax(&[1.0, 3.0, 2.0, 1e4]);
        assert!((scores.iter().sum::<f32>() - 1.0).abs() < 1e-6 && confidence(&scores) == scores[3], "{scores:?}");
    }

    #[test]
    fn the_manifest_has_the_size_and_the_threshold() {
        let text = manifest(96, 0.25);
        assert!(text.contains("[1, 3, 96, 96]") && text.contains("confidence.y < 0.25"), "{text}");
    }
}
