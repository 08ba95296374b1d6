//! `atoll bench assembled`

#[cfg(feature = "native")]
mod amd;
mod measure;
mod nvidia;
mod sources;
mod summary;

use crate::failure::{user_error, users};
use crate::output::parse_block;
use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::{Result, anyhow};
use atoll_passes::{CANDIDATE_PASSES, PASSES, TransformOptions};
use atoll_pipeline::Target;
use atoll_target_nvidia::{Ptxas, UnknownArchitecture, find_ptxas};
use measure::{Assembler, Measured, Row};
use serde::Serialize;
use std::collections::BTreeMap;
use summary::Summary;

const EXAMPLES: &str = "\
Examples:
  atoll bench assembled
  atoll bench assembled resnet50 distilbert kernels.ptx --architecture sm_80,sm_90
  atoll bench assembled kernels.ptx --pass inject_preempt_flag --pass check_in_loops --each --json
  atoll bench assembled --architecture gfx90a,gfx1100";

/// Measure what passes cost in machine code: registers, spills, length and occupancy of each kernel
/// before and after
///
/// Each kernel of the models and files is assembled without passes and after each set of passes.
/// Kernels that occur in several models count once. Kernels that a set of passes does not change do
/// not count.
///
/// A kernel that needs more registers than its plain form is assembled again with that number as a
/// limit. The result is used unless it spills: *held*. `atoll compile --assemble` does the same.
///
/// Length is in instructions; occupancy is in resident warps per compute unit of a T4, A100, H100,
/// RTX 5090 or another device of the architecture. The work of an innermost loop is its number of
/// floating-point instructions and memory accesses; how much of it stays in innermost loops shows
/// how often the assembler unrolled them. Buffers are assumed not to overlap.
///
/// For an AMD GPU, such as gfx90a, LLVM compiles the kernels to a code object. Registers are the
/// vector registers, and occupancy is in waves per SIMD. Nothing is held, and loops are not
/// compared.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Models, as files or by the names in `atoll-models --list`, and PTX files [default: resnet18
    /// and distilbert]
    #[arg(value_name = "MODEL.onnx|NAME|FILE.ptx")]
    sources: Vec<String>,

    /// Architectures to assemble for: sm_75 to sm_121, gfx906, gfx90a, gfx1100 and others
    #[arg(
        long = "architecture",
        value_name = "NAME[,NAME…]",
        value_delimiter = ',',
        value_parser = architecture,
        default_values = ["sm_75", "sm_80", "sm_90", "sm_120"]
    )]
    architectures: Vec<Target>,

    /// A set of passes to measure; repeat for further sets [default: the preemption flag, the
    /// passes for models, checks in loops, the passes for padding, the fence, and all except the
    /// fence]
    #[arg(long = "pass", value_name = "NAME[,NAME…]")]
    sets: Vec<String>,

    /// Block shape of a kernel in a file [default: .reqntid or .maxntid, else 256]
    #[arg(long = "block", value_name = "KERNEL=X[,Y,Z]")]
    blocks: Vec<String>,

    /// Show all kernels, not only those that lost something
    #[arg(long)]
    each: bool,
}

/// Passes that run together.
#[derive(Clone, Debug)]
struct PassSet {
    /// Name in tables.
    name: String,
    passes: Vec<&'static str>,
}

#[derive(Serialize)]
struct Report<'m> {
    #[serde(flatten)]
    measured: &'m Measured,
    summary: &'m [Summary],
}

pub(crate) fn run(args: &Args) -> Result<Findings> {
    let needs_ptxas = args.architectures.iter().any(|target| matches!(target, Target::Nvidia(_)));
    let ptxas = find_ptxas().filter(|_| needs_ptxas);
    if needs_ptxas && ptxas.is_none() {
        let remedy = "install CUDA, run `make setup`, or set ATOLL_PTXAS to its path";
        return Err(user_error(format!("ptxas is not installed; {remedy}")));
    }
    let sets = if args.sets.is_empty() {
        default_sets()
    } else {
        args.sets.iter().map(|text| pass_set(text)).collect::<Result<_>>()?
    };
    let names =
        if args.sources.is_empty() { vec!["resnet18".into(), "distilbert".into()] } else { args.sources.clone() };
    let (blocks, mut measured) = (blocks(&args.blocks)?, Measured::default());
    for targets in args.architectures.chunk_by(|a, b| is_amd(*a) == is_amd(*b)) {
        // The PTX of models is the same for all architectures of a vendor.
        let family = if is_amd(targets[0]) { targets[0] } else { Target::NVIDIA };
        let sources = sources::read(&names, &blocks, family)?;
        let assembler = |target: &Target| Ok((label(*target), assembler(*target, ptxas.as_ref())?));
        let assemblers = targets.iter().map(assembler).collect::<Result<Vec<_>>>()?;
        measured.add(measure::measure(&sources, &assemblers, &sets)?);
    }
    let labels: Vec<String> = args.architectures.iter().copied().map(label).collect();
    let summary = summary::summarize(&measured.kernels, &sets, &labels);
    let findings =
        Findings::new(&Report { measured: &measured, summary: &summary }, text(&measured, &summary, args.each))?;
    Ok(match measured.faults.len() {
        0 => findings,
        faults => findings
            .with_failure(anyhow!("the assembler refuses {faults} kernels after passes; please report this bug")),
    })
}

/// Parses the name of an architecture of either vendor.
fn architecture(name: &str) -> Result<Target, String> {
    if name.starts_with("gfx") {
        return format!("amd:{name}").parse().map_err(|_| format!("there is no AMD architecture {name}"));
    }
    name.parse().map(Target::Nvidia).map_err(|error: UnknownArchitecture| error.to_string())
}

fn is_amd(target: Target) -> bool {
    matches!(target, Target::Amd(_))
}

/// The name of an architecture in tables.
fn label(target: Target) -> String {
    match target {
        Target::Nvidia(architecture) => architecture.to_string(),
        Target::Amd(architecture) => architecture.name().to_owned(),
        Target::HostV3 | Target::HostV4 => target.to_string(),
    }
}

fn assembler(target: Target, ptxas: Option<&Ptxas>) -> Result<Box<dyn Assembler + Sync + '_>> {
    match (target, ptxas) {
        (Target::Nvidia(architecture), Some(ptxas)) => Ok(Box::new(nvidia::Nvidia { ptxas, architecture })),
        #[cfg(feature = "native")]
        (Target::Amd(architecture), _) => Ok(Box::new(amd::Amd::new(architecture)?)),
        #[cfg(not(feature = "native"))]
        (Target::Amd(_), _) => Err(user_error("this program was built without LLVM, which compiles for AMD GPUs")),
        _ => Err(anyhow!("{target} has no assembler")),
    }
}

/// The sets of passes used in practice.
fn default_sets() -> Vec<PassSet> {
    let set = |name: &str, passes: Vec<&'static str>| PassSet { name: name.to_owned(), passes };
    vec![
        set("flag", vec!["inject_preempt_flag"]),
        set("models", TransformOptions::default().names().collect()),
        set("loops", vec!["check_in_loops"]),
        set("padding", CANDIDATE_PASSES.to_vec()),
        set("fence", vec!["fence_memory"]),
        set("all", PASSES.iter().map(|pass| pass.name).filter(|name| *name != "fence_memory").collect()),
    ]
}

fn pass_set(text: &str) -> Result<PassSet> {
    let find = |name: &str| {
        let pass = PASSES.iter().find(|pass| pass.name == name.trim());
        pass.map(|pass| pass.name)
            .ok_or_else(|| users(anyhow!("unknown pass `{name}`; `atoll ptx transform --list` shows all")))
    };
    Ok(PassSet { name: text.to_owned(), passes: text.split(',').map(find).collect::<Result<_>>()? })
}

fn blocks(texts: &[String]) -> Result<BTreeMap<String, [u32; 3]>> {
    let parse = |text: &String| {
        let (kernel, shape) =
            text.split_once('=').ok_or_else(|| user_error(format!("--block {text}: expected KERNEL=X[,Y,Z]")))?;
        Ok((kernel.to_owned(), parse_block(shape)?))
    };
    texts.iter().map(parse).collect()
}

fn text(measured: &Measured, summary: &[Summary], each: bool) -> String {
    let shown: Vec<&Row> = measured.kernels.iter().filter(|row| each || row.loses()).collect();
    let mut text = String::new();
    if !shown.is_empty() {
        let (what, table) = (
            if each {
                "every kernel"
            } else {
                "kernels that lost warps, spill more or keep less than 75 % of their inner loops"
            },
            rows(&shown),
        );
        text += &format!("{what}, before and after:\n{table}\n");
    }
    text += &summary::table(summary);
    let (refused, faults) = (measured.refused.iter(), measured.faults.iter());
    text += &refused.chain(faults).map(|refused| format!("\n{refused}")).collect::<String>();
    text.push('\n');
    text
}

fn rows(rows: &[&Row]) -> Table {
    let mut table = Table::new([
        ("source", Align::Left),
        ("kernel", Align::Left),
        ("arch", Align::Left),
        ("passes", Align::Left),
        ("registers", Align::Right),
        ("spilled", Align::Right),
        ("instructions", Align::Right),
        ("warps", Align::Right),
        ("kept", Align::Right),
    ]);
    for row in rows {
        let both = |what: fn(&measure::Figures) -> Option<u32>| match (what(&row.before), what(&row.after)) {
            (Some(before), Some(after)) => format!("{before} → {after}"),
            _ => String::new(),
        };
        table.row([
            row.source.clone(),
            row.kernel.clone(),
            row.architecture.clone(),
            row.passes.clone(),
            both(|f| Some(f.registers)),
            both(|f| Some(f.spill_bytes)),
            both(|f| Some(f.instructions)),
            both(|f| f.warps),
            row.inner_kept.map_or(String::new(), |kept| format!("{:.0} %", 100.0 * kept)),
        ]);
    }
    table
}
