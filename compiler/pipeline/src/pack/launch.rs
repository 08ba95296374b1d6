//! Packs kernels of CUDA programs: one bundle for each kernel and launch shape, with PTX and
//! without code. The daemon compiles it like a tenant's bundle ([`crate::recompile`]).

use super::PackError;
use super::merge::is_kernel;
use super::place::replace_names;
use crate::builder::PRODUCER;
use crate::error::CompileError;
use crate::recompile::plain_reports;
use crate::targets::Target;
use atoll_kgraph::{
    Argument, BundleContents, Expr, FORMAT_VERSION, KernelFacts, KernelGraph, KernelId, LaunchSpec, Node, NodeKind,
    TargetContents, TargetImage, write_bundle,
};
use atoll_ptx::{Function, Item, ItemKind, Linkage, Module, Name, StateSpace, Variable};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// Maximum number of threads of a block, unless a directive sets one.
const THREADS_MAX: u32 = 1024;

/// A kernel of a module in PTX.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleKernel {
    /// Its name.
    pub name: String,
    /// Offset and size of each parameter in the parameter block, in bytes.
    pub params: Vec<(u32, u32)>,
    /// Size of the shared memory that it declares, in bytes.
    pub shared_bytes: u32,
    /// Maximum number of threads of a block.
    pub threads_max: u32,
}

/// A variable of a module in global or constant memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleVariable {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its alignment in bytes.
    pub align: u32,
    /// The bytes of its initializer; the rest is 0.
    pub content: Vec<u8>,
    /// Addresses in its initializer: the offset, the variable at the address, and the offset in
    /// that variable.
    pub addresses: Vec<(usize, String, i64)>,
}

/// The contents of a module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModuleContents {
    /// Its kernels.
    pub kernels: Vec<ModuleKernel>,
    /// Its variables, which need memory.
    pub variables: Vec<ModuleVariable>,
}

/// A kernel with its launch shape.
#[derive(Clone, Copy, Debug)]
pub struct LaunchShape<'a> {
    /// The kernel.
    pub kernel: &'a str,
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Shared memory of a launch besides what the kernel declares, in bytes.
    pub dynamic_shared_bytes: u32,
    /// The address of each variable of the module.
    pub variables: &'a [(String, u64)],
}

/// The kernels and variables of a module in PTX.
///
/// # Errors
/// If the text is not valid PTX, or has a variable that is not supported.
pub fn read_module(ptx: &str) -> Result<ModuleContents, CompileError> {
    let mut module = parse(ptx)?;
    let placed = module.items.iter().filter_map(Item::variable).filter(|variable| is_placed(variable));
    let variables = placed.map(variable).collect::<Result<Vec<ModuleVariable>, PackError>>()?;
    // The analyses of kernels know no variables in other places than the module.
    place(&mut module, &|_| Some(0))?;
    let reports = plain_reports(&module)?;
    let kernels = module.kernels().filter(|kernel| kernel.body.is_some());
    let kernels = kernels
        .map(|kernel| {
            let report = reports.iter().find(|report| kernel.name == report.name.as_str());
            Ok(ModuleKernel {
                name: kernel.name.to_string(),
                params: params(kernel)?.into_iter().map(|param| (param.at, param.bytes)).collect(),
                shared_bytes: report.map_or(0, |report| report.shared_bytes),
                threads_max: threads_max(kernel),
            })
        })
        .collect::<Result<Vec<ModuleKernel>, CompileError>>()?;
    Ok(ModuleContents { kernels, variables })
}

fn is_placed(variable: &Variable) -> bool {
    matches!(variable.space, StateSpace::Global | StateSpace::Const)
}

fn variable(variable: &Variable) -> Result<ModuleVariable, PackError> {
    let refused = |reason: String| PackError::at(format!("variable `{}`", variable.name), reason);
    if variable.linkage == Linkage::Extern || !variable.attributes.is_empty() {
        return Err(refused("managed variables and variables of other modules are not supported".to_owned()));
    }
    let value = variable.initial_value().map_err(refused)?;
    // An array without a size has the size of its initializer.
    let bytes = variable.bytes().unwrap_or(0).max(value.bytes.len() as u64).max(1);
    let addresses = value.addresses.into_iter().map(|(at, name, offset)| (at, name.to_string(), offset));
    Ok(ModuleVariable {
        name: variable.name.to_string(),
        bytes,
        align: variable.alignment(),
        content: value.bytes,
        addresses: addresses.collect(),
    })
}

/// Removes the variables that have addresses, and replaces their names by the addresses.
fn place(module: &mut Module, address: &dyn Fn(&str) -> Option<u64>) -> Result<(), PackError> {
    let known: HashMap<Name, u64> = module
        .items
        .iter()
        .filter_map(Item::variable)
        .filter(|variable| is_placed(variable))
        .filter_map(|variable| Some((variable.name.clone(), address(variable.name.as_str())?)))
        .collect();
    if !known.is_empty() {
        module.items.retain(|item| !item.variable().is_some_and(|variable| known.contains_key(&variable.name)));
        let replaced = replace_names(module, &|name| known.get(name).copied());
        replaced.map_err(|reason| PackError::at("the module", reason))?;
    }
    Ok(())
}

/// One kernel of a module: its PTX with the addresses of variables, and its facts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchSource {
    /// PTX of the kernel and of the functions of its module.
    pub source: String,
    /// Size and alignment of each parameter in bytes.
    pub params: Vec<(u32, u32)>,
    /// Shared memory that the kernel declares, in bytes.
    pub shared_bytes: u32,
    /// The GPUs that the module is for: 80 for `sm_80`.
    pub sm: u32,
}

/// Reads one kernel of a module for a launch shape.
///
/// # Errors
/// If the text is not valid PTX, or has no such kernel.
pub fn launch_source(ptx: &str, shape: LaunchShape<'_>) -> Result<LaunchSource, CompileError> {
    let mut module = parse(ptx)?;
    module.items.retain(|item| !is_kernel(item) || is_named(&item.kind, shape.kernel));
    let addresses: HashMap<&str, u64> = shape.variables.iter().map(|(name, at)| (name.as_str(), *at)).collect();
    place(&mut module, &|name| addresses.get(name).copied())?;
    let unknown = || PackError::at("the module", format!("it has no kernel `{}`", shape.kernel));
    let kernel = module.kernels().find(|kernel| kernel.body.is_some()).ok_or_else(unknown)?;
    let params = params(kernel)?.into_iter().map(|param| (param.bytes, param.align)).collect();
    let report = plain_reports(&module)?.into_iter().next().ok_or_else(unknown)?;
    let (source, sm) = (atoll_ptx::print(&module), atoll_target_nvidia::declared_sm(&module).unwrap_or(0));
    Ok(LaunchSource { source, params, shared_bytes: report.shared_bytes, sm })
}

/// Writes a bundle for host targets and NVIDIA GPUs with the PTX of one kernel, without code. Its grid
/// and parameters are placeholders. `kernel` may come from a process that is not trusted.
///
/// # Errors
/// If the parameters are too large, or the bundle cannot be written.
pub fn pack_launch(
    kernel: &LaunchSource,
    shape: LaunchShape<'_>,
    targets: &[Target],
    output: &Path,
) -> Result<(), CompileError> {
    let limit = atoll_kgraph::validate::PARAMS_BYTES_MAX;
    let mut params_bytes = 0_u64;
    for (bytes, align) in &kernel.params {
        params_bytes = params_bytes.next_multiple_of(u64::from(*align).max(1)).saturating_add((*bytes).into());
        if params_bytes > limit.into() {
            return Err(PackError::at("the kernel", format!("its parameters have more than {limit} bytes")).into());
        }
    }
    let argument = |&(bytes, align): &(u32, u32)| Argument::Bytes {
        align,
        bytes: vec![0; bytes as usize],
        relocations: Vec::new(),
    };
    let args = kernel.params.iter().map(argument).collect();
    let facts = KernelFacts {
        name: shape.kernel.to_owned(),
        block: shape.block,
        params_bytes: params_bytes as u32,
        shared_bytes: kernel.shared_bytes.saturating_add(shape.dynamic_shared_bytes),
        ..KernelFacts::default()
    };
    let node = Node {
        name: shape.kernel.to_owned(),
        kind: NodeKind::Kernel,
        reads: Vec::new(),
        writes: Vec::new(),
        after: Vec::new(),
    };
    let mut graph = KernelGraph {
        format: FORMAT_VERSION,
        name: shape.kernel.to_owned(),
        nodes: vec![node],
        ..KernelGraph::default()
    };
    atoll_frontend::memory_plan::plan(&mut graph);
    let grid = [1, 1, 1].map(Expr::Const);
    let launch = LaunchSpec { kernel: KernelId(0), grid, args, variants: Vec::new() };
    let packed = targets.iter().filter_map(|target| match target {
        Target::HostV3 | Target::HostV4 => Some(*target),
        Target::Nvidia(_) => Some(Target::nvidia_for(kernel.sm)),
        Target::Amd(_) => None,
    });
    let targets = packed.map(|target| TargetContents {
        image: TargetImage {
            name: target.name().into(),
            kernels: vec![facts.clone()],
            launches: vec![Some(launch.clone())],
            ..TargetImage::default()
        },
        code: Vec::new(),
        ptx: None,
        source: Some(kernel.source.clone()),
    });
    let contents =
        BundleContents { producer: PRODUCER.into(), graph: &graph, weights: Vec::new(), targets: targets.collect() };
    write_bundle(output, &contents)?;
    Ok(())
}

fn parse(ptx: &str) -> Result<Module, CompileError> {
    let invalid = |reason: String| PackError::at("the PTX", reason);
    let module = atoll_ptx::parse(ptx).map_err(|errors| invalid(errors.to_string()))?;
    atoll_ptx::verify(&module).map_err(|faults| invalid(faults.to_string()))?;
    Ok(module)
}

fn is_named(item: &ItemKind, name: &str) -> bool {
    matches!(item, ItemKind::Function(function) if function.name == name && function.body.is_some())
}

/// A parameter and its place in the parameter block.
struct Param {
    at: u32,
    bytes: u32,
    align: u32,
}

fn params(kernel: &Function) -> Result<Vec<Param>, PackError> {
    let mut end = 0_u64;
    let mut params = Vec::with_capacity(kernel.params.len());
    for param in &kernel.params {
        let refused = |reason: &str| PackError::at(format!("kernel `{}`", kernel.name), reason);
        let align = param.alignment().max(1);
        let bytes = param.bytes().filter(|_| param.opaque.is_none());
        let bytes = bytes.ok_or_else(|| refused("textures and parameters without a size are not supported"))?;
        let at = end.next_multiple_of(align.into());
        end = at.saturating_add(bytes);
        let limit = atoll_kgraph::validate::PARAMS_BYTES_MAX;
        if end > limit.into() {
            return Err(refused(&format!("its parameters have more than {limit} bytes")));
        }
        params.push(Param { at: at as u32, bytes: bytes as u32, align });
    }
    Ok(params)
}

fn threads_max(kernel: &Function) -> u32 {
    let find = |name: &str| kernel.attributes.iter().find(|attribute| attribute.name == name);
    let bound = find("reqntid").or_else(|| find("maxntid"));
    let times = |threads: u32, size: &Name| threads.checked_mul(size.parse().ok()?);
    let product = |sizes: &[Name]| sizes.iter().try_fold(1_u32, times);
    bound.and_then(|bound| product(&bound.arguments)).map_or(THREADS_MAX, |threads| threads.clamp(1, THREADS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_kgraph::Bundle;

    const PTX: &str = "\
.version 7.0
.target sm_80
.address_size 64
.global .align 8 .u32 counts[4] = {1, 2};
.const .f32 half = 0f3F000000;
.visible .entry add(.param .u64 to, .param .u32 count, .param .align 8 .b8 pair[16]) .maxntid 64, 2, 1 {
    .shared .align 4 .b8 own[256];
    .reg .b32 %r<2>;
    ld.const.u32 %r1, [half];
    st.global.u32 [counts+4], %r1;
    ret;
}
.visible .entry other() {
    ret;
}
";

    #[test]
    fn kernels_are_described_and_packed_one_by_one() {
        let ModuleContents { kernels, variables } = read_module(PTX).unwrap();
        let facts = |variable: &ModuleVariable| (variable.name.clone(), variable.bytes, variable.align);
        let facts: Vec<_> = variables.iter().map(facts).collect();
        assert_eq!(facts, [("counts".to_owned(), 16, 8), ("half".to_owned(), 4, 4)]);
        assert_eq!(variables[0].content, [1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(kernels.iter().map(|kernel| kernel.name.as_str()).collect::<Vec<_>>(), ["add", "other"]);
        assert_eq!((&kernels[0].params, kernels[0].threads_max), (&vec![(0, 8), (8, 4), (16, 16)], 128));
        assert_eq!((kernels[1].params.len(), kernels[1].threads_max, kernels[1].shared_bytes), (0, 1024, 0));
        let folder = std::env::temp_dir().join(format!("atoll-launch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("add.kg");
        let places = [("counts".to_owned(), 4096), ("half".to_owned(), 8192)];
        let shape = LaunchShape { kernel: "add", block: [64, 1, 1], dynamic_shared_bytes: 512, variables: &places };
        pack_launch(&launch_source(PTX, shape).unwrap(), shape, &[Target::HostV3], &file).unwrap();
        let bundle = Bundle::open(&file).unwrap();
        let image = bundle.target(Target::HostV3.name()).unwrap();
        assert_eq!((image.kernels.len(), image.kernels[0].block), (1, [64, 1, 1]));
        let source = bundle.source(&image.name).unwrap().unwrap().replace('\t', " ");
        assert!(source.contains("add(") && !source.contains("other("), "{source}");
        assert!(source.contains("ld.global.u32 %r1, [8192]") && source.contains("[4100], %r1"), "{source}");
        pack_launch(&launch_source(PTX, shape).unwrap(), shape, &[Target::NVIDIA], &file).unwrap();
        let names: Vec<String> = Bundle::open(&file).unwrap().target_names().map(str::to_owned).collect();
        assert_eq!(names, ["nvidia-sm_80"], "the module is for sm_80");
        let unknown = LaunchShape { kernel: "none", ..shape };
        let error = launch_source(PTX, unknown).unwrap_err();
        assert!(error.to_string().contains("it has no kernel `none`"), "{error}");
        assert!(read_module("no PTX").is_err());
        let lying = LaunchSource { source: String::new(), params: vec![(u32::MAX, 1)], shared_bytes: 0, sm: 80 };
        let error = pack_launch(&lying, shape, &[Target::HostV3], &file).unwrap_err();
        assert!(error.to_string().contains("parameters have more than"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
