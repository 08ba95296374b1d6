//! `atoll ptx stats`

use super::source;
use crate::failure::user_error;
use crate::output::{Align, Table, print, print_json};
use anyhow::Result;
use atoll_ptx::analysis::{Cfg, Code, DominatorTree, Liveness, Loops};
use atoll_ptx::{Function, FunctionKind, Module, ScalarType, StateSpace};
use atoll_target_nvidia::{declared_sm, declared_version, lowest_version};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  atoll ptx stats kernels.ptx
  atoll ptx stats kernels.ptx --json";

/// Number of opcodes shown per file.
const OPCODES_SHOWN: usize = 24;

/// Report statistics: per kernel and function the instructions, blocks, loops, registers and
/// memory, and the opcodes of each file
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// PTX files; - reads standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct FileStats {
    file: String,
    bytes: usize,
    /// The declared `.version` and the lowest sufficient one; `None` if an instruction is in no
    /// table.
    version: Option<String>,
    lowest_version: Option<String>,
    sm: Option<u32>,
    functions: Vec<FunctionStats>,
    /// Number of occurrences of each opcode.
    opcodes: BTreeMap<String, usize>,
}

#[derive(Debug, Serialize)]
struct FunctionStats {
    name: String,
    is_kernel: bool,
    params_bytes: u64,
    instructions: usize,
    basic_blocks: Option<usize>,
    loops: Option<usize>,
    loop_depth: Option<u32>,
    barriers: usize,
    atomics: usize,
    calls: usize,
    shared_bytes: u64,
    local_bytes: u64,
    /// Largest number of simultaneously live registers, by declared type.
    live_registers: BTreeMap<String, usize>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut files = Vec::new();
    for source in source::read(&args.files)? {
        let module = atoll_ptx::parse(&source.text).map_err(|e| user_error(format!("{}:{e}", source.name)))?;
        files.push(file_stats(source.name, source.text.len(), &module));
    }
    if args.json { print_json(&files) } else { Ok(print(&files.iter().map(text).collect::<Vec<_>>().join("\n"))?) }
}

fn file_stats(file: String, bytes: usize, module: &Module) -> FileStats {
    let mut opcodes = BTreeMap::new();
    let functions: Vec<FunctionStats> = module
        .functions()
        .filter(|f| f.body.is_some())
        .map(|function| function_stats(function, &mut opcodes))
        .collect();
    FileStats {
        file,
        bytes,
        version: declared_version(module).map(|v| v.to_string()),
        lowest_version: lowest_version(module).map(|v| v.to_string()),
        sm: declared_sm(module),
        functions,
        opcodes,
    }
}

fn function_stats(function: &Function, opcodes: &mut BTreeMap<String, usize>) -> FunctionStats {
    let code = Code::of(function);
    let instructions: Vec<_> = code.statements().filter_map(|(_, statement)| statement.instruction()).collect();
    for instruction in &instructions {
        *opcodes.entry(instruction.opcode.to_string()).or_insert(0) += 1;
    }
    let count = |names: &[&str]| instructions.iter().filter(|i| names.contains(&i.opcode.as_str())).count();
    let bytes_in = |space: StateSpace| {
        let variables = code.statements().filter_map(|(_, statement)| match &statement.kind {
            atoll_ptx::StatementKind::Variable(v) if v.space == space => v.bytes(),
            _ => None,
        });
        variables.sum()
    };
    let cfg = Cfg::of(&code).ok();
    let loops = cfg.as_ref().map(|cfg| Loops::of(cfg, &DominatorTree::dominators(cfg)));
    FunctionStats {
        name: function.name.to_string(),
        is_kernel: function.kind == FunctionKind::Entry,
        params_bytes: function.params.iter().filter_map(|p| p.bytes()).sum(),
        instructions: instructions.len(),
        basic_blocks: cfg.as_ref().map(Cfg::len),
        loops: loops.as_ref().map(|l| l.iter().len()),
        loop_depth: loops.as_ref().map(|l| l.iter().map(|(_, l)| l.depth).max().unwrap_or(0)),
        barriers: count(&["bar", "barrier"]),
        atomics: count(&["atom", "red"]),
        calls: count(&["call"]),
        shared_bytes: bytes_in(StateSpace::Shared),
        local_bytes: bytes_in(StateSpace::Local),
        live_registers: cfg.as_ref().map(|cfg| live_registers(&code, cfg)).unwrap_or_default(),
    }
}

/// Largest number of live registers of each type after any instruction.
fn live_registers(code: &Code<'_>, cfg: &Cfg) -> BTreeMap<String, usize> {
    let mut most = BTreeMap::new();
    let Ok(liveness) = Liveness::of(code, cfg) else { return most };
    for (block, _) in cfg.blocks() {
        liveness.walk_back(code, cfg, block, |_, live| {
            let mut now: BTreeMap<ScalarType, usize> = BTreeMap::new();
            live.iter().for_each(|register| *now.entry(code.register(*register).ty).or_insert(0) += 1);
            for (ty, count) in now {
                let kept = most.entry(ty.to_string()).or_insert(0);
                *kept = count.max(*kept);
            }
        });
    }
    most
}

fn text(stats: &FileStats) -> String {
    let or = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".into());
    let sm = stats.sm.map_or("unknown".to_owned(), |sm| format!("sm_{sm}"));
    let mut out = format!(
        "{}: {} bytes, .version {} (lowest sufficient: {}), .target {sm}\n",
        stats.file,
        stats.bytes,
        or(&stats.version),
        or(&stats.lowest_version)
    );
    let mut table = Table::new([
        ("", Align::Left),
        ("name", Align::Left),
        ("instructions", Align::Right),
        ("blocks", Align::Right),
        ("loops", Align::Right),
        ("barriers", Align::Right),
        ("atomics", Align::Right),
        ("calls", Align::Right),
        ("shared", Align::Right),
        ("local", Align::Right),
        ("live registers", Align::Left),
    ]);
    for f in &stats.functions {
        let number = |n: Option<usize>| n.map_or("-".into(), |n| n.to_string());
        let live: Vec<String> = f.live_registers.iter().map(|(ty, count)| format!("{count} {ty}")).collect();
        table.row([
            if f.is_kernel { "kernel" } else { "func" }.into(),
            f.name.clone(),
            f.instructions.to_string(),
            number(f.basic_blocks),
            number(f.loops),
            f.barriers.to_string(),
            f.atomics.to_string(),
            f.calls.to_string(),
            f.shared_bytes.to_string(),
            f.local_bytes.to_string(),
            live.join(", "),
        ]);
    }
    out.push_str(&table.to_string());
    let mut opcodes: Vec<(&String, &usize)> = stats.opcodes.iter().collect();
    opcodes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let shown: Vec<String> =
        opcodes.iter().take(OPCODES_SHOWN).map(|(name, count)| format!("{name} {count}")).collect();
    let more = opcodes.len().saturating_sub(OPCODES_SHOWN);
    let rest = if more > 0 { format!(", {more} more") } else { String::new() };
    out.push_str(&format!("  opcodes: {}{rest}\n", shown.join(", ")));
    out
}
