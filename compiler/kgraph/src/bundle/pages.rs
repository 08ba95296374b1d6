//! Weights in the page cache of the operating system.

use super::Bundle;
use std::ops::Range;

impl Bundle {
    /// Asks the system to read a range of the weights ahead (`MADV_WILLNEED`). Does not wait;
    /// errors are ignored because this is only advice.
    pub fn read_ahead(&self, range: Range<usize>) {
        let range = range.start.min(self.weights.len())..range.end.min(self.weights.len());
        #[cfg(unix)]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, self.weights.start + range.start, range.len());
    }

    /// Reads a range of the weights into memory and waits until it is there.
    pub fn read_in(&self, range: Range<usize>) {
        let weights = self.weights();
        let range = range.start.min(weights.len())..range.end.min(weights.len());
        // One system call instead of many page faults; without `MADV_POPULATE_READ`, touch every
        // page.
        #[cfg(target_os = "linux")]
        if self.map.advise_range(memmap2::Advice::PopulateRead, self.weights.start + range.start, range.len()).is_ok() {
            return;
        }
        for byte in weights[range].iter().step_by(page_bytes()) {
            std::hint::black_box(byte);
        }
    }

    /// How many bytes of the weights are in memory, counted in whole pages. `None` if the system
    /// does not report it.
    pub fn weights_in_memory(&self) -> Option<u64> {
        let (start, length) = self.weights_pages();
        let page = page_bytes();
        let mut pages = vec![0_u8; length.div_ceil(page)];
        // SAFETY: the range lies within the mapping and begins at a page boundary, as the mapping
        // does. `pages` has one byte for each page of the range, and `mincore` writes nothing else.
        let answer =
            unsafe { libc::mincore(self.map.as_ptr().add(start).cast_mut().cast(), length, pages.as_mut_ptr().cast()) };
        let resident = pages.iter().filter(|page| **page & 1 != 0).count();
        // The first page includes the end of the header, and the last page may be partial.
        (answer == 0).then(|| ((resident * page) as u64).min(self.weights.len() as u64))
    }

    /// Asks the system to drop the weights from memory (`MADV_PAGEOUT`), as it does itself under
    /// memory pressure. Returns whether at most 1% of them is still in memory.
    pub fn page_out(&self) -> bool {
        let (start, length) = self.weights_pages();
        // SAFETY: the range lies within the mapping and begins at a page boundary. Later reads load
        // the pages from the file, which does not change.
        #[cfg(target_os = "linux")]
        let _ = unsafe { libc::madvise(self.map.as_ptr().add(start).cast_mut().cast(), length, libc::MADV_PAGEOUT) };
        // Pages that other processes map stay in memory.
        self.weights_in_memory().is_some_and(|bytes| bytes <= self.weights.len() as u64 / 100)
    }

    /// The page-aligned start of the weights in the file, and the number of bytes from there to
    /// their end.
    fn weights_pages(&self) -> (usize, usize) {
        let start = self.weights.start - self.weights.start % page_bytes();
        (start, self.weights.end - start)
    }
}

/// The page size in bytes.
fn page_bytes() -> usize {
    // SAFETY: `sysconf` reads a system constant and touches no memory of this process.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}
