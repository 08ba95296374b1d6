//! The header of a code object: which loaders and which GPUs can take it.
//!
//! The library answers most unsuitable code with the same error, so the header tells the cause.
//! The fields are those of "User Guide for AMDGPU Backend", "ELF Code Object".

use std::fmt;

/// Bytes of the header.
const HEADER_BYTES: usize = 64;
/// `ELFOSABI_AMDGPU_HSA` and `EM_AMDGPU`.
const HSA: u8 = 64;
const AMDGPU: u64 = 224;
/// The version of the code-object ABI is this number more than `EI_ABIVERSION`.
const FIRST_VERSION: u32 = 2;
/// The first version whose flags tell features as [`Feature`] does.
const FEATURES_SINCE: u32 = 4;

/// Facts of a code object's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeObject {
    /// The version of the code-object ABI.
    pub version: u32,
    /// Whether the code needs memory that is paged in on demand.
    pub xnack: Feature,
    /// Whether the code needs error correction of on-chip memory.
    pub sramecc: Feature,
}

/// What code needs of a feature that a GPU runs with or without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Nothing: it runs either way.
    Any,
    /// The feature is off.
    Off,
    /// The feature is on.
    On,
}

/// Why a file is not a whole code object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It does not begin with the header of an ELF file.
    #[error("it is no ELF file")]
    NoElf,
    /// It is an ELF file of another machine.
    #[error("it is an ELF file for another machine")]
    OtherMachine,
    /// The file ends before its section table does.
    #[error("it has {bytes} bytes, and according to its header {expected}")]
    CutOff {
        /// Its size.
        bytes: u64,
        /// The size according to its header.
        expected: u64,
    },
}

/// A feature that code needs and a GPU does not have, or the reverse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the code needs {name} {needed}, and the GPU is {architecture}")]
pub struct Mismatch {
    name: &'static str,
    needed: Feature,
    architecture: String,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Feature::Any => "on or off",
            Feature::Off => "off",
            Feature::On => "on",
        })
    }
}

impl CodeObject {
    /// Reads the header of a file that must be complete.
    ///
    /// # Errors
    /// [`Damage`].
    pub fn read(file: &[u8]) -> Result<CodeObject, Damage> {
        let header = file.first_chunk::<HEADER_BYTES>().filter(|header| header.starts_with(b"\x7fELF\x02\x01"));
        let header = header.ok_or(Damage::NoElf)?;
        let number = |at: usize, bytes: usize| {
            header[at..at + bytes].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte))
        };
        if (header[7], number(0x12, 2)) != (HSA, AMDGPU) {
            return Err(Damage::OtherMachine);
        }
        // An ELF file of LLVM's linker ends with its section table.
        let (begin, size, count) = (number(0x28, 8), number(0x3a, 2), number(0x3c, 2));
        let (bytes, expected) = (file.len() as u64, begin.saturating_add(size * count));
        if bytes < expected {
            return Err(Damage::CutOff { bytes, expected });
        }
        let (version, flags) = (FIRST_VERSION + u32::from(header[8]), number(0x30, 4));
        let feature = |shift: u32| match flags >> shift & 3 {
            2 if version >= FEATURES_SINCE => Feature::Off,
            3 if version >= FEATURES_SINCE => Feature::On,
            _ => Feature::Any,
        };
        Ok(CodeObject { version, xnack: feature(8), sramecc: feature(10) })
    }

    /// Compares the features with those of a GPU, such as `gfx90a:sramecc+:xnack-`. A feature that
    /// the GPU does not name is left to the library.
    ///
    /// # Errors
    /// [`Mismatch`] for the first feature that differs.
    pub fn check_features(&self, architecture: &str) -> Result<(), Mismatch> {
        let sign = |name: &str| architecture.split(':').find_map(|part| part.strip_prefix(name));
        for (name, key, needed) in [("XNACK", "xnack", self.xnack), ("SRAM-ECC", "sramecc", self.sramecc)] {
            let differs = match needed {
                Feature::Any => false,
                Feature::Off => sign(key) == Some("+"),
                Feature::On => sign(key) == Some("-"),
            };
            if differs {
                return Err(Mismatch { name, needed, architecture: architecture.to_owned() });
            }
        }
        Ok(())
    }

    /// The first release of ROCm whose loader knows the version of this code, as major and minor
    /// number (ROCR-Runtime, `GetCodeObjectVersion`). `None` if no release that this was compared
    /// with knows it.
    pub fn rocm_since(&self) -> Option<(u32, u32)> {
        match self.version {
            ..=3 => Some((3, 0)),
            4 => Some((4, 1)),
            5 => Some((5, 2)),
            6 => Some((6, 2)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with a section table of 64 bytes behind it.
    fn file(abi: u8, flags: u32) -> Vec<u8> {
        let mut elf = vec![0; 128];
        elf[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, HSA, abi]);
        elf[0x12] = AMDGPU as u8;
        elf[0x28] = 64;
        elf[0x30..0x34].copy_from_slice(&flags.to_le_bytes());
        elf[0x3a] = 64;
        elf[0x3c] = 1;
        elf
    }

    #[test]
    fn versions_have_the_releases_that_load_them() {
        let since = |abi| CodeObject::read(&file(abi, 0)).map(|code| (code.version, code.rocm_since()));
        assert_eq!(since(2), Ok((4, Some((4, 1)))));
        assert_eq!(since(3), Ok((5, Some((5, 2)))));
        assert_eq!(since(200), Ok((202, None)));
    }

    #[test]
    fn features_are_compared_with_those_of_the_gpu() {
        let check = |flags, gpu| CodeObject::read(&file(2, flags)).expect("a header").check_features(gpu);
        let (any, xnack_on, xnack_off, sramecc_off) = (0x53f, 0x73f, 0x63f, 0x93f);
        let said = |result: Result<(), Mismatch>| result.err().map(|error| error.to_string());
        let gpu = "gfx90a:sramecc+:xnack-";
        assert_eq!((check(any, gpu), check(xnack_off, gpu)), (Ok(()), Ok(())));
        let on = said(check(xnack_on, gpu));
        assert_eq!(on.as_deref(), Some("the code needs XNACK on, and the GPU is gfx90a:sramecc+:xnack-"));
        let off = said(check(sramecc_off, gpu));
        assert_eq!(off.as_deref(), Some("the code needs SRAM-ECC off, and the GPU is gfx90a:sramecc+:xnack-"));
        assert_eq!(check(xnack_on, "gfx1030"), Ok(()), "the library decides");
        let old = CodeObject::read(&file(1, 0x33f)).expect("a header");
        assert_eq!(old.xnack, Feature::Any, "version 3 has other flags");
    }

    #[test]
    fn damage_is_told_apart() {
        let whole = file(2, 0);
        assert_eq!(CodeObject::read(&whole[..127]), Err(Damage::CutOff { bytes: 127, expected: 128 }));
        assert_eq!(CodeObject::read(&whole[..63]), Err(Damage::NoElf));
        assert_eq!(CodeObject::read(b".version 6.3"), Err(Damage::NoElf));
        let mut other = whole;
        other[0x12] = 62;
        assert_eq!(CodeObject::read(&other), Err(Damage::OtherMachine));
    }
}
