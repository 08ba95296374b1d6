//! The weights in memory: what of the file the system keeps in its page cache.

use super::Bundle;
use std::ops::Range;

impl Bundle {
    /// Asks the system to have a range of the weights in memory soon. It is advice: nothing waits,
    /// and nothing goes wrong without it.
    pub fn read_ahead(&self, range: Range<usize>) {
        let range = range.start.min(self.weights.len())..range.end.min(self.weights.len());
        #[cfg(unix)]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, self.weights.start + range.start, range.len());
    }

    /// Brings a range of the weights into memory, and waits for it.
    pub fn read_in(&self, range: Range<usize>) {
        let weights = self.weights();
        let range = range.start.min(weights.len())..range.end.min(weights.len());
        // One call instead of a fault for every few pages; systems that do not know it are made to fault.
        #[cfg(target_os = "linux")]
        if self.map.advise_range(memmap2::Advice::PopulateRead, self.weights.start + range.start, range.len()).is_ok() {
            return;
        }
        for byte in weights[range].iter().step_by(page_bytes()) {
            std::hint::black_box(byte);
        }
    }

    /// How much of the weights is in memory, by the system's count of pages: its page cache is the
    /// tier between disk and device. `None` where the system does not say.
    pub fn weights_in_memory(&self) -> Option<u64> {
        let (start, length) = self.weights_pages();
        let page = page_bytes();
        let mut pages = vec![0_u8; length.div_ceil(page)];
        // SAFETY: the range lies within the mapping and begins at a page, since the mapping does; there is
        // a byte for every page of it, and nothing else is written.
        let answer =
            unsafe { libc::mincore(self.map.as_ptr().add(start).cast_mut().cast(), length, pages.as_mut_ptr().cast()) };
        let resident = pages.iter().filter(|page| **page & 1 != 0).count();
        // The first page holds the end of the header, and the last one may be a part.
        (answer == 0).then(|| ((resident * page) as u64).min(self.weights.len() as u64))
    }

    /// Asks the system to take the weights out of memory, as it does by itself where it needs the
    /// room. Returns whether it did.
    pub fn page_out(&self) -> bool {
        let (start, length) = self.weights_pages();
        // SAFETY: the range lies within the mapping and begins at a page; what is read of it again comes
        // from the file, which does not change.
        #[cfg(target_os = "linux")]
        let _ = unsafe { libc::madvise(self.map.as_ptr().add(start).cast_mut().cast(), length, libc::MADV_PAGEOUT) };
        // Pages that others use too stay.
        self.weights_in_memory().is_some_and(|bytes| bytes <= self.weights.len() as u64 / 100)
    }

    /// Where the pages of the weights begin in the file, and how many bytes it is to their end.
    fn weights_pages(&self) -> (usize, usize) {
        let start = self.weights.start - self.weights.start % page_bytes();
        (start, self.weights.end - start)
    }
}

/// The size of a page of memory.
fn page_bytes() -> usize {
    // SAFETY: asking for a constant of the system touches nothing of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}
