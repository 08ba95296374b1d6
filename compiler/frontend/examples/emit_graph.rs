//! Prints the tensor graph of a model: `emit_graph MODEL.onnx`, after the import and after all
//! passes.

#![allow(clippy::print_stdout, reason = "that is what it is for")]

use atoll_frontend::{onnx, transform};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: emit_graph MODEL.onnx")?;
    let graph = onnx::import(path.as_ref(), &onnx::ImportOptions::default())?;
    println!("// import\n{graph}");
    let count = graph.nodes.len();
    let graph = transform::transform_with(graph, |pass, graph| println!("// {pass}: {} nodes", graph.nodes.len()))?;
    println!("// {count} nodes became {}\n{graph}", graph.nodes.len());
    Ok(())
}
