//! The kernel driver's device `/dev/kfd`, for the ioctl of Atoll's patch (`driver-patch/`).
//!
//! A stand-in for the HIP runtime, as tests use it, has no part in a kernel driver. So it may
//! export the ioctl as a function ([`STAND_IN`]), and `/dev/kfd` is then not opened.

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use std::ffi::{c_int, c_void};
use std::fs::{File, read_dir, read_to_string};
use std::io::ErrorKind;
use std::path::Path;

const DEVICE: &str = "/dev/kfd";

/// The driver's list of GPUs.
const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";

/// `ATOLL_KFD_ABI` of `driver-patch/abi/atoll_kfd.h`.
const ABI: u32 = 1;

/// `ATOLL_KFD_IOC_RESET_WAVES`.
const RESET_WAVES: Opcode = opcode::read_write::<ResetWaves>(b'A', 0xe1);

/// The function of a stand-in for the kernel driver. AMD's libraries have none of this name.
pub(crate) const STAND_IN: &str = "atollStandInKfdIoctl";

/// Its type: command and arguments as for ioctl(2); returns 0 or a negative error number. It knows
/// the GPUs by the numbers of their PCI buses.
pub(crate) type StandIn = unsafe extern "C" fn(command: Opcode, arguments: *mut c_void) -> c_int;

/// `struct atoll_kfd_reset_waves_args`.
#[repr(C)]
#[derive(Debug)]
struct ResetWaves {
    abi: u32,
    gpu_id: u32,
    flags: u32,
    outcome: u32,
    reserved: [u64; 2],
}

/// Why the kernel driver does not kill the waves of this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KfdError {
    /// The driver has no such ioctl, or there is no driver.
    #[error("patch absent: {0}")]
    Absent(&'static str),
    /// `/dev/kfd` cannot be opened.
    #[error("`/dev/kfd` cannot be opened ({0})")]
    NotOpened(String),
    /// The driver lists no GPU, or several, at the PCI address of the device.
    #[error("the kernel driver has no single GPU at {0}")]
    NoGpu(String),
    /// The driver has the patch with another interface.
    #[error("the kernel driver has the patch of another version")]
    OtherAbi,
    /// The GPU hangs or is being reset, so this process has lost it.
    #[error("the GPU hangs or is being reset")]
    Lost,
    /// The driver refused the call; `driver-patch/abi/atoll_kfd.h` lists the reasons.
    #[error("the kernel driver refused to kill waves ({0})")]
    Refused(Errno),
}

/// A GPU of the kernel driver, opened by this process.
#[derive(Debug)]
pub(crate) struct Kfd {
    file: Device,
    gpu_id: u32,
}

/// The driver's device.
#[derive(Debug)]
enum Device {
    Kernel(File),
    StandIn(StandIn),
}

impl Kfd {
    /// Opens the GPU at a PCI address such as `0000:01:00.0`.
    pub(crate) fn open(address: &str, stand_in: Option<StandIn>) -> Result<Kfd, KfdError> {
        let no_gpu = || KfdError::NoGpu(address.to_owned());
        if let Some(stand_in) = stand_in {
            let Place { location, .. } = Place::parse(address).ok_or_else(no_gpu)?;
            return Ok(Kfd { file: Device::StandIn(stand_in), gpu_id: location >> 8 });
        }
        let file = Device::Kernel(open()?);
        Ok(Kfd { file, gpu_id: gpu_at(address).ok_or_else(no_gpu)? })
    }

    /// Kills all running waves of this process on the GPU.
    pub(crate) fn reset_waves(&self) -> Result<(), KfdError> {
        reset_waves(&self.file, self.gpu_id).map_err(refused)
    }
}

/// Whether the kernel driver of this machine has Atoll's patch. Kills nothing.
///
/// # Errors
/// Why it has not, or why that cannot be told.
pub fn kernel_patch() -> Result<(), KfdError> {
    // No GPU has the id 0: with the patch, it is an invalid argument.
    match reset_waves(&Device::Kernel(open()?), 0) {
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(error) => Err(refused(error)),
    }
}

fn open() -> Result<File, KfdError> {
    File::options().read(true).write(true).open(DEVICE).map_err(|error| match error.kind() {
        ErrorKind::NotFound => KfdError::Absent("there is no `/dev/kfd`"),
        _ => KfdError::NotOpened(error.to_string()),
    })
}

fn reset_waves(device: &Device, gpu_id: u32) -> Result<(), Errno> {
    let mut args = ResetWaves { abi: ABI, gpu_id, flags: 0, outcome: 0, reserved: [0; 2] };
    match device {
        // SAFETY: for this number, a driver with the patch reads and writes a struct of this
        // layout; no other driver knows the number. Kernels whose waves end write device memory
        // only, and host words that are accessed by atomics.
        Device::Kernel(file) => unsafe { ioctl(file, Updater::<RESET_WAVES, ResetWaves>::new(&mut args)) },
        Device::StandIn(call) => {
            // SAFETY: as above; the library with the function is loaded as long as its context
            // lives.
            match unsafe { call(RESET_WAVES, (&raw mut args).cast()) } {
                0 => Ok(()),
                error => Err(Errno::from_raw_os_error(-error)),
            }
        }
    }
}

fn refused(error: Errno) -> KfdError {
    match error {
        Errno::NOTTY => KfdError::Absent("the kernel driver does not know the ioctl"),
        Errno::PROTO => KfdError::OtherAbi,
        Errno::IO => KfdError::Lost,
        error => KfdError::Refused(error),
    }
}

/// The driver's id of the GPU at a PCI address; `None` if it lists none there or several, as the
/// partitions of a GPU.
fn gpu_at(address: &str) -> Option<u32> {
    let place = Place::parse(address)?;
    let nodes = read_dir(NODES).ok()?.flatten();
    let mut found = nodes.filter_map(|node| gpu_of(&node.path(), place));
    found.next().filter(|_| found.next().is_none())
}

/// The id in a node's folder if it is a GPU at this place.
fn gpu_of(node: &Path, place: Place) -> Option<u32> {
    let is_there = Place::of_node(&read_to_string(node.join("properties")).ok()?) == Some(place);
    let id = read_to_string(node.join("gpu_id")).ok()?.trim().parse().ok()?;
    (is_there && id != 0).then_some(id)
}

/// A place on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    domain: u32,
    /// Bus, device and function: 8, 5 and 3 bits.
    location: u32,
}

impl Place {
    /// Reads an address such as `0000:01:00.0`.
    fn parse(address: &str) -> Option<Place> {
        let number = |text| u32::from_str_radix(text, 16).ok();
        let (domain, rest) = address.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let location = number(bus)? << 8 | number(device)? << 3 | number(function)?;
        Some(Place { domain: number(domain)?, location })
    }

    /// Reads the properties of a node of the driver.
    fn of_node(properties: &str) -> Option<Place> {
        let value = |name| {
            let mut lines = properties.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
        };
        Some(Place { domain: value("domain")?, location: value("location_id")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ioctl_has_the_number_and_layout_of_the_header() {
        assert_eq!((RESET_WAVES, size_of::<ResetWaves>()), (0xc020_41e1, 32));
    }

    #[test]
    fn a_driver_without_the_ioctl_lacks_the_patch() {
        let other = File::options().read(true).write(true).open("/dev/null").expect("it always exists");
        let error = reset_waves(&Device::Kernel(other), 1).map_err(refused).expect_err("no such ioctl");
        assert!(error.to_string().starts_with("patch absent: "), "{error}");
        assert_eq!(refused(Errno::PROTO), KfdError::OtherAbi);
        assert_eq!(refused(Errno::BUSY), KfdError::Refused(Errno::BUSY));
    }

    #[test]
    fn a_stand_in_gets_the_call_instead_of_the_driver() {
        unsafe extern "C" fn on_bus_7(command: Opcode, arguments: *mut c_void) -> c_int {
            // SAFETY: the caller passes the arguments of this command.
            let ResetWaves { abi, gpu_id, .. } = unsafe { arguments.cast::<ResetWaves>().read() };
            assert_eq!((command, abi), (RESET_WAVES, ABI));
            if gpu_id == 7 { 0 } else { -Errno::IO.raw_os_error() }
        }
        let reset = |address| Kfd::open(address, Some(on_bus_7)).and_then(|kfd| kfd.reset_waves());
        assert_eq!(reset("0000:07:00.0"), Ok(()));
        assert_eq!(reset("0000:08:00.0"), Err(KfdError::Lost));
        assert_eq!(reset("nowhere"), Err(KfdError::NoGpu("nowhere".to_owned())));
    }

    #[test]
    fn nodes_are_found_by_their_pci_address() {
        let place = Place::parse("0001:c3:1f.7").expect("an address");
        assert_eq!(place, Place { domain: 1, location: 0xc3 << 8 | 0x1f << 3 | 7 });
        assert_eq!(Place::of_node("cpu_cores_count 0\nlocation_id 50175\ndomain 1\n"), Some(place));
        assert_ne!(Place::of_node("location_id 50175\ndomain 0\n"), Some(place));
        assert_eq!(Place::of_node("cpu_cores_count 16\n"), None);
        for wrong in ["", "0000:01", "0000:01:00", "0000:zz:00.0"] {
            assert_eq!(Place::parse(wrong), None, "{wrong}");
        }
        assert_eq!(gpu_at("ffff:ff:1f.7"), None);
    }
}
