//! `atoll ptx transform`

use crate::failure::{OrUserError, user_error};
use crate::output::{Align, Table, parse_block, print, print_json};
use anyhow::{Context, Result};
use atoll_passes::{
    FenceForm, Fencing, KernelReport, LoopDecision, Outlining, PASSES, PassError, PassOptions, Preemption, Rerun,
    TransformReport, Virtualization, analyze_idempotence, transform_with,
};
use atoll_ptx::{Module, Name};
use clap::ValueEnum;
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll ptx transform --list
  atoll ptx transform --pass inject_preempt_flag,shared_to_dynamic kernels.ptx -o preemptible.ptx
  atoll ptx transform --pass virtualize_block_index,outline_kernel_body --block 16,16 gemm.ptx
  atoll ptx transform --pass check_in_loops --may-run-again reduce reduce.ptx";

/// Treatment of an access outside of the fence.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fence {
    /// Redirect it to an address inside
    Mask,
    /// Trap the thread
    Trap,
    /// End the thread, and report it to the launch; needs the pass exit_on_trap, too
    Exit,
}

/// Run passes over the kernels of a PTX file, and report for each kernel what was changed and what
/// was not, with reasons
#[derive(Debug, clap::Args)]
#[command(about, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// PTX file
    #[arg(required_unless_present = "list")]
    file: Option<PathBuf>,

    /// Passes to run. They run in the order of --list, not in the given order
    #[arg(long = "pass", value_name = "NAME[,NAME…]", value_delimiter = ',', required_unless_present = "list")]
    passes: Vec<String>,

    /// File for the transformed PTX [default: standard output; the report then goes to standard
    /// error]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Block shape for passes that use it; KERNEL= limits it to one kernel
    #[arg(long = "block", value_name = "[KERNEL=]X[,Y,Z]")]
    blocks: Vec<String>,

    /// Kernel whose blocks may be re-executed with the buffers it gets; not needed for kernels that
    /// are always re-executable
    #[arg(long, value_name = "KERNEL")]
    may_run_again: Vec<String>,

    /// Loop iterations between two checks [default: depends on the size of the loop]
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    check_every: Option<u32>,

    /// How fence_memory limits accesses to global memory
    #[arg(long, value_enum, default_value_t = Fence::Mask)]
    fence: Fence,

    /// List all passes
    #[arg(long)]
    list: bool,

    /// Print the report as JSON; without --output it contains the transformed PTX
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let Some(path) = args.file.as_ref().filter(|_| !args.list) else { return list(args.json) };
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string()).or_user_error()?;
    let mut module = atoll_ptx::parse(&text).map_err(|e| user_error(format!("{}:{e}", path.display())))?;
    let options = options(args, &module)?;
    let names: Vec<&str> = args.passes.iter().map(String::as_str).collect();
    let report = transform_with(&mut module, &names, &options, &mut |_, _| {}).map_err(|error| match error {
        bug @ PassError::InvalidOutput { .. } => anyhow::Error::new(bug),
        fault => user_error(format!("{}: {fault}", path.display())),
    })?;
    let transformed = atoll_ptx::print(&module);
    if let Some(output) = &args.output {
        std::fs::write(output, &transformed).with_context(|| output.display().to_string()).or_user_error()?;
    }
    match (args.json, &args.output) {
        (true, Some(_)) => print_json(&as_json(&report)),
        (true, None) => print_json(&json!({ "kernels": as_json(&report)["kernels"], "ptx": transformed })),
        (false, Some(_)) => Ok(print(&as_text(&report))?),
        (false, None) => {
            // Ignores a closed standard error: then the report is not wanted.
            let _ = std::io::stderr().write_all(as_text(&report).as_bytes());
            Ok(print(&transformed)?)
        }
    }
}

fn list(json: bool) -> Result<()> {
    if json {
        return print_json(
            &PASSES.iter().map(|pass| json!({ "name": pass.name, "does": pass.doc })).collect::<Vec<_>>(),
        );
    }
    let mut table = Table::new([("pass", Align::Left), ("what it does", Align::Left)]);
    PASSES.iter().for_each(|pass| table.row([pass.name.to_owned(), pass.doc.to_owned()]));
    Ok(print(&table.to_string())?)
}

/// The options of the passes: block shapes, and kernels that may be re-executed.
fn options(args: &Args, module: &Module) -> Result<PassOptions> {
    let fence_form = match args.fence {
        Fence::Mask => FenceForm::Mask,
        Fence::Trap => FenceForm::Trap,
        Fence::Exit => FenceForm::Exit,
    };
    let mut options = PassOptions { check_every: args.check_every, fence_form, ..PassOptions::default() };
    let known = |name: &str| match module.kernels().find(|kernel| kernel.name == name) {
        Some(kernel) => Ok(kernel.name.clone()),
        None => Err(user_error(format!("the file has no kernel `{name}`"))),
    };
    // A shape for one kernel takes precedence over a shape for all.
    for shape in args.blocks.iter().filter(|shape| !shape.contains('=')) {
        let block = parse_block(shape)?;
        options.blocks.extend(module.kernels().map(|kernel| (kernel.name.clone(), block)));
    }
    for (name, shape) in args.blocks.iter().filter_map(|shape| shape.split_once('=')) {
        options.blocks.insert(known(name)?, parse_block(shape)?);
    }
    for name in &args.may_run_again {
        options.may_run_again.insert(known(name)?);
    }
    let always =
        |name: &Name| module.function(name).is_some_and(|kernel| analyze_idempotence(module, kernel) == Rerun::Always);
    options.may_run_again.extend(module.kernels().map(|kernel| kernel.name.clone()).filter(always));
    Ok(options)
}

/// The report of a kernel, one line per pass that has something to report.
fn as_text(report: &TransformReport) -> String {
    let mut text = String::new();
    for kernel in &report.kernels {
        let dynamic = if kernel.has_dynamic_shared { " in addition to its own" } else { "" };
        text.push_str(&format!(
            "{}: {} bytes of parameters, {} bytes of dynamic shared memory{dynamic}\n",
            kernel.name, kernel.params_bytes, kernel.shared_bytes
        ));
        lines(kernel).iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    text
}

fn lines(kernel: &KernelReport) -> Vec<String> {
    let mut lines = Vec::new();
    match &kernel.fencing {
        Fencing::NotAsked => {}
        Fencing::Fenced { offset } => lines.push(format!("fenced; parameters at byte {offset}")),
        Fencing::Refused(reason) => lines.push(format!("not fenced: {reason}")),
    }
    let parameters = |offset: u32| format!("preemption parameters at byte {offset}");
    match &kernel.preemption {
        Preemption::NotAsked => lines.extend(kernel.preempt_offset().map(parameters)),
        Preemption::Injected { offset, completion } => {
            lines.push(format!("preemptible; {}; completion by {completion:?}", parameters(*offset)))
        }
        Preemption::NotPreemptible(reason) => lines.push(format!("not preemptible: {reason}")),
    }
    lines.extend(kernel.loops.iter().map(|found| match &found.decision {
        LoopDecision::Checked { every, strips } => {
            format!(
                "loop at line {}: checks every {every} rounds{}",
                found.line,
                if *strips { ", in strips" } else { "" }
            )
        }
        LoopDecision::Skipped(reason) => format!("loop at line {}: no check: {reason}", found.line),
    }));
    lines.extend(kernel.kept_shared.iter().map(|reason| format!("shared memory stays static: {reason}")));
    match &kernel.virtualization {
        Virtualization::NotAsked => {}
        Virtualization::Virtual(launch) => {
            let block =
                launch.block.map_or("as a parameter".to_owned(), |b| format!("{}x{}x{} compiled in", b[0], b[1], b[2]));
            let full = if launch.needs_full_warps { "; full warps only" } else { "" };
            lines.push(format!(
                "virtual block indices; parameters at byte {}, block shape {block}{full}",
                launch.offset
            ));
        }
        Virtualization::Refused(reason) => lines.push(format!("hardware block indices: {reason}")),
    }
    match &kernel.outlining {
        Outlining::NotAsked => {}
        Outlining::Outlined { function } => lines.push(format!("body in {function}")),
        Outlining::Refused(reason) => lines.push(format!("body not outlined: {reason}")),
    }
    let counts = [
        (kernel.unreachable_statements, "unreachable statements removed"),
        (kernel.reduced_divisions, "divisions by constants replaced"),
        (kernel.dead_instructions, "dead instructions removed"),
    ];
    lines.extend(counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    lines
}

fn as_json(report: &TransformReport) -> Value {
    json!({ "kernels": report.kernels.iter().map(kernel_as_json).collect::<Vec<_>>() })
}

/// Everything that a launcher needs, and all reasons.
fn kernel_as_json(kernel: &KernelReport) -> Value {
    let fencing = match &kernel.fencing {
        Fencing::NotAsked => Value::Null,
        Fencing::Fenced { offset } => json!({ "fenced": true, "params_offset": offset }),
        Fencing::Refused(reason) => json!({ "fenced": false, "reason": reason.to_string() }),
    };
    let preemption = match &kernel.preemption {
        Preemption::NotAsked => Value::Null,
        Preemption::Injected { completion, .. } => {
            json!({ "injected": true, "completion": format!("{completion:?}").to_lowercase() })
        }
        Preemption::NotPreemptible(reason) => json!({ "injected": false, "reason": reason.to_string() }),
    };
    let loops = kernel.loops.iter().map(|found| match &found.decision {
        LoopDecision::Checked { every, strips } => {
            json!({ "line": found.line, "checked_every": every, "strips": strips })
        }
        LoopDecision::Skipped(reason) => json!({ "line": found.line, "reason": reason.to_string() }),
    });
    let virtualization = match &kernel.virtualization {
        Virtualization::NotAsked => Value::Null,
        Virtualization::Virtual(launch) => json!({
            "virtual": true, "params_offset": launch.offset, "block": launch.block,
            "needs_full_warps": launch.needs_full_warps, "surplus_lanes_stay": launch.surplus_lanes_stay,
        }),
        Virtualization::Refused(reason) => json!({ "virtual": false, "reason": reason.to_string() }),
    };
    let outlining = match &kernel.outlining {
        Outlining::NotAsked => Value::Null,
        Outlining::Outlined { function } => json!({ "outlined": true, "function": function }),
        Outlining::Refused(reason) => json!({ "outlined": false, "reason": reason.to_string() }),
    };
    json!({
        "name": kernel.name,
        "params_bytes": kernel.params_bytes,
        "preempt_params_offset": kernel.preempt_offset(),
        "shared_bytes": kernel.shared_bytes,
        "has_dynamic_shared": kernel.has_dynamic_shared,
        "kept_static": kernel.kept_shared.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "fencing": fencing,
        "preemption": preemption,
        "loops": loops.collect::<Vec<_>>(),
        "virtualization": virtualization,
        "outlining": outlining,
        "unreachable_statements": kernel.unreachable_statements,
        "reduced_divisions": kernel.reduced_divisions,
        "dead_instructions": kernel.dead_instructions,
    })
}
