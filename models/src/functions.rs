//! The microbenchmarks of KaaS as functions: kernels, a manifest for `atoll pack`, and constants
//! from a seed.
//!
//! `models/functions/README.md` describes what they compute. Each seed gives a function with
//! different constants.

use crate::random::SplitMix;
use std::io;
use std::path::{Path, PathBuf};

/// Sizes are multiples of this number: the tile size of the matrix products.
const SIZE_MULTIPLE: u32 = 64;

/// A benchmark function.
#[derive(Debug)]
pub struct Function {
    /// The name on the command line.
    pub name: &'static str,
    /// Rows and columns of its matrices in the publication.
    pub size: u32,
    manifest: &'static str,
    /// File name and text of its kernels.
    ptx: (&'static str, &'static str),
    /// File names and contents of its constants.
    constants: &'static [(&'static str, Content)],
}

/// The content of a constant.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// A matrix whose product with a vector has about the norm of the vector.
    Matrix,
    /// Such a matrix with complex elements.
    ComplexMatrix,
    /// A diagonally dominant matrix, for which Jacobi's method converges.
    Dominant,
}

/// Every function.
pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "gemm_chain",
        size: 1024,
        manifest: include_str!("../functions/gemm_chain.toml"),
        ptx: ("gemm.ptx", include_str!("../functions/ptx/gemm.ptx")),
        constants: &[
            ("b0.bin", Content::Matrix),
            ("b1.bin", Content::Matrix),
            ("b2.bin", Content::Matrix),
            ("b3.bin", Content::Matrix),
        ],
    },
    Function {
        name: "complex_gemm",
        size: 1024,
        manifest: include_str!("../functions/complex_gemm.toml"),
        ptx: ("gemm.ptx", include_str!("../functions/ptx/gemm.ptx")),
        constants: &[("b.bin", Content::ComplexMatrix)],
    },
    Function {
        name: "jacobi",
        size: 512,
        manifest: include_str!("../functions/jacobi.toml"),
        ptx: ("jacobi.ptx", include_str!("../functions/ptx/jacobi.ptx")),
        constants: &[("a.bin", Content::Dominant)],
    },
];

/// The function with a name.
pub fn function_by_name(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

impl Function {
    /// Writes manifest, kernels and constants to an existing folder. Returns the path of the
    /// manifest.
    ///
    /// # Errors
    /// `size` is 0 or not a multiple of 64, or a file cannot be written.
    pub fn write(&self, folder: &Path, size: u32, seed: u64) -> io::Result<PathBuf> {
        if size == 0 || !size.is_multiple_of(SIZE_MULTIPLE) {
            let message = format!("size {size} is invalid; {} takes multiples of {SIZE_MULTIPLE}", self.name);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let manifest = folder.join(self.name).with_extension("toml");
        std::fs::write(&manifest, self.manifest.replace(&self.size.to_string(), &size.to_string()))?;
        std::fs::write(folder.join(self.ptx.0), self.ptx.1)?;
        let mut random = SplitMix::new(seed ^ 0x00f0_07c7_1045_0000);
        for (file, content) in self.constants {
            std::fs::write(folder.join(file), content.bytes(size, &mut random))?;
        }
        Ok(manifest)
    }
}

impl Content {
    fn bytes(self, size: u32, random: &mut SplitMix) -> Vec<u8> {
        let elements = size as usize * size as usize;
        let mut symmetric = |scale: f32| (random.unit() - 0.5) * scale;
        // Uniform numbers in ±½ have a variance of 1/12; a complex number has the sum of two.
        let scale = (12.0 / size as f32).sqrt();
        let values: Vec<f32> = match self {
            Content::Matrix => (0..elements).map(|_| symmetric(scale)).collect(),
            Content::ComplexMatrix => (0..2 * elements).map(|_| symmetric(scale / 2_f32.sqrt())).collect(),
            Content::Dominant => {
                let is_diagonal = |i: usize| i.is_multiple_of(size as usize + 1);
                (0..elements).map(|i| if is_diagonal(i) { size as f32 } else { symmetric(2.0) }).collect()
            }
        };
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_change_only_the_constants() {
        let folder = |seed| std::env::temp_dir().join(format!("atoll-functions-{}-{seed}", std::process::id()));
        for function in FUNCTIONS {
            let written = |seed| {
                std::fs::create_dir_all(folder(seed)).unwrap();
                let manifest = std::fs::read_to_string(function.write(&folder(seed), 64, seed).unwrap()).unwrap();
                let constants: Vec<Vec<u8>> = function
                    .constants
                    .iter()
                    .map(|(file, _)| std::fs::read(folder(seed).join(file)).unwrap())
                    .collect();
                std::fs::remove_dir_all(folder(seed)).unwrap();
                (manifest, constants)
            };
            let (first, second) = (written(1), written(2));
            assert!(first.0 == second.0 && !first.0.contains(&function.size.to_string()), "{}", function.name);
            assert!(first.1.iter().zip(&second.1).all(|(a, b)| a != b && a.len() == b.len()), "{}", function.name);
            assert_eq!(written(1), first, "{}", function.name);
            assert!(function.write(&folder(0), 100, 0).is_err());
        }
    }
}
