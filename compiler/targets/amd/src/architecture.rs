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
    /// LLVM's features. With `cumode` all waves of a block run on one compute unit, so a fence of
    /// block scope need not reach the cache of another unit.
    features: &'static str,
}

const ROWS: [Row; 7] = [
    Row { architecture: Architecture::Gfx906, name: "gfx906", wave: 64, features: "" },
    Row { architecture: Architecture::Gfx908, name: "gfx908", wave: 64, features: "" },
    Row { architecture: Architecture::Gfx90a, name: "gfx90a", wave: 64, features: "" },
    Row { architecture: Architecture::Gfx942, name: "gfx942", wave: 64, features: "" },
    Row { architecture: Architecture::Gfx1030, name: "gfx1030", wave: 32, features: "+wavefrontsize32,+cumode" },
    Row { architecture: Architecture::Gfx1100, name: "gfx1100", wave: 32, features: "+wavefrontsize32,+cumode" },
    Row { architecture: Architecture::Gfx1201, name: "gfx1201", wave: 32, features: "+wavefrontsize32,+cumode" },
];

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
