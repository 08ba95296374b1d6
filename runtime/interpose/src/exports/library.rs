//! Libraries: code for all contexts. A session has one context on the server, so a library is a
//! module there that belongs to no context of the program.

use super::device::check_device;
use super::entry_points;
use super::module::{attribute, lasting, param, set_attribute};
use crate::arguments::{In, Out, Place};
use crate::handles::{Kind, handle, number};
use crate::image::image;
use crate::shim::Shim;
use atoll_cuda_api::types::*;
use atoll_session::Code;

/// The context number of libraries, which is none of the program's.
const NO_CONTEXT: u32 = 0;

entry_points! { LIBRARY:
    fn cuLibraryLoadData(
        library: Out<CUlibrary>, code: Place, _jit_names: In<CUjit_option>, _jit_values: Place, _jit_count: c_uint,
        _names: In<CUlibraryOption>, _values: Place, _count: c_uint
    ) {
        library.is_wanted()?;
        code.is_wanted()?;
        let mut shim = Shim::get()?;
        let loaded = shim.client.load(NO_CONTEXT, image(code)?).map_err(|error| error.code)?;
        library.set(handle(Kind::Library, loaded))
    }

    fn cuLibraryUnload(library: CUlibrary) {
        Shim::get()?.client.unload(number(Kind::Library, library)?)
    }

    fn cuLibraryGetKernel(kernel: Out<CUkernel>, library: CUlibrary, name: In<c_char>) {
        kernel.is_wanted()?;
        let found = Shim::get()?.client.kernel(number(Kind::Library, library)?, &name.text()?)?;
        kernel.set(handle(Kind::Kernel, found))
    }

    fn cuLibraryGetModule(module: Out<CUmodule>, library: CUlibrary) {
        Shim::check_current()?;
        module.set(handle(Kind::Module, number(Kind::Library, library)?))
    }

    fn cuLibraryGetGlobal(at: Out<CUdeviceptr>, bytes: Out<usize>, library: CUlibrary, name: In<c_char>) {
        let span = Shim::current()?.0.client.variable(number(Kind::Library, library)?, &name.text()?)?;
        at.set_if_wanted(span.at);
        bytes.set_if_wanted(span.bytes as usize);
        Ok(())
    }

    fn cuKernelGetFunction(function: Out<CUfunction>, kernel: CUkernel) {
        let kernel = number(Kind::Kernel, kernel)?;
        Shim::current()?.0.client.kernel_facts(kernel)?;
        function.set(handle(Kind::Kernel, kernel))
    }

    fn cuKernelGetAttribute(
        value: Out<c_int>, wanted: CUfunction_attribute, kernel: CUkernel, device: CUdevice
    ) {
        check_device(device)?;
        attribute(value, wanted, number(Kind::Kernel, kernel)?)
    }

    fn cuKernelSetAttribute(wanted: CUfunction_attribute, value: c_int, kernel: CUkernel, device: CUdevice) {
        check_device(device)?;
        set_attribute(number(Kind::Kernel, kernel)?, wanted, value)
    }

    fn cuKernelGetName(name: Out<*const c_char>, kernel: CUkernel) {
        name.is_wanted()?;
        let (_, of) = Shim::get()?.client.kernel_origin(number(Kind::Kernel, kernel)?)?;
        name.set(lasting(&of)?.as_ptr())
    }

    fn cuKernelGetLibrary(library: Out<CUlibrary>, kernel: CUkernel) {
        library.is_wanted()?;
        let (module, _) = Shim::get()?.client.kernel_origin(number(Kind::Kernel, kernel)?)?;
        library.set(handle(Kind::Library, module))
    }

    fn cuKernelSetCacheConfig(kernel: CUkernel, _preference: CUfunc_cache, device: CUdevice) {
        check_device(device)?;
        Shim::get()?.client.kernel_facts(number(Kind::Kernel, kernel)?).map(drop)
    }

    fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>) {
        param(number(Kind::Kernel, kernel)?, index, offset, size)
    }
}
