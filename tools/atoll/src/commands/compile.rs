//! `atoll compile`

use crate::symbols::ModelArgs;
use anyhow::Result;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll compile resnet50.onnx -o resnet50.kg
  atoll compile bert.onnx --symbol seq=1..512 --fix batch=1
  atoll compile silero_vad.onnx --state h=hn,c=cn
  atoll compile gpt2.onnx --state auto --symbol past_sequence_length=0..1024
  atoll compile resnet50.onnx --target host,nvidia:sm_75,nvidia:sm_90 --assemble
  atoll compile resnet50.onnx --emit ptx-final --target nvidia-sm_75 | less";

/// Compile an ONNX model into a bundle (.kg)
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// ONNX model to compile
    #[arg(value_name = "MODEL.onnx")]
    model: PathBuf,

    /// Bundle to write, or output file of --emit [default: beside the model, as .kg]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Print an intermediate representation for the first target instead of writing a bundle
    #[arg(long, value_enum)]
    emit: Option<Emit>,

    #[command(flatten)]
    symbols: ModelArgs,

    #[command(flatten)]
    code: CodeArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Code generation flags, shared by models and packed PTX functions.
#[derive(Debug, clap::Args)]
pub(crate) struct CodeArgs {
    /// Targets: host (this machine), host-x86-64-v3, host-x86-64-v4, nvidia:sm_75 to
    /// nvidia:sm_121, amd:gfx906, amd:gfx908, amd:gfx90a, amd:gfx942, amd:gfx1030, amd:gfx1100,
    /// amd:gfx1201 [default: host,nvidia:sm_75]
    #[arg(long, value_name = "TARGETS", value_delimiter = ',')]
    target: Vec<String>,

    /// Assemble NVIDIA kernels with ptxas: checks them, counts registers and spills, and adds
    /// machine code
    #[arg(long)]
    assemble: bool,

    /// Compile every kernel again, ignoring the cache in $XDG_CACHE_HOME/atoll/kernels
    #[arg(long)]
    no_cache: bool,
}

/// An intermediate representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Emit {
    /// Tensor graph after fusion
    Graph,
    /// Kernels as generated
    Ptx,
    /// Kernels after all passes
    PtxFinal,
    /// LLVM IR of a host target
    Llvm,
}

#[cfg(not(feature = "compiler"))]
pub(crate) fn run(_: &Args) -> Result<()> {
    Err(crate::compiler::without())
}

#[cfg(feature = "compiler")]
pub(crate) use with::{as_json, as_text, run};

#[cfg(feature = "compiler")]
mod with {
    use super::{Args, CodeArgs, Emit, Result};
    use crate::cache;
    use crate::compiler::ProgressBars;
    use crate::failure::OrUserError;
    use crate::output::{Align, Table, bytes, counted, milliseconds, print, print_json};
    use anyhow::Context;
    use atoll_kgraph::ModelOptions;
    use atoll_pipeline::{CompileOptions, CompileReport, Form, Target, compile, show};
    use serde_json::json;
    use std::fmt::Write;
    use std::path::Path;

    pub(crate) fn run(args: &Args) -> Result<()> {
        let ModelOptions { symbols, states } = args.symbols.options()?;
        let options = CompileOptions { symbols, states, ..args.code.options()? };
        if let Some(emit) = args.emit {
            return emit_form(args, emit, &options);
        }
        let output = args.output.clone().unwrap_or_else(|| args.model.with_extension("kg"));
        let bars = ProgressBars::new(&args.model);
        let compiled = compile(&args.model, &output, &options, &bars);
        bars.finish();
        let report = compiled.with_context(|| format!("cannot compile {}", args.model.display())).or_user_error()?;
        if args.json { print_json(&as_json(&report, &output)) } else { Ok(print(&as_text(&report, &output))?) }
    }

    impl CodeArgs {
        /// Options of the compiler.
        pub(crate) fn options(&self) -> Result<CompileOptions> {
            let targets = if self.target.is_empty() { Target::defaults() } else { self.targets()? };
            Ok(CompileOptions { targets, ..self.options_for_ptx()? })
        }

        /// Options for PTX input. Without --target, the architecture in the PTX selects the NVIDIA
        /// GPUs.
        pub(crate) fn options_for_ptx(&self) -> Result<CompileOptions> {
            let kernel_cache = if self.no_cache { None } else { cache::kernels() };
            Ok(CompileOptions {
                assemble: self.assemble,
                targets: self.targets()?,
                kernel_cache,
                ..CompileOptions::default()
            })
        }

        /// The given targets, without duplicates.
        fn targets(&self) -> Result<Vec<Target>> {
            let mut targets = Vec::new();
            for name in &self.target {
                let target: Target = name.parse().context("--target").or_user_error()?;
                if !targets.contains(&target) {
                    targets.push(target);
                }
            }
            Ok(targets)
        }
    }

    fn emit_form(args: &Args, emit: Emit, options: &CompileOptions) -> Result<()> {
        let form = match emit {
            Emit::Graph => Form::Graph,
            Emit::Ptx => Form::Ptx,
            Emit::PtxFinal => Form::PtxFinal,
            Emit::Llvm => Form::Llvm,
        };
        let text = show(&args.model, form, options.targets[0], options)
            .with_context(|| format!("cannot compile {}", args.model.display()))
            .or_user_error()?;
        match &args.output {
            Some(path) => Ok(std::fs::write(path, text).with_context(|| path.display().to_string())?),
            None => Ok(print(&text)?),
        }
    }

    fn file_bytes(path: &Path) -> u64 {
        std::fs::metadata(path).map_or(0, |metadata| metadata.len())
    }

    pub(crate) fn as_json(report: &CompileReport, output: &Path) -> serde_json::Value {
        let stages: Vec<_> = report
            .times
            .iter()
            .map(|t| json!({ "stage": t.stage.to_string(), "milliseconds": milliseconds(t.time) }))
            .collect();
        let kernels: Vec<_> =
            report.kernels.iter().map(|(target, count)| json!({ "target": target.name(), "count": count })).collect();
        json!({
            "output": output,
            "digest": report.digest,
            "bytes": file_bytes(output),
            "nodes": report.nodes,
            "kernels": kernels,
            "not_preemptible": report.not_preemptible,
            "stages": stages,
        })
    }

    pub(crate) fn as_text(report: &CompileReport, output: &Path) -> String {
        let mut table = Table::new([("stage", Align::Left), ("ms", Align::Right)]);
        for time in &report.times {
            table.row([time.stage.to_string(), format!("{:.1}", milliseconds(time.time))]);
        }
        table.row(["total".into(), format!("{:.1}", report.times.iter().map(|t| milliseconds(t.time)).sum::<f64>())]);
        let kernels: Vec<String> = report
            .kernels
            .iter()
            .map(|(target, count)| format!("{} for {target}", counted(*count, "kernel")))
            .collect();
        let size = bytes(file_bytes(output));
        let mut text = format!(
            "{}: {size}, {}, {}\n\n{table}",
            output.display(),
            counted(report.nodes, "node"),
            kernels.join(", ")
        );
        for reason in &report.not_preemptible {
            // Writing to a string cannot fail.
            let _ = write!(text, "\nnot preemptible: {reason}\n");
        }
        text
    }
}
