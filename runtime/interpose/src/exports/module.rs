//! Modules, their variables and kernels.

use super::entry_points;
use crate::arguments::{In, Out, Place};
use crate::handles::{Kind, handle, number};
use crate::image::image;
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{Code, LoadError, limits};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io::Read;
use std::sync::{Mutex, PoisonError};

entry_points! { MODULE:
    fn cuModuleLoadData(module: Out<CUmodule>, code: Place) {
        module.is_wanted()?;
        let loaded = load(code).map_err(|error| error.code)?;
        module.set(handle(Kind::Module, loaded))
    }

    fn cuModuleLoadDataEx(
        module: Out<CUmodule>, code: Place, count: c_uint, names: In<CUjit_option>, values: Place
    ) {
        module.is_wanted()?;
        let logs = Logs { count: count as usize, names, values };
        logs.write(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "")?;
        let loaded = load(code);
        let log = loaded.as_ref().err().map_or("", |error| &error.log);
        logs.write(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, log)?;
        module.set(handle(Kind::Module, loaded.map_err(|error| error.code)?))
    }

    fn cuModuleLoadFatBinary(module: Out<CUmodule>, code: Place) {
        module.is_wanted()?;
        let loaded = load(code).map_err(|error| error.code)?;
        module.set(handle(Kind::Module, loaded))
    }

    fn cuModuleLoad(module: Out<CUmodule>, path: In<c_char>) {
        module.is_wanted()?;
        let mut code = Vec::new();
        let file = std::fs::File::open(path.text()?).map_err(|_| Code::FILE_NOT_FOUND)?;
        let read = file.take(limits::IMAGE_BYTES_MAX + 1).read_to_end(&mut code);
        read.map_err(|_| Code::FILE_NOT_FOUND)?;
        let (mut shim, context) = Shim::current()?;
        let loaded = shim.client.load(context, &code).map_err(|error| error.code)?;
        module.set(handle(Kind::Module, loaded))
    }

    fn cuModuleUnload(module: CUmodule) {
        Shim::current()?.0.client.unload(number(Kind::Module, module)?)
    }

    fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, name: In<c_char>) {
        function.is_wanted()?;
        let kernel = Shim::current()?.0.client.kernel(number(Kind::Module, module)?, &name.text()?)?;
        function.set(handle(Kind::Kernel, kernel))
    }

    fn cuModuleGetGlobal_v2(at: Out<CUdeviceptr>, bytes: Out<usize>, module: CUmodule, name: In<c_char>) {
        let span = Shim::current()?.0.client.variable(number(Kind::Module, module)?, &name.text()?)?;
        at.set_if_wanted(span.at);
        bytes.set_if_wanted(span.bytes as usize);
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) {
        Shim::check()?;
        mode.set(CU_MODULE_LAZY_LOADING)
    }

    fn cuFuncGetModule(module: Out<CUmodule>, function: CUfunction) {
        let (of, _) = Shim::get()?.client.kernel_origin(number(Kind::Kernel, function)?)?;
        module.set(handle(Kind::Module, of))
    }

    fn cuFuncGetName(name: Out<*const c_char>, function: CUfunction) {
        name.is_wanted()?;
        let (_, of) = Shim::get()?.client.kernel_origin(number(Kind::Kernel, function)?)?;
        name.set(lasting(&of)?.as_ptr())
    }

    fn cuFuncLoad(function: CUfunction) {
        Shim::get()?.client.kernel_facts(number(Kind::Kernel, function)?).map(drop)
    }

    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) {
        param(number(Kind::Kernel, function)?, index, offset, size)
    }

    fn cuFuncGetAttribute(value: Out<c_int>, wanted: CUfunction_attribute, function: CUfunction) {
        attribute(value, wanted, number(Kind::Kernel, function)?)
    }

    fn cuFuncSetAttribute(function: CUfunction, wanted: CUfunction_attribute, value: c_int) {
        set_attribute(number(Kind::Kernel, function)?, wanted, value)
    }

    fn cuFuncSetCacheConfig(function: CUfunction, _preference: CUfunc_cache) {
        Shim::get()?.client.kernel_facts(number(Kind::Kernel, function)?).map(drop)
    }
}

/// A name that the program may keep. One copy of each name stays until the process ends.
pub(super) fn lasting(name: &str) -> Result<&'static CStr, Code> {
    static NAMES: Mutex<BTreeSet<&'static CStr>> = Mutex::new(BTreeSet::new());
    let name = CString::new(name).map_err(|_| Code::UNKNOWN)?;
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = names.get(name.as_c_str()) {
        return Ok(known);
    }
    let kept: &'static CStr = Box::leak(name.into_boxed_c_str());
    names.insert(kept);
    Ok(kept)
}

/// Loads an image for the current context.
pub(crate) fn load(code: Place) -> Result<u32, LoadError> {
    let (mut shim, context) = Shim::current()?;
    code.is_wanted()?;
    shim.client.load(context, image(code)?)
}

/// Writes the offset and the size of a parameter.
pub(super) fn param(kernel: u32, index: usize, offset: Out<usize>, size: Out<usize>) -> Result<(), Code> {
    let facts = Shim::get()?.client.kernel_facts(kernel)?;
    let &(at, bytes) = facts.params.get(index).ok_or(Code::INVALID_VALUE)?;
    offset.set(at as usize)?;
    size.set_if_wanted(bytes as usize);
    Ok(())
}

/// Writes the value of a kernel's attribute.
pub(super) fn attribute(value: Out<c_int>, wanted: CUfunction_attribute, kernel: u32) -> Result<(), Code> {
    let facts = Shim::get()?.client.kernel_facts(kernel)?;
    let index = usize::try_from(wanted).map_err(|_| Code::INVALID_VALUE)?;
    value.set(*facts.attributes.get(index).ok_or(Code::INVALID_VALUE)?)
}

/// Sets an attribute of a kernel if the device supports the value.
pub(super) fn set_attribute(kernel: u32, wanted: CUfunction_attribute, value: c_int) -> Result<(), Code> {
    let mut shim = Shim::get()?;
    let facts = shim.client.kernel_facts(kernel)?;
    let most = shim.client.facts().attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN).unwrap_or(0);
    let fixed = facts.attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as usize];
    match wanted {
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES if (0..=most.saturating_sub(fixed)).contains(&value) => {}
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {}
        _ => return Err(Code::INVALID_VALUE),
    }
    shim.client.set_attribute(kernel, wanted, value)
}

/// The log buffers among the options of a load.
struct Logs {
    count: usize,
    names: In<CUjit_option>,
    values: Place,
}

impl Logs {
    /// Writes a text and its size into a log, if the program passed both options.
    fn write(&self, log: CUjit_option, size: CUjit_option, text: &str) -> Result<(), Code> {
        let (Some(log), Some(size)) = (self.find(log)?, self.find(size)?) else { return Ok(()) };
        let places = self.values.values::<Place>();
        let room = places.get(size)?.address() as u32 as usize;
        let written = places.get(log)?.out::<c_char>().set_text(text, room);
        self.values.behind((size * size_of::<Place>()) as u64)?.out::<usize>().set(written)
    }

    fn find(&self, option: CUjit_option) -> Result<Option<usize>, Code> {
        for index in 0..self.count {
            if self.names.get(index)? == option {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}
