//! `atoll inspect`

use super::drawing;
use crate::output::{self, usage};
use anyhow::Result;
use atoll_kgraph::{Bundle, BufferKind, BufferSpec, Expr, KernelGraph, NodeKind, TargetImage, invocation_bytes};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Show what a bundle holds: kernels, shapes, buffers, memory plan, sizes
#[derive(clap::Args)]
#[command(after_help = "Examples:
  atoll inspect resnet50.kg
  atoll inspect magika.kg --symbol batch=16        sizes for a batch of 16
  atoll inspect resnet50.kg --svg resnet50.svg     draw the graph
  atoll inspect resnet50.kg --dot | dot -Tpdf > resnet50.pdf")]
pub(crate) struct Inspect {
    /// The bundle
    bundle: PathBuf,
    /// Value of a symbolic size, for the memory figures; its smallest value where absent
    #[arg(long, value_name = "NAME=VALUE")]
    symbol: Vec<String>,
    /// Print everything as JSON
    #[arg(long, conflicts_with_all = ["dot", "svg"])]
    json: bool,
    /// Print the graph in Graphviz' language
    #[arg(long)]
    dot: bool,
    /// Draw the graph into a file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// List every node
    #[arg(long)]
    nodes: bool,
}

impl Inspect {
    pub(crate) fn run(self) -> Result<()> {
        let bundle = Bundle::open(&self.bundle)?;
        let graph = bundle.graph();
        let symbols = symbols(graph, &self.symbol)?;
        if self.dot {
            output::line(drawing::dot(graph));
            return Ok(());
        }
        if let Some(path) = self.svg {
            std::fs::write(&path, drawing::svg(graph))?;
            output::line(format!("{}: {} nodes", path.display(), graph.nodes.len()));
            return Ok(());
        }
        if self.json {
            return output::json(&as_json(&bundle, &symbols)?);
        }
        print(&bundle, &symbols, self.nodes)
    }
}

/// Values of the symbols: those given, else the smallest legal ones.
fn symbols(graph: &KernelGraph, given: &[String]) -> Result<Vec<i64>> {
    let mut values: Vec<i64> = graph.symbols.iter().map(|s| s.min.max(1)).collect();
    for text in given {
        let parsed = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        let Some((name, value)) = parsed else { return Err(usage(format!("--symbol {text}: expected NAME=VALUE"))) };
        let Some(index) = graph.symbols.iter().position(|s| s.name == name) else {
            let names: Vec<_> = graph.symbols.iter().map(|s| s.name.as_str()).collect();
            return Err(usage(format!("the model has no symbol {name}; it has: {}", names.join(", "))));
        };
        let symbol = &graph.symbols[index];
        if value < symbol.min || value > symbol.max {
            return Err(usage(format!("{name} is {} to {}, not {value}", symbol.min, symbol.max)));
        }
        values[index] = value;
    }
    Ok(values)
}

/// A shape with the symbols' own names.
pub(crate) fn shape(graph: &KernelGraph, shape: &[Expr]) -> String {
    let dims: Vec<String> = shape.iter().map(|d| expression(graph, d)).collect();
    format!("[{}]", dims.join(", "))
}

fn expression(graph: &KernelGraph, expr: &Expr) -> String {
    match expr {
        Expr::Symbol(id) => graph.symbols[id.0 as usize].name.clone(),
        Expr::Const(value) => value.to_string(),
        Expr::Add(a, b) => format!("({} + {})", expression(graph, a), expression(graph, b)),
        Expr::Sub(a, b) => format!("({} - {})", expression(graph, a), expression(graph, b)),
        Expr::Mul(a, b) => format!("{} * {}", expression(graph, a), expression(graph, b)),
        Expr::FloorDiv(a, b) => format!("{} / {}", expression(graph, a), expression(graph, b)),
        Expr::CeilDiv(a, b) => format!("ceil({} / {})", expression(graph, a), expression(graph, b)),
        Expr::Max(a, b) => format!("max({}, {})", expression(graph, a), expression(graph, b)),
        Expr::Min(a, b) => format!("min({}, {})", expression(graph, a), expression(graph, b)),
    }
}

/// Sizes in bytes under the symbols' values.
struct Sizes {
    weights: u64,
    arena: u64,
    unshared: u64,
    invocation: u64,
}

impl Sizes {
    fn of(bundle: &Bundle, target: &TargetImage, symbols: &[i64]) -> Result<Sizes> {
        let plan = &bundle.graph().plan;
        let eval = |e: &Option<Expr>| e.as_ref().map_or(Ok(0), |e| e.eval(symbols)).map(|v| v as u64);
        Ok(Sizes {
            weights: bundle.weights().len() as u64,
            arena: eval(&plan.arena_bytes)?,
            unshared: eval(&plan.unshared_bytes)?,
            invocation: invocation_bytes(bundle.graph(), target, symbols)?,
        })
    }
}

fn ends(graph: &KernelGraph, kind: BufferKind) -> impl Iterator<Item = &BufferSpec> {
    graph.buffers_of(kind).map(|(_, spec)| spec)
}

fn print(bundle: &Bundle, symbols: &[i64], nodes: bool) -> Result<()> {
    let graph = bundle.graph();
    output::line(format!("{}  {} (written by {})", graph.name, output::bytes(bundle.file_bytes()), bundle.producer()));
    output::line(format!("digest  {}", bundle.digest()));
    for (symbol, value) in graph.symbols.iter().zip(symbols) {
        output::line(format!("symbol  {} = {} to {}; sizes below are for {value}", symbol.name, symbol.min, symbol.max));
    }
    for (word, kind) in [("input ", BufferKind::Input), ("output", BufferKind::Output)] {
        for spec in ends(graph, kind) {
            output::line(format!("{word}  {} {:?} {}", spec.name, spec.dtype, shape(graph, &spec.shape)));
        }
    }
    let count = |kind| graph.buffers_of(kind).count();
    output::line(format!("\n{} nodes, {} constants, {} temporary buffers", graph.nodes.len(), count(BufferKind::Const), count(BufferKind::Temp)));
    for name in bundle.target_names() {
        let Some(target) = bundle.target(name) else { continue };
        print_target(bundle, target, symbols)?;
    }
    if nodes {
        print_nodes(bundle);
    }
    Ok(())
}

fn print_target(bundle: &Bundle, target: &TargetImage, symbols: &[i64]) -> Result<()> {
    let sizes = Sizes::of(bundle, target, symbols)?;
    output::line(format!("\ntarget {}", target.name));
    output::line(format!("  weights           {:>12}", output::bytes(sizes.weights)));
    output::line(format!("  activations       {:>12}  ({} without reuse)", output::bytes(sizes.arena), output::bytes(sizes.unshared)));
    output::line(format!("  one invocation    {:>12}", output::bytes(sizes.invocation)));
    output::line(format!("  peak device memory{:>12}\n", output::bytes(sizes.weights + sizes.invocation)));
    let rows: Vec<Vec<String>> = target
        .kernels
        .iter()
        .enumerate()
        .map(|(index, kernel)| {
            let launches = target.launches.iter().flatten().filter(|l| l.kernel.0 as usize == index).count();
            vec![
                format!("  {}", kernel.name),
                launches.to_string(),
                kernel.block.map(|d| d.to_string()).join("x"),
                kernel.shared_bytes.to_string(),
                kernel.registers.map_or_else(|| "-".into(), |r| r.to_string()),
                if kernel.preempt_offset.is_some() { "yes" } else { "no" }.into(),
            ]
        })
        .collect();
    output::table(&["  kernel", "nodes", "block", "shared", "registers", "preemptible"], &rows);
    Ok(())
}

fn print_nodes(bundle: &Bundle) {
    let graph = bundle.graph();
    output::line("");
    let rows: Vec<Vec<String>> = graph
        .nodes
        .iter()
        .zip(&graph.plan.restore_points)
        .map(|(node, restore)| {
            let what = match node.kind {
                NodeKind::Kernel => "kernel",
                NodeKind::Copy { .. } => "copy",
            };
            let names = |ids: &[atoll_kgraph::BufferId]| {
                ids.iter().map(|id| graph.buffers[id.0 as usize].name.as_str()).collect::<Vec<_>>().join(" ")
            };
            vec![node.name.clone(), what.into(), names(&node.reads), names(&node.writes), restore.0.to_string()]
        })
        .collect();
    output::table(&["node", "kind", "reads", "writes", "restore point"], &rows);
}

fn as_json(bundle: &Bundle, symbols: &[i64]) -> Result<Value> {
    let graph = bundle.graph();
    let mut targets = serde_json::Map::new();
    for name in bundle.target_names() {
        let Some(target) = bundle.target(name) else { continue };
        let sizes = Sizes::of(bundle, target, symbols)?;
        let facts = json!({
            "kernels": target.kernels,
            "launches": target.launches,
            "code_bytes": bundle.code(name).map_or(0, <[u8]>::len),
            "invocation_bytes": sizes.invocation,
            "peak_bytes": sizes.weights + sizes.invocation,
            "arena_bytes": sizes.arena,
            "unshared_bytes": sizes.unshared,
        });
        targets.insert(name.into(), facts);
    }
    Ok(json!({
        "digest": bundle.digest(),
        "producer": bundle.producer(),
        "file_bytes": bundle.file_bytes(),
        "weights_bytes": bundle.weights().len(),
        "symbols": symbols,
        "graph": graph,
        "targets": targets,
    }))
}
