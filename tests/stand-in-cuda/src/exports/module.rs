//! Modules, their variables and functions.

use super::arguments::{In, Out, Pointer};
use super::entry_points;
use crate::device::SHARED_BYTES_MAX;
use crate::driver::{Driver, say};
use crate::module::{Function, Module, Refusal};
use crate::status::Status;
use crate::table::Handle;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What machine code begins with: an ELF file, a fat binary, and what nvcc wraps around one.
const MACHINE_CODE: [u32; 3] = [u32::from_le_bytes(*b"\x7fELF"), 0xba55_ed50, 0x4662_43b1];

/// `CU_JIT_*` options that are answered.
const INFO_LOG: c_uint = 3;
const INFO_LOG_BYTES: c_uint = 4;
const ERROR_LOG: c_uint = 5;
const ERROR_LOG_BYTES: c_uint = 6;

/// Registers of a kernel: there are none to count on the host, and programs divide by them.
const REGISTERS: c_int = 32;

/// `CU_FUNC_ATTRIBUTE_*`.
mod attribute {
    pub(super) const THREADS_MAX: i32 = 0;
    pub(super) const SHARED_BYTES: i32 = 1;
    pub(super) const CONST_BYTES: i32 = 2;
    pub(super) const LOCAL_BYTES: i32 = 3;
    pub(super) const REGISTERS: i32 = 4;
    pub(super) const PTX_VERSION: i32 = 5;
    pub(super) const BINARY_VERSION: i32 = 6;
    pub(super) const CACHE_MODE: i32 = 7;
    pub(super) const DYNAMIC_SHARED_BYTES_MAX: i32 = 8;
    pub(super) const SHARED_CARVEOUT: i32 = 9;
}

entry_points! { MODULE:
    fn cuModuleLoadData(module: Out<u64>, image: In<c_char>) {
        module.is_wanted()?;
        module.set(load(image).map_err(|refusal| refusal.status)?.0)
    }

    fn cuModuleLoadDataEx(module: Out<u64>, image: In<c_char>, count: c_uint, names: In<c_uint>, values: Pointer) {
        module.is_wanted()?;
        let logs = Logs { count: count as usize, names, values };
        logs.write(INFO_LOG, INFO_LOG_BYTES, "")?;
        match load(image) {
            Ok(handle) => {
                logs.write(ERROR_LOG, ERROR_LOG_BYTES, "")?;
                module.set(handle.0)
            }
            Err(refusal) => {
                logs.write(ERROR_LOG, ERROR_LOG_BYTES, &refusal.log)?;
                Err(refusal.status)
            }
        }
    }

    fn cuModuleLoadFatBinary(_module: Out<u64>, _image: In<c_char>) {
        Driver::get()?.current()?;
        Err(Status::NoBinaryForGpu)
    }

    fn cuModuleUnload(module: u64) {
        let driver = Driver::get()?;
        let module = driver.modules.get(Handle(module)).and_then(|_| driver.modules.remove(Handle(module)))?;
        driver.functions.drain(|function| Arc::ptr_eq(&function.module, &module));
        // Work that uses its code keeps that; its variables go when all is done.
        module.context.synchronize()?;
        module.give_back_variables();
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<u64>, module: u64, name: In<c_char>) {
        function.is_wanted()?;
        let driver = Driver::get()?;
        let module = driver.modules.get(Handle(module))?;
        module.context.check()?;
        let name = name.text()?;
        let known = driver.functions.find(|known| Arc::ptr_eq(&known.module, &module) && known.name == name);
        if let Some(known) = known {
            return function.set(known.handle.0);
        }
        let found = Arc::new(module.function(&name)?);
        driver.functions.put(found.handle, found.clone());
        function.set(found.handle.0)
    }

    fn cuModuleGetFunctionCount(count: Out<c_uint>, module: u64) {
        let module = Driver::get()?.modules.get(Handle(module))?;
        count.set(module.kernels().count() as c_uint)
    }

    fn cuModuleGetGlobal_v2(at: Out<u64>, bytes: Out<usize>, module: u64, name: In<c_char>) {
        let module = Driver::get()?.modules.get(Handle(module))?;
        module.context.check()?;
        let (address, size) = module.variable(&name.text()?)?;
        at.set_if_wanted(address);
        bytes.set_if_wanted(size as usize);
        Ok(())
    }

    fn cuModuleGetLoadingMode(mode: Out<c_int>) {
        Driver::get()?;
        // `CU_MODULE_LAZY_LOADING`: code is made when it is launched.
        mode.set(2)
    }

    fn cuFuncGetModule(module: Out<u64>, function: u64) {
        let driver = Driver::get()?;
        let function = driver.functions.get(Handle(function))?;
        module.set(driver.modules.handle_of(&function.module).ok_or(Status::InvalidHandle)?.0)
    }

    fn cuFuncLoad(function: u64) {
        let function = Driver::get()?.functions.get(Handle(function))?;
        function.module.context.check()
    }

    fn cuFuncGetAttribute(value: Out<c_int>, wanted: c_int, function: u64) {
        let driver = Driver::get()?;
        let function = driver.functions.get(Handle(function))?;
        value.set(attribute_of(driver, &function, wanted)?)
    }

    fn cuFuncSetAttribute(function: u64, wanted: c_int, value: c_int) {
        let function = Driver::get()?.functions.get(Handle(function))?;
        match (wanted, u32::try_from(value)) {
            (attribute::DYNAMIC_SHARED_BYTES_MAX, Ok(bytes)) if bytes <= SHARED_BYTES_MAX => {
                function.allow_shared(bytes);
                Ok(())
            }
            // A hint.
            (attribute::SHARED_CARVEOUT, _) if (-1..=100).contains(&value) => Ok(()),
            _ => Err(Status::InvalidValue),
        }
    }

    fn cuFuncSetCacheConfig(function: u64, _preference: c_int) {
        Driver::get()?.functions.get(Handle(function)).map(drop)
    }
}

/// The log buffers among the options of a load.
struct Logs {
    count: usize,
    names: In<c_uint>,
    values: Pointer,
}

impl Logs {
    /// Writes a text into a log, where the caller wants one, and its size where the caller said how much room there is.
    fn write(&self, log: c_uint, size: c_uint, text: &str) -> Result<(), Status> {
        let (Some(log), Some(size)) = (self.find(log)?, self.find(size)?) else { return Ok(()) };
        let place = self.values.as_in::<Pointer>();
        let room = place.at(size)?.address() as u32 as usize;
        let written = place.at(log)?.as_out::<c_char>().set_text(text, room);
        self.values.element::<usize>(size).set(written)
    }

    fn find(&self, option: c_uint) -> Result<Option<usize>, Status> {
        for index in 0..self.count {
            if self.names.at(index)? == option {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

fn load(image: In<c_char>) -> Result<Handle, Refusal> {
    let plain = |status: Status| Refusal { status, log: status.to_string() };
    let driver = Driver::get().map_err(plain)?;
    let context = driver.current().map_err(plain)?;
    if MACHINE_CODE.contains(&image.as_words().get().map_err(plain)?) {
        let log = "the stand-in runs PTX; machine code is for other devices".to_owned();
        return Err(Refusal { status: Status::NoBinaryForGpu, log });
    }
    let text = image.text().map_err(|_| plain(Status::InvalidImage))?;
    let module = Module::load(&context, &text, &driver.options).inspect_err(|refusal| {
        if driver.options.verbose {
            say(&refusal.log);
        }
    })?;
    let handle = Handle::fresh();
    driver.modules.put(handle, Arc::new(module));
    Ok(handle)
}

fn attribute_of(driver: &Driver, function: &Function, wanted: c_int) -> Result<c_int, Status> {
    let (major, minor) = driver.options.ptx;
    Ok(match wanted {
        attribute::THREADS_MAX => function.threads_max() as c_int,
        attribute::SHARED_BYTES => function.shared_bytes()? as c_int,
        attribute::CONST_BYTES | attribute::LOCAL_BYTES | attribute::CACHE_MODE => 0,
        attribute::REGISTERS => REGISTERS,
        attribute::PTX_VERSION => (major * 10 + minor) as c_int,
        attribute::BINARY_VERSION => driver.options.capability as c_int,
        attribute::DYNAMIC_SHARED_BYTES_MAX => function.dynamic_shared_bytes_max.load(Relaxed) as c_int,
        attribute::SHARED_CARVEOUT => -1,
        _ => return Err(Status::InvalidValue),
    })
}
