//! Writes benchmark models as ONNX files, and benchmark functions as folders for `atoll pack`.

use anyhow::Context;
use atoll_models::functions::{FUNCTIONS, function_by_name};
use atoll_models::mixes::generate;
use atoll_models::{ARCHITECTURES, BuildOptions, build_onnx};
use clap::Parser;
use std::path::PathBuf;

/// Write a benchmark model with seeded random weights as an ONNX file, or a benchmark function as a
/// folder for `atoll pack`
#[derive(Parser)]
#[command(after_help = "Examples:\n  atoll-models resnet50 -o resnet50.onnx\n  \
                  atoll-models vgg19 --width 0.25 --image 64 -o small.onnx\n  \
                  atoll-models gemm_chain --size 512 -o chain\n  atoll-models --list")]
struct Arguments {
    /// Name of the model or function
    #[arg(required_unless_present_any = ["list", "mix"])]
    model: Option<String>,
    /// Write a recorded mix of requests from its generator instead
    #[arg(long, value_name = "NAME", conflicts_with_all = ["model", "list"])]
    mix: Option<String>,
    /// List the models and functions
    #[arg(long)]
    list: bool,
    /// Output file or folder [default: MODEL.onnx, a folder with the function's name, or NAME.mix]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Seed of the weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Factor on every channel count, for small variants
    #[arg(long, default_value_t = 1.0)]
    width: f64,
    /// Height and width of the image, or sequence length
    #[arg(long)]
    image: Option<u32>,
    /// Leave batch size and sequence length open, as the symbols `batch` and `sequence`
    #[arg(long)]
    symbolic: bool,
    /// Rows and columns of a function's matrices
    #[arg(long)]
    size: Option<u32>,
}

#[expect(clippy::print_stdout, reason = "the list is the output")]
fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    if let Some(name) = &arguments.mix {
        return write_mix(name, arguments.output);
    }
    let Some(model) = arguments.model.filter(|_| !arguments.list) else {
        let names = ARCHITECTURES.iter().map(|a| a.name).chain(FUNCTIONS.iter().map(|f| f.name));
        names.for_each(|name| println!("{name}"));
        return Ok(());
    };
    if let Some(function) = function_by_name(&model) {
        let folder = arguments.output.unwrap_or_else(|| model.into());
        let written = std::fs::create_dir_all(&folder)
            .and_then(|()| function.write(&folder, arguments.size.unwrap_or(function.size), arguments.seed));
        return written.map(drop).with_context(|| format!("cannot write {}", folder.display()));
    }
    let options = BuildOptions {
        seed: arguments.seed,
        width: arguments.width,
        image: arguments.image,
        symbolic: arguments.symbolic,
    };
    let bytes = build_onnx(&model, &options)?;
    let output = arguments.output.unwrap_or_else(|| format!("{model}.onnx").into());
    std::fs::write(&output, bytes).with_context(|| format!("cannot write {}", output.display()))
}

fn write_mix(name: &str, output: Option<PathBuf>) -> anyhow::Result<()> {
    let mix = generate(name).with_context(|| format!("there is no mix `{name}`"))?;
    let output = output.unwrap_or_else(|| format!("{name}.mix").into());
    std::fs::write(&output, mix.to_string()).with_context(|| format!("cannot write {}", output.display()))
}
