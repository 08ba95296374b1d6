//! A function as a folder with a manifest, PTX and constants, as exporters write them.

use anyhow::{Context, Result, bail};
use atoll_kgraph::DType;
use atoll_passes::{KernelEffects, Root, analyze_effects};
use atoll_ptx::Name;
use atoll_session::{Buffer, Function, Kernel, Operation, Param, Role, Steps, ptx};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// The kernels of recorded modules.
pub(super) struct Layout {
    /// By the digest of the image.
    modules: BTreeMap<[u8; 32], Module>,
}

struct Module {
    ptx: String,
    effects: HashMap<String, KernelEffects>,
}

/// The manifest.
#[derive(Serialize)]
struct Manifest<'a> {
    format: u32,
    producer: &'a str,
    name: &'a str,
    ptx: Vec<String>,
    kernels: BTreeMap<String, Value>,
    buffers: Ordered,
    steps: Vec<Value>,
}

/// A map in the order of its entries.
struct Ordered(Vec<(String, Value)>);

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl Layout {
    /// Reads the modules whose kernels the sessions launch.
    ///
    /// # Errors
    /// If a module has no PTX, or PTX that cannot be read, or a kernel uses a variable of its module.
    pub(super) fn new(sessions: &[Steps<'_>]) -> Result<Layout> {
        let mut modules = BTreeMap::new();
        for session in sessions {
            for kernel in session.steps.iter().filter_map(|step| step.action.kernel()) {
                let module = match modules.entry(kernel.image) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(free) => {
                        let image = session.images.get(&kernel.image);
                        let missing = || format!("the recording does not have the module of kernel `{}`", kernel.name);
                        let module = Module::read(image.with_context(missing)?);
                        free.insert(module.with_context(|| format!("the module of kernel `{}`", kernel.name))?)
                    }
                };
                // `pack` refuses this too, unless the manifest says what the kernel reads and writes.
                if let Some(name) = module.effects.get(&kernel.name).and_then(variable) {
                    bail!("kernel `{}` uses `{name}`, a variable of a module, which outlives a function", kernel.name);
                }
            }
        }
        Ok(Layout { modules })
    }

    /// The pointers through which a kernel writes: the index of the parameter, and the offset in it.
    /// `None` if the analysis cannot follow an address.
    pub(super) fn writes(&self, kernel: &Kernel) -> Option<Vec<(usize, usize)>> {
        let effects = self.effects(kernel)?;
        if effects.unsupported.is_some() || effects.writes_anything.is_some() {
            return None;
        }
        let pointer = |root: &Root| match root {
            Root::Param { index, offset, .. } => Some((*index, *offset as usize)),
            Root::Variable(_) => None,
        };
        Some(effects.writes.iter().filter_map(pointer).collect())
    }

    fn effects(&self, kernel: &Kernel) -> Option<&KernelEffects> {
        self.modules.get(&kernel.image)?.effects.get(&kernel.name)
    }

    /// Whether the analysis follows all addresses from which a kernel reads, and to which it writes.
    fn is_followed(&self, kernel: &Kernel) -> (bool, bool) {
        let effects = self.effects(kernel).filter(|effects| effects.unsupported.is_none());
        let reads = effects.is_some_and(|effects| effects.reads_anything.is_none());
        (reads, effects.is_some_and(|effects| effects.writes_anything.is_none()))
    }

    /// Writes the function into a folder, with the element types of inputs and outputs that are not
    /// bytes. Returns the manifest.
    ///
    /// # Errors
    /// If a type is not that of an input or output, or does not fit it, or a file cannot be written.
    pub(super) fn write(
        &self,
        function: &Function<'_>,
        name: &str,
        types: &BTreeMap<String, DType>,
        folder: &Path,
    ) -> Result<PathBuf> {
        check_types(function, types)?;
        let launched = function.operations.iter().filter_map(|operation| match operation {
            Operation::Launch { kernel, .. } => Some(&**kernel),
            _ => None,
        });
        let launched: BTreeSet<&Kernel> = launched.collect();
        let files: BTreeMap<[u8; 32], String> =
            self.modules.keys().enumerate().map(|(index, digest)| (*digest, format!("module{index}.ptx"))).collect();
        let used: BTreeSet<[u8; 32]> = launched.iter().map(|kernel| kernel.image).collect();
        for digest in &used {
            std::fs::write(folder.join(&files[digest]), &self.modules[digest].ptx)?;
        }
        let aliases: BTreeMap<&Kernel, String> =
            launched.iter().enumerate().map(|(index, kernel)| (*kernel, format!("{}.{index}", kernel.name))).collect();
        let entry = |(kernel, alias): (&&Kernel, &String)| {
            (alias.clone(), json!({ "ptx": files[&kernel.image], "entry": kernel.name }))
        };
        // The buffers whose addresses kernels have, and may have stored in memory.
        let mut passed = BTreeSet::new();
        let steps = function.operations.iter().map(|operation| {
            if let Operation::Launch { params, .. } = operation {
                let places = params.iter().flat_map(|param| &param.addresses);
                passed.extend(places.map(|(_, place)| function.buffers[place.buffer].name.as_str()));
            }
            self.step(operation, &function.buffers, &aliases, &passed)
        });
        let manifest = Manifest {
            format: 1,
            producer: concat!("atoll fn from-trace ", env!("CARGO_PKG_VERSION")),
            name,
            ptx: used.iter().map(|digest| files[digest].clone()).collect(),
            kernels: aliases.iter().map(entry).collect(),
            buffers: buffers(function, types, folder)?,
            steps: steps.collect(),
        };
        let path = folder.join("manifest.json");
        std::fs::write(&path, serde_json::to_vec(&manifest)?)?;
        Ok(path)
    }

    /// A step of the manifest. `passed` has the buffers whose addresses this launch and earlier ones
    /// got. A kernel that the analysis does not follow may use all of them.
    fn step(
        &self,
        operation: &Operation,
        buffers: &[Buffer<'_>],
        aliases: &BTreeMap<&Kernel, String>,
        passed: &BTreeSet<&str>,
    ) -> Value {
        match operation {
            Operation::Copy { to, from, bytes } => json!({ "copy": {
                "from": buffers[from.buffer].name,
                "from_offset": from.offset,
                "to": buffers[to.buffer].name,
                "to_offset": to.offset,
                "bytes": bytes,
            } }),
            Operation::Fill { to, bytes, value } => json!({ "fill": {
                "to": buffers[to.buffer].name,
                "offset": to.offset,
                "bytes": bytes,
                "value": value,
            } }),
            Operation::Launch { kernel, grid, block, shared_bytes, params } => {
                let mut step = json!({
                    "kernel": aliases[&**kernel],
                    "grid": grid,
                    "block": block,
                    "shared": shared_bytes,
                    "args": params.iter().map(|param| argument(param, buffers)).collect::<Vec<Value>>(),
                });
                let (reads, writes) = self.is_followed(kernel);
                if !reads {
                    step["reads"] = json!(passed);
                }
                if !writes {
                    step["writes"] = json!(passed);
                }
                step
            }
        }
    }
}

impl Module {
    fn read(image: &[u8]) -> Result<Module> {
        // A function is compiled for devices that are not known here: the newest PTX is the best.
        let ptx = ptx(image, u32::MAX)?;
        let module = atoll_ptx::parse(&ptx)?;
        let kernels = module.kernels().filter(|kernel| kernel.body.is_some());
        let effects = kernels.map(|kernel| (kernel.name.to_string(), analyze_effects(&module, kernel))).collect();
        Ok(Module { ptx, effects })
    }
}

/// A variable of its module that a kernel uses.
fn variable(effects: &KernelEffects) -> Option<&Name> {
    effects.reads.iter().chain(&effects.writes).find_map(|root| match root {
        Root::Variable(name) => Some(name),
        Root::Param { .. } => None,
    })
}

fn argument(param: &Param, buffers: &[Buffer<'_>]) -> Value {
    let bytes: String = param.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let addresses = param
        .addresses
        .iter()
        .map(|(at, place)| json!({ "at": at, "buffer": buffers[place.buffer].name, "offset": place.offset }));
    json!({ "bytes": bytes, "addresses": addresses.collect::<Vec<Value>>() })
}

fn check_types(function: &Function<'_>, types: &BTreeMap<String, DType>) -> Result<()> {
    for (name, dtype) in types {
        let is_passed = |buffer: &&Buffer<'_>| matches!(buffer.role, Role::Input | Role::Output);
        let mut passed = function.buffers.iter().filter(is_passed);
        let Some(buffer) = passed.find(|buffer| buffer.name == *name) else {
            bail!("there is no input or output `{name}`; inputs are in0, in1, …, and outputs out0, out1, …");
        };
        if !buffer.bytes.is_multiple_of(dtype.bytes()) {
            bail!("`{name}` has {} bytes, which are no elements of type {dtype}", buffer.bytes);
        }
        let is_filled = |operation: &Operation| match operation {
            // Zeros are the same in all types.
            Operation::Fill { to, value, .. } => *value != 0 && function.buffers[to.buffer].name == *name,
            _ => false,
        };
        if function.operations.iter().any(is_filled) {
            bail!("the program fills `{name}` with a byte, so its type must be u8");
        }
    }
    Ok(())
}

/// The buffers that operations use, and all inputs and outputs. Writes the files of constants.
fn buffers(function: &Function<'_>, types: &BTreeMap<String, DType>, folder: &Path) -> Result<Ordered> {
    let mut used = BTreeSet::new();
    for operation in &function.operations {
        match operation {
            Operation::Copy { to, from, .. } => used.extend([to.buffer, from.buffer]),
            Operation::Fill { to, .. } => used.extend([to.buffer]),
            Operation::Launch { params, .. } => {
                used.extend(params.iter().flat_map(|param| &param.addresses).map(|(_, place)| place.buffer));
            }
        }
    }
    let mut all = Vec::new();
    for (index, Buffer { name, role, bytes, contents }) in function.buffers.iter().enumerate() {
        let is_passed = matches!(role, Role::Input | Role::Output);
        if !is_passed && !used.contains(&index) {
            continue;
        }
        let kind = match role {
            Role::Input => "input",
            Role::Output => "output",
            Role::Constant => "const",
            Role::Memory => "temp",
        };
        let dtype = types.get(name).copied().unwrap_or(DType::U8);
        let mut buffer = json!({ "kind": kind, "dtype": dtype, "shape": [bytes / dtype.bytes()] });
        if let Some(contents) = contents {
            let file = format!("{name}.bin");
            std::fs::write(folder.join(&file), contents)?;
            buffer["file"] = json!(file);
        }
        all.push((name.clone(), buffer));
    }
    if all.is_empty() {
        bail!("it uses no memory");
    }
    Ok(Ordered(all))
}
