//! The architectures, in one table.

use std::fmt;
use std::str::FromStr;

/// Number of lanes of a warp, as PTX sees it.
pub const WARP_LANES: u32 = 32;
/// Maximum number of threads of a block, the same as CUDA's.
pub const MAX_BLOCK_THREADS: u32 = 1024;
/// Maximum bytes of shared memory (LDS) of a block, static and dynamic together, for all
/// architectures of the table.
pub const MAX_SHARED_BYTES: u32 = 65536;

/// An AMD architecture that code is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Architecture {
    /// MI50, MI60, Radeon VII.
    Gfx906,
    /// MI100.
    Gfx908,
    /// MI200.
    Gfx90a,
    /// MI300.
    Gfx942,
    /// RDNA 2.
    Gfx1030,
    /// RDNA 3.
    Gfx1100,
    /// RDNA 4.
    Gfx1201,
}

/// One architecture.
struct Row {
    architecture: Architecture,
    name: &'static str,
    /// Lanes of a wave: 64 or 32.
    wave: u32,
    /// Version of its code objects.
    code_object: u32,
    /// LLVM's features. With `cumode` all waves of a block run on one compute unit, so a fence of
    /// block scope need not reach the cache of another unit.
    features: &'static str,
}

const ROWS: [Row; 7] = [
    row(Architecture::Gfx906, "gfx906", 64, 4),
    row(Architecture::Gfx908, "gfx908", 64, 4),
    row(Architecture::Gfx90a, "gfx90a", 64, 4),
    row(Architecture::Gfx942, "gfx942", 64, 5),
    row(Architecture::Gfx1030, "gfx1030", 32, 4),
    row(Architecture::Gfx1100, "gfx1100", 32, 5),
    row(Architecture::Gfx1201, "gfx1201", 32, 5),
];

const fn row(architecture: Architecture, name: &'static str, wave: u32, code_object: u32) -> Row {
    let features = if wave == 32 { "+wavefrontsize32,+cumode" } else { "" };
    Row { architecture, name, wave, code_object, features }
}

/// Error: a name is not an architecture of the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not an AMD architecture that Atoll knows; it knows {known}")]
pub struct UnknownArchitecture {
    /// The name.
    name: String,
    /// The names of the table.
    known: String,
}

impl Architecture {
    /// All architectures.
    pub const ALL: [Architecture; 7] = [
        Architecture::Gfx906,
        Architecture::Gfx908,
        Architecture::Gfx90a,
        Architecture::Gfx942,
        Architecture::Gfx1030,
        Architecture::Gfx1100,
        Architecture::Gfx1201,
    ];

    fn row(self) -> &'static Row {
        // `ROWS` has one row per variant, which a test checks.
        ROWS.iter().find(|row| row.architecture == self).unwrap_or(&ROWS[0])
    }

    /// Its name, such as `gfx90a`; also LLVM's name of the processor.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Lanes of a wave: 64 or 32. In a wave of 64 lanes each half is a warp of PTX.
    pub fn wave_lanes(self) -> u32 {
        self.row().wave
    }

    /// The version of the code-object ABI that its code has: the oldest that all releases of ROCm
    /// for it load, so that no release refuses the code of a GPU that it knows. Version 4 needs
    /// ROCm 4.1, version 5 needs ROCm 5.2 (ROCR-Runtime, `GetCodeObjectVersion`). ROCm knows
    /// gfx1100 since 5.3, gfx942 since 5.7 and gfx1201 since 6.2 (ROCR-Runtime, `isa.cpp`).
    pub fn code_object_version(self) -> u32 {
        self.row().code_object
    }

    pub(crate) fn llvm_features(self) -> &'static str {
        self.row().features
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Architecture {
    type Err = UnknownArchitecture;

    fn from_str(name: &str) -> Result<Architecture, UnknownArchitecture> {
        ROWS.iter()
            .find(|row| row.name == name)
            .map(|row| row.architecture)
            .ok_or_else(|| UnknownArchitecture { name: name.to_owned(), known: ROWS.map(|row| row.name).join(", ") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_architecture_has_a_row() {
        for architecture in Architecture::ALL {
            assert_eq!(architecture.row().architecture, architecture);
            assert_eq!(architecture.name().parse(), Ok(architecture));
        }
        let error = "gfx803".parse::<Architecture>().unwrap_err().to_string();
        assert!(error.contains("gfx803") && error.contains("gfx90a"), "{error}");
    }
}
