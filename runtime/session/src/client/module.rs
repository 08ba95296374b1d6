//! Modules, identified by the digest of their image; kernels and their facts; and launches.

use crate::client::{Client, memory};
use crate::code::Code;
use crate::facts::KernelFacts;
use crate::field::{Field, Reader};
use crate::limits::{IMAGE_ASK_BYTES, IMAGE_BYTES_MAX, KERNELS_MAX, MODULES_MAX, NAME_BYTES_MAX, PARAMS_BYTES_MAX};
use crate::ranges::Span;
use crate::record::Record;
use crate::transport::Transport;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// A module.
#[derive(Clone, Debug)]
pub(super) struct Module {
    pub(super) context: u32,
    digest: [u8; 32],
    kernels: HashMap<String, u32>,
    variables: HashMap<String, Span>,
}

/// A kernel of a module.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    module: u32,
    name: Arc<str>,
    facts: Arc<KernelFacts>,
}

/// The server's answer about a kernel of an image.
pub(super) type KnownKernel = Result<Arc<KernelFacts>, Code>;

/// Why a module was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {log}")]
pub struct LoadError {
    /// The error.
    pub code: Code,
    /// The compiler's log.
    pub log: String,
}

impl From<Code> for LoadError {
    fn from(code: Code) -> LoadError {
        LoadError { code, log: String::new() }
    }
}

impl From<(Code, Vec<u8>)> for LoadError {
    fn from((code, log): (Code, Vec<u8>)) -> LoadError {
        LoadError { code, log: String::from_utf8_lossy(&log).into_owned() }
    }
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const DYNAMIC_SHARED: usize = 8;

impl<T: Transport> Client<T> {
    /// Loads PTX, a fat binary or machine code. An image that the session has sent before is not
    /// sent again, nor is a large one that the server has kept from an earlier session.
    pub fn load(&mut self, context: u32, image: &[u8]) -> Result<u32, LoadError> {
        self.check()?;
        if image.is_empty() || image.len() as u64 > IMAGE_BYTES_MAX {
            return Err(Code::INVALID_IMAGE.into());
        }
        if self.modules.len() >= MODULES_MAX {
            return Err(Code::OUT_OF_MEMORY.into());
        }
        let digest: [u8; 32] = Sha256::digest(image).into();
        let module = self.number()?;
        if self.images.contains(&digest) {
            self.push(&Record::LoadModule { module, digest, image: &[] })?;
        } else if !self.is_kept(module, digest, image)? {
            self.ask_with_log(&Record::LoadModule { module, digest, image })?;
        }
        self.images.insert(digest);
        let fresh = Module { context, digest, kernels: HashMap::new(), variables: HashMap::new() };
        self.modules.insert(module, fresh);
        Ok(module)
    }

    /// Loads a large image that the server has kept. Returns false if the image has to be sent.
    fn is_kept(&mut self, module: u32, digest: [u8; 32], image: &[u8]) -> Result<bool, LoadError> {
        if image.len() < IMAGE_ASK_BYTES {
            return Ok(false);
        }
        self.cause = None;
        match self.ask_with_log(&Record::LoadModule { module, digest, image: &[] }) {
            Ok(_) => Ok(true),
            // With a cause, the error would be that of an earlier call.
            Err((Code::INVALID_IMAGE, _)) if self.cause.is_none() => Ok(false),
            Err(refused) => Err(refused.into()),
        }
    }

    /// Unloads a module and its kernels.
    pub fn unload(&mut self, module: u32) -> Result<(), Code> {
        let known = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        let context = known.context;
        self.push(&Record::UnloadModule { module })?;
        self.modules.remove(&module);
        self.kernels.retain(|_, kernel| kernel.module != module);
        for at in self.ranges.starts(|owner| *owner == memory::Owner::Variable { context, module }) {
            self.ranges.remove(at);
        }
        Ok(())
    }

    /// The kernel of a module with this name.
    pub fn kernel(&mut self, module: u32, name: &str) -> Result<u32, Code> {
        self.check()?;
        let of = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        if let Some(known) = of.kernels.get(name) {
            return Ok(*known);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Code::NOT_FOUND);
        }
        if self.kernels.len() >= KERNELS_MAX {
            return Err(Code::OUT_OF_MEMORY);
        }
        let key = (of.digest, name.to_owned());
        let kernel = self.number()?;
        let record = Record::GetKernel { kernel, module, name };
        let facts = match self.known_kernels.get(&key) {
            Some(known) => {
                let facts = known.clone()?;
                self.push(&record)?;
                facts
            }
            None => {
                let answer = self.ask(&record);
                if answer == Err(Code::NOT_FOUND) {
                    self.known_kernels.insert(key.clone(), Err(Code::NOT_FOUND));
                }
                let facts = Arc::new(KernelFacts::read(&answer?).map_err(|_| Code::UNKNOWN)?);
                self.known_kernels.insert(key, Ok(facts.clone()));
                facts
            }
        };
        self.kernels.insert(kernel, Kernel { module, name: name.into(), facts });
        self.modules.entry(module).and_modify(|module| {
            module.kernels.insert(name.to_owned(), kernel);
        });
        Ok(kernel)
    }

    /// Facts about a kernel.
    pub fn kernel_facts(&self, kernel: u32) -> Result<Arc<KernelFacts>, Code> {
        self.kernels.get(&kernel).map(|kernel| kernel.facts.clone()).ok_or(Code::INVALID_HANDLE)
    }

    /// The module and the name of a kernel.
    pub fn kernel_origin(&self, kernel: u32) -> Result<(u32, Arc<str>), Code> {
        self.kernels.get(&kernel).map(|kernel| (kernel.module, kernel.name.clone())).ok_or(Code::INVALID_HANDLE)
    }

    /// The variable of a module with this name.
    pub fn variable(&mut self, module: u32, name: &str) -> Result<Span, Code> {
        self.check()?;
        let of = self.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        if let Some(known) = of.variables.get(name) {
            return Ok(*known);
        }
        let context = of.context;
        let bytes = self.ask(&Record::GetVariable { module, name })?;
        let mut reader = Reader::new(&bytes);
        let at = u64::read(&mut reader).map_err(|_| Code::UNKNOWN)?;
        let span = Span { at, bytes: u64::read(&mut reader).map_err(|_| Code::UNKNOWN)? };
        self.ranges.insert(span, memory::Owner::Variable { context, module })?;
        self.modules.entry(module).and_modify(|module| {
            module.variables.insert(name.to_owned(), span);
        });
        Ok(span)
    }

    /// Sets an attribute of a kernel.
    pub fn set_attribute(&mut self, kernel: u32, attribute: i32, value: i32) -> Result<(), Code> {
        if !self.kernels.contains_key(&kernel) {
            return Err(Code::INVALID_HANDLE);
        }
        self.push(&Record::SetAttribute { kernel, attribute, value })?;
        if let Some(known) = self.kernels.get_mut(&kernel)
            && attribute == DYNAMIC_SHARED as i32
        {
            Arc::make_mut(&mut known.facts).attributes[DYNAMIC_SHARED] = value;
        }
        Ok(())
    }

    /// Launches a kernel. `params` is its parameter block.
    pub fn launch(
        &mut self,
        stream: u32,
        kernel: u32,
        shape: [[u32; 3]; 2],
        rest: (u32, bool),
        params: &[u8],
    ) -> Result<(), Code> {
        self.check_stream(stream)?;
        self.check_launch(kernel, shape, rest.0, params)?;
        let ([grid, block], (shared_bytes, is_cooperative)) = (shape, rest);
        let cooperative = is_cooperative.into();
        self.push(&Record::Launch { stream, kernel, grid, block, shared_bytes, cooperative, params })
    }

    /// Returns the error of a launch that can be found without the server.
    pub fn check_launch(
        &self,
        kernel: u32,
        [grid, block]: [[u32; 3]; 2],
        shared_bytes: u32,
        params: &[u8],
    ) -> Result<(), Code> {
        let facts = &self.kernels.get(&kernel).ok_or(Code::INVALID_HANDLE)?.facts;
        let threads = block.iter().fold(1u64, |threads, size| threads.saturating_mul((*size).into()));
        let is_empty = grid.iter().chain(&block).any(|size| *size == 0);
        let of_device = |number, unlimited| self.facts.attribute(number).map_or(unlimited, |value| value.max(0) as u64);
        let is_too_large = threads > of_device(1, 1024)
            || (2..=7).any(|number| {
                let index = (number - 2) as usize;
                let size = if index < 3 { block[index] } else { grid[index - 3] };
                u64::from(size) > of_device(number, u64::MAX)
            });
        if is_empty || is_too_large || params.len() < facts.params_bytes() || params.len() > PARAMS_BYTES_MAX {
            return Err(Code::INVALID_VALUE);
        }
        if threads > facts.attributes[0].max(0) as u64 {
            return Err(Code::LAUNCH_OUT_OF_RESOURCES);
        }
        if i64::from(shared_bytes) > i64::from(facts.attributes[DYNAMIC_SHARED]) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }
}
