use crate::*;

const TEXT: &[u8] = b".version 7.0\n.target sm_80\n// the same line\n// the same line\n// the same line\n";

/// A Zstandard frame with `TEXT` in an uncompressed block.
fn zstandard_frame() -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x20, TEXT.len() as u8];
    frame.extend_from_slice(&((TEXT.len() as u32) << 3 | 1).to_le_bytes()[..3]);
    frame.extend(TEXT);
    frame
}

/// Window descriptors of a Zstandard frame for 128 KiB, 64 MiB and 128 MiB.
const SMALL_WINDOW: u8 = 0x38;
const LARGEST_WINDOW: u8 = 0x80;
const TOO_LARGE_WINDOW: u8 = 0x88;

/// A Zstandard frame with zeros, in blocks that repeat one byte 131,072 times.
fn zstandard_zeros(window: u8, blocks: usize) -> Vec<u8> {
    // The frame declares no content size.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, window];
    for block in 0..blocks {
        let head = (128u32 << 10) << 3 | 1 << 1 | u32::from(block + 1 == blocks);
        frame.extend_from_slice(&head.to_le_bytes()[..3]);
        frame.push(0);
    }
    frame
}

struct Made<'a> {
    kind: u16,
    capability: u32,
    flags: u64,
    payload: &'a [u8],
    contents_bytes: u64,
}

impl<'a> Made<'a> {
    fn ptx(capability: u32, payload: &'a [u8]) -> Made<'a> {
        Made { kind: 1, capability, flags: 0x11, payload, contents_bytes: 0 }
    }

    fn compressed(flags: u64, payload: &'a [u8], contents_bytes: u64) -> Made<'a> {
        Made { kind: 1, capability: 80, flags, payload, contents_bytes }
    }
}

fn fat(made: &[Made<'_>]) -> Vec<u8> {
    let mut entries = Vec::new();
    for Made { kind, capability, flags, payload, contents_bytes } in made {
        let padded = payload.len().next_multiple_of(8);
        let is_compressed = flags & (LZ4 | ZSTANDARD) != 0;
        entries.extend(kind.to_le_bytes());
        entries.extend(0x101u16.to_le_bytes());
        entries.extend(64u32.to_le_bytes());
        entries.extend((padded as u64).to_le_bytes());
        entries.extend(if is_compressed { payload.len() as u32 } else { 0 }.to_le_bytes());
        entries.extend([0; 8]);
        entries.extend(capability.to_le_bytes());
        entries.extend([0; 8]);
        entries.extend(flags.to_le_bytes());
        entries.extend([0; 8]);
        entries.extend(contents_bytes.to_le_bytes());
        entries.extend(*payload);
        entries.resize(entries.len() + padded - payload.len(), 0);
    }
    let mut file = MAGIC.to_le_bytes().to_vec();
    file.extend([1, 0, 16, 0]);
    file.extend((entries.len() as u64).to_le_bytes());
    file.extend(entries);
    file
}

#[test]
fn ptx_is_found_however_it_is_compressed() {
    let lz4 = lz4_flex::block::compress(TEXT);
    let zstandard = zstandard_frame();
    let bytes = TEXT.len() as u64;
    let forms =
        [Made::ptx(80, TEXT), Made::compressed(0x2011, &lz4, bytes), Made::compressed(0x8011, &zstandard, bytes)];
    for form in forms {
        let file = fat(&[Made { kind: 2, ..Made::ptx(90, b"\x7fELF") }, form]);
        assert_eq!(ptx(&file, 90).as_deref(), Ok(TEXT));
        assert_eq!(entries(&file).expect("it is whole")[0].kind, Kind::MachineCode);
    }
}

#[test]
fn the_newest_ptx_that_the_device_can_run_is_chosen() {
    let file = fat(&[Made::ptx(75, b"old"), Made::ptx(90, b"new"), Made::ptx(80, b"middle")]);
    let chosen = |capability| ptx(&file, capability).map(Cow::into_owned);
    assert_eq!(chosen(89).as_deref(), Ok(b"middle".as_slice()));
    assert_eq!(chosen(100).as_deref(), Ok(b"new".as_slice()));
    let refused = chosen(70).unwrap_err().to_string();
    assert!(refused.contains("no PTX for sm_70") && refused.contains("PTX for sm_75, PTX for sm_90"), "{refused}");
    assert_eq!(chosen(u32::MAX).as_deref(), Ok(b"new".as_slice()));
    let none = ptx(&fat(&[]), u32::MAX).unwrap_err().to_string();
    assert_eq!(none, "the fat binary has no PTX; it has nothing");
}

#[test]
fn sizes_that_lie_are_refused() {
    let lz4 = lz4_flex::block::compress(TEXT);
    let zstandard = zstandard_frame();
    for wrong in [TEXT.len() as u64 - 1, TEXT.len() as u64 + 1, 0] {
        for (flags, payload) in [(0x2011, &lz4), (0x8011, &zstandard)] {
            let file = fat(&[Made::compressed(flags, payload, wrong)]);
            let refused = ptx(&file, 90);
            assert!(matches!(refused, Err(FatbinError::Compression { .. })), "{refused:?}");
        }
    }
    let huge = ptx(&fat(&[Made::compressed(0x8011, &zstandard, u64::MAX)]), 90).map(drop);
    assert_eq!(huge, Err(FatbinError::TooLarge { bytes: u64::MAX }));
    // 128 MiB of zeros in 4 KiB: decompression stops one byte after the declared size.
    let file = fat(&[Made::compressed(0x8011, &zstandard_zeros(SMALL_WINDOW, 1024), 1 << 20)]);
    let bomb = ptx(&file, 90).unwrap_err().to_string();
    assert!(bomb.ends_with("its header declares 1048576 bytes, and it has 1048577"), "{bomb}");
    let old = ptx(&fat(&[Made::compressed(0x1011, b"text", 4)]), 90).map(drop).unwrap_err().to_string();
    assert!(old.contains("before CUDA 11") && old.contains("compile again"), "{old}");
}

#[test]
fn a_window_is_at_most_as_large_as_contents() {
    let zeros = |window| {
        let frame = zstandard_zeros(window, 1);
        ptx(&fat(&[Made::compressed(0x8011, &frame, 128 << 10)]), 90).map(drop)
    };
    assert_eq!(zeros(LARGEST_WINDOW), Ok(()));
    let refused = zeros(TOO_LARGE_WINDOW).unwrap_err().to_string();
    assert!(refused.contains("Zstandard") && refused.contains("134217728"), "{refused}");
}

#[test]
fn headers_that_lie_are_refused() {
    let whole = fat(&[Made::ptx(80, TEXT), Made::ptx(90, TEXT)]);
    for count in 0..whole.len() {
        assert!(entries(&whole[..count]).is_err(), "{count} of {} bytes", whole.len());
    }
    // Changes each byte of the headers in several ways: the result is an error or entries, never a
    // panic.
    for at in (0..80).chain(16 + 64 + TEXT.len().next_multiple_of(8)..whole.len() - TEXT.len()) {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut wrong = whole.clone();
            wrong[at] = value;
            let _ = ptx(&wrong, 90);
        }
    }
    let many = fat(&(0..=ENTRIES_MAX).map(|_| Made::ptx(80, b"")).collect::<Vec<_>>());
    assert_eq!(entries(&many).map(drop), Err(FatbinError::Entries));
    assert_eq!(entries(b"\x7fELF").map(drop), Err(FatbinError::NotAFatBinary));
}
