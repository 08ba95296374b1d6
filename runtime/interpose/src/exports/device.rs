//! The driver and its device. The answers come from facts that the server sent once.

use super::entry_points;
use crate::arguments::{In, Out};
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::Code;

/// Attributes that are always 0, since host memory is not mapped into the device: mapped host
/// memory, use of managed memory by both at once, access to pageable memory, registered memory by
/// its address, stream memory operations, export of memory, and host memory by handle. Launches with
/// mapped memory work, but wait, so programs that ask do without it. Launches of clusters,
/// descriptions of tensors and multicast are missing.
const ABSENT: [i32; 20] = [19, 88, 89, 91, 92, 93, 94, 98, 100, 101, 103, 110, 116, 117, 119, 120, 122, 123, 127, 132];

/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
const VIRTUAL_MEMORY: CUdevice_attribute = 102;

/// Attributes of peers have numbers below this.
const PEER_ATTRIBUTES_END: c_int = 6;

entry_points! { DEVICE:
    fn cuInit(flags: c_uint) {
        if flags == 0 { Shim::init() } else { Err(Code::INVALID_VALUE) }
    }

    fn cuDriverGetVersion(version: Out<c_int>) {
        version.is_wanted()?;
        // Works before `cuInit` too. The version is that of the server's driver.
        Shim::init()?;
        version.set(Shim::get()?.client.facts().driver as c_int)
    }

    fn cuDeviceGetCount(count: Out<c_int>) {
        Shim::check()?;
        count.set(1)
    }

    fn cuDeviceGet(device: Out<CUdevice>, ordinal: c_int) {
        Shim::check()?;
        check_device(ordinal)?;
        device.set(0)
    }

    fn cuDeviceGetName(name: Out<c_char>, room: c_int, device: CUdevice) {
        let shim = Shim::get()?;
        check_device(device)?;
        name.is_wanted()?;
        name.set_text(&shim.client.facts().name, usize::try_from(room).map_err(|_| Code::INVALID_VALUE)?);
        Ok(())
    }

    fn cuDeviceGetUuid(uuid: Out<CUuuid>, device: CUdevice) {
        let shim = Shim::get()?;
        check_device(device)?;
        uuid.set(CUuuid { bytes: shim.client.facts().uuid })
    }

    fn cuDeviceGetUuid_v2(uuid: Out<CUuuid>, device: CUdevice) {
        let shim = Shim::get()?;
        check_device(device)?;
        uuid.set(CUuuid { bytes: shim.client.facts().uuid })
    }

    fn cuDeviceGetPCIBusId(name: Out<c_char>, room: c_int, device: CUdevice) {
        let shim = Shim::get()?;
        check_device(device)?;
        name.is_wanted()?;
        name.set_text(&shim.client.facts().pci_bus_id, usize::try_from(room).map_err(|_| Code::INVALID_VALUE)?);
        Ok(())
    }

    fn cuDeviceGetByPCIBusId(device: Out<CUdevice>, name: In<c_char>) {
        let shim = Shim::get()?;
        device.is_wanted()?;
        if name.text()?.eq_ignore_ascii_case(&shim.client.facts().pci_bus_id) {
            device.set(0)
        } else {
            Err(Code::INVALID_DEVICE)
        }
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: CUdevice) {
        let shim = Shim::get()?;
        check_device(device)?;
        bytes.set(shim.client.memory_bytes().1 as usize)
    }

    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: CUdevice) {
        let shim = Shim::get()?;
        check_device(device)?;
        let of = |number| shim.client.facts().attribute(number).ok_or(Code::UNKNOWN);
        major.set(of(75)?)?;
        minor.set(of(76)?)
    }

    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: CUdevice_attribute, device: CUdevice) {
        let shim = Shim::get()?;
        check_device(device)?;
        // This library provides these.
        match attribute {
            CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY => return value.set(shim.managed.is_available().into()),
            CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED | VIRTUAL_MEMORY => return value.set(1),
            _ => {}
        }
        let of_device = shim.client.facts().attribute(attribute).ok_or(Code::INVALID_VALUE)?;
        value.set(if ABSENT.contains(&attribute) { 0 } else { of_device })
    }

    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: CUdevice, peer: CUdevice) {
        Shim::check()?;
        check_device(device)?;
        check_device(peer)?;
        can.set(0)
    }

    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: CUdevice_P2PAttribute, from: CUdevice, to: CUdevice) {
        Shim::check()?;
        check_device(from)?;
        check_device(to)?;
        // A device is not a peer of itself.
        if (1..PEER_ATTRIBUTES_END).contains(&attribute) { Err(Code::INVALID_DEVICE) } else { value.set(0) }
    }
}

/// A session has one device.
pub(crate) fn check_device(device: CUdevice) -> Result<(), Code> {
    if device == 0 { Ok(()) } else { Err(Code::INVALID_DEVICE) }
}
