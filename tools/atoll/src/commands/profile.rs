//! `atoll profile`

mod grid;

use crate::artifact;
use crate::engine::EngineArgs;
use crate::failure::OrUserError;
use crate::invoker;
use crate::output::{Align, Table, counted, print, print_json, progress};
use crate::profiler::{self, Profiled};
use crate::tensors::InputArgs;
use anyhow::{Context, Result};
use atoll_engine::Class;
use atoll_kgraph::{BufferKind, NodeProfile, Profile, ShapeProfile};
use atoll_server::tensor_metadata;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Number of kernels in the table.
const KERNELS_SHOWN: usize = 20;

const EXAMPLES: &str = "\
Examples:
  atoll profile resnet50.kg
  atoll profile bert.kg --shape input_ids=1,64 --runs 50
  atoll profile resnet50.kg --compute-units 2 --output resnet50.json --json
  atoll profile resnet50.kg --grid --quotas 20,60,100 --partitions 25,50,100

Profiles are kept in a cache under the digest of the bundle, where `atoll serve --policy reef` and `atoll \
bench disb` find them; `atoll serve` scales models by their grids. One file holds the profiles of several \
shapes. Measure on an idle machine: other programs distort the result.";

/// Measure how long each launch of a model takes alone on a device
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Model (.kg); an .onnx file is compiled first
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// Number of measured invocations; the profile holds their medians. Of a grid, at least so many
    /// for each point
    #[arg(long, value_name = "COUNT", default_value = "20")]
    runs: NonZeroU32,

    #[command(flatten)]
    inputs: InputArgs,

    /// File to write the profile to [default: the profile cache]
    #[arg(long, short, value_name = "FILE.json")]
    output: Option<PathBuf>,

    /// Print the profile as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    grid: grid::GridArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let bundle = artifact::open(&args.model, args.engine.device_name())?;
    let engine = args.engine.start()?;
    let handle = engine.handle();
    let function = invoker::load(&handle, &bundle, &bundle.graph().name, Class::RealTime)?;
    let (device, compute_units) = (handle.device_info().kind(), handle.device_info().compute_units);
    let path = args.output.clone().or_else(|| profiler::place(&bundle, device, compute_units));
    let path = path.context("neither XDG_CACHE_HOME nor HOME is set; choose a file with --output").or_user_error()?;
    let mut profile = match Profile::read(&path) {
        Ok(known) if (known.bundle.as_str(), known.compute_units) == (bundle.digest(), compute_units) => known,
        _ => Profile::new(bundle.digest(), &bundle.graph().name, device, compute_units),
    };
    if args.grid.grid {
        let target = grid::Target {
            handle: &handle,
            bundle: &bundle,
            function: &bundle.graph().name,
            compute_units,
            runs: args.runs,
            inputs: &args.inputs,
            path: &path,
            json: args.json,
        };
        grid::run(&args.grid, &target, profile)?;
        engine.shutdown();
        return Ok(());
    }
    let profiled = Profiled { handle: &handle, bundle: &bundle, function: &function };
    let inputs = args.inputs.tensors(&tensor_metadata(bundle.graph(), BufferKind::Input))?;
    let bar = progress(args.runs.get().into());
    let shape = profiled.measure(&inputs, args.runs.get(), || bar.inc(1));
    bar.finish_and_clear();
    let shape = shape?;
    profile.insert(shape.clone());
    profile.write(&path)?;
    engine.shutdown();
    if args.json {
        return print_json(&profile);
    }
    Ok(print(&format!("{}\nwritten to {}\n", text(&shape, compute_units), path.display()))?)
}

fn text(shape: &ShapeProfile, compute_units: u32) -> String {
    let mut table = Table::new([
        ("kernel", Align::Left),
        ("launches", Align::Right),
        ("blocks", Align::Right),
        ("block µs", Align::Right),
        ("total ms", Align::Right),
        ("share", Align::Right),
    ]);
    let mut kernels: BTreeMap<(&str, u32), Vec<&NodeProfile>> = BTreeMap::new();
    for launch in &shape.launches {
        kernels.entry((&launch.kernel, launch.blocks)).or_default().push(launch);
    }
    let total = |launches: &[&NodeProfile]| launches.iter().map(|launch| launch.total_ns).sum::<u64>();
    let mut rows: Vec<_> = kernels.into_iter().collect();
    rows.sort_by_key(|(_, launches)| std::cmp::Reverse(total(launches)));
    let hidden = rows.len().saturating_sub(KERNELS_SHOWN);
    for ((kernel, blocks), launches) in rows.iter().take(KERNELS_SHOWN) {
        let wave = launches.iter().map(|launch| launch.wave_ns[0]).sum::<u64>() as f64 / launches.len() as f64;
        table.row([
            (*kernel).to_owned(),
            launches.len().to_string(),
            blocks.to_string(),
            format!("{:.1}", wave / 1e3),
            format!("{:.3}", total(launches) as f64 / 1e6),
            format!("{:.1} %", 100.0 * total(launches) as f64 / shape.total_ns.max(1) as f64),
        ]);
    }
    let mut text = table.to_string();
    let ms = |ns: u64| ns as f64 / 1e6;
    let gaps = shape.launches.iter().map(|launch| launch.gap_ns).sum::<u64>();
    // Writing to a string cannot fail.
    if hidden > 0 {
        let _ = writeln!(text, "  and {hidden} more");
    }
    let _ = writeln!(
        text,
        "\n{} launches on {}: {:.3} ms, of which {:.3} ms between launches; {:.3} ms before the first and {:.3} ms \
        after the last; medians of {} runs",
        shape.launches.len(),
        counted(compute_units, "compute unit"),
        ms(shape.total_ns),
        ms(gaps),
        ms(shape.before_ns),
        ms(shape.after_ns),
        shape.runs
    );
    text
}
