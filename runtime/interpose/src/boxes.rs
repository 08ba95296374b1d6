//! Copies of boxes: planes of rows. A copy of contiguous bytes is a box of one row.

use crate::arguments::Place;
use crate::shim::Shim;
use atoll_cuda_api::constants::*;
use atoll_cuda_api::types::*;
use atoll_session::{Code, Span};

/// The source or the destination of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Device(u64),
    Host(Place),
}

impl End {
    /// The same end, `bytes` bytes further.
    pub(crate) fn behind(self, bytes: u64) -> Result<End, Code> {
        Ok(match self {
            End::Device(at) => End::Device(at.checked_add(bytes).ok_or(Code::INVALID_VALUE)?),
            End::Host(place) => End::Host(place.behind(bytes)?),
        })
    }
}

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Side {
    /// The driver's kind of memory.
    memory: c_uint,
    host: u64,
    device: u64,
    /// Bytes before each row, rows before each plane, and planes before the box.
    offset: [u64; 3],
    /// Bytes from one row to the next; 0 if the rows are contiguous.
    pitch: u64,
    /// Rows from one plane to the next; 0 if the planes are contiguous.
    rows: u64,
}

/// A copy of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BoxCopy {
    from: Side,
    to: Side,
    /// Bytes of a row, rows of a plane, planes.
    size: [u64; 3],
}

impl Side {
    fn of_end(end: End) -> Side {
        let (memory, host, device) = match end {
            End::Device(at) => (CU_MEMORYTYPE_DEVICE, 0, at),
            End::Host(place) => (CU_MEMORYTYPE_HOST, place.address(), 0),
        };
        Side { memory, host, device, offset: [0; 3], pitch: 0, rows: 0 }
    }

    /// The first byte of a row.
    fn at(&self, shim: &Shim, size: [u64; 3], row: u64, plane: u64) -> Result<End, Code> {
        let start = match self.memory {
            CU_MEMORYTYPE_HOST => shim.end_of_host(self.host),
            CU_MEMORYTYPE_DEVICE => End::Device(self.device),
            CU_MEMORYTYPE_UNIFIED => shim.end(self.device),
            _ => return Err(Code::NOT_SUPPORTED),
        };
        let (pitch, rows) = self.steps(size);
        let row = self.offset[1].checked_add(row);
        let plane = self.offset[2].checked_add(plane).and_then(|plane| plane.checked_mul(rows));
        let before = row.zip(plane).and_then(|(row, plane)| plane.checked_add(row));
        let bytes = before.and_then(|before| before.checked_mul(pitch)?.checked_add(self.offset[0]));
        start.behind(bytes.ok_or(Code::INVALID_VALUE)?)
    }

    /// Bytes from one row to the next, and rows from one plane to the next.
    fn steps(&self, [width, height, _]: [u64; 3]) -> (u64, u64) {
        (if self.pitch == 0 { width } else { self.pitch }, if self.rows == 0 { height } else { self.rows })
    }

    /// The same side, with the kind of memory that is at its address now.
    fn resolved(self, shim: &Shim) -> Side {
        if self.memory != CU_MEMORYTYPE_UNIFIED {
            return self;
        }
        let start = Side::of_end(shim.end(self.device));
        Side { offset: self.offset, pitch: self.pitch, rows: self.rows, ..start }
    }

    /// Whether rows and planes do not overlap.
    fn is_apart(&self, size: [u64; 3]) -> bool {
        let (pitch, rows) = self.steps(size);
        pitch >= size[0] && (rows >= size[1] || size[2] <= 1)
    }
}

impl BoxCopy {
    /// A copy of contiguous bytes.
    pub(crate) fn row(from: End, to: End, bytes: u64) -> BoxCopy {
        BoxCopy { from: Side::of_end(from), to: Side::of_end(to), size: [bytes, 1, 1] }
    }

    /// A copy of rows.
    ///
    /// # Errors
    /// For arrays, and if rows overlap.
    pub(crate) fn of_rows(copy: &CUDA_MEMCPY2D_v2) -> Result<BoxCopy, Code> {
        let from = Side {
            memory: copy.src_memory_type,
            host: copy.src_host as u64,
            device: copy.src_device,
            offset: [copy.src_x_in_bytes as u64, copy.src_y as u64, 0],
            pitch: copy.src_pitch as u64,
            rows: 0,
        };
        let to = Side {
            memory: copy.dst_memory_type,
            host: copy.dst_host as u64,
            device: copy.dst_device,
            offset: [copy.dst_x_in_bytes as u64, copy.dst_y as u64, 0],
            pitch: copy.dst_pitch as u64,
            rows: 0,
        };
        BoxCopy { from, to, size: [copy.width_in_bytes as u64, copy.height as u64, 1] }.checked()
    }

    /// A copy of planes.
    ///
    /// # Errors
    /// For arrays and levels of detail, and if rows or planes overlap.
    pub(crate) fn of_planes(copy: &CUDA_MEMCPY3D_v2) -> Result<BoxCopy, Code> {
        if copy.src_lod != 0 || copy.dst_lod != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let from = Side {
            memory: copy.src_memory_type,
            host: copy.src_host as u64,
            device: copy.src_device,
            offset: [copy.src_x_in_bytes, copy.src_y, copy.src_z].map(|offset| offset as u64),
            pitch: copy.src_pitch as u64,
            rows: copy.src_height as u64,
        };
        let to = Side {
            memory: copy.dst_memory_type,
            host: copy.dst_host as u64,
            device: copy.dst_device,
            offset: [copy.dst_x_in_bytes, copy.dst_y, copy.dst_z].map(|offset| offset as u64),
            pitch: copy.dst_pitch as u64,
            rows: copy.dst_height as u64,
        };
        let size = [copy.width_in_bytes, copy.height, copy.depth].map(|size| size as u64);
        BoxCopy { from, to, size }.checked()
    }

    /// The same copy for a node, which keeps the kinds of memory that its addresses have now. So a copy
    /// whose program leaves the kinds to the driver can take the place of one that names them.
    pub(crate) fn resolved(self, shim: &Shim) -> BoxCopy {
        BoxCopy { from: self.from.resolved(shim), to: self.to.resolved(shim), size: self.size }
    }

    /// The copy as the driver describes it.
    pub(crate) fn description(&self) -> CUDA_MEMCPY3D_v2 {
        let [from, to] = [self.from, self.to].map(|side| (side.offset.map(|offset| offset as usize), side));
        let [width, height, depth] = self.size.map(|size| size as usize);
        let pointer = |address: u64| std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
        CUDA_MEMCPY3D_v2 {
            src_x_in_bytes: from.0[0],
            src_y: from.0[1],
            src_z: from.0[2],
            src_lod: 0,
            src_memory_type: from.1.memory,
            src_host: pointer(from.1.host),
            src_device: from.1.device,
            src_array: std::ptr::null_mut(),
            reserved0: std::ptr::null_mut(),
            src_pitch: from.1.pitch as usize,
            src_height: from.1.rows as usize,
            dst_x_in_bytes: to.0[0],
            dst_y: to.0[1],
            dst_z: to.0[2],
            dst_lod: 0,
            dst_memory_type: to.1.memory,
            dst_host: pointer(to.1.host),
            dst_device: to.1.device,
            dst_array: std::ptr::null_mut(),
            reserved1: std::ptr::null_mut(),
            dst_pitch: to.1.pitch as usize,
            dst_height: to.1.rows as usize,
            width_in_bytes: width,
            height,
            depth,
        }
    }

    /// Whether another copy has the same kinds of memory on both sides.
    pub(crate) fn is_like(&self, other: &BoxCopy) -> bool {
        (self.from.memory, self.to.memory) == (other.from.memory, other.to.memory)
    }

    /// Returns an error if the copy names device memory that does not exist, or null.
    pub(crate) fn check(&self, shim: &Shim) -> Result<(), Code> {
        self.rows(shim).try_for_each(|row| {
            let (from, to, bytes) = row?;
            [from, to].into_iter().try_for_each(|end| match end {
                End::Device(at) => shim.client.check_span(Span { at, bytes }),
                End::Host(place) => place.is_wanted(),
            })
        })
    }

    /// Makes the copy. Returns whether an asynchronous copy may return without waiting.
    pub(crate) fn perform(&self, shim: &mut Shim, stream: u32) -> Result<bool, Code> {
        // Rows are found one by one: a call of the client changes what the next one may do.
        let [width, height, depth] = self.size;
        let mut may_leave = true;
        if self.is_empty() {
            return Ok(true);
        }
        for plane in 0..depth {
            for row in 0..height {
                let from = self.from.at(shim, self.size, row, plane)?;
                let to = self.to.at(shim, self.size, row, plane)?;
                may_leave &= shim.copy_row(stream, from, to, width)?;
            }
        }
        Ok(may_leave)
    }

    /// Whether there is nothing to copy.
    fn is_empty(&self) -> bool {
        self.size.contains(&0)
    }

    fn rows<'a>(&'a self, shim: &'a Shim) -> impl Iterator<Item = Result<(End, End, u64), Code>> + 'a {
        let [width, height, depth] = self.size;
        let planes = if self.is_empty() { 0 } else { depth };
        (0..planes).flat_map(move |plane| {
            (0..height).map(move |row| {
                let from = self.from.at(shim, self.size, row, plane)?;
                Ok((from, self.to.at(shim, self.size, row, plane)?, width))
            })
        })
    }

    fn checked(self) -> Result<BoxCopy, Code> {
        let [width, height, depth] = self.size;
        if height.checked_mul(depth).and_then(|rows| rows.checked_mul(width)).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        for side in [&self.from, &self.to] {
            if !matches!(side.memory, CU_MEMORYTYPE_HOST | CU_MEMORYTYPE_DEVICE | CU_MEMORYTYPE_UNIFIED) {
                return Err(Code::NOT_SUPPORTED);
            }
            if !side.is_apart(self.size) {
                return Err(Code::INVALID_VALUE);
            }
        }
        Ok(self)
    }
}
