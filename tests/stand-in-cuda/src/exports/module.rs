//! Modules, their variables and functions.

use super::arguments::{In, Out, Pointer};
use super::entry_points;
use crate::device::SHARED_BYTES_MAX;
use crate::driver::Driver;
use crate::log::log;
use crate::module::{Function, Module, Refusal};
use crate::status::Status;
use crate::table::Handle;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_fatbin::{FatbinError, WRAPPER};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The first word of an ELF file.
const ELF: u32 = u32::from_le_bytes(*b"\x7fELF");

/// Maximum size of a fat binary in bytes.
const FAT_BINARY_BYTES_MAX: u64 = 256 << 20;

/// Registers that a kernel reports. The host has none to count, but programs divide by this number.
const REGISTERS: c_int = 32;

entry_points! { MODULE:
    fn cuModuleLoadData(module: Out<CUmodule>, image: Pointer) {
        module.is_wanted()?;
        module.set(load(image).map_err(|refusal| refusal.status)?.raw())
    }

    fn cuModuleLoadDataEx(
        module: Out<CUmodule>, image: Pointer, count: c_uint, names: In<CUjit_option>, values: Pointer
    ) {
        module.is_wanted()?;
        let logs = Logs { count: count as usize, names, values };
        logs.write(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "")?;
        match load(image) {
            Ok(handle) => {
                logs.write(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, "")?;
                module.set(handle.raw())
            }
            Err(refusal) => {
                logs.write(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, &refusal.log)?;
                Err(refusal.status)
            }
        }
    }

    fn cuModuleLoadFatBinary(module: Out<CUmodule>, image: Pointer) {
        module.is_wanted()?;
        module.set(load(image).map_err(|refusal| refusal.status)?.raw())
    }

    fn cuModuleUnload(module: CUmodule) {
        let driver = Driver::get()?;
        let module = driver.modules.get(Handle::of(module)).and_then(|_| driver.modules.remove(Handle::of(module)))?;
        driver.functions.drain(|function| Arc::ptr_eq(&function.module, &module));
        // Its variables are freed once all work is complete.
        module.context.synchronize()?;
        module.give_back_variables();
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<CUfunction>, module: CUmodule, name: In<c_char>) {
        function.is_wanted()?;
        let driver = Driver::get()?;
        let module = driver.modules.get(Handle::of(module))?;
        module.context.check()?;
        let name = name.text()?;
        let known = driver.functions.find(|known| Arc::ptr_eq(&known.module, &module) && known.name == name);
        if let Some(known) = known {
            return function.set(known.handle.raw());
        }
        let found = Arc::new(module.function(&name)?);
        driver.functions.put(found.handle, found.clone());
        function.set(found.handle.raw())
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, module: CUmodule) {
        let module = Driver::get()?.modules.get(Handle::of(module))?;
        count.set(module.kernels().count() as c_uint)
    }

    fn cuModuleGetGlobal_v2(at: Out<CUdeviceptr>, bytes: Out<usize>, module: CUmodule, name: In<c_char>) {
        let module = Driver::get()?.modules.get(Handle::of(module))?;
        module.context.check()?;
        let (address, size) = module.variable(&name.text()?)?;
        at.set_if_wanted(address);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: Out<CUmoduleLoadingMode>) {
        Driver::get()?;
        // Code is compiled when it is launched.
        mode.set(CU_MODULE_LAZY_LOADING)
    }

    fn cuFuncGetModule(module: Out<CUmodule>, function: CUfunction) {
        let driver = Driver::get()?;
        let function = driver.functions.get(Handle::of(function))?;
        module.set(driver.modules.handle_of(&function.module).ok_or(Status::InvalidHandle)?.raw())
    }

    fn cuFuncLoad(function: CUfunction) {
        let function = Driver::get()?.functions.get(Handle::of(function))?;
        function.module.context.check()
    }

    fn cuFuncGetAttribute(value: Out<c_int>, wanted: CUfunction_attribute, function: CUfunction) {
        let driver = Driver::get()?;
        let function = driver.functions.get(Handle::of(function))?;
        value.set(attribute_of(driver, &function, wanted)?)
    }

    fn cuFuncSetAttribute(function: CUfunction, wanted: CUfunction_attribute, value: c_int) {
        let function = Driver::get()?.functions.get(Handle::of(function))?;
        match (wanted, u32::try_from(value)) {
            (CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, Ok(bytes)) if bytes <= SHARED_BYTES_MAX => {
                function.allow_shared(bytes);
                Ok(())
            }
            // A hint.
            (CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, _) if (-1..=100).contains(&value) => Ok(()),
            _ => Err(Status::InvalidValue),
        }
    }

    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>) {
        let function = Driver::get()?.functions.get(Handle::of(function))?;
        let &(at, bytes) = function.params.get(index).ok_or(Status::InvalidValue)?;
        offset.set(at as usize)?;
        size.set_if_wanted(bytes as usize);
        Ok(())
    }

    fn cuFuncSetCacheConfig(function: CUfunction, _preference: CUfunc_cache) {
        Driver::get()?.functions.get(Handle::of(function)).map(drop)
    }
}

/// The log buffers among the options of a load.
struct Logs {
    count: usize,
    names: In<CUjit_option>,
    values: Pointer,
}

impl Logs {
    /// Writes a text into a log, and its size, if the caller passed a buffer and its size.
    fn write(&self, log: CUjit_option, size: CUjit_option, text: &str) -> Result<(), Status> {
        let (Some(log), Some(size)) = (self.find(log)?, self.find(size)?) else { return Ok(()) };
        let place = self.values.as_in::<Pointer>();
        let room = place.at(size)?.address() as u32 as usize;
        let written = place.at(log)?.as_out::<c_char>().set_text(text, room);
        self.values.element::<usize>(size).set(written)
    }

    fn find(&self, option: CUjit_option) -> Result<Option<usize>, Status> {
        for index in 0..self.count {
            if self.names.at(index)? == option {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

fn load(image: Pointer) -> Result<Handle, Refusal> {
    let driver = Driver::get().map_err(plain)?;
    let context = driver.current().map_err(plain)?;
    let text = text(image, driver.options.capability)?;
    let module = Module::load(&context, &text, &driver.options).inspect_err(|refusal| {
        if driver.options.verbose {
            log(&refusal.log);
        }
    })?;
    let handle = Handle::fresh();
    driver.modules.put(handle, Arc::new(module));
    Ok(handle)
}

/// The PTX of an image.
fn text(image: Pointer, capability: u32) -> Result<String, Refusal> {
    let mut image = image;
    let mut first = image.as_in::<u32>().get().map_err(plain)?;
    if first == WRAPPER {
        image = Pointer::to(image.as_in::<u64>().at(1).map_err(plain)?);
        first = image.as_in::<u32>().get().map_err(plain)?;
    }
    match first {
        ELF | WRAPPER => {
            let log = "the stand-in runs PTX; machine code is for other devices".to_owned();
            Err(Refusal { status: Status::NoBinaryForGpu, log })
        }
        atoll_fatbin::MAGIC => {
            let head = image.as_in::<u16>().at(3).map_err(plain)?;
            let bytes = image.as_in::<u64>().at(1).map_err(plain)?.saturating_add(head.into());
            if bytes > FAT_BINARY_BYTES_MAX {
                return Err(plain(Status::InvalidImage));
            }
            let bytes = image.span(bytes).map_err(plain)?.to_vec();
            let text = atoll_fatbin::ptx(&bytes, capability).map_err(|error| {
                let is_missing = matches!(error, FatbinError::NoPtx { .. });
                let status = if is_missing { Status::NoBinaryForGpu } else { Status::InvalidImage };
                Refusal { status, log: format!("{error}; compile with -arch=compute_{capability} or lower") }
            })?;
            String::from_utf8(text.into_owned()).map_err(|_| plain(Status::InvalidImage))
        }
        _ => image.as_in::<c_char>().text().map_err(|_| plain(Status::InvalidImage)),
    }
}

fn plain(status: Status) -> Refusal {
    Refusal { status, log: status.to_string() }
}

fn attribute_of(driver: &Driver, function: &Function, wanted: c_int) -> Result<c_int, Status> {
    Ok(match wanted {
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => function.threads_max() as c_int,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES => function.shared_bytes()? as c_int,
        CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES | CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES | CU_FUNC_ATTRIBUTE_CACHE_MODE_CA => 0,
        CU_FUNC_ATTRIBUTE_NUM_REGS => REGISTERS,
        CU_FUNC_ATTRIBUTE_PTX_VERSION => function.module.target as c_int,
        CU_FUNC_ATTRIBUTE_BINARY_VERSION => driver.options.capability as c_int,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => function.dynamic_shared_bytes_max.load(Relaxed) as c_int,
        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => -1,
        // Of clusters: whether and which size a launch must have, and how they are scheduled.
        10..=15 => 0,
        _ => return Err(Status::InvalidValue),
    })
}
