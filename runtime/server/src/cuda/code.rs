//! Modules of a session, and the functions of their kernels: one for each launch shape, compiled
//! when it is first launched.

use super::errors::{INVALID_PTX, UNSUPPORTED_PTX_VERSION, of_kernel};
use super::warm::{ReadText, Warm, text_digest};
use crate::code::CodeError;
use crate::compiler::{LaunchShape, ModuleKernel, ModuleVariable};
use crate::deployed::{DeployError, Deployed};
use crate::limits::{CUDA_FUNCTIONS_MAX, CUDA_PTX_BYTES_MAX};
use atoll_engine::{Class, EngineError, FunctionKey, FunctionOptions, Tenant};
use atoll_fleet::Inference;
use atoll_kgraph::Bundle;
use atoll_session::{Code, LoadFailure, NoPtx, Span};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use tempfile::TempDir;

/// PTX of an empty kernel. It is the function to which the work of a session is billed.
const NOTHING: &str = ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry nothing() {\n    ret;\n}\n";

/// The newest version of PTX that modules may have.
const PTX_VERSION_MAX: (u32, u32) = (9, 5);

/// PTX of a session. Modules with the same text share it.
#[derive(Debug)]
struct Text(Arc<ReadText>);

/// A module of a program.
#[derive(Debug)]
pub(super) struct Module {
    /// Its number in the session.
    number: u32,
    text: Arc<Text>,
    /// The memory of each variable.
    spans: Vec<Span>,
}

impl Module {
    pub(super) fn kernels(&self) -> &[ModuleKernel] {
        &self.text.0.contents.kernels
    }

    /// The memory of a variable.
    pub(super) fn variable(&self, name: &str) -> Option<Span> {
        self.variables().find(|(variable, _)| variable.name == name).map(|(_, span)| span)
    }

    fn variables(&self) -> impl Iterator<Item = (&ModuleVariable, Span)> {
        self.text.0.contents.variables.iter().zip(self.spans.iter().copied())
    }
}

/// A kernel with its launch shape: number of the module, name, block, dynamic shared memory.
type Shape = (u32, String, [u32; 3], u32);

/// The code of a session. Dropping it unloads all functions.
pub(super) struct SessionCode {
    deployed: Arc<Deployed>,
    /// The cache of the code of the tenant's earlier sessions.
    pub(super) warm: Arc<Warm>,
    engine: Arc<dyn Inference>,
    /// The function that is billed.
    pub(super) base: FunctionKey,
    class: Class,
    pub(super) device: String,
    /// The compute capability of the device.
    capability: u32,
    modules: u32,
    /// The texts of its modules.
    texts: Vec<Weak<Text>>,
    /// Whether a module has `trap` instructions.
    pub(super) has_traps: bool,
    /// Memory for variables, and its parts in use: their starts and ends.
    memory: Span,
    used: BTreeMap<u64, u64>,
    /// Number of functions that were loaded so far; also the number of the last one.
    functions: u64,
    loaded: HashMap<Shape, (FunctionKey, Arc<Bundle>)>,
    /// The bundle of `base`, once it is loaded.
    nothing: Option<Arc<Bundle>>,
    /// Files of bundles.
    folder: TempDir,
}

/// Initial contents of variables, with their addresses.
type Contents = Vec<(u64, Vec<u8>)>;

impl SessionCode {
    /// Loads the function of a session.
    pub(super) fn begin(
        (deployed, warm): (Arc<Deployed>, Arc<Warm>),
        engine: Arc<dyn Inference>,
        tenant: &Tenant,
        name: String,
        (class, device, capability): (Class, String, u32),
    ) -> Result<SessionCode, DeployError> {
        let folder = tempfile::tempdir().map_err(|source| EngineError::Os { what: "make a folder", source })?;
        let base = FunctionKey { tenant: tenant.clone(), name };
        let loaded = HashMap::new();
        let (memory, used) = (Span { at: 0, bytes: 0 }, BTreeMap::new());
        let (modules, functions, has_traps) = (0, 0, false);
        let mut code = SessionCode {
            deployed,
            warm,
            engine,
            base,
            class,
            device,
            capability,
            modules,
            texts: Vec::new(),
            has_traps,
            memory,
            used,
            functions,
            loaded,
            nothing: None,
            folder,
        };
        let shape = LaunchShape { kernel: "nothing", block: [1, 1, 1], dynamic_shared_bytes: 0, variables: &[] };
        code.nothing = Some(code.load(&code.base, NOTHING, shape)?);
        Ok(code)
    }

    /// Loads all functions on another device of the same kind, instead of the one that they are on.
    ///
    /// # Errors
    /// If one of them cannot be loaded; then none is.
    pub(super) fn move_to(&mut self, device: &str) -> Result<(), EngineError> {
        self.functions().for_each(|(key, _)| unload(&*self.engine, key));
        device.clone_into(&mut self.device);
        let loaded = self.functions().try_for_each(|(key, bundle)| self.load_bundle(key, bundle.clone()));
        loaded.inspect_err(|_| self.functions().for_each(|(key, _)| unload(&*self.engine, key)))
    }

    /// All functions with their bundles, that of the session first.
    fn functions(&self) -> impl Iterator<Item = (&FunctionKey, &Arc<Bundle>)> {
        let base = self.nothing.iter().map(|bundle| (&self.base, bundle));
        base.chain(self.loaded.values().map(|(key, bundle)| (key, bundle)))
    }

    /// Number of functions that the tenant has deployed.
    pub(super) fn deployed(&self) -> u64 {
        self.deployed.of(&self.base.tenant).len() as u64
    }

    /// Sets the memory for variables of modules.
    pub(super) fn set_memory(&mut self, memory: Span) {
        self.memory = memory;
    }

    /// Reads an image of a program. Also returns the initial contents of its variables.
    pub(super) fn module(&mut self, image: &[u8]) -> Result<(Module, Contents), LoadFailure> {
        let failure = |code, log: String| LoadFailure { code, log };
        let text = self.text(text(image, self.capability)?)?;
        self.modules += 1;
        self.has_traps |= text.0.has_traps;
        let mut module = Module { number: self.modules, text, spans: Vec::new() };
        let text = module.text.clone();
        for variable in &text.0.contents.variables {
            let Some(span) = self.place(variable) else {
                self.release(&module);
                let (bytes, all) = (variable.bytes, self.memory.bytes);
                let log = format!(
                    "variable {}: no room for {bytes} bytes; a session has {all} bytes for variables",
                    variable.name
                );
                return Err(failure(Code::OUT_OF_MEMORY, log));
            };
            module.spans.push(span);
        }
        let mut contents = Vec::with_capacity(module.spans.len());
        for (variable, span) in module.variables() {
            let mut content = variable.content.clone();
            for (slot, name, offset) in &variable.addresses {
                let slot = *slot..slot.saturating_add(8);
                let (Some(other), Some(to)) = (module.variable(name), content.get_mut(slot)) else {
                    self.release(&module);
                    let log = format!("variable {}: the address of {name} is not supported", variable.name);
                    return Err(failure(Code::NOT_SUPPORTED, log));
                };
                to.copy_from_slice(&other.at.wrapping_add_signed(*offset).to_le_bytes());
            }
            content.resize(span.bytes as usize, 0);
            contents.push((span.at, content));
        }
        Ok((module, contents))
    }

    /// The text of a module, which the modules that have the same text share.
    fn text(&mut self, ptx: String) -> Result<Arc<Text>, LoadFailure> {
        self.texts.retain(|text| text.strong_count() > 0);
        let live: Vec<Arc<Text>> = self.texts.iter().filter_map(Weak::upgrade).collect();
        if let Some(known) = live.iter().find(|text| text.0.ptx == ptx) {
            return Ok(known.clone());
        }
        let bytes = ptx.len() + live.iter().map(|text| text.0.ptx.len()).sum::<usize>();
        if bytes > CUDA_PTX_BYTES_MAX {
            let log =
                format!("the modules of the session have {bytes} bytes of PTX; the limit is {CUDA_PTX_BYTES_MAX}");
            return Err(LoadFailure { code: Code::OUT_OF_MEMORY, log });
        }
        let digest = text_digest(&ptx);
        let read = match self.warm.text(&self.base.tenant, &digest) {
            Some(read) => read,
            None => {
                let read = Arc::new(self.read(ptx)?);
                self.warm.keep_text(&self.base.tenant, digest, &read);
                read
            }
        };
        let text = Arc::new(Text(read));
        self.texts.push(Arc::downgrade(&text));
        Ok(text)
    }

    /// Reads PTX in the compiler's jail.
    fn read(&self, ptx: String) -> Result<ReadText, LoadFailure> {
        let contents = self.deployed.read_module(&self.base.tenant, &ptx).map_err(|error| {
            let is_of_text = matches!(error, CodeError::Compile(_));
            let log = error.to_string();
            LoadFailure { code: if is_of_text { INVALID_PTX } else { of_kernel(&error.into()) }, log }
        })?;
        let has_traps = ptx.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == "trap");
        Ok(ReadText { ptx, contents, has_traps })
    }

    /// Takes the first gap that is large enough.
    fn place(&mut self, variable: &ModuleVariable) -> Option<Span> {
        let end = self.memory.at.checked_add(self.memory.bytes)?;
        let align = u64::from(variable.align).max(1);
        let begins = [self.memory.at].into_iter().chain(self.used.values().copied());
        let ends = self.used.keys().copied().chain([end]);
        let fits = |(begin, end): (u64, u64)| {
            let at = begin.checked_next_multiple_of(align)?;
            at.checked_add(variable.bytes).filter(|last| *last <= end).map(|_| at)
        };
        let at = begins.zip(ends).find_map(fits)?;
        self.used.insert(at, at + variable.bytes);
        Some(Span { at, bytes: variable.bytes })
    }

    fn release(&mut self, module: &Module) {
        for span in &module.spans {
            self.used.remove(&span.at);
        }
    }

    /// Unloads the kernels of a module, and frees its variables.
    pub(super) fn unload(&mut self, module: &Module) {
        self.release(module);
        let own = self.loaded.extract_if(|(number, ..), _| *number == module.number);
        own.for_each(|(_, (key, _))| unload(&*self.engine, &key));
    }

    /// The function of a kernel for a launch shape; compiles and loads it first if it is new.
    pub(super) fn function(
        &mut self,
        module: &Module,
        (kernel, block, dynamic_shared_bytes): (&str, [u32; 3], u32),
    ) -> Result<FunctionKey, Code> {
        let own = (module.number, kernel.to_owned(), block, dynamic_shared_bytes);
        if let Some((known, _)) = self.loaded.get(&own) {
            return Ok(known.clone());
        }
        if self.loaded.len() >= CUDA_FUNCTIONS_MAX {
            let text = "a CUDA session has loaded as many kernels as it may";
            tracing::warn!(session = %self.base, kernel, limit = CUDA_FUNCTIONS_MAX, "{text}");
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        let variables = module.variables().map(|(variable, span)| (variable.name.clone(), span.at));
        let variables: Vec<(String, u64)> = variables.collect();
        let shape = LaunchShape { kernel, block, dynamic_shared_bytes, variables: &variables };
        self.functions += 1;
        let name = format!("{} {}", self.base.name, self.functions);
        let key = FunctionKey { tenant: self.base.tenant.clone(), name };
        let bundle = self.load(&key, &module.text.0.ptx, shape).map_err(|error| {
            tracing::warn!(session = %self.base, kernel, %error, "a kernel of a CUDA session cannot be loaded");
            of_kernel(&error)
        })?;
        self.loaded.insert(own, (key.clone(), bundle));
        Ok(key)
    }

    fn load(&self, key: &FunctionKey, ptx: &str, shape: LaunchShape<'_>) -> Result<Arc<Bundle>, DeployError> {
        let file = self.folder.path().join("kernel.kg");
        let kind = self.device.split(':').next().unwrap_or_default();
        let bundle = self.deployed.session_code(&key.tenant, ptx, (shape, kind), &file)?;
        self.load_bundle(key, bundle.clone())?;
        Ok(bundle)
    }

    fn load_bundle(&self, key: &FunctionKey, bundle: Arc<Bundle>) -> Result<(), EngineError> {
        let options = FunctionOptions {
            key: key.clone(),
            class: self.class,
            queue_capacity: None,
            lane: Default::default(),
            batching: None,
        };
        self.engine.load(bundle, options, Some(&self.device))?;
        Ok(())
    }
}

impl Drop for SessionCode {
    fn drop(&mut self) {
        let own = self.loaded.values().map(|(key, _)| key).chain([&self.base]);
        own.for_each(|key| unload(&*self.engine, key));
    }
}

fn unload(engine: &dyn Inference, key: &FunctionKey) {
    match engine.unload(key) {
        Ok(()) | Err(EngineError::NotLoaded(_) | EngineError::ShuttingDown) => {}
        Err(error) => tracing::warn!(function = %key, %error, "a function of a CUDA session cannot be unloaded"),
    }
}

/// The PTX of an image for a device of this compute capability.
fn text(image: &[u8], capability: u32) -> Result<String, LoadFailure> {
    let failure = |code, log: &str| LoadFailure { code, log: log.to_owned() };
    let text = atoll_session::ptx(image, capability).map_err(|error| match error {
        NoPtx::MachineCode => {
            failure(Code::INVALID_IMAGE, "the image has only machine code; sessions of a daemon need PTX")
        }
        NoPtx::Fatbin(error) => failure(Code::INVALID_IMAGE, &error.to_string()),
        NoPtx::NotUtf8 => failure(INVALID_PTX, "the PTX is not UTF-8"),
    })?;
    let number = text.lines().find_map(|line| line.trim().strip_prefix(".version"));
    let number = number.and_then(|number| number.trim().split_once('.'));
    let version = number.and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
    if version.is_some_and(|version| version > PTX_VERSION_MAX) {
        return Err(failure(UNSUPPORTED_PTX_VERSION, "the version of the PTX is newer than 9.5"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_are_taken() {
        assert_eq!(text(b".version 7.0\0rest", 90).map(|text| text.len()), Ok(12));
        let code = |image: &[u8]| text(image, 90).map(drop).map_err(|failure| failure.code);
        assert_eq!(code(b"\x7fELF\x02\x01"), Err(Code::INVALID_IMAGE));
        assert_eq!(code(b"\xff\xfe"), Err(INVALID_PTX));
        assert_eq!(code(b"// 1\n.version 99.0\n"), Err(UNSUPPORTED_PTX_VERSION));
        // A fat binary that ends after its first word.
        assert_eq!(code(&0xba55_ed50_u32.to_le_bytes()), Err(Code::INVALID_IMAGE));
    }
}
