//! Loads whose lanes are two elements apart, at the ends of a page between pages that may not be
//! accessed.

use crate::common::{Args, Launch, at_every_level};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE_BYTES: usize = 4096;

/// Lanes that load.
type Lanes = (&'static str, &'static str, fn(usize) -> bool);

const LANES: [Lanes; 5] = [
    ("all", "setp.ge.u32 %p0, %r0, 0;", |_| true),
    ("the first 5", "setp.lt.u32 %p0, %r0, 5;", |lane| lane < 5),
    ("the first 20", "setp.lt.u32 %p0, %r0, 20;", |lane| lane < 20),
    ("from 3 on", "setp.ge.u32 %p0, %r0, 3;", |lane| lane >= 3),
    ("even ones", "and.b32 %r1, %r0, 1; setp.eq.u32 %p0, %r1, 0;", |lane| lane % 2 == 0),
];

/// A page that can be accessed between two that cannot.
struct Page(*mut u8);

impl Page {
    fn new() -> Page {
        // SAFETY: new memory.
        let start = unsafe {
            mmap_anonymous(std::ptr::null_mut(), 3 * PAGE_BYTES, ProtFlags::empty(), MapFlags::PRIVATE).expect("memory")
        };
        let page = start.cast::<u8>().wrapping_add(PAGE_BYTES);
        // SAFETY: the middle page of the memory above.
        unsafe { mprotect(page.cast(), PAGE_BYTES, MprotectFlags::READ | MprotectFlags::WRITE).expect("access") };
        Page(page)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the page can be read and written, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.0, PAGE_BYTES) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the memory of `new`, which nothing uses any more.
        let _ = unsafe { munmap(self.0.wrapping_sub(PAGE_BYTES).cast(), 3 * PAGE_BYTES) };
    }
}

#[test]
fn every_second_element_is_loaded_and_nothing_beyond() {
    for size in [2, 4, 8] {
        for lanes in LANES {
            check(size, lanes);
        }
    }
}

fn check(size: usize, (name, code, is_active): Lanes) {
    let bits = 8 * size;
    let text = format!(
        ".visible .entry op(.param .u64 in, .param .u64 out)
{{
  .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %x<8>; .reg .b{bits} %v<2>;
  ld.param.u64 %x1, [in]; ld.param.u64 %x2, [out];
  mov.u32 %r0, %tid.x; {code}
  mul.wide.u32 %x3, %r0, {twice}; add.u64 %x1, %x1, %x3;
  mul.wide.u32 %x3, %r0, {size}; add.u64 %x2, %x2, %x3;
  mov.b{bits} %v0, 7;
  @%p0 ld.global.b{bits} %v0, [%x1];
  st.global.b{bits} [%x2], %v0;
  ret;
}}",
        twice = 2 * size,
    );
    let active: Vec<usize> = (0..32).filter(|&lane| is_active(lane)).collect();
    let (first, last) = (active[0], active[active.len() - 1]);
    let mut page = Page::new();
    page.bytes().iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 37 + 11) as u8);
    at_every_level(&text, "op", [32, 1, 1], |kernel| {
        // The first active lane's element begins the page, or the last one's ends it.
        let starts = [0 - 2 * (first * size) as isize, (PAGE_BYTES - size) as isize - 2 * (last * size) as isize];
        for start in starts {
            let mut out = vec![0u8; 32 * size];
            let args = Args::new().u64((page.0 as u64).wrapping_add_signed(start as i64)).slice(&mut out);
            assert_eq!(kernel.run(Launch::grid(1, 1, 1), args), None);
            for lane in 0..32 {
                let at = (start + 2 * (lane * size) as isize) as usize;
                let mut expected = vec![0; size];
                expected[0] = 7;
                if is_active(lane) {
                    expected = page.bytes()[at..at + size].to_vec();
                }
                assert_eq!(
                    out[lane * size..(lane + 1) * size],
                    expected,
                    "b{bits}, {name}, lane {lane}, start {start}"
                );
            }
        }
    });
}
