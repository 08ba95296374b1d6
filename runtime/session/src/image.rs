//! Images of modules: checks them, and finds their PTX. The driver gets only an address and trusts
//! the sizes in the headers.

use crate::code::Code;
use atoll_fatbin::FatbinError;
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

/// First words of a fat binary.
const FAT_BINARY: [u8; 4] = atoll_fatbin::MAGIC.to_le_bytes();

/// Returns an error if a header of machine code or of a fat binary refers to bytes outside the
/// image. Any other image is a text, which the driver reads up to its end.
pub(crate) fn check(image: &[u8]) -> Result<(), Code> {
    let is_whole = if image.starts_with(&FAT_BINARY) {
        fat_binary(image).is_some()
    } else if image.starts_with(&object::elf::ELFMAG) {
        elf(image).is_some()
    } else {
        true
    };
    if is_whole { Ok(()) } else { Err(Code::INVALID_IMAGE) }
}

/// Why an image has no PTX for a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPtx {
    /// The image is machine code.
    #[error("the image has only machine code")]
    MachineCode,
    /// The fat binary is damaged, or has none for the device.
    #[error(transparent)]
    Fatbin(#[from] FatbinError),
    /// The image is neither machine code nor a text.
    #[error("the PTX is not UTF-8")]
    NotUtf8,
}

/// The PTX of an image for a device of this compute capability: 90 is 9.0, and `u32::MAX` is any
/// device. It ends before the first zero byte.
///
/// # Errors
/// If there is none.
pub fn ptx(image: &[u8], capability: u32) -> Result<String, NoPtx> {
    let ptx = if image.starts_with(&FAT_BINARY) {
        atoll_fatbin::ptx(image, capability)?
    } else if image.starts_with(&object::elf::ELFMAG) {
        return Err(NoPtx::MachineCode);
    } else {
        image.into()
    };
    let end = ptx.iter().position(|byte| *byte == 0).unwrap_or(ptx.len());
    std::str::from_utf8(&ptx[..end]).map(str::to_owned).map_err(|_| NoPtx::NotUtf8)
}

/// Machine code: checks its tables and the contents of all sections and segments.
fn elf(image: &[u8]) -> Option<()> {
    let header = FileHeader64::<Endianness>::parse(image).ok()?;
    let endian = header.endian().ok()?;
    for section in header.section_headers(endian, image).ok()? {
        section.data(endian, image).ok()?;
    }
    for segment in header.program_headers(endian, image).ok()? {
        segment.data(endian, image).ok()?;
    }
    Some(())
}

/// A fat binary: checks that its entries fill it and that machine code in them is complete. The
/// driver checks compressed contents itself.
fn fat_binary(image: &[u8]) -> Option<()> {
    for entry in atoll_fatbin::entries(image).ok()? {
        if entry.payload.starts_with(&object::elf::ELFMAG) {
            elf(entry.payload)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 64-bit ELF file with one section, whose header declares this many bytes.
    fn machine_code(section_bytes: u64) -> Vec<u8> {
        let mut file = vec![0; 64 + 64 + 8];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[6] = 1;
        file[16] = 2;
        file[20] = 1;
        file[40..48].copy_from_slice(&64u64.to_le_bytes());
        file[52..54].copy_from_slice(&64u16.to_le_bytes());
        file[58..60].copy_from_slice(&64u16.to_le_bytes());
        file[60..62].copy_from_slice(&1u16.to_le_bytes());
        file[64 + 4] = 1;
        file[64 + 24..64 + 32].copy_from_slice(&128u64.to_le_bytes());
        file[64 + 32..64 + 40].copy_from_slice(&section_bytes.to_le_bytes());
        file
    }

    /// A fat binary with one entry, whose header declares this many bytes.
    fn fat(payload: &[u8], bytes: u64) -> Vec<u8> {
        let mut file = FAT_BINARY.to_vec();
        file.extend([1, 0, 16, 0]);
        file.extend((32 + payload.len() as u64).to_le_bytes());
        file.extend([2, 0, 1, 1, 32, 0, 0, 0]);
        file.extend(bytes.to_le_bytes());
        file.extend([0; 16]);
        file.extend(payload);
        file
    }

    #[test]
    fn the_ptx_of_an_image_is_its_text_up_to_a_zero() {
        assert_eq!(ptx(b".version 7.0\0rest", 90).map(|text| text.len()), Ok(12));
        assert_eq!(ptx(&machine_code(8), 90), Err(NoPtx::MachineCode));
        assert_eq!(ptx(b"\xff\xfe", 90), Err(NoPtx::NotUtf8));
        assert!(matches!(ptx(&FAT_BINARY, 90), Err(NoPtx::Fatbin(_))));
    }

    #[test]
    fn sizes_beyond_the_image_are_refused() {
        let whole = machine_code(8);
        for image in [b"text".to_vec(), whole.clone(), fat(b"text", 4), fat(&whole, whole.len() as u64)] {
            assert_eq!(check(&image), Ok(()), "{image:?}");
        }
        let lying = machine_code(9);
        let cut = whole[..100].to_vec();
        let wrong =
            [lying.clone(), cut, whole[..20].to_vec(), fat(b"text", 5), fat(b"text", u64::MAX), fat(b"text", 3)];
        for image in wrong.into_iter().chain([fat(&lying, lying.len() as u64), FAT_BINARY.to_vec()]) {
            assert_eq!(check(&image), Err(Code::INVALID_IMAGE), "{image:?}");
        }
    }
}
