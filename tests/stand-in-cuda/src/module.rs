//! Modules: PTX, its variables in device memory, and its kernels as native code for each block
//! shape in use.

mod variables;

use crate::code::Code;
use crate::context::Context;
use crate::log::log;
use crate::memory::Kind;
use crate::options::Options;
use crate::status::Status;
use crate::table::Handle;
use atoll_device::ModuleImage;
use atoll_kgraph::KernelFacts;
use atoll_ptx::ItemKind;
use atoll_target_host::{CpuLevel, HostError, KernelShape};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// Dynamic shared memory in bytes above which a kernel's limit must be raised.
pub(crate) const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// Largest parameter block of the host device, in bytes.
const PARAMS_BYTES_MAX: u64 = atoll_device::PARAMS_BYTES_MAX as u64;

/// Why a module cannot be loaded.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: Status,
    /// The text for the error log.
    pub(crate) log: String,
}

/// A kernel's name, and threads of a block in x, y, z.
type Shape = (String, [u32; 3]);

/// A loaded module.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) context: Arc<Context>,
    tree: atoll_ptx::Module,
    /// The compute capability that the PTX is for: 90 is 9.0.
    pub(crate) target: u32,
    variables: HashMap<String, (u64, u64)>,
    code: Mutex<HashMap<Shape, Arc<Code>>>,
    verbose: bool,
}

/// A kernel of a module.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) module: Arc<Module>,
    pub(crate) handle: Handle,
    pub(crate) name: String,
    /// Offset and size of each parameter in the block.
    pub(crate) params: Vec<(u64, u64)>,
    /// Maximum dynamic shared memory of a launch in bytes.
    pub(crate) dynamic_shared_bytes_max: AtomicU32,
}

impl Module {
    /// Parses PTX and allocates its variables.
    pub(crate) fn load(context: &Arc<Context>, text: &str, options: &Options) -> Result<Module, Refusal> {
        let mut tree = atoll_ptx::parse(text).map_err(|errors| invalid(errors.to_string()))?;
        let target = check_header(&tree, options)?;
        atoll_ptx::verify(&tree).map_err(|faults| invalid(faults.to_string()))?;
        let variables = variables::place(&mut tree, context).map_err(|(status, log)| Refusal { status, log })?;
        let code = Mutex::default();
        Ok(Module { context: context.clone(), tree, target, variables, code, verbose: options.verbose })
    }

    /// Address and size of a variable.
    pub(crate) fn variable(&self, name: &str) -> Result<(u64, u64), Status> {
        self.variables.get(name).copied().ok_or(Status::NotFound)
    }

    /// Frees the memory of its variables.
    pub(crate) fn give_back_variables(&self) {
        for (at, _) in self.variables.values() {
            // This only fails if the context is gone, which freed them.
            let _ = self.context.memory().give_back(*at, Kind::Device);
        }
    }

    /// The names of its kernels.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = &str> {
        self.tree.kernels().map(|kernel| kernel.name.as_str())
    }

    /// A kernel by name.
    pub(crate) fn function(self: &Arc<Module>, name: &str) -> Result<Function, Status> {
        let kernel = self.tree.kernels().find(|kernel| kernel.name == name).ok_or(Status::NotFound)?;
        let mut end = 0u64;
        let params = kernel.params.iter().map(|param| {
            let (at, bytes) = (end.next_multiple_of(u64::from(param.alignment().max(1))), param.bytes().unwrap_or(0));
            end = at.saturating_add(bytes);
            (at, bytes)
        });
        Ok(Function {
            module: self.clone(),
            handle: Handle::fresh(),
            name: name.to_owned(),
            params: params.collect(),
            dynamic_shared_bytes_max: AtomicU32::new(SHARED_BYTES_DEFAULT),
        })
    }

    /// Native code of a kernel, compiled on first use.
    fn code(&self, name: &str, block: [u32; 3]) -> Result<Arc<Code>, Status> {
        let key = (name.to_owned(), block);
        let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = code.get(&key) {
            return Ok(known.clone());
        }
        let made = Arc::new(self.compile(&KernelShape { name: name.into(), block })?);
        code.insert(key, made.clone());
        Ok(made)
    }

    fn compile(&self, shape: &KernelShape) -> Result<Code, Status> {
        let level = CpuLevel::of_this_machine().ok_or(Status::NotSupported)?;
        let options =
            atoll_target_host::Options { threads: 1, cache: self.context.code_cache.clone(), ..Default::default() };
        let object =
            atoll_target_host::compile(&self.tree, std::slice::from_ref(shape), level, &options).map_err(|error| {
                if self.verbose {
                    log(&error);
                }
                refused(&error)
            })?;
        let kernel = object.kernels.first().ok_or(Status::Unknown)?;
        let facts = KernelFacts {
            name: shape.name.to_string(),
            block: shape.block,
            params_bytes: kernel.params_bytes,
            shared_bytes: kernel.shared_static_bytes.next_multiple_of(16),
            scratch_bytes: kernel.scratch_bytes,
            ..KernelFacts::default()
        };
        let image = ModuleImage {
            domain: "",
            target: level.target_name(),
            code: &object.elf,
            ptx: None,
            kernels: std::slice::from_ref(&facts),
        };
        let id = self.context.device.load(image).map_err(|error| {
            if self.verbose {
                log(&error);
            }
            Status::LaunchOutOfResources
        })?;
        Ok(Code::new(self.context.device.clone(), id, facts))
    }
}

impl Function {
    /// Native code for a block shape.
    pub(crate) fn code(&self, block: [u32; 3]) -> Result<Arc<Code>, Status> {
        self.module.code(&self.name, block)
    }

    /// Static shared memory in bytes.
    pub(crate) fn shared_bytes(&self) -> Result<u32, Status> {
        Ok(self.code(self.block_required().unwrap_or([32, 1, 1]))?.facts.shared_bytes)
    }

    /// Size of the parameter block; `None` if it exceeds the limit.
    pub(crate) fn params_bytes(&self) -> Option<usize> {
        let end = self.params.iter().map(|(at, bytes)| at.saturating_add(*bytes)).max().unwrap_or(0);
        (end <= PARAMS_BYTES_MAX).then_some(end as usize)
    }

    /// The block shape that the kernel requires.
    pub(crate) fn block_required(&self) -> Option<[u32; 3]> {
        self.directive("reqntid")
    }

    /// Maximum number of threads of a block.
    pub(crate) fn threads_max(&self) -> u32 {
        let bound = self.block_required().or_else(|| self.directive("maxntid"));
        bound.map_or(1024, |block| block.iter().product::<u32>().clamp(1, 1024))
    }

    /// Raises the limit of dynamic shared memory.
    pub(crate) fn allow_shared(&self, bytes: u32) {
        self.dynamic_shared_bytes_max.store(bytes, Relaxed);
    }

    fn directive(&self, name: &str) -> Option<[u32; 3]> {
        let kernel = self.module.tree.function(&self.name)?;
        let directive = kernel.attributes.iter().find(|attribute| attribute.name == name)?;
        let at = |index: usize| directive.arguments.get(index).and_then(|number| number.parse().ok()).unwrap_or(1);
        Some([at(0), at(1), at(2)])
    }
}

/// Checks that device and driver are new enough for a PTX module; returns the compute capability
/// that it is for.
fn check_header(tree: &atoll_ptx::Module, options: &Options) -> Result<u32, Refusal> {
    let directive = |name: &str| {
        tree.items.iter().find_map(|item| match &item.kind {
            ItemKind::Directive(directive) if directive.name == name => directive.arguments.first(),
            _ => None,
        })
    };
    let version = directive("version")
        .and_then(|text| text.split_once('.'))
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    let version: (u32, u32) = version.ok_or_else(|| invalid("the PTX does not begin with .version".to_owned()))?;
    if version > options.ptx {
        let ((major, minor), (a, b)) = (version, options.ptx);
        let log = format!("ptxas fatal   : Unsupported .version {major}.{minor}; current version is '{a}.{b}'");
        return Err(Refusal { status: Status::UnsupportedPtxVersion, log });
    }
    let target = directive("target").ok_or_else(|| invalid("the PTX names no .target".to_owned()))?;
    let number =
        target.strip_prefix("sm_").and_then(|text| text.trim_end_matches(char::is_alphabetic).parse::<u32>().ok());
    match number {
        Some(number) if number <= options.capability => Ok(number),
        _ => Err(invalid(format!(
            "ptxas fatal   : the target {target} is not for a device of sm_{}",
            options.capability
        ))),
    }
}

fn invalid(log: String) -> Refusal {
    Refusal { status: Status::InvalidPtx, log }
}

/// The driver compiles PTX when a module is loaded; the stand-in compiles it when a kernel is
/// launched. The stand-in therefore detects unsupported code only at the launch.
fn refused(error: &HostError) -> Status {
    match error {
        HostError::NoSuchKernel { .. } => Status::NotFound,
        HostError::BlockShape { .. } => Status::InvalidValue,
        // The PTX was verified when it was loaded.
        HostError::Lower(_) => Status::NotSupported,
        HostError::Llvm { .. } | HostError::NoTarget(_) | HostError::Link(_) => Status::Unknown,
    }
}
