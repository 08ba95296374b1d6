//! Code on the GPU: modules from PTX or machine code, with the facts of their kernels.

use super::error::GpuError;
use atoll_cuda::{Context, CudaError, LoadError, status};
use atoll_device::{DeviceError, DeviceInfo, ModuleImage};
use atoll_kgraph::KernelFacts;
use std::cell::Cell;
use std::sync::Arc;

/// Dynamic shared memory in bytes that a launch may use without raising the kernel's limit.
const SHARED_BYTES_DEFAULT: u32 = 48 << 10;

/// A loaded module.
#[derive(Debug)]
pub(super) struct Module {
    kernels: Vec<Kernel>,
}

/// A kernel that can be launched.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) facts: KernelFacts,
    pub(super) handle: atoll_cuda::Kernel,
    /// Dynamic shared memory in bytes that its launches may use now.
    allowed_bytes: Cell<u32>,
}

impl Module {
    pub(super) fn load(
        context: &Arc<Context>,
        info: &DeviceInfo,
        image: ModuleImage<'_>,
    ) -> Result<Module, DeviceError> {
        if !info.targets.iter().any(|target| target == image.target) {
            let runs = info.targets.join(", ");
            return Err(DeviceError::BadModule(format!(
                "the code is for {}, but {} runs {runs}; compile it for one of these",
                image.target, info.name
            )));
        }
        let greedy = image.kernels.iter().find(|kernel| kernel.shared_bytes > info.shared_bytes_max);
        if let Some(KernelFacts { name, shared_bytes, .. }) = greedy {
            let most = info.shared_bytes_max;
            return Err(DeviceError::BadModule(format!(
                "kernel `{name}` needs {shared_bytes} bytes of shared memory, {} has {most}",
                info.name
            )));
        }
        let module = load_code(context, image).map_err(|error| refused(context, image, &error))?;
        let kernel = |facts: &KernelFacts| {
            let bad = |error: CudaError| {
                if error.is_context_lost() {
                    GpuError::from(error).into()
                } else {
                    DeviceError::BadModule(format!("kernel `{}`: {error}", facts.name))
                }
            };
            let kernel = Kernel {
                facts: facts.clone(),
                handle: module.kernel(&facts.name).map_err(bad)?,
                allowed_bytes: Cell::new(SHARED_BYTES_DEFAULT),
            };
            kernel.allow(facts.shared_bytes).map_err(bad)?;
            Ok(kernel)
        };
        Ok(Module { kernels: image.kernels.iter().map(kernel).collect::<Result<_, DeviceError>>()? })
    }

    pub(super) fn kernel(&self, index: u32) -> Option<&Kernel> {
        self.kernels.get(index as usize)
    }
}

impl Kernel {
    /// Raises the limit of dynamic shared memory for its launches.
    pub(super) fn allow(&self, shared_bytes: u32) -> Result<(), CudaError> {
        if shared_bytes > self.allowed_bytes.get() {
            self.handle.allow_shared(shared_bytes)?;
            self.allowed_bytes.set(shared_bytes);
        }
        Ok(())
    }
}

/// Loads the code. If it is machine code for another GPU, loads the PTX it was made from instead.
fn load_code(context: &Arc<Context>, image: ModuleImage<'_>) -> Result<atoll_cuda::Module, LoadError> {
    let loaded = atoll_cuda::Module::load(context, image.code);
    match (&loaded, image.ptx) {
        (Err(refusal), Some(ptx)) if refusal.error.code == status::NO_BINARY_FOR_GPU && ptx != image.code => {
            atoll_cuda::Module::load(context, ptx)
        }
        _ => loaded,
    }
}

/// Explains why the driver refused code, and what to do.
fn refused(context: &Context, image: ModuleImage<'_>, refusal: &LoadError) -> DeviceError {
    let error = &refusal.error;
    if error.is_context_lost() {
        return GpuError::from(error.clone()).into();
    }
    DeviceError::BadModule(match error.code {
        status::UNSUPPORTED_PTX_VERSION => unsupported_version(context, image.ptx.unwrap_or(image.code)),
        status::NO_BINARY_FOR_GPU => {
            format!("it has no code for this GPU ({error}); compile for {}", image.target)
        }
        status::OUT_OF_MEMORY => format!("the GPU has no memory left for code ({error}); set a lower memory limit"),
        _ => refusal.to_string(),
    })
}

fn unsupported_version(context: &Context, code: &[u8]) -> String {
    let speaks = context.gpu().driver().version().map_or_else(
        |_| "an unknown version".to_owned(),
        |version| format!("{}.{}", version / 1000, version % 1000 / 10),
    );
    let Some((major, minor)) = ptx_version(code) else {
        return format!("its PTX is newer than this driver, which supports CUDA {speaks}");
    };
    match driver_for(major, minor) {
        Some((cuda, driver)) => {
            format!(
                "its PTX has version {major}.{minor}, which needs a driver for CUDA {cuda} ({driver} or newer); \
                 this one supports CUDA {speaks}"
            )
        }
        None => {
            format!("its PTX has version {major}.{minor}, newer than any known driver; this one supports CUDA {speaks}")
        }
    }
}

/// The `.version` of a PTX module.
fn ptx_version(code: &[u8]) -> Option<(u32, u32)> {
    let text = std::str::from_utf8(code).ok()?;
    let version = text.lines().find_map(|line| line.trim().strip_prefix(".version"))?;
    let (major, minor) = version.split_whitespace().next()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// For each version of PTX: the first CUDA version that accepts it, and the first Linux driver of
/// that CUDA version, from NVIDIA's release notes.
const DRIVERS: [(u32, u32, &str, u32); 26] = [
    (6, 0, "9.0", 384),
    (6, 1, "9.1", 390),
    (6, 2, "9.2", 396),
    (6, 3, "10.0", 410),
    (6, 4, "10.1", 418),
    (6, 5, "10.2", 440),
    (7, 0, "11.0", 450),
    (7, 1, "11.1", 455),
    (7, 2, "11.2", 460),
    (7, 3, "11.3", 465),
    (7, 4, "11.4", 470),
    (7, 5, "11.5", 495),
    (7, 6, "11.6", 510),
    (7, 7, "11.7", 515),
    (7, 8, "11.8", 520),
    (8, 0, "12.0", 525),
    (8, 1, "12.1", 530),
    (8, 2, "12.2", 535),
    (8, 3, "12.3", 545),
    (8, 4, "12.4", 550),
    (8, 5, "12.5", 555),
    (8, 6, "12.7", 565),
    (8, 7, "12.8", 570),
    (8, 8, "12.9", 575),
    (9, 0, "13.0", 580),
    (9, 1, "13.1", 590),
];

fn driver_for(major: u32, minor: u32) -> Option<(&'static str, u32)> {
    // Versions that are not listed came with the next listed CUDA version.
    DRIVERS
        .iter()
        .find(|(of_major, of_minor, ..)| (*of_major, *of_minor) >= (major, minor))
        .map(|(.., cuda, driver)| (*cuda, *driver))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_ptx_module_is_parsed() {
        assert_eq!(ptx_version(b"// made by hand\n.version 8.4\n.target sm_75\n"), Some((8, 4)));
        assert_eq!(ptx_version(b"\t.version\t6.3 // old\n"), Some((6, 3)));
        assert_eq!(ptx_version(b"\x7fELF\x02"), None);
        assert_eq!(ptx_version(b".version eight\n"), None);
    }

    #[test]
    fn every_version_has_a_driver() {
        assert!(
            DRIVERS.windows(2).all(|pair| (pair[0].0, pair[0].1) < (pair[1].0, pair[1].1) && pair[0].3 < pair[1].3)
        );
        assert_eq!(driver_for(8, 4), Some(("12.4", 550)));
        assert_eq!(driver_for(9, 7), None);
    }
}
