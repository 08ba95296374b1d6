//! Copies and fills.

use super::entry_points;
use crate::arguments::In;
use crate::device::current;
use crate::error::Code;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_cuda_library::pointer;

/// `cudaMemcpyKind`: the direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Kind(c_int);

impl Kind {
    const HOST_TO_HOST: Kind = Kind(0);
    const HOST_TO_DEVICE: Kind = Kind(1);
    const DEVICE_TO_HOST: Kind = Kind(2);
    const DEVICE_TO_DEVICE: Kind = Kind(3);
    /// The driver determines the direction from the addresses.
    pub(super) const DEFAULT: Kind = Kind(4);

    /// Returns the kind if it is valid for a copy to the device.
    pub(super) fn on_device(self) -> Result<Kind, Code> {
        let is_known = matches!(self, Kind::HOST_TO_DEVICE | Kind::DEVICE_TO_DEVICE | Kind::DEFAULT);
        if is_known { Ok(self) } else { Err(Code::INVALID_MEMCPY_DIRECTION) }
    }

    /// Returns the kind if it is valid for a copy from the device.
    pub(super) fn of_device(self) -> Result<Kind, Code> {
        let is_known = matches!(self, Kind::DEVICE_TO_HOST | Kind::DEVICE_TO_DEVICE | Kind::DEFAULT);
        if is_known { Ok(self) } else { Err(Code::INVALID_MEMCPY_DIRECTION) }
    }

    /// The memory types of the source and of the destination, by the driver's numbers.
    fn ends(self) -> Result<(c_uint, c_uint), Code> {
        Ok(match self {
            Kind::HOST_TO_HOST => (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST),
            Kind::HOST_TO_DEVICE => (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE),
            Kind::DEVICE_TO_HOST => (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST),
            Kind::DEVICE_TO_DEVICE => (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE),
            Kind::DEFAULT => (CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED),
            _ => return Err(Code::INVALID_MEMCPY_DIRECTION),
        })
    }
}

/// When a copy returns to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Returns {
    AtOnce,
    WhenDone,
}

/// Rows with a pitch: address, and bytes from one row to the next.
type Rows = (u64, usize);

/// A size in bytes, rows and planes: `cudaExtent`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Extent {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
}

/// Memory of planes of rows: `cudaPitchedPtr`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Pitched {
    pub(super) at: u64,
    /// Bytes from one row to the next.
    pub(super) pitch: usize,
    /// Bytes of a row.
    pub(super) width: usize,
    /// Rows from one plane to the next.
    pub(super) height: usize,
}

/// A copy of planes of rows: `cudaMemcpy3DParms`. Places are bytes, rows and planes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Copy3D {
    from_array: u64,
    from_place: [usize; 3],
    from: Pitched,
    to_array: u64,
    to_place: [usize; 3],
    to: Pitched,
    extent: Extent,
    kind: Kind,
}

const _: () = assert!(size_of::<Copy3D>() == 160);

entry_points! {
    fn cudaMemcpy(to: u64, from: u64, bytes: usize, kind: Kind) also cudaMemcpy_ptds {
        copy(to, from, bytes, kind, CUstream::NULL, Returns::WhenDone)
    }

    fn cudaMemcpyAsync(to: u64, from: u64, bytes: usize, kind: Kind, stream: CUstream) also cudaMemcpyAsync_ptsz {
        copy(to, from, bytes, kind, stream, Returns::AtOnce)
    }

    fn cudaMemcpy2D(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: Kind
    ) also cudaMemcpy2D_ptds {
        copy_rows((to, to_pitch), (from, from_pitch), (width, height), kind, None)
    }

    fn cudaMemcpy2DAsync(
        to: u64, to_pitch: usize, from: u64, from_pitch: usize, width: usize, height: usize, kind: Kind,
        stream: CUstream
    ) also cudaMemcpy2DAsync_ptsz {
        copy_rows((to, to_pitch), (from, from_pitch), (width, height), kind, Some(stream))
    }

    fn cudaMemcpy3D(copy: In<Copy3D>) also cudaMemcpy3D_ptds {
        let driver = current()?.driver;
        driver.cuMemcpy3D_v2(&copy.get()?.for_driver()?)
    }

    fn cudaMemcpy3DAsync(copy: In<Copy3D>, stream: CUstream) also cudaMemcpy3DAsync_ptsz {
        let driver = current()?.driver;
        driver.cuMemcpy3DAsync_v2(&copy.get()?.for_driver()?, stream)
    }

    fn cudaMemset(at: CUdeviceptr, value: c_int, bytes: usize) also cudaMemset_ptds {
        let driver = current()?.driver;
        if bytes == 0 { Ok(()) } else { driver.cuMemsetD8_v2(at, value as c_uchar, bytes) }
    }

    fn cudaMemsetAsync(at: CUdeviceptr, value: c_int, bytes: usize, stream: CUstream) also cudaMemsetAsync_ptsz {
        let driver = current()?.driver;
        if bytes == 0 { Ok(()) } else { driver.cuMemsetD8Async(at, value as c_uchar, bytes, stream) }
    }

    fn cudaMemset2D(at: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize) also cudaMemset2D_ptds {
        let driver = current()?.driver;
        if width == 0 || height == 0 {
            return Ok(());
        }
        driver.cuMemsetD2D8_v2(at, pitch, value as c_uchar, width, height)
    }

    fn cudaMemset2DAsync(
        at: CUdeviceptr, pitch: usize, value: c_int, width: usize, height: usize, stream: CUstream
    ) also cudaMemset2DAsync_ptsz {
        let driver = current()?.driver;
        if width == 0 || height == 0 {
            return Ok(());
        }
        driver.cuMemsetD2D8Async(at, pitch, value as c_uchar, width, height, stream)
    }
}

impl Copy3D {
    /// A copy of contiguous bytes.
    pub(super) fn row(to: u64, from: u64, bytes: usize, kind: Kind) -> Copy3D {
        let side = |at| Pitched { at, pitch: bytes, width: bytes, height: 1 };
        Copy3D {
            from_array: 0,
            from_place: [0; 3],
            from: side(from),
            to_array: 0,
            to_place: [0; 3],
            to: side(to),
            extent: Extent { width: bytes, height: 1, depth: 1 },
            kind,
        }
    }

    /// The copy as the driver describes it. An error for arrays.
    pub(super) fn for_driver(&self) -> Result<CUDA_MEMCPY3D_v2, Code> {
        if self.from_array != 0 || self.to_array != 0 {
            return Err(Code::NOT_SUPPORTED);
        }
        let (from_memory, to_memory) = self.kind.ends()?;
        Ok(CUDA_MEMCPY3D_v2 {
            src_x_in_bytes: self.from_place[0],
            src_y: self.from_place[1],
            src_z: self.from_place[2],
            src_lod: 0,
            src_memory_type: from_memory,
            src_host: pointer(self.from.at),
            src_device: self.from.at,
            src_array: std::ptr::null_mut(),
            reserved0: std::ptr::null_mut(),
            src_pitch: self.from.pitch,
            src_height: self.from.height,
            dst_x_in_bytes: self.to_place[0],
            dst_y: self.to_place[1],
            dst_z: self.to_place[2],
            dst_lod: 0,
            dst_memory_type: to_memory,
            dst_host: pointer(self.to.at),
            dst_device: self.to.at,
            dst_array: std::ptr::null_mut(),
            reserved1: std::ptr::null_mut(),
            dst_pitch: self.to.pitch,
            dst_height: self.to.height,
            width_in_bytes: self.extent.width,
            height: self.extent.height,
            depth: self.extent.depth,
        })
    }

    /// The copy that the driver describes.
    pub(super) fn of_driver(copy: &CUDA_MEMCPY3D_v2) -> Copy3D {
        let address = |memory: c_uint, host: *const c_void, device: u64| {
            if memory == CU_MEMORYTYPE_HOST { host.addr() as u64 } else { device }
        };
        let side = |at, pitch, height| Pitched { at, pitch, width: pitch, height };
        let from = address(copy.src_memory_type, copy.src_host, copy.src_device);
        let to = address(copy.dst_memory_type, copy.dst_host, copy.dst_device);
        Copy3D {
            from_array: 0,
            from_place: [copy.src_x_in_bytes, copy.src_y, copy.src_z],
            from: side(from, copy.src_pitch, copy.src_height),
            to_array: 0,
            to_place: [copy.dst_x_in_bytes, copy.dst_y, copy.dst_z],
            to: side(to, copy.dst_pitch, copy.dst_height),
            extent: Extent { width: copy.width_in_bytes, height: copy.height, depth: copy.depth },
            kind: match (copy.src_memory_type, copy.dst_memory_type) {
                (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_HOST) => Kind::HOST_TO_HOST,
                (CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE) => Kind::HOST_TO_DEVICE,
                (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_HOST) => Kind::DEVICE_TO_HOST,
                (CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE) => Kind::DEVICE_TO_DEVICE,
                _ => Kind::DEFAULT,
            },
        }
    }
}

/// Copies contiguous bytes.
pub(super) fn copy(
    to: u64,
    from: u64,
    bytes: usize,
    kind: Kind,
    stream: CUstream,
    returns: Returns,
) -> Result<(), Code> {
    let driver = current()?.driver;
    kind.ends()?;
    if bytes == 0 {
        return Ok(());
    }
    match (kind, returns) {
        (Kind::HOST_TO_DEVICE, Returns::WhenDone) => driver.cuMemcpyHtoD_v2(to, pointer(from), bytes),
        (Kind::DEVICE_TO_HOST, Returns::WhenDone) => driver.cuMemcpyDtoH_v2(pointer(to), from, bytes),
        (Kind::DEVICE_TO_DEVICE, Returns::WhenDone) => driver.cuMemcpyDtoD_v2(to, from, bytes),
        (_, Returns::WhenDone) => driver.cuMemcpy(to, from, bytes),
        (Kind::HOST_TO_DEVICE, Returns::AtOnce) => driver.cuMemcpyHtoDAsync_v2(to, pointer(from), bytes, stream),
        (Kind::DEVICE_TO_HOST, Returns::AtOnce) => driver.cuMemcpyDtoHAsync_v2(pointer(to), from, bytes, stream),
        (Kind::DEVICE_TO_DEVICE, Returns::AtOnce) => driver.cuMemcpyDtoDAsync_v2(to, from, bytes, stream),
        (_, Returns::AtOnce) => driver.cuMemcpyAsync(to, from, bytes, stream),
    }
}

/// Copies rows. With a stream the call returns at once.
fn copy_rows(
    (to, to_pitch): Rows,
    (from, from_pitch): Rows,
    (width, height): (usize, usize),
    kind: Kind,
    stream: Option<CUstream>,
) -> Result<(), Code> {
    let driver = current()?.driver;
    let (from_memory, to_memory) = kind.ends()?;
    if width == 0 || height == 0 {
        return Ok(());
    }
    let copy = CUDA_MEMCPY2D_v2 {
        src_x_in_bytes: 0,
        src_y: 0,
        src_memory_type: from_memory,
        src_host: pointer(from),
        src_device: from,
        src_array: std::ptr::null_mut(),
        src_pitch: from_pitch,
        dst_x_in_bytes: 0,
        dst_y: 0,
        dst_memory_type: to_memory,
        dst_host: pointer(to),
        dst_device: to,
        dst_array: std::ptr::null_mut(),
        dst_pitch: to_pitch,
        width_in_bytes: width,
        height,
    };
    match stream {
        None => driver.cuMemcpy2DUnaligned_v2(&copy),
        Some(stream) => driver.cuMemcpy2DAsync_v2(&copy, stream),
    }
}
