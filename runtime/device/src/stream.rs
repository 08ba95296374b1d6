//! Copies past the caches: for what another core reads next.
//!
//! An ordinary store first reads the line that it overwrites. Where compute units keep the memory
//! busy that doubles what a copy takes (60 µs instead of 26 µs for 600 KB beside one busy core),
//! and what it leaves in the copying core's cache is needed on another one.

/// From this size on it pays; below, what is copied is read again soon.
const STREAM_BYTES_MIN: usize = 64 << 10;

/// Copies `bytes` bytes; large copies do not go through this core's caches. They are visible to
/// whoever sees a later store of this thread.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAM_BYTES_MIN {
        // SAFETY: the caller's promise.
        return unsafe { stream(from, to, bytes) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "the loads take any address, and the targets of the stores are aligned to lines"
)]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    // Streaming stores need aligned addresses, and fill whole lines.
    let head = to.align_offset(LINE).min(bytes);
    let lines = (bytes - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail are parts of the two ranges, which the caller promises; each
    // line begins at a multiple of its size in the target.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let parts = [0, 1, 2, 3].map(|part| _mm_loadu_si128(source.add(part)));
            for (part, value) in parts.into_iter().enumerate() {
                _mm_stream_si128(target.add(part), value);
            }
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
        // Streaming stores are not ordered with others: whoever sees what this thread stores next
        // sees these too.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_no_other_changes() {
        let source: Vec<u8> = (0..STREAM_BYTES_MIN + 300).map(|at| (at % 251) as u8).collect();
        for (skip, begin) in [(0, 0), (1, 0), (0, 1), (63, 65), (7, 64)] {
            for bytes in
                [0, 1, 63, STREAM_BYTES_MIN - 1, STREAM_BYTES_MIN, STREAM_BYTES_MIN + 1, STREAM_BYTES_MIN + 129]
            {
                let mut target = vec![0xEE; bytes + 256];
                let from = &source[skip..skip + bytes];
                // SAFETY: both are slices that long.
                unsafe { copy(from.as_ptr(), target[begin..begin + bytes].as_mut_ptr(), bytes) };
                assert_eq!(&target[begin..begin + bytes], from, "{bytes} bytes from {skip} to {begin}");
                let others = target[..begin].iter().chain(&target[begin + bytes..]);
                assert!(others.copied().all(|byte| byte == 0xEE), "{bytes} bytes from {skip} to {begin}");
            }
        }
    }
}
