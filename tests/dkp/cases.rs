//! The kernels of `candidates.ptx` in several launch shapes, with their inputs. Tests of dkp launches
//! include this file: those of the host device, and those of code objects for AMD GPUs.

/// The source of all kernels.
pub(crate) const CANDIDATES: &str = include_str!("candidates.ptx");

/// A kernel in one launch shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) entry: &'static str,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
}

pub(crate) const CASES: [Case; 9] = [
    Case { entry: "scale", grid: [7, 1, 1], block: [49, 1, 1] },
    Case { entry: "scale", grid: [3, 1, 1], block: [256, 1, 1] },
    Case { entry: "reverse", grid: [5, 1, 1], block: [49, 1, 1] },
    Case { entry: "reverse", grid: [4, 1, 1], block: [98, 1, 1] },
    Case { entry: "reverse", grid: [2, 3, 1], block: [196, 1, 1] },
    Case { entry: "reverse", grid: [2, 1, 2], block: [4, 8, 3] },
    Case { entry: "reverse", grid: [1, 2, 2], block: [7, 7, 4] },
    Case { entry: "sums", grid: [9, 1, 1], block: [64, 1, 1] },
    Case { entry: "sums", grid: [4, 1, 1], block: [256, 1, 1] },
];

impl Case {
    pub(crate) fn blocks(&self) -> u32 {
        self.grid.iter().product()
    }

    /// Elements of the input and of the output: one per thread.
    fn elements(&self) -> u32 {
        self.grid.iter().chain(&self.block).product()
    }

    /// The input, which depends on the seed, and the output before the launch.
    pub(crate) fn buffers_of(&self, seed: u32) -> [Vec<u8>; 2] {
        let input = (0..self.elements()).flat_map(|i| (i.wrapping_mul(2_654_435_761) ^ seed).to_le_bytes()).collect();
        [input, vec![0xEE; 4 * self.elements() as usize]]
    }

    /// The arguments behind the two buffers.
    pub(crate) fn integers(&self) -> Vec<u32> {
        // The last threads have nothing to do.
        if self.entry == "scale" { vec![3, self.elements() - 5] } else { Vec::new() }
    }
}
