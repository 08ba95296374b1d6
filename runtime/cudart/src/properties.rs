//! The struct of a device's properties, `cudaDeviceProp`. CUDA 12 appended fields to the struct of
//! CUDA 11. CUDA 13 removed fields, which moved the others.

use crate::driver::Driver;
use crate::error::Code;
use atoll_cuda_api::types::*;

/// A layout of the struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// CUDA 11.
    Eleven,
    /// CUDA 12.
    Twelve,
    /// CUDA 13.
    Thirteen,
}

impl Layout {
    /// Size of the struct in bytes.
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Layout::Eleven => 728,
            Layout::Twelve => 1032,
            Layout::Thirteen => 1008,
        }
    }
}

/// Offsets in bytes of the name, the UUID and the size of the device's memory, the same in all
/// layouts.
const NAME_BYTES: usize = 256;
const UUID: usize = 256;
const MEMORY: usize = 288;

/// A field: the device's attribute, its offset in CUDA 11 and 12, its offset in CUDA 13, its size.
/// `NONE` stands for a layout without the field.
type Field = (CUdevice_attribute, usize, usize, usize);
const NONE: usize = usize::MAX;

#[rustfmt::skip]
const FIELDS: &[Field] = &[
    (8, 296, 296, 8), (12, 304, 304, 4), (10, 308, 308, 4), (11, 312, 312, 8), (1, 320, 320, 4),
    // Dimensions of a block and of a grid.
    (2, 324, 324, 4), (3, 328, 328, 4), (4, 332, 332, 4), (5, 336, 336, 4), (6, 340, 340, 4), (7, 344, 344, 4),
    (13, 348, NONE, 4), (9, 352, 352, 8), (75, 360, 360, 4), (76, 364, 364, 4), (14, 368, 368, 8), (51, 376, 376, 8),
    (15, 384, NONE, 4), (16, 388, 384, 4), (17, 392, NONE, 4), (18, 396, 388, 4), (19, 400, 392, 4), (20, 404, NONE, 4),
    // Textures and surfaces.
    (21, 408, 396, 4), (77, 412, 400, 4), (69, 416, NONE, 4), (22, 420, 404, 4), (23, 424, 408, 4), (73, 428, 412, 4),
    (74, 432, 416, 4), (70, 436, 420, 4), (71, 440, 424, 4), (72, 444, 428, 4), (45, 448, 432, 4), (46, 452, 436, 4),
    (24, 456, 440, 4), (25, 460, 444, 4), (26, 464, 448, 4), (47, 468, 452, 4), (48, 472, 456, 4), (49, 476, 460, 4),
    (52, 480, 464, 4), (42, 484, 468, 4), (43, 488, 472, 4), (27, 492, 476, 4), (28, 496, 480, 4), (29, 500, 484, 4),
    (53, 504, 488, 4), (54, 508, 492, 4), (55, 512, 496, 4), (56, 516, 500, 4), (57, 520, 504, 4), (58, 524, 508, 4),
    (59, 528, 512, 4), (60, 532, 516, 4), (61, 536, 520, 4), (62, 540, 524, 4), (63, 544, 528, 4), (64, 548, 532, 4),
    (65, 552, 536, 4), (66, 556, 540, 4), (67, 560, 544, 4), (68, 564, 548, 4), (30, 568, 552, 8),
    (31, 576, 560, 4), (32, 580, 564, 4), (33, 584, 568, 4), (34, 588, 572, 4), (50, 592, 576, 4), (35, 596, 580, 4),
    (40, 600, 584, 4), (41, 604, 588, 4), (36, 608, NONE, 4), (37, 612, 592, 4), (38, 616, 596, 4), (108, 620, 600, 4),
    (39, 624, 604, 4), (78, 628, 608, 4), (79, 632, 612, 4), (80, 636, 616, 4), (81, 640, 624, 8), (82, 648, 632, 4),
    (83, 652, 636, 4), (84, 656, 640, 4), (85, 660, 644, 4), (86, 664, 648, 4), (87, 668, NONE, 4), (88, 672, 652, 4),
    (89, 676, 656, 4), (90, 680, 660, 4), (91, 684, 664, 4), (95, 688, 668, 4), (96, 692, NONE, 4), (97, 696, 672, 8),
    (100, 704, 680, 4), (101, 708, 684, 4), (106, 712, 688, 4), (109, 716, 692, 4), (111, 720, 696, 8),
    // Since CUDA 12.
    (99, 728, 704, 4), (112, 732, 708, 4), (113, 736, 712, 4), (114, 740, 716, 4), (115, 744, 720, 4),
    (116, 748, 724, 4), (117, 752, 728, 4), (118, 756, 732, 4), (119, 760, 736, 4), (121, 764, 740, 4),
    (125, 768, 744, 4), (120, 772, 748, 4), (129, 776, 752, 4),
];

// Fields are aligned, inside the struct, and apart from each other.
const _: () = {
    let mut one = 0;
    while one < FIELDS.len() {
        let (_, old, new, size) = FIELDS[one];
        assert!(old % size == 0 && old + size <= Layout::Twelve.bytes());
        assert!(new == NONE || (new % size == 0 && new + size <= Layout::Thirteen.bytes()));
        let mut other = 0;
        while other < one {
            let (_, other_old, other_new, other_size) = FIELDS[other];
            assert!(old + size <= other_old || other_old + other_size <= old);
            assert!(new == NONE || other_new == NONE || new + size <= other_new || other_new + other_size <= new);
            other += 1;
        }
        one += 1;
    }
};

/// The bytes of the struct for a device. An attribute that the driver does not know is 0.
pub(crate) fn properties(driver: &Driver, device: CUdevice, layout: Layout) -> Result<Vec<u8>, Code> {
    let mut bytes = vec![0; layout.bytes()];
    driver.cuDeviceGetName(bytes.as_mut_ptr().cast::<c_char>(), NAME_BYTES as c_int, device)?;
    let mut uuid = CUuuid { bytes: [0; 16] };
    if driver.cuDeviceGetUuid(&mut uuid, device).is_ok() {
        bytes[UUID..][..16].copy_from_slice(&uuid.bytes);
    }
    let mut memory = 0usize;
    driver.cuDeviceTotalMem_v2(&mut memory, device)?;
    bytes[MEMORY..][..8].copy_from_slice(&(memory as u64).to_le_bytes());
    for (attribute, old, new, size) in FIELDS {
        let at = if layout == Layout::Thirteen { *new } else { *old };
        let mut value = 0;
        // The struct of CUDA 11 ends before the fields that CUDA 12 added.
        if at != NONE && at + size <= bytes.len() && driver.cuDeviceGetAttribute(&mut value, *attribute, device).is_ok()
        {
            bytes[at..][..*size].copy_from_slice(&i64::from(value).to_le_bytes()[..*size]);
        }
    }
    Ok(bytes)
}
